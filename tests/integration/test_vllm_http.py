"""Replay on a real vLLM server: recorded ids over HTTP, and the server's own record of its steps joined to the client's."""

import json
import subprocess
import sys

import numpy as np
import pytest

from semtrace.live.vllm.steps import join, read_steps
from semtrace.measure.audit import audit
from semtrace.store.bundle import open_bundle, write_bundle
from support.vllm_driver import server
from support.vllm_work import ENGINE, EOS, agents_trace, tiny_model

pytestmark = pytest.mark.integration

SCHEDULER = ENGINE["scheduler"]
ARGUMENTS = (
    "--block-size", str(ENGINE["block_size"]), "--num-gpu-blocks-override", str(ENGINE["blocks"]),
    "--max-num-seqs", str(SCHEDULER["max_num_seqs"]), "--max-model-len", str(SCHEDULER["max_model_len"]),
    "--max-num-batched-tokens", str(SCHEDULER["max_num_batched_tokens"]),
)  # fmt: skip
LATE = 60_000_000_000
"""How punctual the client is on a busy machine is not asked here."""


@pytest.fixture(scope="module")
def trace():
    return agents_trace(3, tasks=10)


@pytest.fixture(scope="module")
def ran(trace, tmp_path_factory):
    """A token-locked replay: the execution, the server's step log, and what the server counted."""
    folder = tmp_path_factory.mktemp("http")
    model = tiny_model(folder / "model")
    write_bundle(folder / "trace.semtrace", trace)
    counted = json.dumps({"semtrace_choices_log": str(folder / "choices.jsonl")})
    with server(model, folder / "steps.jsonl", *ARGUMENTS, "--additional-config", counted) as url:
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
    choices = json.loads((folder / "choices.jsonl").read_text().splitlines()[-1])
    return open_bundle(folder / "run.semtrace").execution(), folder / "steps.jsonl", choices


def test_ids_are_the_recorded_ones(trace, ran):
    made, _, choices = ran
    recorded = trace.operations.ints("output_token_ids")[made.events.ints("operation")]
    ordinal = made.events.ints("output_ids")
    digests = sorted(made.content)
    calls = np.flatnonzero(recorded >= 0)
    assert (ordinal[calls] >= 0).all()
    positions = ends = 0
    for event in calls.tolist():
        given = made.content.get(digests[ordinal[event]])
        assert given == trace.artifact(int(recorded[event])), event
        ids = np.frombuffer(given, "<u4")
        positions += len(ids)
        ends += int(ids[-1] == EOS)
    assert positions >= 10_000
    assert ends >= 20
    assert choices["mismatched"] == 0
    # What the last step gave is counted with the next one, which there may not be; the client's questions before the run are counted.
    assert choices["positions"] >= positions - 10
    assert choices["differing"] >= 0.9 * positions


def test_audit_is_clean(trace, ran):
    report = audit(trace, ran[0], tolerance_ns=LATE).as_dict()
    assert report["findings"] == []
    judged = {rule["requirement"]: rule["judged"] for rule in report["rules"]}
    for requirement in ("ST-AUD-020", "ST-AUD-021", "ST-AUD-022", "ST-AUD-023", "ST-AUD-030"):
        assert judged[requirement] > 100, requirement


def test_the_servers_steps_are_joined(trace, ran):
    made, log, _ = ran
    joined = join(made, read_steps([log]))
    report = audit(trace, joined, tolerance_ns=LATE).as_dict()
    assert report["findings"] == []
    judged = {rule["requirement"]: rule["judged"] for rule in report["rules"]}
    for requirement in (
        "ST-AUD-062",
        "ST-AUD-063",
        "ST-AUD-065",
        "ST-AUD-066",
        "ST-AUD-068",
        "ST-AUD-071",
        "ST-AUD-072",
        "ST-AUD-074",
        "ST-AUD-075",
        "ST-AUD-076",
    ):
        assert judged[requirement] > 100, requirement
    calls = joined.events.ints("output_ids") >= 0
    events = joined.events
    for column in ("scheduled_ns", "computed_prompt_tokens", "cached_tokens", "preemptions"):
        assert (events.ints(column)[calls] >= 0).all(), column
    # The server's own count of hits, as the client was told it, is that of its steps.
    assert np.array_equal(events.ints("cached_tokens")[calls], made.events.ints("cached_tokens")[calls])
    assert (events.ints("submitted_ns") <= events.ints("scheduled_ns"))[calls].all()
    assert (events.ints("scheduled_ns") < events.ints("first_token_ns"))[calls].all()
    assert int(np.maximum(events.ints("preemptions"), 0).sum()) >= 20
    assert int((events.ints("cached_tokens") > 0).sum()) >= 50
    assert joined["blocks"].rows > 500
    told = joined.header.environment["vllm_steps"]
    assert told["requests"] == int(calls.sum())
    assert told["servers"]["0"]["blocks"] == ENGINE["blocks"]
