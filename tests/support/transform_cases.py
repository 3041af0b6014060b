"""What the tests of the tools share: small traces by hand, and traces whose rows were thrown about."""

from __future__ import annotations

import numpy as np

from semtrace.build import TraceBuilder
from semtrace.check import check_execution, check_trace
from semtrace.records.columns import Columns
from semtrace.records.enums import (
    EntityKind,
    OperationKind,
    Outcome,
    StateLifetime,
    VersionMode,
)
from semtrace.records.execution import Backend, Execution, ExecutionHeader
from semtrace.records.execution_tables import EXECUTION_TABLES, STEPS
from semtrace.records.trace import Trace
from semtrace.records.trace_tables import TRACE_TABLE
from semtrace.store.bundle import BundleInfo
from semtrace.store.digests import show, trace_digest, work_digest
from semtrace.transform.bundle_parts import Parts, sound
from semtrace.transform.rows import places, take, take_annotations

MS = 1_000_000
ORIGIN = 1_700_000_000_000 * MS


def parts_of(built, name="the trace", info=None) -> Parts:
    """A built trace with its native execution, checked."""
    executions = {"native": built.execution} if built.execution else {}
    return sound(Parts(built.trace, executions, info or BundleInfo(), name))


def findings(parts: Parts) -> list[str]:
    """Everything that is wrong with a trace, its content and its executions."""
    found = check_trace(parts.trace)
    for execution in parts.executions.values():
        found += check_execution(execution, parts.trace)
    return [str(each) for each in found]


def crew(
    *, tasks=3, origin=ORIGIN, model="small", memory="what all know", first_arrival_ns=0
) -> TraceBuilder:
    """Tasks of a plan and two searches each, that share a library; every second one fails."""
    b = TraceBuilder(origin_unix_ns=origin)
    library = b.state("memory", "library", lifetime=StateLifetime.LONG_TERM)
    book = b.version(library, memory)
    small = b.model(model, layers=4)
    for at in range(tasks):
        arrival = first_arrival_ns + 10 * at * MS
        task = b.task(
            f"task {at}",
            arrival_ns=arrival,
            deadline_ns=arrival + 900 * MS,
            input=f"question {at}",
            workload="debate" if at % 3 == 0 else "spawn",
            tenant="blue" if at == 1 else None,
            outcome=Outcome.FAILURE if at % 2 else Outcome.SUCCESS,
            priority=-at,
        )
        session = b.session(task, agent="planner", model=small)
        stage = b.stage(task, "plan")
        plan = b.operation(
            task, OperationKind.LLM, "plan", session=session, stage=stage, model=small,
            started_ns=arrival, prompt_tokens=20 + at, output_tokens=5,
        )  # fmt: skip
        b.request(plan, [{"role": "user", "content": f"question {at}"}])
        b.output(plan, {"content": "search twice"})
        b.read(plan, book)
        notes = b.state("memory", "notes", task=task)
        b.version(notes, "empty")
        for number in range(2):
            search = b.operation(
                task, OperationKind.TOOL, f"search {number}", started_ns=arrival + (6 + number) * MS,
                duration_ns=MS * (at + 1),
            )  # fmt: skip
            b.segment(search, 3, "search twice", source=plan)
            written = b.version(notes, f"found {at}.{number}", mode=VersionMode.REPLACE, writer=search)
            b.observe(
                search, submitted_ns=arrival + (6 + number) * MS, finished_ns=arrival + (7 + number + at) * MS
            )
        last = b.operation(task, OperationKind.TRANSFORM, "join", started_ns=arrival + 20 * MS, duration_ns=0)
        b.read(last, written)
        b.observe(plan, submitted_ns=arrival, finished_ns=arrival + 5 * MS)
        b.annotate(EntityKind.TASK, task, "example.org/number", str(at))
        b.annotate(EntityKind.OPERATION, last, "example.org/last", "yes")
    b.annotate(EntityKind.MODEL, small, "example.org/seen", "yes")
    return b


def replay_of(trace: Trace) -> Execution:
    """A replay, as far as tools look at it: it follows a plan."""
    header = ExecutionHeader(
        work_digest=show(work_digest(trace)),
        plan={"rule": "dag"},
        scenario={},
        mode="length_locked",
        clock="virtual",
        measured_at="simulator",
        backend=Backend(name="ideal"),
    )
    return Execution(header, {spec.name: Columns(spec, spec.empty()) for spec in EXECUTION_TABLES})


def with_steps(execution: Execution) -> Execution:
    """The same execution with a step recorded."""
    steps = Columns.of(
        STEPS,
        {
            "server": [0],
            "index": [0],
            "start_ns": [0],
            "end_ns": [5],
            "tokens": [3],
            "requests": [1],
            "free_blocks": [9],
        },
    )
    header = execution.header.model_copy(update={"detail": ["steps"]})
    return Execution(header, {**execution.tables, "steps": steps}, execution.content)


def thrown(trace: Trace, seed: int, *, tables=None) -> tuple[Trace, dict[str, np.ndarray]]:
    """The same trace with the rows of tables in random order, tasks and the order inside of an input excepted.

    Args:
        trace: the trace.
        seed: of the order.
        tables: which tables; all but `trace`, `tasks` and `annotations` if left out.

    Returns:
        The trace, and by table the new place of each row.
    """
    rng = np.random.default_rng(seed)
    fixed = {"trace", "tasks", "annotations"}
    names = [name for name in TRACE_TABLE if name not in fixed] if tables is None else tables
    orders = {name: rng.permutation(trace[name].rows) for name in names}
    if "segments" in orders:
        operation = trace.segments.ints("operation")
        orders["segments"] = np.argsort(rng.permutation(trace.operations.rows)[operation], kind="stable")
    moved = {name: places(order, trace[name].rows) for name, order in orders.items()}
    made = {
        name: take(columns, orders.get(name), moved)
        for name, columns in trace.tables.items()
        if name != "annotations"
    }
    made["annotations"] = take_annotations(trace["annotations"], moved)
    return Trace.from_arrow(made, trace.content), moved


def old_ids(parts: Parts, kind: EntityKind, source: Trace) -> dict[int, int]:
    """By row, the id that it had in a trace, where an annotation says so."""

    key = f"semtrace.id/{trace_digest(source).hex()[:16]}"
    return {
        row["entity"]: int(row["value"])
        for row in parts.trace["annotations"].data.to_pylist()
        if row["key"] == key and row["entity_kind"] == kind
    }
