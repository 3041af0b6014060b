"""Starts that the known dependencies do not explain: the rest becomes an inferred external delay (ST-PROD-003)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from semtrace.build.assemble import all_edges
from semtrace.errors import FormatError
from semtrace.records.enums import Trigger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from semtrace.build.builder import TraceBuilder

UNKNOWN: Final = np.iinfo(np.int64).min
"""What stands for a time that is not known."""
MAX_TIME_NS: Final = 1 << 61
"""Greatest time or lag, in ns on either side of the origin: 73 years, so that sums of them stay in 64 bits."""


@dataclass(frozen=True)
class ExplainedStarts:
    """What `explain_starts` did.

    Attributes:
        delayed: operations that got a delay.
        delay_ns: sum of the delays, in ns.
        unexplained: operations whose start is known but not the end of an operation that they wait for.
        early: operations that were seen to start before an operation that they are said to wait for had ended.
    """

    delayed: list[int]
    delay_ns: int
    unexplained: list[int]
    early: list[int]


@dataclass(frozen=True)
class Seen:
    """What was observed of operations, in ns from the origin, `UNKNOWN` where it was not; shape (operations,)."""

    submitted_ns: NDArray[np.int64]
    first_token_ns: NDArray[np.int64]
    finished_ns: NDArray[np.int64]


@dataclass(frozen=True)
class Waits:
    """Edges: which operation waits for which, from which instant of it and how long after; shape (edges,)."""

    target: NDArray[np.int64]
    source: NDArray[np.int64]
    trigger: NDArray[np.int64]
    lag_ns: NDArray[np.int64]


@dataclass(frozen=True)
class Unexplained:
    """What dependencies leave unexplained of the starts of operations.

    Attributes:
        gap_ns: between the instant that they explain and the start; negative where the start was before; 0 where
            either is not known.
        unknown: which operations have a start, and wait for an instant that is not known.
        arrival_ns: of each task its arrival, or its first start where none is stated; `UNKNOWN` without either.
    """

    gap_ns: NDArray[np.int64]
    unknown: NDArray[np.bool_]
    arrival_ns: NDArray[np.int64]


def unexplained_starts(
    task: NDArray[np.int64], arrival_ns: NDArray[np.int64], seen: Seen, waits: Waits
) -> Unexplained:
    """What the dependencies of operations leave unexplained of their starts.

    Args:
        task: the task of each operation.
        arrival_ns: the arrival of each task, `UNKNOWN` where it is not stated.
        seen: when operations were submitted, gave a first token and finished.
        waits: the edges.

    Raises:
        FormatError: a time is 73 years or more away from the origin.
    """
    for times in (arrival_ns, seen.submitted_ns, seen.first_token_ns, seen.finished_ns, waits.lag_ns):
        known = times[times != UNKNOWN]
        if len(known) and max(int(known.max()), -int(known.min())) >= MAX_TIME_NS:
            raise FormatError("a time is 73 years or more away from the origin", code="build.time")
    start = seen.submitted_ns
    first = np.full(len(arrival_ns), np.iinfo(np.int64).max)
    started = np.flatnonzero(start != UNKNOWN)
    np.minimum.at(first, task[started], start[started])
    arrival = np.where((arrival_ns == UNKNOWN) & (first < np.iinfo(np.int64).max), first, arrival_ns)
    came = np.where(
        waits.trigger == Trigger.FINISH,
        seen.finished_ns[waits.source],
        np.where(waits.trigger == Trigger.START, start[waits.source], seen.first_token_ns[waits.source]),
    )
    here = came != UNKNOWN
    unknown = np.zeros(len(task), dtype=np.bool_)
    unknown[waits.target[~here]] = True
    alone = np.ones(len(task), dtype=np.bool_)
    alone[waits.target] = False
    ready = np.where(alone, arrival[task], UNKNOWN) if len(task) else start
    np.maximum.at(ready, waits.target[here], came[here] + waits.lag_ns[here])
    judged = (start != UNKNOWN) & ~unknown & (ready != UNKNOWN)
    gap = np.zeros(len(task), dtype=np.int64)
    gap[judged] = start[judged] - ready[judged]
    return Unexplained(gap, unknown & (start != UNKNOWN), arrival)


def explain_starts(builder: TraceBuilder) -> ExplainedStarts:
    """Give each operation that was seen to start later than its dependencies explain the difference as a delay.

    The start of an operation is its observed `submitted` time; its end is its observed `finished` time. A task
    without an arrival time arrives with its first start. An operation that states a delay of its own keeps it. To be
    called once, last, before `build`.

    Raises:
        FormatError: a time is 73 years or more away from the origin.
    """
    operations, tasks = builder.rows["operations"], builder.rows["tasks"]

    def times(name: str) -> NDArray[np.int64]:
        seen = (builder.observed.get(at) for at in range(len(operations)))
        found = (each.times.get(name) if each else None for each in seen)
        return _integers(time[0] if time else UNKNOWN for time in found)

    edges = all_edges(builder)
    stated = (task["arrival_ns"] for task in tasks)
    left = unexplained_starts(
        _integers(operation["task"] for operation in operations),
        _integers(UNKNOWN if arrival is None else arrival for arrival in stated),
        Seen(times("submitted"), times("first_token"), times("finished")),
        Waits(
            *(_integers(edge[name] for edge in edges) for name in ("target", "source", "trigger", "lag_ns"))
        ),
    )
    for task, arrival in zip(tasks, left.arrival_ns.tolist(), strict=True):
        if arrival != UNKNOWN:
            task["arrival_ns"] = arrival
    delayed = [
        at for at in np.flatnonzero(left.gap_ns > 0).tolist() if not operations[at]["external_delay_ns"]
    ]
    for at in delayed:
        operations[at]["external_delay_ns"] = int(left.gap_ns[at])
    return ExplainedStarts(
        delayed,
        int(left.gap_ns[delayed].sum()),
        np.flatnonzero(left.unknown).tolist(),
        np.flatnonzero(left.gap_ns < 0).tolist(),
    )


def _integers(values: Iterable[int]) -> NDArray[np.int64]:
    try:
        return np.fromiter(values, dtype=np.int64)
    except OverflowError as error:
        raise FormatError(f"a time that is not of 64 bits: {error}", code="build.time") from error
