"""Real AutoGen teams under the live recorder: what is sealed is what the server saw, and what importing files gives."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from autogen_runs import EXAMPLES, Run, check_against_server, recording, replays, server_log
from semtrace.check import check_execution, check_trace
from semtrace.errors import FormatError
from semtrace.records.enums import EdgeKind, Evidence, OperationKind
from semtrace.stream.capture import read_capture
from semtrace.stream.seal import seal
from servers.launch import start_server

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venvs" / "autogen" / "bin" / "python"
SCENARIOS = ("graphflow", "graphloop", "swarm", "nested", "agenttools", "streaming")

pytestmark = pytest.mark.integration


def run(name, folder, *options: str, code=0):
    """Run a team under the recorder, in AutoGen's environment."""
    if not PYTHON.exists():
        pytest.fail("there is no environment for AutoGen: make .venvs/autogen/.installed")
    folder.mkdir(exist_ok=True)
    script = ROOT / "tests" / "integration" / "autogen_live.py"
    with start_server(folder / "server.jsonl", EXAMPLES / "rules.json") as server:
        command = [PYTHON, script, name, folder, server.url, *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(done.stdout) if code == 0 else {}


def sealed(folder):
    """What was recorded, sealed, with every rule of the standard checked."""
    made = seal([folder / "run.stsl"])
    assert [str(f) for f in check_trace(made.trace)] == []
    assert [str(f) for f in check_execution(made.execution, made.trace)] == []
    return Run(SimpleNamespace(trace=made.trace, execution=made.execution, loss=made.info.loss))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("live")
    return folder, {name: run(name, folder / name) for name in SCENARIOS}


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_request_and_count_is_the_servers(recorded, name):
    folder, printed = recorded
    assert printed[name]["lost"] == 0, printed[name]
    assert read_capture(folder / name / "run.stsl").whole
    made = sealed(folder / name)
    assert check_against_server(made, server_log(folder / name)) == len(made.llm)
    for operation in made.llm:
        assert made.event(operation)["submitted_evidence"] == Evidence.OBSERVED, "starts come from spans"
    if name != "streaming":  # a call whose counts nobody knows cannot be replayed
        replays(made)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_graph_is_that_of_the_imported_files(recorded, name):
    folder, _ = recorded
    made, committed = sealed(folder / name), recording(EXAMPLES / name)
    for kind in (EdgeKind.CONTROL, EdgeKind.DATA):
        assert made.edges(kind) == committed.edges(kind)
    assert sorted(made.stages(), key=str) == sorted(committed.stages(), key=str)


def test_configs_of_teams_come_along(recorded):
    folder, _ = recorded
    for name, kind in (("graphflow", "GraphFlow"), ("nested", "RoundRobinGroupChat")):
        sources = read_capture(folder / name / "run.stsl").sources
        configs = [json.loads(source.data) for source in sources if source.name.startswith("config-")]
        assert len(configs) == 1, "teams inside of the team are in its config"
        assert configs[0]["provider"].endswith(kind)


def test_an_applications_own_tracer_provider_is_used(tmp_path):
    assert run("graphflow", tmp_path, "--provider")["lost"] == 0
    made = sealed(tmp_path)
    assert len(made.llm) == len(server_log(tmp_path))
    assert all(made.event(operation)["submitted_evidence"] == Evidence.OBSERVED for operation in made.llm)


def test_the_event_log_alone_is_enough_for_the_requests(tmp_path):
    assert run("graphflow", tmp_path, "--no-spans")["lost"] == 0
    made = sealed(tmp_path)
    assert check_against_server(made, server_log(tmp_path)) == len(made.llm)
    names = {source.name for source in read_capture(tmp_path / "run.stsl").sources}
    assert names == {"events.jsonl", "config-0.json"}


@pytest.mark.parametrize("calls", [1, 4, 8])
def test_a_run_that_is_killed_is_sealed_as_far_as_it_went(tmp_path, calls):
    run("graphflow", tmp_path, "--kill-after", str(calls), code=-9)
    logged = [
        source for source in read_capture(tmp_path / "run.stsl").sources if source.name == "events.jsonl"
    ]
    ended = sum(source.data.count(b'"LLMCall"') for source in logged)
    try:
        made = seal([tmp_path / "run.stsl"])
    except FormatError as error:
        assert ended == 0, "a call that was logged as ended is kept"
        assert "no call of a model that ended" in error.message  # noqa: PT017  # a span may tell of one before the log does
        return
    kinds = made.trace.operations.ints("kind")
    known = int((kinds == OperationKind.LLM).sum())
    assert ended <= known <= len(server_log(tmp_path)) + 3, "all that was logged as ended, and no call twice"
    assert "stream.open" in {loss.code for loss in made.info.loss}
    assert [str(finding) for finding in check_trace(made.trace)] == []


def test_the_example_of_the_page(tmp_path):
    """docs/autogen.md: the script as it stands, against the server that it names."""
    page = (ROOT / "docs/autogen.md").read_text("utf-8")
    script = page.partition("```python\n# trip.py\n")[2].partition("```")[0]
    (tmp_path / "trip.py").write_text(script, "utf-8")
    with start_server(tmp_path / "server.jsonl") as server:
        done = subprocess.run(
            [PYTHON, "trip.py", server.url],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'adapters'}"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    made = sealed(tmp_path)
    assert (len(made.llm), len(made.tools)) == (5, 1)
    names = made.trace.operations.strings("name")
    assert sorted(names) == ["boss", "clerk", "forecaster", "forecaster", "weather", "writer"]
    replays(made)
