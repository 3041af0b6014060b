"""Audits of replays of random traces: clean as they are, never clean after a change, and never a traceback."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semtrace.errors import SemtraceError
from semtrace.graph.barrier import barrier
from semtrace.graph.legality import judge
from semtrace.graph.plan import Plan, dag
from semtrace.graph.ready import UNKNOWN, ready_times
from semtrace.graph.resolve import resolve
from semtrace.measure.audit import audit
from semtrace.measure.compare import compare
from semtrace.measure.metrics import measure
from semtrace.measure.path import CompletedPath
from semtrace.measure.ready import Expected
from semtrace.measure.slots import Slots
from semtrace.records.columns import NULL, Columns
from semtrace.records.enums import OperationKind
from semtrace.records.execution import Execution
from semtrace.records.execution_tables import EVENTS
from semtrace.records.trace import Trace
from semtrace.replay.run import replay
from semtrace.replay.scenario import BackendChoice, ClosedLoop, Poisson, Scenario, Together
from semtrace.store.digests import show, work_digest
from semtrace.testing.traces import TraceShape, random_trace

SEEDS = st.integers(0, 10**6)


def replayable(seed: int) -> Trace:
    """A random trace in which every count and duration is known."""
    trace = random_trace(seed, TraceShape(tasks=2, operations=12)).trace
    data = trace.operations.data
    llm = pa.array(trace.operations.ints("kind") == OperationKind.LLM)
    for name, value in (("prompt_tokens", 7), ("output_tokens", 3), ("duration_ns", 5_000_000)):
        at = data.schema.get_field_index(name)
        filled = pc.fill_null(data.column(name), value)
        if name == "output_tokens":
            filled = pc.if_else(llm, filled, pa.scalar(0, pa.int64()))
        data = data.set_column(at, data.schema.field(at), filled)
    tables = {name: columns.data for name, columns in trace.tables.items()} | {"operations": data}
    return Trace.from_arrow(tables, trace.content)


def plans(trace: Trace) -> list[Plan]:
    made = [dag(show(work_digest(trace))), barrier(trace, "chain"), barrier(trace, "level")]
    return [plan for plan in made if judge(trace, plan).legal]


def run(seed: int) -> tuple[Trace, Execution]:
    rng = random.Random(seed)
    trace = replayable(seed)
    plan = rng.choice(plans(trace))
    scenario = Scenario(
        copies=rng.randint(1, 3),
        arrivals=rng.choice(
            [Together(), Poisson(mean_ns=40_000_000, seed=seed), ClosedLoop(users=2, think_ns=3_000_000)]
        ),
        backend=BackendChoice(settings={"c0_ns": rng.choice([0, 1_000_000]), "c_dec_ns": rng.choice([0, 7])}),
    )
    return trace, replay(trace, plan, scenario)


@given(SEEDS)
def test_replays_are_clean_and_fully_judged(seed):
    trace, execution = run(seed)
    report = audit(trace, execution)
    assert report.findings == []
    assert report.notes == []
    unjudged = {rule.requirement: rule.not_judged for rule in report.rules if rule.not_judged}
    assert unjudged == {}
    events = execution.events.rows
    for requirement in ("ST-AUD-001", "ST-AUD-030", "ST-AUD-031", "ST-AUD-032", "ST-AUD-033"):
        assert report.rule(requirement).judged == events
    assert report.lateness is not None
    assert report.lateness.distribution.maximum == report.lateness.distribution.minimum == 0


@given(SEEDS)
def test_the_decomposition_adds_up_to_the_root_latency(seed):
    trace, execution = run(seed)
    measures = measure(trace, execution)
    for instance in measures.instances:
        path = instance.path
        assert isinstance(path, CompletedPath)
        assert path.parts.total == instance.root_latency_ns
        assert min(path.parts.as_dict().values()) >= 0
        assert path.steps[0].begin_ns == instance.arrival_ns
        for before, after in zip(path.steps, path.steps[1:], strict=False):
            assert before.end_ns == after.begin_ns
            assert before.parts.total == before.end_ns - before.begin_ns
    assert measures.path.total == measures.root_latency.total
    assert measures.width.unknown == 0
    assert audit(trace, execution, measures=json.loads(json.dumps(measures.as_dict()))).clean
    same = compare(trace, execution, execution, resamples=10)
    assert same.difference.minimum == same.difference.maximum == 0


@given(SEEDS)
def test_recomputed_ready_times_are_those_of_the_graph(seed):
    trace, execution = run(seed)
    slots = Slots.of(trace, execution)
    plan = Plan.parse(execution.header.plan, path="plan")
    found = Expected.of(slots, plan).full.exact_ns
    constraints = resolve(trace, plan)
    columns = {name: slots.seen(f"{name}_ns") for name in ("submitted", "first_token", "finished")}
    for instance in range(slots.instances):
        rows = slots.rows(instance)
        at = slots.operation[rows]
        times = {name: np.full(trace.operations.rows, UNKNOWN, dtype=np.int64) for name in columns}
        for name, column in columns.items():
            times[name][at] = np.where(column[rows] == NULL, UNKNOWN, column[rows])
        arrival = np.full(trace.operations.rows, slots.arrival[rows][0])
        expected = ready_times(
            constraints, arrival, times["submitted"], times["first_token"], times["finished"]
        )
        assert found[rows].tolist() == expected[at].tolist()


JUDGED = {
    "ready_ns": 2**40,
    "released_ns": 2**40,
    "submitted_ns": 2**40,
    "prompt_tokens": 10_000,
    "outcome": 7,
    "operation": 40,
    "instance": 7,
}
"""Columns of which any change is a violation, with a bound of the values to change to."""


def with_cell(execution: Execution, row: int, column: str, value: Any) -> Execution:
    rows = execution.events.data.to_pylist()
    rows[row][column] = value
    events = Columns.of(EVENTS, {name: [each[name] for each in rows] for name in EVENTS.by_name})
    tables = {name: columns.data for name, columns in execution.tables.items()} | {"events": events.data}
    return Execution.from_arrow(execution.header, tables, execution.content)


@given(SEEDS, st.sampled_from(sorted(JUDGED)), st.booleans())
def test_no_change_to_what_is_judged_goes_unseen(seed, column, near):
    trace, execution = run(seed)
    rng = random.Random(seed)
    rows = [
        row
        for row, value in enumerate(execution.events.ints(column).tolist())
        if value != NULL
        and not (column == "prompt_tokens" and execution.events.ints("scheduled_ns")[row] == NULL)
    ]
    row = rng.choice(rows)
    old = int(execution.events.ints(column)[row])
    new = max(old + rng.choice([-1, 1]), 0) if near else rng.randint(1, JUDGED[column])
    if new == old:
        new = old + 1
    report = audit(trace, with_cell(execution, row, column, new))
    assert report.findings
    json.dumps(report.as_dict())


@given(SEEDS)
def test_garbage_is_audited_and_measured_without_a_traceback(seed):
    trace, execution = run(seed)
    rng = random.Random(seed)
    rows = execution.events.data.to_pylist()
    for _ in range(rng.randint(1, 12)):
        name = rng.choice(sorted(EVENTS.by_name))
        if name == "request_id":
            continue
        kind = EVENTS.arrow.field(name).type
        top = 255 if kind == pa.uint8() else 2**32 - 1 if kind == pa.uint32() else 2**62
        values = [0, 1, 5, rng.randint(0, top)]
        if EVENTS.by_name[name].nullable:
            values.append(None)
        rng.choice(rows)[name] = rng.choice(values)
    rng.shuffle(rows)
    events = Columns.of(EVENTS, {name: [each[name] for each in rows] for name in EVENTS.by_name})
    tables = {name: columns.data for name, columns in execution.tables.items()} | {"events": events.data}
    mode = rng.choice(["native", "length_locked", "token_locked"])
    header = execution.header.model_copy(update={"mode": mode, "clock": rng.choice(["virtual", "wall"])})
    broken = Execution.from_arrow(header, tables, execution.content)
    report = audit(trace, broken)
    json.dumps(report.as_dict())
    measures = measure(trace, broken, deadline_ns=10**9)
    for instance in measures.instances:
        if isinstance(instance.path, CompletedPath):
            assert instance.path.parts.total == instance.root_latency_ns
    json.dumps(measures.as_dict())
    json.dumps(compare(trace, execution, broken, resamples=5).as_dict())


@given(SEEDS)
def test_native_runs_are_audited_and_measured_as_far_as_they_are_known(seed):
    built = random_trace(seed)
    if built.execution is None:
        return
    report = audit(built.trace, built.execution)
    for finding in report.findings:
        # Random observations contradict random edges, and that is all that they may do.
        assert finding.requirement in {"ST-AUD-005", "ST-AUD-032", "ST-AUD-036"}
    measures = measure(built.trace, built.execution)
    for instance in measures.instances:
        if isinstance(instance.path, CompletedPath):
            assert instance.path.parts.total == instance.root_latency_ns
    json.dumps([report.as_dict(), measures.as_dict()])


def test_a_trace_of_other_work_is_refused_by_measures_and_told_by_the_audit():
    _, execution = run(1)
    other = replayable(2)
    with pytest.raises(SemtraceError):
        measure(other, execution)
    assert "ST-AUD-010" in {finding.requirement for finding in audit(other, execution).findings}
