"""When everything happens in a virtual replay, by the text of release.md, plans.md and scenario.md alone.

On the ideal backend nothing waits for anything but what the plan says: the times of an instance are those of its task
at arrival 0, moved by its arrival. Nothing here is shared with the replayer that is judged.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import rfc8785

from semtrace.records.enums import EventOutcome, Evidence, OperationKind, OperationStatus, Outcome, Trigger
from semtrace.records.execution_tables import EXECUTION_TABLE
from semtrace_conformance.making.draft import TABLES, Run, arrow, show
from semtrace_conformance.observe import root_digest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from semtrace_conformance.making.work import Op, Work

Row = dict[str, Any]

OUTCOME: Final = {
    OperationStatus.OK: EventOutcome.OK,
    OperationStatus.ERROR: EventOutcome.ERROR,
    OperationStatus.CANCELLED: EventOutcome.CANCELLED,
    OperationStatus.TIMEOUT: EventOutcome.TIMEOUT,
}
DEFAULTS: Final = {"c0_ns": 20_000_000, "c_pre_ns": 100_000, "c_dec_ns": 10_000_000}
TIMES: Final = ("ready_ns", "released_ns", "submitted_ns", "scheduled_ns", "first_token_ns", "finished_ns")
_TRIGGER: Final = {"finish": Trigger.FINISH, "start": Trigger.START, "first_token": Trigger.FIRST_TOKEN}


@dataclass(frozen=True)
class Times:
    """When one operation is ready, released, submitted, has its first token, and ends; ns, null where no token comes."""

    ready: int
    released: int
    submitted: int
    token: int | None
    end: int

    def at(self, trigger: Trigger) -> int:
        """When a trigger comes (ST-REL-002 … ST-REL-004)."""
        if trigger is Trigger.START:
            return self.submitted
        if trigger is Trigger.FIRST_TOKEN and self.token is not None:
            return self.token
        return self.end


def constraints(work: Work, plan: Mapping[str, Any]) -> dict[int, list[tuple[int, Trigger, int]]]:
    """By operation, what it waits for (ST-PLAN-006): source, trigger, lag."""
    found: dict[int, list[tuple[int, Trigger, int]]] = {at: [] for at in range(len(work.operations))}
    for at, operation in enumerate(work.operations):
        found[at] += [(work.number(edge.source), edge.trigger, edge.lag_ns) for edge in operation.edges]
    for edge in plan.get("edges", ()):
        trigger = _TRIGGER[edge.get("trigger", "finish")]
        found[edge["target"]].append((edge["source"], trigger, edge.get("lag_ns", 0)))
    for group in plan.get("groups", ()):
        for held in set(group["hold"]):
            found[held] += [(source, Trigger.FINISH, 0) for source in set(group["wait"])]
    return found


@dataclass(frozen=True)
class Faults:
    """What a replayer does wrong, by instance and operation.

    Attributes:
        submitted: how much later than its release, in ns, an operation is submitted; negative is early.
        took: how much longer than recorded, in ns, an operation takes that does not run on the backend.
        free: constraints that are not honoured: source and target.
    """

    submitted: Mapping[tuple[int, int], int] = field(default_factory=dict)
    took: Mapping[tuple[int, int], int] = field(default_factory=dict)
    free: frozenset[tuple[int, int]] = frozenset()


_NONE: Final = Faults()


def times_of_task(
    work: Work,
    plan: Mapping[str, Any],
    task: int,
    settings: Mapping[str, int],
    faults: Faults = _NONE,
    instance: int = 0,
) -> dict[int, Times]:
    """The times of a task's operations if it arrives at 0."""
    waits = constraints(work, plan)
    known: dict[int, Times] = {}

    def visit(at: int) -> Times:
        if at not in known:
            kept = [wait for wait in waits[at] if (wait[0], at) not in faults.free]
            ready = max((visit(source).at(trigger) + lag for source, trigger, lag in kept), default=0)
            late, longer = faults.submitted.get((instance, at), 0), faults.took.get((instance, at), 0)
            known[at] = _run(work.operations[at], ready, late, longer, settings)
        return known[at]

    for at in work.of_task(task):
        visit(at)
    return known


def _run(operation: Op, ready: int, late: int, longer: int, settings: Mapping[str, int]) -> Times:
    released = ready + operation.delay
    submitted = released + late
    if not operation.on_backend:
        if operation.duration is None:
            raise ValueError(f"{operation.name} has no duration")
        return Times(ready, released, submitted, None, submitted + operation.duration + longer)
    if operation.prompt is None or (operation.output is None and operation.kind is OperationKind.LLM):
        raise ValueError(f"{operation.name} has no token counts")
    output = operation.output or 0
    token = submitted + settings["c0_ns"] + settings["c_pre_ns"] * operation.prompt
    end = token + settings["c_dec_ns"] * max(output - 1, 0)
    return Times(ready, released, submitted, token if output else None, end)


@dataclass(frozen=True)
class Replayed:
    """A replay: the instances and events that it leaves, and its header."""

    instances: list[Row]
    events: list[Row]
    header: Row = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """The execution digest."""
        tables = {
            "instances": arrow(EXECUTION_TABLE["instances"], self.instances),
            "events": arrow(EXECUTION_TABLE["events"], self.events),
        }
        return root_digest(tables, TABLES, {"run"}, "semtrace v1 execution")

    def facts(self) -> Row:
        """What a replayer must give back."""
        return {
            "execution_digest": self.digest,
            "arrivals": [row["arrival_ns"] for row in self.instances],
            "times": [[row[name] for name in TIMES] for row in self.events],
        }

    def run(self) -> Run:
        """It as the draft of an execution."""
        tables: dict[str, list[Row]] = {name: [] for name in EXECUTION_TABLE} | {
            "instances": self.instances,
            "events": self.events,
        }
        return Run(dict(self.header), {name: [dict(row) for row in rows] for name, rows in tables.items()})


def replay(
    work: Work, plan: Mapping[str, Any], scenario: Mapping[str, Any], faults: Faults = _NONE
) -> Replayed:
    """Replay a work on the ideal backend; with faults, as a replayer that has them would."""
    settings = {**DEFAULTS, **scenario.get("backend", {}).get("settings", {})}
    copies = scenario.get("copies", 1)
    offsets = [times_of_task(work, plan, task, settings) for task in range(len(work.tasks))]
    arrivals = _arrivals(work, offsets, scenario, copies)
    instances: list[Row] = []
    events: list[Row] = []
    for task in range(len(work.tasks)):
        for copy in range(copies):
            arrival = arrivals[task, copy]
            instance = len(instances)
            instances.append(
                {"task": task, "instance": copy, "arrival_ns": arrival, "outcome": Outcome.SUCCESS}
            )
            times = times_of_task(work, plan, task, settings, faults, instance)
            events += [
                _event(work.operations[at], instance, at, times[at], arrival) for at in work.of_task(task)
            ]
    return Replayed(instances, events, _header(plan, scenario, settings, work, copies))


def _arrivals(
    work: Work, offsets: Sequence[Mapping[int, Times]], scenario: Mapping[str, Any], copies: int
) -> dict[tuple[int, int], int]:
    """The arrival of each instance, by task and copy (ST-SCN-001 … ST-SCN-009)."""
    sent = [(task, copy) for copy in range(copies) for task in range(len(work.tasks))]
    arrivals = scenario.get("arrivals") or _default_arrivals(work)
    kind = arrivals["kind"]
    if kind == "recorded":
        return {(task, copy): work.tasks[task].arrival or 0 for task, copy in sent}
    if kind == "together":
        return dict.fromkeys(sent, 0)
    if kind == "drawn":
        return dict(zip(sent, arrivals["times_ns"], strict=True))
    found = dict.fromkeys(sent[: arrivals["users"]], 0)
    answered = [_answered(work, offsets, task) for task, _ in sent[: arrivals["users"]]]
    heapq.heapify(answered)
    for task, copy in sent[arrivals["users"] :]:
        arrival = heapq.heappop(answered) + arrivals.get("think_ns", 0)
        found[task, copy] = arrival
        heapq.heappush(answered, arrival + _answered(work, offsets, task))
    return found


def _default_arrivals(work: Work) -> Row:
    return {"kind": "recorded" if all(task.arrival is not None for task in work.tasks) else "together"}


def _answered(work: Work, offsets: Sequence[Mapping[int, Times]], task: int) -> int:
    """When a task is answered, counted from its arrival (ST-SCN-006)."""
    answer = work.tasks[task].answer
    if answer is not None:
        return offsets[task][work.number(answer)].end
    return max((offsets[task][at].end for at in work.of_task(task)), default=0)


def _event(operation: Op, instance: int, at: int, times: Times, arrival: int) -> Row:
    ran = operation.on_backend
    values: Row = {
        "ready_ns": times.ready + arrival,
        "released_ns": times.released + arrival,
        "submitted_ns": times.submitted + arrival,
        "scheduled_ns": times.submitted + arrival if ran else None,
        "first_token_ns": times.token + arrival if ran and times.token is not None else None,
        "finished_ns": times.end + arrival,
    }
    evidence = {
        name.replace("_ns", "_evidence"): Evidence.MISSING if value is None else Evidence.OBSERVED
        for name, value in values.items()
    }
    return {
        "instance": instance,
        "operation": at,
        **values,
        **evidence,
        "outcome": OUTCOME[operation.status],
        "prompt_tokens": operation.prompt,
        "output_tokens": operation.output,
        "preemptions": 0 if ran else None,
        "attempts": 1 if ran else None,
        "server": 0 if ran else None,
    }


def _header(
    plan: Mapping[str, Any], scenario: Mapping[str, Any], settings: Mapping[str, int], work: Work, copies: int
) -> Row:
    settled = {
        "format": "semtrace-scenario",
        "copies": copies,
        "mode": "length_locked",
        "salt": "copy",
        "tolerance_ns": 0,
        **scenario,
        "arrivals": scenario.get("arrivals") or _default_arrivals(work),
        "backend": {"name": "ideal", "settings": {}, **scenario.get("backend", {})},
    }
    return {
        "plan": full_plan(plan),
        "plan_digest": plan_digest(plan),
        "scenario": settled,
        "mode": "length_locked",
        "clock": "virtual",
        "tolerance_ns": 0,
        "measured_at": "simulator",
        "backend": {"name": "ideal", "settings": dict(settings)},
        "detail": [],
        "environment": {},
        "seeds": {},
    }


def full_plan(plan: Mapping[str, Any]) -> Row:
    """A plan with the values of members that were left out (ST-PLAN-005)."""
    return {
        "format": "semtrace-plan",
        "base": "dag",
        "options": {},
        **plan,
        "edges": [
            {"trigger": "finish", "lag_ns": 0, "rule": "custom", **edge} for edge in plan.get("edges", ())
        ],
        "groups": [{"rule": "custom", **group} for group in plan.get("groups", ())],
    }


def plan_digest(plan: Mapping[str, Any]) -> str:
    """The digest of a plan (ST-PLAN-007)."""
    return show(rfc8785.dumps(full_plan(plan)))
