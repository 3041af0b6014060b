"""Every measure, against values computed by hand."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from measure_cases import LLM, TOOL, change, digest_of, plan_of, run, two_analysts

from semtrace.build import TraceBuilder
from semtrace.errors import ReplayError
from semtrace.graph.plan import dag
from semtrace.measure.context import repeated_tokens, rounds
from semtrace.measure.metrics import measure
from semtrace.measure.path import CompletedPath, UnknownPath
from semtrace.measure.slots import Slots
from semtrace.measure.waiting import joins
from semtrace.records.columns import NULL
from semtrace.records.enums import EventOutcome, OperationStatus, Role, StageTemplate, Trigger
from semtrace.replay.run import replay
from semtrace.replay.scenario import Drawn, Scenario

TRACE = two_analysts()
DAG = run(TRACE)
# Times of the plain run: 0: 0-17, 1: 17-50, 2: 17-47, 3: ready 50, 57-107, 4: 107-158.


def path_of(trace, execution, instance=0) -> CompletedPath:
    found = measure(trace, execution).instances[instance].path
    assert isinstance(found, CompletedPath), found
    return found


def parts(path) -> dict[str, int]:
    return {name: value for name, value in path.parts.as_dict().items() if value}


def test_root_latency_ends_with_the_answer_and_the_last_finish_stands_beside_it():
    b = TraceBuilder()
    task = b.task("t", arrival_ns=0)
    answer = b.operation(task, LLM, "answer", prompt_tokens=10, output_tokens=1)
    detached = b.operation(task, TOOL, "log", duration_ns=100)
    b.edge(detached, answer)
    b.update_task(task, answer_operation=answer)
    trace = b.build().trace
    measures = measure(trace, run(trace, arrivals=[5]))
    (instance,) = measures.instances
    assert instance.root_latency_ns == 20
    assert instance.last_finish_ns == 125
    assert measures.last_finish.maximum == 120


def test_the_completed_path_adds_up():
    path = path_of(TRACE, DAG)
    assert [(s.operation, s.begin_ns, s.end_ns) for s in path.steps] == [
        (0, 0, 17),
        (1, 17, 50),
        (3, 50, 107),
        (4, 107, 158),
    ]
    assert parts(path) == {"external_delay": 7, "resident": 17 + 33 + 51, "tool": 50}
    assert path.parts.total == 158 == measure(TRACE, DAG).instances[0].root_latency_ns


def test_a_path_goes_through_the_barrier_that_decided():
    serial = plan_of(TRACE, groups=[{"wait": [2], "hold": [1, 3]}])
    execution = run(TRACE, serial)
    path = path_of(TRACE, execution)
    assert [step.operation for step in path.steps] == [0, 2, 1, 3, 4]
    assert path.parts.total == 158 + 30


def test_a_path_goes_through_an_added_edge_with_its_lag():
    edge = plan_of(TRACE, edges=[{"source": 2, "target": 1, "trigger": "first_token", "lag_ns": 4}])
    path = path_of(TRACE, run(TRACE, edge))
    # 2 has its first token at 37; 4 ns later 1 is ready: the path leaves 2 there.
    assert [(s.operation, s.end_ns, s.trigger) for s in path.steps][1] == (2, 37, Trigger.FIRST_TOKEN)
    assert parts(path)["lag"] == 4
    assert path.parts.total == 41 + 33 + 57 + 51


def test_of_equal_predecessors_the_lowest_is_taken():
    b = TraceBuilder()
    task = b.task("t", arrival_ns=0)
    first, second = (b.operation(task, TOOL, name, duration_ns=10) for name in "ab")
    last = b.operation(task, TOOL, "c", duration_ns=1)
    b.edge(last, second)
    b.edge(last, first)
    trace = b.build().trace
    assert [step.operation for step in path_of(trace, run(trace)).steps] == [0, 2]


def test_queue_and_lateness_are_parts():
    late = run(TRACE, shift={1: 2})
    queued = change(late, {1: {"scheduled_ns": 24}})
    assert parts(path_of(TRACE, queued)) == {
        "submission": 2,
        "queue": 5,
        "external_delay": 7,
        "resident": 17 + 28 + 51,
        "tool": 50,
    }


def test_a_path_that_leaves_an_operation_before_it_is_scheduled_has_none_of_its_queue():
    b = TraceBuilder()
    task = b.task("t", arrival_ns=0)
    first = b.operation(task, LLM, "first", prompt_tokens=5, output_tokens=1)
    beside = b.operation(task, TOOL, "beside", duration_ns=100)
    b.edge(beside, first, trigger=Trigger.START, lag_ns=3)
    trace = b.build().trace
    path = path_of(trace, change(run(trace), {0: {"scheduled_ns": 8}}))
    assert [(s.operation, s.end_ns, s.trigger) for s in path.steps] == [
        (0, 0, Trigger.START),
        (1, 103, Trigger.FINISH),
    ]
    assert parts(path) == {"lag": 3, "tool": 100}


@pytest.mark.parametrize("preemptions", [1, None])
def test_what_preemption_took_is_not_guessed(preemptions):
    execution = change(DAG, {1: {"preemptions": preemptions, "scheduled_ns": 20}})
    assert parts(path_of(TRACE, execution)) == {
        "queue": 3,
        "unsplit": 30,
        "external_delay": 7,
        "resident": 17 + 51,
        "tool": 50,
    }


def test_a_request_whose_schedule_is_not_known_is_not_split():
    execution = change(DAG, {row: {"scheduled_ns": None} for row in range(5)})
    assert parts(path_of(TRACE, execution)) == {"unsplit": 101, "external_delay": 7, "tool": 50}


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({4: {"finished_ns": None}}, "its end is not known"),
        ({4: {"outcome": EventOutcome.UNFINISHED, "finished_ns": None}}, "it did not come to its end"),
        ({1: {"outcome": EventOutcome.ERROR}}, "an operation of it did not end as recorded"),
        ({2: {"finished_ns": None}}, "a time that operation 4 waits for is not known"),
        ({4: {"submitted_ns": None}}, "when operation 4 was submitted is not known"),
        ({4: {"submitted_ns": 106}}, "operation 4 was submitted before its release"),
        ({4: {"scheduled_ns": 100}}, "operation 4 was scheduled before it was submitted"),
    ],
)
def test_a_path_that_cannot_be_told_says_why(cells, reason):
    measures = measure(TRACE, change(DAG, cells))
    assert measures.instances[0].path == UnknownPath(reason)
    assert measures.path_unknown == 1
    assert measures.path.total == 0


def test_stage_time_is_last_finish_minus_first_ready_with_nested_stages():
    stages = {stage.name: stage.time_ns for stage in measure(TRACE, DAG).stages}
    assert {name: time.total for name, time in stages.items()} == {
        "report": 158,
        "plan": 17,
        "analyse": 90,
        "write": 51,
    }


def test_stage_time_is_unknown_where_one_of_its_times_is():
    stages = {s.name: s.time_ns for s in measure(TRACE, change(DAG, {2: {"finished_ns": None}})).stages}
    assert (stages["analyse"].count, stages["analyse"].unknown) == (0, 1)
    assert (stages["plan"].count, stages["plan"].unknown) == (1, 0)


def test_stages_of_one_name_count_together_over_tasks_and_copies():
    trace = two_analysts(tasks=2)
    measures = measure(trace, run(trace, arrivals=[0, 100]))
    assert [(s.name, s.time_ns.count) for s in measures.stages] == [
        ("report", 4),
        ("plan", 4),
        ("analyse", 4),
        ("write", 4),
    ]


def test_width_counts_ready_operations_that_have_not_finished():
    measures = measure(TRACE, DAG)
    # 1 over [0,17), 2 over [17,47), 1 until 158: the tool counts from ready, its delay included.
    assert measures.width.times_ns.tolist() == [0, 17, 47, 158]
    assert measures.width.widths.tolist() == [1, 2, 1, 0]
    assert measures.width.mean == Fraction(17 + 60 + 111, 158)
    assert measures.width_by_kind["llm"].maximum == 2
    assert measures.width_by_kind["tool"].area_ns == 57
    serial = plan_of(TRACE, groups=[{"wait": [2], "hold": [1, 3]}])
    assert measure(TRACE, run(TRACE, serial)).width.maximum == 1


def test_width_leaves_out_what_is_not_known():
    """ST-MEA-003; what waits for an end that is not on record has the ready time that is, ST-MEA-004."""
    measures = measure(TRACE, change(DAG, {2: {"finished_ns": None}}))
    assert measures.width.unknown == 1  # 2 itself; what waits for it has a ready time on record
    assert measures.width.maximum == 1
    bare = {2: {"finished_ns": None}, 4: {"ready_ns": None}}
    assert measure(TRACE, change(DAG, bare)).width.unknown == 2


def test_deadlines_attainment_and_goodput():
    """ST-MEA-023."""
    execution = run(TRACE, arrivals=[0, 10, 20, 400])
    held_up = change(
        execution,
        {
            # copy 1 ends 42 ns later, copy 2 never
            9: {"finished_ns": 210},
            14: {"finished_ns": None, "outcome": EventOutcome.UNFINISHED},
        },
    )
    measures = measure(TRACE, held_up, deadline_ns=158, window_ns=400)
    assert [each.on_time for each in measures.instances] == [True, False, False, True]
    # the copy that arrives at the end of the window is outside of it, the unfinished one counts
    assert measures.attainment is not None
    assert (measures.attainment.part, measures.attainment.whole, measures.attainment.unknown) == (1, 3, 0)
    assert measures.goodput_per_second == Fraction(10**9, 400)
    whole = measure(TRACE, held_up, deadline_ns=200)
    assert whole.attainment is not None
    assert (whole.attainment.part, whole.attainment.whole) == (3, 4)
    assert (whole.window.source, whole.window.start_ns, whole.window.end_ns) == ("run", 0, 558)


def test_an_instance_whose_end_is_not_recorded_is_neither_on_time_nor_late():
    measures = measure(TRACE, change(DAG, {4: {"finished_ns": None}}), deadline_ns=158)
    assert measures.instances[0].on_time is None
    assert measures.attainment is not None
    assert (measures.attainment.part, measures.attainment.whole, measures.attainment.unknown) == (0, 1, 1)


def test_an_answer_that_was_refused_or_skipped_is_no_answer():
    for outcome in (EventOutcome.REFUSED, EventOutcome.SKIPPED):
        measures = measure(TRACE, change(DAG, {4: {"outcome": outcome}}), deadline_ns=1000)
        assert measures.instances[0].on_time is False
        assert measures.instances[0].root_latency_ns is None


def test_deadline_and_window_come_from_the_scenario_or_the_tasks():
    """ST-MEA-020 and ST-MEA-022."""
    scenario = Scenario(copies=2, arrivals=Drawn(times_ns=[0, 50]), deadline_ns=10**9, window_ns=50)
    execution = replay(TRACE, dag(digest_of(TRACE)), scenario)
    measures = measure(TRACE, execution)
    assert (measures.deadline_source, measures.deadline_ns) == ("scenario", 10**9)
    assert (measures.window.source, measures.window.length_ns) == ("scenario", 50)
    assert measures.attainment is not None
    assert measures.attainment.whole == 1
    b = TraceBuilder()
    b.operation(b.task("t", arrival_ns=5, deadline_ns=20), TOOL, "work", duration_ns=15)
    trace = b.build().trace
    own = measure(trace, run(trace, arrivals=[100]))
    assert own.deadline_source == "tasks"
    assert own.instances[0].deadline_ns == 15
    assert own.instances[0].on_time is True
    assert measure(TRACE, DAG).attainment is None
    assert measure(TRACE, DAG).goodput_per_second is None


def test_a_deadline_is_a_multiple_of_the_reference_p95_rounded_down():
    reference = measure(TRACE, change(run(TRACE, arrivals=[0, 0]), {9: {"finished_ns": 168}}))
    # 158 and 168: P95 = 167.5
    assert reference.deadline("1.5") == 251
    assert reference.deadline(Fraction(2)) == 335
    nobody = measure(TRACE, change(DAG, {4: {"finished_ns": None}}))
    with pytest.raises(ReplayError, match="no known root latency"):
        nobody.deadline("1.5")


def test_fairness_is_p99_over_p50():
    execution = change(run(TRACE, arrivals=[0, 0, 0]), {14: {"finished_ns": 258}})
    # 158, 158, 258: P50 158, P99 = 158 + 0.98 · 100
    assert measure(TRACE, execution).fairness == Fraction(256, 158)


def test_counts_by_kind():
    kinds = {each.kind: each for each in measure(TRACE, run(TRACE, arrivals=[0, 0])).kinds}
    assert kinds.keys() == {"llm", "tool"}
    assert (kinds["llm"].operations, kinds["llm"].prompt_tokens.total, kinds["llm"].output_tokens.total) == (
        8,
        150,
        40,
    )
    assert kinds["tool"].as_dict()["prompt_tokens"] == {"sum": None, "unknown": 2}


def test_context_by_agent():
    """ST-MEA-031."""
    agents = {each.agent: each.context for each in measure(TRACE, DAG).agents}
    assert list(agents) == ["planner", "analyst A", "analyst B", "writer"]
    overhead = {name: (each.overhead.part, each.overhead.whole) for name, each in agents.items()}
    assert overhead == {
        "planner": (0, 8),
        "analyst A": (3, 24),  # the plan
        "analyst B": (5, 21),  # the plan, and the system prompt that A was given before
        "writer": (36, 42),  # B's analysis, what was found, and the question
    }
    waits = {name: each.sync_wait_ns.total for name, each in agents.items() if each.sync_wait_ns.count}
    assert waits == {"analyst A": 0, "analyst B": 60}  # the search is of A's session


def test_data_reuse_counts_hits_where_they_are_known():
    execution = change(DAG, {1: {"cached_tokens": 16}, 2: {"cached_tokens": 0}})
    reuse = {each.agent: each.context.reuse for each in measure(TRACE, execution).agents}
    assert (reuse["analyst A"].part, reuse["analyst A"].whole) == (16, 20)
    assert reuse["analyst B"].value == 0
    assert (reuse["writer"].value, reuse["writer"].unknown) == (None, 1)


def test_a_wait_that_its_times_contradict_is_unknown():
    # Without the end of 2, the join has the ready time on record, which is before the search ended.
    measures = measure(TRACE, change(DAG, {2: {"finished_ns": None}, 4: {"ready_ns": 100}}))
    waits = {each.agent: each.context.sync_wait_ns for each in measures.agents}
    assert (waits["analyst A"].count, waits["analyst A"].unknown) == (0, 1)
    assert (waits["analyst B"].count, waits["analyst B"].unknown) == (0, 1)


def test_constraints_in_a_circle_have_no_path():
    b = TraceBuilder()
    task = b.task("t", arrival_ns=0)
    for name in "ab":
        b.operation(task, TOOL, name, duration_ns=0)
    trace = b.build().trace
    circle = plan_of(trace, edges=[{"source": 0, "target": 1}, {"source": 1, "target": 0}])
    (instance,) = measure(trace, run(trace), circle).instances
    assert instance.path == UnknownPath("operation 1 waits for itself")


def test_queue_waits_by_agent():
    """ST-MEA-032."""
    execution = change(DAG, {1: {"scheduled_ns": 29}, 2: {"scheduled_ns": None}})
    queue = {each.agent: each.context.queue_ns for each in measure(TRACE, execution).agents}
    assert (queue["analyst A"].total, queue["planner"].total) == (12, 0)
    assert (queue["analyst B"].count, queue["analyst B"].unknown) == (0, 1)


def test_lateness_is_against_the_recomputed_release():
    late = measure(TRACE, run(TRACE, shift={2: 3, 3: 5}))
    assert (late.lateness.count, late.lateness.total, late.lateness.maximum) == (5, 8, 5)


def conversation() -> TraceBuilder:
    b = TraceBuilder()
    task = b.task("t", arrival_ns=0)
    first = b.operation(task, LLM, "first", prompt_tokens=12, output_tokens=6)
    b.segment(first, Role.SYSTEM, "system", tokens=4)
    b.segment(first, Role.USER, "question", tokens=8)
    second = b.operation(task, LLM, "second", prompt_tokens=21, output_tokens=1)
    b.inherit(second, first, 3)
    b.segment(second, Role.USER, "go on", tokens=3)
    return b


def test_repeated_tokens_of_an_inherited_context():
    trace = conversation().build().trace
    assert repeated_tokens(trace).tolist() == [0, 18]


def test_repeated_tokens_are_unknown_where_a_length_is():
    b = conversation()
    b.segment(1, Role.USER, "more")
    assert repeated_tokens(b.build().trace).tolist() == [0, NULL]


def test_content_that_stands_twice_in_one_input_is_no_repetition():
    b = TraceBuilder()
    task = b.task("t", arrival_ns=0)
    only = b.operation(task, LLM, "only", prompt_tokens=8, output_tokens=1)
    for _ in range(2):
        b.segment(only, Role.USER, "again", tokens=4)
    other = b.task("u", arrival_ns=0)
    b.segment(
        b.operation(other, LLM, "other", prompt_tokens=4, output_tokens=1), Role.USER, "again", tokens=4
    )
    assert repeated_tokens(b.build().trace).tolist() == [0, 0]


def debate() -> TraceBuilder:
    """Three agents, two rounds: 2 shared tokens each, then 2 + the 3 · 5 of the first round."""
    b = TraceBuilder()
    task = b.task("debate", arrival_ns=0)
    stage = b.stage(task, "debate", template=StageTemplate.DEBATE)
    sessions = [b.session(task, agent=name) for name in "ABC"]
    firsts = []
    for at, session in enumerate(sessions):
        op = b.operation(
            task, LLM, "say", stage=stage, session=session, prompt_tokens=3 + at, output_tokens=5
        )
        b.segment(op, Role.USER, "topic", tokens=2)
        b.segment(op, Role.USER, f"role {at}", tokens=1 + at)
        b.output(op, f"opinion {at}")
        firsts.append(op)
    for at, session in enumerate(sessions):
        op = b.operation(
            task, LLM, "reply", stage=stage, session=session, prompt_tokens=3 + at + 15, output_tokens=5
        )
        b.inherit(op, firsts[at], 3)
        for other in firsts:
            if other != firsts[at]:
                b.segment(op, Role.USER, f"opinion {other}", source=other, tokens=5)
    return b


def test_rounds_of_a_debate_share_topic_and_opinions():
    trace = debate().build().trace
    first, second = rounds(trace)
    assert (first.operations, first.depth, first.shared, first.total) == ((0, 1, 2), 0, 2, 3 + 4 + 5)
    assert (second.operations, second.depth, second.shared, second.total) == ((3, 4, 5), 1, 17, 57)
    assert (first.repeated, second.repeated) == (4, 34)
    measures = measure(trace, run(trace, arrivals=[0, 0]))
    assert (measures.redundancy.part, measures.redundancy.whole) == (2 * 38, 2 * 69)


def test_hidden_reasoning_is_not_shared_by_a_round():
    b = TraceBuilder()
    task = b.task("t", arrival_ns=0)
    stage = b.stage(task, "s")
    first = b.operation(task, LLM, "first", prompt_tokens=4, output_tokens=30, reasoning_tokens=25)
    b.segment(first, Role.USER, "question", tokens=4)
    b.output(first, "answer")
    for name in "ab":
        session = b.session(task, agent=name)
        op = b.operation(task, LLM, name, stage=stage, session=session, prompt_tokens=11, output_tokens=1)
        b.inherit(op, first, 2)
        b.segment(op, Role.USER, f"go on, {name}", tokens=2)
    (found,) = rounds(b.build().trace)
    assert (found.operations, found.shared) == ((1, 2), 4 + 5)


def test_rounds_of_nested_stages_are_rounds_of_the_stage_around():
    b = TraceBuilder()
    task = b.task("t", arrival_ns=0)
    outer = b.stage(task, "fork", template=StageTemplate.FORK_JOIN)
    for at in range(2):
        branch = b.stage(task, f"branch {at}", parent=outer)
        session = b.session(task, agent=f"worker {at}")
        op = b.operation(task, LLM, "work", stage=branch, session=session, prompt_tokens=4, output_tokens=1)
        b.segment(op, Role.USER, "shared", tokens=3 if at == 0 else None)
        b.segment(op, Role.USER, f"own {at}", tokens=1)
    (found,) = rounds(b.build().trace)
    assert (found.stage, found.operations) == (0, (0, 1))
    assert found.shared == 0  # content of unknown length is not known to be as long as the other's


def test_writer_and_reviewer_in_turn_are_no_round():
    b = TraceBuilder()
    task = b.task("t", arrival_ns=0)
    stage = b.stage(task, "refine", template=StageTemplate.REFINEMENT)
    writer = b.operation(task, LLM, "w", stage=stage, session=b.session(task, agent="w"))
    reviewer = b.operation(task, LLM, "r", stage=stage, session=b.session(task, agent="r"))
    b.edge(reviewer, writer)
    assert list(rounds(b.build().trace)) == []


def test_joins_have_only_the_ends_of_branches():
    b = TraceBuilder()
    task = b.task("t", arrival_ns=0)
    ops = [b.operation(task, TOOL, f"o{at}", duration_ns=1) for at in range(5)]
    for target, source in ((1, 0), (3, 0), (3, 1), (3, 2), (4, 3), (4, 0)):
        b.edge(ops[target], ops[source])
    trace = b.build().trace
    end, join, left_out = joins(trace)
    # 3 waits for 0, 1 and 2, but 0 is before 1; 4 waits for 3 alone.
    assert list(zip(end.tolist(), join.tolist(), strict=True)) == [(1, 3), (2, 3)]
    assert left_out == []


def test_joins_that_are_not_looked_for_are_told(monkeypatch):
    assert measure(TRACE, DAG).joins_unknown == 0
    monkeypatch.setattr("semtrace.measure.waiting.LARGEST_TASK", 4)
    measures = measure(TRACE, run(TRACE, arrivals=[0, 0]))
    assert measures.joins_unknown == 10
    assert all(agent.context.sync_wait_ns.count == 0 for agent in measures.agents)


def test_other_work_is_refused():
    other = two_analysts(answer=False)
    with pytest.raises(ReplayError, match="other work"):
        measure(other, DAG)
    with pytest.raises(ReplayError, match="the plan is for work"):
        measure(TRACE, DAG, dag(digest_of(other)))


def test_events_of_strangers_do_no_harm():
    execution = change(
        run(TRACE, arrivals=[0, 0]), {1: {"operation": 9_999}, 2: {"instance": 4_000_000_000}}, double=(4,)
    )
    slots = Slots.of(TRACE, execution)
    assert (slots.doubled.tolist(), slots.stray.tolist()) == ([5], [1, 2])
    assert measure(TRACE, execution).root_latency.count == 2
    gone = change(run(TRACE, arrivals=[0, 0]), instances={1: {"task": 77}})
    measures = measure(TRACE, gone, deadline_ns=200)
    assert (measures.root_latency.count, measures.root_latency.unknown) == (1, 1)


def test_an_execution_without_instances_has_no_values():
    shown = measure(TRACE, type(DAG).from_arrow(DAG.header, {})).as_dict()
    assert shown["root_latency"]["count"] == 0
    assert shown["width"]["mean"] is None
    assert shown["goodput_per_second"] is None
    json.dumps(shown)


def test_what_falls_short_is_counted_and_is_not_on_time():
    failed = change(DAG, {1: {"outcome": EventOutcome.ERROR}, 4: {"output_tokens": 1}})
    measures = measure(TRACE, failed, deadline_ns=10**9)
    short = measures.fell_short
    assert (short.operations, short.instances, short.other_lengths) == (1, 1, 1)
    assert {name: count for name, count in short.outcomes.items() if count} == {"error": 1}
    assert measures.attainment is not None
    assert measures.attainment.part == 0
    assert measures.root_latency.count == 0
    assert measures.root_latency.unknown == 1
    assert measure(TRACE, DAG).fell_short.operations == 0


def test_what_failed_in_the_recorded_run_too_does_not_fall_short():
    b = TraceBuilder()
    task = b.task("t", arrival_ns=0)
    b.operation(task, TOOL, "search", duration_ns=100, status=OperationStatus.ERROR)
    trace = b.build().trace
    execution = run(trace)
    assert execution.events.ints("outcome").tolist() == [EventOutcome.ERROR]
    measures = measure(trace, execution)
    assert measures.fell_short.operations == 0
    assert measures.root_latency.maximum == 100
