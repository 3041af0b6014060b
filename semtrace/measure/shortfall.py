"""What of an execution did not end as the work says: failed requests are fast, and a run of them is no measure of that work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from semtrace.records.columns import NULL
from semtrace.records.enums import EventOutcome, OperationKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semtrace.measure.slots import Slots


@dataclass(frozen=True)
class Shortfall:
    """How much fell short (ST-MEA-017).

    Attributes:
        operations: events that did not end as their operations did in the recorded run.
        instances: instances with such an event; they count as not finished (ST-MEA-010).
        outcomes: of these events by outcome.
        other_lengths: calls that ended well with another number of output tokens than recorded.
    """

    operations: int
    instances: int
    outcomes: dict[str, int]
    other_lengths: int

    @classmethod
    def of(cls, slots: Slots) -> Shortfall:
        """Count what fell short."""
        short = fell_short(slots)
        outcome = slots.outcome[short]
        given, recorded = slots.seen("output_tokens"), slots.recorded("output_tokens")
        other = (slots.recorded("kind") == OperationKind.LLM) & (slots.outcome == EventOutcome.OK)
        other &= (given != NULL) & (recorded != NULL) & (given != recorded)
        return cls(
            operations=int(short.sum()),
            instances=len(np.unique(slots.instance[short])),
            outcomes={
                each.name.lower(): int((outcome == each).sum())
                for each in EventOutcome
                if each != EventOutcome.UNFINISHED
            },
            other_lengths=int(other.sum()),
        )

    def as_dict(self) -> dict[str, Any]:
        """The counts as JSON-ready fields."""
        return {
            "operations": self.operations,
            "instances": self.instances,
            "outcomes": self.outcomes,
            "other_lengths": self.other_lengths,
        }


def fell_short(slots: Slots) -> NDArray[np.bool_]:
    """Which slots have an event that did not end as its operation did in the recorded run; shape (slots,)."""
    outcome, status = slots.outcome, slots.recorded("status")
    # The values of outcomes that a recorded run can have are those of statuses.
    other = np.where(
        status == NULL,
        np.isin(outcome, (EventOutcome.SKIPPED, EventOutcome.REFUSED)),
        outcome != status,
    )
    found: NDArray[np.bool_] = (outcome != NULL) & (outcome != EventOutcome.UNFINISHED) & other
    return found
