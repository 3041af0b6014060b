"""Tasks, stages and sessions: what belongs to what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from semtrace.check.finding import Finding, found
from semtrace.check.rules import Rule, rule
from semtrace.records.columns import NULL
from semtrace.records.compute import matches
from semtrace.records.enums import EntityKind, StageTemplate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from semtrace.check.view import TraceView


@rule("ST-TAB-004", "ST-VAL-005")
def one_header(view: TraceView) -> Iterator[Finding]:
    """There is one header row, and a block has tokens."""
    rows = view.rows("trace")
    if rows != 1:
        yield Finding("ST-TAB-004", f"has {rows} rows, must have exactly one", table="trace")
        return
    size = view.ints("trace", "block_size")
    yield from found("ST-VAL-005", size == 0, "a block has no tokens", table="trace", column="block_size")


@rule("ST-TASK-001")
def answers_of_own_task(view: TraceView) -> Iterator[Finding]:
    """The answer operation is of the task."""
    answer = view.ints("tasks", "answer_operation")
    rows = np.flatnonzero(answer != NULL)
    task = view.ints("operations", "task")
    yield from found(
        "ST-TASK-001",
        rows[task[answer[rows]] != rows],
        lambda row: f"operation {answer[row]} is of task {task[answer[row]]}, not of task {row}",
        table="tasks",
        column="answer_operation",
    )


@rule("ST-TASK-002")
def deadlines_after_arrivals(view: TraceView) -> Iterator[Finding]:
    """A deadline is not before the arrival."""
    arrival, deadline = view.ints("tasks", "arrival_ns"), view.ints("tasks", "deadline_ns")
    yield from found(
        "ST-TASK-002",
        (arrival != NULL) & (deadline != NULL) & (deadline < arrival),
        lambda row: f"the deadline, {deadline[row]} ns, is before the arrival, {arrival[row]} ns",
        table="tasks",
        column="deadline_ns",
        hint="a deadline is an instant from the trace's origin, not a duration",
    )


@rule("ST-TASK-003")
def scores_with_metric(view: TraceView) -> Iterator[Finding]:
    """A score names its metric."""
    wrong = view.known("tasks", "score_ppm") & ~view.known("tasks", "metric")
    message = "has a score under no metric"
    yield from found("ST-TASK-003", wrong, message, table="tasks", column="metric")


@rule("ST-STAGE-001", "ST-STAGE-002")
def stages_nest(view: TraceView) -> Iterator[Finding]:
    """A stage is nested in a lower row of the same task."""
    parent, task = view.ints("stages", "parent"), view.ints("stages", "task")
    rows = np.flatnonzero(parent != NULL)
    yield from found(
        "ST-STAGE-001",
        rows[parent[rows] >= rows],
        lambda row: f"stage {row} is nested in stage {parent[row]}, which is not a lower row",
        table="stages",
        column="parent",
    )
    yield from found(
        "ST-STAGE-002",
        rows[(task[parent[rows]] != task[rows])],
        lambda row: f"stage {row} of task {task[row]} is nested in one of task {task[parent[row]]}",
        table="stages",
        column="parent",
    )


@rule("ST-STAGE-003", "ST-STAGE-004")
def template_extensions(view: TraceView) -> Iterator[Finding]:
    """A pattern beyond the standard's has a namespace, and then the template is unknown."""
    known = view.known("stages", "template_extension")
    if not known.any():
        return
    wrong = known & (view.raw("stages", "template") != StageTemplate.UNKNOWN)
    message = "has a template of the standard and an extension too"
    yield from found("ST-STAGE-003", wrong, message, table="stages", column="template_extension")
    array = view.array("stages", "template_extension")
    yield from found(
        "ST-STAGE-004",
        ~matches(array, "^[^/]+/.+$"),
        lambda row: f"{array[row].as_py()!r} has no namespace",
        table="stages",
        column="template_extension",
        hint="write it as example.org/name",
    )


@rule("ST-OP-001")
def stages_of_own_task(view: TraceView) -> Iterator[Finding]:
    """An operation's stage is of its task."""
    yield from _same_task(view, "ST-OP-001", "stage", "stages")


@rule("ST-OP-002")
def sessions_of_own_task(view: TraceView) -> Iterator[Finding]:
    """An operation's session is of its task."""
    yield from _same_task(view, "ST-OP-002", "session", "sessions")


def _same_task(view: TraceView, requirement: str, column: str, table: str) -> Iterator[Finding]:
    if not view.rows(table):
        return
    task, owner = view.task, view.ints("operations", column)
    theirs = view.ints(table, "task")
    wrong = (owner != NULL) & (theirs[owner] != task)
    yield from found(
        requirement,
        wrong,
        lambda row: f"operation {row} of task {task[row]} has a {column} of task {theirs[owner[row]]}",
        table="operations",
        column=column,
    )


_ENTITY_TABLES: Final = {
    EntityKind.TASK: "tasks",
    EntityKind.STAGE: "stages",
    EntityKind.SESSION: "sessions",
    EntityKind.OPERATION: "operations",
    EntityKind.SEGMENT: "segments",
    EntityKind.EDGE: "edges",
    EntityKind.STATE: "states",
    EntityKind.STATE_VERSION: "state_versions",
    EntityKind.MODEL: "models",
}


@rule("ST-ANN-001", "ST-ANN-002")
def annotations_in_place(view: TraceView) -> Iterator[Finding]:
    """An annotation has a key with a namespace, and speaks of a row that is there."""
    if not view.rows("annotations"):
        return
    keys = view.array("annotations", "key")
    yield from found(
        "ST-ANN-001",
        ~matches(keys, "^[^/]+/.+$"),
        lambda row: f"the key {keys[row].as_py()!r} has no namespace",
        table="annotations",
        column="key",
        hint="write it as namespace/name",
    )
    kind, entity = view.raw("annotations", "entity_kind"), view.ints("annotations", "entity")
    limits = np.zeros(256, dtype=np.int64)
    limits[EntityKind.TRACE] = 1
    for number, table in _ENTITY_TABLES.items():
        limits[number] = view.rows(table)
    yield from found(
        "ST-ANN-002",
        entity >= limits[kind],
        lambda row: f"speaks of {EntityKind(int(kind[row])).name.lower()} {entity[row]}, which is not there",
        table="annotations",
        column="entity",
    )


HIERARCHY_RULES: Final[tuple[Rule[TraceView], ...]] = (
    one_header,
    answers_of_own_task,
    deadlines_after_arrivals,
    scores_with_metric,
    stages_nest,
    template_extensions,
    stages_of_own_task,
    sessions_of_own_task,
    annotations_in_place,
)
