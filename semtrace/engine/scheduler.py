"""The scheduler of one server, as vLLM 0.32 schedules: which request computes how many tokens in the next step.

This is the readable form: the oracle that the compiled engine must equal, itself shown equal to vLLM's own scheduler
step for step. There is no time in it. It covers one full-attention cache; no speculation, LoRA, multimodal input or
remote cache.

Synchronous scheduling: `schedule`, compute, `update`, and again. Asynchronous scheduling: a step is scheduled while
the one before it is still computed; two are in flight then, and they are updated in the order they were scheduled. The
rules are the same; those that matter only with several in flight say so.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from semtrace.engine.pool import BlockPool, Eviction
from semtrace.records.enums import BlockAction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semtrace.engine.settings import SchedulerSettings

State = Literal["waiting", "running", "preempted", "ended"]
"""A preempted request waits too, but has been admitted before."""

Kind = Literal["new", "resumed", "running"]


class Reused(NamedTuple):
    """Tokens that a request need not compute though they are no hit: position-independent reuse.

    Attributes:
        tokens: how many tokens, after its hits.
        borrowed: blocks of others that hold some of them, and that it shares.
        extra: blocks that it takes beside those that hold its tokens, if it shares what it is to share.
        master: id of a request whose blocks it shares too, if that runs when it is admitted; None for none.
        first: ordinal of the first of these blocks in that request.
        shared: how many of them.
    """

    tokens: int
    borrowed: tuple[int, ...] = ()
    extra: int = 0
    master: int | None = None
    first: int = 0
    shared: int = 0


class Move(NamedTuple):
    """What happened to blocks, for the log.

    Attributes:
        action: what.
        request: the request for which it was done.
        blocks: their ids.
        position: ordinal of the first among the request's blocks; None where it does not matter.
    """

    action: BlockAction
    request: Request
    blocks: Sequence[int]
    position: int | None


@dataclass(eq=False, slots=True)
class Request:
    """A request at one server. The first six are given, the rest is what the scheduler knows of it.

    Attributes:
        id: unique at the server; in the priority order the last tie-break.
        prompt_tokens: tokens of the prompt, at least 1.
        max_tokens: tokens that it makes, at least 1; it ends with the last of them.
        keys: content key of each full block of its prompt and output: `(prompt_tokens + max_tokens) // block_size` of
            them. Keys are equal exactly when the blocks hold the same tokens after the same tokens. Unread without
            prefix caching.
        priority: smaller is served first, in the priority order.
        arrival: when it arrived (any unit), in the priority order; requests of one instant share it.
        state: waiting, running, preempted or ended.
        outputs: tokens made so far.
        computed: leading tokens whose keys and values are in its blocks; those of a step count once it is scheduled.
        blocks: ids of the blocks it holds, in the order of its tokens.
        registered: leading blocks that are found by their keys.
        admitted_tokens: tokens it had when it was last admitted: what must be computed before its first new token.
        cached: tokens found in the pool at its first admission; None before.
        preemptions: how often it was preempted.
        placeholders: tokens that steps in flight will yield; none after a preemption, though they still come.
        in_flight: tokens of it that steps in flight compute.
        held_back: whether it is passed over while it waits: a lifecycle policy wants it so.
        critical: whether it may be admitted into blocks that are reserved.
        reuse: what it need not compute at its first admission though it is no hit; None for nothing.
        exact: leading blocks that hold exactly its tokens; None for all. What follows reused tokens is approximate, and
            is never found by its key.
    """

    id: int
    prompt_tokens: int
    max_tokens: int
    keys: Sequence[int] = ()
    priority: int = 0
    arrival: int = 0
    state: State = "waiting"
    outputs: int = 0
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    registered: int = 0
    admitted_tokens: int = 0
    cached: int | None = None
    preemptions: int = 0
    placeholders: int = 0
    in_flight: int = 0
    held_back: bool = False
    critical: bool = False
    reuse: Reused | None = None
    exact: int | None = None

    @property
    def tokens(self) -> int:
        """Prompt and output so far."""
        return self.prompt_tokens + self.outputs


class Entry(NamedTuple):
    """What one request does in a step.

    Attributes:
        request: the request.
        kind: new (its first step), resumed (its first after a preemption) or running.
        computed: its computed tokens before the step; those found in the pool count.
        tokens: tokens that the step computes.
        hits: blocks found in the pool, at an admission.
        blocks: blocks taken for the step.
        prefill: whether the step works on tokens that the request had when it was (last) admitted: its prompt, and
            after a preemption also its outputs until then. Else it computes one token that the step before yielded.
        yields: whether the step yields a token of the request.
    """

    request: Request
    kind: Kind
    computed: int
    tokens: int
    hits: tuple[int, ...]
    blocks: tuple[int, ...]
    prefill: bool
    yields: bool


@dataclass
class Step:
    """What is computed together, and what was done to make room.

    Attributes:
        entries: requests of the step, in the order they were scheduled.
        preempted: requests that lost their blocks, in that order; none of them is in `entries`.
        evicted: blocks taken that kept content until then, in that order.
    """

    entries: list[Entry] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    evicted: list[Eviction] = field(default_factory=list)


class Scheduler:
    """Schedules the steps of one server.

    Attributes:
        settings: its settings.
        block_size: tokens in a block.
        pool: its blocks.
        waiting: requests not running, the next first.
        running: requests that hold blocks, in the order they were admitted.
        reserved: free blocks that an admission must leave, unless it is critical.
        pressed: whether memory was short since it was last set to False: a preemption, or an admission that did not fit.
        moves: what happened to blocks since it was last cleared, in that order.
    """

    def __init__(self, settings: SchedulerSettings, blocks: int, block_size: int) -> None:
        self.settings = settings
        self.block_size = block_size
        self.pool = BlockPool(blocks, settings.prefix_caching)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.reserved = 0
        self.pressed = False
        self.moves: list[Move] = []

    def add(self, request: Request) -> None:
        """A request arrives: last of those that wait, or in its place by priority.

        It must fit: `prompt_tokens + max_tokens` within `max_model_len` and within the pool; who submits checks that.
        """
        if self.settings.order == "priority":
            insort(self.waiting, request, key=_by_priority)
        else:
            self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """A request ends at once, wherever it is; what a step in flight yields for it is dropped."""
        if request.state != "ended":
            self._end(request)

    def schedule(self) -> Step:
        """The next step: first those that run, then those that wait, within a budget of `max_num_batched_tokens`.

        Its blocks are taken and its tokens count as computed from now on. A step without entries is none: nothing can
        be computed now, and it need not be updated.
        """
        step = Step()
        threshold = self._threshold()
        budget = self._schedule_running(step, threshold, self.settings.max_num_batched_tokens)
        if not step.preempted:  # what had to be taken from those who run is not given to those who wait
            self._schedule_waiting(step, threshold, budget)
        for entry in step.entries:
            request = entry.request
            request.computed += entry.tokens
            request.in_flight += entry.tokens
            request.placeholders += entry.yields
        return step

    def update(self, step: Step) -> list[Request]:
        """The step is computed: who has nothing left to compute gains a token; who has made its last token ends (ST-ENG-035).

        Returns:
            the requests that ended, in the order they were scheduled. Each frees its blocks before the next one is
            looked at, which decides the order of the free queue.
        """
        ended = []
        for entry in step.entries:
            request = entry.request
            request.in_flight -= entry.tokens
            if not entry.yields or request.state == "ended":  # it may have been aborted meanwhile
                continue
            request.outputs += 1
            if request.state == "running":
                request.placeholders -= 1
                # Two in flight: this token was unknown when the step after was scheduled, so a block that it fills
                # could not be found then.
                self._register(request, request.computed - request.placeholders)
            if request.outputs == request.max_tokens:
                self._end(request)
                ended.append(request)
        return ended

    # The parts of a step.

    def _threshold(self) -> int:
        """`long_prefill_token_threshold`, if it applies to this step (ST-ENG-030).

        It keeps one long prompt from taking the whole budget from the others: alone, a request may have it all.
        """
        alone = len(self.running) + len(self.waiting) <= 1
        if alone and not self.settings.threshold_always:
            return 0
        return self.settings.long_prefill_token_threshold

    def _schedule_running(self, step: Step, threshold: int, budget: int) -> int:
        """Those who run, in the order they were admitted, as long as there is budget: what is left of it (ST-ENG-031)."""
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            if request.placeholders and request.outputs + 1 >= request.max_tokens:
                index += 1  # two in flight: its last token is being computed (ST-ENG-051)
                continue
            tokens = min(_capped(_pending(request), threshold), budget)
            while self._needed(request, (), request.computed + tokens) > self.pool.free_count:
                victim = self._victim()
                place = self.running.index(victim)
                del self.running[place]
                if place < index:
                    index -= 1
                budget += self._undo(step, victim)
                self._preempt(victim)
                self.pressed = True
                step.preempted.append(victim)
                if victim is request:  # nobody is left to take memory from
                    return budget
            self._allocate(step, request, "running", (), (), tokens)
            budget -= tokens
            index += 1
        return budget

    def _schedule_waiting(self, step: Step, threshold: int, budget: int) -> None:
        """Admit those who wait, in order, as long as there is budget, room and memory (ST-ENG-032, ST-ENG-052).

        The first who cannot be admitted ends it: nobody overtakes. A static batch takes none until all of it have ended.
        """
        if self.settings.static and self.running:
            return
        passed_over = []
        while budget > 0 and self.waiting and len(self.running) < self.settings.max_num_seqs:
            request = self.waiting[0]
            if request.in_flight > 0 or request.held_back:
                # Two in flight: it was preempted meanwhile, and must not go on without a token that may still come.
                passed_over.append(self.waiting.popleft())
                continue
            hits = self.find(request)
            computed = len(hits) * self.block_size
            borrowed: tuple[int, ...] = ()
            if request.reuse is not None:
                # More may be hit than when the reuse was granted, and a token is left to compute.
                computed = min(computed + request.reuse.tokens, request.tokens - 1)
                if request.reuse.master is not None and self._master(request.reuse) is None:
                    # It does without: there are no differences to keep from what it does not share.
                    request.reuse = request.reuse._replace(extra=0, master=None)
                borrowed = self._borrowed(request.reuse)
            tokens = _capped(request.tokens - computed, threshold)
            if tokens > budget and not self.settings.chunked_prefill:
                break
            tokens = min(tokens, budget)
            if not self._admissible(request, (*hits, *borrowed), computed + tokens):
                self.pressed = True
                break
            self.waiting.popleft()
            self.running.append(request)
            kind: Kind = "new" if request.state == "waiting" else "resumed"
            request.state = "running"
            request.computed = computed
            request.admitted_tokens = request.tokens
            if request.cached is None:
                request.cached = len(hits) * self.block_size
            if request.reuse is not None:
                request.exact = len(hits)
            self._allocate(step, request, kind, hits, borrowed, tokens)
            budget -= tokens
        if self.settings.order == "priority":
            for request in passed_over:
                insort(self.waiting, request, key=_by_priority)
        else:
            self.waiting.extendleft(reversed(passed_over))

    # Memory.

    def _needed(self, request: Request, shared: Sequence[int], tokens: int) -> int:
        """Free blocks that it takes to hold this many of its tokens (ST-ENG-033); what it shares and nobody holds are free now too."""
        new = self._held(request, tokens) - len(request.blocks) - len(shared)
        return max(new, 0) + self.pool.idle(shared)

    def _held(self, request: Request, tokens: int) -> int:
        """Blocks of a request that holds this many of its tokens."""
        return _ceil(tokens, self.block_size) + (request.reuse.extra if request.reuse is not None else 0)

    def find(self, request: Request) -> tuple[int, ...]:
        """The longest run of its leading full blocks that the pool has.

        At least one token is left to compute, since a step must compute a token to yield one.
        """
        hits: list[int] = []
        if self.settings.prefix_caching:
            for key in request.keys[: (request.tokens - 1) // self.block_size]:
                block = self.pool.find(key)
                if block is None:
                    break
                hits.append(block)
        return tuple(hits)

    def need(self, request: Request) -> int:
        """Free blocks that it takes to admit a request with all its tokens (ST-ENG-033)."""
        borrowed = () if request.reuse is None else self._borrowed(request.reuse)
        return self._needed(request, (*self.find(request), *borrowed), request.tokens)

    def _borrowed(self, reuse: Reused) -> tuple[int, ...]:
        """Blocks of others that a request is to share at its admission; of a master only while it runs."""
        master = self._master(reuse)
        if master is None:
            return reuse.borrowed
        return (*reuse.borrowed, *master.blocks[reuse.first : reuse.first + reuse.shared])

    def _master(self, reuse: Reused) -> Request | None:
        """The request whose blocks are to be shared, if it runs and has so many."""
        for master in self.running:
            if master.id == reuse.master and len(master.blocks) >= reuse.first + reuse.shared:
                return master
        return None

    def _admissible(self, request: Request, shared: Sequence[int], tokens: int) -> bool:
        """Whether there is memory to admit a request.

        While others run the watermark must stay free. With `reserve_full_isl` there must be room for all tokens that
        the request has by now, though only those of its first step are allocated.
        """
        watermark = self.settings.watermark_blocks if self.running else 0
        held = request.tokens if self.settings.reserve_full_isl else tokens
        kept = 0 if request.critical else self.reserved
        return self._needed(request, shared, held) + watermark + kept <= self.pool.free_count

    def _allocate(
        self,
        step: Step,
        request: Request,
        kind: Kind,
        hits: tuple[int, ...],
        borrowed: tuple[int, ...],
        tokens: int,
    ) -> None:
        """Give a request the blocks of this step, which were checked to be there, and enter it (ST-ENG-034, ST-ENG-061).

        Blocks that the step fills are found by their keys from now on, before they are computed: a request that is
        admitted later in the same step can share them.
        """
        computed = request.computed
        shared = (*hits, *borrowed)
        self.pool.share(shared)
        new = max(self._held(request, computed + tokens) - len(request.blocks) - len(shared), 0)
        taken, evictions = self.pool.take(new)
        self._note(request, BlockAction.EVICT, [each.block for each in evictions], None)
        self._note(request, BlockAction.HIT, shared, len(request.blocks))
        self._note(request, BlockAction.ALLOCATE, taken, len(request.blocks) + len(shared))
        request.blocks += [*shared, *taken]
        request.registered += len(hits)
        self._register(request, min(computed + tokens, request.tokens))
        step.evicted += evictions
        step.entries.append(
            Entry(
                request,
                kind,
                computed,
                tokens,
                hits,
                tuple(taken),
                prefill=computed < request.admitted_tokens,
                yields=tokens == _pending(request),
            )
        )

    def _register(self, request: Request, tokens: int) -> None:
        """Let the full blocks of its leading tokens be found, with prefix caching (ST-ENG-042)."""
        if self.settings.prefix_caching:
            full = tokens // self.block_size if request.exact is None else request.exact
            for index in range(request.registered, full):
                self.pool.register(request.blocks[index], request.keys[index])
                request.registered = index + 1

    def _victim(self) -> Request:
        """Who loses its memory: the last admitted; by priority, the one served last, the first admitted of equals."""
        if self.settings.order == "priority":
            return max(self.running, key=lambda request: (request.priority, request.arrival))
        return self.running[-1]

    def _undo(self, step: Step, victim: Request) -> int:
        """Take a victim out of the step if it is in it: the budget that comes back. What it evicted stays evicted."""
        for place, entry in enumerate(step.entries):
            if entry.request is victim:
                del step.entries[place]
                return entry.tokens
        return 0

    def _preempt(self, request: Request) -> None:
        """Free its blocks and let it wait, first of all or in its place by priority (ST-ENG-036).

        It keeps its outputs, and computes all its tokens anew but for those that the pool still has.
        """
        self._free(request)
        request.state = "preempted"
        request.reuse = request.exact = None  # what it reused is lost, and it is not asked again
        request.computed = 0
        request.placeholders = 0
        request.preemptions += 1
        if self.settings.order == "priority":
            insort(self.waiting, request, key=_by_priority)
        else:
            self.waiting.appendleft(request)

    def _end(self, request: Request) -> None:
        """Free its blocks and forget it; two in flight: it may be preempted while its last token is computed."""
        if request.state == "running":
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._free(request)
        request.state = "ended"

    def _free(self, request: Request) -> None:
        self.pool.release(request.blocks)
        self._note(request, BlockAction.FREE, request.blocks, None)
        request.blocks = []
        request.registered = 0

    def _note(
        self, request: Request, action: BlockAction, blocks: Sequence[int], position: int | None
    ) -> None:
        if blocks:
            self.moves.append(Move(action, request, blocks, position))


def _pending(request: Request) -> int:
    """Tokens to compute before the request yields one more than it will with the steps in flight."""
    return request.tokens + request.placeholders - request.computed


def _by_priority(request: Request) -> tuple[int, int, int]:
    return request.priority, request.arrival, request.id


def _capped(tokens: int, threshold: int) -> int:
    return min(tokens, threshold) if threshold else tokens


def _ceil(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)
