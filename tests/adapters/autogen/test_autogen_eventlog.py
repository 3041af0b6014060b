"""Event logs in the dresses that users put them in."""

from __future__ import annotations

import json
import logging

import pytest

from autogen_logs import (
    OTHER,
    START_NS,
    Log,
    asked,
    bare,
    conversation,
    handler,
    json_formatter,
    prefixed,
    user,
)
from autogen_runs import load
from semtrace.records.enums import EdgeKind, OperationStatus
from semtrace_adapters.autogen.eventlog import BadLine, Record, read_line, retry_wait_s
from semtrace_adapters.autogen.handler import recording
from semtrace_adapters.autogen.times import parse_stamp, unix_ns

DRESSES = {
    "handler": handler,
    "bare": bare,
    "prefixed": prefixed,
    "ahead of UTC": lambda t, e: prefixed(t, e, hours=2),
    "json formatter": json_formatter,
    "seconds": lambda t, e: json.dumps({"ts": t / 1e9, "data": e}),
}


@pytest.mark.parametrize("dress", DRESSES)
def test_every_dress_gives_the_same_work(tmp_path, dress):
    run = load(conversation(4).write(tmp_path / "app.log", DRESSES[dress]))
    assert [run.name(o) for o in run.llm] == ["ann", "bob", "ann#2", "bob#2"]
    assert run.tokens() == (170, 60)
    assert run.edges(EdgeKind.CONTROL) == {("ann", "bob"), ("bob", "ann#2"), ("ann#2", "bob#2")}
    origin = run.execution.header.origin_unix_ns
    assert origin is not None
    assert abs(origin - START_NS) < 2_000_000_000, "the offset from UTC is told by the messages' own times"


def test_a_log_without_times_takes_them_from_messages(tmp_path):
    run = load(conversation(2).write(tmp_path / "app.log", bare))
    assert run.losses["times.none"] == 1
    ends = [run.event(o)["finished_ns"] for o in run.llm]
    assert ends[0] < ends[1]


def test_logs_of_before_0_7(tmp_path):
    # No tools in LLMCall (before 0.6); the response under another name, and messages without type and content.
    log = conversation(4)
    for _, event in log.lines:
        event.pop("tools", None)
        if event["type"] == "Message" and event["payload"].startswith("{"):
            payload = json.loads(event["payload"])
            if "response" in payload:
                payload["agent_response"] = payload.pop("response")
            for held in (payload.get("message"), payload.get("agent_response", {}).get("chat_message")):
                if held:
                    del held["type"], held["content"]
            event["payload"] = json.dumps(payload)
    run = load(log.write(tmp_path / "events.jsonl"))
    assert run.edges(EdgeKind.CONTROL) == {("ann", "bob"), ("bob", "ann#2"), ("ann#2", "bob#2")}
    assert run.tokens() == (170, 60)
    assert run.losses["tools_offered.unknown"] == 4


def test_other_lines_and_broken_ones(tmp_path):
    path = conversation(3).write(tmp_path / "app.log")
    lines = path.read_text(encoding="utf-8").splitlines()
    lines.insert(0, "starting up {not json}")
    lines.insert(4, '2026-11-29 10:00:00 INFO {"type": "LLMCall", "messages": [{"role": "us')
    lines.insert(6, '{"level": "info", "msg": "something else"}')
    lines.append('{"type": "LLMCall", "mess')
    path.write_text("\n".join(lines), encoding="utf-8")
    run = load(path)
    assert len(run.llm) == 3
    assert run.losses["events.broken"] == 2
    assert run.losses["events.other"] == 2
    broken = [loss for loss in run.result.loss if loss.code == "events.broken"]
    assert [place for loss in broken for place in loss.where] == ["app.log:5", f"app.log:{len(lines)}"]


def test_a_log_that_begins_with_a_great_deal_of_something_else(tmp_path):
    path = conversation(2).write(tmp_path / "app.log", prefixed)
    path.write_text(
        "DEBUG nothing to see here\n" * 20_000 + path.read_text(encoding="utf-8"), encoding="utf-8"
    )
    run = load(path)
    assert len(run.llm) == 2
    assert run.losses["events.other"] == 20_000


def test_an_event_that_two_handlers_wrote_counts_once(tmp_path):
    log = conversation(3)
    log.lines = [line for line in log.lines for _ in (1, 2)]
    run = load(log.write(tmp_path / "events.jsonl"))
    assert len(run.llm) == 3
    assert run.losses["events.repeated"] > 3


def test_bytes_and_surrogates_that_have_no_utf8_form(tmp_path):
    log = Log()
    log.start("Go")
    log.request("ann")
    log.call("ann", [user("user", "Go")], "half a sign: \ud83d and on")
    log.respond("ann", "half a sign")
    log.end()
    path = log.write(tmp_path / "events.jsonl")
    path.write_bytes(path.read_bytes() + b"\xff\xfe not text\n")
    run = load(path)
    assert run.text(run.op(run.llm[0])["output"]) == "half a sign: \ufffd and on"
    assert run.losses["text.surrogate"] == 1
    assert run.losses["text.encoding"] == 1


def test_agentchat_events_by_their_repr():
    text = (
        "ToolCallExecutionEvent(id='x', source='a', models_usage=None, metadata={}, created_at=datetime.datetime(2026, 1, "
        "2, tzinfo=datetime.timezone.utc), content=[FunctionExecutionResult(content='it\\'s, [odd]', name='t', "
        "call_id='c1', is_error=True)], type='ToolCallExecutionEvent')"
    )
    record = read_line(f"12:00:01 DEBUG {text}", 3, "app.log:7")
    assert isinstance(record, Record)
    assert record.event["content"] == [
        {"content": "it's, [odd]", "name": "t", "call_id": "c1", "is_error": True}
    ]
    # `str` of a pydantic model: no class name, no commas.
    short = "id='x' source='a' models_usage=RequestUsage(prompt_tokens=5, completion_tokens=2) content=[FunctionCall(id='c1', arguments='{}', name='t')] type='ToolCallRequestEvent'"
    record = read_line(short, 0, "")
    assert isinstance(record, Record)
    assert record.event["content"][0]["id"] == "c1"
    assert record.event["models_usage"] == {"prompt_tokens": 5, "completion_tokens": 2}


@pytest.mark.parametrize(
    "line",
    [
        "ToolCallRequestEvent(id='x', __import__('os').system('true'))",
        "ToolCallRequestEvent(" + "(" * 500,
        "ToolCallRequestEvent(content=[1 + ",
    ],
)
def test_a_repr_that_is_none_is_text(line):
    record = read_line(line, 0, "")
    assert isinstance(record, Record)
    assert record.event is None


def test_lines():
    assert read_line("   \n", 0, "") is None
    assert isinstance(read_line('{"type": "LLMCall", "mess', 0, "x:1"), BadLine)
    record = read_line('{"type": "Unheard"}', 0, "")
    assert isinstance(record, Record)
    assert record.event is None
    assert retry_wait_s("Retrying request to /chat/completions in 0.5 seconds") == 0.5
    assert retry_wait_s("Retrying request in 1.25 seconds (retry 1 of 2)") == 1.25
    assert retry_wait_s("no such thing") is None


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (1_795_971_276, (1_795_971_276 * 10**9, True)),
        (1_795_971_276_500, (1_795_971_276_500 * 10**6, True)),
        (1_795_971_276_500_000, (1_795_971_276_500_000 * 10**3, True)),
        (START_NS, (START_NS, True)),
        ("2026-11-29T16:54:36Z", (START_NS, True)),
        ("2026-11-29T18:54:36.250+02:00", (START_NS + 250_000_000, True)),
        ("2026-11-29 16:54:36,007", (START_NS + 7_000_000, False)),
        ("yesterday", None),
        ("", None),
        (True, None),
        (-1, None),
        (float("nan"), None),
    ],
)
def test_times(value, wanted):
    assert unix_ns(value) == wanted


def test_a_stamp_that_is_no_date():
    assert parse_stamp("2026-13-45 99:99:99") is None


def test_the_handler_writes_what_the_adapter_reads(tmp_path):
    class Event:
        def __init__(self, kwargs: dict[str, object]) -> None:
            self.kwargs = kwargs

        def __str__(self) -> str:
            return json.dumps(self.kwargs)

    class Model:
        def model_dump(self, mode):
            assert mode == "json"
            return {"type": "ToolCallExecutionEvent", "source": "a", "content": []}

    core, chat = logging.getLogger("autogen_core.events"), logging.getLogger("autogen_agentchat.events")
    sdk = logging.getLogger("openai._base_client")
    before = (core.level, sdk.level, list(core.handlers))
    path = tmp_path / "events.jsonl"
    with recording(path):
        core.info(
            Event({"type": "ToolCall", "tool_name": "t", "arguments": {}, "result": "r", "agent_id": None})
        )
        chat.debug(Model())
        sdk.info("Retrying request to %s in %f seconds", "/chat/completions", 0.5)
        sdk.debug("not wanted")
    assert (core.level, sdk.level, list(core.handlers)) == before
    lines = path.read_text(encoding="utf-8").splitlines()
    records = [read_line(line, at, "") for at, line in enumerate(lines)]
    assert [r.kind for r in records] == ["ToolCall", "ToolCallExecutionEvent", ""]
    assert records[2].text == "Retrying request to /chat/completions in 0.500000 seconds"
    assert all(r.zoned and r.time_ns > START_NS - 10**18 for r in records)


def test_two_runs_in_one_file_are_two_tasks(tmp_path):
    one, two = conversation(3), Log(team=OTHER)
    two.now += 3_000_000
    two.start("Another task")
    two.request("cat")
    two.call("cat", [user("user", "Another task")], "a text that only the cat has")
    two.respond("cat", "a text that only the cat has")
    two.end()
    both = Log(lines=sorted(one.lines + two.lines, key=lambda line: line[0]))
    run = load(both.write(tmp_path / "events.jsonl"))
    assert run.trace.tasks.rows == 2
    assert run.trace.operations.ints("task").tolist() == [0, 0, 0, 1]
    assert run.trace.tasks.ints("arrival_ns").tolist() == [0, 3_000_000]


def test_rotated_logs_are_put_in_order(tmp_path):
    lines = conversation(4).lines
    for name, part in (("b.jsonl", lines[: len(lines) // 2]), ("a.jsonl", lines[len(lines) // 2 :])):
        Log(lines=part).write(tmp_path / name)
    run = load(tmp_path)
    assert [run.name(o) for o in run.llm] == ["ann", "bob", "ann#2", "bob#2"]
    assert run.edges(EdgeKind.CONTROL) == {("ann", "bob"), ("bob", "ann#2"), ("ann#2", "bob#2")}


def test_a_tool_that_failed_is_known_by_its_result_only(tmp_path):
    log = Log()
    log.start("Go")
    log.request("ann")
    first = [user("user", "Go")]
    calls = asked(("c1", "good", {"x": 1}), ("c2", "bad", {}))
    log.call("ann", first, calls=calls)
    request = [
        {"id": "c1", "name": "good", "arguments": '{"x": 1}'},
        {"id": "c2", "name": "bad", "arguments": "{}"},
    ]
    log.message(
        log.at("ann"), log.at("output_topic"), {"message": log.said("ann", request, "ToolCallRequestEvent")}
    )
    log.tool("ann", "good", {"x": 1}, "fine result")
    results = [
        {"call_id": "c1", "name": "good", "content": "fine result", "is_error": False},
        {"call_id": "c2", "name": "bad", "content": "boom", "is_error": True},
    ]
    log.message(
        log.at("ann"), log.at("output_topic"), {"message": log.said("ann", results, "ToolCallExecutionEvent")}
    )
    told = [{"role": "tool", "tool_call_id": r["call_id"], "content": r["content"]} for r in results]
    log.call(
        "ann", [*first, {"role": "assistant", "content": None, "tool_calls": calls}, *told], "all done now"
    )
    log.respond("ann", "all done now")
    log.end()
    run = load(log.write(tmp_path / "events.jsonl"))
    assert {(run.op(t)["name"], run.op(t)["status"]) for t in run.tools} == {
        ("good", OperationStatus.OK),
        ("bad", OperationStatus.ERROR),
    }
    assert {("good", "ann#2"), ("bad", "ann#2")} <= run.edges(EdgeKind.DATA)
