"""Reading captures: what recorders wrote, its records merged by id, whatever of it is there (ST-STR-050 …)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from semtrace.errors import FormatError, UsageError
from semtrace.stream import wire
from semtrace.stream.messages import parse_record
from semtrace.stream.scan import Damage, Scan

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from semtrace.v1.stream_pb2 import Record, SourceRecord, StreamHead

NEEDS_ID: Final = {
    "task": "tasks",
    "stage": "stages",
    "session": "sessions",
    "model": "models",
    "operation": "operations",
    "state": "states",
    "state_version": "state_versions",
    "captured_artifact": "artifacts",
}
"""Bodies that must have an id, and the table that references to them name."""
MAY_HAVE_ID: Final = {"segment": "segments"}
NO_ID: Final = frozenset({"edge", "state_access", "annotation", "event", "trace_header"})
_TIMES: Final = {
    "task": ("arrival_ns", "deadline_ns"),
    "event": ("ready_ns", "released_ns", "submitted_ns", "scheduled_ns", "first_token_ns", "finished_ns"),
}


@dataclass(frozen=True)
class Row:
    """A row in a capture: its message, the recorder's id if it has one, and where it first stands."""

    message: Any
    id: int | None
    where: str


@dataclass
class CaptureFile:
    """One capture, as it lies in its file.

    Attributes:
        path: the file.
        head: who wrote it; None where it is lost.
        rows: what states rows, with its member of the body and where it stands.
        sources: pieces of what the program itself gave out; those that later ones replace are left out.
        gaps: records that could not be written, by reason.
        closed: whether the recorder closed it.
        torn: its torn tail, if any.
        damage: its places of damage.
        records: records read.
    """

    path: Path
    head: StreamHead | None = None
    rows: list[tuple[Record, str, str]] = field(default_factory=list)
    sources: list[SourceRecord] = field(default_factory=list)
    gaps: dict[str, int] = field(default_factory=dict)
    closed: bool = False
    torn: Damage | None = None
    damage: list[Damage] = field(default_factory=list)
    records: int = 0

    @property
    def whole(self) -> bool:
        """Whether all that was recorded is here."""
        return self.closed and not self.damage and not self.gaps


def read_capture(path: Path, *, recover: bool = False) -> CaptureFile:
    """Read one capture.

    Args:
        path: the file.
        recover: take what is whole of a damaged file, instead of raising.

    Raises:
        UsageError: it cannot be read, or is an exchange stream.
        FormatError: it is no capture, or one that is not valid.
        IntegrityError: it is damaged, and `recover` is not set.
        UnsupportedError: it needs a newer reader.
    """
    made = CaptureFile(path)
    scan = Scan(path, recover=recover)
    replaced: dict[tuple[str, str], int] = {}
    sources: list[SourceRecord | None] = []
    for raw in scan:
        where = f"{path}, byte {raw.offset}"
        record, body = parse_record(raw.payload, where)
        if made.closed:
            raise invalid("a record after the end of the stream", where, "ST-STR-021")
        if (body == "head") != (raw.ordinal == 0):
            raise invalid(f"record {raw.ordinal} is {body}; the head is record 0", where, "ST-STR-020")
        if body == "head":
            _check_head(record.head, path)
            made.head = record.head
        elif body == "end":
            if record.end.records != raw.ordinal:
                raise invalid(
                    f"the end states {record.end.records} records, there are {raw.ordinal}",
                    where,
                    "ST-STR-021",
                )
            made.closed = True
        elif body == "gap":
            reason = record.gap.reason
            made.gaps[reason] = made.gaps.get(reason, 0) + record.gap.records
        elif body == "source":
            key = (record.source.name, record.source.key)
            if record.source.key:
                if key in replaced:
                    sources[replaced[key]] = None
                replaced[key] = len(sources)
            sources.append(record.source)
        elif body in NEEDS_ID or body in MAY_HAVE_ID or body in NO_ID:
            _check_id(record, body, where)
            made.rows.append((record, body, where))
        else:
            raise invalid(f"{body} is of the exchange form only", where, "ST-STR-052")
    made.sources = [source for source in sources if source is not None]
    made.torn, made.damage, made.records = scan.torn, scan.damage, scan.records
    return made


def _check_head(head: StreamHead, path: Path) -> None:
    if head.form == wire.EXCHANGE:
        raise UsageError(
            "an exchange stream, not a capture",
            code="stream.form",
            path=str(path),
            hint=f"make a bundle of it: semtrace convert {path} -o OUT.semtrace",
        )
    if head.form != wire.CAPTURE or len(head.run) != 16:
        raise invalid(f"a stream of form {head.form}, run of {len(head.run)} bytes", str(path), "ST-STR-020")


def _check_id(record: Record, body: str, where: str) -> None:
    if body in NEEDS_ID and not record.HasField("id"):
        raise invalid(f"{body} without an id", where, "ST-STR-051")
    if body in NO_ID and record.HasField("id"):
        raise invalid(f"{body} with an id, which it cannot have", where, "ST-STR-051")


@dataclass
class Capture:
    """The rows of one run, from all of its captures: merged by id, times from one origin.

    Attributes:
        header: columns of the trace's header row that captures state.
        rows: by member of the body, the rows in the order in which they first stand.
        whole: whether all that was recorded is here.
    """

    header: dict[str, Any]
    rows: dict[str, list[Row]]
    whole: bool


def merge_captures(files: Sequence[CaptureFile]) -> Capture:
    """Put the rows of the captures of one run together.

    Raises:
        FormatError: the captures contradict each other.
    """
    origins = {file.path: _origin(file) for file in files if file.rows}
    if len(set(origins.values())) > 1 and None in origins.values():
        without = next(path for path, origin in origins.items() if origin is None)
        raise invalid(
            "no origin of its times, other captures of the run have one", str(without), "ST-STR-055"
        )
    origin = min((at for at in origins.values() if at is not None), default=None)
    header = {"origin_unix_ns": origin} | _header(files)
    rows: dict[str, list[Row]] = {body: [] for body in (*NEEDS_ID, *MAY_HAVE_ID, *sorted(NO_ID))}
    known: dict[tuple[str, int], Row] = {}
    for file in files:
        own = origins.get(file.path)
        shift = own - origin if own is not None and origin is not None else 0
        for record, body, where in file.rows:
            message = getattr(record, body)
            for name in _TIMES.get(body, ()) if shift else ():
                if message.HasField(name):
                    setattr(message, name, getattr(message, name) + shift)
            identity = record.id if record.HasField("id") else None
            merged = known.get((body, identity)) if identity is not None else None
            if merged is not None:
                merged.message.MergeFrom(message)
                continue
            row = Row(message, identity, where)
            rows[body].append(row)
            if identity is not None:
                known[body, identity] = row
    return Capture(header, rows, all(file.whole for file in files))


def _origin(file: CaptureFile) -> int | None:
    stated = {
        record.trace_header.origin_unix_ns
        for record, body, _ in file.rows
        if body == "trace_header" and record.trace_header.HasField("origin_unix_ns")
    }
    if len(stated) > 1:
        raise invalid("two origins of its times", str(file.path), "ST-STR-055")
    return stated.pop() if stated else None


def _header(files: Sequence[CaptureFile]) -> dict[str, Any]:
    """Content level, block size and hash scope, which all captures that state them state alike."""
    found: dict[str, Any] = {}
    for file in files:
        for record, body, where in file.rows:
            if body != "trace_header":
                continue
            for descriptor, value in record.trace_header.ListFields():
                if descriptor.name == "origin_unix_ns":
                    continue
                if found.setdefault(descriptor.name, value) != value:
                    raise invalid(
                        f"{descriptor.name} is {value}, elsewhere {found[descriptor.name]}",
                        where,
                        "ST-STR-055",
                    )
    return found


def invalid(message: str, where: str, requirement: str) -> FormatError:
    """The error for a capture that is not valid."""
    return FormatError(message, code="stream.invalid", path=where, requirement=requirement)
