"""Small traces and executions for the tests of measures and audits.

`run` is a release rule of its own, written as plainly as it can be: executions do not come from the replayer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from semtrace.build import TraceBuilder
from semtrace.graph.plan import AddedEdge, Group, Plan, dag
from semtrace.records.columns import NULL, Columns
from semtrace.records.enums import (
    EventOutcome,
    Evidence,
    OperationKind,
    OperationStatus,
    Outcome,
    Role,
    Trigger,
)
from semtrace.records.execution import Backend, Execution, ExecutionHeader
from semtrace.records.execution_tables import EVENTS, INSTANCES
from semtrace.records.trace import MemoryContent, Trace
from semtrace.replay.scenario import BackendChoice, Drawn, Scenario
from semtrace.store.digests import artifact_digest, show, work_digest

LLM, TOOL, EMBED, HUMAN = (
    OperationKind.LLM,
    OperationKind.TOOL,
    OperationKind.EMBED,
    OperationKind.HUMAN,
)


def digest_of(trace: Trace) -> str:
    return show(work_digest(trace))


def plan_of(
    trace: Trace, *, edges: list[dict[str, Any]] | None = None, groups: list[dict[str, Any]] | None = None
) -> Plan:
    if not edges and not groups:
        return dag(digest_of(trace))
    return Plan(
        work_digest=digest_of(trace),
        name="custom",
        edges=[AddedEdge(**edge) for edge in edges or []],
        groups=[Group(**group) for group in groups or []],
    )


def two_analysts(*, ids: bool = False, tasks: int = 1, answer: bool = True) -> Trace:
    """Planner 0; analysts 1 and 2; a search 3 after analyst 1; writer 4 joins 2 and 3, with state written by 1.

    Model times under `run`: first token after 10 + prompt, then 1 per further output token.
    0: 10+5, 3 out → 17      1: 10+20, 4 out → 33     2: 10+10, 11 out → 30     3: 50, delay 7     4: 10+40, 2 out → 51
    """
    b = TraceBuilder()
    for _ in range(tasks):
        task = b.task("report", arrival_ns=0)
        outer = b.stage(task, "report")
        planning = b.stage(task, "plan", parent=outer)
        analysis = b.stage(task, "analyse", parent=outer)
        writing = b.stage(task, "write", parent=outer)
        planner = b.session(task, agent="planner")
        sessions = [b.session(task, agent=f"analyst {name}") for name in "AB"]
        writer = b.session(task, agent="writer")
        plan = b.operation(
            task, LLM, "plan", stage=planning, session=planner, prompt_tokens=5, output_tokens=3
        )
        first, second = (
            b.operation(
                task,
                LLM,
                f"analyse {name}",
                stage=analysis,
                session=session,
                prompt_tokens=p,
                output_tokens=o,
            )
            for name, session, p, o in zip("AB", sessions, (20, 10), (4, 11), strict=True)
        )
        search = b.operation(
            task, TOOL, "search", stage=analysis, session=sessions[0], duration_ns=50, external_delay_ns=7
        )
        write = b.operation(
            task, LLM, "write", stage=writing, session=writer, prompt_tokens=40, output_tokens=2
        )
        b.segment(plan, Role.USER, "the question", tokens=5)
        for analyst, own in ((first, 15), (second, 5)):
            b.segment(analyst, Role.SYSTEM, "you are an analyst", tokens=2)
            b.segment(analyst, Role.USER, "plan", source=plan, tokens=3)
            b.segment(analyst, Role.USER, f"part of {analyst}", tokens=own)
        b.segment(write, Role.USER, "analysis B", source=second, tokens=11)
        b.segment(write, Role.TOOL, "found", source=search, tokens=20)
        b.segment(write, Role.USER, "the question", tokens=5)
        b.segment(write, Role.USER, "memory", tokens=4)
        b.edge(search, first)
        state = b.state("team", "memory", task=task)
        b.read(write, b.version(state, "notes", writer=first))
        if answer:
            b.update_task(task, answer_operation=write)
        if ids:
            for operation, count in ((plan, 3), (first, 4), (second, 11), (write, 2)):
                raw = b"".join((100 * operation + at).to_bytes(4, "little") for at in range(count))
                row = b.artifact(raw, "application/vnd.semtrace.token-ids")
                b.update_operation(operation, output_token_ids=row)
    return b.build().trace


def took(trace: Trace, operation: int) -> tuple[int, int]:
    """(time to first token, time to end) of an operation from its submission."""
    row = trace.operations.row(operation)
    if row["kind"] in {LLM, EMBED} and row["status"] not in {OperationStatus.ERROR, OperationStatus.TIMEOUT}:
        token = 10 + int(row["prompt_tokens"])
        return token, token + max(int(row["output_tokens"] or 0) - 1, 0)
    return int(row["duration_ns"]), int(row["duration_ns"])


def run(
    trace: Trace,
    plan: Plan | None = None,
    *,
    arrivals: list[int] | None = None,
    shift: dict[int, int] | None = None,
    durations: dict[int, int] | None = None,
    ignore: Plan | None = None,
    mode: str = "length_locked",
    clock: str = "virtual",
    tolerance_ns: int = 0,
    locked: bool = True,
) -> Execution:
    """Run the first copies of every task.

    Args:
        trace: the trace.
        plan: the plan that the header names.
        arrivals: of each copy of every task, by copy.
        shift: by operation, ns by which it is submitted after (before, if negative) its release.
        durations: by operation, ns that it takes instead.
        ignore: the plan really followed.
        mode, clock, tolerance_ns: of the header.
        locked: whether a token-locked run returns the recorded ids.
    """
    plan = plan or dag(digest_of(trace))
    followed = ignore or plan
    arrivals = arrivals or [0]
    instances = [(task, copy) for task in range(trace.tasks.rows) for copy in range(len(arrivals))]
    rows: list[dict[str, Any]] = []
    content = MemoryContent()
    for number, (task, copy) in enumerate(instances):
        times: dict[int, dict[str, int]] = {}
        wanted = list(trace.task_rows("operations", task))
        while wanted:
            at = next(
                op for op in wanted if all(source in times for source, _, _ in _before(trace, followed, op))
            )
            wanted.remove(at)
            came = [times[source][trigger] + lag for source, trigger, lag in _before(trace, followed, at)]
            ready = max(came, default=arrivals[copy])
            release = ready + int(trace.operations.ints("external_delay_ns")[at])
            start = release + (shift or {}).get(at, 0)
            token, end = took(trace, at)
            end = (durations or {}).get(at, end)
            is_llm = trace.operations.ints("kind")[at] == LLM
            times[at] = {"ready": ready, "released": release, "start": start, "finish": start + end}
            times[at]["first_token"] = start + (
                token if is_llm and trace.operations.ints("output_tokens")[at] else end
            )
        for at, found in times.items():
            row = trace.operations.row(at)
            model = row["kind"] in {LLM, EMBED} and row["status"] != OperationStatus.ERROR
            event = {
                "instance": number,
                "operation": at,
                "ready_ns": found["ready"],
                "released_ns": found["released"],
                "submitted_ns": found["start"],
                "scheduled_ns": found["start"] if model else None,
                "first_token_ns": found["first_token"] if model and row["kind"] == LLM else None,
                "finished_ns": found["finish"],
                "outcome": int(EventOutcome[OperationStatus(row["status"]).name]),
                "prompt_tokens": row["prompt_tokens"],
                "output_tokens": row["output_tokens"],
                "preemptions": 0 if model else None,
            }
            for name in ("ready", "released", "submitted", "scheduled", "first_token", "finished"):
                known = event[f"{name}_ns"] is not None
                event[f"{name}_evidence"] = Evidence.OBSERVED if known else Evidence.MISSING
            if mode == "token_locked" and locked and row["output_token_ids"] is not None:
                raw = trace.artifact(int(row["output_token_ids"]))
                content[artifact_digest(raw)] = raw
                event["_ids"] = artifact_digest(raw)
            rows.append(event)
    rows.sort(key=lambda each: (each["instance"], each["operation"]))
    own = sorted(content)
    for event in rows:
        if "_ids" in event:
            event["output_ids"] = own.index(event.pop("_ids"))
    header = ExecutionHeader(
        work_digest=digest_of(trace),
        plan_digest=plan.content_digest(),
        plan=plan.as_json(),
        mode=mode,
        clock=clock,
        tolerance_ns=tolerance_ns,
        measured_at="simulator",
        backend=Backend(name="by hand"),
        scenario=scenario_of(trace, arrivals, mode),
    )
    tables = {
        "instances": pa.Table.from_pylist(
            [
                {
                    "task": task,
                    "instance": copy,
                    "arrival_ns": arrivals[copy],
                    "outcome": int(Outcome.SUCCESS),
                }
                for task, copy in instances
            ],
            schema=INSTANCES.arrow,
        ),
        "events": _events(rows),
    }
    return Execution.from_arrow(header, tables, content)


def scenario_of(trace: Trace, arrivals: list[int], mode: str = "length_locked") -> dict[str, Any]:
    """The scenario by which the copies of every task arrive at these times."""
    return Scenario(
        copies=len(arrivals),
        arrivals=Drawn(times_ns=[at for at in arrivals for _ in range(trace.tasks.rows)]),
        mode=mode,
        backend=BackendChoice(name="by hand"),
    ).as_json()


def _events(rows: list[dict[str, Any]]) -> pa.Table:
    return Columns.of(EVENTS, {name: [row.get(name) for row in rows] for name in EVENTS.by_name}).data


def _before(trace: Trace, plan: Plan, target: int) -> list[tuple[int, str, int]]:
    names = {Trigger.FINISH: "finish", Trigger.START: "start", Trigger.FIRST_TOKEN: "first_token"}
    edges = trace.edges
    found = [
        (
            int(edges.ints("source")[row]),
            names[Trigger(int(edges.ints("trigger")[row]))],
            int(edges.ints("lag_ns")[row]),
        )
        for row in range(edges.rows)
        if edges.ints("target")[row] == target
    ]
    found += [(edge.source, edge.trigger, edge.lag_ns) for edge in plan.edges if edge.target == target]
    found += [(source, "finish", 0) for group in plan.groups if target in group.hold for source in group.wait]
    return found


def evidence_of(cells: dict[str, Any]) -> dict[str, Evidence]:
    """The evidence that goes with times: observed, missing where there is none."""
    return {
        name.replace("_ns", "_evidence"): Evidence.MISSING if value is None else Evidence.OBSERVED
        for name, value in cells.items()
        if name.endswith("_ns")
    }


def change(
    execution: Execution,
    events: dict[int, dict[str, Any]] | None = None,
    *,
    drop: tuple[int, ...] = (),
    double: tuple[int, ...] = (),
    instances: dict[int, dict[str, Any]] | None = None,
    **header: Any,
) -> Execution:
    """The execution with cells of events and instances, rows or header fields changed."""
    rows = execution.events.data.to_pylist()
    for row, cells in (events or {}).items():
        rows[row].update(evidence_of(cells) | cells)
    rows = [row for at, row in enumerate(rows) if at not in drop for _ in range(1 + (at in double))]
    roots = execution.instances.data.to_pylist()
    for row, cells in (instances or {}).items():
        roots[row].update(cells)
    scenario = execution.header.scenario
    if scenario and "scenario" not in header and header.get("mode", "native") != "native":
        header["scenario"] = {**scenario, "mode": header["mode"]}
    tables = {
        "events": _events(rows),
        "instances": Columns.of(INSTANCES, {n: [r[n] for r in roots] for n in INSTANCES.by_name}).data,
    }
    made = Execution.from_arrow(execution.header.model_copy(update=header), tables, execution.content)
    return replace(made, content=execution.content)


def moved(execution: Execution, row: int, by: int, *names: str) -> dict[str, int]:
    """Times of an event, moved."""
    seen = execution.events.row(row)
    return {f"{name}_ns": seen[f"{name}_ns"] + by for name in names if seen[f"{name}_ns"] not in {None, NULL}}
