"""The blocks of a server: a free queue linked through the blocks, and the blocks of each key.

A block is named by where its record begins in `b`. A key finds the earliest of its blocks. Nearly always it is the only one;
several lie in a circle, in the order they got the key, and are marked in their `ENTRY`: finding, registering and forgetting
take constant time. Taking and registering of different blocks may be done in any order, so a prompt's are done together.
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
    TWINS,
)

if TYPE_CHECKING:
    from semtrace.engine.fast.numbers import Numbers


def forget(s: Numbers, b: Numbers, block: int) -> None:
    """A block is no longer found by its key."""
    marked = b[block + ENTRY]
    entry = marked >> 1
    b[block + ENTRY] = 0
    if marked & 1 == 0:
        b[entry] = 0
        return
    twin = s[TWINS] + (block >> 1)
    following = b[twin]
    if following == block:
        b[entry] = 0
        return
    before = b[twin + 1]
    b[s[TWINS] + (before >> 1)] = following
    b[s[TWINS] + (following >> 1) + 1] = before
    if b[entry] == block:
        b[entry] = following


def register_again(s: Numbers, b: Numbers, block: int, entry: int) -> None:
    """Another block is found by this key, after those that are already."""
    first = b[entry]
    mine = s[TWINS] + (block >> 1)
    its = s[TWINS] + (first >> 1)
    if b[first + ENTRY] & 1 == 0:
        b[first + ENTRY] = entry * 2 + 1
        b[its] = first
        b[its + 1] = first
    last = b[its + 1]
    b[s[TWINS] + (last >> 1)] = block
    b[mine + 1] = last
    b[mine] = first
    b[its + 1] = block
    b[block + ENTRY] = entry * 2 + 1


def register(s: Numbers, b: Numbers, block: int, entry: int) -> None:
    """From now on a held block is found by the key whose entry this is."""
    if b[entry] == 0:
        b[entry] = block
        b[block + ENTRY] = entry * 2
    else:
        register_again(s, b, block, entry)


def take_one(s: Numbers, b: Numbers, server: int, place: int) -> None:
    """Take the block at the front of the free queue, and list it at a place of `b`; what it kept is forgotten."""
    null = s[server + NULL_BLOCK]
    block = b[null + FREE_NEXT]
    following = b[block + FREE_NEXT]
    if b[block + ENTRY] != 0:
        forget(s, b, block)
    b[block + HOLDERS] = 1
    b[place] = block
    b[null + FREE_NEXT] = following
    b[following + FREE_PREVIOUS] = null
    s[server + FREE] -= 1


def take(
    s: Numbers, b: Numbers, server: int, place: int, count: int, full: int, key: int, found: int
) -> None:
    """Take blocks from the front of the free queue, list them at a place of `b`, and register the first so many.

    Their keys are listed at `key`; `found` is where the server's table of keys begins for their group.
    """
    null = s[server + NULL_BLOCK]
    block = b[null + FREE_NEXT]
    for at in range(count):
        following = b[block + FREE_NEXT]
        marked = b[block + ENTRY]
        if marked & 1:
            forget(s, b, block)
        elif marked != 0:
            b[marked >> 1] = 0
            b[block + ENTRY] = 0
        if at < full:
            entry = found + b[key + at]
            if b[entry] == 0:
                b[entry] = block
                b[block + ENTRY] = entry * 2
            else:
                register_again(s, b, block, entry)
        b[block + HOLDERS] = 1
        b[place + at] = block
        block = following
    b[null + FREE_NEXT] = block
    b[block + FREE_PREVIOUS] = null
    s[server + FREE] -= count


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
