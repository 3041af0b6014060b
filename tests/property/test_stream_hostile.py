"""Streams from strangers: records whose checks are right and whose content is not. Only errors for people, never others."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semtrace.check import check_trace
from semtrace.errors import SemtraceError
from semtrace.stream.exchange import read_stream, write_stream
from semtrace.stream.framing import file_header, frame
from semtrace.stream.scan import Scan
from semtrace.stream.seal import seal
from semtrace.stream.writer import StreamWriter
from semtrace.testing import TraceShape, random_trace
from semtrace.v1.stream_pb2 import Record
from support.captures import as_capture

SMALL = TraceShape(tasks=2, operations=5, sessions=2, stages=2, states=1)
NUMBERS = (0, 1, 2, 255, 256, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**64 - 1)


@pytest.fixture(scope="module")
def streams(tmp_path_factory):
    """Payloads of an exchange stream and of captures, with what reads them."""
    folder = tmp_path_factory.mktemp("hostile")
    built = random_trace(8, SMALL)
    write_stream(folder / "exchange", built.trace, {"native": built.execution} if built.execution else {})
    with StreamWriter(folder / "capture") as stream:
        for payload in as_capture(built.trace, random.Random(8)):
            stream.append(payload)
        for operation in range(3):
            stream.append(Record(event={"operation": operation, "submitted_ns": 5}).SerializeToString())
    return {
        name: [record.payload for record in Scan(folder / name)] for name in ("exchange", "capture")
    }, folder / "mutated"


def changed(payload, rng):
    """A payload with a field changed, or its bytes."""
    if rng.random() < 0.3:
        raw = bytearray(payload)
        for _ in range(rng.randint(1, 4)):
            if raw:
                raw[rng.randrange(len(raw))] = rng.randrange(256)
        return bytes(raw[: rng.randint(0, len(raw))] if rng.random() < 0.2 else raw)
    record = Record.FromString(payload)
    body = record.WhichOneof("body")
    message = getattr(record, body) if body else record
    for field in rng.sample(list(message.DESCRIPTOR.fields), k=min(2, len(message.DESCRIPTOR.fields))):
        if rng.random() < 0.3:
            message.ClearField(field.name)
            continue
        value = rng.choice(NUMBERS)
        try:
            setattr(message, field.name, value)
        except (TypeError, ValueError, AttributeError):
            try:
                setattr(
                    message, field.name, rng.choice(["", "x", "semtrace/recorder_id", "\u0000", "a" * 300])
                )
            except (TypeError, ValueError, AttributeError):
                continue
    if rng.random() < 0.2:
        record.id = rng.choice(NUMBERS)
    return record.SerializeToString()


def mutated(payloads, rng):
    made = list(payloads)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(made))
        action = rng.randrange(5)
        if action == 0:
            del made[at]
        elif action == 1:
            made.insert(rng.randrange(len(made)), made[at])
        elif action == 2:
            other = rng.randrange(len(made))
            made[at], made[other] = made[other], made[at]
        else:
            made[at] = changed(made[at], rng)
        if not made:
            break
    raw = b"".join(frame(at, payload) for at, payload in enumerate(made))
    if rng.random() < 0.2:
        raw = raw[: rng.randint(0, len(raw))]
    return file_header() + raw


@given(seed=st.integers(0, 2**32))
@pytest.mark.parametrize("kind", ["exchange", "capture"])
def test_mutated_streams_give_errors_for_people_and_no_others(streams, kind, seed):
    originals, path = streams
    rng = random.Random(seed)
    path.write_bytes(mutated(originals[kind], rng))
    try:
        if kind == "exchange":
            trace = read_stream(path).trace
        else:
            trace = seal([path], recover=rng.random() < 0.5).trace
    except SemtraceError as error:
        assert error.message  # noqa: PT017  # whether there is an error at all is open
    else:
        if trace is not None:
            check_trace(trace)
