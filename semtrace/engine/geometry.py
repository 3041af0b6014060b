"""The geometry of a step: the eight numbers that its time is computed from (ST-COST-001)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semtrace.engine.scheduler import Step


def geometry_of(step: Step) -> tuple[int, int, int, int, int, int, int, int]:
    """Requests, prefill tokens, decode tokens, sampled; pairs and context of prefill, then of decode.

    With s tokens of a request computed before the step and q in it, its pairs are q·s + q(q+1)/2, its context s + q.
    """
    prefill = decode = sampled = 0
    prefill_pairs = prefill_context = decode_pairs = decode_context = 0
    for entry in step.entries:
        before, tokens = entry.computed, entry.tokens
        pairs, context = tokens * before + tokens * (tokens + 1) // 2, before + tokens
        sampled += entry.yields
        if entry.prefill:
            prefill += tokens
            prefill_pairs += pairs
            prefill_context += context
        else:
            decode += tokens
            decode_pairs += pairs
            decode_context += context
    return (
        len(step.entries), prefill, decode, sampled, prefill_pairs, prefill_context, decode_pairs, decode_context,
    )  # fmt: skip
