"""Judging one replay in the world, and what a certificate claims of several: the two grades, and how late requests came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from semtrace_conformance.live.reported import CLOCKS_NS, judge_reported
from semtrace_conformance.live.seen import Seen
from semtrace_conformance.live.witnessed import distribution, judge_witnessed, late
from semtrace_conformance.messages import Model

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from semtrace_conformance.live.witnessed import Said
    from semtrace_conformance.live.work import Live

WITNESSED: Final = {
    "live.presence": "every operation that runs on the backend came to the witness, as often as it must, and nothing else",
    "live.prompts": "prompts have the recorded number of tokens, and the recorded ids; requests carry no hints",
    "live.locks": "exactly the recorded output was asked for, and generated",
    "live.attempts": "requests are left alone until their time limit, and no longer",
    "live.release": "no request came before its release",
    "live.lateness": "requests came soon after their release",
    "live.concurrency": "no more requests were in flight than the scenario allows",
}
"""The checks that the record of the witness alone decides."""
REPORTED: Final = {
    "live.outcomes": "how many events ended in each way",
    "live.record": "the execution says what came to the witness, and went",
    "live.header": "its header says which plan and scenario were replayed, and does not contradict itself",
    "live.times": "its times follow from each other, and agree with those of the witness",
}
"""The checks of what the replayer says of itself."""


class Points(Model):
    """Replays without a failure of one grade, of those in which it was looked at."""

    points: int
    of: int


class Grades(Model):
    """What is claimed of replays in the world.

    Attributes:
        witnessed: by the record of the witness alone.
        self_reported: by the executions that the replayer left; null if it declared that it leaves none.
        measured_at: where lateness was measured.
        lateness: its distribution over all requests: how many there were, parts in a million that came within 1 ms of the
            earliest instant at which they may have come, and percentiles in ns.
    """

    witnessed: Points
    self_reported: Points | None = None
    measured_at: Literal["witness"] = "witness"
    lateness: dict[str, int]


def judge_live(live: Live, observed: Mapping[str, Any]) -> Iterator[Said]:
    """What is wrong with a replay, by both grades."""
    found = observed.get("witness")
    if found is None:
        yield "live.presence", "there is no record of the witness"
        return
    seen = Seen.of(found)
    if seen.clock_step_ns > CLOCKS_NS:
        step = seen.clock_step_ns
        yield (
            "live.release",
            f"the clock of this machine was set by {step} ns meanwhile: nothing can be said, ask again",
        )
    yield from judge_witnessed(live, seen)
    if not observed.get("record_asked"):
        return
    if observed.get("execution") is None:
        problems = "; ".join(observed.get("problems") or ["there is none"])
        yield "live.record", f"no execution was left that can be read: {problems}"
        return
    yield from judge_reported(live, seen, observed["execution"])


def judge_nothing_sent(observed: Mapping[str, Any]) -> Iterator[Said]:
    """What is refused must not have been begun."""
    found = observed.get("witness")
    if found is not None and (sent := found["columns"]["request_id"]):
        yield "live.presence", f"it was refused, but {len(sent)} requests of it came to the witness"


Judged = tuple["Live | None", "Mapping[str, Any] | None", frozenset[str]]
"""Of a case that applies: what must come, what was observed, and the checks that failed."""


def grades(cases: Iterable[Judged]) -> Grades:
    """What is claimed of all cases of a profile."""
    witnessed = of = reported = of_reported = 0
    delays: list[int] = []
    for live, observed, failed in cases:
        if live is None:  # a refusal, which is no replay
            continue
        of += 1
        witnessed += not failed - REPORTED.keys()
        asked = observed is not None and bool(observed.get("record_asked"))
        if asked or failed & REPORTED.keys():
            of_reported += 1
            reported += not failed
        if observed is not None and observed.get("witness") is not None:
            delays += late(live, Seen.of(observed["witness"]))
    own = Points(points=reported, of=of_reported) if of_reported else None
    return Grades(witnessed=Points(points=witnessed, of=of), self_reported=own, lateness=distribution(delays))
