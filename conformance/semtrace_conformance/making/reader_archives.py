"""Mutations of the reader's cases: ZIP files."""

from __future__ import annotations

import struct
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, Final

from semtrace_conformance.making.draft import MANIFEST, Draft, zip_bytes
from semtrace_conformance.making.reader_cases import ARCHIVE, facts_of
from semtrace_conformance.making.team import one_task, two_tools

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from semtrace_conformance.making.book import Book

_LOCAL: Final = 30
_ENTRY: Final = 46
_TABLE: Final = b"tables/trace.arrow"


def add_reader_archives(book: Book) -> None:
    """Add the mutations of ZIP files."""
    members = one_task().members()
    base = zip_bytes(members)

    def change_zip(name: str, mutation: str, reasons: Sequence[str], content: bytes) -> None:
        _change(book, "small-zip", name, mutation, reasons, content)

    _bytes(book)
    _single(book)
    none = ["ST-BND-001", "ST-BND-002", "ST-BND-009"]  # without an end record it is no ZIP file
    change_zip("zip-cut", "the file is cut short", none, base[: len(base) // 2])
    change_zip("zip-empty", "the file is empty", none, b"")
    change_zip("zip-text", "the file is a text", none, b"{}\n")
    change_zip(
        "zip-without-manifest",
        "the manifest is missing",
        ["ST-BND-001"],
        zip_bytes({name: content for name, content in members.items() if name != MANIFEST}),
    )

    for name, mutation, reasons, content in (
        (
            "zip-twice",
            "a member is there twice",
            ["ST-BND-002"],
            base.replace(b"tables/trace.arrow", b"tables/tasks.arrow"),
        ),
        (
            "zip-case",
            "two names differ in case alone",
            ["ST-BND-003", "ST-BND-002"],
            base.replace(b"tables/trace.arrow", b"tables/Tasks.arrow"),
        ),
    ):
        change_zip(name, mutation, reasons, content)
    altered = {**members, "tables/tasks.arrow": members["tables/tasks.arrow"].replace(b"task 0", b"task 2")}
    change_zip(
        "zip-altered",
        "a letter of a table was altered, and the ZIP file made anew",
        ["ST-BND-012"],
        zip_bytes(altered),
    )
    ordered = [MANIFEST, *sorted(set(members) - {MANIFEST})]
    for name, mutation, names in (
        ("zip-manifest-last", "the manifest is the last member", [*ordered[1:], MANIFEST]),
        ("zip-order", "two members are exchanged", [*ordered[:-2], ordered[-1], ordered[-2]]),
    ):
        change_zip(name, mutation, ["ST-BND-006", "ST-BND-016"], zip_bytes(members, names=names))
    _overlap(change_zip, members)


def _change(book: Book, base: str, name: str, mutation: str, reasons: Sequence[str], content: bytes) -> None:
    # What is wrong with a ZIP file is wrong with the bytes around its members too.
    bytes_too = () if {"ST-BND-009", "ST-BND-012", "ST-BND-001"} & set(reasons) else ("ST-BND-009",)
    book.change(
        f"reader/{base}", f"reader/{name}", mutation, [*reasons, *bytes_too], files={ARCHIVE: content}
    )


def _least() -> Draft:
    """A trace of nothing but its header."""
    draft = two_tools()
    for table in ("tasks", "operations"):
        draft.rows(table).clear()
    return draft


def _single(book: Book) -> None:
    """A member that is not as members are, or bytes around the file."""
    members = _least().members()
    base = zip_bytes(members)
    head = ["ST-BND-009", "ST-BND-006", "ST-BND-016"]
    around = ["ST-BND-009", "ST-BND-002"]
    for name, mutation, reasons, content in (
        ("zip-compressed", "a member is compressed", ["ST-BND-002"], _with(members, compress_type=zipfile.ZIP_DEFLATED)),
        ("zip-link", "a member is a link", ["ST-BND-002"], _with(members, external_attr=0o120777 << 16)),
        ("zip-encrypted", "a member is said to be encrypted", ["ST-BND-002"], _flag(base)),
        ("zip-time", "a member has a time", head, _with(members, date_time=(2026, 11, 29, 12, 0, 0))),
        ("zip-comment", "a member has a comment", head, _with(members, comment=b"x")),
        ("zip-extra", "a member has an extra field", head, _with(members, extra=b"\x99\x99\x01\x00x")),
        ("zip-attributes", "a member may be run", head, _with(members, external_attr=0o100755 << 16)),
        ("zip-name", "the name of a member leaves the bundle", ["ST-BND-003"], base.replace(_TABLE, b"../../../trace.arr")),
        ("zip-absolute", "the name of a member is an absolute path", ["ST-BND-003"], base.replace(_TABLE, b"/ables/trace.arrow")),
        ("zip-backslash", "the name of a member has a backslash", ["ST-BND-003"], base.replace(_TABLE, b"tables\\trace.arrow")),
        ("zip-tail", "there are bytes after the end", around, base + b"more"),
        ("zip-head", "there are bytes before the first member", around, b"#!/bin/sh\n" + base),
    ):  # fmt: skip
        _change(book, "least-zip", name, mutation, reasons, content)


def _with(members: Mapping[str, bytes], **values: Any) -> bytes:
    """The members as a ZIP file in which one has other values in its header."""

    def change(info: zipfile.ZipInfo) -> None:
        if info.filename == _TABLE.decode():
            for name, value in values.items():
                setattr(info, name, value)

    return zip_bytes(members, change)


def _flag(raw: bytes) -> bytes:
    """The archive with the flag of encryption set on the first member, in both of its headers."""
    changed = bytearray(raw)
    changed[6] |= 1
    at = raw.index(b"PK\x01\x02")
    changed[at + 8] |= 1
    return bytes(changed)


def _overlap(
    change_zip: Callable[[str, str, Sequence[str], bytes], None], members: Mapping[str, bytes]
) -> None:
    """Two entries of the directory that point to the same bytes."""
    raw = bytearray(zip_bytes(members))
    at = raw.index(b"PK\x01\x02")
    entries = []
    while raw[at : at + 4] == b"PK\x01\x02":
        entries.append(at)
        lengths = struct.unpack_from("<HHH", raw, at + 28)
        at += 46 + sum(lengths)
    raw[entries[1] + 42 : entries[1] + 46] = raw[entries[2] + 42 : entries[2] + 46]
    change_zip("zip-overlap", "two members lie over each other", ["ST-BND-002"], bytes(raw))


def _bytes(book: Book) -> None:
    """Single bytes around the members of a ZIP file of two members."""
    draft = _least()
    base = zip_bytes(draft.members())
    book.accept(
        "reader/least-zip", "a ZIP file of two members", ["ST-BND-002", "ST-BND-009"], kind="read",
        files={ARCHIVE: base}, inputs={"bundle": ARCHIVE}, facts=facts_of(draft, {}), features=["zip"],
    )  # fmt: skip
    directory = base.index(b"PK\x01\x02")
    second = base.index(b"PK\x03\x04", 4)
    entry = base.index(b"PK\x01\x02", directory + 4)
    end = base.index(b"PK\x05\x06")

    def put(at: int, layout: str, value: int) -> bytes:
        changed = bytearray(base)
        struct.pack_into(layout, changed, at, value)
        return bytes(changed)

    def grown(at: int, more: bytes, moved: int) -> bytes:
        """The file with bytes more before the directory, where the end record says that it begins."""
        changed = bytearray(base[:at] + more + base[at:])
        if moved:
            struct.pack_into(
                "<L", changed, moved + len(more), struct.unpack_from("<L", base, moved)[0] + len(more)
            )
        struct.pack_into("<L", changed, end + len(more) + 16, directory + len(more))
        return bytes(changed)

    def wide() -> bytes:
        """The size of the first member as a ZIP64 field, which it does not need."""
        size = struct.unpack_from("<L", base, directory + 20)[0]
        names = struct.unpack_from("<H", base, directory + 28)[0]
        head = bytearray(base[directory : directory + _ENTRY + names])
        struct.pack_into("<LL", head, 20, 0xFFFFFFFF, 0xFFFFFFFF)
        struct.pack_into("<H", head, 30, 20)
        changed = bytearray(
            base[:directory]
            + head
            + struct.pack("<HHQQ", 1, 16, size, size)
            + base[directory + _ENTRY + names :]
        )
        struct.pack_into("<L", changed, end + 20 + 12, end - directory + 20)
        return bytes(changed)

    def renamed(content: bytes) -> bytes:
        return base.replace(_TABLE, content)

    crc = zlib.crc32(base[second + _LOCAL : directory]) ^ 1
    both = bytearray(put(second + 14, "<L", crc))
    struct.pack_into("<L", both, entry + 16, crc)
    for name, mutation, reasons, content in (
        ("zip-crc", "the CRC-32 of a member is that of other content", (), bytes(both)),
        ("zip-local", "the header before a member says another time than the directory", ("ST-BND-006",), put(second + 10, "<H", 1)),
        ("zip-system", "the directory says that a member was made on another system", (), put(entry + 5, "B", 0)),
        ("zip-internal", "the directory says that a member is text", (), put(entry + 36, "<H", 1)),
        ("zip-zip64", "a member has a ZIP64 field that it does not need", ("ST-BND-006",), wide()),
        ("zip-end", "the end says that the directory begins on another disk", ("ST-BND-002",), put(end + 6, "<H", 1)),
        ("zip-count", "the end counts a member more than there are", ("ST-BND-001", "ST-BND-002"),
         put(end + 10, "<H", 3)[: end + 8] + struct.pack("<H", 3) + put(end + 10, "<H", 3)[end + 10 :]),
        ("zip-between", "there are bytes between two members", ("ST-BND-002",), grown(second, b"more", entry + 42)),
        ("zip-gap", "there are bytes between the last member and the directory", ("ST-BND-002",), grown(directory, b"more", 0)),
        ("zip-letter", "the name of a member has a letter that is not ASCII", ("ST-BND-003",), renamed(b"tables/tr\xe4ce.arrow")),
        ("zip-folder", "the name of a member ends like that of a folder", ("ST-BND-002", "ST-BND-003"), renamed(b"tables/trace.arro/")),
    ):  # fmt: skip
        book.change("reader/least-zip", f"reader/{name}", mutation, ["ST-BND-009", *reasons, "ST-BND-016"],
                    files={ARCHIVE: content})  # fmt: skip
