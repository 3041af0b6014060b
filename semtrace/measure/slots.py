"""Every operation of every instance of an execution, in one order, with the event that is of it.

A *slot* is one operation of one instance. Slots stand in order of (instance, operation), so that the slots of
an instance are a slice, and an operation's slot is found by adding. Everything here holds for executions from
anyone: events may be missing, doubled, or point to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from semtrace.errors import FormatError
from semtrace.records.columns import NULL
from semtrace.records.enums import EventOutcome, OperationKind, OperationStatus

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semtrace.records.execution import Execution
    from semtrace.records.trace import Trace


LAST_NS: Final = (1 << 63) - 1
"""The last instant that there is (ST-REL-001)."""

UNSEEN: Final = 1 << 24
"""Up to how many slots an execution may have, whatever the number of its events."""


def after(at_ns: NDArray[np.int64], by_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Times moved by what is never negative; what would be past the last instant is at it."""
    found: NDArray[np.int64] = np.minimum(at_ns, LAST_NS - by_ns) + by_ns
    return found


def ranges(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The integers of several ranges, one range after the other."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    found: NDArray[np.int64] = np.arange(total, dtype=np.int64) + np.repeat(starts - (ends - counts), counts)
    return found


@dataclass(frozen=True)
class Slots:
    """The slots of an execution.

    Attributes:
        trace, execution: what it is of.
        instance: the instance of each slot, shape (slots,).
        operation: the operation of each slot, shape (slots,).
        offsets: where the slots of each instance begin, shape (instances + 1,).
        event: the row of `events` that is of each slot, `NULL` where there is none, shape (slots,).
        doubled: rows of `events` that are of a slot that has an earlier row.
        stray: rows of `events` that are of no slot: their instance is not there, or not of the operation's task.
        lost: rows of `instances` whose task is not in the trace; they have no slots.
    """

    trace: Trace
    execution: Execution
    instance: NDArray[np.int64]
    operation: NDArray[np.int64]
    offsets: NDArray[np.int64]
    event: NDArray[np.int64]
    doubled: NDArray[np.int64]
    stray: NDArray[np.int64]
    lost: NDArray[np.int64]

    @classmethod
    def of(cls, trace: Trace, execution: Execution) -> Slots:
        """Place the events of an execution of a trace whose order is valid (ST-ORD-001).

        Raises:
            FormatError: its instances have far more operations than there are events.
        """
        bounds = trace.offsets("operations")
        task = execution.instances.ints("task")
        known = task < trace.tasks.rows
        first = np.zeros(len(task), dtype=np.int64)
        counts = np.zeros(len(task), dtype=np.int64)
        first[known] = bounds[task[known]]
        counts[known] = bounds[task[known] + 1] - first[known]
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
        # A few rows of instances can stand for more slots than any memory holds.
        if offsets[-1] > max(UNSEEN, 2 * execution.events.rows):
            raise FormatError(
                f"{offsets[-1]} operations of {len(task)} instances, and {execution.events.rows} events",
                code="execution.incomplete",
                path="events",
                requirement="ST-AUD-001",
                hint="every operation of an instance has one event, also those that were skipped or did not end",
            )
        operation = ranges(first, counts)
        instance = np.repeat(np.arange(len(task), dtype=np.int64), counts)

        of_instance = execution.events.ints("instance")
        of_operation = execution.events.ints("operation")
        rows = np.arange(len(of_instance), dtype=np.int64)
        placed = of_instance < len(task)
        owner = np.where(placed, of_instance, 0)
        if len(task):
            within = of_operation - first[owner]
            placed &= (within >= 0) & (within < counts[owner])
        slot = offsets[owner[placed]] + of_operation[placed] - (first[owner[placed]] if len(task) else 0)
        event = np.full(len(operation), NULL, dtype=np.int64)
        unique, earliest = np.unique(slot, return_index=True)
        event[unique] = rows[placed][earliest]
        once = np.zeros(len(slot), dtype=np.bool_)
        once[earliest] = True
        return cls(
            trace,
            execution,
            instance,
            operation,
            offsets,
            event,
            rows[placed][~once],
            rows[~placed],
            np.flatnonzero(~known),
        )

    @property
    def count(self) -> int:
        """Number of slots."""
        return len(self.operation)

    @property
    def instances(self) -> int:
        """Number of instances."""
        return len(self.offsets) - 1

    def rows(self, instance: int) -> slice:
        """The slots of an instance."""
        return slice(int(self.offsets[instance]), int(self.offsets[instance + 1]))

    @cached_property
    def base(self) -> NDArray[np.int64]:
        """By instance, what to add to an operation to get its slot, shape (instances,)."""
        first = np.zeros(self.instances, dtype=np.int64)
        filled = self.offsets[1:] > self.offsets[:-1]
        first[filled] = self.operation[self.offsets[:-1][filled]]
        return self.offsets[:-1] - first

    @cached_property
    def present(self) -> NDArray[np.bool_]:
        """Which slots have an event."""
        found: NDArray[np.bool_] = self.event != NULL
        return found

    def seen(self, column: str) -> NDArray[np.int64]:
        """A column of `events` by slot; `NULL` where it is null and where there is no event."""
        values = self.execution.events.ints(column)
        found = np.full(self.count, NULL, dtype=np.int64)
        found[self.present] = values[self.event[self.present]]
        return found

    def recorded(self, column: str) -> NDArray[np.int64]:
        """A column of the trace's `operations` by slot; `NULL` where it is null."""
        found: NDArray[np.int64] = self.trace.operations.ints(column)[self.operation]
        return found

    @cached_property
    def arrival(self) -> NDArray[np.int64]:
        """By slot, when its instance arrived, in ns; `NULL` where unknown."""
        found: NDArray[np.int64] = self.execution.instances.ints("arrival_ns")[self.instance]
        return found

    @cached_property
    def submitted(self) -> NDArray[np.int64]:
        """By slot, when it was submitted, in ns; `NULL` where unknown."""
        return self.seen("submitted_ns")

    @cached_property
    def finished(self) -> NDArray[np.int64]:
        """By slot, when it ended, in ns; `NULL` where unknown."""
        return self.seen("finished_ns")

    @cached_property
    def scheduled(self) -> NDArray[np.int64]:
        """By slot, when the backend first worked on it, in ns; `NULL` where unknown."""
        return self.seen("scheduled_ns")

    @cached_property
    def preemptions(self) -> NDArray[np.int64]:
        """By slot, how often it was preempted; `NULL` where unknown."""
        return self.seen("preemptions")

    @cached_property
    def preempted(self) -> NDArray[np.int64]:
        """By slot, time between its preemptions and the steps that resumed it, in ns; `NULL` where unknown."""
        return self.seen("preempted_ns")

    @cached_property
    def outcome(self) -> NDArray[np.int64]:
        """By slot, its terminal state; `NULL` where there is no event."""
        return self.seen("outcome")

    @cached_property
    def fixed(self) -> NDArray[np.bool_]:
        """Which slots take their recorded duration and are sent to no backend (ST-REL-010).

        Tools, transforms and people, and operations of every kind that failed in the recorded run.
        """
        kind, status = self.recorded("kind"), self.recorded("status")
        model = (kind == OperationKind.LLM) | (kind == OperationKind.EMBED)
        failed = (status == OperationStatus.ERROR) | (status == OperationStatus.TIMEOUT)
        found: NDArray[np.bool_] = ~model | failed
        return found

    @cached_property
    def start_trigger(self) -> NDArray[np.int64]:
        """By slot, when its trigger `start` came, in ns; `NULL` where unknown.

        It comes with its submission; with its end, if it ended without ever having been submitted.
        """
        unsubmitted = (self.submitted == NULL) & (self.outcome != EventOutcome.OK)
        return np.where(unsubmitted, self.finished, self.submitted)

    @cached_property
    def first_token_trigger(self) -> NDArray[np.int64]:
        """By slot, when its trigger `first_token` came, in ns; `NULL` where unknown.

        It comes with the first token of an LLM operation that has an output token, else with the end.
        """
        tokens = self.seen("output_tokens")
        tokens = np.where(tokens == NULL, self.recorded("output_tokens"), tokens)
        yields = (self.recorded("kind") == OperationKind.LLM) & ~self.fixed & (tokens != 0)
        first = self.seen("first_token_ns")
        ended_before = (first == NULL) & (self.outcome != EventOutcome.OK)
        return np.where(yields & ~ended_before, first, self.finished)
