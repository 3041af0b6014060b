"""The cases of the profile reader: what is valid in every encoding, and what is wrong in one way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from semtrace.records.trace_tables import TRACE_TABLE
from semtrace_conformance.making.draft import Draft, Encoding, arrow, pack, zip_bytes
from semtrace_conformance.making.team import Recorded, ids, one_task, team, two_tools, withheld

if TYPE_CHECKING:
    import pyarrow as pa

    from semtrace_conformance.making.book import Book

Row = dict[str, Any]
Edit = Callable[[Draft], object]

BUNDLE: Final = "bundle"
ARCHIVE: Final = "bundle.semtrace"
_EVERY_DIGEST: Final = ["ST-DIG-010", "ST-DIG-011", "ST-DIG-015", "ST-ORD-015"]

CELLS: Final = [
    ["trace", "origin_unix_ns", 0],
    ["tasks", "priority", 0],
    ["tasks", "output", 0],
    ["tasks", "output", 1],
    ["tasks", "score_ppm", 0],
    ["stages", "template_extension", 3],
    ["stages", "parent", 1],
    ["sessions", "parent_operation", 1],
    ["models", "tokenizer", 0],
    ["operations", "name", 10],
    ["operations", "prompt_tokens", 14],
    ["operations", "external_delay_ns", 5],
    ["segments", "source_length", 5],
    ["segments", "envelope", 6],
    ["edges", "trigger", 10],
    ["edges", "lag_ns", 9],
    ["edges", "confidence", 11],
    ["edges", "confidence", 12],
    ["state_versions", "writer", 2],
    ["artifacts", "media_type", 4],
    ["artifacts", "digest", 0],
]
"""Single values of the team's trace that a reader is asked for: table, column, row."""


def in_folder(members: Mapping[str, bytes]) -> dict[str, bytes]:
    """Members as the files of a bundle that is a directory."""
    return {f"{BUNDLE}/{name}": content for name, content in members.items()}


def facts_of(draft: Draft, ask: Mapping[str, Any], requests: Mapping[int, Any] | None = None) -> Row:
    """What a reader must give back of a valid draft."""
    tables = draft.tables or {}
    facts: Row = {
        "work_digest": draft.digest("work"),
        "trace_digest": draft.digest("trace"),
        "content_level": ("text", "token_ids", "block_hashes", "shape")[
            tables["trace"][0]["content_level"] - 1
        ],
        "rows": {name: len(rows) for name, rows in tables.items() if rows},
    }
    if "cells" in ask:
        facts["cells"] = [_cell(tables[table][row][column]) for table, column, row in ask["cells"]]
    if "inputs" in ask:
        facts["inputs"] = [
            [list(piece) for piece in pieces(tables, operation)] for operation in ask["inputs"]
        ]
    if "requests" in ask and requests is not None:
        facts["requests"] = [requests[operation] for operation in ask["requests"]]
    return facts


def _cell(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value


def pieces(tables: Mapping[str, Sequence[Row]], operation: int) -> list[tuple[str, int]]:
    """The whole input of an operation (trace.md): own segments by row, inherited outputs by their operation."""
    row = tables["operations"][operation]
    base = row["context_base"]
    inherited = [] if base is None else [*pieces(tables, base), ("output", base)][: row["context_segments"]]
    own = [
        ("segment", at) for at, segment in enumerate(tables["segments"]) if segment["operation"] == operation
    ]
    return inherited + own


def add_reader(book: Book) -> None:
    """Add the cases with right input."""
    _traces(book)
    _encodings(book)
    _archives(book)
    _extensions(book)


def _accept(
    book: Book,
    name: str,
    title: str,
    requirements: Sequence[str],
    draft: Draft,
    *,
    ask: Mapping[str, Any] | None = None,
    features: Sequence[str] = ("directory",),
    members: Mapping[str, bytes] | None = None,
    archive: bytes | None = None,
    recorded: Recorded | None = None,
) -> None:
    """Add a case with right input: a bundle that is a directory, of the draft's members if not of others, or an archive."""
    ask = ask or {}
    book.accept(
        f"reader/{name}",
        title,
        [*_EVERY_DIGEST, *requirements],
        kind="read",
        files=in_folder(members or draft.members()) if archive is None else {ARCHIVE: archive},
        inputs={"bundle": BUNDLE if archive is None else ARCHIVE},
        facts=facts_of(draft, ask, recorded.requests if recorded else None),
        features=features,
        ask=ask,
    )


def _traces(book: Book) -> None:
    made = team()
    draft = made.draft()
    operations = list(range(len(draft.rows("operations"))))
    _accept(
        book, "team", "everything that a trace can say, in small",
        ["ST-DIG-001", "ST-DIG-002", "ST-DIG-003", "ST-DIG-004", "ST-DIG-005", "ST-DIG-006", "ST-DIG-007", "ST-DIG-020",
         "ST-BND-001", "ST-BND-010", "ST-CTX-005", "ST-OP-003", "ST-VAL-003"],
        draft, ask={"cells": CELLS, "inputs": operations},
    )  # fmt: skip
    _accept(
        book, "requests", "chat requests, rebuilt: tools, images, inherited history, outputs with envelopes",
        ["ST-CHAT-001", "ST-CHAT-002", "ST-CHAT-008", "ST-CHAT-009", "ST-CHAT-010", "ST-CHAT-011", "ST-CHAT-012"],
        draft, ask={"requests": sorted(made.requests)}, features=["directory", "requests"], recorded=made,
    )  # fmt: skip
    _accept(
        book, "ids", "inputs that are known by token ids and block ids",
        ["ST-ART-004", "ST-SEG-005", "ST-SEG-007", "ST-SEG-008"], ids().draft(),
        ask={"inputs": [0, 1, 2], "cells": [["trace", "block_size", 0], ["trace", "origin_unix_ns", 0],
                                            ["segments", "block_ids_start", 2], ["segments", "token_ids_start", 2]]},
    )  # fmt: skip
    _accept(
        book, "withheld", "a trace shared without its content: the work digest says what was withheld under other digests",
        ["ST-LVL-001", "ST-LVL-002"], withheld(team()), ask={"cells": [["artifacts", "availability", 0]]},
    )  # fmt: skip
    _accept(
        book,
        "two-tools",
        "two tasks of two tools, most tables empty",
        ["ST-TAB-001", "ST-DIG-007"],
        two_tools(),
    )
    empty = two_tools()
    for table in ("tasks", "operations"):
        empty.rows(table).clear()
    _accept(book, "no-tasks", "a trace without tasks", ["ST-TAB-004", "ST-DIG-007"], empty)


def _encodings(book: Book) -> None:
    for name, title, encoding in (
        ("zstd", "buffers compressed with zstd", Encoding("zstd")),
        ("lz4", "buffers compressed with LZ4", Encoding("lz4")),
        ("batches", "record batches of three rows", Encoding(batch=3)),
        ("whole-columns", "columns without a value written all the same", Encoding()),
    ):
        draft = ids().draft()
        draft.encoding = encoding
        _accept(book, f"ids-{name}", f"the same trace: {title}", ["ST-BND-020", "ST-TAB-002"], draft)
    same = ids().draft()
    draft = ids().draft()
    draft.stated = {f"{which}_digest": same.digest(which) for which in ("work", "trace")}
    for table, spec in TRACE_TABLE.items():
        if draft.rows(table):
            whole = arrow(spec, draft.rows(table))
            columns = list(reversed(whole.schema.names))
            draft.raw[table] = whole.select(columns).replace_schema_metadata({"writer": "other"})
    _accept(
        book, "ids-reversed", "the same trace: columns in another order, with metadata of Arrow's", ["ST-BND-020", "ST-TAB-002"],
        same, members=draft.members(),
    )  # fmt: skip
    draft = ids().draft()
    draft.stated = {f"{which}_digest": same.digest(which) for which in ("work", "trace")}
    draft.raw = {name: arrow(TRACE_TABLE[name], []) for name in ("stages", "states", "annotations")}
    _accept(
        book, "ids-empty-tables", "the same trace: tables without rows that are there all the same", ["ST-TAB-001"],
        same, members=draft.members(),
    )  # fmt: skip
    draft = ids().draft()
    content = [(digest, *held) for digest, held in draft.content.items()]
    draft.packs = [pack(content[:2]), pack(content[2:])]
    _accept(
        book, "ids-two-packs", "the same trace: content in two packs", ["ST-BND-020", "ST-BND-022"], draft
    )


def _archives(book: Book) -> None:
    draft = ids().draft()
    _accept(book, "ids-zip", "the same trace: a ZIP file", ["ST-BND-001", "ST-BND-002"], draft,
            features=["zip"], archive=zip_bytes(draft.members()))  # fmt: skip
    small = one_task()
    _accept(book, "small-zip", "a small ZIP file", ["ST-BND-002"], small, features=["zip"],
            archive=zip_bytes(small.members()))  # fmt: skip


def _extensions(book: Book) -> None:
    draft = two_tools()
    draft.manifest = {
        "spec_version": "1.9",
        "optional_features": ["example.org/colours"],
        "example.org/colour": {"of": ["nothing", 1, None]},
        "producer": {"name": "other", "version": "7", "example.org/build": "x"},
        "licence": "CC-BY-4.0",
        "notes": "größer",
        "tokenizers": {"small": "blake3:" + 64 * "1"},
        "lineage": [{"how": "by hand"}],
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
    _accept(book, "extensions", "a later minor version, an optional feature and namespaced members that nobody knows",
            ["ST-EVO-003", "ST-EVO-007", "ST-DOC-002", "ST-BND-010"], draft)  # fmt: skip


def change(
    book: Book,
    base: str,
    name: str,
    mutation: str,
    requirements: Sequence[str],
    draft: Draft,
    edit: Edit,
    *,
    links: Mapping[str, str] | None = None,
) -> None:
    """Add a mutation of a case whose bundle is a directory.

    Args:
        book: the book.
        base: name of the case in the profile.
        name: name of the mutation in the profile.
        mutation: what it is.
        requirements: the right reasons.
        draft: the bundle of the base, which is changed.
        edit: changes it.
        links: links in the bundle.
    """
    edit(draft)
    made: dict[str, bytes | None] = dict(in_folder(draft.members()))
    for file in book.pages[f"reader/{base}"].files:
        made.setdefault(file, None)
    before = book.pages[f"reader/{base}"].files
    files = {file: content for file, content in made.items() if before.get(file) != content}
    book.change(
        f"reader/{base}", f"reader/{name}", mutation, requirements, files=files,
        links={f"{BUNDLE}/{link}": target for link, target in (links or {}).items()},
    )  # fmt: skip


def set_column(table: pa.Table, name: str, array: pa.Array) -> pa.Table:
    """A table with one column replaced by another, of whatever type."""
    return table.set_column(table.schema.get_field_index(name), name, array)
