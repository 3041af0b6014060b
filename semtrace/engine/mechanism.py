"""What a policy's actions do: pins, loads, calls held back, reserved blocks, reuse (spec, lifecycle.md)."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semtrace.engine.contexts import Pin
from semtrace.engine.scheduler import Reused
from semtrace.engine.transfers import NO_ROOM
from semtrace.policies.interface import (
    Demote,
    Drop,
    Hold,
    Keep,
    Offload,
    Prefetch,
    Release,
    Reserve,
    Reuse,
    Unhold,
    Wake,
)
from semtrace.records.enums import BlockAction, Tier

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from semtrace.engine.contexts import Contexts, Held
    from semtrace.engine.kv_state import KvState
    from semtrace.engine.lifecycle_log import LifecycleLog
    from semtrace.engine.transfers import Load, Transfers
    from semtrace.policies.interface import Action


class ImpossibleError(Exception):
    """An action that makes no sense where it was chosen: a mistake of the policy."""


@dataclass
class Wanted:
    """A load for which there was no room.

    Attributes:
        until_ns: until when to hold what is loaded, None for ever.
    """

    until_ns: int | None


@dataclass
class Waiting:
    """A call that was submitted and not admitted.

    Attributes:
        event: its event.
        held: its context.
        server: where it waits.
        prompt_tokens: tokens of its prompt.
        keys: keys of the full blocks of its prompt that it may find.
        critical: whether it is on the longest declared path of its instance.
        since_ns: when it was submitted.
        put_off: whether a policy holds it back.
        loading: whether it waits for a load.
        wanted: a load that is to be tried again.
        borrowed: blocks held for its reuse.
        charge_ns: what its reuse adds to the step that admits it.
        reused: tokens of that reuse.
    """

    event: int
    held: Held
    server: int
    prompt_tokens: int
    keys: Sequence[int]
    critical: bool
    since_ns: int
    put_off: bool = False
    loading: bool = False
    wanted: Wanted | None = None
    borrowed: list[int] = field(default_factory=list)
    charge_ns: int = 0
    reused: int = 0


class Mechanism:
    """Carries out actions.

    Args:
        contexts: the contexts.
        states: the servers.
        transfers: tiers and links.
        log: what happens to blocks is written there.
        blocks: blocks of a server that can hold something.

    Attributes:
        now_ns: the instant.
        waiting: calls that were submitted and not admitted, by event.
        put_off: of those of each server, the events of those that a policy holds back.
        reusing: the same of those that are to reuse tokens.
    """

    def __init__(
        self,
        contexts: Contexts,
        states: Sequence[KvState],
        transfers: Transfers,
        log: LifecycleLog,
        blocks: int,
    ) -> None:
        self.now_ns = 0
        self.waiting: dict[int, Waiting] = {}
        self._contexts = contexts
        self._states = states
        self._transfers = transfers
        self._log = log
        self._blocks = blocks
        self._lapses: list[tuple[int, int, int]] = []  # (time, context, number of the pin)
        self._wakes: list[tuple[int, int]] = []  # (time, context)
        self._pins = 0
        self._wanted: list[set[int]] = [set() for _ in states]  # calls whose load is to be tried again
        self.put_off: list[set[int]] = [set() for _ in states]
        self.reusing: list[set[int]] = [set() for _ in states]
        self._loading: dict[int, dict[int, Waiting]] = {}  # calls that wait for a load, by context and event

    def act(self, held: Held, event: int | None, action: Action) -> str | None:
        """Carry out an action (ST-LIF-024 and ST-LIF-038 are here, the others below).

        Args:
            held: the context that it is about.
            event: the call that it is about, if it is about one that waits.
            action: the action.

        Returns:
            why it is not done; None if it is.

        Raises:
            ImpossibleError: it makes no sense here.
        """
        match action:
            case Keep():
                return self._keep(held, action.until_ns)
            case Release():
                self.drop_pin(held, "release")
            case Offload():
                return self._offload(held, action)
            case Prefetch():
                if event is None:
                    return self._prefetch(held, action.until_ns)
                return self._load_at_once(self._call(event), action.until_ns)
            case Drop():
                self._transfers.forget(self.now_ns, held, action.tier)
            case Demote():
                state = self._states[held.server]
                state.demote(state.find(held.keys))
            case Hold():
                self.put(self._call(event), put_off=True)
            case Unhold():
                self.put(self._call(event), put_off=False)
            case Wake():
                heapq.heappush(self._wakes, (max(action.at_ns, self.now_ns + 1), held.id))
            case Reuse():
                return self._reuse(self._call(event), action)
            case Reserve():
                raise ImpossibleError("reserves blocks, and is asked about no server")
        return None

    def reserve(self, server: int, action: Action) -> None:
        """Leave blocks of a server to critical calls (ST-LIF-035).

        Raises:
            ImpossibleError: it is another action, or there are not so many blocks.
        """
        if not isinstance(action, Reserve):
            raise ImpossibleError("answers a question about a server with something else than to reserve")
        if not 0 <= action.blocks <= self._blocks:
            raise ImpossibleError(f"reserves {action.blocks} blocks of {self._blocks}")
        self._states[server].reserved = action.blocks

    # Time.

    def next_ns(self) -> int | None:
        """When a pin lapses next or a timer comes."""
        while self._lapses and not self._still(*self._lapses[0][1:]):
            heapq.heappop(self._lapses)
        return min((heap[0][0] for heap in (self._lapses, self._wakes) if heap), default=None)

    def lapse(self) -> None:
        """Pins whose time is over are let go (ST-LIF-022)."""
        while self._lapses and self._lapses[0][0] <= self.now_ns:
            _, context, number = heapq.heappop(self._lapses)
            if self._still(context, number):
                self.drop_pin(self._contexts.all[context], "lapsed")

    def timers(self) -> list[int]:
        """Contexts whose timers come now."""
        due = set()
        while self._wakes and self._wakes[0][0] <= self.now_ns:
            due.add(heapq.heappop(self._wakes)[1])
        return sorted(due)

    def _still(self, context: int, number: int) -> bool:
        pin = self._contexts.all[context].pin
        return pin is not None and pin.number == number

    # Pins.

    def drop_pin(self, held: Held, reason: str) -> None:
        """A context holds its blocks no longer (ST-LIF-021)."""
        pin, held.pin = held.pin, None
        if pin is not None:
            del self._contexts.pinned[held.id]
            self._transfers.let_go(self.now_ns, pin.server, held.event, pin.blocks, reason=reason)

    def _keep(self, held: Held, until_ns: int | None) -> str | None:
        """Hold what the pool has of a context (ST-LIF-020)."""
        if until_ns is not None and until_ns <= self.now_ns:
            return "the time is over"
        state = self._states[held.server]
        blocks = state.find(held.keys)
        if not blocks:
            return "nothing of the context is on the device"
        state.share(blocks)
        self._note_hits(held.server, held.event, blocks, "keep")
        self._pin(held, held.server, blocks, until_ns, frozenset())
        return None

    def _pin(
        self, held: Held, server: int, blocks: list[int], until_ns: int | None, brought: frozenset[int]
    ) -> None:
        """A context holds these blocks, which have a holder for it, and no others any more."""
        self.drop_pin(held, "kept anew")
        self._pins += 1
        held.pin = Pin(server, blocks, until_ns, brought, self._pins)
        self._contexts.pinned[held.id] = held
        if until_ns is not None:
            if until_ns <= self.now_ns:
                self.drop_pin(held, "lapsed")
            else:
                heapq.heappush(self._lapses, (until_ns, held.id, self._pins))

    # Out and in.

    def _offload(self, held: Held, action: Offload) -> str | None:
        why_not = self._transfers.save(self.now_ns, held, action.tier, drop=action.drop)
        if why_not is None:
            self.drop_pin(held, "offload")
        return why_not

    def _prefetch(self, held: Held, until_ns: int | None) -> str | None:
        if held.loading:
            return "a load of the context is under way"
        leave = 0 if self._contexts.critical(held) else self._states[held.server].reserved
        made = self._transfers.load(
            self.now_ns, held, held.event, held.server, held.keys, until_ns, leave=leave
        )
        if isinstance(made, str):
            return made
        held.loading = True
        return None

    def _load_at_once(self, call: Waiting, until_ns: int | None) -> str | None:
        """Load for a call, behind those who wait before it."""
        state, ahead = self._states[call.server], 0
        for event in state.waiting():
            if event == call.event or ahead > state.free_count:
                break
            if not state.passed_over(event):
                ahead += state.need(event)
        return self._load_for(call, until_ns, ahead)

    def _load_for(self, call: Waiting, until_ns: int | None, ahead: int) -> str | None:
        """Load for a call, which then waits for it; if there is no room, it is tried again later."""
        held = call.held
        if held.loading:
            self._want(call, None)
            self.put(call, loading=True)
            return None
        leave = ahead + (0 if call.critical else self._states[call.server].reserved)
        made = self._transfers.load(
            self.now_ns, held, call.event, call.server, call.keys, until_ns, leave=leave
        )
        again = call.wanted is not None
        self._want(call, Wanted(until_ns) if made == NO_ROOM else None)
        if isinstance(made, str):
            return None if again else made
        held.loading = True
        self.put(call, loading=True)
        return None

    def _want(self, call: Waiting, wanted: Wanted | None) -> None:
        call.wanted = wanted
        if wanted is None:
            self._wanted[call.server].discard(call.event)
        else:
            self._wanted[call.server].add(call.event)

    def admitted(self, call: Waiting) -> None:
        """A call waits no more: nothing is loaded for it, and what was held for its reuse it holds itself."""
        self._want(call, None)
        self.put_off[call.server].discard(call.event)
        self.reusing[call.server].discard(call.event)
        self.return_borrowed(call)

    def first(self, server: int, events: AbstractSet[int]) -> Waiting | None:
        """The first of some calls that wait at a server."""
        if not events:
            return None
        waiting = self._states[server].waiting()
        return next((self.waiting[event] for event in waiting if event in events), None)

    @property
    def wants_loads(self) -> bool:
        """Whether there are loads that there was no room for."""
        return any(self._wanted)

    def try_again(self) -> None:
        """Loads that there was no room for, in the order in which calls wait, as far as there is room for any (ST-LIF-033)."""
        for server, events in enumerate(self._wanted):
            if events:
                self._load_in_order(server, events)

    def _load_in_order(self, server: int, events: set[int]) -> None:
        state = self._states[server]
        ahead, left = 0, len(events)
        for event in state.waiting():
            if left == 0 or ahead > state.free_count:
                return
            if state.passed_over(event):
                left -= event in events
                continue
            need = state.need(event)
            wanted = self.waiting[event].wanted if event in events else None
            if wanted is not None:
                left -= 1
                self._load_for(self.waiting[event], wanted.until_ns, ahead)
            if not state.passed_over(event):
                ahead += need

    def loaded(self, load: Load) -> None:
        """All of a load is there: its context holds it, and calls wait for it no longer."""
        held = load.held
        held.loading = False
        brought = [block for part in load.parts for block in part.blocks]
        self._pin(held, load.server, [*load.hits, *brought], load.until_ns, frozenset(brought))
        for call in self._loading.pop(held.id, {}).values():
            self.put(call, loading=False)

    # Calls that wait.

    def _call(self, event: int | None) -> Waiting:
        call = None if event is None else self.waiting.get(event)
        if call is None:
            raise ImpossibleError("answers what only a question about a call that waits can be answered")
        return call

    def put(self, call: Waiting, *, put_off: bool | None = None, loading: bool | None = None) -> None:
        """Whether a policy holds a call back, and whether it waits for a load (ST-LIF-036); None: as before."""
        call.put_off = call.put_off if put_off is None else put_off
        call.loading = call.loading if loading is None else loading
        (self.put_off[call.server].add if call.put_off else self.put_off[call.server].discard)(call.event)
        if call.loading:
            self._loading.setdefault(call.held.id, {})[call.event] = call
        elif call.held.id in self._loading:
            self._loading[call.held.id].pop(call.event, None)
        self._states[call.server].pass_over(call.event, held=call.put_off or call.loading)

    def _reuse(self, call: Waiting, action: Reuse) -> str | None:
        """Let a call begin with tokens that are no hits (ST-LIF-037)."""
        if min(action.tokens - 1, action.borrow, action.first, action.extra, action.charge_ns) < 0:
            raise ImpossibleError(f"reuses {action.tokens} tokens of {action.borrow} borrowed blocks")
        state = self._states[call.server]
        blocks: list[int] = []
        if action.borrow and action.master is not None:
            if action.lender is not None or action.master == call.event:
                raise ImpossibleError("borrows of a context and of a call, or of itself")
        elif action.borrow:
            lender = None if action.lender is None else self._contexts.all[action.lender]
            if lender is None or lender.server != call.server:
                return "the lender is on another server"
            blocks = state.find(lender.keys)[action.first : action.first + action.borrow]
            if len(blocks) < action.borrow:
                return "the lender's blocks are not on the device"
        state.share(blocks)
        self._note_hits(call.server, call.event, blocks, "borrow")
        self.return_borrowed(call)
        call.borrowed, call.reused, call.charge_ns = blocks, action.tokens, action.charge_ns
        (self.reusing[call.server].add if call.reused else self.reusing[call.server].discard)(call.event)
        count = action.borrow if action.master is not None else 0
        state.reuse(
            call.event,
            Reused(action.tokens, tuple(blocks), action.extra, action.master, action.first, count),
        )
        return None

    def no_reuse(self, call: Waiting) -> None:
        """A call is to reuse nothing any more."""
        self.return_borrowed(call)
        call.reused = call.charge_ns = 0
        self.reusing[call.server].discard(call.event)
        self._states[call.server].reuse(call.event, None)

    def return_borrowed(self, call: Waiting) -> None:
        """What was held for a call's reuse is let go: the call holds it itself, or does without."""
        if call.borrowed:
            self._transfers.let_go(self.now_ns, call.server, call.event, call.borrowed, reason="borrowed")
            call.borrowed = []

    def _note_hits(self, server: int, event: int, blocks: Sequence[int], reason: str) -> None:
        self._log.block_rows(
            self.now_ns, server, Tier.DEVICE, BlockAction.HIT, event, blocks, position=0, reason=reason
        )
