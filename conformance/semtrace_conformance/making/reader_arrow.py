"""Mutations of the reader's cases: Arrow files that say two things, bytes changed in files that Arrow wrote."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from semtrace.records.trace_tables import TRACE_TABLE
from semtrace_conformance.making.draft import Draft, Encoding, arrow, pack
from semtrace_conformance.making.reader_cases import change
from semtrace_conformance.making.team import ids, two_tools

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from semtrace_conformance.making.book import Book

TASKS: Final = "tables/tasks.arrow"
HEADER: Final = "tables/trace.arrow"
_MAGIC: Final = 8


@dataclass
class File:
    """An Arrow file whose bytes can be changed: places as the Arrow format's FlatBuffers tables have them."""

    raw: bytearray

    @classmethod
    def of(cls, table: pa.Table, encoding: Encoding | None = None) -> File:
        """A table as a file."""
        return cls(bytearray((encoding or Encoding()).encode(table)))

    def number(self, layout: str, at: int) -> int:
        """A number."""
        value: int = struct.unpack_from(layout, self.raw, at)[0]
        return value

    def put(self, layout: str, at: int, value: int) -> None:
        """Change a number."""
        struct.pack_into(layout, self.raw, at, value)

    def to(self, at: int) -> int:
        """What an offset points to."""
        return at + self.number("<I", at)

    def slot(self, table: int, index: int) -> int:
        """Where the vtable of a table says where a field is."""
        return table - self.number("<i", table) + 4 + 2 * index

    def field(self, table: int, index: int) -> int:
        """Where a field of a table is; it must be there."""
        return table + self.number("<H", self.slot(table, index))

    # -- what a file consists of ------------------------------------------------------------------------------

    @property
    def footer(self) -> int:
        """The table of the footer."""
        return self.to(len(self.raw) - 10 - self.number("<i", len(self.raw) - 10))

    def block(self, index: int) -> int:
        """A record batch in the footer: place, bytes of metadata, bytes of body."""
        return self.to(self.field(self.footer, 3)) + 4 + 24 * index

    def schemas(self) -> list[int]:
        """The table of the schema, at the beginning and in the footer."""
        message = self.to(_MAGIC + 8)
        return [self.to(self.field(message, 2)), self.to(self.field(self.footer, 1))]

    def batch(self, index: int = 0) -> int:
        """The table of a record batch."""
        message = self.to(self.number("<q", self.block(index)) + 8)
        return self.to(self.field(message, 2))

    def node(self, column: int) -> int:
        """A column in the first record batch: its rows, and how many are null."""
        return self.to(self.field(self.batch(), 1)) + 4 + 16 * column

    def buffer(self, index: int) -> int:
        """A buffer in the first record batch: where it begins in the body, and its bytes."""
        return self.to(self.field(self.batch(), 2)) + 4 + 16 * index

    @property
    def body(self) -> int:
        """Where the body of the first record batch begins."""
        return self.number("<q", self.block(0)) + self.number("<i", self.block(0) + 8)


def add_reader_arrow(book: Book) -> None:
    """Add the mutations."""
    rows = two_tools().rows("tasks")
    whole = arrow(TRACE_TABLE["tasks"], rows)
    names = whole.select([name for name in whole.schema.names if not whole.column(name).null_count])
    nulls = names.append_column("binding", whole.column("binding"))
    last = names.num_columns
    one_by_one = Encoding(batch=1)

    def stored(
        name: str,
        mutation: str,
        table: pa.Table,
        edit: Callable[[File], object],
        *,
        encoding: Encoding | None = None,
        reasons: Sequence[str] = ("ST-BND-020",),
        path: str = TASKS,
    ) -> None:
        file = File.of(table, encoding)
        edit(file)
        change(book, "two-tools", f"arrow-{name}", mutation, list(reasons), two_tools(),
               lambda draft: draft.stored.update({path: bytes(file.raw)}))  # fmt: skip

    level = arrow(TRACE_TABLE["trace"], two_tools().rows("trace")).select(["content_level"])
    stored("big-endian", "a table is big-endian", level, _turn, path=HEADER)
    stored(
        "order",
        "the footer names two record batches the other way round",
        names,
        _exchange,
        encoding=one_by_one,
    )
    stored("length", "the footer says that a record batch is 8 bytes longer", names,
           lambda file: file.put("<q", file.block(0) + 16, file.number("<q", file.block(0) + 16) + 8))  # fmt: skip
    stored("schema", "the footer has another name for a column", names, _rename)
    stored("null-count", "a column is said to have one null, its bitmap has two", nulls,
           lambda file: file.put("<q", file.node(last) + 8, 1))  # fmt: skip
    stored("null-bitmap", "a column is said to have no nulls, its bitmap has two", nulls,
           lambda file: file.put("<q", file.node(last) + 8, 0))  # fmt: skip
    stored("no-bitmap", "a column is said to have a null, and has no bitmap", names,
           lambda file: file.put("<q", file.node(0) + 8, 1))  # fmt: skip
    stored("rows-of-column", "a column has fewer rows than its record batch", names,
           lambda file: file.put("<q", file.node(0), 1))  # fmt: skip
    stored("offset", "the offset of a text lies behind all text", names,
           lambda file: file.put("<i", file.body + file.number("<q", file.buffer(1)) + 8, 99))  # fmt: skip
    stored("offset-down", "the offsets of texts go down", names,
           lambda file: file.put("<i", file.body + file.number("<q", file.buffer(1)) + 8, 3))  # fmt: skip
    stored("buffer", "a buffer lies outside of its record batch", names,
           lambda file: file.put("<q", file.buffer(2), 1 << 20))  # fmt: skip
    stored(
        "raw-size",
        "a compressed buffer claims a byte more than it has",
        names,
        _claim,
        encoding=Encoding("zstd"),
    )
    twice = names.append_column("name", names.column("name"))
    stored(
        "column-twice", "a column is there twice", twice, lambda _: None, reasons=["ST-TAB-002", "ST-BND-020"]
    )

    def packed(draft: Draft) -> None:
        table = pack([(digest, *content) for digest, content in draft.content.items()])
        at = table.schema.get_field_index("content")
        values = [None, *table.column("content").to_pylist()[1:]]
        draft.packs = [table.set_column(at, "content", pa.array(values, pa.large_binary()))]

    change(
        book,
        "ids",
        "pack-null",
        "content in a pack is null",
        ["ST-BND-028", "ST-BND-020"],
        ids().draft(),
        packed,
    )


def _turn(file: File) -> None:
    """Make a file big-endian that has one column, of numbers of one byte."""
    for schema in file.schemas():
        # The field is left out, as it has its default. Its slot gets the place of the number of columns, which is 1.
        columns = file.to(file.field(schema, 1))
        file.put("<H", file.slot(schema, 0), columns - schema)


def _exchange(file: File) -> None:
    one, other = file.block(0), file.block(1)
    file.raw[one : one + 24], file.raw[other : other + 24] = (
        file.raw[other : other + 24],
        file.raw[one : one + 24],
    )


def _rename(file: File) -> None:
    at = file.raw.rindex(b"name")
    file.raw[at : at + 4] = b"node"


def _claim(file: File) -> None:
    at = file.body + file.number("<q", file.buffer(2))
    file.put("<q", at, file.number("<q", at) + 1)
