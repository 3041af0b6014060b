"""A second, slow implementation of the digests: plain Python on lists, written from the standard's text alone.

It shares with the package the declared numbers, types and levels of the columns, and the BLAKE3 library.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from blake3 import blake3

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from semtrace.records.schema import Table

Rows = "Mapping[str, Sequence[Any]]"
"""A table as lists by column; all of one length, columns left out are all null."""

FIXED = {1: ("<B", 0), 2: ("<I", 0), 3: ("<Q", 0), 4: ("<q", 0), 6: ("32s", b"")}
"""By type byte: how a value is packed, and what stands in a null slot."""
STRING = 5


def column_bytes(number: int, kind: int, values: Sequence[Any]) -> bytes:
    """number, type, rows, whether there are nulls, the validity bits if there are, the values."""
    nulls = any(value is None for value in values)
    out = struct.pack("<BBQB", number, kind, len(values), 1 if nulls else 0)
    if nulls:
        bits = 0
        for at, value in enumerate(values):
            if value is not None:
                bits |= 1 << at
        out += bits.to_bytes((len(values) + 7) // 8, "little")
    if kind == STRING:
        texts = [("" if value is None else value).encode() for value in values]
        out += b"".join(struct.pack("<I", len(text)) for text in texts)
        return out + b"".join(texts)
    layout, zero = FIXED[kind]
    return out + b"".join(struct.pack(layout, zero if value is None else value) for value in values)


def digest(context: str, content: bytes) -> bytes:
    """BLAKE3 in key-derivation mode."""
    return blake3(content, derive_key_context=context).digest()


def root_bytes(tables: Iterable[tuple[Table, Rows]], levels: set[str]) -> bytes:
    """The numbers and digests of the tables that have rows and columns of these levels, in order of number."""
    found = {}
    for table, rows in tables:
        columns = {column.number: column for column in table.columns if column.level.value in levels}
        count = max((len(values) for values in rows.values()), default=0)
        if not columns or count == 0:
            continue
        content = struct.pack("<BQ", table.number, count)
        for number in sorted(columns):
            values = rows.get(columns[number].name, [None] * count)
            if any(value is not None for value in values):
                raw = column_bytes(number, int(columns[number].type), values)
                content += bytes([number]) + digest("semtrace v1 column", raw)
        found[table.number] = digest("semtrace v1 table", content)
    return b"".join(bytes([number]) + found[number] for number in sorted(found))


def work_digest(tables: Iterable[tuple[Table, Rows]]) -> bytes:
    """Of a trace's work columns."""
    return digest("semtrace v1 work", root_bytes(tables, {"work"}))


def trace_digest(tables: Iterable[tuple[Table, Rows]]) -> bytes:
    """Of a trace's work and trace columns."""
    return digest("semtrace v1 trace", root_bytes(tables, {"work", "trace"}))


def execution_digest(tables: Iterable[tuple[Table, Rows]]) -> bytes:
    """Of the run columns of the tables given: instances and events, or one detail table."""
    return digest("semtrace v1 execution", root_bytes(tables, {"run"}))
