"""Synchronisation wait: how long ends of branches lie there until their join can start (spec, measures.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from semtrace.records.enums import Trigger

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semtrace.records.trace import Trace

LARGEST_TASK: Final = 50_000
"""Operations of the largest task in which branches are told apart; the bit sets of larger ones would not fit."""


def joins(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64], list[int]]:
    """The joins of a trace with the ends of the branches that meet there (ST-MEA-043).

    A join is an operation with two or more branch ends. A branch end of v is the source of a recorded edge to v
    with trigger finish that is before no other such source.

    Returns:
        Branch ends and joins, both operations, pairwise, sorted by join; and the tasks that are too large to be
        looked at.
    """
    target, source = trace.edges.ints("target"), trace.edges.ints("source")
    ends = trace.edges.ints("trigger") == Trigger.FINISH
    offsets = trace.edge_offsets
    found_end: list[int] = []
    found_join: list[int] = []
    left_out: list[int] = []
    for task in range(trace.tasks.rows):
        rows = trace.task_rows("operations", task)
        if len(rows) > LARGEST_TASK:
            left_out.append(task)
            continue
        low, high = int(offsets[rows.start]), int(offsets[rows.stop])
        if not _has_joins(target[low:high], source[low:high], ends[low:high]):
            continue
        before = [0] * len(rows)  # by operation, the bits of all operations before it
        for operation in rows:
            edges = slice(int(offsets[operation]), int(offsets[operation + 1]))
            sources = source[edges].tolist()
            mask = 0
            for each in sources:
                mask |= before[each - rows.start] | 1 << (each - rows.start)
            before[operation - rows.start] = mask
            waited = sorted(set(source[edges][ends[edges]].tolist()))
            if len(waited) > 1:
                covered = 0
                for each in waited:
                    covered |= before[each - rows.start]
                last = [each for each in waited if not covered >> (each - rows.start) & 1]
                if len(last) > 1:
                    found_end.extend(last)
                    found_join.extend([operation] * len(last))
    return np.array(found_end, dtype=np.int64), np.array(found_join, dtype=np.int64), left_out


def _has_joins(target: NDArray[np.int64], source: NDArray[np.int64], ends: NDArray[np.bool_]) -> bool:
    """Whether some operation has two different sources."""
    pairs = np.unique(np.stack([target[ends], source[ends]]), axis=1)
    return bool((np.diff(pairs[0]) == 0).any())
