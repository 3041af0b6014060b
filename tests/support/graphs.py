"""Small graphs in short form: traces, plans and scenarios as the examples of the spec write them.

    {"operations": [{"name": "a", "duration_ns": 5}, {"name": "b", "duration_ns": 1, "after": ["a"]}]}

Operations are named; everything that refers to one does so by name. See the examples in spec/release.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from semtrace.build.builder import TraceBuilder
from semtrace.graph.plan import Plan
from semtrace.records.enums import OperationKind, OperationStatus, Role, Trigger
from semtrace.records.media import TOKEN_IDS_TYPE
from semtrace.replay.scenario import Scenario
from semtrace.store.digests import show, work_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from semtrace.records.execution import Execution
    from semtrace.records.trace import Trace

SETTINGS = {"c0_ns": 100, "c_pre_ns": 1, "c_dec_ns": 10}
"""Coefficients of the ideal backend with which sums are easy."""

TIMES = ("ready_ns", "released_ns", "first_token_ns", "finished_ns")
"""The times that the short form of an event gives."""


@dataclass(frozen=True)
class Graph:
    """A trace and the row of each named operation and stage."""

    trace: Trace
    rows: dict[str, int]
    stages: dict[str, int]

    @property
    def work(self) -> str:
        """The work digest."""
        return show(work_digest(self.trace))

    def plan(self, short: Mapping[str, Any] | None = None) -> Plan:
        """A plan in short form: `base`, `edges` and `groups` by names."""
        short = short or {}
        edges = [
            {**edge, "source": self.rows[edge["source"]], "target": self.rows[edge["target"]]}
            for edge in short.get("edges", ())
        ]
        groups = [
            {side: [self.rows[name] for name in group[side]] for side in ("wait", "hold")}
            for group in short.get("groups", ())
        ]
        values = {"base": short.get("base", "dag"), "edges": edges, "groups": groups}
        return Plan.parse({"work_digest": self.work, "name": "custom", **values}, path="plan")

    def names(self, rows: Iterable[int]) -> list[str]:
        """The names of operations."""
        by_row = {row: name for name, row in self.rows.items()}
        return [by_row[row] for row in rows]


def graph(short: Mapping[str, Any]) -> Graph:
    """A trace in short form."""
    made = TraceBuilder()
    tasks = [
        made.task(f"task {at}", arrival_ns=task.get("arrival_ns"))
        for at, task in enumerate(short.get("tasks", [{}]))
    ]
    stages: dict[str, int] = {}
    for stage in short.get("stages", ()):
        parent = stages[stage["parent"]] if "parent" in stage else None
        stages[stage["name"]] = made.stage(tasks[stage.get("task", 0)], stage["name"], parent=parent)
    sessions: dict[tuple[int, str], int] = {}
    rows: dict[str, int] = {}
    for operation in short["operations"]:
        task = tasks[operation.get("task", 0)]
        session = None
        if "session" in operation:
            key = (task, operation["session"])
            session = (
                sessions[key]
                if key in sessions
                else sessions.setdefault(key, made.session(task, name=key[1]))
            )
        row = rows[operation["name"]] = made.operation(
            task,
            OperationKind[operation.get("kind", "tool").upper()],
            operation["name"],
            stage=stages[operation["stage"]] if "stage" in operation else None,
            session=session,
            status=OperationStatus[operation.get("status", "ok").upper()],
            external_delay_ns=operation.get("delay_ns", 0),
            duration_ns=operation.get("duration_ns"),
            prompt_tokens=operation.get("prompt"),
            output_tokens=operation.get("output"),
        )
        for edge in operation.get("after", ()):
            if isinstance(edge, str):
                made.edge(row, rows[edge])
            else:
                trigger = Trigger[edge.get("trigger", "finish").upper()]
                made.edge(row, rows[edge["source"]], trigger=trigger, lag_ns=edge.get("lag_ns", 0))
        for source in operation.get("data", ()):
            made.segment(row, Role.USER, source=rows[source])
        if "content" in operation:
            first = sum(operation["content"].encode()) * 1000
            ids = np.arange(first, first + operation["prompt"], dtype="<u4")
            held = made.artifact(ids.tobytes(), TOKEN_IDS_TYPE)
            made.segment(row, Role.USER, token_ids=held, token_ids_start=0, tokens=operation["prompt"])
    for at, task in enumerate(short.get("tasks", ())):
        if "answer" in task:
            made.update_task(tasks[at], answer_operation=rows[task["answer"]])
    built = made.build()
    ids = built.ids
    return Graph(
        built.trace,
        {name: ids["operations"][row] for name, row in rows.items()},
        {name: ids["stages"][row] for name, row in stages.items()},
    )


def scenario(short: Mapping[str, Any] | None = None) -> Scenario:
    """A scenario on the ideal backend with easy coefficients, unless it says otherwise."""
    return Scenario.parse(
        {"backend": {"name": "ideal", "settings": SETTINGS}, **(short or {})}, path="scenario"
    )


def events(made: Graph, execution: Execution) -> list[dict[str, list[int | None]]]:
    """The events of each instance in short form: `[ready, released, first token, finished]` by name."""
    table = execution.events.data.to_pylist()
    names = {row: name for name, row in made.rows.items()}
    found: list[dict[str, list[int | None]]] = [{} for _ in range(execution.instances.rows)]
    for event in table:
        found[event["instance"]][names[event["operation"]]] = [event[time] for time in TIMES]
    return found
