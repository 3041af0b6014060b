"""Large tables are looked at in blocks: what is found does not depend on where a block ends."""

from __future__ import annotations

import numpy as np
import pytest

from semtrace import blocks
from semtrace.check import check_trace
from semtrace.check.view import first_rows
from semtrace.records.columns import NULL
from semtrace.records.trace import group_offsets
from semtrace.testing import random_trace
from unit.check.example import drop, put, swap, then

DAMAGE = {
    "nothing": lambda trace: trace,
    "edges out of order": swap("edges", 3, 9),
    "an edge missing, two swapped": then(drop("edges", 2), swap("edges", 5, 6)),
    "messages, roles": then(put("segments", "message", {4: 7}), put("segments", "role", {9: 4})),
    "tokens": then(put("segments", "tokens", {3: 99_999}), put("operations", "prompt_tokens", {5: 1, 8: 2})),
    "inheritance": put("operations", "context_segments", {6: 9}),
    "segments of others": put("segments", "source_operation", {2: 11, 14: 12}),
    "numbering": swap("segments", 1, 12),
}


@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.parametrize("block", [1, 3])
def test_findings_do_not_depend_on_blocks(name, block, monkeypatch):
    for seed in range(6):
        trace = DAMAGE[name](random_trace(seed).trace)
        whole = check_trace(trace)
        assert bool(whole) == (name != "nothing")
        monkeypatch.setattr(blocks, "BLOCK", block)
        assert check_trace(trace) == whole
        monkeypatch.undo()


@pytest.mark.parametrize("block", [1, 3, 100])
def test_groups_and_first_rows_are_found_across_blocks(block, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", block)
    owners = np.array([0, 0, 2, 2, 2, 3, 6, 6, 9], dtype=np.uint32)
    assert group_offsets(owners, 8).tolist() == np.searchsorted(owners, np.arange(9)).tolist()
    assert group_offsets(owners[:0], 3).tolist() == [0, 0, 0, 0]
    named = np.array([2, NULL, 0, 2, 0, 4, NULL, 2])
    assert first_rows(named, 5, NULL).tolist() == [2, NULL, 0, NULL, 5]
