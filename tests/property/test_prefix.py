"""Keys of blocks are those of an oracle that compares token by token, for random traces of every kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semtrace.check import check_trace
from semtrace.engine import prefix_tree
from semtrace.engine.work import Work
from semtrace.errors import ReplayError
from semtrace.testing.traces import TraceShape, random_trace
from support.prefix_oracle import Oracle
from support.small_traces import small

if TYPE_CHECKING:
    from semtrace.records.trace import Trace


def compare(trace: Trace, size: int) -> Work:
    """The work of a trace, after a comparison with the oracle: a one-to-one mapping of keys."""
    work = Work.of(trace, size)
    chains = Oracle(trace).chains(size)
    expected, lengths = [key for keys in chains for key in keys], [len(keys) for keys in chains]
    assert np.diff(work.key_start).tolist() == lengths
    pairs = set(zip(work.keys.tolist(), expected, strict=True))
    assert len(pairs) == len({key for key, _ in pairs}) == len({key for _, key in pairs})
    assert sorted({key for key, _ in pairs}) == list(range(work.key_count))
    total = work.prompt_tokens + work.output_tokens
    assert (total // size).tolist() == lengths
    return work


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 9))
def test_keys_are_those_of_the_oracle(seed: int, size: int):
    trace = small(seed)
    assert check_trace(trace) == []
    compare(trace, size)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_keys_of_traces_of_every_kind(seed: int, size: int):
    trace = random_trace(seed, TraceShape(tasks=2, operations=10)).trace
    try:
        Work.of(trace, size)
    except ReplayError as error:
        assert error.requirement == "ST-REL-011"  # noqa: PT017  # most such traces have unknown counts somewhere
        return
    compare(trace, size)


@pytest.mark.parametrize("seed", range(3))
def test_compiled_or_not_the_keys_are_the_same(seed: int, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("numba")
    trace = small(seed)
    plain = Work.of(trace, 2)
    monkeypatch.setattr("semtrace.kernels.WORTH_COMPILING", 0)
    compiled = Work.of(trace, 2)
    assert compiled.keys.tolist() == plain.keys.tolist()
    assert prefix_tree.OPAQUE == 1 << 33
