"""The waiting requests of a server: a list linked through the events, or by priority a heap linked through them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semtrace.engine.fast.layout import (
    NEXT_WAITING,
    PRIORITY_ORDER,
    RANK,
    RIGHT_WAITING,
    SUBMITTED,
    WAITING,
    WAITING_FIRST,
    WAITING_LAST,
)

if TYPE_CHECKING:
    from semtrace.engine.fast.numbers import Numbers


def is_before(s: Numbers, event: int, other: int) -> bool:
    """Whether an event is served before another: by priority, arrival, row."""
    if s[event + RANK] != s[other + RANK]:
        return bool(s[event + RANK] < s[other + RANK])
    if s[event + SUBMITTED] != s[other + SUBMITTED]:
        return bool(s[event + SUBMITTED] < s[other + SUBMITTED])
    return event < other


def merged(s: Numbers, one: int, other: int) -> int:
    """The root of two skew heaps made one; `NEXT_WAITING` is the left child, `RIGHT_WAITING` the right one."""
    root = 0
    place = 0
    while one != 0 and other != 0:
        if is_before(s, other, one):
            one, other = other, one
        if place == 0:
            root = one
        else:
            s[place] = one
        right = s[one + RIGHT_WAITING]
        s[one + RIGHT_WAITING] = s[one + NEXT_WAITING]
        place = one + NEXT_WAITING
        one = right
    rest = one if one != 0 else other
    if place == 0:
        return rest
    s[place] = rest
    return root


def enqueue(s: Numbers, server: int, event: int) -> None:
    """A request waits behind the others, or in its place by priority."""
    s[event + NEXT_WAITING] = 0
    s[event + RIGHT_WAITING] = 0
    if s[PRIORITY_ORDER]:
        s[server + WAITING_FIRST] = merged(s, s[server + WAITING_FIRST], event)
    elif s[server + WAITING] == 0:
        s[server + WAITING_FIRST] = event
    else:
        s[s[server + WAITING_LAST] + NEXT_WAITING] = event
    s[server + WAITING_LAST] = event
    s[server + WAITING] += 1


def requeue(s: Numbers, server: int, event: int) -> None:
    """A preempted request waits before the others, or in its place by priority."""
    if s[PRIORITY_ORDER] or s[server + WAITING] == 0:
        enqueue(s, server, event)
        return
    s[event + NEXT_WAITING] = s[server + WAITING_FIRST]
    s[server + WAITING_FIRST] = event
    s[server + WAITING] += 1


def dequeue(s: Numbers, server: int) -> None:
    """The first leaves the queue."""
    event = s[server + WAITING_FIRST]
    if s[PRIORITY_ORDER]:
        s[server + WAITING_FIRST] = merged(s, s[event + NEXT_WAITING], s[event + RIGHT_WAITING])
    else:
        s[server + WAITING_FIRST] = s[event + NEXT_WAITING]
    s[server + WAITING] -= 1


def withdraw(s: Numbers, server: int, event: int) -> None:
    """A request leaves the queue, wherever it is in it."""
    passed = 0
    first = s[server + WAITING_FIRST]
    while first != event:
        dequeue(s, server)
        s[first + NEXT_WAITING] = passed
        passed = first
        first = s[server + WAITING_FIRST]
    dequeue(s, server)
    while passed != 0:
        following = s[passed + NEXT_WAITING]
        requeue(s, server, passed)
        passed = following
