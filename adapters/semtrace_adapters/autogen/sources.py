"""Files: which of them are what, and reading them line by line."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from semtrace.errors import FormatError, UsageError
from semtrace_adapters.autogen.config import TeamConfig, is_component, read_config
from semtrace_adapters.autogen.eventlog import (
    CORE_EVENTS,
    BadLine,
    Record,
    is_delivery,
    read_line,
    without_repeats,
)
from semtrace_adapters.autogen.read_stream import Stream, is_item, read_item
from semtrace_adapters.autogen.spans import SpanTree, is_span, json_values, parse_spans
from semtrace_adapters.source_lines import check_document, check_values, is_small, lines_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from semtrace_adapters.base import LossReport

_SUFFIXES: Final = {".json", ".jsonl", ".ndjson", ".log", ".txt"}
_HEAD: Final = 1 << 18
"""Bytes of a file that are looked at to tell what it is."""
_WHOLE: Final = 1 << 24
"""Bytes that a file's first document can have to be looked at; what begins a longer one is what it is known by."""
_ENOUGH: Final = 50
"""Spans or messages in a file's head that settle what it is."""
_EVENT_MARK: Final = re.compile(rb'type\\?": ?\\?"(?:LLMCall|LLMStreamEnd)\\?"')
_SPAN_MARK: Final = re.compile(r'"(?:resourceSpans|start_time)"')
_STATE_KEYS: Final = ("agent_states", "team_state", "message_thread")


@dataclass
class Sources:
    """All that was read from files."""

    records: list[Record] = field(default_factory=list)
    tree: SpanTree = field(default_factory=SpanTree)
    streams: list[Stream] = field(default_factory=list)
    configs: list[TeamConfig] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The files that are named, and those in the folders that are named, at any depth but hidden ones."""
    made: list[Path] = []
    for path in paths:
        if path.is_dir():
            inner = sorted(p for p in path.rglob("*") if p.is_file() and _may_hold_text(p.name))
            made.extend(p for p in inner if not any(q.startswith(".") for q in p.relative_to(path).parts))
        else:
            made.append(path)
    return list(dict.fromkeys(made))


def _may_hold_text(name: str) -> bool:
    """Whether a file in a folder is looked at: by its suffix, also before what rotation added (``events.log.1``)."""
    suffixes = Path(name.lower()).suffixes
    return not suffixes or not _SUFFIXES.isdisjoint(suffixes)


def _text_head(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD).decode("utf-8-sig", "replace")
    except OSError as error:
        raise UsageError(
            f"cannot be read: {error.strerror}", code="file.unreadable", path=str(path)
        ) from error


def kind_of(path: Path) -> tuple[str, int]:
    """What a file is, and how surely it is AutoGen's, in percent.

    Returns:
        ``events``, ``spans``, ``stream``, ``config``, ``state`` or ``other`` (0 percent).

    Raises:
        UsageError: it cannot be read.
    """
    head = _text_head(path)
    items = spans = 0
    for line in head.split("\n"):
        if not line.strip():
            continue
        value = _json(line)
        if is_span(value):
            spans += 1
        elif is_item(value) and not ("logger" in value or "level" in value):
            items += 1
        else:
            record = read_line(line, 0, "")
            if isinstance(record, Record) and record.event is not None:
                return "events", 95 if record.kind in CORE_EVENTS else 75
        if spans + items >= _ENOUGH:
            break
    if spans:
        return "spans", 90 if '"autogen' in head else 20
    if items:
        return "stream", 80
    found = _kind_of_document(path, head)
    return ("events", 60) if found[0] == "other" and _has_events(path) else found


def _has_events(path: Path) -> bool:
    """Whether AutoGen's events begin further on in a log of other things."""
    with path.open("rb") as file:
        tail = b""
        while block := file.read(_HEAD):
            if _EVENT_MARK.search(tail + block):
                return True
            tail = block[-64:]
    return False


def _kind_of_document(path: Path, head: str) -> tuple[str, int]:
    """The kind of a file that is one JSON document, or several of many lines."""
    first = head.lstrip()[:1]
    if not first or first not in "{[":
        return "other", 0
    value: Any = next((v for v, _ in json_values(head) if not isinstance(v, ValueError)), None)
    if value is not None and _is_spans(value):
        return "spans", 90 if '"autogen' in head else 20
    if _SPAN_MARK.search(head) and _is_large(path):
        return "spans", 90 if '"autogen' in head else 20
    value = _first_value(path)
    if is_component(value):
        return "config", 85 if "autogen" in value["provider"] else 30
    if _is_spans(value):
        return "spans", 90 if '"autogen' in head else 20
    if is_item(value) or (isinstance(value, list) and value and all(is_item(v) for v in value[:20])):
        return "stream", 80
    if isinstance(value, dict) and any(key in value for key in _STATE_KEYS):
        return "state", 40
    return "other", 0


def _is_large(path: Path) -> bool:
    """Whether a document is not to be read to learn what it is."""
    return path.stat().st_size > _WHOLE or not is_small(path.read_bytes())


def _first_value(path: Path) -> Any:
    """The first JSON value of a file, which may be longer than its head: a batch of spans, say; None of one too large."""
    with path.open("rb") as file:
        raw = file.read(_WHOLE)
    if not is_small(raw):
        return None
    text = raw.decode("utf-8-sig", "replace").lstrip()
    try:
        return json.JSONDecoder().raw_decode(text)[0]
    except (ValueError, RecursionError):
        return None


def _is_spans(value: Any) -> bool:
    return is_span(value) or (isinstance(value, list) and bool(value) and all(is_span(v) for v in value[:20]))


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def scrubbed(value: Any) -> Any:
    """The value with lone surrogates, which have no UTF-8 form, replaced by U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [scrubbed(v) for v in value]
    if isinstance(value, dict):
        return {scrubbed(k): scrubbed(v) for k, v in value.items()}
    return value


class Reader:
    """Reads files into `Sources`, with progress and a loss report."""

    def __init__(self, loss: LossReport, progress: Callable[[int, int], None] | None, total: int) -> None:
        self.loss = loss
        self.sources = Sources()
        self._progress = progress
        self._total = total
        self._read = 0
        self._names: set[str] = set()

    def read(self, path: Path, kind: str) -> None:
        """Read one file of a known kind.

        Raises:
            UsageError: it cannot be read.
            FormatError: it is one document, and broken.
        """
        name = path.name if path.name not in self._names else f"{path.parent.name}/{path.name}"
        self._names.add(path.name)
        if kind == "events":
            self._events(path, name)
        elif kind == "stream":
            self._stream(path, name)
        elif kind == "spans":
            self._spans(path, name)
        elif kind == "config":
            raw = path.read_bytes()
            check_document(raw, path)
            self.sources.configs.append(read_config(_json(raw.decode("utf-8-sig", "replace"))))
        self.sources.files.append(path)

    def finish(self) -> Sources:
        """The sources, their records in one order: by time if all have one, else file after file."""
        records = self.sources.records
        if all(r.time_ns is not None for r in records):
            records.sort(key=lambda r: (r.time_ns or 0, r.order))
        records = [replace(r, order=at) for at, r in enumerate(records)]
        self.sources.records, repeats = without_repeats(records)
        if repeats:
            self.loss.add(
                "events.repeated",
                "repaired",
                "an event was logged twice (a handler on a logger and on its parent): counted once",
                count=repeats,
            )
        if self.sources.tree.repeats:
            self.loss.add(
                "spans.repeated",
                "repaired",
                "a span stands in the files twice",
                count=self.sources.tree.repeats,
            )
        return self.sources

    def _lines(self, path: Path, name: str) -> Iterator[tuple[int, str]]:
        try:
            with path.open("rb") as file:
                for number, raw in lines_of(file, path):
                    self._advance(len(raw))
                    try:
                        line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                    except UnicodeDecodeError:
                        line = raw.decode("utf-8", "replace")
                        self.loss.add(
                            "text.encoding",
                            "repaired",
                            "bytes that are no UTF-8 were replaced",
                            where=f"{name}:{number}",
                        )
                    yield number, line
        except OSError as error:
            raise UsageError(
                f"cannot be read: {error.strerror}", code="file.unreadable", path=str(path)
            ) from error

    def _advance(self, count: int) -> None:
        self._read += count
        if self._progress:
            self._progress(self._read, self._total)

    def _clean(self, line: str, value: Any, where: str) -> Any:
        if "\\ud" not in line.lower():
            return value
        clean = scrubbed(value)
        if clean != value:
            self.loss.add(
                "text.surrogate", "repaired", "lone surrogates were replaced by U+FFFD", where=where
            )
        return clean

    def _events(self, path: Path, name: str) -> None:
        first = len(self.sources.records)
        others = 0
        for number, line in self._lines(path, name):
            record = read_line(line, first, f"{name}:{number}")
            if isinstance(record, BadLine):
                self.loss.add(
                    "events.broken",
                    "lost",
                    f"a line that cannot be read: {_kind_of_break(record)}",
                    where=record.where,
                )
            elif record is not None:
                if record.event is None:
                    others += 1
                elif is_delivery(record.event):
                    continue  # the same message was logged when it was sent; this is once for each receiver
                record = replace(record, event=self._clean(line, record.event, record.where))
                self.sources.records.append(record)
                first += 1
        if others:
            self.loss.add(
                "events.other",
                "ignored",
                "lines of the log that are no AutoGen events",
                where=name,
                count=others,
            )

    def _values(self, path: Path, name: str) -> Iterable[tuple[Any, int]]:
        """The JSON values in a file, one a line or otherwise; those that cannot be read are reported."""
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise UsageError(
                f"cannot be read: {error.strerror}", code="file.unreadable", path=str(path)
            ) from error
        self._advance(len(raw))
        before = None if is_small(raw) else lambda text, at: check_values(text, at, path)
        text = raw.decode("utf-8-sig", "replace")
        del raw
        for value, line in json_values(text, before):
            if isinstance(value, ValueError):
                self.loss.add("json.broken", "lost", "JSON that cannot be read", where=f"{name}:{line}")
            elif "\\ud" in text:
                yield self._clean("\\ud", value, f"{name}:{line}"), line
            else:
                yield value, line

    def _spans(self, path: Path, name: str) -> None:
        for value, line in self._values(path, name):
            try:
                for span in parse_spans(value):
                    self.sources.tree.add(span)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
                self.loss.add("spans.broken", "lost", "a span in no known form", where=f"{name}:{line}")

    def _stream(self, path: Path, name: str) -> None:
        stream = self._new_stream()
        for value, line in self._values(path, name):
            for item in value if isinstance(value, list) else [value]:
                if stream.ended:  # another run's stream in the same file
                    self._keep_stream(stream)
                    stream = self._new_stream()
                if not read_item(item, f"{name}:{line}", stream):
                    self.loss.add(
                        "stream.other",
                        "ignored",
                        "a value that is no message of a run",
                        where=f"{name}:{line}",
                    )
        self._keep_stream(stream)

    def _new_stream(self) -> Stream:
        return Stream(first=sum(len(s.items) for s in self.sources.streams))

    def _keep_stream(self, stream: Stream) -> None:
        if stream.items:
            self.sources.streams.append(stream)
        if stream.chunks:
            self.loss.add(
                "stream.chunks",
                "ignored",
                "streamed chunks: the messages that they make are kept",
                count=stream.chunks,
            )


def _kind_of_break(line: BadLine) -> str:
    return "an event that is cut or broken" if "cut" in line.why else "no JSON"


def nothing_read(paths: Sequence[Path], kinds: Iterable[str]) -> FormatError:
    """The error for sources in which nothing is of use."""
    shown = ", ".join(str(path) for path in paths)
    if "config" in kinds or "state" in kinds:
        return FormatError(
            "a team's config or state says what could run, not what ran",
            code="autogen.no_run",
            path=shown,
            hint="add the event log (logger autogen_core.events), the spans or the run stream",
        )
    return FormatError(
        "no AutoGen events, spans or run stream",
        code="autogen.nothing",
        path=shown,
        hint="log autogen_core.events with semtrace_adapters.autogen.handler, or export OpenTelemetry spans",
    )
