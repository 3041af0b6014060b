"""How two traces differ: counts first, then the first differences, rows matched by task name and place in the task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from semtrace.records.schema import Level, Physical
from semtrace.records.trace_tables import TRACE_TABLES
from semtrace.store.digests import show, trace_digest, work_digest
from semtrace.transform.pairing import Paired, Pairs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from semtrace.records.schema import Column, Table
    from semtrace.records.trace import Trace

_OWNERS: Final = {
    "stages": ("tasks", "task"),
    "sessions": ("tasks", "task"),
    "operations": ("tasks", "task"),
    "segments": ("operations", "operation"),
    "edges": ("operations", "target"),
    "state_accesses": ("operations", "operation"),
    "state_versions": ("states", "state"),
}
"""For tables whose rows belong to a row of another: that table, and the column that names it."""


@dataclass(frozen=True)
class Difference:
    """One difference.

    Attributes:
        kind: `changed`, `only_a`, `only_b`, or `order`: rows that are the same stand in another order.
        table: the table.
        column: the column that changed.
        row_a, row_b: the rows, None where there is none.
        task: name of the task concerned, if one is.
        operation: name of the operation concerned, if one is.
        a, b: the values, as JSON has them.
    """

    kind: str
    table: str
    column: str | None = None
    row_a: int | None = None
    row_b: int | None = None
    task: str | None = None
    operation: str | None = None
    a: int | str | None = None
    b: int | str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The difference as JSON-ready fields, those that do not apply left out."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        kept = {"kind", "table", "a", "b"} if self.kind == "changed" else {"kind", "table"}
        return {name: value for name, value in fields.items() if value is not None or name in kept}


@dataclass(frozen=True)
class TraceDifference:
    """How two traces differ.

    Attributes:
        same: whether the digest that counts is equal.
        digests: by name, those of both traces.
        rows: by table, how many rows both have.
        only_a, only_b: by table, how many rows have no counterpart; tables without such rows left out.
        changed: by `table.column`, in how many pairs of rows the values differ.
        reordered: tables whose matched rows stand in another order.
        annotations_equal: whether the annotations are equal; they have no part in digests. None if only work counts.
        first: the first differences.
    """

    same: bool
    digests: dict[str, tuple[str, str]]
    rows: dict[str, tuple[int, int]]
    only_a: dict[str, int]
    only_b: dict[str, int]
    changed: dict[str, int]
    reordered: list[str]
    annotations_equal: bool | None
    first: list[Difference]

    def as_dict(self) -> dict[str, Any]:
        """The difference as JSON-ready fields."""
        return {
            "same": self.same,
            "digests": {
                name: {"a": one, "b": other, "equal": one == other}
                for name, (one, other) in self.digests.items()
            },
            "rows": {name: {"a": one, "b": other} for name, (one, other) in self.rows.items()},
            "only_a": self.only_a,
            "only_b": self.only_b,
            "changed": self.changed,
            "reordered": self.reordered,
            "annotations_equal": self.annotations_equal,
            "first": [difference.as_dict() for difference in self.first],
        }


def diff_traces(a: Trace, b: Trace, *, work: bool = False, limit: int = 20) -> TraceDifference:
    """Compare two sound traces.

    Args:
        a: the one.
        b: the other.
        work: whether only what a replay must not change counts.
        limit: how many differences to name.
    """
    digests = {"work": (show(work_digest(a)), show(work_digest(b)))}
    if not work:
        digests["trace"] = (show(trace_digest(a)), show(trace_digest(b)))
    one, other = digests["work" if work else "trace"]
    levels = {Level.WORK} if work else {Level.WORK, Level.TRACE}
    rows = {
        spec.name: (a[spec.name].rows, b[spec.name].rows)
        for spec in TRACE_TABLES
        if not work or any(column.level in levels for column in spec.columns)
    }
    found = _Search(a, b, levels, limit)
    if one != other:
        found.run()
    return TraceDifference(
        same=one == other,
        digests=digests,
        rows=rows,
        only_a=found.only["only_a"],
        only_b=found.only["only_b"],
        changed=found.changed,
        reordered=found.reordered,
        annotations_equal=None if work else a["annotations"].data.equals(b["annotations"].data),
        first=found.first,
    )


class _Search:
    """Goes through all tables and notes what differs."""

    def __init__(self, a: Trace, b: Trace, levels: set[Level], limit: int) -> None:
        self.sides = (a, b)
        self.levels = levels
        self.limit = limit
        self.only: dict[str, dict[str, int]] = {"only_a": {}, "only_b": {}}
        self.changed: dict[str, int] = {}
        self.reordered: list[str] = []
        self.first: list[Difference] = []

    def run(self) -> None:
        paired = Paired(*self.sides)
        for spec in TRACE_TABLES:
            columns = [column for column in spec.columns if column.level in self.levels]
            if spec.name == "annotations" or not columns:
                continue
            found = paired.pairs[spec.name]
            self._left(spec, found, paired)
            if found.moved:
                self.reordered.append(spec.name)
                self._note(Difference("order", spec.name))
            for column in columns:
                one, other = paired.values(spec.name, column)
                wrong = np.flatnonzero(one != other)
                if len(wrong):
                    self.changed[f"{spec.name}.{column.name}"] = len(wrong)
                    for difference in self._changes(spec, column, found, wrong):
                        self._note(difference)

    def _note(self, difference: Difference) -> None:
        if len(self.first) < self.limit:
            self.first.append(difference)

    def _left(self, spec: Table, found: Pairs, paired: Paired) -> None:
        """Rows without a counterpart; of those whose owner has none either, only the owner is named."""
        for side, (kind, rows) in enumerate((("only_a", found.only_a), ("only_b", found.only_b))):
            if not len(rows):
                continue
            self.only[kind][spec.name] = len(rows)
            trace = self.sides[side]
            if spec.name in _OWNERS:
                table, column = _OWNERS[spec.name]
                owners = paired.pairs[table]
                alone = np.zeros(trace[table].rows, dtype=np.bool_)
                alone[owners.only_b if side else owners.only_a] = True
                rows = rows[~alone[trace[spec.name].ints(column)[rows]]]  # noqa: PLW2901
            for row in rows[: self.limit].tolist():
                place = {"row_b" if side else "row_a": row}
                self._note(Difference(kind, spec.name, **place, **_where(trace, spec.name, row)))

    def _changes(
        self, spec: Table, column: Column, found: Pairs, wrong: np.ndarray[Any, Any]
    ) -> Iterator[Difference]:
        a, b = self.sides
        for at in wrong[: self.limit].tolist():
            row_a, row_b = int(found.a[at]), int(found.b[at])
            yield Difference(
                "changed",
                spec.name,
                column.name,
                row_a,
                row_b,
                **_where(a, spec.name, row_a),
                a=_value(a, spec.name, column, row_a),
                b=_value(b, spec.name, column, row_b),
            )


def _where(trace: Trace, table: str, row: int) -> dict[str, Any]:
    """The task and the operation that a row belongs to, by name."""
    found: dict[str, Any] = {}
    at: int | None = row
    if table in _OWNERS and _OWNERS[table][0] == "operations":
        at = int(trace[table].ints(_OWNERS[table][1])[row])
        table = "operations"
    if table == "operations":
        found["operation"] = trace.operations.array("name")[at].as_py()
    if table in {"stages", "sessions", "operations"}:
        at = int(trace[table].ints("task")[at])
        table = "tasks"
    if table == "tasks":
        found["task"] = trace.tasks.array("name")[at].as_py()
    return found


def _value(trace: Trace, table: str, column: Column, row: int) -> int | str | None:
    """A value for people: enumerations by name, artifacts by digest, operations with their names."""
    value = trace[table].array(column.name)[row].as_py()
    if value is None:
        return None
    if column.enum is not None:
        return column.enum(value).name.lower()
    if column.refs == "artifacts":
        artifacts = trace["artifacts"]
        size = int(artifacts.ints("size")[value])
        return f"{show(artifacts.array('digest')[value].as_py())} ({size} bytes)"
    if column.refs == "operations":
        return f"{value} {trace.operations.array('name')[value].as_py()}"
    if column.type is Physical.BYTES32:
        return show(value)
    made: int | str = value
    return made
