"""The fetched AutoGen recordings: numbers stated, and compared with what the mock server saw."""

from __future__ import annotations

import json

import pytest

from autogen_runs import check_against_server, rebuilt, recording, replays, request_of
from semtrace.records.enums import EdgeKind, Evidence, OperationStatus

NUMBERS = {
    # case: (model calls, tools, prompt tokens, output tokens)
    "roundrobin": (4, 2, 183, 174),
    "roundrobin_stream": (4, 1, None, None),
    "selector": (18, 1, None, None),
    "magentic": (10, 1, 3302, 582),
    "graphflow": (5, 2, 209, 162),
    "graphflow__oi1": (5, 2, 209, 162),
    "graphflow__oi2": (5, 2, 209, 162),
    "agenttool": (4, 1, 104, 158),
    "agenttool__oi2": (4, 1, 104, 158),
    "faults": (3, 2, 15, 6),
}


@pytest.fixture(scope="module")
def served(samples):
    """The mock server's log, by response id; ids begin again when it was restarted."""
    made = {}
    for line in (samples / "mock_access_autogen.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        made.setdefault(entry["id"], []).append(entry)
    return made


@pytest.mark.parametrize("case", NUMBERS)
def test_numbers(samples, case):
    run = recording(samples / "autogen" / case)
    calls, tools, prompt, output = NUMBERS[case]
    assert (len(run.llm), len(run.tools)) == (calls, tools)
    if prompt is not None:
        assert run.tokens() == (prompt, output)
    assert run.trace.tasks.rows == 1


@pytest.mark.parametrize("case", [c for c in NUMBERS if c not in {"faults", "roundrobin_stream"}])
def test_requests_and_counts_are_those_of_the_server(samples, served, case):
    run = recording(samples / "autogen" / case)
    entries = []
    for operation in run.llm:
        same = [
            e
            for e in served[run.event(operation)["request_id"]]
            if request_of(e["request"]) == rebuilt(run, operation)
        ]
        assert len(same) == 1, run.name(operation)
        entries += same
    assert check_against_server(run, entries) == NUMBERS[case][0]


@pytest.mark.parametrize("case", [c for c in NUMBERS if c != "roundrobin_stream"])
def test_the_trace_replays(samples, case):
    replays(recording(samples / "autogen" / case))


@pytest.mark.parametrize("case", ["roundrobin", "selector", "magentic", "faults"])
def test_counts_are_the_event_logs(samples, case):
    logged = []
    for line in (samples / "autogen" / case / "events.jsonl").read_text(encoding="utf-8").splitlines():
        event = json.loads(line).get("data")
        if isinstance(event, dict) and event.get("type") == "LLMCall":
            logged.append((event["prompt_tokens"], event["completion_tokens"]))
    run = recording(samples / "autogen" / case)
    assert sorted((run.op(o)["prompt_tokens"], run.op(o)["output_tokens"]) for o in run.llm) == sorted(logged)


def test_streaming_usage_of_zero_is_unknown(samples):
    run = recording(samples / "autogen" / "roundrobin_stream")
    assert {run.op(o)["prompt_tokens"] for o in run.llm} == {None}
    assert {run.op(o)["output_tokens"] for o in run.llm} == {None}
    assert run.losses["tokens.unknown"] == 4


def test_doubled_spans_count_once(samples):
    for case, calls in (("graphflow__oi2", 5), ("agenttool__oi2", 4)):
        for files in ((), ("spans.jsonl",)):
            run = recording(samples / "autogen" / case, *files)
            assert len(run.llm) == calls
            assert run.losses["spans.doubled"] == calls


def test_agent_tools_calls_are_in_the_nested_session(samples):
    for case in ("agenttool", "agenttool__oi2"):
        for files in ((), ("events.jsonl",), ("spans.jsonl",), ("stream.jsonl",)):
            run = recording(samples / "autogen" / case, *files)
            inner = [o for o in run.llm if run.op(o)["name"] == "inner"]
            assert len(inner) == 2
            assert {run.session_of(o)["agent"] for o in inner} == {"inner"}
            assert {run.session_of(o)["parent_operation"] for o in inner} == {0}
            assert [run.op(t)["name"] for t in run.tools] == ["get_weather"], (
                "the enclosing tool is no operation"
            )


def test_native_spans_alone_know_no_orchestrator(samples):
    # 7 of the 10 calls are the orchestrator's, which no message of its own tells of.
    run = recording(samples / "autogen" / "magentic", "spans.jsonl")
    assert len(run.llm) == 3
    assert run.losses["calls.from_messages"] == 3


def test_magentic_ledgers(samples):
    run = recording(samples / "autogen" / "magentic")
    assert [(n, i) for _, n, i in run.stages()] == [
        ("MagenticOneGroupChat", 0),
        ("task ledger", 0),
        ("Researcher", 0),
        ("Researcher", 1),
        ("Writer", 0),
        ("progress ledger", 0),
        ("final answer", 0),
    ]
    ledger = [run.name(o) for o in run.llm if run.stage_of(o) == "task ledger"]
    assert ledger == ["MagenticOneOrchestrator", "MagenticOneOrchestrator#2"]
    # The instruction reaches the agent as plain text out of the ledger's JSON.
    assert ("MagenticOneOrchestrator#3", "Researcher") in run.edges(EdgeKind.DATA)
    answer = run.trace.tasks.ints("answer_operation")[0]
    assert run.text(run.op(answer)["output"]) == "Final answer: sunny in Oslo."


def test_selector_edges_are_few_and_right(samples):
    run = recording(samples / "autogen" / "selector")
    data = run.edges(EdgeKind.DATA)
    # Plain substring search finds 155 edges in this run.
    assert len(data) <= 75
    assert all(source != "SelectorGroupChatManager" for source, _ in data), (
        "a speaker's name is no text that was passed on"
    )
    picks = {(s, t) for s, t in run.edges(EdgeKind.CONTROL) if s.startswith("Selector")}
    assert len(picks) == 9


def test_faults(samples):
    run = recording(samples / "autogen" / "faults")
    assert [(run.op(t)["name"], run.op(t)["status"]) for t in run.tools] == [
        ("bad", OperationStatus.ERROR),
        ("nosuch", OperationStatus.ERROR),
    ]
    assert run.losses["retries.hidden"] == 2
    assert run.event(0)["attempts"] == 3
    # Without agent ids the third call, of another client, is only known to be later.
    assert run.evidence(EdgeKind.CONTROL) == {("a#2", "agent-2"): Evidence.INFERRED}


def test_only_calls_and_tools_still_show_the_branches(samples, tmp_path):
    lines = []
    for line in (samples / "autogen" / "graphflow" / "events.jsonl").read_text(encoding="utf-8").splitlines():
        event = json.loads(line)["data"]
        if isinstance(event, dict) and event["type"] in {"LLMCall", "ToolCall"}:
            lines.append(json.dumps(event))
    path = tmp_path / "app.log"
    path.write_text("\n".join(lines), encoding="utf-8")
    run = recording(path)
    assert run.trace["stages"].strings("name") == ["agents", "start", "right+left", "join"]
    assert run.losses["structure.from_calls"] == 5
    assert run.result.execution is None or not run.execution.events.known("finished_ns").any()
