"""Logical digests: of columns, tables, traces and executions, whatever the encoding they are stored in.

The canonical bytes are defined in the spec, identity.md (ST-DIG-001 …):

    column := number:u8  type:u8  rows:u64  has_nulls:u8  [validity bits, least significant first]  values
    values := fixed-width little-endian, null slots zero | string lengths as u32, then all bytes
    table  := number:u8  rows:u64  (number:u8 column_digest)*        columns in order of number
    root   := (number:u8 table_digest)*                              tables in order of number

All integers are little-endian. A column that is all null is left out, as are a table without rows and a table of
which no column takes part. Each level is hashed with BLAKE3 in its key-derivation mode, under a context string of
its own.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import numpy as np
from blake3 import blake3

from semtrace.errors import FormatError
from semtrace.records.columns import validity
from semtrace.records.execution_tables import EXECUTION_TABLE
from semtrace.records.schema import Column, Level, Physical, Table

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from semtrace.records.columns import Columns
    from semtrace.records.execution import Execution
    from semtrace.records.trace import Trace

COLUMN_CONTEXT: Final = "semtrace v1 column"
TABLE_CONTEXT: Final = "semtrace v1 table"
WORK_CONTEXT: Final = "semtrace v1 work"
TRACE_CONTEXT: Final = "semtrace v1 trace"
EXECUTION_CONTEXT: Final = "semtrace v1 execution"

_PREFIX: Final = "blake3:"


def show(digest: bytes) -> str:
    """A digest as people and documents write it: `blake3:` and 64 hexadecimal digits."""
    return _PREFIX + digest.hex()


def artifact_digest(content: bytes) -> bytes:
    """BLAKE3-256 of raw content, 32 bytes."""
    return blake3(content).digest()


def column_bytes(column: Column, array: pa.Array) -> list[bytes | memoryview]:
    """The canonical bytes of a column, as parts to be hashed one after the other."""
    rows = len(array)
    has_nulls = array.null_count > 0
    parts: list[bytes | memoryview] = [struct.pack("<BBQB", column.number, int(column.type), rows, has_nulls)]
    if has_nulls:
        parts.append(np.packbits(validity(array), bitorder="little").tobytes())
    if column.type is Physical.STRING:
        return [*parts, *_text(array)]
    if has_nulls:
        width = array.type.bit_width // 8
        unit = min(width, 8)
        values = np.frombuffer(_fixed(array), dtype=f"<u{unit}").reshape(rows, width // unit)
        parts.append(np.where(validity(array)[:, np.newaxis], values, values.dtype.type(0)).data.cast("B"))
    else:
        parts.append(_fixed(array))
    return parts


def _text(array: pa.Array) -> list[bytes | memoryview]:
    """The lengths of strings, 0 for null, and their bytes one after the other; null slots may hold bytes too."""
    _, offsets, data = array.buffers()
    if offsets is None or not len(array):
        return []
    ends = np.frombuffer(offsets, dtype=np.int32)[array.offset : array.offset + len(array) + 1]
    lengths = np.diff(ends).astype(np.uint32)
    hidden = np.flatnonzero(~validity(array) & (lengths > 0))
    lengths[hidden] = 0
    if data is None:
        return [lengths.data.cast("B")]
    text, start = memoryview(data), int(ends[0])
    parts: list[bytes | memoryview] = [lengths.data.cast("B")]
    for row in hidden.tolist():
        parts.append(text[start : int(ends[row])])
        start = int(ends[row + 1])
    return [*parts, text[start : int(ends[-1])]]


def _fixed(array: pa.Array) -> memoryview | bytes:
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return b""
    width = array.type.bit_width // 8
    return memoryview(buffer)[array.offset * width : (array.offset + len(array)) * width]


def column_digest(column: Column, array: pa.Array) -> bytes:
    """Digest of one column."""
    hasher = blake3(derive_key_context=COLUMN_CONTEXT)
    for part in column_bytes(column, array):
        hasher.update(part)
    return hasher.digest()


def table_bytes(columns: Columns, levels: frozenset[Level]) -> bytes | None:
    """The canonical bytes of a table's columns of these levels; None if the table has no rows."""
    spec: Table = columns.spec
    if columns.rows == 0:
        return None
    parts = [struct.pack("<BQ", spec.number, columns.rows)]
    for column in sorted(spec.columns, key=lambda each: each.number):
        if column.level not in levels:
            continue
        array = columns.array(column.name)
        if array.null_count == len(array):
            continue
        digest = columns.column_digests.get(column.number)
        if digest is None:
            digest = columns.column_digests[column.number] = column_digest(column, array)
        parts.append(bytes([column.number]) + digest)
    return b"".join(parts)


def root_bytes(tables: Iterable[Columns], levels: frozenset[Level]) -> bytes:
    """The canonical bytes of several tables, in order of number; those without rows or such columns are left out."""
    parts = []
    for columns in sorted(tables, key=lambda each: each.spec.number):
        if not any(column.level in levels for column in columns.spec.columns):
            continue
        content = table_bytes(columns, levels)
        if content is not None:
            digest = blake3(content, derive_key_context=TABLE_CONTEXT).digest()
            parts.append(bytes([columns.spec.number]) + digest)
    return b"".join(parts)


_WORK_LEVELS: Final = frozenset({Level.WORK})
_TRACE_LEVELS: Final = frozenset({Level.WORK, Level.TRACE})
_RUN_LEVELS: Final = frozenset({Level.RUN})


def work_digest(trace: Trace) -> bytes:
    """Digest of what a replay must not change: operations, inputs, counts, durations, edges, state (ST-DIG-010)."""
    return blake3(root_bytes(trace.tables.values(), _WORK_LEVELS), derive_key_context=WORK_CONTEXT).digest()


def trace_digest(trace: Trace) -> bytes:
    """Digest of all that a trace states, annotations and availability left out (ST-DIG-011)."""
    return blake3(root_bytes(trace.tables.values(), _TRACE_LEVELS), derive_key_context=TRACE_CONTEXT).digest()


def execution_digest(execution: Execution) -> bytes:
    """Digest of an execution's instances and events (ST-DIG-012)."""
    tables = [execution.instances, execution.events]
    return blake3(root_bytes(tables, _RUN_LEVELS), derive_key_context=EXECUTION_CONTEXT).digest()


def detail_digest(execution: Execution, table: str) -> bytes:
    """Digest of one detail table of an execution (ST-DIG-013).

    Raises:
        FormatError: the standard has no such table.
    """
    if table not in EXECUTION_TABLE:
        raise FormatError(f"no such detail: {table!r}", code="execution.detail", requirement="ST-TAB-001")
    return blake3(root_bytes([execution[table]], _RUN_LEVELS), derive_key_context=EXECUTION_CONTEXT).digest()
