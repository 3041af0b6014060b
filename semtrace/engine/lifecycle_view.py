"""What a policy sees of the engine (ST-LIF-016)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semtrace.policies.interface import Block, Call, Context, TierName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from semtrace.engine.contexts import Contexts
    from semtrace.engine.kv_state import KvState
    from semtrace.engine.mechanism import Waiting
    from semtrace.engine.transfers import Transfers
    from semtrace.policies.interface import Piece


class EngineView:
    """The engine at this instant, as far as a real system could see it: the `View` of the interface.

    Args:
        states: the servers.
        contexts: the contexts.
        transfers: tiers and links.
        block_size: tokens in a block.
        step_ns: modelled time of a step by its geometry.
        pieces: the pieces of the prompt of a call that waits.
        waiting: calls that were submitted and not admitted, by event.
    """

    def __init__(
        self,
        states: Sequence[KvState],
        contexts: Contexts,
        transfers: Transfers,
        block_size: int,
        step_ns: Callable[[tuple[int, ...]], int],
        pieces: Callable[[int], Sequence[Piece]],
        waiting: Mapping[int, Waiting],
    ) -> None:
        self.now_ns = 0
        self._waits = [(0, 0)] * len(states)
        self._states = states
        self._contexts = contexts
        self._transfers = transfers
        self._block_size = block_size
        self._step_ns = step_ns
        self._pieces = pieces
        self._waiting = waiting

    def free_blocks(self, server: int) -> int:
        """Device blocks that nobody holds; what they keep can be evicted."""
        return self._states[server].free_count

    def waiting_needs(self, server: int) -> Iterator[int]:
        """Blocks that each waiting request needs, the next one first; not those passed over.

        It takes time for those that are asked for only, and is of this instant.
        """
        return self._needs(self._states[server], self.now_ns)

    def _needs(self, state: KvState, asked_ns: int) -> Iterator[int]:
        for event in state.waiting():
            if not state.passed_over(event):
                yield state.need(event)
                if self.now_ns != asked_ns:
                    raise ValueError("goes on with what requests needed in an instant that is over")

    def running(self, server: int) -> int:
        """Requests that run."""
        return self._states[server].running()[0]

    def running_tokens(self, server: int) -> int:
        """Tokens of the requests that run, computed so far."""
        return self._states[server].running()[1]

    def pieces(self, event: int) -> Sequence[Piece]:
        """The pieces of the prompt of a call that waits, in order; none unless the policy asks for them."""
        return self._pieces(event)

    def waited(self, server: int, wait_ns: int) -> None:
        """A call was admitted after so long."""
        calls, total = self._waits[server]
        self._waits[server] = (calls + 1, total + wait_ns)

    def mean_wait_ns(self, server: int) -> int:
        """Mean time from submission to admission of the calls admitted so far, in whole ns; 0 if there are none."""
        calls, total = self._waits[server]
        return total // calls if calls else 0

    def context(self, context: int) -> Context:
        """A context as it is now."""
        held = self._contexts.all[context]
        found: dict[TierName, int] = {}
        for name in TierName:
            tier = self._transfers.tier(name, held.server)
            found[name] = 0 if tier is None else tier.count_readable(held.keys)
        waits = min(((since, event) for event, (since, _) in held.tools.items()), default=None)
        return Context(
            id=held.id,
            server=held.server,
            tokens=len(held.keys) * self._block_size,
            blocks=len(held.keys),
            device_blocks=self._states[held.server].match(held.keys)[0],
            host_blocks=found[TierName.HOST],
            remote_blocks=found[TierName.REMOTE],
            pinned=held.pin is not None,
            last_used_ns=held.last_used_ns,
            tool=None if waits is None else held.tools[waits[1]][1],
            tool_since_ns=None if waits is None else waits[0],
            steps_left=held.steps_left,
            critical=self._contexts.critical(held),
            calls=held.calls,
            calls_left=held.calls_left,
        )

    def contexts(self, server: int) -> Sequence[Context]:
        """Contexts of a server whose session may have another call, in the order of their numbers."""
        return [
            self.context(context)
            for context, held in sorted(self._contexts.live.items())
            if held.server == server
        ]

    def blocks(self, server: int) -> Sequence[Block]:
        """The record of each device block that a context whose session has another call needs, or a call that waits, by id."""
        state, contexts = self._states[server], self._contexts
        needs = [
            (held.keys, contexts.needed_in(held), contexts.critical(held), held.id)
            for _, held in sorted(contexts.live.items())
            if held.server == server
        ]
        needs += [
            (call.keys, 0, call.critical, call.held.id)
            for call in (self._waiting.get(event) for event in state.waiting())
            if call is not None  # a preempted one was admitted before
        ]
        found: dict[int, Block] = {}
        for keys, needed_in, critical, context in needs:
            for block, key in zip(state.find(keys), keys, strict=False):
                old = found.get(block, Block(block, key, needed_in, critical, ()))
                found[block] = Block(
                    block,
                    key,
                    min(old.needed_in, needed_in),
                    old.critical or critical,
                    tuple(sorted({*old.contexts, context})),
                )
        return [found[block] for block in sorted(found)]

    def tier_free(self, server: int, tier: TierName) -> int:
        """Blocks of a tier, as this server reaches it, that keep nothing; 0 if there is no such tier."""
        found = self._transfers.tier(tier, server)
        return 0 if found is None else found.free_count

    def transfer_ns(self, server: int, tier: TierName, blocks: int, *, inwards: bool) -> int:
        """Time that moving blocks in one run would take if what is under way on the direction were done first, in ns."""
        return self._transfers.estimate_ns(server, tier, blocks, inwards=inwards)

    def prefill_ns(self, server: int, tokens: int, before: int) -> int:
        """Modelled time of a step that computes this many tokens after `before` others, beside what runs, in ns."""
        requests, computed = self._states[server].running()
        context = computed + requests
        pairs = tokens * before + tokens * (tokens + 1) // 2
        return self._step_ns(
            (requests + 1, tokens, requests, requests + 1, pairs, before + tokens, context, context)
        )

    def step_ns(self, server: int) -> int:
        """Modelled time of a step that decodes once for every request that runs, in ns; 0 if none does."""
        requests, computed = self._states[server].running()
        context = computed + requests
        return self._step_ns((requests, 0, requests, requests, 0, 0, context, context)) if requests else 0

    def call(self, call: Waiting) -> Call:
        """A call that waits, as a policy sees it."""
        device, _ = self._states[call.server].match(call.keys)
        below = {} if call.held.loading else dict(self._transfers.chain(call.server, call.keys[device:]))
        size = self._block_size
        return Call(
            event=call.event,
            context=call.held.id,
            server=call.server,
            prompt_tokens=call.prompt_tokens,
            device_hit_tokens=device * size,
            host_hit_tokens=len(below.get(TierName.HOST, ())) * size,
            remote_hit_tokens=len(below.get(TierName.REMOTE, ())) * size,
            critical=call.critical,
        )
