"""Requests in flight: time limits, attempts, and what is reported of them."""

from __future__ import annotations

import heapq
import sys
import time
from array import array
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Final

from semtrace.live.answers import Answer
from semtrace.live.asking import request_id
from semtrace.records.columns import NULL
from semtrace.records.enums import EventOutcome, Failure
from semtrace.replay.backend import FOREVER, Report
from semtrace.store.digests import artifact_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from semtrace.live.asking import Asker
    from semtrace.live.bodies import Bodies
    from semtrace.live.clock import WallClock
    from semtrace.live.connection import Connection
    from semtrace.live.connections import Pool
    from semtrace.replay.backend import Request
    from semtrace.replay.scenario import Retry

OUTCOMES: Final = {
    Failure.TIMEOUT: EventOutcome.TIMEOUT,
    Failure.REJECTED: EventOutcome.REFUSED,
}
"""The outcome of failures (ST-LIV-041); that of others is an error."""

MOST_DETAILS: Final = 32
"""Most kinds of failures that are told apart by their words: some of these are a server's."""
OTHERS: Final = "others"

_monotonic_ns = time.monotonic_ns


class Flight(Answer):
    """One request in flight, with what is read of its answer.

    Attributes:
        event, instance, operation: what it is of.
        attempt: ordinal of the attempt, from 1.
        sent_ns: when the first byte of this attempt was handed to the kernel, monotonic; None before.
        begun_ns: when the first attempt began, monotonic.
        submitted_ns: when the operation was submitted (ST-LIV-002), monotonic; None before.
        submitting: whether its submission is told by `submit`, and by no report.
        seen_first_ns: the first token that the controller was told, monotonic; None before.
        connection: the connection that it is on.
        aloft: whether the attempt goes on.
    """

    __slots__ = (
        "_sent_ns", "aloft", "attempt", "begun_ns", "connection", "event", "flights", "instance", "operation", "seen_first_ns",
        "submitted_ns", "submitting",
    )  # fmt: skip

    def __init__(self, flights: Flights, request: Request, kind: str) -> None:
        super().__init__(kind)
        self.flights = flights
        self.event, self.instance, self.operation = request
        self.attempt = 1
        self._sent_ns: int | None = None
        self.begun_ns = 0
        self.submitted_ns: int | None = None
        self.submitting = True
        self.seen_first_ns: int | None = None
        self.connection: Connection | None = None
        self.aloft = True

    @property
    def sent_ns(self) -> int | None:
        """When the first byte of this attempt was handed to the kernel."""
        return self._sent_ns

    @sent_ns.setter
    def sent_ns(self, at_ns: int | None) -> None:
        self._sent_ns = at_ns
        if at_ns is not None:
            self.flights.sent(self, at_ns)

    @property
    def asked_id(self) -> str:
        """The id that this attempt was sent with."""
        return request_id(self.instance, self.operation, self.attempt)

    def once_more(self) -> None:
        """Begin another attempt."""
        self.begin()
        self.attempt += 1
        self._sent_ns = None
        self.aloft = True

    def body(self, data: bytes, at_ns: int) -> bool:
        """Take a part of the answer; a first token is reported at once."""
        enough = super().body(data, at_ns)
        if self.first_token_ns is not None and self.seen_first_ns is None:
            self.seen_first_ns = self.first_token_ns
            self.flights.first(self)
        return enough

    def ended(self, at_ns: int) -> None:
        """The whole answer is there."""
        self.end()
        self.connection = None
        self.flights.over(self, at_ns)

    def broken(self, failure: Failure, detail: str, at_ns: int) -> None:
        """No whole answer will come."""
        self.lost(failure, detail)
        self.connection = None
        self.flights.over(self, at_ns)

    def again(self) -> bytes:
        """The request once more."""
        return self.flights.request(self)


class Flights:
    """All requests in flight.

    Attributes:
        failures: failed attempts by failure.
        details: the same with a few words on each, of at most `MOST_DETAILS` kinds and others.
        attempts: by event, how often it was submitted.
        output: by event, the ordinal of its output ids among `contents`, `NULL` for none.
        contents: distinct output ids as they are stored, by digest, in order of their ordinals.
    """

    def __init__(
        self,
        pool: Pool,
        clock: WallClock,
        asker: Asker,
        bodies: Bodies,
        events: int,
        *,
        timeout_ns: int,
        retry: Retry,
    ) -> None:
        self._pool, self._clock, self._asker, self._bodies = pool, clock, asker, bodies
        self._timeout_ns = timeout_ns
        self._retry = retry
        self._again_after = {Failure[name.upper()] for name in retry.on}
        self._deadlines: OrderedDict[int, tuple[int, Flight]] = OrderedDict()
        self._retries: list[tuple[int, int, Flight]] = []
        self._waiting_again: set[int] = set()
        self.reported: list[Report] = []
        self._sooner = False  # something is due before what `next_ns` said
        self.failures: Counter[Failure] = Counter()
        self.details: Counter[tuple[Failure, str]] = Counter()
        self.attempts = array("H", bytes(2 * events))
        self.output = array("q", [NULL]) * events
        self.contents: dict[bytes, bytes] = {}
        self._ordinals: dict[bytes, int] = {}

    # --- what the controller asks ----------------------------------------------------------------------

    def submit(self, requests: Sequence[Request]) -> list[int | None]:
        """Send requests, those that are ready first; when each was submitted, in ns of the run, None if it was not yet."""
        bodies, send = self._bodies, self._pool.send
        self._let_go()
        flights = [Flight(self, request, self._asker.kind(request.operation)) for request in requests]
        late: list[Flight] = []
        # Between two sends of one instant there is nothing that can wait.
        for flight in flights:
            data = bodies.ready(flight.instance, flight.operation)
            if data is None:
                late.append(flight)
            else:
                flight.begun_ns = _monotonic_ns()
                send(flight, data)
        for flight in late:
            data = bodies.make(flight.instance, flight.operation)
            flight.begun_ns = _monotonic_ns()
            send(flight, data)
        now, origin = _monotonic_ns(), self._clock.origin_ns
        for flight in flights:
            flight.submitting = False
            self._aloft(flight, now)
        return [None if flight.submitted_ns is None else flight.submitted_ns - origin for flight in flights]

    def _aloft(self, flight: Flight, now_ns: int) -> None:
        """Note that an attempt was made; it may be over already."""
        self.attempts[flight.event] = flight.attempt
        if flight.aloft:
            self._limit(flight, now_ns)

    def _limit(self, flight: Flight, from_ns: int) -> None:
        """Let the time limit of an attempt begin now, in ns."""
        self._deadlines[flight.event] = (from_ns + self._timeout_ns, flight)
        self._deadlines.move_to_end(flight.event)

    def next_ns(self) -> int | None:
        """When something is to be done at the latest, in ns of the run (see `Backend.next_ns`)."""
        self._sooner = False
        self._let_go()
        if self.reported:
            return 0
        while self._retries and self._retries[0][1] not in self._waiting_again:
            heapq.heappop(self._retries)  # it was called off
        times = []
        if self._deadlines:
            times.append(next(iter(self._deadlines.values()))[0])
        if self._retries:
            times.append(self._retries[0][0])
        if not times:
            return None
        return min(min(times) - self._clock.origin_ns, FOREVER)

    def reports(self, now_ns: int) -> list[Report]:
        """What has happened and was not reported; requests whose time is up, and those to be sent again, are seen to."""
        now = now_ns + self._clock.origin_ns
        while self._deadlines:
            deadline, flight = next(iter(self._deadlines.values()))
            if deadline > now:
                break
            if flight.connection is None and flight.sent_ns is None:  # it waits for a connection (ST-LIV-044)
                self._limit(flight, now)
                continue
            self._pool.holding = True
            self._pool.cancel(flight)
            flight.broken(Failure.TIMEOUT, "the time limit passed", _monotonic_ns())
        while self._retries and self._retries[0][0] <= now:
            _, event, flight = heapq.heappop(self._retries)
            if event not in self._waiting_again:  # it was called off
                continue
            self._waiting_again.discard(event)
            flight.once_more()
            self._pool.send(flight, self.request(flight))
            self._aloft(flight, _monotonic_ns())
        found, self.reported = self.reported, []
        return found

    def cancel(self, events: Iterable[int]) -> None:
        """Call requests off: nothing more is reported of them."""
        gone = set(events)
        self._waiting_again -= gone
        flights = [self._deadlines.pop(event)[1] for event in gone if event in self._deadlines]
        # What waits for a connection goes first, lest it get one that another leaves.
        for flight in sorted(flights, key=lambda each: each.connection is not None):
            self._pool.cancel(flight)
            if flight.submitted_ns is None:
                self.attempts[flight.event] = 0
        self.reported = [report for report in self.reported if report.event not in gone]

    def _let_go(self) -> None:
        """The controller has seen what failed, and called off what waited for it: the others may have its connection."""
        if self._pool.holding:
            self._pool.let_go()

    def close(self) -> None:
        """Of requests that are not sent any more, the attempt does not count."""
        for _, flight in self._deadlines.values():
            if flight.sent_ns is None:
                self.attempts[flight.event] = flight.attempt - 1

    @property
    def news(self) -> bool:
        """Whether there is something to report, or something is due earlier than `next_ns` said last."""
        return self._sooner or bool(self.reported)

    @property
    def count(self) -> int:
        """How many are in flight, or wait for another attempt."""
        return len(self._deadlines) + len(self._waiting_again)

    # --- what flights tell -----------------------------------------------------------------------------

    def request(self, flight: Flight) -> bytes:
        """The request of a flight's attempt."""
        return self._asker.request(flight.instance, flight.operation, flight.attempt)

    def sent(self, flight: Flight, at_ns: int) -> None:
        """An attempt was handed to the kernel."""
        if flight.event in self._deadlines:  # it had to wait
            self._limit(flight, at_ns)
        if flight.submitted_ns is None:
            self._submitted(flight, at_ns)

    def _submitted(self, flight: Flight, at_ns: int) -> None:
        flight.submitted_ns = at_ns
        if not flight.submitting:
            at = at_ns - self._clock.origin_ns
            self.reported.append(Report(flight.event, False, None, None, at, submitted=True))

    def first(self, flight: Flight) -> None:
        """A first token is there."""
        at = None if flight.seen_first_ns is None else flight.seen_first_ns - self._clock.origin_ns
        self.reported.append(Report(flight.event, True, None, None, at))

    def over(self, flight: Flight, at_ns: int) -> None:
        """An attempt has ended, well or not."""
        flight.aloft = False
        self._deadlines.pop(flight.event, None)
        if flight.submitted_ns is None:  # no connection could be made (ST-LIV-002)
            self._submitted(flight, flight.begun_ns)
        failure = flight.failure
        if failure is not None:
            self.failures[failure] += 1
            kind = (failure, flight.detail)
            self.details[
                kind if kind in self.details or len(self.details) < MOST_DETAILS else (failure, OTHERS)
            ] += 1
            if failure in self._again_after and flight.attempt < self._retry.attempts:
                wait = self._retry.wait_ns * self._retry.factor ** (flight.attempt - 1)
                wait = min(max(wait, flight.retry_after_ns or 0), FOREVER >> 1)
                self._waiting_again.add(flight.event)
                heapq.heappush(self._retries, (at_ns + wait, flight.event, flight))
                self._sooner = True
                return
            self._pool.holding = True
        self.reported.append(
            Report(
                flight.event,
                False,
                self._columns(flight),
                None if failure is None else OUTCOMES.get(failure, EventOutcome.ERROR),
                at_ns - self._clock.origin_ns,
            )
        )

    def _columns(self, flight: Flight) -> Mapping[str, int | None]:
        origin = self._clock.origin_ns
        columns: dict[str, int | None] = {"attempts": flight.attempt, "server": 0}
        if flight.seen_first_ns is not None:
            columns["first_token_ns"] = flight.seen_first_ns - origin
        if flight.failure is not None:
            columns["failure"] = flight.failure
            return columns
        output = flight.output_tokens
        if flight.has_ids:
            output = len(flight.ids) if output is None else output
            self._keep(flight)
        columns["prompt_tokens"] = flight.prompt_tokens
        columns["cached_tokens"] = flight.cached_tokens
        columns["output_tokens"] = output
        columns["finish_reason"] = flight.finish_reason
        return columns

    def _keep(self, flight: Flight) -> None:
        content = little_endian(flight.ids)
        digest = artifact_digest(content)
        ordinal = self._ordinals.get(digest)
        if ordinal is None:
            ordinal = self._ordinals[digest] = len(self._ordinals)
            self.contents[digest] = content
        self.output[flight.event] = ordinal

    def request_ids(self, instance_of: Sequence[int], operation_of: Sequence[int]) -> dict[int, str]:
        """Of every event that was sent, the id of its last attempt."""
        return {
            event: request_id(instance_of[event], operation_of[event], attempts)
            for event, attempts in enumerate(self.attempts)
            if attempts
        }


def little_endian(ids: array[int]) -> bytes:
    """Token ids as artifacts hold them: 32 bits each, little-endian."""
    if sys.byteorder == "big":
        ids = array("I", ids)
        ids.byteswap()
    return ids.tobytes()
