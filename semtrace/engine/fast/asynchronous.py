"""Two steps in flight: a step is scheduled while the one before it computes, with placeholders for tokens not known yet.

The rules are those of `semtrace.engine.scheduler`. Every request is looked at in every step but those of runs (`ahead_runs`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semtrace.engine.fast.admission import admit, count_row, end_running, log_row, preempt
from semtrace.engine.fast.ahead_runs import close_ahead, plan_ahead, register_known
from semtrace.engine.fast.layout import (
    BASE,
    BLOCK_SIZE,
    CHUNK,
    COMPUTED,
    DECODE,
    DETAIL,
    END,
    ENDED,
    EVENT,
    FIRST,
    FIRST_TOKEN,
    FREE,
    GEOMETRY0,
    HELD,
    IN_FLIGHT,
    IN_STEP,
    LEFT_OUT,
    MOST_TOKENS,
    NEVER,
    NEXT,
    NEXT_END,
    NOW,
    ON_TOKEN,
    OPERATION,
    OUTPUT,
    OUTPUTS,
    PLACEHOLDERS,
    PREEMPTED,
    PREEMPTED_AT,
    PREFILL,
    PROMPT,
    RUN,
    RUNNING,
    SLOT,
    SLOTS,
    STALLED,
    STATIC,
    STEP,
    STEP_LISTS,
    TABLE,
    THRESHOLD,
    THRESHOLD_ALWAYS,
    TOKENS,
    WAITING,
)
from semtrace.engine.fast.pool import take
from semtrace.engine.fast.queue import withdraw
from semtrace.engine.fast.release import end_event, fire, later
from semtrace.engine.fast.runs import cost, log_step
from semtrace.engine.fast.scheduler import least

if TYPE_CHECKING:
    from semtrace.engine.fast.numbers import Numbers


def schedule_ahead(s: Numbers, b: Numbers, server: int, threshold: int) -> int:
    """Set the tokens of those who run, taking memory from others where there is none; the budget that is left.

    0 also if somebody was preempted: then nobody is admitted.
    """
    size = s[BLOCK_SIZE]
    slot = s[server + FIRST]
    while slot != 0:
        s[slot + CHUNK] = 0
        slot = s[slot + NEXT]
    budget = s[MOST_TOKENS]
    preempted = False
    alive = True
    slot = s[server + FIRST]
    while alive and slot != 0 and budget > 0:
        event = s[slot + EVENT]
        if s[slot + PLACEHOLDERS] == s[slot + LEFT_OUT]:
            slot = s[slot + NEXT]  # its last token is being computed
            continue
        known = s[s[event + OPERATION] + PROMPT] + s[event + OUTPUTS]
        tokens = known + s[slot + PLACEHOLDERS] - s[slot + BASE]
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
            held = s[slot + HELD]
            needed = -(-after // size)
            if needed > held:
                take(s, b, server, s[slot + TABLE] + held, needed - held, 0, 0, 0)
                s[slot + HELD] = needed
            register_known(s, b, slot, min(after, known))
            s[slot + CHUNK] = tokens
            budget -= tokens
            slot = s[slot + NEXT]
    return 0 if preempted else budget


def enter_step(s: Numbers, server: int, slot: int, place: int) -> None:
    """A request is in the step that is being scheduled; `place` is where it is listed."""
    event = s[slot + EVENT]
    tokens = s[slot + CHUNK]
    before = s[slot + BASE]
    after = before + tokens
    known = s[s[event + OPERATION] + PROMPT] + s[event + OUTPUTS]
    yields = 1 if after == known + s[slot + PLACEHOLDERS] else 0
    s[slot + BASE] = after
    s[slot + PLACEHOLDERS] += yields
    s[event + IN_FLIGHT] += 1
    s[place] = event * 2 + yields
    geometry = s[GEOMETRY0]
    s[geometry] += 1
    s[geometry + 3] += yields
    phase = DECODE
    if before < s[slot + TOKENS]:
        phase = PREFILL
        s[event + COMPUTED] += tokens
        s[geometry + 1] += tokens
        s[geometry + 4] += tokens * before + tokens * (tokens + 1) // 2
        s[geometry + 5] += after
    else:
        s[geometry + 2] += tokens
        s[geometry + 6] += after
        s[geometry + 7] += after
    if s[DETAIL]:
        count_row(s, slot, s[server + STEP], before, tokens, phase)


def start_ahead(s: Numbers, b: Numbers, f: Any, server: int) -> bool:
    """Schedule a step, if there is one; whether to try once more."""
    if plan_ahead(s, b, f, server):
        return False
    now = s[NOW]
    running = s[server + RUNNING]
    alone = running + s[server + WAITING] <= 1
    threshold = 0 if alone and not s[THRESHOLD_ALWAYS] else s[THRESHOLD]
    budget = schedule_ahead(s, b, server, threshold)
    preempted = running > s[server + RUNNING]
    if budget > 0 and not (s[STATIC] and running > 0):
        admit(s, b, server, threshold, budget, now)
    geometry = s[GEOMETRY0]
    for at in range(geometry, geometry + 8):
        s[at] = 0
    odd = s[server + STEP] & 1
    first = s[server + STEP_LISTS] + odd * s[SLOTS]
    slot = s[server + FIRST]
    while slot != 0:
        if s[slot + CHUNK] > 0:
            enter_step(s, server, slot, first + s[geometry])
        slot = s[slot + NEXT]
    idle = s[server + END] == NEVER
    if s[geometry] == 0:
        s[server + STALLED] = 0 if idle else 1
        return preempted and idle
    s[server + IN_STEP + odd] = s[geometry]
    end = later(s, now if idle else s[server + END], cost(s, f))
    s[server + END if idle else server + NEXT_END] = end
    if s[DETAIL]:
        log_step(s, server, s[server + STEP], now, end)
    s[server + STEP] += 1
    return idle


def end_oldest(s: Numbers, b: Numbers, f: Any, server: int) -> None:
    """The older step in flight ends now: tokens come, requests end, in the order in which they were scheduled."""
    now = s[NOW]
    if s[server + RUN] > 0:
        close_ahead(s, b, f, server, NEVER)
    odd = (s[server + STEP] - (1 if s[server + NEXT_END] == NEVER else 2)) & 1
    s[server + END] = s[server + NEXT_END]
    s[server + NEXT_END] = NEVER
    s[server + STALLED] = 0
    first = s[server + STEP_LISTS] + odd * s[SLOTS]
    for place in range(first, first + s[server + IN_STEP + odd]):
        event = s[place] >> 1
        s[event + IN_FLIGHT] -= 1
        if s[place] & 1 == 0 or s[event + ENDED] >= 0:
            continue
        s[event + OUTPUTS] += 1
        output = s[s[event + OPERATION] + OUTPUT]
        slot = s[event + SLOT]
        if slot != 0:
            s[slot + PLACEHOLDERS] -= 1
            s[slot + LEFT_OUT] -= 1
            register_known(s, b, slot, s[slot + BASE] - s[slot + PLACEHOLDERS])
        if s[event + FIRST_TOKEN] < 0 and output > 0:
            s[event + FIRST_TOKEN] = now
            fire(s, event, ON_TOKEN)
        if s[event + OUTPUTS] < max(output, 1):
            continue
        if slot != 0:
            if s[DETAIL]:
                log_row(s, slot)
            end_running(s, b, server, slot)
        else:  # it was preempted while its last token was computed
            s[event + PREEMPTED] += now - s[event + PREEMPTED_AT]
            withdraw(s, server, event)
        end_event(s, event)
