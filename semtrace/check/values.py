"""Single values: enum numbers, signs, limits, references, text. Nothing here looks at two columns at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from semtrace.check.finding import Finding, found
from semtrace.records.schema import Physical

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from enum import IntEnum

    from numpy.typing import NDArray

    from semtrace.check.rules import Ledger
    from semtrace.records.columns import Columns
    from semtrace.records.schema import Column

TIME_LIMIT: Final = 1 << 62
"""What every time and duration in ns is below, so that sums of two do not overflow."""
COUNT_LIMIT: Final = 1 << 40
"""What every count of tokens is below, so that sums over four million rows do not overflow."""

_COUNTS: Final = frozenset({"tokens", "tokens_per_step", "start_position"})


def is_count(column: Column) -> bool:
    """Whether a column counts tokens."""
    return column.name in _COUNTS or column.name.endswith("_tokens")


def is_time(column: Column) -> bool:
    """Whether a column holds a time or duration in ns."""
    return column.name.endswith("_ns")


def check_values(columns: Columns, rows_of: Mapping[str, int], ledger: Ledger) -> None:
    """Check every value of a table by itself; a column with a wrong one is unsound afterwards.

    Args:
        columns: the table.
        rows_of: rows of each table that can be referred to; references to others are not judged.
        ledger: takes the findings.
    """
    table = columns.spec.name
    for column in columns.spec.columns:
        name = f"{table}.{column.name}"
        for finding in _column(columns, column, rows_of):
            ledger.add(finding, name)
        if column.refs is not None:
            causes = ledger.causes(column.refs)
            if causes:
                ledger.spoil(name, causes)


def _column(columns: Columns, column: Column, rows_of: Mapping[str, int]) -> Iterator[Finding]:
    array = columns.array(column.name)
    if array.null_count == len(array):
        return
    if column.type is Physical.STRING:
        yield from _text(columns, column)
    elif column.enum is not None:
        yield from _enum(columns, column, column.enum)
    elif column.type is not Physical.BYTES32:
        yield from _number(columns, column, rows_of)


def _text(columns: Columns, column: Column) -> Iterator[Finding]:
    array = columns.array(column.name)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        wrong = [row for row in range(len(array)) if not _is_text(array, row)]
        yield from found(
            "ST-TAB-005", wrong, "is not UTF-8 text", table=columns.spec.name, column=column.name
        )


def _is_text(array: pa.Array, row: int) -> bool:
    try:
        array[row].as_py()
    except UnicodeDecodeError:
        return False
    return True


def _known(columns: Columns, column: Column, wrong: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return wrong & columns.known(column.name)


def _enum(columns: Columns, column: Column, values: type[IntEnum]) -> Iterator[Finding]:
    raw = columns.raw(column.name)
    allowed = np.zeros(256, dtype=np.bool_)
    allowed[[int(member) for member in values]] = True
    if allowed[int(raw.min()) : int(raw.max()) + 1].all():
        return
    names = ", ".join(f"{int(member)} {member.name.lower()}" for member in values)
    yield from found(
        "ST-ENUM-001",
        _known(columns, column, ~allowed[raw]),
        lambda row: f"{raw[row]} is no number of {values.__name__}",
        table=columns.spec.name,
        column=column.name,
        hint=f"one of {names}",
    )


def _number(columns: Columns, column: Column, rows_of: Mapping[str, int]) -> Iterator[Finding]:
    table = columns.spec.name

    def report(
        requirement: str, wrong: NDArray[np.bool_], message: str, hint: str | None = None
    ) -> Iterator[Finding]:
        return found(
            requirement,
            _known(columns, column, wrong),
            lambda row: f"{raw[row]} {message}",
            table=table,
            column=column.name,
            hint=hint,
        )

    raw: NDArray[Any] = columns.raw(column.name)
    least, greatest = int(raw.min()), int(raw.max())  # of null slots too, which are left out where it matters
    if least < 0 and not column.signed:
        hint = "null stands for unknown" if column.nullable else None
        yield from report("ST-VAL-001", raw < 0, "is negative", hint)
    if column.maximum is not None and greatest > column.maximum:
        yield from report("ST-VAL-002", raw > column.maximum, f"is more than {column.maximum}")
    if is_time(column) and greatest >= TIME_LIMIT:
        yield from report("ST-VAL-003", raw >= TIME_LIMIT, "ns is 2^62 or more")
    if is_count(column) and greatest >= COUNT_LIMIT:
        yield from report("ST-VAL-004", raw >= COUNT_LIMIT, "tokens is 2^40 or more")
    rows = rows_of.get(column.refs or "")
    if rows is not None and greatest >= rows:
        yield from report("ST-TAB-006", raw >= rows, f"is no row of {column.refs}, which has {rows}")
