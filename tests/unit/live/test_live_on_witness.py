"""The backend http on the witness: locked tokens, a graph with tools, runs that are stopped."""

import pytest

from semtrace.errors import ReplayError
from semtrace.graph.plan import Plan
from semtrace.live.backend import HttpBackend
from semtrace.records.enums import EventOutcome, FinishReason
from semtrace.replay.run import replay
from semtrace.store.digests import show, work_digest
from support.graphs import graph
from support.live_runs import (
    HOUR_NS,
    MS,
    good,
    locked_trace,
    requests_of,
    rows,
    run,
    scenario_of,
    server_of,
    singles,
    violations,
    witness,
)
from support.raw_server import as_json, plain, raw_server


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


def test_a_stop_before_time_0_ends_the_warm_up_and_leaves_nothing():
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
        with pytest.raises(ReplayError, match="stopped before its first operation began"):
            replay(trace, plan, scenario_of(server.url), started=clocks.append)
        assert requests_of(server) == []


def test_a_stop_before_the_first_release_leaves_nothing():
    """ST-LIV-013: time 0 has passed, and nothing was due yet."""
    trace = singles(2)
    plan = Plan.parse({"work_digest": show(work_digest(trace)), "name": "dag", "base": "dag"}, path="plan")

    def stop_soon(clock):
        begin = clock.begin

        def begun(lead_ns=0):
            begin(lead_ns)
            clock.stop()

        clock.begin = begun

    with server_of(good) as server:
        scenario = scenario_of(server.url, arrivals={"kind": "drawn", "times_ns": [HOUR_NS, HOUR_NS]})
        with pytest.raises(ReplayError, match="nothing is left of it"):
            replay(trace, plan, scenario, started=stop_soon)
        assert requests_of(server) == []


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
