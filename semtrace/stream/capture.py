"""Reading captures: what recorders wrote, its records merged by id, whatever of it is there (ST-STR-050 …)."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow.compute as pc
from blake3 import blake3

from semtrace.build.delays import MAX_TIME_NS
from semtrace.errors import FormatError, UsageError
from semtrace.stream import wire
from semtrace.stream.gather import Gathered, Rows
from semtrace.stream.messages import parse_record
from semtrace.stream.scan import Damage, Scan, payload_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
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
_REASONS: Final = 1000
"""Reasons of gaps that are told apart."""
_TIMES: Final = {
    "task": ("arrival_ns", "deadline_ns"),
    "event": ("ready_ns", "released_ns", "submitted_ns", "scheduled_ns", "first_token_ns", "finished_ns"),
}


class Sources:
    """The pieces of what a program itself gave out, in one capture: each read from the file when it is asked for.

    Those that a later one of the same file and key replaces are left out (ST-STR-065).

    Attributes:
        adapters: the adapters that they are for.
    """

    def __init__(self, path: Path) -> None:
        self.adapters: set[str] = set()
        self._path = path
        self._offsets = array("q")
        self._latest: dict[bytes, int] = {}
        self._replaced: list[int] = []

    def add(self, source: SourceRecord, offset: int) -> None:
        """Take note of a piece.

        Args:
            source: the piece.
            offset: the byte at which its record begins.
        """
        if source.key:
            name = blake3(f"{source.name}\0{source.key}".encode()).digest(16)
            if name in self._latest:
                self._offsets[self._latest[name]] = -1
            self._latest[name] = len(self._offsets)
        self.adapters.add(source.adapter)
        self._offsets.append(offset)

    def __len__(self) -> int:
        return sum(offset >= 0 for offset in self._offsets)

    def __iter__(self) -> Iterator[SourceRecord]:
        """The pieces in order.

        Raises:
            UsageError: the file cannot be read any more.
            IntegrityError: it was changed since it was read.
        """
        try:
            with self._path.open("rb") as file:
                for offset in self._offsets:
                    if offset >= 0:
                        payload = payload_at(file, offset, self._path)
                        yield parse_record(payload, f"{self._path}, byte {offset}")[0].source
        except OSError as error:
            raise UsageError(
                f"cannot be read: {error.strerror}", code="file.unreadable", path=str(self._path)
            ) from error


@dataclass
class CaptureFile:
    """One capture, as it lies in its file.

    Attributes:
        path: the file.
        head: who wrote it; None where it is lost.
        rows: what states rows, by member of the body; `merge_captures` takes them away.
        sources: pieces of what the program itself gave out.
        gaps: records that could not be written, by reason.
        closed: whether the recorder closed it.
        torn: its torn tail, if any.
        damage: its places of damage.
        records: records read.
    """

    path: Path
    sources: Sources
    head: StreamHead | None = None
    rows: dict[str, Gathered] = field(default_factory=dict)
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
    made = CaptureFile(path, Sources(path))
    scan = Scan(path, recover=recover)
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
            if reason not in made.gaps and len(made.gaps) >= _REASONS:
                reason = "other reasons"
            made.gaps[reason] = made.gaps.get(reason, 0) + record.gap.records
        elif body == "source":
            made.sources.add(record.source, raw.offset)
        elif body in NEEDS_ID or body in MAY_HAVE_ID or body in NO_ID:
            _check_id(record, body, where)
            rows = made.rows.get(body)
            if rows is None:
                rows = made.rows[body] = Gathered(body)
            rows.add(record, raw.offset, len(raw.payload))
        else:
            raise invalid(f"{body} is of the exchange form only", where, "ST-STR-052")
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
    rows: dict[str, Rows]
    whole: bool


def merge_captures(files: Sequence[CaptureFile]) -> Capture:
    """Put the rows of the captures of one run together; the captures give them away.

    Raises:
        FormatError: the captures contradict each other, or a time is too great.
    """
    stating = [file for file in files if file.rows]
    header: dict[str, Any] = {}
    origins = {file.path: _header(file, header) for file in stating}
    if len(set(origins.values())) > 1 and None in origins.values():
        without = next(path for path, origin in origins.items() if origin is None)
        raise invalid(
            "no origin of its times, other captures of the run have one", str(without), "ST-STR-055"
        )
    origin = min((at for at in origins.values() if at is not None), default=None)
    rows: dict[str, Rows] = {}
    for body in (*NEEDS_ID, *MAY_HAVE_ID, *sorted(NO_ID - {"trace_header"})):
        having = [file for file in stating if body in file.rows]
        rows[body] = Rows(body, [(file.path, file.rows.pop(body)) for file in having])
        for at, file in enumerate(having):
            own = origins[file.path]
            shift = own - origin if own is not None and origin is not None else 0
            for name in _TIMES.get(body, ()):
                late = rows[body].shift(at, name, shift, MAX_TIME_NS)
                if late is not None:
                    raise invalid(
                        f"{name} is 73 years or more away from the origin",
                        rows[body].where_record(late),
                        "ST-STR-055",
                    )
    return Capture({"origin_unix_ns": origin} | header, rows, all(file.whole for file in files))


def _header(file: CaptureFile, found: dict[str, Any]) -> int | None:
    """The origin that a capture states; its other columns, which all that state them must state alike, go to `found`."""
    gathered = file.rows.pop("trace_header", None)
    if gathered is None:
        return None
    rows = Rows("trace_header", [(file.path, gathered)])
    for name in rows.names:
        if name == "origin_unix_ns":
            continue
        records, values = rows.stated(name)
        for value in values.unique().to_pylist():
            if found.setdefault(name, value) != value:
                at = pc.index(values, value).as_py()
                raise invalid(
                    f"{name} is {value}, elsewhere {found[name]}",
                    rows.where_record(int(records[at])),
                    "ST-STR-055",
                )
    stated, known = rows.numbers("origin_unix_ns")
    distinct = np.unique(stated[known])
    if len(distinct) > 1:
        raise invalid("two origins of its times", str(file.path), "ST-STR-055")
    return int(distinct[0]) if len(distinct) else None


def invalid(message: str, where: str, requirement: str) -> FormatError:
    """The error for a capture that is not valid."""
    return FormatError(message, code="stream.invalid", path=where, requirement=requirement)
