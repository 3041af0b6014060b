"""Mutations of the reader's cases: containers, manifests, members, digests, features."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import rfc8785

from semtrace.records.trace_tables import TRACE_TABLE
from semtrace_conformance.making.draft import MANIFEST, Draft, Encoding, arrow, pack, zip_bytes
from semtrace_conformance.making.reader_cases import ARCHIVE, BUNDLE, change
from semtrace_conformance.making.team import one_task, team, two_tools

if TYPE_CHECKING:
    from semtrace_conformance.making.book import Book

Row = dict[str, Any]
Edit = Callable[[Draft], object]
EDGES: Final = "tables/edges.arrow"


def add_reader_bundles(book: Book) -> None:
    """Add the mutations."""

    def of_team(
        name: str, mutation: str, reasons: Sequence[str], edit: Edit, links: Mapping[str, str] | None = None
    ) -> None:
        change(book, "team", name, mutation, reasons, team().draft(), edit, links=links)

    _folders(of_team)
    _manifests(of_team)
    _members(of_team)
    _arrow(of_team)
    _digests(of_team)
    _features(book)
    _archives(book)


Change = Callable[..., None]


def _file(name: str, content: bytes | None) -> Edit:
    return lambda draft: draft.files.update({name: content})


def _folders(change: Change) -> None:
    change("no-manifest", "the manifest is missing", ["ST-BND-001"], _file(MANIFEST, None))
    change(
        "hidden-member",
        "the name of a member begins with a dot",
        ["ST-BND-003"],
        _file("tables/.edges.arrow", b""),
    )
    change(
        "odd-name", "the name of a member has a space", ["ST-BND-003"], _file("tables/more edges.arrow", b"")
    )

    def escaping(draft: Draft) -> None:
        def seal(manifest: Row) -> None:
            entry = manifest["trace"]["tables"]["edges"]
            entry["path"] = f"../{EDGES}"

        draft.seal = seal
        draft.files[EDGES] = None

    change(
        "path-out-of-bundle", "a member is named by a path that leaves the bundle", ["ST-BND-003"], escaping
    )
    change(
        "link",
        "a member is a link to another",
        ["ST-BND-004"],
        _file(EDGES, None),
        links={EDGES: "states.arrow"},
    )
    change(
        "linked-folder",
        "a folder of the bundle is a link",
        ["ST-BND-004"],
        lambda _: None,
        links={"more": "tables"},
    )

    def deep(draft: Draft) -> None:
        def seal(manifest: Row) -> None:
            entry = manifest["trace"]["tables"]["edges"]
            draft.files[EDGES] = None
            entry["path"] = "a/b/c/d/e/f/g/h/i/edges.arrow"
            draft.files[entry["path"]] = draft.encoding.encode(
                arrow(TRACE_TABLE["edges"], draft.rows("edges"))
            )

        draft.seal = seal

    change("deep-folder", "a member lies nine folders deep", ["ST-BND-005"], deep)


def _sealed(edit: Callable[[Row], object]) -> Edit:
    def apply(draft: Draft) -> None:
        def seal(manifest: Row) -> None:
            edit(manifest)

        draft.seal = seal

    return apply


def _spoilt(edit: Callable[[bytes], bytes]) -> Edit:
    def apply(draft: Draft) -> None:
        draft.spoil = edit

    return apply


def _manifests(change_team: Change) -> None:
    reasons = ["ST-BND-010", "ST-DOC-001", "ST-DOC-006"]
    change_team("manifest-cut", "the manifest is cut short", ["ST-BND-010"], _spoilt(lambda raw: raw[:-20]))
    change_team(
        "manifest-list",
        "the manifest is a list",
        ["ST-BND-010", "ST-DOC-001"],
        _spoilt(lambda raw: b"[" + raw + b"]"),
    )
    change_team("manifest-indented", "the manifest is not in RFC 8785 form", ["ST-BND-010"],
                _spoilt(lambda raw: json.dumps(json.loads(raw), indent=1).encode()))  # fmt: skip
    change_team("manifest-key-twice", "a member stands in the manifest twice", ["ST-DOC-003", "ST-BND-010"],
                _spoilt(lambda raw: raw[:-1] + b',"format":"semtrace"}'))  # fmt: skip
    change_team("manifest-key", "the manifest has a member that manifests do not have", reasons,
                _sealed(lambda manifest: manifest.update(license="none")))  # fmt: skip
    change_team("no-version", "the manifest names no version of the standard", reasons,
                _sealed(lambda manifest: manifest.pop("spec_version")))  # fmt: skip
    change_team("no-producer", "the manifest names no producer", reasons,
                _sealed(lambda manifest: manifest.pop("producer")))  # fmt: skip
    change_team("other-format", "the manifest is of another format", reasons,
                _sealed(lambda manifest: manifest.update(format="semtrace-plan")))  # fmt: skip
    change_team("rows-as-text", "the rows of a table are given as text", reasons,
                _sealed(lambda manifest: manifest["trace"]["tables"]["edges"].update(rows="22")))  # fmt: skip
    change_team("manifest-altered", "a letter of the manifest was altered", ["ST-BND-011"],
                _spoilt(lambda raw: raw.replace(b"semtrace-conformance", b"semtrace-conformancy")))  # fmt: skip
    change_team("manifest-without-digest", "the manifest has no digest", ["ST-BND-011"],
                _spoilt(lambda raw: rfc8785.dumps({key: value for key, value in json.loads(raw).items() if key != "digest"})))  # fmt: skip


def _members(change: Change) -> None:
    def flipped(draft: Draft) -> None:
        raw = bytearray(draft.encoding.encode(arrow(TRACE_TABLE["edges"], draft.rows("edges"))))
        raw[len(raw) // 2] ^= 4
        draft.files[EDGES] = bytes(raw)

    change("bit-flipped", "one bit of a table was flipped", ["ST-BND-012"], flipped)
    change("member-missing", "a table is missing", ["ST-BND-012"], _file(EDGES, None))
    change("pack-missing", "a pack is missing", ["ST-BND-012"], _file("artifacts/00000.arrow", None))
    change("member-longer", "a table is longer than it was written",
           ["ST-BND-012"],
           lambda draft: draft.files.update({EDGES: draft.encoding.encode(arrow(TRACE_TABLE["edges"], draft.rows("edges"))) + b"\0"}))  # fmt: skip
    change("rows-wrong", "the manifest says that a table has a row more", ["ST-BND-012"],
           _sealed(lambda manifest: manifest["trace"]["tables"]["edges"].update(rows=23)))  # fmt: skip
    change(
        "member-not-named",
        "there is a member that the manifest does not name",
        ["ST-BND-013"],
        _file("notes.txt", b"note"),
    )

    change("artifact-count", "the manifest says that a pack has an artifact more", ["ST-BND-022"],
           _sealed(lambda manifest: manifest["trace"]["packs"][0].update(artifacts=35)))  # fmt: skip


def _arrow(change: Change) -> None:
    def stored(content: Callable[[Draft], bytes]) -> Edit:
        return lambda draft: draft.stored.update({EDGES: content(draft)})

    def edges(draft: Draft) -> pa.Table:
        return arrow(TRACE_TABLE["edges"], draft.rows("edges"))

    change("not-arrow", "a table is no Arrow file", ["ST-BND-020"], stored(lambda _: b"target,source\n1,0\n"))
    change("arrow-cut", "a table was cut short before its digest was taken", ["ST-BND-020"],
           stored(lambda draft: draft.encoding.encode(edges(draft))[:900]))  # fmt: skip

    def dictionary(draft: Draft) -> None:
        names = arrow(TRACE_TABLE["tasks"], draft.rows("tasks"))
        at = names.schema.get_field_index("name")
        draft.stored["tables/tasks.arrow"] = draft.encoding.encode(
            names.set_column(at, "name", names.column("name").dictionary_encode())
        )

    change("dictionary", "a column is encoded with a dictionary", ["ST-BND-020", "ST-TAB-002"], dictionary)

    def pack_of(edit: Callable[[pa.Table], pa.Table]) -> Edit:
        def apply(draft: Draft) -> None:
            draft.packs = [edit(pack([(digest, *content) for digest, content in draft.content.items()]))]

        return apply

    change(
        "pack-column",
        "a pack has a column less",
        ["ST-BND-020"],
        pack_of(lambda table: table.drop_columns(["media_type"])),
    )
    change(
        "content-twice",
        "content stands in a pack twice",
        ["ST-BND-020"],
        pack_of(lambda table: pa.concat_tables([table, table.slice(3, 1)])),
    )

    def bomb(draft: Draft) -> bytes:
        raw = bytearray(Encoding("zstd").encode(edges(draft)))
        # The first compressed buffer of the body begins with its raw size; the frame itself begins with zstd's magic number.
        at = raw.index(b"\x28\xb5\x2f\xfd") - 8
        raw[at : at + 8] = struct.pack("<q", 1 << 44)
        return bytes(raw)

    change("bomb", "a table claims to decompress to 16 TiB", ["ST-BND-021", "ST-BND-020"], stored(bomb))


def _digests(change: Change) -> None:
    wrong = "blake3:" + 64 * "0"
    change(
        "work-digest",
        "the manifest says another work digest",
        ["ST-DIG-014"],
        lambda draft: draft.stated.update(work_digest=wrong),
    )
    change(
        "trace-digest",
        "the manifest says another trace digest",
        ["ST-DIG-014"],
        lambda draft: draft.stated.update(trace_digest=wrong),
    )
    change("digest-in-upper-case", "the digest of a member is in upper case", ["ST-DIG-021", "ST-BND-012"],
           _sealed(lambda manifest: _upper(manifest["trace"]["tables"]["edges"])))  # fmt: skip


def _upper(entry: Row) -> None:
    entry["digest"] = "blake3:" + entry["digest"].removeprefix("blake3:").upper()


def _features(book: Book) -> None:
    def extended(name: str, mutation: str, reasons: Sequence[str], **members: Any) -> None:
        draft = two_tools()
        draft.manifest = json.loads(book.pages["reader/extensions"].files[f"{BUNDLE}/{MANIFEST}"])
        for name_ in ("digest", "trace", "format"):
            del draft.manifest[name_]
        change(book, "extensions", name, mutation, reasons, draft, lambda each: each.manifest.update(members))

    extended("major-version", "it is of version 2.0 of the standard", ["ST-EVO-001"], spec_version="2.0")
    extended(
        "required-feature",
        "it needs a feature that nobody has",
        ["ST-EVO-002"],
        required_features=["example.org/colours"],
    )
    extended(
        "key-without-namespace",
        "a member without a namespace is one that nobody knows",
        ["ST-DOC-001", "ST-BND-010"],
        colour=1,
    )


def _archives(book: Book) -> None:
    members = one_task().members()
    base = zip_bytes(members)

    def change_zip(name: str, mutation: str, reasons: Sequence[str], content: bytes) -> None:
        # What is wrong with a ZIP file is wrong with the bytes around its members too.
        wanted = [
            *reasons,
            *(["ST-BND-009"] if "ST-BND-012" not in reasons and "ST-BND-001" not in reasons else []),
        ]
        book.change("reader/small-zip", f"reader/{name}", mutation, wanted, files={ARCHIVE: content})

    change_zip("zip-cut", "the file is cut short", ["ST-BND-002"], base[: len(base) // 2])
    change_zip("zip-empty", "the file is empty", ["ST-BND-002", "ST-BND-001"], b"")
    change_zip("zip-text", "the file is a text", ["ST-BND-002", "ST-BND-001"], b"{}\n")
    change_zip(
        "zip-without-manifest",
        "the manifest is missing",
        ["ST-BND-001"],
        zip_bytes({name: content for name, content in members.items() if name != MANIFEST}),
    )

    def compress(info: zipfile.ZipInfo) -> None:
        info.compress_type = zipfile.ZIP_DEFLATED

    def write(info: zipfile.ZipInfo) -> None:
        if info.filename == "tables/tasks.arrow":
            compress(info)

    change_zip("zip-compressed", "a member is compressed", ["ST-BND-002"], zip_bytes(members, write))

    def link(info: zipfile.ZipInfo) -> None:
        if info.filename == "tables/tasks.arrow":
            info.external_attr = 0o120777 << 16

    change_zip("zip-link", "a member is a link", ["ST-BND-002"], zip_bytes(members, link))
    change_zip("zip-encrypted", "a member is said to be encrypted", ["ST-BND-002"], _flag(base))
    for name, mutation, reasons, content in (
        (
            "zip-name",
            "the name of a member leaves the bundle",
            ["ST-BND-003"],
            base.replace(b"tables/tasks.arrow", b"../../../tasks.arr"),
        ),
        (
            "zip-absolute",
            "the name of a member is an absolute path",
            ["ST-BND-003"],
            base.replace(b"tables/tasks.arrow", b"/ables/tasks.arrow"),
        ),
        (
            "zip-backslash",
            "the name of a member has a backslash",
            ["ST-BND-003"],
            base.replace(b"tables/tasks.arrow", b"tables\\tasks.arrow"),
        ),
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
    change_zip("zip-tail", "there are bytes after the end", ["ST-BND-009", "ST-BND-002"], base + b"more")
    change_zip(
        "zip-head",
        "there are bytes before the first member",
        ["ST-BND-009", "ST-BND-002"],
        b"#!/bin/sh\n" + base,
    )
    for name, mutation, header in (
        ("zip-time", "a member has a time", {"date_time": (2026, 11, 29, 12, 0, 0)}),
        ("zip-comment", "a member has a comment", {"comment": b"x"}),
        ("zip-extra", "a member has an extra field", {"extra": b"\x99\x99\x01\x00x"}),
        ("zip-attributes", "a member may be run", {"external_attr": 0o100755 << 16}),
    ):
        change_zip(
            name, mutation, ["ST-BND-009", "ST-BND-006", "ST-BND-016"], zip_bytes(members, _header(header))
        )
    ordered = [MANIFEST, *sorted(set(members) - {MANIFEST})]
    for name, mutation, names in (
        ("zip-manifest-last", "the manifest is the last member", [*ordered[1:], MANIFEST]),
        ("zip-order", "two members are exchanged", [*ordered[:-2], ordered[-1], ordered[-2]]),
    ):
        change_zip(name, mutation, ["ST-BND-006", "ST-BND-016"], zip_bytes(members, names=names))
    _overlap(change_zip, members)


def _header(values: Row) -> Callable[[zipfile.ZipInfo], None]:
    def change(info: zipfile.ZipInfo) -> None:
        if info.filename == "tables/tasks.arrow":
            for name, value in values.items():
                setattr(info, name, value)

    return change


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
