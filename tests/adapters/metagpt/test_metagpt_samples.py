"""The fetched sample recordings: a fan-out and join team, and MetaGPT's software company."""

import json

import pytest

from metagpt_logs import canonical, load
from semtrace.records.chat import rebuild_request
from semtrace.records.enums import EdgeKind, Evidence, OperationKind, Outcome, StageTemplate


@pytest.fixture(scope="module")
def folder(samples):
    return samples / "metagpt"


@pytest.fixture(scope="module")
def answers(samples):
    """What the server answered, by the request's messages; a team that ran again asked the same."""
    entries = [
        json.loads(line)
        for line in (samples / "mock_access_metagpt.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    return {canonical(entry["request"]["messages"]): entry["response"] for entry in entries}


def test_custom(folder, answers):
    custom = load(folder / "custom")
    assert len(custom.rows("sessions")) == 4
    rounds = [row for row in custom.rows("stages") if row["name"] == "round"]
    assert [row["template"] for row in rounds] == [
        StageTemplate.SEQUENCE, StageTemplate.FORK_JOIN, StageTemplate.SEQUENCE,
    ]  # fmt: skip
    assert len(custom.states("metagpt/environment")["history"]) == 5
    assert len(custom.operations()) == len(custom.calls) == 4
    assert custom.rows("tasks")[0]["outcome"] == Outcome.SUCCESS
    assert sum(row["prompt_tokens"] for _, row in custom.calls) == 253
    assert sum(row["output_tokens"] for _, row in custom.calls) == 125
    for operation, row in custom.calls:
        response = answers[canonical(rebuild_request(custom.trace, operation)["messages"])]
        assert custom.text(row["output"]) == response["content"]
        usage = response["usage"]
        assert (row["prompt_tokens"], row["output_tokens"]) == (
            usage["prompt_tokens"],
            usage["completion_tokens"],
        )
    assert custom.losses["calls.paired_by_order"] == 1
    assert "calls.concurrent" not in custom.losses
    evidence = {row["name"]: row["tokens_evidence"] for _, row in custom.calls}
    assert evidence["Estimate"] == Evidence.INFERRED
    assert evidence["Design"] == Evidence.DERIVED


def test_custom_agrees_with_the_live_recorder(folder):
    """Another run of the same team, recorded by hooks, has the same roles, counts and order of reading."""
    custom = load(folder / "custom")
    hooks = [
        json.loads(line) for line in (folder / "custom_hooks.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    sessions = custom.rows("sessions")
    ours = {
        sessions[row["session"]]["agent"]: (row["prompt_tokens"], row["output_tokens"])
        for _, row in custom.calls
    }
    theirs = {hook["role"]: tuple(hook["usage"][0][:2]) for hook in hooks if hook["ev"] == "llm"}
    assert ours == theirs
    for hook in hooks:
        if hook["ev"] == "observe":
            at = next(i for i, row in custom.calls if sessions[row["session"]]["agent"] == hook["role"])
            read = [
                version
                for versions in custom.states("metagpt/memory").values()
                for version in versions
                if at in version[2]
            ]
            assert len(read) == len(hook["memory"])


def test_sop(folder, answers):
    sop = load(folder / "sop")
    assert [row["agent"] for row in sop.rows("sessions")] == [
        "Product Manager", "Architect", "Project Manager", "Engineer",
    ]  # fmt: skip
    assert len([row for row in sop.rows("stages") if row["name"] == "round"]) == 5
    assert len(sop.states("metagpt/environment")["history"]) == 6
    kinds = [(row["name"], OperationKind(row["kind"]).name) for _, row in sop.operations()]
    assert kinds == [
        ("PrepareDocuments", "TRANSFORM"),
        ("WritePRD", "LLM"),
        ("WriteDesign", "LLM"),
        ("WriteTasks", "LLM"),
        ("WriteCode", "LLM"),
        ("WriteCode", "LLM"),
        ("SummarizeCode", "TRANSFORM"),
    ]
    assert sum(row["prompt_tokens"] for _, row in sop.calls) == 5199
    assert sum(row["output_tokens"] for _, row in sop.calls) == 1165
    for operation, row in sop.calls:
        response = answers[canonical(rebuild_request(sop.trace, operation)["messages"])]
        assert row["output"] is None or sop.text(row["output"]) == response["content"]
    assert len(sop.states("metagpt/workspace")) == 12
    assert sop.rows("tasks")[0]["outcome"] == Outcome.UNKNOWN  # the rounds ran out


def test_sop_depends_as_its_documents_do(folder):
    sop = load(folder / "sop")
    recorded = json.loads(
        (folder / "sop" / "workspace_game_2048" / ".dependencies.json").read_text(encoding="utf-8")
    )
    files = sop.states("metagpt/workspace")
    for name, on in recorded.items():
        writer = files[name][-1][1]
        for other in on:
            assert files[other][-1][1] in sop.sources_of(writer, EdgeKind.STATE), (name, other)


@pytest.mark.parametrize("name", ["custom", "sop"])
def test_subsets_agree_with_the_whole(folder, name):
    whole = load(folder / name)
    text = load(folder / name / "log.txt")
    structured = load(folder / name / "loguru_serialized.jsonl")
    facts = [
        [
            (row["name"], row["prompt_tokens"], row["output_tokens"], row["kind"])
            for _, row in each.operations()
        ]
        for each in (whole, text, structured)
    ]
    assert facts[0] == facts[1] == facts[2]
    controls = [
        [(e["target"], e["source"]) for e in each.rows("edges") if e["kind"] == EdgeKind.CONTROL]
        for each in (whole, text, structured)
    ]
    assert controls[0] == controls[1] == controls[2]
    assert text.rows("trace")[0]["origin_unix_ns"] is None
    assert (
        structured.rows("trace")[0]["origin_unix_ns"] == whole.rows("trace")[0]["origin_unix_ns"] is not None
    )
    for ours, theirs in zip(text.events, whole.events, strict=True):  # milliseconds against microseconds
        assert abs(ours["submitted_ns"] - theirs["submitted_ns"]) <= 2_000_000
    requests = [
        [rebuild_request(each.trace, operation) for operation, _ in each.calls]
        for each in (whole, text, structured)
    ]
    assert requests[0] == requests[1] == requests[2]


def test_team_alone(folder):
    team = load(folder / "custom" / "team")
    assert len(team.rows("sessions")) == 4
    assert team.calls == []
    assert [row["name"] for _, row in team.operations(OperationKind.TRANSFORM)] == [
        "Research", "Design", "Estimate", "Merge",
    ]  # fmt: skip
    assert {row["duration_ns"] for _, row in team.operations()} == {None}
    assert team.sources_of(3) == [0, 1, 2]
    assert team.losses == {"operations.opaque": 4}


def test_workspace_alone(folder):
    alone = load(folder / "sop" / "workspace_game_2048")
    assert alone.operations() == []
    assert len(alone.states("metagpt/workspace")) == 13
    assert len(alone.annotations("depends_on")) == 6
    assert alone.losses["workspace.alone"] == 1


def test_both_runs_in_one_import(folder):
    both = load(
        folder / "custom" / "log.txt", folder / "sop" / "log.txt", folder / "sop" / "team" / "team.json"
    )
    assert len(both.rows("tasks")) == 2
    assert len(both.calls) == 9
    # The serialised team is of the second run only: the first has no message that was not published.
    assert len(both.states("metagpt/memory")["Alice(Product Manager)"]) == 5
