"""A whole virtual replay on the compiled engine: from the tables of a trace to the columns of an execution, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from semtrace.engine.fast import layout as at
from semtrace.engine.fast import loop
from semtrace.engine.fast.build import build
from semtrace.engine.fast.driven import Driver
from semtrace.engine.log import RUN_COLUMNS, STEP_COLUMNS
from semtrace.engine.prepared import RANKED
from semtrace.errors import ReplayError
from semtrace.records.enums import EventOutcome, OperationStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from semtrace.engine.cost import Cost
    from semtrace.engine.fast.build import State
    from semtrace.engine.fast.driven import Driving
    from semtrace.engine.settings import EngineSettings
    from semtrace.engine.work import Work
    from semtrace.graph.resolve import Constraints
    from semtrace.records.trace import Trace
    from semtrace.replay.arrivals import Instances

WORTH_COMPILING: Final = 2_000
"""Events from which on loading the compiler pays."""
WORTH_TOKENS: Final = 300_000
"""Output tokens from which on it does too: a few long requests have many steps."""
LISTED: Final = 20_000_000
"""Numbers up to which plain Python works on lists, which it indexes faster than arrays."""

_OUTCOME: Final = {
    OperationStatus.OK: EventOutcome.OK,
    OperationStatus.ERROR: EventOutcome.ERROR,
    OperationStatus.CANCELLED: EventOutcome.CANCELLED,
    OperationStatus.TIMEOUT: EventOutcome.TIMEOUT,
}
_FIELDS: Final = {
    "ready_ns": at.READY,
    "released_ns": at.RELEASED,
    "submitted_ns": at.SUBMITTED,
    "finished_ns": at.ENDED,
    "scheduled_ns": at.SCHEDULED,
    "first_token_ns": at.FIRST_TOKEN,
    "cached_tokens": at.CACHED,
    "computed_prompt_tokens": at.COMPUTED,
    "preemptions": at.PREEMPTIONS,
    "preempted_ns": at.PREEMPTED,
    "server": at.SERVER,
}


@dataclass(frozen=True)
class Result:
    """What happened.

    Attributes:
        columns: columns of the table `events` by name, one number for each event, `NULL` for unknown; as the controller
            has them.
        outcome: outcome of each event.
        arrival_ns: arrival of each instance, `NULL` for one that was never sent.
        steps: columns of the table `steps`, in its order; empty without that detail.
        step_runs: columns of the table `step_runs`, in its order; empty without that detail.
        step_count: steps of all servers.
        compiled: whether the loop was compiled.
    """

    columns: dict[str, NDArray[np.int64]]
    outcome: NDArray[np.int64]
    arrival_ns: NDArray[np.int64]
    steps: dict[str, NDArray[np.int64]]
    step_runs: dict[str, NDArray[np.int64]]
    step_count: int
    compiled: bool = False


@dataclass(frozen=True)
class Program:
    """What else there is to say about operations and instances.

    Attributes:
        group: by instance, in which group prefixes are shared.
        refused: by operation, whether no server could ever run it.
        rank: by operation, its priority; smaller is served first. Unread in the order `fcfs`.
        rule: by priority, whether the rank of an event is that, or how long its instance has been served, or when the first
            request of its instance or session was routed, in ns (`RANKED` and so on of `prepared`).
    """

    group: NDArray[np.int64]
    refused: NDArray[np.bool_]
    rank: NDArray[np.int64]
    rule: int = RANKED


def simulate(
    trace: Trace,
    constraints: Constraints,
    copies: Instances,
    work: Work,
    settings: EngineSettings,
    cost: Cost,
    program: Program,
    *,
    detail: bool = False,
    progress: Callable[[int, int], None] | None = None,
    compiled: bool | None = None,
    driving: Driving | None = None,
) -> Result:
    """Replay a trace on simulated servers.

    Args:
        trace: the trace.
        constraints: what waits for what.
        copies: the instances and their arrivals.
        work: the operations in tokens and blocks.
        settings: the servers.
        cost: what a step takes.
        program: groups, refusals and priorities.
        detail: whether to keep every step and every run of steps of an event.
        progress: called with (events done, events in all) now and then.
        compiled: whether to use numba; if left out, where it is installed and worth it. It makes no difference to the
            result.
        driving: a lifecycle policy; None if the scheduler alone decides.

    Raises:
        ReplayError: a time does not fit into 63 bits (ST-REL-001); the policy is wrong.
        ReuseError: the policy lets a call reuse tokens.
        UsageError: the run is too large for the engine's 32-bit block numbers.
    """
    state = build(
        trace, constraints, copies, work, settings, cost, program, detail=detail, driven=driving is not None
    )
    if compiled is None:
        compiled = (
            state.events >= WORTH_COMPILING or int(work.output_tokens[state.operation].sum()) >= WORTH_TOKENS
        )
    done, driver = execute(state, progress=progress, compiled=compiled, driving=driving)
    return finish(state, done, trace, driver)


def execute(
    state: State,
    *,
    progress: Callable[[int, int], None] | None = None,
    compiled: bool | None = None,
    driving: Driving | None = None,
) -> tuple[State, Driver | None]:
    """Run a state to its end, emptying its logs on the way: the part that takes the time."""
    kernel: Callable[[Any, Any, Any], int] | None = None
    if compiled or (compiled is None and state.events >= WORTH_COMPILING):
        from semtrace.engine.fast.compiler import compiled as load

        kernel = load()
    state.compiled = kernel is not None
    s: Any = state.s
    b: Any = state.b
    f: Any = state.f
    if kernel is None:
        kernel = loop.run
        if len(s) + len(b) <= LISTED:  # lists index faster
            s, b, f = s.tolist(), b.tolist(), f.tolist()
    driver = None if driving is None else Driver(driving, state, kernel, s, b, f)
    every = max(state.events // 100, 1)
    s[at.PAUSE_AT] = every if progress is not None else at.NEVER
    while True:
        code = kernel(s, b, f)
        if driver is not None and code in (at.POLICY, at.ADMITTED, at.STUCK, at.ALONE):
            driver.act(code)
            continue
        _empty(state, s)
        if code == at.OVERFLOW:
            raise ReplayError(
                "a time of this replay does not fit into 63 bits",
                code="replay.overflow",
                requirement="ST-REL-001",
                hint="look for a delay, lag, duration or arrival that is off by a unit",
            )
        if progress is not None and code == at.PROGRESS:
            progress(int(s[at.DONE]), state.events)
            s[at.PAUSE_AT] += every
        if code == at.FINISHED:
            break
    state.s = np.asarray(s, dtype=np.int64)
    return state, driver


def _empty(state: State, s: Any) -> None:
    """Keep what the logs have, and begin them anew."""
    for begin, end, width, kept in (
        (at.STEP_LOG0, at.STEP_LOG_AT, at.STEP_ROW, state.step_rows),
        (at.RUN_LOG0, at.RUN_LOG_AT, at.RUN_ROW, state.run_rows),
    ):
        if s[end] > s[begin]:
            kept.append(np.array(s[s[begin] : s[end]], dtype=np.int64).reshape(-1, width))
            s[end] = s[begin]


def finish(state: State, done: State, trace: Trace, driver: Driver | None = None) -> Result:
    """The columns of an execution of a state that has run."""
    s, count = done.s, state.events
    first = int(s[at.EVENT0])
    rows = s[first : first + count * at.EVENT_SIZE].reshape(count, at.EVENT_SIZE)
    columns = {name: rows[:, field].copy() for name, field in _FIELDS.items()}
    operations, operation = trace.operations, state.operation
    backend, refused = state.on_backend[operation], rows[:, at.REFUSED] == 1
    ended = columns["finished_ns"] >= 0
    columns["ready_ns"][columns["released_ns"] < 0] = at.NONE  # some of what it waits for never came
    told = ended & backend & ~refused
    names = (
        "scheduled_ns",
        "first_token_ns",
        "cached_tokens",
        "computed_prompt_tokens",
        "preemptions",
        "preempted_ns",
    )
    for name in names:
        columns[name][~told] = at.NONE
    columns["server"] = np.where(told, (columns["server"] - s[at.SERVER0]) // at.SERVER_SIZE, at.NONE)
    submitted = columns["submitted_ns"] >= 0
    for name in ("prompt_tokens", "output_tokens"):
        recorded = operations.ints(name)[operation]
        columns[name] = np.where(np.where(backend, told, submitted), recorded, at.NONE)
    columns["attempts"] = np.where(ended & backend, 1, at.NONE)
    for name in ("loaded_tokens", "reused_tokens"):
        columns[name] = np.full(count, at.NONE, dtype=np.int64)
    if driver is not None:
        columns["loaded_tokens"], columns["reused_tokens"] = driver.loaded, driver.reused
        columns["cached_tokens"] -= np.where(told, driver.loaded, 0)
    outcomes = np.zeros(max(OperationStatus) + 1, dtype=np.int64)
    for status, outcome in _OUTCOME.items():
        outcomes[status] = outcome
    ended_as = outcomes[operations.ints("status")[operation]]
    ended_as[refused] = EventOutcome.REFUSED
    ended_as[~ended] = EventOutcome.UNFINISHED
    instances = s[state.instance0 : state.instance0 + state.instances * at.INSTANCE_SIZE]
    steps, runs = _logged(done.step_rows, STEP_COLUMNS), _joined(_logged(done.run_rows, RUN_COLUMNS))
    steps["server"] = (steps["server"] - s[at.SERVER0]) // at.SERVER_SIZE
    order = np.argsort(steps["server"].astype(np.uint16), kind="stable")  # those of one server are in order
    steps = {name: column[order] for name, column in steps.items()}
    runs["event"] = (runs["event"] - first) // at.EVENT_SIZE
    servers = s[s[at.SERVER0] : s[at.SERVERS_END]].reshape(-1, at.SERVER_SIZE)
    return Result(
        columns,
        ended_as,
        instances.reshape(-1, at.INSTANCE_SIZE)[:, at.ARRIVAL].copy(),
        steps,
        runs,
        int(servers[:, at.STEP].sum()),
        state.compiled,
    )


def _logged(parts: list[NDArray[np.int64]], names: tuple[str, ...]) -> dict[str, NDArray[np.int64]]:
    rows = np.concatenate(parts) if parts else np.zeros((0, len(names)), dtype=np.int64)
    return {name: np.ascontiguousarray(rows[:, index]) for index, name in enumerate(names)}


def _joined(runs: dict[str, NDArray[np.int64]]) -> dict[str, NDArray[np.int64]]:
    """Runs in order, those that go on across a preemption without a step between joined."""
    order = np.lexsort((runs["first_step"], runs["event"]))
    event, first, count, start, tokens, phase = (runs[name][order] for name in RUN_COLUMNS)
    goes_on = event[1:] == event[:-1]
    goes_on &= (tokens[1:] == tokens[:-1]) & (phase[1:] == phase[:-1])
    goes_on &= (first[1:] == (first + count)[:-1]) & (start[1:] == (start + count * tokens)[:-1])
    begins = np.flatnonzero(np.concatenate([[True], ~goes_on])[: len(event)])
    count = np.add.reduceat(count, begins) if len(begins) else count
    columns = (event[begins], first[begins], count, start[begins], tokens[begins], phase[begins])
    return dict(zip(RUN_COLUMNS, columns, strict=True))
