"""Runs with two steps in flight: all running requests decode one token in each step, and nobody ends or is admitted.

A run follows a step A that is in flight, in which all of them are. Its first step is scheduled when the run begins and computes
after A; each later one is scheduled when the step before the one before it ends. So when its n-th step has ended, n + 2 of
its steps are scheduled. As with `runs`, it has no effect until it ends or is cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semtrace.engine.fast.admission import count_row
from semtrace.engine.fast.layout import (
    BASE,
    BASES,
    BEGIN,
    BLOCK_SIZE,
    BLOCKED,
    BUCKET_COUNT,
    BUCKET_FIRST,
    BUCKET_LAST,
    BUCKET_SIZE,
    CACHING,
    DECODE,
    DECODING,
    DETAIL,
    END,
    EVENT,
    FIRST,
    FIRST_TOKEN,
    FOUND_SALTED,
    FREE,
    HELD,
    HORIZON,
    IN_FLIGHT,
    IN_STEP,
    KEY,
    LEFT_OUT,
    LONGEST_RUN,
    MOST_REQUESTS,
    MOST_TOKENS,
    NEVER,
    NEXT,
    NEXT_END,
    NOW,
    OUTPUTS,
    OVERFLOWED,
    PHASE_NEXT,
    PLACEHOLDERS,
    PLANNED,
    REGISTERED,
    ROW_COUNT,
    RUN,
    RUNNING,
    SLOTS,
    STALLED,
    STATIC,
    STEP,
    STEP_LISTS,
    TABLE,
    TELL_PRESSURE,
    TIME,
    TOKENS,
    WAITING,
    WATCHED,
    WATCHED_AT,
    WHEEL,
)
from semtrace.engine.fast.pool import register, take_one
from semtrace.engine.fast.runs import advance, cost, decode_geometry, log_step

if TYPE_CHECKING:
    from semtrace.engine.fast.numbers import Numbers


def register_known(s: Numbers, b: Numbers, slot: int, tokens: int) -> None:
    """Let the full blocks of a request's leading tokens be found."""
    if s[CACHING]:
        for index in range(s[slot + REGISTERED], tokens // s[BLOCK_SIZE]):
            register(s, b, b[s[slot + TABLE] + index], s[slot + FOUND_SALTED] + b[s[slot + KEY] + index])
            s[slot + REGISTERED] = index + 1


def longest_ahead(s: Numbers, b: Numbers, server: int) -> int:
    """How many steps can follow in which all decode, whatever memory there is; 0 if something else is to be done.

    Leaves the requests in the wheel, by the step in which they take a block, and the sum of their computed tokens.
    """
    running = s[server + RUNNING]
    if running == 0 or running > s[MOST_TOKENS] or s[server + END] == NEVER:
        return 0
    full = running == s[MOST_TOKENS] or running == s[MOST_REQUESTS] or s[STATIC]
    if s[server + WAITING] > 0 and not full and (not s[server + BLOCKED] or s[TELL_PRESSURE]):
        return 0
    if s[server + IN_STEP + ((s[server + STEP] - 1) & 1)] != running:
        return 0
    index = s[server + WATCHED_AT]
    filled = (index + 1) * s[BLOCK_SIZE]
    watched = s[server + WATCHED] if s[server + WAITING] > 0 and s[server + BLOCKED] else 0
    steps = s[LONGEST_RUN]
    bases = 0
    slot = s[server + FIRST]
    while slot != 0:
        event = s[slot + EVENT]
        base = s[slot + BASE]
        if (
            s[slot + PLACEHOLDERS] != 1
            or s[event + IN_FLIGHT] != 1
            or base < s[slot + TOKENS]
            or s[event + FIRST_TOKEN] < 0
        ):
            return 0
        steps = min(steps, s[slot + LEFT_OUT] - 1)
        if watched != 0:
            until = filled - base
            if (
                0 <= until < steps
                and s[slot + REGISTERED] <= index
                and s[slot + FOUND_SALTED] + b[s[slot + KEY] + index] == watched
            ):
                steps = until
        bases += base
        slot = s[slot + NEXT]
    s[server + BASES] = bases
    return steps


def fill_wheel(s: Numbers, server: int) -> None:
    """Put the requests into the wheel, by the step from now on in which they take a block."""
    size = s[BLOCK_SIZE]
    slot = s[server + FIRST]
    while slot != 0:
        bucket = s[server + WHEEL] + -s[slot + BASE] % size * BUCKET_SIZE
        s[slot + PHASE_NEXT] = 0
        if s[bucket + BUCKET_COUNT] == 0:
            s[bucket + BUCKET_FIRST] = slot
        else:
            s[s[bucket + BUCKET_LAST] + PHASE_NEXT] = slot
        s[bucket + BUCKET_LAST] = slot
        s[bucket + BUCKET_COUNT] += 1
        slot = s[slot + NEXT]


def empty_wheel(s: Numbers, server: int) -> None:
    """Take them out again; their computed tokens are as they were."""
    size = s[BLOCK_SIZE]
    slot = s[server + FIRST]
    while slot != 0:
        bucket = s[server + WHEEL] + -s[slot + BASE] % size * BUCKET_SIZE
        s[bucket + BUCKET_FIRST] = 0
        s[bucket + BUCKET_COUNT] = 0
        slot = s[slot + NEXT]
    s[server + DECODING] = 0


def room_ahead(s: Numbers, server: int, steps: int) -> int:
    """How many of these steps the free blocks last for."""
    size = s[BLOCK_SIZE]
    free = s[server + FREE]
    if s[server + RUNNING] * (steps // size + 1) <= free:
        return steps
    bucket = s[server + WHEEL]
    last = bucket + (size - 1) * BUCKET_SIZE
    for step in range(steps):
        free -= s[bucket + BUCKET_COUNT]
        if free < 0:
            return step
        bucket = bucket + BUCKET_SIZE if bucket < last else s[server + WHEEL]
    return steps


def plan_ahead(s: Numbers, b: Numbers, f: Any, server: int) -> bool:
    """Begin a run of at least two steps now, if there can be one."""
    steps = longest_ahead(s, b, server)
    if steps < 2:
        return False
    fill_wheel(s, server)
    steps = room_ahead(s, server, steps)
    if steps < 2:
        empty_wheel(s, server)
        return False
    s[server + DECODING] = s[server + RUNNING]
    s[server + BEGIN] = s[server + END]
    s[server + PLANNED] = s[NOW]
    s[server + RUN] = advance(s, f, server, steps - 1, HORIZON) + 1
    if s[TIME] >= HORIZON:
        s[OVERFLOWED] = 1
    s[server + END] = s[TIME]
    s[server + STALLED] = 1
    return True


def turn_ahead(s: Numbers, b: Numbers, f: Any, server: int, steps: int) -> None:
    """Schedule the first steps of a run: those whose blocks are full register the last one and take another."""
    bucket = s[server + WHEEL]
    last = bucket + (s[BLOCK_SIZE] - 1) * BUCKET_SIZE
    begin = s[server + PLANNED]
    time = s[server + BEGIN]
    for step in range(steps):
        slot = s[bucket + BUCKET_FIRST]
        while slot != 0:
            held = s[slot + HELD]
            take_one(s, b, server, s[slot + TABLE] + held)
            s[slot + HELD] = held + 1
            register_known(s, b, slot, s[slot + BASE] + step)
            slot = s[slot + PHASE_NEXT]
        bucket = bucket + BUCKET_SIZE if bucket < last else s[server + WHEEL]
        if s[DETAIL]:
            decode_geometry(s, server, step + 1)
            end = time + cost(s, f)
            log_step(s, server, s[server + STEP] + step, begin, end)
            begin = time
            time = end


def close_ahead(s: Numbers, b: Numbers, f: Any, server: int, until: int) -> None:
    """Let a run have happened, up to its first step, or A, that ends at `until` or later: that and the next are in flight."""
    ended = s[server + RUN] - 1
    end = s[server + END]
    if s[server + BEGIN] >= until:
        ended = 0
        end = s[server + BEGIN]
    elif until < NEVER:
        ended = advance(s, f, server, ended, until)
        end = s[TIME]
    decode_geometry(s, server, ended + 1)
    s[server + NEXT_END] = end + cost(s, f)
    s[server + END] = end
    turn_ahead(s, b, f, server, ended + 1)
    empty_wheel(s, server)
    step = s[server + STEP]
    younger = (step + ended) & 1
    place = s[server + STEP_LISTS]
    slot = s[server + FIRST]
    while slot != 0:
        event = s[slot + EVENT]
        if s[DETAIL]:
            count_row(s, slot, step, s[slot + BASE], 1, DECODE)
            s[slot + ROW_COUNT] += ended
        s[slot + BASE] += ended + 1
        s[slot + LEFT_OUT] -= ended
        s[slot + PLACEHOLDERS] = 2
        s[event + OUTPUTS] += ended
        s[event + IN_FLIGHT] = 2
        if ended > 0 or younger == 0:
            s[place] = event * 2 + 1
        if ended > 0 or younger == 1:
            s[place + s[SLOTS]] = event * 2 + 1
        place += 1
        slot = s[slot + NEXT]
    s[server + IN_STEP] = s[server + RUNNING]
    s[server + IN_STEP + 1] = s[server + RUNNING]
    s[server + STEP] = step + ended + 1
    s[server + RUN] = 0
    s[server + STALLED] = 0
