"""A real vLLM server under `semtrace record vllm`: what is sealed is what its clients sent and got, task by task."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from semtrace.check import check_execution, check_trace
from semtrace.live.prompts import Inputs
from semtrace.measure.audit import audit
from semtrace.records.columns import NULL
from semtrace.records.enums import BlockAction, OperationKind
from semtrace.store.bundle import open_bundle
from support.vllm_driver import SCRIPTS, environment
from support.vllm_work import tiny_model

if TYPE_CHECKING:
    from pathlib import Path

    from semtrace.store.bundle import Bundle

pytestmark = pytest.mark.integration

SERVER = [
    "-m", "vllm.entrypoints.openai.api_server", "--served-model-name", "tiny", "--host", "127.0.0.1", "--dtype", "float32",
    "--enforce-eager", "--max-model-len", "512", "--block-size", "32", "--num-gpu-blocks-override", "60",
    "--max-num-seqs", "4", "--max-num-batched-tokens", "128",
]  # fmt: skip
QUIET = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
}  # fmt: skip
RECORD = [sys.executable, "-c", "from semtrace_adapters.record import app; app()", "vllm"]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def wait_for(url: str, command: subprocess.Popen[str]) -> None:
    """Wait until a server answers; it takes half a minute, and several on a busy machine."""
    for _ in range(900):
        assert command.poll() is None, "the server has ended"
        try:
            with urllib.request.urlopen(f"{url}/v1/models", timeout=5):  # noqa: S310  # our own server
                return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    raise AssertionError("the server does not answer")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, dict[str, Any], list[dict[str, Any]]]:
    """The bundle of a recorded run, what the command told, and what the client sent and got."""
    folder: Path = tmp_path_factory.mktemp("recorded")
    model = tiny_model(folder / "tiny")
    port = free_port()
    server = [str(environment()), *SERVER, "--model", str(model), "--port", str(port)]
    with (folder / "server.log").open("w") as log:
        command = subprocess.Popen(
            [*RECORD, "-o", "run.semtrace", "--log", "steps.jsonl", "--json", "--", *server],
            cwd=folder, env={**os.environ, **QUIET}, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(url, command)
            client = [str(environment()), str(SCRIPTS / "talk.py"), url]
            done = subprocess.run(client, capture_output=True, text=True, timeout=900, check=False)
            assert done.returncode == 0, done.stderr[-2000:]
        finally:
            command.send_signal(signal.SIGINT)
            out, _ = command.communicate(timeout=300)
    assert command.returncode == 0, (folder / "server.log").read_text()[-3000:]
    sent = [json.loads(line) for line in done.stdout.splitlines()]
    return open_bundle(folder / "run.semtrace"), json.loads(out), sent


def test_it_is_valid_and_the_server_ended_when_it_was_told(recorded: Any):
    bundle, told, _ = recorded
    assert check_trace(bundle.trace) == []
    assert check_execution(bundle.execution("native"), bundle.trace) == []
    assert told["server"] == {"exit_code": 0, "told_to_end": True, "killed": False}
    assert told["findings"] == []


def test_every_prompt_and_output_is_the_clients(recorded: Any):
    bundle, _, sent = recorded
    events = bundle.execution("native").events
    names = events.array("request_id").to_pylist()
    inputs = Inputs(bundle.trace, kind="token_ids")
    assert inputs.findings() == []
    assert len(sent) == 10
    for each in sent:
        (row,) = [at for at, name in enumerate(names) if name.startswith(f"cmpl-{each['name']}-0")]
        prompt, output = inputs.ids(row, 0), inputs.output_ids(row)
        assert prompt is not None
        assert output is not None
        assert prompt.tolist() == each["prompt"]
        assert output.tolist() == each["output"]
        assert events.ints("prompt_tokens")[row] == len(each["prompt"])
        assert events.ints("output_tokens")[row] == len(each["output"])


def test_tasks_sessions_and_dependencies_are_those_of_the_client(recorded: Any):
    bundle, told, _ = recorded
    trace = bundle.trace
    assert trace.tasks.array("name").to_pylist() == ["a question", "anna"]
    assert sorted(trace["sessions"].array("name").to_pylist()) == ["agent 0", "agent 1", "agent 2"]
    assert trace["stages"].array("name").to_pylist() == ["answer"]
    assert (trace.operations.ints("kind") == OperationKind.LLM).all()
    base, session = trace.operations.ints("context_base"), trace.operations.ints("session")
    assert np.bincount(session[session != NULL]).tolist() == [3, 3, 3]
    inherits = np.flatnonzero(base != NULL)
    assert len(inherits) == 6  # each agent's second and third turn
    assert (session[base[inherits]] == session[inherits]).all()
    (join,) = np.flatnonzero((session == NULL) & (trace.operations.ints("stage") != NULL)).tolist()
    into = trace.edges.ints("target") == join
    sources = trace.edges.ints("source")[into]
    assert sorted(session[sources].tolist()) == [0, 1, 2]
    losses = {loss["code"]: loss["count"] for loss in told["loss"]}
    assert losses["requests.samples"] == 2
    assert losses["edges.matched"] == 9


def test_times_are_in_order_and_prefixes_were_found(recorded: Any):
    bundle, _, _ = recorded
    events = bundle.execution("native").events
    columns = [events.ints(f"{name}_ns") for name in ("submitted", "scheduled", "first_token", "finished")]
    for earlier, later in pairwise(columns):
        assert (earlier <= later).all()
    cached = events.ints("cached_tokens")
    assert (cached % 32 == 0).all()
    assert (cached >= 64).sum() >= 7  # the instructions, from the second of each agent's turns on


def test_steps_and_blocks_are_those_of_the_run(recorded: Any):
    bundle, told, _ = recorded
    execution = bundle.execution("native")
    report = audit(bundle.trace, execution)
    assert report.findings == []
    judged = {rule.requirement: rule.judged for rule in report.rules}
    assert judged["ST-AUD-063"] == told["steps"] == execution["steps"].rows > 0
    assert judged["ST-AUD-065"] == execution.events.rows
    blocks = execution["blocks"]
    action, held = blocks.ints("action"), blocks.ints("blocks")
    taken = held[(action == BlockAction.ALLOCATE) | (action == BlockAction.HIT)].sum()
    assert taken == held[action == BlockAction.FREE].sum() > 0
