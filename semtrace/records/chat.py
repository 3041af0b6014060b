"""How the messages of a chat request lie in segments, and how they come back.

A message becomes one or more *pieces* of text, each of them a segment, and an *envelope*: all the rest of
the message, with the places that the pieces fill (ST-CHAT-001 …). Equal means equal in RFC 8785 form.

    envelope := {"message": {…literal members…}, "slots": [[pointer, encoding, count], …]}

A slot takes the next `count` segments of the message, concatenates them, and puts them at the JSON pointer:
`text` as a string, `json` as the JSON value that they spell, `merge` as the members of the JSON object that
they spell. A null envelope stands for the message `{"role": <role of the segment>}` with one text slot at
`/content` that takes every segment.

The output of a model is one piece: plain text, or, with media type `MESSAGE_TYPE`, the canonical JSON of the
members `content`, `tool_calls` … of the assistant message. Its null envelope is `{"role": "assistant"}` with
the text at `/content`, or the members merged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from semtrace.errors import FormatError, IntegrityError
from semtrace.records.columns import NULL
from semtrace.records.document import canonical_json, parse_canonical, parse_json
from semtrace.records.enums import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from semtrace.records.trace import Trace

TEXT_TYPE: Final = "text/plain; charset=utf-8"
JSON_TYPE: Final = "application/json"
BYTES_TYPE: Final = "application/octet-stream"
MESSAGE_TYPE: Final = "application/vnd.semtrace.message+json"

_WIRE_ROLES: Final = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "tool": Role.TOOL,
    "function": Role.TOOL,
}
_DECODERS: Final[dict[str, Callable[[str], Any]]] = {
    "text": str,
    "json": parse_json,
    "merge": parse_json,
}
_INDEX: Final = re.compile(r"0|[1-9][0-9]*")
_ESCAPE: Final = re.compile(r"~(?![01])")
_ROLE_NAMES: Final[dict[int, str]] = {
    Role.SYSTEM: "system",
    Role.USER: "user",
    Role.ASSISTANT: "assistant",
    Role.TOOL: "tool",
}


@dataclass(frozen=True)
class Piece:
    """A piece of a message: its text and the JSON pointer that it fills."""

    pointer: str
    encoding: str
    text: str


@dataclass(frozen=True)
class SplitMessage:
    """A message as pieces and literals.

    Attributes:
        role: role of its segments.
        literal: the members that no piece fills.
        pieces: at least one.
    """

    role: Role
    literal: dict[str, Any]
    pieces: tuple[Piece, ...]

    def envelope(self, counts: tuple[int, ...] | None = None) -> bytes | None:
        """The envelope's canonical JSON, None if it is the default one.

        Args:
            counts: how many segments each piece was cut into; one each if left out.
        """
        counts = counts or (1,) * len(self.pieces)
        default = self.literal == {"role": _ROLE_NAMES.get(self.role)}
        if default and [(piece.pointer, piece.encoding) for piece in self.pieces] == [("/content", "text")]:
            return None
        slots = [
            [piece.pointer, piece.encoding, count] for piece, count in zip(self.pieces, counts, strict=True)
        ]
        return canonical_json({"message": self.literal, "slots": slots})


def split_message(message: Mapping[str, Any]) -> SplitMessage:
    """Take a chat message apart into pieces and literals.

    Raises:
        FormatError: the message has no role, or one that no wire format has.
    """
    wire_role = message.get("role")
    role = _WIRE_ROLES.get(wire_role) if isinstance(wire_role, str) else None
    if role is None:
        raise FormatError(f"message with role {wire_role!r}", code="chat.role", requirement="ST-CHAT-002")
    literal: dict[str, Any] = dict(message)
    pieces: list[Piece] = []
    content = literal.get("content")
    if isinstance(content, str):
        del literal["content"]
        pieces.append(Piece("/content", "text", content))
    elif isinstance(content, list):
        literal["content"] = [_split_part(part, index, pieces) for index, part in enumerate(content)]
    if literal.get("tool_calls"):
        pieces.append(Piece("/tool_calls", "json", canonical_json(literal.pop("tool_calls")).decode()))
    if not pieces:
        literal.pop("content", None)
        pieces.append(Piece("/content", "json", canonical_json(message.get("content")).decode()))
        if "content" not in message:
            pieces[:] = [Piece("", "merge", "{}")]
    return SplitMessage(role, literal, tuple(pieces))


def _split_part(part: object, index: int, pieces: list[Piece]) -> object:
    if isinstance(part, dict):
        if isinstance(part.get("text"), str):
            pieces.append(Piece(f"/content/{index}/text", "text", part["text"]))
            return {key: value for key, value in part.items() if key != "text"}
        image = part.get("image_url")
        if isinstance(image, dict) and isinstance(image.get("url"), str):
            pieces.append(Piece(f"/content/{index}/image_url/url", "text", image["url"]))
            rest = {key: value for key, value in image.items() if key != "url"}
            return {**part, "image_url": rest}
    return part


def split_output(message: Mapping[str, Any]) -> tuple[bytes, str]:
    """The content and media type of the output artifact of a model's answer.

    Args:
        message: an assistant message, or just its members `content`, `tool_calls` …; role and name do not count.
    """
    members = {
        key: value
        for key, value in message.items()
        if key not in {"role", "name"} and value not in (None, [])
    }
    if set(members) == {"content"} and isinstance(members["content"], str):
        return members["content"].encode(), TEXT_TYPE
    if not members:
        return b"", TEXT_TYPE
    return canonical_json(members), MESSAGE_TYPE


def output_envelope(message: Mapping[str, Any], content: bytes, media_type: str) -> bytes | bool | None:
    """The envelope with which an output is sent as this message.

    Returns:
        The envelope's canonical JSON, None if it is the default one, False if the message does not hold the output.
    """
    if media_type == TEXT_TYPE:
        if message.get("content") != content.decode():
            return False
        literal = {key: value for key, value in message.items() if key != "content"}
        slots = [["/content", "text", 1]]
    elif media_type != MESSAGE_TYPE:
        return False
    else:
        members = parse_canonical(content)
        if any(
            key not in message or canonical_json(message[key]) != canonical_json(members[key])
            for key in members
        ):
            return False
        literal = {key: value for key, value in message.items() if key not in members}
        slots = [["", "merge", 1]]
    if literal.get("role") != "assistant":
        return False
    if literal == {"role": "assistant"}:
        return None
    return canonical_json({"message": literal, "slots": slots})


def join_message(
    role: int, envelope: bytes | None, texts: list[str], media_type: str = TEXT_TYPE
) -> dict[str, Any]:
    """Put a message together again.

    Args:
        role: role of its first segment, a number of `Role`.
        envelope: its envelope, None for the default one.
        texts: the content of its segments, in order.
        media_type: of an output that is sent as a message; text for segments.

    Raises:
        IntegrityError: envelope and segments do not fit.
    """
    merge = media_type == MESSAGE_TYPE
    try:
        if envelope is None:
            message: dict[str, Any] = {"role": _ROLE_NAMES[role]}
            slots: list[tuple[str, str, int]] = (
                [("", "merge", 1)] if merge else [("/content", "text", len(texts))]
            )
        else:
            parsed = parse_canonical(envelope)
            message, slots = parsed["message"], parsed["slots"]
        taken = 0
        for pointer, encoding, count in slots:
            text = "".join(texts[taken : taken + count])
            taken += count
            value = _DECODERS[encoding](text)
            steps = _steps(pointer)
            if encoding == "merge":
                _members(_find(message, steps)).update(_members(value))
            else:
                target = _find(message, steps[:-1])
                target[_place(target, steps[-1])] = value
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise IntegrityError(
            f"envelope and segments do not make a message: {error}",
            code="chat.envelope",
            requirement="ST-CHAT-003",
        ) from error
    if not isinstance(message, dict) or taken != len(texts):
        raise IntegrityError(
            f"the envelope of a {type(message).__name__} has slots for {taken} segments, the message has {len(texts)}",
            code="chat.envelope",
            requirement="ST-CHAT-003",
        )
    return message


def _steps(pointer: str) -> list[str]:
    """The parts of a JSON pointer (RFC 6901)."""
    if pointer and not pointer.startswith("/"):
        raise ValueError(f"{pointer!r} is no JSON pointer: it does not begin with '/'")
    if _ESCAPE.search(pointer):
        raise ValueError(f"{pointer!r} is no JSON pointer: '~' stands alone")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _place(value: Any, step: str) -> int | str:
    """The index or key that a part of a pointer is in a value."""
    if isinstance(value, dict):
        return step
    if not isinstance(value, list) or not _INDEX.fullmatch(step) or int(step) >= len(value):
        raise ValueError(f"{step!r} leads to nothing")
    return int(step)


def _find(message: Any, steps: list[str]) -> Any:
    for step in steps:
        message = message[_place(message, step)]
    return message


def _members(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("what is merged is not an object, or is merged into none")
    return value


def context(trace: Trace, operation: int) -> Iterator[tuple[int, int]]:
    """The whole input of an operation, what is inherited first.

    Yields:
        `(operation, segment)`: the operation that the piece is recorded at, and the row of its segment, or
        `NULL` for the output of that operation.

    Raises:
        IntegrityError: a base is not a lower row.
    """
    operations = trace.operations
    base = operations.ints("context_base")
    count = operations.ints("context_segments")
    offsets = trace.segment_offsets
    chain = [operation]
    while base[chain[-1]] != NULL:
        if not 0 <= base[chain[-1]] < chain[-1]:
            raise IntegrityError(
                f"context base {base[chain[-1]]} is not a lower row",
                code="order.reference",
                path=f"operations.context_base[{chain[-1]}]",
                requirement="ST-ORD-002",
            )
        chain.append(int(base[chain[-1]]))
    pieces: list[tuple[int, int]] = []
    for position, at in enumerate(reversed(chain)):
        if position:
            del pieces[int(count[at]) :]
        pieces.extend((at, row) for row in range(int(offsets[at]), int(offsets[at + 1])))
        if at != operation:
            pieces.append((at, NULL))
    yield from pieces


def _tools(text: str) -> list[Any]:
    try:
        tools = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(
            f"tool definitions are not JSON: {error}", code="chat.tools", requirement="ST-CHAT-006"
        ) from error
    if not isinstance(tools, list):
        raise IntegrityError(
            "tool definitions are not a JSON list", code="chat.tools", requirement="ST-CHAT-006"
        )
    return tools


def rebuild_request(trace: Trace, operation: int) -> dict[str, Any] | None:
    """The chat request of a model operation: its messages, and its tools if there are any.

    Returns:
        `{"messages": […]}` or `{"messages": […], "tools": […]}`; None where the trace does not hold the content.

    Raises:
        IntegrityError: envelope and segments do not fit, or an artifact is not what it must be.
    """
    segments = trace.segments
    roles, numbers = segments.ints("role"), segments.ints("message")
    artifacts, envelopes = segments.ints("artifact"), segments.ints("envelope")
    messages: list[dict[str, Any]] = []
    tools: list[Any] | None = None
    group: list[str] = []
    head: tuple[int, int] | None = None  # (operation, message ordinal) of the open message
    first = NULL

    def close() -> None:
        nonlocal tools
        if head is None:
            return
        if roles[first] == Role.TOOLS:
            tools = _tools("".join(group))
        elif roles[first] != Role.TEMPLATE:
            envelope = trace.artifact(int(envelopes[first]))
            messages.append(join_message(roles[first], envelope, list(group)))

    operations = trace.operations
    media = trace["artifacts"].array("media_type")
    own = range(int(trace.segment_offsets[operation]), int(trace.segment_offsets[operation + 1]))
    if not own and operations.ints("context_base")[operation] == NULL:
        return None
    for at, row in context(trace, operation):
        if row == NULL:
            close()
            head, group = None, []
            output = int(operations.ints("output")[at])
            text = trace.artifact_text(output)
            if text is None:
                return None
            envelope = trace.artifact(int(operations.ints("output_envelope")[at]))
            messages.append(join_message(Role.ASSISTANT, envelope, [text], media[output].as_py()))
            continue
        key = (at, int(numbers[row]))
        if key != head:
            close()
            head, group, first = key, [], row
        text = trace.artifact_text(int(artifacts[row]))
        if text is None and roles[row] != Role.TEMPLATE:
            return None
        group.append(text or "")
    close()
    return {"messages": messages} if tools is None else {"messages": messages, "tools": tools}
