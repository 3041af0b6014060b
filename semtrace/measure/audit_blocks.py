"""Audit rules on KV blocks: who holds which, what is in them, and that what is computed has room."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from semtrace.measure.audit_steps import OF_ALL as STEP_RULES
from semtrace.measure.block_moves import LOST, MOST, UNTOLD, BlockMoves
from semtrace.measure.recorded_engine import Memory, recorded
from semtrace.measure.slots import ranges
from semtrace.policies.interface import TierName
from semtrace.records.columns import NULL
from semtrace.records.enums import BlockAction, EventOutcome, Tier

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from semtrace.measure.audit_events import Case
    from semtrace.measure.audit_steps import StepCase
    from semtrace.measure.recorded_engine import Engine

RULES: Final = tuple(f"ST-AUD-0{number}" for number in range(71, 80))
"""The rules of this module."""
LATER: Final = tuple(f"ST-AUD-0{number}" for number in range(80, 87))
"""The rules on transfers and decisions."""
TIERS: Final = {Tier.HOST: TierName.HOST, Tier.REMOTE: TierName.REMOTE}


@dataclass
class BlockCase:
    """Blocks that are audited.

    Attributes:
        case: what is audited.
        memory: the memory that they are of.
        steps: the steps; None where they were not recorded, or cannot be judged.
        moves: what happened to its blocks.
    """

    case: Case
    memory: Memory
    steps: StepCase | None
    moves: BlockMoves

    def judge(
        self,
        requirement: str,
        at: NDArray[np.int64],
        wrong: NDArray[np.bool_],
        message: Callable[[int], str],
        *,
        column: str = "first_block",
    ) -> bool:
        """Judge entries: whether any of them violates the rule."""
        moves = self.moves
        self.case.ledger.judge(
            requirement,
            wrong,
            lambda i: f"{self.name(int(at[i]))}: {message(i)}",
            rows=moves.row[at],
            table="blocks",
            column=column,
        )
        return bool(wrong.any())

    def name(self, entry: int) -> str:
        """An entry as messages name it."""
        place, action = int(self.moves.place[entry]), int(self.moves.action[entry])
        where = f"{Tier(place & 0xFF).name.lower()} of server {place >> 8}"
        return f"{BlockAction(action).name.lower()} of block {self.moves.block[entry]} ({where}) at {self.moves.time_ns[entry]} ns"

    @cached_property
    def calls(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """What calls took and gave back on devices themselves (`BlockMoves.calls`)."""
        return self.moves.calls()


def judge_blocks(case: Case, engine: Engine | None, steps: StepCase | None) -> BlockCase | None:
    """All rules on blocks (ST-AUD-071 to ST-AUD-079), where an engine recorded them, or a server's record was joined (ST-VLM-017).

    Returns:
        What was found; None where there are none to judge, or what happened to them is not possible.
    """
    table = case.slots.execution["blocks"]
    memory = Memory.of(case.slots.execution, engine)
    if memory is None or not recorded(case.slots.execution, "blocks"):
        return None
    reported = {found.table for found in case.ledger.findings if found.requirement == "ST-AUD-007"}
    if reported & {"blocks", "events"} or case.ledger.violated("ST-AUD-001"):
        _left(case, "the tables are not well formed or not whole, which is reported", 0)
        return None
    if not _judge_ids(case, memory):
        _left(case, "there are no such blocks, which is reported", 1)
        return None
    if int(table.ints("blocks").sum()) > MOST:
        _left(case, f"there are more than {MOST:,} moves of blocks", 1)
        return None
    judged = BlockCase(case, memory, steps, BlockMoves.of(case.slots))
    if _judge_holders(judged) or _judge_kept(judged) or _judge_references(judged):
        _left(case, "what holds blocks is reported", 4)
        return None
    _judge_bytes(judged)
    _judge_content(judged)
    if steps is not None and not any(case.ledger.violated(rule) for rule in STEP_RULES):
        _judge_free(judged, steps)
        _judge_room(judged, steps)
        _judge_shared(judged, steps)
    else:
        for rule in ("ST-AUD-075", "ST-AUD-076", "ST-AUD-079"):
            case.ledger.skip(rule, "steps were not recorded, or are reported")
    return judged


def _left(case: Case, reason: str, first: int) -> None:
    """Say that the rules from the n-th on are not judged."""
    for rule in RULES[first:]:
        case.ledger.skip(rule, reason)


def _judge_ids(case: Case, memory: Memory) -> bool:
    """Every block is one that its memory has (ST-AUD-071): whether it is so."""
    table, ledger = case.slots.execution["blocks"], case.ledger
    tier, server = table.ints("tier"), table.ints("server")
    first, count = table.ints("first_block"), table.ints("blocks")
    least = np.where(tier == Tier.DEVICE, 1, 0)
    most = np.zeros(256, dtype=np.int64)
    most[Tier.DEVICE] = memory.blocks
    for number, name in TIERS.items():
        most[number] = memory.tiers.get(name, 0)
    most_of = most[np.clip(tier, 0, 255)]
    wrong = (first == NULL) | (first < least) | (first + count > most_of) | (count < 1)
    wrong |= server >= memory.servers

    def told(row: int) -> str:
        which = "no id" if first[row] == NULL else f"blocks {first[row]} to {first[row] + count[row] - 1}"
        return f"row {row} has {which} on server {server[row]}: there are {least[row]} to {most_of[row] - 1}"

    rows = np.arange(table.rows, dtype=np.int64)
    ledger.judge("ST-AUD-071", wrong, told, rows=rows, table="blocks", column="first_block")
    return not wrong.any()


def _judge_holders(judged: BlockCase) -> bool:
    """Nothing is taken that somebody holds, or given back that nobody does (ST-AUD-072)."""
    moves = judged.moves
    had = moves.holders - moves.change
    taken = moves.action == BlockAction.ALLOCATE
    above = moves.held_before
    kept = (above != NULL) & (moves.action[above] == BlockAction.ALLOCATE) & ~moves.device
    wrong = (taken & ((had > 0) | kept)) | (moves.holders < 0)
    every = np.arange(len(moves), dtype=np.int64)
    return judged.judge(
        "ST-AUD-072",
        every,
        wrong,
        lambda i: f"it had {had[i]} holders" + (" and kept something" if taken[i] and kept[i] else ""),
    )


def _judge_kept(judged: BlockCase) -> bool:
    """No content is given up while somebody holds it, or that is not there (ST-AUD-073)."""
    moves = judged.moves
    at = np.flatnonzero((moves.action == BlockAction.EVICT) | (moves.action == BlockAction.DROP))
    above = moves.held_before[at]
    empty = (above == NULL) | (moves.action[above] != BlockAction.ALLOCATE)
    held = moves.holders[at] > 0
    return judged.judge(
        "ST-AUD-073",
        at,
        held | empty,
        lambda i: f"it has {moves.holders[at[i]]} holders" if held[i] else "it keeps nothing",
    )


def _judge_references(judged: BlockCase) -> bool:
    """What a call gives back it took, and none holds a block when it has ended (ST-AUD-074)."""
    moves, events = judged.moves, judged.case.slots.execution.events
    order, held = judged.calls
    wrong = (held < 0) | (held > 1)
    last = np.ones(len(order), dtype=np.bool_)
    last[:-1] = (moves.group[order[1:]] != moves.group[order[:-1]]) | (
        moves.event[order[1:]] != moves.event[order[:-1]]
    )
    finished = events.ints("finished_ns")[moves.event[order]]
    kept = last & (held > 0) & (finished != NULL)
    late = (finished != NULL) & (moves.time_ns[order] > finished)
    return judged.judge(
        "ST-AUD-074",
        order,
        wrong | kept | late,
        lambda i: (
            f"event {moves.event[order[i]]} holds it {held[i]} times"
            if wrong[i]
            else f"event {moves.event[order[i]]} ended at {finished[i]} ns"
        ),
        column="event",
    )


def judge_drained(judged: BlockCase) -> None:
    """When all is over nobody holds a block, nor reads one: what a policy held is let go too (ST-AUD-074).

    It is judged last, where no other rule on blocks has found why one is held.
    """
    moves = judged.moves
    if any(judged.case.ledger.violated(rule) for rule in (*RULES, *LATER)):
        judged.case.ledger.skip("ST-AUD-074", "what holds blocks in the end may follow from what is reported")
        return
    if (judged.case.slots.execution.events.ints("outcome") == EventOutcome.UNFINISHED).any():
        judged.case.ledger.skip("ST-AUD-074", "some event has not ended, so blocks may still be held")
        return
    last = np.flatnonzero(np.diff(moves.group, append=NULL) != 0)
    judged.judge(
        "ST-AUD-074",
        last,
        moves.holders[last] > 0,
        lambda i: f"all events have ended, and it has {moves.holders[last[i]]} holders",
    )


def _judge_bytes(judged: BlockCase) -> None:
    """Bytes are blocks times the bytes of a block (ST-AUD-077)."""
    size = judged.memory.block_bytes
    for name in ("blocks", "transfers"):
        table = judged.case.slots.execution[name]
        rows = np.arange(table.rows, dtype=np.int64)
        if size is None:
            judged.case.ledger.skip("ST-AUD-077", "the bytes of a block are not known", table.rows)
            continue
        told, blocks = table.ints("bytes"), table.ints("blocks")
        rows = rows[blocks != NULL]
        judged.case.ledger.judge(
            "ST-AUD-077",
            told[rows] != blocks[rows] * size,
            lambda i, t=told, b=blocks, r=rows: (
                f"row {r[i]} has {t[r[i]]} bytes, {b[r[i]]} blocks of {size} bytes"
            ),  # type: ignore[misc]  # mypy cannot infer a lambda with a default
            rows=rows,
            table=name,
            column="bytes",
        )


def _judge_content(judged: BlockCase) -> None:
    """What is hit holds the tokens that it is hit for (ST-AUD-078)."""
    moves, keys = judged.moves, judged.moves.keys
    events = judged.case.slots.execution.events
    hits = moves.device & (moves.action == BlockAction.HIT)
    hits &= ~moves.because("borrow")  # approximate, and declared
    at = np.flatnonzero(hits)
    if keys is None:
        judged.case.ledger.skip("ST-AUD-078", "the keys of blocks are not known", len(at))
        return
    wanted = keys.find(moves.event[at], moves.position[at])
    above = moves.held_before[at]
    there = (above != NULL) & (moves.action[above] == BlockAction.ALLOCATE)
    content = np.where(there, keys.find(moves.event[above], moves.position[above]), LOST)
    # What a call borrows for its reuse, beside its hits, is no hit.
    reuses = events.ints("reused_tokens")[moves.event[at]] > 0
    borrowed = reuses & moves.because(None)[at] & (wanted == LOST)
    unknown = (wanted == UNTOLD) | (content == UNTOLD) | borrowed
    judged.case.ledger.skip(
        "ST-AUD-078", "it is reused, or what it is hit for is not told", int(unknown.sum())
    )
    at, wanted, content = at[~unknown], wanted[~unknown], content[~unknown]
    wrong = (wanted == LOST) | (content != wanted)
    judged.judge(
        "ST-AUD-078",
        at,
        wrong,
        lambda i: (
            f"block {moves.position[at[i]]} of event {moves.event[at[i]]} is not full"
            if wanted[i] == LOST
            else f"it does not hold block {moves.position[at[i]]} of event {moves.event[at[i]]}"
        ),
    )


def _judge_free(judged: BlockCase, steps: StepCase) -> None:
    """Free blocks of a step are those that nobody holds (ST-AUD-075)."""
    moves, seen = judged.moves, steps.steps
    at = np.flatnonzero(moves.device)
    # A block is held from when its holders become more than 0 until they are 0.
    was = (moves.holders - moves.change)[at] > 0
    change = (moves.holders[at] > 0).astype(np.int64) - was
    server, time = moves.place[at] >> 8, moves.time_ns[at]
    order = np.lexsort((time, server))
    held = np.concatenate([[0], np.cumsum(change[order])])
    # Of steps that start in one instant the last is judged: what happened between them has no order with them.
    alone = np.ones(seen.count, dtype=np.bool_)
    alone[:-1] = (seen.server[1:] != seen.server[:-1]) | (seen.start_ns[1:] != seen.start_ns[:-1])
    alone &= ~steps.spoilt
    step = np.flatnonzero(alone)
    free, late = np.zeros(len(step), dtype=np.int64), np.zeros(len(step), dtype=np.int64)
    # A pin that ends because its call is admitted on a server after this one frees blocks that the step did not see free.
    # With two steps in flight, so does a preemption by a step that was tried in the same instant, and came to nothing.
    freed = change < 0
    ended = judged.case.slots.execution.events.ints("finished_ns")[moves.event[at]] == moves.time_ns[at]
    tried = moves.because(None)[at] & ~ended & (judged.memory.depth == 2)
    used = at[freed & (moves.because("used")[at] | tried)]
    for own in np.unique(seen.server).tolist():
        low, high = np.searchsorted(server[order], [own, own + 1])
        mine = seen.server[step] == own
        upto = np.searchsorted(time[order][low:high], seen.start_ns[step[mine]], side="right")
        free[mine] = judged.memory.blocks - 1 - (held[low + upto] - held[low])
        ends = np.sort(moves.time_ns[used[moves.place[used] >> 8 == own]])
        now = seen.start_ns[step[mine]]
        late[mine] = np.searchsorted(ends, now, side="right") - np.searchsorted(ends, now, side="left")
    steps.judge_steps(
        "ST-AUD-075",
        step,
        (seen.free_blocks[step] > free) | (seen.free_blocks[step] < free - late),
        lambda i: f"{seen.free_blocks[step[i]]} free blocks, {free[i]} are held by nobody",
        column="free_blocks",
    )


def _judge_room(judged: BlockCase, steps: StepCase) -> None:
    """A call holds the blocks of all its computed tokens, and no more (ST-AUD-076)."""
    runs, moves, slots = steps.steps, judged.moves, judged.case.slots
    size = judged.memory.block_size
    # A block is needed from the step on that computes its first token; and at the end of each run.
    end = runs.end_position
    low, high = -(-runs.position // size), -(-end // size)
    new = np.maximum(high - low, 0)
    run = np.concatenate(
        [np.repeat(np.arange(len(new), dtype=np.int64), new), np.arange(len(new), dtype=np.int64)]
    )
    block = ranges(low, new)
    step = (
        runs.first[run[: len(block)]]
        + (block * size - runs.position[run[: len(block)]]) // runs.each[run[: len(block)]]
    )
    need = np.concatenate([block + 1, high])
    step = np.concatenate([step, runs.last - 1])
    exact = np.concatenate([np.zeros(len(block), dtype=np.bool_), np.ones(len(new), dtype=np.bool_)])
    if judged.memory.depth == 2:
        exact[:] = False  # the next step may have been scheduled in the same instant
    slot = runs.slot[run]
    exact &= slots.seen("reused_tokens")[slot] <= 0  # blocks that it takes beside
    event, time = slots.event[slot], runs.start_ns[step]
    order, _ = judged.calls
    times = np.unique(np.concatenate([moves.time_ns[order], time]))
    place = len(times) + 1
    key = moves.event[order] * place + np.searchsorted(times, moves.time_ns[order])
    sort = np.argsort(key, kind="stable")
    key = key[sort]
    sums = np.concatenate([[0], np.cumsum(moves.change[order][sort])])
    begin = np.searchsorted(key, event * place, side="left")
    upto = np.searchsorted(key, event * place + np.searchsorted(times, time), side="right")
    held = sums[upto] - sums[begin]
    wrong = (held < need) | (exact & (held > need))
    if (
        judged.memory.depth == 2
    ):  # who was preempted for the next step in the same instant has lost its blocks again
        lost = np.unique(key[(moves.change[order] < 0)[sort]])
        wrong &= ~np.isin(event * place + np.searchsorted(times, time), lost)
    steps.case.ledger.judge(
        "ST-AUD-076",
        wrong,
        lambda i: (
            f"event {event[i]} holds {held[i]} blocks in step {steps.name(int(step[i]))}, its tokens take {need[i]}"
        ),
        rows=runs.row[run],
        table="step_runs",
        column="event",
    )


def _judge_shared(judged: BlockCase, steps: StepCase) -> None:
    """What is hit was computed, or is in the same step, and is not written (ST-AUD-079)."""
    runs, moves, slots = steps.steps, judged.moves, judged.case.slots
    size = judged.memory.block_size
    slot_of = np.full(slots.execution.events.rows, NULL, dtype=np.int64)
    slot_of[slots.event[slots.present]] = np.flatnonzero(slots.present)
    own = moves.event != NULL  # of others on a server nothing is known (ST-VLM-015)
    hits = np.flatnonzero(moves.device & (moves.action == BlockAction.HIT) & moves.because(None) & own)
    start = runs.start_ns[runs.first]
    times = np.unique(np.concatenate([moves.time_ns, start]))
    width = len(times) + 1
    key = runs.slot * width + np.searchsorted(times, start)

    def run_at(slot: NDArray[np.int64], time: NDArray[np.int64]) -> NDArray[np.int64]:
        """The last run of a slot that began at or before a time, `NULL` if there is none."""
        found = np.searchsorted(key, slot * width + np.searchsorted(times, time), side="right") - 1
        return np.where((found >= 0) & (runs.slot[found] == slot), found, NULL)

    slot = slot_of[moves.event[hits]]
    run = run_at(slot, moves.time_ns[hits])
    begins = (run != NULL) & (start[run] == moves.time_ns[hits])
    reuses = slots.seen("reused_tokens")[slot] > 0
    written = begins & ~reuses & ((moves.position[hits] + 1) * size > runs.position[run])
    above = moves.held_before[hits]
    made = (above != NULL) & ~moves.because("load")[above]
    steps.case.ledger.skip(
        "ST-AUD-079", "it was filled for a request of others", int((made & ~own[above]).sum())
    )
    made &= own[above]
    maker = np.where(made, moves.event[above], 0)
    of = slot_of[maker]
    # Up to the step that is scheduled now, or all of it if it has ended.
    ran = run_at(of, moves.time_ns[hits])
    computed = np.zeros(len(hits), dtype=np.int64)
    for server in np.unique(runs.server).tolist():
        low, high = np.searchsorted(runs.server, [server, server + 1])
        mine = np.flatnonzero(made & (ran != NULL) & (moves.place[hits] >> 8 == server))
        began = low + np.searchsorted(runs.start_ns[low:high], moves.time_ns[hits[mine]], side="right")
        count = np.clip(began - runs.first[ran[mine]], 0, (runs.last - runs.first)[ran[mine]])
        computed[mine] = runs.position[ran[mine]] + count * runs.each[ran[mine]]
    # What a preempted request had computed is in its earlier runs, and ST-ENG-034 excepts some of it.
    preempted = slots.preemptions[of] != 0
    early = made & ~preempted & ((moves.position[above] + 1) * size > computed)
    steps.case.ledger.skip(
        "ST-AUD-079", "it was filled for a request that was preempted", int((made & preempted).sum())
    )
    judged.judge(
        "ST-AUD-079",
        hits,
        written | early,
        lambda i: (
            f"event {moves.event[hits[i]]} goes on from token {runs.position[run[i]]}, in it"
            if written[i]
            else f"event {maker[i]} has computed {computed[i]} tokens, not all of its"
        ),
    )
