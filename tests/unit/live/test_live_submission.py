"""The backend http: when an operation is submitted that has to wait for a connection, or gets none at first."""

import contextlib

import numpy as np
import pytest

from semtrace.check.bundles import check_bundle
from semtrace.graph.plan import dag
from semtrace.measure.audit import audit
from semtrace.records.columns import NULL
from semtrace.records.enums import EventOutcome, Failure
from semtrace.replay.run import replay
from semtrace.store.bundle import open_bundle, write_bundle
from semtrace.store.digests import show, work_digest
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
    witness,
)
from support.raw_server import DONE, STREAM, event, tokens

ONE = {"inputs": "synthetic", "connections": 1}


def call(name, **more):
    return {"name": name, "kind": "llm", "prompt": 4, "output": 2, "content": name, **more}


def test_a_trigger_start_counts_from_when_the_request_goes_out():
    """ST-LIV-044."""
    calls = [call(name) for name in "abc"]
    tools = [
        {"name": f"with {name}", "duration_ns": MS, "after": [{"source": name, "trigger": "start", "lag_ns": MS}]}
        for name in "abc"
    ]  # fmt: skip
    made = graph({"operations": [*calls, *tools]})
    with server_of(lambda asked: [0.03, *good(asked)]) as server:
        execution = run(made.trace, server.url, settings=ONE, warm_up=0)
    assert execution.header.environment["connections"]["waited"] == 2
    submitted, ready = (execution.events.ints(name) for name in ("submitted_ns", "ready_ns"))
    assert (ready[3:] == submitted[:3] + MS).all()
    assert violations(made.trace, execution) == []


def test_what_waits_for_a_connection_is_skipped_and_never_sent():
    """ST-LIV-012: they were released, but not submitted yet; the connection that the failure leaves is not for them."""
    token = [{"source": "a", "trigger": "first_token"}]
    made = graph({"operations": [call("a"), call("b", after=token), call("c", after=token), call("d", after=["c"])]})  # fmt: skip

    def script(asked):
        if asked.header("x-request-id") == "semtrace-0-0":
            return [STREAM + tokens([1]), 0.5, event({"error": {"message": "m"}}) + DONE]
        return good(asked)

    with server_of(script) as server:
        execution = run(made.trace, server.url, settings=ONE, on_failure="skip", warm_up=0)
        sent = [each.header("x-request-id") for each in requests_of(server)]
    assert sent == ["semtrace-0-0"]
    assert rows(execution, "outcome") == [(EventOutcome.ERROR,), *[(EventOutcome.SKIPPED,)] * 3]
    assert rows(execution, "submitted_ns", "finished_ns")[1:] == [(NULL, NULL)] * 3
    assert execution.events.data["request_id"].to_pylist() == [*sent, None, None, None]
    told = audit(made.trace, execution, tolerance_ns=HOUR_NS).findings
    assert {each.requirement for each in told} == {"ST-AUD-003"}


def test_an_instance_that_is_given_up_lets_nothing_out_that_waited():
    """ST-LIV-012: calling the first off makes no room for the second."""
    made = graph({"operations": [call("a"), call("b"), call("c"), call("d")]})

    def script(asked):
        if asked.header("x-request-id") == "semtrace-0-0":
            return [STREAM + tokens([1]), 0.1, event({"error": {"message": "m"}}) + DONE]
        return ["hang"]

    with server_of(script) as server:
        settings = {**ONE, "connections": 2}
        execution = run(made.trace, server.url, settings=settings, on_failure="fail", warm_up=0)
        sent = sorted(each.header("x-request-id") for each in requests_of(server))
    assert rows(execution, "outcome")[:2] == [(EventOutcome.ERROR,), (EventOutcome.CANCELLED,)]
    assert sent == ["semtrace-0-0", "semtrace-0-1"]
    assert rows(execution, "outcome", "submitted_ns")[2:] == [(EventOutcome.SKIPPED, NULL)] * 2


def test_a_timeout_lets_nothing_out_that_waits_for_it():
    """ST-LIV-012: the connection that is closed then makes room for what does not wait for it."""
    token = [{"source": "a", "trigger": "first_token"}]
    made = graph({"operations": [call("a"), call("b", after=token), call("c")]})

    def script(asked):
        if asked.header("x-request-id") == "semtrace-0-0":
            return [STREAM + tokens([1]), "hang"]
        return good(asked)

    with server_of(script) as server:
        execution = run(
            made.trace, server.url, settings=ONE, on_failure="skip", timeout_ns=300 * MS, warm_up=0
        )
        sent = [each.header("x-request-id") for each in requests_of(server)]
    assert sent == ["semtrace-0-0", "semtrace-0-2"]
    assert rows(execution, "outcome") == [
        (EventOutcome.TIMEOUT,),
        (EventOutcome.SKIPPED,),
        (EventOutcome.OK,),
    ]


def test_what_still_waits_for_a_connection_at_a_stop_was_not_sent():
    """ST-LIV-030."""
    trace = singles(2)
    clocks = []

    def script(asked):
        clocks[0].stop()
        return ["hang"]

    with server_of(script) as server:
        scenario = scenario_of(server.url, settings={"connections": 1}, warm_up=0)
        execution = replay(trace, dag(show(work_digest(trace))), scenario, started=clocks.append)
        sent = [each.header("x-request-id") for each in requests_of(server)]
    assert rows(execution, "outcome") == [(EventOutcome.UNFINISHED,)] * 2
    assert execution.events.data["request_id"].to_pylist() == [*sent, None] == ["semtrace-0-0", None]


def test_a_time_limit_begins_when_the_request_goes_out():
    """ST-LIV-041, ST-LIV-044: the last waits longer than its limit before it is submitted."""
    trace = singles(4)
    with server_of(lambda asked: [0.4, *good(asked)]) as server:
        execution = run(trace, server.url, settings={"connections": 1}, timeout_ns=1000 * MS, warm_up=0)
    assert rows(execution, "outcome") == [(EventOutcome.OK,)] * 4
    assert violations(trace, execution) == []


def test_what_could_not_be_connected_is_submitted_when_its_first_attempt_began(tmp_path):
    """ST-LIV-002: the waits between attempts are no lateness."""
    trace = singles(2)
    script = {
        "service": {"first_token_ns": MS, "token_ns": 0},
        "rules": [{"request": "semtrace-0-0", "attempts": [1], "fault": {"kind": "die", "for_ns": 1500 * MS}}],
    }  # fmt: skip
    with witness(tmp_path, script) as url:
        execution = run(
            trace,
            url,
            arrivals={"kind": "drawn", "times_ns": [0, 200 * MS]},
            retry={"attempts": 9, "wait_ns": 100 * MS},
        )
    (_, first), (late, then) = rows(execution, "outcome", "attempts")
    assert (late, first > 1, then > 1) == (EventOutcome.OK, True, True)
    assert "connection" in execution.header.environment["requests"]["failed_attempts"]
    submitted, finished = rows(execution, "submitted_ns", "finished_ns")[1]
    waits = 100 * MS * (2 ** (then - 1) - 1)
    assert finished - submitted >= waits
    assert violations(trace, execution) == []


@pytest.mark.parametrize("attempts", [1, 2])
def test_what_never_gets_a_connection_is_submitted_before_it_fails(attempts, tmp_path):
    """ST-LIV-002, ST-AUD-005, ST-EXE-005."""
    trace = singles(40)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(server_of(good))

        def progress(done, _):
            if done == 1:
                stack.close()

        scenario = scenario_of(
            server.url,
            arrivals={"kind": "drawn", "times_ns": [0, *range(400 * MS, 439 * MS, MS)]},
            retry={"attempts": attempts, "wait_ns": MS},
        )
        execution = replay(trace, dag(show(work_digest(trace))), scenario, progress=progress)
    assert set(rows(execution, "outcome", "failure", "attempts")[1:]) == {
        (EventOutcome.ERROR, Failure.CONNECTION, attempts)
    }
    submitted, finished = (execution.events.ints(name)[1:] for name in ("submitted_ns", "finished_ns"))
    assert (finished - submitted >= (attempts - 1) * MS).all()
    write_bundle(tmp_path / "run.semtrace", trace=trace, executions={"replay": execution})
    assert check_bundle(open_bundle(tmp_path / "run.semtrace")) == []
    assert np.array_equal(execution.events.ints("first_token_ns")[1:], np.full(39, NULL))
    told = audit(trace, execution, tolerance_ns=HOUR_NS).findings
    assert {each.requirement for each in told} == {"ST-AUD-003"}
