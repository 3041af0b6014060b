"""A real vLLM server whose events of the KV cache, statistics and front are written down: they say what its scheduler's record says."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from semtrace.check import check_execution
from semtrace.live.vllm.names import PLUGINS
from semtrace.live.vllm.steps import join, read_steps
from semtrace.measure.audit import audit
from semtrace.records.enums import BlockAction
from semtrace.store.bundle import open_bundle, write_bundle
from support.vllm_driver import ROOT, server
from support.vllm_work import ENGINE, agents_trace, tiny_model

pytestmark = pytest.mark.integration

SCHEDULER = ENGINE["scheduler"]
ARGUMENTS = (
    "--block-size", str(ENGINE["block_size"]), "--num-gpu-blocks-override", str(ENGINE["blocks"]),
    "--max-num-seqs", str(SCHEDULER["max_num_seqs"]), "--max-model-len", str(SCHEDULER["max_model_len"]),
    "--max-num-batched-tokens", str(SCHEDULER["max_num_batched_tokens"]),
    "--kv-events-config", json.dumps({"enable_kv_cache_events": True, "publisher": "null"}),
)  # fmt: skip


@pytest.fixture(scope="module")
def trace():
    return agents_trace(5, tasks=8)


@pytest.fixture(scope="module")
def ran(trace, tmp_path_factory):
    """A token-locked replay on the server: its execution, and the step log."""
    folder = tmp_path_factory.mktemp("recorder")
    model = tiny_model(folder / "model")
    write_bundle(folder / "trace.semtrace", trace)
    log = folder / "steps.jsonl"
    with server(model, log, *ARGUMENTS, PYTHONPATH=os.pathsep.join([str(PLUGINS), str(ROOT)])) as url:
        scenario = {
            "mode": "token_locked",
            "arrivals": {"kind": "together"},
            "backend": {"name": "http", "settings": {"url": url, "inputs": "token_ids"}},
        }
        (folder / "scenario.json").write_text(json.dumps(scenario))
        asked = ["--scenario", str(folder / "scenario.json"), "-o", str(folder / "run.semtrace"), "--json"]
        command = [sys.executable, "-m", "semtrace", "replay", folder / "trace.semtrace", *asked]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return open_bundle(folder / "run.semtrace").execution(), log


def evictions(execution):
    blocks = execution["blocks"]
    return int(blocks.ints("blocks")[blocks.ints("action") == BlockAction.EVICT].sum())


def test_what_vllm_says_itself_is_what_its_scheduler_did(trace, ran):
    """ST-VLM-020, ST-VLM-021: each event has its block, each block its event, each step and request its counts."""
    execution, path = ran
    log = read_steps([path])
    joined = join(execution, log)
    told = joined.header.environment["vllm_steps"]
    assert told["compared"]["first"] == []
    assert told["compared"]["contradictions"] == 0
    assert told["compared"]["removed"] == evictions(joined) >= 100
    assert told["compared"]["stored"] > told["compared"]["removed"]
    assert told["compared"]["steps"] == len(log.steps["end_ns"]) > 500
    assert told["compared"]["requests"] >= told["requests"] == told["front"]["requests"] > 50
    assert int(np.maximum(joined.events.ints("preemptions"), 0).sum()) >= 20
    assert not told["failed"]
    assert check_execution(joined, trace) == []
    assert audit(trace, joined, tolerance_ns=60_000_000_000).findings == []


def test_times_of_the_front_are_those_of_the_steps(ran):
    """ST-VLM-019: what vLLM measures itself lies between the same steps."""
    execution, path = ran
    log = read_steps([path])
    front = {name: np.array(values) for name, values in log.front.items()}
    assert (front["before_ns"] > 0).all()
    assert (front["after_ns"] > 0).all()
    events = join(execution, log).events
    row = {name: at for at, name in enumerate(events.array("request_id").to_pylist())}
    waited = events.ints("scheduled_ns") + execution.header.origin_unix_ns
    for at, place in enumerate(front["request"].tolist()):
        name = log.names[place].removeprefix("cmpl-").rsplit("-", 2)[0]
        if name not in row:
            continue  # what the client asked before it began
        # The scheduler's record has the request a little later than vLLM, and its first step a little earlier.
        assert front["queued_ns"][at] >= waited[row[name]] - log.unix_ns[place] - 1_000_000


@pytest.mark.parametrize("kind", ["stored", "removed"])
def test_an_event_that_is_missing_is_found(ran, tmp_path, kind):
    """ST-VLM-021."""
    execution, path = ran
    records = [json.loads(line) for line in path.read_text().splitlines()]
    having = [
        record
        for record in records
        if record["kind"] != "server" and any(event[0] == kind for event in record.get("kv_events") or ())
    ]
    events = having[len(having) // 2]["kv_events"]  # one in the middle of the run
    events.remove(next(event for event in events if event[0] == kind))
    short = tmp_path / "steps.jsonl"
    short.write_text("".join(json.dumps(record) + "\n" for record in records))
    told = join(execution, read_steps([short])).header.environment["vllm_steps"]["compared"]
    assert told["contradictions"] > 0
