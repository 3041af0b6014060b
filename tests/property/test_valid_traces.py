"""Random valid traces: they check clean, come back as they were, and say everything that a trace can say."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from semtrace.check import check_bundle, check_execution, check_trace
from semtrace.records.chat import context, rebuild_request
from semtrace.records.columns import NULL
from semtrace.records.document import canonical_json
from semtrace.records.enums import ContentLevel
from semtrace.records.media import BLOCK_IDS_TYPE, TOKEN_IDS_TYPE
from semtrace.records.trace_tables import TRACE_TABLES
from semtrace.store.bundle import open_bundle, write_bundle
from semtrace.store.digests import execution_digest, trace_digest, work_digest
from semtrace.testing import TraceShape, random_requests, random_trace

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from semtrace.records.trace import Trace

SEEDS = st.integers(0, 2**32 - 1)
SHAPES = st.builds(
    TraceShape,
    tasks=st.integers(0, 4),
    operations=st.integers(0, 30),
    sessions=st.integers(0, 4),
    stages=st.integers(0, 6),
    states=st.integers(0, 3),
)
FAIR = settings(max_examples=40, deadline=None, derandomize=True)
FEWER = settings(max_examples=12, deadline=None, derandomize=True)


@FAIR
@given(SEEDS, SHAPES)
def test_generated_traces_check_clean(seed: int, shape: TraceShape):
    built = random_trace(seed, shape)
    assert check_trace(built.trace) == []
    if built.execution is not None:
        assert check_execution(built.execution, built.trace) == []


@FAIR
@given(SEEDS)
def test_requests_come_back(seed: int):
    """ST-CHAT-001, and by the forms that messages have ST-CHAT-008, ST-CHAT-009, ST-CHAT-010, ST-CHAT-011."""
    built, requests = random_requests(seed)
    assert requests
    for operation, request in requests.items():
        rebuilt = rebuild_request(built.trace, operation)
        assert canonical_json(rebuilt) == canonical_json(request)


@FAIR
@given(SEEDS)
def test_a_request_whose_content_is_not_here_is_not_rebuilt(seed: int):
    """ST-CHAT-012."""
    built, requests = random_requests(seed)
    built.trace.content.clear()  # type: ignore[attr-defined]  # a builder's content is a dictionary
    assert all(rebuild_request(built.trace, operation) is None for operation in requests)


def same_rows(one: Trace, other: Trace) -> bool:
    return all(one[spec.name].data.equals(other[spec.name].data) for spec in TRACE_TABLES)


@FEWER
@given(SEEDS, st.booleans())
def test_bundles_keep_rows_content_and_digests(
    tmp_path_factory: pytest.TempPathFactory, seed: int, directory: bool
):
    """ST-ORD-015: a reader gives the rows in their order; ST-DIG-015: storage changes no digest."""
    built = random_trace(seed)
    executions = {} if built.execution is None else {"native": built.execution}
    path = tmp_path_factory.mktemp("round") / "x.semtrace"
    write_bundle(path, built.trace, executions, directory=directory)
    bundle = open_bundle(path)
    assert check_bundle(bundle) == []
    assert same_rows(bundle.trace, built.trace)
    assert work_digest(bundle.trace) == work_digest(built.trace)
    assert trace_digest(bundle.trace) == trace_digest(built.trace)
    assert set(bundle.trace.content) == set(built.trace.content)
    for row in range(built.trace["artifacts"].rows):
        assert bundle.trace.artifact(row) == built.trace.artifact(row)
    if built.execution is not None:
        assert execution_digest(bundle.execution()) == execution_digest(built.execution)


@FEWER
@given(SEEDS)
def test_the_same_seed_makes_the_same_bytes(tmp_path_factory: pytest.TempPathFactory, seed: int):
    """ST-BND-007."""
    folder = tmp_path_factory.mktemp("twice")
    for name in ("a", "b"):
        built = random_trace(seed)
        write_bundle(folder / name, built.trace)
    assert (folder / "a").read_bytes() == (folder / "b").read_bytes()


@FEWER
@given(SEEDS, st.integers(0, 2**32 - 1))
def test_a_flipped_byte_of_a_member_is_found(tmp_path_factory: pytest.TempPathFactory, seed: int, place: int):
    folder: Path = tmp_path_factory.mktemp("flip") / "x"
    write_bundle(folder, random_trace(seed, TraceShape(tasks=1, operations=6)).trace, directory=True)
    files = sorted(file for file in folder.rglob("*.arrow"))
    file = files[place % len(files)]
    content = bytearray(file.read_bytes())
    content[place % len(content)] ^= 1 << place % 8
    file.write_bytes(content)
    findings = check_bundle(open_bundle(folder))
    assert "ST-BND-012" in {finding.requirement for finding in findings}
    assert any(file.name in finding.message for finding in findings)


def test_token_and_block_ids_are_what_they_must_be():
    """ST-SEG-014: the ids of a segment are the run of its artifact that it names."""
    trace = random_trace(0, TraceShape(operations=60)).trace
    kinds = trace["artifacts"].strings("media_type")
    segments = trace.segments
    seen = 0
    for row in np.flatnonzero(segments.known("token_ids")).tolist():
        artifact, start = int(segments.ints("token_ids")[row]), int(segments.ints("token_ids_start")[row])
        assert kinds[artifact] == TOKEN_IDS_TYPE
        count = int(segments.ints("tokens")[row])
        raw = trace.artifact(artifact)
        assert raw is not None
        assert struct.unpack_from(f"<{count}I", raw, 4 * start) == tuple(range(start, start + count))
        seen += 1
    assert seen
    assert BLOCK_IDS_TYPE in kinds


def test_generated_traces_say_everything():
    """Each number of each enumeration, each nullable column both ways, and the shapes that are hard to read."""
    numbers: dict[str, set[int]] = {}
    nulls: dict[str, set[bool]] = {}
    pruned = deep = appended = 0
    for seed in range(12):
        trace = random_trace(seed, TraceShape(operations=40)).trace
        for spec in TRACE_TABLES:
            for column in spec.columns:
                name = f"{spec.name}.{column.name}"
                array = trace[spec.name].array(column.name)
                nulls.setdefault(name, set()).update(array.is_null().unique().to_pylist())
                if column.enum is not None:
                    numbers.setdefault(name, set()).update(array.drop_null().unique().to_pylist())
        base, count = trace.operations.ints("context_base"), trace.operations.ints("context_segments")
        based = np.flatnonzero(base != NULL)
        pruned += int((count[based] < count[base[based]]).sum())
        deep += sum(base[base[at]] != NULL for at in based.tolist())
        appended += int((trace["state_versions"].ints("mode") == 2).sum())
    for spec in TRACE_TABLES:
        for column in spec.columns:
            name = f"{spec.name}.{column.name}"
            if column.enum is not None and column.enum is not ContentLevel and name not in SOME:
                assert numbers[name] == {int(member) for member in column.enum}, name
            if column.nullable and name not in ALWAYS:
                assert nulls[name] == {True, False}, name
    assert pruned
    assert deep
    assert appended


SOME = {"artifacts.availability", "annotations.entity_kind", "states.lifetime", "edges.evidence"}
"""Enumerations of which a generated trace has some numbers only: evidence missing, for one, is not for edges."""
ALWAYS = {
    *("trace.origin_unix_ns", "trace.block_size", "trace.hash_scope", "tasks.binding", "tasks.workload"),
    *(f"models.{name}" for name in ("revision", "tokenizer", "hidden_size", "heads", "kv_heads", "head_dim")),
    *(
        f"models.{name}"
        for name in ("intermediate_size", "experts", "experts_per_token", "expert_intermediate_size")
    ),
}
"""Columns that a generated trace has, or lacks, in every row of small tables."""


def test_pieces_of_a_context_are_those_of_its_length():
    trace = random_trace(5, TraceShape(operations=40)).trace
    own = np.diff(trace.segment_offsets)
    length = trace.operations.ints("context_segments") + own
    for operation in range(trace.operations.rows):
        assert len(list(context(trace, operation))) == length[operation]
