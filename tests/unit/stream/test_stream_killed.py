"""A recorder killed at any instant: every record that was acknowledged is recovered, at most one is torn.

A few times with the other tests, at 200 instants with the integration tests; `SEMTRACE_KILLS` says another number.
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from semtrace.stream.capture import read_capture
from semtrace.stream.scan import Scan
from semtrace.v1.stream_pb2 import Record

ROOT = Path(__file__).parents[3]
MANY = int(os.environ.get("SEMTRACE_KILLS", "200"))

# Two threads record pieces of very different sizes; after each acknowledgement the ordinal goes to another file.
RECORDER = """
import os, random, struct, sys, threading
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from semtrace.stream import wire
from semtrace.stream.writer import StreamWriter

stream = StreamWriter(Path(sys.argv[2]))
acknowledged = os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def record(seed):
    rng = random.Random(seed)
    while True:
        size = rng.choice((10, 200, 5_000, 60_000, 400_000))
        data = bytes([size % 251]) * size
        ordinal = stream.append(wire.source_record("test", "lines", str(size), data))
        os.write(acknowledged, struct.pack("<II", ordinal, size))

threads = [threading.Thread(target=record, args=(int(sys.argv[4]) + at,)) for at in range(2)]
for thread in threads:
    thread.start()
print("begun", flush=True)
"""


def killed(folder, seed):
    """Run a recorder, kill it after a random time, and check what it left. Returns whether there was a torn tail."""
    stream, log = folder / f"{seed}.stsl", folder / f"{seed}.acknowledged"
    words = [sys.executable, "-S", "-E", "-c", RECORDER, ROOT, stream, log, str(seed)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        time.sleep(random.Random(seed).random() * 0.04)
        process.kill()
    raw = log.read_bytes()
    promised = dict(struct.unpack_from("<II", raw, at) for at in range(0, len(raw) - 7, 8))
    scan = Scan(stream)
    found = {each.ordinal: Record.FromString(each.payload) for each in scan}
    for ordinal, size in promised.items():
        source = found[ordinal].source
        assert source.key == str(size)
        assert source.data == bytes([size % 251]) * size
    assert len(found) >= len(promised)
    assert len(found) - len(promised) <= 1 + 2, (
        "the head, and at most one record of each thread not acknowledged yet"
    )
    capture = read_capture(stream)
    assert not capture.closed
    assert (capture.torn is None) == (scan.torn is None)
    assert capture.records == len(found)
    stream.unlink()
    return scan.torn is not None, len(promised)


@pytest.mark.parametrize("kills", [25, pytest.param(MANY, marks=pytest.mark.integration, id="many")])
def test_what_a_killed_recorder_acknowledged_is_recovered(tmp_path, capsys, kills):
    outcomes = [killed(tmp_path, seed) for seed in range(kills)]
    torn, promised = (sum(column) for column in zip(*outcomes, strict=True))
    assert promised > kills, "the recorders did record"
    if kills == MANY:
        with capsys.disabled():
            print(f"\n{kills} kills, {torn} torn tails, {promised} acknowledged records, all recovered")  # noqa: T201  # whoever asks for many wants the count


@pytest.mark.parametrize("cut", [1, 19, 20, 50])
def test_a_tail_that_a_kill_tore_is_told_by_its_place(tmp_path, cut):
    path = tmp_path / "s.stsl"
    words = [
        sys.executable,
        "-S",
        "-E",
        "-c",
        RECORDER.split("threads =", maxsplit=1)[0] + "\nstream.append(b'x' * 100)",
        ROOT,
    ]
    subprocess.run([*words, path, tmp_path / "log", "0"], check=True)
    path.write_bytes(path.read_bytes()[:-cut])
    scan = Scan(path)
    assert [record.ordinal for record in scan] == [0]
    assert scan.torn is not None
    assert scan.torn.end == path.stat().st_size
