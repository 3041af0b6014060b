"""Prompts as they are sent begin alike exactly as far as the oracle of prefixes says, whatever trace, vocabulary and salt."""

from __future__ import annotations

import random
import struct
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semtrace.live.prompts import Inputs
from semtrace.live.settings import Vocabulary
from semtrace.records.chat import context, rebuild_request
from semtrace.records.columns import NULL
from semtrace.records.enums import OperationKind
from semtrace.replay.controller import runs_on_backend
from semtrace.testing.traces import TraceShape, random_trace
from support.prefix_oracle import Oracle
from support.small_traces import small

if TYPE_CHECKING:
    from semtrace.records.trace import Trace


def common(one: Any, two: Any) -> int:
    """How many elements two sequences have in common at their beginning."""
    at = 0
    while at < min(len(one), len(two)) and one[at] == two[at]:
        at += 1
    return at


def strings(trace: Trace, inputs: Inputs, instances: list[int]) -> dict[tuple[int, int], tuple[Any, Any]]:
    """By instance and operation: what the oracle says that its string is, and the ids of prompt and output."""
    oracle, copies = Oracle(trace), max(instances) + 1
    task = trace.operations.ints("task")
    prompt = trace.operations.ints("prompt_tokens")
    found = {}
    for operation in np.flatnonzero(runs_on_backend(trace)).tolist():
        if prompt[operation] == NULL:
            continue
        for copy in instances:
            instance = int(task[operation]) * copies + copy
            ids = inputs.ids(operation, instance)
            assert ids is not None
            assert len(ids) == prompt[operation]
            made = inputs.output_ids(operation, instance)
            output = trace.operations.ints("output_tokens")[operation]
            if trace.operations.ints("kind")[operation] == OperationKind.LLM and output != NULL:
                assert made is not None
                assert len(made) == output
                ids = np.concatenate([ids, made])
            found[instance, operation] = (oracle.string(operation), ids.tolist())
            assert len(found[instance, operation][0]) == len(ids)
    return found


def compare(
    trace: Trace, vocabulary: Vocabulary, salt: Any, copies: int, known_ids: int | None = None
) -> None:
    """Compare every pair of strings with the oracle."""
    inputs = Inputs(
        trace,
        kind="synthetic",
        salt=salt,
        copies=copies,
        vocabulary=vocabulary,
        known_ids=known_ids,
        synthetic_outputs=True,
    )
    kept = inputs.facts()["recorded_ids"]
    made = strings(trace, inputs, list(range(copies)))
    for symbols, ids in made.values():
        for symbol, each in zip(symbols, ids, strict=True):
            if kept and isinstance(symbol, int):
                assert each == symbol
            else:
                assert vocabulary.first <= each < vocabulary.size
    crowd = inputs.crowd
    for (one, (symbols, ids)), (two, (others, other_ids)) in combinations(made.items(), 2):
        same = common(symbols, others)
        if inputs.group(one[0]) != inputs.group(two[0]) and not (
            kept and symbols and isinstance(symbols[0], int)
        ):
            same = 0  # ST-INP-015
        length = common(ids, other_ids)
        assert same <= length <= same + crowd.tokens  # ST-INP-012, ST-INP-014
        if not crowd.places:
            assert length == same  # ST-INP-013


@settings(max_examples=120, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([0, 1, 7]),
    st.sampled_from([40, 300, 100_000]),
    st.sampled_from(["copy", "instance", "none"]),
    st.integers(1, 3),
    st.sampled_from([1, 1000]),
)
def test_synthetic_prompts_begin_alike_as_the_oracle_says(seed, first, count, salt, copies, known_ids):
    compare(small(seed), Vocabulary(first=first, size=first + count), salt, copies, known_ids)


@settings(max_examples=120, deadline=None)
@given(
    st.integers(0, 2**32), st.integers(0, 2), st.integers(2, 6), st.integers(1, 4), st.sampled_from([1, 1000])
)
def test_where_ids_do_not_suffice_the_bound_that_is_told_holds(seed, first, count, copies, known_ids):
    compare(small(seed), Vocabulary(first=first, size=first + count), "copy", copies, known_ids)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["copy", "instance", "none"]))
def test_synthetic_prompts_of_traces_of_every_kind(seed, salt):
    trace = random_trace(seed, TraceShape(tasks=2, operations=10)).trace
    compare(trace, Vocabulary(first=1000, size=2020), salt, 2)


def recorded(trace: Trace, operation: int) -> list[int] | None:
    """The recorded ids of a prompt, piece by piece; None if some are not known."""
    segments, operations = trace.segments.data.to_pylist(), trace.operations.data.to_pylist()
    made: list[int] = []
    for at, row in context(trace, operation):
        if row == NULL:
            above = operations[at]
            if above["output_tokens"] is None:
                return None
            if above["output_tokens"] == above["reasoning_tokens"] or above["output_tokens"] == 0:
                continue
            if above["output_token_ids"] is None or above["reasoning_tokens"] != 0:
                return None
            content, begin, count = trace.artifact(above["output_token_ids"]), 0, above["output_tokens"]
        else:
            segment = segments[row]
            if segment["tokens"] == 0:
                continue
            if segment["token_ids"] is None:
                return None
            content, begin = trace.artifact(segment["token_ids"]), segment["token_ids_start"]
            count = segment["tokens"]
        if content is None:
            return None
        made += struct.unpack_from(f"<{count}I", content, 4 * begin)
    return made


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_recorded_ids_are_those_of_the_pieces(seed):
    trace = small(seed)
    inputs = Inputs(trace, kind="token_ids")
    refused = {
        row for finding in inputs.findings() if finding.requirement == "ST-INP-003" for row in finding.rows
    }
    for operation in np.flatnonzero(runs_on_backend(trace)).tolist():
        expected, ids = recorded(trace, operation), inputs.ids(operation, 0)
        if expected is not None:
            assert ids is not None
            assert ids.tolist() == expected
            assert operation not in refused
        elif (
            ids is not None
        ):  # known although a piece is not: it lies where what is inherited was cut, or has no tokens
            assert len(ids) == trace.operations.ints("prompt_tokens")[operation]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_messages_are_there_exactly_where_they_can_be_rebuilt(seed):
    trace = random_trace(seed, TraceShape(tasks=2, operations=10)).trace
    inputs = Inputs(trace, kind="text")
    for operation in np.flatnonzero(runs_on_backend(trace)).tolist():
        assert inputs.messages(operation) == rebuild_request(trace, operation)


@pytest.mark.parametrize("seed", range(3))
def test_the_same_work_gives_the_same_ids_and_other_work_others(seed):
    rng = random.Random(seed)
    vocabulary = Vocabulary(first=0, size=1 << 20)
    traces = [small(rng.randrange(1 << 32)) for _ in range(2)]
    first, again, other = (
        Inputs(trace, kind="synthetic", vocabulary=vocabulary, synthetic_outputs=True)
        for trace in (traces[0], traces[0], traces[1])
    )
    made = [
        [ids for _, ids in strings(trace, inputs, [0]).values()]
        for trace, inputs in ((traces[0], first), (traces[0], again), (traces[1], other))
    ]
    assert made[0] == made[1] != made[2]  # ST-INP-016
