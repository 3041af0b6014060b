"""Teams, turns and people in logs that no recording has."""

from __future__ import annotations

from autogen_logs import MS, Log, asked, conversation, user
from autogen_runs import load, rebuilt
from semtrace.records.document import canonical_json
from semtrace.records.enums import EdgeKind, Evidence, OperationKind, Outcome


def test_a_team_run_again_is_one_task_with_what_the_user_said(tmp_path):
    log = conversation(2)
    texts = [
        e["response"]["choices"][0]["message"]["content"] for _, e in log.lines if e["type"] == "LLMCall"
    ]
    log.now += 5000 * MS
    log.start("And what about the moon?")
    log.request("ann")
    history = [
        {"role": "system", "content": "You are ann."},
        user("user", "Talk about the tides."),
        {"role": "assistant", "content": texts[0]},
        user("bob", texts[1]),
        user("user", "And what about the moon?"),
    ]
    log.call("ann", history, "The moon pulls at the water.")
    log.respond("ann", "The moon pulls at the water.")
    log.end()
    run = load(log.write(tmp_path / "events.jsonl"))
    assert run.trace.tasks.rows == 1
    (said,) = run.of(OperationKind.HUMAN)
    assert 5000 <= run.duration_ms(said) < 5010
    assert run.text(run.op(said)["output"]) == "And what about the moon?"
    assert {("bob", "user"), ("user", "ann#2")} <= run.edges(EdgeKind.CONTROL)
    assert ("user", "ann#2") in run.edges(EdgeKind.DATA)
    assert run.op(run.llm[-1])["context_base"] == run.llm[0], "the conversation goes on"
    assert run.stages()[3] == (None, "RoundRobinGroupChat", 1)


def test_a_person_behind_a_proxy(tmp_path):
    log = Log()
    log.start("Go")
    log.request("ann")
    log.call("ann", [user("user", "Go")], "an answer that is fine")
    log.respond("ann", "an answer that is fine")
    log.request("boss")
    waits = log.said("boss", "", "UserInputRequestedEvent")
    log.message(log.at("boss"), log.at("output_topic"), {"message": waits})
    log.now += 8000 * MS
    log.respond("boss", "please say more")
    log.request("ann")
    more = [
        user("user", "Go"),
        {"role": "assistant", "content": "an answer that is fine"},
        user("boss", "please say more"),
    ]
    log.call("ann", more, "more of it")
    log.respond("ann", "more of it")
    log.end()
    run = load(log.write(tmp_path / "events.jsonl"))
    (person,) = run.of(OperationKind.HUMAN)
    assert run.op(person)["name"] == "boss"
    assert 8000 <= run.duration_ms(person) < 8020
    assert {("ann", "boss"), ("boss", "ann#2")} == run.edges(EdgeKind.CONTROL)
    assert ("boss", "ann#2") in run.edges(EdgeKind.DATA)


def test_an_agent_without_a_model(tmp_path):
    log = Log()
    log.start("Go")
    log.request("clock")
    log.now += 30 * MS
    log.respond("clock", "it is noon in the harbour")
    log.request("ann")
    log.call("ann", [user("user", "Go"), user("clock", "it is noon in the harbour")], "thank you")
    log.respond("ann", "thank you")
    log.end()
    run = load(log.write(tmp_path / "events.jsonl"))
    (clock,) = run.of(OperationKind.TRANSFORM)
    assert 30 <= run.duration_ms(clock) < 40
    assert ("clock", "ann") in run.edges(EdgeKind.DATA) & run.edges(EdgeKind.CONTROL)
    assert run.losses["agents.without_model"] == 1


def test_a_turn_that_failed(tmp_path):
    log = Log()
    log.start("Go")
    log.request("ann")
    log.call("ann", [user("user", "Go")], "an answer that is fine")
    log.respond("ann", "an answer that is fine")
    log.request("bob")
    error = {"error_type": "APIError", "error_message": "server gone", "traceback": "…"}
    log.message(log.at("bob"), log.at("group_topic"), {"error": error})
    log.end()
    run = load(log.write(tmp_path / "events.jsonl"))
    assert run.trace.tasks.ints("outcome")[0] == Outcome.FAILURE
    assert run.losses["calls.failed"] == 1
    notes = run.trace["annotations"]
    assert "APIError: server gone" in notes.strings("value")


def test_a_log_that_was_cut_off(tmp_path):
    log = conversation(3)
    log.lines = log.lines[:-5]
    run = load(log.write(tmp_path / "events.jsonl"))
    assert run.trace.tasks.ints("outcome")[0] == Outcome.UNKNOWN
    assert len(run.llm) == 3


def test_a_tool_without_an_end_is_left_out(tmp_path):
    log = Log()
    log.start("Go")
    log.request("ann")
    log.call("ann", [user("user", "Go")], calls=asked(("c1", "slow", {})))
    run = load(log.write(tmp_path / "events.jsonl"))
    assert run.tools == []
    assert run.losses["tools.unanswered"] == 1


def test_core_agents_without_a_team(tmp_path):
    log = Log()
    log.call(None, [user("u", "hi")], "the first answer of the router", agent_id="router/default")
    log.message("router/default", "worker/default", '{"x": 1}', "DIRECT")
    sent = [user("u", "the first answer of the router")]
    log.call(None, sent, "done by the worker", agent_id="worker/default")
    run = load(log.write(tmp_path / "events.jsonl"))
    assert run.evidence(EdgeKind.CONTROL) == {("router", "worker"): Evidence.OBSERVED}
    assert run.edges(EdgeKind.DATA) == {("router", "worker")}
    assert [run.session_of(o)["agent"] for o in run.llm] == ["router", "worker"]


def test_two_agents_as_tools_at_once_without_names(tmp_path):
    # No spans, no messages about the inner calls: the task that each was given tells them apart.
    log = Log()
    log.start("Go")
    log.request("boss")
    first = [user("user", "Go")]
    calls = asked(
        ("c1", "north", {"task": "look north of the harbour"}), ("c2", "south", {"task": "look south"})
    )
    log.call("boss", first, calls=calls)
    log.call("boss", [user("user", "look south")], "nothing to the south but sand")
    log.call("boss", [user("user", "look north of the harbour")], "to the north there are ships")
    log.tool("boss", "south", {"task": "look south"}, "nothing to the south but sand")
    log.tool("boss", "north", {"task": "look north of the harbour"}, "to the north there are ships")
    told = [
        {"role": "tool", "tool_call_id": "c1", "content": "to the north there are ships"},
        {"role": "tool", "tool_call_id": "c2", "content": "nothing to the south but sand"},
    ]
    asking = {"role": "assistant", "content": None, "tool_calls": calls}
    log.call("boss", [*first, asking, *told], "ships in the north, sand in the south")
    log.respond("boss", "ships in the north, sand in the south")
    log.end()
    run = load(log.write(tmp_path / "events.jsonl"))
    assert run.tools == []
    assert {run.name(o): run.stage_of(o) for o in run.llm} == {
        "boss": "boss",
        "south": "south",
        "north": "north",
        "boss#2": "boss",
    }
    assert run.edges(EdgeKind.DATA) == {
        ("boss", "south"),
        ("boss", "north"),
        ("boss", "boss#2"),
        ("south", "boss#2"),
        ("north", "boss#2"),
    }
    assert "structure.nested_ambiguous" not in run.losses


def test_inner_calls_that_cannot_be_told_apart_are_said_to_be_so(tmp_path):
    log = Log()
    log.start("Go")
    log.request("boss")
    calls = asked(("c1", "north", {"where": 1}), ("c2", "south", {"where": 2}))
    log.call("boss", [user("user", "Go")], calls=calls)
    log.call("boss", [user("user", "something else")], "who asked for this is not known")
    log.tool("boss", "south", {"where": 2}, "one")
    log.tool("boss", "north", {"where": 1}, "two")
    log.end()
    run = load(log.write(tmp_path / "events.jsonl"))
    assert run.losses["structure.nested_ambiguous"] == 1
    assert run.losses["structure.nested_inferred"] == 1


def test_calls_that_overlap_wait_for_the_same(tmp_path):
    # Two agents asked together: neither waits for the other, whatever the order in which they end.
    log = Log(manager="GraphManager")
    log.start("Go")
    log.request("root")
    log.call("root", [user("user", "Go")], "split into two parts please")
    log.respond("root", "split into two parts please")
    log.request("left")
    log.request("right")
    for name in ("right", "left"):
        log.call(
            name,
            [user("user", "Go"), user("root", "split into two parts please")],
            f"the {name} part is ready",
        )
    for name in ("right", "left"):
        log.respond(name, f"the {name} part is ready")
    log.request("join")
    parts = [user(name, f"the {name} part is ready") for name in ("right", "left")]
    log.call("join", [user("user", "Go"), *parts], "both parts joined")
    log.respond("join", "both parts joined")
    log.end()
    run = load(log.write(tmp_path / "events.jsonl"))
    assert run.edges(EdgeKind.CONTROL) == {
        ("root", "left"),
        ("root", "right"),
        ("left", "join"),
        ("right", "join"),
    }


def test_rows_grow_with_turns_and_not_with_their_square(tmp_path):
    rows = {}
    for turns in (40, 80, 160):
        run = load(conversation(turns).write(tmp_path / f"{turns}.jsonl"))
        segments, edges, artifacts = (run.trace[t].rows for t in ("segments", "edges", "artifacts"))
        rows[turns] = (segments, edges, artifacts)
        # Two system messages and the task, then what the other agent said last.
        assert segments == turns + 3
        last = run.llm[-1]
        assert run.op(last)["context_segments"] > turns - 4
    assert [b - 2 * a for a, b in zip(rows[40], rows[80], strict=True)] == [
        b - 2 * a for a, b in zip(rows[80], rows[160], strict=True)
    ]


def test_a_long_history_is_rebuilt_from_what_it_inherits(tmp_path):
    log = conversation(60)
    run = load(log.write(tmp_path / "events.jsonl"))
    sent = [e["messages"] for _, e in log.lines if e["type"] == "LLMCall"]
    assert [rebuilt(run, o) for o in run.llm] == [canonical_json({"messages": m}) for m in sent]


def test_a_history_that_was_trimmed_is_rebuilt_too(tmp_path):
    log = Log()
    log.start("Go")
    kept = []
    for turn in range(6):
        log.request("ann")
        messages = [{"role": "system", "content": "You are ann."}, *kept[-3:]]
        text = f"turn {turn} says what it has to say"
        log.call("ann", messages, text)
        log.respond("ann", text)
        kept.append({"role": "assistant", "content": text})
    log.end()
    run = load(log.write(tmp_path / "events.jsonl"))
    sent = [e["messages"] for _, e in log.lines if e["type"] == "LLMCall"]
    assert [rebuilt(run, o) for o in run.llm] == [canonical_json({"messages": m}) for m in sent]
    # What was trimmed is no dependency of its own, what was kept is.
    assert ("ann#5", "ann#6") in run.edges(EdgeKind.DATA)
    assert ("ann", "ann#6") not in run.edges(EdgeKind.DATA)


def test_requests_of_unusual_form_are_rebuilt(tmp_path):
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}
    messages = [
        {"role": "developer", "content": "You are ann."},
        {"role": "user", "name": "user", "content": [{"type": "text", "text": "what is this"}, picture]},
        {"role": "assistant", "content": None, "tool_calls": asked(("z1", "t", {"é": "ü"}))},
        {"role": "tool", "tool_call_id": "z1", "content": ""},
        {"role": "user", "content": ""},
    ]
    tools = [{"type": "function", "function": {"name": "t", "parameters": {"type": "object"}}}]
    log = Log()
    log.start("Go")
    log.request("ann")
    log.call("ann", messages, "a picture of nothing", tools=tools)
    log.respond("ann", "a picture of nothing")
    log.end()
    run = load(log.write(tmp_path / "events.jsonl"))
    assert rebuilt(run, run.llm[0]) == canonical_json({"messages": messages, "tools": tools})


def test_a_request_without_a_canonical_form_is_reported(tmp_path):
    log = Log()
    log.start("Go")
    log.request("ann")
    log.call("ann", [{"role": "wizard", "content": "abracadabra"}], "poof")
    log.respond("ann", "poof")
    log.end()
    run = load(log.write(tmp_path / "events.jsonl"))
    assert len(run.llm) == 1
    assert run.losses["input.form"] == 1
