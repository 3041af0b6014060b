"""The backend http: what is sent and read, and what is refused before anything is."""

import json

import numpy as np
import pytest

from semtrace.build.builder import TraceBuilder
from semtrace.errors import ReplayError, UnsupportedError
from semtrace.live import backend as live_backend
from semtrace.records.columns import NULL
from semtrace.records.enums import EventOutcome, Failure, FinishReason, OperationKind, Role
from support.graphs import graph
from support.live_runs import good, locked_trace, requests_of, rows, run, server_of, singles, violations
from support.raw_server import DONE, STREAM, as_json, event, plain, raw_server, tokens, usage


def test_a_request_asks_for_exactly_the_recorded_work():
    """ST-LIV-020, ST-LIV-030."""
    trace = singles(2, prompt=9, output=3)
    with server_of(good) as server:
        execution = run(trace, f"{server.url}/v1", copies=2)
    asked = requests_of(server)
    assert sorted(each.header("x-request-id") for each in asked) == [
        f"semtrace-{i}-{i // 2}" for i in range(4)
    ]
    for each in asked:
        body = each.json
        assert each.head.startswith("POST /v1/completions HTTP/1.1\r\n")
        assert each.header("host") == f"127.0.0.1:{server.port}"
        assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"]) == (3, 3, True)
        assert (body["model"], body["temperature"], body["stream"]) == ("m", 0, True)
        assert body["stream_options"] == {"include_usage": True}
        assert len(body["prompt"]) == 9
        assert all(100 <= token < 1000 for token in body["prompt"])
    assert violations(trace, execution) == []


def test_counts_ids_and_reason_are_those_that_the_server_told():
    """ST-LIV-023: also where they are wrong."""

    def script(asked):
        return {
            0: [STREAM + tokens([5, 6], finish="stop") + usage(77, 2, 4) + DONE],
            1: [STREAM + event({"choices": [{"text": "x", "finish_reason": "length"}]}) + DONE],
            2: good(asked),
        }[int(asked.header("x-request-id").split("-")[1])]

    trace = singles(3)
    with server_of(script) as server:
        execution = run(trace, server.url)
    told = rows(execution, "prompt_tokens", "output_tokens", "cached_tokens", "finish_reason", "outcome")
    assert told == [
        (77, 2, 4, FinishReason.STOP, EventOutcome.OK),
        (NULL, NULL, NULL, FinishReason.LENGTH, EventOutcome.OK),
        (8, 3, NULL, FinishReason.LENGTH, EventOutcome.OK),
    ]
    content = [execution.content.get(digest) for digest in sorted(execution.content)]
    ids = execution.events.ints("output_ids").tolist()
    assert [None if at == NULL else np.frombuffer(content[at], "<u4").tolist() for at in ids] == [
        [5, 6],
        None,
        [0, 1, 2],
    ]
    assert violations(trace, execution)  # the audit finds both


def test_equal_outputs_are_kept_once():
    trace = singles(1)
    with server_of(good) as server:
        execution = run(trace, server.url, copies=20)
    assert len(list(execution.content)) == 1
    assert len(set(execution.events.ints("output_ids").tolist())) == 1


def test_without_streams_the_first_token_is_not_known():
    trace = singles(1)
    with server_of(good) as server:
        execution = run(trace, server.url, settings={"stream": False})
    assert rows(execution, "first_token_ns", "output_tokens", "prompt_tokens") == [(NULL, 3, 8)]
    assert not requests_of(server)[0].json["stream"]
    assert execution.header.environment["requests"]["stream"] is False
    assert violations(trace, execution) == []


@pytest.mark.parametrize("inputs", ["auto", "text"])
def test_a_server_of_embeddings_alone(inputs):
    made = TraceBuilder()
    row = made.operation(made.task("t"), OperationKind.EMBED, "embed", prompt_tokens=3)
    made.segment(row, Role.USER, "three short words", tokens=3)
    trace = made.build().trace

    def script(asked):
        if asked.head.startswith("GET /v1/models"):
            return [as_json({"data": [{"id": "m"}]})]
        if not asked.head.startswith("POST /v1/embeddings"):
            return [plain("404 Not Found", b"")]
        count = 3 if isinstance(asked.json["input"], str) else len(asked.json["input"])
        return [as_json({"data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": count}})]

    with raw_server(script) as server:
        execution = run(trace, server.url, settings={"inputs": inputs})
        sent = requests_of(server)[0].json
    assert rows(execution, "outcome", "prompt_tokens", "output_tokens") == [(EventOutcome.OK, 3, NULL)]
    assert sent == {"model": "m", "input": "three short words"}
    assert violations(trace, execution) == []


HINTED = {
    "tasks": [{}, {}],
    "stages": [{"name": "s", "task": 1}],
    "operations": [
        {"name": "other", "task": 0, "kind": "llm", "prompt": 4, "output": 2, "content": "a"},
        {
            "name": "ask",
            "task": 1,
            "kind": "llm",
            "prompt": 4,
            "output": 2,
            "stage": "s",
            "session": "z",
            "content": "b",
        },
        {"name": "short", "task": 1, "duration_ns": 5, "after": ["ask"]},
        {"name": "long", "task": 1, "duration_ns": 7, "after": ["ask"]},
        {"name": "both", "task": 1, "duration_ns": 90, "after": ["short", "ask"]},
    ],
}


@pytest.mark.parametrize("hints", [True, False])
def test_hints_are_sent_when_they_are_asked_for(hints):
    """ST-LIV-031."""
    made = graph(HINTED)
    with server_of(good) as server:
        run(made.trace, server.url, settings={"hints": hints, "inputs": "synthetic"}, copies=2)
    by_name = {each.header("x-request-id"): each for each in requests_of(server)}
    sent = {
        name: [each.header(f"x-semtrace-{hint}") for hint in ("task", "stage", "session", "tool-ns")]
        for name, each in by_name.items()
    }
    if hints:
        assert sent["semtrace-3-1"] == ["3-1", "3-0", "3-0", "7"]
        assert sent["semtrace-0-0"] == ["0-0", None, None, None]
    else:
        assert all(value is None for values in sent.values() for value in values)


def test_the_key_is_sent_and_is_nowhere_else(monkeypatch, capsys):
    """ST-LIV-032."""
    monkeypatch.setenv("SOME_KEY", "sk-secret-123")

    def script(asked):
        return [
            as_json(
                {"error": {"message": "Incorrect API key provided: sk-secret-123", "code": "sk-secret-123"}},
                "401 Unauthorized",
            )
        ]

    trace = singles(1)
    with server_of(script) as server:
        execution = run(trace, server.url, settings={"api_key_env": "SOME_KEY"})
    assert {each.header("authorization") for each in server.asked} == {"Bearer sk-secret-123"}
    assert rows(execution, "outcome", "failure") == [(EventOutcome.REFUSED, Failure.REJECTED)]
    assert "secret" not in json.dumps(execution.header.as_json())
    assert execution.header.environment["requests"]["failures"] == {"rejected: status 401 (***)": 1}
    assert execution.header.backend.settings["api_key_env"] == "SOME_KEY"
    with (
        raw_server(lambda _: [plain("401 Unauthorized", b"sk-secret-123")]) as server,
        pytest.raises(ReplayError) as caught,
    ):
        run(trace, server.url, settings={"api_key_env": "SOME_KEY"})
    assert "secret" not in f"{caught.value} {caught.value!r} {caught.value.as_dict()}"
    assert "not taken" in str(caught.value)
    out = capsys.readouterr()
    assert "secret" not in out.out + out.err


def test_requests_wait_for_connections_and_say_so():
    """ST-LIV-002: submitted when it was sent, not when it was wanted."""
    trace = singles(5)
    with server_of(lambda asked: [0.03, *good(asked)]) as server:
        execution = run(trace, server.url, settings={"connections": 1}, warm_up=0)
    submitted, finished = (np.sort(execution.events.ints(name)) for name in ("submitted_ns", "finished_ns"))
    assert (submitted[1:] >= finished[:-1]).all()
    assert execution.header.environment["connections"]["waited"] == 4
    assert violations(trace, execution) == []


def test_requests_are_made_before_they_are_due():
    trace = singles(30)
    with server_of(good) as server:
        execution = run(trace, server.url)
    facts = execution.header.environment["requests"]
    assert (facts["made_ahead"], facts["made_late"], facts["warm_up"]) == (30, 0, live_backend.WARM_UP)
    assert facts["prompt_counts"] == {"equal": 30}
    counts = execution.header.environment["connections"]
    assert (counts["opened_late"], counts["waited"], counts["resent"]) == (0, 0, 0)


def refusal(trace, url, kind=ReplayError, **members):
    with pytest.raises(kind) as caught:
        run(trace, url, **members)
    return caught.value


def test_what_cannot_be_sent_is_refused_before_anything_is():
    """ST-LIV-024, ST-LIV-025."""
    with server_of(good) as server:
        error = refusal(singles(2, output=0), server.url)
        assert (error.requirement, error.code) == ("ST-LIV-024", "replay.refused")
        assert "operations.output_tokens[0, 1]" in str(error)
        error = refusal(singles(3, prompt=5000, output=10), server.url)
        assert (error.requirement, "5010 tokens" in str(error), "(3 rows)" in str(error)) == (
            "ST-LIV-025",
            True,
            True,
        )
        assert refusal(singles(), server.url, settings={"vocabulary": None}).requirement == "ST-INP-010"
        assert requests_of(server) == []


def test_token_locks_need_a_server_that_has_one():
    """ST-LIV-021."""
    with server_of(good) as server:
        error = refusal(locked_trace(), server.url, UnsupportedError, mode="token_locked")
        assert error.requirement == "ST-LIV-021"
        assert "others came" in str(error)
        error = refusal(
            locked_trace(),
            server.url,
            UnsupportedError,
            mode="token_locked",
            settings={"lock": "trace_replay"},
        )
        assert "logits_processor" not in str(error).partition("(")[2]
        assert requests_of(server) == []


def test_models():
    def listing(*names):
        def script(asked):
            if asked.head.startswith("GET /v1/models"):
                return [as_json({"data": [{"id": each} for each in names]})]
            return [plain("404 Not Found", b"")]

        return raw_server(script)

    for names, settings, message in (
        ([], {}, "lists none"), (["a", "b"], {}, "lists a, b"), (["a"], {"model": "c"}, "it has a"),
        (["\x1b[1m\na", *"bcdefghijklm"], {}, "lists [1m a, b, c, d, e, f, g, h, i, j and 3 more"),
    ):  # fmt: skip
        with listing(*names) as server:
            error = refusal(singles(), server.url, settings=settings)
            assert (error.code, error.path) == ("live.model", "backend.settings.model")
            assert message in str(error)
            assert "URL" not in str(error)
    with raw_server(lambda _: [plain("404 Not Found", b"")]) as server:
        error = refusal(singles(), f"{server.url}/v1/chat/completions")
        assert "lists none (GET /v1/models: status 404)" in error.message
        assert "the URL not that of the server alone" in (error.hint or "")
    with listing("a") as server:
        error = refusal(singles(), server.url)  # it lists a model, and has no interface to it
        assert error.requirement == "ST-LIV-025"
        assert "status 404" in str(error)


@pytest.mark.parametrize("steps", [["close"], ["reset"], [b"SSH-2.0-x\r\n", "close"]])
def test_servers_that_are_none(steps):
    with raw_server(lambda _: steps) as server:
        error = refusal(singles(), server.url)
        assert (error.code, error.path) == ("live.unreachable", server.url)
        assert error.hint


def test_a_server_that_does_not_answer_when_it_is_warmed_up():
    def script(asked):
        if (asked.header("x-request-id") or "").startswith("semtrace-warm"):
            return [plain("500 Internal Server Error", b"")]
        raise AssertionError

    with server_of(good) as known:
        inner = known

        def through(asked):
            name = asked.header("x-request-id") or ""
            if name.startswith("semtrace-warm"):
                return script(asked)
            if asked.head.startswith("GET /v1/models"):
                return [as_json({"data": [{"id": "m"}]})]
            return (
                good(asked)
                if asked.head.startswith("POST /v1/completions")
                else [plain("404 Not Found", b"")]
            )

        with raw_server(through) as server:
            error = refusal(singles(), server.url)
        assert inner.asked == []
    assert error.code == "live.warm_up"
    assert "status 500" in str(error)
