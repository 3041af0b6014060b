"""Audit rules on what follows from the events: critical path, decomposition, reported measures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from semtrace.graph.ready import UNKNOWN, schedule
from semtrace.graph.resolve import resolve
from semtrace.measure.metrics import measure
from semtrace.measure.path import CompletedPath, Paths, end_slot
from semtrace.measure.ready import no_plan
from semtrace.records.columns import NULL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from semtrace.measure.audit_events import Case


def judge_critical_path(case: Case) -> None:
    """Root latency is at least the critical path of recorded durations and delays (ST-AUD-041).

    Model operations count as 0 ns, durations that are not known too: so the bound holds on every backend.
    """
    slots, ledger = case.slots, case.ledger
    trace = slots.trace
    operations = trace.operations
    zero = np.zeros(operations.rows, dtype=np.int64)
    fixed = np.zeros(operations.rows, dtype=np.bool_)
    fixed[slots.operation] = slots.fixed
    duration = np.where(fixed & (operations.ints("duration_ns") != NULL), operations.ints("duration_ns"), 0)
    constraints = resolve(trace, case.plan or no_plan(trace))
    least = schedule(constraints, zero, operations.ints("external_delay_ns"), duration).finished_ns
    ledger.skip("ST-AUD-041", "times of the instance are reported as wrong", int(case.spoilt.sum()))
    arrival = slots.execution.instances.ints("arrival_ns")
    rows: list[int] = []
    latency: list[int] = []
    bound: list[int] = []
    for instance in np.flatnonzero(~case.spoilt).tolist():
        end = end_slot(slots, instance)
        if end is None or arrival[instance] == NULL:
            ledger.skip("ST-AUD-041", "arrival or end not known")
            continue
        of_answer = (
            trace.tasks.ints("answer_operation")[slots.execution.instances.ints("task")[instance]] != NULL
        )
        operation = slots.operation[slots.rows(instance)]
        shortest = int(least[slots.operation[end]] if of_answer else least[operation].max())
        if (least[operation] == UNKNOWN).any():
            ledger.skip("ST-AUD-041", "the constraints are cyclic")
            continue
        rows.append(instance)
        latency.append(int(slots.finished[end] - arrival[instance]))
        bound.append(shortest)
    wrong = np.array(latency, dtype=np.int64) < np.array(bound, dtype=np.int64)
    ledger.judge(
        "ST-AUD-041",
        wrong,
        lambda at: (
            f"instance {rows[at]}: root latency {latency[at]} ns, its critical path alone takes {bound[at]} ns"
        ),
        rows=np.array(rows, dtype=np.int64),
        table="instances",
        weak=np.ones(len(rows), dtype=np.bool_) if case.native else None,
        weakness="a native run, from which the delays were inferred",
    )


def judge_decomposition(case: Case) -> None:
    """The parts of each completed path add up to the root latency, to the ns (ST-AUD-050)."""
    slots, ledger = case.slots, case.ledger
    ledger.skip("ST-AUD-050", "times of the instance are reported as wrong", int(case.spoilt.sum()))
    arrival = slots.execution.instances.ints("arrival_ns")
    rows: list[int] = []
    told: list[tuple[int, int]] = []
    paths = Paths(slots, case.expected) if case.plan is not None else None
    for instance in np.flatnonzero(~case.spoilt).tolist():
        found = paths.of(instance) if paths is not None else None
        if not isinstance(found, CompletedPath):
            ledger.skip("ST-AUD-050", found.reason if found else "the plan is not known")
            continue
        end = end_slot(slots, instance)
        latency = NULL if end is None else int(slots.finished[end] - arrival[instance])
        if (found.spent_ns < 0).any():
            latency = NULL
        rows.append(instance)
        told.append((found.parts.total, latency))
    ledger.judge(
        "ST-AUD-050",
        np.array([total != latency for total, latency in told], dtype=np.bool_),
        lambda at: (
            f"instance {rows[at]}: the parts add up to {told[at][0]} ns, root latency is {told[at][1]} ns"
        ),
        rows=np.array(rows, dtype=np.int64),
        table="instances",
    )


def differences(reported: object, computed: object, path: str = "") -> Iterator[str]:
    """Where two JSON values differ; keys that only the computed one has are no difference."""
    if isinstance(reported, dict) and isinstance(computed, dict):
        for key, value in reported.items():
            where = f"{path}.{key}" if path else str(key)
            if key not in computed:
                yield f"{where} is no measure of this execution"
            else:
                yield from differences(value, computed[key], where)
    elif isinstance(reported, list) and isinstance(computed, list) and len(reported) == len(computed):
        for at, (one, other) in enumerate(zip(reported, computed, strict=True)):
            yield from differences(one, other, f"{path}[{at}]")
    elif reported != computed or isinstance(reported, bool) != isinstance(computed, bool):
        yield f"{path} is reported as {_short(reported)}, recomputed it is {_short(computed)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def judge_reported(case: Case, reported: Mapping[str, Any]) -> None:
    """Every reported measure, recomputed from the record, is equal (ST-AUD-051)."""
    deadline, window = (_chosen(reported.get(name)) for name in ("deadline", "window"))
    slots = case.slots
    computed = measure(slots.trace, slots.execution, case.plan, deadline_ns=deadline, window_ns=window)
    problems = list(differences(dict(reported), computed.as_dict()))
    if not problems:
        case.ledger.fact("ST-AUD-051", None, table="measures")
    for problem in problems:
        case.ledger.fact("ST-AUD-051", problem, table="measures")


def _chosen(option: object) -> int | None:
    """A deadline or window that whoever made a report chose; None if it came from the record."""
    if isinstance(option, dict) and option.get("source") == "chosen" and type(option.get("ns")) is int:
        return int(option["ns"])
    return None
