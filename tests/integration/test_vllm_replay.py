"""Replay on a vLLM in process: recorded ids are given out, and its schedule is the simulated engine's, to the block."""

import copy
import json

import numpy as np
import pytest

from semtrace.graph.plan import dag
from semtrace.measure.audit import audit
from semtrace.records.execution import Execution
from semtrace.replay.run import replay
from semtrace.replay.scenario import Scenario
from semtrace.store.bundle import open_bundle, write_bundle
from semtrace.store.digests import detail_digest, execution_digest, show, work_digest
from semtrace.transform.rows import with_column
from support.vllm_driver import command
from support.vllm_work import ENGINE, EOS, agents_trace, tiny_model

pytestmark = pytest.mark.integration

DETAIL = ("steps", "step_runs", "blocks")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def trace():
    return agents_trace(1, tasks=10)


def run(folder, trace, settings, **scenario):
    """What `semtrace replay` says and writes, where vLLM is."""
    write_bundle(folder / "trace.semtrace", trace)
    whole = {"backend": {"name": "vllm", "settings": settings}, **scenario}
    (folder / "scenario.json").write_text(json.dumps(whole))
    asked = ["--scenario", folder / "scenario.json", "--detail", "steps", "--detail", "blocks", "--json"]
    done = command("replay", folder / "trace.semtrace", *asked, "-o", folder / "run.semtrace")
    made = open_bundle(folder / "run.semtrace").execution() if done.returncode == 0 else None
    return done, made


@pytest.fixture(scope="module")
def locked(trace, model, tmp_path_factory):
    settings = {"model": str(model), "dtype": "float32", "engine": ENGINE, "choices": True}
    done, made = run(tmp_path_factory.mktemp("locked"), trace, settings, mode="token_locked")
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return made


def simulated(trace, engine, **scenario):
    whole = {"backend": {"name": "engine", "settings": engine}, **scenario}
    plan = dag(show(work_digest(trace)))
    return replay(trace, plan, Scenario.parse(whole, path="scenario"), detail=DETAIL)


def ids_of(trace, execution, event):
    """The ids that were recorded and those that were given, of an event's output."""
    operation = int(execution.events.ints("operation")[event])
    recorded = trace.artifact(int(trace.operations.ints("output_token_ids")[operation]))
    digest = sorted(execution.content)[int(execution.events.ints("output_ids")[event])]
    given = execution.content.get(digest)
    return np.frombuffer(recorded, "<u4"), np.frombuffer(given, "<u4")


def test_ids_are_the_recorded_ones(trace, locked):
    calls = np.flatnonzero(locked.events.ints("output_ids") >= 0)
    assert len(calls) == int((trace.operations.ints("output_tokens") >= 0).sum())
    pairs = [ids_of(trace, locked, event) for event in calls.tolist()]
    assert all(np.array_equal(recorded, given) for recorded, given in pairs)
    positions = sum(len(given) for _, given in pairs)
    assert positions >= 10_000
    forced = locked.header.environment["forced"]
    assert forced["positions"] == positions
    assert forced["mismatched"] == 0
    assert forced["differing"] >= 0.9 * positions
    assert sum(int(given[-1] == EOS) for _, given in pairs) >= 20
    assert sum(int((given[:-1] == EOS).any()) for _, given in pairs) >= 10


def test_the_load_presses(locked):
    events = locked.events
    assert int(np.maximum(events.ints("preemptions"), 0).sum()) >= 50
    assert int((events.ints("cached_tokens") > 0).sum()) >= 100


def test_schedule_is_the_simulated_one(trace, locked):
    """ST-VLM-007."""
    ours = simulated(trace, ENGINE)
    for table in DETAIL:
        assert ours[table].rows > 500
        assert detail_digest(locked, table) == detail_digest(ours, table), table
    reasons = locked.events.data.column("finish_reason")
    assert reasons.null_count < len(reasons)  # a simulated engine does not tell why a model stopped
    events = with_column(locked.events.data, "finish_reason", ours.events.data.column("finish_reason"))
    tables = {"instances": locked.instances.data, "events": events}
    assert execution_digest(Execution.from_arrow(locked.header, tables)) == execution_digest(ours)


def test_audit_is_clean(trace, locked):
    report = audit(trace, locked).as_dict()
    assert report["findings"] == []
    judged = {rule["requirement"]: rule["judged"] for rule in report["rules"]}
    for requirement in (
        "ST-AUD-022",
        "ST-AUD-023",
        "ST-AUD-063",
        "ST-AUD-065",
        "ST-AUD-069",
        "ST-AUD-078",
        "ST-AUD-079",
    ):
        assert judged[requirement] > 100, requirement


def test_lengths_are_the_recorded_ones(trace, model, tmp_path):
    """Free tokens, prompts made up for the purpose, two copies, priorities, without prefix caching."""
    engine = copy.deepcopy(ENGINE)
    engine["scheduler"] |= {"order": "plas", "prefix_caching": False}
    settings = {"model": str(model), "dtype": "float32", "engine": engine, "inputs": "synthetic"}
    small = agents_trace(2, tasks=2)
    done, made = run(tmp_path, small, settings, mode="length_locked", copies=2)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    report = audit(small, made).as_dict()
    assert report["findings"] == []
    operation = made.events.ints("operation")
    assert np.array_equal(
        made.events.ints("output_tokens"), small.operations.ints("output_tokens")[operation]
    )
    ours = simulated(small, engine, copies=2)  # without a cache it matters not which tokens they are
    for table in DETAIL:
        assert detail_digest(made, table) == detail_digest(ours, table), table


def test_what_vllm_does_not_have_is_refused_by_name(trace, model, tmp_path):
    engine = {**copy.deepcopy(ENGINE), "servers": 2}
    engine["scheduler"] |= {"batching": "static", "threshold_rule": "0.30", "async_scheduling": True}
    settings = {"model": str(model), "dtype": "float32", "engine": engine}
    done, _ = run(tmp_path, trace, settings, mode="token_locked")
    told = json.loads(done.stdout)
    assert done.returncode == 1
    for member in ("engine.servers", "batching", "threshold_rule", "async_scheduling"):
        assert member in json.dumps(told), member


def test_what_vllm_refuses_is_told(trace, model, tmp_path):
    settings = {"model": str(model), "dtype": "float32", "engine": {**ENGINE, "block_size": 24}}
    done, _ = run(tmp_path, trace, settings, mode="token_locked")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert "ST-VLM-002" in json.dumps(told)
    assert "Traceback" not in done.stdout + done.stderr
