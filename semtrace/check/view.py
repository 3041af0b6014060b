"""What rules see of a trace: sound columns, and what several rules derive from them, once."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from semtrace.blocks import blocks
from semtrace.check.holders import holders
from semtrace.records.columns import NULL
from semtrace.records.compute import compare, distinct, matches
from semtrace.records.trace import group_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from semtrace.check.rules import Ledger
    from semtrace.records.columns import Columns
    from semtrace.records.trace import Trace


class TableView:
    """Sound columns of tables; asking for one that is not sound ends the rule that asks."""

    def __init__(self, tables: Mapping[str, Columns], ledger: Ledger) -> None:
        self._tables = tables
        self.ledger = ledger

    def need(self, *names: str) -> None:
        """End the rule that asks, unless these requirements, tables and columns are sound."""
        self.ledger.need(*names)

    def _columns(self, table: str, column: str) -> Columns:
        self.ledger.need(table, f"{table}.{column}")
        columns: Columns = self._tables[table]
        return columns

    def rows(self, table: str) -> int:
        """Rows of a table."""
        self.ledger.need(table)
        columns: Columns = self._tables[table]
        return columns.rows

    def ints(self, table: str, column: str) -> NDArray[np.int64]:
        """A column as int64, `NULL` where it is null."""
        return self._columns(table, column).ints(column)

    def part(self, table: str, column: str, rows: slice) -> NDArray[np.int64]:
        """A stretch of a column as int64, `NULL` where it is null."""
        return self._columns(table, column).part(column, rows)

    def raw(self, table: str, column: str) -> NDArray[Any]:
        """A column without nulls in its own type; without a copy."""
        return self._columns(table, column).raw(column)

    def array(self, table: str, column: str) -> pa.Array:
        """A column as an Arrow array."""
        return self._columns(table, column).array(column)

    def known(self, table: str, column: str, rows: slice = slice(None)) -> NDArray[np.bool_]:
        """Which rows have a value; of all rows, or of a stretch of them."""
        return self._columns(table, column).known(column, rows)

    def any_known(self, table: str, column: str) -> bool:
        """Whether a column has a value in any row."""
        array = self.array(table, column)
        return bool(array.null_count < len(array))


class TraceView(TableView):
    """What rules see of a trace."""

    def __init__(self, trace: Trace, ledger: Ledger) -> None:
        super().__init__(trace.tables, ledger)
        self.trace = trace

    @cached_property
    def task(self) -> NDArray[np.uint32]:
        """The task of each operation, where operations are grouped by task."""
        self.need("ST-ORD-001")
        return self.raw("operations", "task")

    @cached_property
    def segment_offsets(self) -> NDArray[np.int64]:
        """Where each operation's own segments begin, shape (operations + 1,)."""
        self.need("ST-ORD-007")
        return group_offsets(self.raw("segments", "operation"), self.rows("operations"))

    @cached_property
    def own_segments(self) -> NDArray[np.int64]:
        """How many segments each operation has of its own."""
        return np.diff(self.segment_offsets)

    @cached_property
    def input_length(self) -> NDArray[np.int64]:
        """How many pieces the input of each operation has, inherited ones included."""
        return self.ints("operations", "context_segments") + self.own_segments

    @cached_property
    def based(self) -> NDArray[np.int64]:
        """The operations that inherit context."""
        return np.flatnonzero(self.ints("operations", "context_base") != NULL)

    @cached_property
    def held(self) -> NDArray[np.int64]:
        """The holder (see `holders`) of each operation that inherits context, where bases are lower rows."""
        self.need("ST-ORD-002")
        base, count = self.ints("operations", "context_base"), self.ints("operations", "context_segments")
        return holders(base, count, self.based)

    @cached_property
    def hidden_segments(self) -> NDArray[np.int64]:
        """The segments of unknown length."""
        return np.flatnonzero(~self.known("segments", "tokens"))

    @cached_property
    def known_tokens(self) -> NDArray[np.int64]:
        """The tokens of each segment, 0 where they are not known."""
        tokens = self.ints("segments", "tokens")
        return np.maximum(tokens, 0) if len(self.hidden_segments) else tokens

    @cached_property
    def token_sums(self) -> NDArray[np.int64]:
        """The known tokens of all segments before each, shape (segments + 1,)."""
        return np.append(0, np.cumsum(self.known_tokens))

    @cached_property
    def edge_offsets(self) -> NDArray[np.int64]:
        """Where the edges into each operation begin, shape (operations + 1,)."""
        self.need("ST-ORD-008")
        return group_offsets(self.raw("edges", "target"), self.rows("operations"))

    @cached_property
    def media_codes(self) -> tuple[NDArray[np.int32], pa.Array]:
        """The media type of each artifact as a position in an array of types, and the array."""
        codes, types = distinct(self.array("artifacts", "media_type"))
        return codes.to_numpy(), types

    def media_type(self, row: int) -> str:
        """The media type of an artifact."""
        codes, types = self.media_codes
        name: str = types[codes[row]].as_py()
        return name

    def has_media_type(self, media_type: str) -> NDArray[np.bool_]:
        """Which artifacts have a media type."""
        codes, types = self.media_codes
        chosen: NDArray[np.bool_] = compare("equal", types, pa.scalar(media_type))[codes]
        return chosen

    @cached_property
    def text_types(self) -> NDArray[np.bool_]:
        """Which artifacts are of a type of text."""
        codes, types = self.media_codes
        chosen: NDArray[np.bool_] = matches(types, "^text/")[codes]
        return chosen


def first_rows(owners: NDArray[np.int64], count: int, missing: int) -> NDArray[np.int64]:
    """For each of `count` things the first row that names it, `missing` if none does; null rows name nothing."""
    return first_uses((owners[rows] for rows in blocks(len(owners))), count, missing)


def first_uses(uses: Iterable[NDArray[np.int64]], count: int, missing: int) -> NDArray[np.int64]:
    """For each of `count` things the place of its first use, `missing` if it has none.

    Args:
        uses: the things used, in blocks; `NULL` stands for none. Places are counted over all blocks.
        count: things that there are.
        missing: a number that is no place.
    """
    first = np.full(count, missing, dtype=np.int64)
    begin = 0
    for block in uses:
        places = np.flatnonzero(block != NULL)
        places = places[first[block[places]] == missing][::-1]
        first[block[places]] = places + begin  # of several assignments to one place the last one stays
        begin += len(block)
        if count <= len(block) and not (first == missing).any():
            break
    return first


def descents(values: NDArray[Any]) -> NDArray[np.int64]:
    """The rows whose value is less than that of the row before."""
    return np.flatnonzero(values[1:] < values[:-1]) + 1


def sorts_before(columns: Sequence[pa.Array]) -> NDArray[np.int64]:
    """The rows that sort before the row above them, by these columns without nulls; text by its UTF-8 bytes."""
    rows = len(columns[0])
    wrong, equal = np.zeros(max(rows - 1, 0), dtype=np.bool_), np.ones(max(rows - 1, 0), dtype=np.bool_)
    for column in columns:
        above, below = column.slice(0, len(wrong)), column.slice(1)
        wrong |= equal & compare("less", below, above)
        equal &= compare("equal", below, above)
    return np.flatnonzero(wrong) + 1


def pair_keys(high: NDArray[Any], low: NDArray[Any]) -> NDArray[np.uint64]:
    """Pairs of uint32 as one sortable number each."""
    return (high.astype(np.uint64) << np.uint64(32)) | low.astype(np.uint64)


def is_in(values: NDArray[np.uint64], ordered: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which values are among others that are sorted."""
    if not len(ordered):
        return np.zeros(len(values), dtype=np.bool_)
    at = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return np.asarray(ordered[at] == values, dtype=np.bool_)
