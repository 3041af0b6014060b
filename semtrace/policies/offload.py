"""Host memory as a second prefix cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from semtrace.policies.interface import CallEnded, CallReady, Offload, Policy, Prefetch, Question, TierName
from semtrace.records.document import Document

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from semtrace.policies.interface import Action, Facts, Notice, Value, View


class OffloadLruSettings(Document):
    """Settings of `offload-lru`.

    Attributes:
        load_min_tokens: fewest tokens that are loaded; fewer are computed.
    """

    load_min_tokens: int = Field(default=1, ge=1, lt=1 << 31)


class OffloadLru(Policy):
    """Copy every ended call's blocks to host memory, and load what a call finds there.

    The device forgets nothing by it: its own cache stays least recently freed, host memory is least recently used.
    """

    name = "offload-lru"
    rule = "Blocks of every ended call are copied to host memory; a call loads what follows its hits there."
    source = "vLLM 0.32, KV offloading to the CPU with its LRU"
    tiers: ClassVar = frozenset({TierName.HOST})
    Settings: ClassVar = OffloadLruSettings
    notices: ClassVar = frozenset({CallEnded, CallReady})

    def __init__(self, settings: OffloadLruSettings, facts: Facts) -> None:
        super().__init__(settings, facts)
        self._least = settings.load_min_tokens

    def on(self, notice: Notice, view: View) -> Iterable[Question]:
        """Asked when a call has ended, and when one is ready."""
        if isinstance(notice, CallEnded):
            context = view.context(notice.context)
            yield Question(context.id, {"device": context.device_blocks, "host": context.host_blocks})
        elif isinstance(notice, CallReady):
            call = notice.call
            below = call.host_hit_tokens + call.remote_hit_tokens
            yield Question(call.context, {"below": below}, event=call.event)

    def choose(self, inputs: Mapping[str, Value]) -> Sequence[Action]:
        """Copy what host memory lacks; load what it has."""
        match inputs:
            case {"below": int(below)}:
                return (Prefetch(),) if below >= self._least else ()
            case {"device": int(device), "host": int(host)} if device > host:
                return (Offload(TierName.HOST, drop=False),)
        return ()
