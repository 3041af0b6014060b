"""The writer: what it acknowledges is in the file, whatever goes wrong before, between and after."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from semtrace.errors import FormatError, UsageError
from semtrace.stream import wire, writer
from semtrace.stream.scan import Scan
from semtrace.stream.writer import StreamWriter
from semtrace.v1.stream_pb2 import Record

ROOT = Path(__file__).parents[3]


def piece(number, size=10):
    return wire.source_record("test", "lines", str(number), bytes([number % 251]) * size)


def records(path):
    scan = Scan(path)
    return [Record.FromString(raw.payload) for raw in scan], scan


def keys(path):
    return [record.source.key for record in records(path)[0] if record.HasField("source")]


def test_a_stream_has_a_head_its_records_and_an_end(tmp_path):
    path = tmp_path / "s"
    with StreamWriter(path, run=bytes(16), producer="p", version="7") as stream:
        assert stream.append(piece(1)) == 1
        assert stream.append_all([piece(2), piece(3)]) == 2
    found, scan = records(path)
    assert [record.WhichOneof("body") for record in found] == ["head", "source", "source", "source", "end"]
    head = found[0].head
    assert (head.form, head.run, head.producer, head.producer_version) == (1, bytes(16), "p", "7")
    assert head.process == os.getpid()
    assert head.created_unix_ns > 10**18
    assert found[-1].end.records == 4 == stream.records - 1
    assert scan.torn is None


def test_a_record_is_in_the_file_when_append_returns(tmp_path):
    """ST-STR-024; and it is not changed afterwards (ST-STR-027)."""
    path = tmp_path / "s"
    stream = StreamWriter(path)
    before = b""
    for number in range(5):
        stream.append(piece(number))
        now = path.read_bytes()
        assert now.startswith(before)
        before = now
        assert keys(path) == [str(at) for at in range(number + 1)]
    stream.close()


def test_a_stream_is_made_once(tmp_path):
    """ST-STR-023."""
    path = tmp_path / "s"
    StreamWriter(path).close()
    with pytest.raises(UsageError, match="exists already"):
        StreamWriter(path)
    with pytest.raises(UsageError, match="cannot be written"):
        StreamWriter(tmp_path / "no" / "s")
    with pytest.raises(UsageError, match="16 bytes"):
        StreamWriter(tmp_path / "t", run=b"short")
    assert sorted(tmp_path.iterdir()) == [path]


def test_a_closed_stream_takes_nothing_more(tmp_path):
    stream = StreamWriter(tmp_path / "s")
    stream.close()
    stream.close()
    with pytest.raises(UsageError, match="closed"):
        stream.append(piece(1))
    assert [record.WhichOneof("body") for record in records(tmp_path / "s")[0]] == ["head", "end"]


class Disk:
    """A disk with so much room: `os.write` writes what fits, then fails."""

    def __init__(self, monkeypatch, room) -> None:
        self.room = room
        self._write = os.write
        monkeypatch.setattr(writer.os, "write", self.write)

    def write(self, descriptor, data):
        fits = min(len(data), self.room)
        if fits == 0 and len(data):
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= fits
        return self._write(descriptor, data[:fits])


def test_on_a_full_disk_nothing_torn_stays_and_the_loss_is_stated_when_there_is_room(tmp_path, monkeypatch):
    path = tmp_path / "s"
    stream = StreamWriter(path)
    stream.append(piece(1))
    size = path.stat().st_size
    disk = Disk(monkeypatch, 30)  # less than a record: its beginning fits
    for number in (2, 3):
        with pytest.raises(UsageError, match="No space left"):
            stream.append(piece(number))
        assert path.stat().st_size == size
        disk.room = 30
    with pytest.raises(UsageError):
        stream.append_all([piece(4), piece(5)])
    assert stream.lost == 4
    disk.room = 10**6
    stream.append(piece(6))
    stream.close()
    found, _ = records(path)
    assert [record.WhichOneof("body") for record in found] == ["head", "source", "gap", "source", "end"]
    assert found[2].gap.records == 4
    assert "No space left" in found[2].gap.reason
    assert keys(path) == ["1", "6"]


def test_a_disk_that_stays_full_leaves_a_stream_without_an_end(tmp_path, monkeypatch):
    path = tmp_path / "s"
    stream = StreamWriter(path)
    stream.append(piece(1))
    Disk(monkeypatch, 5)
    with pytest.raises(UsageError):
        stream.append(piece(2))
    with pytest.raises(UsageError):
        stream.close()
    found, scan = records(path)
    assert [record.WhichOneof("body") for record in found] == ["head", "source"]
    assert scan.torn is None


def test_a_disk_that_is_full_at_once_leaves_no_file(tmp_path, monkeypatch):
    Disk(monkeypatch, 5)
    with pytest.raises(UsageError, match="No space left"):
        StreamWriter(tmp_path / "s")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("after", [0, 7, 10**6])
def test_an_interrupt_inside_of_a_write_leaves_a_stream_that_goes_on(tmp_path, monkeypatch, after):
    """A signal may raise anywhere: before, amid and just after the write."""
    path = tmp_path / "s"
    stream = StreamWriter(path)
    stream.append(piece(1))
    real = os.write

    def interrupted(descriptor, data):
        real(descriptor, data[:after])
        raise KeyboardInterrupt

    monkeypatch.setattr(writer.os, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stream.append(piece(2, 50))
    monkeypatch.setattr(writer.os, "write", real)
    stream.append(piece(3))
    stream.close()
    assert keys(path) == ["1", "3"]


def test_a_record_from_inside_of_a_record_is_refused_and_counted(tmp_path, monkeypatch):
    """A signal handler that records, while a record is written, must neither hang nor tear."""
    path = tmp_path / "s"
    stream = StreamWriter(path)
    real = os.write
    caught = []

    def handler_runs(descriptor, data):
        if not caught:
            with pytest.raises(UsageError, match="inside of a record") as error:
                stream.append(piece(9))
            caught.append(error)
        return real(descriptor, data)

    monkeypatch.setattr(writer.os, "write", handler_runs)
    stream.append(piece(1))
    stream.append(piece(2))
    stream.close()
    assert caught
    assert keys(path) == ["1", "2"]
    assert sum(record.gap.records for record in records(path)[0]) == 1


def test_a_record_that_is_too_large_is_refused_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "MAX_PAYLOAD", 100)
    with StreamWriter(tmp_path / "s") as stream:
        stream.append(piece(1))
        with pytest.raises(FormatError, match="more than 100 bytes"):
            stream.append(piece(2, 200))
        stream.append(piece(3))
    assert keys(tmp_path / "s") == ["1", "3"]
    assert [r.gap.records for r in records(tmp_path / "s")[0] if r.HasField("gap")] == [1]


def test_many_threads_write_one_stream(tmp_path):
    path = tmp_path / "s"
    stream = StreamWriter(path)
    threads = [
        threading.Thread(target=lambda first=first: [stream.append(piece(n, n % 97)) for n in range(first, first + 200)])
        for first in range(0, 1600, 200)
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stream.close()
    assert sorted(map(int, keys(path))) == list(range(1600))


def test_losses_before_the_end_are_stated_at_the_end(tmp_path):
    with StreamWriter(tmp_path / "s") as stream:
        stream.note_lost("an event that has no JSON form", 3)
    found, _ = records(tmp_path / "s")
    assert [record.WhichOneof("body") for record in found] == ["head", "gap", "end"]
    assert found[1].gap.records == 3
    assert found[2].end.records == 2


def _run(code, *arguments: object):
    """Run Python code without any installed package: a recorder needs the standard library only."""
    words = [sys.executable, "-S", "-E", "-c", code, str(ROOT), *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


PRELUDE = """
import os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from semtrace.errors import SemtraceError
from semtrace.stream import wire
from semtrace.stream.writer import StreamWriter
"""


def test_a_forked_process_cannot_write_its_parents_stream(tmp_path):
    code = (
        PRELUDE
        + """
stream = StreamWriter(Path(sys.argv[2]))
child = os.fork()
if child == 0:
    try:
        stream.append(b"")
    except SemtraceError as error:
        print(error.code, flush=True)
    stream.close()
    os._exit(0)
os.waitpid(child, 0)
stream.append(wire.source_record("test", "lines", "1", b""))
stream.close()
"""
    )
    done = _run(code, tmp_path / "s")
    assert (done.returncode, done.stdout.strip()) == (0, "stream.process"), done.stderr
    assert keys(tmp_path / "s") == ["1"]


def test_at_a_limit_of_the_file_size_what_was_acknowledged_stays(tmp_path):
    """A real limit of the system, in place of a full disk: writes come short, then fail."""
    code = (
        PRELUDE
        + """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
stream = StreamWriter(Path(sys.argv[2]))
good = refused = 0
while refused < 3:
    try:
        stream.append(wire.source_record("test", "lines", str(good + 1), b"x" * 700))
        good += 1
    except SemtraceError as error:
        assert "cannot be written" in str(error), error
        refused += 1
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
stream.append(wire.source_record("test", "lines", "after", b""))
stream.close()
print(good)
"""
    )
    done = _run(code, tmp_path / "s")
    assert done.returncode == 0, done.stderr
    good = int(done.stdout)
    assert good > 50
    found, scan = records(tmp_path / "s")
    assert keys(tmp_path / "s") == [str(at + 1) for at in range(good)] + ["after"]
    assert [record.gap.records for record in found if record.HasField("gap")] == [3]
    assert found[-1].HasField("end")
    assert scan.torn is None


def test_on_a_real_full_disk_what_was_acknowledged_stays(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    try:
        stream = StreamWriter(disk / "s")
        with pytest.raises(UsageError, match="No space left"):
            [stream.append(piece(at, 3000)) for at in range(1000)]
        good = stream.records - 1
        with pytest.raises(UsageError):
            stream.append(piece(good, 300_000))
        assert keys(disk / "s") == [str(at) for at in range(good)]
        assert good > 50
        (disk / "s").rename(disk / "t")  # the writer writes on, whatever the file is called
        stream.close()
        assert records(disk / "t")[0][-1].HasField("end")
    finally:
        subprocess.run(["umount", disk], check=True)
