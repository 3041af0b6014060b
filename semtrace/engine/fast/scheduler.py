"""One step of a server, and its end: the rules of `semtrace.engine.scheduler`, which must give the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semtrace.engine.fast.admission import (
    admit,
    begin_decoding,
    compute,
    end_running,
    hold,
    log_decoded,
    preempt,
)
from semtrace.engine.fast.heap import pop
from semtrace.engine.fast.layout import (
    ADMISSION_BITS,
    BASE,
    BLOCK_SIZE,
    BUCKET_COUNT,
    BUCKET_SIZE,
    CHUNK,
    DECODING,
    DETAIL,
    END,
    ENDS,
    EVENT,
    FIRST,
    FIRST_TOKEN,
    FREE,
    GEOMETRY0,
    HELD,
    IS_DECODING,
    LAST,
    LAST_STEP,
    LEFT_OUT,
    MOST_TOKENS,
    NEVER,
    NEXT,
    NOW,
    ON_TOKEN,
    OPERATION,
    OUTPUT,
    PHASE_NOW,
    PREVIOUS,
    PRIORITY_ORDER,
    RUN,
    RUNNING,
    STATIC,
    STEP,
    STEPS,
    THRESHOLD,
    THRESHOLD_ALWAYS,
    TOKENS,
    WAITING,
    WHEEL,
    YIELDING,
    YIELDING_END,
)
from semtrace.engine.fast.queue import is_before
from semtrace.engine.fast.release import end_event, fire, later
from semtrace.engine.fast.runs import close, cost, decode_geometry, is_steady, log_step, plan
from semtrace.engine.fast.wheel import empty, enter, leave, turn

if TYPE_CHECKING:
    from semtrace.engine.fast.numbers import Numbers


def first_chunk(s: Numbers, server: int) -> int:
    """The first request that is not decoding, 0 if all are; -1 if one that decodes comes after it."""
    slot = 0
    before = s[server + LAST]
    for _ in range(s[server + RUNNING] - s[server + DECODING]):
        slot = before
        if s[slot + IS_DECODING]:
            return -1
        before = s[slot + PREVIOUS]
    return slot


def share_out(s: Numbers, server: int, first: int, threshold: int) -> bool:
    """Set the tokens of those that compute prompts, after those that decode; whether budget and memory suffice for all."""
    size = s[BLOCK_SIZE]
    budget = s[MOST_TOKENS] - s[server + DECODING]
    if budget < 0:
        return False
    free = s[server + FREE] - s[s[server + WHEEL] + s[server + PHASE_NOW] * BUCKET_SIZE + BUCKET_COUNT]
    slot = first
    while slot != 0:
        tokens = 0
        if budget > 0:
            tokens = s[slot + TOKENS] - s[slot + BASE]
            if threshold > 0:
                tokens = min(tokens, threshold)
            tokens = min(tokens, budget)
            budget -= tokens
            free -= -(-(s[slot + BASE] + tokens) // size) - s[slot + HELD]
        s[slot + CHUNK] = tokens
        slot = s[slot + NEXT]
    return bool(free >= 0)


def schedule_in_turn(s: Numbers, b: Numbers, server: int, first: int) -> int:
    """Schedule those who run, as shared out; the budget that is left."""
    budget = s[MOST_TOKENS] - s[server + DECODING]
    turn(s, b, server, 1)
    decode_geometry(s, server, s[server + STEPS])
    slot = first
    while slot != 0:
        tokens = s[slot + CHUNK]
        if tokens > 0:
            hold(s, b, server, slot, s[slot + BASE] + tokens)
            compute(s, server, slot, tokens)
            budget -= tokens
        slot = s[slot + NEXT]
    return budget


def least(s: Numbers, server: int) -> int:
    """Who loses its memory: the last admitted; by priority the one served last."""
    victim = s[server + LAST]
    if s[PRIORITY_ORDER]:
        slot = s[victim + PREVIOUS]
        while slot != 0:
            if is_before(s, s[victim + EVENT], s[slot + EVENT]):
                victim = slot
            slot = s[slot + PREVIOUS]
    return victim


def resume_turning(s: Numbers, server: int, exists: bool) -> None:
    """After a step scheduled one by one, if it exists: count it, and put those who decode back into the wheel."""
    size = s[BLOCK_SIZE]
    s[server + STEPS] += 1
    s[server + PHASE_NOW] = s[server + PHASE_NOW] - 1 if s[server + PHASE_NOW] > 0 else size - 1
    geometry = s[GEOMETRY0]
    for at in range(geometry, geometry + 8):
        s[at] = 0
    slot = s[server + FIRST]
    while slot != 0:
        tokens = s[slot + CHUNK]
        if s[slot + IS_DECODING]:
            if s[DETAIL] and exists and tokens == 0:
                log_decoded(s, slot, s[server + STEP])
                begin_decoding(s, slot, s[server + STEP] + 1, s[slot + BASE])
            enter(s, server, slot, s[slot + BASE] + tokens, s[slot + LEFT_OUT] - tokens)
            s[geometry] += tokens
            s[geometry + 2] += tokens
            s[geometry + 3] += tokens
            s[geometry + 6] += tokens * (s[slot + TOKENS])
            s[geometry + 7] += tokens * (s[slot + TOKENS])
        elif tokens > 0:
            compute(s, server, slot, tokens)
        slot = s[slot + NEXT]


def schedule_one_by_one(s: Numbers, b: Numbers, server: int, threshold: int) -> int:
    """Schedule those who run one by one, taking memory from others where there is none; the budget that is left.

    0 also if somebody was preempted: then nobody is admitted.
    """
    size = s[BLOCK_SIZE]
    steps = s[server + STEPS]
    slot = s[server + FIRST]
    while slot != 0:
        if s[slot + IS_DECODING]:
            s[slot + BASE] += steps
            s[slot + TOKENS] = s[slot + BASE] + 1
            s[slot + LEFT_OUT] = s[slot + LAST_STEP] - steps
        s[slot + CHUNK] = 0
        slot = s[slot + NEXT]
    empty(s, server)
    budget = s[MOST_TOKENS]
    preempted = False
    alive = True
    slot = s[server + FIRST]
    while alive and slot != 0 and budget > 0:
        tokens = s[slot + TOKENS] - s[slot + BASE]
        if threshold > 0:
            tokens = min(tokens, threshold)
        tokens = min(tokens, budget)
        after = s[slot + BASE] + tokens
        while -(-after // size) - s[slot + HELD] > s[server + FREE]:
            victim = least(s, server)
            budget += s[victim + CHUNK]
            preempt(s, b, server, victim)
            preempted = True
            if victim == slot:
                alive = False
                break
        if alive:
            hold(s, b, server, slot, after)
            s[slot + CHUNK] = tokens
            budget -= tokens
            slot = s[slot + NEXT]
    resume_turning(s, server, budget < s[MOST_TOKENS])
    return 0 if preempted else budget


def start(s: Numbers, b: Numbers, f: Any, server: int) -> bool:
    """An idle server starts a run or a step, if it can; whether it should try again, having preempted all it ran."""
    now = s[NOW]
    if is_steady(s, server) and plan(s, b, f, server, now) > 0:
        return False
    alone = s[server + RUNNING] + s[server + WAITING] <= 1
    threshold = 0 if alone and not s[THRESHOLD_ALWAYS] else s[THRESHOLD]
    running = s[server + RUNNING]
    closed = s[STATIC] and running > 0
    first = first_chunk(s, server)
    if first >= 0 and share_out(s, server, first, threshold):
        budget = schedule_in_turn(s, b, server, first)
    else:
        budget = schedule_one_by_one(s, b, server, threshold)
    if budget > 0 and not closed:
        admit(s, b, server, threshold, budget, now)
    geometry = s[GEOMETRY0]
    if s[geometry] == 0:
        return running > s[server + RUNNING]
    end = later(s, now, cost(s, f))
    s[server + END] = end
    if s[DETAIL]:
        log_step(s, server, s[server + STEP], now, end)
    s[server + STEP] += 1
    return False


def end_step(s: Numbers, b: Numbers, f: Any, server: int) -> None:
    """The server's step or run ends now: tokens come, requests end in the order in which they were admitted."""
    now = s[NOW]
    s[server + END] = NEVER
    if s[server + RUN] > 0:
        close(s, b, f, server, NEVER)
    steps = s[server + STEPS]
    heap = s[server + ENDS]
    for place in range(s[server + YIELDING], s[server + YIELDING_END]):
        slot = s[place]
        event = s[slot + EVENT]
        left = s[slot + LEFT_OUT] - 1
        s[slot + LEFT_OUT] = left
        if s[event + FIRST_TOKEN] < 0 and s[s[event + OPERATION] + OUTPUT] > 0:
            s[event + FIRST_TOKEN] = now
            fire(s, event, ON_TOKEN)
        if s[DETAIL]:
            begin_decoding(s, slot, s[server + STEP], s[slot + BASE])
        enter(s, server, slot, s[slot + BASE], left)
    s[server + YIELDING_END] = s[server + YIELDING]
    while s[server + DECODING] > 0 and s[heap] >> ADMISSION_BITS <= steps:
        slot = s[heap + 1]
        pop(s, heap, s[server + DECODING])
        leave(s, server, slot)
        if s[DETAIL]:
            log_decoded(s, slot, s[server + STEP])
        end_running(s, b, server, slot)
        end_event(s, s[slot + EVENT])
