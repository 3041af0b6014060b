"""Instances: the copies of tasks in a run, and when each arrives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from semtrace.errors import ReplayError
from semtrace.records.columns import NULL
from semtrace.replay.scenario import ClosedLoop, Drawn, Poisson, Recorded, Together

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semtrace.records.trace import Trace
    from semtrace.replay.scenario import Scenario


@dataclass(frozen=True)
class Instances:
    """The instances of a run, in the order of the execution's table: by (task, copy).

    Attributes:
        task: task of each.
        copy: ordinal among the copies of its task.
        arrival_ns: when it arrives; `NULL` where that follows from the run: in a closed loop, all but each user's first.
        sending_order: the instances in the order in which they are sent: all first copies, then all second ones.
        prefix_group: instances with equal numbers may find each other's prefixes in a cache, others may not (ST-SCN-011).
        users: number of users of a closed loop, 0 if it is none.
        think_ns: time from an answer to the user's next task.
    """

    task: NDArray[np.int64]
    copy: NDArray[np.int64]
    arrival_ns: NDArray[np.int64]
    sending_order: NDArray[np.int64]
    prefix_group: NDArray[np.int64]
    users: int = 0
    think_ns: int = 0


def settle(trace: Trace, scenario: Scenario) -> Scenario:
    """The scenario with nothing left to chance or default: arrivals chosen and drawn (ST-SCN-002).

    Raises:
        ReplayError: recorded arrivals are asked for and a task has none, the number of drawn times is wrong, or they
            are too large.
    """
    recorded = trace.tasks.ints("arrival_ns")
    count = trace.tasks.rows * scenario.copies
    arrivals = scenario.arrivals
    if arrivals is None:
        arrivals = Recorded() if (recorded != NULL).all() else Together()
    if isinstance(arrivals, Recorded) and (recorded == NULL).any():
        task = int(np.flatnonzero(recorded == NULL)[0])
        raise ReplayError(
            f"task {task} has no recorded arrival",
            code="scenario.arrivals",
            path=f"tasks[{task}].arrival_ns",
            requirement="ST-SCN-001",
            hint="choose other arrivals: --arrivals together, poisson:MEAN_NS or closed-loop:USERS",
        )
    if isinstance(arrivals, Poisson):
        arrivals = _draw(arrivals, count)
    if isinstance(arrivals, Drawn) and len(arrivals.times_ns) != count:
        raise ReplayError(
            f"{len(arrivals.times_ns)} arrival times for {count} instances",
            code="scenario.arrivals",
            path="scenario.arrivals.times_ns",
            requirement="ST-SCN-009",
        )
    return scenario.model_copy(update={"arrivals": arrivals})


def _draw(process: Poisson, count: int) -> Drawn:
    """Arrival times of a Poisson process: the sums of drawn intervals, each rounded to a whole ns (ST-SCN-008)."""
    intervals = np.random.default_rng(process.seed).exponential(process.mean_ns, count)
    times = np.cumsum(np.rint(intervals))
    if count and times[-1] >= 1 << 53:
        raise ReplayError(
            f"{count} arrivals with a mean interval of {process.mean_ns} ns take more than 2^53 ns, 104 days",
            code="scenario.arrivals",
            path="scenario.arrivals.mean_ns",
            requirement="ST-SCN-008",
        )
    return Drawn(times_ns=times.astype(np.int64).tolist(), drawn_from=process)


def instances(trace: Trace, scenario: Scenario) -> Instances:
    """The instances of a settled scenario."""
    tasks, copies = trace.tasks.rows, scenario.copies
    task = np.repeat(np.arange(tasks, dtype=np.int64), copies)
    copy = np.tile(np.arange(copies, dtype=np.int64), tasks)
    order = np.lexsort((task, copy)).astype(np.int64)
    every = np.arange(len(task), dtype=np.int64)
    group = {"copy": copy, "instance": every, "none": np.zeros_like(copy)}[scenario.salt]
    arrivals = scenario.arrivals
    arrival = np.full(len(task), NULL, dtype=np.int64)
    if isinstance(arrivals, Drawn):
        arrival[order] = np.asarray(arrivals.times_ns, dtype=np.int64)
    elif isinstance(arrivals, Recorded):
        arrival = trace.tasks.ints("arrival_ns")[task]
    elif isinstance(arrivals, Together):
        arrival[:] = 0
    elif isinstance(arrivals, ClosedLoop):
        first = order[: arrivals.users]
        arrival[first] = [user * arrivals.ramp_ns // arrivals.users for user in range(len(first))]
        return Instances(task, copy, arrival, order, group, arrivals.users, arrivals.think_ns)
    return Instances(task, copy, arrival, order, group)
