"""Mutations of the reader's cases: folders, manifests, members, digests, features."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import rfc8785

from semtrace.records.trace_tables import TRACE_TABLE
from semtrace_conformance.making.draft import MANIFEST, Draft, Encoding, arrow, pack
from semtrace_conformance.making.reader_cases import BUNDLE, change
from semtrace_conformance.making.team import ids, two_tools

if TYPE_CHECKING:
    from semtrace_conformance.making.book import Book

Row = dict[str, Any]
Edit = Callable[[Draft], object]
TASKS: Final = "tables/tasks.arrow"


def add_reader_bundles(book: Book) -> None:
    """Add the mutations."""

    def of_tools(
        name: str, mutation: str, reasons: Sequence[str], edit: Edit, links: Mapping[str, str] | None = None
    ) -> None:
        change(book, "two-tools", name, mutation, reasons, two_tools(), edit, links=links)

    def of_ids(name: str, mutation: str, reasons: Sequence[str], edit: Edit) -> None:
        change(book, "ids", name, mutation, reasons, ids().draft(), edit)

    _folders(of_tools)
    _manifests(of_tools)
    _members(of_tools)
    _arrow(of_tools)
    _packs(of_ids)
    _digests(of_tools)
    _features(book)


Change = Callable[..., None]


def _file(name: str, content: bytes | None) -> Edit:
    return lambda draft: draft.files.update({name: content})


def _folders(change: Change) -> None:
    change("no-manifest", "the manifest is missing", ["ST-BND-001"], _file(MANIFEST, None))
    change(
        "hidden-member",
        "the name of a member begins with a dot",
        ["ST-BND-003"],
        _file("tables/.tasks.arrow", b""),
    )
    change(
        "odd-name", "the name of a member has a space", ["ST-BND-003"], _file("tables/more tasks.arrow", b"")
    )

    def escaping(draft: Draft) -> None:
        def seal(manifest: Row) -> None:
            entry = manifest["trace"]["tables"]["tasks"]
            entry["path"] = f"../{TASKS}"

        draft.seal = seal
        draft.files[TASKS] = None

    change(
        "path-out-of-bundle", "a member is named by a path that leaves the bundle", ["ST-BND-003"], escaping
    )
    change(
        "link",
        "a member is a link to another",
        ["ST-BND-004"],
        _file(TASKS, None),
        links={TASKS: "trace.arrow"},
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
            entry = manifest["trace"]["tables"]["tasks"]
            draft.files[TASKS] = None
            entry["path"] = "a/b/c/d/e/f/g/h/i/tasks.arrow"
            draft.files[entry["path"]] = draft.encoding.encode(
                arrow(TRACE_TABLE["tasks"], draft.rows("tasks"))
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


def _manifests(change: Change) -> None:
    reasons = ["ST-BND-010", "ST-DOC-001", "ST-DOC-006"]
    change("manifest-cut", "the manifest is cut short", ["ST-BND-010"], _spoilt(lambda raw: raw[:-20]))
    change(
        "manifest-list",
        "the manifest is a list",
        ["ST-BND-010", "ST-DOC-001"],
        _spoilt(lambda raw: b"[" + raw + b"]"),
    )
    change("manifest-indented", "the manifest is not in RFC 8785 form", ["ST-BND-010"],
                _spoilt(lambda raw: json.dumps(json.loads(raw), indent=1).encode()))  # fmt: skip
    change("manifest-key-twice", "a member stands in the manifest twice", ["ST-DOC-003", "ST-BND-010"],
                _spoilt(lambda raw: raw[:-1] + b',"format":"semtrace"}'))  # fmt: skip
    change("manifest-key", "the manifest has a member that manifests do not have", reasons,
                _sealed(lambda manifest: manifest.update(license="none")))  # fmt: skip
    change("no-version", "the manifest names no version of the standard", reasons,
                _sealed(lambda manifest: manifest.pop("spec_version")))  # fmt: skip
    change("no-producer", "the manifest names no producer", reasons,
                _sealed(lambda manifest: manifest.pop("producer")))  # fmt: skip
    change("other-format", "the manifest is of another format", reasons,
                _sealed(lambda manifest: manifest.update(format="semtrace-plan")))  # fmt: skip
    change("rows-as-text", "the rows of a table are given as text", reasons,
                _sealed(lambda manifest: manifest["trace"]["tables"]["tasks"].update(rows="2")))  # fmt: skip
    change("manifest-altered", "a letter of the manifest was altered", ["ST-BND-011"],
                _spoilt(lambda raw: raw.replace(b"semtrace-conformance", b"semtrace-conformancy")))  # fmt: skip
    change("manifest-without-digest", "the manifest has no digest", ["ST-BND-011"],
                _spoilt(lambda raw: rfc8785.dumps({key: value for key, value in json.loads(raw).items() if key != "digest"})))  # fmt: skip


def _members(change: Change) -> None:
    def flipped(draft: Draft) -> None:
        raw = bytearray(draft.encoding.encode(arrow(TRACE_TABLE["tasks"], draft.rows("tasks"))))
        raw[len(raw) // 2] ^= 4
        draft.files[TASKS] = bytes(raw)

    change("bit-flipped", "one bit of a table was flipped", ["ST-BND-012"], flipped)
    change("member-missing", "a table is missing", ["ST-BND-012"], _file(TASKS, None))
    change("member-longer", "a table is longer than it was written",
           ["ST-BND-012"],
           lambda draft: draft.files.update({TASKS: draft.encoding.encode(arrow(TRACE_TABLE["tasks"], draft.rows("tasks"))) + b"\0"}))  # fmt: skip
    change("rows-wrong", "the manifest says that a table has a row more", ["ST-BND-012"],
           _sealed(lambda manifest: manifest["trace"]["tables"]["tasks"].update(rows=3)))  # fmt: skip
    change(
        "member-not-named",
        "there is a member that the manifest does not name",
        ["ST-BND-013"],
        _file("notes.txt", b"note"),
    )


def _arrow(change: Change) -> None:
    def stored(content: Callable[[Draft], bytes]) -> Edit:
        return lambda draft: draft.stored.update({TASKS: content(draft)})

    def tasks(draft: Draft) -> pa.Table:
        return arrow(TRACE_TABLE["tasks"], draft.rows("tasks"))

    change("not-arrow", "a table is no Arrow file", ["ST-BND-020"], stored(lambda _: b"name\nfirst\n"))
    change("arrow-cut", "a table was cut short before its digest was taken", ["ST-BND-020"],
           stored(lambda draft: draft.encoding.encode(tasks(draft))[:400]))  # fmt: skip

    def dictionary(draft: Draft) -> None:
        names = arrow(TRACE_TABLE["tasks"], draft.rows("tasks"))
        at = names.schema.get_field_index("name")
        draft.stored[TASKS] = draft.encoding.encode(
            names.set_column(at, "name", names.column("name").dictionary_encode())
        )

    change("dictionary", "a column is encoded with a dictionary", ["ST-BND-020", "ST-TAB-002"], dictionary)

    def bomb(draft: Draft) -> bytes:
        return _claiming(Encoding("zstd").encode(tasks(draft)), 1 << 44)

    change(
        "bomb",
        "a table claims to decompress to 16 TiB",
        ["ST-BND-025", "ST-BND-021", "ST-BND-020"],
        stored(bomb),
    )


def _packs(change: Change) -> None:
    change("pack-missing", "a pack is missing", ["ST-BND-012"], _file("artifacts/00000.arrow", None))
    change("artifact-count", "the manifest says that a pack has an artifact more", ["ST-BND-022"],
           _sealed(lambda manifest: manifest["trace"]["packs"][0].update(artifacts=6)))  # fmt: skip

    def pack_of(edit: Callable[[pa.Table], pa.Table]) -> Edit:
        def apply(draft: Draft) -> None:
            draft.packs = [edit(pack([(digest, *content) for digest, content in draft.content.items()]))]

        return apply

    change(
        "pack-column",
        "a pack has a column less",
        ["ST-BND-028", "ST-BND-020"],
        pack_of(lambda table: table.drop_columns(["media_type"])),
    )
    change(
        "content-twice",
        "content stands in a pack twice",
        ["ST-BND-029", "ST-BND-020"],
        pack_of(lambda table: pa.concat_tables([table, table.slice(3, 1)])),
    )

    def batch(draft: Draft) -> None:
        table = pack([(digest, *content) for digest, content in draft.content.items()])
        draft.stored["artifacts/00000.arrow"] = _claiming(Encoding("zstd").encode(table), 1 << 26)

    change(
        "pack-batch",
        "a record batch of a pack, of some hundred bytes, claims to decompress to 64 MiB",
        ["ST-BND-027", "ST-BND-021", "ST-BND-020"],
        batch,
    )

    def batches(draft: Draft) -> None:
        table = pack([(digest, *content) for digest, content in draft.content.items()] * 2)
        raw = Encoding("zstd", batch=1).encode(table)
        draft.stored["artifacts/00000.arrow"] = _claiming(raw, 30 << 20, each=True)

    change(
        "pack-batches",
        "the record batches of a pack, of some kilobytes, claim to decompress to 30 MiB each",
        ["ST-BND-026", "ST-BND-021", "ST-BND-020", "ST-BND-029"],
        batches,
    )


def _claiming(raw: bytes, size: int, *, each: bool = False) -> bytes:
    """An Arrow file whose first compressed buffer, or each that is as large, is said to become so many bytes."""
    changed = bytearray(raw)
    # A compressed buffer of the body begins with its raw size; the frame itself begins with zstd's magic number.
    magic = b"\x28\xb5\x2f\xfd"
    at = raw.index(magic) - 8
    first = raw[at : at + 8]
    changed[at : at + 8] = struct.pack("<q", size)
    while each and (at := raw.find(first + magic, at + 8)) >= 0:
        changed[at : at + 8] = struct.pack("<q", size)
    return bytes(changed)


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
           _sealed(lambda manifest: _upper(manifest["trace"]["tables"]["tasks"])))  # fmt: skip


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
    wrong = ["ST-BND-010", "ST-DOC-001", "ST-DOC-006"]
    source: Row = json.loads(book.pages["reader/extensions"].files[f"{BUNDLE}/{MANIFEST}"])["sources"][0]
    for name, mutation, reasons, members in (
        ("producer-as-text", "the producer is a text", wrong, {"producer": "other 7"}),
        ("version-as-number", "the version of the standard is a number", wrong, {"spec_version": 1}),
        ("size-below-zero", "a source has a size below zero", wrong, {"sources": [{**source, "bytes": -1}]}),
        ("large-integer", "the size of a source is 2^53", ["ST-DOC-004", *wrong], {"sources": [{**source, "bytes": 2.0**53}]}),
        ("digest-of-other-kind", "a tokenizer has a digest of another kind", ["ST-DIG-021"],
         {"tokenizers": {"small": "sha256:" + 64 * "1"}}),
    ):  # fmt: skip
        extended(name, mutation, reasons, **members)

    def spelt(name: str, mutation: str, reasons: Sequence[str], spelling: bytes) -> None:
        """A value in a namespaced member, which gives it no meaning, that no JSON has."""
        draft = two_tools()
        draft.manifest = json.loads(book.pages["reader/extensions"].files[f"{BUNDLE}/{MANIFEST}"])
        for name_ in ("digest", "trace", "format"):
            del draft.manifest[name_]
        change(book, "extensions", name, mutation, reasons, draft,
               _spoilt(lambda raw: raw.replace(b'"nothing"', spelling)))  # fmt: skip

    spelt("not-a-number", "a value of the manifest is NaN", ["ST-BND-010", "ST-DOC-003"], b"NaN")
    spelt(
        "half-a-character",
        "a text of the manifest has half of a character",
        ["ST-BND-010", "ST-DOC-003"],
        b'"\\ud800"',
    )
