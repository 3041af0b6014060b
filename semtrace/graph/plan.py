"""Release plans: which constraints hold when a trace is replayed (spec, plans.md)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from semtrace.records.document import Digest, Document, empty_dict, empty_list
from semtrace.records.enums import Trigger

TriggerName = Literal["finish", "start", "first_token"]


class AddedEdge(Document):
    """A constraint added to the recorded edges: the target waits for the source.

    Attributes:
        source: operation waited for.
        target: operation that waits, of the same task.
        trigger: the instant of the source that counts.
        lag_ns: time from the trigger until the constraint is satisfied, in ns.
        rule: the rule that made it.
    """

    source: int = Field(ge=0)
    target: int = Field(ge=0)
    trigger: TriggerName = "finish"
    lag_ns: int = Field(default=0, ge=0, lt=1 << 53)
    rule: str = "custom"

    @property
    def trigger_number(self) -> Trigger:
        """The trigger as the standard's number."""
        return Trigger[self.trigger.upper()]


class Group(Document):
    """A barrier: no operation of `hold` is released before every operation of `wait` has finished.

    Attributes:
        rule: the rule that made it.
        wait: operations waited for.
        hold: operations that wait, of the same task.
        note: what the two sides are, for people.
    """

    rule: str = "custom"
    wait: list[int] = Field(min_length=1)
    hold: list[int] = Field(min_length=1)
    note: str | None = None


class Plan(Document):
    """A release plan.

    Attributes:
        work_digest: the work that it is for, `blake3:` and 64 hex digits.
        name: `dag`, `barrier`, `custom` or `work-only`.
        base: recorded edges that it keeps: `dag` all of them; `work-only` only data and state edges, for analysis:
            such a plan is never legal.
        options: how it was made.
        edges: constraints added one by one.
        groups: barriers added.
    """

    HINT: ClassVar[str | None] = "semtrace plan TRACE --rule barrier -o PLAN.json makes one"

    format: Literal["semtrace-plan"] = "semtrace-plan"
    work_digest: Digest
    name: str
    base: Literal["dag", "work-only"] = "dag"
    options: dict[str, Any] = Field(default_factory=empty_dict)
    edges: list[AddedEdge] = Field(default_factory=empty_list)
    groups: list[Group] = Field(default_factory=empty_list)


def dag(work_digest: str) -> Plan:
    """The plan that keeps the recorded edges and adds nothing."""
    return Plan(work_digest=work_digest, name="dag")


def work_only(work_digest: str) -> Plan:
    """The plan of data and state edges alone: how early the work itself would allow everything. Never legal."""
    return Plan(work_digest=work_digest, name="work-only", base="work-only")
