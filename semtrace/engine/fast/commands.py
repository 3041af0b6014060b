"""What a lifecycle policy's driver does to the blocks of a server, as commands to the kernel.

Blocks are given and answered by their ids, from `LIST0` on in `b`. Keys are places in the server's table: of operations where they
lie in `b`, with a salt; others are listed with the blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semtrace.engine.fast.ahead_runs import close_ahead
from semtrace.engine.fast.asynchronous import end_oldest
from semtrace.engine.fast.layout import (
    ANSWER_COUNT,
    ANSWER_IDLE,
    ASYNCHRONOUS,
    BASE,
    BLOCK_RECORD,
    BLOCKED,
    COMMAND,
    COUNT_COMPUTED,
    COUNT_IDLE,
    CUT,
    DEMOTE,
    END,
    ENTRY,
    FIND,
    FIRST,
    FLAG,
    FOUND,
    FREE_NEXT,
    FREE_PREVIOUS,
    HOLDERS,
    IS_DECODING,
    KEYS_AT,
    KEYS_SALT,
    LET_GO,
    LIST0,
    LISTED,
    MATCH,
    NEXT,
    NOW,
    NULL_BLOCK,
    REGISTER,
    RUN,
    SHARE,
    STARTING,
    STEPS,
    SUBJECT,
    TAKE,
)
from semtrace.engine.fast.pool import forget, register, release, share, take_one
from semtrace.engine.fast.runs import close
from semtrace.engine.fast.scheduler import end_step

if TYPE_CHECKING:
    from semtrace.engine.fast.numbers import Numbers


def cut(s: Numbers, b: Numbers, f: Any, server: int, until: int) -> None:
    """End a server's run with the first step that ends at `until` or later; if that ends now, it has ended."""
    if s[ASYNCHRONOUS]:
        close_ahead(s, b, f, server, until)
        if s[server + END] == s[NOW]:
            end_oldest(s, b, f, server)
    else:
        close(s, b, f, server, until)
        if s[server + END] == s[NOW]:
            end_step(s, b, f, server)


def match(s: Numbers, b: Numbers, server: int) -> int:
    """Length of the longest run of the keys that the server has; `ANSWER_IDLE` counts its blocks that nobody holds."""
    found = s[server + FOUND] + s[KEYS_SALT]
    keys = s[KEYS_AT]
    count = 0
    unheld = 0
    while count < s[LISTED]:
        block = b[found + b[keys + count]]
        if block == 0:
            break
        unheld += b[block + HOLDERS] == 0
        count += 1
    s[ANSWER_IDLE] = unheld
    return count


def find(s: Numbers, b: Numbers, server: int) -> int:
    """List the blocks of the longest run of the keys that the server has; how many there are."""
    found = s[server + FOUND] + s[KEYS_SALT]
    keys = s[KEYS_AT]
    place = s[LIST0]
    for at in range(s[LISTED]):
        block = b[found + b[keys + at]]
        if block == 0:
            return at
        b[place + at] = (block - s[server + NULL_BLOCK]) // BLOCK_RECORD
    return s[LISTED]


def idle(s: Numbers, b: Numbers) -> int:
    """How many of the listed blocks nobody holds."""
    count = 0
    for at in range(s[LIST0], s[LIST0] + s[LISTED]):
        count += b[b[at] + HOLDERS] == 0
    return count


def take_some(s: Numbers, b: Numbers, server: int) -> int:
    """Take so many blocks and list them; after them those that kept something; how many those are."""
    null = s[server + NULL_BLOCK]
    place = s[LIST0]
    kept = place + s[LISTED]
    for at in range(place, place + s[LISTED]):
        block = b[null + FREE_NEXT]
        number = (block - null) // BLOCK_RECORD
        if b[block + ENTRY] != 0:
            b[kept] = number
            kept += 1
        take_one(s, b, server, at)
        b[at] = number
    return kept - place - s[LISTED]


def let_go(s: Numbers, b: Numbers, server: int) -> int:
    """One holder less for the listed blocks; with the flag those that nobody holds then lose their keys: how many, listed."""
    place = s[LIST0]
    count = s[LISTED]
    dropped = place + count
    if s[FLAG]:
        for at in range(place, place + count):
            block = b[at]
            if b[block + HOLDERS] == 1:
                if b[block + ENTRY] != 0:
                    forget(s, b, block)
                b[dropped] = (block - s[server + NULL_BLOCK]) // BLOCK_RECORD
                dropped += 1
    release(s, b, server, place, count)
    return dropped - place - count


def demote(s: Numbers, b: Numbers, server: int) -> int:
    """The listed blocks that nobody holds go to the front of the free queue one after the other: how many, listed."""
    null = s[server + NULL_BLOCK]
    moved = s[LIST0]
    for at in range(s[LIST0], s[LIST0] + s[LISTED]):
        block = b[at]
        if b[block + HOLDERS] == 0:
            before = b[block + FREE_PREVIOUS]
            after = b[block + FREE_NEXT]
            b[before + FREE_NEXT] = after
            b[after + FREE_PREVIOUS] = before
            first = b[null + FREE_NEXT]
            b[null + FREE_NEXT] = block
            b[block + FREE_PREVIOUS] = null
            b[block + FREE_NEXT] = first
            b[first + FREE_PREVIOUS] = block
            b[moved] = (block - null) // BLOCK_RECORD
            moved += 1
    return moved - s[LIST0]


def computed(s: Numbers, server: int) -> int:
    """Computed tokens of all that run, those of a step in flight included."""
    total = 0
    slot = s[server + FIRST]
    while slot != 0:
        total += s[slot + BASE]
        if s[slot + IS_DECODING]:
            total += s[server + STEPS]
        slot = s[slot + NEXT]
    return total


def obey(s: Numbers, b: Numbers, f: Any) -> None:
    """Carry out the command. A run of the server is cut first: it is as if every step of it had been scheduled in its time."""
    what = s[COMMAND]
    s[COMMAND] = 0
    server = s[SUBJECT]
    if s[server + RUN] > 0:
        # A server that was started in this instant has begun the step that follows one that ends now.
        cut(s, b, f, server, s[NOW] + 1 if server < s[STARTING] else s[NOW])
    place = s[LIST0]
    answer = 0
    if what == FIND:
        answer = find(s, b, server)
    elif what == MATCH:
        answer = match(s, b, server)
    elif what == COUNT_COMPUTED:
        answer = computed(s, server)
    elif what != CUT:
        if what != TAKE:
            for at in range(place, place + s[LISTED]):
                b[at] = s[server + NULL_BLOCK] + b[at] * BLOCK_RECORD
        if what == COUNT_IDLE:
            answer = idle(s, b)
        else:
            s[server + BLOCKED] = 0
            if what == SHARE:
                for at in range(place, place + s[LISTED]):
                    share(s, b, server, b[at])
            elif what == TAKE:
                answer = take_some(s, b, server)
            elif what == REGISTER:
                for at in range(place, place + s[LISTED]):
                    register(s, b, b[at], s[server + FOUND] + b[at + s[LISTED]])
            elif what == LET_GO:
                answer = let_go(s, b, server)
            elif what == DEMOTE:
                answer = demote(s, b, server)
    s[ANSWER_COUNT] = answer
