"""Audit rules on the decisions of lifecycle policies: made of what is written down, and kept."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from semtrace.engine.run import policy_for
from semtrace.errors import SemtraceError
from semtrace.measure.audit_reuse import ENGINE, declared_reuse
from semtrace.measure.critical import critical_calls
from semtrace.measure.recorded_engine import recorded
from semtrace.policies.text import choice_text
from semtrace.records.columns import NULL
from semtrace.records.document import parse_canonical
from semtrace.records.enums import BlockAction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from semtrace.measure.audit_blocks import BlockCase
    from semtrace.measure.audit_events import Case
    from semtrace.measure.audit_steps import StepCase
    from semtrace.measure.recorded_engine import Engine

_UNTIL: Final = re.compile(r"(keep|prefetch)\(until_ns=(-?\d+)\)")
_RESERVE: Final = re.compile(r"reserve\(blocks=(\d+)\)")
HELD_ON: Final = ("offloaded", "loaded", "borrowed")
"""Reasons of giving back that end no pin."""


def judge_decisions(
    case: Case, engine: Engine | None, steps: StepCase | None, blocks: BlockCase | None
) -> None:
    """All rules on decisions (ST-AUD-084 to ST-AUD-086), where an engine recorded them."""
    if engine is None or not recorded(case.slots.execution, "decisions"):
        return
    reported = {found.table for found in case.ledger.findings if found.requirement == "ST-AUD-007"}
    if reported & {"decisions", "events"}:
        for rule in ("ST-AUD-084", "ST-AUD-085", "ST-AUD-086"):
            case.ledger.skip(rule, "the tables are not well formed, which is reported")
        return
    _judge_again(case, engine)
    _judge_declared(case)
    if case.ledger.violated("ST-AUD-084"):
        for rule in ("ST-AUD-085", "ST-AUD-086"):
            case.ledger.skip(rule, "decisions are reported")
        return
    if blocks is None:
        case.ledger.skip("ST-AUD-085", "blocks were not recorded, or are reported")
    else:
        _judge_deadlines(blocks)
    _judge_reserved(case, engine, steps)


def _judge_again(case: Case, engine: Engine) -> None:
    """The inputs that are written down give the choice that is (ST-AUD-084)."""
    table, ledger = case.slots.execution["decisions"], case.ledger
    try:
        made = policy_for(engine.document, engine.settings)
    except SemtraceError as error:
        ledger.skip("ST-AUD-084", f"the policy is not here: {error}", table.rows)
        return
    chosen: dict[str, str] = {}

    def again(inputs: str) -> str:
        if made is None:
            return "nothing, no policy decides"
        if inputs not in chosen:
            try:
                chosen[inputs] = choice_text(made[0].choose(parse_canonical(inputs)))
            except Exception as error:  # noqa: BLE001  # whatever a policy raises on inputs that it did not write
                chosen[inputs] = f"none: {type(error).__name__}"
        return chosen[inputs]

    names, inputs, choices = (table.strings(name) for name in ("policy", "inputs", "choice"))
    name = engine.document.policy.name if engine.document.policy is not None else None
    rows = np.array([row for row, by in enumerate(names) if by != ENGINE], dtype=np.int64)
    must = [
        again(str(inputs[row])) if names[row] == name else f"none of {names[row]}" for row in rows.tolist()
    ]
    wrong = np.array(
        [choices[row] != text for row, text in zip(rows.tolist(), must, strict=True)], dtype=np.bool_
    )
    ledger.judge(
        "ST-AUD-084",
        wrong,
        lambda i: f"decision {rows[i]} is {choices[rows[i]]}, its inputs give {must[i]}",
        rows=rows,
        table="decisions",
        column="choice",
        hint="a choice depends on nothing but what is written down with it (ST-LIF-040)",
    )


def _judge_declared(case: Case) -> None:
    """What a call reused is what was decided (ST-AUD-084)."""
    declared = declared_reuse(case)
    reused = case.slots.execution.events.ints("reused_tokens")
    rows = np.flatnonzero(reused > 0)
    if declared is None or case.ledger.violated("ST-AUD-001") or not len(rows):
        return
    rows = np.array([row for row in rows.tolist() if row not in declared.doubtful], dtype=np.int64)
    said = np.array([declared.of.get(row, (0, 0))[0] for row in rows.tolist()], dtype=np.int64)
    case.ledger.judge(
        "ST-AUD-084",
        reused[rows] != said,
        lambda i: f"event {rows[i]} reused {reused[rows[i]]} tokens, the decisions say {said[i]}",
        rows=rows,
        table="events",
        column="reused_tokens",
    )


def _found(case: Case, pattern: re.Pattern[str]) -> Iterator[tuple[int, re.Match[str]]]:
    """Decisions with an action, by row."""
    for row, choice in enumerate(case.slots.execution["decisions"].strings("choice")):
        match = pattern.search(str(choice))
        if match is not None:
            yield row, match


def _judge_deadlines(judged: BlockCase) -> None:
    """A pin with a time ends by then, and lapses only then (ST-AUD-085)."""
    case, moves = judged.case, judged.moves
    table = case.slots.execution["decisions"]
    until: dict[tuple[int, int], int] = {}  # by time and event, until when to hold
    known: set[int] = set()
    early = False
    for row, match in _found(case, _UNTIL):
        at, event, end = int(table.ints("time_ns")[row]), int(table.ints("event")[row]), int(match[2])
        known.add(end)
        early |= match[1] == "prefetch"
        if match[1] == "keep":
            until[at, event] = end
    lapsed = np.flatnonzero(moves.device & (moves.change < 0) & moves.because("lapsed"))
    times = moves.time_ns[lapsed]
    loads = np.unique(moves.time_ns[moves.action == BlockAction.UPLOAD])
    due = np.isin(times, np.fromiter(known, dtype=np.int64, count=len(known)))
    due |= early & np.isin(times, loads)  # what comes after its time lapses at once
    judged.judge(
        "ST-AUD-085", lapsed, ~due, lambda i: f"no pin was to lapse at {times[i]} ns", column="time_ns"
    )
    kept = np.flatnonzero(moves.device & (moves.action == BlockAction.HIT) & moves.because("keep"))
    pairs = zip(moves.time_ns[kept].tolist(), moves.event[kept].tolist(), strict=True)
    ends = np.array([until.get(pair, NULL) for pair in pairs], dtype=np.int64)
    kept, ends = kept[ends != NULL], ends[ends != NULL]
    last = int(case.slots.finished.max(initial=0))
    kept, ends = kept[ends <= last], ends[ends <= last]  # what is to come after the run is not in it
    over = _next(moves.group, moves.device & (moves.change < 0) & ~moves.because(None, *HELD_ON))[kept]
    wrong = (over == NULL) | (moves.time_ns[over] > ends)
    judged.judge(
        "ST-AUD-085", kept, wrong, lambda i: f"it was to be held until {ends[i]} ns", column="time_ns"
    )


def _next(groups: NDArray[np.int64], marks: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For each position the first marked one after it in its group, `NULL` if there is none."""
    count = len(groups)
    places = np.flatnonzero(marks)
    at = np.searchsorted(places, np.arange(count), side="right")
    inside = at < len(places)
    found = places[np.where(inside, at, 0)] if len(places) else np.zeros(count, dtype=np.int64)
    if not len(places):
        return np.full(count, NULL, dtype=np.int64)
    return np.where(inside & (groups[found] == groups), found, NULL)


def _judge_reserved(case: Case, engine: Engine, steps: StepCase | None) -> None:
    """A step that admits none but calls that are not critical leaves the reserved blocks free (ST-AUD-086)."""
    ledger, table = case.ledger, case.slots.execution["decisions"]
    decided: list[tuple[int, int, int]] = []  # (server, time, blocks)
    for row, match in _found(case, _RESERVE):
        inputs: Any = parse_canonical(str(table.strings("inputs")[row]))
        server = inputs.get("server") if engine.settings.servers > 1 else 0
        if not isinstance(server, int):
            ledger.skip("ST-AUD-086", "which server is meant is not written down")
            return
        decided.append((server, int(table.ints("time_ns")[row]), int(match[1])))
    if not decided:
        return
    if steps is None or steps.spoilt.any():
        ledger.skip("ST-AUD-086", "steps were not recorded, or are reported")
        return
    runs = steps.steps
    opens = runs.of_slot[1]
    first = np.unique(np.concatenate([opens, np.flatnonzero(runs.walk.restarts)]))
    step = runs.first[first]
    critical = critical_calls(case.slots)[runs.slot[first]]
    admits = np.unique(step)
    spared = np.isin(admits, step[critical])  # a critical one may have taken them after the others
    admits = admits[~spared]
    reserved = np.zeros(len(admits), dtype=np.int64)
    for own in {server for server, _, _ in decided}:
        mine = [(time, blocks) for server, time, blocks in decided if server == own]
        times, sizes = (np.array(values, dtype=np.int64) for values in zip(*mine, strict=True))
        at = np.flatnonzero(runs.server[admits] == own)
        last = np.searchsorted(times, runs.start_ns[admits[at]], side="right") - 1
        reserved[at] = np.where(last >= 0, sizes[last], 0)
    wrong = runs.free_blocks[admits] < reserved
    steps.judge_steps(
        "ST-AUD-086",
        admits,
        wrong,
        lambda i: (
            f"{runs.free_blocks[admits[i]]} free blocks, {reserved[i]} were reserved for critical calls"
        ),
        column="free_blocks",
    )
