"""Token sums: a prompt has the tokens of its pieces, inherited ones included, as far as these are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from semtrace.check.context import holders
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
    added, parent = _added(view)
    if _is_exact(prompt, added, parent):
        return
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


def _added(view: TraceView) -> tuple[_Tokens, NDArray[np.int64]]:
    """What each operation's input has beyond that of its holder (see `holders`), and the holders.

    An operation without any piece says nothing of its input, which counts as one unknown piece.
    """
    tokens, offsets = view.ints("segments", "tokens"), view.segment_offsets
    hidden = tokens == NULL
    known = np.append(0, np.cumsum(np.where(hidden, 0, tokens) if hidden.any() else tokens))
    missing = np.append(0, np.cumsum(hidden)) if hidden.any() else np.zeros_like(known)
    least, unknown = np.diff(known[offsets]), np.diff(missing[offsets])
    unknown += view.input_length == 0
    added = _Tokens(least, np.zeros_like(least), unknown)
    parent = np.full(len(least), NULL, dtype=np.int64)
    rows = view.based
    if len(rows):
        base, count = view.ints("operations", "context_base"), view.ints("operations", "context_segments")
        parent[rows] = held = holders(base, count, rows)
        first, end = offsets[held] + count[rows] - count[held], offsets[held + 1]
        cut = np.minimum(first, end)  # from here on the holder's own segments are not inherited
        least[rows] -= known[end] - known[cut]
        unknown[rows] -= missing[end] - missing[cut]
        sent = first > end
        _add_outputs(view, added, rows[sent], held[sent])
    return added, parent


def _add_outputs(view: TraceView, added: _Tokens, rows: NDArray[np.int64], held: NDArray[np.int64]) -> None:
    """Add the output of their holder for those that inherit it; its hidden reasoning is not sent."""
    output = view.ints("operations", "output_tokens")[held]
    reasoning = view.ints("operations", "reasoning_tokens")[held]
    hidden = np.where(reasoning == NULL, output, reasoning)  # none of it, or all, may be hidden reasoning
    added.least[rows] += np.where(output == NULL, 0, output - hidden)
    added.slack[rows] += np.where((output != NULL) & (reasoning == NULL), output, 0)
    added.unknown[rows] += output == NULL


def _is_exact(prompt: NDArray[np.int64], added: _Tokens, parent: NDArray[np.int64]) -> bool:
    """Whether all is known, and each prompt is that of its holder and what is added: then no sums are needed."""
    if added.slack.any() or added.unknown.any() or (prompt == NULL).any():
        return False
    return np.array_equal(prompt, added.least + np.append(prompt, 0)[parent])


def _add_ancestors(parent: NDArray[np.int64], weights: NDArray[np.int64]) -> None:
    """Add to the weight of each row those of all its ancestors, by doubling; parents are lower rows."""
    at = parent.copy()
    active = np.flatnonzero(at != NULL)
    while len(active):
        weights[active] += weights[at[active]]
        at[active] = at[at[active]]
        active = active[at[active] != NULL]


TOKEN_RULES: Final[tuple[Rule[TraceView], ...]] = (tokens_add_up,)
