"""Dynamo's mocker as a server that gives outputs it was told before: tokens locked, lengths locked, both audited."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from semtrace.build import TraceBuilder
from semtrace.records.enums import OperationKind, Role
from semtrace.records.media import TOKEN_IDS_TYPE
from semtrace.store.bundle import open_bundle, write_bundle

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
DYNAMO = ROOT / ".venvs" / "dynamo" / "bin" / "python"
HERE = ROOT / ".venv" / "bin" / "python"
COMMAND = "from semtrace.cli import main; main()"
LATE = 5_000_000_000
"""A tolerance that no machine is too busy for, in ns: how punctual a replay is, benchmarks tell."""

pytestmark = pytest.mark.integration


def semtrace(*words: object) -> dict[str, Any]:
    done = subprocess.run(
        [str(word) for word in (HERE, "-c", COMMAND, *words, "--json")],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value | {"code": done.returncode}


def team(path: Path) -> int:
    """A planner, eight branches of three calls with tools between, and a writer; returns the number of output tokens."""
    made, rng, total = TraceBuilder(), Random(5), 0
    task = made.task("a team")

    def call(prompt: int, output: int, after: list[int]) -> int:
        nonlocal total
        total += output
        ids = np.array([rng.randrange(2, 1024) for _ in range(output)], dtype="<u4").tobytes()
        row = made.operation(task, OperationKind.LLM, "call", prompt_tokens=prompt, output_tokens=output)
        made.update_operation(row, output_token_ids=made.artifact(ids, TOKEN_IDS_TYPE))
        made.segment(row, Role.USER, tokens=prompt)
        for source in after:
            made.edge(row, source)
        return row

    root, ends = call(40, 12, []), []
    for _ in range(8):
        before = root
        for _ in range(3):
            tool = made.operation(task, OperationKind.TOOL, "search", duration_ns=rng.randrange(20_000_000))
            made.edge(tool, before)
            before = call(rng.randrange(20, 300), rng.randrange(5, 60), [tool])
        ends.append(before)
    call(500, 40, ends)
    write_bundle(path, trace=made.build().trace)
    return total


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        port: int = made.getsockname()[1]
    return port


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dynamo")


@pytest.fixture(scope="module")
def trace(folder: Path) -> tuple[Path, int]:
    path = folder / "team.semtrace"
    return path, team(path)


@pytest.fixture(scope="module")
def url(folder: Path, trace: tuple[Path, int]) -> Iterator[str]:
    if not DYNAMO.exists():
        pytest.fail(f"there is no {DYNAMO}: make .venvs/dynamo/.installed")
    model, outputs, port = folder / "model", folder / "outputs.jsonl", free_port()
    subprocess.run(
        [DYNAMO, Path(__file__).parent / "dynamo" / "model.py", model], check=True, capture_output=True
    )
    semtrace("export", trace[0], "--format", "mooncake", "--set", "outputs=yes", "-o", outputs)
    environment = {
        **os.environ, "DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": str(folder / "kv"), "DYN_REQUEST_PLANE": "tcp",
        "DYN_EVENT_PLANE": "zmq", "HF_HUB_OFFLINE": "1", "DYN_LOG": "error",
    }  # fmt: skip
    found = ["--discovery-backend", "file"]
    commands = (
        [DYNAMO, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port), *found],
        [
            DYNAMO,
            "-m",
            "dynamo.mocker",
            "--model-path",
            model,
            *found,
            "--response-replay-trace-path",
            outputs,
        ],
    )
    logs = [(folder / f"{name}.log").open("wb") for name in ("frontend", "mocker")]
    programs = [
        subprocess.Popen([str(word) for word in command], env=environment, stdout=log, stderr=log)
        for command, log in zip(commands, logs, strict=True)
    ]
    try:
        until = time.monotonic() + 120
        while not lists_models(f"127.0.0.1:{port}"):
            said = (folder / "mocker.log").read_text()[-2000:]
            assert time.monotonic() < until, said
            assert all(program.poll() is None for program in programs), said
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        for program in programs:
            program.terminate()
        for program in programs:
            program.wait(timeout=30)
        for log in logs:
            log.close()


def lists_models(address: str) -> bool:
    link = http.client.HTTPConnection(address, timeout=5)
    try:
        link.request("GET", "/v1/models")
        return bool(json.load(link.getresponse())["data"])
    except OSError:
        return False
    finally:
        link.close()


def test_doctor_finds_the_lock(url: str):
    found = semtrace("doctor", "--url", url)
    assert found["locks"] == ["annotation"]
    assert set(found["modes"]) == {"length_locked", "token_locked"}


def test_tokens_are_locked(url: str, trace: tuple[Path, int], folder: Path):
    path, total = trace
    out = folder / "locked.semtrace"
    told = semtrace(
        "replay", path, "--url", url, "--mode", "token-locked", "-o", out,
        "--set", "inputs=synthetic", "--set", "vocabulary.first=2", "--set", "vocabulary.size=1024",
    )  # fmt: skip
    assert told["outcomes"] == {"ok": 50}
    assert told["environment"]["requests"]["lock"] == "annotation"
    audited = semtrace("audit", path, out, "--tolerance-ns", LATE)
    assert (audited["verdict"], audited["findings"]) == ("clean", [])
    run = open_bundle(out).execution("replay")
    assert int(run.events.ints("output_tokens")[run.events.ints("attempts") >= 1].sum()) == total
    assert sum(len(run.content.get(each) or b"") for each in run.content) == 4 * total


def test_lengths_are_locked(url: str, trace: tuple[Path, int], folder: Path):
    path, _ = trace
    out = folder / "lengths.semtrace"
    semtrace(
        "replay", path, "--url", url, "-o", out,
        "--set", "inputs=synthetic", "--set", "vocabulary.first=2", "--set", "vocabulary.size=1024",
    )  # fmt: skip
    audited = semtrace("audit", path, out, "--tolerance-ns", LATE)
    assert (audited["verdict"], audited["findings"]) == ("clean", [])
