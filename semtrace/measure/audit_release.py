"""Audit rules on release: arrivals, ready times, nothing early, nothing late, added constraints, state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from semtrace.errors import SemtraceError
from semtrace.measure.audit_form import scenario_of
from semtrace.measure.audit_room import Room
from semtrace.measure.path import end_slot
from semtrace.measure.ready import FREE
from semtrace.measure.report import Lateness
from semtrace.measure.slots import after, ranges
from semtrace.measure.stats import Distribution
from semtrace.records.columns import NULL
from semtrace.records.enums import AccessMode, Evidence, Trigger
from semtrace.replay.arrivals import instances, settle
from semtrace.replay.scenario import Poisson

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from semtrace.measure.audit_events import Case
    from semtrace.measure.ready import Held
    from semtrace.measure.slots import Slots
    from semtrace.replay.arrivals import Instances

_TIME = {Trigger.START: "submitted", Trigger.FIRST_TOKEN: "first_token", Trigger.FINISH: "finished"}


def judge_arrivals(case: Case) -> None:
    """Instances and their arrivals are those of the scenario (ST-AUD-006)."""
    slots, ledger = case.slots, case.ledger
    rows = slots.execution.instances
    if case.native:
        ledger.skip("ST-AUD-006", "a run without scenario", rows.rows)
        return
    if slots.execution.header.scenario is None:
        problem = "there is no scenario, which says what arrives and when"
        ledger.fact("ST-AUD-006", problem, table="header", column="scenario")
        return
    try:
        scenario = scenario_of(slots.execution.header)
        if isinstance(scenario.arrivals, Poisson):
            problem = "arrivals are not drawn, so that nobody can say when they were due"
            ledger.fact("ST-AUD-006", problem, table="header", column="scenario")
            return
        # Counted before any is made: a short document can ask for more instances than memory holds.
        due_rows = slots.trace.tasks.rows * scenario.copies
        if rows.rows != due_rows:
            problem = f"{rows.rows} instances, the scenario makes {due_rows}"
            ledger.fact("ST-AUD-006", problem, table="instances")
            return
        wanted = instances(slots.trace, settle(slots.trace, scenario))
    except SemtraceError as error:
        ledger.fact(
            "ST-AUD-006", f"the scenario cannot be followed: {error}", table="header", column="scenario"
        )
        return
    same = bool((rows.ints("task") == wanted.task).all() and (rows.ints("instance") == wanted.copy).all())
    problem = "the instances are not those of the scenario, every copy of every task in order"
    ledger.fact("ST-AUD-006", None if same else problem, table="instances")
    if not same:
        return
    arrival = rows.ints("arrival_ns")
    due = _closed_loop(slots, wanted) if wanted.users else wanted.arrival_ns
    known = (due != NULL) & (arrival != NULL)
    ledger.skip(
        "ST-AUD-006", "an arrival that follows from an answer that is not known", int((due == NULL).sum())
    )
    at = np.flatnonzero(known)
    allowed = 0 if case.virtual else case.tolerance_ns
    ledger.judge(
        "ST-AUD-006",
        np.abs(arrival[at] - due[at]) > allowed,
        lambda i: (
            f"instance {int(at[i])} arrived at {int(arrival[at[i]])} ns, by the scenario at {int(due[at[i]])} ns"
        ),
        rows=at,
        table="instances",
        column="arrival_ns",
    )


def _closed_loop(slots: Slots, wanted: Instances) -> NDArray[np.int64]:
    """Arrivals of a closed loop: each user's first as told, each further one a think time after the next answer."""
    due = wanted.arrival_ns.copy()
    order = wanted.sending_order
    later = order[wanted.users :]
    ends = [_answered(slots, instance) for instance in range(slots.instances)]
    # The k-th later arrival follows from the k-th answer; answers that are not known come after those that are
    # only if nothing was sent after them, so none is told where one is missing.
    if None not in ends:
        answers = np.sort(np.array(ends, dtype=np.int64))
        due[later] = answers[: len(later)] + wanted.think_ns
    return due


def _answered(slots: Slots, instance: int) -> int | None:
    rows = slots.rows(instance)
    if rows.start == rows.stop:
        arrival = int(slots.execution.instances.ints("arrival_ns")[instance])
        return None if arrival == NULL else arrival
    end = end_slot(slots, instance)
    return None if end is None else int(slots.finished[end])


def judge_release(case: Case) -> Lateness | None:
    """Everything on release; returns the lateness of a replay (ST-AUD-030 … ST-AUD-036)."""
    added = _judge_added(case)
    state = _judge_state(case)
    if case.native:
        _judge_native(case)
        for requirement in ("ST-AUD-030", "ST-AUD-031", "ST-AUD-033"):
            case.ledger.skip(requirement, "a native run, released by no replayer", case.slots.count)
        return None
    # What an added constraint or a state already explains is reported there and only there.
    explained = added | state
    early = _judge_early(case, explained)
    _judge_ready(case, explained)
    return _judge_late(case, explained | early)


def _edge_rule(
    case: Case,
    requirement: str,
    target: NDArray[np.int64],
    satisfied: NDArray[np.int64],
    message: Callable[[int], str],
    weak: NDArray[np.bool_] | None = None,
) -> NDArray[np.bool_]:
    """Judge that targets were submitted at or after their constraints were satisfied; returns the slots that were not."""
    submitted = case.slots.submitted[target]
    known = (submitted != NULL) & (satisfied != NULL)
    case.ledger.skip(requirement, "one of the two times is not known", int((~known).sum()))
    at = np.flatnonzero(known)
    wrong = submitted[at] < satisfied[at]
    case.judge(
        requirement,
        target[at],
        wrong,
        lambda i: (
            f"submitted at {int(submitted[at[i]])} ns, {message(int(at[i]))} at {int(satisfied[at[i]])} ns"
        ),
        column="submitted_ns",
        weak=None if weak is None else weak[at],
    )
    found = np.zeros(case.slots.count, dtype=np.bool_)
    found[target[at[wrong]]] = True
    return found


def _judge_added(case: Case) -> NDArray[np.bool_]:
    """Added edges (ST-AUD-034) and barriers (ST-AUD-035) were honoured."""
    slots, expected = case.slots, case.expected
    held = expected.added
    broken = _edge_rule(
        case,
        "ST-AUD-034",
        held.placed.target,
        held.placed.satisfied_ns,
        lambda at: f"the added edge from {_source(slots, held, at)} was satisfied",
    )
    barriers = expected.barriers
    return broken | _edge_rule(
        case,
        "ST-AUD-035",
        barriers.hold,
        barriers.satisfied_ns,
        lambda at: f"barrier {int(barriers.group[barriers.pair[at]])} opened",
    )


def _source(slots: Slots, held: Held, at: int) -> str:
    edge = held.placed.edge[at]
    trigger = Trigger(int(held.edges.trigger[edge])).name.lower()
    return f"operation {int(slots.operation[held.placed.source[at]])} ({trigger})"


def _judge_state(case: Case) -> NDArray[np.bool_]:
    """The recorded writer of a state version precedes its readers (ST-AUD-036)."""
    slots = case.slots
    accesses, versions = slots.trace["state_accesses"], slots.trace["state_versions"]
    reader, version = accesses.ints("operation"), accesses.ints("state_version")
    writer = versions.ints("writer")[version] if len(version) else version
    reads = (accesses.ints("mode") == AccessMode.READ) & (writer != NULL) & (writer != reader)
    reader, version, writer = reader[reads], version[reads], writer[reads]
    low = np.searchsorted(reader, slots.operation, side="left")
    counts = np.searchsorted(reader, slots.operation, side="right") - low
    access = ranges(low, counts)
    target = np.repeat(np.arange(slots.count, dtype=np.int64), counts)
    source = writer[access] + slots.base[slots.instance[target]]
    ended = slots.finished[source]
    weak = None
    if case.native:
        weak = ~(case.observed("submitted")[target] & case.observed("finished")[source])
    return _edge_rule(
        case,
        "ST-AUD-036",
        target,
        ended,
        lambda at: (
            f"operation {int(writer[access[at]])}, which wrote the state version {int(version[access[at]])} that it reads, finished"
        ),
        weak,
    )


def _judge_native(case: Case) -> None:
    """Edges that the times of a native run contradict (ST-AUD-032); proved only where both times are observed."""
    slots, held = case.slots, case.expected.recorded
    placed = held.placed
    trigger = held.edges.trigger[placed.edge]
    seen = case.observed("submitted")[placed.target]
    for number, name in _TIME.items():
        at = trigger == number
        # Where the trigger stood for the end, the evidence of the end counts.
        stands = slots.seen(f"{name}_ns")[placed.source] == NULL
        evidence = np.where(
            stands,
            slots.seen("finished_evidence")[placed.source],
            slots.seen(f"{name}_evidence")[placed.source],
        )
        seen &= ~at | (evidence == Evidence.OBSERVED)
    _edge_rule(
        case,
        "ST-AUD-032",
        placed.target,
        placed.satisfied_ns,
        lambda at: f"the edge from {_source(slots, held, at)} was satisfied",
        ~seen,
    )
    first = case.expected.arrival.at_ns != FREE
    at = np.flatnonzero(first)
    _edge_rule(
        case,
        "ST-AUD-032",
        at,
        slots.arrival[at],
        lambda _: "its instance arrived",
        np.ones(len(at), dtype=np.bool_),
    )


def _judge_early(case: Case, explained: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Nothing was submitted before its release (ST-AUD-032); returns the slots that were."""
    slots, expected = case.slots, case.expected
    delay = slots.recorded("external_delay_ns")
    timed = slots.submitted != NULL
    case.ledger.skip("ST-AUD-032", "no submission recorded", int((~timed).sum()))

    def before(at_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
        bound = after(np.where(at_ns == FREE, 0, at_ns), delay)
        found: NDArray[np.bool_] = timed & (at_ns != FREE) & (slots.submitted < bound)
        return found

    plain = (expected.arrival | expected.recorded.bound).at_ns
    wrong = np.where(explained, before(plain), before(expected.full.at_ns))
    # A bound of which a part is unknown can be seen to be violated, not to be kept.
    partly = timed & expected.full.unknown & ~wrong
    case.ledger.skip("ST-AUD-032", "a time that it waits for is not known", int(partly.sum()))
    at = np.flatnonzero(timed & ~partly)

    def told(i: int) -> str:
        slot = int(at[i])
        ready = int(expected.full.at_ns[slot])
        return (
            f"submitted at {int(slots.submitted[slot])} ns, released at {ready + int(delay[slot])} ns "
            f"(ready at {ready} ns, external delay {int(delay[slot])} ns)"
        )

    hint = "a replayer submits at or after the release, never before"
    case.judge("ST-AUD-032", at, wrong[at], told, column="submitted_ns", hint=hint)
    return wrong


def _judge_ready(case: Case, explained: NDArray[np.bool_]) -> None:
    """Recorded ready times are the recomputed ones (ST-AUD-030), released ones follow from them (ST-AUD-031)."""
    slots, ledger = case.slots, case.ledger
    ready, released = slots.seen("ready_ns"), slots.seen("released_ns")
    exact = case.expected.full.exact_ns
    if case.plan is None:
        ledger.skip("ST-AUD-030", "the plan is not known", slots.count)
    else:
        ledger.skip("ST-AUD-030", "a broken constraint is reported", int(explained.sum()))
        left = ~explained
        ledger.skip("ST-AUD-030", "no ready time recorded", int((left & (ready == NULL)).sum()))
        unknown = left & (ready != NULL) & (exact == NULL)
        ledger.skip("ST-AUD-030", "a time that it waits for is not known", int(unknown.sum()))
        at = np.flatnonzero(left & (ready != NULL) & (exact != NULL))
        allowed = 0 if case.virtual else case.tolerance_ns
        case.judge(
            "ST-AUD-030",
            at,
            np.abs(ready[at] - exact[at]) > allowed,
            lambda i: f"ready at {int(ready[at[i]])} ns, by what it waits for at {int(exact[at[i]])} ns",
            column="ready_ns",
        )
    delay = slots.recorded("external_delay_ns")
    both = (ready != NULL) & (released != NULL)
    ledger.skip("ST-AUD-031", "ready or release not recorded", int((~both).sum()))
    pairs = np.flatnonzero(both)
    case.judge(
        "ST-AUD-031",
        pairs,
        released[pairs] != after(ready[pairs], delay[pairs]),
        lambda i: (
            f"released at {int(released[pairs[i]])} ns, ready at {int(ready[pairs[i]])} ns with an external delay of "
            f"{int(delay[pairs[i]])} ns"
        ),
        column="released_ns",
    )


def _judge_late(case: Case, reported: NDArray[np.bool_]) -> Lateness | None:
    """Submissions came within the tolerance after the release (ST-AUD-033)."""
    slots, ledger = case.slots, case.ledger
    if case.plan is None:
        ledger.skip("ST-AUD-033", "the plan is not known", slots.count)
        return None
    exact = case.expected.full.exact_ns
    known = (slots.submitted != NULL) & (exact != NULL)
    due = after(exact, slots.recorded("external_delay_ns"))
    room = Room.of(case)
    if room is not None:  # what waits for room is due when there is room
        slot, since = room.since()
        due[slot] = np.where(due[slot] == NULL, NULL, np.maximum(due[slot], since))
    late = slots.submitted - due
    ledger.skip("ST-AUD-033", "submission or release not known", int((~known).sum()))
    ledger.skip("ST-AUD-033", "submitted early, which is reported", int((known & reported).sum()))
    at = np.flatnonzero(known & ~reported)
    tolerance = case.tolerance_ns
    hint = "a replayer is late where it has no core of its own; --tolerance-ns allows more"
    case.judge(
        "ST-AUD-033",
        at,
        late[at] > tolerance,
        lambda i: f"submitted {int(late[at[i]])} ns after its release, allowed are {tolerance} ns",
        column="submitted_ns",
        hint=hint if slots.execution.header.clock == "wall" else None,
    )
    within = int(((late >= 0) & (late <= tolerance) & known).sum())
    distribution = Distribution.of(late[known], int((~known).sum()))
    return Lateness(distribution, within, tolerance, slots.execution.header.measured_at)
