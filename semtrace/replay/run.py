"""Replaying a trace: everything checked before, the run, and the execution that it leaves."""

from __future__ import annotations

import gc
import platform
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

import semtrace
from semtrace.check.finding import Finding, found
from semtrace.errors import OtherWorkError, ReplayError, UnsupportedError, UsageError
from semtrace.graph.legality import judge
from semtrace.graph.resolve import resolve
from semtrace.records.columns import NULL
from semtrace.records.compute import is_known
from semtrace.records.enums import EventOutcome, Evidence, OperationKind, Outcome
from semtrace.records.execution import Execution, ExecutionHeader
from semtrace.records.execution_tables import EVENTS, INSTANCES
from semtrace.replay.arrivals import instances, settle
from semtrace.replay.backend import LiveBackend, Setup, Simulation, Situated
from semtrace.replay.controller import TIMES, Controller, Rules, VirtualClock, runs_on_backend
from semtrace.replay.counts import token_counts
from semtrace.replay.ideal import IdealBackend
from semtrace.replay.scenario import Drawn
from semtrace.store.digests import show, work_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from semtrace.graph.plan import Plan
    from semtrace.graph.resolve import Constraints
    from semtrace.records.trace import Trace
    from semtrace.replay.arrivals import Instances
    from semtrace.replay.backend import Backend, Ran, Simulator
    from semtrace.replay.controller import Clock
    from semtrace.replay.resume import Resume
    from semtrace.replay.scenario import Scenario


DETAIL: Final = ("steps", "step_runs", "blocks", "transfers", "decisions")
"""The detail tables."""


def _ideal(setup: Setup) -> IdealBackend:
    return IdealBackend(setup.trace, setup.scenario.backend.settings)


def _engine(setup: Setup) -> Backend | Simulation:
    from semtrace.engine.run import engine

    return engine(setup)


def _http(setup: Setup) -> Backend:
    from semtrace.live.backend import HttpBackend

    return HttpBackend(setup)


def _vllm(setup: Setup) -> Backend:
    from semtrace.live.vllm.backend import in_process

    return in_process(setup)


BACKENDS: Final[dict[str, Callable[[Setup], Backend | Simulation]]] = {
    "ideal": _ideal, "engine": _engine, "http": _http, "vllm": _vllm,
}  # fmt: skip
"""The backends by name: each makes one for a run."""
MOST_EVENTS = 50_000_000
"""Events that a replay may have: all of them are held in memory until it ends (ST-SCN-016)."""


def replay_findings(trace: Trace) -> Iterator[Finding]:
    """What keeps a trace from being replayed: counts and durations that are not known (ST-REL-011, ST-REL-012)."""
    backend = runs_on_backend(trace)
    generates = backend & (trace.operations.ints("kind") == OperationKind.LLM)
    for column, needs in (("prompt_tokens", backend), ("output_tokens", generates)):
        yield from found(
            "ST-REL-011",
            needs & (trace.operations.ints(column) == NULL),
            f"the {column.replace('_', ' ')} of model operation {{row}} are not known, so its work is not fixed",
            table="operations",
            column=column,
            hint="either the call never ended (semtrace show), or counts were not recorded: "
            "for streaming, include usage in the stream",
        )
    yield from found(
        "ST-REL-012",
        ~backend & (trace.operations.ints("duration_ns") == NULL),
        "the duration of operation {row} is not known, and it does not run on the backend",
        table="operations",
        column="duration_ns",
        hint="record with spans, which hold start and end of tool calls",
    )


def replay(
    trace: Trace,
    plan: Plan,
    scenario: Scenario,
    *,
    analysis: bool = False,
    detail: Iterable[str] = (),
    simulator: Simulator = "fast",
    progress: Callable[[int, int], None] | None = None,
    started: Callable[[Clock], None] | None = None,
    resume: Resume | None = None,
) -> Execution:
    """Replay a trace under a plan in a scenario, on a virtual clock or, with a backend in the world, on a wall clock.

    Args:
        trace: the trace; valid (see `semtrace.check`).
        plan: the plan.
        scenario: the scenario.
        analysis: allow a plan that drops recorded edges (`work-only`); the execution says so and no audit passes it.
        detail: the detail tables to keep, of `DETAIL`; a backend keeps those that it has.
        simulator: of a simulated engine, the compiled form or the readable one; they leave the same execution.
        progress: called with (operations done, operations in all) now and then.
        started: called with the clock of a run in the world before it begins; its `stop` ends the run early.
        resume: what is left of a run that was stopped (see `semtrace.replay.resume`).

    Returns:
        The execution. Operations that could never be released, or had not ended when the run was stopped, are `unfinished`.

    Raises:
        ReplayError: the plan is not legal, the trace lacks counts or durations, the scenario does not fit, a time does
            not fit into 63 bits, or the run was stopped before anything began.
        UsageError: there is no such backend, or the replay would have more than `MOST_EVENTS` events.
        UnsupportedError: the backend cannot hold the scenario's mode.
        FormatError: the backend has no such setting.
    """
    if scenario.backend.name not in BACKENDS:
        raise UsageError(
            f"no backend {scenario.backend.name!r}",
            code="replay.backend",
            requirement="ST-SCN-012",
            hint=f"there are: {', '.join(BACKENDS)}",
        )
    refuse("this trace cannot be replayed", list(replay_findings(trace)), code="replay.unknown")
    events = trace.operations.rows * scenario.copies
    if events > MOST_EVENTS:
        raise UsageError(
            f"{scenario.copies:,} copies of {trace.operations.rows:,} operations are {events:,} events, "
            f"more than {MOST_EVENTS:,}",
            code="replay.size",
            path="scenario.copies",
            requirement="ST-SCN-016",
            hint="replay fewer copies, or several times with different seeds",
        )
    judgement = judge(trace, plan)
    against = [
        finding for finding in judgement.findings if not (analysis and finding.requirement == "ST-PLAN-004")
    ]
    refuse("the plan is not legal", against, code="plan.illegal")
    scenario = settle(trace, scenario)
    copies = instances(trace, scenario)
    backend = BACKENDS[scenario.backend.name](Setup(trace, scenario, copies, frozenset(detail), simulator))
    if scenario.mode not in backend.modes:
        raise UnsupportedError(
            f"backend {scenario.backend.name} cannot hold mode {scenario.mode}",
            code="replay.mode",
            path="scenario.mode",
            requirement="ST-SCN-010",
            hint=f"it can: {', '.join(sorted(backend.modes))}",
        )
    live = isinstance(backend, LiveBackend)
    if not live:
        _refuse_live_members(scenario)
    operations = np.flatnonzero(runs_on_backend(trace)).tolist()
    refuse(
        "the backend cannot run this trace", list(backend.refuse(trace, operations)), code="replay.refused"
    )
    constraints = resolve(trace, plan)
    if resume is not None:
        copies = resume.remaining(copies)
    origin: int | None = None
    if isinstance(backend, Simulation):
        ran = backend.simulate(constraints, progress)
    elif isinstance(backend, LiveBackend):
        ran, origin = _run_live(trace, constraints, copies, scenario, backend, progress, started)
    else:
        controller = Controller(trace, constraints, copies, backend, VirtualClock(), progress)
        controller.run()
        ran = controller.ran()
    drawn_from = scenario.arrivals.drawn_from if isinstance(scenario.arrivals, Drawn) else None
    facts = backend.facts()
    chosen = scenario.backend.model_copy(update={"settings": facts.settings})
    environment = {"semtrace": semtrace.__version__, "python": platform.python_version()}
    header = ExecutionHeader(
        work_digest=show(work_digest(trace)),
        plan_digest=plan.content_digest(),
        plan=plan.as_json(),
        scenario=scenario.model_copy(update={"backend": chosen}).as_json(),
        mode=scenario.mode,
        clock="wall" if live else "virtual",
        origin_unix_ns=origin,
        tolerance_ns=_tolerance(scenario) if live else 0,
        measured_at="client" if live else "simulator",
        backend=facts,
        detail=[name for name in DETAIL if name in ran.detail],
        seeds={"arrivals": drawn_from.seed} if drawn_from else {},
        environment=environment | (dict(backend.environment()) if isinstance(backend, Situated) else {}),
    )
    execution = _execution(header, ran, copies)
    if resume is not None:
        execution = resume.joined(execution)
    return _counted(trace, execution) if live else execution


def _counted(trace: Trace, execution: Execution) -> Execution:
    """With what the header says of the counts of answers, where it says something of requests."""
    environment = execution.header.environment
    if "requests" not in environment:
        return execution
    requests = {**environment["requests"], **token_counts(trace, execution)}
    header = execution.header.model_copy(update={"environment": {**environment, "requests": requests}})
    return Execution(header, execution.tables, execution.content)


WALL_TOLERANCE_NS: Final = 1_000_000
"""Allowed lateness on a wall clock, if a scenario does not say another one (ST-SCN-013)."""


def _tolerance(scenario: Scenario) -> int:
    return WALL_TOLERANCE_NS if scenario.tolerance_ns is None else scenario.tolerance_ns


def _refuse_live_members(scenario: Scenario) -> None:
    """Members for backends in the world are refused on a virtual clock (ST-SCN-017)."""
    members = ("timeout_ns", "retry", "on_failure", "concurrency", "warm_up")
    given = [name for name in members if getattr(scenario, name) is not None]
    if given:
        raise ReplayError(
            f"backend {scenario.backend.name} runs on a virtual clock, where {', '.join(given)} "
            f"{'means' if len(given) == 1 else 'mean'} nothing",
            code="replay.virtual",
            path=f"scenario.{given[0]}",
            requirement="ST-SCN-017",
            hint="leave it out, or replay on a server (--url)",
        )


def _run_live(
    trace: Trace,
    constraints: Constraints,
    copies: Instances,
    scenario: Scenario,
    backend: LiveBackend,
    progress: Callable[[int, int], None] | None,
    started: Callable[[Clock], None] | None,
) -> tuple[Ran, int | None]:
    """Run on a backend in the world; what happened, and the Unix time of its origin."""
    rules = Rules(scenario.concurrency, scenario.on_failure or "proceed")
    clock = backend.clock()
    controller = Controller(trace, constraints, copies, backend, clock, progress, rules)
    if started is not None:
        started(clock)
    # A collection of garbage in the wrong moment is a late release: nothing here makes cycles that must be freed.
    collects = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        backend.open()
        controller.run()
        if clock.stopping and all(each == NULL for each in controller.columns["submitted_ns"]):
            raise ReplayError(
                "the replay was stopped before its first operation began: nothing is left of it",
                code="replay.stopped",
                requirement="ST-LIV-013",
                hint="start it again",
            )
    finally:
        backend.close()
        gc.unfreeze()
        if collects:
            gc.enable()
    return controller.ran(), clock.origin_unix_ns


def refuse(message: str, findings: list[Finding], *, code: str) -> None:
    """Raise if there are findings; the error names them, each kind once.

    Raises:
        ReplayError: there are findings.
    """
    if findings:
        named = [str(finding) for finding in findings[:10]]
        if len(findings) > len(named):
            named.append(f"and {len(findings) - len(named)} more")
        kind = OtherWorkError if findings[0].requirement == "ST-PLAN-001" else ReplayError
        raise kind(
            f"{message}: {'; '.join(named)}",
            code=code,
            requirement=findings[0].requirement,
            hint=findings[0].hint,
        )


def _integers(values: Sequence[int] | NDArray[np.int64]) -> np.ndarray[Any, np.dtype[np.int64]]:
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        raise ReplayError(
            "a time of this replay does not fit into 63 bits",
            code="replay.overflow",
            requirement="ST-REL-001",
            hint="look for a delay, lag, duration or arrival that is off by a unit",
        ) from None


def _nullable(values: Sequence[int] | NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    array = _integers(values)
    return pa.array(np.maximum(array, 0), kind, mask=array == NULL)


def _execution(header: ExecutionHeader, ran: Ran, copies: Instances) -> Execution:
    outcome = _integers(ran.outcome)
    instance = _integers(ran.instance)
    unfinished = np.bincount(instance[outcome == EventOutcome.UNFINISHED], minlength=len(copies.task))
    rows = pa.Table.from_arrays(
        [
            pa.array(copies.task, pa.uint32()),
            pa.array(copies.copy, pa.uint32()),
            _nullable(ran.arrival_ns, pa.int64()),
            pa.array(np.where(unfinished == 0, Outcome.SUCCESS, Outcome.UNKNOWN), pa.uint8()),
        ],
        schema=INSTANCES.arrow,
    )
    arrays: dict[str, pa.Array] = {
        name: pa.nulls(len(outcome), kind)
        for name, kind in zip(EVENTS.arrow.names, EVENTS.arrow.types, strict=True)
    }
    arrays["instance"] = pa.array(instance, pa.uint32())
    arrays["operation"] = pa.array(_integers(ran.operation), pa.uint32())
    arrays["outcome"] = pa.array(outcome, pa.uint8())
    for name, values in ran.columns.items():
        arrays[name] = _nullable(values, arrays[name].type)
    for name, by_event in (("request_id", ran.request_id), ("output_ids", ran.output_ids)):
        if by_event:
            told = [by_event.get(event) for event in range(len(outcome))]
            arrays[name] = pa.array(told, arrays[name].type)
    for name in TIMES:
        known = is_known(arrays[name])
        evidence = np.where(known, Evidence.OBSERVED, Evidence.MISSING)
        arrays[name.replace("_ns", "_evidence")] = pa.array(evidence, pa.uint8())
    events = pa.Table.from_arrays(list(arrays.values()), schema=EVENTS.arrow)
    return Execution.from_arrow(header, {"instances": rows, "events": events, **ran.detail}, ran.content)
