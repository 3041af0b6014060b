"""The cases of the profile writer: bundles from plain facts, and bundles written again."""

from __future__ import annotations

import base64
import json
import random
from typing import TYPE_CHECKING, Any, Final, Literal

from semtrace.records.enums import Availability
from semtrace_conformance.making.book import laid_out
from semtrace_conformance.making.draft import COMPACT, MANIFEST, Draft, show, zip_bytes
from semtrace_conformance.making.reader_cases import BUNDLE, in_folder
from semtrace_conformance.making.reader_runs import with_runs
from semtrace_conformance.making.team import ids, team, two_tools, withheld
from semtrace_conformance.observe import said

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from semtrace_conformance.making.book import Book

Row = dict[str, Any]
LIMIT: Final = 1 << 53


def add_writer(book: Book) -> None:
    """Add all cases of the profile."""
    _written(book)
    _refused(book)
    _rewritten(book)
    _numbered(book)


def facts_file(draft: Draft) -> Row:
    """A trace as plain facts: rows by table, and the content of artifacts in their rows."""
    tables: Row = {}
    for name, rows in (draft.tables or {}).items():
        if rows:
            tables[name] = [
                {key: _plain(value) for key, value in row.items() if value is not None} for row in rows
            ]
    for row, plain in zip(draft.rows("artifacts"), tables.get("artifacts", ()), strict=True):
        if row["availability"] == Availability.EMBEDDED:
            _, content = draft.content[row["digest"]]
            del plain["digest"], plain["size"]
            try:
                plain["text"] = content.decode()
            except UnicodeDecodeError:
                plain["base64"] = base64.b64encode(content).decode()
    return {"tables": tables}


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(int(value)) if abs(value) >= LIMIT else int(value)
    return value


def written(draft: Draft) -> Row:
    """What the bundle of a draft must be."""
    embedded = {
        row["digest"] for row in draft.rows("artifacts") if row["availability"] == Availability.EMBEDDED
    }
    return {
        "work_digest": draft.digest("work"),
        "trace_digest": draft.digest("trace"),
        "content": {
            show(content): len(content)
            for digest, (_, content) in draft.content.items()
            if digest in embedded
        },
        "annotations": draft.rows("annotations"),
    }


def _written(book: Book) -> None:
    for name, title, draft, output, tests in (
        (
            "team",
            "everything that a trace can say, in small, as a ZIP file",
            team().draft(),
            "zip",
            ["ST-BND-002", "ST-BND-006"],
        ),
        ("team-folder", "the same as a directory", team().draft(), "directory", ["ST-BND-001", "ST-BND-004"]),
        ("ids", "token ids and block ids", ids().draft(), "zip", ["ST-ART-004"]),
        ("withheld", "artifacts that are withheld", withheld(ids()), "zip", ["ST-LVL-001"]),
        ("two-tools", "a trace without content", two_tools(), "directory", ["ST-BND-010"]),
    ):
        wanted: Literal["zip", "directory"] = "zip" if output == "zip" else "directory"
        book.accept(
            f"writer/{name}",
            title,
            [
                "ST-BND-010",
                "ST-BND-011",
                "ST-BND-012",
                "ST-BND-013",
                "ST-BND-020",
                "ST-DIG-014",
                "ST-DIG-021",
                "ST-BND-003",
                *tests,
            ],
            kind="write",
            files={"facts.json": _document(facts_file(draft))},
            inputs={"facts": "facts.json"},
            facts={},
            features=[wanted],
            output=wanted,
            written=written(draft),
        )


def _document(value: Mapping[str, Any]) -> bytes:
    return (laid_out(value) + "\n").encode()


def _refused(book: Book) -> None:
    def change(name: str, mutation: str, reasons: Sequence[str], edit: Callable[[Draft], object]) -> None:
        draft = ids().draft()
        edit(draft)
        book.change(
            "writer/ids",
            f"writer/{name}",
            mutation,
            reasons,
            files={"facts.json": _document(facts_file(draft))},
        )

    change("edge-twice", "an edge is there twice", ["ST-EDGE-001"],
           lambda draft: draft.rows("edges").append({**draft.rows("edges")[2], "lag_ns": 3}))  # fmt: skip
    change(
        "null-kind",
        "the kind of an operation is left out",
        ["ST-TAB-003"],
        lambda draft: draft.put("operations", 2, kind=None),
    )
    change(
        "dangling",
        "a segment has ids that are not there",
        ["ST-TAB-006"],
        lambda draft: draft.put("segments", 2, block_ids=9),
    )
    change("upwards", "an edge comes from a higher operation", ["ST-ORD-002"], lambda draft: draft.edge(0, 2))
    change(
        "negative",
        "a delay is negative",
        ["ST-VAL-001"],
        lambda draft: draft.put("operations", 2, external_delay_ns=-1),
    )
    change("data-edge-missing", "an edge that inherited context implies is missing", ["ST-EDGE-010"],
           lambda draft: draft.rows("edges").pop(1))  # fmt: skip


EXTENSIONS: Final[Row] = {
    "spec_version": "1.9",
    "optional_features": ["example.org/colours"],
    "example.org/colour": {"of": ["nothing", 1]},
    "licence": "CC-BY-4.0",
    "notes": "größer",
    "tokenizers": {"small": "blake3:" + 64 * "1"},
    "lineage": [{"how": "by hand", "example.org/x": 1}],
    "sources": [
        {
            "name": "log.jsonl",
            "bytes": 7,
            "digest": "blake3:" + 64 * "2",
            "adapter": "a",
            "adapter_version": "1",
        }
    ],
    "loss": [
        {
            "code": "tokens.unknown",
            "effect": "unknown",
            "message": "no counts",
            "count": 2,
            "where": ["log.jsonl:1"],
        }
    ],
}


def _rewritten(book: Book) -> None:
    draft = with_runs()
    draft.manifest = dict(EXTENSIONS)
    draft.encoding = COMPACT
    kept = {key: value for key, value in EXTENSIONS.items() if key != "spec_version"}
    members = draft.members()
    executions = json.loads(members[MANIFEST])["executions"]
    whole = {
        **written(draft),
        "manifest": kept,
        "executions": {
            name: {
                **{key: value for key, value in entry.items() if key not in {"tables", "packs"}},
                "header": said(entry["header"]),
                "content": {show(content): len(content) for content in draft.runs[name].content.values()},
            }
            for name, entry in executions.items()
        },
    }
    requirements = ["ST-EVO-004", "ST-ANN-003", "ST-ANN-004", "ST-DOC-002", "ST-ORD-015", "ST-ORD-016"]
    book.accept(
        "writer/rewrite-to-zip", "a directory written again as a ZIP file, with what the writer need not know", requirements,
        kind="rewrite", files=in_folder(members), inputs={"bundle": BUNDLE}, facts={}, features=["rewrite", "zip"],
        output="zip", written=whole,
    )  # fmt: skip
    book.accept(
        "writer/rewrite-to-folder", "a ZIP file written again as a directory, with what the writer need not know", requirements,
        kind="rewrite", files={"bundle.semtrace": zip_bytes(members)}, inputs={"bundle": "bundle.semtrace"}, facts={},
        features=["rewrite", "directory"], output="directory", written=whole,
    )  # fmt: skip

    def change(
        name: str, mutation: str, reasons: Sequence[str], spoil: Callable[[dict[str, bytes]], object]
    ) -> None:
        spoilt = dict(members)
        spoil(spoilt)
        book.change(
            "writer/rewrite-to-zip", f"writer/{name}", mutation, reasons,
            files={key: value for key, value in in_folder(spoilt).items() if value != members.get(key.removeprefix(f"{BUNDLE}/"))},
        )  # fmt: skip

    def flip(name: str) -> Callable[[dict[str, bytes]], object]:
        def apply(spoilt: dict[str, bytes]) -> None:
            raw = bytearray(spoilt[name])
            raw[len(raw) // 2] ^= 1
            spoilt[name] = bytes(raw)

        return apply

    change(
        "rewrite-damaged", "one bit of a table is flipped", ["ST-BND-012"], flip("tables/operations.arrow")
    )
    change(
        "rewrite-damaged-run",
        "one bit of an execution is flipped",
        ["ST-BND-012"],
        flip("executions/detailed/tables/events.arrow"),
    )

    def required(spoilt: dict[str, bytes]) -> None:
        again = with_runs()
        again.manifest = {**EXTENSIONS, "required_features": ["example.org/colours"]}
        again.encoding = COMPACT
        spoilt[MANIFEST] = again.members()[MANIFEST]

    change("rewrite-unknown", "it needs a feature that nobody has", ["ST-EVO-002"], required)


def _numbered(book: Book) -> None:
    def source(operations: Sequence[tuple[int, int | None, Sequence[int]]]) -> Row:
        return {
            "operations": [
                {
                    "task": task,
                    "references": list(references),
                    **({} if start is None else {"started_ns": start}),
                }
                for task, start, references in operations
            ]
        }

    def accept(name: str, title: str, operations: Sequence[tuple[int, int | None, Sequence[int]]]) -> None:
        book.accept(
            f"writer/{name}", title, ["ST-ORD-001", "ST-ORD-004"], kind="number",
            files={"source.json": _document(source(operations))}, inputs={"source": "source.json"},
            facts={"order": numbered(operations)}, features=["numbering"],
        )  # fmt: skip

    branches = [
        (0, 9, []),
        (0, 5, [0]),
        (0, 5, [0]),
        (0, None, []),
        (0, 7, [3]),
        (1, 1, []),
        (0, 30, [1]),
        (1, 0, [5]),
        (0, 6, [6]),
    ]
    accept("numbering", "operations by start and place, each after what it refers to", branches)
    accept("numbering-without-starts", "operations of which no start is known stay in their place, references allowing",
           [(0, None, [2]), (0, None, []), (0, None, [3]), (0, None, []), (0, None, [0])])  # fmt: skip
    rng = random.Random(7)
    many = [
        (
            at // 20,
            rng.randrange(30) if rng.randrange(4) else None,
            sorted({at - rng.randrange(1 + at % 20) for _ in range(2)} - {at}),
        )
        for at in range(60)
    ]
    accept("numbering-many", "sixty operations of three tasks", many)

    def change(name: str, mutation: str, requirement: str, at: int, references: Sequence[int]) -> None:
        spoilt = [*branches[:at], (*branches[at][:2], references), *branches[at + 1 :]]
        book.change(
            "writer/numbering",
            f"writer/{name}",
            mutation,
            [requirement],
            files={"source.json": _document(source(spoilt))},
        )

    change("numbering-circle", "operations refer to each other in a circle", "ST-ORD-002", 0, [8])
    change("numbering-across-tasks", "an operation refers to one of another task", "ST-ORD-003", 7, [5, 0])


def numbered(operations: Sequence[tuple[int, int | None, Sequence[int]]]) -> list[int]:
    """The operations of a source in their canonical order (ST-ORD-001, ST-ORD-004)."""
    order: list[int] = []
    while len(order) < len(operations):
        free = [
            at
            for at, (_, _, references) in enumerate(operations)
            if at not in order and set(references) <= set(order)
        ]
        task = min(operations[at][0] for at in range(len(operations)) if at not in order)
        order.append(
            min(
                (operations[at][1] is None, operations[at][1] or 0, at)
                for at in free
                if operations[at][0] == task
            )[2]
        )
    return order
