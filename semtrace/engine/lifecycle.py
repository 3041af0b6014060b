"""The driver of a lifecycle policy: it tells the policy what happens, asks it, and has its answers carried out (spec, lifecycle.md).

Both forms of the engine tell it what happens and call `phase` between routing and starting; it acts on them through `KvState`.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Final

from semtrace.engine.contexts import Contexts
from semtrace.engine.cost import step_ns
from semtrace.engine.lifecycle_view import EngineView
from semtrace.engine.mechanism import ImpossibleError, Mechanism, Waiting
from semtrace.engine.pieces import Pieces, Places
from semtrace.engine.transfers import Load, Transfers
from semtrace.errors import FormatError, ReplayError, SemtraceError
from semtrace.policies.interface import (
    Action,
    CallEnded,
    CallReady,
    Moved,
    Piece,
    Pressure,
    Release,
    Reserve,
    Timer,
    ToolEnded,
    ToolStarted,
    Unhold,
)
from semtrace.policies.text import choice_text
from semtrace.records.document import canonical_json, parse_canonical
from semtrace.records.enums import BlockAction, Tier

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from semtrace.engine.contexts import Held
    from semtrace.engine.kv_state import KvState
    from semtrace.engine.lifecycle_log import LifecycleLog
    from semtrace.engine.prepared import Prepared
    from semtrace.policies.interface import Facts, Notice, Policy, Question
    from semtrace.replay.backend import Request as Released

ENGINE = "engine"
"""What the log calls the one who decides where no policy does."""
MOST_QUESTIONS: Final = 100_000
"""Questions that a policy may ask at one notice, and actions in one answer, beside ten for each context that there is."""
MOST_WAKES: Final = 1_000_000
"""Instants one after the other in which a policy may be told of nothing but its own timers."""


class Lifecycle:
    """Drives a policy.

    Args:
        prepared: the trace as the engine sees it.
        policy: the policy.
        facts: what it knows of the engine.
        states: the servers.
        log: what happens is written there.
    """

    def __init__(
        self, prepared: Prepared, policy: Policy, facts: Facts, states: Sequence[KvState], log: LifecycleLog
    ) -> None:
        self._prepared = prepared
        self._policy = policy
        self._states = states
        self._log = log
        self._contexts = Contexts(prepared.trace)
        self._transfers = Transfers(facts.tier_blocks, facts.links, facts.block_bytes or 0, states, log)
        self._mechanism = Mechanism(self._contexts, states, self._transfers, log, facts.device_blocks)
        ints, floats = prepared.cost.ints.tolist(), prepared.cost.floats.tolist()
        self._view = EngineView(
            states,
            self._contexts,
            self._transfers,
            prepared.settings.block_size,
            lambda geometry: step_ns(prepared.cost.kind, ints, floats, geometry),
            self._pieces_of,
            self._mechanism.waiting,
        )
        self._pieces = Pieces(prepared.trace) if policy.pieces else None
        self._places = Places(prepared.settings.block_size)
        self._running: dict[int, tuple[Held, int, int]] = {}  # calls not ended: context, operation, server
        self._gains: dict[int, tuple[int, int]] = {}  # of calls admitted: tokens loaded, tokens reused
        self._news: list[tuple[int, int, Notice]] = []  # (order of its kind, event, notice)
        self._arrived: list[Waiting] = []
        self._pressed_ns: dict[int, int] = {}
        self._wakes = 0  # instants of nothing but timers until now

    # What the engine tells.

    def submitted(self, now_ns: int, released: Released, server: int) -> bool:
        """A call was routed and queued: whether it is critical."""
        prepared = self._prepared
        held = self._contexts.of_call(released)
        tokens = prepared.prompt_tokens(released.operation)
        full = (tokens - 1) // prepared.settings.block_size  # at least one token is computed
        keys = prepared.keys(released.instance, released.operation)[:full]
        critical = self._contexts.call_is_critical(released)
        call = Waiting(released.event, held, server, tokens, keys, critical, now_ns)
        self._mechanism.waiting[released.event] = call
        self._running[released.event] = (held, released.operation, server)
        self._arrived.append(call)
        return critical

    def refused(self, now_ns: int, released: Released) -> None:
        """A call ended when it was submitted: no server could hold it. Its context waits for it no longer."""
        self._mechanism.now_ns = now_ns
        held = self._contexts.of_call(released)
        self._contexts.ended(held, released.operation)
        self._mechanism.drop_pin(held, "refused")

    def admitted(self, event: int, hits: Sequence[int], taken: Sequence[int]) -> int:
        """A call was admitted in this instant, for the first time or again, and holds what it hit (ST-LIF-034).

        Args:
            event: its event.
            hits: blocks that it hit.
            taken: blocks that it took.

        Returns:
            the time that this adds to the step, in ns.
        """
        call, held = self._mechanism.waiting.pop(event, None), self._running[event][0]
        if call is not None:
            pin = held.pin
            brought = pin.brought if pin is not None and pin.server == call.server else frozenset()
            loaded = sum(block in brought for block in hits) * self._prepared.settings.block_size
            self._gains[event] = (loaded, call.reused)
            if call.reused:
                adapted = taken[: -(-call.reused // self._prepared.settings.block_size)]
                self._log.block_rows(
                    self._view.now_ns,
                    call.server,
                    Tier.DEVICE,
                    BlockAction.REENCODE,
                    event,
                    adapted,
                    reason="reuse",
                )
            self._view.waited(call.server, self._view.now_ns - call.since_ns)
            self._mechanism.admitted(call)
        self._mechanism.drop_pin(held, "used")
        return 0 if call is None else call.charge_ns

    def ended(self, now_ns: int, event: int, exact: int | None) -> tuple[int, int]:
        """A call has ended and its blocks are free.

        Args:
            now_ns: now.
            event: its event.
            exact: leading blocks that hold exactly its tokens, None for all.

        Returns:
            tokens that were loaded for it, and tokens that it reused.
        """
        held, operation, server = self._running.pop(event)
        prepared = self._prepared
        computed = prepared.prompt_tokens(operation) + max(prepared.output_tokens(operation), 1) - 1
        full = computed // prepared.settings.block_size
        held.keys = prepared.keys(held.instance, operation)[: full if exact is None else min(full, exact)]
        held.server = server
        held.event = event
        held.last_used_ns = now_ns
        held.calls += 1
        held.steps_left = self._contexts.structure.path[operation] - 1
        self._contexts.ended(held, operation)
        if self._pieces is not None:
            self._places.put(held.id, self._pieces.of(operation))
        tools = self._contexts.structure.tools(operation)
        self._news.append((0, event, CallEnded(event, held.id, tools, held.calls_left == 0)))
        return self._gains.pop(event, (0, 0))

    def observe(self, now_ns: int, started: Sequence[Released], ended: Sequence[Released]) -> None:
        """Operations that do not run on the engine were started, and have ended, in this instant."""
        for each in sorted(started):
            held = self._contexts.of_tool(each)
            if held is not None:
                name = self._contexts.structure.names[each.operation]
                held.tools[each.event] = (now_ns, name)
                self._news.append((1, each.event, ToolStarted(each.event, held.id, name)))
        for each in sorted(ended):
            held = self._contexts.of_tool(each)
            if held is not None and each.event in held.tools:
                since, name = held.tools.pop(each.event)
                self._news.append((2, each.event, ToolEnded(each.event, held.id, name, now_ns - since)))

    def next_ns(self) -> int | None:
        """When something happens next that no step brings: a transfer ends or begins to flow, a pin lapses, a timer comes."""
        times = (self._transfers.next_ns(), self._mechanism.next_ns())
        return min((time for time in times if time is not None), default=None)

    @property
    def restless(self) -> bool:
        """Whether it has something to do in every instant: loads for which there was no room are tried again (ST-LIF-033)."""
        return self._mechanism.wants_loads

    # The policy's turn.

    def at(self, now_ns: int) -> None:
        """It is this instant, whether or not the policy has its turn in it."""
        self._view.now_ns = self._mechanism.now_ns = now_ns

    def phase(self, now_ns: int) -> None:
        """What the policy does in this instant, if there is anything for it to do (ST-LIF-013 to ST-LIF-015)."""
        self.at(now_ns)
        wants = self._policy.notices
        moved = self._moved()
        self._mechanism.lapse()
        timers = self._mechanism.timers()
        self._news.sort(key=lambda each: each[:2])
        notices: list[Notice] = [*moved, *(notice for _, _, notice in self._news)]
        arrived = sorted(self._arrived, key=lambda call: call.event)
        self._news, self._arrived = [], []
        for call in arrived:
            if call.held.loading:
                self._mechanism.put(call, loading=True)
        pressed = [
            server for server, state in enumerate(self._states) if Pressure in wants and state.pressed()
        ]
        if notices or arrived:
            self._wakes = 0
        elif timers:
            self._wakes += 1
        if self._wakes > MOST_WAKES:
            raise self._wrong(f"wakes itself for ever: {MOST_WAKES:,} times with nothing else to tell it")
        wanted = [notice for notice in notices if type(notice) in wants]
        for notice in wanted:
            self._tell(notice)
        for call in arrived if CallReady in wants else ():
            self._tell(CallReady(self._view.call(call)))
        for context in timers if Timer in wants else ():
            self._tell(Timer(context))
        for server in pressed:
            self._tell(Pressure(server, self._missing(server)))
        self._mechanism.try_again()

    def _pieces_of(self, event: int) -> list[Piece]:
        call = self._mechanism.waiting.get(event)
        if self._pieces is None or call is None:
            return []
        group, instance = self._prepared.group, call.held.instance
        operation, state = self._running[event][1], self._states[call.server]
        found = []
        for span in self._pieces.of(operation):
            key, first, tokens = span
            if first + tokens > call.prompt_tokens:
                break
            place = self._places.find(
                span,
                self._contexts.all,
                lambda other: bool(group[other] == group[instance]),
                state,
                call.server,
            )
            found.append(Piece(key, first, tokens, *(place or (None, None, 0))))
        return found

    def _moved(self) -> list[Notice]:
        notices: list[Notice] = []
        for ended in self._transfers.ended(self._view.now_ns):
            job = ended.job
            if isinstance(job, Load) and job.left == 0:
                self._mechanism.loaded(job)
            notices.append(Moved(job.held.id, ended.tier, inwards=isinstance(job, Load)))
        return notices

    def _missing(self, server: int) -> int:
        need = next(self._view.waiting_needs(server), 0)
        return max(need - self._states[server].free_count, 0)

    def _tell(self, notice: Notice) -> None:
        with self._blamed():
            questions = iter(self._policy.on(notice, self._view))
        most = self._most()
        for _ in range(most):
            with self._blamed():
                question = next(questions, None)
            if question is None:
                return
            self._decide(question)
        raise self._wrong(f"asks for ever: {most:,} questions at {type(notice).__name__}")

    def _most(self) -> int:
        return MOST_QUESTIONS + 10 * len(self._contexts.all)

    def _decide(self, question: Question) -> None:
        """Ask the policy, write down what it says, and do it (ST-LIF-040 to ST-LIF-042)."""
        contexts = self._contexts.all
        if question.context is not None and not 0 <= question.context < len(contexts):
            raise self._wrong(f"asks about context {question.context}, which there is not")
        held = None if question.context is None else contexts[question.context]
        now, policy = self._view.now_ns, self._policy
        inputs = dict(question.inputs)
        if question.server is not None:
            if not 0 <= question.server < len(self._states):
                raise self._wrong(f"asks about server {question.server}, which there is not")
            if inputs.setdefault("server", question.server) != question.server:
                raise self._wrong(f"asks about server {question.server} with another one in its inputs")
        try:
            text = canonical_json(inputs).decode()
        except FormatError as error:
            raise self._wrong(f"asks with inputs of {error.message}") from error
        with self._blamed():
            actions = tuple(islice(policy.choose(parse_canonical(text)), self._most() + 1))
        if len(actions) > self._most():
            raise self._wrong(f"answers for ever: {self._most():,} actions to one question")
        for action in actions:
            if not isinstance(action, Action):
                raise self._wrong(f"answers {action!r:.80}, which is no action")
        event = held.event if held is not None and question.event is None else question.event
        self._log.decision(now, policy.name, event, text, choice_text(actions))
        for action in actions:
            try:
                why_not = self._carry_out(question, held, action)
            except ImpossibleError as error:
                raise self._wrong(f"answers {choice_text([action])}: it {error}") from error
            if why_not is not None:
                told = {"action": choice_text([action]), "context": question.context, "reason": why_not}
                self._force(event, told, "not done")

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        """What a policy raises is told as its mistake."""
        try:
            yield
        except (SemtraceError, AssertionError):
            raise
        except (Exception, SystemExit) as error:  # leaving would end the command as if all were well
            raise self._wrong(f"fails: {type(error).__name__}: {error}") from error

    def _carry_out(self, question: Question, held: Held | None, action: Action) -> str | None:
        if question.server is not None:
            self._mechanism.reserve(question.server, action)
            return None
        if held is None:
            raise ImpossibleError("asks about nothing")
        return self._mechanism.act(held, question.event, action)

    def _wrong(self, what: str) -> ReplayError:
        return ReplayError(
            f"policy {self._policy.name} {what}, at {self._view.now_ns:,} ns",
            code="policy.wrong",
            requirement="ST-LIF-040",
            hint="the policy is at fault, not the trace",
        )

    # Where nothing would happen any more.

    def relieve(self, now_ns: int, server: int) -> bool:
        """A server has no step in flight and can start none although requests wait: whether something was changed that may help.

        In this order, one at a time: the policy is told, once an instant; the pin of the least recently used context is
        released; reserved blocks are given back; reuse is taken back; a call that a policy holds back is let go (ST-LIF-023).
        """
        if self._transfers.under_way(server):
            return False
        state, mechanism = self._states[server], self._mechanism
        if Pressure in self._policy.notices and self._pressed_ns.get(server) != now_ns:
            self._pressed_ns[server] = now_ns
            state.pressed()
            self._tell(Pressure(server, self._missing(server)))
            return True
        if any(not state.passed_over(event) for event in state.waiting()):
            if self.unpin_least(server):
                return True
            if state.reserved:
                inputs = {"reserved": state.reserved, "server": server}
                self._force(None, inputs, choice_text([Reserve(0)]))
                state.reserved = 0
                return True
            call = mechanism.first(server, mechanism.reusing[server])
            if call is not None:
                self._force(call.event, {"context": call.held.id, "server": server}, "no reuse")
                mechanism.no_reuse(call)
                return True
        call = mechanism.first(server, mechanism.put_off[server])
        if call is not None:
            self._force(call.event, {"context": call.held.id, "server": server}, choice_text([Unhold()]))
            mechanism.put(call, put_off=False)
            return True
        return False

    def unpin_least(self, server: int) -> bool:
        """Release the pin of the least recently used context of a server: whether there is one (ST-LIF-023)."""
        pinned = [
            held
            for held in self._contexts.pinned.values()
            if held.pin is not None and held.pin.server == server
        ]
        if not pinned:
            return False
        least = min(pinned, key=lambda held: (held.last_used_ns, held.id))
        self._force(least.event, {"context": least.id, "server": server}, choice_text([Release()]))
        self._mechanism.drop_pin(least, "forced")
        return True

    def _force(self, event: int | None, inputs: Mapping[str, object], choice: str) -> None:
        self._log.decision(self._view.now_ns, ENGINE, event, canonical_json(dict(inputs)).decode(), choice)
