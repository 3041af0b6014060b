"""How two executions of the same work differ, event by event, and where they first diverge in time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from semtrace.check.executions import DETAIL_TABLES, TIMES
from semtrace.errors import OtherWorkError
from semtrace.records.columns import NULL
from semtrace.records.enums import EventOutcome
from semtrace.records.schema import Level
from semtrace.store.digests import detail_digest, execution_digest, show
from semtrace.transform.pairing import Pairs, by_key

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semtrace.records.execution import Execution

_TIMES: Final = tuple(f"{name}_ns" for name in TIMES)


@dataclass(frozen=True)
class ColumnDifference:
    """How one column of matched rows differs.

    Attributes:
        differing: pairs whose values differ, where both are known.
        known_in_one: pairs of which one value is known and the other is not.
        greatest, mean: greatest size and mean of b − a where both are known and differ; None where there is no such.
    """

    differing: int
    known_in_one: int
    greatest: int | None
    mean: float | None

    def as_dict(self) -> dict[str, Any]:
        """The difference as JSON-ready fields."""
        return {
            "differing": self.differing,
            "known_in_one": self.known_in_one,
            "greatest": self.greatest,
            "mean": self.mean,
        }


@dataclass(frozen=True)
class EventDifference:
    """One event that differs.

    Attributes:
        at_ns: the earliest time at which it differs, the lesser of the two; None if no time differs or is known.
        task, instance, operation: what it is of.
        columns: by column, both values.
    """

    at_ns: int | None
    task: int
    instance: int
    operation: int
    columns: dict[str, tuple[int | str | None, int | str | None]]

    def as_dict(self) -> dict[str, Any]:
        """The difference as JSON-ready fields."""
        return {
            "at_ns": self.at_ns,
            "task": self.task,
            "instance": self.instance,
            "operation": self.operation,
            "columns": {name: {"a": one, "b": other} for name, (one, other) in self.columns.items()},
        }


@dataclass(frozen=True)
class ExecutionDifference:
    """How two executions differ.

    Attributes:
        same: whether their execution digests are equal, and those of the detail tables that both declare.
        digests: by name, those of both; a detail table that one does not declare has None.
        events: how many both have.
        matched, only_a, only_b: events matched by task, copy and operation, and those of one side.
        instances: by column of instances, in how many pairs the values differ.
        columns: by column of events, how they differ; columns without a difference left out.
        output_ids: in how many pairs the recorded token ids of the output differ; no digest tells.
        first: the events that differ, the earliest first.
    """

    same: bool
    digests: dict[str, tuple[str | None, str | None]]
    events: tuple[int, int]
    matched: int
    only_a: int
    only_b: int
    instances: dict[str, int]
    columns: dict[str, ColumnDifference]
    output_ids: int
    first: list[EventDifference]

    def as_dict(self) -> dict[str, Any]:
        """The difference as JSON-ready fields."""
        return {
            "same": self.same,
            "digests": {
                name: {"a": one, "b": other, "equal": one == other}
                for name, (one, other) in self.digests.items()
            },
            "events": {"a": self.events[0], "b": self.events[1]},
            "matched": self.matched,
            "only_a": self.only_a,
            "only_b": self.only_b,
            "instances": self.instances,
            "columns": {name: column.as_dict() for name, column in self.columns.items()},
            "output_ids": self.output_ids,
            "first": [difference.as_dict() for difference in self.first],
        }


def diff_executions(a: Execution, b: Execution, *, limit: int = 20) -> ExecutionDifference:
    """Compare two sound executions of the same work.

    Args:
        a: the one.
        b: the other.
        limit: how many events to name.

    Raises:
        OtherWorkError: they are of different work.
    """
    if a.header.work_digest != b.header.work_digest:
        raise OtherWorkError(
            f"executions of different work: {a.header.work_digest} and {b.header.work_digest}",
            code="diff.work",
            requirement="ST-LIN-071",
            hint="their events do not stand for each other; compare the traces first: semtrace diff",
        )
    digests: dict[str, tuple[str | None, str | None]] = {
        "execution": (show(execution_digest(a)), show(execution_digest(b)))
    }
    for table in DETAIL_TABLES:
        sides = [show(detail_digest(run, table)) if table in run.header.detail else None for run in (a, b)]
        if any(sides):
            digests[table] = (sides[0], sides[1])
    same = all(one == other or None in {one, other} for one, other in digests.values())
    instances = by_key(*([run.instances.ints(name) for name in ("task", "instance")] for run in (a, b)))
    codes = instances.codes(a.instances.rows, b.instances.rows)
    found = by_key(
        *(
            [code[run.events.ints("instance")], run.events.ints("operation")]
            for code, run in zip(codes, (a, b), strict=True)
        )
    )
    columns, wrong = _columns(a, b, found)
    return ExecutionDifference(
        same=same,
        digests=digests,
        events=(a.events.rows, b.events.rows),
        matched=len(found.a),
        only_a=len(found.only_a),
        only_b=len(found.only_b),
        instances=_instances(a, b, instances),
        columns=columns,
        output_ids=_output_ids(a, b, found),
        first=_first(a, b, found, wrong, limit),
    )


def _instances(a: Execution, b: Execution, found: Pairs) -> dict[str, int]:
    made = {"only_a": len(found.only_a), "only_b": len(found.only_b)}
    for name in ("arrival_ns", "outcome"):
        made[name] = int((a.instances.ints(name)[found.a] != b.instances.ints(name)[found.b]).sum())
    return {name: count for name, count in made.items() if count}


def _output_ids(a: Execution, b: Execution, found: Pairs) -> int:
    place: dict[bytes, int] = {}
    sides = []
    for run, rows in ((a, found.a), (b, found.b)):
        codes = [place.setdefault(digest, len(place)) for digest in sorted(run.content)]
        sides.append(np.array([*codes, NULL])[run.events.ints("output_ids")[rows]])
    return int((sides[0] != sides[1]).sum())


def _columns(
    a: Execution, b: Execution, found: Pairs
) -> tuple[dict[str, ColumnDifference], dict[str, NDArray[np.bool_]]]:
    """How each column differs, and in which pairs."""
    made: dict[str, ColumnDifference] = {}
    wrong: dict[str, NDArray[np.bool_]] = {}
    for column in a.events.spec.columns:
        if column.level is not Level.RUN or column.refs is not None:
            continue
        one, other = a.events.ints(column.name)[found.a], b.events.ints(column.name)[found.b]
        differs = one != other
        if not differs.any():
            continue
        wrong[column.name] = differs
        both = differs & (one != NULL) & (other != NULL)
        change = (other - one)[both] if column.enum is None and column.name != "server" else []
        made[column.name] = ColumnDifference(
            differing=int(both.sum()),
            known_in_one=int((differs & ~both).sum()),
            greatest=int(np.abs(change).max()) if len(change) else None,
            mean=float(np.mean(change)) if len(change) else None,
        )
    return made, wrong


def _first(
    a: Execution, b: Execution, found: Pairs, wrong: dict[str, NDArray[np.bool_]], limit: int
) -> list[EventDifference]:
    """The events that differ: by the earliest time that does, then by the first time known, then by row."""
    if not wrong:
        return []
    none = np.iinfo(np.int64).max
    differs = np.zeros(len(found.a), dtype=np.bool_)
    earliest = np.full(len(found.a), none, dtype=np.int64)
    known = earliest.copy()
    for differing in wrong.values():
        differs |= differing
    for name in _TIMES:
        for values in (a.events.ints(name)[found.a], b.events.ints(name)[found.b]):
            time = np.where(values == NULL, none, values)
            known = np.minimum(known, time)
            if name in wrong:
                earliest = np.where(wrong[name], np.minimum(earliest, time), earliest)
    at = np.where(earliest == none, known, earliest)
    late = np.flatnonzero(differs)
    made = []
    for row in late[np.argsort(at[late], kind="stable")][:limit].tolist():
        one, other = a.events.row(int(found.a[row])), b.events.row(int(found.b[row]))
        instance = a.instances.row(int(a.events.ints("instance")[found.a[row]]))
        made.append(
            EventDifference(
                at_ns=None if at[row] == none else int(at[row]),
                task=int(str(instance["task"])),
                instance=int(str(instance["instance"])),
                operation=int(a.events.ints("operation")[found.a[row]]),
                columns={
                    name: (_value(name, one[name]), _value(name, other[name]))
                    for name, rows in wrong.items()
                    if rows[row]
                },
            )
        )
    return made


def _value(name: str, value: Any) -> int | str | None:
    return EventOutcome(value).name.lower() if name == "outcome" else value
