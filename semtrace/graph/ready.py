"""Ready times: computed for a whole trace at once, or recomputed from what was observed (spec, release.md)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from semtrace import kernels
from semtrace.errors import ReplayError
from semtrace.graph.lockstep import Lockstep
from semtrace.records.enums import Trigger

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semtrace.graph.resolve import Constraints

UNKNOWN: Final = np.iinfo(np.int64).min
"""Stands for a time that is not known."""


def trigger_times(
    trigger: NDArray[np.int64],
    source: NDArray[np.int64],
    submitted_ns: NDArray[np.int64],
    first_token_ns: NDArray[np.int64],
    finished_ns: NDArray[np.int64],
) -> NDArray[np.int64]:
    """When the triggers of edges came, in ns; `UNKNOWN` where the source's time is not known.

    Args:
        trigger: trigger of each edge.
        source: source of each edge, an index into the times.
        submitted_ns: when each operation was submitted; `UNKNOWN` if it never was: the end stands for it then.
        first_token_ns: when its first token came; `UNKNOWN` if none ever came: the end stands for it then.
        finished_ns: when it ended.
    """
    came = finished_ns[source]
    at_start = trigger == Trigger.START
    came = np.where(at_start & (submitted_ns[source] != UNKNOWN), submitted_ns[source], came)
    at_token = trigger == Trigger.FIRST_TOKEN
    return np.where(at_token & (first_token_ns[source] != UNKNOWN), first_token_ns[source], came)


def ready_times(
    constraints: Constraints,
    arrival_ns: NDArray[np.int64],
    submitted_ns: NDArray[np.int64],
    first_token_ns: NDArray[np.int64],
    finished_ns: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Recompute when each operation became ready from the times of the operations that it waits for.

    Args:
        constraints: of the plan.
        arrival_ns: arrival of each operation's instance; `UNKNOWN` if not known.
        submitted_ns: when each operation was submitted; `UNKNOWN` if it never was.
        first_token_ns: when its first token came; `UNKNOWN` if none ever came.
        finished_ns: when it ended; `UNKNOWN` if it did not, or it is not known.

    Returns:
        Ready times in ns, shape (operations,); `UNKNOWN` where a time that it depends on is.
    """
    came = trigger_times(constraints.trigger, constraints.source, submitted_ns, first_token_ns, finished_ns)
    satisfied = np.where(came == UNKNOWN, UNKNOWN, came + constraints.lag_ns)
    ready = np.where(constraints.in_degree == 0, arrival_ns, UNKNOWN + 1)
    missing = np.zeros(constraints.operations, dtype=np.bool_)
    np.maximum.at(ready, constraints.target, satisfied)
    missing[constraints.target[satisfied == UNKNOWN]] = True
    for wait, hold in zip(constraints.waits, constraints.holds, strict=True):
        ended = finished_ns[wait]
        if (ended == UNKNOWN).any():
            missing[hold] = True
        else:
            ready[hold] = np.maximum(ready[hold], ended.max())
    ready[missing] = UNKNOWN
    return ready


@dataclass(frozen=True)
class Schedule:
    """When each operation is ready, released and finished if nothing limits concurrency; ns, shape (operations,).

    Operations on a cycle of constraints are never ready: `UNKNOWN`.
    """

    ready_ns: NDArray[np.int64]
    released_ns: NDArray[np.int64]
    finished_ns: NDArray[np.int64]


def schedule(
    constraints: Constraints,
    arrival_ns: NDArray[np.int64],
    external_delay_ns: NDArray[np.int64],
    duration_ns: NDArray[np.int64],
    first_token_after_ns: NDArray[np.int64] | None = None,
) -> Schedule:
    """When everything happens if every operation takes a given time from its release.

    Args:
        constraints: of the plan.
        arrival_ns: arrival of each operation's task, in ns, shape (operations,).
        external_delay_ns: delay between ready and release.
        duration_ns: time from release to end.
        first_token_after_ns: time from release to the first token; the duration if left out.

    Raises:
        ReplayError: a time does not fit into 63 bits.
    """
    longest = sum(
        float(part.sum(dtype=np.float64))
        for part in (duration_ns, external_delay_ns, constraints.lag_ns, arrival_ns.max(initial=0))
    )
    if longest >= float(1 << 62):
        raise ReplayError(
            "durations and delays add up to more than 63 bits hold",
            code="graph.overflow",
            requirement="ST-REL-001",
            hint="look for a delay, lag, duration or arrival that is off by a unit",
        )
    tokens = duration_ns if first_token_after_ns is None else first_token_after_ns
    lockstep = _lockstep(constraints)
    if lockstep is not None:

        def after(edges: NDArray[np.int64]) -> NDArray[np.int64]:
            return _after(constraints, edges, external_delay_ns, duration_ns, tokens)

        ready = lockstep.ready_times(arrival_ns, after)
        released = ready + external_delay_ns
        return Schedule(ready, released, released + duration_ns)
    count = constraints.operations
    nodes = count + len(constraints.waits)
    edges = _Edges.of(constraints, nodes)

    def widened(values: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.concatenate([values, np.zeros(nodes - count, dtype=np.int64)]) if nodes > count else values

    ready, released, finished = (np.full(nodes, UNKNOWN, dtype=np.int64) for _ in range(3))
    order = edges.order()
    kernels.run(
        _forward,
        len(edges.source),
        *(order, edges.offsets, edges.source, edges.trigger, edges.lag_ns),
        *(widened(arrival_ns), widened(external_delay_ns), widened(duration_ns), widened(tokens)),
        *(ready, released, finished),
    )
    return Schedule(ready[:count], released[:count], finished[:count])


def _lockstep(constraints: Constraints) -> Lockstep | None:
    """The steps of constraints, None where stepping through them does not pay, or needs another order than that of rows."""
    few = len(constraints.source) < kernels.WORTH_COMPILING
    if few or constraints.waits or not bool((constraints.source < constraints.target).all()):
        return None
    lockstep = Lockstep.of(constraints.offsets, constraints.source)
    return lockstep if lockstep.wide else None


def _after(
    constraints: Constraints,
    edges: NDArray[np.int64],
    delay_ns: NDArray[np.int64],
    length_ns: NDArray[np.int64],
    token_ns: NDArray[np.int64],
) -> NDArray[np.int64]:
    """How long after its source became ready each of some edges is satisfied, in ns."""
    source, trigger = constraints.source.take(edges), constraints.trigger.take(edges)
    runs = length_ns.take(source)
    early = np.flatnonzero(trigger != Trigger.FINISH)
    begun = trigger[early] == Trigger.FIRST_TOKEN
    runs[early] = np.where(begun, token_ns[source[early]], 0)
    return delay_ns.take(source) + runs + constraints.lag_ns.take(edges)


def _forward(
    order: Any,
    offsets: Any,
    source: Any,
    trigger: Any,
    lag: Any,
    arrival: Any,
    delay: Any,
    length: Any,
    token: Any,
    ready: Any,
    released: Any,
    finished: Any,
) -> None:
    """Ready, released and finished times of nodes, each after all that it waits for (arrays, or lists; see kernels)."""
    for at in range(len(order)):
        node = order[at]
        latest = arrival[node]
        first = True
        for edge in range(offsets[node], offsets[node + 1]):
            before = source[edge]
            came = finished[before]
            if trigger[edge] == 2:  # start
                came = released[before]
            elif trigger[edge] == 3:  # first token
                came = released[before] + token[before]
            came += lag[edge]
            if first or came > latest:
                latest = came
            first = False
        ready[node] = latest
        released[node] = latest + delay[node]
        finished[node] = released[node] + length[node]


def _kahn(offsets: Any, followers: Any, missing: Any, order: Any, placed: Any) -> None:
    """A topological order of nodes; `placed[0]` is how many there are in it, those on no cycle and behind none."""
    filled = 0
    for node in range(len(missing)):
        if missing[node] == 0:
            order[filled] = node
            filled += 1
    done = 0
    while done < filled:
        node = order[done]
        done += 1
        for edge in range(offsets[node], offsets[node + 1]):
            follower = followers[edge]
            missing[follower] -= 1
            if missing[follower] == 0:
                order[filled] = follower
                filled += 1
    placed[0] = filled


@dataclass(frozen=True)
class _Edges:
    """Constraints as edges alone, sorted by target; each group is a node that takes no time."""

    nodes: int
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    trigger: NDArray[np.int64]
    lag_ns: NDArray[np.int64]

    @classmethod
    def of(cls, constraints: Constraints, nodes: int) -> _Edges:
        """The edges of constraints."""
        recorded = (constraints.source, constraints.target, constraints.trigger, constraints.lag_ns)
        if nodes == constraints.operations:
            return cls(nodes, *recorded)
        hub = np.arange(constraints.operations, nodes, dtype=np.int64)
        sizes = [[len(group) for group in side] for side in (constraints.waits, constraints.holds)]
        source = np.concatenate([constraints.source, *constraints.waits, np.repeat(hub, sizes[1])])
        target = np.concatenate([constraints.target, np.repeat(hub, sizes[0]), *constraints.holds])
        extra = len(source) - len(constraints.source)
        trigger = np.concatenate([constraints.trigger, np.full(extra, Trigger.FINISH)])
        lag = np.concatenate([constraints.lag_ns, np.zeros(extra, dtype=np.int64)])
        order = np.argsort(target, kind="stable")
        return cls(nodes, source[order], target[order], trigger[order], lag[order])

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Where the edges into each node begin, shape (nodes + 1,)."""
        return _offsets(self.target, self.nodes)

    def order(self) -> NDArray[np.int64]:
        """The nodes, each after all that it waits for; those on a cycle, or behind one, are left out."""
        if bool((self.source < self.target).all()):
            return np.arange(self.nodes, dtype=np.int64)
        by_source = np.argsort(self.source, kind="stable")
        missing = np.bincount(self.target, minlength=self.nodes).astype(np.int64)
        order, placed = np.zeros(self.nodes, dtype=np.int64), np.zeros(1, dtype=np.int64)
        kernels.run(
            _kahn,
            len(self.source),
            *(_offsets(self.source, self.nodes), self.target[by_source], missing, order, placed),
        )
        return order[: int(placed[0])]


def _offsets(sorted_by: NDArray[np.int64], nodes: int) -> NDArray[np.int64]:
    sizes = np.bincount(sorted_by, minlength=nodes)
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
