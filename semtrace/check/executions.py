"""Executions: order, references and times of what happened. Whether it is what should have happened is the audit's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from semtrace.check.finding import Finding, found
from semtrace.check.rules import Ledger, Rule, rule
from semtrace.check.values import check_values
from semtrace.check.view import TableView, pair_keys, sorts_before
from semtrace.errors import SemtraceError
from semtrace.records.columns import NULL
from semtrace.records.document import canonical_json, parse_canonical
from semtrace.records.enums import Evidence
from semtrace.records.execution_tables import EXECUTION_TABLE, EXECUTION_TABLES
from semtrace.store.digests import show, work_digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from semtrace.records.execution import Execution
    from semtrace.records.trace import Trace

TIMES: Final = ("ready", "released", "submitted", "scheduled", "first_token", "finished")
"""The times of an event, in the order in which they come."""

DETAIL_TABLES: Final = tuple(
    spec.name for spec in EXECUTION_TABLES if spec.name not in {"instances", "events"}
)


class ExecutionView(TableView):
    """What rules see of an execution."""

    def __init__(self, execution: Execution, trace: Trace | None, ledger: Ledger) -> None:
        super().__init__(execution.tables, ledger)
        self.execution = execution
        self.trace = trace


@rule("ST-EXE-001")
def of_this_work(view: ExecutionView) -> Iterator[Finding]:
    """The execution is of the trace."""
    if view.trace is None:
        return
    expected, stated = show(work_digest(view.trace)), view.execution.header.work_digest
    if stated != expected:
        yield Finding(
            "ST-EXE-001",
            f"is of work {stated}, the trace is work {expected}",
            table="header",
            column="work_digest",
            hint="an execution can be read only beside the trace that it is of",
        )


@rule("ST-EXE-002")
def instances_dense(view: ExecutionView) -> Iterator[Finding]:
    """Instances are sorted by task, and numbered from 0 in each."""
    task, instance = view.ints("instances", "task"), view.ints("instances", "instance")
    yield from _dense("ST-EXE-002", "instances", "instance", task, instance)


def _dense(
    requirement: str, table: str, column: str, owner: NDArray[np.int64], ordinal: NDArray[np.int64]
) -> Iterator[Finding]:
    """Findings where rows are not sorted by owner, or not numbered from 0 in each."""
    new = np.append(True, owner[1:] != owner[:-1])[: len(owner)]
    rows = np.arange(len(owner))
    expected = rows - np.maximum.accumulate(np.where(new, rows, 0))
    unsorted = np.append(False, owner[1:] < owner[:-1])[: len(owner)]
    yield from found(
        requirement,
        unsorted | (ordinal != expected),
        lambda row: (
            f"row {row} is out of order"
            if unsorted[row]
            else f"is {ordinal[row]}, must be {expected[row]}: numbered from 0, without gaps"
        ),
        table=table,
        column=column,
    )


@rule("ST-EXE-003")
def events_sorted(view: ExecutionView) -> Iterator[Finding]:
    """Events are sorted by instance and operation, and unique."""
    keys = pair_keys(view.raw("events", "instance"), view.raw("events", "operation"))
    message = "event {row} does not sort after the one above it, by instance and operation"
    yield from found("ST-EXE-003", np.flatnonzero(keys[1:] <= keys[:-1]) + 1, message, table="events")


@rule("ST-EXE-004")
def operations_of_instances(view: ExecutionView) -> Iterator[Finding]:
    """An event is of an operation of its instance's task."""
    if view.trace is None or not view.rows("events"):
        return
    operation = view.raw("events", "operation")
    task = view.trace.operations.ints("task")[operation]
    instance = view.raw("events", "instance")
    wrong = task != view.ints("instances", "task")[instance]
    yield from found(
        "ST-EXE-004",
        wrong,
        lambda row: f"operation {operation[row]} is of task {task[row]}, instance {instance[row]} is not",
        table="events",
        column="operation",
    )


@rule("ST-EXE-005")
def times_in_order(view: ExecutionView) -> Iterator[Finding]:
    """What is known of an event's times is in the order in which they come."""
    latest = np.full(view.rows("events"), NULL, dtype=np.int64)
    for name in TIMES:
        if view.any_known("events", f"{name}_ns"):
            time = view.ints("events", f"{name}_ns")
            yield from _not_before(name, time, latest)
            latest = np.maximum(latest, time)


def _not_before(name: str, time: NDArray[np.int64], latest: NDArray[np.int64]) -> Iterator[Finding]:
    yield from found(
        "ST-EXE-005",
        (time != NULL) & (time < latest),
        lambda row: f"event {row} is {name} at {time[row]} ns, and was further at {latest[row]} ns already",
        table="events",
        column=f"{name}_ns",
    )


@rule("ST-EXE-006")
def time_evidence(view: ExecutionView) -> Iterator[Finding]:
    """The evidence of a time is missing exactly where it is unknown."""
    for name in TIMES:
        known = view.known("events", f"{name}_ns")
        missing = view.raw("events", f"{name}_evidence") == Evidence.MISSING
        yield from found(
            "ST-EXE-006",
            known == missing,
            f"event {{row}}: evidence of {name}_ns is missing where it is known, or is not where it is unknown",
            table="events",
            column=f"{name}_evidence",
        )


@rule("ST-EXE-007")
def cached_within_prompt(view: ExecutionView) -> Iterator[Finding]:
    """Cached tokens are among the prompt's."""
    cached, prompt = view.ints("events", "cached_tokens"), view.ints("events", "prompt_tokens")
    yield from found(
        "ST-EXE-007",
        (prompt != NULL) & (cached > prompt),
        lambda row: f"{cached[row]} cached tokens of a prompt of {prompt[row]}",
        table="events",
        column="cached_tokens",
    )


@rule("ST-EXE-018")
def computed_what_was_not_cached(view: ExecutionView) -> Iterator[Finding]:
    """Prompt tokens that were neither found in a cache nor loaded nor reused were computed; a preempted one may find more later."""
    names = ("prompt_tokens", "cached_tokens", "computed_prompt_tokens", "loaded_tokens", "reused_tokens")
    prompt, cached, computed, loaded, reused = (view.ints("events", name) for name in names)
    known = (
        (prompt != NULL) & (cached != NULL) & (computed != NULL) & (view.ints("events", "preemptions") <= 0)
    )
    saved = cached + np.maximum(loaded, 0) + np.maximum(reused, 0)
    yield from found(
        "ST-EXE-018",
        known & (computed < prompt - saved),
        lambda row: (
            f"{computed[row]} tokens computed of a prompt of {prompt[row]}, {saved[row]} of it there before"
        ),
        table="events",
        column="computed_prompt_tokens",
    )


@rule("ST-EXE-019")
def attempts_possible(view: ExecutionView) -> Iterator[Finding]:
    """What was submitted was submitted at least once, and on a virtual clock not again."""
    attempts, submitted = view.ints("events", "attempts"), view.ints("events", "submitted_ns")
    judged = (attempts != NULL) & (submitted != NULL)
    once = view.execution.header.clock == "virtual"
    yield from found(
        "ST-EXE-019",
        judged & ((attempts != 1) if once else (attempts < 1)),
        lambda row: f"event {row} was submitted, in {attempts[row]} attempts",
        table="events",
        column="attempts",
    )


@rule("ST-EXE-020")
def preempted_inside(view: ExecutionView) -> Iterator[Finding]:
    """Time preempted lies between the first scheduling and the end, and there is none without a preemption."""
    names = ("preempted_ns", "preemptions", "scheduled_ns", "finished_ns")
    preempted, times, scheduled, finished = (view.ints("events", name) for name in names)
    known = (preempted != NULL) & (scheduled != NULL) & (finished != NULL)
    yield from found(
        "ST-EXE-020",
        (known & (preempted > finished - scheduled)) | ((preempted > 0) & (times == 0)),
        lambda row: (
            f"{preempted[row]} ns preempted in {times[row]} preemptions, "
            f"of {finished[row] - scheduled[row]} ns from its first step to its end"
        ),
        table="events",
        column="preempted_ns",
    )


@rule("ST-EXE-008", "ST-EXE-009")
def detail_declared(view: ExecutionView) -> Iterator[Finding]:
    """The header names the detail tables that are recorded, and only such as there are."""
    declared = view.execution.header.detail
    for name in declared:
        if name not in DETAIL_TABLES:
            hint = f"one of {', '.join(DETAIL_TABLES)}"
            yield Finding("ST-EXE-009", f"{name!r} is no detail table", "header", "detail", hint=hint)
    for name in DETAIL_TABLES:
        if view.execution[name].rows and name not in declared:
            message = f"{name} has rows, and the header does not declare it"
            yield Finding("ST-EXE-008", message, "header", "detail", hint=f"add {name} to detail")


@rule("ST-EXE-010")
def output_ids_held(view: ExecutionView) -> Iterator[Finding]:
    """Output ids are artifacts of the execution: ordinals in the order of their digests."""
    if not view.any_known("events", "output_ids"):
        return
    view.need("content")
    held = sum(1 for _ in view.execution.content)
    ids = view.ints("events", "output_ids")
    yield from found(
        "ST-EXE-010",
        ids >= held,
        lambda row: f"refers to artifact {ids[row]} of the execution, which has {held}",
        table="events",
        column="output_ids",
    )


@rule("ST-EXE-011", "ST-EXE-012")
def steps_in_order(view: ExecutionView) -> Iterator[Finding]:
    """Steps are sorted by server and numbered from 0; a step does not end before it starts."""
    if not view.rows("steps"):
        return
    yield from _dense(
        "ST-EXE-011", "steps", "index", view.ints("steps", "server"), view.ints("steps", "index")
    )
    yield from _ends("steps", view)


def _ends(table: str, view: ExecutionView) -> Iterator[Finding]:
    wrong = view.raw(table, "end_ns") < view.raw(table, "start_ns")
    yield from found("ST-EXE-012", wrong, "row {row} ends before it starts", table=table, column="end_ns")


@rule("ST-EXE-013", "ST-EXE-014")
def runs_in_order(view: ExecutionView) -> Iterator[Finding]:
    """Runs of steps are sorted by event and first step, and none is empty."""
    if not view.rows("step_runs"):
        return
    keys = pair_keys(view.raw("step_runs", "event"), view.raw("step_runs", "first_step"))
    message = "run {row} does not sort after the one above it, by event and first step"
    yield from found("ST-EXE-013", np.flatnonzero(keys[1:] <= keys[:-1]) + 1, message, table="step_runs")
    empty = view.raw("step_runs", "count") == 0
    yield from found("ST-EXE-014", empty, "run {row} has no step", table="step_runs", column="count")


@rule("ST-EXE-015")
def moments_in_order(view: ExecutionView) -> Iterator[Finding]:
    """Block events and decisions are sorted by time, and numbered from 0 in each instant."""
    for table in ("blocks", "decisions"):
        if view.rows(table):
            time, sequence = view.ints(table, "time_ns"), view.ints(table, "sequence")
            yield from _dense("ST-EXE-015", table, "sequence", time, sequence)


@rule("ST-EXE-016", "ST-EXE-012")
def transfers_in_order(view: ExecutionView) -> Iterator[Finding]:
    """Transfers are sorted by start, server, link, direction and end."""
    if not view.rows("transfers"):
        return
    names = ("start_ns", "server", "link", "direction", "end_ns")
    wrong = sorts_before([view.array("transfers", name) for name in names])
    message = f"transfer {{row}} sorts before the one above it, by {', '.join(names)}"
    yield from found("ST-EXE-016", wrong, message, table="transfers")
    yield from _ends("transfers", view)


@rule("ST-EXE-017")
def inputs_canonical(view: ExecutionView) -> Iterator[Finding]:
    """What a decision saw is canonical JSON."""
    if not view.rows("decisions"):
        return
    inputs = view.array("decisions", "inputs")
    wrong = [row for row in range(len(inputs)) if not _is_canonical(inputs[row].as_py())]
    message = "what decision {row} saw is not canonical JSON"
    yield from found("ST-EXE-017", wrong, message, table="decisions", column="inputs")


def _is_canonical(text: str) -> bool:
    try:
        return canonical_json(parse_canonical(text.encode())) == text.encode()
    except (ValueError, RecursionError, SemtraceError):
        return False


EXECUTION_RULES: Final[tuple[Rule[ExecutionView], ...]] = (
    of_this_work,
    instances_dense,
    events_sorted,
    operations_of_instances,
    times_in_order,
    time_evidence,
    cached_within_prompt,
    computed_what_was_not_cached,
    attempts_possible,
    preempted_inside,
    detail_declared,
    output_ids_held,
    steps_in_order,
    runs_in_order,
    moments_in_order,
    transfers_in_order,
    inputs_canonical,
)


def check_execution(execution: Execution, trace: Trace | None) -> list[Finding]:
    """Check the form of an execution.

    Args:
        execution: the execution.
        trace: the trace that it is said to be of; without it, references to the trace are not judged.

    Returns:
        Everything that is wrong, at once. Whether operations were released when they should be is not judged here:
        that is the audit's.
    """
    return judge_execution(execution, trace, Ledger())


def check_form(execution: Execution, trace: Trace) -> list[Finding]:
    """Check an execution as `check_execution` does, but not whether it is of the trace (ST-EXE-001)."""
    return judge_execution(execution, trace, Ledger(), EXECUTION_RULES[1:])


def judge_execution(
    execution: Execution,
    trace: Trace | None,
    ledger: Ledger,
    rules: tuple[Rule[ExecutionView], ...] = EXECUTION_RULES,
) -> list[Finding]:
    """Check an execution of which some tables, or the content, may be unreadable: marked broken in the ledger."""
    rows_of = {name: execution[name].rows for name in EXECUTION_TABLE if not ledger.causes(name)}
    if trace is not None:
        rows_of |= {name: trace[name].rows for name in ("tasks", "operations")}
    for name in EXECUTION_TABLE:
        if name in rows_of:
            check_values(execution[name], rows_of, ledger)
    ledger.run(rules, ExecutionView(execution, trace, ledger))
    return ledger.result()
