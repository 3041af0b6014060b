"""A bundle as a record stream, and back: the same tables, digests, executions, content and facts (ST-STR-040 …)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field

from semtrace.errors import DocumentError, FormatError, IntegrityError, UnsupportedError, UsageError
from semtrace.records.document import (
    DOCUMENT_LIMIT,
    VALUE_LIMIT,
    Digest,
    Document,
    empty_dict,
    empty_list,
    has_too_many_values,
    parse_canonical,
)
from semtrace.records.enums import Availability
from semtrace.records.execution import Execution, ExecutionHeader
from semtrace.records.execution_tables import EXECUTION_TABLE, EXECUTION_TABLES
from semtrace.records.trace import Content, Trace
from semtrace.records.trace_tables import TRACE_TABLES
from semtrace.store.bundle import BundleInfo
from semtrace.store.container import replacing
from semtrace.store.digests import detail_digest, execution_digest, show, trace_digest, work_digest
from semtrace.store.manifest import (
    EXECUTION_NAME,
    FEATURES,
    SPEC_VERSION,
    Loss,
    SourceFile,
    SpecVersion,
)
from semtrace.stream import wire
from semtrace.stream.content import PART_BYTES, StreamContent
from semtrace.stream.messages import TABLE_OF, RowReader, parse_record, row_payloads
from semtrace.stream.scan import Scan
from semtrace.stream.writer import StreamWriter
from semtrace.v1 import stream_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from semtrace.v1.stream_pb2 import Record

_BATCH_BYTES: Final = 1 << 20
_BATCH_RECORDS: Final = 1 << 12
_NAMES: Final = frozenset(EXECUTION_TABLE)


class TraceFacts(Document):
    """Digests of the trace in a stream."""

    work_digest: Digest
    trace_digest: Digest


class ExecutionFacts(Document):
    """Header and digests of an execution in a stream."""

    header: ExecutionHeader
    execution_digest: Digest
    detail_digests: dict[str, Digest] = Field(default_factory=empty_dict)


class StreamFacts(Document):
    """What a bundle says of itself, as a stream holds it: its manifest without what is about stored files.

    Attributes:
        spec_version: the version of the standard.
        required_features: what a reader must know to read it.
        optional_features: what a reader may know.
        trace: digests of the trace, if there is one.
        executions: headers and digests of the executions, by name.
        tokenizers: by name, the digest of a tokenizer.
        sources: what the trace was made of.
        loss: the loss report.
        lineage: what traces it was filtered, merged or subsampled from.
        licence, notes: for people.
    """

    spec_version: SpecVersion
    required_features: list[str] = Field(default_factory=empty_list)
    optional_features: list[str] = Field(default_factory=empty_list)
    trace: TraceFacts | None = None
    executions: dict[str, ExecutionFacts] = Field(
        default_factory=empty_dict,
        json_schema_extra={"propertyNames": {"pattern": f"^{EXECUTION_NAME.pattern}$"}},
    )
    tokenizers: dict[str, Digest] = Field(default_factory=empty_dict)
    sources: list[SourceFile] = Field(default_factory=empty_list)
    loss: list[Loss] = Field(default_factory=empty_list)
    lineage: list[dict[str, Any]] = Field(default_factory=empty_list)
    licence: str | None = None
    notes: str | None = None


@dataclass(frozen=True)
class StreamBundle:
    """What an exchange stream holds: all that `write_bundle` takes."""

    trace: Trace | None
    executions: dict[str, Execution] = field(default_factory=dict)
    info: BundleInfo = field(default_factory=BundleInfo)


def write_stream(
    path: Path,
    trace: Trace | None = None,
    executions: Mapping[str, Execution] | None = None,
    *,
    info: BundleInfo | None = None,
    overwrite: bool = False,
) -> int:
    """Write an exchange stream, all of it or nothing; the same input gives the same bytes.

    Args:
        path: where to.
        trace: the trace, if the stream is to hold one.
        executions: executions by name.
        info: sources, loss report, lineage and remarks.
        overwrite: replace what is at the path.

    Returns:
        How many records were written.

    Raises:
        UsageError: the path exists and may not be overwritten, or cannot be written.
        FormatError: a document has no canonical form.
        IntegrityError: the content of an artifact cannot be read.
    """
    executions = dict(sorted((executions or {}).items()))
    facts = facts_of(trace, executions, info or BundleInfo())
    with replacing(path, overwrite=overwrite) as temporary:
        try:
            with StreamWriter(temporary, form=wire.EXCHANGE) as writer:
                for batch in _batches(_payloads(facts, trace, executions)):
                    writer.append_all(batch)
        except UsageError as error:
            error.path = str(path)
            raise
    return writer.records


def facts_of(trace: Trace | None, executions: Mapping[str, Execution], info: BundleInfo) -> StreamFacts:
    """What a stream of these says of itself, digests computed."""
    stated = None
    if trace is not None:
        stated = TraceFacts(work_digest=show(work_digest(trace)), trace_digest=show(trace_digest(trace)))
    runs = {
        name: ExecutionFacts(
            header=execution.header,
            execution_digest=show(execution_digest(execution)),
            detail_digests={
                table: show(detail_digest(execution, table)) for table in execution.header.detail
            },
        )
        for name, execution in executions.items()
    }
    return StreamFacts(
        spec_version=SPEC_VERSION,
        trace=stated,
        executions=runs,
        sources=list(info.sources),
        loss=list(info.loss),
        lineage=[dict(step) for step in info.lineage],
        licence=info.licence,
        notes=info.notes,
        optional_features=list(info.optional_features),
        tokenizers=dict(info.tokenizers),
        **info.extra,
    )


def _payloads(
    facts: StreamFacts, trace: Trace | None, executions: Mapping[str, Execution]
) -> Iterator[bytes]:
    yield wire.bytes_field(wire.FACTS, stream_pb2.BundleFacts(json=facts.canonical()).SerializeToString())
    if trace is not None:
        for spec in TRACE_TABLES:
            yield from row_payloads(trace[spec.name])
        artifacts = trace["artifacts"]
        embedded = artifacts.ints("availability") == Availability.EMBEDDED
        held = dict.fromkeys(digest for row, digest in enumerate(artifacts.digests()) if embedded[row])
        yield from _content_payloads(held, trace.content)
    for name, execution in executions.items():
        yield wire.bytes_field(wire.EXECUTION, stream_pb2.ExecutionHead(name=name).SerializeToString())
        for spec in EXECUTION_TABLES:
            yield from row_payloads(execution[spec.name])
        yield from _content_payloads(sorted(execution.content), execution.content)


def _content_payloads(digests: Iterable[bytes], content: Content) -> Iterator[bytes]:
    for digest in digests:
        raw = content.get(digest)
        if raw is None:
            continue
        for offset in range(0, len(raw) or 1, PART_BYTES):
            part = stream_pb2.Content(
                digest=digest, size=len(raw), offset=offset, data=raw[offset : offset + PART_BYTES]
            )
            yield wire.bytes_field(wire.CONTENT, part.SerializeToString())


def _batches(payloads: Iterable[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for payload in payloads:
        batch.append(payload)
        size += len(payload)
        if size >= _BATCH_BYTES or len(batch) >= _BATCH_RECORDS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def read_stream(path: Path) -> StreamBundle:
    """Read an exchange stream.

    Content of artifacts stays in the file and is read from there when it is asked for.

    Raises:
        UsageError: it cannot be read, or is a capture.
        FormatError: it is no exchange stream, or one that is not valid.
        IntegrityError: it is damaged or cut short, or its tables do not have the digests that it states.
        UnsupportedError: it needs a newer reader.
    """
    reader = _Reader(path)
    scan = Scan(path)
    for raw in scan:
        where = f"{path}, byte {raw.offset}"
        record, body = parse_record(raw.payload, where)
        reader.take(record, body, raw.ordinal, raw.offset, len(raw.payload))
    if scan.torn is not None or not reader.ended:
        raise IntegrityError(
            f"the stream is cut short after {scan.records} records"
            + (f": {scan.torn.message}" if scan.torn is not None else ", at the end of one"),
            code="stream.truncated",
            path=str(path),
            requirement="ST-STR-041",
            hint="convert the bundle again",
        )
    return reader.finish()


class _Reader:
    """Collects the records of an exchange stream."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ended = False
        self._facts: StreamFacts | None = None
        self._tables = {spec.name: RowReader(spec) for spec in TRACE_TABLES}
        self._content = StreamContent(path)
        self._runs: dict[str, dict[str, RowReader]] = {}
        self._run_content: dict[str, StreamContent] = {}
        self._run: str | None = None

    def take(self, record: Record, body: str, ordinal: int, offset: int, size: int) -> None:
        """Take the next record."""
        where = f"{self.path}, byte {offset}"
        if self.ended:
            raise _invalid("a record after the end of the stream", where, "ST-STR-021")
        if (body == "head") != (ordinal == 0) or (body == "facts") != (ordinal == 1):
            raise _invalid(
                f"record {ordinal} is {body}: the head is record 0 of a stream, and no other; the facts are "
                "record 1 of an exchange stream, and no other",
                where,
                "ST-STR-020",
            )
        if record.HasField("id"):
            raise _invalid("a record of the exchange form with an id", where, "ST-STR-042")
        table = TABLE_OF.get(body)
        if table is not None:
            readers = self._tables if self._run is None else self._runs[self._run]
            if table.name not in readers:
                raise _invalid(f"a row of {table.name} in the wrong part of the stream", where, "ST-STR-043")
            readers[table.name].add(getattr(record, body), size)
        elif body == "content":
            (self._content if self._run is None else self._run_content[self._run]).add(record.content, offset)
        elif body == "head":
            _check_form(record.head.form, self.path)
        elif body == "facts":
            self._facts = _parse_facts(record.facts.json, where)
        elif body == "execution":
            self._begin(record.execution.name, where)
        elif body == "end":
            self.ended = True
            if record.end.records != ordinal:
                raise _invalid(
                    f"the end states {record.end.records} records, there are {ordinal}", where, "ST-STR-021"
                )
        else:
            raise _invalid(f"{body} is of captures only", where, "ST-STR-043")

    def _begin(self, name: str, where: str) -> None:
        if self._facts is None or name not in self._facts.executions or name in self._runs:
            raise _invalid(f"execution {name!r} is not in the facts, or begins twice", where, "ST-STR-044")
        self._runs[name] = {spec.name: RowReader(spec) for spec in EXECUTION_TABLES}
        self._run_content[name] = StreamContent(self.path)
        self._run = name

    def finish(self) -> StreamBundle:
        """What the records make, its digests checked."""
        facts = self._facts
        if facts is None:
            raise _invalid("the stream has no facts", str(self.path), "ST-STR-020")
        if set(self._runs) != set(facts.executions):
            missing = ", ".join(sorted(set(facts.executions) - set(self._runs)))
            raise _invalid(
                f"executions that the facts state are missing: {missing}", str(self.path), "ST-STR-044"
            )
        for content in (self._content, *self._run_content.values()):
            for digest in content.finish():
                raise _invalid(f"content {show(digest)} is not complete", str(self.path), "ST-STR-046")
        tables = {name: reader.table() for name, reader in self._tables.items()}
        if facts.trace is None and (any(table.num_rows for table in tables.values()) or list(self._content)):
            raise _invalid(
                "rows of a trace, and no digests of one in the facts", str(self.path), "ST-STR-044"
            )
        trace = None
        if facts.trace is not None:
            trace = Trace.from_arrow(tables, self._content)
            self._same("work", work_digest(trace), facts.trace.work_digest)
            self._same("trace", trace_digest(trace), facts.trace.trace_digest)
        executions = {}
        for name, stated in facts.executions.items():
            execution = Execution.from_arrow(
                stated.header,
                {table: reader.table() for table, reader in self._runs[name].items()},
                self._run_content[name],
            )
            self._same(f"execution {name}", execution_digest(execution), stated.execution_digest)
            for table in _details(stated, str(self.path)):
                self._same(f"{name}.{table}", detail_digest(execution, table), stated.detail_digests[table])
            executions[name] = execution
        info = BundleInfo(
            sources=facts.sources,
            loss=facts.loss,
            lineage=facts.lineage,
            licence=facts.licence,
            notes=facts.notes,
            optional_features=facts.optional_features,
            tokenizers=facts.tokenizers,
            extra=facts.model_extra or {},
        )
        return StreamBundle(trace, executions, info)

    def _same(self, what: str, found: bytes, stated: str) -> None:
        if show(found) != stated:
            raise IntegrityError(
                f"the {what} digest is {show(found)}, the facts state {stated}",
                code="stream.digest",
                path=str(self.path),
                requirement="ST-STR-045",
            )


def _details(stated: ExecutionFacts, where: str) -> list[str]:
    if set(stated.detail_digests) != set(stated.header.detail) or not set(stated.header.detail) <= _NAMES:
        raise _invalid(
            "the details of an execution are not those that its digests are of", where, "ST-STR-044"
        )
    return stated.header.detail


def _check_form(form: int, path: Path) -> None:
    if form == wire.CAPTURE:
        raise UsageError(
            "a capture, not an exchange stream",
            code="stream.form",
            path=str(path),
            hint=f"make a bundle of it: semtrace seal {path} -o OUT.semtrace",
        )
    if form != wire.EXCHANGE:
        raise _invalid(f"a stream of form {form}", str(path), "ST-STR-020")


def _parse_facts(raw: bytes, where: str) -> StreamFacts:
    if len(raw) > DOCUMENT_LIMIT or has_too_many_values(raw):
        raise _invalid(
            f"facts of more than {DOCUMENT_LIMIT} bytes or {VALUE_LIMIT} values", where, "ST-DOC-005"
        )
    try:
        values = parse_canonical(raw)
    except (ValueError, RecursionError) as error:
        raise _invalid(f"the facts are not JSON: {error}", where, "ST-STR-044") from error
    if not isinstance(values, dict):
        raise _invalid("the facts are not a JSON object", where, "ST-STR-044")
    version = str(values.get("spec_version", ""))
    if not version.startswith("1."):
        raise UnsupportedError(
            f"written for version {version} of the standard, this reads {SPEC_VERSION}",
            code="stream.version",
            path=where,
            requirement="ST-EVO-001",
        )
    needed = values.get("required_features")
    unknown = sorted(set(map(str, needed)) - FEATURES) if isinstance(needed, list) else []
    if unknown:
        raise UnsupportedError(
            f"needs features that this reader does not have: {', '.join(unknown)}",
            code="stream.feature",
            path=where,
            requirement="ST-EVO-002",
        )
    try:
        return StreamFacts.parse(values, path=where)
    except DocumentError as error:  # nobody wrote it by hand: the stream is at fault, not its user
        raise _invalid(error.message, where, "ST-STR-044") from error


def _invalid(message: str, where: str, requirement: str) -> FormatError:
    return FormatError(message, code="stream.invalid", path=where, requirement=requirement)
