"""Real MetaGPT teams run in an environment of their own, are imported, and compared with what the server saw."""

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from metagpt_logs import load, matched, served
from semtrace.graph.plan import dag
from semtrace.records.enums import EventOutcome, Evidence, OperationKind, Outcome
from semtrace.replay.run import replay
from semtrace.replay.scenario import BackendChoice, Recorded, Scenario
from semtrace.store.digests import show, work_digest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venvs" / "metagpt" / "bin" / "python"

pytestmark = pytest.mark.integration


def record(kind, out, *options: str):
    """Record a team; MetaGPT's own output is shown only if the recording fails."""
    if not PYTHON.exists():
        pytest.fail("there is no environment for MetaGPT: make .venvs/metagpt/.installed")
    command = [PYTHON, "-W", "ignore", ROOT / "examples" / "metagpt" / "record.py", kind, out, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return out


@pytest.fixture(scope="module")
def custom(tmp_path_factory):
    return record("custom", tmp_path_factory.mktemp("metagpt") / "custom")


@pytest.fixture(scope="module")
def sop(tmp_path_factory):
    return record("sop", tmp_path_factory.mktemp("metagpt") / "sop")


@pytest.fixture(scope="module")
def streamed(tmp_path_factory):
    return record("custom", tmp_path_factory.mktemp("metagpt") / "streamed", "--stream", "--runs", "2")


def usages(pairs):
    """Counts of the trace and of the server, of calls whose counts are known."""
    return [
        ((row["prompt_tokens"], row["output_tokens"]), (usage["prompt_tokens"], usage["completion_tokens"]))
        for row, usage in ((row, entry["usage"]) for _, row, entry in pairs)
        if row["prompt_tokens"] is not None
    ]


def replays(trace):
    """Replays under the recorded edges alone, every operation to its end."""
    scenario = Scenario(mode="length_locked", backend=BackendChoice(name="ideal"), arrivals=Recorded())
    run = replay(trace, dag(show(work_digest(trace))), scenario)
    return {row["outcome"] for row in run.tables["events"].data.to_pylist()}


def test_custom_team(custom):
    imported = load(custom)
    entries = served(custom / "server_access.jsonl")
    assert Counter(entry["status"] for entry in entries) == {200: 9, 500: 1}
    assert len(imported.rows("sessions")) == 6
    assert len([row for row in imported.rows("stages") if row["name"] == "round"]) == 7
    assert len(imported.states("metagpt/environment")["history"]) == 10
    assert imported.rows("tasks")[0]["outcome"] == Outcome.SUCCESS
    pairs = matched(imported, entries)
    assert len(pairs) == 9
    known = usages(pairs)
    # The two calls that one role makes at once are known together at best; how the others' ends fall between
    # theirs is chance, and may cost a count. What is known is right.
    assert len(known) >= 5
    assert all(ours == theirs for ours, theirs in known)
    for _, row, entry in pairs:
        if row["output"] is not None:
            assert imported.text(row["output"]) == entry["response"]["choices"][0]["message"]["content"]
    origin = imported.rows("trace")[0]["origin_unix_ns"]
    for operation, _, entry in pairs:
        event = imported.events[operation]
        assert origin + event["submitted_ns"] <= entry["arrival_unix_ns"]
        assert origin + event["finished_ns"] >= entry["done_unix_ns"] - 1_000_000


def test_custom_memories_are_the_teams_own(custom):
    imported = load(custom)
    team = json.loads((custom / "team" / "team.json").read_text(encoding="utf-8"))
    memories = imported.states("metagpt/memory")
    for role in team["env"]["roles"].values():
        ours = [json.loads(content)["id"] for content, _, _ in memories[f"{role['name']}({role['profile']})"]]
        assert ours == [message["id"] for message in role["rc"]["memory"]["storage"]]
    assert "memory.order" not in imported.losses


def test_custom_replays_with_the_counts_shared_out(custom):
    imported = load(custom, counts="share")
    if all(row["prompt_tokens"] is not None for _, row in imported.calls):
        assert replays(imported.trace) == {EventOutcome.OK}
    else:
        assert imported.losses["calls.end_unknown"]


def test_sop_team(sop):
    imported = load(sop)
    pairs = matched(imported, served(sop / "server_access.jsonl"))
    assert len(pairs) == 9
    known = usages(pairs)
    assert len(known) == 9
    assert all(ours == theirs for ours, theirs in known)
    assert [row["name"] for _, row in imported.operations(OperationKind.TRANSFORM)] == [
        "PrepareDocuments",
        "SummarizeCode",
    ]
    files = imported.states("metagpt/workspace")
    for name, versions in files.items():
        assert versions[-1][0] == (sop / "workspace" / name).read_text(encoding="utf-8")
    recorded = json.loads((sop / "workspace" / ".dependencies.json").read_text(encoding="utf-8"))
    for name, on in recorded.items():
        for other in on:
            assert files[other][-1][2], f"{name} depends on {other}, which nobody read"
    assert replays(imported.trace) == {EventOutcome.OK}


def test_streamed_runs_have_no_counts(streamed):
    imported = load(streamed / "log.txt")
    assert len(imported.rows("tasks")) == 2
    pairs = matched(imported, served(streamed / "server_access.jsonl"))
    assert len(pairs) == 18
    assert {row["tokens_evidence"] for _, row, _ in pairs} == {Evidence.MISSING}
    assert imported.losses["tokens.lost"] == 18
