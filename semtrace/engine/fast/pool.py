"""The blocks of a server: a free queue linked through the blocks, and the blocks of each key.

A block is named by where its record begins in `b`. What a key finds is the earliest of its blocks, which lie in a circle in
the order they got the key: so that finding, registering and forgetting take constant time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semtrace.engine.fast.layout import (
    ENTRY,
    FREE,
    FREE_NEXT,
    FREE_PREVIOUS,
    HOLDERS,
    NULL_BLOCK,
    SAME_NEXT,
    SAME_PREVIOUS,
)

if TYPE_CHECKING:
    from semtrace.engine.fast.numbers import Numbers


def take(s: Numbers, b: Numbers, server: int, place: int, count: int) -> None:
    """Take blocks from the front of the free queue, and list them at a place of `b`; what they kept is forgotten."""
    null = s[server + NULL_BLOCK]
    block = b[null + FREE_NEXT]
    for at in range(place, place + count):
        entry = b[block + ENTRY]
        if entry != 0:
            following = b[block + SAME_NEXT]
            if following == block:
                b[entry] = 0
            else:
                before = b[block + SAME_PREVIOUS]
                b[before + SAME_NEXT] = following
                b[following + SAME_PREVIOUS] = before
                if b[entry] == block:
                    b[entry] = following
            b[block + ENTRY] = 0
        b[block + HOLDERS] = 1
        b[at] = block
        block = b[block + FREE_NEXT]
    b[null + FREE_NEXT] = block
    b[block + FREE_PREVIOUS] = null
    s[server + FREE] -= count


def register(b: Numbers, block: int, entry: int) -> None:
    """From now on a held block is found by the key whose entry this is, after those that are already."""
    first = b[entry]
    if first == 0:
        b[entry] = block
        b[block + SAME_NEXT] = block
        b[block + SAME_PREVIOUS] = block
    else:
        last = b[first + SAME_PREVIOUS]
        b[last + SAME_NEXT] = block
        b[block + SAME_PREVIOUS] = last
        b[block + SAME_NEXT] = first
        b[first + SAME_PREVIOUS] = block
    b[block + ENTRY] = entry


def share(s: Numbers, b: Numbers, server: int, block: int) -> None:
    """One more holder of a block that was found."""
    holders = b[block + HOLDERS]
    if holders == 0:
        before = b[block + FREE_PREVIOUS]
        after = b[block + FREE_NEXT]
        b[before + FREE_NEXT] = after
        b[after + FREE_PREVIOUS] = before
        s[server + FREE] -= 1
    b[block + HOLDERS] = holders + 1


def release(s: Numbers, b: Numbers, server: int, place: int, count: int) -> None:
    """One holder less for the blocks listed at a place, walked from the last to the first.

    Those that nobody holds any more join the free queue in that order: with a key at its end, else at its front.
    """
    null = s[server + NULL_BLOCK]
    last = b[null + FREE_PREVIOUS]
    front = null
    freed = 0
    for at in range(place + count - 1, place - 1, -1):
        block = b[at]
        holders = b[block + HOLDERS] - 1
        b[block + HOLDERS] = holders
        if holders == 0:
            freed += 1
            if b[block + ENTRY] != 0:
                b[last + FREE_NEXT] = block
                b[block + FREE_PREVIOUS] = last
                last = block
            else:
                after = b[front + FREE_NEXT]
                b[front + FREE_NEXT] = block
                b[block + FREE_PREVIOUS] = front
                b[block + FREE_NEXT] = after
                if front == last:
                    last = block
                else:
                    b[after + FREE_PREVIOUS] = block
                front = block
    b[last + FREE_NEXT] = null
    b[null + FREE_PREVIOUS] = last
    s[server + FREE] += freed
