"""Position-independent reuse: what is in a prompt somewhere behind its prefix need not be computed anew, but for a share of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from semtrace.policies.interface import CallReady, Policy, Question, Reuse
from semtrace.records.document import Document

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from semtrace.policies.interface import Action, Call, Facts, Notice, Piece, Value, View

_MILLION = 1_000_000


class PicSettings(Document):
    """Settings of `pic`, and of `tokendance`.

    Attributes:
        least_tokens: fewest tokens of a piece that is reused.
        rope_ns_per_token: time to adapt a token to its new position, in ns.
        recompute_ppm: least share of the reused pieces that is computed all the same, in millionths.
        first_tokens: instead of a share, so many tokens at the beginning of each piece.
    """

    least_tokens: int = Field(default=32, ge=1, lt=1 << 31)
    rope_ns_per_token: int = Field(default=200, ge=0, lt=1 << 30)
    recompute_ppm: int = Field(default=150_000, ge=0, le=_MILLION)
    first_tokens: int | None = Field(default=None, ge=0, lt=1 << 31)


def found_pieces(call: Call, view: View, least: int) -> Iterator[tuple[Piece, int]]:
    """The pieces of a call's prompt that lie behind its hits, with the tokens of each that the device has and that are no hits."""
    for piece in view.pieces(call.event):
        tokens = piece.first + piece.held - max(piece.first, call.device_hit_tokens)
        if piece.context is not None and tokens >= least:
            yield piece, tokens


class Pic(Policy):
    """Each call for itself: adapt every piece that some context on the device has, and compute a share of it anew.

    The share r is such that computing takes as long as adapting, r · T_prefill = T_load, at least `recompute_ppm`: then neither waits for
    the other (CacheBlend). With `first_tokens` it is the beginning of each piece instead (EPIC). Every call pays for its own adaption.
    """

    name = "pic"
    rule = "Each call reuses the pieces of its prompt that the device has at any place, and computes a share of them anew."
    source = "CacheBlend (arXiv 2405.16444) and EPIC (arXiv 2410.15332)"
    Settings: ClassVar = PicSettings
    pieces: ClassVar = True
    notices: ClassVar = frozenset({CallReady})

    def __init__(self, settings: PicSettings, facts: Facts) -> None:
        super().__init__(settings, facts)
        self._with = settings

    def on(self, notice: Notice, view: View) -> Iterable[Question]:
        """Asked when a call is ready."""
        if not isinstance(notice, CallReady):
            return
        call = notice.call
        found = list(found_pieces(call, view, self._with.least_tokens))
        tokens = sum(count for _, count in found)
        if tokens:
            heads = self._with.first_tokens
            yield Question(
                call.context,
                {
                    "tokens": tokens,
                    "heads": None if heads is None else sum(min(count, heads) for _, count in found),
                    "load": self._with.rope_ns_per_token * tokens,
                    "prefill": view.prefill_ns(call.server, tokens, call.device_hit_tokens),
                    "most": call.prompt_tokens - call.device_hit_tokens - 1,
                },
                event=call.event,
            )

    def choose(self, inputs: Mapping[str, Value]) -> Sequence[Action]:
        """Reuse what need not be computed."""
        whole = {name: value for name, value in inputs.items() if isinstance(value, int)}
        tokens = min(whole["tokens"] - recomputed(whole, self._with.recompute_ppm), whole["most"])
        return (Reuse(tokens, charge_ns=whole["load"]),) if tokens > 0 else ()


def recomputed(inputs: Mapping[str, int], least_ppm: int) -> int:
    """Tokens that are computed all the same: the heads of pieces, or a share that takes as long as adapting, and no less than the least."""
    if "heads" in inputs:
        return inputs["heads"]
    tokens = inputs["tokens"]
    least = -(-tokens * least_ppm // _MILLION)
    even = -(-tokens * inputs["load"] // inputs["prefill"])
    return min(max(least, even), tokens)
