"""The order in which requests are likely to be released: what is made ahead of need is made in it."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from semtrace.kernels import run
from semtrace.records.columns import NULL
from semtrace.replay.controller import runs_on_backend

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semtrace.records.trace import Trace
    from semtrace.replay.arrivals import Instances

PROMPT_NS: Final = 20_000
"""Guess of the time per prompt token, in ns."""
OUTPUT_NS: Final = 10_000_000
"""Guess of the time per output token, in ns."""


def expected_order(trace: Trace, instances: Instances) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The requests of a run in the order of their likely releases: as if servers were never busy.

    Returns:
        The instance and the operation of each; only operations that run on the backend.
    """
    start, end = _spans(trace)
    offsets = trace.offsets("operations")
    sent = np.flatnonzero(runs_on_backend(trace))
    first = np.searchsorted(sent, offsets[:-1])
    sizes = np.searchsorted(sent, offsets[1:]) - first
    longest = np.zeros(len(sizes), dtype=np.int64)
    filled = np.flatnonzero(np.diff(offsets))
    if len(filled):
        longest[filled] = np.maximum.reduceat(end, offsets[filled])
    arrival = _arrivals(instances, longest)
    count = sizes[instances.task]
    instance = np.repeat(np.arange(len(count), dtype=np.int64), count)
    rank = np.arange(len(instance)) - np.repeat(np.cumsum(count) - count, count)
    operation = sent[first[instances.task][instance] + rank] if len(instance) else instance
    order = np.argsort(arrival[instance] + start[operation], kind="stable")
    return instance[order], operation[order]


def _arrivals(instances: Instances, longest: NDArray[np.int64]) -> NDArray[np.int64]:
    arrival = instances.arrival_ns.copy()
    if not instances.users:
        return arrival
    answered: list[int] = []
    for at, each in enumerate(instances.sending_order.tolist()):
        if at >= instances.users:
            arrival[each] = heapq.heappop(answered) + instances.think_ns
        elif arrival[each] == NULL:
            arrival[each] = 0
        heapq.heappush(answered, int(arrival[each] + longest[instances.task[each]]))
    return arrival


def _spans(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """When each operation is likely to be released and to end, in ns from its task's arrival."""
    operations, edges = trace.operations, trace["edges"]
    prompt, output = operations.ints("prompt_tokens"), operations.ints("output_tokens")
    guess = np.maximum(prompt, 0) * PROMPT_NS + np.maximum(output, 0) * OUTPUT_NS
    duration = np.where(runs_on_backend(trace), guess, operations.ints("duration_ns"))
    duration = np.where(duration == NULL, 0, duration)
    start, end = np.zeros(operations.rows, dtype=np.int64), np.zeros(operations.rows, dtype=np.int64)
    target = edges.ints("target")
    begin = np.searchsorted(target, np.arange(operations.rows + 1))
    run(
        _longest_paths, operations.rows + edges.rows, begin, edges.ints("source"), edges.ints("lag_ns"),
        operations.ints("external_delay_ns"), duration, start, end,
    )  # fmt: skip
    return start, end


def _longest_paths(
    begin: Any, source: Any, lag: Any, delay: Any, duration: Any, start: Any, end: Any
) -> None:
    """Release and end of each row, from those of lower rows (arrays, or lists; see kernels)."""
    for row in range(len(start)):
        at = 0
        for edge in range(begin[row], begin[row + 1]):
            at = max(at, end[source[edge]] + lag[edge])
        start[row] = at + delay[row]
        end[row] = start[row] + duration[row]
