"""Collective reuse: a round's shared pieces are adapted once for all calls of the round, and stored once with small differences."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from semtrace.policies.interface import CallReady, Policy, Question, Reuse
from semtrace.policies.pic import PicSettings, found_pieces

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from semtrace.policies.interface import Action, Facts, Notice, Value, View

_MILLION = 1_000_000


class TokendanceSettings(PicSettings):
    """Settings of `tokendance`: those of `pic`, and the following.

    Attributes:
        diff_ns_per_token: time to compare a shared token, once a round, in ns.
        diff_ppm: blocks that hold a call's differences, as a share of the blocks that it shares, in millionths.
    """

    diff_ns_per_token: int = Field(default=50, ge=0, lt=1 << 30)
    diff_ppm: int = Field(default=80_000, ge=0, le=_MILLION)


@dataclass
class _Round:
    """Calls that became ready on a server in one instant.

    Attributes:
        time_ns: the instant.
        adapted: pieces that are adapted already.
        master: the call that holds the round's pieces in full; None before there is one.
        pieces: the pieces that it holds.
        first: its first token of them.
        end: its first token after them.
    """

    time_ns: int
    adapted: set[int] = field(default_factory=set)
    master: int | None = None
    pieces: frozenset[int] = frozenset()
    first: int = 0
    end: int = 0


class Tokendance(Policy):
    """A round is what becomes ready on a server in one instant: in an all-gather, the next calls of all agents.

    Pieces are found and partly computed anew as by `pic`, by the least share. But a piece is adapted, and compared, for the first call of
    the round that has it, and for no other. The first call is the *master*: it holds its pieces in full. Another call of which all pieces
    are the master's is a *mirror*: it shares the master's full blocks of them and has its differences in blocks of its own, `diff_ppm` of
    those shared. One that has others is the master of those that come after it. (The paper's master is the one that differs least
    from all; here nothing is known of how much they differ.)
    """

    name = "tokendance"
    rule = "Shared pieces are adapted once a round for all of its calls; one call holds them, the others share its blocks and keep differences."
    source = (
        "TokenDance, as the articles on multi-agent serving tell of it: collective reuse, master and mirrors"
    )
    Settings: ClassVar = TokendanceSettings
    pieces: ClassVar = True
    notices: ClassVar = frozenset({CallReady})

    def __init__(self, settings: TokendanceSettings, facts: Facts) -> None:
        super().__init__(settings, facts)
        self._with = settings
        self._rounds: dict[int, _Round] = {}

    def on(self, notice: Notice, view: View) -> Iterable[Question]:
        """Asked when a call is ready."""
        if not isinstance(notice, CallReady):
            return
        call, size = notice.call, self.facts.block_size
        found = list(found_pieces(call, view, self._with.least_tokens))
        if not found:
            return
        now = self._rounds.get(call.server)
        if now is None or now.time_ns != view.now_ns:
            now = self._rounds[call.server] = _Round(view.now_ns)
        fresh = sum(tokens for piece, tokens in found if piece.key not in now.adapted)
        keys = frozenset(piece.key for piece, _ in found)
        mirror = now.master is not None and keys <= now.pieces
        begin = -(-now.first // size)
        inputs: dict[str, Value] = {
            "tokens": sum(tokens for _, tokens in found),
            "charge": (self._with.rope_ns_per_token + self._with.diff_ns_per_token) * fresh,
            "most": call.prompt_tokens - call.device_hit_tokens - 1,
            "master": now.master if mirror else None,
            "first": begin if mirror else None,
            "shared": max(now.end // size - begin, 0) if mirror else None,
        }
        if not mirror:
            now.master, now.pieces = call.event, keys
            now.first = max(found[0][0].first, call.device_hit_tokens)
            now.end = max(piece.first + piece.held for piece, _ in found)
        now.adapted |= keys
        yield Question(call.context, inputs, event=call.event)

    def choose(self, inputs: Mapping[str, Value]) -> Sequence[Action]:
        """Reuse what need not be computed; a mirror shares the master's blocks."""
        whole = {name: value for name, value in inputs.items() if isinstance(value, int)}
        least = -(-whole["tokens"] * self._with.recompute_ppm // _MILLION)
        tokens = min(whole["tokens"] - least, whole["most"])
        if tokens <= 0:
            return ()
        shared = min(whole.get("shared", 0), tokens // self.facts.block_size)
        if not shared:
            return (Reuse(tokens, charge_ns=whole["charge"]),)
        extra = -(-shared * self._with.diff_ppm // _MILLION)
        return (
            Reuse(
                tokens, borrow=shared, master=whole["master"], first=whole["first"], extra=extra,
                charge_ns=whole["charge"],
            ),
        )  # fmt: skip
