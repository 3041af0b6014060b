"""AutoGen's real packages run in an environment of their own, are imported, and compared with what the server saw."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from autogen_runs import (
    EXAMPLES,
    check_against_server,
    load,
    rebuilt,
    recording,
    replays,
    request_of,
    server_log,
)
from semtrace.records.enums import EdgeKind, Evidence, Outcome

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venvs" / "autogen" / "bin" / "python"
SCENARIOS = ("graphflow", "graphloop", "swarm", "nested", "agenttools", "streaming")

pytestmark = pytest.mark.integration


def record(out, *options: str):
    """Run scenarios; AutoGen's own output is shown only if that fails."""
    if not PYTHON.exists():
        pytest.fail("there is no environment for AutoGen: make .venvs/autogen/.installed")
    command = [PYTHON, ROOT / "examples" / "autogen" / "record.py", *options, "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return out


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return record(tmp_path_factory.mktemp("autogen"), "--all-spans")


@pytest.fixture(scope="module")
def doubled(tmp_path_factory):
    return record(tmp_path_factory.mktemp("autogen"), "agenttools", "graphflow", "--double")


def answered(run, folder):
    """The server's entry of each call, by the response's id."""
    served = {entry["id"]: entry for entry in server_log(folder)}
    return {operation: served[run.event(operation)["request_id"]] for operation in run.llm}


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_request_and_count_is_the_servers(recorded, name):
    run = load(recorded / name)
    assert check_against_server(run, server_log(recorded / name)) == len(run.llm)
    for operation, entry in answered(run, recorded / name).items():
        assert rebuilt(run, operation) == request_of(entry["request"])
        message = entry["response"]["choices"][0]["message"]
        if message["content"] is not None:
            assert run.text(run.op(operation)["output"]) == message["content"]
    limited = name in {"nested", "agenttools", "streaming"}  # stopped by a limit of turns
    assert run.trace.tasks.ints("outcome").tolist() == [Outcome.UNKNOWN if limited else Outcome.SUCCESS]


@pytest.mark.parametrize("name", [n for n in SCENARIOS if n != "streaming"])
@pytest.mark.parametrize("files", [("events.jsonl",), ("spans.jsonl",)])
def test_one_source_alone_is_enough_for_the_requests(recorded, name, files):
    folder = recorded / name
    run = load(*(folder / f for f in files))
    assert check_against_server(run, server_log(folder)) == len(run.llm)
    replays(run)


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_waits_arrived_after_what_it_waits_for_was_answered(recorded, name):
    run = load(recorded / name)
    entries = answered(run, recorded / name)
    edges = run.trace.edges
    judged = 0
    for source, target in zip(edges.ints("source").tolist(), edges.ints("target").tolist(), strict=True):
        if source in entries and target in entries:
            assert entries[source]["done_unix_ns"] <= entries[target]["arrival_unix_ns"], (
                run.name(source),
                run.name(target),
            )
            judged += 1
    assert judged
    assert "edges.contradicted" not in run.losses


@pytest.mark.parametrize("name", SCENARIOS)
def test_another_run_has_the_same_graph(recorded, name):
    run, committed = load(recorded / name), recording(EXAMPLES / name)
    for kind in (EdgeKind.CONTROL, EdgeKind.DATA):
        assert run.edges(kind) == committed.edges(kind)
    assert sorted(run.stages(), key=str) == sorted(committed.stages(), key=str)


def test_branches_were_in_flight_together(recorded):
    run = load(recorded / "graphflow")
    entries = answered(run, recorded / "graphflow")
    first = {run.name(o): e for o, e in entries.items() if run.name(o).endswith("_analyst")}
    assert len(first) == 3
    # None waited for another, in the trace or on the server.
    assert max(e["arrival_unix_ns"] for e in first.values()) < min(e["done_unix_ns"] for e in first.values())
    pairs = run.edges(EdgeKind.CONTROL) | run.edges(EdgeKind.DATA)
    assert not any(s in first and t in first for s, t in pairs)


def test_delays_and_durations_add_up_to_the_native_run(recorded):
    run = load(recorded / "graphflow")
    # Each start is explained to the nanosecond: the last end of what is waited for, and the operation's own delay.
    edges = run.trace.edges
    waits: dict[int, list[int]] = {}
    for source, target in zip(edges.ints("source").tolist(), edges.ints("target").tolist(), strict=True):
        waits.setdefault(target, []).append(source)
    arrival = int(run.trace.tasks.ints("arrival_ns")[0])
    for operation in range(run.trace.operations.rows):
        ready = max((run.event(s)["finished_ns"] for s in waits.get(operation, [])), default=arrival)
        assert run.event(operation)["submitted_ns"] == ready + run.op(operation)["external_delay_ns"]
        assert run.event(operation)["submitted_evidence"] == Evidence.OBSERVED


def test_hidden_retries_are_those_that_the_server_refused(recorded):
    run = load(recorded / "graphloop")
    lines = (recorded / "graphloop" / "server.jsonl").read_text(encoding="utf-8").splitlines()
    refused = len(lines) - len(run.llm)
    assert refused == 2
    assert run.losses["retries.hidden"] == refused
    attempts = [run.event(o)["attempts"] or 1 for o in run.llm]
    assert sum(attempts) == len(lines)


def test_two_instrumentors_do_not_double_the_calls(doubled):
    for name in ("graphflow", "agenttools"):
        folder = doubled / name
        for files in ((), ("spans.jsonl",)):
            run = load(*([folder / f for f in files] or [folder]))
            assert check_against_server(run, server_log(folder)) == len(run.llm)
            assert run.losses["spans.doubled"] == len(run.llm)
            assert run.edges(EdgeKind.DATA) == recording(EXAMPLES / name).edges(EdgeKind.DATA)


def test_what_the_guide_says_to_do_records_all(tmp_path):
    """The parts of docs/autogen.md for a program of one's own, run as they stand; its whole program is run in test_autogen_recorder."""
    text = (ROOT / "docs" / "autogen.md").read_text(encoding="utf-8")
    _whole, log, spans = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    program = f"""
import asyncio
import sys
from pathlib import Path
sys.path[:0] = {[str(ROOT / "tests"), str(ROOT / "examples" / "autogen")]!r}
{spans}
from servers.launch import start_server
from teams import SCENARIOS, Endpoint

async def main(url):
    team, task = SCENARIOS["graphflow"](Endpoint(url))
{textwrap.indent(log, "    ")}

with start_server(Path("server.jsonl"), Path({str(EXAMPLES / "rules.json")!r})) as server:
    asyncio.run(main(server.url))
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "adapters")}
    done = subprocess.run(
        [PYTHON, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    run = load(tmp_path)
    assert check_against_server(run, server_log(tmp_path)) == len(run.llm) == 10
    assert run.trace.tasks.ints("outcome").tolist() == [Outcome.SUCCESS]
    assert {run.event(o)["submitted_evidence"] for o in run.llm} == {Evidence.OBSERVED}


def test_the_handler_works_alone(tmp_path):
    """One file, copied next to an application, under another name, with nothing of semtrace in reach."""
    copy = tmp_path / "event_log.py"
    copy.write_bytes((ROOT / "adapters" / "semtrace_adapters" / "autogen" / "handler.py").read_bytes())
    program = (
        "import logging, event_log\n"
        "with event_log.recording('events.jsonl'):\n"
        "    logging.getLogger('autogen_core.events').info('{\"type\": \"LLMCall\"}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "events.jsonl").read_text())["event"] == {"type": "LLMCall"}
