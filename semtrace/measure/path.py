"""The completed path of an instance: what its root latency was spent on, exactly (spec, measures.md)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from semtrace.records.columns import NULL
from semtrace.records.enums import EventOutcome, Trigger

if TYPE_CHECKING:
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
        steps: from the first operation to the one that ends the path.
        parts: the sum over the steps; its total is the root latency.
    """

    steps: tuple[Step, ...]
    parts: Parts


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


def completed_path(slots: Slots, expected: Expected, instance: int) -> CompletedPath | UnknownPath:
    """Walk back from the end of an instance through what determined each ready time.

    Of several predecessors that determine it, the one with the lowest id is taken, and of its constraints the
    one with the lowest trigger.
    """
    at = end_slot(slots, instance)
    if at is None:
        return UnknownPath("the end of its root latency is not known")
    cut = int(slots.finished[at])
    trigger = Trigger.FINISH
    steps: list[Step] = []
    walked: set[int] = set()
    while True:
        operation = int(slots.operation[at])
        if at in walked:
            return UnknownPath(f"operation {operation} waits for itself")
        walked.add(at)
        ready = int(expected.full.exact_ns[at])
        if ready == NULL:
            return UnknownPath(f"a time that operation {operation} waits for is not known")
        before = _determining(expected, at, ready)
        begin = int(slots.arrival[at]) if before is None else before.came_ns
        parts = _split(slots, at, begin, ready, cut)
        if isinstance(parts, UnknownPath):
            return parts
        steps.append(Step(operation, begin, cut, trigger, parts))
        if before is None:
            break
        at, cut, trigger = before.slot, before.came_ns, before.trigger
    steps.reverse()
    total = Parts()
    for step in steps:
        total += step.parts
    return CompletedPath(tuple(steps), total)


@dataclass(frozen=True)
class _Before:
    slot: int
    trigger: Trigger
    came_ns: int


def _determining(expected: Expected, at: int, ready: int) -> _Before | None:
    """The predecessor whose trigger determined a ready time; None if it was the arrival."""
    candidates: list[tuple[int, int, int]] = []
    for held in (expected.recorded, expected.state, expected.added):
        into = held.into(at)
        for position in range(into.start, into.stop):
            if held.placed.satisfied_ns[position] == ready:
                edge = int(held.placed.edge[position])
                came = ready - int(held.edges.lag_ns[edge])
                candidates.append((int(held.placed.source[position]), int(held.edges.trigger[edge]), came))
    barriers = expected.barriers
    candidates.extend(
        (int(barriers.opener[pair]), int(Trigger.FINISH), ready)
        for pair in barriers.over(at)
        if barriers.opened_ns[pair] == ready
    )
    if not candidates:
        return None
    slot, trigger, came = min(candidates)
    return _Before(slot, Trigger(trigger), came)


def _split(slots: Slots, at: int, begin: int, ready: int, cut: int) -> Parts | UnknownPath:
    """What the time of one step was spent on."""
    operation = int(slots.operation[at])
    delay = int(slots.trace.operations.ints("external_delay_ns")[operation])
    lag, released = ready - begin, ready + delay
    submitted = int(slots.submitted[at])
    if submitted == NULL:
        if slots.outcome[at] == EventOutcome.OK:
            return UnknownPath(f"when operation {operation} was submitted is not known")
        submitted = cut  # it ended without having been submitted
    if submitted < released:
        return UnknownPath(f"operation {operation} was submitted before its release")
    if cut < submitted:
        return UnknownPath(f"operation {operation} ended before it was submitted")
    waited = Parts(lag=lag, external_delay=delay, submission=submitted - released)
    served = cut - submitted
    if slots.fixed[at]:
        return waited + Parts(tool=served)
    scheduled = int(slots.scheduled[at])
    if scheduled == NULL:
        return waited + Parts(unsplit=served)
    if scheduled < submitted:
        return UnknownPath(f"operation {operation} was scheduled before it was submitted")
    queue = min(scheduled, cut) - submitted
    if slots.preemptions[at] == 0:
        return waited + Parts(queue=queue, resident=served - queue)
    return waited + Parts(queue=queue, unsplit=served - queue)
