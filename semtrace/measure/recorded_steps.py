"""The scheduler steps that an execution recorded, with the runs of its events laid over them (spec, audit.md).

Everything here holds for executions from anyone whose tables are well formed; what a run says of steps that are not
there is left out, and said to be.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from semtrace import kernels
from semtrace.engine.steplog_runs import lay_runs
from semtrace.records.columns import NULL
from semtrace.records.enums import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from semtrace.measure.slots import Slots


@dataclass(frozen=True)
class RecordedSteps:
    """Steps, and the runs that lie on them, in the order of their slots and steps.

    Attributes:
        slots: the slots.
        server, start_ns, end_ns, tokens, requests, free_blocks: of each step.
        lost: rows of `step_runs` that lie on no steps: their event is of no slot, or has no server, or that has no such steps.
        row: the row of `step_runs` of each run.
        slot: the slot of each run.
        first: the first step of each run, a row of `steps`.
        last: the step after its last one.
        position: tokens computed before it.
        each: tokens in each of its steps.
        decode: whether it is decode.
    """

    slots: Slots
    server: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    tokens: NDArray[np.int64]
    requests: NDArray[np.int64]
    free_blocks: NDArray[np.int64]
    lost: NDArray[np.int64]
    row: NDArray[np.int64]
    slot: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    position: NDArray[np.int64]
    each: NDArray[np.int64]
    decode: NDArray[np.bool_]

    @classmethod
    def of(cls, slots: Slots) -> RecordedSteps:
        """The steps of an execution whose tables `steps` and `step_runs` are well formed (ST-EXE-011 to ST-EXE-014)."""
        steps, runs = slots.execution["steps"], slots.execution["step_runs"]
        server = steps.ints("server")
        slot_of = np.full(slots.execution.events.rows, NULL, dtype=np.int64)
        slot_of[slots.event[slots.present]] = np.flatnonzero(slots.present)
        slot = slot_of[runs.ints("event")] if runs.rows else np.zeros(0, dtype=np.int64)
        of_slot = slots.seen("server")
        own = np.where(slot != NULL, of_slot[slot], NULL) if slots.count else np.full_like(slot, NULL)
        servers, begins, held = np.unique(server, return_index=True, return_counts=True)
        at = np.minimum(np.searchsorted(servers, own), max(len(servers) - 1, 0))
        there = (servers[at] == own) if len(servers) else np.zeros(len(own), dtype=np.bool_)
        there &= own != NULL
        first, count = runs.ints("first_step"), runs.ints("count")
        each = runs.ints("tokens_per_step")
        if len(servers):
            there &= first + count <= held[at]
        there &= (each > 0) & (runs.ints("start_position") >= 0)
        row = np.flatnonzero(there)
        row = row[np.argsort(slot[row], kind="stable")]
        begin = begins[at[row]] + first[row] if len(servers) else first[row]
        return cls(
            slots,
            server,
            steps.ints("start_ns"),
            steps.ints("end_ns"),
            steps.ints("tokens"),
            steps.ints("requests"),
            steps.ints("free_blocks"),
            np.flatnonzero(~there),
            row,
            slot[row],
            begin,
            begin + count[row],
            runs.ints("start_position")[row],
            each[row],
            runs.ints("phase")[row] == Phase.DECODE,
        )

    @property
    def count(self) -> int:
        """Number of steps."""
        return len(self.server)

    @cached_property
    def begins(self) -> NDArray[np.int64]:
        """The first step of each server, ascending."""
        return np.flatnonzero(np.diff(self.server, prepend=-1))

    @cached_property
    def ready_ns(self) -> NDArray[np.int64]:
        """When the step before each on its server ended; its own start for the first of a server."""
        before = np.concatenate([self.start_ns[:1], self.end_ns[:-1]])
        before[self.begins] = self.start_ns[self.begins]
        return before

    @cached_property
    def end_position(self) -> NDArray[np.int64]:
        """By run, tokens computed after it."""
        return self.position + (self.last - self.first) * self.each

    @cached_property
    def of_slot(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The slots that have runs, ascending; the first and the last run of each."""
        opens = np.flatnonzero(np.diff(self.slot, prepend=-1))
        closes = np.append(opens[1:], len(self.slot)) - 1
        return self.slot[opens], opens, closes[: len(opens)]

    @cached_property
    def walk(self) -> Walk:
        """What each run does, as one follows from the one before it."""
        slots, runs = self.slots, len(self.slot)
        prompt = slots.recorded("prompt_tokens")
        made = Walk(*(np.zeros(runs, dtype=np.int64) for _ in range(4)))
        arguments = (self.slot, self.position, self.end_position, self.each, self.decode, prompt)
        kernels.run(_walk, runs, *arguments, made.jumps, made.restarts, made.yields, made.wrong)
        return made

    @cached_property
    def geometry(self) -> NDArray[np.int64]:
        """The geometry of the steps by their runs, int64[steps, 8] (ST-COST-001)."""
        return lay_runs(
            self.count,
            self.first,
            self.last,
            start=self.position,
            tokens=self.each,
            decode=self.decode,
            yields=self.walk.yields,
        )

    def covered(self, runs: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The steps that any of these runs is in."""
        change = np.zeros(self.count + 1, dtype=np.int64)
        np.add.at(change, self.first[runs], 1)
        np.subtract.at(change, self.last[runs], 1)
        found: NDArray[np.bool_] = np.cumsum(change)[:-1] > 0
        return found


@dataclass(frozen=True)
class Walk:
    """What each run does, as one follows from the one before it; each is int64[runs].

    Attributes:
        jumps: whether it begins elsewhere than where the run before it ended.
        restarts: how often its request was admitted again before it or in it: it jumps, or is prefill after a token was yielded.
        yields: how many of its last steps yield a token; decode does in every step, and has 1.
        wrong: whether its phase cannot be: decode of more than one token or before all is computed, or prefill of more tokens
            than the request has.
    """

    jumps: NDArray[np.int64]
    restarts: NDArray[np.int64]
    yields: NDArray[np.int64]
    wrong: NDArray[np.int64]


def _walk(
    slot: Sequence[int],
    position: Sequence[int],
    end: Sequence[int],
    each: Sequence[int],
    decode: Sequence[bool],
    prompt: Sequence[int],
    jumps: NDArray[np.int64],
    restarts: NDArray[np.int64],
    yields: NDArray[np.int64],
    wrong: NDArray[np.int64],
) -> None:
    """A request's tokens grow by one with every token that it yields; runs are in the order of slots and steps."""
    current = -1
    held = 0
    caught = False
    at = 0
    for row in range(len(slot)):
        if slot[row] != current:
            current = slot[row]
            held = prompt[current]
            caught = False
            at = position[row]
        jumped = position[row] != at
        if jumped:
            jumps[row] = 1
        if jumped or (caught and not decode[row]):
            restarts[row] = 1
        at = end[row]
        if decode[row]:
            if each[row] != 1 or jumped or not caught:
                wrong[row] = 1
            held = at + 1
            caught = True
            yields[row] = 1
        else:
            more = at - held
            if (
                more > 0
            ):  # admitted again for the token that it yielded, in the next step and at the same place
                if each[row] != 1 or position[row] >= held:
                    wrong[row] = 1
                restarts[row] += more
                held = at
            caught = at == held
            if caught:
                yields[row] = 1 + max(more, 0)
                held += 1
