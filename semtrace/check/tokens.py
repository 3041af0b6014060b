"""Token sums: a prompt has the tokens of its pieces, inherited ones included, as far as these are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from semtrace.blocks import blocks
from semtrace.check.finding import Finding, found
from semtrace.check.rules import Rule, rule
from semtrace.records.columns import NULL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from semtrace.check.view import TraceView


@dataclass
class _Tokens:
    """How many tokens something has, by operation.

    Attributes:
        least: the fewest that it can have.
        slack: how many more it can have where no piece is wholly unknown.
        unknown: how many of its pieces have an unknown length.
    """

    least: NDArray[np.int64]
    slack: NDArray[np.int64]
    unknown: NDArray[np.int64]


@rule("ST-CTX-005")
def tokens_add_up(view: TraceView) -> Iterator[Finding]:
    """The prompt has the tokens of its pieces, as far as these are known."""
    prompt = view.ints("operations", "prompt_tokens")
    if not view.rows("segments") or not (prompt != NULL).any():
        return
    view.need("ST-ORD-002", "ST-ORD-003", "ST-CTX-003", "ST-OP-005")
    operations = view.rows("operations")
    if all(_is_exact(view, rows) for rows in blocks(operations)):
        return
    added, parent = _added(view, slice(0, operations))
    for weights in (added.least, added.slack, added.unknown):
        if weights.any():
            _add_ancestors(parent, weights)
    short = prompt < added.least
    long = (added.unknown == 0) & (prompt > added.least + added.slack)

    def say(row: int) -> str:
        least, most = added.least[row], added.least[row] + added.slack[row]
        bound = f"{least}" if least == most else f"at least {least}" if short[row] else f"at most {most}"
        return f"operation {row} has {prompt[row]} prompt tokens, its segments and what it inherits {bound}"

    yield from found(
        "ST-CTX-005",
        (prompt != NULL) & (short | long),
        say,
        table="operations",
        column="prompt_tokens",
        hint="tokens that the chat template adds are a segment of role template; a hidden length is null",
    )


def _added(view: TraceView, rows: slice) -> tuple[_Tokens, NDArray[np.int64]]:
    """What the inputs of operations have beyond those of their holders (see `holders`), and the holders.

    The input of an operation without any piece counts as one piece, of all its tokens where these are known.
    """
    offsets = view.segment_offsets[rows.start : rows.stop + 1]
    least = np.zeros(len(offsets) - 1, dtype=np.int64)
    some = np.flatnonzero(offsets[1:] > offsets[:-1])
    if len(some):
        least[some] = np.add.reduceat(view.known_tokens[: offsets[-1]], offsets[some])
    prompt, whole = view.ints("operations", "prompt_tokens")[rows], view.input_length[rows] == 0
    least[whole] = np.maximum(prompt[whole], 0)
    unknown = np.diff(np.searchsorted(view.hidden_segments, offsets)) + (whole & (prompt == NULL))
    added = _Tokens(least, np.zeros_like(least), unknown)
    parent = np.full(len(least), NULL, dtype=np.int64)
    first, end = np.searchsorted(view.based, (rows.start, rows.stop))
    based = view.based[first:end] - rows.start
    parent[based] = held = view.held[first:end]
    _add_inherited(view, added, based, view.based[first:end], held)
    return added, parent


def _add_inherited(
    view: TraceView,
    added: _Tokens,
    rows: NDArray[np.int64],
    operations: NDArray[np.int64],
    held: NDArray[np.int64],
) -> None:
    """Take off what is not inherited of the own segments of holders, and add the outputs that are inherited.

    Args:
        view: the trace.
        added: what is added to.
        rows: where operations with a base are in it.
        operations: these operations.
        held: their holders.
    """
    count, offsets = view.ints("operations", "context_segments"), view.segment_offsets
    start, end = offsets.take(held) + count.take(operations) - count.take(held), offsets.take(held + 1)
    cut = np.flatnonzero(start < end)  # from `start` on the holder's own segments are not inherited
    if len(cut):
        sums, hidden = view.token_sums, view.hidden_segments
        added.least[rows[cut]] -= sums[end[cut]] - sums[start[cut]]
        added.unknown[rows[cut]] -= np.searchsorted(hidden, end[cut]) - np.searchsorted(hidden, start[cut])
    sent = np.flatnonzero(start > end)
    _add_outputs(view, added, rows[sent], held[sent])


def _add_outputs(view: TraceView, added: _Tokens, rows: NDArray[np.int64], held: NDArray[np.int64]) -> None:
    """Add the output of their holder for those that inherit it; its hidden reasoning is not sent."""
    output = view.ints("operations", "output_tokens").take(held)
    reasoning = view.ints("operations", "reasoning_tokens").take(held)
    hidden = np.where(reasoning == NULL, output, reasoning)  # none of it, or all, may be hidden reasoning
    added.least[rows] += np.where(output == NULL, 0, output - hidden)
    added.slack[rows] += np.where((output != NULL) & (reasoning == NULL), output, 0)
    added.unknown[rows] += output == NULL


def _is_exact(view: TraceView, rows: slice) -> bool:
    """Whether all is known, and each prompt is that of its holder and what is added: then no sums are needed."""
    added, parent = _added(view, rows)
    prompt = view.ints("operations", "prompt_tokens")
    if added.slack.any() or added.unknown.any() or (prompt[rows] == NULL).any():
        return False
    inherited = np.where(parent == NULL, 0, prompt.take(parent, mode="clip"))
    return not (inherited == NULL).any() and np.array_equal(prompt[rows], added.least + inherited)


def _add_ancestors(parent: NDArray[np.int64], weights: NDArray[np.int64]) -> None:
    """Add to the weight of each row those of all its ancestors, by doubling; parents are lower rows."""
    at = parent.copy()
    active = np.flatnonzero(at != NULL)
    while len(active):
        weights[active] += weights[at[active]]
        at[active] = at[at[active]]
        active = active[at[active] != NULL]


TOKEN_RULES: Final[tuple[Rule[TraceView], ...]] = (tokens_add_up,)
