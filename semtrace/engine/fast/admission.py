"""Requests come into a server's memory and go out of it: admission, the blocks of a prompt, preemption, the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semtrace.engine.fast.layout import (
    ADMISSION,
    ADMISSIONS,
    ASYNCHRONOUS,
    BASE,
    BLOCK_SIZE,
    BLOCKED,
    CACHED,
    CACHING,
    CALL_ADMITTED,
    CHUNK,
    CHUNKED,
    COMPUTED,
    DECODE,
    DECODING,
    DETAIL,
    DRIVEN,
    EVENT,
    FIRST,
    FOUND,
    FOUND_SALTED,
    FREE,
    GEOMETRY0,
    HELD,
    HELD_BACK,
    HOLDERS,
    IN_FLIGHT,
    INSTANCE,
    IS_CRITICAL,
    IS_DECODING,
    KEY,
    KEYS,
    LAST,
    LEFT_OUT,
    MOST_REQUESTS,
    MOST_TOKENS,
    NEXT,
    NEXT_WAITING,
    NOW,
    OPERATION,
    OUTPUT,
    OUTPUTS,
    PLACEHOLDERS,
    PREEMPTED,
    PREEMPTED_AT,
    PREEMPTIONS,
    PREFILL,
    PRESSED,
    PREVIOUS,
    PROMPT,
    REGISTERED,
    RESERVE,
    RESERVED,
    ROW_COUNT,
    ROW_FIRST,
    ROW_PHASE,
    ROW_START,
    ROW_TOKENS,
    RUN_LOG_AT,
    RUN_ROW,
    RUNNING,
    SALT,
    SCHEDULED,
    SLOT,
    SPARE_END,
    STEP,
    TABLE,
    TOKENS,
    WAITING,
    WAITING_FIRST,
    WATCHED,
    WATCHED_AT,
    WATERMARK,
    YIELDING_END,
)
from semtrace.engine.fast.news import note
from semtrace.engine.fast.pool import register, release, share, take
from semtrace.engine.fast.queue import dequeue, requeue

if TYPE_CHECKING:
    from semtrace.engine.fast.numbers import Numbers


def log_row(s: Numbers, slot: int) -> None:
    """Log the steps in which a request got the same number of tokens, if there are any."""
    if s[slot + ROW_COUNT] > 0:
        row = s[RUN_LOG_AT]
        s[row] = s[slot + EVENT]
        s[row + 1] = s[slot + ROW_FIRST]
        s[row + 2] = s[slot + ROW_COUNT]
        s[row + 3] = s[slot + ROW_START]
        s[row + 4] = s[slot + ROW_TOKENS]
        s[row + 5] = s[slot + ROW_PHASE]
        s[RUN_LOG_AT] = row + RUN_ROW
        s[slot + ROW_COUNT] = 0


def count_row(s: Numbers, slot: int, step: int, computed: int, tokens: int, phase: int) -> None:
    """For the log: a request gets tokens in a step, as in the step before or not."""
    if (
        s[slot + ROW_TOKENS] != tokens
        or s[slot + ROW_PHASE] != phase
        or s[slot + ROW_FIRST] + s[slot + ROW_COUNT] != step
    ):
        log_row(s, slot)
        s[slot + ROW_FIRST] = step
        s[slot + ROW_START] = computed
        s[slot + ROW_TOKENS] = tokens
        s[slot + ROW_PHASE] = phase
    s[slot + ROW_COUNT] += 1


def log_decoded(s: Numbers, slot: int, step: int) -> None:
    """Log the steps before this one in which a request decoded without a gap."""
    s[slot + ROW_COUNT] = step - s[slot + ROW_FIRST]
    log_row(s, slot)


def begin_decoding(s: Numbers, slot: int, step: int, computed: int) -> None:
    """For the log: a request decodes from this step on."""
    log_row(s, slot)
    s[slot + ROW_FIRST] = step
    s[slot + ROW_START] = computed
    s[slot + ROW_TOKENS] = 1
    s[slot + ROW_PHASE] = DECODE


def hold(s: Numbers, b: Numbers, server: int, slot: int, tokens: int) -> None:
    """Take the blocks for the first so many tokens of a request, and register those that they fill."""
    size = s[BLOCK_SIZE]
    table = s[slot + TABLE]
    held = s[slot + HELD]
    key = s[slot + KEY]
    found = s[slot + FOUND_SALTED]
    full = tokens // size if s[CACHING] else 0
    for index in range(s[slot + BASE] // size, min(held, full)):
        register(s, b, b[table + index], found + b[key + index])
    needed = -(-tokens // size)
    if needed > held:
        take(s, b, server, table + held, needed - held, full - held, key + held, found)
        s[slot + HELD] = needed


def compute(s: Numbers, server: int, slot: int, tokens: int) -> None:
    """Count a step's tokens of a request that computes what it had when it was admitted; its blocks are taken."""
    computed = s[slot + BASE]
    after = computed + tokens
    s[slot + BASE] = after
    s[s[slot + EVENT] + COMPUTED] += tokens
    if after == s[slot + TOKENS]:
        s[s[server + YIELDING_END]] = slot
        s[server + YIELDING_END] += 1
    geometry = s[GEOMETRY0]
    s[geometry] += 1
    s[geometry + 1] += tokens
    s[geometry + 3] += after == s[slot + TOKENS]
    s[geometry + 4] += tokens * computed + tokens * (tokens + 1) // 2
    s[geometry + 5] += after
    if s[DETAIL]:
        count_row(s, slot, s[server + STEP], computed, tokens, PREFILL)


def begin(s: Numbers, server: int, event: int) -> int:
    """A slot for an admitted request, the last of those that run."""
    s[server + SPARE_END] -= 1
    slot = s[s[server + SPARE_END]]
    s[slot + EVENT] = event
    s[slot + ADMISSION] = s[server + ADMISSIONS]
    s[server + ADMISSIONS] += 1
    s[slot + IS_DECODING] = 0
    s[slot + CHUNK] = 0
    s[slot + ROW_COUNT] = 0
    s[slot + ROW_TOKENS] = 0
    s[slot + ROW_PHASE] = PREFILL
    s[event + SLOT] = slot
    last = s[server + LAST]
    s[slot + PREVIOUS] = last
    s[slot + NEXT] = 0
    if last == 0:
        s[server + FIRST] = slot
    else:
        s[last + NEXT] = slot
    s[server + LAST] = slot
    s[server + RUNNING] += 1
    return slot


def admit(s: Numbers, b: Numbers, server: int, threshold: int, budget: int, now: int) -> None:
    """Admit those who wait, in order, while there is budget, room and memory."""
    size = s[BLOCK_SIZE]
    s[server + BLOCKED] = 0
    passed = 0
    while budget > 0 and s[server + WAITING] > 0 and s[server + RUNNING] < s[MOST_REQUESTS]:
        event = s[server + WAITING_FIRST]
        if s[event + IN_FLIGHT] > 0 or s[event + HELD_BACK]:
            # Two in flight: it was preempted meanwhile, and must not go on without the token that may still come. Or a
            # policy holds it back.
            dequeue(s, server)
            s[event + NEXT_WAITING] = passed
            passed = event
            continue
        operation = s[event + OPERATION]
        length = s[operation + PROMPT] + s[event + OUTPUTS]
        key = s[operation + KEYS]
        found = s[server + FOUND] + s[s[event + INSTANCE] + SALT]
        hits = 0
        idle = 0
        missing = 0
        if s[CACHING]:
            most = (length - 1) // size
            while hits < most:
                block = b[found + b[key + hits]]
                if block == 0:
                    missing = found + b[key + hits]
                    break
                idle += b[block + HOLDERS] == 0
                hits += 1
        tokens = length - hits * size
        if threshold > 0:
            tokens = min(tokens, threshold)
        if tokens > budget and not s[CHUNKED]:
            # It stays so while the others only decode, until somebody fills the next block of its prompt.
            s[server + BLOCKED] = budget == s[MOST_TOKENS] - s[server + DECODING]
            s[server + WATCHED] = missing
            s[server + WATCHED_AT] = hits
            break
        tokens = min(tokens, budget)
        held = length if s[RESERVE] else hits * size + tokens
        needed = -(-held // size) - hits + idle
        if s[server + RUNNING] > 0:
            needed += s[WATERMARK]
        if not s[event + IS_CRITICAL]:
            needed += s[server + RESERVED]
        if needed > s[server + FREE]:
            s[server + PRESSED] = 1
            s[server + BLOCKED] = s[RESERVE]
            s[server + WATCHED] = missing
            s[server + WATCHED_AT] = hits
            break
        dequeue(s, server)
        slot = begin(s, server, event)
        if s[DRIVEN]:
            note(s, event, CALL_ADMITTED)
        s[slot + TOKENS] = length
        s[slot + KEY] = key
        s[slot + FOUND_SALTED] = found
        s[slot + LEFT_OUT] = max(s[operation + OUTPUT], 1) - s[event + OUTPUTS]
        if s[event + SCHEDULED] < 0:
            s[event + SCHEDULED] = now
            s[event + CACHED] = hits * size
        else:
            s[event + PREEMPTED] += now - s[event + PREEMPTED_AT]
        table = s[slot + TABLE]
        for index in range(hits):
            block = b[found + b[key + index]]
            share(s, b, server, block)
            b[table + index] = block
        s[slot + HELD] = hits
        s[slot + BASE] = hits * size
        hold(s, b, server, slot, hits * size + tokens)
        if s[ASYNCHRONOUS]:
            s[slot + CHUNK] = tokens
            s[slot + PLACEHOLDERS] = 0
            s[slot + REGISTERED] = (hits * size + tokens) // size
        else:
            compute(s, server, slot, tokens)
        budget -= tokens
    if passed != 0:
        s[server + BLOCKED] = 0  # it was not the first who could not be admitted
    while passed != 0:
        event = passed
        passed = s[event + NEXT_WAITING]
        requeue(s, server, event)


def end_running(s: Numbers, b: Numbers, server: int, slot: int) -> None:
    """A request runs no longer: its blocks have one holder less, its slot is spare."""
    before = s[slot + PREVIOUS]
    after = s[slot + NEXT]
    if before == 0:
        s[server + FIRST] = after
    else:
        s[before + NEXT] = after
    if after == 0:
        s[server + LAST] = before
    else:
        s[after + PREVIOUS] = before
    s[server + RUNNING] -= 1
    s[server + BLOCKED] = 0
    release(s, b, server, s[slot + TABLE], s[slot + HELD])
    s[s[server + SPARE_END]] = slot
    s[server + SPARE_END] += 1


def preempt(s: Numbers, b: Numbers, server: int, slot: int) -> None:
    """A request loses its memory and waits again. No end of it is in the heap, nor is it in the wheel."""
    event = s[slot + EVENT]
    s[server + PRESSED] = 1
    if s[DETAIL]:
        if s[slot + IS_DECODING]:
            log_decoded(s, slot, s[server + STEP])
        else:
            log_row(s, slot)
    s[event + OUTPUTS] = max(s[s[event + OPERATION] + OUTPUT], 1) - s[slot + LEFT_OUT]
    s[event + PREEMPTED_AT] = s[NOW]
    s[event + SLOT] = 0
    s[event + PREEMPTIONS] += 1
    end_running(s, b, server, slot)
    requeue(s, server, event)
