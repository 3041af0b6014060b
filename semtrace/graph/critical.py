"""The critical path: the chain of operations that decides when a task can end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from semtrace.errors import ReplayError
from semtrace.graph.ready import UNKNOWN, schedule, trigger_times
from semtrace.records.columns import NULL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semtrace.graph.ready import Schedule
    from semtrace.graph.resolve import Constraints
    from semtrace.records.trace import Trace


@dataclass(frozen=True)
class CriticalPath:
    """The longest chain of a task.

    Attributes:
        operations: from the first one to the one that ends the task.
        length_ns: from the task's arrival to that end.
    """

    operations: tuple[int, ...]
    length_ns: int


def end_operation(trace: Trace, task: int, finished_ns: NDArray[np.int64]) -> int:
    """The operation that ends a task's root latency: its answer, else the last to finish, the lowest of several."""
    answer = int(trace.tasks.ints("answer_operation")[task])
    if answer != NULL:
        return answer
    rows = trace.task_rows("operations", task)
    return rows.start + int(np.argmax(finished_ns[rows.start : rows.stop]))


def critical_path(
    trace: Trace,
    constraints: Constraints,
    task: int,
    duration_ns: NDArray[np.int64],
    first_token_after_ns: NDArray[np.int64] | None = None,
) -> CriticalPath:
    """The critical path of a task when every operation takes a given time and nothing limits concurrency (ST-REL-040).

    Args:
        trace: the trace.
        constraints: of the plan.
        task: the task.
        duration_ns: time from release to end of each operation, shape (operations,).
        first_token_after_ns: time from release to its first token; the duration if left out.

    Raises:
        ReplayError: the task has no operations, or the constraints are cyclic.
    """
    rows = trace.task_rows("operations", task)
    if not rows:
        raise ReplayError("the task has no operations", code="graph.empty", path=f"tasks[{task}]")
    zero = np.zeros(constraints.operations, dtype=np.int64)
    times = schedule(
        constraints, zero, trace.operations.ints("external_delay_ns"), duration_ns, first_token_after_ns
    )
    if (times.finished_ns[rows.start : rows.stop] == UNKNOWN).any():
        raise ReplayError(
            "the constraints are cyclic", code="graph.cycle", path=f"tasks[{task}]", requirement="ST-PLAN-012"
        )
    end = end_operation(trace, task, times.finished_ns)
    token = times.finished_ns if first_token_after_ns is None else times.released_ns + first_token_after_ns
    path = [end]
    while True:
        before = _deciding(constraints, times, token, path[-1])
        if before is None:
            return CriticalPath(tuple(reversed(path)), int(times.finished_ns[end]))
        path.append(before)


def _deciding(
    constraints: Constraints, times: Schedule, first_token_ns: NDArray[np.int64], operation: int
) -> int | None:
    """The predecessor that decided when an operation became ready, the lowest of several."""
    edges = slice(int(constraints.offsets[operation]), int(constraints.offsets[operation + 1]))
    source = constraints.source[edges]
    came = trigger_times(
        constraints.trigger[edges], source, times.released_ns, first_token_ns, times.finished_ns
    )
    ready = times.ready_ns[operation]
    candidates = source[came + constraints.lag_ns[edges] == ready].tolist()
    for wait, hold in zip(constraints.waits, constraints.holds, strict=True):
        at = np.searchsorted(hold, operation)
        if at < len(hold) and hold[at] == operation:
            candidates.extend(wait[times.finished_ns[wait] == ready].tolist())
    return min(candidates, default=None)
