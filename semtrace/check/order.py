"""Row order: a row's ordinal is its id, so the order of rows is data, under constraints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from semtrace.blocks import blocks
from semtrace.check.finding import Finding, found
from semtrace.check.rules import Rule, rule
from semtrace.check.view import TraceView, descents, first_rows, first_uses, pair_keys, sorts_before
from semtrace.records.columns import NULL
from semtrace.records.enums import AccessMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

_RENUMBER = "a producer numbers rows once, in canonical order; readers and filters keep it"


@rule("ST-ORD-001")
def operations_by_task(view: TraceView) -> Iterator[Finding]:
    """Operations are grouped by task."""
    task = view.raw("operations", "task")
    yield from found(
        "ST-ORD-001",
        descents(task),
        lambda row: f"operation {row} of task {task[row]} comes after one of task {task[row - 1]}",
        table="operations",
        column="task",
        hint=_RENUMBER,
    )


def _first_operations(view: TraceView, table: str, column: str) -> NDArray[np.int64]:
    """The first operation of each stage or session; the end of its task's operations where there is none."""
    count, task = view.rows(table), view.ints(table, "task")
    ends = np.searchsorted(view.task, np.arange(view.rows("tasks")), side="right")
    first = first_rows(view.ints("operations", column), count, NULL)
    return np.where(first == NULL, ends[task], first)


@rule("ST-ORD-005")
def stages_by_first_operation(view: TraceView) -> Iterator[Finding]:
    """Stages are grouped by task and numbered by their first operation, that of nested stages included."""
    task = view.raw("stages", "task")
    yield from found(
        "ST-ORD-005",
        descents(task),
        lambda row: f"stage {row} of task {task[row]} comes after one of task {task[row - 1]}",
        table="stages",
        column="task",
        hint=_RENUMBER,
    )
    view.need("ST-ORD-005", "ST-STAGE-001", "ST-STAGE-002", "ST-OP-001")
    first = _first_operations(view, "stages", "stage")
    # The least first operation of a stage and all later ones is that of the stage's own subtree exactly if it is
    # the stage's own, or the next stage is nested in it and has it. Operations of later tasks come later.
    least = np.minimum.accumulate(first[::-1])[::-1]
    parent = view.ints("stages", "parent")
    follows = np.append(parent[1:] == np.arange(len(parent) - 1), False)
    yield from found(
        "ST-ORD-005",
        (first != least) & ~follows,
        lambda row: (
            f"a later stage that is not nested in stage {row} begins before it, at operation {least[row]}"
        ),
        table="stages",
        hint=_RENUMBER,
    )


@rule("ST-ORD-006")
def sessions_by_first_operation(view: TraceView) -> Iterator[Finding]:
    """Sessions are grouped by task and numbered by their first operation."""
    task = view.raw("sessions", "task")
    yield from found(
        "ST-ORD-006",
        descents(task),
        lambda row: f"session {row} of task {task[row]} comes after one of task {task[row - 1]}",
        table="sessions",
        column="task",
        hint=_RENUMBER,
    )
    view.need("ST-ORD-006", "ST-OP-002")
    first = _first_operations(view, "sessions", "session")
    yield from found(
        "ST-ORD-006",
        descents(first),
        lambda row: f"session {row} begins at operation {first[row]}, the one before it at {first[row - 1]}",
        table="sessions",
        hint=_RENUMBER,
    )


@rule("ST-ORD-007")
def segments_by_operation(view: TraceView) -> Iterator[Finding]:
    """Segments are sorted by operation."""
    operation = view.raw("segments", "operation")
    yield from found(
        "ST-ORD-007",
        descents(operation),
        lambda row: f"segment {row} of operation {operation[row]} comes after one of {operation[row - 1]}",
        table="segments",
        column="operation",
        hint=_RENUMBER,
    )


def _misplaced(
    count: int, keys: Callable[[slice], tuple[NDArray[Any], NDArray[Any]]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows that sort before the row before them, and rows that equal it.

    Args:
        count: rows that there are.
        keys: what rows are sorted by, first and then.
    """
    before, twice = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for rows in blocks(count - 1):
        start = rows.start
        major, minor = keys(slice(start, rows.stop + 1))
        equal = major[1:] == major[:-1]
        less = (major[1:] < major[:-1]) | (equal & (minor[1:] < minor[:-1]))
        before.append(np.flatnonzero(less) + start + 1)
        twice.append(np.flatnonzero(equal & (minor[1:] == minor[:-1])) + start + 1)
    return np.concatenate(before), np.concatenate(twice)


@rule("ST-ORD-008", "ST-EDGE-001")
def edges_sorted(view: TraceView) -> Iterator[Finding]:
    """Edges are sorted by target, source, kind and trigger, and unique."""
    target, source = view.raw("edges", "target"), view.raw("edges", "source")
    kind, trigger = view.raw("edges", "kind"), view.raw("edges", "trigger")

    def keys(rows: slice) -> tuple[NDArray[Any], NDArray[Any]]:
        minor = kind[rows].astype(np.uint16) << np.uint16(8)
        return pair_keys(target[rows], source[rows]), minor | trigger[rows]

    before, twice = _misplaced(len(target), keys)
    message = "edge {row} sorts before the one above it, by target, source, kind, trigger"
    yield from found("ST-ORD-008", before, message, table="edges", hint=_RENUMBER)
    message = "edge {row} has the ends, kind and trigger of the one above it"
    yield from found("ST-EDGE-001", twice, message, table="edges", hint="keep the better known of the two")


@rule("ST-ORD-009")
def accesses_sorted(view: TraceView) -> Iterator[Finding]:
    """State accesses are sorted by operation, version and mode, and unique."""
    operation, version = (
        view.raw("state_accesses", "operation"),
        view.raw("state_accesses", "state_version"),
    )
    mode = view.raw("state_accesses", "mode")
    before, twice = _misplaced(
        len(mode), lambda rows: (pair_keys(operation[rows], version[rows]), mode[rows])
    )
    message = "access {row} does not sort after the one above it, by operation, state_version, mode"
    wrong = np.concatenate([before, twice])
    yield from found("ST-ORD-009", wrong, message, table="state_accesses", hint=_RENUMBER)


@rule("ST-ORD-012")
def versions_dense(view: TraceView) -> Iterator[Finding]:
    """Versions are sorted by state, and numbered from 0 without gaps."""
    state, version = view.raw("state_versions", "state"), view.ints("state_versions", "version")
    wrong = descents(state)
    yield from found(
        "ST-ORD-012",
        wrong,
        lambda row: f"a version of state {state[row]} comes after one of state {state[row - 1]}",
        table="state_versions",
        column="state",
        hint=_RENUMBER,
    )
    view.need("ST-ORD-012")
    new = np.ones(len(state), dtype=np.bool_)
    new[1:] = state[1:] != state[:-1]
    expected = np.arange(len(state)) - np.maximum.accumulate(np.where(new, np.arange(len(state)), 0))
    yield from found(
        "ST-ORD-012",
        version != expected,
        lambda row: f"is {version[row]}, must be {expected[row]}: versions of a state are numbered from 0",
        table="state_versions",
        column="version",
    )


@rule("ST-ORD-010")
def models_by_first_use(view: TraceView) -> Iterator[Finding]:
    """Models are numbered by first use, in sessions and then in operations; each is used."""
    if view.rows("models"):
        uses = _uses(view, (("sessions", ("model",)), ("operations", ("model",))))
        yield from _by_first_use("ST-ORD-010", "models", uses, view.rows("models"), "session or operation")


@rule("ST-ORD-011", "ST-STATE-001")
def states_by_first_access(view: TraceView) -> Iterator[Finding]:
    """States are numbered by the first operation that accesses them; those that none accesses come last."""
    count = view.rows("states")
    if not count:
        return
    state = view.ints("state_versions", "state")
    unused = first_rows(state, count, NULL) == NULL
    yield from found("ST-STATE-001", unused, "state {row} has no version", table="states")
    view.need("ST-ORD-009")
    accessed = first_rows(state[view.ints("state_accesses", "state_version")], count, NULL)
    operation = view.ints("state_accesses", "operation")
    none = view.rows("operations")
    first = np.where(accessed == NULL, none, np.append(operation, none)[accessed])
    yield from found(
        "ST-ORD-011",
        descents(first),
        lambda row: (
            f"state {row} is first accessed by operation {first[row]}, the one before it by {first[row - 1]}"
            if first[row] < none
            else f"state {row} comes after one that is accessed earlier"
        ),
        table="states",
        hint=_RENUMBER,
    )


ARTIFACT_USES: Final = (
    ("tasks", ("input", "output")),
    ("operations", ("settings", "output", "output_envelope", "output_token_ids")),
    ("segments", ("envelope", "artifact", "token_ids", "block_ids")),
    ("state_versions", ("artifact",)),
)
"""The columns that refer to artifacts, in the order in which uses are counted: row by row in each table."""


@rule("ST-ORD-013")
def artifacts_by_first_use(view: TraceView) -> Iterator[Finding]:
    """Artifacts are numbered by first use; each is used."""
    count = view.rows("artifacts")
    if count:
        yield from _by_first_use("ST-ORD-013", "artifacts", _uses(view, ARTIFACT_USES), count, "table")


def _uses(view: TraceView, columns: Iterable[tuple[str, tuple[str, ...]]]) -> Iterator[NDArray[np.int64]]:
    """What columns refer to, row by row in each table, in blocks."""
    known = [(table, [name for name in names if view.any_known(table, name)]) for table, names in columns]
    for table, names in known:
        for rows in blocks(view.rows(table)) if names else ():
            yield np.stack([view.part(table, name, rows) for name in names], axis=1).ravel()


def _by_first_use(
    requirement: str, table: str, uses: Iterable[NDArray[np.int64]], count: int, user: str
) -> Iterator[Finding]:
    first = first_uses(uses, count, NULL)
    unused = first == NULL
    yield from found(
        requirement, unused, f"row {{row}} of {table} is used by no {user}", table=table, hint="leave it out"
    )
    rows = np.flatnonzero(~unused)
    wrong = rows[descents(first[rows])]
    message = f"row {{row}} of {table} is used before the one above it"
    yield from found(requirement, wrong, message, table=table, hint=_RENUMBER)


@rule("ST-ORD-014")
def annotations_sorted(view: TraceView) -> Iterator[Finding]:
    """Annotations are sorted by entity kind, entity, key and value."""
    if view.rows("annotations") < 2:
        return
    names = ("entity_kind", "entity", "key", "value")
    wrong = sorts_before([view.array("annotations", name) for name in names])
    message = f"annotation {{row}} sorts before the one above it, by {', '.join(names)}"
    yield from found("ST-ORD-014", wrong, message, table="annotations", hint=_RENUMBER)


@rule("ST-ORD-002", "ST-EDGE-002", "ST-ORD-003")
def references_point_down(view: TraceView) -> Iterator[Finding]:
    """Between operations, references point to a lower row of the same task: so nothing is cyclic."""
    if view.rows("edges"):
        target, source = view.raw("edges", "target"), view.raw("edges", "source")
        same = source == target
        yield from found(
            "ST-EDGE-002", same, lambda row: f"operation {source[row]} waits for itself", table="edges"
        )
        yield from _lower(view, "edges", "source", _references(view, "edges", "target", "source"), equal=True)
    yield from _lower(
        view, "operations", "context_base", _references(view, "operations", None, "context_base")
    )
    if view.any_known("segments", "source_operation"):
        refer = _references(view, "segments", "operation", "source_operation")
        yield from _lower(view, "segments", "source_operation", refer)


@rule("ST-ORD-002", "ST-ORD-003")
def sessions_after_parents(view: TraceView) -> Iterator[Finding]:
    """The operation that spawned a session is of its task, and before its operations."""
    parent = view.ints("sessions", "parent_operation")
    rows = np.flatnonzero(parent != NULL)
    if not len(rows):
        return
    view.need("ST-ORD-006")
    task = view.task
    wrong = rows[task[parent[rows]] != view.ints("sessions", "task")[rows]]
    yield from _other_task("sessions", "parent_operation", wrong)
    first = _first_operations(view, "sessions", "session")
    spawned = rows[view.task[parent[rows]] == view.ints("sessions", "task")[rows]]
    late = spawned[parent[spawned] >= first[spawned]]
    yield from found(
        "ST-ORD-002",
        late,
        lambda row: f"operation {parent[row]} is said to have spawned the session of operation {first[row]}",
        table="sessions",
        column="parent_operation",
    )


@rule("ST-ORD-002", "ST-ORD-003")
def readers_after_writers(view: TraceView) -> Iterator[Finding]:
    """Who reads a version is of the task of its writer, and after it."""
    if not view.rows("state_accesses") or not view.any_known("state_versions", "writer"):
        return
    reader = view.ints("state_accesses", "operation")
    writer = view.ints("state_versions", "writer")[view.ints("state_accesses", "state_version")]
    read = view.raw("state_accesses", "mode") == AccessMode.READ

    def pairs(rows: slice) -> _References:
        kept = read[rows] & (writer[rows] != NULL) & (writer[rows] != reader[rows])
        return np.flatnonzero(kept) + rows.start, reader[rows][kept], writer[rows][kept]

    yield from _lower(view, "state_accesses", "state_version", pairs)


_References = tuple["NDArray[np.int64]", "NDArray[Any]", "NDArray[Any]"]
"""Rows that refer, the operation of each, and the operation that it refers to."""


def _references(
    view: TraceView, table: str, owner: str | None, column: str
) -> Callable[[slice], _References]:
    """What a column of references to operations refers to; `owner` names the referring operations, None: the rows."""
    referred = view.raw(table, column)
    owners = None if owner is None else view.raw(table, owner)

    def pairs(rows: slice) -> _References:
        kept = np.flatnonzero(view.known(table, column, rows))
        row = kept + rows.start
        return row, row if owners is None else owners[rows].take(kept), referred[rows].take(kept)

    return pairs


def _lower(
    view: TraceView,
    table: str,
    column: str,
    pairs: Callable[[slice], _References],
    *,
    equal: bool = False,
) -> Iterator[Finding]:
    """Findings for references of operations that do not point to a lower row of the same task.

    Args:
        view: the trace.
        table: the table that refers.
        column: its column.
        pairs: gives the references of a stretch of rows.
        equal: whether a reference of an operation to itself is another rule's business.
    """
    others, highs = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for part in blocks(view.rows(table)):
        rows, operation, referred = pairs(part)
        if not len(rows):
            continue
        task = view.task
        other = task.take(operation) != task.take(referred)
        high = (referred > operation) if equal else (referred >= operation)
        others.append(rows[other])
        highs.append(rows[high & ~other])
    yield from _other_task(table, column, np.concatenate(others))

    def say(row: int) -> str:
        _, operation, referred = pairs(slice(row, row + 1))
        return f"operation {operation[0]} refers to operation {referred[0]}, which is not a lower row"

    yield from found("ST-ORD-002", np.concatenate(highs), say, table=table, column=column, hint=_RENUMBER)


def _other_task(table: str, column: str, rows: NDArray[np.int64]) -> Iterator[Finding]:
    message = "row {row} refers to an operation of another task"
    hint = "what another task left behind comes in as an initial state version"
    yield from found("ST-ORD-003", rows, message, table=table, column=column, hint=hint)


ORDER_RULES: Final[tuple[Rule[TraceView], ...]] = (
    operations_by_task,
    segments_by_operation,
    edges_sorted,
    accesses_sorted,
    versions_dense,
)
"""Rules that others build upon."""

NUMBERING_RULES: Final[tuple[Rule[TraceView], ...]] = (
    stages_by_first_operation,
    sessions_by_first_operation,
    models_by_first_use,
    states_by_first_access,
    artifacts_by_first_use,
    annotations_sorted,
)
"""Rules that build upon those of `hierarchy`."""

REFERENCE_RULES: Final[tuple[Rule[TraceView], ...]] = (
    references_point_down,
    sessions_after_parents,
    readers_after_writers,
)
"""Rules on the direction of references between operations."""
