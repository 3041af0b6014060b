"""The canonical order of a trace's rows (ST-ORD-001 …), which a producer applies once."""

from __future__ import annotations

import heapq
from collections import defaultdict
from typing import TYPE_CHECKING

from semtrace.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LAST = 1 << 63


def order_operations(
    tasks: Sequence[int],
    started_ns: Sequence[int | None],
    references: Sequence[set[int]],
    describe: Callable[[int], str],
) -> list[int]:
    """The canonical order of operations.

    Operations are grouped by task; within one, always the least operation of those whose references are all
    numbered is next, by (observed start, null last; place in the source) (ST-ORD-004).

    Args:
        tasks: the task of each operation, in the order of the source.
        started_ns: observed start of each operation, None if unknown.
        references: for each operation the operations that it refers to.
        describe: how an operation is named in an error.

    Returns:
        The operations in their canonical order.

    Raises:
        FormatError: references form a cycle, or leave the task.
    """
    missing = [len(refs) for refs in references]
    dependents: dict[int, list[int]] = defaultdict(list)
    for operation, refs in enumerate(references):
        for reference in refs:
            if tasks[reference] != tasks[operation]:
                raise FormatError(
                    f"{describe(operation)} refers to {describe(reference)} of another task",
                    code="order.task",
                    requirement="ST-ORD-003",
                    hint="what another task left behind comes in as an initial state version",
                )
            dependents[reference].append(operation)

    def key(operation: int) -> tuple[int, int, int]:
        start = started_ns[operation]
        return (tasks[operation], _LAST if start is None else start, operation)

    heap = [key(operation) for operation, count in enumerate(missing) if count == 0]
    heapq.heapify(heap)
    order: list[int] = []
    while heap:
        operation = heapq.heappop(heap)[2]
        order.append(operation)
        for dependent in dependents[operation]:
            missing[dependent] -= 1
            if missing[dependent] == 0:
                heapq.heappush(heap, key(dependent))
    if len(order) < len(missing):
        stuck = [operation for operation, count in enumerate(missing) if count > 0]
        names = ", ".join(describe(operation) for operation in _cycle(stuck, references))
        raise FormatError(
            f"operations wait for each other in a circle: {names}",
            code="order.cycle",
            requirement="ST-ORD-002",
        )
    return order


def _cycle(stuck: Sequence[int], references: Sequence[set[int]]) -> list[int]:
    """One cycle among operations that could not be ordered."""
    remaining = set(stuck)
    path: list[int] = []
    at = stuck[0]
    while at not in path:
        path.append(at)
        at = min(reference for reference in references[at] if reference in remaining)
    return path[path.index(at) :]


def order_by_first(
    tasks: Sequence[int], first: Sequence[int | None], parents: Sequence[int | None]
) -> list[int]:
    """The canonical order of sessions or stages: by task, then first operation; a parent before its children.

    Args:
        tasks: the task of each.
        first: the position of its first operation in canonical order, None if it has none.
        parents: the one that each is nested in, if any.
    """
    least = [_LAST if position is None else position for position in first]
    for child in range(len(tasks)):
        seen = {child}
        at = parents[child]
        while at is not None and at not in seen:
            least[at] = min(least[at], least[child])
            seen.add(at)
            at = parents[at]

    def depth(at: int) -> int:
        count, parent, seen = 0, parents[at], {at}
        while parent is not None and parent not in seen:
            seen.add(parent)
            count, parent = count + 1, parents[parent]
        return count

    return sorted(range(len(tasks)), key=lambda at: (tasks[at], least[at], depth(at), at))
