"""The canonical order of the rows that tasks own, of a trace whose rows may stand in any order."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from semtrace.build.ordering import order_operations
from semtrace.errors import FormatError
from semtrace.records.columns import NULL
from semtrace.records.enums import AccessMode
from semtrace.transform.rows import places

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semtrace.records.trace import Trace


def references(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Every reference from an operation to another (ST-ORD-002): the operation that refers, and the one referred to."""
    operations, sessions, accesses = trace.operations, trace["sessions"], trace["state_accesses"]
    every = np.arange(operations.rows)
    version = accesses.ints("state_version")
    writer = trace["state_versions"].ints("writer")[version]
    read = accesses.ints("mode") == AccessMode.READ
    parent = np.append(sessions.ints("parent_operation"), NULL)[operations.ints("session")]
    pairs = [
        (trace.edges.ints("target"), trace.edges.ints("source")),
        (every, operations.ints("context_base")),
        (trace.segments.ints("operation"), trace.segments.ints("source_operation")),
        (accesses.ints("operation")[read], writer[read]),
        (every, parent),
    ]
    refers, referred = (np.concatenate(side) for side in zip(*pairs, strict=True))
    real = (referred != NULL) & (referred != refers)
    task = operations.ints("task")
    other = np.flatnonzero(real & (task[refers] != task[referred]))
    if len(other):
        raise FormatError(
            f"operation {refers[other[0]]} refers to operation {referred[other[0]]} of another task",
            code="order.task",
            path="operations",
            requirement="ST-ORD-003",
            hint="what another task left behind comes in as an initial state version",
        )
    return refers[real], referred[real]


def operation_order(trace: Trace, started_ns: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """The canonical order of operations: ST-ORD-004, with their rows as their places in the source.

    Operations that stand in a valid order keep it, if no starts are given.

    Args:
        trace: the trace.
        started_ns: observed start of each operation, `NULL` where not known; None if none is.

    Raises:
        FormatError: references form a cycle, or leave a task.
    """
    task = trace.operations.ints("task")
    refers, referred = references(trace)
    keys = [task]
    if started_ns is not None:
        keys = [np.where(started_ns == NULL, np.iinfo(np.int64).max, started_ns), task]
    order = np.lexsort(keys)
    place = places(order, len(task))
    wrong = np.unique(task[refers[place[referred] >= place[refers]]])
    if not len(wrong):
        return order
    starts = np.searchsorted(task[order], np.arange(trace.tasks.rows + 1))
    by_task = np.argsort(task[refers], kind="stable")
    edges = np.searchsorted(task[refers][by_task], np.arange(trace.tasks.rows + 1))
    for at in wrong.tolist():
        start, end = int(starts[at]), int(starts[at + 1])
        rows = by_task[edges[at] : edges[at + 1]]
        targets, sources = place[refers[rows]] - start, place[referred[rows]] - start
        inner = _least_first(end - start, targets, sources)
        if len(inner) < end - start:
            _refuse_cycle(trace, order[start:end], targets, sources)
        order[start:end] = order[start:end][inner]
    return order


def _least_first(count: int, targets: NDArray[np.int64], sources: NDArray[np.int64]) -> list[int]:
    """Things numbered 0 … count − 1 with each after those that it refers to, the least possible one always next."""
    missing = np.bincount(targets, minlength=count).tolist()
    by_source = np.argsort(sources, kind="stable")
    dependents = targets[by_source].tolist()
    begins = np.searchsorted(sources[by_source], np.arange(count + 1)).tolist()
    heap = [at for at, waits in enumerate(missing) if not waits]
    order: list[int] = []
    while heap:
        at = heapq.heappop(heap)
        order.append(at)
        for dependent in dependents[begins[at] : begins[at + 1]]:
            missing[dependent] -= 1
            if not missing[dependent]:
                heapq.heappush(heap, dependent)
    return order


def _refuse_cycle(
    trace: Trace, rows: NDArray[np.int64], targets: NDArray[np.int64], sources: NDArray[np.int64]
) -> None:
    """Raise the error that names a cycle.

    Raises:
        FormatError: always.
    """
    referred: list[set[int]] = [set() for _ in range(len(rows))]
    for target, source in zip(targets.tolist(), sources.tolist(), strict=True):
        referred[target].add(source)
    names = trace.operations.strings("name")
    order_operations(
        [0] * len(rows),
        [None] * len(rows),
        referred,
        lambda at: f"operation {rows[at]} ({names[rows[at]]})",
    )


def session_order(trace: Trace, operations: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sessions by task, then by their first operation.

    Args:
        trace: the trace.
        operations: the new id of each operation.
    """
    first = _first(trace, "sessions", "session", operations)
    return np.lexsort([first, trace["sessions"].ints("task")])


def stage_order(trace: Trace, operations: NDArray[np.int64]) -> NDArray[np.int64]:
    """Stages by task, then by the first operation of each and of those nested in it; a parent before its children.

    Args:
        trace: the trace.
        operations: the new id of each operation.
    """
    task, parent = trace["stages"].ints("task"), trace["stages"].ints("parent")
    first = _first(trace, "stages", "stage", operations)
    least, depth = (np.array(each, dtype=np.int64) for each in _nested(parent.tolist(), first.tolist()))
    order = np.lexsort([least, task])
    place = places(order, len(task))
    nested = np.flatnonzero(parent != NULL)
    if (place[parent[nested]] < place[nested]).all():
        return order
    return np.lexsort([depth, least, task])


def _nested(parent: list[int], first: list[int]) -> tuple[list[int], list[int]]:
    """Of each stage the least number of its own and of all nested in it, and how deep it is nested itself.

    Stages that are nested in a circle keep their own number, at depth 0: they are refused later.
    """
    inside = [0] * len(parent)
    for outer in parent:
        if outer != NULL:
            inside[outer] += 1
    ready = [at for at, count in enumerate(inside) if not count]
    upwards: list[int] = []
    least = list(first)
    while ready:
        at = ready.pop()
        upwards.append(at)
        outer = parent[at]
        if outer != NULL:
            least[outer] = min(least[outer], least[at])
            inside[outer] -= 1
            if not inside[outer]:
                ready.append(outer)
    depth = [0] * len(parent)
    for at in reversed(upwards):
        if parent[at] != NULL:
            depth[at] = depth[parent[at]] + 1
    return least, depth


def _first(trace: Trace, table: str, column: str, operations: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first operation of each stage or session under its new id, the greatest number if there is none."""
    first = np.full(trace[table].rows, np.iinfo(np.int64).max, dtype=np.int64)
    owner = trace.operations.ints(column)
    rows = np.flatnonzero(owner != NULL)
    np.minimum.at(first, owner[rows], operations[rows])
    return first
