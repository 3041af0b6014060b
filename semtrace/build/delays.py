"""Starts that the known dependencies do not explain: the rest becomes an inferred external delay (ST-PROD-003)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semtrace.build.assemble import all_edges
from semtrace.records.enums import Trigger

if TYPE_CHECKING:
    from semtrace.build.builder import TraceBuilder


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


def explain_starts(builder: TraceBuilder) -> ExplainedStarts:
    """Give each operation that was seen to start later than its dependencies explain the difference as a delay.

    The start of an operation is its observed `submitted` time; its end is its observed `finished` time. A task
    without an arrival time arrives with its first start. To be called once, last, before `build`.
    """
    operations = builder.rows["operations"]
    tasks = builder.rows["tasks"]
    incoming: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for edge in all_edges(builder):
        incoming[edge["target"]].append((edge["source"], edge["trigger"], edge["lag_ns"]))

    def time(operation: int, name: str) -> int | None:
        seen = builder.observed.get(operation)
        found = seen.times.get(name) if seen else None
        return found[0] if found else None

    first_start: dict[int, int] = {}
    for at, operation in enumerate(operations):
        start = time(at, "submitted")
        if start is not None:
            first_start[operation["task"]] = min(start, first_start.get(operation["task"], start))
    for task, start in first_start.items():
        if tasks[task]["arrival_ns"] is None:
            tasks[task]["arrival_ns"] = start

    delayed: list[int] = []
    unexplained: list[int] = []
    early: list[int] = []
    total = 0
    for at, operation in enumerate(operations):
        start = time(at, "submitted")
        if start is None:
            continue
        ready: int | None = None if incoming[at] else tasks[operation["task"]]["arrival_ns"]
        for source, trigger, lag in incoming[at]:
            came = time(
                source,
                "finished"
                if trigger == Trigger.FINISH
                else "submitted"
                if trigger == Trigger.START
                else "first_token",
            )
            if came is None:
                unexplained.append(at)
                break
            ready = came + lag if ready is None else max(ready, came + lag)
        else:
            gap = start - (ready if ready is not None else start)
            if gap < 0:
                early.append(at)
            elif gap > 0:
                operation["external_delay_ns"] = gap
                delayed.append(at)
                total += gap
    return ExplainedStarts(delayed, total, unexplained, early)
