"""The reader's case of chat requests in small, and its mutations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import rfc8785

from semtrace.records.media import JSON_TYPE, MESSAGE_TYPE
from semtrace_conformance.making.draft import Draft
from semtrace_conformance.making.reader_cases import BUNDLE, change, facts_of, in_folder
from semtrace_conformance.making.reader_content import replace
from semtrace_conformance.making.team import talk

if TYPE_CHECKING:
    from semtrace_conformance.making.book import Book

Edit = Callable[[Draft], object]
Reasons = Sequence[str]
BYTES_TYPE: Final = "application/octet-stream"
OUTPUT: Final = 0
OUTPUT_ENVELOPE: Final = 1
TOOLS: Final = 3
PARTS: Final = 4
"""The envelope of the developer's message, whose one segment is `TEXT`."""
TEXT: Final = 5
HELLO: Final = 6
"""The text of a message without an envelope."""
CALLED: Final = 7
"""The envelope of the assistant's message, whose one segment is `CALLS`."""
CALLS: Final = 8


def add_reader_chat(book: Book) -> None:
    """Add the case and its mutations."""
    made = talk()
    ask = {"requests": [0, 1]}
    book.accept(
        "reader/talk",
        "two chat requests, the second of which inherits the first and its output",
        ["ST-CHAT-001", "ST-CHAT-003", "ST-CHAT-007", "ST-CHAT-010"],
        kind="read",
        files=in_folder(made.draft().members()),
        inputs={"bundle": BUNDLE},
        facts=facts_of(made.draft(), ask, made.requests),
        features=["directory", "requests"],
        ask=ask,
    )
    change_talk = _change(book)
    _slots(change_talk)
    _content(change_talk)
    _outputs(change_talk)


Change = Callable[[str, str, Reasons, Edit], None]


def _change(book: Book) -> Change:
    return lambda name, mutation, reasons, edit: change(
        book, "talk", name, mutation, reasons, talk().draft(), edit
    )


def _envelope(row: int, value: object) -> Edit:
    return lambda draft: replace(draft, row, rfc8785.dumps(value), JSON_TYPE)  # type: ignore[arg-type]  # its JSON type is recursive, ours is object


def _put(row: int, content: bytes, media_type: str | None = None) -> Edit:
    return lambda draft: replace(draft, row, content, media_type)


def _slots(change_talk: Change) -> None:
    message: dict[str, Any] = {"content": [{"type": "text"}], "role": "developer"}

    def parts(
        name: str, mutation: str, *slots: Sequence[object], reasons: Reasons = ("ST-CHAT-003",)
    ) -> None:
        change_talk(
            name,
            mutation,
            list(reasons),
            _envelope(PARTS, {"message": message, "slots": [*map(list, slots)]}),
        )

    right = ("/content/0/text", "text", 1)
    either = ("ST-CHAT-003", "ST-CHAT-007")
    parts("slot-missing", "an envelope has no slot for a segment")
    parts("slot-too-large", "a slot takes more segments than there are", ("/content/0/text", "text", 2))
    parts("slot-of-nothing", "a slot takes no segment", right, ("/name", "text", 0), reasons=either)
    parts(
        "encoding-unknown",
        "a slot has an encoding that there is not",
        ("/content/0/text", "base64", 1),
        reasons=either,
    )
    parts("not-json", "a slot takes text for JSON", ("/content/0/text", "json", 1))
    parts("pointer-to-nothing", "a slot has a pointer to nothing", ("/a/b", "text", 1))
    parts("pointer-without-slash", "a pointer does not begin with a slash", ("name", "text", 1))
    parts("pointer-escape", "a pointer has an escape that there is not", ("/na~2me", "text", 1))
    parts("pointer-to-all", "a text is put in the place of the message", ("", "text", 1))
    parts("index-with-zero", "an index begins with a zero", ("/content/00/text", "text", 1))
    parts("index-of-nothing", "an index is that of the element after the last", ("/content/1", "text", 1))
    parts("index-below", "an index is below zero", ("/content/-1/text", "text", 1))
    change_talk("envelope-member", "an envelope has a member more", ["ST-CHAT-007"],
                _envelope(PARTS, {"message": message, "slots": [list(right)], "role": "developer"}))  # fmt: skip
    change_talk("envelope-not-json", "an envelope is cut short", ["ST-ART-010"], _put(PARTS, b'{"message":{'))
    user = {**message, "role": "user"}
    change_talk("other-role", "an envelope makes a user's message of a system segment", ["ST-CHAT-004"],
                _envelope(PARTS, {"message": user, "slots": [list(right)]}))  # fmt: skip
    wizard = {**message, "role": "wizard"}
    change_talk("unknown-role", "an envelope makes a message of a role that there is not", ["ST-CHAT-004", "ST-CHAT-002"],
                _envelope(PARTS, {"message": wizard, "slots": [list(right)]}))  # fmt: skip
    change_talk("merge-of-list", "a list is to be merged", ["ST-CHAT-003"],
                _envelope(CALLED, {"message": {"role": "assistant"}, "slots": [["", "merge", 1]]}))  # fmt: skip
    calls = {"role": "assistant", "tool_calls": []}
    change_talk("merge-into-list", "an object is to be merged into a list", ["ST-CHAT-003"],
                lambda draft: (_put(CALLS, b'{"id":"c1"}')(draft),
                               _envelope(CALLED, {"message": calls, "slots": [["/tool_calls", "merge", 1]]})(draft)))  # fmt: skip


def _content(change_talk: Change) -> None:
    change_talk("member-twice", "the JSON of a slot has a member twice", ["ST-CHAT-003"],
                _put(CALLS, b'[{"id":"c1","id":"c1"}]'))  # fmt: skip
    change_talk("surrogate", "the JSON of a slot has half of a character", ["ST-CHAT-003"],
                _put(CALLS, b'[{"id":"\\ud800"}]'))  # fmt: skip
    change_talk("bytes-as-text", "the content of a slot for text is not UTF-8", ["ST-CHAT-003"],
                _put(TEXT, b"\xff\xfe", BYTES_TYPE))  # fmt: skip
    change_talk("bytes-as-message", "the content of a message without an envelope is not UTF-8", ["ST-CHAT-003"],
                _put(HELLO, b"\xff\xfe", BYTES_TYPE))  # fmt: skip
    change_talk(
        "tools-not-a-list", "the tools are no list", ["ST-CHAT-006"], _put(TOOLS, b'{"type":"function"}')
    )
    change_talk("tools-not-json", "the tools are cut short", ["ST-CHAT-006"], _put(TOOLS, b'[{"type":'))


def _outputs(change_talk: Change) -> None:
    change_talk("output-of-other-role", "an output is sent as a user's message", ["ST-CHAT-005"],
                _envelope(OUTPUT_ENVELOPE, {"message": {"role": "user"}, "slots": [["", "merge", 1]]}))  # fmt: skip
    change_talk("output-not-merged", "a text output is to be merged", ["ST-CHAT-005"],
                lambda draft: draft.put("operations", 1, output_envelope=OUTPUT_ENVELOPE))  # fmt: skip
    either = ["ST-CHAT-010", "ST-CHAT-005"]
    change_talk("output-of-other-type", "the output of a model is of another type", either,
                lambda draft: draft.put("artifacts", OUTPUT, media_type=JSON_TYPE))  # fmt: skip
    change_talk("output-with-null", "an output as a message has a member that is null", ["ST-CHAT-010"],
                _put(OUTPUT, b'{"content":null,"refusal":"no"}'))  # fmt: skip
    change_talk("output-with-name", "an output as a message has a name", ["ST-CHAT-010"],
                _put(OUTPUT, b'{"content":"Yes?","name":"bob","refusal":"no"}'))  # fmt: skip
    change_talk("output-of-text", "a text output is kept as a message", ["ST-CHAT-010"],
                _put(OUTPUT, b'{"content":"Yes?"}', MESSAGE_TYPE))  # fmt: skip
