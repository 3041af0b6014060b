"""Sampling: the same tasks on every machine, shares kept where that is asked for."""

from __future__ import annotations

import itertools
import struct

import numpy as np
import pytest
from blake3 import blake3

from semtrace.build import TraceBuilder
from semtrace.errors import UsageError
from semtrace.records.enums import EntityKind, OperationKind
from semtrace.store.digests import trace_digest
from semtrace.transform.sample import sample_tasks
from support.transform_cases import crew, findings, old_ids, parts_of


def many(workloads):
    b = TraceBuilder()
    for at, workload in enumerate(workloads):
        task = b.task(f"task {at}", workload=workload)
        b.operation(task, OperationKind.TOOL, "one", duration_ns=at)
    return parts_of(b.build())


def drawn(parts):
    return [int(name.split()[1]) for name in parts.trace.tasks.strings("name")]


def test_the_example_of_the_standard():
    """ST-LIN-030."""
    keys = [
        blake3(struct.pack("<qI", 7, at), derive_key_context="semtrace v1 sample").hexdigest()
        for at in range(5)
    ]
    assert [key[:8] for key in keys] == ["9fc45b21", "851833a6", "3723ee94", "925b8e47", "28d4ce50"]
    whole = many([None] * 5)
    assert drawn(sample_tasks(whole, 2, 7)) == [2, 4]
    assert drawn(sample_tasks(whole, 3, 7)) == [1, 2, 4]


def test_larger_samples_hold_smaller_ones():
    whole = many([None] * 40)
    for seed in (0, -1, (1 << 63) - 1, -(1 << 63)):
        chosen = [set(drawn(sample_tasks(whole, count, seed))) for count in (1, 5, 20, 40)]
        assert [len(tasks) for tasks in chosen] == [1, 5, 20, 40]
        assert all(small <= large for small, large in itertools.pairwise(chosen))
    assert drawn(sample_tasks(whole, 20, 1)) != drawn(sample_tasks(whole, 20, 2))


def test_the_shares_of_the_example_of_the_standard():
    """ST-LIN-031."""
    whole = many(["A", "B", "A", "C", "A", "B", "A", "C", "A", "B"])
    made = sample_tasks(whole, 4, 3, by="workload")
    assert sorted(made.trace.tasks.strings("workload")) == ["A", "A", "B", "C"]
    assert made.info.lineage[0]["parameters"] == {"count": 4, "by": "workload"}
    assert made.info.lineage[0]["seed"] == "3"


@pytest.mark.parametrize("count", range(1, 13))
def test_shares_are_within_one_of_exact(count):
    workloads = ["A"] * 7 + [None] * 4 + ["B"]
    made = sample_tasks(many(workloads), count, count, by="workload")
    got = made.trace.tasks.strings("workload")
    assert len(got) == count
    for value, size in (("A", 7), (None, 4), ("B", 1)):
        assert abs(got.count(value) - size * count / 12) < 1


def test_strata_by_other_columns():
    whole = parts_of(crew(tasks=6).build())
    made = sample_tasks(whole, 2, 0, by="outcome")
    assert sorted(made.trace.tasks.ints("outcome").tolist()) == [2, 3]
    assert len(sample_tasks(whole, 6, 0, by="name").trace.tasks.strings("name")) == 6


def test_what_is_drawn_is_whole():
    whole = parts_of(crew(tasks=9).build())
    made = sample_tasks(whole, 4, 11)
    assert findings(made) == []
    old = old_ids(made, EntityKind.TASK, whole.trace)
    assert [old[at] for at in range(4)] == drawn(made) == sorted(drawn(made))
    assert np.array_equal(
        made.trace.operations.ints("duration_ns").reshape(4, -1),
        whole.trace.operations.ints("duration_ns").reshape(9, -1)[drawn(made)],
    )
    assert trace_digest(sample_tasks(whole, 4, 11).trace) == trace_digest(made.trace)
    assert sample_tasks(whole, 9, 11).trace is whole.trace


@pytest.mark.parametrize(("count", "seed"), [(0, 0), (-1, 0), (4, 0), (1, 1 << 63), (1, -(1 << 63) - 1)])
def test_what_cannot_be_drawn(count, seed):
    with pytest.raises(UsageError):
        sample_tasks(many([None] * 3), count, seed)
