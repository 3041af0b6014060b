"""Segments: how they make messages, where their tokens and blocks are, what they repeat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from semtrace.blocks import rows_where
from semtrace.check.finding import Finding, found
from semtrace.check.rules import Rule, rule
from semtrace.records.columns import NULL
from semtrace.records.enums import Role

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from semtrace.check.view import TraceView

TOKEN_ID_BYTES: Final = 4
BLOCK_ID_BYTES: Final = 8


_NO_ROW: Final = np.uint32(0xFFFFFFFF)
_NO_ROLE: Final = np.uint8(0xFF)


def _above(values: NDArray[Any], rows: slice, top: np.generic) -> NDArray[Any]:
    """The values of the rows above these; `top` above the first row of all."""
    return values[rows.start - 1 : rows.stop - 1] if rows.start else np.append(top, values[: rows.stop - 1])


@rule("ST-SEG-001", "ST-SEG-002", "ST-SEG-003")
def messages_of_segments(view: TraceView) -> Iterator[Finding]:
    """Messages are numbered from 0 without gaps; a message has one role, and its envelope on its first segment."""
    if not view.rows("segments"):
        return
    view.need("ST-ORD-007")
    operation, message = view.raw("segments", "operation"), view.raw("segments", "message")

    def same(rows: slice) -> NDArray[np.bool_]:
        """Which rows are of the operation of the row above them."""
        alike: NDArray[np.bool_] = operation[rows] == _above(operation, rows, _NO_ROW)
        return alike

    def follows(rows: slice) -> NDArray[np.bool_]:
        """Which rows go on with the message of the row above them."""
        alike: NDArray[np.bool_] = same(rows) & (message[rows] == _above(message, rows, _NO_ROW))
        return alike

    def expected(rows: slice) -> NDArray[np.uint32]:
        """The message of rows that do not go on with one."""
        return np.where(same(rows), _above(message, rows, _NO_ROW) + np.uint32(1), np.uint32(0))

    def say(row: int) -> str:
        rows = slice(row, row + 1)
        other = f" or {message[row - 1]}" if same(rows)[0] else ""
        return f"is message {message[row]} of operation {operation[row]}, must be {expected(rows)[0]}{other}"

    yield from found(
        "ST-SEG-001",
        rows_where(len(message), lambda rows: ~follows(rows) & (message[rows] != expected(rows))),
        say,
        table="segments",
        column="message",
        hint="messages of an operation are numbered from 0, without gaps",
    )
    view.need("ST-SEG-001")
    role = view.raw("segments", "role")
    yield from found(
        "ST-SEG-002",
        rows_where(len(role), lambda rows: follows(rows) & (role[rows] != _above(role, rows, _NO_ROLE))),
        lambda row: f"a segment of message {message[row]} of operation {operation[row]} has another role",
        table="segments",
        column="role",
    )
    if view.any_known("segments", "envelope"):
        yield from found(
            "ST-SEG-003",
            rows_where(len(role), lambda rows: follows(rows) & view.known("segments", "envelope")[rows]),
            "segment {row} is not the first of its message and has an envelope",
            table="segments",
            column="envelope",
        )


@rule("ST-SEG-004")
def tools_first(view: TraceView) -> Iterator[Finding]:
    """The definitions of the tools stand first in an input, after tokens of the template at most."""
    role = view.raw("segments", "role")
    rows = np.flatnonzero(role == Role.TOOLS)
    if not len(rows):
        return
    view.need("ST-ORD-007", "ST-SEG-001", "ST-SEG-002")
    operation, message = view.raw("segments", "operation"), view.raw("segments", "message")
    inherits = view.ints("operations", "context_base")[operation[rows]] != NULL
    begins = np.append(True, (operation[1:] != operation[:-1]) | (message[1:] != message[:-1]))
    counted = np.cumsum(begins & (role != Role.TEMPLATE))
    start = view.segment_offsets[operation[rows]]
    before = counted[rows] - np.append(0, counted)[start]
    yield from found(
        "ST-SEG-004",
        rows[inherits | (before > 1)],
        lambda row: f"operation {operation[row]} has tools that are not the first message of its input",
        table="segments",
        column="role",
        hint="an input whose tools differ from its base's inherits nothing",
    )


def _together(view: TraceView, requirement: str, column: str, start: str) -> Iterator[Finding]:
    known, at = view.known("segments", column), view.known("segments", start)
    wrong = (known != at) | (known & ~view.known("segments", "tokens"))
    yield from found(
        requirement,
        wrong,
        f"segment {{row}} does not have all three of {column}, {start} and tokens",
        table="segments",
        column=column,
    )


@rule("ST-SEG-005", "ST-SEG-006")
def token_ids_in_range(view: TraceView) -> Iterator[Finding]:
    """A segment with token ids says where they are and how many, and they are there."""
    if not view.any_known("segments", "token_ids") and not view.any_known("segments", "token_ids_start"):
        return
    yield from _together(view, "ST-SEG-005", "token_ids", "token_ids_start")
    view.need("ST-SEG-005")
    ids = view.ints("segments", "token_ids")
    rows = np.flatnonzero(ids != NULL)
    end = view.ints("segments", "token_ids_start")[rows] + view.ints("segments", "tokens")[rows]
    yield from _inside(view, "ST-SEG-006", "token_ids", rows, end, TOKEN_ID_BYTES)


@rule("ST-SEG-007", "ST-SEG-008", "ST-SEG-009")
def block_ids_in_range(view: TraceView) -> Iterator[Finding]:
    """A segment with block ids says where they are; the trace says what a block is; they are there."""
    if not view.any_known("segments", "block_ids") and not view.any_known("segments", "block_ids_start"):
        return
    yield from _together(view, "ST-SEG-007", "block_ids", "block_ids_start")
    view.need("ST-TAB-004", "ST-VAL-005")
    for column in ("block_size", "hash_scope"):
        if not view.any_known("trace", column):
            message = f"segments have block ids, and the trace does not say its {column}"
            yield Finding("ST-SEG-008", message, table="trace", column=column, rows=(0,))
    view.need("ST-SEG-007", "ST-SEG-008")
    ids = view.ints("segments", "block_ids")
    rows = np.flatnonzero(ids != NULL)
    blocks = view.ints("segments", "tokens")[rows] // view.ints("trace", "block_size")[0]
    end = view.ints("segments", "block_ids_start")[rows] + blocks
    yield from _inside(view, "ST-SEG-009", "block_ids", rows, end, BLOCK_ID_BYTES)


def _inside(
    view: TraceView,
    requirement: str,
    column: str,
    rows: NDArray[np.int64],
    end: NDArray[np.int64],
    width: int,
) -> Iterator[Finding]:
    held = view.ints("artifacts", "size")[view.ints("segments", column)[rows]] // width

    def say(row: int) -> str:
        at = int(np.searchsorted(rows, row))
        return f"segment {row} ends at id {end[at]}, its artifact has {held[at]}"

    yield from found(requirement, rows[end > held], say, table="segments", column=column)


@rule("ST-SEG-010", "ST-SEG-011")
def source_spans(view: TraceView) -> Iterator[Finding]:
    """A span in a source's output has a source, a start and a length, and lies in the output."""
    names = ("source_operation", "source_start", "source_length")
    if not any([view.any_known("segments", name) for name in names][1:]):
        return
    source, start, length = (view.ints("segments", name) for name in names)
    wrong = ((start == NULL) != (length == NULL)) | ((start != NULL) & (source == NULL))
    yield from found(
        "ST-SEG-010",
        wrong,
        "segment {row} has a start or a length in a source's output, but not source, start and length",
        table="segments",
        column="source_start",
    )
    view.need("ST-SEG-010")
    rows = np.flatnonzero(start != NULL)
    if not len(rows):
        return
    output = view.ints("operations", "output")[source[rows]]
    size = np.append(view.ints("artifacts", "size"), NULL)[output]
    end = start[rows] + length[rows]

    def say(row: int) -> str:
        at = int(np.searchsorted(rows, row))
        return f"segment {row} ends at byte {end[at]} of an output of {size[at]}"

    beyond = rows[(size != NULL) & (end > size)]
    yield from found("ST-SEG-011", beyond, say, table="segments", column="source_length")


@rule("ST-SEG-012")
def output_ids_counted(view: TraceView) -> Iterator[Finding]:
    """There are as many token ids of an output as it has tokens."""
    with_ids = view.known("operations", "output_token_ids") & view.known("operations", "output_tokens")
    size, rows = view.ints("artifacts", "size"), np.flatnonzero(with_ids)
    if not len(rows):
        return
    ids, tokens = view.ints("operations", "output_token_ids"), view.ints("operations", "output_tokens")
    wrong = size[ids[rows]] // TOKEN_ID_BYTES != tokens[rows]
    yield from found(
        "ST-SEG-012",
        rows[wrong],
        lambda row: f"{size[ids[row]] // TOKEN_ID_BYTES} token ids of an output of {tokens[row]} tokens",
        table="operations",
        column="output_token_ids",
        hint="the ids of hidden reasoning are among them, or there are none at all",
    )


SEGMENT_RULES: Final[tuple[Rule[TraceView], ...]] = (
    messages_of_segments,
    tools_first,
    token_ids_in_range,
    block_ids_in_range,
    source_spans,
    output_ids_counted,
)
