"""Bundles: a trace, its artifacts and its executions in one container, every byte under a digest."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from blake3 import blake3

import semtrace
from semtrace.errors import FormatError, IntegrityError, UsageError
from semtrace.records.document import DOCUMENT_LIMIT
from semtrace.records.enums import ContentLevel
from semtrace.records.execution import Execution
from semtrace.records.execution_tables import EXECUTION_TABLE
from semtrace.records.trace import Content, Trace
from semtrace.records.trace_tables import TRACE_TABLE
from semtrace.store.container import MANIFEST, Container, open_container, write_container
from semtrace.store.digests import detail_digest, execution_digest, show, trace_digest, work_digest
from semtrace.store.manifest import (
    Loss,
    Manifest,
    Producer,
    SourceFile,
    StoredExecution,
    StoredFile,
    StoredPack,
    StoredTable,
    StoredTrace,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from semtrace.records.schema import Table

PACK_SCHEMA: Final = pa.schema(
    [
        pa.field("digest", pa.binary(32), nullable=False),
        pa.field("media_type", pa.string(), nullable=False),
        pa.field("content", pa.large_binary(), nullable=False),
    ]
)
_BATCH_BYTES: Final = 1 << 20
_PACK_BYTES: Final = 1 << 30


@dataclass(frozen=True)
class BundleInfo:
    """What a bundle says of its making, beyond the trace itself."""

    sources: Sequence[SourceFile] = ()
    loss: Sequence[Loss] = ()
    lineage: Sequence[Mapping[str, Any]] = ()
    licence: str | None = None
    notes: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Namespaced keys of the manifest, kept when a bundle is rewritten."""


class PackContent(Content):
    """Artifacts in the packs of a bundle; read one batch at a time, when asked for."""

    def __init__(self, buffers: Sequence[tuple[str, pa.Buffer]]) -> None:
        self._buffers = buffers
        self._last: tuple[tuple[int, int], pa.RecordBatch] | None = None

    def _reader(self, pack: int, *, digests_only: bool) -> pa.RecordBatchFileReader:
        name, buffer = self._buffers[pack]
        options = pa.ipc.IpcReadOptions(included_fields=[0]) if digests_only else None
        try:
            reader = pa.ipc.open_file(pa.BufferReader(buffer), options=options)
        except (pa.ArrowInvalid, OSError) as error:
            raise _damaged(name, error) from error
        if not digests_only and reader.schema != PACK_SCHEMA:
            raise FormatError(
                "not a pack of artifacts", code="bundle.pack", path=name, requirement="ST-BND-020"
            )
        return reader

    @cached_property
    def _index(self) -> dict[bytes, tuple[int, int, int]]:
        index: dict[bytes, tuple[int, int, int]] = {}
        for pack, (name, _) in enumerate(self._buffers):
            try:
                reader = self._reader(pack, digests_only=True)
                for batch in range(reader.num_record_batches):
                    for row, digest in enumerate(reader.get_batch(batch).column(0).to_pylist()):
                        index[digest] = (pack, batch, row)
            except (pa.ArrowInvalid, OSError) as error:
                raise _damaged(name, error) from error
        return index

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._index)

    def get(self, digest: bytes) -> bytes | None:
        """The content with this digest, None if it is in no pack.

        Raises:
            IntegrityError: the pack is damaged.
        """
        place = self._index.get(digest)
        if place is None:
            return None
        pack, batch, row = place
        if self._last is None or self._last[0] != (pack, batch):
            try:
                self._last = ((pack, batch), self._reader(pack, digests_only=False).get_batch(batch))
            except (pa.ArrowInvalid, OSError) as error:
                raise _damaged(self._buffers[pack][0], error) from error
        content: bytes = self._last[1].column(2)[row].as_py()
        return content


def _damaged(name: str, error: Exception) -> IntegrityError:
    return IntegrityError(
        f"cannot be read as Arrow data: {error}", code="bundle.arrow", path=name, requirement="ST-BND-020"
    )


class Bundle:
    """An open bundle. Members are checked against their digests when they are first read."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self.path = container.path
        raw = container.read(MANIFEST)
        where = f"{self.path}/{MANIFEST}"
        if raw.size > DOCUMENT_LIMIT:
            raise FormatError(f"larger than {DOCUMENT_LIMIT} bytes", code="bundle.manifest", path=where)
        stored = raw.to_pybytes()
        try:
            values = json.loads(stored)
        except (ValueError, RecursionError) as error:
            raise FormatError(
                f"the manifest is not JSON: {error}",
                code="bundle.manifest",
                path=where,
                requirement="ST-BND-010",
            ) from error
        if not isinstance(values, dict):
            raise FormatError(
                "the manifest is not a JSON object",
                code="bundle.manifest",
                path=where,
                requirement="ST-BND-010",
            )
        self.manifest = Manifest.unseal(stored, values, path=where)
        named = {MANIFEST, *(file.path for file in self.files())}
        for name in container.names():
            if name not in named:
                raise IntegrityError(
                    "a member that the manifest does not name",
                    code="bundle.member",
                    path=f"{self.path}/{name}",
                    requirement="ST-BND-013",
                )

    def files(self) -> Iterator[StoredFile]:
        """Every member that the manifest names."""
        parts: list[StoredTrace | StoredExecution] = [*self.manifest.executions.values()]
        if self.manifest.trace is not None:
            parts.insert(0, self.manifest.trace)
        for part in parts:
            yield from part.tables.values()
            yield from part.packs

    def read(self, file: StoredFile) -> pa.Buffer:
        """The stored bytes of a member.

        Raises:
            IntegrityError: it is missing, or its size or digest is not the one in the manifest.
        """
        buffer = self._container.read(file.path)
        where = f"{self.path}/{file.path}"
        if buffer.size != file.bytes:
            raise IntegrityError(
                f"{buffer.size} bytes, the manifest says {file.bytes}",
                code="bundle.size",
                path=where,
                requirement="ST-BND-012",
            )
        if show(blake3(memoryview(buffer) if buffer.size else b"").digest()) != file.digest:
            raise IntegrityError(
                "the bytes are not those that were written: wrong digest",
                code="bundle.digest",
                path=where,
                requirement="ST-BND-012",
            )
        return buffer

    def _table(self, stored: StoredTable) -> pa.Table:
        buffer = self.read(stored)
        where = f"{self.path}/{stored.path}"
        try:
            table = pa.ipc.open_file(pa.BufferReader(buffer)).read_all()
            table.validate(full=True)
        except (pa.ArrowInvalid, OSError) as error:
            raise _damaged(where, error) from error
        if table.num_rows != stored.rows:
            raise IntegrityError(
                f"{table.num_rows} rows, the manifest says {stored.rows}",
                code="bundle.rows",
                path=where,
                requirement="ST-BND-012",
            )
        return table

    def _tables(self, stored: Mapping[str, StoredTable], specs: Mapping[str, Table]) -> dict[str, pa.Table]:
        unknown = sorted(set(stored) - set(specs))
        if unknown:
            raise FormatError(
                f"tables that the standard does not have: {', '.join(unknown)}",
                code="bundle.table",
                path=str(self.path),
                requirement="ST-TAB-001",
            )
        return {name: self._table(table) for name, table in stored.items()}

    def _packs(self, stored: Sequence[StoredPack]) -> PackContent:
        return PackContent([(f"{self.path}/{pack.path}", self.read(pack)) for pack in stored])

    @cached_property
    def trace(self) -> Trace:
        """The trace in the bundle.

        Raises:
            UsageError: the bundle has none.
            FormatError, IntegrityError: it cannot be read.
        """
        stored = self.manifest.trace
        if stored is None:
            raise UsageError(
                "the bundle has no trace, only executions",
                code="bundle.no_trace",
                path=str(self.path),
                hint="name the bundle that was imported",
            )
        return Trace.from_arrow(self._tables(stored.tables, TRACE_TABLE), self._packs(stored.packs))

    def execution(self, name: str | None = None) -> Execution:
        """An execution in the bundle, by name; the only one if no name is given.

        Raises:
            UsageError: there is none of that name, or several and no name was given.
            FormatError, IntegrityError: it cannot be read.
        """
        names = sorted(self.manifest.executions)
        if name is None and len(names) == 1:
            name = names[0]
        if name is None or name not in names:
            wanted = f"no execution {name!r}" if name else ("several executions" if names else "no execution")
            raise UsageError(
                f"the bundle has {wanted}",
                code="bundle.execution",
                path=str(self.path),
                hint=f"it has: {', '.join(names)}; name one as PATH#NAME"
                if names
                else "replay makes one: semtrace replay",
            )
        stored = self.manifest.executions[name]
        return Execution.from_arrow(
            stored.header, self._tables(stored.tables, EXECUTION_TABLE), self._packs(stored.packs)
        )

    @property
    def info(self) -> BundleInfo:
        """What the bundle says of its making."""
        manifest = self.manifest
        return BundleInfo(
            sources=manifest.sources,
            loss=manifest.loss,
            lineage=manifest.lineage,
            licence=manifest.licence,
            notes=manifest.notes,
            extra=manifest.model_extra or {},
        )


def open_bundle(path: Path | str) -> Bundle:
    """Open a bundle: a directory or a ZIP file.

    Raises:
        UsageError: there is nothing at the path.
        FormatError: it is no bundle, or a malformed one.
        IntegrityError: the manifest was altered, or a member is missing or not named in it.
        UnsupportedError: it needs a newer reader.
    """
    return Bundle(open_container(Path(path)))


def _arrow_bytes(table: pa.Table, *, batch_rows: int | None = None, level: int = 3) -> memoryview:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=level))
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=batch_rows)
    return memoryview(sink.getvalue())


def _stored(path: str, content: memoryview) -> dict[str, Any]:
    return {"path": path, "bytes": content.nbytes, "digest": show(blake3(content).digest())}


Member = tuple[str, "bytes | memoryview"]


def _write_tables(tables: Mapping[str, Any], prefix: str, members: list[Member]) -> dict[str, StoredTable]:
    stored = {}
    for name, columns in tables.items():
        if columns.rows == 0:
            continue
        path = f"{prefix}tables/{name}.arrow"
        content = _arrow_bytes(columns.data)
        members.append((path, content))
        stored[name] = StoredTable(rows=columns.rows, **_stored(path, content))
    return stored


def _write_packs(
    wanted: Sequence[tuple[bytes, str]], content: Content, prefix: str, members: list[Member]
) -> list[StoredPack]:
    packs: list[StoredPack] = []
    batches: list[pa.RecordBatch] = []
    rows: list[tuple[bytes, str, bytes]] = []
    open_bytes = pack_bytes = 0

    def close_batch() -> None:
        nonlocal open_bytes
        if rows:
            columns = [
                pa.array(column, kind.type)
                for column, kind in zip(zip(*rows, strict=True), PACK_SCHEMA, strict=True)
            ]
            batches.append(pa.record_batch(columns, schema=PACK_SCHEMA))
            rows.clear()
            open_bytes = 0

    def close_pack() -> None:
        nonlocal pack_bytes
        close_batch()
        if batches:
            path = f"{prefix}artifacts/{len(packs):05d}.arrow"
            raw = _arrow_bytes(pa.Table.from_batches(batches), level=9)
            members.append((path, raw))
            packs.append(StoredPack(artifacts=sum(batch.num_rows for batch in batches), **_stored(path, raw)))
            batches.clear()
            pack_bytes = 0

    for digest, media_type in wanted:
        raw_content = content.get(digest)
        if raw_content is None:
            continue
        if open_bytes and open_bytes + len(raw_content) > _BATCH_BYTES:
            close_batch()
        rows.append((digest, media_type, raw_content))
        open_bytes += len(raw_content)
        pack_bytes += len(raw_content)
        if pack_bytes > _PACK_BYTES:
            close_pack()
    close_pack()
    return packs


def write_bundle(
    path: Path | str,
    trace: Trace | None = None,
    executions: Mapping[str, Execution] | None = None,
    *,
    info: BundleInfo | None = None,
    directory: bool = False,
    overwrite: bool = False,
) -> Manifest:
    """Write a bundle, all of it or nothing; the same input gives the same bytes.

    Args:
        path: where to.
        trace: the trace, if the bundle is to hold one.
        executions: executions by name (letters, digits, `.`, `_`, `-`).
        info: sources, loss report, lineage and remarks.
        directory: a directory instead of one ZIP file.
        overwrite: replace what is at the path.

    Returns:
        The manifest written.

    Raises:
        UsageError: the path exists and may not be overwritten, or cannot be written.
    """
    info = info or BundleInfo()
    members: list[Member] = []
    stored_trace = None
    if trace is not None:
        artifacts = trace["artifacts"]
        wanted = list(
            dict.fromkeys(zip(artifacts.digests(), artifacts.array("media_type").to_pylist(), strict=True))
        )
        level = ContentLevel(int(trace["trace"].ints("content_level")[0]))
        stored_trace = StoredTrace(
            work_digest=show(work_digest(trace)),
            trace_digest=show(trace_digest(trace)),
            content_level=level.name.lower(),  # type: ignore[arg-type]  # the names of the enum are the literals
            tables=_write_tables(trace.tables, "", members),
            packs=_write_packs(wanted, trace.content, "", members),
        )
    stored_executions = {}
    for name, execution in sorted((executions or {}).items()):
        prefix = f"executions/{name}/"
        digests = [(digest, "application/octet-stream") for digest in sorted(execution.content)]
        stored_executions[name] = StoredExecution(
            header=execution.header,
            execution_digest=show(execution_digest(execution)),
            detail_digests={
                table: show(detail_digest(execution, table)) for table in execution.header.detail
            },
            tables=_write_tables(execution.tables, prefix, members),
            packs=_write_packs(digests, execution.content, prefix, members),
        )
    manifest = Manifest(
        producer=Producer(name="semtrace", version=semtrace.__version__),
        trace=stored_trace,
        executions=stored_executions,
        sources=list(info.sources),
        loss=list(info.loss),
        lineage=[dict(step) for step in info.lineage],
        licence=info.licence,
        notes=info.notes,
        **info.extra,
    )
    write_container(
        Path(path), [(MANIFEST, manifest.sealed()), *members], directory=directory, overwrite=overwrite
    )
    return manifest
