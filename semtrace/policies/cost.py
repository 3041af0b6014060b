"""Keep, host, remote or drop: what costs least, restoring included."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from semtrace.policies.history import ToolTimes
from semtrace.policies.interface import (
    CallEnded,
    CallReady,
    Keep,
    Offload,
    Policy,
    Prefetch,
    Question,
    TierName,
    ToolEnded,
)
from semtrace.records.document import Document

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from semtrace.policies.interface import Action, Facts, Notice, Value, View

_MILLION = 1_000_000


class CostSettings(Document):
    """Settings of `cost`.

    Attributes:
        unknown_tool_ns: what a tool is expected to take of which none has ended yet.
        alpha_ppm: share of a context that is restored by moving it, in millionths; the rest is computed anew.
        rope_ns_per_token: time to adapt a moved token to its position, in ns; 0 where it keeps its position.
    """

    unknown_tool_ns: int = Field(default=1_000_000_000, ge=0, lt=1 << 50)
    alpha_ppm: int = Field(default=_MILLION, ge=0, le=_MILLION)
    rope_ns_per_token: int = Field(default=0, ge=0, lt=1 << 30)


class Cost(Policy):
    """The way with the least cost, in ns a block.

    A block that is held costs the time that it is held times p, the share of the device that is wanted: by those who hold it, by this
    context, and by those who wait; the call that comes pays the time that restoring takes. With T what the tool is expected to take, O and I the times of moving out and in:

        keep    p · T
        tier    p · (O + R) + R,   R = I + alpha · rope + (1 − alpha) · F
        drop    p · F + F,         F the time to compute the context anew

    Of equals, the first in this order, host before remote. A call that finds blocks in a tier loads them if that is faster than computing.
    """

    name = "cost"
    rule = "The least of keep, host, remote and drop by time held and time to restore."
    source = "this project: time held, weighted by use, against time to restore"
    Settings: ClassVar = CostSettings
    notices: ClassVar = frozenset({CallEnded, CallReady, ToolEnded})

    def __init__(self, settings: CostSettings, facts: Facts) -> None:
        super().__init__(settings, facts)
        self._with = settings
        self._times = ToolTimes(settings.unknown_tool_ns)

    def on(self, notice: Notice, view: View) -> Iterable[Question]:
        """Asked when a call has ended that asked for tools, and when one is ready that finds blocks in a tier."""
        if isinstance(notice, ToolEnded):
            self._times.add(notice.tool, notice.took_ns)
        elif isinstance(notice, CallEnded) and notice.tools and not notice.last:
            context = view.context(notice.context)
            server, blocks = context.server, context.device_blocks
            if not blocks:
                return
            device = self.facts.device_blocks
            wanted = device - view.free_blocks(server) + blocks
            for need in view.waiting_needs(server):
                if wanted >= device:
                    break
                wanted += need
            inputs: dict[str, Value] = {
                "tool": self._times.mean_ns(notice.tools),
                "tokens": context.tokens,
                "wanted": min(wanted, device),
                "blocks": device,
                "forward": view.prefill_ns(server, context.tokens, 0),
            }
            for tier in self.facts.tier_blocks:
                for way, inwards in (("out", False), ("in", True)):
                    inputs[f"{tier.value}_{way}"] = view.transfer_ns(server, tier, blocks, inwards=inwards)
            yield Question(context.id, inputs)
        elif isinstance(notice, CallReady):
            call = notice.call
            below = call.host_hit_tokens + call.remote_hit_tokens
            if below:
                moves = [
                    view.transfer_ns(call.server, tier, tokens // self.facts.block_size, inwards=True)
                    for tier, tokens in (
                        (TierName.HOST, call.host_hit_tokens),
                        (TierName.REMOTE, call.remote_hit_tokens),
                    )
                    if tokens
                ]
                forward = view.prefill_ns(call.server, below, call.device_hit_tokens)
                yield Question(call.context, {"load": max(moves), "compute": forward}, event=call.event)

    def choose(self, inputs: Mapping[str, Value]) -> Sequence[Action]:
        """The least cost."""
        whole = {name: value for name, value in inputs.items() if isinstance(value, int)}
        if "load" in whole:
            return (Prefetch(),) if whole["load"] < whole["compute"] else ()
        wanted, blocks, forward = whole["wanted"], whole["blocks"], whole["forward"]
        alpha = self._with.alpha_ppm
        rope = self._with.rope_ns_per_token * whole["tokens"]

        def cost(
            held_ns: int, restore_ns: int
        ) -> int:  # in millionths of a ns, times the blocks of the device
            return wanted * held_ns + blocks * restore_ns

        ways: list[tuple[int, Sequence[Action]]] = [(cost(_MILLION * whole["tool"], 0), (Keep(),))]
        for tier in TierName:
            if f"{tier.value}_out" in whole:
                restore = _MILLION * whole[f"{tier.value}_in"] + alpha * rope + (_MILLION - alpha) * forward
                ways.append(
                    (cost(_MILLION * whole[f"{tier.value}_out"] + restore, restore), (Offload(tier),))
                )
        ways.append((cost(_MILLION * forward, _MILLION * forward), ()))
        return min(ways, key=lambda way: way[0])[1]
