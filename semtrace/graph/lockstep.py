"""Ready times of many separate parts of a graph at once: one step computes the next operation of every part.

Tasks do not wait for each other, so the n-th operations of all tasks are computed together. A trace of many tasks takes
as many steps as its longest task has operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from semtrace.blocks import blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

WIDE: Final = 50
"""Operations in a step, on average, from which on steps pay."""


@dataclass(frozen=True)
class Lockstep:
    """A graph of which each operation waits for lower rows only, in parts between which there are no edges.

    Attributes:
        offsets: where the edges into each operation begin, shape (operations + 1,).
        source: what is waited for, by target.
        starts: the first operation of each part, and the end of the last one.
    """

    offsets: NDArray[np.int64]
    source: NDArray[np.int64]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, offsets: NDArray[np.int64], source: NDArray[np.int64]) -> Lockstep:
        """Split a graph into its parts."""
        count = len(offsets) - 1
        starts, lowest = [np.array([count])], count  # the lowest row that those looked at wait for
        for rows in reversed([*blocks(count)]):
            own = np.arange(rows.start, rows.stop)
            waits = own.copy()
            bounds = offsets[rows.start : rows.stop + 1]
            some = np.flatnonzero(bounds[1:] > bounds[:-1])
            if len(some):
                waits[some] = np.minimum.reduceat(source[: bounds[-1]], bounds[some])
            waits[-1] = min(int(waits[-1]), lowest)
            waits = np.minimum.accumulate(waits[::-1])[::-1]
            lowest = int(waits[0])
            starts.append(own[waits >= own])  # nothing from here on waits for a lower row
        return cls(offsets, source, np.concatenate(starts[::-1]))

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Operations of each part."""
        return np.diff(self.starts)

    @property
    def steps(self) -> int:
        """How many steps there are: the n-th computes the n-th operation of every part that has one."""
        return int(self.sizes.max(initial=0))

    @property
    def wide(self) -> bool:
        """Whether the steps have enough operations to pay."""
        return len(self.offsets) - 1 >= WIDE * self.steps

    def _order(self) -> NDArray[np.int64]:
        """The operations by step."""
        place = np.arange(len(self.offsets) - 1, dtype=np.uint32)
        place -= np.repeat(self.starts[:-1].astype(np.uint32), self.sizes)
        return np.argsort(place.astype(np.uint16) if self.steps < 1 << 16 else place, kind="stable")

    def _widths(self) -> NDArray[np.int64]:
        """How many operations each step computes."""
        ended = np.searchsorted(np.sort(self.sizes), np.arange(self.steps), side="right")
        return len(self.sizes) - ended

    def ready_times(
        self, arrival_ns: NDArray[np.int64], after_ns: Callable[[NDArray[np.int64]], NDArray[np.int64]]
    ) -> NDArray[np.int64]:
        """When each operation is ready.

        Args:
            arrival_ns: when operations that wait for nothing are ready.
            after_ns: says of edges how long after their source became ready they are satisfied.
        """
        order, count, edges = self._order(), len(self.offsets) - 1, len(self.source)
        at = np.empty(count, dtype=np.uint32)
        first = np.zeros(
            count + 1, dtype=np.int64
        )  # where the edges into each begin, in the order of the steps
        for rows in blocks(count):
            row = order[rows]
            at[row] = np.arange(rows.start, rows.stop, dtype=np.uint32)
            first[rows.start + 1 : rows.stop + 1] = self.offsets.take(row + 1) - self.offsets.take(row)
        waits = first[1:] > 0
        np.cumsum(first, out=first)
        source, after = np.zeros(edges + 1, dtype=np.uint32), np.zeros(edges + 1, dtype=np.int64)
        for rows in blocks(count):
            bounds = first[rows.start : rows.stop + 1]
            begin = self.offsets.take(order[rows]) - bounds[:-1]
            edge = np.repeat(begin, np.diff(bounds)) + np.arange(bounds[0], bounds[-1])
            source[bounds[0] : bounds[-1]] = at.take(self.source.take(edge))
            after[bounds[0] : bounds[-1]] = after_ns(edge)
        ready = arrival_ns.take(order)
        step = slice(0, 0)
        for size in self._widths().tolist():
            step = slice(step.stop, step.stop + size)
            bounds = first[step.start : step.stop + 1]
            part = slice(bounds[0], bounds[-1] + 1)  # one more, which ends the last group
            satisfied = ready.take(source[part])
            satisfied += after[part]
            latest = np.maximum.reduceat(satisfied, bounds - bounds[0])[:-1]
            np.copyto(ready[step], latest, where=waits[step])
        return ready.take(at)
