"""A writer that is killed leaves at the path what was there before, whole."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from semtrace.build import TraceBuilder
from semtrace.records.enums import OperationKind
from semtrace.store.bundle import open_bundle, write_bundle
from semtrace.store.digests import trace_digest

WRITER = """
import sys, time
from pathlib import Path
from test_killed_writer import trace
from semtrace.store import container
from semtrace.store.bundle import write_bundle

path, directory, moment = Path(sys.argv[1]), sys.argv[2] == "directory", sys.argv[3]

def stop(*_args):
    print("stopped", flush=True)
    time.sleep(600)

real_bytes, real_header, real_replace = Path.write_bytes, container.local_header, Path.replace
written = []

def write_bytes(self, content):
    written.append(1)
    if moment == "half" and len(written) == 4:
        real_bytes(self, content[: len(content) // 2])
        stop()
    return real_bytes(self, content)

def local_header(entry):
    written.append(1)
    if moment == "half" and len(written) == 4:
        stop()
    return real_header(entry)

def replace(self, target):
    if moment == "written" and self.name.endswith(".tmp"):
        stop()
    return real_replace(self, target)

Path.write_bytes, container.local_header, Path.replace = write_bytes, local_header, replace
write_bundle(path, trace("new"), directory=directory, overwrite=True)
print("done", flush=True)
"""


def trace(name):
    builder = TraceBuilder()
    task = builder.task(name, input=name * 1000)
    operation = builder.operation(task, OperationKind.LLM, name)
    builder.request(operation, [{"role": "user", "content": name}])
    return builder.build().trace


def assert_whole(path, name):
    found = open_bundle(path).trace
    assert trace_digest(found) == trace_digest(trace(name))
    assert all(found.content.get(digest) for digest in found.content)


def write_and_kill(path, form, moment):
    """Let another process write to the path, and kill it at a moment of its writing."""
    command = [sys.executable, "-c", WRITER, str(path), form, moment]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=__file__.rpartition("/")[0]
    ) as writer:
        assert writer.stdout.readline() == "stopped\n"
        writer.kill()
        assert writer.wait() == -signal.SIGKILL


@pytest.mark.parametrize("moment", ["half", "written"])
@pytest.mark.parametrize("form", ["directory", "file"])
def test_nothing_is_there_where_nothing_was(tmp_path, form, moment):
    path = tmp_path / "x"
    write_and_kill(path, form, moment)
    assert not path.exists()
    write_bundle(path, trace("next"))
    assert_whole(path, "next")


@pytest.mark.parametrize("moment", ["half", "written"])
@pytest.mark.parametrize("old", ["directory", "file"])
def test_the_old_bundle_is_whole(tmp_path, old, moment):
    path = tmp_path / "x"
    write_bundle(path, trace("old"), directory=old == "directory")
    write_and_kill(path, old, moment)
    if old == "directory" and moment == "written":
        # the one moment between two renames: the old bundle stands beside its place
        assert not path.exists()
        (aside,) = tmp_path.glob(".x.*.old")
        assert_whole(aside, "old")
    else:
        assert_whole(path, "old")
    write_bundle(path, trace("next"), overwrite=True)
    assert_whole(path, "next")


SYNCS = """
import os, sys
from pathlib import Path
from semtrace.store.container import write_container

seen = []
real = os.fsync
os.fsync = lambda handle: (seen.append(os.readlink(f"/proc/self/fd/{handle}")), real(handle))
place = Path.replace if sys.argv[3] == "replace" else os.link
def placed(*names):
    seen.append("placed")
    return place(*names)
if sys.argv[3] == "replace":
    Path.replace = placed
else:
    os.link = placed
    Path.rename = lambda self, target: (seen.append("placed"), os.rename(self, target))
write_container(Path(sys.argv[1]), [("a", b"1"), ("b/c", b"2")], directory=sys.argv[2] == "directory",
                overwrite=sys.argv[3] == "replace")
print("\\n".join(seen))
"""


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="names of open files are read from /proc")
@pytest.mark.parametrize("form", ["file", "directory"])
@pytest.mark.parametrize("how", ["new", "replace"])
def test_the_disk_has_it_all_before_it_has_the_name_and_the_name_after(tmp_path, form, how):
    """A machine that loses its power leaves the old or the new, as a killed process does."""
    done = subprocess.run(
        [sys.executable, "-c", SYNCS, str(tmp_path / "out"), form, how],
        capture_output=True,
        text=True,
        check=True,
    )
    seen = done.stdout.split()
    at = seen.index("placed")
    before = [Path(name).relative_to(tmp_path).parts[1:] for name in seen[:at]]
    assert sorted(before) == ([()] if form == "file" else [(), ("a",), ("b",), ("b", "c")])
    assert seen[at + 1 :] == [str(tmp_path)]
