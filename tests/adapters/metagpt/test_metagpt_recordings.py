"""The project's own recordings, against what the server saw."""

import json
from collections import Counter

import pytest

from metagpt_logs import RECORDINGS, load, matched, served
from semtrace.records.enums import (
    EdgeKind,
    Evidence,
    OperationKind,
    OperationStatus,
    Outcome,
    StageTemplate,
)


@pytest.fixture(scope="module")
def custom():
    return load(RECORDINGS / "custom")


@pytest.fixture(scope="module")
def sop():
    return load(RECORDINGS / "sop")


def test_custom_roles_rounds_messages(custom):
    assert [row["agent"] for row in custom.rows("sessions")] == [
        "Coordinator", "Data Reviewer", "Latency Reviewer", "Cost Reviewer", "Editor", "Checker",
    ]  # fmt: skip
    rounds = [row for row in custom.rows("stages") if row["name"] == "round"]
    assert [row["iteration"] for row in rounds] == list(range(7))
    assert [row["template"] for row in rounds] == [
        StageTemplate.SEQUENCE, StageTemplate.FORK_JOIN, *[StageTemplate.SEQUENCE] * 5,
    ]  # fmt: skip
    history = custom.states("metagpt/environment")["history"]
    assert len(history) == 10
    assert [json.loads(content)["role"] for content, _, _ in history[:3]] == [
        "Human",
        "Coordinator",
        "Data Reviewer",
    ]
    assert custom.rows("tasks")[0]["outcome"] == Outcome.SUCCESS


def test_custom_calls_and_actions(custom):
    names = Counter((row["name"], OperationKind(row["kind"]).name) for _, row in custom.operations())
    assert names == {
        ("Brief", "LLM"): 1,
        ("AssessData", "LLM"): 1,
        ("AssessLatency", "LLM"): 1,
        ("AssessCost", "LLM"): 2,
        ("AssessCost", "TRANSFORM"): 1,  # puts the two together
        ("Compose", "LLM"): 2,
        ("Verify", "LLM"): 2,
        ("Release", "TRANSFORM"): 1,  # asks no model
    }


def test_custom_requests_and_counts_are_the_servers(custom):
    entries = served(RECORDINGS / "custom" / "server_access.jsonl")
    assert Counter(entry["status"] for entry in entries) == {200: 9, 500: 1}
    pairs = matched(custom, entries)
    known = [(row, entry["usage"]) for _, row, entry in pairs if row["prompt_tokens"] is not None]
    assert len(known) == 7
    for row, usage in known:
        assert (row["prompt_tokens"], row["output_tokens"]) == (
            usage["prompt_tokens"],
            usage["completion_tokens"],
        )
    lost = [(row, entry["usage"]) for _, row, entry in pairs if row["prompt_tokens"] is None]
    assert [row["name"] for row, _ in lost] == ["AssessCost", "AssessCost"]
    assert {row["tokens_evidence"] for row, _ in lost} == {Evidence.MISSING}
    assert custom.losses["calls.concurrent"] == 2
    (where,) = next(loss.where for loss in custom.result.loss if loss.code == "calls.concurrent")
    prompt = sum(usage["prompt_tokens"] for _, usage in lost)
    output = sum(usage["completion_tokens"] for _, usage in lost)
    assert f"together {prompt} prompt and {output} output tokens" in where


def test_custom_outputs_are_the_servers(custom):
    pairs = matched(custom, served(RECORDINGS / "custom" / "server_access.jsonl"))
    outputs = [
        (custom.text(row["output"]), entry["response"]["choices"][0]["message"]["content"])
        for _, row, entry in pairs
    ]
    assert sum(ours is None for ours, _ in outputs) == 2
    assert all(ours == theirs for ours, theirs in outputs if ours is not None)
    assert custom.losses["output.published"] == 7
    assert custom.annotations("output") == ["inferred"] * 7


@pytest.mark.parametrize("name", ["custom", "sop"])
def test_times_enclose_the_servers(name, request):
    imported = request.getfixturevalue(name)
    entries = served(RECORDINGS / name / "server_access.jsonl")
    origin = imported.rows("trace")[0]["origin_unix_ns"]
    for operation, row, entry in matched(imported, entries):
        event = imported.events[operation]
        assert event["submitted_evidence"] == Evidence.DERIVED
        assert origin + event["submitted_ns"] <= entry["arrival_unix_ns"]
        assert origin + event["finished_ns"] >= entry["done_unix_ns"] - 1_000_000
        if row["prompt_tokens"] is not None:  # the counts are of that call, so is its end
            assert origin + event["finished_ns"] - entry["done_unix_ns"] < 250_000_000


def test_custom_rounds_are_barriers(custom):
    by_name = {}
    for operation, row in custom.operations():
        by_name.setdefault((row["name"], row["kind"]), []).append(operation)
    join = by_name["AssessCost", OperationKind.TRANSFORM][0]
    costs = by_name["AssessCost", OperationKind.LLM]
    brief = by_name["Brief", OperationKind.LLM]
    compose = by_name["Compose", OperationKind.LLM][0]
    data, latency = (
        by_name["AssessData", OperationKind.LLM][0],
        by_name["AssessLatency", OperationKind.LLM][0],
    )
    assert custom.sources_of(join, EdgeKind.CONTROL) == costs
    for operation in [*costs, data, latency]:
        assert custom.sources_of(operation, EdgeKind.CONTROL) == brief
    assert custom.sources_of(compose, EdgeKind.CONTROL) == sorted([data, latency, join])
    # Nothing runs between the assessments: each of them could have been alone in its round.
    assert not set(custom.sources_of(latency)) & {data, *costs}
    evidence = {e["evidence"] for e in custom.rows("edges") if e["kind"] == EdgeKind.CONTROL}
    assert evidence == {Evidence.DERIVED}


def test_custom_memories_are_replicas_in_order_of_arrival(custom):
    memories = custom.states("metagpt/memory")
    team = json.loads((RECORDINGS / "custom" / "team" / "team.json").read_text(encoding="utf-8"))
    for role in team["env"]["roles"].values():
        ours = [json.loads(content)["id"] for content, _, _ in memories[f"{role['name']}({role['profile']})"]]
        theirs = [message["id"] for message in role["rc"]["memory"]["storage"]]
        # What was published last had not been read by everybody when the team was serialised.
        assert ours == theirs
    orders = {
        role: [json.loads(content)["role"] for content, _, _ in versions][2:5]
        for role, versions in memories.items()
    }
    assert orders["Tove(Latency Reviewer)"] == ["Latency Reviewer", "Data Reviewer", "Cost Reviewer"]
    assert orders["Lena(Editor)"] == ["Data Reviewer", "Cost Reviewer", "Latency Reviewer"]


def test_custom_readers_read_what_is_new_to_them(custom):
    composes = [i for i, row in custom.calls if row["name"] == "Compose"]
    editor = custom.states("metagpt/memory")["Lena(Editor)"]
    assert [readers for _, _, readers in editor[:5]] == [[composes[0]]] * 5
    assert [readers for _, _, readers in editor[5:7]] == [[composes[1]]] * 2  # its own draft, and the verdict


def test_custom_prompts_repeat_what_was_published(custom):
    compose = next(i for i, row in custom.calls if row["name"] == "Compose")
    own = [row for row in custom.rows("segments") if row["operation"] == compose]
    sourced = [(row["source_operation"], row["source_start"], custom.text(row["artifact"])) for row in own]
    operations = custom.rows("operations")
    found = {
        operations[source]["name"]: (start, text) for source, start, text in sourced if source is not None
    }
    assert set(found) == {"Brief", "AssessData", "AssessLatency", "AssessCost"}
    for source, start, text in sourced:
        if source is not None:
            assert start == 0
            assert custom.text(operations[source]["output"]) == text


def test_sop_roles_rounds_messages_files(sop):
    assert [row["name"] for row in sop.rows("sessions")] == [
        "Alice(Product Manager)", "Bob(Architect)", "Eve(Project Manager)", "Alex(Engineer)",
    ]  # fmt: skip
    assert len([row for row in sop.rows("stages") if row["name"] == "round"]) == 5
    assert len(sop.states("metagpt/environment")["history"]) == 6
    assert sop.annotations("recipients") == ["none"]  # the last message is for a role that was not hired
    files = sop.states("metagpt/workspace")
    assert len(files) == 12
    workspace = RECORDINGS / "sop" / "workspace"
    for name, versions in files.items():
        assert versions[-1][0] == (workspace / name).read_text(encoding="utf-8"), name
    assert sop.losses["file.unlogged"] == 4  # three charts by their text, and .gitignore which is nobody's


def test_sop_calls_are_the_servers(sop):
    pairs = matched(sop, served(RECORDINGS / "sop" / "server_access.jsonl"))
    assert [row["name"] for _, row, _ in pairs] == [
        "WritePRD", "WriteDesign", "WriteTasks", "WriteCode", "WriteCodeReview", "WriteCode", "WriteCodeReview",
        "WriteCodeReview", "WriteCodeReview",
    ]  # fmt: skip
    for _, row, entry in pairs:
        usage = entry["usage"]
        assert (row["prompt_tokens"], row["output_tokens"]) == (
            usage["prompt_tokens"],
            usage["completion_tokens"],
        )
        assert row["tokens_evidence"] == Evidence.DERIVED
        theirs = entry["response"]["choices"][0]["message"]["content"]
        if row["output"] is not None:
            assert sop.text(row["output"]) == theirs
    assert sum(row["output"] is None for _, row, _ in pairs) == sop.losses["output.unknown"] == 6
    assert [sop.rows("models")[row["model"]]["name"] for _, row, _ in pairs] == ["gpt-4o"] * 9
    settings = json.loads(sop.text(pairs[0][1]["settings"]))
    assert settings == {"stream": False}


def test_sop_files_are_state_with_provenance(sop):
    by_name = {}
    for operation, row in sop.operations():
        by_name.setdefault(row["name"], []).append(operation)
    files = sop.states("metagpt/workspace")
    prd = next(versions for name, versions in files.items() if name.startswith("docs/prd/"))
    design = next(versions for name, versions in files.items() if name.startswith("docs/system_design/"))
    assert prd[0][1:] == (by_name["WritePRD"][0], by_name["WriteDesign"])
    assert design[0][1] == by_name["WriteDesign"][0]
    assert by_name["WriteTasks"][0] in design[0][2]
    assert set(by_name["WriteCode"]) <= set(design[0][2])
    scales = files["degrees/scales.py"]
    assert scales[0][1] == by_name["WriteCodeReview"][0]  # saved after its review
    assert by_name["WriteCode"][1] in scales[0][2]  # the other file is written with it in sight
    assert (
        files["requirements.txt"][0][2] == []
    )  # its only line also stands in the tasks, which is what is read


def test_sop_memory_holds_messages_that_were_never_published(sop):
    alice = sop.states("metagpt/memory")["Alice(Product Manager)"]
    actions = [json.loads(content)["cause_by"].rpartition(".")[2] for content, _, _ in alice]
    assert actions == ["UserRequirement", "PrepareDocuments", "WritePRD", "WriteDesign", "WriteTasks"]
    operations = sop.rows("operations")
    assert operations[alice[1][1]]["name"] == "PrepareDocuments"
    engineer = sop.states("metagpt/memory")["Alex(Engineer)"]
    writers = [operations[writer]["name"] if writer is not None else None for _, writer, _ in engineer]
    assert writers[4:6] == [
        "WriteCodeReview",
        "WriteCodeReview",
    ]  # one message for each file, when it was done


def test_failed_run_says_what_it_cannot_know():
    failed = load(RECORDINGS / "failed")
    assert failed.rows("tasks")[0]["outcome"] == Outcome.FAILURE
    statuses = [(row["name"], OperationStatus(row["status"]).name) for _, row in failed.calls]
    assert statuses == [
        ("Brief", "OK"), ("AssessData", "ERROR"), ("AssessLatency", "ERROR"), ("AssessCost", "ERROR"), ("AssessCost", "ERROR"),
    ]  # fmt: skip
    assert failed.losses["calls.failed_together"] == 4
    assert all(
        row["duration_ns"] is not None for _, row in failed.calls if row["status"] == OperationStatus.ERROR
    )
    entries = served(RECORDINGS / "failed" / "server_access.jsonl")
    assert sorted(entry["status"] for entry in entries) == [200, 400]  # the others were never answered


def test_two_runs_of_one_log_and_no_counts():
    twice = load(RECORDINGS / "two_runs_streamed")
    assert len(twice.rows("tasks")) == 2
    assert twice.rows("tasks")[0]["arrival_ns"] < twice.rows("tasks")[1]["arrival_ns"]
    per_task = Counter(row["task"] for _, row in twice.operations())
    assert per_task == {0: 11, 1: 11}
    assert {(row["prompt_tokens"], row["output_tokens"]) for _, row in twice.calls} == {(None, None)}
    assert {row["tokens_evidence"] for _, row in twice.calls} == {Evidence.MISSING}
    assert twice.losses["tokens.lost"] == 18
    assert twice.rows("trace")[0]["origin_unix_ns"] is None  # local times, and no word of the zone
    entries = served(RECORDINGS / "two_runs_streamed" / "server_access.jsonl")
    assert len(matched(twice, entries)) == 18
    names = [(row["namespace"], row["name"]) for row in twice.rows("states")]
    assert len(names) == 2 * len(set(names))  # no state goes from one run to the other


def test_all_recordings_at_once():
    everything = load(RECORDINGS)
    assert len(everything.rows("tasks")) == 5
    assert len(everything.calls) == 9 + 9 + 5 + 18
    assert everything.losses["costs.ignored"] == 3  # totals of three folders: whose is whose is not said
