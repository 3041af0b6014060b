"""Audit rules on scheduler steps: what the record of a simulated engine says of each step, and of each event in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from semtrace.engine.cost import LINEAR, step_ns
from semtrace.errors import SemtraceError
from semtrace.measure.audit_reuse import charges
from semtrace.measure.recorded_engine import Engine, recorded
from semtrace.measure.recorded_steps import RecordedSteps
from semtrace.measure.slots import LAST_NS
from semtrace.records.columns import NULL
from semtrace.records.enums import EventOutcome, OperationKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from semtrace.engine.cost import Cost
    from semtrace.measure.audit_events import Case

TABLES = ("steps", "step_runs")
SEEN_ELSEWHERE = (
    "ST-AUD-001",
    "ST-AUD-002",
    "ST-AUD-003",
    "ST-AUD-004",
    "ST-AUD-005",
    "ST-AUD-020",
    "ST-AUD-021",
)
"""Rules whose violation by an event says enough of it: what its steps say is not judged again."""


def engine_of(case: Case) -> Engine | None:
    """The simulated engine of a replay (ST-AUD-060); None if it is another backend, or cannot be told."""
    try:
        engine = Engine.of(case.slots)
    except SemtraceError as error:
        case.ledger.fact(
            "ST-AUD-060", f"the settings are of no engine: {error}", table="header", column="backend"
        )
        return None
    if engine is None:
        return None
    case.ledger.fact("ST-AUD-060", None, table="header")
    servers = case.slots.seen("server")
    at = np.flatnonzero(servers != NULL)
    case.judge(
        "ST-AUD-060",
        at,
        servers[at] >= engine.settings.servers,
        lambda i: f"ran on server {servers[at[i]]} of {engine.settings.servers}",
        column="server",
    )
    return engine


@dataclass
class StepCase:
    """Steps that are audited, and what was reported of them.

    Attributes:
        case: what is audited.
        engine: the simulated engine; None for another backend.
        steps: the steps.
        told: by slot, whether something was reported of it: what its runs say is not judged again.
        spoilt: by step, whether something was reported of it, or of an event that may be in it.
    """

    case: Case
    engine: Engine | None
    steps: RecordedSteps
    told: NDArray[np.bool_]
    spoilt: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.spoilt = np.zeros(self.steps.count, dtype=np.bool_)

    @cached_property
    def calls(self) -> NDArray[np.bool_]:
        """By slot, whether it ran on the backend to its end."""
        return ~self.case.slots.fixed & self.case.ran

    @cached_property
    def computed(self) -> NDArray[np.int64]:
        """By slot, tokens that are computed for it when it has ended: all but its last output."""
        output = np.maximum(self.case.slots.recorded("output_tokens"), 1)
        return self.case.slots.recorded("prompt_tokens") + output - 1

    def tell(self, slots: NDArray[np.int64]) -> None:
        """Something was reported of these slots: neither they nor steps that they may be in are judged again."""
        self.told[slots] = True
        steps, seen = self.steps, self.case.slots
        server = seen.seen("server")[slots]
        change = np.zeros(steps.count + 1, dtype=np.int64)
        for own in np.unique(server).tolist():
            low, high = np.searchsorted(steps.server, [own, own + 1])
            mine = slots[server == own]
            ends = np.maximum.accumulate(steps.end_ns[low:high])
            starts = np.minimum.accumulate(steps.start_ns[low:high][::-1])[::-1]
            finished = np.where(seen.finished[mine] == NULL, LAST_NS, seen.finished[mine])
            first = np.searchsorted(ends, seen.submitted[mine], side="right")
            last = np.searchsorted(starts, finished, side="left")
            some = last > first
            np.add.at(change, low + first[some], 1)
            np.subtract.at(change, low + last[some], 1)
        self.spoilt |= (np.cumsum(change)[:-1] > 0) | steps.covered(np.isin(steps.slot, slots))

    def judge_slots(
        self,
        requirement: str,
        at: NDArray[np.int64],
        wrong: NDArray[np.bool_],
        message: Callable[[int], str],
        *,
        column: str | None = None,
    ) -> None:
        """Judge slots, and say of those that violate the rule nothing more."""
        self.case.judge(requirement, at, wrong, message, column=column)
        self.tell(at[wrong])

    def judge_steps(
        self,
        requirement: str,
        at: NDArray[np.int64],
        wrong: NDArray[np.bool_],
        message: Callable[[int], str],
        *,
        column: str,
    ) -> None:
        """Judge steps, and say of those that violate the rule nothing more."""
        self.case.ledger.judge(
            requirement,
            wrong,
            lambda i: f"step {self.name(int(at[i]))}: {message(i)}",
            rows=at,
            table="steps",
            column=column,
        )
        self.spoilt[at[wrong]] = True

    def name(self, step: int) -> str:
        """A step as messages name it."""
        server = int(self.steps.server[step])
        return f"{step - int(np.searchsorted(self.steps.server, server))} of server {server}"


def judge_steps(case: Case, engine: Engine | None) -> StepCase | None:
    """All rules on steps (ST-AUD-061 to ST-AUD-070), where they were recorded.

    Returns:
        What was found in them; None where there are none to judge.
    """
    if not all(recorded(case.slots.execution, name) for name in TABLES):
        return None
    wrong = {found.table for found in case.ledger.findings if found.requirement == "ST-AUD-007"}
    if wrong & {*TABLES, "events"} or case.ledger.violated("ST-AUD-001"):
        for requirement in (*OF_ALL, *OF_ENGINE):
            case.ledger.skip(requirement, "the tables are not well formed or not whole, which is reported")
        return None
    told = case.reported(*SEEN_ELSEWHERE, "ST-AUD-060")
    judged = StepCase(case, engine, RecordedSteps.of(case.slots), told)
    judged.tell(np.flatnonzero(judged.told))
    if engine is None:
        for requirement in OF_ENGINE:
            case.ledger.skip(requirement, "what this backend must do in a step is not known")
    else:
        _judge_overlap(judged, engine)
    _judge_presence(judged)
    _judge_positions(judged)
    _judge_sums(judged)
    if engine is not None:
        _judge_limits(judged, engine)
        _judge_durations(judged, engine)
        _judge_times(judged)
    _judge_prefill(judged)
    if engine is not None:
        _judge_idle(judged, engine)
    return judged


OF_ALL = ("ST-AUD-062", "ST-AUD-063", "ST-AUD-065", "ST-AUD-066", "ST-AUD-068")
"""Rules on the steps of every backend."""
OF_ENGINE = ("ST-AUD-061", "ST-AUD-064", "ST-AUD-067", "ST-AUD-069", "ST-AUD-070")
"""Rules on the steps of a simulated engine."""


def _judge_overlap(judged: StepCase, engine: Engine) -> None:
    """Steps of a server do not overlap; with asynchronous scheduling two do (ST-AUD-061)."""
    steps, depth = judged.steps, engine.depth
    at = np.arange(steps.count, dtype=np.int64)
    wrong = np.zeros(steps.count, dtype=np.bool_)
    same = steps.server[depth:] == steps.server[:-depth]
    wrong[depth:] = same & (steps.start_ns[depth:] < steps.end_ns[:-depth])
    if depth == 2:
        same = steps.server[1:] == steps.server[:-1]
        wrong[1:] |= same & (steps.end_ns[1:] <= steps.end_ns[:-1])
        wrong[1:] |= same & (steps.start_ns[1:] < steps.start_ns[:-1])

    def told(i: int) -> str:
        before = i - depth if steps.server[i - depth] == steps.server[i] else i - 1
        return (
            f"from {steps.start_ns[i]} to {steps.end_ns[i]} ns, step {judged.name(before)} is from "
            f"{steps.start_ns[before]} to {steps.end_ns[before]} ns"
        )

    judged.judge_steps("ST-AUD-061", at, wrong, told, column="start_ns")
    for back in range(1, depth + 1):  # which of the two is wrong is not known
        judged.spoilt[np.flatnonzero(wrong) - back] = True


def _judge_presence(judged: StepCase) -> None:
    """Runs lie on steps that there are; what ran to its end has some, and nothing else has (ST-AUD-062)."""
    steps, slots, ledger = judged.steps, judged.case.slots, judged.case.ledger
    event = slots.execution["step_runs"].ints("event")[steps.lost]
    new = steps.lost[~np.isin(event, slots.event[judged.told])]
    ledger.judge(
        "ST-AUD-062",
        np.ones(len(new), dtype=np.bool_),
        lambda i: f"run {new[i]} has no tokens, or is of no event whose server has such steps",
        rows=new,
        table="step_runs",
        column="first_step",
    )
    lost = np.isin(slots.event, event)
    has = np.zeros(slots.count, dtype=np.bool_)
    has[steps.of_slot[0]] = True
    at = np.flatnonzero(~judged.told & ~lost)
    without = judged.calls[at] & ~has[at]
    # What did not end may have been in steps.
    beside = ~judged.calls[at] & has[at] & (slots.fixed[at] | (slots.outcome[at] == EventOutcome.REFUSED))
    judged.judge_slots(
        "ST-AUD-062",
        at,
        without | beside,
        lambda i: "ran to its end in no step" if without[i] else "ran on no backend, and was in steps",
    )
    judged.tell(np.flatnonzero(lost))
    if len(steps.lost):
        judged.spoilt[:] = True  # which steps a lost run was in is not known


def _judge_positions(judged: StepCase) -> None:
    """Each run begins where the one before it ended, or where its request was admitted again; phases follow (ST-AUD-065, 066)."""
    steps, seen = judged.steps, judged.case.slots
    slot, opens, closes = steps.of_slot
    fit = ~judged.told[slot]
    slot, opens, closes = slot[fit], opens[fit], closes[fit]
    problems: dict[int, str] = {}

    def problem(where: NDArray[np.bool_], text: Callable[[int], str]) -> None:
        for at in np.flatnonzero(where).tolist():
            problems.setdefault(int(slot[at]), text(at))

    def by_slot(values: NDArray[np.bool_] | NDArray[np.int64]) -> NDArray[np.int64]:
        return np.bincount(steps.slot, weights=values, minlength=seen.count)[slot].astype(np.int64)

    twice = np.zeros(len(steps.slot), dtype=np.bool_)
    twice[1:] = (steps.slot[1:] == steps.slot[:-1]) & (steps.first[1:] < steps.last[:-1])
    problem(by_slot(twice) > 0, lambda _: "two of its runs are in one step")
    hits = sum(
        np.maximum(seen.seen(name)[slot], 0) for name in ("cached_tokens", "loaded_tokens", "reused_tokens")
    )
    known = seen.seen("cached_tokens")[slot] != NULL
    hits = np.minimum(hits, seen.recorded("prompt_tokens")[slot] - 1)
    problem(
        known & (steps.position[opens] != hits),
        lambda i: f"begins with {steps.position[opens[i]]} tokens computed, {hits[i]} were found",
    )
    last, whole = steps.end_position[closes], judged.computed[slot]
    ended = judged.calls[slot]
    problem(
        np.where(ended, last != whole, last > whole),
        lambda i: f"its last run ends after {last[i]} tokens, {whole[i]} are to be computed",
    )
    walk, times = steps.walk, seen.preemptions[slot]
    jumps, restarts = by_slot(walk.jumps), by_slot(walk.restarts)
    problem(
        (times != NULL) & (jumps > times),
        lambda i: f"goes on elsewhere than where it was {jumps[i]} times, and was preempted {times[i]} times",
    )
    size = judged.engine.settings.block_size if judged.engine is not None else 1
    odd = by_slot((walk.jumps == 1) & (steps.position % size != 0))
    problem(odd > 0, lambda _: f"goes on elsewhere than after whole blocks of {size} tokens")
    wrong = np.isin(slot, np.fromiter(problems, dtype=np.int64, count=len(problems)))
    judged.judge_slots("ST-AUD-065", slot, wrong, lambda i: problems[int(slot[i])])
    fit = ~wrong
    slot, closes, restarts, times = slot[fit], closes[fit], restarts[fit], times[fit]
    phases, more = by_slot(walk.wrong) > 0, (times != NULL) & (restarts > times)
    judged.judge_slots(
        "ST-AUD-066",
        slot,
        phases | more,
        lambda i: (
            "a run's phase is not what its tokens say"
            if phases[i]
            else f"computes a prompt again {restarts[i]} times, and was preempted {times[i]} times"
        ),
    )


def _judge_sums(judged: StepCase) -> None:
    """Every step has requests, and the tokens and requests of its runs (ST-AUD-063)."""
    steps = judged.steps
    at = np.flatnonzero(~judged.spoilt)
    geometry = steps.geometry[at]
    requests, tokens = geometry[:, 0], geometry[:, 1] + geometry[:, 2]
    wrong = (requests != steps.requests[at]) | (tokens != steps.tokens[at]) | (requests == 0)

    def told(i: int) -> str:
        return (
            f"{steps.requests[at[i]]} requests with {steps.tokens[at[i]]} tokens, "
            f"its runs are of {requests[i]} with {tokens[i]}"
        )

    judged.case.ledger.skip(
        "ST-AUD-063", "the step or an event that may be in it is reported", int(judged.spoilt.sum())
    )
    judged.judge_steps("ST-AUD-063", at, wrong, told, column="tokens")


def _judge_limits(judged: StepCase, engine: Engine) -> None:
    """No step has more tokens or requests than the engine allows (ST-AUD-064)."""
    steps, limits = judged.steps, engine.settings.scheduler
    at = np.flatnonzero(~judged.spoilt)
    wrong = (steps.tokens[at] > limits.max_num_batched_tokens) | (steps.requests[at] > limits.max_num_seqs)

    def told(i: int) -> str:
        return (
            f"{steps.requests[at[i]]} requests with {steps.tokens[at[i]]} tokens, "
            f"allowed are {limits.max_num_seqs} with {limits.max_num_batched_tokens}"
        )

    judged.judge_steps("ST-AUD-064", at, wrong, told, column="tokens")


def modelled_ns(cost: Cost, geometry: NDArray[np.int64]) -> NDArray[np.int64]:
    """What steps of a geometry take, in ns; int64[steps]."""
    if cost.kind == LINEAR:
        c0, c_seq, c_prefill, c_decode, c_kv = cost.ints[:5].tolist()
        context = geometry[:, 5] + geometry[:, 7]
        ps = (
            c0
            + c_seq * geometry[:, 0]
            + c_prefill * geometry[:, 1]
            + c_decode * geometry[:, 2]
            + c_kv * context
        )
        found: NDArray[np.int64] = np.maximum(ps // 1000, 1)
        return found
    ints, floats = cost.ints.tolist(), cost.floats.tolist()
    return np.array([step_ns(cost.kind, ints, floats, row) for row in geometry.tolist()], dtype=np.int64)


def _judge_durations(judged: StepCase, engine: Engine) -> None:
    """A step takes what the cost says of its geometry (ST-AUD-069)."""
    steps, ledger = judged.steps, judged.case.ledger
    charge, charged = charges(judged)
    ledger.skip(
        "ST-AUD-069",
        "it admits a request that reuses tokens, and no decision says what that adds",
        int((charged & ~judged.spoilt).sum()),
    )
    ledger.skip("ST-AUD-069", "the step or an event that may be in it is reported", int(judged.spoilt.sum()))
    at = np.flatnonzero(~judged.spoilt & ~charged)
    must = modelled_ns(engine.cost, steps.geometry[at]) + charge[at]
    took = steps.end_ns[at] - np.maximum(steps.start_ns[at], steps.ready_ns[at])
    judged.judge_steps(
        "ST-AUD-069",
        at,
        took != must,
        lambda i: f"takes {took[i]} ns, by its cost {must[i]} ns",
        column="end_ns",
    )


def _judge_times(judged: StepCase) -> None:
    """An event is scheduled, has its first token and ends when its steps say (ST-AUD-067)."""
    steps, seen = judged.steps, judged.case.slots
    slot, opens, closes = steps.of_slot
    yields = np.flatnonzero(steps.walk.yields)
    first_yield = np.full(seen.count, NULL, dtype=np.int64)
    first_yield[steps.slot[yields[::-1]]] = yields[::-1]
    fit = ~judged.told[slot] & judged.calls[slot]
    slot, opens, closes = slot[fit], opens[fit], closes[fit]
    first, last = steps.first[opens], steps.last[closes] - 1
    made = first_yield[slot]
    token = np.where(steps.decode[made], steps.first[made], steps.last[made] - steps.walk.yields[made])
    outputs = (seen.recorded("kind") == OperationKind.LLM) & (seen.recorded("output_tokens") > 0)
    fit = ~(judged.spoilt[first] | judged.spoilt[last] | judged.spoilt[token])
    judged.case.ledger.skip("ST-AUD-067", "a step that it is in is reported", int((~fit).sum()))
    slot, first, last, token = slot[fit], first[fit], last[fit], token[fit]
    wanted = {
        "scheduled_ns": steps.start_ns[first],
        "first_token_ns": np.where(outputs[slot], steps.end_ns[token], NULL),
        "finished_ns": steps.end_ns[last],
    }
    early = steps.start_ns[first] < seen.submitted[slot]
    wrong = early.copy()
    for name, values in wanted.items():
        wrong |= seen.seen(name)[slot] != values

    def told(i: int) -> str:
        if early[i]:
            return f"is in a step that begins at {steps.start_ns[first[i]]} ns, before its submission"
        parts = [
            f"{name} is {_shown(got)}, by its steps {_shown(must)}"
            for name, values in wanted.items()
            if (got := int(seen.seen(name)[slot[i]])) != (must := int(values[i]))
        ]
        return ", ".join(parts)

    judged.judge_slots("ST-AUD-067", slot, wrong, told, column="scheduled_ns")


def _shown(value: int) -> str:
    return "null" if value == NULL else str(value)


def _judge_prefill(judged: StepCase) -> None:
    """Prompt tokens computed are the tokens of its prefill runs (ST-AUD-068)."""
    steps, seen = judged.steps, judged.case.slots
    slot = steps.of_slot[0]
    told = seen.seen("computed_prompt_tokens")
    slot = slot[~judged.told[slot] & judged.calls[slot] & (told[slot] != NULL)]
    tokens = np.where(steps.decode, 0, (steps.last - steps.first) * steps.each)
    made = np.zeros(seen.count, dtype=np.int64)
    np.add.at(made, steps.slot, tokens)
    judged.judge_slots(
        "ST-AUD-068",
        slot,
        told[slot] != made[slot],
        lambda i: f"computed_prompt_tokens is {told[slot[i]]}, its prefill runs have {made[slot[i]]}",
        column="computed_prompt_tokens",
    )


def _judge_idle(judged: StepCase, engine: Engine) -> None:
    """A server computes while it has something to compute (ST-AUD-070)."""
    steps, seen, ledger = judged.steps, judged.case.slots, judged.case.ledger
    transfers = seen.execution["transfers"]
    tells = not engine.driven or transfers.rows > 0 or "transfers" in seen.execution.header.detail
    if judged.spoilt.any() or (judged.told & (seen.seen("server") != NULL)).any():
        ledger.skip("ST-AUD-070", "steps or events are reported")
        return
    if not tells:
        ledger.skip("ST-AUD-070", "a policy may have waited for transfers, and they were not recorded")
        return
    at, waits = [], []
    server = seen.seen("server")
    placed = (server != NULL) & ~seen.fixed & (seen.submitted != NULL)
    for own in np.unique(steps.server).tolist():
        low, high = np.searchsorted(steps.server, [own, own + 1])
        free = np.maximum.accumulate(steps.end_ns[low:high])
        begin = np.concatenate([[np.iinfo(np.int64).min], free[:-1]])
        gap = np.flatnonzero(steps.start_ns[low:high] > begin)
        mine = np.flatnonzero(placed & (server == own))
        submitted = np.sort(seen.submitted[mine])
        finished = np.sort(np.where(seen.finished[mine] == NULL, LAST_NS, seen.finished[mine]))
        start = steps.start_ns[low:high][gap]
        there = np.searchsorted(submitted, start, side="left")
        gone = np.searchsorted(finished, begin[gap], side="right")
        busy = there > gone
        for each in np.flatnonzero(busy).tolist() if engine.driven else ():
            left = mine[(seen.finished[mine] == NULL) | (seen.finished[mine] > begin[gap[each]])]
            since = max(int(begin[gap[each]]), int(seen.submitted[left].min()))
            busy[each] = not _moving(judged, own, since, int(start[each]))
        at.append(low + gap)
        waits.append(busy)
    where = np.concatenate(at) if at else np.zeros(0, dtype=np.int64)
    wrong = np.concatenate(waits) if waits else np.zeros(0, dtype=np.bool_)
    judged.judge_steps(
        "ST-AUD-070",
        where,
        wrong,
        lambda i: f"begins at {steps.start_ns[where[i]]} ns, the server was idle and had a request",
        column="start_ns",
    )


def _moving(judged: StepCase, server: int, begin: int, end: int) -> bool:
    """Whether transfers of a server are under way from `begin` to `end`."""
    transfers = judged.case.slots.execution["transfers"]
    start, stop = transfers.ints("start_ns"), transfers.ints("end_ns")
    own = np.flatnonzero((transfers.ints("server") == server) & (start < end) & (stop > begin))
    for row in own.tolist():  # they stand in order of their start
        if start[row] > begin:
            return False
        begin = max(begin, int(stop[row]))
    return begin >= end
