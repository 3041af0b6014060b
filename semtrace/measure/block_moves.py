"""What an execution recorded of its blocks, one entry for each block of each row, and what each block held when (spec, audit.md)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from semtrace.engine.work import Work
from semtrace.errors import SemtraceError
from semtrace.measure.audit_form import scenario_of
from semtrace.measure.recorded_engine import engine_values
from semtrace.measure.slots import ranges
from semtrace.records.columns import NULL
from semtrace.records.enums import BlockAction, Tier

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semtrace.measure.slots import Slots

MOST: Final = 1 << 27
"""Entries that are looked at: each takes some 200 bytes of memory."""
LOST: Final = -1
"""The content of a block that keeps nothing that can be found."""
UNTOLD: Final = -2
"""The content of a block of which the record does not tell it."""


def before(groups: NDArray[np.int64], marks: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For each position the last marked one at or before it in its group, `NULL` if there is none.

    Args:
        groups: a number for each position; those of a group stand together.
        marks: the marked positions.
    """
    at = np.where(marks, np.arange(len(groups), dtype=np.int64), NULL)
    last = np.maximum.accumulate(at) if len(at) else at
    opens = np.flatnonzero(np.diff(groups, prepend=NULL - 1))
    begin = np.repeat(opens, np.diff(np.append(opens, len(groups))))
    return np.where(last >= begin, last, NULL)


@dataclass(frozen=True)
class BlockMoves:
    """The entries of the table `blocks`, in the order of memory, block and time.

    Attributes:
        slots: the slots.
        row: the row of `blocks` of each entry.
        place: the memory: server and tier as one number; remote memory is one for all servers.
        block: the block.
        position: its ordinal among the blocks of the tokens of its event, `NULL` where it has none.
    """

    slots: Slots
    row: NDArray[np.int64]
    place: NDArray[np.int64]
    block: NDArray[np.int64]
    position: NDArray[np.int64]

    @classmethod
    def of(cls, slots: Slots) -> BlockMoves:
        """The entries of a well-formed table whose rows have a first block, and are not too many."""
        table = slots.execution["blocks"]
        count = table.ints("blocks")
        row = np.repeat(np.arange(table.rows, dtype=np.int64), count)
        block = ranges(table.ints("first_block"), count)
        within = ranges(np.zeros(table.rows, dtype=np.int64), count)
        position = table.ints("position")[row]
        position = np.where(position == NULL, NULL, position + within)
        tier = table.ints("tier")
        place = (np.where(tier == Tier.REMOTE, 0, table.ints("server")) << 8 | tier)[row]
        order = np.lexsort((row, block, place))
        return cls(slots, row[order], place[order], block[order], position[order])

    def __len__(self) -> int:
        return len(self.row)

    def column(self, name: str) -> NDArray[np.int64]:
        """A column of `blocks` by entry."""
        found: NDArray[np.int64] = self.slots.execution["blocks"].ints(name)[self.row]
        return found

    @cached_property
    def action(self) -> NDArray[np.int64]:
        """What happened."""
        return self.column("action")

    @cached_property
    def time_ns(self) -> NDArray[np.int64]:
        """When."""
        return self.column("time_ns")

    @cached_property
    def event(self) -> NDArray[np.int64]:
        """The row of `events` that it was done for, `NULL` for none."""
        return self.column("event")

    @cached_property
    def device(self) -> NDArray[np.bool_]:
        """Whether it is on a device."""
        found: NDArray[np.bool_] = (self.place & 0xFF) == Tier.DEVICE
        return found

    @cached_property
    def reasons(self) -> dict[str | None, int]:
        """The reasons that there are, each with a number; None, no reason, is 0."""
        found: dict[str | None, int] = {None: 0}
        for reason in self.slots.execution["blocks"].strings("reason"):
            found.setdefault(reason, len(found))
        return found

    @cached_property
    def reason(self) -> NDArray[np.int64]:
        """The number of its reason."""
        numbers = self.reasons
        given = self.slots.execution["blocks"].strings("reason")
        of_row = np.array([numbers[reason] for reason in given], dtype=np.int64)
        made: NDArray[np.int64] = of_row[self.row]
        return made

    def because(self, *reasons: str | None) -> NDArray[np.bool_]:
        """Which entries have one of these reasons."""
        found: NDArray[np.bool_] = np.isin(
            self.reason, [self.reasons[each] for each in reasons if each in self.reasons]
        )
        return found

    @cached_property
    def group(self) -> NDArray[np.int64]:
        """A number for each block; the entries of a block stand together."""
        changes = (np.diff(self.place, prepend=NULL) != 0) | (np.diff(self.block, prepend=NULL) != 0)
        made: NDArray[np.int64] = np.cumsum(changes, dtype=np.int64)
        return made

    @cached_property
    def change(self) -> NDArray[np.int64]:
        """By how much the holders of its block change: on a device all that use it, elsewhere those that read it."""
        taken = (self.action == BlockAction.HIT) | (self.device & (self.action == BlockAction.ALLOCATE))
        left = (self.action == BlockAction.FREE) | (self.device & (self.action == BlockAction.DROP))
        made: NDArray[np.int64] = taken.astype(np.int64) - left
        return made

    @cached_property
    def holders(self) -> NDArray[np.int64]:
        """Holders of its block after it."""
        return running(self.group, self.change)

    @cached_property
    def set_by(self) -> NDArray[np.int64]:
        """The last entry of its block, itself included, that says what the block holds; `NULL` if there is none."""
        sets = np.isin(self.action, (BlockAction.ALLOCATE, BlockAction.EVICT, BlockAction.DROP))
        return before(self.group, sets)

    @cached_property
    def held_before(self) -> NDArray[np.int64]:
        """The entry that says what its block held before it; `NULL` if there is none."""
        made = np.full(len(self), NULL, dtype=np.int64)
        same = np.flatnonzero(self.group[1:] == self.group[:-1])
        made[same + 1] = self.set_by[same]
        return made

    @cached_property
    def keys(self) -> Keys | None:
        """The keys of blocks by event and position; None where the trace or the header do not tell them."""
        return Keys.of(self.slots)

    def calls(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """What calls took and gave back on devices themselves: entries in the order of event, block and time.

        Returns:
            the entries, and how often the call held the block after each.
        """
        mine = np.flatnonzero(self.device & (self.change != 0) & (self.event != NULL) & self.because(None))
        order = mine[np.lexsort((self.row[mine], self.group[mine], self.event[mine]))]
        both = np.cumsum(
            (np.diff(self.event[order], prepend=NULL) != 0) | (np.diff(self.group[order], prepend=NULL) != 0),
            dtype=np.int64,
        )
        return order, running(both, self.change[order])


def running(group: NDArray[np.int64], change: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sums from the first of its group up to each position; those of a group stand together."""
    whole = np.cumsum(change)
    opens = np.flatnonzero(np.diff(group, prepend=NULL - 1))
    start = np.repeat(whole[opens] - change[opens], np.diff(np.append(opens, len(group))))
    found: NDArray[np.int64] = whole - start
    return found


@dataclass(frozen=True)
class Keys:
    """The keys of the blocks of events (ST-ENG-012).

    Attributes:
        work: the trace in blocks.
        operation: the operation of each event.
        group: by event, the group in which prefixes are shared (ST-SCN-011).
        exact: by event, leading blocks that hold exactly its tokens; `NULL` for all, `UNTOLD` where that is not known.
    """

    work: Work
    operation: NDArray[np.int64]
    group: NDArray[np.int64]
    exact: NDArray[np.int64]

    @classmethod
    def of(cls, slots: Slots) -> Keys | None:
        """The keys of an execution on an engine; None where the trace or the header do not tell them."""
        execution = slots.execution
        try:
            backend = execution.header.backend
            if backend.name == "vllm" and execution.header.mode != "token_locked":
                return None  # what its blocks hold of outputs is what its model chose
            size = int((engine_values(backend) or {})["block_size"])
            salt = scenario_of(execution.header).salt
            work = Work.of(slots.trace, size)
        except (SemtraceError, KeyError, TypeError, ValueError):
            return None
        events, instances = execution.events, execution.instances
        instance = events.ints("instance")
        groups = {
            "copy": instances.ints("instance"),
            "instance": np.arange(instances.rows, dtype=np.int64),
            "none": np.zeros(instances.rows, dtype=np.int64),
        }
        reused = events.ints("reused_tokens") > 0
        found = np.maximum(events.ints("cached_tokens"), 0) + np.maximum(events.ints("loaded_tokens"), 0)
        exact = np.where(reused, found // size, NULL)
        # When it was admitted again, it computed what it had reused.
        exact = np.where(reused & (events.ints("preemptions") != 0), UNTOLD, exact)
        return cls(work, events.ints("operation"), groups[salt][instance], exact)

    def find(self, event: NDArray[np.int64], position: NDArray[np.int64]) -> NDArray[np.int64]:
        """The key of the block at a position of an event's tokens: `LOST` if it has none, `UNTOLD` if that is not known."""
        work = self.work
        told = (event != NULL) & (position != NULL)
        own = self.operation[np.where(told, event, 0)] if len(self.operation) else np.zeros_like(event)
        start = work.key_start[own]
        there = told & (position < work.key_start[own + 1] - start)
        at = np.where(there, start + position, 0)
        group = self.group[np.where(told, event, 0)]
        found = work.keys[at] + group * work.key_count if len(work.keys) else np.full_like(event, LOST)
        found = np.where(there, found, np.where(told, LOST, UNTOLD))
        exact = self.exact[np.where(told, event, 0)]
        found = np.where(told & (exact >= 0) & (position >= exact), LOST, found)
        return np.where(told & (exact == UNTOLD), UNTOLD, found)
