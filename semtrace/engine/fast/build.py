"""The state of a run, laid out as `layout` says, from the tables of a trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from semtrace.engine.fast import layout as at
from semtrace.errors import UsageError
from semtrace.records.columns import NULL
from semtrace.records.enums import Trigger
from semtrace.replay.controller import runs_on_backend

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semtrace.engine.cost import Cost
    from semtrace.engine.fast.simulate import Program
    from semtrace.engine.settings import EngineSettings
    from semtrace.engine.work import Work
    from semtrace.graph.resolve import Constraints
    from semtrace.records.trace import Trace
    from semtrace.replay.arrivals import Instances

    Integers = NDArray[np.int64]

_ROUTING = {
    "round_robin": at.ROUND_ROBIN,
    "least_loaded": at.LEAST_LOADED,
    "prefix_aware": at.PREFIX_AWARE,
    "session_sticky": at.SESSION_STICKY,
}
_LOG_ROWS = 1 << 16
"""Least rows of a log; those of one instant always fit."""
_LONGEST_RUN = 1 << 12
"""Most steps of a run with detail: each is a row."""
_MOST = (1 << 31) - 1


@dataclass
class State:
    """A run: its state, and what of it is needed outside.

    Attributes:
        s, b: the state (see `layout`).
        f: binary64 numbers of the cost.
        events, instances: how many there are.
        instance0: where the instances begin in `s`.
        operation: by event, its operation.
        on_backend: by operation, whether it runs on a server.
        keys: the keys of all operations, one after the other; none without prefix caching.
        first_key: where they begin in `b`.
        salt: by instance, what is added to them.
        compiled: whether the loop that ran it was.
        step_rows, run_rows: what the logs had when they were emptied.
    """

    s: Integers
    b: NDArray[np.uint32]
    f: NDArray[np.float64]
    events: int
    instances: int
    instance0: int
    operation: Integers
    on_backend: NDArray[np.bool_]
    keys: Integers
    first_key: int
    salt: Integers
    compiled: bool = False
    step_rows: list[Integers] = field(default_factory=list)
    run_rows: list[Integers] = field(default_factory=list)


class _Regions:
    """Regions of an array, laid one after the other."""

    def __init__(self, begin: int) -> None:
        self.end = begin

    def add(self, size: int) -> int:
        begin = self.end
        self.end += size
        return begin


def build(
    trace: Trace,
    constraints: Constraints,
    copies: Instances,
    work: Work,
    settings: EngineSettings,
    cost: Cost,
    program: Program,
    *,
    detail: bool,
    driven: bool = False,
) -> State:
    """Lay out a run that has not begun; `driven` if there is a lifecycle policy.

    Raises:
        UsageError: there are too many blocks, or keys of blocks, for 32-bit numbers.
    """
    scheduler, size = settings.scheduler, settings.block_size
    starts = trace.offsets("operations")
    sizes = np.diff(starts)[copies.task]
    first_event = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    events, instances, servers = int(first_event[-1]), len(copies.task), settings.servers
    instance = np.repeat(np.arange(instances), sizes)
    operation = np.arange(events) + (starts[copies.task] - first_event[:-1])[instance]
    backend = runs_on_backend(trace)
    requests = int(backend[operation].sum())

    # What refers to blocks.
    salt, keys, key_count = _salted(work, copies, starts, program.group)
    if not scheduler.prefix_caching:
        salt, keys, key_count = np.zeros(instances, dtype=np.int64), keys[:0], 0
    held = work.prompt_tokens + np.maximum(work.output_tokens, 1)
    widest = int((-(-held[backend & ~program.refused] // size)).max(initial=0))
    slots = max(min(scheduler.max_num_seqs, settings.blocks - 1, requests), 1)
    blocks = _Regions(at.BLOCK_RECORD)
    pools = blocks.add(servers * settings.blocks * at.BLOCK_RECORD)
    twins = blocks.add(servers * settings.blocks * 2)
    found = blocks.add(servers * key_count)
    if blocks.end > _MOST or key_count > _MOST or settings.blocks * size > _MOST * at.BLOCK_RECORD:
        too_large = servers * settings.blocks * (at.BLOCK_RECORD + 2) > _MOST or (
            settings.blocks * size > _MOST * at.BLOCK_RECORD
        )
        raise UsageError(
            f"{servers:,} servers of {settings.blocks:,} blocks, with {key_count:,} different blocks of content, are too "
            "much for this engine, whose numbers of blocks have 32 bits",
            code="engine.size",
            path=f"backend.settings.{'servers' if servers > 1 else 'blocks'}" if too_large else "salt",
            requirement="ST-ENG-003" if too_large else None,
            hint="a smaller kv_bytes, kv_tokens or blocks, fewer servers, or a larger block_size"
            if too_large
            else "fewer servers, larger blocks, a part of the trace, or salt: none",
        )
    tables = blocks.add(servers * slots * widest)
    key0 = blocks.add(len(keys))
    list0 = blocks.add(2 * max(settings.blocks, int(np.diff(work.key_start).max(initial=0))) if driven else 0)
    b = np.zeros(blocks.end, dtype=np.uint32)
    b[key0 : key0 + len(keys)] = keys

    # Where everything begins in `s`.
    regions = _Regions(at.HEAD_SIZE)
    groups, lists = _Groups(trace, constraints, starts), len(constraints.source)
    event0 = regions.add(events * at.EVENT_SIZE)
    operation0 = regions.add(trace.operations.rows * at.OPERATION_SIZE)
    instance0 = regions.add(instances * at.INSTANCE_SIZE)
    server0 = regions.add(servers * at.SERVER_SIZE)
    slot0 = regions.add(servers * slots * at.SLOT_SIZE)
    spare0 = regions.add(servers * slots)
    yielding0 = regions.add(servers * slots)
    lists0 = regions.add(servers * slots * 2) if scheduler.asynchronous else 0
    ends0 = regions.add(servers * (slots + 1) * at.ENTRY_SIZE)
    wheel0 = regions.add(servers * size * at.BUCKET_SIZE)
    edge0 = regions.add(lists * at.EDGE_SIZE)
    group_of0 = regions.add(len(groups.of))
    group0 = regions.add(groups.count * at.GROUP_SIZE)
    hold0 = regions.add(len(groups.holds))
    own_groups = groups.per_task[copies.task]
    counter0 = regions.add(int(own_groups.sum()))
    arrivals0 = regions.add(instances)
    unsent0 = regions.add(instances)
    timers0 = regions.add((events + instances + 1) * at.ENTRY_SIZE)
    instant0 = regions.add(2 * events + instances + 1)
    submitted0 = regions.add(events * at.ENTRY_SIZE)
    news0 = regions.add(3 * events + 1 if driven else 0)
    session_of, session_count = _sessions(trace, starts)
    own_sessions = session_count[copies.task]
    session0 = regions.add(int(own_sessions.sum()) * at.SESSION_SIZE)
    ints0 = regions.add(len(cost.ints))
    geometry0 = regions.add(8)
    longest = _LONGEST_RUN if detail else at.NEVER
    step_room = servers * (_LONGEST_RUN + 8) * at.STEP_ROW if detail else 0
    run_room = 12 * servers * slots * at.RUN_ROW if detail else 0
    step_log0 = regions.add(step_room + (_LOG_ROWS * at.STEP_ROW if detail else 0))
    run_log0 = regions.add(run_room + (_LOG_ROWS * at.RUN_ROW if detail else 0))
    s = np.zeros(regions.end, dtype=np.int64)

    head = {
        at.SERVERS: servers,
        at.TWINS: twins - pools // 2,
        at.BLOCK_SIZE: size,
        at.MOST_REQUESTS: scheduler.max_num_seqs,
        at.MOST_TOKENS: scheduler.max_num_batched_tokens,
        at.THRESHOLD: scheduler.long_prefill_token_threshold,
        at.THRESHOLD_ALWAYS: scheduler.threshold_always,
        at.CHUNKED: scheduler.chunked_prefill,
        at.CACHING: scheduler.prefix_caching,
        at.WATERMARK: scheduler.watermark_blocks,
        at.RESERVE: scheduler.reserve_full_isl,
        at.ASYNCHRONOUS: scheduler.asynchronous,
        at.SLOTS: slots,
        at.STATIC: scheduler.static,
        at.PRIORITY_ORDER: scheduler.order == "priority",
        at.RANKED_BY: program.rule,
        at.ROUTING: _ROUTING[settings.routing],
        at.NEXT_SERVER: server0,
        at.DETAIL: detail,
        at.EVENT0: event0,
        at.SERVER0: server0,
        at.SERVERS_END: server0 + servers * at.SERVER_SIZE,
        at.ARRIVALS0: arrivals0,
        at.ARRIVALS_AT: arrivals0,
        at.UNSENT0: unsent0,
        at.UNSENT_AT: unsent0,
        at.THINK: copies.think_ns,
        at.TIMERS0: timers0,
        at.INSTANT0: instant0,
        at.INSTANT_END: instant0,
        at.SUBMITTED0: submitted0,
        at.KIND: cost.kind,
        at.INTS0: ints0,
        at.INTS_END: ints0 + len(cost.ints),
        at.GEOMETRY0: geometry0,
        at.DRIVEN: driven,
        at.ALARM: at.NEVER,
        at.NEWS0: news0,
        at.NEWS_AT: news0,
        at.LIST0: list0,
        at.STEP_LOG0: step_log0,
        at.STEP_LOG_AT: step_log0,
        at.STEP_LOG_END: run_log0,
        at.RUN_LOG0: run_log0,
        at.RUN_LOG_AT: run_log0,
        at.RUN_LOG_END: regions.end,
        at.LONGEST_RUN: longest,
        at.STEP_ROOM: step_room,
        at.RUN_ROOM: run_room,
    }
    for name, value in head.items():
        s[name] = value
    s[ints0 : ints0 + len(cost.ints)] = cost.ints

    # Events, operations, edges, groups, instances.
    rows = _records(s, event0, events, at.EVENT_SIZE)
    for name in (at.READY, at.RELEASED, at.SUBMITTED, at.SCHEDULED, at.FIRST_TOKEN, at.ENDED):
        rows[:, name] = NULL
    rows[:, at.MISSING] = constraints.in_degree[operation]
    rows[:, at.OPERATION] = operation0 + operation * at.OPERATION_SIZE
    rows[:, at.INSTANCE] = instance0 + instance * at.INSTANCE_SIZE
    rows = _records(s, operation0, trace.operations.rows, at.OPERATION_SIZE)
    answers = trace.tasks.ints("answer_operation")
    rows[:, at.ON_BACKEND] = backend
    rows[:, at.DELAY] = trace.operations.ints("external_delay_ns")
    rows[:, at.DURATION] = trace.operations.ints("duration_ns")
    rows[:, at.PROMPT] = work.prompt_tokens
    rows[:, at.OUTPUT] = work.output_tokens
    rows[:, at.KEYS] = key0 + work.key_start[:-1]
    rows[answers[answers != NULL], at.ANSWER] = 1
    rows[:, at.PRIORITY] = program.rank
    rows[:, at.SESSION] = session_of * at.SESSION_SIZE
    rows[:, at.TOO_LARGE] = program.refused & backend
    order, bounds = _edges(constraints)
    for trigger in range(3):
        rows[:, at.ON_START + trigger] = edge0 + bounds[trigger:-1:3] * at.EDGE_SIZE
    rows[:, at.EDGES_END] = edge0 + bounds[3::3] * at.EDGE_SIZE
    rows[:, at.GROUPS] = group_of0 + groups.bounds[:-1]
    rows[:, at.GROUPS_END] = group_of0 + groups.bounds[1:]
    rows = _records(s, edge0, lists, at.EDGE_SIZE)
    rows[:, at.DISTANCE] = (constraints.target - constraints.source)[order] * at.EVENT_SIZE
    rows[:, at.LAG] = constraints.lag_ns[order]
    s[group_of0 : group_of0 + len(groups.of)] = group0 + groups.of * at.GROUP_SIZE
    rows = _records(s, group0, groups.count, at.GROUP_SIZE)
    rows[:, at.ORDINAL] = groups.ordinal
    rows[:, at.HOLDS] = hold0 + groups.hold_bounds[:-1]
    rows[:, at.HOLDS_END] = hold0 + groups.hold_bounds[1:]
    s[hold0 : hold0 + len(groups.holds)] = groups.holds * at.EVENT_SIZE
    rows = _records(s, instance0, instances, at.INSTANCE_SIZE)
    rows[:, at.ARRIVAL] = copies.arrival_ns
    rows[:, at.EVENTS] = event0 + first_event[:-1] * at.EVENT_SIZE
    rows[:, at.EVENTS_END] = event0 + first_event[1:] * at.EVENT_SIZE
    rows[:, at.LEFT] = sizes
    rows[:, at.HAS_ANSWER] = answers[copies.task] != NULL
    rows[:, at.COUNTERS] = counter0 + np.cumsum(own_groups) - own_groups
    rows[:, at.SALT] = salt
    rows[:, at.FIRST_ROUTED] = NULL
    rows[:, at.SESSIONS] = session0 + (np.cumsum(own_sessions) - own_sessions) * at.SESSION_SIZE
    _records(s, session0, int(own_sessions.sum()), at.SESSION_SIZE)[:, at.SESSION_ROUTED] = NULL
    by_task = np.argsort(groups.task, kind="stable")  # a task's groups, in the order of their ordinals
    first_group = np.cumsum(groups.per_task) - groups.per_task
    place = _ranges(first_group[copies.task], own_groups)
    s[counter0 : counter0 + len(place)] = groups.waits[by_task][place]
    sent = copies.sending_order
    if copies.users:
        rows[sent[: copies.users], at.ARRIVAL] = copies.arrival_ns[sent[: copies.users]]
        unsent = sent[copies.users :]
        s[unsent0 : unsent0 + len(unsent)] = instance0 + unsent * at.INSTANCE_SIZE
    else:
        unsent = sent[:0]
    s[at.UNSENT_END] = unsent0 + len(unsent)
    arrival = rows[:, at.ARRIVAL]
    known = np.flatnonzero(arrival != NULL)
    known = known[np.argsort(arrival[known], kind="stable")]
    s[arrivals0 : arrivals0 + len(known)] = instance0 + known * at.INSTANCE_SIZE
    s[at.ARRIVALS_END] = arrivals0 + len(known)

    # Servers, slots, blocks.
    each = np.arange(servers)
    rows = _records(s, server0, servers, at.SERVER_SIZE)
    rows[:, at.NULL_BLOCK] = pools + each * settings.blocks * at.BLOCK_RECORD
    rows[:, at.FREE] = settings.blocks - 1
    rows[:, at.FOUND] = found + each * key_count
    rows[:, at.WHEEL] = wheel0 + each * size * at.BUCKET_SIZE
    rows[:, at.ENDS] = ends0 + each * (slots + 1) * at.ENTRY_SIZE
    rows[:, at.SPARE] = spare0 + each * slots
    rows[:, at.SPARE_END] = spare0 + (each + 1) * slots
    rows[:, at.YIELDING] = rows[:, at.YIELDING_END] = yielding0 + each * slots
    rows[:, at.STEP_LISTS] = lists0 + each * slots * 2
    rows[:, at.END] = rows[:, at.NEXT_END] = at.NEVER
    every = np.arange(servers * slots)
    rows = _records(s, slot0, servers * slots, at.SLOT_SIZE)
    rows[:, at.TABLE] = tables + every * widest
    # The last spare one is used first: low slots are used again and again.
    s[spare0 : spare0 + servers * slots] = (
        slot0 + every.reshape(servers, slots)[:, ::-1].ravel() * at.SLOT_SIZE
    )
    pool = b[pools : pools + servers * settings.blocks * at.BLOCK_RECORD]
    record = np.arange(settings.blocks)
    offset = (pools + each * settings.blocks * at.BLOCK_RECORD)[:, None]
    fields = pool.reshape(servers, settings.blocks, at.BLOCK_RECORD)
    fields[:, :, at.FREE_NEXT] = offset + np.roll(record, -1) * at.BLOCK_RECORD
    fields[:, :, at.FREE_PREVIOUS] = offset + np.roll(record, 1) * at.BLOCK_RECORD
    return State(
        s,
        b,
        np.array(cost.floats, dtype=np.float64),
        events,
        instances,
        instance0,
        operation,
        backend,
        keys,
        key0,
        salt,
    )


def _records(s: Integers, begin: int, count: int, size: int) -> Integers:
    return s[begin : begin + count * size].reshape(count, size)


def _ranges(begin: Integers, count: Integers) -> Integers:
    """Places from each beginning on, as many as counted, one after the other."""
    return np.repeat(begin - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))


def _edges(constraints: Constraints) -> tuple[Integers, Integers]:
    """Edges by (source, trigger) in the order start, first token, finish, and where each such list begins."""
    place = np.zeros(max(Trigger) + 1, dtype=np.int64)
    place[Trigger.FIRST_TOKEN], place[Trigger.FINISH] = 1, 2
    label = constraints.source * 3 + place[constraints.trigger]
    order = np.argsort(label, kind="stable")
    bounds = np.searchsorted(label[order], np.arange(3 * constraints.operations + 1))
    return order, bounds.astype(np.int64)


def _sessions(trace: Trace, starts: Integers) -> tuple[Integers, Integers]:
    """By operation, the ordinal of its session in its task, those without session having one of their own; and how many."""
    tasks = len(starts) - 1
    task = np.repeat(np.arange(tasks), np.diff(starts))
    session = trace.operations.ints("session") + 1
    pairs, label = np.unique(task * (int(session.max(initial=0)) + 1) + session, return_inverse=True)
    count = np.bincount(pairs // (int(session.max(initial=0)) + 1), minlength=tasks)
    return label - (np.cumsum(count) - count)[task], count.astype(np.int64)


def _salted(
    work: Work, copies: Instances, starts: Integers, group: Integers
) -> tuple[Integers, Integers, int]:
    """What to add to the keys of each instance so that groups differ, the keys, and how many there are then."""
    names, label = np.unique(group, return_inverse=True)
    if len(names) <= 1:
        return np.zeros(len(group), dtype=np.int64), work.keys, work.key_count
    if len(names) < len(group):
        return label * work.key_count, work.keys, len(names) * work.key_count
    # Each instance alone: it needs room for the keys of its task only.
    task = np.repeat(np.arange(len(starts) - 1), np.diff(work.key_start[starts]))
    pairs, dense = np.unique(task * max(work.key_count, 1) + work.keys, return_inverse=True)
    count = np.bincount(pairs // max(work.key_count, 1), minlength=len(starts) - 1)
    keys = dense - (np.cumsum(count) - count)[task]
    own = count[copies.task]
    return np.cumsum(own) - own, keys, int(own.sum())


class _Groups:
    """Groups of a plan, and which of them wait for each operation.

    Attributes:
        count: how many there are.
        task: by group, its task.
        ordinal: by group, its ordinal in its task.
        per_task: by task, how many there are.
        waits: by group, for how many operations it waits.
        of, bounds: by operation, the groups that wait for it.
        holds, hold_bounds: by group, the operations that it holds, counted from the first of the task.
    """

    def __init__(self, trace: Trace, constraints: Constraints, starts: Integers) -> None:
        self.count = len(constraints.waits)
        self.waits = np.array([len(wait) for wait in constraints.waits], dtype=np.int64)
        member = np.concatenate([*constraints.waits, np.zeros(0, dtype=np.int64)])
        hold = np.concatenate([*constraints.holds, np.zeros(0, dtype=np.int64)])
        lengths = np.array([len(hold) for hold in constraints.holds], dtype=np.int64)
        any_member = [
            int(each[0]) if len(each) else int(other[0]) if len(other) else 0
            for each, other in zip(constraints.waits, constraints.holds, strict=True)
        ]
        self.task = np.searchsorted(starts, np.array(any_member, dtype=np.int64), side="right") - 1
        self.per_task = np.bincount(self.task, minlength=len(starts) - 1).astype(np.int64)
        by_task = np.argsort(self.task, kind="stable")
        self.ordinal = np.zeros(self.count, dtype=np.int64)
        self.ordinal[by_task] = _ranges(np.zeros_like(self.per_task), self.per_task)
        group = np.repeat(np.arange(self.count), self.waits)
        order = np.argsort(member, kind="stable")
        self.of = group[order]
        self.bounds = np.searchsorted(member[order], np.arange(trace.operations.rows + 1)).astype(np.int64)
        self.holds = hold - np.repeat(starts[self.task], lengths)
        self.hold_bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
