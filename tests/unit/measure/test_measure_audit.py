"""Every planted fault is found, by the requirement that is meant and by no other; a clean run has none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from measure_cases import LLM, TOOL, change, digest_of, moved, plan_of, run, two_analysts

from semtrace.build import TraceBuilder
from semtrace.graph.plan import Plan, dag, work_only
from semtrace.measure.audit import audit
from semtrace.measure.metrics import measure
from semtrace.measure.report import RULES, Verdict
from semtrace.records.enums import EventOutcome, Evidence, FinishReason, OperationStatus, Trigger
from semtrace.records.execution import Execution
from semtrace.records.trace import MemoryContent, Trace
from semtrace.replay.run import replay
from semtrace.replay.scenario import ClosedLoop, Drawn, Scenario
from semtrace.store.digests import artifact_digest

TRACE = two_analysts()
IDS = two_analysts(ids=True)
SERIAL = plan_of(TRACE, groups=[{"wait": [2], "hold": [1, 3]}])
EDGE = plan_of(TRACE, edges=[{"source": 2, "target": 1}])
ALL_TIMES = ("submitted", "scheduled", "first_token", "finished")


def caught(trace: Trace, execution: Execution, plan: Plan | None = None, **options: Any) -> set[str]:
    report = audit(trace, execution, plan, **options)
    assert {finding.requirement for finding in report.findings} == {
        rule.requirement for rule in report.rules if rule.violations
    }
    return {finding.requirement for finding in report.findings}


@pytest.mark.parametrize(
    ("trace", "plan", "options"),
    [
        (TRACE, None, {}),
        (TRACE, SERIAL, {}),
        (TRACE, EDGE, {}),
        (TRACE, None, {"arrivals": [0, 5, 5, 90]}),
        (two_analysts(tasks=3, answer=False), None, {"arrivals": [3, 8]}),
        (IDS, None, {"mode": "token_locked"}),
        (TRACE, None, {"clock": "wall", "tolerance_ns": 4, "shift": {2: 4, 4: 1}}),
        (TRACE, None, {"clock": "wall", "tolerance_ns": 11, "durations": {3: 61}}),
    ],
    ids=["dag", "barrier", "edge", "copies", "tasks", "ids", "wall", "slow tool on a wall clock"],
)
def test_clean_runs_have_no_findings(trace, plan, options):
    execution = run(trace, plan, **options)
    report = audit(trace, execution)
    assert report.findings == report.notes == []
    assert report.clean
    judged = {rule.requirement for rule in report.rules if rule.judged}
    always = {rule for rule in RULES if rule < "ST-AUD-060"} - {
        "ST-AUD-022",
        "ST-AUD-023",
        "ST-AUD-034",
        "ST-AUD-035",
        "ST-AUD-037",
        "ST-AUD-042",
        "ST-AUD-051",
    }
    assert judged >= always
    assert all(not rule.not_judged for rule in report.rules)
    assert report.verdict == Verdict.CLEAN


def test_a_locked_model_stops_as_it_did():
    asked = IDS.operations.data.schema.get_field_index("finish_reason")
    stops = [FinishReason.STOP if kind == LLM else None for kind in IDS.operations.ints("kind").tolist()]
    operations = IDS.operations.data.set_column(asked, "finish_reason", pa.array(stops, pa.uint8()))
    tables = {name: columns.data for name, columns in IDS.tables.items()}
    trace = Trace.from_arrow({**tables, "operations": operations}, IDS.content)
    ran = run(trace, None, mode="token_locked")
    row = stops.index(FinishReason.STOP)
    assert caught(trace, ran) == set()
    assert caught(trace, change(ran, {row: {"finish_reason": FinishReason.STOP}})) == set()
    assert caught(trace, change(ran, {row: {"finish_reason": FinishReason.LENGTH}})) == {"ST-AUD-023"}
    (finding,) = audit(trace, change(ran, {row: {"finish_reason": 77}})).findings[:1]
    assert finding.requirement in {"ST-AUD-007", "ST-AUD-023"}
    free = run(trace, None)
    assert caught(trace, change(free, {row: {"finish_reason": FinishReason.LENGTH}})) == set()
    cancelled = [FinishReason.ABORT if at == row else reason for at, reason in enumerate(stops)]
    operations = operations.set_column(asked, "finish_reason", pa.array(cancelled, pa.uint8()))
    trace = Trace.from_arrow({**tables, "operations": operations}, IDS.content)
    ran = run(trace, None, mode="token_locked")
    assert caught(trace, change(ran, {row: {"finish_reason": FinishReason.LENGTH}})) == set()
    other = stops.index(FinishReason.STOP, row + 1)
    assert caught(trace, change(ran, {other: {"finish_reason": FinishReason.ABORT}})) == {"ST-AUD-023"}


def early() -> Execution:
    return run(TRACE, shift={1: -1})


def late() -> Execution:
    return run(TRACE, shift={2: 1})


FAULTS = {
    "early release": (TRACE, early(), "ST-AUD-032"),
    "late release": (TRACE, late(), "ST-AUD-033"),
    "early within the external delay": (TRACE, run(TRACE, shift={3: -7}), "ST-AUD-032"),
    "missing operation": (TRACE, change(run(TRACE), drop=(2,)), "ST-AUD-001"),
    "missing last operation": (TRACE, change(run(TRACE), drop=(4,)), "ST-AUD-001"),
    "doubled operation": (TRACE, change(run(TRACE), double=(1,)), "ST-AUD-001"),
    "stray instance": (TRACE, change(run(TRACE, arrivals=[0, 0]), {9: {"instance": 7}}), "ST-AUD-001"),
    "wrong prompt count": (TRACE, change(run(TRACE), {1: {"prompt_tokens": 21}}), "ST-AUD-020"),
    "unknown prompt count": (TRACE, change(run(TRACE), {1: {"prompt_tokens": None}}), "ST-AUD-020"),
    "wrong output count": (TRACE, change(run(TRACE), {4: {"output_tokens": 1}}), "ST-AUD-021"),
    "unfinished": (
        TRACE,
        change(run(TRACE), {4: {"outcome": EventOutcome.UNFINISHED, "finished_ns": None}}),
        "ST-AUD-002",
    ),
    "no such outcome": (TRACE, change(run(TRACE), {2: {"outcome": 99}}), "ST-AUD-002"),
    "refused": (TRACE, change(run(TRACE), {4: {"outcome": EventOutcome.REFUSED}}), "ST-AUD-003"),
    "failed, recorded as ok": (TRACE, change(run(TRACE), {4: {"outcome": EventOutcome.ERROR}}), "ST-AUD-003"),
    "no submission time": (TRACE, change(run(TRACE), {2: {"submitted_ns": None}}), "ST-AUD-004"),
    "no finish time": (TRACE, change(run(TRACE), {4: {"finished_ns": None}}), "ST-AUD-004"),
    "no arrival": (TRACE, change(run(TRACE), instances={0: {"arrival_ns": None}}), "ST-AUD-004"),
    "first token after the end": (TRACE, change(run(TRACE), {2: {"first_token_ns": 48}}), "ST-AUD-005"),
    "scheduled before submitted": (TRACE, change(run(TRACE), {2: {"scheduled_ns": 16}}), "ST-AUD-005"),
    "wrong work digest": (TRACE, change(run(TRACE), work_digest="blake3:" + "0" * 64), "ST-AUD-010"),
    "wrong plan digest": (TRACE, change(run(TRACE), plan_digest="blake3:" + "0" * 64), "ST-AUD-012"),
    "no plan digest": (TRACE, change(run(TRACE), plan_digest=None), "ST-AUD-012"),
    "ready and release too soon": (
        TRACE,
        change(run(TRACE), {3: {"ready_ns": 45, "released_ns": 52}}),
        "ST-AUD-030",
    ),
    "release is not ready + delay": (TRACE, change(run(TRACE), {3: {"released_ns": 56}}), "ST-AUD-031"),
    "short tool": (TRACE, run(TRACE, durations={3: 49}), "ST-AUD-040"),
    "long tool": (TRACE, run(TRACE, durations={3: 51}), "ST-AUD-040"),
    "barrier ignored": (TRACE, run(TRACE, SERIAL, ignore=dag(digest_of(TRACE))), "ST-AUD-035"),
    "added edge ignored": (TRACE, run(TRACE, EDGE, ignore=dag(digest_of(TRACE))), "ST-AUD-034"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught_by_its_requirement_alone(name):
    trace, execution, requirement = FAULTS[name]
    assert caught(trace, execution) == {requirement}


def test_a_reordered_barrier_breaks_one_side_and_makes_the_other_late():
    turned = plan_of(TRACE, groups=[{"wait": [1, 3], "hold": [2]}])
    report = audit(TRACE, run(TRACE, SERIAL, ignore=turned))
    assert {f.requirement: f.rows for f in report.findings} == {
        "ST-AUD-030": (2,),
        "ST-AUD-033": (2,),
        "ST-AUD-035": (1, 3),
    }
    broken = next(f for f in report.findings if f.requirement == "ST-AUD-035")
    assert "submitted at 17 ns, barrier 0 opened at 137 ns" in broken.message


def test_the_early_release_is_told_with_its_numbers():
    (finding,) = audit(TRACE, early()).findings
    assert finding.rows == (1,)
    assert "operation 1 (analyse A) of instance 0: submitted at 16 ns, released at 17 ns" in finding.message


def test_a_missing_operation_leaves_what_follows_unjudged():
    report = audit(TRACE, change(run(TRACE), drop=(1,)))
    assert report.rule("ST-AUD-030").not_judged == {
        "no ready time recorded": 1,
        "a time that it waits for is not known": 2,
    }
    assert report.rule("ST-AUD-041").judged == 0
    assert report.rule("ST-AUD-041").not_judged == {"times of the instance are reported as wrong": 1}


def test_a_barrier_of_which_one_end_is_not_known_is_not_judged():
    """ST-AUD-105."""
    both = plan_of(TRACE, groups=[{"wait": [1, 2], "hold": [3]}])
    execution = change(run(TRACE, both), {2: {"finished_ns": None}})
    report = audit(TRACE, execution)
    assert {finding.requirement for finding in report.findings} == {"ST-AUD-004"}
    assert report.rule("ST-AUD-035").judged == 0
    assert report.rule("ST-AUD-035").not_judged == {"one of the two times is not known": 1}
    assert report.rule("ST-AUD-030").not_judged == {"a time that it waits for is not known": 2}


def test_a_run_before_its_predecessors_end_is_early_even_where_another_time_is_not_known():
    execution = change(run(TRACE), {2: {"finished_ns": None}, 4: moved(run(TRACE), 4, -1, *ALL_TIMES)})
    assert caught(TRACE, execution) == {"ST-AUD-004", "ST-AUD-032"}


def changed_input() -> Trace:
    b = TraceBuilder()
    task = b.task("t", arrival_ns=0)
    first = b.operation(task, LLM, "a", prompt_tokens=4, output_tokens=2)
    b.segment(first, 2, "another question", tokens=4)
    return b.build().trace


def test_a_changed_input_is_other_work():
    b = TraceBuilder()
    task = b.task("t", arrival_ns=0)
    b.segment(b.operation(task, LLM, "a", prompt_tokens=4, output_tokens=2), 2, "the question", tokens=4)
    original = b.build().trace
    assert caught(original, run(original)) == set()
    assert caught(changed_input(), run(original)) == {"ST-AUD-010"}
    # With a plan for the changed trace, the execution is also seen to have followed another plan.
    other = dag(digest_of(changed_input()))
    assert caught(changed_input(), run(original), other) == {"ST-AUD-010", "ST-AUD-012"}


def test_a_plan_for_other_work_is_told():
    foreign = dag("blake3:" + "0" * 64)
    execution = change(run(TRACE), plan=foreign.as_json(), plan_digest=foreign.content_digest())
    assert caught(TRACE, execution) == {"ST-AUD-011"}


@pytest.mark.parametrize(
    ("plan", "named"),
    [
        (plan_of(TRACE, edges=[{"source": 4, "target": 1}]), "ST-PLAN-010"),
        (plan_of(TRACE, groups=[{"wait": [99], "hold": [1]}]), "ST-PLAN-002"),
        (work_only(digest_of(TRACE)), "ST-PLAN-004"),
    ],
)
def test_an_illegal_plan_is_told(plan, named):
    execution = change(run(TRACE), plan=plan.as_json(), plan_digest=plan.content_digest())
    report = audit(TRACE, execution)
    assert any(f.requirement == "ST-AUD-013" and named in f.message for f in report.findings)


def test_a_plan_that_is_no_document_is_told():
    execution = change(run(TRACE), plan={"nonsense": 1}, plan_digest="blake3:" + "1" * 64)
    report = audit(TRACE, execution)
    assert {finding.requirement for finding in report.findings} == {"ST-AUD-013"}
    assert report.rule("ST-AUD-030").not_judged == {"the plan is not known": 5}
    assert report.rule("ST-AUD-032").judged == 5
    assert report.lateness is None


def test_swapped_output_ids_are_caught_at_the_position_of_the_difference():
    execution = run(IDS, mode="token_locked")
    ids = [event["output_ids"] for event in execution.events.data.to_pylist()]
    swapped = change(execution, {1: {"output_ids": ids[2]}, 2: {"output_ids": ids[1]}})
    report = audit(IDS, swapped)
    assert {finding.requirement for finding in report.findings} == {"ST-AUD-022"}
    assert report.findings[0].rows == (1, 2)
    assert "token 0 is 200, 100 is recorded" in report.findings[0].message


def test_a_missing_last_id_is_caught():
    execution = run(IDS, mode="token_locked")
    own = sorted(execution.content)
    row = execution.events.row(2)["output_ids"]
    content = MemoryContent({digest: execution.content[digest] for digest in own})
    short = content.pop(own[row])[:-4]
    content[artifact_digest(short)] = short
    order = sorted(content)
    rows = {
        at: {
            "output_ids": order.index(
                artifact_digest(short) if event["output_ids"] == row else own[event["output_ids"]]
            )
        }
        for at, event in enumerate(execution.events.data.to_pylist())
        if event["output_ids"] is not None
    }
    made = change(execution, rows)
    report = audit(IDS, Execution(made.header, made.tables, content))
    (finding,) = report.findings
    assert finding.requirement == "ST-AUD-022"
    assert "10 token ids, 11 are recorded" in finding.message


def test_ids_that_are_not_there_are_told_and_ids_that_were_not_recorded_are_no_proof():
    assert caught(IDS, run(IDS, mode="token_locked", locked=False)) == {"ST-AUD-022"}
    assert caught(TRACE, run(TRACE, mode="token_locked")) == {"ST-AUD-022"}
    locked = run(IDS, mode="token_locked")
    ids = {row: {"output_ids": locked.events.row(row)["output_ids"]} for row in range(5)}
    plain = change(run(TRACE, mode="token_locked"), ids)
    report = audit(TRACE, Execution(plain.header, plain.tables, locked.content))
    assert report.rule("ST-AUD-022").not_judged == {"output token ids not in the trace": 4}
    assert report.verdict == Verdict.NOT_JUDGED
    assert report.gaps == ["ST-AUD-022: 4 cases not judged: output token ids not in the trace"]
    assert audit(IDS, run(IDS)).rule("ST-AUD-022").judged == 0


def test_a_state_reader_before_the_writer_is_caught():
    b = TraceBuilder()
    task = b.task("t", arrival_ns=0)
    state = b.state("team", "board", task=task)
    writer = b.operation(task, LLM, "writer", prompt_tokens=30, output_tokens=5)
    reader = b.operation(task, LLM, "reader", prompt_tokens=10, output_tokens=5)
    b.read(reader, b.version(state, "x", writer=writer))
    trace = b.build().trace
    assert caught(trace, run(trace)) == set()
    good = run(trace)
    bad = change(good, {1: {**moved(good, 1, -44, "ready", "released", *ALL_TIMES)}})
    assert bad.events.row(1)["submitted_ns"] == 0
    report = audit(trace, bad)
    (finding,) = report.findings
    assert finding.requirement == "ST-AUD-036"
    assert "operation 0, which wrote the state version 0 that it reads, finished at 44 ns" in finding.message


def test_an_operation_may_read_what_it_wrote_itself():
    b = TraceBuilder()
    task = b.task("t", arrival_ns=0)
    only = b.operation(task, TOOL, "only", duration_ns=9)
    b.read(only, b.version(b.state("team", "board", task=task), "x", writer=only))
    trace = b.build().trace
    report = audit(trace, run(trace))
    assert report.clean
    assert report.rule("ST-AUD-036").judged == 0


def test_a_failed_operation_takes_its_recorded_duration():
    b = TraceBuilder()
    task = b.task("t", arrival_ns=0)
    b.operation(
        task, LLM, "fails", prompt_tokens=5, output_tokens=None, status=OperationStatus.ERROR, duration_ns=30
    )
    trace = b.build().trace
    assert caught(trace, run(trace)) == set()
    assert caught(trace, run(trace, durations={0: 29})) == {"ST-AUD-040"}
    assert caught(trace, run(trace, durations={0: 29}, clock="wall")) == {"ST-AUD-040"}
    assert caught(trace, run(trace, durations={0: 31}, clock="wall")) == {"ST-AUD-040"}
    assert caught(trace, run(trace, durations={0: 31}, clock="wall", tolerance_ns=1)) == set()


def test_start_and_first_token_triggers_and_lags_are_recomputed():
    b = TraceBuilder()
    task = b.task("t", arrival_ns=0)
    first = b.operation(task, LLM, "first", prompt_tokens=5, output_tokens=9)
    at_start = b.operation(task, TOOL, "at start", duration_ns=3)
    at_token = b.operation(task, TOOL, "at token", duration_ns=3)
    b.edge(at_start, first, trigger=Trigger.START, lag_ns=4)
    b.edge(at_token, first, trigger=Trigger.FIRST_TOKEN, lag_ns=1)
    trace = b.build().trace
    execution = run(trace)
    assert execution.events.ints("ready_ns").tolist() == [0, 4, 16]
    assert caught(trace, execution) == set()
    assert caught(trace, run(trace, shift={1: -1})) == {"ST-AUD-032"}
    unknown = change(execution, {0: {"first_token_ns": None}})
    assert audit(trace, unknown).rule("ST-AUD-030").not_judged == {"a time that it waits for is not known": 1}


def test_root_latency_below_the_critical_path_is_caught_where_ready_times_cannot_be():
    b = TraceBuilder()
    task = b.task("t", arrival_ns=0)
    first = b.operation(task, TOOL, "first", duration_ns=40)
    talk = b.operation(task, LLM, "talk", prompt_tokens=5, output_tokens=9)
    last = b.operation(task, TOOL, "last", duration_ns=20)
    b.edge(talk, first)
    b.edge(last, talk, trigger=Trigger.FIRST_TOKEN)
    trace = b.build().trace
    good = run(trace)
    moved_up = moved(good, 2, -16, "ready", "released", "submitted", "finished")
    bad = change(good, {1: {"first_token_ns": None}, 2: moved_up})
    assert bad.events.row(2)["finished_ns"] == 59
    report = audit(trace, change(bad, {1: {"finished_ns": 58}}))
    assert {finding.requirement for finding in report.findings} == {"ST-AUD-041"}
    assert "root latency 59 ns, its critical path alone takes 60 ns" in report.findings[0].message


def test_lateness_is_reported_with_where_it_was_measured():
    """ST-AUD-106, for the tolerance that is judged by; the other is in the tests of hostile headers."""
    report = audit(TRACE, run(TRACE, clock="wall", tolerance_ns=1, shift={1: 3, 2: 1, 4: 1}))
    assert {finding.requirement for finding in report.findings} == {"ST-AUD-033"}
    shown = report.as_dict()["lateness"]
    assert (shown["count"], shown["p50"], shown["max"]) == (5, 1, 3)
    assert (shown["within_tolerance"], shown["tolerance_ns"], shown["measured_at"]) == (4, 1, "simulator")
    assert audit(TRACE, run(TRACE, clock="wall", shift={1: 3}), tolerance_ns=3).clean


def test_a_tolerance_does_not_hold_on_a_virtual_clock():
    assert caught(TRACE, run(TRACE, shift={2: 1}, tolerance_ns=5)) == {"ST-AUD-033"}


def native(trace: Trace, execution: Execution, cells=None) -> Execution:
    dropped = {
        row: {"ready_ns": None, "ready_evidence": 4, "released_ns": None, "released_evidence": 4}
        for row in range(execution.events.rows)
    }
    for row, more in (cells or {}).items():
        dropped[row].update(more)
    return change(execution, dropped, mode="native", clock="wall", plan=None, plan_digest=None)


def test_a_native_run_is_judged_only_where_its_times_allow():
    report = audit(TRACE, native(TRACE, run(TRACE)))
    assert report.clean
    assert report.lateness is None
    assert report.rule("ST-AUD-004").not_judged["a native run without ready_ns"] == 5
    for requirement in ("ST-AUD-030", "ST-AUD-031", "ST-AUD-033"):
        rule = report.rule(requirement)
        assert (rule.judged, rule.not_judged) == (0, {"a native run, released by no replayer": 5})


@pytest.mark.parametrize(
    ("evidence", "violations", "notes"), [(Evidence.OBSERVED, 1, 0), (Evidence.INFERRED, 0, 1)]
)
def test_an_edge_contradicted_in_a_native_run_is_a_violation_only_if_both_times_are_observed(
    evidence, violations, notes
):
    execution = run(TRACE, shift={2: -1})
    cells = {2: {"submitted_evidence": evidence}}
    report = audit(TRACE, native(TRACE, execution, cells))
    assert (len(report.findings), len(report.notes)) == (violations, notes)
    (told,) = report.findings + report.notes
    assert told.requirement == "ST-AUD-032"
    assert "the edge from operation 0 (finish) was satisfied at 17 ns" in told.message


def test_a_native_run_without_times_passes_nothing_silently():
    bare = {
        row: {
            f"{name}_{part}": value for name in ALL_TIMES for part, value in (("ns", None), ("evidence", 4))
        }
        for row in range(5)
    }
    report = audit(TRACE, native(TRACE, run(TRACE), bare))
    assert (report.findings, report.clean, report.verdict) == ([], False, Verdict.NOT_JUDGED)
    for requirement in ("ST-AUD-030", "ST-AUD-032", "ST-AUD-036", "ST-AUD-040", "ST-AUD-041", "ST-AUD-050"):
        rule = report.rule(requirement)
        assert rule.judged == 0, requirement
        assert sum(rule.not_judged.values()) > 0, requirement


def scenario_run(scenario: Scenario, trace: Trace) -> Execution:
    return replay(trace, dag(digest_of(trace)), scenario)


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(copies=3),
        Scenario(copies=2, arrivals=Drawn(times_ns=[0, 9, 4, 8])),
        Scenario(copies=5, arrivals=ClosedLoop(users=2, think_ns=11)),
    ],
    ids=["together", "drawn", "closed loop"],
)
def test_replays_follow_their_scenario(scenario):
    trace = two_analysts(tasks=2)
    execution = scenario_run(scenario, trace)
    report = audit(trace, execution)
    assert report.findings == []
    assert report.rule("ST-AUD-006").judged == 1 + execution.instances.rows
    arrivals = execution.instances.ints("arrival_ns")
    late_instance = int(np.argmax(arrivals))
    instance = change(execution, instances={late_instance: {"arrival_ns": int(arrivals[late_instance]) + 1}})
    assert "ST-AUD-006" in caught(trace, instance)


def test_a_scenario_of_other_instances_is_told():
    execution = scenario_run(Scenario(copies=2), TRACE)
    wrong = Scenario(copies=3, arrivals=Drawn(times_ns=[0, 0, 0])).as_json()
    assert caught(TRACE, change(execution, scenario=wrong)) == {"ST-AUD-006"}
    assert caught(TRACE, change(execution, scenario={"copies": "many"})) == {"ST-AUD-006"}


def test_reported_measures_are_recomputed():
    execution = run(TRACE, arrivals=[0, 10])
    reported = measure(TRACE, execution, deadline_ns=158, window_ns=11).as_dict()
    assert caught(TRACE, execution, measures=reported) == set()
    reported["root_latency"]["p95"] = 150
    reported["instances"][1]["parts"]["tool"] += 1
    report = audit(TRACE, execution, measures=reported)
    assert [f.message for f in report.findings] == [
        "root_latency.p95 is reported as 150, recomputed it is 158",
        "instances[1].parts.tool is reported as 51, recomputed it is 50",
    ]
    assert {f.requirement for f in report.findings} == {"ST-AUD-051"}
    assert "invented is no measure" in audit(TRACE, execution, measures={"invented": 1}).findings[0].message


def test_times_at_the_end_of_time_do_not_wrap_around():
    last = (1 << 63) - 1
    execution = change(run(TRACE), {1: {"finished_ns": last}, 3: {"submitted_ns": 5, "finished_ns": 55}})
    assert "ST-AUD-032" in caught(TRACE, execution)
    measure(TRACE, execution)


def test_the_report_is_json():
    import json

    shown = json.loads(json.dumps(audit(TRACE, early()).as_dict()))
    assert shown["clean"] is False
    assert shown["findings"][0]["requirement"] == "ST-AUD-032"
    assert {rule["requirement"] for rule in shown["rules"]} == set(RULES)


def test_an_empty_execution_is_judged():
    execution = change(run(TRACE), drop=tuple(range(5)))
    assert caught(TRACE, execution) == {"ST-AUD-001"}
    nobody = Execution.from_arrow(execution.header, {})
    assert audit(TRACE, nobody).rule("ST-AUD-001").judged == 0
