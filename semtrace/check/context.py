"""Inherited context: what an input begins with, where it is cut, and how its tokens add up."""

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
    view.need("ST-ORD-002", "ST-CTX-001", "ST-CTX-003", "ST-SEG-001")
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


@rule("ST-CTX-005")
def tokens_add_up(view: TraceView) -> Iterator[Finding]:
    """The prompt has the tokens of its pieces, as far as these are known."""
    prompt = view.ints("operations", "prompt_tokens")
    if not view.rows("segments") or not (prompt != NULL).any():
        return
    view.need("ST-ORD-002", "ST-CTX-001", "ST-CTX-003", "ST-OP-005")
    running = _running_tokens(view)
    weights = _own_tokens(view, *running)
    parent = np.full(len(prompt), NULL, dtype=np.int64)
    rows = view.based
    if len(rows):
        base, count = view.ints("operations", "context_base"), view.ints("operations", "context_segments")
        parent[rows] = holders(base, count, rows)
        _inherit(view, weights, rows, parent[rows], *running)
    least, slack, unknown = _path_sums(parent, weights).T
    short, long = prompt < least, (unknown == 0) & (prompt > least + slack)

    def say(row: int) -> str:
        if short[row] or slack[row]:
            bound = f"at least {least[row]}" if short[row] else f"at most {least[row] + slack[row]}"
        else:
            bound = f"{least[row]}"
        return f"operation {row} has {prompt[row]} prompt tokens, its segments and what it inherits {bound}"

    yield from found(
        "ST-CTX-005",
        (prompt != NULL) & (short | long),
        say,
        table="operations",
        column="prompt_tokens",
        hint="tokens that the chat template adds are a segment of role template; a hidden length is null",
    )


def _own_tokens(view: TraceView, known: NDArray[np.int64], missing: NDArray[np.int64]) -> NDArray[np.int64]:
    """Tokens of each operation's own segments, shape (operations, 3): least, slack, unknown pieces.

    An operation without any piece says nothing of its input, which counts as one unknown piece.
    """
    offsets = view.segment_offsets
    weights = np.zeros((len(offsets) - 1, 3), dtype=np.int64)
    weights[:, 0] = np.diff(known[offsets])
    weights[:, 2] = np.diff(missing[offsets])
    weights[:, 2] += view.input_length == 0
    return weights


def _running_tokens(view: TraceView) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sums of the tokens of segments, and counts of segments of unknown length, before each row and after the last."""
    tokens = view.ints("segments", "tokens")
    unknown = tokens == NULL
    known = np.concatenate([[0], np.cumsum(np.where(unknown, 0, tokens))])
    return known, np.concatenate([[0], np.cumsum(unknown)])


def _inherit(
    view: TraceView,
    weights: NDArray[np.int64],
    rows: NDArray[np.int64],
    held: NDArray[np.int64],
    known: NDArray[np.int64],
    missing: NDArray[np.int64],
) -> None:
    """Take off what is not inherited of the holder's own segments, and add its output where that is inherited."""
    count = view.ints("operations", "context_segments")
    own = count[rows] - count[held]
    first, end = view.segment_offsets[held] + own, view.segment_offsets[held + 1]
    cut = np.minimum(first, end)
    weights[rows, 0] -= known[end] - known[cut]
    weights[rows, 2] -= missing[end] - missing[cut]
    sent = rows[first > end]
    output = view.ints("operations", "output_tokens")[held[first > end]]
    reasoning = view.ints("operations", "reasoning_tokens")[held[first > end]]
    hidden = np.where(reasoning == NULL, output, reasoning)  # none, or all of it, may be hidden reasoning
    weights[sent, 0] += np.where(output == NULL, 0, output - hidden)
    weights[sent, 1] += np.where((output != NULL) & (reasoning == NULL), output, 0)
    weights[sent, 2] += output == NULL


def _path_sums(parent: NDArray[np.int64], weights: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sums of the weights of each row and all its ancestors, by doubling; parents are lower rows."""
    total, at = weights.copy(), parent.copy()
    active = np.flatnonzero(at != NULL)
    while len(active):
        total[active] += total[at[active]]
        at[active] = at[at[active]]
        active = active[at[active] != NULL]
    return total


CONTEXT_RULES: Final[tuple[Rule[TraceView], ...]] = (
    segments_with_base,
    bases_are_models,
    segments_within_context,
    cut_at_messages,
    tokens_add_up,
)
