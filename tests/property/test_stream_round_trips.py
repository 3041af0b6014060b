"""Random traces through streams: exchange both ways, captures in any order, and bits that flip."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semtrace.errors import FormatError, IntegrityError, UnsupportedError
from semtrace.store.bundle import open_bundle, write_bundle
from semtrace.store.digests import execution_digest, trace_digest, work_digest
from semtrace.stream.capture import read_capture
from semtrace.stream.exchange import read_stream, write_stream
from semtrace.stream.seal import seal
from semtrace.stream.wire import source_record
from semtrace.stream.writer import StreamWriter
from semtrace.testing import TraceShape, random_trace
from support.captures import as_capture

SEEDS = st.integers(0, 10**6)
SMALL = TraceShape(tasks=1, operations=4, sessions=1, stages=1, states=1)


@given(seed=SEEDS)
def test_bundles_and_streams_hold_the_same(tmp_path_factory, seed):
    folder = tmp_path_factory.mktemp("trip")
    built = random_trace(seed)
    runs = {"native": built.execution} if built.execution else {}
    write_bundle(folder / "a", built.trace, runs)
    bundle = open_bundle(folder / "a")
    write_stream(folder / "s", bundle.trace, {n: bundle.execution(n) for n in runs}, info=bundle.info)
    held = read_stream(folder / "s")
    assert work_digest(held.trace) == work_digest(built.trace)
    assert trace_digest(held.trace) == trace_digest(built.trace)
    for name, run in runs.items():
        assert execution_digest(held.executions[name]) == execution_digest(run)
        assert held.executions[name].header == run.header
    write_bundle(folder / "b", held.trace, held.executions, info=held.info)
    assert (folder / "a").read_bytes() == (folder / "b").read_bytes()
    write_stream(folder / "t", held.trace, held.executions, info=held.info)
    assert (folder / "s").read_bytes() == (folder / "t").read_bytes()


@given(seed=SEEDS)
def test_captures_of_any_order_and_any_ids_are_sealed_to_the_same_trace(tmp_path_factory, seed):
    path = tmp_path_factory.mktemp("capture") / "s"
    trace = random_trace(seed).trace
    with StreamWriter(path) as stream:
        for payload in as_capture(trace, random.Random(seed)):
            stream.append(payload)
    sealed = seal([path])
    assert work_digest(sealed.trace) == work_digest(trace)
    assert trace_digest(sealed.trace) == trace_digest(trace)
    for name, columns in trace.tables.items():
        if name != "annotations":
            assert sealed.trace[name].data.equals(columns.data), name
    notes = {tuple(row.values()) for row in sealed.trace["annotations"].data.to_pylist()}
    assert {tuple(row.values()) for row in trace["annotations"].data.to_pylist()} <= notes
    assert sealed.info.loss == []


@pytest.fixture(scope="module")
def streams(tmp_path_factory):
    """An exchange stream and a capture, with what reads them."""
    folder = tmp_path_factory.mktemp("flips")
    built = random_trace(5, SMALL)
    write_stream(folder / "exchange", built.trace, {"native": built.execution} if built.execution else {})
    with StreamWriter(folder / "capture") as stream:
        for payload in as_capture(built.trace, random.Random(5)):
            stream.append(payload)
    return {
        folder / "exchange": read_stream,
        folder / "capture": lambda path: seal([path]),
    }


@given(data=st.data())
def test_any_flipped_bit_is_found(streams, data):
    for path, reader in streams.items():
        raw = bytearray(path.read_bytes())
        bit = data.draw(st.integers(0, len(raw) * 8 - 1))
        raw[bit // 8] ^= 1 << bit % 8
        flipped = path.with_name("flipped")
        flipped.write_bytes(raw)
        with pytest.raises((IntegrityError, FormatError, UnsupportedError)):
            reader(flipped)


@given(
    lines=st.lists(st.tuples(st.sampled_from("ab"), st.binary(max_size=50)), max_size=20),
    cut=st.integers(0, 10**6),
)
def test_a_capture_cut_anywhere_gives_back_what_is_whole(tmp_path_factory, lines, cut):
    path = tmp_path_factory.mktemp("cut") / "s"
    with StreamWriter(path) as stream:
        for key, data in lines:
            stream.append(source_record("test", "lines", key, data))
    raw = path.read_bytes()
    cut = 20 + cut % (len(raw) - 20)
    path.write_bytes(raw[:cut])
    found = read_capture(path)
    assert not found.closed
    last = dict(lines[: max(found.records - 1, 0)])
    assert {source.key: source.data for source in found.sources} == last
