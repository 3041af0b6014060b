"""An execution in memory: a header that says how it came about, and its tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from semtrace.records.columns import Columns, known_tables
from semtrace.records.document import Digest, Document, Int64, empty_dict, empty_list
from semtrace.records.execution_tables import EXECUTION_TABLES
from semtrace.records.trace import Content, MemoryContent

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa


class Backend(Document):
    """What ran the operations."""

    name: str
    version: str | None = None
    settings: dict[str, Any] = Field(default_factory=empty_dict)


class ExecutionHeader(Document):
    """How an execution came about.

    Attributes:
        work_digest: work digest of the trace that it is of, `blake3:` and 64 hex digits.
        plan_digest: digest of the plan followed, if any.
        plan: the plan followed, as its document; absent for a native run.
        scenario: the scenario document, as run, arrivals drawn; absent for a native run.
        mode: what was held fixed.
        clock: `virtual` or `wall`.
        origin_unix_ns: Unix time of time 0, for wall clocks where it is known.
        tolerance_ns: allowed lateness of submissions in ns; 0 for virtual clocks.
        measured_at: where times were read: `client`, `server`, `witness` or `simulator`.
        detail: the detail tables that the execution records beyond instances and events.
        environment: facts of the machine and the software.
        seeds: every seed used, by name.
    """

    work_digest: Digest
    plan_digest: Digest | None = None
    plan: dict[str, Any] | None = None
    scenario: dict[str, Any] | None = None
    mode: Literal["native", "length_locked", "token_locked"]
    clock: Literal["virtual", "wall"]
    origin_unix_ns: Int64 | None = None
    tolerance_ns: int = 0
    measured_at: Literal["client", "server", "witness", "simulator"]
    backend: Backend
    detail: list[str] = Field(default_factory=empty_list)
    environment: dict[str, Any] = Field(default_factory=empty_dict)
    seeds: dict[str, Int64] = Field(default_factory=empty_dict)


@dataclass(frozen=True)
class Execution:
    """One execution: what happened to a trace when it ran.

    Attributes:
        header: how it came about.
        tables: every execution table by name; detail tables that were not recorded are empty.
        content: the execution's own artifacts (output token ids), by digest.
    """

    header: ExecutionHeader
    tables: Mapping[str, Columns]
    content: Content = field(default_factory=MemoryContent)

    @classmethod
    def from_arrow(
        cls, header: ExecutionHeader, tables: Mapping[str, pa.Table], content: Content | None = None
    ) -> Execution:
        """Make an execution of Arrow tables; tables left out are empty.

        Raises:
            FormatError: a table does not have its declared columns, or the standard has no such table.
        """
        known_tables(tables, EXECUTION_TABLES)
        made = {spec.name: Columns(spec, tables.get(spec.name, spec.empty())) for spec in EXECUTION_TABLES}
        return cls(header, made, MemoryContent() if content is None else content)

    def __getitem__(self, table: str) -> Columns:
        return self.tables[table]

    @property
    def events(self) -> Columns:
        """The events table."""
        return self.tables["events"]

    @property
    def instances(self) -> Columns:
        """The instances table."""
        return self.tables["instances"]
