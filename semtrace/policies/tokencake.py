"""Offload during a tool call if it lets others in, upload before the tool returns, and keep blocks for the critical path."""

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
    Pressure,
    Question,
    Reserve,
    TierName,
    Timer,
    ToolEnded,
    ToolStarted,
    Wake,
)
from semtrace.records.document import Document

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from semtrace.policies.interface import Action, Context, Facts, Notice, Value, View

_MILLION = 1_000_000


class TokencakeSettings(Document):
    """Settings of `tokencake`. Shares are of the device blocks, in millionths.

    Attributes:
        unknown_tool_ns: what a tool is expected to take of which none has ended yet.
        lead_ns: how long before it must begin an upload is asked for.
        reserve_step_ppm: share by which blocks are reserved for an upload at a time, and by which the pool grows and shrinks.
        retry_ns: time between two such steps.
        pool_max_ppm: largest share of the pool that is for critical calls.
        grow_ppm: share in use from which on the pool grows under pressure.
        shrink_ppm: share in use up to which it shrinks when a call ends.
    """

    unknown_tool_ns: int = Field(default=1_000_000_000, ge=0, lt=1 << 50)
    lead_ns: int = Field(default=10_000_000, ge=0, lt=1 << 50)
    reserve_step_ppm: int = Field(default=50_000, ge=1, le=_MILLION)
    retry_ns: int = Field(default=10_000_000, ge=1, lt=1 << 50)
    pool_max_ppm: int = Field(default=300_000, ge=0, le=_MILLION)
    grow_ppm: int = Field(default=750_000, ge=0, le=_MILLION)
    shrink_ppm: int = Field(default=400_000, ge=0, le=_MILLION)


class Tokencake(Policy):
    """Event-driven offload, predictive upload, and a reserved pool.

    A context whose call asked for tools holds its blocks. When a tool starts that is expected to take d more, with O and I the times of
    moving the context out and in, it is moved to host memory if d > O + I and n · (d − O − I) > O + I, where n is how many of those
    that wait, in order, are admitted by its blocks and would not be by the free ones. When memory is short this is asked again, of the
    contexts that wait for tools, the longest first, until one is moved.

    The upload begins `lead_ns` before the last moment at which it is there in time; while there is no room for it, blocks are reserved, a
    step at a time. Host memory keeps what is loaded, so that it need not be copied out again (the paper's block buffer).

    The pool for critical calls grows by a step, at most every `retry_ns`, when memory is short and much of it in use; it shrinks by one
    when a call ends and little is in use.
    """

    name = "tokencake"
    rule = "Offload at tool start if those it admits gain more than the transfers take; upload before the return; a pool for critical calls."
    source = "TokenCake (arXiv 2510.18586), its time and space schedulers"
    tiers: ClassVar = frozenset({TierName.HOST})
    Settings: ClassVar = TokencakeSettings
    notices: ClassVar = frozenset({CallEnded, CallReady, Pressure, Timer, ToolEnded, ToolStarted})

    def __init__(self, settings: TokencakeSettings, facts: Facts) -> None:
        super().__init__(settings, facts)
        self._with = settings
        self._times = ToolTimes(settings.unknown_tool_ns)
        self._pool = [0] * facts.servers
        self._sized_ns = [-settings.retry_ns] * facts.servers
        self._uploads: list[dict[int, int]] = [{} for _ in range(facts.servers)]  # blocks reserved by context
        self._away: dict[int, int] = {}  # server of the contexts that were moved out
        self._tools: dict[
            int, tuple[str, int, int]
        ] = {}  # of contexts: the tool waited for, since when, and the server

    def on(self, notice: Notice, view: View) -> Iterable[Question]:
        """Asked when tools start, when uploads are due, when calls are ready, and when memory is short or a call has ended."""
        match notice:
            case ToolEnded():
                self._times.add(notice.tool, notice.took_ns)
                self._tools.pop(notice.context, None)
            case ToolStarted():
                yield from self._started(notice, view)
            case Timer():
                yield from self._due(notice, view)
            case CallReady():
                yield from self._ready(notice)
            case Pressure():
                yield from self._pressed(notice.server, view)
                yield from self._resize(notice.server, view, 1)
            case CallEnded():
                if notice.tools and not notice.last:
                    yield Question(notice.context, {"ask": "keep"})
                yield from self._resize(view.context(notice.context).server, view, -1)
            case _:
                pass

    def _started(self, notice: ToolStarted, view: View) -> Iterator[Question]:
        context = view.context(notice.context)
        if context.pinned and context.id not in self._away:
            self._tools[context.id] = (notice.tool, view.now_ns, context.server)
            yield self._offload(context, self._times.smoothed_ns(notice.tool), view)

    def _pressed(self, server: int, view: View) -> Iterator[Question]:
        """Contexts that wait for tools are asked about again, the one that waits longest from now on first."""
        waits = [
            (view.now_ns - since - self._times.smoothed_ns(tool), context)
            for context, (tool, since, where) in self._tools.items()
            if where == server and context not in self._away
        ]
        for over, context_id in sorted(waits):
            if over >= 0:
                return
            context = view.context(context_id)
            if context.pinned:
                yield self._offload(context, -over, view)
                if context_id in self._away:
                    return

    def _offload(self, context: Context, expected_ns: int, view: View) -> Question:
        server, blocks = context.server, context.device_blocks
        free = view.free_blocks(server)
        few, many = _admitted(view.waiting_needs(server), free, free + blocks)
        out, back = (
            view.transfer_ns(server, TierName.HOST, blocks, inwards=inwards) for inwards in (False, True)
        )
        if _gains(expected_ns, out, back, many - few):
            self._away[context.id] = server
        return Question(
            context.id,
            {
                "ask": "offload", "now": view.now_ns, "tool": expected_ns, "out": out, "in": back, "admits": many - few,
            },
        )  # fmt: skip

    def _due(self, notice: Timer, view: View) -> Iterator[Question]:
        context = view.context(notice.context)
        if context.id not in self._away or context.tool is None:
            return
        server = context.server
        missing = context.host_blocks - context.device_blocks
        if missing <= 0:
            self._settle(context.id)
            return
        before = self._reserved(server)
        own = self._uploads[server].pop(context.id, 0)
        room = view.free_blocks(server) - (0 if context.critical else self._reserved(server))
        fits = room >= context.host_blocks
        if fits:
            self._settle(context.id)
        else:
            step = max(self.facts.device_blocks * self._with.reserve_step_ppm // _MILLION, 1)
            self._uploads[server][context.id] = min(own + step, context.host_blocks)
        if self._reserved(server) != before:
            yield self._reserve(server)
        yield Question(context.id, {"ask": "upload", "now": view.now_ns, "fits": fits})

    def _ready(self, notice: CallReady) -> Iterator[Question]:
        call = notice.call
        server = self._away.get(call.context, call.server)
        before = self._reserved(server)
        self._settle(call.context)
        if self._reserved(server) != before:
            yield self._reserve(server)
        below = call.host_hit_tokens + call.remote_hit_tokens
        if below:
            yield Question(call.context, {"ask": "load", "below": below}, event=call.event)

    def _resize(self, server: int, view: View, direction: int) -> Iterator[Question]:
        device = self.facts.device_blocks
        used = device - view.free_blocks(server)
        step = max(device * self._with.reserve_step_ppm // _MILLION, 1)
        most = device * self._with.pool_max_ppm // _MILLION
        pool = self._pool[server]
        if direction > 0:
            if used * _MILLION < device * self._with.grow_ppm:
                return
            if view.now_ns - self._sized_ns[server] < self._with.retry_ns:
                return
            pool = min(pool + step, most)
        elif used * _MILLION <= device * self._with.shrink_ppm:
            pool = max(pool - step, 0)
        if pool == self._pool[server]:
            return
        self._pool[server], self._sized_ns[server] = pool, view.now_ns
        yield self._reserve(server)

    def _reserve(self, server: int) -> Question:
        return Question(None, {"ask": "reserve", "blocks": self._reserved(server)}, server=server)

    def _reserved(self, server: int) -> int:
        return min(self._pool[server] + sum(self._uploads[server].values()), self.facts.device_blocks)

    def _settle(self, context: int) -> None:
        """Nothing is reserved for a context any more."""
        server = self._away.pop(context, None)
        if server is not None:
            self._uploads[server].pop(context, None)

    def choose(self, inputs: Mapping[str, Value]) -> Sequence[Action]:
        """See the class."""
        whole = {name: value for name, value in inputs.items() if isinstance(value, int)}
        match inputs["ask"]:
            case "keep":
                return (Keep(),)
            case "offload":
                tool, out, back = whole["tool"], whole["out"], whole["in"]
                if not _gains(tool, out, back, whole["admits"]):
                    return ()
                begins = max(whole["now"] + tool - back - self._with.lead_ns, 0)
                return (Offload(TierName.HOST), Wake(begins))
            case "upload":
                return (Prefetch(),) if whole["fits"] else (Wake(whole["now"] + self._with.retry_ns),)
            case "load":
                return (Prefetch(),)
            case _:
                return (Reserve(whole["blocks"]),)


def _gains(tool: int, out: int, back: int, admits: int) -> bool:
    """Whether what is gained by those who are let in is more than the transfers take."""
    gained = tool - out - back
    return gained > 0 and admits * gained > out + back


def _admitted(needs: Iterator[int], free: int, more: int) -> tuple[int, int]:
    """How many of those that wait are admitted, in order, by so many free blocks, and by more of them."""
    few = many = total = 0
    for need in needs:
        total += need
        if total > more:
            break
        many += 1
        few += total <= free
    return few, many
