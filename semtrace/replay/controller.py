"""The controller: it decides when each operation is released, and nothing else does (spec, release.md).

    ready(v)   = max over (u→v) of trigger(u) + lag         the instance's arrival, if v waits for nothing
    release(v) = ready(v) + external delay(v)

These are ST-REL-005 to ST-REL-007; a virtual clock submits at exactly the release (ST-REL-008). At one instant everything settles, chains of zero duration included, before the backend starts work: so the
outcome does not depend on the order in which things of one instant are found.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from semtrace.records.columns import NULL
from semtrace.records.enums import EventOutcome, OperationKind, OperationStatus, Trigger
from semtrace.replay.backend import Ran, Request

if TYPE_CHECKING:
    from collections.abc import Callable

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


class Clock(Protocol):
    """What time it is, and how to get to a later time."""

    def now_ns(self) -> int:
        """The time since the run's origin, in ns."""
        ...

    def wait_until(self, time_ns: int) -> None:
        """Come back when it is this time."""
        ...


class VirtualClock:
    """A clock that jumps to where it is told to."""

    def __init__(self) -> None:
        self._now = 0

    def now_ns(self) -> int:
        """The time that it was last set to."""
        return self._now

    def wait_until(self, time_ns: int) -> None:
        """Jump to the time."""
        self._now = max(self._now, time_ns)


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
    ) -> None:
        self._backend = backend
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
        # A backend that looks at what it does not run is told of it, instant by instant.
        self._observe = getattr(backend, "observe", None)
        self._seen_started: list[Request] = []
        self._seen_ended: list[Request] = []

    def run(self) -> None:
        """Run all instances to their end, or until nothing can happen any more."""
        order = self._instances.sending_order.tolist()
        if self._instances.users:
            self._not_sent.extend(order[self._instances.users :])
            for instance in order[: self._instances.users]:
                self.arrival_ns[instance] = 0
        for instance, arrival in enumerate(self.arrival_ns):
            if arrival != NULL:
                heapq.heappush(self._timers, (arrival, _ARRIVAL, instance))
        while True:
            coming = self._backend.next_ns()
            if self._timers and (coming is None or self._timers[0][0] < coming):
                coming = self._timers[0][0]
            if coming is None:
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
        return Ran(
            self.instance, self.operation, self.arrival_ns, self.columns, self.outcome, self._backend.detail()
        )

    def _settle(self, now: int) -> None:
        """Ends, arrivals and releases of this instant, until there are no more (ST-REL-016)."""
        timers = self._timers
        while True:
            reports = self._backend.reports(now)
            if not reports and not (timers and timers[0][0] <= now):
                return
            if len(reports) > 1:
                reports.sort(key=lambda each: (each.event, not each.first_token))
            for report in reports:
                if report.first_token:
                    self._first_token(report.event, now)
                else:
                    for name, value in (report.columns or {}).items():
                        self.columns[name][report.event] = NULL if value is None else value
                    self._end(report.event, now, report.outcome)
            released: list[int] = []
            while timers and timers[0][0] <= now:
                _, what, which = heapq.heappop(timers)
                if what == _END:
                    if self._observe is not None:
                        self._seen_ended.append(Request(which, self.instance[which], self.operation[which]))
                    self._end(which, now)
                elif what == _ARRIVAL:
                    self._arrive(which, now)
                else:
                    released.append(which)
            if released:
                self._release(released, now)

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
            self.columns["submitted_ns"][event] = now
            if self._on_backend[operation]:
                requests.append(Request(event, self.instance[event], operation))
            else:
                for name, recorded in self._recorded_tokens.items():
                    self.columns[name][event] = recorded[operation]
                if self._observe is not None:
                    self._seen_started.append(Request(event, self.instance[event], operation))
                heapq.heappush(self._timers, (now + self._duration[operation], _END, event))
            self._fire(event, Trigger.START, now)
        if requests:
            self._backend.submit(now, requests)

    def _first_token(self, event: int, now: int) -> None:
        if event not in self._token_came:
            self._token_came.add(event)
            self._fire(event, Trigger.FIRST_TOKEN, now)

    def _end(self, event: int, now: int, outcome: EventOutcome | None = None) -> None:
        operation, instance = self.operation[event], self.instance[event]
        self.columns["finished_ns"][event] = now
        self.outcome[event] = self._recorded_outcome[operation] if outcome is None else outcome
        self._first_token(event, now)  # a trigger that has not come comes with the end (ST-REL-004)
        self._token_came.discard(event)
        self._fire(event, Trigger.FINISH, now)
        for group in self._followers.groups.get(operation, ()):
            key = (instance, group)
            missing = self._missing_of_group.get(key, self._followers.waits[group]) - 1
            self._missing_of_group[key] = missing
            if missing == 0:
                distance = self._first_event[instance] - self._starts[self._task[instance]]
                for held in self._followers.holds[group]:
                    self._satisfy(held + distance, now)
        self._left[instance] -= 1
        answer = self._answer[self._task[instance]]
        if operation == answer or (self._left[instance] == 0 and answer == NULL):
            self._answer_given(instance, now)
        self._done += 1
        if self._progress is not None and self._done % 1024 == 0:
            self._progress(self._done, len(self.outcome))

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
