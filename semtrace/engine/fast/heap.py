"""Heaps in the state: entries of a key and a value, the least key first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semtrace.engine.fast.numbers import Numbers


def push(s: Numbers, heap: int, count: int, key: int, value: int) -> None:
    """Put an entry into a heap of so many that begins there; there is room for it."""
    at = count
    while at > 0:
        above = (at - 1) >> 1
        entry = heap + 2 * above
        if s[entry] <= key:
            break
        s[heap + 2 * at] = s[entry]
        s[heap + 2 * at + 1] = s[entry + 1]
        at = above
    s[heap + 2 * at] = key
    s[heap + 2 * at + 1] = value


def pop(s: Numbers, heap: int, count: int) -> None:
    """Take the first entry out of a heap of so many."""
    last = heap + 2 * count - 2
    key = s[last]
    value = s[last + 1]
    entry = heap
    below = heap + 2
    while below < last:
        if below + 2 < last and s[below + 2] < s[below]:
            below += 2
        if s[below] >= key:
            break
        s[entry] = s[below]
        s[entry + 1] = s[below + 1]
        entry = below
        below = 2 * below - heap + 2
    s[entry] = key
    s[entry + 1] = value
