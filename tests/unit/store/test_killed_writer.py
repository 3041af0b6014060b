"""A writer that is killed leaves at the path what was there before, whole."""

from __future__ import annotations

import signal
import subprocess
import sys

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
