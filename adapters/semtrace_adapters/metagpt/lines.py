"""The lines of MetaGPT's logs, as loguru wrote them: its text format and its JSON sink.

Both hold the same records. The JSON sink adds what the text leaves out: microseconds, the offset of the local time
from UTC, and the process. Where both are given, a line is taken from the JSON.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from semtrace.errors import UsageError
from semtrace_adapters.source_lines import check_document, check_lines

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from semtrace_adapters.base import LossReport

HEADER: Final = re.compile(
    r"^(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) \| (?P<level>[A-Z]+) *"
    r" \| (?P<module>[\w.]+):(?P<function>[\w<>]+):(?P<line>\d+) - ",
    re.MULTILINE,
)
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Line:
    """One record of a log.

    Attributes:
        time_ns: when it was logged, in ns since 1970; of local time where `utc` is false.
        utc: whether the time is UTC.
        level: its level.
        module: the module that logged it.
        function: the function that logged it.
        message: what it says, of one line or many.
        where: file and line, for people.
        process: the process that logged it, None where the log does not say.
        text: the record in the text format.
    """

    time_ns: int
    utc: bool
    level: str
    module: str
    function: str
    message: str
    where: str
    process: int | None
    text: str


@dataclass(frozen=True)
class Log:
    """The lines of one file.

    Attributes:
        path: the file.
        lines: its records, in order.
        utc_offset_ns: what UTC is behind local time, where the file says so.
    """

    path: Path
    lines: list[Line]
    utc_offset_ns: int | None = None


def read_text(path: Path, *, document: bool = False) -> tuple[str, bool]:
    """A file's text, and whether some of it was no UTF-8 and was replaced.

    Args:
        path: the file.
        document: whether it is one JSON document, not lines.

    Raises:
        UsageError: the file cannot be read.
        FormatError: a line is too long, or the document has too many values.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot be read: {error.strerror or error}", code="source.unreadable", path=str(path)
        ) from error
    (check_document if document else check_lines)(raw, path)
    try:
        return raw.decode("utf-8"), False
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace"), True


def without_surrogates(text: str) -> str:
    """The text with each lone surrogate replaced by U+FFFD; it would have no UTF-8 form."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _ns(moment: datetime) -> int:
    """Nanoseconds since 1970; raises ValueError beyond 2200, which no log is from and 63 bits do not hold."""
    if not 1970 <= moment.year < 2200:
        raise ValueError(f"year {moment.year}")
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000


def read_text_log(path: Path, loss: LossReport, label: str | None = None) -> Log:
    """The records of a text log; a record may span many lines.

    A file copied from a terminal may hold colours and progress output; what stands before the first record is
    left out.

    Args:
        path: the file.
        loss: told of what cannot be read.
        label: how places in the file are named; by the file's name if left out.
    """
    name = label or path.name
    text, replaced = read_text(path)
    if replaced:
        loss.add("text.encoding", "repaired", "bytes that are no UTF-8 were replaced", where=name)
    if "\x1b[" in text:
        text = _COLOUR.sub("", text)
    heads = []
    for head in HEADER.finditer(text):
        try:
            moment = datetime.strptime(head["time"], "%Y-%m-%d %H:%M:%S.%f").replace(tzinfo=UTC)
            heads.append((head, _ns(moment)))
        except ValueError:
            loss.add(
                "log.time", "lost", "a record whose time is no time", where=_place(name, text, head.start())
            )
    if heads and text[: heads[0][0].start()].strip():
        loss.add("log.preamble", "ignored", "text before the first record of the log", where=f"{name}:1")
    ends = [head.start() for head, _ in heads[1:]] + [len(text)]
    lines: list[Line] = []
    number, at = 1, 0
    for (head, time_ns), end in zip(heads, ends, strict=True):
        number += text.count("\n", at, head.start())
        at = head.start()
        lines.append(
            Line(
                time_ns=time_ns,
                utc=False,
                level=head["level"],
                module=head["module"],
                function=head["function"],
                message=text[head.end() : end].removesuffix("\n"),
                where=f"{name}:{number}",
                process=None,
                text=text[head.start() : end].removesuffix("\n"),
            )
        )
    return Log(path, lines)


def _place(name: str, text: str, offset: int) -> str:
    return f"{name}:{text.count(chr(10), 0, offset) + 1}"


def read_json_log(path: Path, loss: LossReport, label: str | None = None) -> Log:
    """The records of loguru's JSON sink, one a line; see `read_text_log`."""
    name = label or path.name
    text, replaced = read_text(path)
    if replaced:
        loss.add("text.encoding", "repaired", "bytes that are no UTF-8 were replaced", where=name)
    lines: list[Line] = []
    offset: int | None = None
    for number, raw in enumerate(text.split("\n"), start=1):
        if not raw.strip():
            continue
        where = f"{name}:{number}"
        try:
            entry: dict[str, Any] = json.loads(raw)
            record = entry["record"]
            stamp = datetime.fromisoformat(record["time"]["repr"])
            message = without_surrogates(record["message"])
            if message != record["message"]:
                loss.add("text.surrogate", "repaired", "lone surrogates were replaced", where=where)
            line = Line(
                time_ns=_ns(stamp),
                utc=True,
                level=str(record["level"]["name"]),
                module=str(record["name"]),
                function=str(record["function"]),
                message=message,
                where=where,
                process=int(record["process"]["id"]),
                text=without_surrogates(entry["text"]).removesuffix("\n"),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            loss.add("log.record", "lost", "a line that is no record of loguru's JSON sink", where=where)
            continue
        behind = stamp.utcoffset()
        if offset is None and behind is not None:
            offset = (behind.days * 86_400 + behind.seconds) * 10**9
        lines.append(line)
    return Log(path, lines, offset)


def merge_logs(texts: Sequence[Log], structured: Sequence[Log], loss: LossReport) -> list[list[Line]]:
    """One list of lines for each log and process; a text log and a JSON log of the same records become one.

    Lines of a text log get the time of its JSON counterpart; those that only the text has are shifted to UTC.
    """
    merged: list[list[Line]] = []
    left = list(texts)
    for log in structured:
        known = Counter(line.text for line in log.lines)
        twin = max(left, key=lambda text: sum(line.text in known for line in text.lines), default=None)
        lines = log.lines
        if twin is not None and any(line.text in known for line in twin.lines):
            left.remove(twin)
            lines = _merge(twin, log, loss)
        merged.extend(_by_process(lines))
    merged.extend(text.lines for text in left)
    for lines in merged:
        backwards = sum(after.time_ns < before.time_ns for before, after in pairwise(lines))
        if backwards:
            loss.add(
                "log.time",
                "repaired",
                "a record's time was earlier than the record before it",
                count=backwards,
            )
    return [_forward(lines) for lines in merged if lines]


def _merge(text: Log, structured: Log, loss: LossReport) -> list[Line]:
    """The lines of both, in order; one that both have is taken from the JSON log."""
    places: dict[str, list[int]] = {}
    for at, line in enumerate(structured.lines):
        places.setdefault(line.text, []).append(at)
    merged: list[Line] = []
    taken = 0
    only_text = 0
    for line in text.lines:
        later = next((at for at in places.get(line.text, ()) if at >= taken), None)
        if later is None:
            only_text += 1
            merged.append(replace(line, time_ns=line.time_ns - (structured.utc_offset_ns or 0), utc=True))
            continue
        merged.extend(structured.lines[taken : later + 1])
        taken = later + 1
    merged.extend(structured.lines[taken:])
    if only_text:
        loss.add(
            "log.text_only",
            "estimated",
            "a record that only the text log has: its time is in whole milliseconds",
            count=only_text,
        )
    return merged


def _by_process(lines: Sequence[Line]) -> list[list[Line]]:
    """The lines apart by process; one that does not say its process stays with the line before it."""
    groups: dict[int, list[Line]] = {}
    current = next((line.process for line in lines if line.process is not None), 0)
    for line in lines:
        current = line.process if line.process is not None else current
        groups.setdefault(current, []).append(line)
    return list(groups.values())


def _forward(lines: list[Line]) -> list[Line]:
    """The lines with times that never go back: the order of a log is surer than its clock.

    A time that is later than that of the next line, while that one fits the lines before, is itself the wrong one.
    """
    latest = lines[0].time_ns
    if len(lines) > 1 and lines[1].time_ns < latest:
        latest = lines[1].time_ns
    forward = []
    for place, line in enumerate(lines):
        following = lines[place + 1].time_ns if place + 1 < len(lines) else line.time_ns
        if line.time_ns > following >= latest:
            forward.append(replace(line, time_ns=latest))
            continue
        latest = max(latest, line.time_ns)
        forward.append(line if line.time_ns == latest else replace(line, time_ns=latest))
    return forward
