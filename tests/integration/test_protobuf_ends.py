"""Streams on the oldest and the newest Protobuf that semtrace runs on: the same bytes, read by either."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import google.protobuf
import pytest

from semtrace.store.bundle import write_bundle
from semtrace.stream.writer import StreamWriter
from semtrace.testing import random_trace
from support.captures import as_capture

ROOT = Path(__file__).resolve().parents[2]
OLDEST = ROOT / ".venvs" / "protobuf6" / "bin" / "python"
NEWEST = ROOT / ".venv" / "bin" / "python"
COMMAND = "from semtrace.cli import main; main()"
PACKAGES = {OLDEST: "6.30.2", NEWEST: google.protobuf.__version__}

pytestmark = pytest.mark.integration


def run(python, *words: object):
    """A command of semtrace in an environment, its result as JSON."""
    if not python.exists():
        pytest.fail(f"there is no {python}: make .venvs/protobuf6/.installed")
    command = [str(word) for word in (python, "-W", "error", "-c", COMMAND, *words, "--json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("ends")
    built = random_trace(11)
    write_bundle(made / "bundle", built.trace, {"native": built.execution})
    with StreamWriter(made / "capture.stsl", run=bytes(16)) as stream:
        for payload in as_capture(built.trace, random.Random(11)):
            stream.append(payload)
    return made


def test_the_environments_have_the_versions_they_are_for():
    for python, version in PACKAGES.items():
        code = "import google.protobuf as p; print(p.__version__)"
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == version
    assert int(google.protobuf.__version__.partition(".")[0]) >= 7


@pytest.mark.parametrize(("writes", "reads"), [(OLDEST, NEWEST), (NEWEST, OLDEST), (OLDEST, OLDEST)])
def test_what_one_writes_the_other_reads(folder, writes, reads, tmp_path):
    there = run(writes, "convert", folder / "bundle", "-o", tmp_path / "s.stsl")
    again = run(reads, "convert", tmp_path / "s.stsl", "-o", tmp_path / "back")
    assert {**there, "output": 0, "form": 0} == {**again, "output": 0, "form": 0}
    assert (tmp_path / "back").read_bytes() == (folder / "bundle").read_bytes()


def test_both_write_the_same_bytes(folder, tmp_path):
    for python, version in PACKAGES.items():
        run(python, "convert", folder / "bundle", "-o", tmp_path / version)
    first, second = (tmp_path / version for version in PACKAGES.values())
    assert first.read_bytes() == second.read_bytes()


def test_both_seal_a_capture_to_the_same_bundle(folder, tmp_path):
    for python, version in PACKAGES.items():
        run(python, "seal", folder / "capture.stsl", "-o", tmp_path / version)
    first, second = (tmp_path / version for version in PACKAGES.values())
    assert first.read_bytes() == second.read_bytes()


def test_captures_of_real_runs_are_sealed_by_both(tmp_path):
    """A recording of AutoGen's log, which pins a Protobuf older than either, and writes without one."""
    for python, version in PACKAGES.items():
        code = (
            "import json, logging, sys\n"
            "from semtrace_adapters.autogen.recorder import record_autogen\n"
            "assert 'google.protobuf' not in sys.modules\n"
            "log = logging.getLogger('autogen_core.events')\n"
            "with record_autogen(sys.argv[1], spans=False):\n"
            "    for line in open(sys.argv[2]):\n"
            "        log.info(json.dumps(json.loads(line).get('event')))\n"
        )
        path = tmp_path / f"{version}.stsl"
        events = ROOT / "examples/autogen/graphflow/events.jsonl"
        subprocess.run([python, "-c", code, path, events], check=True)
        assert run(python, "seal", path, "-o", tmp_path / version)["operations"] == 15
