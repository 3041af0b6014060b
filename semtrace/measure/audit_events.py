"""Audit rules on single events: there, ended, in order, with the recorded counts, ids and durations."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from semtrace.records.columns import NULL
from semtrace.records.enums import (
    EventOutcome,
    Evidence,
    Failure,
    FinishReason,
    OperationKind,
    OperationStatus,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from semtrace.graph.plan import Plan
    from semtrace.measure.ready import Expected
    from semtrace.measure.report import Ledger
    from semtrace.measure.slots import Slots

_OUTCOME: Final = {
    OperationStatus.OK: EventOutcome.OK,
    OperationStatus.ERROR: EventOutcome.ERROR,
    OperationStatus.CANCELLED: EventOutcome.CANCELLED,
    OperationStatus.TIMEOUT: EventOutcome.TIMEOUT,
}

RAN: Final = (EventOutcome.OK, EventOutcome.ERROR, EventOutcome.CANCELLED, EventOutcome.TIMEOUT)
"""Outcomes of operations that were submitted."""

TERMINAL: Final = (*RAN, EventOutcome.SKIPPED, EventOutcome.REFUSED)

TIME_RULES: Final = frozenset(
    {
        "ST-AUD-004",
        "ST-AUD-005",
        "ST-AUD-032",
        "ST-AUD-034",
        "ST-AUD-035",
        "ST-AUD-036",
        "ST-AUD-040",
    }
)
"""Rules whose violation spoils the times of an instance: what follows from them is then not judged again."""


@dataclass(frozen=True)
class Case:
    """What is audited, with what the rules share.

    Attributes:
        slots: the events, placed.
        plan: the plan followed; None if it is not known or cannot be applied to the trace.
        expected: when everything had to be ready under the plan, or by the recorded edges alone without one.
        ledger: where rules write.
        tolerance_ns: allowed lateness.
        spoilt: by instance, whether times of it were found wrong; rules write it as they go.
        broken: by rule, which slots violate it; `judge` writes it.
    """

    slots: Slots
    plan: Plan | None
    expected: Expected
    ledger: Ledger
    tolerance_ns: int
    spoilt: NDArray[np.bool_]
    broken: dict[str, NDArray[np.bool_]] = field(default_factory=dict)

    def reported(self, *requirements: str) -> NDArray[np.bool_]:
        """Which slots violate one of these rules, or have a note of it."""
        found = np.zeros(self.slots.count, dtype=np.bool_)
        for requirement in requirements:
            if requirement in self.broken:
                found |= self.broken[requirement]
        return found

    @property
    def native(self) -> bool:
        """Whether it is the recorded run itself, which no replayer released."""
        return self.slots.execution.header.mode == "native"

    @property
    def virtual(self) -> bool:
        """Whether times are of a virtual clock."""
        return self.slots.execution.header.clock == "virtual"

    @cached_property
    def ran(self) -> NDArray[np.bool_]:
        """Which slots have an event that says that they were submitted."""
        return np.isin(self.slots.outcome, RAN)

    @cached_property
    def as_recorded(self) -> NDArray[np.bool_]:
        """Which slots ended as they did in the recorded run."""
        table = np.zeros(max(OperationStatus) + 1, dtype=np.int64)
        for status, outcome in _OUTCOME.items():
            table[status] = outcome
        wanted = table[np.clip(self.slots.recorded("status"), 0, max(OperationStatus))]
        found: NDArray[np.bool_] = self.slots.outcome == wanted
        return found

    def observed(self, *times: str) -> NDArray[np.bool_]:
        """Which slots have these times as observed facts."""
        found = np.ones(self.slots.count, dtype=np.bool_)
        for name in times:
            found &= self.slots.seen(f"{name}_evidence") == Evidence.OBSERVED
        return found

    def name(self, slot: int) -> str:
        """A slot as messages name it."""
        operation = int(self.slots.operation[slot])
        name = self.slots.trace.operations.data.column("name")[operation].as_py()
        return f"operation {operation} ({name}) of instance {int(self.slots.instance[slot])}"

    def judge(
        self,
        requirement: str,
        at: NDArray[np.int64],
        wrong: NDArray[np.bool_],
        message: Callable[[int], str],
        *,
        column: str | None = None,
        hint: str | None = None,
        weak: NDArray[np.bool_] | None = None,
        weakness: str = "the times are not observed",
    ) -> None:
        """Judge slots.

        Args:
            requirement: the rule.
            at: the slots judged.
            wrong: which of them violate it.
            message: what is wrong with a slot of `at`, by position in it.
            column: the column of `events` concerned.
            hint: what to do about it.
            weak: which of them are known too loosely for a violation.
            weakness: why they are.
        """

        def told(case: int) -> str:
            return f"{self.name(int(at[case]))}: {message(case)}"

        broken = self.broken.setdefault(requirement, np.zeros(self.slots.count, dtype=np.bool_))
        broken[at[wrong]] = True
        if requirement in TIME_RULES:
            self.spoilt[self.slots.instance[at[wrong]]] = True

        self.ledger.judge(
            requirement,
            wrong,
            told,
            rows=self.slots.event[at],
            column=column,
            hint=hint,
            weak=weak,
            weakness=weakness,
        )


def judge_presence(case: Case) -> None:
    """Each operation of each instance exactly once (ST-AUD-001)."""
    slots, ledger = case.slots, case.ledger
    case.spoilt[slots.instance[~slots.present]] = True
    ledger.judge(
        "ST-AUD-001",
        ~slots.present,
        lambda slot: f"{case.name(slot)} has no event",
        rows=slots.instance,
        table="instances",
        hint="every operation of an instance has one event, also those that were skipped or did not end",
    )
    events = slots.execution.events
    for rows, what in ((slots.doubled, "has a second event"), (slots.stray, "is not of the instance's task")):

        def told(at: int, rows: NDArray[np.int64] = rows, what: str = what) -> str:
            row = int(rows[at])
            instance, operation = (int(events.ints(name)[row]) for name in ("instance", "operation"))
            return f"operation {operation} of instance {instance} {what}"

        every = np.ones(len(rows), dtype=np.bool_)
        ledger.judge("ST-AUD-001", every, told, rows=rows, column="operation")
    instances = slots.execution.instances
    tasks, copies = instances.ints("task"), instances.ints("instance")
    ledger.judge(
        "ST-AUD-001",
        np.ones(len(slots.lost), dtype=np.bool_),
        lambda at: f"task {int(tasks[slots.lost[at]])} is not in the trace",
        rows=slots.lost,
        table="instances",
        column="task",
    )
    _, first = np.unique(np.stack([tasks, copies]), axis=1, return_index=True)
    again = np.setdiff1d(np.arange(len(tasks), dtype=np.int64), first)
    ledger.judge(
        "ST-AUD-001",
        np.ones(len(again), dtype=np.bool_),
        lambda at: f"copy {int(copies[again[at]])} of task {int(tasks[again[at]])} stands twice",
        rows=again,
        table="instances",
        column="instance",
    )


def judge_ends(case: Case) -> None:
    """Terminal states (ST-AUD-002), as recorded (ST-AUD-003)."""
    slots, ledger = case.slots, case.ledger
    there = np.flatnonzero(slots.present)
    terminal = np.isin(slots.outcome, TERMINAL)

    def state(case_: int) -> str:
        number = int(slots.outcome[there[case_]])
        return f"{_outcome(number)} is no terminal state"

    case.judge("ST-AUD-002", there, ~terminal[there], state, column="outcome")
    ledger.skip("ST-AUD-003", "no terminal state", int((slots.present & ~terminal).sum()))
    ended = np.flatnonzero(terminal)
    status, failure = slots.recorded("status"), slots.seen("failure")

    def ends(case_: int) -> str:
        slot = int(ended[case_])
        recorded = OperationStatus(int(status[slot])).name.lower()
        met = int(failure[slot])
        why = f" ({Failure(met).name.lower().replace('_', ' ')})" if met in {*Failure} else ""
        return f"ended as {_outcome(int(slots.outcome[slot]))}{why}, was recorded as {recorded}"

    case.judge("ST-AUD-003", ended, ~case.as_recorded[ended], ends, column="outcome")


def _outcome(number: int) -> str:
    return EventOutcome(number).name.lower() if number in set(EventOutcome) else f"outcome {number}"


def judge_times(case: Case) -> None:
    """Times are there in a replay (ST-AUD-004)."""
    slots, ledger = case.slots, case.ledger
    ran = np.flatnonzero(case.ran)
    for name in ("ready", "released", "submitted", "finished"):
        column = f"{name}_ns"
        missing = slots.seen(column)[ran] == NULL
        if case.native:
            ledger.skip("ST-AUD-004", f"a native run without {column}", int(missing.sum()))
            continue
        case.judge("ST-AUD-004", ran, missing, lambda _, c=column: f"no {c}", column=column)  # type: ignore[misc]  # mypy cannot infer a lambda with a default
    if not case.native:
        arrival = slots.execution.instances.ints("arrival_ns")
        ledger.judge(
            "ST-AUD-004",
            arrival == NULL,
            lambda at: f"instance {at} has no arrival",
            rows=np.arange(len(arrival), dtype=np.int64),
            table="instances",
            column="arrival_ns",
        )


def judge_counts(case: Case) -> None:
    """Prompt and output token counts equal the recorded ones (ST-AUD-020, ST-AUD-021)."""
    slots, ledger = case.slots, case.ledger
    kind = slots.recorded("kind")
    model = (kind == OperationKind.LLM) | (kind == OperationKind.EMBED)
    # What failed was not sent, and what ended otherwise than recorded is another rule's matter.
    counts = model & case.as_recorded
    for requirement, column in (("ST-AUD-020", "prompt_tokens"), ("ST-AUD-021", "output_tokens")):
        seen, recorded = slots.seen(column), slots.recorded(column)
        # An embedding has no output to count.
        whole = counts & ((column == "prompt_tokens") | (kind == OperationKind.LLM) | (seen != NULL))
        whole &= ~slots.fixed | ((seen != NULL) & (recorded != NULL))
        must = whole & ~slots.fixed & (not case.native)
        judged = whole & (recorded != NULL) & (must | (seen != NULL))
        untold = int((whole & (recorded == NULL)).sum())
        ledger.skip(requirement, f"{column} not recorded in the trace", untold)
        unseen = int((whole & (recorded != NULL) & ~judged).sum())
        ledger.skip(requirement, f"{column} not recorded in the execution", unseen)
        at = np.flatnonzero(judged)

        def tokens(
            case_: int,
            at: NDArray[np.int64] = at,
            seen: NDArray[np.int64] = seen,
            recorded: NDArray[np.int64] = recorded,
        ) -> str:
            slot = at[case_]
            ran = int(seen[slot])
            return (
                f"{'an unknown number of' if ran == NULL else ran} tokens, {int(recorded[slot])} are recorded"
            )

        hint = "a replay keeps the recorded input and output lengths"
        if column == "prompt_tokens" and not case.virtual and not case.native:
            hint = "texts are counted by the server's own tokenizer: replay with inputs=synthetic where lengths matter"
        case.judge(requirement, at, seen[at] != recorded[at], tokens, column=column, hint=hint)


def judge_ids(case: Case) -> None:
    """Output token ids equal the recorded ones, position by position (ST-AUD-022); of token-locked runs."""
    slots, ledger = case.slots, case.ledger
    if slots.execution.header.mode != "token_locked":
        return
    recorded, seen = slots.recorded("output_token_ids"), slots.seen("output_ids")
    wanted = (slots.recorded("kind") == OperationKind.LLM) & ~slots.fixed & case.as_recorded
    tokens = slots.recorded("output_tokens")
    own = sorted(slots.execution.content)
    at: list[int] = []
    problems: list[str | None] = []
    for slot in np.flatnonzero(wanted).tolist():
        expected = slots.trace.artifact(int(recorded[slot]))
        position = int(seen[slot])
        got = slots.execution.content.get(own[position]) if 0 <= position < len(own) else None
        if got is None and tokens[slot] == 0:
            continue  # nothing was generated, so there are no ids
        if got is not None and expected is None:
            ledger.skip("ST-AUD-022", "output token ids not in the trace")
            continue
        at.append(slot)
        problems.append(_difference(expected, got))
    wrong = np.array([problem is not None for problem in problems], dtype=np.bool_)
    case.judge(
        "ST-AUD-022",
        np.array(at, dtype=np.int64),
        wrong,
        lambda case_: str(problems[case_]),
        column="output_ids",
    )


def judge_finish_reasons(case: Case) -> None:
    """Why the model stopped is as recorded (ST-AUD-023); of token-locked runs, where both are known.

    Whoever cancelled a request is not in the replay, so an operation that is recorded as cancelled is not judged.
    """
    slots = case.slots
    if slots.execution.header.mode != "token_locked":
        return
    recorded, seen = slots.recorded("finish_reason"), slots.seen("finish_reason")
    locked = (slots.recorded("kind") == OperationKind.LLM) & ~slots.fixed & case.as_recorded
    at = np.flatnonzero(locked & (recorded != NULL) & (recorded != FinishReason.ABORT) & (seen != NULL))

    def reasons(case_: int) -> str:
        ran, wanted = (_reason(int(column[at[case_]])) for column in (seen, recorded))
        return f"the model stopped for {ran}, {wanted} is recorded"

    case.judge("ST-AUD-023", at, seen[at] != recorded[at], reasons, column="finish_reason")


def _reason(number: int) -> str:
    return FinishReason(number).name.lower() if number in {*FinishReason} else f"reason {number}"


def _difference(expected: bytes | None, got: bytes | None) -> str | None:
    """The first difference between two arrays of token ids (uint32, little-endian), None if they are equal."""
    if expected is None or got is None:
        return "no output token ids"
    if expected == got:
        return None
    if len(expected) % 4 or len(got) % 4:
        return f"{len(got)} bytes of token ids, {len(expected)} are recorded: not whole uint32 values"
    one, other = (np.frombuffer(raw, dtype="<u4") for raw in (expected, got))
    common = min(len(one), len(other))
    differ = np.flatnonzero(one[:common] != other[:common])
    if len(differ):
        at = int(differ[0])
        return f"token {at} is {int(other[at])}, {int(one[at])} is recorded"
    return f"{len(other)} token ids, {len(one)} are recorded"


def judge_durations(case: Case) -> None:
    """Operations that take their recorded duration took it (ST-AUD-040).

    Exactly on a virtual clock; not less, and not longer by more than the tolerance, on a wall clock.
    """
    slots, ledger = case.slots, case.ledger
    duration = slots.recorded("duration_ns")
    took = slots.finished - slots.submitted
    whole = slots.fixed & case.ran
    timed = (slots.submitted != NULL) & (slots.finished != NULL)
    ledger.skip("ST-AUD-040", "duration not recorded in the trace", int((whole & (duration == NULL)).sum()))
    ledger.skip("ST-AUD-040", "start or end not known", int((whole & (duration != NULL) & ~timed).sum()))
    judged = whole & timed & (duration != NULL)
    at = np.flatnonzero(judged)
    more = took[at] - duration[at]
    wrong = (more < 0) | (more > (0 if case.virtual or case.native else case.tolerance_ns))

    def told(case_: int) -> str:
        slot = at[case_]
        return f"took {int(took[slot])} ns, {int(duration[slot])} ns are recorded"

    weak = np.ones(len(at), dtype=np.bool_) if case.native else None
    weakness = "a native run, where the duration may be measured apart from the times"
    case.judge("ST-AUD-040", at, wrong, told, column="finished_ns", weak=weak, weakness=weakness)
