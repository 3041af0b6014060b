"""What the tests of streams share: records from keyword arguments, and streams of them."""

from __future__ import annotations

from typing import Any

from semtrace.stream.framing import file_header, frame
from semtrace.stream.scan import Scan
from semtrace.v1.stream_pb2 import Record

RUN = bytes(range(16))


def record(identity=None, **body: Any):
    """A record's payload."""
    made = Record(**body)
    if identity is not None:
        made.id = identity
    return made.SerializeToString()


def head(form=1, run=RUN):
    return record(head={"form": form, "run": run if form == 1 else b"", "producer": "test"})


def write(path, payloads):
    """A stream file of these payloads, as they are."""
    path.write_bytes(file_header() + b"".join(frame(at, each) for at, each in enumerate(payloads)))
    return path


def capture(path, payloads, *, closed=True, run=RUN):
    """A capture with these records between its head and its end."""
    payloads = [head(run=run), *payloads]
    if closed:
        payloads.append(record(end={"records": len(payloads)}))
    return write(path, payloads)


def payloads_of(path):
    return [each.payload for each in Scan(path)]
