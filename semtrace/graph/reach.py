"""Which operations lead to which, inside one task, by bit sets; and a path that shows it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semtrace.records.enums import Trigger

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from semtrace.graph.resolve import Constraints


Link = tuple[int, int, Trigger]
"""An edge as (target, source, trigger)."""


@dataclass(frozen=True)
class Reach:
    """From which of some chosen operations a path leads to each operation of a task.

    Attributes:
        chosen: the chosen operations; the n-th has bit n.
        bit: the bit of each chosen operation.
        by_trigger: for each trigger, by operation, the bits of the chosen operations from which a path leads to it
            whose first edge has that trigger; operations that none leads to are left out.
    """

    chosen: Sequence[int]
    bit: dict[int, int]
    by_trigger: dict[Trigger, dict[int, int]]

    def mask(self, operations: Collection[int]) -> int:
        """The bits of operations."""
        mask = 0
        for operation in operations:
            mask |= self.bit[operation]
        return mask

    def into(self, operation: int, *triggers: Trigger) -> int:
        """The bits of the chosen operations that lead to this one by a path whose first edge has one of the triggers.

        Any trigger counts if none is named.
        """
        mask = 0
        for trigger in triggers or tuple(self.by_trigger):
            mask |= self.by_trigger[trigger].get(operation, 0)
        return mask

    def lowest(self, mask: int) -> int:
        """The first of the chosen operations in a mask that is not empty."""
        return self.chosen[(mask & -mask).bit_length() - 1]


def recorded_links(constraints: Constraints, rows: range) -> list[Link]:
    """The edges into the operations of a task, all edges into a source before those out of it.

    Args:
        constraints: recorded edges alone, which point from lower to higher rows.
        rows: the operations of the task.
    """
    edges = slice(int(constraints.offsets[rows.start]), int(constraints.offsets[rows.stop]))
    triggers = map(Trigger, constraints.trigger[edges].tolist())
    return list(
        zip(constraints.target[edges].tolist(), constraints.source[edges].tolist(), triggers, strict=True)
    )


def reach(links: Iterable[Link], chosen: Sequence[int]) -> Reach:
    """Reachability from chosen operations.

    Args:
        links: the edges of a task, all edges into a source before those out of it.
        chosen: operations of the task.
    """
    bit = {operation: 1 << at for at, operation in enumerate(chosen)}
    masks: dict[Trigger, dict[int, int]] = {trigger: {} for trigger in Trigger}
    every = tuple(masks.values())
    for target, source, first in links:
        own = bit.get(source)
        if own is not None:
            masks[first][target] = masks[first].get(target, 0) | own
        for mask in every:
            before = mask.get(source)
            if before is not None:
                mask[target] = mask.get(target, 0) | before
    return Reach(chosen, bit, masks)


def find_path(
    constraints: Constraints, source: int, target: int, triggers: Collection[Trigger] = tuple(Trigger)
) -> list[int]:
    """A shortest path of edges from one operation to another, both ends included; empty if there is none.

    Args:
        constraints: recorded edges, which are acyclic.
        source: first operation of the path.
        target: last one.
        triggers: what the path's first edge may be triggered by.
    """
    following: dict[int, int] = {}
    pending = deque([target])
    while pending:
        at = pending.popleft()
        for edge in range(int(constraints.offsets[at]), int(constraints.offsets[at + 1])):
            previous = int(constraints.source[edge])
            if previous == source:
                if constraints.trigger[edge] in triggers:
                    path = [source, at]
                    while path[-1] != target:
                        path.append(following[path[-1]])
                    return path
            elif previous not in following:
                following[previous] = at
                pending.append(previous)
    return []


def ancestors(constraints: Constraints, operation: int) -> set[int]:
    """All operations from which a path leads to this one."""
    seen: set[int] = set()
    pending = [operation]
    while pending:
        at = pending.pop()
        for source in constraints.source[
            int(constraints.offsets[at]) : int(constraints.offsets[at + 1])
        ].tolist():
            if source not in seen:
                seen.add(source)
                pending.append(source)
    return seen
