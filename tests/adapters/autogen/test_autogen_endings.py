"""How runs ended: stop reasons, outcomes, answers, and runs that were cut off."""

from __future__ import annotations

import json

import pytest

from autogen_logs import OTHER, Log, asked, conversation, user
from autogen_runs import EXAMPLES, load
from semtrace.errors import FormatError
from semtrace.records.columns import NULL
from semtrace.records.enums import Outcome
from semtrace_adapters.autogen import ADAPTER
from semtrace_adapters.autogen.endings import outcome_of_reason
from semtrace_adapters.base import ImportOptions

REASONS = {
    "Digraph execution is complete": Outcome.SUCCESS,
    "Text 'TERMINATE' mentioned": Outcome.SUCCESS,
    "Text 'done, at last' mentioned": Outcome.SUCCESS,
    "Text 'APPROVE' mentioned, Maximum number of messages 9 reached, current message count: 9": Outcome.SUCCESS,
    "Maximum number of messages 9 reached, current message count: 9, Text 'OK' mentioned": Outcome.SUCCESS,
    "Stop message received": Outcome.SUCCESS,
    "Function 'approve' was executed.": Outcome.SUCCESS,
    "Maximum number of messages 3 reached, current message count: 3": Outcome.UNKNOWN,
    "Maximum number of turns 1 reached.": Outcome.UNKNOWN,
    "Max rounds reached.": Outcome.UNKNOWN,
    "Token usage limit reached, total token count: 9, prompt token count: 5, completion token count: 4.": Outcome.UNKNOWN,
    "Timeout of 2.5 seconds reached": Outcome.UNKNOWN,
    "Handoff to user from triage detected.": Outcome.UNKNOWN,
    "'critic' answered": Outcome.UNKNOWN,
    "Text message received from 'ann'": Outcome.UNKNOWN,
    "Functional termination condition met": Outcome.UNKNOWN,
    "The group chat has already terminated.": Outcome.UNKNOWN,
    "The group chat is stopped.": Outcome.UNKNOWN,
    "": Outcome.UNKNOWN,
    "It was said that Text 'TERMINATE' mentioned": Outcome.UNKNOWN,
    "The Digraph execution is complete": Outcome.UNKNOWN,
    "External termination requested": Outcome.CANCELLED,
    "An error occurred in the group chat.": Outcome.FAILURE,
    "An exception occurred in the runtime.": Outcome.FAILURE,
}


@pytest.mark.parametrize(("reason", "outcome"), REASONS.items())
def test_what_a_stop_reason_says(reason, outcome):
    said, how = outcome_of_reason(reason)
    assert said == outcome
    assert bool(how) == (outcome == Outcome.UNKNOWN)


def result(path, messages, reason):
    """What ``TaskResult.model_dump_json()`` gives."""
    path.write_text(json.dumps({"messages": messages, "stop_reason": reason}))
    return path


def messages_of(log):
    """The messages that a run's result has: those that its log holds."""
    payloads = [
        json.loads(e["payload"]) for _, e in log.lines if e["type"] == "Message" and e["payload"][0] == "{"
    ]
    made = [m for p in payloads for m in p.get("messages", [])]
    return made + [p["response"]["chat_message"] for p in payloads if "response" in p]


def outcome(run):
    (value,) = run.trace.tasks.ints("outcome").tolist()
    return value


def answer(run):
    (operation,) = run.trace.tasks.ints("answer_operation").tolist()
    return None if operation == NULL else run.name(operation)


def lines(run, code):
    return [loss for loss in run.result.loss if loss.code == code]


def test_that_a_run_ended_is_no_success(tmp_path):
    run = load(conversation(3).write(tmp_path / "events.jsonl"))
    assert outcome(run) == Outcome.UNKNOWN
    (line,) = lines(run, "outcome.unknown")
    assert (line.effect, line.count) == ("unknown", 1)
    assert "no source says why" in line.message
    assert line.where == ["events.jsonl:22"]  # the last response
    assert answer(run) == "ann#2"


@pytest.mark.parametrize(
    ("reason", "outcome_", "said"),
    [
        (
            "Maximum number of messages 3 reached, current message count: 3",
            Outcome.UNKNOWN,
            "limit of messages",
        ),
        ("Text 'tides' mentioned", Outcome.SUCCESS, None),
        ("External termination requested", Outcome.CANCELLED, None),
        (None, Outcome.UNKNOWN, "no source says why"),
        ("what the application thinks", Outcome.UNKNOWN, "says nothing of it"),
    ],
)
def test_a_result_beside_the_log_says_why(tmp_path, reason, outcome_, said):
    log = conversation(3)
    events = log.write(tmp_path / "events.jsonl")
    run = load(events, result(tmp_path / "result.json", messages_of(log), reason))
    assert outcome(run) == outcome_
    assert [said in line.message for line in lines(run, "outcome.unknown")] == ([True] if said else [])
    notes = run.trace["annotations"]
    reasons = [
        v
        for k, v in zip(notes.strings("key"), notes.strings("value"), strict=True)
        if k == "autogen/stop_reason"
    ]
    assert reasons == ([reason] if reason else [])


def test_each_run_has_its_own_result(tmp_path):
    one, two = conversation(2), conversation(2, ("cid", "dan"))
    two.team = OTHER
    two.lines = [
        (t + 10**10, json.loads(json.dumps(e).replace(one.team, OTHER).replace("-9bf0", "-1c6a")))
        for t, e in two.lines
    ]
    paths = [one.write(tmp_path / "one.jsonl"), two.write(tmp_path / "two.jsonl")]
    # The results lie in one file, and not in the order of the runs.
    both = tmp_path / "results.jsonl"
    both.write_text(
        json.dumps({"messages": messages_of(two), "stop_reason": "Text 'x' mentioned"})
        + "\n"
        + json.dumps({"messages": messages_of(one), "stop_reason": "Maximum number of turns 2 reached."})
        + "\n"
    )
    run = load(*paths, both)
    assert run.trace.tasks.ints("outcome").tolist() == [Outcome.UNKNOWN, Outcome.SUCCESS]
    assert "limit of turns" in lines(run, "outcome.unknown")[0].message
    # The results alone are two runs, too.
    alone = load(both)
    assert sorted(alone.trace.tasks.ints("outcome").tolist()) == [Outcome.UNKNOWN, Outcome.SUCCESS]


def test_a_result_of_another_run_says_nothing(tmp_path):
    one, two = conversation(2), conversation(2, ("cid", "dan"))
    two.lines = [
        (t, json.loads(json.dumps(e).replace(one.team, OTHER).replace("-9bf0", "-1c6a")))
        for t, e in two.lines
    ]
    strange = [
        {
            "id": "zz",
            "source": "eve",
            "type": "TextMessage",
            "content": "something else",
            "models_usage": None,
        }
    ]
    run = load(
        one.write(tmp_path / "one.jsonl"),
        two.write(tmp_path / "two.jsonl"),
        result(tmp_path / "r.json", strange, "Text 'x' mentioned"),
    )
    assert set(run.trace.tasks.ints("outcome").tolist()) == {Outcome.UNKNOWN}


def magentic(satisfied):
    log = Log(manager="MagenticOneOrchestrator")
    log.start("What is the weather?")
    log.call(log.manager, [user("user", "facts?")], "The facts are these, and no others.")
    log.request("ann")
    log.call("ann", [user("user", "look it up")], "It is sunny in Oslo today.")
    log.respond("ann", "It is sunny in Oslo today.")
    ledger = json.dumps({"is_request_satisfied": {"answer": satisfied, "reason": "it is"}})
    log.call(log.manager, [user("user", "done?")], ledger)
    log.call(log.manager, [user("user", "final answer?")], "Sunny, as ann found out.")
    log.end()
    return log


def test_magentic_ones_ledger_states_success(tmp_path):
    run = load(magentic(True).write(tmp_path / "events.jsonl"))
    assert outcome(run) == Outcome.SUCCESS
    assert answer(run) == "MagenticOneOrchestrator#3"
    assert not lines(run, "outcome.unknown")


def test_magentic_one_stopped_by_its_rounds_is_unknown(tmp_path):
    log = magentic(False)
    (tmp_path / "a").mkdir()
    run = load(log.write(tmp_path / "a" / "events.jsonl"))
    assert outcome(run) == Outcome.UNKNOWN
    run = load(
        log.write(tmp_path / "events.jsonl"),
        result(tmp_path / "r.json", messages_of(log), "Max rounds reached."),
    )
    assert outcome(run) == Outcome.UNKNOWN
    assert "limit of rounds" in lines(run, "outcome.unknown")[0].message


def handoff(log, agent, to, ident):
    """An agent's turn that hands over, by a tool call."""
    log.request(agent)
    log.call(agent, [user("user", "Go")], calls=asked((ident, f"transfer_to_{to}", {})))
    text = f"Transferred to {to}, adopting the role of {to}."
    log.tool(agent, f"transfer_to_{to}", {}, text)
    log.respond(agent, text, log.said(agent, text, "HandoffMessage"))


def test_a_handoff_is_no_answer(tmp_path):
    log = Log(manager="SwarmGroupChatManager")
    log.start("Go")
    handoff(log, "triage", "refunds", "c1")
    log.end()
    run = load(log.write(tmp_path / "events.jsonl"))
    assert [run.name(o) for o in run.tools] == ["transfer_to_refunds"]
    assert answer(run) is None
    assert run.trace.tasks.row(0)["output"] is None


def test_the_answer_is_the_last_text_and_not_the_handoff_after_it(tmp_path):
    log = Log(manager="SwarmGroupChatManager")
    log.start("Go")
    log.request("triage")
    log.call("triage", [user("user", "Go")], "What is your order's number?")
    log.respond("triage", "What is your order's number?")
    handoff(log, "triage", "refunds", "c1")
    log.end()
    run = load(log.write(tmp_path / "events.jsonl"))
    assert answer(run) == "triage"
    assert run.text(run.trace.tasks.row(0)["output"]) == "What is your order's number?"


def test_a_tools_result_that_the_agent_gives_out_is_an_answer(tmp_path):
    log = Log()
    log.start("Go")
    log.request("ann")
    log.call("ann", [user("user", "Go")], calls=asked(("c1", "weather", {})))
    log.tool("ann", "weather", {}, "sunny, 20 degrees")
    log.respond("ann", "sunny, 20 degrees", log.said("ann", "sunny, 20 degrees", "ToolCallSummaryMessage"))
    log.end()
    run = load(log.write(tmp_path / "events.jsonl"))
    assert answer(run) == "weather"
    assert run.text(run.trace.tasks.row(0)["output"]) == "sunny, 20 degrees"


def test_calls_alone_that_end_with_a_tool_call_have_no_answer(tmp_path):
    log = Log()
    log.call(None, [user("user", "Go")], calls=asked(("c1", "weather", {})))
    run = load(log.write(tmp_path / "events.jsonl"))
    assert answer(run) is None
    assert outcome(run) == Outcome.UNKNOWN
    (line,) = lines(run, "run.end_unknown")
    assert (line.effect, line.where) == ("unknown", ["events.jsonl:1"])


def test_a_persons_last_word_is_no_answer(tmp_path):
    log = conversation(1)
    end = log.lines[-2:]
    log.lines = log.lines[:-2]
    log.request("boss")
    log.message(
        log.at("boss"), log.at("output_topic"), {"message": log.said("boss", "", "UserInputRequestedEvent")}
    )
    log.respond("boss", "thank you, that will do")
    log.lines += [(log.now + 1, event) for _, event in end]
    run = load(log.write(tmp_path / "events.jsonl"))
    assert answer(run) == "ann"


def fan_out(answered=0):
    """A planner has answered, three analysts were asked, of whom some have answered."""
    log = Log(manager="GraphManager")
    log.start("Go")
    log.request("planner")
    log.call("planner", [user("user", "Go")], "Three briefs, one for each.")
    log.respond("planner", "Three briefs, one for each.")
    names = ("market", "quant", "risk")
    for name in names:
        log.request(name)
    for name in names[:answered]:
        log.call(
            name, [user("user", "Go"), user("planner", "Three briefs, one for each.")], f"Report of {name}."
        )
        log.respond(name, f"Report of {name}.")
    return log


def test_a_run_that_was_killed_says_whom_it_had_asked(tmp_path):
    run = load(fan_out().write(tmp_path / "events.jsonl"))
    assert [run.name(o) for o in run.llm] == ["planner"]
    assert outcome(run) == Outcome.UNKNOWN
    assert answer(run) is None
    (line,) = lines(run, "run.cut")
    assert (line.effect, line.count) == ("lost", 3)
    assert "while 3 agents were asked: market, quant, risk" in line.message
    assert line.where == [
        f"{name}, asked at events.jsonl:{at}" for name, at in (("market", 10), ("quant", 12), ("risk", 14))
    ]


def test_a_log_that_was_cut_among_the_branches(tmp_path):
    run = load(fan_out(2).write(tmp_path / "events.jsonl"))
    (line,) = lines(run, "run.cut")
    assert line.count == 1
    assert "an agent was asked: risk" in line.message


def test_a_log_that_was_cut_between_two_turns(tmp_path):
    run = load(fan_out(3).write(tmp_path / "events.jsonl"))
    (line,) = lines(run, "run.cut")
    assert (line.effect, line.count) == ("lost", 1)
    assert "between two turns" in line.message
    assert line.where == ["events.jsonl:29"]
    assert outcome(run) == Outcome.UNKNOWN
    assert answer(run) is None


def test_every_cut_of_a_recording_is_reported(tmp_path):
    """A log that is cut after any of its lines is known to be cut."""
    whole = (EXAMPLES / "graphflow" / "events.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    last = max(at for at, line in enumerate(whole) if "could not be serialized" in line and ".SEND" in line)
    path = tmp_path / "events.jsonl"
    called = min(at for at, line in enumerate(whole) if '"type": "LLMCall"' in line) + 1
    assert last - called > 80
    for at in range(called, last, 4):
        path.write_text("".join(whole[:at]), encoding="utf-8")
        run = load(path)
        assert run.losses["run.cut"] >= 1, at
        assert outcome(run) == Outcome.UNKNOWN
    path.write_text("".join(whole[: last + 1]), encoding="utf-8")
    assert "run.cut" not in load(path).losses


def test_spans_of_a_killed_run(tmp_path):
    whole = (EXAMPLES / "graphflow" / "spans.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    path = tmp_path / "spans.jsonl"
    path.write_text("".join(whole[: len(whole) // 2]), encoding="utf-8")
    run = load(path)
    assert run.losses["run.cut"] >= 1
    assert set(run.trace.tasks.ints("outcome").tolist()) == {Outcome.UNKNOWN}


def test_killed_before_the_first_call_had_ended(tmp_path):
    log = Log()
    log.start("Go")
    log.request("planner")
    with pytest.raises(FormatError) as raised:
        ADAPTER.read([log.write(tmp_path / "events.jsonl")], ImportOptions())
    assert raised.value.code == "autogen.no_calls"
    assert "an agent was asked: planner" in raised.value.message


def test_a_result_tells_that_a_cut_log_is_of_a_run_that_ended(tmp_path):
    log = conversation(2)
    log.lines = log.lines[:-2]  # the handler was taken off before the last event
    events = log.write(tmp_path / "events.jsonl")
    run = load(events, result(tmp_path / "r.json", messages_of(log), "Text 'tides' mentioned"))
    assert outcome(run) == Outcome.SUCCESS
    assert "run.cut" not in run.losses


def test_an_agent_that_never_answered_in_a_run_that_ended(tmp_path):
    log = fan_out(2)
    log.end()
    run = load(log.write(tmp_path / "events.jsonl"))
    (line,) = lines(run, "turns.unanswered")
    assert (line.effect, line.where) == ("lost", ["risk, asked at events.jsonl:14"])


@pytest.mark.parametrize("handler", ["SelectorGroupChatManager", "bob"])
def test_an_exception_that_nobody_caught_is_a_failure(tmp_path, handler):
    log = Log(manager="SelectorGroupChatManager")
    log.start("Go")
    log.request("ann")
    log.call("ann", [user("user", "Go")], "an answer that is fine")
    log.respond("ann", "an answer that is fine")
    if handler == "bob":
        log.request("bob")
    fault = {"type": "MessageHandlerException", "payload": "{}", "exception": "model is down"}
    log.add(fault | {"handling_agent": log.at(handler)})
    log.end()
    run = load(log.write(tmp_path / "events.jsonl"))
    assert outcome(run) == Outcome.FAILURE
    assert answer(run) is None
    assert "model is down" in run.trace["annotations"].strings("value")
    assert not {"turns.unanswered", "run.cut", "outcome.unknown"} & set(run.losses)


def test_a_cancelled_run_has_no_failure(tmp_path):
    log = fan_out(1)
    fault = {
        "type": "MessageHandlerException",
        "payload": "{}",
        "exception": "",
        "handling_agent": log.at("risk"),
    }
    log.add(fault)
    run = load(log.write(tmp_path / "events.jsonl"))
    assert outcome(run) == Outcome.UNKNOWN
    assert run.losses["run.cut"] == 2
