"""Replaying a trace: everything checked before, the run, and the execution that it leaves."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import semtrace
from semtrace.check.finding import Finding, found
from semtrace.errors import ReplayError, UsageError
from semtrace.graph.legality import judge
from semtrace.graph.resolve import resolve
from semtrace.records.columns import NULL, Columns
from semtrace.records.enums import EventOutcome, Evidence, Outcome
from semtrace.records.execution import Execution, ExecutionHeader
from semtrace.records.execution_tables import EVENTS, EXECUTION_TABLES, INSTANCES
from semtrace.replay.arrivals import instances, settle
from semtrace.replay.controller import COUNTS, TIMES, Controller, VirtualClock, runs_on_backend
from semtrace.replay.ideal import IdealBackend
from semtrace.store.digests import show, work_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from semtrace.graph.plan import Plan
    from semtrace.records.trace import Trace
    from semtrace.replay.arrivals import Instances
    from semtrace.replay.backend import Backend
    from semtrace.replay.scenario import Scenario


BACKENDS: Mapping[str, Callable[[Trace, Mapping[str, object]], Backend]] = {"ideal": IdealBackend}
"""The backends by name: each makes one for a trace from settings."""


def replay_findings(trace: Trace) -> Iterator[Finding]:
    """What keeps a trace from being replayed: counts and durations that are not known (ST-REL-011, ST-REL-012)."""
    backend = runs_on_backend(trace)
    for column in ("prompt_tokens", "output_tokens"):
        missing = backend & (trace.operations.ints(column) == NULL)
        yield from found(
            "ST-REL-011",
            missing,
            f"the {column.replace('_', ' ')} of model operation {{row}} are not known, so its work is not fixed",
            table="operations",
            column=column,
            hint="record with token counts (for streaming: include usage in the stream)",
        )
    missing = ~backend & (trace.operations.ints("duration_ns") == NULL)
    yield from found(
        "ST-REL-012",
        missing,
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
    progress: Callable[[int, int], None] | None = None,
) -> Execution:
    """Replay a trace under a plan in a scenario, on a virtual clock.

    Args:
        trace: the trace; valid (see `semtrace.check`).
        plan: the plan.
        scenario: the scenario.
        analysis: allow a plan that drops recorded edges (`work-only`); the execution says so and no audit passes it.
        progress: called with (operations done, operations in all) now and then.

    Returns:
        The execution. Operations that could never be released are `unfinished`.

    Raises:
        ReplayError: the plan is not legal, the trace lacks counts or durations, or the scenario does not fit.
        UsageError: there is no such backend.
    """
    if scenario.backend.name not in BACKENDS:
        raise UsageError(
            f"no backend {scenario.backend.name!r}",
            code="replay.backend",
            hint=f"there are: {', '.join(BACKENDS)}",
        )
    refuse("this trace cannot be replayed", list(replay_findings(trace)), code="replay.unknown")
    judgement = judge(trace, plan)
    against = [
        finding for finding in judgement.findings if not (analysis and finding.requirement == "ST-PLAN-004")
    ]
    refuse("the plan is not legal", against, code="plan.illegal")
    scenario = settle(trace, scenario)
    copies = instances(trace, scenario)
    backend = BACKENDS[scenario.backend.name](trace, scenario.backend.settings)
    operations = np.flatnonzero(runs_on_backend(trace)).tolist()
    refuse(
        "the backend cannot run this trace", list(backend.refuse(trace, operations)), code="replay.refused"
    )
    controller = Controller(trace, resolve(trace, plan), copies, backend, VirtualClock(), progress)
    controller.run()
    header = ExecutionHeader(
        work_digest=show(work_digest(trace)),
        plan_digest=plan.content_digest(),
        plan=plan.as_json(),
        scenario=scenario.as_json(),
        mode=scenario.mode,
        clock="virtual",
        tolerance_ns=0,
        measured_at="simulator",
        backend=backend.facts(),
        environment={"semtrace": semtrace.__version__, "python": platform.python_version()},
    )
    return _execution(header, controller, copies)


def refuse(message: str, findings: list[Finding], *, code: str) -> None:
    """Raise if there are findings; the error names them all.

    Raises:
        ReplayError: there are findings.
    """
    if findings:
        raise ReplayError(
            f"{message}: " + "; ".join(str(finding) for finding in findings[:10]),
            code=code,
            requirement=findings[0].requirement,
            hint=findings[0].hint,
        )


def _execution(header: ExecutionHeader, controller: Controller, copies: Instances) -> Execution:
    def nullable(values: np.ndarray[Any, Any], kind: pa.DataType) -> pa.Array:
        return pa.array(np.maximum(values, 0), mask=values == NULL).cast(kind)

    bad = controller.outcome == EventOutcome.UNFINISHED
    stuck = np.zeros(len(copies.task), dtype=np.bool_)
    stuck[controller.instance[bad]] = True
    outcome = np.where(stuck, Outcome.UNKNOWN, Outcome.SUCCESS)
    rows = pa.Table.from_arrays(
        [
            pa.array(copies.task).cast(pa.uint32()),
            pa.array(copies.copy).cast(pa.uint32()),
            nullable(np.asarray(controller.arrival_ns, dtype=np.int64), pa.int64()),
            pa.array(outcome).cast(pa.uint8()),
        ],
        schema=INSTANCES.arrow,
    )
    arrays: dict[str, pa.Array] = {
        "instance": pa.array(controller.instance).cast(pa.uint32()),
        "operation": pa.array(controller.operation).cast(pa.uint32()),
        "outcome": pa.array(controller.outcome).cast(pa.uint8()),
    }
    for name in TIMES:
        values = controller.columns[name]
        arrays[name] = nullable(values, pa.int64())
        evidence = np.where(values == NULL, Evidence.MISSING, Evidence.OBSERVED)
        arrays[name.replace("_ns", "_evidence")] = pa.array(evidence).cast(pa.uint8())
    for name in COUNTS:
        arrays[name] = nullable(controller.columns[name], EVENTS.arrow.field(name).type)
    count = len(controller.outcome)
    events = pa.Table.from_arrays(
        [
            arrays[field.name] if field.name in arrays else pa.nulls(count, field.type)
            for field in EVENTS.arrow
        ],
        schema=EVENTS.arrow,
    )
    tables = {spec.name: Columns(spec, spec.empty()) for spec in EXECUTION_TABLES}
    tables["instances"] = Columns(INSTANCES, rows)
    tables["events"] = Columns(EVENTS, events)
    return Execution(header, tables)
