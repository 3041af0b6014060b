"""Content: that it is what the artifacts table says, and that messages can be rebuilt from it. All of it is read."""

from __future__ import annotations

import codecs
import functools
from collections import OrderedDict
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from semtrace.check.finding import Finding, found
from semtrace.check.held import Held
from semtrace.check.rules import Rule, rule
from semtrace.check.view import TraceView
from semtrace.errors import FormatError, SemtraceError
from semtrace.records.chat import join_message, split_message, split_output
from semtrace.records.columns import NULL
from semtrace.records.document import (
    VALUE_LIMIT,
    canonical_json,
    has_too_many_values,
    parse_canonical,
    parse_json,
)
from semtrace.records.enums import Availability, OperationKind, Role
from semtrace.records.media import MESSAGE_TYPE, TEXT_TYPE
from semtrace.store.digests import artifact_digest, show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from semtrace.records.trace import Content, Trace

_KEPT_BYTES: Final = 64 << 20
_PART: Final = 1 << 20
"""Bytes of content from which on it is decoded in parts, and looked at before it is parsed as JSON."""
_ENCODINGS: Final = ("text", "json", "merge")


class Reader:
    """Embedded content by row of artifacts; what was asked for last is kept, up to 64 MiB."""

    def __init__(self, trace: Trace, held: Held) -> None:
        self._trace = trace
        self._places = held.places
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._bytes = 0

    def __call__(self, row: int) -> bytes | None:
        """The content, None where the row is null or its content is not here."""
        if row == NULL or self._places[row] == NULL:
            return None
        content = self._kept.pop(row, None)
        if content is None:
            content = self._trace.artifact(row)
            if content is None:
                return None
            self._bytes += len(content)
        self._kept[row] = content
        while self._bytes > _KEPT_BYTES and len(self._kept) > 1:
            self._bytes -= len(self._kept.popitem(last=False)[1])
        return content


class ContentView(TraceView):
    """What rules on content see."""

    @cached_property
    def contents(self) -> Held:
        """Which content is here; ends the rule that asks where it cannot be read."""
        self.need("content")
        availability = self.raw("artifacts", "availability")
        return Held(self.array("artifacts", "digest"), availability, self.trace.content)

    def reader(self) -> Reader:
        """Access to embedded content; ends the rule that asks where it cannot be read."""
        self.need("content")
        return Reader(self.trace, self.contents)


@rule("ST-ART-005", "ST-ART-006", "ST-ART-007", "ST-ART-008", "ST-BND-020", "ST-BND-028")
def content_present(view: ContentView) -> Iterator[Finding]:
    """Embedded content can be read, is there, with its digest and size; no other content is."""
    view.need("content")
    try:
        yield from _content_present(view)
    except SemtraceError as error:
        view.ledger.add_error(error, "ST-BND-020", "packs", "content")


def _content_present(view: ContentView) -> Iterator[Finding]:
    digests, sizes = view.array("artifacts", "digest"), view.ints("artifacts", "size")
    held = view.contents
    length, right = _looked_at(view.trace.content, held)
    place, embedded = held.places, view.raw("artifacts", "availability") == Availability.EMBEDDED
    there = np.append(length, NULL)[place]  # the last one is that of rows without content
    missing = embedded & (there == NULL)
    wrong_size = embedded & ~missing & (there != sizes)
    wrong_digest = embedded & ~missing & ~wrong_size & ~np.append(right, True)[place]
    yield from found(
        "ST-ART-005",
        missing,
        lambda row: f"the content {show(digests[row].as_py())} is said to be embedded and is not there",
        table="artifacts",
        column="availability",
        hint="mark it external or withheld if it is not to be in the bundle",
    )
    yield from found(
        "ST-ART-006",
        wrong_size,
        lambda row: f"its content does not have {sizes[row]} bytes",
        table="artifacts",
        column="size",
    )
    yield from found(
        "ST-ART-007",
        wrong_digest,
        lambda row: f"its content does not have the digest {show(digests[row].as_py())}",
        table="artifacts",
        column="digest",
    )
    if len(held.unnamed):
        yield Finding(
            "ST-ART-008",
            f"there is content that no embedded artifact has: {show(held.digest(int(held.unnamed[0])))}",
            table="artifacts",
            count=len(held.unnamed),
            hint="leave it out, or add the artifact",
        )


def _looked_at(content: Content, held: Held) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The bytes that each piece of content has that an artifact names, `NULL` if it is gone, and whether it has its digest."""
    length = np.full(len(held.digests) // 32, NULL, dtype=np.int64)
    right = np.ones(len(length), dtype=np.bool_)
    named = np.ones(len(length), dtype=np.bool_)
    named[held.unnamed] = False
    for number in np.flatnonzero(named).tolist():
        digest = held.digest(number)
        piece = content.get(digest)
        if piece is not None:
            length[number], right[number] = len(piece), artifact_digest(piece) == digest
    return length, right


@rule("ST-ART-009", "ST-ART-010", "ST-ART-011")
def content_formed(view: ContentView) -> Iterator[Finding]:
    """Text is UTF-8; JSON is canonical where the standard gives it a meaning, and can be parsed in little memory."""
    read = view.reader()
    view.need("ST-ART-002", "ST-ART-003")
    meant = np.zeros(view.rows("artifacts") + 1, dtype=np.bool_)
    for table, column in (
        ("segments", "envelope"),
        ("operations", "output_envelope"),
        ("operations", "settings"),
    ):
        if view.any_known(table, column):
            meant[view.ints(table, column)] = True
    meant[:-1] |= view.has_media_type(MESSAGE_TYPE)
    meant = meant[:-1]
    rows = np.flatnonzero((meant | view.text_types) & (view.contents.places != NULL))
    # equal content is looked at once, by its first row; JSON is not looked at as text, too
    _, firsts, which = np.unique(
        2 * view.contents.places[rows] + meant[rows], return_index=True, return_inverse=True
    )
    problems = [_form(read(row), is_json=bool(meant[row])) for row in rows[firsts].tolist()]
    judged = np.array([requirement for requirement, _ in problems], dtype=np.str_)[which]
    for requirement in ("ST-ART-009", "ST-ART-010", "ST-ART-011"):
        yield from found(
            requirement,
            rows[judged == requirement],
            lambda row: f"artifact {row} {problems[which[np.searchsorted(rows, row)]][1]}",
            table="artifacts",
        )


def _form(content: bytes | None, *, is_json: bool) -> tuple[str, str]:
    """The requirement that content does not keep, and what is wrong with it; empty if nothing is."""
    if content is None:
        return "", ""
    if not is_json:
        return ("", "") if _is_utf8(content) else ("ST-ART-009", "is no UTF-8 text")
    if _has_too_many(content):
        return "ST-ART-011", _TOO_MANY
    problem = _json_problem(content)
    return ("ST-ART-010", problem) if problem else ("", "")


def _is_utf8(content: bytes) -> bool:
    if len(content) > _PART:
        return _is_utf8_in_parts(content)
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_utf8_in_parts(content: bytes) -> bool:
    """Whether content is UTF-8, seen without all of its text, which can take four times its bytes."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for at in range(0, len(content), _PART):
            decoder.decode(content[at : at + _PART])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


_TOO_MANY: Final = f"has more than {VALUE_LIMIT} values"


def _has_too_many(content: bytes) -> bool:
    """Whether JSON would take much more memory than it has bytes."""
    return len(content) > _PART and has_too_many_values(content)


def _json_problem(content: bytes) -> str | None:
    try:
        value = parse_canonical(content)
        if not isinstance(value, dict):
            return "is not a JSON object"
        return None if canonical_json(value) == content else "is not in canonical JSON form"
    except (ValueError, RecursionError):
        return "is not JSON"
    except SemtraceError as error:
        return f"has {error.message}"


def _json_list(text: str) -> bool:
    try:
        return isinstance(parse_json(text), list)
    except (ValueError, RecursionError):
        return False


_MESSAGE_REQUIREMENTS: Final = ("ST-ART-011", "ST-CHAT-003", "ST-CHAT-004", "ST-CHAT-006", "ST-CHAT-007")


@rule("ST-ART-011", "ST-CHAT-003", "ST-CHAT-004", "ST-CHAT-006", "ST-CHAT-007")
def messages_rebuild(view: ContentView) -> Iterator[Finding]:
    """Envelopes fit their segments; the tools are a JSON list."""
    read = view.reader()
    view.need(
        "ST-ORD-007",
        "ST-SEG-001",
        "ST-SEG-002",
        "ST-SEG-003",
        "ST-SEG-004",
        "ST-ART-009",
        "ST-ART-010",
        "ST-ART-011",
    )
    operation, message = view.raw("segments", "operation"), view.raw("segments", "message")
    role = view.raw("segments", "role")
    view.need("segments.artifact")
    asked = view.known("segments", "envelope") | (role == Role.TOOLS) | _may_be_no_text(view, operation, role)
    if not asked.any():
        return
    begins = np.append(True, (operation[1:] != operation[:-1]) | (message[1:] != message[:-1]))[
        : len(operation)
    ]
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(operation))
    chosen = np.flatnonzero(np.logical_or.reduceat(asked, starts))
    envelope, artifact = view.ints("segments", "envelope"), view.ints("segments", "artifact")
    problems: dict[str, dict[int, str]] = {name: {} for name in _MESSAGE_REQUIREMENTS}
    judged: dict[tuple[int, ...], tuple[str, str] | None] = {}
    for at in chosen.tolist():
        start, pieces = int(starts[at]), artifact[starts[at] : ends[at]].tolist()
        key = (int(role[start]), int(envelope[start]), *pieces)
        if key not in judged:
            judged[key] = _message_problem(Role(key[0]), read(key[1]), key[1], [read(row) for row in pieces])
        problem = judged[key]
        if problem:
            problems[problem[0]][start] = problem[1]
    for requirement, rows in problems.items():
        yield from _said(requirement, rows, "segments", "envelope")


def _may_be_no_text(view: ContentView, operation: NDArray[Any], role: NDArray[Any]) -> NDArray[np.bool_]:
    """Which segments of model calls have content of a type that need not be text, though they are sent as such."""
    other = np.append(~view.text_types, False)[view.ints("segments", "artifact")]
    sent: NDArray[np.bool_] = (role != Role.TEMPLATE) & (
        view.raw("operations", "kind")[operation] == OperationKind.LLM
    )
    return other & sent


def _said(requirement: str, problems: dict[int, str], table: str, column: str) -> Iterator[Finding]:
    """A finding for rows whose problems are in words already."""
    yield from found(requirement, list(problems), lambda row: problems[row], table=table, column=column)


def _message_problem(
    role: Role, envelope: bytes | None, row: int, contents: list[bytes | None]
) -> tuple[str, str] | None:
    if any(content is None for content in contents) or (row != NULL and envelope is None):
        return None  # content that is not here cannot be judged
    problem = None if envelope is None else _form_problem(envelope)
    if problem:
        return "ST-CHAT-007", problem
    parsed = _is_parsed(envelope) if envelope is not None else role is Role.TOOLS
    if parsed and any(map(_has_too_many, filter(None, contents))):
        return "ST-ART-011", f"its content {_TOO_MANY}"
    try:
        texts = [content.decode() for content in contents if content is not None]
    except UnicodeDecodeError as error:
        return (
            "ST-CHAT-006" if role is Role.TOOLS else "ST-CHAT-003"
        ), f"its content is no UTF-8 text: {error}"
    if role is Role.TOOLS:
        return None if _json_list("".join(texts)) else ("ST-CHAT-006", "the tools are not a JSON list")
    try:
        return _rebuilt_problem(role, join_message(role, envelope, texts))
    except SemtraceError as error:
        return "ST-CHAT-003", error.message


def _form_problem(envelope: bytes) -> str | None:
    """What is wrong with an envelope by itself, None if nothing is."""
    parsed = parse_canonical(envelope)
    if set(parsed) != {"message", "slots"}:
        return f"the envelope has the members {', '.join(sorted(parsed))}, must have message and slots"
    if not isinstance(parsed["message"], dict) or not isinstance(parsed["slots"], list):
        return "the envelope's message is no object, or its slots are no array"
    for slot in parsed["slots"]:
        formed = isinstance(slot, list) and [type(part) for part in slot] == [str, str, int]
        if not formed or slot[1] not in _ENCODINGS or slot[2] < 1:
            return f"{canonical_json(slot).decode()} is no slot: a pointer, an encoding, how many segments"
    return None


def _is_parsed(envelope: bytes) -> bool:
    """Whether an envelope has content that is parsed as JSON."""
    return any(slot[1] != "text" for slot in parse_canonical(envelope)["slots"])


def _role_of(message: dict[str, Any]) -> Role | None:
    """The role of segments that make such a message, None if there is none."""
    try:
        return split_message({"role": message.get("role")}).role
    except FormatError:
        return None


def _rebuilt_problem(role: Role, message: dict[str, Any]) -> tuple[str, str] | None:
    if _role_of(message) is role:
        return None
    return (
        "ST-CHAT-004",
        f"the envelope makes a message of role {message.get('role')!r} of {role.name.lower()} segments",
    )


@rule("ST-ART-011", "ST-CHAT-005", "ST-CHAT-007")
def outputs_rebuild(view: ContentView) -> Iterator[Finding]:
    """The envelope of an output fits the output, and makes an assistant message of it."""
    if not view.any_known("operations", "output_envelope"):
        return
    read = view.reader()
    view.need("ST-ART-009", "ST-ART-010", "ST-ART-011")
    envelope, output = view.ints("operations", "output_envelope"), view.ints("operations", "output")
    problems: dict[int, str] = {}
    malformed: dict[int, str] = {}
    too_many: dict[int, str] = {}
    for row in np.flatnonzero(envelope != NULL).tolist():
        if output[row] == NULL:
            problems[row] = f"operation {row} has an envelope for an output that it does not have"
            continue
        stored, content = read(int(envelope[row])), read(int(output[row]))
        if stored is None or content is None or not _is_utf8(content):
            continue
        problem = _form_problem(stored)
        if problem:
            malformed[row] = problem
            continue
        if _is_parsed(stored) and _has_too_many(content):
            too_many[row] = f"the output of operation {row} {_TOO_MANY}"
            continue
        try:
            message = join_message(Role.ASSISTANT, stored, [content.decode()], view.media_type(output[row]))
        except SemtraceError as error:
            problems[row] = error.message
            continue
        if _role_of(message) is not Role.ASSISTANT:
            problems[row] = f"operation {row} has an output that is sent as no assistant message"
    yield from _said("ST-CHAT-005", problems, "operations", "output_envelope")
    yield from _said("ST-CHAT-007", malformed, "operations", "output_envelope")
    yield from _said("ST-ART-011", too_many, "operations", "output_envelope")


@rule("ST-CHAT-010")
def outputs_formed(view: ContentView) -> Iterator[Finding]:
    """The output of a model is text, or the members of its message that text does not say."""
    read = view.reader()
    view.need("ST-ART-009", "ST-ART-010", "ST-ART-011")
    output = view.ints("operations", "output")
    rows = np.flatnonzero((view.raw("operations", "kind") == OperationKind.LLM) & (output != NULL))
    plain = np.append(view.has_media_type(TEXT_TYPE), True)
    problems: dict[int, str] = {}
    judged: dict[int, str | None] = {}
    for row in rows[~plain[output[rows]]].tolist():
        at = int(output[row])
        if at not in judged:
            judged[at] = _output_problem(read(at), view.media_type(at))
        problem = judged[at]
        if problem:
            problems[row] = f"the output of operation {row} {problem}"
    yield from _said("ST-CHAT-010", problems, "operations", "output")


def _output_problem(content: bytes | None, media_type: str) -> str | None:
    """What is wrong with the output of a model that is not of type text, None if nothing is."""
    if content is None:
        return None  # what is not here cannot be judged
    if media_type != MESSAGE_TYPE:
        return f"is of type {media_type!r}, must be {TEXT_TYPE!r} or {MESSAGE_TYPE!r}"
    if split_output(parse_canonical(content)) == (content, MESSAGE_TYPE):
        return None
    return "has a role, a name, an empty member or nothing but text: it is not as a producer writes it"


@rule("ST-SEG-013")
def spans_repeat(view: ContentView) -> Iterator[Finding]:
    """A segment that repeats a span of a text output has the bytes of the span."""
    if not view.any_known("segments", "source_start"):
        return
    read = view.reader()
    view.need("ST-SEG-010", "ST-SEG-011", "ST-ART-006")
    start = view.ints("segments", "source_start")
    artifact = view.ints("segments", "artifact")
    rows = np.flatnonzero((start != NULL) & (artifact != NULL))
    if not len(rows):
        return
    output = view.ints("operations", "output")[view.ints("segments", "source_operation")[rows]]
    plain = np.append(view.has_media_type(TEXT_TYPE), False)[output]
    rows, output = rows[plain], output[plain]
    length = view.ints("segments", "source_length")[rows]
    spans = np.stack([artifact[rows], output, start[rows], length], axis=1)

    @functools.cache
    def equal(piece: int, source: int, first: int, count: int) -> bool:
        repeated, said = read(piece), read(source)
        return repeated is None or said is None or said[first : first + count] == repeated

    wrong = np.array([not equal(*span) for span in spans.tolist()], dtype=np.bool_)
    yield from found(
        "ST-SEG-013",
        rows[wrong],
        "segment {row} does not have the bytes of the output that it is said to repeat",
        table="segments",
        column="source_start",
    )


CONTENT_RULES: Final[tuple[Rule[ContentView], ...]] = (
    content_present,
    content_formed,
    messages_rebuild,
    outputs_rebuild,
    outputs_formed,
    spans_repeat,
)
