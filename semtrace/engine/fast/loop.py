"""The run of the whole replay: from instant to instant; ends, then what follows from them, then the servers start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semtrace.engine.fast.asynchronous import end_oldest, start_ahead
from semtrace.engine.fast.commands import cut, obey
from semtrace.engine.fast.heap import pop
from semtrace.engine.fast.layout import (
    ADMITTED,
    ALARM,
    ALONE,
    ARRIVAL,
    ARRIVALS_AT,
    ARRIVALS_END,
    ASYNCHRONOUS,
    ATTAINED,
    BLOCK_SIZE,
    BLOCKED,
    BY_INSTANCE,
    BY_SERVICE,
    BY_SESSION,
    CACHING,
    CALL_SUBMITTED,
    COMMAND,
    DECODING,
    DONE,
    DRIVEN,
    END,
    EVERY_INSTANT,
    FINISHED,
    FIRST_ROUTED,
    FOUND,
    INSTANCE,
    KEYS,
    LEAST_LOADED,
    LOGS_FULL,
    MOST_REQUESTS,
    MOST_TOKENS,
    NEVER,
    NEWS0,
    NEWS_AT,
    NEXT_END,
    NEXT_SERVER,
    NONE,
    NOW,
    OBEYED,
    OPERATION,
    OUTPUTS,
    OVERFLOW,
    OVERFLOWED,
    PAUSE_AT,
    POLICY,
    PREFIX_AWARE,
    PRIORITY,
    PROGRESS,
    PROMPT,
    RANK,
    RANKED_BY,
    ROUND_ROBIN,
    ROUTING,
    RUN,
    RUN_LOG_AT,
    RUN_LOG_END,
    RUN_ROOM,
    RUNNING,
    SALT,
    SERVER,
    SERVER0,
    SERVER_SIZE,
    SERVERS_END,
    SESSION,
    SESSION_ROUTED,
    SESSION_SERVER,
    SESSIONS,
    STALLED,
    STARTING,
    STATIC,
    STEP_LOG_AT,
    STEP_LOG_END,
    STEP_ROOM,
    STUCK,
    SUBMISSIONS,
    SUBMITTED0,
    TIMERS,
    TIMERS0,
    WAITING,
    WAITING_FIRST,
)
from semtrace.engine.fast.news import is_due, is_pressed, note
from semtrace.engine.fast.queue import enqueue
from semtrace.engine.fast.release import settle
from semtrace.engine.fast.scheduler import end_step, start

if TYPE_CHECKING:
    from semtrace.engine.fast.numbers import Numbers


def load(s: Numbers, server: int) -> int:
    """Requests at a server."""
    return s[server + RUNNING] + s[server + WAITING]


def least_loaded(s: Numbers) -> int:
    """The server with the fewest requests, the first of equals."""
    best = s[SERVER0]
    for server in range(s[SERVER0], s[SERVERS_END], SERVER_SIZE):
        if load(s, server) < load(s, best):
            best = server
    return best


def prefix(s: Numbers, b: Numbers, server: int, event: int) -> int:
    """Leading blocks of a request's prompt that a server has."""
    operation = s[event + OPERATION]
    key = s[operation + KEYS]
    found = s[server + FOUND] + s[s[event + INSTANCE] + SALT]
    hits = 0
    if s[CACHING]:
        most = (s[operation + PROMPT] + s[event + OUTPUTS] - 1) // s[BLOCK_SIZE]
        while hits < most and b[found + b[key + hits]] != 0:
            hits += 1
    return hits


def next_server(s: Numbers) -> int:
    """The servers one after the other."""
    server = s[NEXT_SERVER]
    s[NEXT_SERVER] = server + SERVER_SIZE if server + SERVER_SIZE < s[SERVERS_END] else s[SERVER0]
    return server


def choose(s: Numbers, b: Numbers, f: Any, event: int) -> int:
    """The server of a request."""
    first = s[SERVER0]
    last = s[SERVERS_END]
    if s[ROUTING] == ROUND_ROBIN:
        return next_server(s)
    if s[ROUTING] == LEAST_LOADED:
        return least_loaded(s)
    if s[ROUTING] == PREFIX_AWARE:
        best = first
        longest = -1
        for server in range(first, last, SERVER_SIZE):
            if s[server + RUN] > 0:
                cut(s, b, f, server, s[NOW])
            hits = prefix(s, b, server, event)
            if hits > longest or (hits == longest and load(s, server) < load(s, best)):
                best = server
                longest = hits
        return best
    place = s[s[event + INSTANCE] + SESSIONS] + s[s[event + OPERATION] + SESSION] + SESSION_SERVER
    if s[place] == 0:
        s[place] = next_server(s)
    return s[place]


def rank(s: Numbers, event: int) -> int:
    """The priority of a request that is routed now."""
    operation = s[event + OPERATION]
    instance = s[event + INSTANCE]
    if s[RANKED_BY] == BY_SERVICE:
        return s[instance + ATTAINED]
    if s[RANKED_BY] == BY_INSTANCE:
        place = instance + FIRST_ROUTED
    elif s[RANKED_BY] == BY_SESSION:
        place = s[instance + SESSIONS] + s[operation + SESSION] + SESSION_ROUTED
    else:
        return s[operation + PRIORITY]
    if s[place] == NONE:
        s[place] = s[NOW]
    return s[place]


def route(s: Numbers, b: Numbers, f: Any) -> None:
    """Give the requests of this instant to servers, in the order of their rows."""
    submitted = s[SUBMITTED0]
    while s[SUBMISSIONS] > 0:
        event = s[submitted]
        pop(s, submitted, s[SUBMISSIONS])
        s[SUBMISSIONS] -= 1
        server = choose(s, b, f, event)
        s[event + SERVER] = server
        s[event + RANK] = rank(s, event)
        full = s[STATIC] or s[server + DECODING] == s[MOST_REQUESTS] or s[server + DECODING] == s[MOST_TOKENS]
        head = s[server + WAITING_FIRST] if s[server + WAITING] > 0 else 0
        enqueue(s, server, event)
        if s[DRIVEN]:
            note(s, event, CALL_SUBMITTED)
        if s[server + WAITING_FIRST] != head:
            s[server + BLOCKED] = 0
            if s[server + RUN] > 0 and not full:
                cut(s, b, f, server, s[NOW])


def next_instant(s: Numbers) -> int:
    """When something happens next, `NEVER` if nothing will."""
    now = s[ALARM] if s[DRIVEN] else NEVER
    for server in range(s[SERVER0], s[SERVERS_END], SERVER_SIZE):
        now = min(now, s[server + END])
    if s[ARRIVALS_AT] < s[ARRIVALS_END]:
        now = min(now, s[s[s[ARRIVALS_AT]] + ARRIVAL])
    if s[TIMERS] > 0:
        now = min(now, s[s[TIMERS0]])
    return now


def start_server(s: Numbers, b: Numbers, f: Any, server: int) -> int:
    """Let a server start what it can; 0, or what is to be done outside before it goes on with this server."""
    if load(s, server) == 0:
        return 0
    again = (
        s[server + NEXT_END] == NEVER and not s[server + STALLED]
        if s[ASYNCHRONOUS]
        else s[server + END] == NEVER
    )
    while again:
        running = s[server + RUNNING]
        again = start_ahead(s, b, f, server) if s[ASYNCHRONOUS] else start(s, b, f, server)
        if s[NEWS_AT] > s[NEWS0]:
            return ADMITTED
        if s[DRIVEN] and running > 0 and s[server + RUNNING] == 0:
            return ALONE
    if s[DRIVEN] and s[server + END] == NEVER and s[server + WAITING] > 0:
        return STUCK
    return 0


def run(s: Numbers, b: Numbers, f: Any) -> int:
    """Go on until the replay has ended, or something is to be done outside; called again, it goes on from there.

    With a command (`COMMAND`), obey that only.

    Returns:
        `FINISHED`; `LOGS_FULL`: a log must be emptied; `PROGRESS`: `PAUSE_AT` events are done; `OVERFLOW`: a time is too
        large; `POLICY`, `ADMITTED`, `STUCK`, `ALONE`: the policy's driver has its turn; `OBEYED`.
    """
    if s[COMMAND]:
        obey(s, b, f)
        return OBEYED
    first = s[SERVER0]
    last = s[SERVERS_END]
    while True:
        if s[STARTING] == 0:
            if (
                s[STEP_LOG_AT] + s[STEP_ROOM] > s[STEP_LOG_END]
                or s[RUN_LOG_AT] + s[RUN_ROOM] > s[RUN_LOG_END]
            ):
                return LOGS_FULL
            if s[OVERFLOWED]:
                return OVERFLOW
            if s[DONE] >= s[PAUSE_AT]:
                return PROGRESS
            now = next_instant(s)
            if now == NEVER:
                return FINISHED
            s[NOW] = now
            for server in range(first, last, SERVER_SIZE):
                if s[server + END] == now:
                    if s[ASYNCHRONOUS]:
                        end_oldest(s, b, f, server)
                    else:
                        end_step(s, b, f, server)
            settle(s)
            if s[SUBMISSIONS] > 0:
                route(s, b, f)
            s[STARTING] = first
            if s[DRIVEN] and is_due(s):
                return POLICY
        while s[STARTING] < last:
            code = start_server(s, b, f, s[STARTING])
            if code != 0:
                return code
            s[STARTING] += SERVER_SIZE
        s[STARTING] = 0
        if s[DRIVEN] and (s[EVERY_INSTANT] or is_pressed(s)):
            for server in range(first, last, SERVER_SIZE):
                if s[server + RUN] > 0:
                    cut(s, b, f, server, s[NOW] + 1)
