"""`semtrace record vllm`: the server's command, how it is ended, what becomes of its log. A script stands for the server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from semtrace.store.bundle import open_bundle

TESTS = Path(__file__).parents[1]
SERVER = """
import json, os, signal, subprocess, sys, time
assert sys.argv[2:] == ["--model", "m", "--scheduler-cls", "semtrace_adapters.vllm.plugin.content_scheduler",
                        "--middleware", "semtrace_adapters.vllm.hints.Hints"], sys.argv
how, log = sys.argv[1], os.environ["SEMTRACE_VLLM_LOG"]
if how == "nothing":
    sys.exit(7)
import semtrace_adapters.vllm.hints  # it is found
sys.path.insert(0, TESTS)
from pathlib import Path
from support.vllm_logs import StepLog
made = StepLog()
made.serve(10, [5, 6, 7], [8, 9])
with open(log, "ab") as file:
    file.write(b"".join(json.dumps(line).encode() + b"\\n" for line in made.lines))
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
Path("child").write_text(str(child.pid))
print("ready", flush=True)
if how == "itself":
    sys.exit(3)
if how == "torn":
    open(log, "ab").write(b'{"kind":')
    os.kill(os.getpid(), signal.SIGKILL)
if how == "deaf":
    signal.signal(signal.SIGTERM, lambda *_: print("no", flush=True))
else:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
Path("ready").write_text("")
while True:
    time.sleep(0.05)
"""
COMMAND = [sys.executable, "-c", "from semtrace_adapters.record import app; app()", "vllm"]


def start(folder: Path, how: str, *options: str) -> subprocess.Popen[str]:
    script = folder / "server.py"
    script.write_text(f"TESTS = {str(TESTS)!r}\n{SERVER}", "utf-8")
    return subprocess.Popen(
        [*COMMAND, "-o", "run.semtrace", *options, "--", sys.executable, str(script), how, "--model", "m"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def record(folder: Path, how: str, *options: str, stops: tuple[int, ...] = ()) -> tuple[int, str, str]:
    """Run it, and send it signals when its server is ready."""
    with start(folder, how, *options) as command:
        for number in stops:
            while command.poll() is None and not (folder / "ready").exists():
                time.sleep(0.02)
            command.send_signal(number)
            time.sleep(0.5)
        out, err = command.communicate(timeout=120)
    assert "Traceback" not in err, err
    return command.returncode, out, err


def is_alive(folder: Path) -> bool:
    """Whether a process that the server left is still there."""
    state = Path(f"/proc/{(folder / 'child').read_text('utf-8')}/stat")
    return state.exists() and state.read_text("utf-8").rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_server_is_told_to_end_and_its_run_is_sealed(tmp_path: Path, stop: int):
    code, out, err = record(tmp_path, "fine", "--json", stops=(stop,))
    assert code == 0, err
    told: dict[str, Any] = json.loads(out)
    assert (told["tasks"], told["operations"], told["findings"]) == (1, 1, [])
    assert told["server"] == {"exit_code": 0, "told_to_end": True, "killed": False}
    assert "ready" in err  # what the server prints is not among the JSON
    bundle = open_bundle(tmp_path / "run.semtrace")
    assert bundle.trace.operations.ints("prompt_tokens").tolist() == [3]
    assert bundle.execution("native").events.rows == 1
    assert [source.name for source in bundle.manifest.sources] == ["run.semtrace.steps.jsonl"]
    assert not (tmp_path / "run.semtrace.steps.jsonl").exists()
    assert not is_alive(tmp_path)


def test_a_log_is_kept_where_it_is_asked_for_and_nobody_else_may_read_it(tmp_path: Path):
    code, out, _ = record(tmp_path, "fine", "--log", "steps.jsonl", stops=(signal.SIGTERM,))
    assert code == 0
    assert "1 tasks, 1 operations, 0 edges" in out
    assert (tmp_path / "steps.jsonl").stat().st_mode & 0o777 == 0o600
    assert [source.name for source in open_bundle(tmp_path / "run.semtrace").manifest.sources] == [
        "steps.jsonl"
    ]


def test_a_server_that_ends_by_itself_is_sealed_and_told(tmp_path: Path):
    code, out, _ = record(tmp_path, "itself")
    assert code == 1
    assert "the server ended by itself, with 3" in out
    assert open_bundle(tmp_path / "run.semtrace").trace.operations.rows == 1
    assert not is_alive(tmp_path)


def test_a_server_that_is_killed_leaves_all_but_what_it_was_writing(tmp_path: Path):
    code, out, _ = record(tmp_path, "torn", "--json")
    assert code == 1
    told = json.loads(out)
    assert told["operations"] == 1
    assert told["server"]["exit_code"] == -signal.SIGKILL
    assert "lines.torn" in {loss["code"] for loss in told["loss"]}


@pytest.mark.parametrize(
    ("options", "stops"), [(("--grace", "0.3"), (signal.SIGTERM,)), ((), (signal.SIGINT, signal.SIGINT))]
)
def test_a_server_that_does_not_end_is_killed(
    tmp_path: Path, options: tuple[str, ...], stops: tuple[int, ...]
):
    code, out, _ = record(tmp_path, "deaf", "--json", *options, stops=stops)
    assert code == 0
    assert json.loads(out)["server"] == {"exit_code": -signal.SIGKILL, "told_to_end": True, "killed": True}
    assert not is_alive(tmp_path)


def test_a_server_without_our_scheduler_recorded_nothing(tmp_path: Path):
    code, _, err = record(tmp_path, "nothing")
    assert code == 2
    assert "the server ended with 7 before its scheduler was made" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["server.py"]


def test_what_is_there_is_not_replaced(tmp_path: Path):
    for name in ("run.semtrace", "run.semtrace.steps.jsonl", "run.semtrace.steps.jsonl.1"):
        (tmp_path / name).write_text("mine", "utf-8")
        code, _, err = record(tmp_path, "fine")
        assert code == 2, name
        assert name in err
        assert (tmp_path / name).read_text("utf-8") == "mine"
        assert not (tmp_path / "ready").exists()
        (tmp_path / name).unlink()


def run(*arguments: str) -> tuple[int, str]:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_wrong_use(tmp_path: Path):
    out = str(tmp_path / "run.semtrace")
    code, err = run("-o", out, "--", "no-such-server")
    assert (code, "cannot be started" in err) == (2, True)
    code, err = run("-o", out, "--", "vllm", "serve", "m", "--scheduler-cls=mine")
    assert (code, "names a scheduler of its own" in err) == (2, True)
    code, err = run("-o", out, "--set", "tasks=some", "--", "vllm", "serve", "m")
    assert (code, "no option tasks=some" in err) == (2, True)
    code, err = run("-o", out)
    assert (code, "Missing argument" in err) == (2, True)
    assert list(tmp_path.iterdir()) == []
