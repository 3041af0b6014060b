"""Replays of random work: the same twice, the same in any order of one instant, the same as without a clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from semtrace.graph.critical import critical_path, end_operation
from semtrace.graph.plan import dag
from semtrace.graph.ready import UNKNOWN, ready_times, schedule
from semtrace.graph.resolve import resolve
from semtrace.records.columns import NULL
from semtrace.records.enums import OperationKind
from semtrace.records.trace import Trace
from semtrace.replay.arrivals import instances, settle
from semtrace.replay.backend import Report
from semtrace.replay.controller import Controller, VirtualClock
from semtrace.replay.ideal import IdealBackend
from semtrace.replay.run import replay
from semtrace.replay.scenario import Scenario
from semtrace.store.digests import execution_digest, show, work_digest
from semtrace.testing.traces import TraceShape, random_trace
from support.random_graphs import random_graph, random_plan, random_scenario

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from numpy.typing import NDArray

    from semtrace.graph.plan import Plan
    from semtrace.records.execution import Execution

RANDOM = st.randoms(use_true_random=False)
FAIR = settings(max_examples=120, deadline=None, derandomize=True)
FEWER = settings(max_examples=40, deadline=None, derandomize=True)

Times = dict[str, "NDArray[np.int64]"]


@FAIR
@given(RANDOM)
def test_the_same_input_gives_the_same_execution(rng: Random):
    """ST-REL-035; and the scenario that an execution names gives the same execution again, ST-SCN-002."""
    made = random_graph(rng)
    plan, chosen = random_plan(rng, made), random_scenario(rng, made)
    first = replay(made.trace, plan, chosen, analysis=True)
    assert execution_digest(first) == execution_digest(replay(made.trace, plan, chosen, analysis=True))
    named = Scenario.parse(first.header.scenario, path="scenario")
    assert named.arrivals is not None
    assert named.arrivals.kind != "poisson"
    again = replay(made.trace, plan, named, analysis=True)
    assert execution_digest(first) == execution_digest(again)
    assert first.header.scenario == again.header.scenario


class Shuffled(Controller):
    """A controller that takes what happens at one instant in any order."""

    rng: Random

    def _settle(self, now: int) -> None:
        while True:
            found = [*self._backend.reports(now), *(timer for timer in self._timers if timer[0] <= now)]
            if not found:
                return
            self._timers = sorted(timer for timer in self._timers if timer[0] > now)
            self.rng.shuffle(found)
            for each in found:
                if isinstance(each, Report):
                    if each.first_token:
                        self._first_token(each.event, now)
                    else:
                        for name, value in (each.columns or {}).items():
                            self.columns[name][each.event] = NULL if value is None else value
                        self._end(each.event, now)
                else:
                    _, what, which = each
                    (self._end, self._arrive, lambda event, now: self._release([event], now))[what](
                        which, now
                    )


@FAIR
@given(RANDOM)
def test_the_order_of_things_at_one_instant_makes_no_difference(rng: Random):
    """ST-REL-018 and ST-SCN-006."""
    made = random_graph(rng)
    plan, chosen = random_plan(rng, made), settle(made.trace, random_scenario(rng, made))
    found = []
    for kind in (Controller, Shuffled):
        backend = IdealBackend(made.trace, chosen.backend.settings)
        constraints = resolve(made.trace, plan)
        controller = kind(made.trace, constraints, instances(made.trace, chosen), backend, VirtualClock())
        if isinstance(controller, Shuffled):
            controller.rng = rng
        controller.run()
        found.append((controller.arrival_ns, controller.columns, controller.outcome))
    assert found[0] == found[1]


def by_instance(execution: Execution) -> Iterator[tuple[int, int, Times]]:
    """The task and arrival of each instance, and the times of its events; `UNKNOWN` where there is none."""
    events = execution.events
    names = ("ready_ns", "released_ns", "submitted_ns", "first_token_ns", "finished_ns")
    for at, (task, arrival) in enumerate(
        zip(execution.instances.ints("task"), execution.instances.ints("arrival_ns"), strict=True)
    ):
        rows = events.ints("instance") == at
        times = {name: events.ints(name)[rows] for name in names}
        yield (
            int(task),
            int(arrival),
            {name: np.where(column == NULL, UNKNOWN, column) for name, column in times.items()},
        )


def spread(trace: Trace, task: int, own: NDArray[np.int64]) -> NDArray[np.int64]:
    """The values of a task's operations in an array for all operations, `UNKNOWN` elsewhere."""
    whole = np.full(trace.operations.rows, UNKNOWN, dtype=np.int64)
    rows = trace.task_rows("operations", task)
    whole[rows.start : rows.stop] = own
    return whole


@FAIR
@given(RANDOM)
def test_ready_times_are_recomputed_from_an_execution(rng: Random):
    made = random_graph(rng)
    plan = random_plan(rng, made)
    constraints = resolve(made.trace, plan)
    execution = replay(made.trace, plan, random_scenario(rng, made), analysis=True)
    for task, arrival, times in by_instance(execution):
        rows = made.trace.task_rows("operations", task)
        ready = ready_times(
            constraints,
            np.full(made.trace.operations.rows, arrival),
            *(
                spread(made.trace, task, times[name])
                for name in ("submitted_ns", "first_token_ns", "finished_ns")
            ),
        )
        assert ready[rows.start : rows.stop].tolist() == times["ready_ns"].tolist()


@FAIR
@given(RANDOM)
def test_a_schedule_without_a_clock_equals_the_controller(rng: Random):
    made = random_graph(rng)
    plan = random_plan(rng, made)
    execution = replay(made.trace, plan, random_scenario(rng, made), analysis=True)
    for task, arrival, times in by_instance(execution):
        rows = made.trace.task_rows("operations", task)
        if not rows:
            continue
        own = slice(rows.start, rows.stop)
        token = np.where(times["first_token_ns"] == UNKNOWN, times["finished_ns"], times["first_token_ns"])
        lasting, until_token = (
            np.maximum(spread(made.trace, task, end - times["submitted_ns"]), 0)
            for end in (times["finished_ns"], token)
        )
        arrivals = np.full(made.trace.operations.rows, arrival)
        delays = made.trace.operations.ints("external_delay_ns")
        found = schedule(resolve(made.trace, plan), arrivals, delays, lasting, until_token)
        assert found.ready_ns[own].tolist() == times["ready_ns"].tolist()
        assert found.released_ns[own].tolist() == times["released_ns"].tolist()
        assert found.finished_ns[own].tolist() == times["finished_ns"].tolist()

        # The critical path: nothing waits on this backend, so it is the root latency (ST-REL-040) …
        path = critical_path(made.trace, resolve(made.trace, plan), task, lasting, until_token)
        end = end_operation(made.trace, task, spread(made.trace, task, times["finished_ns"]))
        latency = int(times["finished_ns"][end - rows.start]) - arrival
        assert path.length_ns == latency
        assert path.operations[-1] == end
        assert resolve(made.trace, plan).in_degree[path.operations[0]] == 0
        # … and where operations are taken to last less, it is no more.
        shorter = critical_path(made.trace, resolve(made.trace, plan), task, lasting // 2, until_token // 2)
        assert shorter.length_ns <= latency


@FAIR
@given(RANDOM)
def test_copies_that_arrive_together_are_alike(rng: Random):
    made = random_graph(rng)
    plan, chosen = random_plan(rng, made), random_scenario(rng, made)
    chosen = Scenario.parse(
        {**chosen.as_json(), "copies": 3, "arrivals": {"kind": "together"}}, path="scenario"
    )
    execution = replay(made.trace, plan, chosen, analysis=True)
    first: dict[int, dict[str, list[int]]] = {}
    for task, _, times in by_instance(execution):
        told = {name: column.tolist() for name, column in times.items()}
        assert first.setdefault(task, told) == told


def filled(trace: Trace) -> Trace:
    """The trace with counts and durations where they are unknown."""
    data = trace.operations.data
    llm = data.column("kind").to_numpy() == OperationKind.LLM
    for name, value, rows in (
        ("prompt_tokens", 7, llm | (data.column("kind").to_numpy() == OperationKind.EMBED)),
        ("output_tokens", 3, llm),
        ("duration_ns", 5_000_000, ~llm),
    ):
        at = data.schema.get_field_index(name)
        column = data.column(name)
        known = pc.if_else(rows, pc.fill_null(column, value), column)
        data = data.set_column(at, data.schema.field(at), known)
    tables = {name: columns.data for name, columns in trace.tables.items()} | {"operations": data}
    return Trace.from_arrow(tables, trace.content)


@FEWER
@given(st.integers(0, 10**6))
def test_whole_traces_are_replayed_to_their_end(seed: int):
    trace = filled(random_trace(seed, TraceShape(tasks=2, operations=20)).trace)
    plan: Plan = dag(show(work_digest(trace)))
    scenario = Scenario.parse({"arrivals": {"kind": "closed_loop", "users": 1}, "copies": 2}, path="scenario")
    execution = replay(trace, plan, scenario)
    events = execution.events
    assert events.rows == 2 * trace.operations.rows
    assert (events.ints("finished_ns") != NULL).all()
    assert (events.ints("submitted_ns") == events.ints("released_ns")).all()
    for name in ("prompt_tokens", "output_tokens"):
        assert (events.ints(name) == trace.operations.ints(name)[events.ints("operation")]).all()
