"""The cases of the profile store: content put, got, checked, collected, and moved between bundles and stores."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

import rfc8785
import zstandard
from blake3 import blake3

from semtrace.records.enums import Availability
from semtrace_conformance.making.draft import COMPACT, Draft, show, zip_bytes
from semtrace_conformance.making.team import ids
from semtrace_conformance.making.writer_cases import written

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from semtrace_conformance.making.book import Book

Row = dict[str, Any]
STORE: Final = "store"
MARKER: Final = rfc8785.dumps({"format": "semtrace-store", "version": 1})
ONE, TWO, THREE, FOUR = b"one", b"two two", b"", "größer 数据".encode()
ABSENT: Final = b"nobody has this"
DAY_S: Final = 86_400


def frame(content: bytes, *, size: bool = True) -> bytes:
    """Content as an object holds it."""
    return zstandard.ZstdCompressor(level=3, write_checksum=True, write_content_size=size).compress(content)


def place(content: bytes, prefix: str = "") -> str:
    """Where the object of content lies in the inputs."""
    name = blake3(content).hexdigest()
    return f"{STORE}/objects/{name[:2]}/{prefix}{name[2:]}.zst"


def store(*contents: bytes) -> dict[str, bytes]:
    """The files of a store."""
    return {
        f"{STORE}/semtrace-store.json": MARKER,
        **{place(content): frame(content) for content in contents},
    }


def state(*contents: bytes, recent: Sequence[bytes] = (), leftovers: Sequence[str] = ()) -> Row:
    """What a store must be afterwards."""
    return {
        "objects": {show(content): len(content) for content in contents},
        "recent": sorted(show(content) for content in recent),
        "problems": [],
        "leftovers": list(leftovers),
    }


def add_store(book: Book) -> None:
    """Add all cases of the profile."""
    _got(book)
    _checked(book)
    _put(book)
    _collected(book)
    _moved(book)


def _got(book: Book) -> None:
    files = {**store(ONE, TWO, THREE), place(FOUR, ".gc-"): frame(FOUR)}
    asked = (TWO, ONE, ABSENT, THREE, FOUR)
    book.accept(
        "store/get", "content by its digest: there, not there, empty, and set aside by garbage collection",
        ["ST-STO-001", "ST-STO-002", "ST-STO-004", "ST-STO-006", "ST-STO-015"],
        kind="get", files=files, inputs={"store": STORE},
        facts={"contents": [None if each is ABSENT else base64.b64encode(each).decode() for each in asked]},
        ask={"digests": [show(each) for each in asked]},
    )  # fmt: skip

    def change(
        name: str, mutation: str, reasons: Sequence[str], files: Mapping[str, bytes | None], **more: Any
    ) -> None:
        book.change("store/get", f"store/{name}", mutation, reasons, files=files, **more)

    change(
        "get-other-content",
        "an object holds other content",
        ["ST-STO-005", "ST-STO-006"],
        {place(TWO): frame(b"three")},
    )
    change("get-cut", "an object is cut short", ["ST-STO-004"], {place(TWO): frame(TWO)[:-3]})
    change(
        "get-flipped",
        "a bit of an object is flipped",
        ["ST-STO-004", "ST-STO-005"],
        {place(FOUR, ".gc-"): _flipped(frame(FOUR))},
    )
    change("get-no-frame", "an object is no zstd frame", ["ST-STO-004"], {place(TWO): TWO})
    change("get-two-frames", "an object is two frames", ["ST-STO-004"], {place(TWO): frame(TWO) + frame(b"")})
    change(
        "get-no-size",
        "an object does not state the size of its content",
        ["ST-STO-004"],
        {place(TWO): frame(TWO, size=False)},
    )
    change(
        "get-bomb",
        "an object claims 2^40 bytes of content",
        ["ST-STO-004", "ST-STO-006", "ST-STO-008"],
        {place(TWO): _claiming(1 << 40)},
    )
    change("get-link", "an object is a link to another", ["ST-STO-004", "ST-STO-006", "ST-STO-009"], {place(TWO): None},
           links={place(TWO): "../" + "/".join(place(ONE).split("/")[-2:])})  # fmt: skip
    change("store-version", "the store is of version 2", ["ST-STO-003"],
           {f"{STORE}/semtrace-store.json": rfc8785.dumps({"format": "semtrace-store", "version": 2})})  # fmt: skip
    change("store-of-others", "the directory says that it is something else", ["ST-STO-001"],
           {f"{STORE}/semtrace-store.json": rfc8785.dumps({"format": "other-store", "version": 1})})  # fmt: skip
    change(
        "no-store",
        "the directory does not say that it is a store",
        ["ST-STO-001"],
        {f"{STORE}/semtrace-store.json": None},
    )


def _flipped(raw: bytes) -> bytes:
    changed = bytearray(raw)
    changed[-6] ^= 1
    return bytes(changed)


def _claiming(size: int) -> bytes:
    """A frame header that claims a size, with nothing behind it: a single segment, its size in eight bytes."""
    return b"\x28\xb5\x2f\xfd" + bytes([0b1110_0000]) + size.to_bytes(8, "little") + b"\x01\x00\x00"


def _checked(book: Book) -> None:
    book.accept(
        "store/verify", "a sound store", ["ST-STO-002", "ST-STO-004", "ST-STO-005"], kind="verify",
        files=store(ONE, TWO, THREE), inputs={"store": STORE}, facts={"objects": 3},
    )  # fmt: skip

    def change(name: str, mutation: str, reasons: Sequence[str], files: Mapping[str, bytes]) -> None:
        book.change("store/verify", f"store/{name}", mutation, reasons, files=files)

    change("verify-other-content", "an object holds other content", ["ST-STO-005"], {place(ONE): frame(TWO)})
    change("verify-cut", "an object is empty", ["ST-STO-004"], {place(ONE): b""})
    change(
        "verify-stranger",
        "a file lies among the objects that is none",
        ["ST-STO-002"],
        {f"{STORE}/objects/notes.txt": b"note"},
    )


def _put(book: Book) -> None:
    def case(
        name: str,
        title: str,
        requirements: Sequence[str],
        files: Mapping[str, bytes],
        put: Sequence[bytes],
        after: Row,
        parallel: int = 1,
    ) -> None:
        contents = {f"contents/{at}": content for at, content in enumerate(put)}
        book.accept(
            f"store/{name}", title, requirements, kind="put", files={**files, **contents},
            inputs={"store": STORE, "contents": "contents"}, ask={"files": [str(at) for at in range(len(put))]},
            facts={"digests": [show(content) for content in put]}, written={"store": after}, parallel=parallel,
            features=["concurrent"] if parallel > 1 else [],
        )  # fmt: skip

    case("put", "content that the store does not have", ["ST-STO-002", "ST-STO-004", "ST-STO-005"],
         store(ONE), [TWO, THREE, FOUR], state(ONE, TWO, THREE, FOUR, recent=[TWO, THREE, FOUR]))  # fmt: skip
    case("put-again", "content that the store has: its object is marked as used", ["ST-STO-013", "ST-STO-014"],
         store(ONE, TWO), [ONE, FOUR, ONE], state(ONE, TWO, FOUR, recent=[ONE, FOUR]))  # fmt: skip
    damaged = {**store(ONE), place(TWO): frame(b"other"), place(THREE): b"", place(FOUR): frame(FOUR)[:-1]}
    case("put-damaged", "content whose objects are damaged: they are put again", ["ST-STO-013"],
         damaged, [TWO, THREE, FOUR], state(ONE, TWO, THREE, FOUR, recent=[TWO, THREE, FOUR]))  # fmt: skip
    many = [f"content {at}".encode() * (1 + at % 5) for at in range(40)]
    case("put-together", "the same content and damaged objects, put by four processes at once", ["ST-STO-011", "ST-STO-013"],
         {**store(ONE), place(many[3]): frame(b"other"), place(many[20]): b""}, many, state(ONE, *many, recent=many), 4)  # fmt: skip


def _collected(book: Book) -> None:
    trace = ids().draft()
    named = [content for _, content in trace.content.values()]
    for row in trace.rows("artifacts"):
        row["availability"] = Availability.EXTERNAL
    trace.rows("artifacts")[2]["availability"] = Availability.EMBEDDED
    old, fresh, temporary = b"nothing names this", b"put a minute ago", f"{STORE}/objects/ab/.tmp-1-2"
    aside = place(named[1], ".gc-")
    files = {
        **store(*named[:1], *named[2:], old, fresh),
        aside: frame(named[1]),
        temporary: b"half",
        "bundle.semtrace": zip_bytes(trace.members()),
    }
    ages = {
        place(old): 2 * DAY_S,
        place(fresh): 60,
        temporary: 60,
        **{place(each): 2 * DAY_S for each in named},
        aside: 2 * DAY_S,
    }
    after = state(*named, fresh, recent=[fresh], leftovers=[temporary.rsplit("/", maxsplit=1)[-1]])
    book.accept(
        "store/collect", "what a bundle names stays, what was put lately too; the rest goes",
        ["ST-STO-020", "ST-STO-021", "ST-STO-022", "ST-STO-023"], kind="collect", files=files,
        inputs={"store": STORE, "bundle": "bundle.semtrace"}, ask={"grace_s": 3600}, facts={"removed": [show(old)]},
        written={"store": after}, features=["collect"], ages=ages,
    )  # fmt: skip
    everything = state(*named, old, fresh, recent=[fresh], leftovers=[temporary.rsplit("/", maxsplit=1)[-1]])
    book.change(
        "store/collect", "store/collect-unreadable", "the bundle was altered: nothing is removed",
        ["ST-BND-011"], files={"bundle.semtrace": _altered(trace)}, written={"store": everything},
        tests=["ST-STO-020"],
    )  # fmt: skip


def _altered(draft: Draft) -> bytes:
    """The bundle with a letter of its manifest altered, the ZIP file being right."""
    spoilt = draft.copy()
    spoilt.spoil = lambda raw: raw.replace(b"semtrace-conformance", b"semtrace-conformancy")
    return zip_bytes(spoilt.members())


def _moved(book: Book) -> None:
    inside = ids().draft()
    inside.encoding = COMPACT
    contents = [content for _, content in inside.content.values()]
    outside = inside.copy()
    for row in outside.rows("artifacts"):
        row["availability"] = Availability.EXTERNAL
    packed, bare = zip_bytes(inside.members()), zip_bytes(outside.members())
    book.accept(
        "store/externalize", "the content of a bundle is moved into a store: the trace stays what it is",
        ["ST-STO-030"], kind="externalize", files={**store(ONE), "bundle.semtrace": packed},
        inputs={"store": STORE, "bundle": "bundle.semtrace"}, facts={}, output="zip", features=["external"],
        written={**written(outside), "content": {}, "store": state(ONE, *contents, recent=contents)},
    )  # fmt: skip
    book.accept(
        "store/embed", "external content is taken back into a bundle: the trace stays what it is",
        ["ST-STO-007", "ST-STO-010", "ST-STO-030"], kind="embed", files={**store(ONE, *contents), "bundle.semtrace": bare},
        inputs={"store": STORE, "bundle": "bundle.semtrace"}, facts={}, output="zip", features=["external"],
        written={**written(inside), "store": state(ONE, *contents)},
    )  # fmt: skip

    def change(name: str, mutation: str, reasons: Sequence[str], files: Mapping[str, bytes | None]) -> None:
        book.change("store/embed", f"store/{name}", mutation, reasons, files=files)

    change("embed-missing", "the store does not have some of it", ["ST-STO-010"], {place(contents[1]): None})
    change(
        "embed-damaged", "an object is damaged", ["ST-STO-004"], {place(contents[1]): frame(contents[1])[:-2]}
    )
    longer = outside.copy()
    longer.put("artifacts", 0, size=outside.rows("artifacts")[0]["size"] + 1)
    change(
        "embed-size",
        "the trace says another size",
        ["ST-STO-007"],
        {"bundle.semtrace": zip_bytes(longer.members())},
    )
