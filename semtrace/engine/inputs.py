"""Where the pieces of every input lie in it, token by token, as far as that is known (spec, prefix.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from semtrace.errors import ReplayError
from semtrace.kernels import run
from semtrace.records.columns import NULL
from semtrace.records.enums import OperationKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semtrace.records.trace import Trace


@dataclass(frozen=True)
class Layout:
    """The inputs of all operations, in tokens.

    An input is what it keeps of its holder's string, the holder's output where it is not told just as it was made, own
    segments, and a rest of which nothing is known. The holder is the nearest ancestor in the chain of context bases that
    inherits no more than the operation does.

    Attributes:
        holder: by operation, the operation with whose string its input begins; `NULL` for none.
        kept: how many tokens of the holder's string, its input and its output, the input begins with.
        spoken: how many tokens follow that are the holder's output without its hidden reasoning.
        placed: how many own segments follow, each of known length.
        rest: how many tokens follow that are not known to lie in one piece or another.
        settled: whether all that is inherited is known to lie where it does, so that the rest is of own segments alone.
        total: prompt tokens; `NULL` if unknown.
        tokens: by segment, its length; `NULL` if unknown, also where it follows from the others.
    """

    holder: NDArray[np.int64]
    kept: NDArray[np.int64]
    spoken: NDArray[np.int64]
    placed: NDArray[np.int64]
    rest: NDArray[np.int64]
    settled: NDArray[np.bool_]
    total: NDArray[np.int64]
    tokens: NDArray[np.int64]


def lay_out(trace: Trace) -> Layout:
    """Lay out the inputs of a valid trace (ST-PFX-010 to ST-PFX-013).

    Raises:
        ReplayError: the pieces of an input have more tokens than its prompt.
    """
    operations, count = trace.operations, trace.operations.rows
    tokens = trace.segments.ints("tokens").copy()
    holder, kept, spoken, placed, settled, end, total = (np.zeros(count, dtype=np.int64) for _ in range(7))
    names = ("prompt_tokens", "output_tokens", "reasoning_tokens", "context_base", "context_segments")
    given = (*(operations.ints(name) for name in names), trace.segment_offsets)
    starts = np.zeros(len(tokens) + 1, dtype=np.int64)
    made = (tokens, starts, holder, kept, spoken, placed, settled, end, total)
    run(_lay_out, count + len(tokens), *given, *made)
    kind = operations.ints("kind")
    for column in (placed, end, total):  # what a tool is given is no prompt
        column[(kind != OperationKind.LLM) & (kind != OperationKind.EMBED)] = 0
    wrong = np.flatnonzero((total != NULL) & (end > total))
    if len(wrong):
        row = int(wrong[0])
        raise ReplayError(
            f"the pieces of operation {row} have {end[row]} tokens, its prompt {total[row]}",
            code="engine.tokens",
            path="operations.prompt_tokens",
            requirement="ST-CTX-005",
        )
    rest = np.where(total == NULL, 0, total - end)
    return Layout(holder, kept, spoken, placed, rest, settled.astype(np.bool_), total, tokens)


def _lay_out(
    prompt: Any,
    output: Any,
    reasoning: Any,
    base: Any,
    pieces: Any,
    first: Any,
    tokens: Any,
    starts: Any,
    holder: Any,
    kept: Any,
    spoken: Any,
    placed: Any,
    settled: Any,
    end: Any,
    total: Any,
) -> None:
    """Lay out inputs one after the other (arrays, or lists; see kernels). -1 is unknown.

    `starts` becomes where each segment begins in its operation's input, `end` up to where the input is known.
    """
    for row in range(len(prompt)):
        begin, stop = first[row], first[row + 1]
        known, unknown = 0, 0
        for each in range(begin, stop):
            if tokens[each] < 0:
                unknown += 1
            else:
                known += tokens[each]
        above, cut, said, exact = base[row], 0, 0, True
        if above >= 0:
            while pieces[above] > pieces[row]:
                above = holder[above]  # those between inherit more still
            taken = pieces[row] - pieces[above]
            left = -1  # what own segments leave
            if prompt[row] >= 0 and unknown == 0:
                left = prompt[row] - known
            own = first[above + 1] - first[above]
            if taken > own:
                cut = total[above]
                said = -1
                if output[above] >= 0 and reasoning[above] >= 0:
                    said = output[above] - reasoning[above]
                elif cut >= 0 and left >= cut:
                    said = left - cut
                if cut < 0 or said < 0:
                    exact, said = False, 0
                elif said == output[above]:
                    cut, said = cut + said, 0
            else:
                cut = total[above]
                if taken < own:
                    cut = starts[first[above] + taken]
                if cut < 0 and left >= 0 and left <= total[above]:
                    cut = left
            if cut < 0:
                cut, exact = end[above], False
        at = cut + said
        if exact and unknown == 1 and prompt[row] >= at + known:
            for each in range(begin, stop):
                if tokens[each] < 0:
                    tokens[each] = prompt[row] - at - known
        holder[row], kept[row], spoken[row] = above, cut, said
        settled[row] = 1 if exact else 0
        for each in range(begin, stop):
            starts[each] = at if exact else -1
            if tokens[each] < 0:
                exact = False
            if exact:
                at += tokens[each]
                placed[row] += 1
        end[row] = at
        total[row] = prompt[row]
        if prompt[row] < 0 and exact and (stop > begin or above >= 0):
            total[row] = at
