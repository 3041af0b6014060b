"""Runs: steps in a row in which nothing happens but that all running requests decode one token each.

A run is planned when it begins and has no effect until it ends or is cut. An arrival cuts it with the first step that ends
at that instant or later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semtrace.engine.cost import step_ns
from semtrace.engine.fast.layout import (
    ADMISSION_BITS,
    BASE,
    BASES,
    BEGIN,
    BLOCK_SIZE,
    BLOCKED,
    DECODING,
    DETAIL,
    END,
    ENDS,
    FIRST,
    FOUND_SALTED,
    FREE,
    GEOMETRY0,
    HORIZON,
    INTS0,
    INTS_END,
    KEY,
    KIND,
    LONGEST_RUN,
    MOST_REQUESTS,
    MOST_TOKENS,
    NEVER,
    NEXT,
    OVERFLOWED,
    RUN,
    RUNNING,
    STATIC,
    STEP,
    STEP_LOG_AT,
    STEP_ROW,
    STEPS,
    TELL_PRESSURE,
    TIME,
    WAITING,
    WATCHED,
    WATCHED_AT,
)
from semtrace.engine.fast.wheel import room, turn

if TYPE_CHECKING:
    from semtrace.engine.fast.numbers import Numbers


def is_steady(s: Numbers, server: int) -> bool:
    """Whether the next step can only be that all who run decode: nobody computes a prompt or could be admitted."""
    decoding = s[server + DECODING]
    if decoding == 0 or decoding != s[server + RUNNING] or decoding > s[MOST_TOKENS]:
        return False
    return bool(
        s[server + WAITING] == 0
        or s[STATIC]
        or (s[server + BLOCKED] and not s[TELL_PRESSURE])
        or decoding == s[MOST_TOKENS]
        or decoding == s[MOST_REQUESTS]
    )


def decode_geometry(s: Numbers, server: int, steps: int) -> None:
    """The geometry of a step in which all decode, after so many steps, itself included."""
    geometry = s[GEOMETRY0]
    decoding = s[server + DECODING]
    context = s[server + BASES] + decoding * steps
    s[geometry] = decoding
    s[geometry + 1] = 0
    s[geometry + 2] = decoding
    s[geometry + 3] = decoding
    s[geometry + 4] = 0
    s[geometry + 5] = 0
    s[geometry + 6] = context
    s[geometry + 7] = context


def cost(s: Numbers, f: Any) -> int:
    """The time of the step whose geometry is set, in ns."""
    return step_ns(s[KIND], s[s[INTS0] : s[INTS_END]], f, s[s[GEOMETRY0] : s[GEOMETRY0] + 8])


def advance(s: Numbers, f: Any, server: int, steps: int, until: int) -> int:
    """Steps of the run that begins at `BEGIN`, up to the first that ends at `until` or later; leaves its end in `TIME`."""
    time = s[server + BEGIN]
    done = s[server + STEPS]
    if s[KIND] != 0:
        for step in range(1, steps + 1):
            decode_geometry(s, server, done + step)
            time += cost(s, f)
            if time >= until:
                s[TIME] = time
                return step
        s[TIME] = time
        return steps
    # Linear (ST-COST-004): the ps of a step grow by the same in each step, so quotient and remainder are carried on.
    ints = s[INTS0]
    decoding = s[server + DECODING]
    ps = (
        s[ints]
        + (s[ints + 1] + s[ints + 3]) * decoding
        + s[ints + 4] * (s[server + BASES] + decoding * (done + 1))
    )
    more = s[ints + 4] * decoding
    whole = ps // 1000
    part = ps - whole * 1000
    more_whole = more // 1000
    more_part = more - more_whole * 1000
    for step in range(1, steps + 1):
        time += max(whole, 1)
        if time >= until:
            s[TIME] = time
            return step
        whole += more_whole
        part += more_part
        if part >= 1000:
            part -= 1000
            whole += 1
    s[TIME] = time
    return steps


def before_watched(s: Numbers, b: Numbers, server: int, steps: int) -> int:
    """How many of these steps come before the one in which a request fills the block that the blocked head waits for."""
    index = s[server + WATCHED_AT]
    filled = (index + 1) * s[BLOCK_SIZE] - s[server + STEPS]
    slot = s[server + FIRST]
    while slot != 0:
        until = filled - s[slot + BASE]
        if 0 < until <= steps and s[slot + FOUND_SALTED] + b[s[slot + KEY] + index] == s[server + WATCHED]:
            steps = until - 1
        slot = s[slot + NEXT]
    return steps


def plan(s: Numbers, b: Numbers, f: Any, server: int, now: int) -> int:
    """Begin a run now, up to the first end of a request; its steps, 0 if there can be none."""
    steps = (s[s[server + ENDS]] >> ADMISSION_BITS) - s[server + STEPS]
    steps = min(steps, s[LONGEST_RUN])
    steps = room(s, server, steps, s[server + FREE])
    if s[server + WAITING] > 0 and s[server + BLOCKED] and s[server + WATCHED] != 0:
        steps = before_watched(s, b, server, steps)
    if steps == 0:
        return 0
    s[server + BEGIN] = now
    steps = advance(s, f, server, steps, HORIZON)
    if s[TIME] >= HORIZON:
        s[OVERFLOWED] = 1
    s[server + RUN] = steps
    s[server + END] = s[TIME]
    return steps


def log_step(s: Numbers, server: int, index: int, begin: int, end: int) -> None:
    """A row for the step whose geometry is set."""
    geometry = s[GEOMETRY0]
    row = s[STEP_LOG_AT]
    s[row] = server
    s[row + 1] = index
    s[row + 2] = begin
    s[row + 3] = end
    s[row + 4] = s[geometry + 1] + s[geometry + 2]
    s[row + 5] = s[geometry]
    s[row + 6] = s[server + FREE]
    s[STEP_LOG_AT] = row + STEP_ROW


def log_steps(s: Numbers, b: Numbers, f: Any, server: int, steps: int) -> None:
    """Turn the wheel step by step, and log each."""
    time = s[server + BEGIN]
    for step in range(steps):
        turn(s, b, server, 1)
        decode_geometry(s, server, s[server + STEPS])
        end = time + cost(s, f)
        log_step(s, server, s[server + STEP] + step, time, end)
        time = end


def close(s: Numbers, b: Numbers, f: Any, server: int, until: int) -> None:
    """Let a run have happened, up to the first step that ends at `until` or later; the server is at work until then."""
    steps = s[server + RUN]
    if until < NEVER:
        steps = advance(s, f, server, steps, until)
        s[server + END] = s[TIME]
    if s[DETAIL]:
        log_steps(s, b, f, server, steps)
    else:
        turn(s, b, server, steps)
    s[server + STEP] += steps
    s[server + RUN] = 0
