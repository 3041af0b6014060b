"""The decoding requests of a server: what changes with every step is not written for each of them.

A decoding request computes one token in every step. So it has computed `BASE + STEPS` tokens, takes a block whenever that is
a multiple of the block size, and ends with step `LAST_STEP`: a bucket for each phase holds those that take their blocks
together, in the order of their admission, and a heap has the ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semtrace.engine.fast.heap import push
from semtrace.engine.fast.layout import (
    ADMISSION,
    ADMISSION_BITS,
    BASE,
    BASES,
    BLOCK_SIZE,
    BUCKET_COUNT,
    BUCKET_FIRST,
    BUCKET_LAST,
    BUCKET_SIZE,
    CACHING,
    DECODING,
    ENDS,
    FOUND_SALTED,
    HELD,
    IS_DECODING,
    KEY,
    LAST_STEP,
    PHASE_NEXT,
    PHASE_NOW,
    PHASE_PREVIOUS,
    STEPS,
    TABLE,
    WHEEL,
)
from semtrace.engine.fast.pool import register, take_one

if TYPE_CHECKING:
    from semtrace.engine.fast.numbers import Numbers


def enter(s: Numbers, server: int, slot: int, computed: int, left: int) -> None:
    """A request decodes from the next step on.

    Args:
        s: the state.
        server: its server.
        slot: the request.
        computed: the tokens that it has computed after the steps scheduled so far.
        left: steps in which it will yield a token.
    """
    steps = s[server + STEPS]
    base = computed - steps
    s[slot + BASE] = base
    s[slot + IS_DECODING] = 1
    s[slot + LAST_STEP] = steps + left
    end = (steps + left << ADMISSION_BITS) | s[slot + ADMISSION]
    push(s, s[server + ENDS], s[server + DECODING], end, slot)
    s[server + DECODING] += 1
    s[server + BASES] += base
    bucket = s[server + WHEEL] + base % s[BLOCK_SIZE] * BUCKET_SIZE
    s[bucket + BUCKET_COUNT] += 1
    before = s[bucket + BUCKET_LAST]
    after = 0
    while before != 0 and s[before + ADMISSION] > s[slot + ADMISSION]:
        after = before
        before = s[before + PHASE_PREVIOUS]
    s[slot + PHASE_PREVIOUS] = before
    s[slot + PHASE_NEXT] = after
    if before == 0:
        s[bucket + BUCKET_FIRST] = slot
    else:
        s[before + PHASE_NEXT] = slot
    if after == 0:
        s[bucket + BUCKET_LAST] = slot
    else:
        s[after + PHASE_PREVIOUS] = slot


def leave(s: Numbers, server: int, slot: int) -> None:
    """A request decodes no longer; its end is out of the heap."""
    base = s[slot + BASE]
    s[slot + IS_DECODING] = 0
    s[server + DECODING] -= 1
    s[server + BASES] -= base
    bucket = s[server + WHEEL] + base % s[BLOCK_SIZE] * BUCKET_SIZE
    s[bucket + BUCKET_COUNT] -= 1
    before = s[slot + PHASE_PREVIOUS]
    after = s[slot + PHASE_NEXT]
    if before == 0:
        s[bucket + BUCKET_FIRST] = after
    else:
        s[before + PHASE_NEXT] = after
    if after == 0:
        s[bucket + BUCKET_LAST] = before
    else:
        s[after + PHASE_PREVIOUS] = before


def empty(s: Numbers, server: int) -> None:
    """Nobody decodes, for now: every request has its computed tokens written out in `BASE`."""
    first = s[server + WHEEL]
    for bucket in range(first, first + s[BLOCK_SIZE] * BUCKET_SIZE, BUCKET_SIZE):
        s[bucket + BUCKET_FIRST] = 0
        s[bucket + BUCKET_LAST] = 0
        s[bucket + BUCKET_COUNT] = 0
    s[server + DECODING] = 0
    s[server + BASES] = 0


def turn(s: Numbers, b: Numbers, server: int, steps: int) -> None:
    """Schedule steps in which all decoding requests compute a token; there is memory for them.

    In each step those whose blocks are full take one, then those whose blocks this step fills register them. In one step
    that is the order of admission in all that matters: taking and registering do not touch the same blocks.
    """
    wheel = s[server + WHEEL]
    size = s[BLOCK_SIZE]
    caching = s[CACHING]
    phase = s[server + PHASE_NOW]
    for _ in range(steps):
        slot = s[wheel + phase * BUCKET_SIZE + BUCKET_FIRST]
        while slot != 0:
            held = s[slot + HELD]
            take_one(s, b, server, s[slot + TABLE] + held)
            s[slot + HELD] = held + 1
            slot = s[slot + PHASE_NEXT]
        phase = phase - 1 if phase > 0 else size - 1
        if caching:
            slot = s[wheel + phase * BUCKET_SIZE + BUCKET_FIRST]
            while slot != 0:
                last = s[slot + HELD] - 1
                register(s, b, b[s[slot + TABLE] + last], s[slot + FOUND_SALTED] + b[s[slot + KEY] + last])
                slot = s[slot + PHASE_NEXT]
    s[server + PHASE_NOW] = phase
    s[server + STEPS] += steps


def room(s: Numbers, server: int, steps: int, free: int) -> int:
    """How many of these steps the free blocks last for."""
    size = s[BLOCK_SIZE]
    if s[server + DECODING] * (steps // size + 1) <= free:
        return steps
    wheel = s[server + WHEEL]
    phase = s[server + PHASE_NOW]
    for step in range(steps):
        free -= s[wheel + phase * BUCKET_SIZE + BUCKET_COUNT]
        if free < 0:
            return step
        phase = phase - 1 if phase > 0 else size - 1
    return steps
