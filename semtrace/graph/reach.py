"""Which operations lead to which, inside one task, by bit sets; and a path that shows it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semtrace.records.enums import Trigger

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from semtrace.graph.resolve import Constraints


@dataclass(frozen=True)
class Reach:
    """From which of some chosen operations a path leads to each operation of a task.

    Attributes:
        bit: the bit of each chosen operation.
        start: first operation of the task.
        by_trigger: for each trigger, by operation of the task, the bits of the chosen operations from which a path
            leads to it whose first edge has that trigger.
    """

    bit: dict[int, int]
    start: int
    by_trigger: dict[Trigger, list[int]]

    def mask(self, operations: Collection[int]) -> int:
        """The bits of operations."""
        mask = 0
        for operation in operations:
            mask |= self.bit[operation]
        return mask

    def into(self, operation: int, *triggers: Trigger) -> int:
        """The bits of the chosen operations that lead to this one by a path whose first edge has one of the triggers."""
        mask = 0
        for trigger in triggers or tuple(self.by_trigger):
            mask |= self.by_trigger[trigger][operation - self.start]
        return mask


def reach(constraints: Constraints, rows: range, chosen: Sequence[int]) -> Reach:
    """Reachability from chosen operations over the edges of a task; groups are not looked at.

    Args:
        constraints: of which only edges from lower to higher rows count: the recorded ones.
        rows: the operations of the task.
        chosen: operations of the task.
    """
    bit = {operation: 1 << at for at, operation in enumerate(chosen)}
    masks = {trigger: [0] * len(rows) for trigger in Trigger}
    low, high = int(constraints.offsets[rows.start]), int(constraints.offsets[rows.stop])
    targets = constraints.target[low:high].tolist()
    sources = constraints.source[low:high].tolist()
    triggers = [masks[Trigger(number)] for number in constraints.trigger[low:high].tolist()]
    every = tuple(masks.values())
    start = rows.start
    for target, source, first in zip(targets, sources, triggers, strict=True):
        own = bit.get(source)
        if own is not None:
            first[target - start] |= own
        for mask in every:
            if mask[source - start]:
                mask[target - start] |= mask[source - start]
    return Reach(bit, start, masks)


def find_path(constraints: Constraints, source: int, target: int) -> list[int]:
    """A shortest path of edges from one operation to another, both ends included; empty if there is none."""
    before: dict[int, int] = {}
    pending = deque([target])
    while pending:
        at = pending.popleft()
        for edge in range(int(constraints.offsets[at]), int(constraints.offsets[at + 1])):
            previous = int(constraints.source[edge])
            if previous not in before and previous != target:
                before[previous] = at
                if previous == source:
                    path = [source]
                    while path[-1] != target:
                        path.append(before[path[-1]])
                    return path
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
