"""vLLM's V2 model runner and its own trace replay, run on a CPU with Triton's interpreter: our requests through it, in process and over HTTP."""

import copy
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager

import numpy as np
import pytest

from semtrace.graph.plan import dag
from semtrace.live.asking import Asker, Form
from semtrace.live.doctor import examine
from semtrace.live.prompts import Inputs
from semtrace.live.settings import HttpSettings, Target
from semtrace.live.vllm.steps import join, read_steps
from semtrace.measure.audit import audit
from semtrace.records.enums import FinishReason
from semtrace.replay.run import replay
from semtrace.replay.scenario import Scenario
from semtrace.store.bundle import open_bundle, write_bundle
from semtrace.store.digests import detail_digest, show, work_digest
from support.vllm_driver import ROOT, SCRIPTS, command, server
from support.vllm_work import ENGINE, EOS, IDS, agents_trace, tiny_model

pytestmark = pytest.mark.integration

BLOCKS, LONGEST = 16, 480
TRITON = ROOT / ".venvs" / "triton"
SCHEDULER = ENGINE["scheduler"]
ARGUMENTS = (
    "--block-size", str(ENGINE["block_size"]), "--num-gpu-blocks-override", str(BLOCKS),
    "--max-num-seqs", str(SCHEDULER["max_num_seqs"]), "--max-model-len", str(LONGEST),
    "--max-num-batched-tokens", str(SCHEDULER["max_num_batched_tokens"]), "--enable-scale-out",
)  # fmt: skip
LATE = 600_000_000_000
"""How punctual the client is on a busy machine is not asked here."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def trace():
    return agents_trace(9, tasks=1)


@pytest.fixture(scope="module")
def engine():
    """One with memory for a single longest request."""
    return {
        **copy.deepcopy(ENGINE),
        "blocks": BLOCKS,
        "scheduler": {**SCHEDULER, "max_model_len": LONGEST},
    }


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """A function that gives the processes started meanwhile a Triton, whose interpreter runs vLLM's kernels."""
    assert TRITON.exists(), "there is no Triton: make .venvs/triton/.installed"
    folder = tmp_path_factory.mktemp("interpreted")
    about = folder / "interpreted_triton-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: interpreted-triton\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[triton.backends]\ncpu = interpreted_triton\n")

    @contextmanager
    def given():
        with pytest.MonkeyPatch.context() as patch:
            for place in (TRITON, SCRIPTS / "interpreted", folder):
                patch.setenv("PYTHONPATH", str(place), prepend=os.pathsep)
            patch.setenv("TRITON_INTERPRET", "1")
            yield

    return given


def in_process(folder, trace, model, engine, **members):
    """What `semtrace replay` says, on a vLLM in its process."""
    write_bundle(folder / "trace.semtrace", trace)
    settings = {"model": str(model), "dtype": "float32", "engine": engine, **members}
    settings["options"] = {"enforce_eager": True}  # nothing is compiled
    scenario = {"mode": "token_locked", "backend": {"name": "vllm", "settings": settings}}
    (folder / "scenario.json").write_text(json.dumps(scenario))
    asked = ["--scenario", folder / "scenario.json", "--detail", "steps", "--detail", "blocks", "--json"]
    return command("replay", folder / "trace.semtrace", *asked, "-o", folder / "run.semtrace")


@pytest.fixture(scope="module")
def local(trace, model, engine, kernels, tmp_path_factory):
    """A replay in process, nothing said of how to lock."""
    folder = tmp_path_factory.mktemp("local")
    with kernels():
        done = in_process(folder, trace, model, engine)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return open_bundle(folder / "run.semtrace").execution()


@pytest.fixture(scope="module")
def remote(trace, model, kernels, tmp_path_factory):
    """A replay on a server with trace replay, nothing said of how to lock; what our own requests got whose ids end early; the step log."""
    folder = tmp_path_factory.mktemp("remote")
    write_bundle(folder / "trace.semtrace", trace)
    with (
        kernels(),
        server(model, folder / "steps.jsonl", *ARGUMENTS, "--enable-trace-replay", lock=()) as url,
    ):
        settings = {"url": url, "inputs": "token_ids"}
        scenario = {
            "mode": "token_locked",
            "arrivals": {"kind": "together"},
            "backend": {"name": "http", "settings": settings},
        }
        (folder / "scenario.json").write_text(json.dumps(scenario))
        asked = ["--scenario", str(folder / "scenario.json"), "-o", str(folder / "run.semtrace"), "--json"]
        told = [sys.executable, "-m", "semtrace", "replay", folder / "trace.semtrace", *asked]
        done = subprocess.run(told, capture_output=True, text=True, timeout=1800, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        seen = examine(HttpSettings(url=url), None, only=["logits_processor", "trace_replay"])
        answers = at_the_end(url, trace)
    return open_bundle(folder / "run.semtrace").execution(), folder / "steps.jsonl", seen, answers


def at_the_end(url, trace):
    """Answers to a request of ours: as it is, with more tokens asked for than it has ids, with fewer, and with an id that the model does not have."""
    form = Form("tiny", stream=False, lock="trace_replay")
    inputs = Inputs(trace, kind="token_ids", mode="token_locked", salt="none")
    asker = Asker(trace, inputs, form, Target(url), None)
    path, body = asker.body(0, ending(trace))
    members = json.loads(body)
    ids = members["sampling_params"]["trace_decode_token_ids"]
    changes = {
        "as it is": {},
        "more": {"max_tokens": len(ids) + 9},
        "fewer": {"max_tokens": len(ids) - 3},
        "beyond": {"trace_decode_token_ids": [*ids[:-1], IDS]},
    }
    return {name: post(url + path, changed(members, change)) for name, change in changes.items()}


def ending(trace):
    """An operation that is recorded to have stopped by the end token."""
    return int(np.flatnonzero(trace.operations.ints("finish_reason") == FinishReason.STOP)[0])


def changed(members, change):
    return {**members, "sampling_params": {**members["sampling_params"], **change}}


def post(url, members):
    """Status and JSON of an answer."""
    asked = urllib.request.Request(  # noqa: S310  # our own server
        url, json.dumps(members).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(asked, timeout=600) as answer:  # noqa: S310
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def outputs(trace, execution):
    """Of each call the ids that were recorded and those that were given."""
    events, digests = execution.events, sorted(execution.content)
    recorded = trace.operations.ints("output_token_ids")[events.ints("operation")]
    given = events.ints("output_ids")
    for event in np.flatnonzero(recorded >= 0).tolist():
        assert given[event] >= 0, event
        yield (
            np.frombuffer(trace.artifact(int(recorded[event])), "<u4"),
            np.frombuffer(execution.content.get(digests[given[event]]), "<u4"),
        )


def stopped(trace, execution):
    """The events whose operations were recorded to have stopped."""
    recorded = trace.operations.ints("finish_reason")[execution.events.ints("operation")]
    return np.flatnonzero(recorded == FinishReason.STOP)


def every_id_is_the_recorded_one(trace, execution):
    pairs = list(outputs(trace, execution))
    assert sum(len(recorded) for recorded, _ in pairs) >= 1_000
    assert all(np.array_equal(recorded, given) for recorded, given in pairs)
    assert sum(int(given[-1] == EOS) for _, given in pairs) >= 10
    assert sum(int((given[:-1] == EOS).any()) for _, given in pairs) >= 3


def stops_alone_are_found(trace, execution):
    """Trace replay ends every output as one that was long enough, which the audit says of each that was recorded as stopped, and nothing else."""
    report = audit(trace, execution, tolerance_ns=LATE).as_dict()
    assert [each["requirement"] for each in report["findings"]] == ["ST-AUD-023"]
    assert report["findings"][0]["count"] == len(stopped(trace, execution)) >= 10
    calls = execution.events.ints("output_ids") >= 0
    assert (execution.events.ints("finish_reason")[calls] == FinishReason.LENGTH).all()
    judged = {rule["requirement"]: rule["judged"] for rule in report["rules"]}
    for requirement in ("ST-AUD-021", "ST-AUD-022", "ST-AUD-063", "ST-AUD-065", "ST-AUD-071"):
        assert judged[requirement] >= int(calls.sum()), requirement


def test_in_process_vllm_says_which_lock(local):
    """ST-VLM-004."""
    assert local.header.environment["lock"] == "trace_replay"


def test_in_process_ids_are_the_recorded_ones(trace, local):
    """End tokens and preemptions make no difference."""
    every_id_is_the_recorded_one(trace, local)
    assert int(np.maximum(local.events.ints("preemptions"), 0).sum()) >= 3
    assert int((local.events.ints("cached_tokens") > 0).sum()) >= 10


def test_in_process_the_schedule_is_the_simulated_one(trace, engine, local):
    """ST-VLM-007."""
    scenario = Scenario.parse({"backend": {"name": "engine", "settings": engine}}, path="scenario")
    ours = replay(trace, dag(show(work_digest(trace))), scenario, detail=("steps", "step_runs", "blocks"))
    for table in ("steps", "step_runs", "blocks"):
        assert ours[table].rows > 30
        assert detail_digest(local, table) == detail_digest(ours, table), table


def test_in_process_the_audit_finds_stops_alone(trace, local):
    stops_alone_are_found(trace, local)


def test_in_process_the_other_lock_is_refused(trace, model, engine, kernels, tmp_path):
    """ST-VLM-004."""
    with kernels():
        done = in_process(tmp_path, trace, model, engine, lock="logits_processor")
    assert done.returncode == 1
    assert "can lock outputs by trace_replay, not by logits_processor" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_the_v1_runner_has_no_trace_replay(trace, model, engine, tmp_path):
    """ST-VLM-004."""
    done = in_process(tmp_path, trace, model, engine, lock="trace_replay")
    assert done.returncode == 1
    assert "can lock outputs by logits_processor, not by trace_replay" in done.stdout


def test_over_http_the_server_is_asked_which_lock(remote):
    """ST-LIV-021."""
    execution, _, seen, _ = remote
    assert execution.header.environment["requests"]["lock"] == "trace_replay"
    assert seen.locks() == ["trace_replay"]
    assert seen.probes["logits_processor"].found == "no"


def test_over_http_ids_are_the_recorded_ones(trace, remote):
    every_id_is_the_recorded_one(trace, remote[0])


def test_over_http_steps_are_joined_and_the_audit_finds_stops_alone(trace, remote):
    """ST-VLM-013: this endpoint names requests in its own way."""
    joined = join(remote[0], read_steps([remote[1]]))
    assert joined.header.environment["vllm_steps"]["requests"] == len(list(outputs(trace, remote[0])))
    stops_alone_are_found(trace, joined)


def test_the_end_of_the_recorded_ids_is_the_end_of_the_output(trace, remote):
    """Whatever is asked for beyond; what is asked for before is kept to; end tokens end nothing."""
    answers = remote[3]
    output = np.frombuffer(
        trace.artifact(int(trace.operations.ints("output_token_ids")[ending(trace)])), "<u4"
    ).tolist()
    assert output[-1] == EOS
    for name, ids in (("as it is", output), ("more", output), ("fewer", output[:-3])):
        status, answer = answers[name]
        assert status == 200, name
        assert [(each["token_ids"], each["finish_reason"]) for each in answer["choices"]] == [
            (ids, "length")
        ], name


def test_ids_beyond_the_vocabulary_are_refused(remote):
    status, answer = remote[3]["beyond"]
    assert status == 400
    assert f"token_id(s) [{IDS}] in trace_decode_token_ids" in answer["error"]["message"]


def test_a_server_with_the_v1_runner_is_locked_by_our_processor(model, tmp_path):
    """ST-LIV-021. It has the endpoint, and says what it lacks."""
    with server(model, tmp_path / "steps.jsonl", *ARGUMENTS) as url:
        seen = examine(HttpSettings(url=url), None, only=["logits_processor", "trace_replay"])
    assert seen.locks() == ["logits_processor"]
    refused = seen.probes["trace_replay"]
    assert (refused.found, refused.status) == ("no", 400)
    assert "--enable-trace-replay" in refused.evidence
