"""Testees as processes: asked, timed, and ended for certain, with all that they started."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from semtrace.errors import UsageError
from semtrace_conformance.process import Process, TroubleError, parse_command


def start(tmp_path, program):
    path = tmp_path / "testee.py"
    path.write_text(program, "utf-8")
    return Process([sys.executable, "-I", "-S", str(path)], tmp_path / "run")


def test_lines_are_answered_in_a_folder_of_its_own(tmp_path):
    process = start(
        tmp_path, "import os, sys\nfor line in sys.stdin: print(line.strip(), os.getcwd(), flush=True)"
    )
    assert process.ask(b"one\n", 20).decode().split() == ["one", str(tmp_path / "run")]
    assert process.ask(b"two\n", 20).decode().startswith("two ")
    process.close(b"")


def test_a_long_line_goes_both_ways(tmp_path):
    process = start(
        tmp_path, "import sys\nfor line in sys.stdin: print(len(line), 'x' * 1000000, flush=True)"
    )
    answer = process.ask(b"y" * 1_000_000 + b"\n", 60)
    assert (answer[:8], len(answer)) == (b"1000001 ", 1_000_008)
    process.close(b"")


@pytest.mark.parametrize(
    ("program", "says", "late"),
    [
        ("import sys; sys.exit(3)", "status 3", False),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL", False),
        ("import sys, os, time; input(); os.close(1); time.sleep(60)", "closed its standard output", False),
        ("import sys\ninput()\nwhile True: sys.stdout.write('x' * 65536)", "longer than", False),
        ("import time; time.sleep(60)", "no answer within", True),
    ],
)
def test_what_is_no_answer(tmp_path, program, says, late):
    process = start(tmp_path, program)
    with pytest.raises(TroubleError, match=says) as caught:
        process.ask(b"one\n", 2 if late else 60)
    assert caught.value.late == late
    process.kill()


def test_a_line_that_nobody_asked_for(tmp_path):
    process = start(
        tmp_path, "import sys\nfor line in sys.stdin: sys.stdout.write('a\\nb\\n'); sys.stdout.flush()"
    )
    assert process.ask(b"one\n", 20) == b"a"
    with pytest.raises(TroubleError, match="nobody asked for"):
        process.ask(b"two\n", 20)
    process.kill()


def test_who_does_not_read_runs_out_of_time(tmp_path):
    process = start(tmp_path, "import time; time.sleep(60)")
    with pytest.raises(TroubleError, match="did not read"):
        process.ask(b"x" * 10_000_000 + b"\n", 1)
    process.kill()


def test_its_children_end_with_it(tmp_path):
    process = start(
        tmp_path,
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "input(); print(child.pid, flush=True); time.sleep(600)",
    )
    child = int(process.ask(b"one\n", 20))
    process.kill()
    for _ in range(500):
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{child}/stat").read_text("utf-8").split()[2] == "Z":
            return
        time.sleep(0.01)
    pytest.fail("the child lives on")


def test_the_end_of_standard_error_is_kept(tmp_path):
    process = start(tmp_path, "import sys\nsys.stderr.write('a' * 100000 + 'the end')\nsys.exit(1)")
    with pytest.raises(TroubleError):
        process.ask(b"one\n", 20)
    text = process.stderr()
    process.kill()
    assert text.endswith("the end")
    assert len(text) <= 8192


def test_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("shim.py").touch()
    command = parse_command(f"{sys.executable} -u shim.py --profile 'a b'")
    assert command == [sys.executable, "-u", str(tmp_path / "shim.py"), "--profile", "a b"]
    for wrong, says in (
        ("", "empty"),
        ("no-such-program x", "no testee"),
        ("'open", "closing quotation|No closing"),
    ):
        with pytest.raises(UsageError, match=says):
            parse_command(wrong)


def test_a_program_that_cannot_be_run(tmp_path):
    with pytest.raises(UsageError, match="cannot be started"):
        Process([str(tmp_path)], tmp_path / "run")
