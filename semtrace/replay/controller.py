"""The controller: it decides when each operation is released, and nothing else does (spec, release.md).

    ready(v)   = max over (u→v) of trigger(u) + lag         the instance's arrival, if v waits for nothing
    release(v) = ready(v) + external delay(v)

These are ST-REL-005 to ST-REL-007; a virtual clock submits at exactly the release (ST-REL-008). At one instant everything
settles, chains of zero duration included, before the backend starts work: so the outcome does not depend on the order in
which things of one instant are found.

On a wall clock things are taken as soon as they are seen, each at the instant at which it happened; only a submission is at
the instant at which it was made, which is the release or later (ST-LIV-002, ST-LIV-003).
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import numpy as np

from semtrace.records.columns import NULL
from semtrace.records.enums import EventOutcome, OperationKind, OperationStatus, Trigger
from semtrace.replay.backend import LiveBackend, Ran, RealBackend, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from semtrace.graph.resolve import Constraints
    from semtrace.records.trace import Trace
    from semtrace.replay.arrivals import Instances
    from semtrace.replay.backend import Backend

_OUTCOME: Final = {
    OperationStatus.OK: EventOutcome.OK,
    OperationStatus.ERROR: EventOutcome.ERROR,
    OperationStatus.CANCELLED: EventOutcome.CANCELLED,
    OperationStatus.TIMEOUT: EventOutcome.TIMEOUT,
}

_END, _ARRIVAL, _RELEASE = 0, 1, 2
"""What a timer stands for, in the order in which things of one instant are taken."""

TIMES: Final = ("ready_ns", "released_ns", "submitted_ns", "scheduled_ns", "first_token_ns", "finished_ns")
COUNTS: Final = (
    "prompt_tokens", "cached_tokens", "computed_prompt_tokens", "output_tokens", "preemptions", "attempts", "server",
    "preempted_ns", "loaded_tokens", "reused_tokens",
)  # fmt: skip


@dataclass(frozen=True)
class Rules:
    """What a run does beyond releasing: settings of a scenario for backends in the world.

    Attributes:
        concurrency: the most model operations in flight; None for no limit.
        on_failure: what becomes of the operations that wait for one that failed, and did not when it was recorded: they
            go on (`proceed`), they are not run (`skip`), or nothing more of their instance is run (`fail`).
    """

    concurrency: int | None = None
    on_failure: Literal["proceed", "skip", "fail"] = "proceed"


RULES: Final = Rules()
"""Those of a virtual clock."""


class Clock(Protocol):
    """What time it is, and how to get to a later time."""

    @property
    def stopping(self) -> bool:
        """Whether the run is to end now."""
        ...

    @property
    def origin_unix_ns(self) -> int | None:
        """Unix time of the run's origin; None on a virtual clock."""
        ...

    def now_ns(self) -> int:
        """The time since the run's origin, in ns."""
        ...

    def wait_until(self, time_ns: int) -> None:
        """Come back when it is this time; on a wall clock also before, when the backend has something to report."""
        ...

    def stop(self) -> None:
        """End the run: come back at once, now and from now on. A signal handler may call it."""
        ...


class VirtualClock:
    """A clock that jumps to where it is told to."""

    origin_unix_ns: int | None = None

    def __init__(self) -> None:
        self.stopping = False
        self._now = 0

    def now_ns(self) -> int:
        """The time that it was last set to."""
        return self._now

    def wait_until(self, time_ns: int) -> None:
        """Jump to the time."""
        self._now = max(self._now, time_ns)

    def stop(self) -> None:
        """End the run."""
        self.stopping = True


def runs_on_backend(trace: Trace) -> NDArray[np.bool_]:
    """Which operations go to the backend: model operations, but those that failed in the original (ST-REL-010)."""
    kind, status = trace.operations.ints("kind"), trace.operations.ints("status")
    model = (kind == OperationKind.LLM) | (kind == OperationKind.EMBED)
    done = (status == OperationStatus.OK) | (status == OperationStatus.CANCELLED)
    return np.asarray(model & done)


class Controller:
    """Releases the operations of all instances under a plan, on a clock and a backend.

    After `run`, the columns hold what happened: for every event its times, counts and outcome; `NULL` is unknown.
    """

    def __init__(
        self,
        trace: Trace,
        constraints: Constraints,
        instances: Instances,
        backend: Backend,
        clock: Clock,
        progress: Callable[[int, int], None] | None = None,
        rules: Rules = RULES,
    ) -> None:
        self._backend = backend
        self._rules = rules
        self._every = 1024 if clock.origin_unix_ns is None else 1
        self._clock = clock
        self._progress = progress
        self._instances = instances
        starts = trace.offsets("operations")
        sizes = np.diff(starts)[instances.task]
        first_event = np.concatenate([[0], np.cumsum(sizes)])
        count = int(first_event[-1])
        # Everything that is looked at one by one is a list: indexing an array costs several times as much.
        self._first_event: list[int] = first_event.tolist()
        self._task: list[int] = instances.task.tolist()
        self._starts: list[int] = starts.tolist()
        instance = np.repeat(np.arange(len(sizes)), sizes)
        operation = np.arange(count) + (starts[instances.task] - first_event[:-1])[instance]
        self.instance: list[int] = instance.tolist()
        self.operation: list[int] = operation.tolist()
        self.columns: dict[str, list[int]] = {name: [NULL] * count for name in (*TIMES, *COUNTS)}
        self.outcome: list[int] = [EventOutcome.UNFINISHED] * count
        self.arrival_ns: list[int] = instances.arrival_ns.tolist()
        self._on_backend: list[bool] = runs_on_backend(trace).tolist()
        self._delay: list[int] = trace.operations.ints("external_delay_ns").tolist()
        self._duration: list[int] = trace.operations.ints("duration_ns").tolist()
        self._recorded_outcome = [
            _OUTCOME[OperationStatus(status)] for status in trace.operations.ints("status").tolist()
        ]
        self._recorded_tokens: dict[str, list[int]] = {
            name: trace.operations.ints(name).tolist() for name in ("prompt_tokens", "output_tokens")
        }
        self._answer: list[int] = trace.tasks.ints("answer_operation").tolist()
        self._followers = _Followers(constraints)
        self._missing: list[int] = constraints.in_degree[operation].tolist()
        self._missing_of_group: dict[tuple[int, int], int] = {}
        self._ready: list[int] = [NULL] * count
        self._token_came: set[int] = set()
        self._left: list[int] = sizes.tolist()
        self._timers: list[tuple[int, int, int]] = []  # (time, what, instance of an arrival, else event)
        self._not_sent: deque[int] = deque()
        self._answered: set[int] = set()
        self._done = 0
        # What is in flight on the backend, and what was released and waits for room there (ST-LIV-010).
        self._in_flight: set[int] = set()
        self._no_room: deque[int] = deque()
        # A backend that looks at what it does not run is told of it, instant by instant.
        self._observe = getattr(backend, "observe", None)
        self._seen_started: list[Request] = []
        self._seen_ended: list[Request] = []

    def run(self) -> None:
        """Run all instances to their end, or until nothing can happen any more."""
        order = self._instances.sending_order.tolist()
        if self._instances.users:
            self._not_sent.extend(order[self._instances.users :])
        for instance, arrival in enumerate(self.arrival_ns):
            if arrival != NULL:
                heapq.heappush(self._timers, (arrival, _ARRIVAL, instance))
        while True:
            coming = self._backend.next_ns()
            if self._timers and (coming is None or self._timers[0][0] < coming):
                coming = self._timers[0][0]
            if coming is None or self._clock.stopping:
                return
            self._clock.wait_until(coming)
            now = self._clock.now_ns()
            self._settle(now)
            if self._observe is not None and (self._seen_started or self._seen_ended):
                self._observe(now, self._seen_started, self._seen_ended)
                self._seen_started, self._seen_ended = [], []
            self._backend.start(now)

    def ran(self) -> Ran:
        """What happened, after `run`."""
        told: dict[str, Any] = {}
        if isinstance(self._backend, RealBackend):
            output_ids, content = self._backend.outputs()
            told = {"request_id": self._backend.request_ids(), "output_ids": output_ids, "content": content}
        detail = self._backend.detail()
        return Ran(self.instance, self.operation, self.arrival_ns, self.columns, self.outcome, detail, **told)

    def _settle(self, now: int) -> None:
        """Ends, arrivals and releases of this instant, until there are no more (ST-REL-016)."""
        timers = self._timers
        while True:
            reports = self._backend.reports(now)
            if not reports and not (timers and timers[0][0] <= now):
                return
            if len(reports) > 1:
                reports.sort(key=lambda each: (not each.submitted, each.event, not each.first_token))
            for report in reports:
                at = now if report.at_ns is None else report.at_ns
                if report.submitted:
                    self._submitted(report.event, at)
                elif report.first_token:
                    self._first_token(report.event, at)
                else:
                    for name, value in (report.columns or {}).items():
                        if name not in self.columns:  # one that only backends in the world tell
                            self.columns[name] = [NULL] * len(self.outcome)
                        self.columns[name][report.event] = NULL if value is None else value
                    self._in_flight.discard(report.event)
                    self._end(report.event, at, report.outcome)
            released: list[int] = []
            coming = 0  # of those released, the model operations
            while self._no_room and self._room(coming):
                event = self._no_room.popleft()
                if self.outcome[event] == EventOutcome.UNFINISHED:
                    released.append(event)
                    coming += 1
            while timers and timers[0][0] <= now:
                time, what, which = heapq.heappop(timers)
                if what == _ARRIVAL:
                    self._arrive(which, time)
                elif self.outcome[which] != EventOutcome.UNFINISHED:
                    continue  # skipped or called off meanwhile
                elif what == _END:
                    if self._observe is not None:
                        self._seen_ended.append(Request(which, self.instance[which], self.operation[which]))
                    self._end(which, time)
                elif not self._on_backend[self.operation[which]]:
                    released.append(which)
                elif self._room(coming):
                    released.append(which)
                    coming += 1
                else:
                    self._no_room.append(which)
            if released:
                self._release(released, now)

    def _room(self, coming: int) -> bool:
        """Whether the backend may have one more model operation than is in flight and coming (ST-LIV-010)."""
        most = self._rules.concurrency
        return most is None or len(self._in_flight) + coming < most

    def _arrive(self, instance: int, now: int) -> None:
        first, last = self._first_event[instance], self._first_event[instance + 1]
        for event in range(first, last):
            if self._missing[event] == 0:
                self._ready[event] = now
                self._is_ready(event)
        if first == last:
            self._answer_given(instance, now)

    def _is_ready(self, event: int) -> None:
        ready = self._ready[event]
        release = ready + self._delay[self.operation[event]]
        self.columns["ready_ns"][event] = ready
        self.columns["released_ns"][event] = release
        heapq.heappush(self._timers, (release, _RELEASE, event))

    def _release(self, events: list[int], now: int) -> None:
        requests: list[Request] = []
        for event in sorted(events):
            operation = self.operation[event]
            if self._on_backend[operation]:
                requests.append(Request(event, self.instance[event], operation))
                continue
            started = self._clock.now_ns()
            self.columns["submitted_ns"][event] = started
            for name, recorded in self._recorded_tokens.items():
                self.columns[name][event] = recorded[operation]
            if self._observe is not None:
                self._seen_started.append(Request(event, self.instance[event], operation))
            heapq.heappush(self._timers, (started + self._duration[operation], _END, event))
            self._fire(event, Trigger.START, started)
        if not requests:
            return
        self._in_flight.update(request.event for request in requests)
        sent = self._backend.submit(now, requests) or [now] * len(requests)
        for request, time in zip(requests, sent, strict=True):
            if time is not None:
                self._submitted(request.event, time)

    def _submitted(self, event: int, time: int) -> None:
        self.columns["submitted_ns"][event] = time
        self._fire(event, Trigger.START, time)

    def _first_token(self, event: int, now: int) -> None:
        if event not in self._token_came:
            self._token_came.add(event)
            self._fire(event, Trigger.FIRST_TOKEN, now)

    def _end(self, event: int, now: int, outcome: EventOutcome | None = None) -> None:
        operation, instance = self.operation[event], self.instance[event]
        recorded = self._recorded_outcome[operation]
        self.columns["finished_ns"][event] = now
        self.outcome[event] = recorded if outcome is None else outcome
        self._in_flight.discard(event)
        if self.outcome[event] != recorded and self._rules.on_failure != "proceed":
            self._token_came.discard(event)
            self._account(event, now)
            self._give_up(event, now)
            return
        self._first_token(event, now)  # a trigger that has not come comes with the end (ST-REL-004)
        self._token_came.discard(event)
        self._fire(event, Trigger.FINISH, now)
        for group in self._followers.groups.get(operation, ()):
            key = (instance, group)
            missing = self._missing_of_group.get(key, self._followers.waits[group]) - 1
            self._missing_of_group[key] = missing
            if missing == 0:
                for held in self._followers.holds[group]:
                    self._satisfy(self._of_instance(held, instance), now)
        self._account(event, now)

    def _account(self, event: int, now: int) -> None:
        """Count an operation that has come to its terminal state."""
        operation, instance = self.operation[event], self.instance[event]
        self._left[instance] -= 1
        answer = self._answer[self._task[instance]]
        if operation == answer or (self._left[instance] == 0 and answer == NULL):
            self._answer_given(instance, now)
        self._done += 1
        if self._progress is not None and self._done % self._every == 0:
            self._progress(self._done, len(self.outcome))

    def _of_instance(self, operation: int, instance: int) -> int:
        """The event of an operation in an instance of its task."""
        return operation - self._starts[self._task[instance]] + self._first_event[instance]

    def _give_up(self, event: int, now: int) -> None:
        """After a failure: what waits for it is skipped, or its whole instance is called off (ST-LIV-012)."""
        instance = self.instance[event]
        if self._rules.on_failure == "fail":
            whole = range(self._first_event[instance], self._first_event[instance + 1])
            open_events = [each for each in whole if self.outcome[each] == EventOutcome.UNFINISHED]
            running = [each for each in open_events if each in self._in_flight]
            if running:
                self._live.cancel(running)
            for each in open_events:
                if self.columns["submitted_ns"][each] == NULL:
                    self._skip(each, now)
                else:
                    self.outcome[each] = EventOutcome.CANCELLED
                    self.columns["finished_ns"][each] = now
                    self._in_flight.discard(each)
                    self._account(each, now)
            return
        waiting, running = [event], []
        while waiting:
            operation = self.operation[waiting.pop()]
            for operation_after in self._followers.after(operation):
                after = self._of_instance(operation_after, instance)
                if (
                    self.outcome[after] == EventOutcome.UNFINISHED
                    and self.columns["submitted_ns"][after] == NULL
                ):
                    if after in self._in_flight:  # it waits for a connection
                        running.append(after)
                    self._skip(after, now)
                    waiting.append(after)
        if running:
            self._live.cancel(running)

    @property
    def _live(self) -> LiveBackend:
        if not isinstance(self._backend, LiveBackend):
            raise TypeError("rules are for backends in the world")
        return self._backend

    def _skip(self, event: int, now: int) -> None:
        self.outcome[event] = EventOutcome.SKIPPED
        self._in_flight.discard(event)
        self._account(event, now)

    def _fire(self, event: int, trigger: Trigger, now: int) -> None:
        for distance, lag in self._followers.edges[trigger].get(self.operation[event], ()):
            self._satisfy(event + distance, now + lag)

    def _satisfy(self, event: int, time: int) -> None:
        self._ready[event] = max(self._ready[event], time)
        self._missing[event] -= 1
        if self._missing[event] == 0:
            self._is_ready(event)

    def _answer_given(self, instance: int, now: int) -> None:
        """The user who sent the instance sends the next one (ST-SCN-006); who of several does makes no difference."""
        if instance in self._answered:
            return
        self._answered.add(instance)
        if self._not_sent:
            following = self._not_sent.popleft()
            arrival = now + self._instances.think_ns
            self.arrival_ns[following] = arrival
            heapq.heappush(self._timers, (arrival, _ARRIVAL, following))


class _Followers:
    """What waits for each operation.

    Attributes:
        edges: by trigger and operation, (distance to the target's row, lag in ns) of the edges out of it.
        groups: by operation, the groups that wait for it.
        waits: for each group, how many operations it waits for.
        holds: for each group, the operations that it holds.
    """

    def __init__(self, constraints: Constraints) -> None:
        self.edges: dict[int, dict[int, list[tuple[int, int]]]] = {trigger: {} for trigger in Trigger}
        rows = zip(
            constraints.trigger.tolist(),
            constraints.source.tolist(),
            (constraints.target - constraints.source).tolist(),
            constraints.lag_ns.tolist(),
            strict=True,
        )
        for trigger, source, distance, lag in rows:
            self.edges[trigger].setdefault(source, []).append((distance, lag))
        self.waits = [len(wait) for wait in constraints.waits]
        self.holds = [hold.tolist() for hold in constraints.holds]
        self.groups: dict[int, list[int]] = {}
        for group, wait in enumerate(constraints.waits):
            for operation in wait.tolist():
                self.groups.setdefault(operation, []).append(group)

    def after(self, operation: int) -> Iterator[int]:
        """The operations that wait for it, one that waits in several ways several times."""
        for edges in self.edges.values():
            for distance, _ in edges.get(operation, ()):
                yield operation + distance
        for group in self.groups.get(operation, ()):
            yield from self.holds[group]
