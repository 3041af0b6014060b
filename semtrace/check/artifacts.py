"""Artifacts as rows: their names, types, sizes, and what the content level lets be there. No content is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from semtrace.blocks import blocks
from semtrace.check.finding import Finding, found
from semtrace.check.held import first_alike
from semtrace.check.rules import Rule, rule
from semtrace.check.segments import BLOCK_ID_BYTES, TOKEN_ID_BYTES
from semtrace.records.columns import NULL
from semtrace.records.compute import matches
from semtrace.records.enums import Availability, ContentLevel
from semtrace.records.media import BLOCK_IDS_TYPE, JSON_TYPE, TOKEN_IDS_TYPE, content_level
from semtrace.store.packs import digest_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from semtrace.check.view import TraceView

_MEDIA_TYPE: Final = r"^[a-z0-9][a-z0-9!#$&^_.+-]*/[a-z0-9][a-z0-9!#$&^_.+-]*( *; *[a-z0-9-]+=[^;]+)*$"
"""A media type of RFC 6838, in lower case, with parameters."""

_COLUMN_TYPES: Final = (
    ("segments", "token_ids", TOKEN_IDS_TYPE),
    ("segments", "block_ids", BLOCK_IDS_TYPE),
    ("segments", "envelope", JSON_TYPE),
    ("operations", "output_token_ids", TOKEN_IDS_TYPE),
    ("operations", "output_envelope", JSON_TYPE),
    ("operations", "settings", JSON_TYPE),
)


@rule("ST-ART-001")
def artifacts_once(view: TraceView) -> Iterator[Finding]:
    """Content of one media type is one artifact."""
    count = view.rows("artifacts")
    if count < 2:
        return
    first = first_alike(digest_words(view.array("artifacts", "digest")))
    suspects = np.zeros(count, dtype=np.bool_)
    again = np.flatnonzero(first != np.arange(count))
    suspects[again] = suspects[first[again]] = True
    rows = np.flatnonzero(suspects)
    keys = (first[rows] << np.int64(32)) | view.media_codes[0][rows]
    order = np.argsort(keys, kind="stable")
    twice = np.flatnonzero(keys[order[1:]] == keys[order[:-1]]) + 1

    def say(row: int) -> str:
        same = rows[keys == keys[np.searchsorted(rows, row)]]
        return f"artifact {row} has the digest and media type of artifact {same[0]}"

    yield from found(
        "ST-ART-001",
        rows[order[twice]],
        say,
        table="artifacts",
        hint="refer to the first of the two",
    )


@rule("ST-ART-002")
def media_types_formed(view: TraceView) -> Iterator[Finding]:
    """A media type is written as one."""
    codes, types = view.media_codes
    yield from found(
        "ST-ART-002",
        ~matches(types, _MEDIA_TYPE)[codes],
        lambda row: f"{view.media_type(row)!r} is not a media type",
        table="artifacts",
        column="media_type",
        hint="type/subtype in lower case, as RFC 6838 has it",
    )


@rule("ST-ART-003")
def media_types_of_columns(view: TraceView) -> Iterator[Finding]:
    """Columns that give content a meaning refer to content of the type that has it."""
    for table, column, wanted in _COLUMN_TYPES:
        if view.any_known(table, column):
            yield from _of_type(view, table, column, wanted)


def _of_type(view: TraceView, table: str, column: str, wanted: str) -> Iterator[Finding]:
    artifact = view.ints(table, column)
    right = np.append(view.has_media_type(wanted), True)  # null refers to nothing
    yield from found(
        "ST-ART-003",
        ~right[artifact],
        lambda row: (
            f"refers to an artifact of type {view.media_type(int(artifact[row]))!r}, must be {wanted!r}"
        ),
        table=table,
        column=column,
    )


@rule("ST-ART-004")
def ids_whole(view: TraceView) -> Iterator[Finding]:
    """Token ids and block ids have their width."""
    yield from _whole(view, TOKEN_IDS_TYPE, TOKEN_ID_BYTES)
    yield from _whole(view, BLOCK_IDS_TYPE, BLOCK_ID_BYTES)


def _whole(view: TraceView, media_type: str, width: int) -> Iterator[Finding]:
    size = view.ints("artifacts", "size")
    yield from found(
        "ST-ART-004",
        view.has_media_type(media_type) & (size % width != 0),
        lambda row: f"{size[row]} bytes are not whole ids of {width} bytes",
        table="artifacts",
        column="size",
    )


@rule("ST-LVL-001")
def nothing_above_level(view: TraceView) -> Iterator[Finding]:
    """Content that is more than the content level lets out is withheld; generation settings are let out always."""
    view.need("ST-TAB-004")
    level = ContentLevel(int(view.ints("trace", "content_level")[0]))
    if level is ContentLevel.TEXT:
        return
    codes, types = view.media_codes
    named = (name for rows in blocks(len(types)) for name in types[rows].to_pylist())
    needs = np.fromiter(map(content_level, named), dtype=np.uint8, count=len(types))
    above = needs[codes] < level
    above &= view.raw("artifacts", "availability") != Availability.WITHHELD
    settings = view.ints("operations", "settings")
    above[settings[settings != NULL]] = False
    yield from found(
        "ST-LVL-001",
        above,
        lambda row: (
            f"artifact {row}, {view.media_type(row)}, is not withheld at content level {level.name.lower()}"
        ),
        table="artifacts",
        column="availability",
        hint="withhold it, or raise the content level",
    )


ARTIFACT_RULES: Final[tuple[Rule[TraceView], ...]] = (
    artifacts_once,
    media_types_formed,
    media_types_of_columns,
    ids_whole,
    nothing_above_level,
)
