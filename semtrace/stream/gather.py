"""The rows of a capture as columns: each record leaves what it states in them, and no object stays (ST-STR-058)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from blake3 import blake3
from google.protobuf.descriptor import FieldDescriptor

from semtrace.v1.stream_pb2 import Record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

_CHUNK_ROWS: Final = 1 << 13
_CHUNK_BYTES: Final = 1 << 22
_ARROW: Final = {
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.uint64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.uint32(),
    FieldDescriptor.CPPTYPE_ENUM: pa.int32(),
}
_CONTENT: Final = {
    "digest": pa.binary(32),
    "size": pa.int64(),
    "is_text": pa.uint8(),
    "media_type": pa.string(),
}
"""Columns of captured artifacts: their content stays in the file."""


def _kinds(body: str) -> dict[str, pa.DataType]:
    """The columns that rows of a body have, by name."""
    if body == "captured_artifact":
        return dict(_CONTENT)
    message = Record.DESCRIPTOR.fields_by_name[body].message_type
    assert message is not None  # noqa: S101  # every body is a message
    return {
        field.name: (pa.binary() if field.type == field.TYPE_BYTES else pa.string())
        if field.cpp_type == field.CPPTYPE_STRING
        else _ARROW[field.cpp_type]
        for field in message.fields
    }


class Sparse:
    """A column of which only some rows have a value."""

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind
        self.held: tuple[list[int], list[Any]] = ([], [])
        self._chunks: list[tuple[NDArray[np.uint32], pa.Array]] = []

    def flush(self) -> None:
        """Put what is held as objects into arrays."""
        rows, values = self.held
        if rows:
            self._chunks.append((np.array(rows, dtype=np.uint32), pa.array(values, self.kind)))
            self.held = ([], [])

    def take(self) -> tuple[NDArray[np.uint32], pa.ChunkedArray]:
        """The rows that have a value, in order, and their values; the column is empty afterwards."""
        self.flush()
        chunks, self._chunks = self._chunks, []
        rows = [rows for rows, _ in chunks] or [np.zeros(0, dtype=np.uint32)]
        return np.concatenate(rows), pa.chunked_array([values for _, values in chunks], self.kind)


class Gathered:
    """The rows of one kind in one capture, in the order of the file.

    Attributes:
        body: the member of a record's body that states them.
        rows: how many.
        where: the byte of the file at which the record of each begins.
        ids: the recorder's ids of those that have one.
        columns: what they state, by name.
    """

    def __init__(self, body: str) -> None:
        self.body = body
        self.rows = 0
        self.where = Sparse(pa.int64())
        self.ids = Sparse(pa.uint64())
        self.columns = {name: Sparse(kind) for name, kind in _kinds(body).items()}
        self._held_bytes = 0

    def add(self, record: Record, offset: int, size: int) -> None:
        """Take a row.

        Args:
            record: the record that states it.
            offset: where its frame begins in the file.
            size: bytes of its payload.
        """
        row = self.rows
        self.rows += 1
        self.where.held[0].append(row)
        self.where.held[1].append(offset)
        if record.HasField("id"):
            self.ids.held[0].append(row)
            self.ids.held[1].append(record.id)
        message = getattr(record, self.body)
        stated = _artifact(message) if self.body == "captured_artifact" else None
        if stated is None:
            for field, value in message.ListFields():
                rows, values = self.columns[field.name].held
                rows.append(row)
                values.append(value)
        else:
            for name, value in stated.items():
                rows, values = self.columns[name].held
                rows.append(row)
                values.append(value)
            size = 0
        self._held_bytes += size
        if not self.rows % _CHUNK_ROWS or self._held_bytes >= _CHUNK_BYTES:
            self._held_bytes = 0
            for column in (self.where, self.ids, *self.columns.values()):
                column.flush()


def _artifact(message: Any) -> dict[str, object]:
    """What is kept of a captured artifact; absent content replaces none."""
    stated: dict[str, object] = {}
    if message.media_type:
        stated["media_type"] = message.media_type
    if message.data:
        stated |= {"digest": blake3(message.data).digest(), "size": len(message.data)}
        stated["is_text"] = 0 if message.media_type else int(_is_text(message.data))
    return stated


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


class Rows:
    """The rows of one kind of all captures of a run; records of one id are one row (ST-STR-058).

    Attributes:
        body: the member of a record's body that states them.
        count: how many rows there are.
        paths: the captures that have such rows.
    """

    def __init__(self, body: str, parts: Sequence[tuple[Path, Gathered]]) -> None:
        """Put the rows of several captures together; the captures give them away."""
        self.body = body
        self.paths = [path for path, _ in parts]
        self._starts = np.cumsum([0, *(part.rows for _, part in parts)])
        records = int(self._starts[-1])
        self._where = _joined([part.where.take()[1] for _, part in parts], pa.int64()).to_numpy()
        self._columns = {name: [part.columns[name].take() for _, part in parts] for name in _kinds(body)}
        given = [part.ids.take() for _, part in parts]
        having = self._rows([rows for rows, _ in given])
        ids = _joined([values for _, values in given], pa.uint64()).to_numpy()
        first = np.arange(records)
        distinct, begins, which = np.unique(ids, return_index=True, return_inverse=True)
        self._of: NDArray[np.int64] | None = None  # the row of each record, where several make one
        if len(distinct) < len(ids):
            first[having] = having[begins[which]]
            stands = first == np.arange(records)
            self._of = (np.cumsum(stands) - 1)[first]
            self._first = np.flatnonzero(stands)
        else:
            self._first = first
        self.count = len(self._first)
        self._sorted_ids = distinct
        self._sorted_rows = self._entity(having[begins]) if len(having) else having

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self._columns)

    def _rows(self, parts: Sequence[NDArray[np.uint32]]) -> NDArray[np.int64]:
        """Rows of the captures as rows of all."""
        shifted = [rows.astype(np.int64) + start for rows, start in zip(parts, self._starts, strict=False)]
        return np.concatenate(shifted) if shifted else np.zeros(0, dtype=np.int64)

    def _entity(self, records: NDArray[np.int64]) -> NDArray[np.int64]:
        return records if self._of is None else self._of[records]

    def where(self, row: int) -> str:
        """File and byte of the record in which a row first stands, for messages."""
        return self.where_record(int(self._first[row]))

    def where_record(self, record: int) -> str:
        """File and byte of a record, for messages."""
        files, offsets = self.places(np.array([record]))
        return f"{self.paths[int(files[0])]}, byte {offsets[0]}"

    def places(self, records: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of which of the captures that have such rows each record is, and at which byte it begins; -1 stays -1."""
        files = np.searchsorted(self._starts, records, side="right") - 1
        return files, np.append(self._where, -1)[records]

    def find(self, ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The rows that have these ids of the recorder, -1 where there is none."""
        if not len(self._sorted_ids):
            return np.full(len(ids), -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(self._sorted_ids, ids), len(self._sorted_ids) - 1)
        return np.where(self._sorted_ids[at] == ids, self._sorted_rows[at], -1)

    def ids(self) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """The rows that have an id of the recorder, in order, and their ids."""
        order = np.argsort(self._sorted_rows, kind="stable")
        return self._sorted_rows[order], self._sorted_ids[order]

    def stated(self, name: str) -> tuple[NDArray[np.int64], pa.ChunkedArray]:
        """The records that state a column, in order, and what they state; of several that make one row the last counts."""
        parts = self._columns[name]
        values = _joined([values for _, values in parts], _kinds(self.body)[name])
        return self._rows([rows for rows, _ in parts]), values

    def release(self) -> None:
        """Give up what the columns hold: they have been taken."""
        self._columns.clear()

    def last(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows that state a column, and for each the record that states it last."""
        records, _ = self.stated(name)
        found = np.full(self.count, -1, dtype=np.int64)
        found[self._entity(records)] = records
        known = np.flatnonzero(found >= 0)
        return known, found[known]

    def numbers(self, name: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """A column of integers, 0 where nothing is stated, and where something is."""
        records, values = self.stated(name)
        stated = values.to_numpy()
        found = np.zeros(self.count, dtype=stated.dtype)
        known = np.zeros(self.count, dtype=np.bool_)
        rows = self._entity(records)
        found[rows] = stated  # of several assignments to one place the last one stays
        known[rows] = True
        return found, known

    def texts(self, name: str) -> pa.Array | pa.ChunkedArray:
        """A column of text or bytes, null where nothing is stated."""
        records, values = self.stated(name)
        if self._of is None and len(records) == self.count:
            return values
        pick = np.full(self.count, -1, dtype=np.int64)
        pick[self._entity(records)] = np.arange(len(records))
        return values.take(pa.array(pick, mask=pick < 0))

    def shift(self, part: int, name: str, by: int, limit: int) -> int | None:
        """Add to a column of times in one capture.

        Returns:
            A record whose time is then not less than the limit in size; None if all are.
        """
        rows, values = self._columns[name][part]
        times = values.to_numpy()
        bad = np.flatnonzero((times >= limit - by) | (times <= -limit - by))
        if len(bad):
            return int(rows[bad[0]] + self._starts[part])
        if by:
            self._columns[name][part] = (rows, pa.chunked_array([pa.array(times + by)]))
        return None


def _joined(parts: Sequence[pa.ChunkedArray], kind: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([chunk for part in parts for chunk in part.chunks], kind)
