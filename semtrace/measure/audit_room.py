"""Audit rules on the room that a scenario gives: how many model operations may be in flight at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from semtrace.records.columns import NULL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semtrace.measure.audit_events import Case


@dataclass(frozen=True)
class Room:
    """How many model operations were in flight, and how many may be.

    Attributes:
        most: how many may be.
        time: instants at which one was submitted or ended, ascending, ends before submissions; in ns.
        slot: whose.
        starts: whether it was submitted then; else it ended.
        flying: how many are in flight from each instant on.
    """

    most: int
    time: NDArray[np.int64]
    slot: NDArray[np.int64]
    starts: NDArray[np.bool_]
    flying: NDArray[np.int64]

    @classmethod
    def of(cls, case: Case) -> Room | None:
        """Of a replay whose scenario limits it; None of any other, and where nothing was in flight."""
        most = (case.slots.execution.header.scenario or {}).get("concurrency")
        if case.native or not isinstance(most, int) or most < 1:
            return None
        slots = case.slots
        started = np.flatnonzero(~slots.fixed & (slots.submitted != NULL))
        ended = started[slots.finished[started] != NULL]
        slot = np.concatenate([ended, started])
        time = np.concatenate([slots.finished[ended], slots.submitted[started]])
        change = np.concatenate([np.full(len(ended), -1), np.full(len(started), 1)])
        order = np.lexsort((change, time))
        if not len(order):
            return None
        return cls(most, time[order], slot[order], change[order] > 0, np.cumsum(change[order]))

    def since(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Slots that were submitted, and since when there had been room: the end of the last time without; else 0."""
        at = np.flatnonzero(self.starts)
        every = np.arange(len(self.time), dtype=np.int64)
        last_full = np.maximum.accumulate(np.where(self.flying >= self.most, every, -1))
        before = np.where(at > 0, last_full[at - 1], -1)
        return self.slot[at], np.where(before < 0, 0, self.time[before + 1])


def judge_room(case: Case) -> None:
    """No more model operations were in flight than the scenario allows (ST-AUD-037)."""
    room = Room.of(case)
    if room is None:
        return
    at = np.flatnonzero(room.starts)
    case.judge(
        "ST-AUD-037",
        room.slot[at],
        room.flying[at] > room.most,
        lambda i: (
            f"{int(room.flying[at[i]])} model operations were in flight, the scenario allows {room.most}"
        ),
        column="submitted_ns",
    )
