"""The tables of the standard, as the suite knows them: from a file of its own, not from the code that it judges."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from semtrace_conformance.messages import Model, parse_json

if TYPE_CHECKING:
    from pathlib import Path


class Column(Model):
    """A column: its permanent number, its type, whether it may be null, and the digests that it takes part in."""

    number: int
    name: str
    type: Literal["u8", "u32", "u64", "i64", "string", "bytes32"]
    nullable: bool
    level: Literal["work", "trace", "run", "none"]


class Table(Model):
    """A table, of a trace or of an execution."""

    number: int
    name: str
    part: Literal["trace", "execution"]
    columns: list[Column]


class TablesFile(Model):
    """All tables of a version of the standard."""

    spec: str
    tables: list[Table]


@dataclass(frozen=True)
class Tables:
    """The tables by name."""

    file: TablesFile

    @classmethod
    def read(cls, path: Path) -> Tables:
        """Read the tables of a version of the standard."""
        return cls(TablesFile.model_validate(parse_json(path.read_bytes())))

    @cached_property
    def _by_name(self) -> dict[str, Table]:
        return {table.name: table for table in self.file.tables}

    @cached_property
    def trace(self) -> frozenset[str]:
        """The names of the tables of a trace."""
        return frozenset(table.name for table in self.file.tables if table.part == "trace")

    @cached_property
    def execution(self) -> frozenset[str]:
        """The names of the tables of an execution."""
        return frozenset(table.name for table in self.file.tables if table.part == "execution")

    def number(self, table: str) -> int:
        """The permanent number of a table."""
        return self._by_name[table].number

    def columns(self, table: str) -> list[Column]:
        """The columns of a table."""
        return self._by_name[table].columns
