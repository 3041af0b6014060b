"""The step engine: servers on a virtual clock, one scheduler step at a time. It is the oracle of the compiled engine.

It is a replay backend: the controller says what is released when, this says what that takes (spec, engine.md).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from semtrace.engine.form import Form
from semtrace.engine.lifecycle import Lifecycle
from semtrace.engine.lifecycle_log import LifecycleLog
from semtrace.engine.log import Log
from semtrace.engine.prepared import INSTANCE_FCFS, PLAS, SESSION_FCFS
from semtrace.engine.routing import Router
from semtrace.engine.scheduler import Request, Scheduler
from semtrace.engine.step_state import StepState
from semtrace.records.enums import EventOutcome, Phase, Tier
from semtrace.replay.backend import Report

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    import pyarrow as pa

    from semtrace.check.finding import Finding
    from semtrace.engine.log import Detail
    from semtrace.engine.prepared import Prepared
    from semtrace.engine.scheduler import Entry, Step
    from semtrace.policies.interface import Facts, Policy
    from semtrace.records.execution import Backend as BackendFacts
    from semtrace.records.trace import Trace
    from semtrace.replay.backend import Request as Released


@dataclass(slots=True)
class Life:
    """What the engine knows of one event from its submission to its end.

    Attributes:
        event: its row in the execution.
        instance: its instance.
        operation: its row in the trace.
        request: its request at the server.
        server: the server.
        submitted_ns: when it was submitted.
        scheduled_ns: start of the first step that it was in, None before.
        first_token_ns: end of the step that yielded its first token, None before.
        prefill: tokens computed for it in prefill, recomputation included.
        preempted_at: since when it is preempted, None while it is not.
        preempted_ns: how long it was preempted before that.
    """

    event: int
    instance: int
    operation: int
    request: Request
    server: int
    submitted_ns: int
    scheduled_ns: int | None = None
    first_token_ns: int | None = None
    prefill: int = 0
    preempted_at: int | None = None
    preempted_ns: int = 0


@dataclass(slots=True)
class InFlight:
    """A step that was scheduled and is not computed yet."""

    step: Step
    end_ns: int


@dataclass
class Server:
    """One server: its scheduler, and the steps in flight, at most one, or two with asynchronous scheduling.

    Attributes:
        index: its ordinal.
        scheduler: its scheduler.
        in_flight: steps scheduled and not computed yet, the oldest first.
        busy_until_ns: when the last of them ends.
        steps: steps scheduled so far.
        stalled: whether there was nothing to schedule beside the step in flight: it tries again when that ends.
    """

    index: int
    scheduler: Scheduler
    in_flight: deque[InFlight] = field(default_factory=deque)
    busy_until_ns: int = 0
    steps: int = 0
    stalled: bool = False

    @property
    def load(self) -> int:
        """Requests that wait or run here."""
        return len(self.scheduler.waiting) + len(self.scheduler.running)


class StepEngine:
    """All servers of a simulated engine.

    Args:
        prepared: the trace as the engine sees it, and its settings.
        detail: which detail tables to keep.
        policy: a lifecycle policy with what it knows of the engine; None if the scheduler alone decides.
        why: why it is this form that runs.
    """

    modes = frozenset({"length_locked"})

    def __init__(
        self,
        prepared: Prepared,
        detail: Detail,
        policy: tuple[Policy, Facts] | None = None,
        *,
        why: str = "it was asked for",
    ) -> None:
        self._prepared = prepared
        self._form = Form.step(why)
        settings = prepared.settings
        self._servers = [
            Server(index, Scheduler(settings.scheduler, settings.blocks, settings.block_size))
            for index in range(settings.servers)
        ]
        self._depth = 2 if settings.scheduler.asynchronous else 1
        self._router = Router(settings.routing, self._servers)
        self._arrived: list[Released] = []
        self._refused: list[int] = []
        self._lives: dict[int, Life] = {}
        self._requests: dict[int, Request] = {}
        self._log = Log(detail)
        self._history = LifecycleLog(detail, prepared.document.block_bytes)
        self._attained = [0] * len(prepared.group)
        self._first_ns: dict[Hashable, int] = {}
        self._taken = 0
        self._lifecycle: Lifecycle | None = None
        if policy is not None:
            states = [StepState(server.scheduler, self._requests) for server in self._servers]
            self._lifecycle = Lifecycle(prepared, *policy, states, self._history)

    def facts(self) -> BackendFacts:
        """Name, and the whole engine document."""
        return self._prepared.facts()

    def environment(self) -> Mapping[str, Any]:
        """Which form of the engine ran, and why."""
        return self._form.environment()

    def refuse(self, trace: Trace, operations: Iterable[int]) -> Iterable[Finding]:
        """Operations that no server could ever run."""
        del trace
        return self._prepared.refuse(operations)

    def submit(self, now_ns: int, requests: Sequence[Released]) -> None:
        """Take requests; those that no server could ever run end at once."""
        for released in requests:
            if self._prepared.fits(released.operation):
                self._arrived.append(released)
            else:
                self._refused.append(released.event)
                if self._lifecycle is not None:
                    self._lifecycle.refused(now_ns, released)

    def observe(self, now_ns: int, started: Sequence[Released], ended: Sequence[Released]) -> None:
        """Operations that do not run here were started, and have ended, in this instant."""
        if self._lifecycle is not None:
            self._lifecycle.observe(now_ns, started, ended)

    def start(self, now_ns: int) -> None:
        """Route what arrived in this instant, let the policy act, then start every server that could have more in flight (ST-ENG-013)."""
        self._arrived.sort(key=lambda released: (released.instance, released.operation))
        for released in self._arrived:
            self._take(now_ns, released)
        self._arrived.clear()
        lifecycle = self._lifecycle
        if lifecycle is not None:
            lifecycle.phase(now_ns)
        for server in self._servers:
            self._fill(server, now_ns)
            if lifecycle is not None:
                while (
                    not server.in_flight
                    and server.scheduler.waiting
                    and lifecycle.relieve(now_ns, server.index)
                ):
                    self._fill(server, now_ns)

    def next_ns(self) -> int | None:
        """When the next step ends, or the policy's next instant is."""
        times = [server.in_flight[0].end_ns for server in self._servers if server.in_flight]
        alarm = None if self._lifecycle is None else self._lifecycle.next_ns()
        return min(times if alarm is None else [*times, alarm], default=None)

    def reports(self, now_ns: int) -> list[Report]:
        """First tokens and ends of the steps that end now, and what was refused."""
        found = [
            Report(event, first_token=False, columns={"attempts": 1}, outcome=EventOutcome.REFUSED)
            for event in self._refused
        ]
        self._refused.clear()
        for server in self._servers:
            while server.in_flight and server.in_flight[0].end_ns <= now_ns:
                self._finish(server, server.in_flight.popleft(), found)
        return found

    def detail(self) -> dict[str, pa.Table]:
        """The detail tables."""
        return {**self._log.tables(), **self._history.tables()}

    # One request, one step.

    def _take(self, now_ns: int, released: Released) -> None:
        prepared = self._prepared
        request = Request(
            released.event,
            prepared.prompt_tokens(released.operation),
            max(prepared.output_tokens(released.operation), 1),
            prepared.keys(released.instance, released.operation),
            self._priority(now_ns, released),
            self._taken,
        )
        self._taken += 1
        server = self._router.choose(prepared.session(released.instance, released.operation), request)
        server.scheduler.add(request)
        if self._lifecycle is not None:
            self._requests[released.event] = request
            request.critical = self._lifecycle.submitted(now_ns, released, server.index)
        self._lives[released.event] = Life(
            released.event, released.instance, released.operation, request, server.index, now_ns
        )

    def _priority(self, now_ns: int, released: Released) -> int:
        """The priority of a request that is routed now (ST-ENG-021 to ST-ENG-025); smaller is served first."""
        prepared = self._prepared
        if prepared.rule == PLAS:
            return self._attained[released.instance]
        if prepared.rule == INSTANCE_FCFS:
            return self._first_ns.setdefault(released.instance, now_ns)
        if prepared.rule == SESSION_FCFS:
            return self._first_ns.setdefault(prepared.session(released.instance, released.operation), now_ns)
        return prepared.fixed_priority(released.operation)

    def _fill(self, server: Server, now_ns: int) -> None:
        """Start steps until there are as many in flight as may be, or there is nothing to schedule."""
        while len(server.in_flight) < self._depth and not server.stalled and self._begin(server, now_ns):
            pass

    def _begin(self, server: Server, now_ns: int) -> bool:
        """Schedule a step: whether there is one (ST-ENG-014)."""
        step = server.scheduler.schedule()
        self._note_moves(server, now_ns)
        for request in step.preempted:
            self._lives[request.id].preempted_at = now_ns
        if not step.entries:
            if step.preempted and not server.scheduler.running and self._lifecycle is not None:
                # Alone, and short of what pins hold: it would be so for ever.
                self._lifecycle.unpin_least(server.index)
            server.stalled = bool(server.in_flight)
            # With nothing in flight either, the preempted one can be admitted at once.
            return bool(step.preempted) and not server.in_flight
        start = max(now_ns, server.busy_until_ns)
        server.busy_until_ns = start + self._prepared.step_ns(step) + self._admit(step.entries)
        server.in_flight.append(InFlight(step, server.busy_until_ns))
        for entry in step.entries:
            life = self._lives[entry.request.id]
            if life.scheduled_ns is None:
                life.scheduled_ns = now_ns
            if life.preempted_at is not None:
                life.preempted_ns += now_ns - life.preempted_at
                life.preempted_at = None
            if entry.prefill:
                life.prefill += entry.tokens
            self._log.entry(
                life.event,
                server.steps,
                entry.computed,
                entry.tokens,
                Phase.PREFILL if entry.prefill else Phase.DECODE,
            )
        self._log.step(
            server.index,
            now_ns,
            server.busy_until_ns,
            sum(entry.tokens for entry in step.entries),
            len(step.entries),
            server.scheduler.pool.free_count,
        )
        server.steps += 1
        return True

    def _finish(self, server: Server, computed: InFlight, found: list[Report]) -> None:
        """A step is computed: first tokens, and what ended with it."""
        server.stalled = False
        ended = server.scheduler.update(computed.step)
        self._note_moves(server, computed.end_ns)
        ends = {request.id for request in ended}
        for entry in computed.step.entries:
            life = self._lives[entry.request.id]
            if entry.yields and entry.request.outputs == 1 and self._prepared.output_tokens(life.operation):
                life.first_token_ns = computed.end_ns
                if life.event not in ends:
                    found.append(Report(life.event, first_token=True))
        for request in ended:
            life = self._lives.pop(request.id)
            found.append(Report(life.event, first_token=False, columns=self._columns(life, computed.end_ns)))

    def _admit(self, entries: Sequence[Entry]) -> int:
        """Tell the policy's driver who was admitted: the time that this adds to the step, in ns."""
        if self._lifecycle is None:
            return 0
        return sum(
            self._lifecycle.admitted(entry.request.id, entry.hits, entry.blocks)
            for entry in entries
            if entry.kind != "running"
        )

    def _note_moves(self, server: Server, now_ns: int) -> None:
        for move in server.scheduler.moves:
            self._history.block_rows(
                now_ns,
                server.index,
                Tier.DEVICE,
                move.action,
                move.request.id,
                move.blocks,
                position=move.position,
            )
        server.scheduler.moves.clear()

    def _columns(self, life: Life, now_ns: int) -> dict[str, int | None]:
        """What the events table has of an event that ended (ST-ENG-060)."""
        request = life.request
        if life.preempted_at is not None:  # its last token was in flight when it was preempted
            life.preempted_ns += now_ns - life.preempted_at
        if life.scheduled_ns is not None:
            self._attained[life.instance] += now_ns - life.scheduled_ns - life.preempted_ns
        loaded = reused = None
        cached = request.cached
        if self._lifecycle is not None:
            del self._requests[life.event]
            loaded, reused = self._lifecycle.ended(now_ns, life.event, request.exact)
            cached = None if cached is None else cached - loaded
        return {
            "scheduled_ns": life.scheduled_ns,
            "first_token_ns": life.first_token_ns,
            "prompt_tokens": request.prompt_tokens,
            "cached_tokens": cached,
            "loaded_tokens": loaded,
            "reused_tokens": reused,
            "computed_prompt_tokens": life.prefill,
            "output_tokens": self._prepared.recorded_output(life.operation),
            "preemptions": request.preemptions,
            "preempted_ns": life.preempted_ns,
            "attempts": 1,
            "server": life.server,
        }
