"""Ready times of many separate parts of a graph at once: one step computes the next operation of every part.

Tasks do not wait for each other, so the n-th operations of all tasks are computed together. A trace of many tasks takes
as many steps as its longest task has operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
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
    """Operations in the order of their steps.

    Attributes:
        offsets: where the edges into each operation begin, shape (operations + 1,).
        source: what is waited for, an operation of a lower row, by target.
        place: the place of each operation in its part, from 0: the step that computes it.
    """

    offsets: NDArray[np.int64]
    source: NDArray[np.int64]
    place: NDArray[np.int64]

    @classmethod
    def of(cls, offsets: NDArray[np.int64], source: NDArray[np.int64]) -> Lockstep:
        """Split a graph into parts between which there are no edges, each a stretch of rows."""
        rows = np.arange(len(offsets) - 1)
        lowest = rows.copy()  # the lowest row that a row waits for, itself if for none
        some = np.flatnonzero(np.diff(offsets))
        if len(some):
            lowest[some] = np.minimum.reduceat(source, offsets[some])
        begins = (
            np.minimum.accumulate(lowest[::-1])[::-1] == rows
        )  # nothing from here on waits for a lower row
        return cls(offsets, source, rows - np.maximum.accumulate(np.where(begins, rows, 0)))

    @cached_property
    def steps(self) -> int:
        """How many steps there are."""
        return int(self.place.max(initial=-1)) + 1

    @property
    def wide(self) -> bool:
        """Whether the steps have enough operations to pay."""
        return len(self.place) >= WIDE * self.steps

    def ready_times(
        self, arrival_ns: NDArray[np.int64], after_ns: Callable[[NDArray[np.int64]], NDArray[np.int64]]
    ) -> NDArray[np.int64]:
        """When each operation is ready.

        Args:
            arrival_ns: when operations that wait for nothing are ready.
            after_ns: says of edges how long after their source became ready they are satisfied.
        """
        order = np.argsort(self.place.astype(np.uint16 if self.steps < 1 << 16 else np.uint32), kind="stable")
        ready = arrival_ns[order]
        at = np.empty_like(order)
        at[order] = np.arange(len(order))
        size = np.diff(self.offsets)[order]
        some = np.flatnonzero(size)  # the others are ready when they arrive
        first = np.append(0, np.cumsum(size[some]))
        source, after = np.empty(first[-1], dtype=np.int64), np.empty(first[-1], dtype=np.int64)
        for rows in blocks(len(some)):
            part = slice(first[rows.start], first[rows.stop])
            begin = self.offsets.take(order.take(some[rows])) - first[rows]
            edges = np.repeat(begin, size.take(some[rows])) + np.arange(part.start, part.stop)
            source[part] = at.take(self.source.take(edges))
            after[part] = after_ns(edges)
        bounds = np.searchsorted(self.place.take(order.take(some)), np.arange(self.steps + 1))
        for begin, end in pairwise(bounds.tolist()):
            if begin < end:
                part = slice(first[begin], first[end])
                satisfied = ready.take(source[part])
                satisfied += after[part]
                ready[some[begin:end]] = np.maximum.reduceat(satisfied, first[begin:end] - first[begin])
        return ready.take(at)
