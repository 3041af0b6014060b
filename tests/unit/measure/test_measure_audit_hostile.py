"""Executions made to pass an audit without being faithful: none of them does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from measure_cases import LLM, TOOL, change, digest_of, run, two_analysts

from semtrace.build import TraceBuilder
from semtrace.errors import SemtraceError
from semtrace.graph.plan import dag
from semtrace.measure import slots as slots_module
from semtrace.measure.audit import MOST_TOLERATED_NS, audit
from semtrace.measure.metrics import measure
from semtrace.measure.report import Verdict
from semtrace.measure.slots import Slots
from semtrace.records.columns import Columns
from semtrace.records.enums import Evidence, Outcome, Trigger
from semtrace.records.execution import Backend, Execution
from semtrace.replay.run import replay
from semtrace.replay.scenario import BackendChoice, Poisson, Scenario

if TYPE_CHECKING:
    from semtrace.records.trace import Trace

TIMES = ("ready", "released", "submitted", "scheduled", "first_token", "finished")
TRACE = two_analysts()
SCENARIO = Scenario(
    copies=3,
    arrivals=Poisson(mean_ns=1000, seed=4),
    backend=BackendChoice(settings={"c0_ns": 10, "c_pre_ns": 1, "c_dec_ns": 1}),
)
IDEAL = replay(TRACE, dag(digest_of(TRACE)), SCENARIO)
EVENTS = range(IDEAL.events.rows)


def finds(execution: Execution, trace: Trace = TRACE, **options: Any) -> set[str]:
    return {finding.requirement for finding in audit(trace, execution, **options).findings}


def every(**cells: Any) -> dict[int, dict[str, Any]]:
    """The same cells for every event."""
    return {row: dict(cells) for row in EVENTS}


def all_times(**by: Any) -> dict[int, dict[str, Any]]:
    """Cells of all known times of all events, changed by a function of the time."""
    found: dict[int, dict[str, Any]] = {}
    for row in EVENTS:
        seen = IDEAL.events.row(row)
        found[row] = {
            f"{name}_ns": by["change"](seen[f"{name}_ns"])
            for name in by.get("names", TIMES)
            if seen[f"{name}_ns"] is not None
        }
    return found


def scenario(**members: Any) -> dict[str, Any]:
    return {**IDEAL.header.scenario, **members}


def test_the_replay_as_it_stands_is_clean():
    report = audit(TRACE, IDEAL)
    assert (report.findings, report.verdict, report.gaps) == ([], Verdict.CLEAN, [])
    assert report.rule("ST-AUD-042").judged == 3 * 4


def test_a_first_token_before_the_submission_is_caught_though_everything_after_it_fits():
    b = TraceBuilder()
    task = b.task("t", arrival_ns=0)
    wait = b.operation(task, TOOL, "wait", duration_ns=40)
    talk = b.operation(task, LLM, "talk", prompt_tokens=5, output_tokens=9)
    speak = b.operation(task, TOOL, "speak", duration_ns=20)
    b.edge(talk, wait)
    b.edge(speak, talk, trigger=Trigger.FIRST_TOKEN)
    trace = b.build().trace
    good = run(trace)
    assert finds(good, trace) == set()
    speaks = {f"{name}_ns": 0 for name in ("ready", "released", "submitted")} | {"finished_ns": 20}
    cheat = change(good, {1: {"scheduled_ns": None, "first_token_ns": 0}, 2: speaks})
    assert finds(cheat, trace) == {"ST-AUD-005"}
    # Without any first token, when the second tool was due cannot be said: that is no pass.
    blind = change(good, {1: {"scheduled_ns": None, "first_token_ns": None}})
    report = audit(trace, blind)
    assert (report.findings, report.verdict) == ([], Verdict.NOT_JUDGED)
    assert "ST-AUD-030: 1 cases not judged: a time that it waits for is not known" in report.gaps


@pytest.mark.parametrize("later", range(1, len(TIMES)))
@pytest.mark.parametrize("earlier", range(len(TIMES) - 1))
def test_any_two_times_out_of_order_are_caught_whatever_is_unknown_between_them(earlier, later):
    if earlier >= later:
        return
    # A native run of two observed times and no others, so that no rule but the order sees them.
    cells = {f"{name}_ns": None for name in TIMES}
    cells |= {f"{TIMES[earlier]}_ns": 5, f"{TIMES[later]}_ns": 4}
    b = TraceBuilder()
    task = b.task("t", arrival_ns=0)
    b.operation(task, LLM, "talk", prompt_tokens=5, output_tokens=9)
    trace = b.build().trace
    native = change(
        run(trace), {0: cells}, mode="native", clock="wall", plan=None, plan_digest=None, scenario=None
    )
    assert finds(native, trace) == {"ST-AUD-005"}
    for name in TIMES[earlier + 1 : later]:  # what was not observed does not hide it
        guess = change(native, {0: {f"{name}_ns": 5, f"{name}_evidence": Evidence.INFERRED}})
        assert finds(guess, trace) == {"ST-AUD-005"}


def test_a_negative_time_is_caught():
    assert "ST-AUD-007" in finds(change(IDEAL, all_times(change=lambda at: at - 10**15)))
    assert "ST-AUD-007" in finds(change(IDEAL, {0: {"first_token_ns": -1}}))
    before = change(IDEAL, {row: {"ready_ns": -5, "released_ns": -5} for row in (0,)})
    assert {"ST-AUD-007", "ST-AUD-030"} <= finds(before)


def test_no_instances_are_no_pass():
    nobody = Execution.from_arrow(IDEAL.header, {})
    assert finds(nobody) == {"ST-AUD-006"}
    bare = Execution.from_arrow(IDEAL.header.model_copy(update={"scenario": None}), {})
    assert finds(bare) == {"ST-AUD-006"}
    native = {"mode": "native", "clock": "wall", "plan": None, "plan_digest": None, "scenario": None}
    report = audit(TRACE, Execution.from_arrow(IDEAL.header.model_copy(update=native), {}))
    assert (report.clean, report.verdict) == (False, Verdict.NOT_JUDGED)
    assert report.gaps == ["ST-AUD-001: there is no operation in any instance"]
    assert report.as_dict()["gaps"] == report.gaps


@pytest.mark.parametrize("at", [None, 0])
def test_a_native_run_that_says_nothing_of_times_is_no_pass(at):
    cells = every(**{f"{name}_ns": at for name in TIMES}, prompt_tokens=None, output_tokens=None)
    if at is not None:
        for each in cells.values():
            each |= {f"{name}_evidence": Evidence.INFERRED for name in TIMES}
    native = change(IDEAL, cells, mode="native", clock="wall", plan=None, plan_digest=None, scenario=None)
    report = audit(TRACE, native)
    assert (report.findings, report.clean, report.verdict) == ([], False, Verdict.NOT_JUDGED)


@pytest.mark.parametrize(
    ("header", "requirement"),
    [
        ({"scenario": None}, "ST-AUD-006"),
        ({"plan": None}, "ST-AUD-012"),
        ({"plan": None, "plan_digest": None}, "ST-AUD-012"),
        ({"scenario": scenario(arrivals={"kind": "poisson", "mean_ns": 1000})}, "ST-AUD-006"),
        ({"scenario": scenario(copies=10**6)}, "ST-AUD-006"),
        ({"scenario": scenario(copies=10**6, arrivals={"kind": "closed_loop", "users": 1})}, "ST-AUD-006"),
        ({"scenario": scenario(mode="token_locked")}, "ST-AUD-014"),
        ({"scenario": scenario(backend={"name": "vllm"})}, "ST-AUD-014"),
        ({"scenario": scenario(backend={"name": "ideal"})}, "ST-AUD-014"),
        ({"scenario": scenario(backend={"name": "ideal", "settings": {"speed": 1}})}, "ST-AUD-014"),
        ({"seeds": {"arrivals": 5}}, "ST-AUD-014"),
        ({"measured_at": "server"}, "ST-AUD-014"),
        ({"tolerance_ns": -5}, "ST-AUD-014"),
        ({"detail": ["nonsense"]}, "ST-AUD-007"),
    ],
)
def test_a_header_that_lacks_or_contradicts_something_is_caught(header, requirement):
    """With a million copies no instances are made (ST-AUD-107)."""
    execution = Execution(IDEAL.header.model_copy(update=header), IDEAL.tables, IDEAL.content)
    assert finds(execution) == {requirement}


def test_settings_left_to_their_defaults_are_no_contradiction():
    plain = replay(TRACE, dag(digest_of(TRACE)), Scenario())
    assert plain.header.scenario["backend"]["settings"] == plain.header.backend.settings
    assert audit(TRACE, plain).verdict == Verdict.CLEAN
    left_out = change(plain, scenario={**plain.header.scenario, "backend": {"name": "ideal"}})
    assert audit(TRACE, left_out).verdict == Verdict.CLEAN


def test_settings_of_other_backends_are_those_of_the_scenario_or_its_own_choice():
    wanted = {"name": "live", "settings": {"model": "m"}}
    for settings, found in (({"model": "m", "dtype": "x"}, set()), ({"model": "n"}, {"ST-AUD-014"})):
        made = change(run(TRACE), backend=Backend(name="live", settings=settings))
        asked = {**made.header.scenario, "backend": wanted}
        assert finds(change(made, scenario=asked)) == found


def test_token_locked_without_ids_is_caught():
    trace = two_analysts(ids=True)
    assert finds(run(trace, mode="token_locked"), trace) == set()
    assert finds(run(trace, mode="token_locked", locked=False), trace) == {"ST-AUD-022"}


def later(by_ns: int) -> Execution:
    """The run, all of it later, on a wall clock that allows itself anything."""
    moved = {
        row: {
            f"{name}_ns": at + by_ns
            for name in TIMES
            if (at := run(TRACE).events.row(row)[f"{name}_ns"]) is not None
        }
        for row in range(5)
    }
    arrival = {0: {"arrival_ns": by_ns}}
    return change(run(TRACE), moved, instances=arrival, clock="wall", tolerance_ns=1 << 52)


def test_arrivals_moved_on_a_wall_clock_are_caught_whatever_the_execution_allows_itself():
    """ST-AUD-006; and both tolerances are reported (ST-AUD-106)."""
    assert finds(later(10**9)) == {"ST-AUD-006"}
    assert finds(later(MOST_TOLERATED_NS + 1)) == {"ST-AUD-006"}
    assert finds(later(MOST_TOLERATED_NS)) == set()
    assert finds(later(10**9), tolerance_ns=10**9) == set()
    shown = audit(TRACE, later(10**9)).as_dict()
    assert (shown["tolerance_ns"], shown["declared_tolerance_ns"]) == (MOST_TOLERATED_NS, 1 << 52)


def test_a_run_stretched_seven_times_is_caught_by_its_tools():
    slow = run(TRACE, clock="wall", tolerance_ns=1 << 52, durations={3: 50 + 2 * MOST_TOLERATED_NS})
    assert finds(slow) == {"ST-AUD-040"}
    assert finds(run(TRACE, clock="wall", tolerance_ns=9, durations={3: 60})) == {"ST-AUD-040"}
    assert finds(run(TRACE, clock="wall", tolerance_ns=10, durations={3: 60})) == set()


@pytest.mark.parametrize("outcome", [Outcome.FAILURE, Outcome.CANCELLED, Outcome.UNKNOWN, 99])
def test_an_outcome_that_the_events_contradict_is_caught(outcome):
    assert finds(change(IDEAL, instances={1: {"outcome": outcome}})) == {"ST-AUD-008"}


def test_an_outcome_that_is_none_is_caught_in_a_native_run_too():
    native = change(
        run(TRACE),
        instances={0: {"outcome": 99}},
        mode="native",
        clock="wall",
        plan=None,
        plan_digest=None,
        scenario=None,
    )
    assert finds(native) == {"ST-AUD-007"}
    assert finds(change(native, instances={0: {"outcome": Outcome.FAILURE}})) == set()


@pytest.mark.parametrize(
    ("cells", "clock", "found"),
    [
        ({"attempts": 99}, "virtual", {"ST-AUD-007"}),
        ({"attempts": 0}, "virtual", {"ST-AUD-007"}),
        ({"attempts": 0}, "wall", {"ST-AUD-007"}),
        ({"attempts": 2}, "wall", set()),
        ({"cached_tokens": 21}, "virtual", {"ST-AUD-007"}),
        ({"cached_tokens": 20, "computed_prompt_tokens": 0}, "virtual", set()),
        ({"cached_tokens": 15, "computed_prompt_tokens": 4}, "virtual", {"ST-AUD-007"}),
        ({"cached_tokens": 15, "computed_prompt_tokens": 25, "preemptions": 1}, "virtual", set()),
    ],
)
def test_impossible_numbers_are_caught(cells, clock, found):
    execution = change(run(TRACE), {1: cells}, clock=clock)
    assert execution.events.row(1)["prompt_tokens"] == 20
    assert finds(execution) == found


@pytest.mark.parametrize("cells", [{"attempts": 99}, {"cached_tokens": 99}])
def test_impossible_numbers_of_an_ideal_backend_are_told_once(cells):
    assert finds(change(IDEAL, {14: cells})) == {"ST-AUD-007"}
    assert finds(change(IDEAL, {14: cells | {"preemptions": 1}})) == {"ST-AUD-007", "ST-AUD-042"}


def test_events_in_another_order_are_caught():
    events = IDEAL.events.data.take(list(EVENTS)[::-1])
    turned = replace(IDEAL, tables={**IDEAL.tables, "events": Columns(IDEAL.events.spec, events)})
    assert finds(turned) == {"ST-AUD-007"}


def test_instances_that_are_not_numbered_are_caught():
    assert {"ST-AUD-006", "ST-AUD-007"} <= finds(change(IDEAL, instances={2: {"instance": (1 << 32) - 1}}))


@pytest.mark.parametrize(
    "cells",
    [
        {"finished_ns": 1},
        {"first_token_ns": -1},
        {"scheduled_ns": 1},
        {"first_token_ns": None},
        {"preemptions": 7},
        {"attempts": None},
        {"server": None},
        {"server": 3},
        {"cached_tokens": 4},
        {"computed_prompt_tokens": 0},
        {"loaded_tokens": 0},
        {"reused_tokens": 0},
    ],
    ids=lambda cells: next(iter(cells)),
)
def test_what_the_ideal_backend_cannot_do_is_caught(cells):
    (name, value), (row,) = next(iter(cells.items())), [14]  # the last operation of the last instance
    seen = IDEAL.events.row(row)
    cell = value if value is None or not name.endswith("_ns") else seen[name] + value
    assert finds(change(IDEAL, {row: {name: cell}})) == {"ST-AUD-042"}


def test_an_ideal_backend_faster_than_its_coefficients_is_caught():
    fast = replay(
        TRACE,
        dag(digest_of(TRACE)),
        SCENARIO.model_copy(
            update={"backend": BackendChoice(settings={"c0_ns": 0, "c_pre_ns": 0, "c_dec_ns": 0})}
        ),
    )
    claimed = replace(fast, header=IDEAL.header)
    assert finds(claimed) == {"ST-AUD-042"}


def test_an_ideal_backend_that_is_no_ideal_backend_is_caught():
    odd = Backend(name="ideal", settings={"speed": "high"})
    assert finds(change(IDEAL, backend=odd)) == {"ST-AUD-014"}


def test_coefficients_that_overflow_are_judged():
    most = {"c0_ns": (1 << 40) - 1, "c_pre_ns": (1 << 40) - 1, "c_dec_ns": (1 << 40) - 1}
    execution = change(IDEAL, backend=Backend(name="ideal", settings=most))
    asked = {**IDEAL.header.scenario, "backend": {"name": "ideal", "settings": most}}
    assert finds(change(execution, scenario=asked)) == {"ST-AUD-042"}


def test_a_plan_with_numbers_that_no_document_holds_is_told():
    plan = {**IDEAL.header.plan, "edges": [{"source": 0, "target": 10**19}]}
    assert finds(change(IDEAL, plan=plan)) == {"ST-AUD-013"}


def test_instances_without_events_are_refused_before_memory_is_asked_for(monkeypatch):
    monkeypatch.setattr(slots_module, "UNSEEN", 4)
    with pytest.raises(SemtraceError, match="5 operations of 1 instances, and 0 events") as caught:
        Slots.of(TRACE, change(run(TRACE), drop=tuple(range(5))))
    assert caught.value.requirement == "ST-AUD-001"
    assert Slots.of(TRACE, change(run(TRACE), drop=(1, 2))).count == 5


def test_contexts_that_inherit_from_each_other_end():
    b = TraceBuilder()
    task = b.task("t", arrival_ns=0)
    for name in "ab":
        at = b.operation(
            task, LLM, name, session=b.session(task, agent=name), prompt_tokens=4, output_tokens=2
        )
        b.segment(at, 2, "the question", tokens=4)
    trace = b.build().trace
    rows = trace.operations.data.to_pylist()
    rows[0]["context_base"], rows[1]["context_base"] = 1, 0
    spec = trace.operations.spec
    circular = Columns.of(spec, {name: [row[name] for row in rows] for name in spec.by_name})
    hostile = replace(trace, tables={**trace.tables, "operations": circular})
    execution = run(hostile)
    with pytest.raises(SemtraceError, match="context base 1 is not a lower row"):
        measure(hostile, execution)
    with pytest.raises(SemtraceError, match="context base 1 is not a lower row"):
        audit(hostile, execution, measures={"root_latency": {}})
    assert np.all(hostile.operations.ints("context_base") == [1, 0])
