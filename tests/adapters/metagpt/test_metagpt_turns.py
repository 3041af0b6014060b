"""What a log proves of overlapping calls, runs and memory; logs written for the purpose."""

import json

import pytest

from metagpt_logs import LogWriter, load
from semtrace.errors import ReplayError
from semtrace.graph.plan import dag
from semtrace.records.enums import (
    EdgeKind,
    EventOutcome,
    Evidence,
    OperationKind,
    OperationStatus,
    Outcome,
)
from semtrace.replay.run import replay
from semtrace.replay.scenario import BackendChoice, Recorded, Scenario
from semtrace.store.digests import show, work_digest

ANN, BEN, CAM = "Ann(Writer)", "Ben(Critic)", "Cam(Editor)"


def counts(imported):
    return [(row["prompt_tokens"], row["output_tokens"]) for _, row in imported.calls]


def fan_out(log, *asks: tuple[str, str, str]):
    """A round in which these roles ask at once: (role, action, text)."""
    log.invest().ask_user()
    for role, action, text in asks:
        log.observe(role, "Human: Do the thing...").act(role, action).ask(role, text)
    return log


def test_the_only_call_in_flight_has_ended(tmp_path):
    log = fan_out(LogWriter(), (ANN, "Write", "a")).usage(10, 5).done(ANN, "Write", "m1", "text of Ann")
    imported = load(log.end_round(0, idle=True).save(tmp_path / "log.txt"))
    assert counts(imported) == [(10, 5)]
    assert imported.rows("operations")[0]["tokens_evidence"] == Evidence.DERIVED
    assert imported.events[0]["finished_evidence"] == Evidence.DERIVED


def test_who_goes_on_at_once_is_who_was_answered(tmp_path):
    log = fan_out(LogWriter(), (ANN, "Write", "a"), (BEN, "Judge", "b"), (CAM, "Edit", "c"))
    log.usage(20, 2).done(BEN, "Judge", "m1", "text of Ben")
    log.usage(30, 3).done(CAM, "Edit", "m2", "text of Cam")
    log.usage(10, 1).done(ANN, "Write", "m3", "text of Ann")
    imported = load(log.end_round(0).save(tmp_path / "log.txt"))
    names = [row["name"] for _, row in imported.calls]
    assert dict(zip(names, counts(imported), strict=True)) == {
        "Write": (10, 1),
        "Judge": (20, 2),
        "Edit": (30, 3),
    }
    evidence = {row["name"]: row["tokens_evidence"] for _, row in imported.calls}
    assert evidence == {"Write": Evidence.DERIVED, "Judge": Evidence.INFERRED, "Edit": Evidence.INFERRED}


def test_who_publishes_has_been_answered(tmp_path):
    """Another coroutine may have spoken after the end, but one end is logged, and Ben is done: it is his."""
    log = fan_out(LogWriter(), (ANN, "Write", "a"), (BEN, "Judge", "b"))
    log.usage(20, 2).line("team", "work", "something else").done(BEN, "Judge", "m1", "text of Ben")
    log.usage(10, 1).done(ANN, "Write", "m2", "text of Ann")
    imported = load(log.end_round(0).save(tmp_path / "log.txt"))
    assert counts(imported) == [(10, 1), (20, 2)]
    assert {row["tokens_evidence"] for _, row in imported.calls} == {Evidence.DERIVED}


def test_a_line_between_breaks_the_proof(tmp_path):
    """Both ends come before anybody goes on, and other lines after each: they could be either's."""
    log = fan_out(LogWriter(), (ANN, "Write", "a"), (BEN, "Judge", "b"))
    log.usage(20, 2).line("team", "work", "something else")
    log.usage(10, 1).line("team", "work", "something else")
    log.done(BEN, "Judge", "m1", "text of Ben").done(ANN, "Write", "m2", "text of Ann")
    imported = load(log.end_round(0).save(tmp_path / "log.txt"))
    assert counts(imported) == [(None, None), (None, None)]
    assert imported.losses["calls.concurrent"] == 2


def two_at_once(tmp_path, first=(20, 2), second=(30, 3)):
    """Ann makes two calls at once while Ben makes one."""
    log = fan_out(LogWriter(), (ANN, "Write", "a1"), (BEN, "Judge", "b"))
    log.ask(ANN, "a2").usage(*first)
    log.usage(10, 1).done(BEN, "Judge", "m1", "text of Ben")
    log.usage(*second).done(ANN, "Write", "m2", "both texts of Ann")
    return log.end_round(0).save(tmp_path / "log.txt")


def test_calls_of_one_role_at_once_cannot_be_told_apart(tmp_path):
    imported = load(two_at_once(tmp_path))
    by_name = [(row["name"], row["prompt_tokens"], row["output_tokens"]) for _, row in imported.calls]
    assert by_name == [("Write", None, None), ("Judge", 10, 1), ("Write", None, None)]
    assert imported.losses["calls.concurrent"] == 2
    (where,) = next(loss.where for loss in imported.result.loss if loss.code == "calls.concurrent")
    assert where.endswith("together 50 prompt and 5 output tokens")
    join = imported.operations(OperationKind.TRANSFORM)[0][0]
    assert imported.sources_of(join) == [0, 2]
    assert imported.text(imported.rows("operations")[join]["output"]) == "both texts of Ann"
    # Both are said to end with the last, as plausible.
    assert imported.events[0]["finished_ns"] == imported.events[2]["finished_ns"]
    assert imported.events[0]["finished_evidence"] == Evidence.INFERRED


def test_equal_counts_are_everybodys(tmp_path):
    imported = load(two_at_once(tmp_path, (20, 2), (20, 3)))
    writes = [row for _, row in imported.calls if row["name"] == "Write"]
    assert [(row["prompt_tokens"], row["output_tokens"]) for row in writes] == [(20, None), (20, None)]
    assert {row["tokens_evidence"] for row in writes} == {Evidence.DERIVED}


def test_counts_can_be_shared_out_on_demand_and_then_the_trace_replays(tmp_path):
    path = two_at_once(tmp_path, (20, 2), (31, 3))
    scenario = Scenario(mode="length_locked", backend=BackendChoice(name="ideal"), arrivals=Recorded())
    refused = load(path).trace
    with pytest.raises(ReplayError):
        replay(refused, dag(show(work_digest(refused))), scenario)
    shared = load(path, counts="share")
    assert [(row["prompt_tokens"], row["output_tokens"]) for _, row in shared.calls] == [
        (26, 3),
        (10, 1),
        (25, 2),
    ]
    assert [row["tokens_evidence"] for _, row in shared.calls] == [
        Evidence.INFERRED, Evidence.INFERRED, Evidence.INFERRED,
    ]  # fmt: skip
    assert shared.losses["tokens.shared"] == 2
    run = replay(shared.trace, dag(show(work_digest(shared.trace))), scenario)
    assert {row["outcome"] for row in run.tables["events"].data.to_pylist()} == {EventOutcome.OK}


def test_the_total_gives_the_counts_of_one_lost_call(tmp_path):
    log = (
        fan_out(LogWriter(), (ANN, "Write", "a"))
        .usage(10, 5)
        .done(ANN, "Write", "m1", "text of Ann")
        .end_round(1)
    )
    log.observe(BEN, "Writer: text of Ann...").act(BEN, "Judge").ask(BEN, "b")
    log.line(
        "metagpt.utils.cost_manager", "update_cost", "Model mine not found in TOKEN_COSTS.", "WARNING", 9
    )
    log.done(BEN, "Judge", "m2", "text of Ben").end_round(0)
    path = log.save(tmp_path / "log.txt")
    lost = load(path)
    assert counts(lost) == [(10, 5), (None, None)]
    assert lost.losses["tokens.no_price"] == 1
    assert lost.rows("models")[lost.rows("operations")[1]["model"]]["name"] == "mine"
    totals = {"total_prompt_tokens": 17, "total_completion_tokens": 8, "total_cost": 0.1, "total_budget": 0}
    (tmp_path / "costs.json").write_text(json.dumps(totals), encoding="utf-8")
    known = load(tmp_path)
    assert counts(known) == [(10, 5), (7, 3)]
    assert known.losses["tokens.by_difference"] == 2


def test_totals_that_do_not_add_up_are_reported(tmp_path):
    log = fan_out(LogWriter(), (ANN, "Write", "a")).usage(10, 5).done(ANN, "Write", "m1", "text of Ann")
    log.end_round(0).save(tmp_path / "log.txt")
    totals = {"total_prompt_tokens": 99, "total_completion_tokens": 5, "total_cost": 0.1, "total_budget": 0}
    (tmp_path / "costs.json").write_text(json.dumps(totals), encoding="utf-8")
    assert load(tmp_path).losses["tokens.total"] == 1


def test_a_failure_with_one_call_in_flight_is_that_calls(tmp_path):
    log = fan_out(LogWriter(), (ANN, "Write", "a"))
    for attempt in ("1st", "2nd"):
        text = f"Finished call to 'metagpt.provider.openai_api.OpenAILLM.acompletion_text' after 1(s), this was the {attempt} time"
        log.line("tenacity.after", "log_it", text, "WARNING", 1000)
    log.line(
        "metagpt.utils.common",
        "wrapper",
        "There is a exception in role's execution, in order to resume, …",
        "WARNING",
    )
    log.line(
        "metagpt.utils.common",
        "wrapper",
        "Exception occurs, start to serialize the project, exp:\nTraceback",
        "ERROR",
    )
    imported = load(log.save(tmp_path / "log.txt"))
    row = imported.rows("operations")[0]
    assert row["status"] == OperationStatus.ERROR
    assert row["duration_ns"] == 2_002_000_000
    assert imported.rows("tasks")[0]["outcome"] == Outcome.FAILURE
    assert "calls.failed_together" not in imported.losses


def test_a_retry_is_an_attempt_of_the_same_call(tmp_path):
    log = fan_out(LogWriter(), (ANN, "Write", "a"))
    text = "Finished call to 'metagpt.provider.openai_api.OpenAILLM.acompletion_text' after 1(s), this was the 1st time"
    log.line("tenacity.after", "log_it", text, "WARNING").usage(10, 5).done(ANN, "Write", "m1", "text of Ann")
    imported = load(log.end_round(0).save(tmp_path / "log.txt"))
    assert imported.events[0]["attempts"] == 2
    assert len(imported.calls) == 1


def test_calls_one_after_the_other_in_one_turn(tmp_path):
    log = fan_out(LogWriter(), (ANN, "Write", "a")).usage(10, 5).ask(ANN, "b").usage(11, 6)
    log.done(ANN, "Write", "m1", "the last text").end_round(0, idle=True)
    imported = load(log.save(tmp_path / "log.txt"))
    assert counts(imported) == [(10, 5), (11, 6)]
    assert imported.sources_of(1, EdgeKind.CONTROL) == [0]
    assert imported.operations(OperationKind.TRANSFORM) == []


def test_several_runs_in_one_file(tmp_path):
    log = LogWriter()
    for run in range(3):
        log.invest().ask_user(f"Task number {run}", f"user{run}")
        log.observe(ANN, f"Human: Task number {run}...").act(ANN, "Write").ask(ANN, f"a{run}").usage(
            10 + run, 5
        )
        log.done(ANN, "Write", f"m{run}", f"text of Ann {run}").end_round(1).observe(ANN).end_round(
            0, idle=True
        )
        log.all_idle()
    imported = load(log.save(tmp_path / "log.txt"))
    assert [row["name"] for row in imported.rows("tasks")] == [
        "MetaGPT run 1",
        "MetaGPT run 2",
        "MetaGPT run 3",
    ]
    assert counts(imported) == [(10, 5), (11, 5), (12, 5)]
    assert [row["outcome"] for row in imported.rows("tasks")] == [Outcome.SUCCESS] * 3
    assert all(len(imported.sources_of(i)) == 0 for i, _ in imported.operations())


def test_a_team_asked_again_remembers(tmp_path):
    """A second requirement without a new budget: a task of its own that begins with the memory of the first."""
    log = LogWriter().invest().ask_user("First task of all", "u0")
    log.observe(ANN, "Human: First task of all...").act(ANN, "Write").ask(ANN, "a").usage(10, 5)
    log.done(ANN, "Write", "m0", "the first text").end_round(1).observe(ANN).end_round(
        0, idle=True
    ).all_idle()
    log.ask_user("Second task", "u1").observe(ANN, "Human: Second task...").act(ANN, "Write")
    log.ask(ANN, "What you wrote: the first text").usage(12, 6).done(
        ANN, "Write", "m1", "the second text"
    ).end_round(0)
    imported = load(log.save(tmp_path / "log.txt"))
    assert [row["name"] for row in imported.rows("tasks")] == ["MetaGPT run 1", "MetaGPT run 2"]
    versions = imported.rows("state_versions")
    memory = [
        [v for v in versions if v["state"] == i]
        for i, state in enumerate(imported.rows("states"))
        if state["namespace"] == "metagpt/memory"
    ]
    assert [[v["writer"] for v in each] for each in memory] == [[None, 0], [None, None, None, 1]]
    assert imported.sources_of(1) == []


def test_an_action_at_once_is_seen_in_the_same_round(tmp_path):
    """An action that waits for nothing publishes before the next role looks; that role acts in the same round."""
    log = LogWriter().invest().ask_user()
    log.observe(ANN, "Human: Do the thing...").act(ANN, "Note").done(ANN, "Note", "m1", "a note of Ann")
    log.observe(BEN, "Writer: a note of Ann...").act(BEN, "Judge").ask(
        BEN, "Judge this: a note of Ann"
    ).usage(9, 2)
    log.done(BEN, "Judge", "m2", "text of Ben").end_round(0)
    imported = load(log.save(tmp_path / "log.txt"))
    assert [OperationKind(row["kind"]).name for _, row in imported.operations()] == ["TRANSFORM", "LLM"]
    assert imported.sources_of(1, EdgeKind.STATE) == [0]
    assert imported.sources_of(1, EdgeKind.DATA) == [0]
    assert imported.sources_of(1, EdgeKind.CONTROL) == []
    assert len([row for row in imported.rows("stages") if row["name"] == "round"]) == 1


def test_a_message_goes_to_whom_it_is_addressed(tmp_path):
    log = fan_out(LogWriter(), (ANN, "Write", "a")).usage(10, 5).observe(BEN).observe(CAM)
    log.done(ANN, "Write", "m1", "for Ben alone", send_to=("Ben",)).end_round(1)
    log.observe(ANN).observe(BEN, "Writer: for Ben alone...").act(BEN, "Judge").ask(BEN, "b").usage(
        9, 2
    ).observe(CAM)
    log.done(BEN, "Judge", "m2", "for a class", send_to=("team.Editor",)).end_round(1)
    log.observe(ANN).observe(BEN).observe(CAM, "Critic: for a class...").end_round(0)
    imported = load(log.save(tmp_path / "log.txt"))
    memories = {
        role: [json.loads(content)["id"] for content, _, _ in versions]
        for role, versions in imported.states("metagpt/memory").items()
    }
    assert memories == {ANN: ["user", "m1"], BEN: ["user", "m1", "m2"], CAM: ["user", "m2"]}


def test_a_log_without_debug_lines(tmp_path):
    """Level INFO: actions, ends of calls, saved files. Calls in flight together stay nobody's."""
    log = LogWriter().invest()
    for role, action in ((ANN, "Write"),):
        log.line("metagpt.roles.role", "_act", f"{role}: to do {action}({action})", "INFO")
    log.usage(10, 5)
    for role, action in ((BEN, "Judge"), (CAM, "Edit")):
        log.line("metagpt.roles.role", "_act", f"{role}: to do {action}({action})", "INFO")
    log.usage(20, 2).usage(30, 3)
    imported = load(log.save(tmp_path / "log.txt"))
    assert counts(imported) == [(10, 5), (20, 2), (30, 3)]
    sessions = imported.rows("sessions")
    assert [row["session"] is not None and sessions[row["session"]]["name"] for _, row in imported.calls] == [
        ANN, False, False,
    ]  # fmt: skip
    assert (
        imported.operations(OperationKind.TRANSFORM) == []
    )  # an action that may enclose calls is no operation
    assert [imported.sources_of(i) for i, _ in imported.calls] == [[], [0], [0]]
    assert imported.losses["request.unlogged"] == 3
    assert imported.losses["rounds.unknown"] == 1
    assert imported.losses["action.calls_unknown"] == 2


def test_a_call_whose_request_is_not_logged(tmp_path):
    log = LogWriter().invest().ask_user().observe(ANN, "Human: Do the thing...").act(ANN, "Code").usage(40, 9)
    log.done(ANN, "Code", "m1", "text of Ann").end_round(0)
    imported = load(log.save(tmp_path / "log.txt"))
    assert counts(imported) == [(40, 9)]
    assert imported.rows("segments") == []
    assert imported.losses["request.unlogged"] == 1
    assert imported.events[0]["submitted_evidence"] == Evidence.INFERRED


def test_a_reader_reads_the_version_of_its_time(tmp_path):
    """A file is written twice; who asked in between had the first version in its prompt."""

    def document(text):
        return json.dumps({"docs": {"a.md": {"root_path": "docs", "filename": "a.md", "content": text}}})

    def write(log, text, id_):
        log.ask(ANN, f"Write {id_}").usage(10, 5)
        log.line("metagpt.utils.file_repository", "save", "save to: /run/w/docs/a.md", "INFO")
        return log.done(ANN, "Write", id_, document(text)).end_round(1)

    log = write(fan_out(LogWriter(), (ANN, "Write", "x")).usage(1, 1), "the first version", "m1")
    log.observe(BEN, "Writer: {...").act(BEN, "Judge").ask(BEN, "Look at this: the first version").usage(9, 2)
    log.done(BEN, "Judge", "m2", "text of Ben").end_round(1).observe(ANN, "Critic: text of Ben...").act(
        ANN, "Write"
    )
    write(log, "the second version", "m3").observe(BEN, "Writer: {...").act(BEN, "Judge")
    log.ask(BEN, "Look at this: the second version").usage(9, 2).done(
        BEN, "Judge", "m4", "text of Ben"
    ).end_round(0)
    imported = load(log.save(tmp_path / "log.txt"))
    judges = [i for i, row in imported.calls if row["name"] == "Judge"]
    versions = imported.states("metagpt/workspace")["docs/a.md"]
    assert [(content, readers) for content, _, readers in versions] == [
        ("the first version", judges[:1]),
        ("the second version", judges[1:]),
    ]
