"""How tables are declared: columns with permanent numbers, types, references and a place in the digests.

A declaration is the single source of the Arrow schema, the canonical bytes, the Protobuf messages and the
column lists of the spec. The declarations themselves are in `trace_tables` and `execution_tables`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    import builtins


class Physical(IntEnum):
    """Physical types of columns; the numbers are the type bytes of the canonical encoding."""

    U8 = 1
    U32 = 2
    U64 = 3
    I64 = 4
    STRING = 5
    BYTES32 = 6


class Level(Enum):
    """The digests that a column takes part in."""

    WORK = "work"
    """What a replay must not change; part of the work and of the trace digest."""
    TRACE = "trace"
    """Everything else that a trace states; part of the trace digest only."""
    RUN = "run"
    """What happened; part of the digest of its execution table."""
    NONE = "none"
    """Not part of any digest of content."""


ARROW_TYPES: dict[Physical, pa.DataType] = {
    Physical.U8: pa.uint8(),
    Physical.U32: pa.uint32(),
    Physical.U64: pa.uint64(),
    Physical.I64: pa.int64(),
    Physical.STRING: pa.string(),
    Physical.BYTES32: pa.binary(32),
}


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        number: permanent field number, unique in its table, never reused.
        name: name in Arrow schemas and in Protobuf.
        type: physical type.
        doc: one sentence, with the unit.
        nullable: whether null (unknown or not applicable) is allowed.
        refs: the table whose row ordinals the column holds, if it is a reference.
        enum: the enumeration whose numbers the column holds, if any.
        level: which digests it takes part in.
        signed: whether negative values are allowed (times, durations and counts are never negative).
        maximum: the greatest allowed value, if there is one below the type's own.
    """

    number: int
    name: str
    type: Physical
    doc: str
    nullable: bool = False
    refs: str | None = None
    enum: builtins.type[IntEnum] | None = None
    level: Level = Level.WORK
    signed: bool = False
    maximum: int | None = None


@dataclass(frozen=True)
class Table:
    """A table of a trace or an execution; a row's ordinal is its id."""

    number: int
    name: str
    entity: str
    """Name of one row, in CamelCase: the Protobuf message."""
    doc: str
    columns: tuple[Column, ...]
    reserved: tuple[int, ...] = ()

    @cached_property
    def by_name(self) -> dict[str, Column]:
        """Columns by name."""
        return {column.name: column for column in self.columns}

    @cached_property
    def arrow(self) -> pa.Schema:
        """The Arrow schema; nullability as declared, no metadata."""
        return pa.schema(
            [
                pa.field(column.name, ARROW_TYPES[column.type], nullable=column.nullable)
                for column in self.columns
            ]
        )

    def empty(self) -> pa.Table:
        """The table with no rows."""
        return self.arrow.empty_table()


def ref(number: int, name: str, table: str, doc: str, **options: object) -> Column:
    """A reference to a row of another table (or of the same)."""
    return Column(number, name, Physical.U32, doc, refs=table, **options)  # type: ignore[arg-type]  # forwarded as given


def enum(number: int, name: str, values: type[IntEnum], doc: str, **options: object) -> Column:
    """An enumeration, stored as its number."""
    return Column(number, name, Physical.U8, doc, enum=values, **options)  # type: ignore[arg-type]  # forwarded as given
