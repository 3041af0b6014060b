"""Preserve, discard or swap a context that waits for a tool: what wastes the least memory."""

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
    Release,
    TierName,
    Timer,
    ToolEnded,
    Wake,
)
from semtrace.records.document import Document

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from semtrace.policies.interface import Action, Context, Facts, Notice, Value, View


class InferceptSettings(Document):
    """Settings of `infercept`.

    Attributes:
        unknown_tool_ns: what a tool is expected to take of which none has ended yet.
    """

    unknown_tool_ns: int = Field(default=1_000_000_000, ge=1, lt=1 << 50)


class Infercept(Policy):
    """The least of three wastes, in tokens times ns.

    With C tokens of the context, R tokens of all that runs beside it, and T what the tool is expected to take: *preserve* holds C
    tokens for T; *discard* computes them anew, which holds them and all others for the time of that, T_fwd · (C + R); *swap* moves
    them out and in, 2 · T_swap · R. T is the mean of the tool's past; once the tool has taken longer, what it has taken by then, and
    the question is asked again.
    """

    name = "infercept"
    rule = "The least of preserve T·C, discard T_fwd(C)·(C + R), swap 2·T_swap(C)·R, in tokens times ns."
    source = "InferCept (arXiv 2402.01869), min-waste interception"
    Settings: ClassVar = InferceptSettings
    notices: ClassVar = frozenset({CallEnded, CallReady, Timer, ToolEnded})

    def __init__(self, settings: InferceptSettings, facts: Facts) -> None:
        super().__init__(settings, facts)
        self._times = ToolTimes(settings.unknown_tool_ns)
        self._swaps = TierName.HOST in facts.tier_blocks

    def on(self, notice: Notice, view: View) -> Iterable[Question]:
        """Asked when a call has ended that asked for tools, when one takes longer than it was expected to, and when a call is ready."""
        if isinstance(notice, ToolEnded):
            self._times.add(notice.tool, notice.took_ns)
        elif isinstance(notice, CallReady):
            below = notice.call.host_hit_tokens
            if below:
                yield Question(notice.call.context, {"below": below}, event=notice.call.event)
        elif isinstance(notice, CallEnded):
            if notice.tools and not notice.last:
                yield self._ask(view, view.context(notice.context), self._times.mean_ns(notice.tools))
        elif isinstance(notice, Timer):
            context = view.context(notice.context)
            if context.pinned and context.tool_since_ns is not None:
                yield self._ask(view, context, max(view.now_ns - context.tool_since_ns, 1))

    def _ask(self, view: View, context: Context, tool_ns: int) -> Question:
        server = context.server
        inputs: dict[str, Value] = {
            "now": view.now_ns,
            "tool": tool_ns,
            "tokens": context.tokens,
            "others": view.running_tokens(server),
            "forward": view.prefill_ns(server, context.tokens, 0) if context.tokens else 0,
            "swap": None,
        }
        if self._swaps and context.device_blocks:
            inputs["swap"] = view.transfer_ns(server, TierName.HOST, context.device_blocks, inwards=False)
        return Question(context.id, inputs)

    def choose(self, inputs: Mapping[str, Value]) -> Sequence[Action]:
        """The first of preserve, discard and swap that wastes least; a call loads what it finds in host memory."""
        match inputs:
            case {"tool": int(tool), "tokens": int(tokens), "others": int(others), "forward": int(forward)}:
                waste = {"preserve": tool * tokens, "discard": forward * (tokens + others)}
                swap = inputs["swap"]
                if isinstance(swap, int):
                    waste["swap"] = 2 * swap * others
                best = min(waste, key=lambda name: waste[name])
                now = inputs["now"]
                assert isinstance(now, int)  # noqa: S101  # as it was asked
                if best == "preserve":
                    return (Keep(), Wake(now + tool))
                return (Release(),) if best == "discard" else (Offload(TierName.HOST),)
            case _:
                return (Prefetch(),)
