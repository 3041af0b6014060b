"""Runs the script that drives vLLM's own schedulers, in the environment that has vLLM."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venvs" / "vllm" / "bin" / "python"
SCRIPTS = ROOT / "tests" / "integration" / "vllm"
FORCED = ("--logits-processors", "semtrace.live.vllm.plugin:ForcedTokens")
"""Arguments of a server that has our token lock."""


def environment() -> Path:
    """The Python that has vLLM."""
    if not PYTHON.exists():
        raise AssertionError("there is no environment for vLLM: make .venvs/vllm/.installed")
    return PYTHON


def command(*arguments: str | Path, timeout: float = 1800) -> subprocess.CompletedProcess[str]:
    """A command of semtrace, run where vLLM is, with a tiny model in mind."""
    return subprocess.run(
        [environment(), "-W", "ignore", "-m", "semtrace", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env=variables(),
    )


def variables(**more: str) -> dict[str, str]:
    """The environment of a process in which vLLM runs a tiny model, and finds this semtrace."""
    found = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, found)),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        **more,
    }


def engine(order: str) -> tuple[dict[str, Any], list[list[Any]]]:
    """A load that ran in vLLM's whole engine, and its schedule."""
    command = [environment(), "-W", "ignore", SCRIPTS / "engine.py", order]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise AssertionError(done.stderr[-3000:])
    case, rows = json.loads(done.stdout.splitlines()[-1])
    return case, rows


def recorded(cases: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], list[list[Any]]]]:
    """Each case with the schedule that vLLM makes of it, while vLLM goes on with the next."""
    command = [environment(), "-W", "ignore", SCRIPTS / "drive.py"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        into = driver.stdin

        def ask() -> None:
            with suppress(BrokenPipeError), into:  # if vLLM has ended, how it did is told below
                for case in cases:
                    into.write(json.dumps(case) + "\n")

        asking = threading.Thread(target=ask)
        asking.start()
        answered = 0
        for line in driver.stdout:
            yield cases[answered], json.loads(line)
            answered += 1
        asking.join()
    if driver.returncode or answered != len(cases):
        raise AssertionError(
            f"vLLM's driver ended with {driver.returncode} after {answered} of {len(cases)} cases"
        )


@contextmanager
def server(
    model: Path, log: Path, *arguments: str, lock: Sequence[str] = FORCED, **more: str
) -> Iterator[str]:
    """A vLLM server on this machine with what semtrace adds to it; its URL. Its steps go to a file."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command_line = [
        environment(), "-W", "ignore", "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "tiny",
        "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager", "--enable-prompt-tokens-details",
        *lock, "--scheduler-cls", "semtrace.live.vllm.plugin.recording_scheduler", *arguments,
    ]  # fmt: skip
    said = log.with_suffix(".said")
    with said.open("wb") as out:
        process = subprocess.Popen(
            command_line, stdout=out, stderr=out, env=variables(SEMTRACE_VLLM_LOG=str(log), **more)
        )
        try:
            while process.poll() is None and not _answers(url):
                time.sleep(0.5)
            if process.poll() is not None:
                raise AssertionError(f"the server ended: {said.read_text()[-3000:]}")
            yield url
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:  # noqa: S310  # our own
            return bool(answer.status == 200)
    except OSError:
        return False
