"""Bundles made by hand, so that they can be wrong in one way and right in all others."""

from __future__ import annotations

import copy
import io
import stat
import zipfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import rfc8785
from blake3 import blake3

from semtrace.records.enums import Availability, ContentLevel, EntityKind
from semtrace.records.execution_tables import EXECUTION_TABLE
from semtrace.records.trace_tables import TRACE_TABLE
from semtrace_conformance.observe import root_digest
from semtrace_conformance.suite import SPEC
from semtrace_conformance.tables import Column as TablesColumn
from semtrace_conformance.tables import Table as TablesTable
from semtrace_conformance.tables import Tables, TablesFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from semtrace.build import BuiltTrace
    from semtrace.records.execution import Execution
    from semtrace.records.schema import Table

Row = dict[str, Any]
Files = dict[str, bytes]

MANIFEST: Final = "semtrace.json"
_ENTITY: Final = {
    "tasks": EntityKind.TASK,
    "stages": EntityKind.STAGE,
    "sessions": EntityKind.SESSION,
    "operations": EntityKind.OPERATION,
    "segments": EntityKind.SEGMENT,
    "edges": EntityKind.EDGE,
    "states": EntityKind.STATE,
    "state_versions": EntityKind.STATE_VERSION,
    "models": EntityKind.MODEL,
}


def tables_file() -> TablesFile:
    """The tables of the standard, as the suite's own file has them."""
    return TablesFile(
        spec=SPEC,
        tables=[
            TablesTable(
                number=spec.number,
                name=spec.name,
                part="trace" if spec.name in TRACE_TABLE else "execution",
                columns=[
                    TablesColumn(
                        number=column.number,
                        name=column.name,
                        type=column.type.name.lower(),  # type: ignore[arg-type]  # the names of the types are the literals
                        nullable=column.nullable,
                        level=column.level.value,
                    )
                    for column in spec.columns
                ],
            )
            for spec in (*TRACE_TABLE.values(), *EXECUTION_TABLE.values())
        ],
    )


TABLES: Final = Tables(tables_file())


@dataclass
class Encoding:
    """How tables become bytes: the compression of their buffers, the rows of a record batch, columns that are left out."""

    compression: str | None = None
    batch: int | None = None
    drop_nulls: bool = False

    def encode(self, table: pa.Table) -> bytes:
        """A table as an Arrow IPC file."""
        if self.drop_nulls and table.num_rows:
            kept = [name for name in table.schema.names if table.column(name).null_count < table.num_rows]
            table = table.select(kept)
        sink = io.BytesIO()
        options = pa.ipc.IpcWriteOptions(compression=self.compression)
        with pa.ipc.new_file(sink, table.schema, options=options) as writer:
            for batch in table.to_batches(max_chunksize=self.batch):
                writer.write_batch(batch)
        return sink.getvalue()


COMPACT: Final = Encoding(drop_nulls=True)


def arrow(spec: Table, rows: Sequence[Row]) -> pa.Table:
    """Rows as an Arrow table with the declared columns; null where none may be is kept."""
    arrays = [
        pa.array([row.get(name) for row in rows], kind)
        for name, kind in zip(spec.arrow.names, spec.arrow.types, strict=True)
    ]
    return pa.Table.from_arrays(arrays, names=spec.arrow.names)


@dataclass
class Run:
    """An execution to be: its header, its tables and its content."""

    header: Row
    tables: dict[str, list[Row]]
    content: dict[bytes, bytes] = field(default_factory=dict)
    stated: Row = field(default_factory=dict)
    """Members of its entry in the manifest that are not what follows."""

    @classmethod
    def of(cls, execution: Execution) -> Run:
        """An execution as a draft."""
        tables = {name: execution[name].data.to_pylist() for name in EXECUTION_TABLE}
        return cls(
            execution.header.as_json(),
            tables,
            {each: execution.content.get(each) or b"" for each in execution.content},
        )


@dataclass
class Draft:
    """A bundle to be.

    Attributes:
        tables: the rows of each table of the trace; null if it has no trace.
        content: the content in its packs, by digest: media type and bytes.
        runs: its executions by name.
        manifest: further members of the manifest.
        stated: members of the manifest's `trace` that are not what follows from the tables.
        raw: tables as Arrow has them, instead of rows.
        files: members that are not what follows, by name; None for one that is missing. Digests are those of what follows.
        seal: changes the manifest before its digest is taken; `spoil` changes its bytes after.
        encoding: how tables become bytes.
    """

    tables: dict[str, list[Row]] | None
    content: dict[bytes, tuple[str, bytes]] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    manifest: Row = field(default_factory=dict)
    stated: Row = field(default_factory=dict)
    raw: dict[str, pa.Table] = field(default_factory=dict)
    packs: list[pa.Table] | None = None
    stored: dict[str, bytes] = field(default_factory=dict)
    """Bytes of members instead of those of their tables; the manifest has their digests."""
    files: dict[str, bytes | None] = field(default_factory=dict)
    seal: Callable[[Row], None] | None = None
    spoil: Callable[[bytes], bytes] | None = None
    encoding: Encoding = field(default_factory=Encoding)

    @classmethod
    def of(cls, built: BuiltTrace, **runs: Execution) -> Draft:
        """A trace that the builder made."""
        trace = built.trace
        types = {
            digest: media_type or ""
            for digest, media_type in zip(
                trace["artifacts"].digests(), trace["artifacts"].strings("media_type"), strict=True
            )
        }
        content = {digest: (types[digest], trace.content.get(digest) or b"") for digest in sorted(types)}
        tables = {name: trace[name].data.to_pylist() for name in TRACE_TABLE}
        return cls(tables, content, {name: Run.of(run) for name, run in runs.items()})

    def copy(self) -> Draft:
        """A copy that can be changed."""
        return copy.deepcopy(self)

    # -- changing rows ----------------------------------------------------------------------------------------

    def rows(self, table: str) -> list[Row]:
        """The rows of a table of the trace."""
        if self.tables is None:
            raise ValueError("the draft has no trace")
        return self.tables[table]

    def find(self, table: str, **values: object) -> int:
        """The only row with these values."""
        found = [
            at
            for at, row in enumerate(self.rows(table))
            if all(row[name] == value for name, value in values.items())
        ]
        if len(found) != 1:
            raise ValueError(f"{len(found)} rows of {table} have {values}")
        return found[0]

    def put(self, table: str, row: int, **values: object) -> None:
        """Set values of a row."""
        unknown = set(values) - set(TRACE_TABLE[table].by_name)
        if unknown:
            raise ValueError(f"{table} has no column {unknown}")
        self.rows(table)[row].update(values)

    def remap(self, table: str, places: Sequence[int]) -> None:
        """Put the rows of a table in another order, references and annotations with them: `places[old]` is the new place."""
        old = self.rows(table)
        new: list[Row] = [{}] * len(old)
        for at, place in enumerate(places):
            new[place] = old[at]
        old[:] = new
        for spec in TRACE_TABLE.values():
            for column in spec.columns:
                if column.refs == table:
                    for row in self.rows(spec.name):
                        if row[column.name] is not None:
                            row[column.name] = places[row[column.name]]
        for row in self.rows("annotations"):
            if row["entity_kind"] == _ENTITY.get(table):
                row["entity"] = places[row["entity"]]

    def swap(self, table: str, one: int, other: int) -> None:
        """Exchange two rows, references with them."""
        places = list(range(len(self.rows(table))))
        places[one], places[other] = other, one
        self.remap(table, places)

    def insert(self, table: str, at: int, **values: object) -> None:
        """Insert a row; references to later ones follow."""
        count = len(self.rows(table))
        self.rows(table).append(dict.fromkeys(TRACE_TABLE[table].by_name))
        self.remap(table, [row + (row >= at) for row in range(count)] + [at])
        self.put(table, at, **values)

    def edge(self, target: int, source: int, **values: object) -> None:
        """Insert an edge where it sorts."""
        row = {
            "target": target,
            "source": source,
            "kind": 1,
            "trigger": 1,
            "lag_ns": 0,
            "evidence": 1,
            "confidence": None,
            **values,
        }
        rows = self.rows("edges")
        rows.append(row)
        rows.sort(key=lambda each: (each["target"], each["source"], each["kind"], each["trigger"]))

    # -- digests ----------------------------------------------------------------------------------------------

    def arrow(self) -> dict[str, pa.Table]:
        """The tables of the trace as Arrow has them."""
        made = {name: arrow(TRACE_TABLE[name], rows) for name, rows in (self.tables or {}).items()}
        return {**made, **self.raw}

    def digest(self, which: str) -> str:
        """The `work` or `trace` digest."""
        levels = {"work": {"work"}, "trace": {"work", "trace"}}[which]
        known = {name: table for name, table in self.arrow().items() if name in TABLES.trace}
        return root_digest(known, TABLES, levels, f"semtrace v1 {which}")

    # -- bytes ------------------------------------------------------------------------------------------------

    def members(self) -> Files:
        """The members of the bundle, the manifest first."""
        members: Files = {}
        trace: Row | None = None
        if self.tables is not None:
            levels = [row["content_level"] for row in self.rows("trace")] or [ContentLevel.TEXT]
            trace = {
                "work_digest": self.digest("work") if not self.raw else "blake3:" + 64 * "0",
                "trace_digest": self.digest("trace") if not self.raw else "blake3:" + 64 * "0",
                "content_level": ContentLevel(levels[0]).name.lower(),
                "tables": self._tables(self.arrow(), "", members),
                "packs": self._packs(self._pack_tables(), "", members),
                **self.stated,
            }
        executions = {name: self._run(name, run, members, trace) for name, run in sorted(self.runs.items())}
        manifest: Row = {
            "format": "semtrace",
            "spec_version": SPEC,
            "producer": {"name": "semtrace-conformance", "version": "1"},
            **({"trace": trace} if trace is not None else {}),
            **({"executions": executions} if executions else {}),
            **self.manifest,
        }
        if self.seal is not None:
            self.seal(manifest)
        manifest.setdefault("digest", show(rfc8785.dumps(manifest)))
        raw = rfc8785.dumps(manifest)
        made = {MANIFEST: self.spoil(raw) if self.spoil is not None else raw, **members}
        for name, content in self.files.items():
            if content is None:
                del made[name]
            else:
                made[name] = content
        return made

    def _pack_tables(self) -> list[pa.Table]:
        if self.packs is not None:
            return self.packs
        embedded = {
            row["digest"] for row in self.rows("artifacts") if row["availability"] == Availability.EMBEDDED
        }
        held = [(digest, *self.content[digest]) for digest in self.content if digest in embedded]
        return [pack(held)] if held else []

    def _tables(self, tables: Mapping[str, pa.Table], prefix: str, members: Files) -> Row:
        stored = {}
        for name, table in tables.items():
            if table.num_rows or name in self.raw:
                path = f"{prefix}tables/{name}.arrow"
                members[path] = self.stored.get(path) or self.encoding.encode(table)
                stored[name] = {**_entry(path, members[path]), "rows": table.num_rows}
        return stored

    def _packs(self, packs: Iterable[pa.Table], prefix: str, members: Files) -> list[Row]:
        stored = []
        for at, table in enumerate(packs):
            path = f"{prefix}artifacts/{at:05d}.arrow"
            members[path] = self.stored.get(path) or self.encoding.encode(table)
            stored.append({**_entry(path, members[path]), "artifacts": table.num_rows})
        return stored

    def _run(self, name: str, run: Run, members: Files, trace: Row | None) -> Row:
        tables = {table: arrow(EXECUTION_TABLE[table], rows) for table, rows in run.tables.items()}
        header = dict(run.header)
        if trace is not None:
            header.setdefault("work_digest", trace["work_digest"])
        whole = {table: tables[table] for table in ("instances", "events")}
        prefix = f"executions/{name}/"
        held = sorted(run.content.items())
        packs = (
            [pack([(digest, "application/octet-stream", content) for digest, content in held])]
            if held
            else []
        )
        details = {
            table: root_digest({table: tables[table]}, TABLES, {"run"}, "semtrace v1 execution")
            for table in header.get("detail", [])
            if table in tables
        }
        return {
            "header": header,
            "execution_digest": root_digest(whole, TABLES, {"run"}, "semtrace v1 execution"),
            **({"detail_digests": details} if details else {}),
            "tables": self._tables(tables, prefix, members),
            "packs": self._packs(packs, prefix, members),
            **run.stated,
        }


def pack(content: Sequence[tuple[bytes, str, bytes]]) -> pa.Table:
    """A pack of content: digest, media type and bytes of each."""
    return pa.table(
        {
            "digest": pa.array([each[0] for each in content], pa.binary(32)),
            "media_type": pa.array([each[1] for each in content], pa.string()),
            "content": pa.array([each[2] for each in content], pa.large_binary()),
        }
    )


def show(content: bytes) -> str:
    """The digest of bytes, as documents have it."""
    return f"blake3:{blake3(content).hexdigest()}"


def _entry(path: str, content: bytes) -> Row:
    return {"path": path, "bytes": len(content), "digest": show(content)}


def zip_bytes(
    members: Mapping[str, bytes],
    change: Callable[[zipfile.ZipInfo], None] | None = None,
    names: Sequence[str] | None = None,
) -> bytes:
    """Members as a ZIP file (ST-BND-006, ST-BND-009).

    Args:
        members: content by name.
        change: sees the header of each before it is written.
        names: the members in another order than the standard's.
    """
    sink = io.BytesIO()
    names = names or sorted(members, key=lambda name: (name != MANIFEST, name))
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
        for name in names:
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            info.create_system = 3
            if change is not None:
                change(info)
            archive.writestr(info, members[name])
    return sink.getvalue()
