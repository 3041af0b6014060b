"""The backend http: replays against servers of raw bytes and against the witness."""

import contextlib
import json
import subprocess
import sys

import numpy as np
import pytest

from semtrace.build.builder import TraceBuilder
from semtrace.errors import ReplayError, UnsupportedError
from semtrace.graph.plan import Plan
from semtrace.live import backend as live_backend
from semtrace.live.backend import HttpBackend
from semtrace.measure.audit import audit
from semtrace.records.columns import NULL
from semtrace.records.enums import EventOutcome, Failure, FinishReason, OperationKind, Role
from semtrace.records.media import TOKEN_IDS_TYPE
from semtrace.replay.run import replay
from semtrace.replay.scenario import Scenario
from semtrace.store.digests import show, work_digest
from support import raw_server as raw
from support.graphs import graph
from support.raw_server import DONE, STREAM, as_json, event, plain, raw_server, tokens, usage

MS = 1_000_000
HOUR_NS = 3600 * 1000 * MS
VOCABULARY = {"first": 100, "size": 1000}


def good(asked, *, cached=None):
    """A whole answer of as many tokens as were asked for."""
    body = asked.json
    count, prompt = body["max_tokens"], len(body.get("prompt", [0] * 8))
    if not body.get("stream"):
        choices = [{"text": "x", "token_ids": list(range(count)), "finish_reason": "length"}]
        return [as_json({"choices": choices, "usage": {"prompt_tokens": prompt, "completion_tokens": count}})]
    parts = [tokens([each], finish="length" if each == count - 1 else None) for each in range(count)]
    return [STREAM + b"".join(parts) + usage(prompt, count, cached) + DONE]


def server_of(script):
    """A server that answers what is asked of it before a run, and follows a script with requests of the trace."""
    from support.raw_server import Asked

    def answer(asked: Asked):
        name = asked.header("x-request-id") or ""
        if name.startswith(("semtrace-ask", "semtrace-doctor", "semtrace-warm")):
            if asked.head.startswith("GET /v1/models "):
                return [as_json({"data": [{"id": "m", "max_model_len": 5000}]})]
            if asked.head.startswith("GET") or not asked.head.startswith("POST /v1/completions"):
                return [plain("404 Not Found", b"")]
            if not isinstance(asked.json.get("ignore_eos", True), bool):
                return [plain("400 Bad Request", b"")]
            return good(asked)
        return script(asked)

    return raw_server(answer)


def singles(count=1, prompt=8, output=3):
    made = TraceBuilder()
    for each in range(count):
        task = made.task(f"task {each}")
        row = made.operation(task, OperationKind.LLM, "call", prompt_tokens=prompt, output_tokens=output)
        made.segment(row, Role.USER, tokens=prompt)
    return made.build().trace


def scenario_of(url, *, settings=None, **members):
    settings = {"url": url, "vocabulary": VOCABULARY, **(settings or {})}
    values = {"tolerance_ns": HOUR_NS, **members, "backend": {"name": "http", "settings": settings}}
    return Scenario.parse(values, path="scenario")


def run(trace, url, **members):
    plan = Plan.parse({"work_digest": show(work_digest(trace)), "name": "dag", "base": "dag"}, path="plan")
    return replay(trace, plan, scenario_of(url, **members))


def violations(trace, execution):
    return [str(each) for each in audit(trace, execution, tolerance_ns=HOUR_NS).findings]


def requests_of(server):
    return [each for each in server.asked if (each.header("x-request-id") or "")[9:10].isdigit()]


def rows(execution, *names):
    return list(zip(*[execution.events.ints(name).tolist() for name in names], strict=True))


# --- what is sent --------------------------------------------------------------------------------------


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


# --- failures ------------------------------------------------------------------------------------------

WRONG = {
    "reset": (["reset"], Failure.RESET, EventOutcome.ERROR),
    "reset in the stream": ([STREAM + tokens([1]), 0.02, "reset"], Failure.RESET, EventOutcome.ERROR),
    "closed in the stream": ([STREAM + tokens([1]), "close"], Failure.RESET, EventOutcome.ERROR),
    "closed": (["close"], Failure.RESET, EventOutcome.ERROR),
    "truncated": ([STREAM + tokens([1]) + b"0\r\n\r\n"], Failure.TRUNCATED, EventOutcome.ERROR),
    "429": ([plain("429 Too Many Requests", b"")], Failure.RATE_LIMITED, EventOutcome.ERROR),
    "500": ([plain("500 Internal Server Error", b"")], Failure.SERVER_ERROR, EventOutcome.ERROR),
    "503": ([plain("503 Service Unavailable", b"")], Failure.SERVER_ERROR, EventOutcome.ERROR),
    "error in the stream": ([STREAM + event({"error": {"message": "m"}}) + DONE], Failure.SERVER_ERROR, EventOutcome.ERROR),
    "400": ([plain("400 Bad Request", b"{}")], Failure.REJECTED, EventOutcome.REFUSED),
    "404": ([plain("404 Not Found", b"")], Failure.REJECTED, EventOutcome.REFUSED),
    "not HTTP": ([b"SSH-2.0-OpenSSH\r\n", "close"], Failure.PROTOCOL, EventOutcome.ERROR),
    "not JSON": ([plain("200 OK", b"nonsense")], Failure.PROTOCOL, EventOutcome.ERROR),
    "gigantic head": ([b"HTTP/1.1 200 OK\r\nX: ", *[b"y" * 99_999] * 9, "hang"], Failure.PROTOCOL, EventOutcome.ERROR),
    "hangs": (["hang"], Failure.TIMEOUT, EventOutcome.TIMEOUT),
    "hangs in the stream": ([STREAM + tokens([1]), "hang"], Failure.TIMEOUT, EventOutcome.TIMEOUT),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_each_failure_is_an_outcome_and_what_waits_goes_on(wrong):
    """ST-LIV-041, ST-LIV-012: the default is to proceed."""
    steps, failure, outcome = WRONG[wrong]
    made = graph(
        {
            "operations": [
                {"name": "a", "kind": "llm", "prompt": 4, "output": 2, "content": "a"},
                {"name": "b", "kind": "llm", "prompt": 4, "output": 2, "content": "b", "after": ["a"]},
            ]
        }
    )
    with server_of(
        lambda asked: steps if asked.header("x-request-id").startswith("semtrace-0-0") else good(asked)
    ) as server:
        execution = run(made.trace, server.url, settings={"inputs": "synthetic"}, timeout_ns=700 * MS)
    assert rows(execution, "outcome", "failure", "attempts") == [
        (outcome, failure, 1),
        (EventOutcome.OK, NULL, 1),
    ]
    prompt, output = rows(execution, "prompt_tokens", "output_tokens")[0]
    assert (prompt, output) == (NULL, NULL)
    facts = execution.header.environment["requests"]
    assert facts["failed_attempts"] == {failure.name.lower(): 1}
    assert [each.partition(": ")[0] for each in facts["failures"]] == [failure.name.lower()]


def test_a_failed_attempt_is_made_again_after_its_wait():
    """ST-LIV-042, ST-LIV-030: the id of the second attempt; a first token stays where it was first seen."""
    seen = []

    def script(asked):
        seen.append(raw.time.monotonic_ns())
        return {
            "semtrace-0-0": [STREAM + tokens([1]) + b"0\r\n\r\n"],
            "semtrace-0-0-2": [plain("429 Too Many Requests", b"", "Retry-After: 1")],
            "semtrace-0-0-3": good(asked),
        }[asked.header("x-request-id")]

    trace = singles(1)
    with server_of(script) as server:
        execution = run(trace, server.url, retry={"attempts": 4, "wait_ns": 30 * MS, "factor": 3})
    assert rows(execution, "outcome", "failure", "attempts", "output_tokens") == [
        (EventOutcome.OK, NULL, 3, 3)
    ]
    assert seen[1] - seen[0] >= 30 * MS
    assert seen[2] - seen[1] >= 1000 * MS  # longer than 90 ms
    assert execution.events.data["request_id"].to_pylist() == ["semtrace-0-0-3"]
    submitted, first, finished = rows(execution, "submitted_ns", "first_token_ns", "finished_ns")[0]
    assert submitted < first < submitted + 1030 * MS < finished
    assert execution.header.environment["requests"]["failed_attempts"] == {"truncated": 1, "rate_limited": 1}
    assert violations(trace, execution) == []


@pytest.mark.parametrize("other", ["hangs", "waits for another attempt"])
def test_what_is_called_off_does_not_keep_the_run_from_its_end(other):
    """ST-LIV-012: nothing more of the instance is run."""
    steps = ["hang"] if other == "hangs" else [plain("429 Too Many Requests", b"", "Retry-After: 3000")]
    made = graph(
        {
            "operations": [
                {"name": name, "kind": "llm", "prompt": 4, "output": 2, "content": name} for name in "ab"
            ]
        }
    )

    def script(asked):
        if asked.header("x-request-id") == "semtrace-0-1":
            return [0.1, plain("400 Bad Request", b"")]
        return steps

    with server_of(script) as server:
        execution = run(
            made.trace,
            server.url,
            settings={"inputs": "synthetic"},
            on_failure="fail",
            retry={"attempts": 2, "wait_ns": HOUR_NS},
        )
    assert rows(execution, "outcome") == [(EventOutcome.CANCELLED,), (EventOutcome.REFUSED,)]


def test_kinds_of_failures_are_told_apart_but_not_without_end():
    def script(asked):
        number = asked.header("x-request-id").split("-")[1]
        return [
            as_json(
                {"error": {"type": f"Kind{number}", "message": "the prompt"}}, "500 Internal Server Error"
            )
        ]

    with server_of(script) as server:
        execution = run(singles(1), server.url, copies=50)
    failures = execution.header.environment["requests"]["failures"]
    assert sum(failures.values()) == 50
    assert failures["server_error: others"] == 18
    assert len(failures) == 33
    assert "the prompt" not in json.dumps(execution.header.as_json())


def test_attempts_end_and_what_is_not_named_is_not_made_again():
    """ST-LIV-042."""
    trace = singles(1)
    with server_of(lambda _: [plain("500 Internal Server Error", b"")]) as server:
        execution = run(trace, server.url, retry={"attempts": 3, "wait_ns": MS})
        assert rows(execution, "outcome", "failure", "attempts") == [
            (EventOutcome.ERROR, Failure.SERVER_ERROR, 3)
        ]
        assert len(requests_of(server)) == 3
        execution = run(trace, server.url, retry={"attempts": 3, "wait_ns": MS, "on": ["reset"]})
        assert rows(execution, "attempts") == [(1,)]
    with server_of(lambda _: [plain("400 Bad Request", b"")]) as server:
        execution = run(trace, server.url, retry={"attempts": 3, "wait_ns": MS})
        assert rows(execution, "attempts") == [(1,)]
    with server_of(lambda _: ["hang"]) as server:
        execution = run(
            trace, server.url, timeout_ns=50 * MS, retry={"attempts": 2, "wait_ns": MS, "on": ["timeout"]}
        )
        assert rows(execution, "outcome", "failure", "attempts") == [
            (EventOutcome.TIMEOUT, Failure.TIMEOUT, 2)
        ]


def test_a_server_that_dies_during_the_run():
    trace = singles(6)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(server_of(good))

        def progress(done, _):
            if done == 1:
                stack.close()

        plan = Plan.parse(
            {"work_digest": show(work_digest(trace)), "name": "dag", "base": "dag"}, path="plan"
        )
        arrivals = {"kind": "drawn", "times_ns": [0, *range(400 * MS, 405 * MS, MS)]}
        execution = replay(trace, plan, scenario_of(server.url, arrivals=arrivals), progress=progress)
    assert rows(execution, "outcome", "failure")[0] == (EventOutcome.OK, NULL)
    for outcome, failure in rows(execution, "outcome", "failure")[1:]:
        assert outcome == EventOutcome.ERROR
        assert failure in (Failure.CONNECTION, Failure.RESET)


# --- limits --------------------------------------------------------------------------------------------


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


# --- what is refused before the run ----------------------------------------------------------------------


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


# --- the witness ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def witness(folder, script=None):
    """The witness in a process of its own; gives its URL."""
    file = folder / "script.json"
    file.write_text(json.dumps(script or {"service": {"first_token_ns": MS, "token_ns": 10_000}}))
    command = [sys.executable, "-m", "semtrace_conformance.witness", "--script", str(file)]
    command += ["--record", str(folder / "record.jsonl"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield f"http://127.0.0.1:{json.loads(child.stdout.readline())['port']}"
        finally:
            child.terminate()
            child.communicate()


EOS = 2


def locked_trace():
    made = TraceBuilder()
    rows_ = []
    for each, (ids, reason) in enumerate(
        [([900, 2, 901, 902], FinishReason.LENGTH), ([77, 78, EOS], FinishReason.STOP)]
    ):
        task = made.task(f"task {each}")
        row = made.operation(
            task, OperationKind.LLM, "call", prompt_tokens=5, output_tokens=len(ids), finish_reason=reason
        )
        for name, values in (("prompt", [20 + each, 21, 22, 23, 24]), ("output", ids)):
            held = made.artifact(np.array(values, "<u4").tobytes(), TOKEN_IDS_TYPE)
            if name == "prompt":
                made.segment(row, Role.USER, token_ids=held, token_ids_start=0, tokens=5)
            else:
                made.update_operation(row, output_token_ids=held)
        rows_.append(row)
    return made.build().trace


def test_recorded_tokens_come_back_from_a_server_that_can_be_told(tmp_path):
    """ST-LIV-021, ST-LIV-022."""
    trace = locked_trace()
    with witness(tmp_path) as url:
        execution = run(trace, url, mode="token_locked", copies=3, settings={"vocabulary": None})
    assert violations(trace, execution) == []
    assert (
        rows(execution, "finish_reason", "output_tokens")
        == [(FinishReason.LENGTH, 4)] * 3 + [(FinishReason.STOP, 3)] * 3
    )
    facts = execution.header.environment
    assert facts["requests"]["lock"] == "logits_processor"
    assert facts["requests"]["inputs"] == "token_ids"
    assert execution.header.backend.settings["lock"] == "logits_processor"


def test_a_graph_on_the_witness_holds_its_order_and_its_lengths(tmp_path):
    """ST-LIV-004, ST-LIV-005."""
    made = graph(
        {
            "tasks": [{}, {}],
            "operations": [
                {"name": "plan", "task": 0, "kind": "llm", "prompt": 30, "output": 4, "content": "p"},
                {"name": "tool", "task": 0, "duration_ns": 3 * MS, "after": ["plan"]},
                *[
                    {"name": f"b{each}", "task": 0, "kind": "llm", "prompt": 20, "output": 3, "content": f"b{each}", "after": ["tool"]}
                    for each in range(40)
                ],
                {"name": "early", "task": 0, "kind": "llm", "prompt": 9, "output": 3, "content": "e",
                 "after": [{"source": "plan", "trigger": "first_token", "lag_ns": MS}, {"source": "plan", "trigger": "start"}]},
                {"name": "join", "task": 0, "kind": "llm", "prompt": 9, "output": 2, "content": "j", "delay_ns": MS,
                 "after": [f"b{each}" for each in range(40)]},
                {"name": "embed", "task": 1, "kind": "embed", "prompt": 12, "content": "x"},
            ],
        }
    )  # fmt: skip
    with witness(tmp_path) as url:
        execution = run(made.trace, url, copies=5, settings={"inputs": "synthetic", "vocabulary": None})
    assert violations(made.trace, execution) == []
    assert set(execution.events.ints("outcome").tolist()) == {EventOutcome.OK}
    assert execution.header.clock == "wall"
    tool = made.rows["tool"]
    at = execution.events.ints("operation") == tool
    took = execution.events.ints("finished_ns")[at] - execution.events.ints("submitted_ns")[at]
    assert (took == 3 * MS).all()


def test_a_run_that_is_stopped_leaves_what_had_ended(tmp_path):
    """ST-LIV-013."""
    trace = singles(40)
    plan = Plan.parse({"work_digest": show(work_digest(trace)), "name": "dag", "base": "dag"}, path="plan")
    clocks = []

    def progress(done, _):
        if done == 10:
            clocks[0].stop()

    with witness(tmp_path) as url:
        arrivals = {"kind": "poisson", "mean_ns": 2 * MS}
        execution = replay(
            trace, plan, scenario_of(url, arrivals=arrivals), progress=progress, started=clocks.append
        )
    outcomes = execution.events.ints("outcome")
    assert 10 <= (outcomes == EventOutcome.OK).sum() < 40
    assert ((outcomes == EventOutcome.OK) | (outcomes == EventOutcome.UNFINISHED)).all()


def test_a_stop_before_time_0_ends_the_warm_up():
    """ST-LIV-013."""
    trace = singles(3)
    clocks = []

    def answer(asked):
        if (asked.header("x-request-id") or "").startswith("semtrace-warm"):
            clocks[0].stop()
            return ["hang"]
        if asked.head.startswith("GET /v1/models"):
            return [as_json({"data": [{"id": "m"}]})]
        return good(asked) if asked.head.startswith("POST /v1/completions") else [plain("404 Not Found", b"")]

    plan = Plan.parse({"work_digest": show(work_digest(trace)), "name": "dag", "base": "dag"}, path="plan")
    with raw_server(answer) as server:
        execution = replay(trace, plan, scenario_of(server.url), started=clocks.append)
        assert requests_of(server) == []
    assert rows(execution, "outcome") == [(EventOutcome.UNFINISHED,)] * 3


def test_nothing_is_sent_until_it_is_asked(tmp_path):
    """Making the backend reads settings only."""
    from semtrace.replay.arrivals import instances, settle
    from semtrace.replay.backend import Setup

    trace = singles(1)
    with server_of(good) as server:
        scenario = settle(trace, scenario_of(server.url))
        backend = HttpBackend(Setup(trace, scenario, instances(trace, scenario)), {})
        assert backend.facts().settings["url"] == server.url
        assert backend.modes == {"length_locked", "token_locked"}
        backend.close()
        backend.close()
        assert server.connections == 0
