"""Bundles: a trace, its artifacts and its executions in one container, every byte under a digest."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from blake3 import blake3

import semtrace
from semtrace.errors import FormatError, IntegrityError, UsageError
from semtrace.records.document import DOCUMENT_LIMIT, VALUE_LIMIT, has_too_many_values, parse_canonical
from semtrace.records.enums import Availability, ContentLevel
from semtrace.records.execution import Execution
from semtrace.records.execution_tables import EXECUTION_TABLE
from semtrace.records.trace import Content, Trace
from semtrace.records.trace_tables import TRACE_TABLE
from semtrace.store.arrow import PACK_FLOOR, TABLE_FLOOR, ArrowFile, Believed, allowance, arrow_bytes
from semtrace.store.container import MANIFEST, Container, check_output, open_container, write_container
from semtrace.store.digests import detail_digest, execution_digest, show, trace_digest, work_digest
from semtrace.store.manifest import (
    EXECUTION_NAME,
    SPEC_VERSION,
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
from semtrace.store.packs import PackContent, digest_words, make_packs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from semtrace.records.schema import Table

_SLICE: Final = 1 << 13


@dataclass(frozen=True)
class BundleInfo:
    """What a bundle says of its making, beyond the trace itself."""

    sources: Sequence[SourceFile] = ()
    loss: Sequence[Loss] = ()
    lineage: Sequence[Mapping[str, Any]] = ()
    licence: str | None = None
    notes: str | None = None
    optional_features: Sequence[str] = ()
    tokenizers: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Namespaced keys of the manifest, kept when a bundle is rewritten."""


MOST_EXECUTIONS: Final = 4096
"""Executions in a bundle: each takes some milliseconds to check (ST-BND-030)."""


class Bundle:
    """An open bundle. Members are checked against their digests when they are first read."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._claimed: dict[str, int] = {}
        self._claimed_in_all = {True: 0, False: 0}
        self.path = container.path
        where = f"{self.path}/{MANIFEST}"
        names = container.names()
        if MANIFEST not in names:
            raise FormatError(
                f"there is no {MANIFEST}",
                code="bundle.manifest",
                path=str(self.path),
                requirement="ST-BND-001",
            )
        raw = container.read(MANIFEST)
        if raw.size > DOCUMENT_LIMIT:
            raise FormatError(
                f"larger than {DOCUMENT_LIMIT} bytes",
                code="bundle.manifest",
                path=where,
                requirement="ST-BND-005",
            )
        self.manifest_bytes = stored = raw.to_pybytes()
        if has_too_many_values(stored):
            raise FormatError(
                f"more than {VALUE_LIMIT} values",
                code="bundle.manifest",
                path=where,
                requirement="ST-DOC-005",
            )
        try:
            values = parse_canonical(stored)
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
        if len(self.manifest.executions) > MOST_EXECUTIONS:
            raise FormatError(
                f"{len(self.manifest.executions):,} executions, at most {MOST_EXECUTIONS:,} can be",
                code="bundle.executions",
                path=where,
                requirement="ST-BND-030",
            )
        for execution in self.manifest.executions:
            if not EXECUTION_NAME.fullmatch(execution):
                raise FormatError(
                    f"{execution[:100]!r} cannot be the name of an execution",
                    code="bundle.execution",
                    path=where,
                    requirement="ST-BND-015",
                )
        named = {MANIFEST}
        for file in self.files():
            if file.path in named:
                raise IntegrityError(
                    f"the member {file.path[:255]} is named twice",
                    code="bundle.member",
                    path=where,
                    requirement="ST-BND-014",
                    hint="each table and pack has a member of its own",
                )
            named.add(file.path)
        for name in names:
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

    def damaged_members(self) -> list[str]:
        """Members whose content has not the checksum that the container itself states; reads everything."""
        return list(self._container.check_content())

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

    def table(self, stored: StoredTable) -> pa.Table:
        """The rows of a table's member, as Arrow has them.

        Raises:
            FormatError, IntegrityError: it is missing, is not what the manifest says, or cannot be read.
        """
        buffer = self.read(stored)
        where = f"{self.path}/{stored.path}"
        table = self._arrow(stored, buffer, pack=False).table()
        if table.num_rows != stored.rows:
            raise IntegrityError(
                f"{table.num_rows} rows, the manifest says {stored.rows}",
                code="bundle.rows",
                path=where,
                requirement="ST-BND-012",
            )
        return table

    @cached_property
    def _allowed(self) -> dict[bool, int]:
        """Bytes that all packs (`True`) and all tables (`False`) may claim, by what is there (ST-BND-025, ST-BND-026)."""
        stored = {True: 0, False: 0}
        for file in self.files():
            stored[isinstance(file, StoredPack)] += self._container.size(file.path)
        return {pack: allowance(stored[pack], PACK_FLOOR if pack else TABLE_FLOOR) for pack in (True, False)}

    def _arrow(self, stored: StoredTable | StoredPack, buffer: pa.Buffer, *, pack: bool) -> ArrowFile:
        """A member as an Arrow file, if what it claims is allowed beside what was read of its kind before.

        Raises:
            FormatError, IntegrityError: it cannot be read, or claims too much.
        """
        others = self._claimed_in_all[pack] - self._claimed.get(stored.path, 0)
        file = ArrowFile(
            buffer, f"{self.path}/{stored.path}", pack=pack, allowed=self._allowed[pack] - others
        )
        self._claimed[stored.path] = file.claimed
        self._claimed_in_all[pack] = others + file.claimed
        return file

    def _tables(self, stored: Mapping[str, StoredTable], specs: Mapping[str, Table]) -> dict[str, pa.Table]:
        unknown = sorted(set(stored) - set(specs))
        if unknown:
            raise FormatError(
                f"tables that the standard does not have: {', '.join(unknown)}",
                code="bundle.table",
                path=str(self.path),
                requirement="ST-TAB-001",
            )
        return {name: self.table(table) for name, table in stored.items()}

    def packs(self, stored: Sequence[StoredPack]) -> PackContent:
        """The content in packs.

        Raises:
            FormatError, IntegrityError: one is missing, is not what the manifest says, or cannot be read.
        """
        return PackContent(
            [(f"{self.path}/{pack.path}", self._arrow(pack, self.read(pack), pack=True)) for pack in stored]
        )

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
        return Trace.from_arrow(self._tables(stored.tables, TRACE_TABLE), self.packs(stored.packs))

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
            stored.header, self._tables(stored.tables, EXECUTION_TABLE), self.packs(stored.packs)
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
            optional_features=manifest.optional_features,
            tokenizers=manifest.tokenizers,
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


def _stored(path: str, content: memoryview) -> dict[str, Any]:
    return {"path": path, "bytes": content.nbytes, "digest": show(blake3(content).digest())}


Member = tuple[str, "bytes | memoryview"]


def _write_tables(
    tables: Mapping[str, Any], prefix: str, members: list[Member], believed: Believed
) -> dict[str, StoredTable]:
    stored = {}
    for name, columns in tables.items():
        if columns.rows == 0:
            continue
        path = f"{prefix}tables/{name}.arrow"
        content = arrow_bytes(columns.data, believed)
        members.append((path, content))
        stored[name] = StoredTable(rows=columns.rows, **_stored(path, content))
    return stored


def _write_packs(
    wanted: Iterable[tuple[bytes, str]],
    content: Content,
    prefix: str,
    members: list[Member],
    folder: Path,
    believed: Believed,
) -> list[StoredPack]:
    packs: list[StoredPack] = []
    for artifacts, raw in make_packs(wanted, content, folder, believed):
        path = f"{prefix}artifacts/{len(packs):05d}.arrow"
        members.append((path, raw))
        packs.append(StoredPack(artifacts=artifacts, **_stored(path, raw)))
    return packs


def _header(trace: Trace) -> ContentLevel:
    """The content level that the trace's only header row states."""
    levels = trace["trace"].ints("content_level")
    if len(levels) != 1 or int(levels[0]) not in {int(level) for level in ContentLevel}:
        raise FormatError(
            "must have exactly one row, with a content level of the standard",
            code="table.header",
            path="trace",
            requirement="ST-TAB-004",
        )
    return ContentLevel(int(levels[0]))


def _embedded(trace: Trace) -> Iterator[tuple[bytes, str]]:
    """Digest and media type of the artifacts that are to be in the bundle; what is withheld never gets there.

    Of artifacts with one digest, the media type is that of the first.
    """
    artifacts = trace["artifacts"]
    rows = np.flatnonzero(artifacts.ints("availability") == Availability.EMBEDDED)
    digests = artifacts.array("digest").take(pa.array(rows))
    first = np.sort(_first_of_each(digests))
    media_types = artifacts.array("media_type").take(pa.array(rows[first]))
    digests = digests.take(pa.array(first))
    for start in range(0, len(first), _SLICE):
        yield from zip(
            digests.slice(start, _SLICE).to_pylist(),
            media_types.slice(start, _SLICE).to_pylist(),
            strict=True,
        )


def _first_of_each(digests: pa.Array) -> NDArray[np.int64]:
    """The places at which the distinct digests stand first."""
    if not len(digests):
        return np.zeros(0, dtype=np.int64)
    words = digest_words(digests)
    order = np.lexsort(words.T)
    ordered = words[order]
    begins = np.append(True, (ordered[1:] != ordered[:-1]).any(axis=1))
    first: NDArray[np.int64] = order[begins]
    return first


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
        UsageError: the path exists and may not be overwritten, or cannot be written; an execution has a name that
            is not allowed.
        FormatError: the trace has no header, or a document has no canonical form.
    """
    info = info or BundleInfo()
    path = Path(path)
    check_output(path, overwrite=overwrite)
    if executions is not None and len(executions) > MOST_EXECUTIONS:
        raise UsageError(
            f"{len(executions):,} executions in one bundle, at most {MOST_EXECUTIONS:,} can be",
            code="bundle.executions",
            path=str(path),
            requirement="ST-BND-030",
            hint="write several bundles",
        )
    folder = path.parent
    members: list[Member] = []
    tables, packs = Believed(TABLE_FLOOR), Believed(PACK_FLOOR)
    stored_trace = None
    if trace is not None:
        level = _header(trace)
        stored_trace = StoredTrace(
            work_digest=show(work_digest(trace)),
            trace_digest=show(trace_digest(trace)),
            content_level=level.name.lower(),  # type: ignore[arg-type]  # the names of the enum are the literals
            tables=_write_tables(trace.tables, "", members, tables),
            packs=_write_packs(_embedded(trace), trace.content, "", members, folder, packs),
        )
    stored_executions = {}
    for name, execution in sorted((executions or {}).items()):
        if not EXECUTION_NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} cannot be the name of an execution",
                code="bundle.execution",
                hint="names are of letters, digits, '.', '_' and '-', at most 100, and begin with no '.'",
            )
        prefix = f"executions/{name}/"
        digests = [(digest, "application/octet-stream") for digest in sorted(execution.content)]
        stored_executions[name] = StoredExecution(
            header=execution.header,
            execution_digest=show(execution_digest(execution)),
            detail_digests={
                table: show(detail_digest(execution, table)) for table in execution.header.detail
            },
            tables=_write_tables(execution.tables, prefix, members, tables),
            packs=_write_packs(digests, execution.content, prefix, members, folder, packs),
        )
    manifest = Manifest(
        format="semtrace",
        spec_version=SPEC_VERSION,
        producer=Producer(name="semtrace", version=semtrace.__version__),
        trace=stored_trace,
        executions=stored_executions,
        sources=list(info.sources),
        loss=list(info.loss),
        lineage=[dict(step) for step in info.lineage],
        licence=info.licence,
        notes=info.notes,
        optional_features=list(info.optional_features),
        tokenizers=dict(info.tokenizers),
        **info.extra,
    )
    sealed = manifest.sealed()
    if len(sealed) > DOCUMENT_LIMIT or has_too_many_values(sealed):
        raise UsageError(
            f"the manifest has {len(sealed):,} bytes, more than {DOCUMENT_LIMIT:,}, or more than {VALUE_LIMIT:,} values",
            code="bundle.manifest",
            path=str(path),
            requirement="ST-BND-005",
            hint="arrivals drawn for millions of instances do not fit into an execution's header: replay fewer copies",
        )
    write_container(path, [(MANIFEST, sealed), *members], directory=directory, overwrite=overwrite)
    return manifest


def rewrite_bundle(
    bundle: Bundle, path: Path | str, *, directory: bool = False, overwrite: bool = False
) -> Manifest:
    """Write an open bundle in the other form; every stored byte is checked and stays as it is.

    Raises:
        IntegrityError: a member is not what the manifest says.
        UsageError: the path exists and may not be overwritten, or cannot be written.
    """
    members: list[Member] = [(MANIFEST, bundle.manifest_bytes)]
    members.extend((file.path, memoryview(bundle.read(file))) for file in bundle.files())
    write_container(Path(path), members, directory=directory, overwrite=overwrite)
    return bundle.manifest
