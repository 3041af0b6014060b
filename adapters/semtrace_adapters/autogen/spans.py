"""Reading OpenTelemetry spans, in the forms that exporters write, and the tree that they make.

Three forms are read: the SDK's own ``Span.to_json`` (one span a line, or pretty-printed one after the other, as the
console exporter does, or a JSON array), and OTLP/JSON (``resourceSpans``). Times become Unix nanoseconds, ids
lower-case hex without prefix, attributes plain values.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from semtrace_adapters.autogen.times import nanoseconds, unix_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ERROR_CODES = {"ERROR", "STATUS_CODE_ERROR", 2}


@dataclass
class Span:
    """One span.

    Attributes:
        span_id: 16 hex digits.
        trace_id: 32 hex digits.
        parent_id: its parent's id; None for a root, or where the parent is not in the file.
        name: its name.
        start_ns: Unix nanoseconds of its start.
        end_ns: of its end; None where the exporter wrote none.
        attributes: its attributes.
        links: ids of the spans that it links to.
        events: name and Unix nanoseconds of its events.
        error: what went wrong, where its status is an error.
    """

    span_id: str
    trace_id: str
    parent_id: str | None
    name: str
    start_ns: int
    end_ns: int | None
    attributes: dict[str, Any]
    links: tuple[str, ...] = ()
    events: tuple[tuple[str, int], ...] = ()
    error: str | None = None

    @cached_property
    def kind(self) -> str:
        """What it stands for: ``llm``, ``tool``, ``agent``, ``message``, or empty."""
        openinference = str(self.attributes.get("openinference.span.kind", "")).upper()
        operation = str(self.attributes.get("gen_ai.operation.name", ""))
        if openinference == "LLM" or operation in {"chat", "text_completion", "generate_content"}:
            return "llm"
        if openinference == "TOOL" or operation == "execute_tool":
            return "tool"
        if openinference in {"AGENT", "CHAIN"} or operation == "invoke_agent":
            return "agent"
        return "message" if self.name.startswith("autogen ") else ""


@dataclass
class SpanTree:
    """The spans of one or more files, by id, with their children in order of start."""

    spans: dict[str, Span] = field(default_factory=dict)
    repeats: int = 0

    def add(self, span: Span) -> None:
        """Add a span; one whose id is there already is counted as a repeat."""
        if span.span_id in self.spans:
            self.repeats += 1
        else:
            self.spans[span.span_id] = span

    @cached_property
    def children(self) -> dict[str, list[Span]]:
        """Children of each span, in order of start. Valid once all spans are added."""
        made: dict[str, list[Span]] = {}
        for span in sorted(self.spans.values(), key=lambda s: (s.start_ns, s.span_id)):
            if span.parent_id in self.spans:
                made.setdefault(str(span.parent_id), []).append(span)
        return made

    @cached_property
    def has_tools(self) -> bool:
        """Whether spans tell which tool calls ran when. Valid once all spans are added."""
        return any("gen_ai.tool.call.id" in span.attributes for span in self.spans.values())

    def ancestors(self, span_id: str | None) -> Iterator[Span]:
        """The span itself, its parent, and so on up; cut off where a file's spans go round in a circle."""
        seen: set[str] = set()
        while span_id in self.spans and span_id not in seen:
            seen.add(str(span_id))
            span = self.spans[str(span_id)]
            yield span
            span_id = span.parent_id

    def below(self, span: Span) -> Iterator[Span]:
        """All descendants of a span, in depth-first order."""
        stack = list(reversed(self.children.get(span.span_id, [])))
        seen = {span.span_id}
        while stack:
            at = stack.pop()
            if at.span_id in seen:
                continue
            seen.add(at.span_id)
            yield at
            stack.extend(reversed(self.children.get(at.span_id, [])))

    def in_order(self) -> list[Span]:
        """All spans by start."""
        return sorted(self.spans.values(), key=lambda s: (s.start_ns, s.span_id))


def is_span(value: Any) -> bool:
    """Whether a JSON value looks like a span, or an OTLP document of them."""
    if not isinstance(value, dict):
        return False
    return "resourceSpans" in value or ("context" in value and "start_time" in value and "name" in value)


def parse_spans(value: Any) -> Iterator[Span]:
    """The spans in one JSON value.

    Raises:
        ValueError, KeyError, TypeError, OverflowError: it is not a span in a known form.
    """
    if isinstance(value, list):
        for item in value:
            yield from parse_spans(item)
    elif "resourceSpans" in value:
        for resource in value["resourceSpans"]:
            for scope in resource.get("scopeSpans", []):
                for span in scope.get("spans", []):
                    yield _from_otlp(span)
    else:
        yield _from_sdk(value)


def _hex(value: Any) -> str | None:
    return str(value).removeprefix("0x").lower() if value else None


def _from_sdk(value: dict[str, Any]) -> Span:
    context = value["context"]
    start = unix_ns(value["start_time"])
    if start is None:
        raise ValueError(f"start_time {value['start_time']!r} is not a time")
    end = unix_ns(value.get("end_time"))
    status = value.get("status") or {}
    attributes = value.get("attributes") or {}
    error = None
    if status.get("status_code") in _ERROR_CODES:
        error = str(status.get("description") or "error")
    return Span(
        span_id=str(_hex(context["span_id"])),
        trace_id=str(_hex(context["trace_id"])),
        parent_id=_hex(value.get("parent_id")),
        name=str(value["name"]),
        start_ns=start[0],
        end_ns=end[0] if end else None,
        attributes=dict(attributes),
        links=tuple(str(_hex(link["context"]["span_id"])) for link in value.get("links") or []),
        events=tuple(
            (str(event.get("name", "")), time[0])
            for event in value.get("events") or []
            if (time := unix_ns(event.get("timestamp"))) is not None
        ),
        error=error,
    )


def _otlp_value(value: dict[str, Any]) -> Any:
    for key, item in value.items():
        if key == "arrayValue":
            return [_otlp_value(v) for v in item.get("values", [])]
        if key == "kvlistValue":
            return {kv["key"]: _otlp_value(kv["value"]) for kv in item.get("values", [])}
        return int(item) if key == "intValue" else item
    return None


def _from_otlp(value: dict[str, Any]) -> Span:
    status = value.get("status") or {}
    error = str(status.get("message") or "error") if status.get("code") in _ERROR_CODES else None
    return Span(
        span_id=str(_hex(value["spanId"])),
        trace_id=str(_hex(value["traceId"])),
        parent_id=_hex(value.get("parentSpanId")),
        name=str(value["name"]),
        start_ns=nanoseconds(value["startTimeUnixNano"]),
        end_ns=nanoseconds(value["endTimeUnixNano"]) or None if "endTimeUnixNano" in value else None,
        attributes={kv["key"]: _otlp_value(kv["value"]) for kv in value.get("attributes") or []},
        links=tuple(str(_hex(link["spanId"])) for link in value.get("links") or []),
        events=tuple(
            (str(event.get("name", "")), nanoseconds(event["timeUnixNano"]))
            for event in value.get("events") or []
            if "timeUnixNano" in event
        ),
        error=error,
    )


def json_values(text: str, before: Callable[[str, int], None] | None = None) -> Iterator[tuple[Any, int]]:
    """The JSON values of a text that holds one a line, or several one after the other, or an array.

    Args:
        text: the text.
        before: called with the text and where a value begins in it, before that is read.

    Yields:
        ``(value, line)``; a value that cannot be read is yielded as :class:`ValueError`, and reading goes on at
        the next line.
    """
    decoder = json.JSONDecoder()
    at, line = 0, 1
    while at < len(text):
        if text[at].isspace() or text[at] == ",":
            line += text[at] == "\n"
            at += 1
            continue
        if before is not None:
            before(text, at)
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            yield ValueError(str(error)), line
            end = text.find("\n", at)
            end = len(text) if end < 0 else end
        else:
            yield value, line
        line += text.count("\n", at, end)
        at = end
