"""When each request may have come at the earliest, by what the witness itself saw.

The witness knows when it handed first tokens and ends to the kernel: no replayer can have known of them sooner. What does not
run on the server takes its recorded time. So each release has a lower bound that needs nobody's word:

    bound(v) = max over (u→v) of trigger(u) + lag, + external delay(v)

A bound has two parts, and the later one counts. One is counted from the run's origin, as far as only arrivals, tools, lags
and delays lead to v. The origin is the latest with which no request comes before its bound: with it, nothing that is counted from the
origin alone is early, and what came too soon makes all others late. The other part is counted from instants that the witness saw.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from semtrace_conformance.live.seen import Attempt, Seen
    from semtrace_conformance.live.work import Live

UNSEEN_NS: Final = 50_000_000
"""Time between the submission of a request and its arrival that is granted where a submission counts, in ns: the witness sees
arrivals alone, and a connection may have to be made before."""
RATE: Final = 2000
"""Two clocks that are both right differ by less than one part in this many."""


class Bound(NamedTuple):
    """A lower bound of an instant.

    Attributes:
        from_origin: counted from the run's origin, in ns; None if nothing in it is.
        seen: an instant that the witness saw, in ns; None if there is none in it.
        waited: time that passes after it, in ns.
        loose: whether the instant may have been later by something that the witness cannot see.
    """

    from_origin: int | None
    seen: int | None
    waited: int = 0
    loose: bool = False

    def later(self, wait_ns: int) -> Bound:
        """Some time later."""
        origin = None if self.from_origin is None else self.from_origin + wait_ns
        return Bound(origin, self.seen, self.waited + wait_ns, self.loose)

    def at(self, origin_ns: int) -> int:
        """The instant, with this origin."""
        return max(
            origin_ns + self.from_origin if self.from_origin is not None else -(1 << 62),
            self.seen + self.waited if self.seen is not None else -(1 << 62),
        )


def latest(bounds: list[Bound]) -> Bound:
    """The bound of what waits for all of these."""
    seen = max(
        (each for each in bounds if each.seen is not None),
        key=lambda each: (each.seen or 0) + each.waited,
        default=Bound(None, None),
    )
    from_origin = max((each.from_origin for each in bounds if each.from_origin is not None), default=None)
    return Bound(from_origin, seen.seen, seen.waited, any(each.loose for each in bounds))


@dataclass(frozen=True)
class Arrived:
    """A request, or an attempt of it, with the earliest instant at which it may have come."""

    instance: int
    operation: int
    attempt: Attempt
    bound: Bound
    origin_ns: int

    @property
    def late_ns(self) -> int:
        """By how much it came after that, in ns; negative if it came before."""
        return self.attempt.arrival_ns - self.bound.at(self.origin_ns)

    @property
    def early(self) -> bool:
        """Whether it came before what the witness saw allows, rates of clocks granted."""
        if self.bound.seen is None:
            return False
        earliest = self.bound.seen + self.bound.waited - self.bound.waited // RATE - 1000
        return self.attempt.arrival_ns < earliest


class _Ends(NamedTuple):
    start: Bound
    token: Bound
    end: Bound


def releases(live: Live, seen: Seen) -> list[Arrived]:
    """All requests that came, each with its bound."""
    found: list[tuple[int, int, Attempt, Bound]] = []
    ends: dict[int, dict[int, _Ends]] = {}

    def run(instance: int, arrival: Bound) -> None:
        ends[instance] = _instance(live, seen, instance, arrival, found)

    if live.loop:
        _loop(live, ends, run)
    else:
        for instance, arrival in enumerate(live.arrivals_ns):
            run(instance, Bound(arrival, None))
    from_origin = [
        attempt.arrival_ns - bound.from_origin
        for *_, attempt, bound in found
        if bound.from_origin is not None
    ]
    origin = min(from_origin, default=0)
    return [Arrived(*each, origin) for each in found]


def _loop(live: Live, ends: dict[int, dict[int, _Ends]], run: Callable[[int, Bound], None]) -> None:
    """A closed loop: the k-th that is sent later comes a think time after the k-th answer."""
    answers: list[tuple[int, int, Bound]] = []

    def answered(instance: int, arrival: Bound) -> None:
        run(instance, arrival)
        answer = live.answers[live.tasks[instance]]
        own = ends[instance]
        end = (
            own[answer].end
            if answer is not None
            else latest([each.end for each in own.values()] or [arrival])
        )
        heapq.heappush(answers, (end.at(0), instance, end))

    for instance in live.loop:
        first = live.arrivals_ns[instance]
        if first is not None:
            answered(instance, Bound(first, None))
    for instance in live.loop:
        if live.arrivals_ns[instance] is None:
            answered(instance, heapq.heappop(answers)[2].later(live.think_ns))


def _instance(
    live: Live, seen: Seen, instance: int, arrival: Bound, found: list[tuple[int, int, Attempt, Bound]]
) -> dict[int, _Ends]:
    known: dict[int, _Ends] = {}

    def visit(at: int) -> _Ends:
        if at not in known:
            waits = live.waits_of[at]
            bounds = [getattr(visit(wait.source), _PART[wait.trigger]).later(wait.lag_ns) for wait in waits]
            release = (latest(bounds) if waits else arrival).later(live.operations[at].delay_ns)
            known[at] = _ends(live, seen.events.get((instance, at), []), instance, at, release, found)
        return known[at]

    for at in live.of_task[live.tasks[instance]]:
        visit(at)
    return known


_PART: Final = {"start": "start", "first_token": "token", "finish": "end"}


def _ends(
    live: Live,
    attempts: list[Attempt],
    instance: int,
    at: int,
    release: Bound,
    found: list[tuple[int, int, Attempt, Bound]],
) -> _Ends:
    """When an operation starts, has its first token, and ends, at the earliest; its attempts go to `found`."""
    operation = live.operations[at]
    if not operation.sent:
        end = release.later(operation.duration_ns or 0)
        return _Ends(release, end, end)
    bound, before = release, 1
    end = release
    for place, attempt in enumerate(attempts):
        if place and not (attempts[place - 1].again and attempt.ordinal == before):
            bound = end.later(_wait(live, attempts[place - 1], before, attempt.ordinal))
        elif place:
            bound = Bound(None, attempts[place - 1].end_ns)
        found.append((instance, at, attempt, bound))
        before = attempt.ordinal
        end = _end(live, attempt)
    if not attempts:
        return _Ends(release, release, release)
    submitted = Bound(None, attempts[0].arrival_ns - UNSEEN_NS, loose=True)
    start = latest([release, submitted])
    token = first_token(attempts)
    return _Ends(start, end if token is None else Bound(None, token), end)


def first_token(attempts: Sequence[Attempt]) -> int | None:
    """When the first token of any attempt was sent: the trigger comes once, with the first."""
    return min((each.first_token_ns for each in attempts if each.first_token_ns is not None), default=None)


def _end(live: Live, attempt: Attempt) -> Bound:
    """When an attempt was over, at the earliest."""
    given_up = Bound(None, attempt.arrival_ns - UNSEEN_NS, live.timeout_ns, loose=True)
    if attempt.closed_by == "client" or attempt.end_ns is None:
        return given_up
    return Bound(None, attempt.end_ns)


def _wait(live: Live, last: Attempt, before: int, ordinal: int) -> int:
    """Time from the end of an attempt to a later one, the attempts between them that the witness did not see included."""
    waits = [live.retry.wait_ns * live.retry.factor ** (each - 1) for each in range(before, ordinal)]
    if last.status == 429 and waits:
        waits[0] = max(waits[0], live.retry_after_ns)
    return sum(waits)
