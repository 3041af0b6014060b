"""Inherited context: what an input begins with, and where it is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from semtrace.check.finding import Finding, found
from semtrace.check.rules import Rule, rule
from semtrace.records.columns import NULL
from semtrace.records.enums import OperationKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from semtrace.check.view import TraceView

_STEPS: Final = 64
"""How many ancestors are walked one by one before the walk is done by doubling."""


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
        rows[kind[base[rows]] != OperationKind.LLM],
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
        rows[count[rows] > length[base[rows]] + 1],
        lambda row: (
            f"operation {row} inherits {count[row]} segments, "
            f"the context of operation {base[row]} has {length[base[row]] + 1}"
        ),
        table="operations",
        column="context_segments",
    )


def holders(base: NDArray[np.int64], count: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each of these operations the nearest ancestor that inherits no more than the operation does.

    What the operation inherits is what this ancestor inherits, and the first of its own segments.

    Args:
        base: base of every operation, a lower row, `NULL` where there is none.
        count: segments inherited by every operation, 0 where there is no base.
        rows: operations with a base.
    """
    at = base[rows]
    left = np.flatnonzero(count[at] > count[rows])
    for _ in range(_STEPS):
        if not len(left):
            return at
        at[left] = base[at[left]]
        left = left[count[at[left]] > count[rows[left]]]
    return _far_holders(base, count, rows, at, left)


def _far_holders(
    base: NDArray[np.int64],
    count: NDArray[np.int64],
    rows: NDArray[np.int64],
    at: NDArray[np.int64],
    left: NDArray[np.int64],
) -> NDArray[np.int64]:
    """The rest of the walk of `holders`, by jumps of halving length, each over ancestors that inherit more."""
    jumps, least = [base.astype(np.int32)], [count.astype(np.int32)]
    while (jumps[-1] != NULL).any():
        jump, low = jumps[-1], least[-1]
        root = jump == NULL
        jumps.append(np.where(root, NULL, jump[jump]).astype(np.int32))
        least.append(np.where(root, low, np.minimum(low, low[jump])).astype(np.int32))
    wanted = count[rows[left]]
    place = at[left]
    for jump, low in zip(reversed(jumps), reversed(least), strict=True):
        over = (low[place] > wanted) & (jump[place] != NULL)
        place = np.where(over, jump[place], place)
    at[left] = place
    return at


@rule("ST-CTX-004")
def cut_at_messages(view: TraceView) -> Iterator[Finding]:
    """What is inherited ends where a message ends."""
    rows = view.based
    if not len(rows) or not view.rows("segments"):
        return
    view.need("ST-ORD-002", "ST-ORD-003", "ST-CTX-003", "ST-SEG-001")
    base, count = view.ints("operations", "context_base"), view.ints("operations", "context_segments")
    held = holders(base, count, rows)
    own = count[rows] - count[held]
    inside = np.flatnonzero((own > 0) & (own < view.own_segments[held]))
    cut = view.segment_offsets[held[inside]] + own[inside]
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
