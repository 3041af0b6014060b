"""Conditions on tasks, as `filter --where` takes them (docs/tools.md).

    condition := field ' is known' | field ' is unknown' | field operator value
    operator  := '=' | '!=' | '<' | '<=' | '>' | '>=' | '~' | '!~'
    field     := a column of tasks | task | operations | 'some.' column of operations

A value that is not known meets no condition but `is unknown`.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semtrace.errors import UsageError
from semtrace.records.schema import Physical
from semtrace.records.trace_tables import OPERATIONS, TASKS

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from semtrace.records.columns import Columns
    from semtrace.records.schema import Column, Table
    from semtrace.records.trace import Trace

_CONDITION: Final = re.compile(
    r"\s*(?P<field>[A-Za-z_.]+)\s*(?:\s(?P<known>is\s+(?:known|unknown))|(?P<operator>!=|<=|>=|!~|=|<|>|~)\s*(?P<value>.*?))\s*",
    re.DOTALL,
)
_ORDERS: Final[dict[str, Callable[[NDArray[np.int64], int], NDArray[np.bool_]]]] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
_SOME: Final = "some."
_COUNTED: Final = ("operations", "stages", "sessions")


def _fields(table: Table) -> dict[str, Column]:
    """The columns of a table that hold a text, a number or an enumeration."""
    return {
        column.name: column
        for column in table.columns
        if column.refs is None and column.type is not Physical.BYTES32
    }


_TASK_FIELDS: Final = _fields(TASKS)
_OPERATION_FIELDS: Final = _fields(OPERATIONS)
FIELDS: Final = (
    "task",
    *_COUNTED,
    *_TASK_FIELDS,
    *(f"{_SOME}{name}" for name in (*_OPERATION_FIELDS, "agent", "model", "stage")),
)
"""Every field that a condition may name."""


@dataclass(frozen=True)
class Condition:
    """A condition on tasks.

    Attributes:
        text: as it was written.
        field: what it looks at.
        operator: how; `is known` or `is unknown` without a value.
        value: what it is compared with.
    """

    text: str
    field: str
    operator: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Read a condition.

        Raises:
            UsageError: it is none, or its field is none that a task has.
        """
        found = _CONDITION.fullmatch(text)
        if found is None:
            raise _wrong(
                text, "is no condition", "write FIELD=VALUE, FIELD~PATTERN, FIELD<NUMBER, or FIELD is known"
            )
        field = found["field"]
        if field not in FIELDS:
            if f"{_SOME}{field}" in FIELDS:
                raise _wrong(
                    text,
                    f"{field} is of operations, and a filter keeps or leaves out whole tasks: "
                    "without one of its operations a task would be other work",
                    f"{_SOME}{field} is met by a task of which some operation meets it",
                )
            near = difflib.get_close_matches(field, FIELDS, n=1)
            raise _wrong(
                text,
                f"there is no field {field}" + (f", did you mean {near[0]}?" if near else ""),
                f"fields are {', '.join(FIELDS)}",
            )
        operator = found["operator"] or " ".join(found["known"].split())
        return cls(text, field, operator, found["value"] or "")

    def tasks(self, trace: Trace) -> NDArray[np.bool_]:
        """Which tasks meet it.

        Raises:
            UsageError: the value is not one that the field can have, or the operator does not fit the field.
        """
        name = self.field
        if not name.startswith(_SOME):
            if name == "task":
                return self._numbers(np.arange(trace.tasks.rows))
            if name in _COUNTED:
                return self._numbers(np.diff(trace.offsets(name)))
            return self._column(trace.tasks, _TASK_FIELDS[name])
        name = name.removeprefix(_SOME)
        if name in _OPERATION_FIELDS:
            met = self._column(trace.operations, _OPERATION_FIELDS[name])
        else:
            table, column = {
                "agent": ("sessions", "agent"),
                "model": ("models", "name"),
                "stage": ("stages", "name"),
            }[name]
            reference = "session" if name == "agent" else name
            owners = self._column(trace[table], trace[table].spec.by_name[column])
            met = np.append(owners, self.operator == "is unknown")[trace.operations.ints(reference)]
        return np.bincount(trace.operations.ints("task")[met], minlength=trace.tasks.rows) > 0

    def _column(self, columns: Columns, column: Column) -> NDArray[np.bool_]:
        known = columns.known(column.name)
        if self.operator.startswith("is "):
            return known if self.operator == "is known" else ~known
        if column.type is Physical.STRING:
            return self._texts(columns.array(column.name)) & known
        if column.enum is None:
            return self._numbers(columns.ints(column.name)) & known
        names = {member.name.lower(): int(member) for member in column.enum}
        if self.operator not in {"=", "!="}:
            raise _wrong(
                self.text,
                f"{self.field} is a word: it is compared with = and !=",
                f"one of {', '.join(names)}",
            )
        if self.value not in names:
            raise _wrong(self.text, f"{self.field} is never {self.value!r}", f"one of {', '.join(names)}")
        equal: NDArray[np.bool_] = columns.ints(column.name) == names[self.value]
        return (equal if self.operator == "=" else ~equal) & known

    def _texts(self, array: pa.Array) -> NDArray[np.bool_]:
        if self.operator in _ORDERS:
            raise _wrong(
                self.text, f"{self.field} is a text, which is not compared with {self.operator}", "use = or ~"
            )
        if self.operator in {"=", "!="}:
            met = pc.equal(array, pa.scalar(self.value, pa.string()))
        else:
            try:
                met = pc.match_substring_regex(array, self.value)
            except pa.ArrowInvalid as error:
                raise _wrong(self.text, f"not a pattern: {error}", "patterns are those of RE2") from error
        made: NDArray[np.bool_] = pc.fill_null(met, False).to_numpy(zero_copy_only=False)
        return ~made if self.operator.startswith("!") else made

    def _numbers(self, values: NDArray[np.int64]) -> NDArray[np.bool_]:
        if self.operator.startswith("is "):
            return np.full(len(values), self.operator == "is known")
        if self.operator in {"~", "!~"}:
            raise _wrong(
                self.text, f"{self.field} is a number, which has no pattern", "use =, !=, <, <=, > or >="
            )
        try:
            wanted = int(self.value)
        except ValueError:
            raise _wrong(self.text, f"{self.value!r} is no whole number", f"{self.field} is one") from None
        if not -(1 << 63) <= wanted < 1 << 63:
            raise _wrong(self.text, f"{wanted} is larger than any number in a trace", None)
        if self.operator in {"=", "!="}:
            equal: NDArray[np.bool_] = values == wanted
            return equal if self.operator == "=" else ~equal
        return _ORDERS[self.operator](values, wanted)


def _wrong(text: str, problem: str, hint: str | None) -> UsageError:
    return UsageError(f"condition {text!r}: {problem}", code="filter.condition", hint=hint)
