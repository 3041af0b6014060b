"""Ready times: computed for a whole trace at once, or recomputed from what was observed (spec, release.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from semtrace.errors import ReplayError
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

    Whole levels of the graph are computed at once.

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
    count = constraints.operations
    hubs = len(constraints.waits)
    tokens = duration_ns if first_token_after_ns is None else first_token_after_ns
    wait_sizes = [len(wait) for wait in constraints.waits]
    hold_sizes = [len(hold) for hold in constraints.holds]
    hub = np.arange(count, count + hubs, dtype=np.int64)
    none = np.zeros(0, dtype=np.int64)
    source = np.concatenate([constraints.source, *constraints.waits, np.repeat(hub, hold_sizes)])
    target = np.concatenate([constraints.target, np.repeat(hub, wait_sizes), *(constraints.holds or (none,))])
    extra = len(source) - len(constraints.source)
    trigger = np.concatenate([constraints.trigger, np.full(extra, Trigger.FINISH)])
    lag = np.concatenate([constraints.lag_ns, np.zeros(extra, dtype=np.int64)])
    order = np.argsort(source, kind="stable")
    target, trigger, lag = target[order], trigger[order], lag[order]
    bounds = np.searchsorted(source[order], np.arange(count + hubs + 1))
    missing = np.bincount(target, minlength=count + hubs)
    delay = np.concatenate([external_delay_ns, np.zeros(hubs, dtype=np.int64)])
    length = np.concatenate([duration_ns, np.zeros(hubs, dtype=np.int64)])
    token = np.concatenate([tokens, np.zeros(hubs, dtype=np.int64)])
    ready = np.full(count + hubs, UNKNOWN, dtype=np.int64)
    ready[:count] = np.where(missing[:count] == 0, arrival_ns, UNKNOWN)
    finished = np.full(count + hubs, UNKNOWN, dtype=np.int64)
    level = np.flatnonzero(missing == 0)
    while len(level):
        released = ready[level] + delay[level]
        finished[level] = released + length[level]
        sizes = bounds[level + 1] - bounds[level]
        edges = np.repeat(bounds[level] - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes) + np.arange(
            sizes.sum()
        )
        at = np.repeat(np.arange(len(level)), sizes)
        after = np.where(
            trigger[edges] == Trigger.FINISH,
            length[level][at],
            np.where(trigger[edges] == Trigger.START, 0, token[level][at]),
        )
        to = target[edges]
        np.maximum.at(ready, to, released[at] + after + lag[edges])
        np.subtract.at(missing, to, 1)
        level = np.unique(to[missing[to] == 0])
    blocked = missing[:count] > 0
    ready[:count][blocked] = UNKNOWN
    released_all = np.where(blocked, UNKNOWN, ready[:count] + external_delay_ns)
    return Schedule(ready[:count], released_all, finished[:count])
