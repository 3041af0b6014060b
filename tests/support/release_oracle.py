"""A slow replayer on the ideal backend, written from spec/release.md, plans.md and scenario.md alone.

It has no clock and no queue of events: each time is computed from those that it depends on, by recursion. It
takes nothing from semtrace but the rows of the trace's tables and the numbers of the enumerations.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semtrace.records.enums import (
    EdgeKind,
    EventOutcome,
    Evidence,
    OperationKind,
    OperationStatus,
    Outcome,
    Trigger,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from semtrace.records.trace import Trace

Row = dict[str, Any]


@dataclass(frozen=True)
class Constraint:
    source: int
    trigger: Trigger
    lag: int


def constraints_of(trace: Trace, plan: Mapping[str, Any]) -> dict[int, list[Constraint]]:
    """ST-PLAN-006: what each operation waits for."""
    found: dict[int, list[Constraint]] = {row: [] for row in range(trace.operations.rows)}
    for edge in trace.edges.data.to_pylist():
        if plan["base"] == "dag" or edge["kind"] in {EdgeKind.DATA, EdgeKind.STATE}:
            found[edge["target"]].append(Constraint(edge["source"], Trigger(edge["trigger"]), edge["lag_ns"]))
    for edge in plan["edges"]:
        found[edge["target"]].append(
            Constraint(edge["source"], Trigger[edge["trigger"].upper()], edge["lag_ns"])
        )
    for group in plan["groups"]:
        for held in set(group["hold"]):
            found[held] += [Constraint(source, Trigger.FINISH, 0) for source in sorted(set(group["wait"]))]
    return found


class InstanceByHand:
    """The events of one instance."""

    def __init__(
        self,
        operations: list[Row],
        constraints: Mapping[int, list[Constraint]],
        settings: Mapping[str, int],
        arrival: int,
    ) -> None:
        self._operations = operations
        self._constraints = constraints
        self._settings = settings
        self._arrival = arrival
        self._events: dict[int, Row] = {}

    def event(self, operation: int) -> Row:
        """The row of `events`, but for the instance."""
        if operation not in self._events:
            self._events[operation] = self._make(operation)
        return self._events[operation]

    def _came(self, constraint: Constraint) -> int:
        source = self.event(constraint.source)
        if constraint.trigger == Trigger.START:
            return source["submitted_ns"]
        if constraint.trigger == Trigger.FIRST_TOKEN and source["first_token_ns"] is not None:
            return source["first_token_ns"]
        return source["finished_ns"]

    def _make(self, operation: int) -> Row:
        row = self._operations[operation]
        waits = self._constraints[operation]
        ready = max((self._came(each) + each.lag for each in waits), default=self._arrival)
        release = ready + row["external_delay_ns"]
        model = row["kind"] in {OperationKind.LLM, OperationKind.EMBED}
        on_backend = model and row["status"] in {OperationStatus.OK, OperationStatus.CANCELLED}
        prompt, output = row["prompt_tokens"], row["output_tokens"] or 0
        event: Row = {
            "operation": operation,
            "ready_ns": ready,
            "released_ns": release,
            "submitted_ns": release,
            "scheduled_ns": None,
            "first_token_ns": None,
            "outcome": EventOutcome[OperationStatus(row["status"]).name],
            "prompt_tokens": prompt,
            "cached_tokens": None,
            "computed_prompt_tokens": None,
            "output_tokens": row["output_tokens"],
            "output_ids": None,
            "preemptions": None,
            "attempts": None,
            "server": None,
            "request_id": None,
            "preempted_ns": None,
            "loaded_tokens": None,
            "reused_tokens": None,
            "finish_reason": None,
            "failure": None,
        }
        if on_backend:
            token = release + self._settings["c0_ns"] + self._settings["c_pre_ns"] * prompt
            event["finished_ns"] = token + self._settings["c_dec_ns"] * max(output - 1, 0)
            event["first_token_ns"] = token if output >= 1 else None
            event |= {"scheduled_ns": release, "preemptions": 0, "attempts": 1, "server": 0}
        else:
            event["finished_ns"] = release + row["duration_ns"]
        for time in ("ready", "released", "submitted", "scheduled", "first_token", "finished"):
            known = event[f"{time}_ns"] is not None
            event[f"{time}_evidence"] = Evidence.OBSERVED if known else Evidence.MISSING
        return event


def replay_by_hand(
    trace: Trace, plan: Mapping[str, Any], scenario: Mapping[str, Any]
) -> tuple[list[Row], list[Row]]:
    """The rows of `instances` and `events` that a replay on the ideal backend must give.

    Args:
        trace: the trace.
        plan: a plan as JSON, nothing left out.
        scenario: a scenario as JSON, nothing left out; its arrivals chosen and drawn.
    """
    operations = trace.operations.data.to_pylist()
    tasks = trace.tasks.data.to_pylist()
    of_task = [
        [row for row, operation in enumerate(operations) if operation["task"] == task]
        for task in range(len(tasks))
    ]
    constraints = constraints_of(trace, plan)
    settings = {
        "c0_ns": 20_000_000,
        "c_pre_ns": 100_000,
        "c_dec_ns": 10_000_000,
        **scenario["backend"]["settings"],
    }
    copies = scenario["copies"]
    sent = [(task, copy) for copy in range(copies) for task in range(len(tasks))]
    arrivals = scenario["arrivals"]
    made: dict[tuple[int, int], tuple[int, InstanceByHand]] = {}

    def send(which: tuple[int, int], arrival: int) -> None:
        made[which] = arrival, InstanceByHand(operations, constraints, settings, arrival)

    def answered(which: tuple[int, int]) -> int:
        task = which[0]
        arrival, instance = made[which]
        answer = tasks[task]["answer_operation"]
        if answer is not None:
            return instance.event(answer)["finished_ns"]
        return max((instance.event(operation)["finished_ns"] for operation in of_task[task]), default=arrival)

    if arrivals["kind"] == "closed_loop":
        users = arrivals["users"]
        answers: list[int] = []
        for at, which in enumerate(sent):
            ramp = arrivals.get("ramp_ns", 0)
            send(which, at * ramp // users if at < users else heapq.heappop(answers) + arrivals["think_ns"])
            heapq.heappush(answers, answered(which))
    else:
        for at, which in enumerate(sent):
            if arrivals["kind"] == "recorded":
                send(which, tasks[which[0]]["arrival_ns"])
            elif arrivals["kind"] == "together":
                send(which, 0)
            else:
                send(which, arrivals["times_ns"][at])

    instance_rows: list[Row] = []
    event_rows: list[Row] = []
    for number, (task, copy) in enumerate(sorted(sent)):
        arrival, instance = made[task, copy]
        instance_rows.append(
            {"task": task, "instance": copy, "arrival_ns": arrival, "outcome": Outcome.SUCCESS}
        )
        event_rows += [{"instance": number, **instance.event(operation)} for operation in of_task[task]]
    return instance_rows, event_rows
