"""How the command line starts: what it imports, what it knows, and how it ends when nobody reads it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer

import semtrace
from semtrace.cli.main import COMMANDS, build
from semtrace.store.bundle import write_bundle
from support.graphs import graph


def names(app: typer.Typer) -> list[str]:
    return list(typer.main.get_command(app).commands)


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "semtrace", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == semtrace.__version__


def test_only_the_command_that_is_named_is_made():
    everything = names(build())
    assert [name for name in everything if name in COMMANDS] == list(COMMANDS)
    assert {"import", "record", "certify", "certificate"} < set(everything)
    for name in everything:
        assert names(build(name)) == [name]
    for word in ("", "--help", "chek"):
        assert names(build(word)) == everything


def test_a_check_begins_without_what_it_does_not_need():
    script = (
        "import sys; from semtrace.cli.main import build; build('check');"
        "print(*({'rich', 'numpy', 'pyarrow', 'pydantic', 'semtrace.cli.tools', 'importlib.metadata'} & {*sys.modules}))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""


def loaded(*words: object) -> set[str]:
    """The modules that are there when a command ends."""
    script = (
        "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr));"
        "from semtrace.cli import main; main()"
    )
    command = [sys.executable, "-c", script, *map(str, words)]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stderr.split())


def test_commands_load_only_what_they_use(tmp_path):
    trace, execution = tmp_path / "t.semtrace", tmp_path / "e.semtrace"
    write_bundle(
        trace, graph({"operations": [{"name": "a", "kind": "llm", "prompt": 40, "output": 20}]}).trace
    )
    never = {"pyarrow.compute", "asyncio", "http.client", "numba"}
    checked = loaded("check", trace)
    assert "semtrace.check" in checked
    assert checked & {*never, "rich", "yaml", "semtrace.engine", "semtrace.replay"} == set()
    assert loaded("--help") & {*never, "numpy", "pyarrow", "yaml"} == set()
    assert loaded("replay", trace, "--engine", "qwen3-8b-a100", "-o", execution) & never == set()


@pytest.mark.parametrize("words", [["--version"], ["seal", "a.stsl", "-o", "b"], ["--help"]])
@pytest.mark.parametrize("missing", ["typer", "blake3"])
def test_where_only_a_recorder_can_run_commands_say_where_to_go(words, missing):
    script = f"import sys; sys.modules[{missing!r}] = None; from semtrace.cli import main; main()"
    ran = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
    if missing == "blake3" and words[0] != "seal":
        assert ran.returncode == 0  # what does not need it runs
        return
    assert ran.returncode == 2
    assert f"{missing} is not installed" in ran.stderr
    assert "environment of semtrace's own" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
@pytest.mark.parametrize("words", ["--help", "check --help", "--version", "artifacts --help"])
def test_help_that_nobody_reads_ends_quietly(words):
    line = f"set -o pipefail; {sys.executable} -c 'from semtrace.cli import main; main()' {words} | true"
    ran = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert ran.returncode in {0, 141}
    assert ran.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("words", ["--help", "check --help", "--version", "artifacts --help"])
def test_help_for_which_there_is_no_room_says_so(words):
    line = f"{sys.executable} -c 'from semtrace.cli import main; main()' {words} > /dev/full"
    ran = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "No space left" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stderr.count("error:") == 1
