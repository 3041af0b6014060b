"""Inherited context: what an input begins with, and where it is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from semtrace.blocks import rows_where
from semtrace.check.finding import Finding, found
from semtrace.check.rules import Rule, rule
from semtrace.records.columns import NULL
from semtrace.records.enums import OperationKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from semtrace.check.view import TraceView


@rule("ST-CTX-001")
def segments_with_base(view: TraceView) -> Iterator[Finding]:
    """An operation inherits segments exactly if it has a base."""
    has_base = view.ints("operations", "context_base") != NULL
    count = view.ints("operations", "context_segments")
    yield from found(
        "ST-CTX-001",
        has_base != (count > 0),
        lambda row: f"inherits {count[row]} segments {'of its base' if has_base[row] else 'and has no base'}",
        table="operations",
        column="context_segments",
    )


@rule("ST-CTX-002")
def bases_are_models(view: TraceView) -> Iterator[Finding]:
    """A base is a model call."""
    rows = view.based
    base = view.ints("operations", "context_base")
    kind = view.raw("operations", "kind")
    yield from found(
        "ST-CTX-002",
        rows[rows_where(len(rows), lambda part: kind.take(base.take(rows[part])) != OperationKind.LLM)],
        lambda row: f"operation {row} inherits the context of operation {base[row]}, which is no model call",
        table="operations",
        column="context_base",
    )


@rule("ST-CTX-003")
def segments_within_context(view: TraceView) -> Iterator[Finding]:
    """No more is inherited than the base's input and its output."""
    rows = view.based
    if not len(rows):
        return
    view.need("ST-CTX-001")
    base, count = view.ints("operations", "context_base"), view.ints("operations", "context_segments")
    length = view.input_length
    yield from found(
        "ST-CTX-003",
        rows[
            rows_where(
                len(rows), lambda part: count.take(rows[part]) > length.take(base.take(rows[part])) + 1
            )
        ],
        lambda row: (
            f"operation {row} inherits {count[row]} segments, "
            f"the context of operation {base[row]} has {length[base[row]] + 1}"
        ),
        table="operations",
        column="context_segments",
    )


@rule("ST-CTX-004")
def cut_at_messages(view: TraceView) -> Iterator[Finding]:
    """What is inherited ends where a message ends."""
    rows = view.based
    if not len(rows) or not view.rows("segments"):
        return
    view.need("ST-ORD-002", "ST-ORD-003", "ST-CTX-003", "ST-SEG-001")
    count, held, length = view.ints("operations", "context_segments"), view.held, view.own_segments

    def within(part: slice) -> NDArray[np.bool_]:
        own = count.take(rows[part]) - count.take(held[part])
        return (own > 0) & (own < length.take(held[part]))

    inside = rows_where(len(rows), within)
    cut = view.segment_offsets[held[inside]] + count[rows[inside]] - count[held[inside]]
    message = view.raw("segments", "message")
    wrong = rows[inside[message[cut] == message[cut - 1]]]
    yield from found(
        "ST-CTX-004",
        wrong,
        lambda row: f"the {count[row]} segments that operation {row} inherits end inside of a message",
        table="operations",
        column="context_segments",
        hint="inherit whole messages, and repeat the rest as segments",
    )


CONTEXT_RULES: Final[tuple[Rule[TraceView], ...]] = (
    segments_with_base,
    bases_are_models,
    segments_within_context,
    cut_at_messages,
)
