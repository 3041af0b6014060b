"""Mutations of the reader's cases: segments, context, content."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from semtrace.records.enums import Availability, Role
from semtrace.records.media import TEXT_TYPE
from semtrace_conformance.making.draft import Draft, pack
from semtrace_conformance.making.reader_cases import change
from semtrace_conformance.making.team import ids, team, withheld

if TYPE_CHECKING:
    from semtrace_conformance.making.book import Book

Edit = Callable[[Draft], object]


def add_reader_content(book: Book) -> None:
    """Add the mutations."""
    names = team().names

    def of_team(name: str, mutation: str, reasons: str | Sequence[str], edit: Edit) -> None:
        change(book, "team", name, mutation, _list(reasons), team().draft(), edit)

    def of_ids(name: str, mutation: str, reasons: str | Sequence[str], edit: Edit) -> None:
        change(book, "ids", name, mutation, _list(reasons), ids().draft(), edit)

    _segments(of_team, of_ids)
    _context(of_team, names)
    _artifacts(of_team, of_ids)
    _levels(book, of_team)


def _list(reasons: str | Sequence[str]) -> list[str]:
    return [reasons] if isinstance(reasons, str) else list(reasons)


Change = Callable[[str, str, "str | Sequence[str]", Edit], None]


def _segments(of_team: Change, of_ids: Change) -> None:
    def put(row: int, **values: Any) -> Edit:
        return lambda draft: draft.put("segments", row, **values)

    of_team(
        "message-skipped", "the messages of an operation are numbered 0, 2", "ST-SEG-001", put(2, message=3)
    )
    of_team("message-from-one", "the first message of an operation is 1", "ST-SEG-001", put(21, message=1))
    of_team(
        "roles-mixed", "the segments of a message have two roles", "ST-SEG-002", put(18, role=Role.ASSISTANT)
    )
    of_team(
        "second-envelope",
        "the second segment of a message has an envelope",
        "ST-SEG-003",
        put(6, envelope=17),
    )
    of_team(
        "tools-second",
        "the tools are not first in an input",
        "ST-SEG-004",
        put(2, role=Role.TOOLS, artifact=13),
    )
    of_team(
        "span-without-length", "a span in an output has no length", "ST-SEG-010", put(9, source_length=None)
    )
    of_team(
        "span-of-nothing", "a span is in no output", "ST-SEG-010", put(19, source_start=0, source_length=2)
    )
    of_team("span-too-long", "a span ends behind the output", "ST-SEG-011", put(9, source_start=1))
    of_team(
        "span-of-other-bytes",
        "a span has other bytes than the output",
        "ST-SEG-013",
        put(9, source_start=1, source_length=12),
    )
    of_ids("token-ids-without-start", "token ids have no start", "ST-SEG-005", put(1, token_ids_start=None))
    of_ids(
        "token-ids-outside", "token ids end behind their artifact", "ST-SEG-006", put(1, token_ids_start=5)
    )
    of_ids(
        "block-ids-without-count",
        "block ids have no count of tokens",
        ["ST-SEG-007", "ST-SEG-005"],
        put(2, tokens=None),
    )
    of_ids(
        "no-hash-scope",
        "block ids have no scope",
        "ST-SEG-008",
        lambda draft: draft.put("trace", 0, hash_scope=None),
    )
    of_ids(
        "block-ids-outside", "block ids end behind their artifact", "ST-SEG-009", put(2, block_ids_start=5)
    )
    of_ids("too-many-output-ids", "there are more ids than output tokens", "ST-SEG-012",
           lambda draft: replace(draft, 1, bytes(24)))  # fmt: skip


def _context(of_team: Change, names: dict[str, int]) -> None:
    def put(name: str, **values: Any) -> Edit:
        return lambda draft: draft.put("operations", names[name], **values)

    of_team(
        "no-segments-of-base",
        "nothing is inherited of a base",
        "ST-CTX-001",
        put("again", context_segments=0),
    )
    of_team(
        "segments-without-base",
        "something is inherited without a base",
        "ST-CTX-001",
        put("hello", context_segments=1),
    )

    def of_tool(draft: Draft) -> None:
        draft.put("operations", names["again"], context_base=names["fetch"], context_segments=1)
        draft.put("edges", 21, source=names["fetch"])

    of_team("context-of-tool", "the context of a tool is inherited", "ST-CTX-002", of_tool)
    of_team(
        "context-too-long", "more is inherited than there is", "ST-CTX-003", put("again", context_segments=3)
    )

    def within(draft: Draft) -> None:
        draft.put("operations", names["answer-oslo"], context_segments=2, prompt_tokens=None)

    of_team("context-cut-in-message", "what is inherited ends inside of a message", "ST-CTX-004", within)
    of_team(
        "prompt-too-long",
        "a prompt has one token more than its pieces",
        "ST-CTX-005",
        put("plan", prompt_tokens=31),
    )
    of_team("prompt-too-short", "a prompt has one token less than what it inherits and its own", "ST-CTX-005",
            put("answer-rome", prompt_tokens=31))  # fmt: skip
    of_team("hidden-reasoning-counted", "hidden reasoning is counted as history", "ST-CTX-005",
            put("ask-rome", reasoning_tokens=4))  # fmt: skip


def replace(draft: Draft, row: int, content: bytes, media_type: str | None = None) -> None:
    """Put other content in the place of an artifact's."""
    old = draft.rows("artifacts")[row]
    known, _ = draft.content[old["digest"]]
    media_type = media_type or known
    digest = blake3(content).digest()
    draft.content[digest] = (media_type, content)
    draft.put("artifacts", row, digest=digest, size=len(content), media_type=media_type)


def _artifacts(of_team: Change, of_ids: Change) -> None:
    def twice(draft: Draft) -> None:
        draft.insert("artifacts", 34, **draft.rows("artifacts")[33])
        draft.insert("state_versions", 5, state=2, version=1, mode=1, artifact=34)

    of_team("artifact-twice", "two artifacts have the same digest and media type", "ST-ART-001", twice)
    of_team(
        "media-type",
        "a media type is in upper case",
        "ST-ART-002",
        lambda draft: draft.put("artifacts", 32, media_type="Text/Plain"),
    )
    of_team("settings-as-text", "settings are of type text/plain", "ST-ART-003",
            lambda draft: draft.put("artifacts", 2, media_type=TEXT_TYPE))  # fmt: skip
    of_ids("ids-as-bytes", "token ids are of another type", "ST-ART-003",
           lambda draft: draft.put("artifacts", 1, media_type="application/octet-stream"))  # fmt: skip
    of_ids("ids-cut", "token ids are 79 bytes", "ST-ART-004",
           lambda draft: replace(draft, 3, draft.content[draft.rows("artifacts")[3]["digest"]][1][:-1]))  # fmt: skip

    def without(draft: Draft) -> None:
        held = [(digest, *content) for digest, content in draft.content.items()]
        draft.packs = [pack([each for each in held if each[0] != draft.rows("artifacts")[33]["digest"]])]

    of_team("content-missing", "embedded content is not there", "ST-ART-005", without)
    of_team(
        "content-size",
        "embedded content has another size",
        "ST-ART-006",
        lambda draft: draft.put("artifacts", 33, size=13),
    )

    def altered(draft: Draft) -> None:
        changed = draft.rows("artifacts")[33]["digest"]
        draft.packs = [
            pack(
                [
                    (each, kind, content.upper() if each == changed else content)
                    for each, (kind, content) in draft.content.items()
                ]
            )
        ]

    of_team("content-altered", "embedded content was altered", "ST-ART-007", altered)

    def surplus(draft: Draft) -> None:
        held = [(digest, *content) for digest, content in draft.content.items()]
        draft.packs = [pack([*held, (blake3(b"more").digest(), TEXT_TYPE, b"more")])]

    of_team("content-of-nothing", "there is content of no artifact", "ST-ART-008", surplus)
    of_team("text-not-utf8", "text is not UTF-8", "ST-ART-009", lambda draft: replace(draft, 33, b"\xff\xfe"))
    of_team("settings-not-canonical", "settings are not in RFC 8785 form", "ST-ART-010",
            lambda draft: replace(draft, 2, b'{"temperature":0,"max_tokens":12}'))  # fmt: skip
    of_team(
        "settings-not-an-object", "settings are a list", "ST-ART-010", lambda draft: replace(draft, 2, b"[]")
    )
    many = b'{"a":[' + b"[]," * 750_000 + b"[]]}"
    of_team("settings-of-many-values", "settings have 3.75 million values", ["ST-ART-011"],
            lambda draft: replace(draft, 2, many))  # fmt: skip
    of_team("message-not-canonical", "a message as output has a space too many", ["ST-ART-010"],
            lambda draft: replace(draft, 11, b'{"content":"Yes?", "refusal":"no"}'))  # fmt: skip


def _levels(book: Book, of_team: Change) -> None:
    def shown(draft: Draft) -> None:
        text = b"Compare Oslo and Rome."
        digest = blake3(text).digest()
        draft.content[digest] = (TEXT_TYPE, text)
        draft.put("artifacts", 0, digest=digest, availability=Availability.EMBEDDED)

    change(
        book,
        "withheld",
        "text-in-shape",
        "a prompt is there, below the level text",
        ["ST-LVL-001"],
        withheld(team()),
        shown,
    )
    of_team("other-level", "the manifest says another content level", "ST-LVL-003",
            lambda draft: draft.stated.update(content_level="token_ids"))  # fmt: skip
