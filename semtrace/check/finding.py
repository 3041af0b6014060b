"""Findings: what a check reports instead of raising."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

EXAMPLES: Final = 5
"""How many rows a finding names; its count says how many there are."""


@dataclass(frozen=True)
class Finding:
    """One violation, or several of the same kind in one column.

    Attributes:
        requirement: id of the violated requirement of the spec.
        message: what is wrong, with the values of the first row concerned.
        table: the table concerned, or the part of an execution or plan.
        column: the column concerned, if one is.
        rows: up to `EXAMPLES` rows concerned, the lowest first.
        count: how many rows are concerned.
        hint: what to do about it.
    """

    requirement: str
    message: str
    table: str | None = None
    column: str | None = None
    rows: tuple[int, ...] = ()
    count: int = 1
    hint: str | None = None

    def __str__(self) -> str:
        where = self.table or ""
        if self.column:
            where += f".{self.column}"
        if self.rows:
            where += f"[{', '.join(map(str, self.rows))}{', …' if self.count > len(self.rows) else ''}]"
        times = f" ({self.count} rows)" if self.count > 1 else ""
        return (
            f"{where}: {self.message}{times} [{self.requirement}]"
            if where
            else f"{self.message} [{self.requirement}]"
        )

    def as_dict(self) -> dict[str, Any]:
        """The finding as JSON-ready fields."""
        return {**asdict(self), "rows": list(self.rows)}


def found(
    requirement: str,
    wrong: NDArray[np.bool_] | NDArray[np.integer[Any]] | Sequence[int],
    message: str | Callable[[int], str],
    *,
    table: str,
    column: str | None = None,
    hint: str | None = None,
) -> Iterator[Finding]:
    """At most one finding for the rows that are wrong.

    Args:
        requirement: id of the violated requirement.
        wrong: a mask over the rows, or the rows, in any order.
        message: what is wrong; `{row}` in it stands for the first row concerned. Or a function that says it of a row.
        table: the table.
        column: the column.
        hint: what to do about it.
    """
    array = np.asarray(wrong)
    if not len(array):
        return
    rows = np.flatnonzero(array) if array.dtype == np.bool_ else _ordered(array)
    if len(rows):
        shown = tuple(int(row) for row in rows[:EXAMPLES])
        text = message.replace("{row}", str(shown[0])) if isinstance(message, str) else message(shown[0])
        yield Finding(requirement, text, table, column, shown, len(rows), hint)


def _ordered(rows: NDArray[Any]) -> NDArray[Any]:
    """Rows in order, each once; `numpy.unique` makes a hash table of them, ten times as large."""
    ordered = np.sort(rows)
    distinct: NDArray[Any] = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    return distinct
