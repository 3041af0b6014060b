"""Records as Protobuf messages, and the rows of tables as records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from semtrace.errors import FormatError, UnsupportedError
from semtrace.records.execution_tables import EXECUTION_TABLES
from semtrace.records.trace_tables import TRACE_TABLES
from semtrace.stream.wire import bytes_field
from semtrace.v1 import execution_pb2, trace_pb2
from semtrace.v1.stream_pb2 import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from semtrace.records.columns import Columns
    from semtrace.records.schema import Table

_ENTITIES: Final = {table.entity: table for table in (*TRACE_TABLES, *EXECUTION_TABLES)}
_BODIES: Final = {
    field.name: (field.number, _ENTITIES[field.message_type.name])
    for field in Record.DESCRIPTOR.oneofs_by_name["body"].fields
    if field.message_type is not None and field.message_type.name in _ENTITIES
}
TABLE_OF: Final[dict[str, Table]] = {body: table for body, (_, table) in _BODIES.items()}
"""By member of a record's body, the table whose row it is."""
_NUMBER_OF: Final = {table.name: number for number, table in _BODIES.values()}
_SLICE: Final = 1 << 13
_CHUNK_ROWS: Final = 1 << 14
_CHUNK_BYTES: Final = 1 << 23


def parse_record(payload: bytes, where: str) -> tuple[Record, str]:
    """A record and the member of its body that it has.

    Args:
        payload: the payload of its frame.
        where: file and offset, for messages.

    Raises:
        FormatError: it is no record.
        UnsupportedError: it has something that this version of the standard does not have.
    """
    try:
        record = Record.FromString(payload)
    except DecodeError as error:
        raise FormatError(
            f"not a record: {error}", code="stream.record", path=where, requirement="ST-STR-014"
        ) from error
    body = record.WhichOneof("body")
    if body is None:
        raise _unknown("a record that states nothing, or something", where)
    record.DiscardUnknownFields()
    if record.ByteSize() != len(payload):  # unknown fields; or another writer's way to spell the known ones
        whole = Record.FromString(payload)
        if _has_unknown(whole):
            raise _unknown(f"a field of {body}", where)
    return record, body


def _has_unknown(message: Message) -> bool:
    if len(UnknownFieldSet(message)):
        return True
    return any(_has_unknown(value) for field, value in message.ListFields() if field.message_type is not None)


def _unknown(what: str, where: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what} that this version of the standard does not have",
        code="stream.unknown",
        path=where,
        requirement="ST-STR-015",
        hint="it was written by a newer version: read it with that",
    )


def row_payloads(columns: Columns) -> Iterator[bytes]:
    """The rows of a table as payloads of records, without ids."""
    spec = columns.spec
    message: Any = getattr(trace_pb2 if spec in TRACE_TABLES else execution_pb2, spec.entity)
    number = _NUMBER_OF[spec.name]
    names = list(spec.by_name)
    for start in range(0, columns.rows, _SLICE):
        part = columns.data.slice(start, _SLICE)
        values = [column.to_pylist() for column in part.columns]
        for row in zip(*values, strict=True):
            body: bytes = message(**dict(zip(names, row, strict=True))).SerializeToString()
            yield bytes_field(number, body)


class RowReader:
    """Rows of one table, from messages to Arrow, a chunk at a time."""

    def __init__(self, spec: Table) -> None:
        self.spec = spec
        self._held: list[Any] = []
        self._held_bytes = 0
        self._chunks: list[pa.RecordBatch] = []

    def add(self, message: Message, size: int) -> None:
        """Take a row.

        Args:
            message: the row's message.
            size: its serialised bytes.

        Raises:
            FormatError: a value does not fit its column.
        """
        self._held.append(message)
        self._held_bytes += size
        if len(self._held) >= _CHUNK_ROWS or self._held_bytes >= _CHUNK_BYTES:
            self._flush()

    def _flush(self) -> None:
        arrays = []
        for column, kind in zip(self.spec.columns, self.spec.arrow, strict=True):
            name = column.name
            if column.nullable:
                values = [getattr(m, name) if m.HasField(name) else None for m in self._held]
            else:
                values = [getattr(m, name) for m in self._held]
            try:
                arrays.append(pa.array(values, kind.type))
            except (pa.ArrowException, OverflowError) as error:
                raise FormatError(
                    str(error),
                    code="table.value",
                    path=f"{self.spec.name}.{name}",
                    requirement="ST-TAB-002",
                ) from error
        self._chunks.append(pa.record_batch(arrays, schema=self.spec.arrow))
        self._held.clear()
        self._held_bytes = 0

    def table(self) -> pa.Table:
        """All rows taken."""
        if self._held:
            self._flush()
        return pa.Table.from_batches(self._chunks, schema=self.spec.arrow)
