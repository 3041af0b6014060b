"""The backend http: each way in which a server fails, what becomes of it, and what goes on."""

import contextlib
import json

import pytest

from semtrace.graph.plan import Plan
from semtrace.records.columns import NULL
from semtrace.records.enums import EventOutcome, Failure
from semtrace.replay.run import replay
from semtrace.store.digests import show, work_digest
from support import raw_server as raw
from support.graphs import graph
from support.live_runs import (
    HOUR_NS,
    MS,
    good,
    requests_of,
    rows,
    run,
    scenario_of,
    server_of,
    singles,
    violations,
)
from support.raw_server import DONE, STREAM, as_json, event, plain, tokens

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
