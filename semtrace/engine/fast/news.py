"""What the driver of a lifecycle policy is told of: a list that is emptied outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semtrace.engine.fast.layout import (
    ALARM,
    EVERY_INSTANT,
    NEWS0,
    NEWS_AT,
    NOW,
    PRESSED,
    SERVER0,
    SERVER_SIZE,
    SERVERS_END,
    TELL_PRESSURE,
)

if TYPE_CHECKING:
    from semtrace.engine.fast.numbers import Numbers


def note(s: Numbers, event: int, what: int) -> None:
    """Something happened to an event, and there is a policy."""
    s[s[NEWS_AT]] = event * 8 + what
    s[NEWS_AT] += 1


def is_pressed(s: Numbers) -> bool:
    """Whether the policy is to be told of pressure on a server."""
    if s[TELL_PRESSURE]:
        for server in range(s[SERVER0], s[SERVERS_END], SERVER_SIZE):
            if s[server + PRESSED]:
                return True
    return False


def is_due(s: Numbers) -> bool:
    """Whether there is anything for the policy to do in this instant."""
    return bool(s[NEWS_AT] > s[NEWS0] or s[ALARM] <= s[NOW] or s[EVERY_INSTANT] or is_pressed(s))
