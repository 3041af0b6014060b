"""The completed path of an instance: what its root latency was spent on, exactly (spec, measures.md)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from semtrace.measure.slots import after
from semtrace.records.columns import NULL
from semtrace.records.enums import EventOutcome, Trigger

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semtrace.measure.ready import Expected
    from semtrace.measure.slots import Slots


@dataclass(frozen=True)
class Parts:
    """Time by what it was spent on, in ns.

    Attributes:
        lag: between the trigger of a predecessor and ready.
        external_delay: between ready and release.
        submission: between release and submission.
        queue: between submission and the first work of the backend.
        resident: between that and the end, while the request was in the schedule.
        preempted: between that and the end, while it was not.
        tool: of operations that take their recorded duration.
        unsplit: of model operations, what the record does not allow to split into queue, resident and preempted.
    """

    lag: int = 0
    external_delay: int = 0
    submission: int = 0
    queue: int = 0
    resident: int = 0
    preempted: int = 0
    tool: int = 0
    unsplit: int = 0

    def __add__(self, other: Parts) -> Parts:
        return Parts(*(getattr(self, name) + getattr(other, name) for name in PARTS))

    @property
    def total(self) -> int:
        """The sum of all parts, in ns."""
        return sum(getattr(self, name) for name in PARTS)

    def as_dict(self) -> dict[str, int]:
        """The parts by name, in ns."""
        return {name: getattr(self, name) for name in PARTS}


PARTS: Final = tuple(each.name for each in fields(Parts))
"""The names of the parts, in the order in which they come."""


@dataclass(frozen=True)
class Step:
    """One operation on a completed path.

    Attributes:
        operation: the operation.
        begin_ns: the trigger of the operation before it, or the arrival.
        end_ns: the trigger that released the next one, or the end of the path.
        trigger: that trigger.
        parts: what the time between was spent on; its total is `end_ns - begin_ns`.
    """

    operation: int
    begin_ns: int
    end_ns: int
    trigger: Trigger
    parts: Parts

    def as_dict(self) -> dict[str, Any]:
        """The step as JSON-ready fields, times in ns."""
        return {
            "operation": self.operation,
            "begin_ns": self.begin_ns,
            "end_ns": self.end_ns,
            "trigger": self.trigger.name.lower(),
            "parts": self.parts.as_dict(),
        }


@dataclass(frozen=True)
class CompletedPath:
    """The chain of operations that decided when an instance had its answer.

    Attributes:
        operations: from the first one to the one that ends the path, shape (steps,).
        begin_ns: by step, the trigger of the operation before it, or the arrival.
        end_ns: by step, the trigger that released the next one, or the end of the path.
        trigger: by step, that trigger.
        spent_ns: by step, what the time between was spent on, shape (steps, parts), columns as in `PARTS`.
    """

    operations: NDArray[np.int64]
    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    trigger: NDArray[np.int64]
    spent_ns: NDArray[np.int64]

    @cached_property
    def parts(self) -> Parts:
        """The sum over the steps; its total is the root latency."""
        return Parts(*self.spent_ns.sum(axis=0).tolist())

    @property
    def latency_ns(self) -> int:
        """From the begin of the first step to the end of the last one, in ns."""
        return int(self.end_ns[-1] - self.begin_ns[0])

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps, one by one."""
        return tuple(
            Step(operation, begin, end, Trigger(trigger), Parts(*spent))
            for operation, begin, end, trigger, spent in zip(
                self.operations.tolist(),
                self.begin_ns.tolist(),
                self.end_ns.tolist(),
                self.trigger.tolist(),
                self.spent_ns.tolist(),
                strict=True,
            )
        )


@dataclass(frozen=True)
class UnknownPath:
    """Why a completed path cannot be told."""

    reason: str


def end_slot(slots: Slots, instance: int) -> int | None:
    """The slot that ends the root latency of an instance; None if its end is not known.

    It is the answer operation, else the operation that finished last, the lowest of several.
    """
    rows = slots.rows(instance)
    finished = slots.finished[rows]
    if len(finished) == 0:
        return None
    task = int(slots.execution.instances.ints("task")[instance])
    answer = int(slots.trace.tasks.ints("answer_operation")[task])
    if answer != NULL:
        at = answer - int(slots.operation[rows.start])
        return rows.start + at if 0 <= at < len(finished) and finished[at] != NULL else None
    return None if (finished == NULL).any() else rows.start + int(np.argmax(finished))


class Paths:
    """The completed paths of an execution.

    A path is walked back from the end of an instance through what determined each ready time. Of several
    predecessors that determine it, the one with the lowest id is taken, and of its constraints the one with the
    lowest trigger (ST-MEA-011).
    """

    def __init__(self, slots: Slots, expected: Expected) -> None:
        self._slots = slots
        self._ready = expected.full.exact_ns
        self._before, self._trigger = _determining(slots, expected)
        self._came = np.where(
            self._trigger == Trigger.START,
            slots.start_trigger[self._before],
            np.where(
                self._trigger == Trigger.FIRST_TOKEN,
                slots.first_token_trigger[self._before],
                slots.finished[self._before],
            ),
        )
        self._walk = list(
            zip(self._before.tolist(), self._trigger.tolist(), self._came.tolist(), strict=True)
        )

    def of(self, instance: int) -> CompletedPath | UnknownPath:
        """The completed path of an instance, or why it cannot be told."""
        slots = self._slots
        end = end_slot(slots, instance)
        if end is None:
            return UnknownPath("the end of its root latency is not known")
        walked, cuts, triggers = [end], [int(slots.finished[end])], [int(Trigger.FINISH)]
        longest = len(range(*slots.rows(instance).indices(slots.count)))
        while True:
            before, trigger, came = self._walk[walked[-1]]
            if before == NULL:
                break
            if len(walked) == longest:
                return UnknownPath(f"operation {int(slots.operation[walked[-1]])} waits for itself")
            walked.append(before)
            cuts.append(came)
            triggers.append(trigger)
        at = np.array(walked[::-1], dtype=np.int64)
        cut = np.array(cuts[::-1], dtype=np.int64)
        begin = np.concatenate([slots.arrival[at[:1]], cut[:-1]])
        return self._split(at, begin, cut, np.array(triggers[::-1], dtype=np.int64))

    def _split(
        self,
        at: NDArray[np.int64],
        begin: NDArray[np.int64],
        cut: NDArray[np.int64],
        trigger: NDArray[np.int64],
    ) -> CompletedPath | UnknownPath:
        slots = self._slots
        ready, operation = self._ready[at], slots.operation[at]
        released = after(ready, slots.trace.operations.ints("external_delay_ns")[operation])
        submitted, scheduled = slots.submitted[at], slots.scheduled[at]
        unsubmitted = (submitted == NULL) & (slots.outcome[at] != EventOutcome.OK)
        submitted = np.where(unsubmitted, cut, submitted)  # it ended without having been submitted
        fixed = slots.fixed[at]
        told = ~fixed & (scheduled != NULL)
        problems = (
            (ready == NULL, "a time that operation {} waits for is not known"),
            (submitted == NULL, "when operation {} was submitted is not known"),
            (submitted < released, "operation {} was submitted before its release"),
            (cut < submitted, "operation {} ended before it was submitted"),
            (told & (scheduled < submitted), "operation {} was scheduled before it was submitted"),
            (
                told & (slots.preempted[at] > slots.finished[at] - scheduled),
                "operation {} was preempted for longer than it took",
            ),
        )
        for wrong, reason in problems:
            if wrong.any():
                return UnknownPath(reason.format(int(operation[np.flatnonzero(wrong)[-1]])))
        served = cut - submitted
        queue = np.where(told, np.minimum(scheduled, cut) - submitted, 0)
        away = np.where(slots.preemptions[at] == 0, 0, slots.preempted[at])
        split = told & (away != NULL) & ((away == 0) | (cut == slots.finished[at]))
        preempted = np.where(split, away, 0)
        spent = {
            "lag": ready - begin,
            "external_delay": released - ready,
            "submission": submitted - released,
            "queue": queue,
            "resident": np.where(split, served - queue - preempted, 0),
            "preempted": preempted,
            "tool": np.where(fixed, served, 0),
            "unsplit": np.where(fixed | split, 0, served - queue),
        }
        columns = np.stack([spent[name] for name in PARTS], axis=1)
        return CompletedPath(operation, begin, cut, trigger, columns)


def _determining(slots: Slots, expected: Expected) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """By slot, the predecessor that determined its ready time and its trigger; `NULL` if it was the arrival.

    It is `NULL` too where the ready time is not known.
    """
    ready = expected.full.exact_ns
    none = np.iinfo(np.int64).max
    best = np.full(slots.count, none, dtype=np.int64)
    width = max(Trigger) + 1

    def offer(target: NDArray[np.int64], source: NDArray[np.int64], trigger: NDArray[np.int64]) -> None:
        np.minimum.at(best, target, source * width + trigger)

    for held in (expected.recorded, expected.state, expected.added):
        placed = held.placed
        decides = (placed.satisfied_ns != NULL) & (placed.satisfied_ns == ready[placed.target])
        trigger = held.edges.trigger[placed.edge[decides]]
        offer(placed.target[decides], placed.source[decides], trigger)
    barriers = expected.barriers
    decides = (barriers.satisfied_ns != NULL) & (barriers.satisfied_ns == ready[barriers.hold])
    opener = barriers.opener[barriers.pair[decides]]
    offer(barriers.hold[decides], opener, np.full(len(opener), int(Trigger.FINISH), dtype=np.int64))
    found = best != none
    return np.where(found, best // width, NULL), np.where(found, best % width, NULL)
