"""A trace in memory: its tables and where the content of its artifacts is."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from semtrace.blocks import blocks
from semtrace.errors import IntegrityError
from semtrace.records.columns import NULL, Columns, known_tables
from semtrace.records.trace_tables import TRACE_TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

OWNED_BY_OPERATION: Final = {"segments": "operation", "edges": "target", "state_accesses": "operation"}
"""Tables that tasks own through their operations, with the column that names the operation."""

TASK_TABLES: Final = ("stages", "sessions", "operations", *OWNED_BY_OPERATION)
"""Tables of which a task is a slice."""


def group_offsets(owners: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Where the rows of each of `count` owners begin, shape (count + 1,).

    Args:
        owners: the owner of each row, ascending.
        count: owners that there are; rows of others are left out.
    """
    ends = np.zeros(count + 1, dtype=np.int64)
    for rows in blocks(len(owners)):
        part = owners[rows.start : rows.stop + 1]  # with the row after the block
        last = np.flatnonzero(part[1:] != part[:-1])
        if rows.stop == len(owners):
            last = np.append(last, len(part) - 1)
        owner = part[last].astype(np.int64)
        there = owner < count
        ends[owner[there] + 1] = last[there] + (rows.start + 1)
    return np.maximum.accumulate(ends, out=ends)


class Content(Protocol):
    """Where the raw content of artifacts is got from."""

    def get(self, digest: bytes) -> bytes | None:
        """The content with this digest, or None if it is not here."""
        ...

    def __iter__(self) -> Iterator[bytes]:
        """The digests of all content that is here."""
        ...


class MemoryContent(dict[bytes, bytes]):
    """Content held in memory, by digest."""


@dataclass(frozen=True)
class Trace:
    """One trace: what work there is.

    Attributes:
        tables: every table of the standard by name; none is missing.
        content: where the artifacts' content is.
    """

    tables: Mapping[str, Columns]
    content: Content = field(default_factory=MemoryContent)

    @classmethod
    def from_arrow(cls, tables: Mapping[str, pa.Table], content: Content | None = None) -> Trace:
        """Make a trace of Arrow tables; tables left out are empty.

        Raises:
            FormatError: a table does not have its declared columns, or the standard has no such table.
        """
        known_tables(tables, TRACE_TABLES)
        made = {spec.name: Columns(spec, tables.get(spec.name, spec.empty())) for spec in TRACE_TABLES}
        return cls(made, MemoryContent() if content is None else content)

    def __getitem__(self, table: str) -> Columns:
        return self.tables[table]

    @property
    def operations(self) -> Columns:
        """The operations table."""
        return self.tables["operations"]

    @property
    def edges(self) -> Columns:
        """The edges table."""
        return self.tables["edges"]

    @property
    def segments(self) -> Columns:
        """The segments table."""
        return self.tables["segments"]

    @property
    def tasks(self) -> Columns:
        """The tasks table."""
        return self.tables["tasks"]

    @cached_property
    def _offsets(self) -> dict[str, NDArray[np.int64]]:
        bounds = np.arange(self.tasks.rows + 1)
        found: dict[str, NDArray[np.int64]] = {}
        for name in ("stages", "sessions", "operations"):
            found[name] = np.searchsorted(self.tables[name].ints("task"), bounds).astype(np.int64)
        for name in OWNED_BY_OPERATION:
            found[name] = self._by_operation(name)[found["operations"]]
        return found

    def _by_operation(self, table: str) -> NDArray[np.int64]:
        owner = self.tables[table].raw(OWNED_BY_OPERATION[table])
        return group_offsets(owner, self.operations.rows)

    def offsets(self, table: str) -> NDArray[np.int64]:
        """Where each task's slice of a table begins, shape (tasks + 1,); for the tables in `TASK_TABLES`.

        Right only for a trace whose order is valid (ST-ORD-001).
        """
        return self._offsets[table]

    def task_rows(self, table: str, task: int) -> range:
        """The rows of a table that a task owns."""
        offsets = self._offsets[table]
        return range(int(offsets[task]), int(offsets[task + 1]))

    @cached_property
    def segment_offsets(self) -> NDArray[np.int64]:
        """Where each operation's own segments begin, shape (operations + 1,)."""
        return self._by_operation("segments")

    @cached_property
    def edge_offsets(self) -> NDArray[np.int64]:
        """Where the edges into each operation begin, shape (operations + 1,)."""
        return self._by_operation("edges")

    def artifact(self, row: int) -> bytes | None:
        """The content of an artifact by its row; None where it is null, withheld or not here.

        Raises:
            IntegrityError: there is no such row.
        """
        if row == NULL:
            return None
        if not 0 <= row < self.tables["artifacts"].rows:
            raise IntegrityError(
                f"there is no artifact {row}",
                code="order.reference",
                path="artifacts",
                requirement="ST-TAB-006",
            )
        digest = self.tables["artifacts"].array("digest")[row].as_py()
        return self.content.get(digest)

    def artifact_text(self, row: int) -> str | None:
        """The content of a text artifact by its row.

        Raises:
            IntegrityError: the content is not UTF-8, or there is no such row.
        """
        content = self.artifact(row)
        if content is None:
            return None
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise IntegrityError(
                f"artifact {row} is not UTF-8 text: {error}", code="artifact.text", path=f"artifacts[{row}]"
            ) from error
