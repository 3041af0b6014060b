"""The controller: it decides when each operation is released, and nothing else does (spec, release.md).

    ready(v)   = max over (u→v) of trigger(u) + lag         the instance's arrival, if v waits for nothing
    release(v) = ready(v) + external delay(v)

At one instant everything settles, chains of zero duration included, before the backend starts work: so the
outcome does not depend on the order in which things of one instant are found.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from semtrace.records.columns import NULL
from semtrace.records.enums import EventOutcome, OperationKind, OperationStatus, Trigger
from semtrace.replay.backend import Request

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

_ARRIVAL, _RELEASE, _END = 0, 1, 2

TIMES: Final = ("ready_ns", "released_ns", "submitted_ns", "scheduled_ns", "first_token_ns", "finished_ns")
COUNTS: Final = (
    "prompt_tokens", "cached_tokens", "computed_prompt_tokens", "output_tokens", "preemptions", "attempts", "server",
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

    After `run`, `columns` holds what happened: for every event its times, counts and outcome; `NULL` is unknown.
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
        self.first_event: NDArray[np.int64] = np.concatenate([[0], np.cumsum(sizes)])
        count = int(self.first_event[-1])
        self.instance = np.repeat(np.arange(len(sizes)), sizes)
        self.operation = (
            np.arange(count)
            - np.repeat(self.first_event[:-1], sizes)
            + np.repeat(starts[instances.task], sizes)
        )
        self.columns: dict[str, NDArray[np.int64]] = {
            name: np.full(count, NULL, dtype=np.int64) for name in (*TIMES, *COUNTS)
        }
        self.outcome = np.full(count, EventOutcome.UNFINISHED, dtype=np.int64)
        self._on_backend = runs_on_backend(trace).tolist()
        self._delay = trace.operations.ints("external_delay_ns").tolist()
        self._duration = trace.operations.ints("duration_ns").tolist()
        self._status = [
            int(_OUTCOME[OperationStatus(status)]) for status in trace.operations.ints("status").tolist()
        ]
        recorded = {name: trace.operations.ints(name) for name in ("prompt_tokens", "output_tokens")}
        self._recorded = {name: column.tolist() for name, column in recorded.items()}
        self._out = _Followers(constraints)
        self._missing: list[int] = constraints.in_degree[self.operation].tolist()
        self._hub_missing: dict[tuple[int, int], int] = {}
        self._ready: list[int] = [NULL] * count
        self._token_came: set[int] = set()
        self._left = np.asarray(sizes).tolist()
        self._answer = trace.tasks.ints("answer_operation").tolist()
        self._starts = starts.tolist()
        self._timers: list[tuple[int, int, int, int]] = []  # (time, what, instance, event or 0)
        self._waiting_to_send: deque[int] = deque()
        self.arrival_ns: list[int] = instances.arrival_ns.tolist()
        self._answered: set[int] = set()
        self._done = 0

    def run(self) -> None:
        """Run all instances to their end, or until nothing can happen any more."""
        order = self._instances.sending_order.tolist()
        if self._instances.users:
            self._waiting_to_send.extend(order[self._instances.users :])
            for instance in order[: self._instances.users]:
                self.arrival_ns[instance] = 0
        for instance, arrival in enumerate(self.arrival_ns):
            if arrival != NULL:
                heapq.heappush(self._timers, (arrival, _ARRIVAL, instance, 0))
        while True:
            coming = [
                time
                for time in (self._timers[0][0] if self._timers else None, self._backend.next_ns())
                if time is not None
            ]
            if not coming:
                return
            self._clock.wait_until(min(coming))
            now = self._clock.now_ns()
            self._settle(now)
            self._backend.start(now)

    def _settle(self, now: int) -> None:
        """Finishes, arrivals and releases of this instant, until there are no more."""
        while True:
            reports = self._backend.reports(now)
            due: list[tuple[int, int, int, int]] = []
            while self._timers and self._timers[0][0] <= now:
                due.append(heapq.heappop(self._timers))
            if not reports and not due:
                return
            for report in sorted(reports, key=lambda each: (each.event, not each.first_token)):
                if report.first_token:
                    self._first_token(report.event, now)
                else:
                    for name, value in (report.columns or {}).items():
                        self.columns[name][report.event] = NULL if value is None else value
                    self._end(report.event, now)
            for _, what, _, event in due:
                if what == _END:
                    self._end(event, now)
            for _, what, instance, _ in due:
                if what == _ARRIVAL:
                    self._arrive(instance, now)
            self._release([event for _, what, _, event in due if what == _RELEASE], now)

    def _arrive(self, instance: int, now: int) -> None:
        first, last = int(self.first_event[instance]), int(self.first_event[instance + 1])
        for event in range(first, last):
            if self._missing[event] == 0:
                self._ready[event] = now
                self._set_timer(event)
        if first == last:
            self._answer_given(instance, now)

    def _set_timer(self, event: int) -> None:
        ready = self._ready[event]
        release = ready + self._delay[self.operation[event]]
        self.columns["ready_ns"][event] = ready
        self.columns["released_ns"][event] = release
        heapq.heappush(self._timers, (release, _RELEASE, int(self.instance[event]), event))

    def _release(self, events: list[int], now: int) -> None:
        requests: list[Request] = []
        for event in events:
            operation = int(self.operation[event])
            self.columns["submitted_ns"][event] = now
            if self._on_backend[operation]:
                requests.append(Request(event, int(self.instance[event]), operation))
            else:
                for name, recorded in self._recorded.items():
                    self.columns[name][event] = recorded[operation]
                end = now + self._duration[operation]
                heapq.heappush(self._timers, (end, _END, int(self.instance[event]), event))
            self._fire(event, Trigger.START, now)
        if requests:
            self._backend.submit(now, requests)

    def _first_token(self, event: int, now: int) -> None:
        if event not in self._token_came:
            self._token_came.add(event)
            self._fire(event, Trigger.FIRST_TOKEN, now)

    def _end(self, event: int, now: int) -> None:
        operation = int(self.operation[event])
        self.columns["finished_ns"][event] = now
        self.outcome[event] = self._status[operation]
        self._first_token(event, now)
        self._token_came.discard(event)
        self._fire(event, Trigger.FINISH, now)
        instance = int(self.instance[event])
        first = int(self.first_event[instance])
        for group in self._out.groups.get(operation, ()):
            key = (instance, group)
            left = self._hub_missing.get(key, self._out.waits[group]) - 1
            self._hub_missing[key] = left
            if left == 0:
                start = self._starts[int(self._instances.task[instance])]
                for held in self._out.holds[group]:
                    self._satisfy(first + held - start, now)
        self._left[instance] -= 1
        answer = self._answer[int(self._instances.task[instance])]
        if operation == answer or (self._left[instance] == 0 and answer == NULL):
            self._answer_given(instance, now)
        self._done += 1
        if self._progress is not None and self._done % 1024 == 0:
            self._progress(self._done, len(self.outcome))

    def _fire(self, event: int, trigger: Trigger, now: int) -> None:
        operation = int(self.operation[event])
        for distance, lag in self._out.edges(operation, trigger):
            self._satisfy(event + distance, now + lag)

    def _satisfy(self, event: int, time: int) -> None:
        self._ready[event] = max(self._ready[event], time)
        self._missing[event] -= 1
        if self._missing[event] == 0:
            self._set_timer(event)

    def _answer_given(self, instance: int, now: int) -> None:
        if instance in self._answered:
            return
        self._answered.add(instance)
        if self._waiting_to_send:
            following = self._waiting_to_send.popleft()
            arrival = now + self._instances.think_ns
            self.arrival_ns[following] = arrival
            heapq.heappush(self._timers, (arrival, _ARRIVAL, following, 0))


class _Followers:
    """What waits for each operation: edges by trigger, as distances between rows, and groups."""

    def __init__(self, constraints: Constraints) -> None:
        order, bounds = constraints.by_source
        self._bounds = bounds.tolist()
        self._trigger = constraints.trigger[order].tolist()
        self._distance = (constraints.target - constraints.source)[order].tolist()
        self._lag = constraints.lag_ns[order].tolist()
        self.waits = [len(wait) for wait in constraints.waits]
        self.holds = [hold.tolist() for hold in constraints.holds]
        self.groups: dict[int, list[int]] = {}
        for group, wait in enumerate(constraints.waits):
            for operation in wait.tolist():
                self.groups.setdefault(operation, []).append(group)

    def edges(self, operation: int, trigger: Trigger) -> list[tuple[int, int]]:
        """The edges out of an operation with this trigger: (distance to the target's row, lag in ns)."""
        return [
            (self._distance[at], self._lag[at])
            for at in range(self._bounds[operation], self._bounds[operation + 1])
            if self._trigger[at] == trigger
        ]
