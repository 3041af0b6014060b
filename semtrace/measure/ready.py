"""When each slot had to be ready, recomputed from the times of what it waits for, by kind of constraint.

The computation is the audit's own: it shares no code with the controller that it judges.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from semtrace.graph.plan import dag
from semtrace.measure.slots import after, ranges
from semtrace.records.columns import NULL
from semtrace.records.enums import EdgeKind, Trigger
from semtrace.store.digests import show, work_digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from semtrace.graph.plan import Plan
    from semtrace.measure.slots import Slots
    from semtrace.records.trace import Trace

FREE: Final = np.iinfo(np.int64).min
"""The bound of a slot that no constraint of a kind holds back."""


@dataclass(frozen=True)
class Edges:
    """Constraints between operations, sorted by target; all of one length.

    Attributes:
        target, source, trigger, lag_ns: as in the table `edges`.
        row: the row of `edges`, or the position in the plan's edges.
    """

    target: NDArray[np.int64]
    source: NDArray[np.int64]
    trigger: NDArray[np.int64]
    lag_ns: NDArray[np.int64]
    row: NDArray[np.int64]

    def keep(self, mask: NDArray[np.bool_]) -> Edges:
        """Some of them."""
        return Edges(
            self.target[mask], self.source[mask], self.trigger[mask], self.lag_ns[mask], self.row[mask]
        )


def recorded_edges(trace: Trace, plan: Plan | None) -> tuple[Edges, Edges]:
    """The recorded edges that a plan keeps: all but state edges, and state edges."""
    target, source, trigger, lag = (
        trace.edges.ints(name) for name in ("target", "source", "trigger", "lag_ns")
    )
    edges = Edges(target, source, trigger, lag, np.arange(trace.edges.rows, dtype=np.int64))
    kind = trace.edges.ints("kind")
    if plan is not None and plan.base == "work-only":
        keep = np.isin(kind, (EdgeKind.DATA, EdgeKind.STATE))
        edges, kind = edges.keep(keep), kind[keep]
    return edges.keep(kind != EdgeKind.STATE), edges.keep(kind == EdgeKind.STATE)


def added_edges(plan: Plan | None) -> Edges:
    """The edges that a plan adds."""
    rows = [(e.target, e.source, int(e.trigger_number), e.lag_ns) for e in plan.edges] if plan else []
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    order = np.argsort(table[:, 0], kind="stable")
    target, source, trigger, lag = table[order].T
    return Edges(target, source, trigger, lag, order.astype(np.int64))


def no_plan(trace: Trace) -> Plan:
    """The plan that an execution without one followed: the recorded edges, nothing else."""
    return dag(show(work_digest(trace)))


@dataclass(frozen=True)
class Placed:
    """Edges between slots: every edge once for each instance of its task.

    Attributes:
        target, source: slots.
        edge: position in the edges that were placed.
        satisfied_ns: when it was satisfied; `NULL` where the source's trigger is not known.
    """

    target: NDArray[np.int64]
    source: NDArray[np.int64]
    edge: NDArray[np.int64]
    satisfied_ns: NDArray[np.int64]


def place(slots: Slots, edges: Edges) -> Placed:
    """The edges of every instance, with the times at which they were satisfied."""
    begin = np.searchsorted(edges.target, slots.operation, side="left")
    counts = np.searchsorted(edges.target, slots.operation, side="right") - begin
    edge = ranges(begin, counts)
    target = np.repeat(np.arange(slots.count, dtype=np.int64), counts)
    source = edges.source[edge] + slots.base[slots.instance[target]]
    trigger = edges.trigger[edge]
    came = slots.finished[source]
    came = np.where(trigger == Trigger.START, slots.start_trigger[source], came)
    came = np.where(trigger == Trigger.FIRST_TOKEN, slots.first_token_trigger[source], came)
    satisfied = np.where(came == NULL, NULL, after(came, edges.lag_ns[edge]))
    return Placed(target, source, edge, satisfied)


@dataclass(frozen=True)
class Bound:
    """The latest of some constraints, by slot.

    Attributes:
        at_ns: the latest time known, `FREE` where there is no constraint with a known time.
        unknown: where some constraint's time is not known: the true bound is `at_ns` or later.
    """

    at_ns: NDArray[np.int64]
    unknown: NDArray[np.bool_]

    def __or__(self, other: Bound) -> Bound:
        return Bound(np.maximum(self.at_ns, other.at_ns), self.unknown | other.unknown)

    @cached_property
    def exact_ns(self) -> NDArray[np.int64]:
        """The bound where it is known in full, else `NULL`."""
        return np.where(self.unknown | (self.at_ns == FREE), NULL, self.at_ns)


def latest(count: int, target: NDArray[np.int64], satisfied_ns: NDArray[np.int64]) -> Bound:
    """The bound of `count` slots by constraints on some of them; `NULL` is a time not known."""
    at = np.full(count, FREE, dtype=np.int64)
    unknown = np.zeros(count, dtype=np.bool_)
    known = satisfied_ns != NULL
    np.maximum.at(at, target[known], satisfied_ns[known])
    unknown[target[~known]] = True
    return Bound(at, unknown)


@dataclass(frozen=True)
class Held:
    """Edges of one kind, placed, with the bound that they are together."""

    edges: Edges
    placed: Placed
    bound: Bound

    @classmethod
    def of(cls, slots: Slots, edges: Edges) -> Held:
        """Place the edges and take their bound."""
        placed = place(slots, edges)
        return cls(edges, placed, latest(slots.count, placed.target, placed.satisfied_ns))


@dataclass(frozen=True)
class Barriers:
    """The groups of a plan, for every instance.

    Attributes:
        group: the group of each pair of a group and an instance, shape (pairs,).
        opened_ns: when its last wait operation had finished; `NULL` where one's end is not known, shape (pairs,).
        opener: the slot of that operation, the lowest of several; `NULL` where unknown, shape (pairs,).
        hold: slots that waited, shape (holds,).
        pair: the pair that each of them waited for, shape (holds,).
        satisfied_ns: when that pair's barrier opened; `NULL` where unknown, shape (holds,).
        bound: what all of them are together.
    """

    group: NDArray[np.int64]
    opened_ns: NDArray[np.int64]
    opener: NDArray[np.int64]
    hold: NDArray[np.int64]
    pair: NDArray[np.int64]
    satisfied_ns: NDArray[np.int64]
    bound: Bound

    @classmethod
    def of(cls, slots: Slots, plan: Plan | None) -> Barriers:
        """The barriers of a plan that can be applied to the trace."""
        task = slots.trace.operations.ints("task")
        of_task = slots.execution.instances.ints("task")
        group: list[NDArray[np.int64]] = []
        opened: list[NDArray[np.int64]] = []
        openers: list[NDArray[np.int64]] = []
        hold: list[NDArray[np.int64]] = []
        pair: list[NDArray[np.int64]] = []
        pairs = 0
        for number, barrier in enumerate(plan.groups if plan else ()):
            bases = slots.base[of_task == task[barrier.wait[0]]]
            waits = bases[:, None] + _operations(barrier.wait)
            ended = slots.finished[waits]
            known = (ended != NULL).all(axis=1)
            last = np.take_along_axis(waits, ended.argmax(axis=1)[:, None], axis=1)[:, 0]
            opened.append(np.where(known, ended.max(axis=1), NULL))
            openers.append(np.where(known, last, NULL))
            group.append(np.full(len(bases), number, dtype=np.int64))
            holds = bases[:, None] + _operations(barrier.hold)
            hold.append(holds.ravel())
            pair.append(np.repeat(pairs + np.arange(len(bases), dtype=np.int64), holds.shape[1]))
            pairs += len(bases)
        groups, opened_ns, opener, held, pairs_held = (
            np.concatenate([np.zeros(0, dtype=np.int64), *parts])
            for parts in (group, opened, openers, hold, pair)
        )
        satisfied = opened_ns[pairs_held]
        bound = latest(slots.count, held, satisfied)
        return cls(groups, opened_ns, opener, held, pairs_held, satisfied, bound)


def _operations(members: Sequence[int]) -> NDArray[np.int64]:
    return np.unique(np.asarray(members, dtype=np.int64))[None, :]


@dataclass(frozen=True)
class Expected:
    """When each slot had to be ready under a plan.

    Attributes:
        arrival: the bound of slots that nothing but the arrival of their instance holds back.
        recorded: the recorded edges but those of state.
        state: the recorded edges of state.
        added: the edges that the plan adds.
        barriers: the groups that the plan adds.
    """

    arrival: Bound
    recorded: Held
    state: Held
    added: Held
    barriers: Barriers

    @classmethod
    def of(cls, slots: Slots, plan: Plan | None) -> Expected:
        """Recompute the bounds from the events of an execution."""
        plain, of_state = recorded_edges(slots.trace, plan)
        recorded, state, added = (Held.of(slots, edges) for edges in (plain, of_state, added_edges(plan)))
        barriers = Barriers.of(slots, plan)
        every = recorded.bound | state.bound | added.bound | barriers.bound
        first = (every.at_ns == FREE) & ~every.unknown
        came = first & (slots.arrival != NULL)
        arrival = Bound(np.where(came, slots.arrival, FREE), first & ~came)
        return cls(arrival, recorded, state, added, barriers)

    @cached_property
    def work(self) -> Bound:
        """The bound without what the plan added."""
        return self.arrival | self.recorded.bound | self.state.bound

    @cached_property
    def full(self) -> Bound:
        """The bound of everything."""
        return self.work | self.added.bound | self.barriers.bound
