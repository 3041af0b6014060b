"""The project's own recordings: numbers, structure, requests as the server got them, and every rule of the standard."""

from __future__ import annotations

import pytest

from autogen_runs import (
    EXAMPLES,
    check_against_server,
    rebuilt,
    recording,
    replays,
    request_of,
    server_log,
)
from semtrace.records.enums import (
    EdgeKind,
    EventOutcome,
    Evidence,
    OperationStatus,
    Outcome,
    Role,
    StageTemplate,
)

NUMBERS = {
    # scenario: (model calls, tools, stages, sessions, prompt tokens, output tokens)
    "graphflow": (10, 5, 5, 6, 2683, 426),
    "graphloop": (5, 0, 6, 3, 436, 103),
    "swarm": (5, 4, 6, 3, 1435, 93),
    "nested": (7, 1, 10, 6, 781, 181),
    "agenttools": (7, 2, 7, 5, 990, 186),
    "streaming": (3, 1, 4, 2, None, None),
}
SUBSETS = {
    "all": (),
    "events": ("events.jsonl",),
    "events+config": ("events.jsonl", "config.json"),
    "spans": ("spans.jsonl",),
    "events+spans": ("events.jsonl", "spans.jsonl"),
}
CASES = [
    (name, subset)
    for name in NUMBERS
    for subset, files in SUBSETS.items()
    if all((EXAMPLES / name / f).exists() for f in files)
]


@pytest.mark.parametrize(("name", "subset"), CASES)
def test_numbers(name, subset):
    run = recording(EXAMPLES / name, *SUBSETS[subset])
    calls, tools, stages, sessions, prompt, output = NUMBERS[name]
    assert (len(run.llm), len(run.tools)) == (calls, tools)
    assert run.trace["stages"].rows == stages
    assert run.trace["sessions"].rows == sessions
    assert run.tokens() == (prompt, output)
    assert run.trace.tasks.rows == 1
    # Only the run stream says why a run stopped; a limit of turns says nothing of the task.
    said = name in {"graphflow", "graphloop", "swarm"} and subset == "all"
    assert run.trace.tasks.ints("outcome")[0] == (Outcome.SUCCESS if said else Outcome.UNKNOWN)
    assert run.losses.get("outcome.unknown", 0) == (not said)
    assert not {"run.cut", "run.end_unknown", "turns.unanswered"} & set(run.losses)


@pytest.mark.parametrize(("name", "subset"), [c for c in CASES if c[0] != "streaming"])
def test_requests_and_counts_are_those_of_the_server(name, subset):
    run = recording(EXAMPLES / name, *SUBSETS[subset])
    assert check_against_server(run, server_log(EXAMPLES / name)) == NUMBERS[name][0]


@pytest.mark.parametrize(("name", "subset"), [c for c in CASES if c[0] != "streaming"])
def test_the_trace_replays(name, subset):
    replays(recording(EXAMPLES / name, *SUBSETS[subset]))


@pytest.mark.parametrize("name", [n for n in NUMBERS if n != "streaming"])
def test_every_source_tells_the_same_graph(name):
    full = recording(EXAMPLES / name)
    for subset in ("events", "spans"):
        if (name, subset) not in CASES:
            continue
        part = recording(EXAMPLES / name, *SUBSETS[subset])
        for kind in (EdgeKind.CONTROL, EdgeKind.DATA):
            assert part.edges(kind) == full.edges(kind), subset


def test_graphflow_fans_out_and_joins():
    run = recording(EXAMPLES / "graphflow")
    analysts = ("market_analyst", "quant_analyst", "risk_analyst")
    control = run.evidence(EdgeKind.CONTROL)
    last = {
        "market_analyst": "market_analyst#2",
        "quant_analyst": "quant_analyst#3",
        "risk_analyst": "risk_analyst#2",
    }
    wanted = (
        {("planner", a) for a in analysts}
        | {(last[a], "editor") for a in analysts}
        | {("editor", "reviewer")}
    )
    assert set(control) == wanted
    assert set(control.values()) == {Evidence.OBSERVED}, "the graph is in the config"
    stage = run.trace["stages"]
    assert stage.strings("name")[:3] == ["GraphFlow", "planner", "market_analyst+quant_analyst+risk_analyst"]
    assert stage.ints("template").tolist() == [
        StageTemplate.FORK_JOIN,
        StageTemplate.SEQUENCE,
        StageTemplate.FORK_JOIN,
        StageTemplate.SEQUENCE,
        StageTemplate.SEQUENCE,
    ]


def test_graphflow_without_the_config_derives_the_joins():
    control = recording(EXAMPLES / "graphflow", "events.jsonl").evidence(EdgeKind.CONTROL)
    joins = [control[e] for e in control if e[1] == "editor"]
    # The manager's request followed one response in the log; that it waited for the others is how managers work.
    assert sorted(joins) == [Evidence.OBSERVED, Evidence.DERIVED, Evidence.DERIVED]


def test_graphflow_tools():
    run = recording(EXAMPLES / "graphflow")
    slept = {
        "check_sanctions": 90,
        "query_prices": 50,
        "search_news": 120,
        "read_filings": 300,
        "fit_trend": 180,
    }
    by_name = {run.op(t)["name"]: t for t in run.tools}
    assert set(by_name) == set(slept)
    for name, least in slept.items():
        assert run.duration_ms(by_name[name]) >= least
        assert run.op(by_name[name])["duration_evidence"] == Evidence.OBSERVED
    # Two asked for at once, two in a row: what each waits for, and who gets its result.
    data = run.edges(EdgeKind.DATA)
    assert {("market_analyst", "search_news"), ("market_analyst", "read_filings")} <= data
    assert {("search_news", "market_analyst#2"), ("read_filings", "market_analyst#2")} <= data
    assert {
        ("quant_analyst", "query_prices"),
        ("query_prices", "quant_analyst#2"),
        ("quant_analyst#2", "fit_trend"),
    } <= data
    by_log = recording(EXAMPLES / "graphflow", "events.jsonl")
    for tool in by_log.tools:
        assert by_log.op(tool)["duration_evidence"] == Evidence.DERIVED
        seen = run.duration_ms(by_name[by_log.op(tool)["name"]])
        assert seen <= by_log.duration_ms(tool) < seen + 60


def test_arguments_and_results_have_their_sources():
    run = recording(EXAMPLES / "graphflow")
    tool = next(t for t in run.tools if run.op(t)["name"] == "read_filings")
    offsets, segments = run.trace.segment_offsets, run.trace.segments
    own = [segments.row(at) for at in range(offsets[tool], offsets[tool + 1])]
    assert [(s["role"], run.name(s["source_operation"])) for s in own] == [(Role.ASSISTANT, "market_analyst")]
    answer = next(o for o in run.llm if run.name(o) == "market_analyst#2")
    results = [
        s
        for s in (segments.row(at) for at in range(offsets[answer], offsets[answer + 1]))
        if s["role"] == Role.TOOL
    ]
    assert [run.name(s["source_operation"]) for s in results] == ["search_news", "read_filings"]
    output = run.text(run.op(tool)["output"])
    assert run.text(results[1]["artifact"]) == output
    assert (results[1]["source_start"], results[1]["source_length"]) == (0, len(output.encode()))


def test_native_times_are_the_spans_and_agree_with_the_server():
    run = recording(EXAMPLES / "graphflow")
    origin = run.execution.header.origin_unix_ns
    served = {e["id"]: e for e in server_log(EXAMPLES / "graphflow")}
    for operation in run.llm:
        event = run.event(operation)
        entry = served[event["request_id"]]
        assert event["submitted_evidence"] == event["finished_evidence"] == Evidence.OBSERVED
        assert origin + event["submitted_ns"] <= entry["arrival_unix_ns"]
        assert (
            origin + event["finished_ns"] >= entry["done_unix_ns"] - 1000
        )  # spans are rounded to microseconds
        assert event["cached_tokens"] == 0
    starts = [run.event(o)["submitted_ns"] for o in run.llm]
    assert starts == sorted(starts)


def test_event_log_times_are_marked_for_what_they_are():
    run = recording(EXAMPLES / "graphflow", "events.jsonl")
    exact = recording(EXAMPLES / "graphflow")
    for operation in run.llm:
        event = run.event(operation)
        assert event["submitted_evidence"] == Evidence.INFERRED
        assert event["finished_evidence"] == Evidence.DERIVED
        same = next(o for o in exact.llm if exact.name(o) == run.name(operation))
        gap = event["finished_ns"] - exact.event(same)["finished_ns"]
        shift = exact.execution.header.origin_unix_ns - run.execution.header.origin_unix_ns
        assert 0 <= gap - shift < 10_000_000, "logged within 10 ms after the span's end"
    assert run.losses["times.start"] == 10


def test_graphloop_iterates_and_counts_hidden_retries():
    run = recording(EXAMPLES / "graphloop")
    assert run.stages() == [
        (None, "GraphFlow", 0),
        ("GraphFlow", "writer", 0),
        ("GraphFlow", "critic", 0),
        ("GraphFlow", "writer", 1),
        ("GraphFlow", "critic", 1),
        ("GraphFlow", "publisher", 0),
    ]
    assert run.trace["stages"].ints("template")[0] == StageTemplate.REFINEMENT
    assert run.losses["retries.hidden"] == 2
    assert [run.event(o)["attempts"] for o in run.llm] == [None, None, None, None, 3]
    assert run.event(run.llm[-1])["finished_ns"] - run.event(run.llm[-1])["submitted_ns"] > 500_000_000
    # The second draft goes on with the first: two messages and the answer are inherited, one is new.
    draft = run.op(run.llm[2])
    assert (draft["context_base"], draft["context_segments"]) == (run.llm[0], 3)


def test_swarm_hands_over():
    run = recording(EXAMPLES / "swarm")
    assert run.trace["stages"].ints("template")[0] == StageTemplate.HANDOFF
    assert [s[1:] for s in run.stages()[1:]] == [
        ("triage", 0),
        ("refunds", 0),
        ("refunds", 1),
        ("triage", 1),
        ("billing", 0),
    ]
    assert [run.op(t)["name"] for t in run.tools] == [
        "transfer_to_refunds",
        "check_sanctions",
        "transfer_to_triage",
        "transfer_to_billing",
    ]
    # A handoff is a tool call: the tool's end releases the next agent, and its text is in the next agent's input.
    assert run.edges(EdgeKind.CONTROL) == {
        ("transfer_to_refunds", "refunds"),
        ("check_sanctions", "refunds#2"),
        ("transfer_to_triage", "triage#2"),
        ("transfer_to_billing", "billing"),
    }
    assert run.edges(EdgeKind.CONTROL) <= run.edges(EdgeKind.DATA)
    assert len({run.op(o)["session"] for o in run.llm}) == 3


@pytest.mark.parametrize("subset", ["all", "events", "spans"])
def test_nested_teams(subset):
    run = recording(EXAMPLES / "nested", *SUBSETS[subset])
    inner = "desk" if subset == "all" else "RoundRobinGroupChat"  # the team's own name is in the config only
    outer = "newsroom" if subset == "all" else "RoundRobinGroupChat"
    assert run.stages() == [
        (None, outer, 0),
        (outer, "lead", 0),
        (outer, "desk", 0),
        ("desk", inner, 0),
        (inner, "researcher", 0),
        (inner, "drafter", 0),
        (outer, "judge", 0),
        ("judge", "RoundRobinGroupChat", 0),
        ("RoundRobinGroupChat", "optimist", 0),
        ("RoundRobinGroupChat", "sceptic", 0),
    ]
    # In and out of the nested team; the society's own answer comes after its board's.
    control = run.edges(EdgeKind.CONTROL)
    assert {
        ("lead", "researcher"),
        ("researcher#2", "drafter"),
        ("drafter", "optimist"),
        ("optimist", "sceptic"),
    } == control
    assert {("optimist", "judge"), ("sceptic", "judge")} <= run.edges(EdgeKind.DATA)
    judge = next(o for o in run.llm if run.name(o) == "judge")
    assert run.stage_of(judge) == "judge"
    assert run.trace.tasks.ints("answer_operation")[0] == judge


@pytest.mark.parametrize("subset", ["all", "events", "spans"])
def test_agents_and_teams_as_tools_are_stages(subset):
    run = recording(EXAMPLES / "agenttools", *SUBSETS[subset])
    # The tools expert and panel enclose model calls: they are stages. What is left are tools that only ran code.
    assert [run.op(t)["name"] for t in run.tools] == ["broken_feed", "query_prices"]
    assert ("chair", "expert", 0) in run.stages()
    assert ("panel", "SelectorGroupChat", 0) in run.stages()
    by_name = {run.name(o): o for o in run.llm}
    assert run.stage_of(by_name["expert"]) == run.stage_of(by_name["expert#2"]) == "expert"
    chair = by_name["chair"]
    assert run.session_of(by_name["expert"])["parent_operation"] == chair
    assert run.session_of(by_name["first"])["parent_operation"] == chair
    assert run.session_of(chair)["parent_operation"] is None
    assert {("chair", "expert"), ("chair", "SelectorGroupChatManager")} <= run.edges(EdgeKind.CONTROL)
    # What came back is the inner agents' own text, not a tool's of fixed duration.
    assert {
        ("expert#2", "chair#2"),
        ("second", "chair#2"),
        ("broken_feed", "chair#2"),
        ("chair", "chair#2"),
    } <= run.edges(EdgeKind.DATA)
    assert ("chair", "expert") in run.edges(EdgeKind.DATA), "the task was given in the tool call"


def test_a_tool_that_raises_failed():
    for subset in ("all", "events", "spans"):
        run = recording(EXAMPLES / "agenttools", *SUBSETS[subset])
        broken = next(t for t in run.tools if run.op(t)["name"] == "broken_feed")
        assert run.op(broken)["status"] == OperationStatus.ERROR
        assert run.event(broken)["outcome"] == EventOutcome.ERROR
        assert run.text(run.op(broken)["output"]) == "feed measure is down"
    # No ToolCall event is logged for it: without spans its end is known only as that of all three tools.
    events = recording(EXAMPLES / "agenttools", "events.jsonl")
    assert events.losses["tools.duration_bound"] == 1
    broken = next(t for t in events.tools if events.op(t)["name"] == "broken_feed")
    assert events.op(broken)["duration_evidence"] == Evidence.INFERRED


def test_streaming_zero_counts_are_unknown():
    run = recording(EXAMPLES / "streaming")
    assert [(run.op(o)["prompt_tokens"], run.op(o)["output_tokens"]) for o in run.llm] == [
        (31, 13),
        (None, None),
        (63, 13),
    ]
    assert [run.op(o)["tokens_evidence"] for o in run.llm] == [
        Evidence.OBSERVED,
        Evidence.MISSING,
        Evidence.OBSERVED,
    ]
    assert run.losses["tokens.unknown"] == 1
    # The event log does not say which tools a streamed call offered; the messages are the server's all the same.
    assert run.losses["tools_offered.unknown"] == 3
    sent = [request_of({"messages": e["request"]["messages"]}) for e in server_log(EXAMPLES / "streaming")]
    assert [rebuilt(run, o) for o in run.llm] == sent
    first = [run.event(o) for o in run.llm]
    assert all(e["submitted_ns"] < e["first_token_ns"] <= e["finished_ns"] for e in first)


@pytest.mark.parametrize("name", [n for n in NUMBERS if n != "nested"])
@pytest.mark.parametrize("files", [("stream.jsonl",), ("stream.jsonl", "config.json")])
def test_the_stream_alone(name, files):
    run = recording(EXAMPLES / name, *files)
    full = recording(EXAMPLES / name)
    # Calls of orchestrators and selectors are not in a stream, and no call's input is: both are said.
    hidden = 1 if name == "agenttools" else 0
    assert len(run.llm) == len(full.llm) - hidden
    assert run.losses["calls.from_messages"] == run.losses["input.unknown"] == len(run.llm)
    assert all(rebuilt(run, o) is None for o in run.llm)
    known = {(full.op(o)["prompt_tokens"], full.op(o)["output_tokens"]) for o in full.llm}
    assert {(run.op(o)["prompt_tokens"], run.op(o)["output_tokens"]) for o in run.llm} <= known


def test_the_stream_with_the_config_tells_nested_teams():
    run = recording(EXAMPLES / "nested", "stream.jsonl", "config.json")
    full = recording(EXAMPLES / "nested")
    assert run.stages() == full.stages()
    assert run.edges(EdgeKind.CONTROL) >= full.edges(EdgeKind.CONTROL)
    tools = recording(EXAMPLES / "agenttools", "stream.jsonl", "config.json")
    assert ("panel", "SelectorGroupChat", 0) in tools.stages()
    assert [tools.op(t)["name"] for t in tools.tools] == ["broken_feed", "query_prices"]


def test_the_stream_of_a_graph_keeps_its_branches_side_by_side():
    run = recording(EXAMPLES / "graphflow", "stream.jsonl", "config.json")
    analysts = {"market_analyst", "quant_analyst", "risk_analyst"}
    control = run.edges(EdgeKind.CONTROL)
    assert {target for source, target in control if source == "planner"} == analysts
    assert not any(s.partition("#")[0] in analysts and t in analysts for s, t in control)
