"""Chat requests on their way into a trace: what repeats an earlier context is inherited, the rest becomes segments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semtrace.records import chat
from semtrace.records.document import canonical_json
from semtrace.records.enums import Role

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from semtrace.build.builder import Row, TraceBuilder


@dataclass(frozen=True)
class Span:
    """A part of a message's text that repeats an earlier operation's output.

    Attributes:
        start: first character of the part.
        end: character after its last one.
        source: the operation whose output it repeats.
        source_start: first byte of it in the source's output artifact, None if unknown.
    """

    start: int
    end: int
    source: int
    source_start: int | None = None


@dataclass(frozen=True)
class Repeated:
    """How much of a base's context a request repeats.

    Attributes:
        segments: pieces of the base's context (its input, then its output), tool definitions included.
        messages: the messages that they make.
        tools: whether they include the definitions of the tools on offer.
    """

    segments: int = 0
    messages: int = 0
    tools: bool = False


def record_message(
    builder: TraceBuilder, operation: int, message: Mapping[str, Any], sources: int | Sequence[Span]
) -> None:
    """Append a message to an operation's own input.

    Args:
        builder: the builder.
        operation: the operation.
        message: the message, as on the wire.
        sources: the operation whose output the whole message repeats, or the spans of its first text that do.

    Raises:
        FormatError: the message has no role that a wire format has.
        ValueError: a span is empty or reaches past the text.
    """
    split = chat.split_message(message)
    cut: list[list[tuple[str, Span | None]]] = [[(piece.text, None)] for piece in split.pieces]
    if isinstance(sources, int):
        cut = [[(piece.text, Span(0, len(piece.text), sources))] for piece in split.pieces]
    elif sources:
        cut[0] = list(_cut(split.pieces[0].text, sources))
    envelope = split.envelope(tuple(len(parts) for parts in cut))
    number: int | None = None
    for text, span in (part for parts in cut for part in parts):
        known = span is not None and span.source_start is not None
        row = builder.segment(
            operation,
            split.role,
            text,
            message=number,
            envelope=envelope,
            source=span.source if span else None,
            source_start=span.source_start if span else None,
            source_length=len(text.encode()) if known else None,
        )
        number, envelope = builder.rows["segments"][row]["message"], None


def _cut(text: str, spans: Sequence[Span]) -> Iterator[tuple[str, Span | None]]:
    """The text in parts, each within a span or outside of all; a span that overlaps an earlier one is left out."""
    at = 0
    for span in sorted(spans, key=lambda each: each.start):
        if not 0 <= span.start < span.end <= len(text):
            raise ValueError(f"span {span.start}..{span.end} of a text of {len(text)} characters")
        if span.start < at:
            continue
        if span.start > at:
            yield text[at : span.start], None
        yield text[span.start : span.end], span
        at = span.end
    if at < len(text):
        yield text[at:], None


def repeated(
    builder: TraceBuilder, base: int, messages: Sequence[Mapping[str, Any]], tools: int | None
) -> Repeated:
    """How much of a base's context a request repeats, on the boundaries of messages.

    Tool definitions stand before all messages: where they differ, nothing is repeated. Template tokens between two
    messages that are repeated count as repeated.

    Args:
        builder: the builder.
        base: the earlier operation.
        messages: the messages of the request.
        tools: the artifact that holds the request's tool definitions.
    """
    segments = builder.rows["segments"]
    pieces = [*builder.context(base), (base,)]
    roles = [None if isinstance(piece, tuple) else segments[piece]["role"] for piece in pieces]
    at = 0
    if tools is not None or Role.TOOLS in roles:
        first = pieces[0]
        if isinstance(first, tuple) or roles.count(Role.TOOLS) != 1 or roles[0] != Role.TOOLS:
            return Repeated()
        if segments[first]["artifact"] != tools:
            return Repeated()
        at = 1
    end, taken = at, 0
    while at < len(pieces) and taken < len(messages):
        if roles[at] == Role.TEMPLATE:
            at += 1
            continue
        length = _message_length(builder, pieces, at)
        if isinstance(pieces[at], tuple):
            same = _repeats_output(builder, base, pieces[at][0], messages[taken])  # type: ignore[index]  # a tuple
        else:
            same = _repeats_message(builder, pieces[at : at + length], messages[taken])  # type: ignore[arg-type]  # all of one message
        if not same:
            break
        at, taken = at + length, taken + 1
        end = at
    return Repeated(end, taken, tools is not None) if taken else Repeated()


def _message_length(builder: TraceBuilder, pieces: Sequence[int | tuple[int]], at: int) -> int:
    """How many pieces make the message that begins at this one."""
    first = pieces[at]
    length = 1
    if isinstance(first, tuple):
        return length
    segments = builder.rows["segments"]
    head = (segments[first]["operation"], segments[first]["message"])
    while at + length < len(pieces):
        piece = pieces[at + length]
        if isinstance(piece, tuple) or (segments[piece]["operation"], segments[piece]["message"]) != head:
            break
        length += 1
    return length


def _repeats_output(builder: TraceBuilder, base: int, source: int, message: Mapping[str, Any]) -> bool:
    """Whether a message is an operation's output, as it was sent first; the first time settles how that is."""
    operation: Row = builder.rows["operations"][source]
    if operation["output"] is None:
        return False
    stored = builder.rows["artifacts"][operation["output"]]
    envelope = chat.output_envelope(message, builder.content[stored["digest"]], stored["media_type"])
    if envelope is False:
        return False
    row = None if envelope is None else builder.artifact(bytes(envelope), chat.JSON_TYPE)
    if source == base and not builder.is_sent(base):
        operation["output_envelope"] = row
    return bool(operation["output_envelope"] == row)


def _repeats_message(builder: TraceBuilder, rows: Sequence[int], message: Mapping[str, Any]) -> bool:
    segments, artifacts = builder.rows["segments"], builder.rows["artifacts"]
    first = segments[rows[0]]
    texts: list[str] = []
    for row in rows:
        artifact = segments[row]["artifact"]
        if artifact is None:
            return False
        try:
            texts.append(builder.content[artifacts[artifact]["digest"]].decode())
        except UnicodeDecodeError:  # an image, say: no part of a chat message as JSON has it
            return False
    envelope = first["envelope"]
    raw = None if envelope is None else builder.content[artifacts[envelope]["digest"]]
    joined = chat.join_message(first["role"], raw, texts)
    if all(type(value) is str for value in joined.values()):
        return joined == message  # the usual message, without the cost of its canonical form
    return canonical_json(joined) == canonical_json(dict(message))
