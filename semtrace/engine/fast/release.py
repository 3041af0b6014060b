"""What is released when: dependencies, timers, arrivals; the controller's rules (spec, release.md) in the compiled engine.

At one instant everything settles before a server starts work: what is due at once goes into a list, `INSTANT0`, that is
worked off until it ends. The order in it makes no difference (ST-REL-018).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semtrace.engine.fast.heap import pop, push
from semtrace.engine.fast.layout import (
    ANSWER,
    ANSWERED,
    ARRIVAL,
    ARRIVALS_AT,
    ARRIVALS_END,
    ATTAINED,
    CALL_ENDED,
    COUNTERS,
    DELAY,
    DISTANCE,
    DONE,
    DRIVEN,
    DURATION,
    EDGE_SIZE,
    ENDED,
    EVENT_SIZE,
    EVENTS,
    EVENTS_END,
    FIRST_TOKEN,
    GROUPS,
    GROUPS_END,
    HAS_ANSWER,
    HOLDS,
    HOLDS_END,
    HORIZON,
    INSTANCE,
    INSTANT0,
    INSTANT_END,
    IS_ARRIVAL,
    IS_END,
    IS_RELEASE,
    LAG,
    LEFT,
    MISSING,
    NOW,
    ON_BACKEND,
    ON_FINISH,
    ON_START,
    ON_TOKEN,
    OPERATION,
    ORDINAL,
    OVERFLOWED,
    PREEMPTED,
    READY,
    REFUSED,
    RELEASED,
    SCHEDULED,
    SUBMISSIONS,
    SUBMITTED,
    SUBMITTED0,
    THINK,
    TIMERS,
    TIMERS0,
    TOO_LARGE,
    TOOL_ENDED,
    TOOL_STARTED,
    UNSENT_AT,
    UNSENT_END,
)
from semtrace.engine.fast.news import note

if TYPE_CHECKING:
    from semtrace.engine.fast.numbers import Numbers


def later(s: Numbers, time: int, delay: int) -> int:
    """A time and a delay; marks the run as overflowed if that is past the horizon."""
    if delay > HORIZON - time:
        s[OVERFLOWED] = 1
        return HORIZON
    return time + delay


def due(s: Numbers, time: int, what: int) -> None:
    """Something happens at a time, which may be this instant."""
    if time > s[NOW]:
        push(s, s[TIMERS0], s[TIMERS], time, what)
        s[TIMERS] += 1
    else:
        s[s[INSTANT_END]] = what
        s[INSTANT_END] += 1


def is_ready(s: Numbers, event: int) -> None:
    """Nothing is missing any more (ST-REL-005, ST-REL-007)."""
    release = later(s, s[event + READY], s[s[event + OPERATION] + DELAY])
    s[event + RELEASED] = release
    due(s, release, event * 4 + IS_RELEASE)


def satisfy(s: Numbers, event: int, time: int) -> None:
    """One constraint less."""
    s[event + READY] = max(s[event + READY], time)
    s[event + MISSING] -= 1
    if s[event + MISSING] == 0:
        is_ready(s, event)


def fire(s: Numbers, event: int, trigger: int) -> None:
    """A trigger of an event comes now: `ON_START`, `ON_TOKEN` or `ON_FINISH`."""
    operation = s[event + OPERATION]
    for edge in range(s[operation + trigger], s[operation + trigger + 1], EDGE_SIZE):
        satisfy(s, event + s[edge + DISTANCE], later(s, s[NOW], s[edge + LAG]))


def answered(s: Numbers, instance: int) -> None:
    """The user who sent the instance sends the next one (ST-SCN-006)."""
    if s[instance + ANSWERED]:
        return
    s[instance + ANSWERED] = 1
    if s[UNSENT_AT] < s[UNSENT_END]:
        following = s[s[UNSENT_AT]]
        s[UNSENT_AT] += 1
        time = later(s, s[NOW], s[THINK])
        s[following + ARRIVAL] = time
        due(s, time, following * 4 + IS_ARRIVAL)


def arrive(s: Numbers, instance: int) -> None:
    """An instance arrives now (ST-REL-006)."""
    first = s[instance + EVENTS]
    last = s[instance + EVENTS_END]
    for event in range(first, last, EVENT_SIZE):
        if s[event + MISSING] == 0:
            s[event + READY] = s[NOW]
            is_ready(s, event)
    if first == last:
        answered(s, instance)


def release_event(s: Numbers, event: int) -> None:
    """Submit it to a server, or let it take its recorded duration (ST-REL-008, ST-REL-010)."""
    operation = s[event + OPERATION]
    s[event + SUBMITTED] = s[NOW]
    if s[operation + TOO_LARGE]:
        s[event + REFUSED] = 1
        due(s, s[NOW], event * 4 + IS_END)
    elif s[operation + ON_BACKEND]:
        push(s, s[SUBMITTED0], s[SUBMISSIONS], event, 0)
        s[SUBMISSIONS] += 1
    else:
        if s[DRIVEN]:
            note(s, event, TOOL_STARTED)
        due(s, later(s, s[NOW], s[operation + DURATION]), event * 4 + IS_END)
    fire(s, event, ON_START)


def end_event(s: Numbers, event: int) -> None:
    """It has ended; a trigger that has not come comes with the end (ST-REL-004)."""
    operation = s[event + OPERATION]
    instance = s[event + INSTANCE]
    s[event + ENDED] = s[NOW]
    if s[DRIVEN]:
        note(s, event, CALL_ENDED if s[operation + ON_BACKEND] else TOOL_ENDED)
    if s[event + SCHEDULED] >= 0:
        s[instance + ATTAINED] += s[NOW] - s[event + SCHEDULED] - s[event + PREEMPTED]
    if s[event + FIRST_TOKEN] < 0:
        fire(s, event, ON_TOKEN)
    fire(s, event, ON_FINISH)
    for place in range(s[operation + GROUPS], s[operation + GROUPS_END]):
        group = s[place]
        counter = s[instance + COUNTERS] + s[group + ORDINAL]
        s[counter] -= 1
        if s[counter] == 0:
            for hold in range(s[group + HOLDS], s[group + HOLDS_END]):
                satisfy(s, s[instance + EVENTS] + s[hold], s[NOW])
    s[instance + LEFT] -= 1
    if s[operation + ANSWER] or (s[instance + LEFT] == 0 and not s[instance + HAS_ANSWER]):
        answered(s, instance)
    s[DONE] += 1


def happen(s: Numbers, what: int) -> None:
    """What was due happens."""
    record = what >> 2
    kind = what & 3
    if kind == IS_RELEASE:
        release_event(s, record)
    elif kind == IS_END:
        end_event(s, record)
    else:
        arrive(s, record)


def settle(s: Numbers) -> None:
    """All that is due now and all that follows from it at once; servers' ends are in already."""
    now = s[NOW]
    while s[ARRIVALS_AT] < s[ARRIVALS_END] and s[s[s[ARRIVALS_AT]] + ARRIVAL] == now:
        instance = s[s[ARRIVALS_AT]]
        s[ARRIVALS_AT] += 1
        arrive(s, instance)
    timers = s[TIMERS0]
    while s[TIMERS] > 0 and s[timers] <= now:
        what = s[timers + 1]
        pop(s, timers, s[TIMERS])
        s[TIMERS] -= 1
        happen(s, what)
    at = s[INSTANT0]
    while at < s[INSTANT_END]:
        happen(s, s[at])
        at += 1
    s[INSTANT_END] = s[INSTANT0]
