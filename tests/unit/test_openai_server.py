"""The test server: what it answers and logs is a function of what it is sent."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from servers.launch import SERVER, start_server
from servers.openai_server import Settings, count_tokens, decide, prompt_tokens

TOOLS = [
    {"type": "function", "function": {"name": n, "parameters": {"type": "object", "properties": p}}}
    for n, p in (
        ("look", {"city": {"type": "string", "enum": ["Oslo"]}, "days": {"type": "integer", "minimum": 3}}),
        ("count", {"deep": {"type": "array", "items": {"type": "boolean"}}}),
        ("transfer_to_desk", {}),
    )
]


def body(*texts: str, system: str | None = None, **extra: object):
    messages = [{"role": "user", "content": text} for text in texts]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return {"model": "gpt-4o", "messages": messages, **extra}


def answer(request, rules=(), identity="x"):
    return decide(request, Settings.parse({"rules": list(rules)}).rules, identity)


def post(url, payload, path="/chat/completions"):
    at = urlsplit(url)
    connection = http.client.HTTPConnection(at.hostname, at.port, timeout=10)
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    connection.request("POST", at.path + path, data, {"authorization": "Bearer secret", "x-test": "yes"})
    response = connection.getresponse()
    text = response.read()
    connection.close()
    return response, text


@pytest.fixture
def server(tmp_path):
    rules = {
        "rules": [["hello (\\w+)", "to \\1"], {"match": "quiet", "where": "system", "reply": "hush"}],
        "faults": [
            {"match": "unlucky", "status": 429, "retry_after_s": 0.5},
            {"match": "unlucky", "status": 500},
            {"request": 1, "status": 200, "delay_ms": 60},
        ],
        "models": ["m1", "m2"],
        "output_us": 100.0,
    }
    (tmp_path / "rules.json").write_text(json.dumps(rules), encoding="utf-8")
    with start_server(tmp_path / "access.jsonl", tmp_path / "rules.json") as running:
        yield running


def test_tokens_are_counted_by_the_rule():
    assert count_tokens("") == 0
    assert count_tokens("to be, or") == 4
    assert count_tokens("abcdefghijk") == 3
    assert count_tokens("a_b") == 3
    assert prompt_tokens(body("to be")) == 3 + 3 + 2
    assert prompt_tokens(body("to be", tools=TOOLS)) > prompt_tokens(body("to be"))


def test_replies_are_functions_of_the_messages():
    assert answer(body("a")) == answer(body("a"))
    assert answer(body("a")).text != answer(body("b")).text
    assert answer(body("a", system="You are the clerk. <<tokens=40>> <<say=DONE>>")).text.startswith(
        "report of clerk: "
    )
    text = answer(body("a", system="You are x. <<tokens=40>> <<say=DONE>>")).text
    assert text.endswith(". DONE")
    assert 40 <= count_tokens(text) <= 43


def test_rules_come_first_and_fill_in_groups():
    assert answer(body("say hello world"), [["hello (\\w+)", "to \\1"]]).text == "to world"
    rule = {"match": "quiet", "where": "system", "reply": "hush"}
    assert answer(body("quiet"), [rule]).text != "hush"
    assert answer(body("a", system="be quiet"), [rule]).text == "hush"


def test_tools_are_called_once_and_handoffs_are_not():
    reply = answer(body("a", tools=TOOLS))
    assert [c["function"]["name"] for c in reply.calls] == ["look", "count"]
    arguments = [json.loads(c["function"]["arguments"]) for c in reply.calls]
    assert arguments[0]["city"] == "Oslo"
    assert 3 <= arguments[0]["days"] < 13
    assert isinstance(arguments[1]["deep"][0], bool)
    assert (
        len(
            {c["id"] for c in reply.calls}
            | {c["id"] for c in answer(body("a", tools=TOOLS), identity="y").calls}
        )
        == 4
    )
    after = body("a", tools=TOOLS)
    after["messages"] += [{"role": "assistant", "tool_calls": reply.calls}, {"role": "tool", "content": "r"}]
    assert answer(after).calls == []
    assert answer(body("a", tools=TOOLS, tool_choice="none")).calls == []


def test_cues_plan_rounds_of_calls():
    request = body("a", system="<<call=count>> <<call=transfer_to_desk>>", tools=TOOLS)
    for wanted in (["count"], ["transfer_to_desk"], []):
        reply = answer(request)
        assert [c["function"]["name"] for c in reply.calls] == wanted
        request["messages"].append({"role": "assistant", "tool_calls": reply.calls})
    assert answer(body("a", system="<<call=none>>", tools=TOOLS)).calls == []


def test_selector_and_ledgers():
    prompt = "select the next role from ['ann', 'bob'] to play"
    assert answer(body(prompt)).text == "ann"
    assert answer(body(f"ann: hi\n{prompt}")).text == "bob"
    ask = 'answer "is_request_satisfied" and "next_speaker" (select from: ann, bob) as JSON'
    ledger = json.loads(answer(body("report of ann: x", ask)).text)
    assert ledger["next_speaker"]["answer"] == "bob"
    assert ledger["is_request_satisfied"]["answer"] is False
    done = json.loads(answer(body("report of ann: x", "report of bob: y", ask)).text)
    assert done["is_request_satisfied"]["answer"] is True


def test_structured_output_fits_its_schema():
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"anyOf": [{"type": "null"}, {"type": "string"}]}},
        "$defs": {"A": {"type": "string", "enum": ["x", "y"]}},
    }
    wanted = {"type": "json_schema", "json_schema": {"schema": schema}}
    made = json.loads(answer(body("q", response_format=wanted)).text)
    assert made["a"] in {"x", "y"}
    assert made["b"] is None


def test_an_answer_and_its_log(server):
    _, raw = post(server.url, body("say hello world"))
    got = json.loads(raw)
    assert got["choices"][0]["message"] == {"role": "assistant", "content": "to world"}
    assert got["usage"] == {
        "prompt_tokens": 9,
        "completion_tokens": 2,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    (entry,) = server.entries()
    assert entry["request"] == body("say hello world")
    assert entry["response"] == got
    assert (entry["id"], entry["ordinal"], entry["status"]) == (got["id"], 1, 200)
    assert "authorization" not in entry["headers"]
    assert entry["headers"]["x-test"] == "yes"
    # 60 ms by the rule for the first request, and the service time of its tokens.
    assert entry["done_unix_ns"] - entry["arrival_unix_ns"] >= 60_000_000


def test_streaming(server):
    usage = {"include_usage": True}
    response, raw = post(server.url, body("say hello world", stream=True, stream_options=usage))
    assert response.getheader("content-type") == "text/event-stream"
    events = [line[6:] for line in raw.decode().split("\n\n") if line]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "to "}
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1]) == "to world"
    assert chunks[-1]["usage"]["completion_tokens"] == 2
    assert server.entries()[0]["usage"] == chunks[-1]["usage"]
    _, raw = post(server.url, body("say hello world", stream=True))
    assert b"usage" not in raw


def test_streamed_tool_calls(server):
    _, raw = post(server.url, body("a", stream=True, tools=TOOLS))
    chunks = [json.loads(line[6:]) for line in raw.decode().split("\n\n") if line and "[DONE]" not in line]
    calls = [c for chunk in chunks for c in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert [(c["index"], c["function"]["name"]) for c in calls] == [(0, "look"), (1, "count")]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_faults_on_cue(server):
    statuses = []
    for _ in range(3):
        response, raw = post(server.url, body("unlucky"))
        statuses.append(response.status)
        if response.status == 429:
            assert response.getheader("retry-after") == "0.5"
            assert json.loads(raw)["error"]["type"] == "rate_limit_error"
    assert statuses == [429, 500, 200]
    assert [e["status"] for e in server.entries()] == statuses


@pytest.mark.parametrize(
    "payload",
    [
        b"not json",
        b"[]",
        {"messages": []},
        {"model": "m"},
        body("a", n=2),
        {"model": "m", "messages": [{"content": "x"}]},
    ],
)
def test_bad_requests(server, payload):
    response, raw = post(server.url, payload)
    assert response.status == 400
    assert json.loads(raw)["error"]["message"]
    assert server.entries()[0]["status"] == 400


def test_other_paths(server):
    assert post(server.url, {}, "/nothing")[0].status == 404
    at = urlsplit(server.url)
    connection = http.client.HTTPConnection(at.hostname, at.port, timeout=10)
    connection.request("GET", "/v1/models")
    assert [m["id"] for m in json.loads(connection.getresponse().read())["data"]] == ["m1", "m2"]
    connection.request("GET", "/v1/models")  # the connection is kept
    assert connection.getresponse().status == 200
    connection.close()


def test_a_broken_rules_file_is_refused(tmp_path):
    (tmp_path / "rules.json").write_text('{"rules": [["(", "x"]]}', encoding="utf-8")
    with (
        pytest.raises(RuntimeError, match="did not start"),
        start_server(tmp_path / "a.jsonl", tmp_path / "rules.json"),
    ):
        pass


def test_help():
    done = subprocess.run([sys.executable, str(SERVER), "--help"], capture_output=True, text=True, check=True)
    assert "--rules" in done.stdout
