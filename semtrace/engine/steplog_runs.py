"""The steps of an execution as a step log: its runs of steps, laid over its steps (ST-COST-043)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from semtrace import kernels
from semtrace.check.executions import check_execution
from semtrace.check.finding import Finding, found
from semtrace.engine.cost import GEOMETRY
from semtrace.engine.steplog import MOST_NS, StepLog, StepLogError
from semtrace.records.enums import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from semtrace.records.execution import Execution


def log_of_execution(execution: Execution, name: str) -> StepLog:
    """The steps of an execution that has the tables `steps` and `step_runs` (ST-COST-043).

    Args:
        execution: the execution.
        name: what to call it in errors.

    Raises:
        StepLogError: it has no steps, or they are not what `step_runs` says.
    """
    if not execution["steps"].rows or not execution["step_runs"].rows:
        hint = "replay on an engine with --detail steps"
        message = "the execution has no steps and step_runs"
        raise StepLogError(
            "this execution is not used", [Finding("ST-COST-043", message, "steps", hint=hint)], path=name
        )
    wrong = [
        each for each in check_execution(execution, None) if each.table in {"steps", "step_runs", "events"}
    ]
    wrong = wrong or list(_run_findings(execution))
    if wrong:
        raise StepLogError("the steps of this execution are not used", wrong, path=name)
    steps = execution["steps"]
    yields = _yields_of(execution)
    geometry = _sum_runs(execution, yields)
    duration = steps.ints("end_ns") - steps.ints("start_ns")
    findings = [
        *found(
            "ST-COST-043",
            geometry[:, 0] != steps.ints("requests"),
            lambda row: (
                f"step {row} has {steps.ints('requests')[row]} requests, its runs are of {geometry[row, 0]}"
            ),
            table="steps",
            column="requests",
        ),
        *found(
            "ST-COST-043",
            geometry[:, 1] + geometry[:, 2] != steps.ints("tokens"),
            lambda row: (
                f"step {row} has {steps.ints('tokens')[row]} tokens, its runs have "
                f"{geometry[row, 1] + geometry[row, 2]}"
            ),
            table="steps",
            column="tokens",
        ),
        *found(
            "ST-COST-043",
            yields < 0,
            "run {row} computes more tokens than its operation has",
            table="step_runs",
            column="start_position",
        ),
        *found(
            "ST-COST-040",
            (duration < 1) | (duration > MOST_NS),
            lambda row: f"step {row} took {duration[row]} ns, must be from 1 to {MOST_NS}",
            table="steps",
            column="end_ns",
        ),
    ]
    if findings:
        raise StepLogError("the steps of this execution are not used", findings, path=name)
    _, part = np.unique(steps.ints("server"), return_inverse=True)
    return StepLog(geometry, duration, part.astype(np.int64))


def _run_findings(execution: Execution) -> Iterator[Finding]:
    """What would keep runs from being laid over the steps."""
    runs, events = execution["step_runs"], execution["events"]
    event = runs.ints("event")
    server, prompt = events.ints("server")[event], events.ints("prompt_tokens")[event]
    first, count = runs.ints("first_step"), runs.ints("count")
    servers, held = np.unique(execution["steps"].ints("server"), return_counts=True)
    at = np.minimum(np.searchsorted(servers, server), len(servers) - 1)
    has = np.where(servers[at] == server, held[at], 0)
    last = first + count
    tokens = runs.ints("tokens_per_step")
    sizes = (tokens < 1) | (tokens >= 1 << 20)
    table = "step_runs"
    yield from found(
        "ST-COST-043", server < 0, "the server of run {row} is not known", table=table, column="event"
    )
    yield from found(
        "ST-COST-043", prompt < 0, "the prompt tokens of run {row} are not known", table=table, column="event"
    )
    yield from found(
        "ST-COST-043",
        (server >= 0) & (last > has),
        lambda row: f"run {row} goes on to step {last[row] - 1}, its server has {has[row]}",
        table=table,
        column="count",
    )
    yield from found(
        "ST-COST-043",
        sizes,
        "the tokens of run {row} are out of range",
        table=table,
        column="tokens_per_step",
    )


def _yields_of(execution: Execution) -> NDArray[np.int64]:
    """How many of the last steps of each run yield a token; -1 where more is computed than there is."""
    runs, events = execution["step_runs"], execution["events"]
    out = np.zeros(runs.rows, dtype=np.int64)
    kernels.run(
        _yield_loop,
        runs.rows,
        runs.ints("event"),
        runs.ints("start_position"),
        runs.ints("count") * runs.ints("tokens_per_step"),
        runs.ints("tokens_per_step"),
        runs.ints("phase") == Phase.DECODE,
        events.ints("prompt_tokens"),
        events.ints("output_tokens"),
        out,
    )
    return out


def _yield_loop(
    event: Sequence[int],
    start: Sequence[int],
    tokens: Sequence[int],
    each: Sequence[int],
    decode: Sequence[bool],
    prompt: Sequence[int],
    outputs: Sequence[int],
    out: NDArray[np.int64],
) -> None:
    """An operation's tokens grow by one with every token that it yields; runs are in the order of events and steps.

    A prefill run of one token a step goes on where one is yielded, if its request is preempted and admitted again at once. One without output is
    scheduled as if it had one token (ST-ENG-010), and ends when that is yielded.
    """
    current = -1
    held = 0
    for row in range(len(event)):
        if event[row] != current:
            current = event[row]
            held = prompt[current]
        end = start[row] + tokens[row]
        if decode[row]:
            held = end + 1
            out[row] = 1
        elif end > held and (each[row] != 1 or start[row] >= held or outputs[current] <= 0):
            out[row] = -1
        elif end >= held:
            out[row] = end - held + 1
            held = end + 1


def _sum_runs(execution: Execution, yields: NDArray[np.int64]) -> NDArray[np.int64]:
    """The geometry of all steps of an execution."""
    steps, runs = execution["steps"], execution["step_runs"]
    server = execution["events"].ints("server")[runs.ints("event")]
    first = np.searchsorted(steps.ints("server"), server) + runs.ints("first_step")
    last = first + runs.ints("count")
    decode = runs.ints("phase") == Phase.DECODE
    return lay_runs(
        steps.rows,
        first,
        last,
        start=runs.ints("start_position"),
        tokens=runs.ints("tokens_per_step"),
        decode=decode,
        yields=np.maximum(yields, 0),
    )


def lay_runs(
    steps: int,
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    *,
    start: NDArray[np.int64],
    tokens: NDArray[np.int64],
    decode: NDArray[np.bool_],
    yields: NDArray[np.int64],
) -> NDArray[np.int64]:
    """The geometry of steps, from the runs in them: what a run adds is affine in the step, so two running sums give it.

    Args:
        steps: how many steps.
        first: the first step of each run.
        last: the step after its last one.
        start: tokens computed before it.
        tokens: tokens in each of its steps.
        decode: which are decode, and yield a token in every step.
        yields: how many of the last steps of each of the others yield a token.

    Returns:
        int64[steps, 8], in the order of `GEOMETRY` (ST-COST-001).
    """
    made = np.zeros((steps, len(GEOMETRY)), dtype=np.int64)

    def add(
        column: int, mask: NDArray[np.bool_], value: NDArray[np.int64], slope: NDArray[np.int64] | int
    ) -> None:
        level, rise = np.zeros(steps + 1, dtype=np.int64), np.zeros(steps + 1, dtype=np.int64)
        slopes = np.broadcast_to(np.asarray(slope, dtype=np.int64), value.shape)[mask]
        at_zero = value[mask] - slopes * first[mask]
        for array, change in ((level, at_zero), (rise, slopes)):
            np.add.at(array, first[mask], change)
            np.subtract.at(array, last[mask], change)
        made[:, column] += np.cumsum(level)[:-1] + np.arange(steps) * np.cumsum(rise)[:-1]

    ones = np.ones(len(first), dtype=np.int64)
    add(0, ones.astype(np.bool_), ones, 0)
    pairs = tokens * start + tokens * (tokens + 1) // 2
    for mask, columns in ((~decode, (1, 4, 5)), (decode, (2, 6, 7))):
        add(columns[0], mask, tokens, 0)
        add(columns[1], mask, pairs, tokens * tokens)
        add(columns[2], mask, start + tokens, tokens)
    add(3, decode, ones, 0)
    np.add.at(made[:, 3], (last - 1)[~decode & (yields > 0)], 1)
    for run in np.flatnonzero(~decode & (yields > 1)).tolist():
        made[last[run] - yields[run] : last[run] - 1, 3] += 1
    return made
