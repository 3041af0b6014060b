"""Reading AutoGen's event log as users really write it: one record per line, in many dresses.

AutoGen logs an event as an object whose ``str()`` is JSON. What ends up in a file depends on the application's
logging: the bare JSON, the JSON behind a prefix of ``logging.Formatter``, a JSON object of a JSON formatter that
holds the event as an object or as a string, or the ``repr`` of agentchat's events. All are read; what is no event
is kept as text where it says something (the SDK's retries), and else counted.
"""

from __future__ import annotations

import ast
import io
import itertools
import json
import re
import tokenize
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semtrace_adapters.autogen.times import parse_stamp, unix_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CORE_EVENTS = frozenset(
    {
        "LLMCall",
        "LLMStreamStart",
        "LLMStreamEnd",
        "ToolCall",
        "Message",
        "MessageDropped",
        "MessageHandlerException",
        "AgentConstructionException",
    }
)
AGENT_EVENTS = frozenset({"ToolCallRequestEvent", "ToolCallExecutionEvent"})

_DECODER = json.JSONDecoder()
_TYPE = re.compile(r'"type": ?"')
_TRIES = 100
"""Braces in a line at which an event is looked for: what stands before it has few."""

_TIME_KEYS = ("time_unix_ns", "ts", "created", "timestamp", "time", "asctime", "@timestamp", "datetime")
_EVENT_KEYS = ("event", "data", "message", "msg", "record", "body")
_RETRY = re.compile(r"Retrying request (?:to \S+ )?in (?P<wait>[\d.]+) seconds")
_REPR = re.compile(r"(?P<name>ToolCall(?:Request|Execution)Event)\(")
_STR = re.compile(r"id='[^']*' source=.*type='(?P<name>ToolCall(?:Request|Execution)Event)'", re.DOTALL)
_QUOTED = re.compile(r"'[^'\\]*+(?:\\.[^'\\]*+)*+'|\"[^\"\\]*+(?:\\.[^\"\\]*+)*+\"", re.DOTALL)
_MOST_BARE = 1 << 18
"""Characters of a ``repr`` outside of its texts: each can become an object of some hundred bytes."""


@dataclass(frozen=True)
class Record:
    """One record of an event log.

    Attributes:
        order: its place in the log, over all files.
        where: file and line, for messages.
        time_ns: Unix nanoseconds of its creation, None where the log has no times.
        zoned: whether the time's offset from UTC is known.
        event: the event, None where the record is text.
        text: the text, None where the record is an event.
        task: the asyncio task that was current, where the handler noted it.
        span_id: the OpenTelemetry span that was current, as 16 hex digits, where the handler noted it.
    """

    order: int
    where: str
    time_ns: int | None
    zoned: bool
    event: dict[str, Any] | None
    text: str | None
    task: str | None = None
    span_id: str | None = None

    @property
    def kind(self) -> str:
        """The event's type; empty for text."""
        return str(self.event.get("type", "")) if self.event else ""


@dataclass(frozen=True)
class BadLine:
    """A line that holds the beginning of an event and cannot be read."""

    where: str
    why: str


def is_event(value: Any) -> bool:
    """Whether a JSON value is an AutoGen event: an object of a known type, and a message that tells its stage."""
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in CORE_EVENTS | AGENT_EVENTS:
        return False
    return kind != "Message" or "delivery_stage" in value


def is_delivery(event: dict[str, Any]) -> bool:
    """Whether an event tells that a message reached a receiver."""
    return str(event.get("delivery_stage", "")).endswith("DELIVER")


def as_event(value: Any) -> dict[str, Any] | None:
    """The value as an AutoGen event: an object of a known type, its JSON, or agentchat's repr."""
    if isinstance(value, str):
        stripped = value.strip()
        if stripped.startswith("{"):
            try:
                value = json.loads(stripped)
            except ValueError:
                return None
        else:
            return _from_repr(stripped)
    return value if is_event(value) else None


def retry_wait_s(text: str) -> float | None:
    """Seconds that the OpenAI SDK says it waits before it retries a request; None for any other text."""
    found = _RETRY.search(text)
    return float(found["wait"]) if found else None


def _from_repr(text: str) -> dict[str, Any] | None:
    """An agentchat event from its ``repr``, or from the ``str`` of the pydantic model."""
    found = _REPR.search(text)
    if len(text) > _MOST_BARE and len(_QUOTED.sub("", text)) > _MOST_BARE:
        return None
    if found:
        source = text[found.start() :]
    elif _STR.match(text):
        source = f"_({_with_commas(text)})"
    else:
        return None
    try:
        event = _literal(ast.parse(source, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return event if isinstance(event, dict) and event.get("type") in AGENT_EVENTS else None


def _with_commas(text: str) -> str:
    """``a=1 b=2`` as ``a=1,b=2``: pydantic's ``str`` of a model, made an argument list."""
    depth, parts, starts = 0, [], []
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text.replace("\n", " ")).readline))
    except (tokenize.TokenError, SyntaxError):
        return text
    for token, follower in itertools.pairwise(tokens):
        if token.string in "([{" and token.type == tokenize.OP:
            depth += 1
        elif token.string in ")]}" and token.type == tokenize.OP:
            depth -= 1
        elif depth == 0 and token.type == tokenize.NAME and follower.string == "=":
            starts.append(token.start[1])
    flat = text.replace("\n", " ")
    for start, end in zip(starts, [*starts[1:], len(flat)], strict=True):
        parts.append(flat[start:end].strip())
    return ",".join(parts)


def _literal(node: ast.expr) -> Any:
    """The value of a repr: literals, lists, dicts; a call of a class becomes the dict of its arguments."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):  # datetime.datetime(…): messages have times of their own
            return None
        return {k.arg: _literal(k.value) for k in node.keywords if k.arg}
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {
            _literal(k): _literal(v) for k, v in zip(node.keys, node.values, strict=True) if k is not None
        }
    if isinstance(node, ast.Attribute | ast.Name):
        return None
    return ast.literal_eval(node)


def _time_of(line: dict[str, Any]) -> tuple[int | None, bool]:
    for key in _TIME_KEYS:
        found = unix_ns(line.get(key))
        if found:
            return found
    return None, False


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _from_object(line: dict[str, Any], order: int, where: str) -> Record:
    """A record of a JSON line, which is the event itself or holds it under some key, or is something else."""
    time_ns, zoned = _time_of(line)
    span = _text(line.get("span_id"))
    common = {"task": _text(line.get("task")), "span_id": span.removeprefix("0x") if span else None}
    if is_event(line):
        return Record(order, where, time_ns, zoned, line, None)
    for key in _EVENT_KEYS:
        event = as_event(line.get(key))
        if event is not None:
            return Record(order, where, time_ns, zoned, event, None, **common)
    for key in _EVENT_KEYS:
        if isinstance(line.get(key), str):
            return Record(order, where, time_ns, zoned, None, line[key], **common)
    return Record(order, where, time_ns, zoned, None, json.dumps(line), **common)


def read_line(line: str, order: int, where: str) -> Record | BadLine | None:
    """One line of a log.

    Returns:
        A record, of text where the line is no event; a :class:`BadLine` where an event begins and is broken;
        None for an empty line.
    """
    stripped = line.strip()
    if not stripped:
        return None
    brace = stripped.find("{")
    if brace == 0:
        try:
            value = json.loads(stripped)
        except ValueError as error:
            return (
                BadLine(where, f"not JSON: {error}") if '"type"' in stripped else BadLine(where, "not JSON")
            )
        return _from_object(value, order, where) if isinstance(value, dict) else None
    stamp = parse_stamp(stripped[: brace if brace > 0 else 80])
    time_ns, zoned = stamp or (None, False)
    tries = 0
    while brace > 0 and tries < _TRIES:
        tries += 1
        try:
            value, _ = _DECODER.raw_decode(stripped, brace)
        except ValueError as error:
            if stripped.startswith('{"', brace) and _TYPE.search(stripped, brace):
                return BadLine(where, f"an event that is cut or broken: {error}")
            value = None
        event = as_event(value)
        if event is not None:
            return Record(order, where, time_ns, zoned, event, None)
        brace = stripped.find("{", brace + 1)
    event = _from_repr(stripped)
    return Record(order, where, time_ns, zoned, event, None if event else stripped)


def read_lines(lines: Iterable[str], name: str, first: int = 0) -> Iterator[Record | BadLine]:
    """The records of one log file, and the lines that could not be read.

    Args:
        lines: the file's lines.
        name: the file's name, for messages.
        first: the order of its first record.
    """
    order = first
    for number, line in enumerate(lines, 1):
        record = read_line(line, order, f"{name}:{number}")
        if record is not None:
            order += 1
            yield record


def without_repeats(records: Iterable[Record]) -> tuple[list[Record], int]:
    """The records without those that one event left twice, and how many those were.

    A handler on a logger and on its parent writes each record twice: at the same time, with the same content.
    """
    kept: list[Record] = []
    seen: set[tuple[int | None, str]] = set()
    last = ""
    repeats = 0
    for record in records:
        if record.event is None:
            kept.append(record)
            continue
        content = json.dumps(record.event, sort_keys=True)
        key = (record.time_ns, content)
        if (record.time_ns is not None and key in seen) or (record.time_ns is None and content == last):
            repeats += 1
            continue
        seen.add(key)
        last = content
        kept.append(record)
    return kept, repeats
