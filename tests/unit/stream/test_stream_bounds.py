"""Sealing and converting take little more memory than the file has bytes, and what rows contradict is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from stream_parts import capture, record

from semtrace.check.trace import check_trace
from semtrace.errors import FormatError
from semtrace.records.enums import EdgeKind, Evidence, OperationKind, Role
from semtrace.stream.seal import seal

ALLOWED = 256 << 20

SEALS = """
import resource, sys
from pathlib import Path
from semtrace.store.bundle import open_bundle, write_bundle
from semtrace.stream.exchange import read_stream, write_stream
from semtrace.stream.seal import seal

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
folder = Path(sys.argv[1])
sealed = seal([folder / "capture"])
write_bundle(folder / "bundle", sealed.trace, {"native": sealed.execution}, info=sealed.info)
rows = sealed.trace.operations.rows
del sealed
bundle = open_bundle(folder / "bundle")
write_stream(folder / "stream", bundle.trace, {"native": bundle.execution()}, info=bundle.info)
del bundle
held = read_stream(folder / "stream")
write_bundle(folder / "again", held.trace, held.executions, info=held.info)
used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(rows, used * (1 if sys.platform == "darwin" else 1024))
"""


def many_records(count):
    """So many operations of six records each: artifacts, segments, events, and an edge to the one before."""
    yield record(1, task={"name": "t"})
    yield record(1, session={"task": 1})
    for at in range(count):
        text = f"{at:0100}".encode()
        yield record(at, captured_artifact={"data": text, "media_type": "text/plain"})
        yield record(
            at, operation={"task": 1, "kind": OperationKind.LLM, "name": "a", "session": 1, "output": at}
        )
        yield record(segment={"operation": at, "role": Role.USER, "artifact": at, "tokens": 3})
        yield record(event={"operation": at, "submitted_ns": 10 * at})
        yield record(event={"operation": at, "finished_ns": 10 * at + 5})
        if at:
            yield record(edge={"target": at, "source": at - 1})


@pytest.mark.skipif(sys.platform == "win32", reason="there is no getrusage")
def test_memory_stays_within_the_file_and_256_mib(tmp_path):
    """One object a row would take twice what is allowed."""
    path = capture(tmp_path / "capture", list(many_records(15_000)))
    done = subprocess.run(
        [sys.executable, "-c", SEALS, str(tmp_path)], capture_output=True, text=True, check=True, timeout=300
    )
    rows, used = map(int, done.stdout.split())
    assert rows == 15_000
    assert used < ALLOWED // 2 + path.stat().st_size, (
        "a part of the bound: the capture is a part of a large one"
    )
    assert (tmp_path / "again").read_bytes() == (tmp_path / "bundle").read_bytes()
    assert Path(tmp_path / "stream").stat().st_size > path.stat().st_size // 2


def operation(at, **columns: object):
    return record(at, operation={"task": 1, "kind": OperationKind.TOOL, "name": f"op {at}", **columns})


def test_models_of_one_name_are_one(tmp_path):
    rows = [
        record(1, task={"name": "t"}),
        record(7, model={"name": "m", "layers": 2}),
        record(8, model={"name": "other"}),
        record(9, model={"name": "m", "heads": 4}),
        operation(1, model=9),
        operation(2, model=7),
    ]
    trace = seal([capture(tmp_path / "s", rows)]).trace
    assert trace["models"].rows == 1, "nothing calls the other"
    assert (trace["models"].row(0)["layers"], trace["models"].row(0)["heads"]) == (2, 4)
    assert list(trace.operations.ints("model")) == [0, 0]
    assert check_trace(trace) == []
    with pytest.raises(FormatError, match="a model has layers 2 and 3"):
        seal([capture(tmp_path / "s", [*rows, record(9, model={"layers": 3})])])


def test_of_two_edges_with_one_key_the_better_known_stays(tmp_path):
    key = {"target": 2, "source": 1, "kind": EdgeKind.CONTROL}
    rows = [
        record(1, task={"name": "t"}), operation(1), operation(2),
        record(edge=key | {"evidence": Evidence.INFERRED, "lag_ns": 5}),
        record(edge=key | {"evidence": Evidence.DERIVED, "lag_ns": 6}),
        record(edge=key | {"evidence": Evidence.DERIVED, "lag_ns": 7}),
    ]  # fmt: skip
    edges = seal([capture(tmp_path / "s", rows)]).trace.edges
    assert edges.rows == 1
    assert edges.row(0)["lag_ns"] == 6


def test_times_that_no_sum_of_64_bits_holds_are_refused(tmp_path):
    rows = [record(1, task={"name": "t"}), operation(1)]
    for event in ({"submitted_ns": 1 << 61}, {"finished_ns": -(1 << 63)}):
        with pytest.raises(FormatError, match="73 years") as caught:
            seal([capture(tmp_path / "s", [*rows, record(event={"operation": 1, **event})])])
        assert "byte" in str(caught.value)
    other = [
        record(trace_header={"origin_unix_ns": -(1 << 62)}),
        record(event={"operation": 1, "submitted_ns": 1}),
    ]
    rows = [
        record(trace_header={"origin_unix_ns": 0}),
        *rows,
        record(event={"operation": 1, "submitted_ns": 1}),
    ]
    with pytest.raises(FormatError, match="73 years"):
        seal([capture(tmp_path / "s", rows), capture(tmp_path / "o", other)])


def test_a_version_follows_from_one_before_it(tmp_path):
    rows = [
        record(1, task={"name": "t"}), operation(1),
        record(3, state={"namespace": "n", "name": "s"}),
        record(5, state_version={"state": 3, "version": 0, "base": 6}),
        record(6, state_version={"state": 3, "version": 1}),
    ]  # fmt: skip
    with pytest.raises(FormatError, match="does not come before"):
        seal([capture(tmp_path / "s", rows)])
    assert list(seal([capture(tmp_path / "s", rows, closed=False)]).trace["state_versions"].ints("base")) == [
        -1,
        -1,
    ]
