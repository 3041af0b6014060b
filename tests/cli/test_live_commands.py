"""Replay on a server as a person does it: what the server can do, the replay, its audit, Ctrl-C, and going on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cli.conftest import run, team
from semtrace.cli.live import world_lines
from semtrace.replay.run import replay
from semtrace.store.bundle import write_bundle
from support.live_runs import Witness

if TYPE_CHECKING:
    from collections.abc import Iterator

QUICK = {"service": {"first_token_ns": 1_000_000, "token_ns": 0}}
SLOW = {"service": {"first_token_ns": 300_000_000, "token_ns": 0}}
LATE = 2_000_000_000
"""A tolerance that no machine is too busy for, in ns: what is tested here is not how punctual this one is."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Witness]:
    made = Witness(tmp_path, QUICK)
    yield made
    made.end()


@pytest.fixture
def trace(tmp_path: Path) -> str:
    write_bundle(tmp_path / "t.semtrace", trace=team().build().trace)
    return str(tmp_path / "t.semtrace")


def test_doctor_says_what_a_server_can_do(server: Witness):
    told = run("doctor", "--url", server.url)
    assert told.code == 0
    assert "can replay length-locked" in told.out
    assert "can replay token-locked: by logits_processor" in told.out
    value = run("doctor", "--url", server.url, "--json").json
    assert value["model"] == "witness"
    assert {probe["found"] for probe in value["probes"]} <= {"yes", "no", "unknown"}


def test_doctor_of_nothing():
    told = run("doctor", "--url", "http://127.0.0.1:9")
    assert told.code == 1
    assert "no trace can be replayed on it" in told.out
    assert run("doctor", "--url", "ftp://nowhere").code == 2


def test_a_replay_keeps_counts_and_says_how_late_it_was(server: Witness, trace: str, tmp_path: Path):
    out = str(tmp_path / "run.semtrace")
    told = run("replay", trace, "--url", server.url, "--set", "inputs=synthetic", "-o", out)
    assert told.code == 0
    assert "replayed in real time on backend http" in told.out
    assert "of their release" in " ".join(told.out.split())
    audited = run("audit", trace, out, "--tolerance-ns", LATE)
    assert audited.code == 0, audited.out
    rows = server.end()
    assert sorted(row["request"] for row in rows) == sorted(
        f"semtrace-0-{at}" for at in (0, 1, 2, 5)
    )  # ST-LIV-030
    assert all(row["min_tokens"] == row["max_tokens"] > 0 for row in rows)  # ST-LIV-020
    assert [row["prompt_tokens"] for row in rows if row["request"] == "semtrace-0-0"] == [50]


def test_texts_are_sent_and_counted_by_the_server(server: Witness, trace: str, tmp_path: Path):
    out = str(tmp_path / "run.semtrace")
    told = run("replay", trace, "--url", server.url, "-o", out, "--json").json
    assert told["environment"]["requests"]["inputs"] == "text"
    assert told["environment"]["requests"]["prompt_counts"] == {"other": 4}
    audited = run(
        "audit", trace, out, "--tolerance-ns", LATE, "--json"
    ).json  # ST-LIV-023: as the server told
    assert {finding["requirement"] for finding in audited["findings"]} == {"ST-AUD-020"}


def test_what_failed_and_what_was_counted_otherwise_is_said(trace: str, tmp_path: Path):
    broken = {"request": "semtrace-0-0", "fault": {"kind": "status", "status": 400}}
    server = Witness(tmp_path, {**QUICK, "rules": [broken]})
    try:
        scenario = tmp_path / "scenario.json"
        scenario.write_text(json.dumps({"concurrency": 1}))
        told = run(
            "replay", trace, "--scenario", scenario, "--url", server.url, "-o", tmp_path / "run.semtrace"
        )
    finally:
        server.end()
    said = " ".join(told.out.split())
    assert "failed attempts: 1 × rejected: status 400 (BadRequest)" in said
    assert "prompts: 3 of 3 have another number of tokens on this server than recorded; --set inputs=" in said
    assert "waiting for room among the concurrent ones is in it" in said


def test_a_closed_loop_that_was_stopped_is_not_said_to_be_resumable():
    value: dict[str, Any] = {
        "lateness": None, "outcomes": {"unfinished": 1}, "environment": {}, "unfinished": 1, "output": "run.semtrace",
    }  # fmt: skip
    for arrivals, resumable in (({"kind": "closed_loop", "users": 1}, False), ({"kind": "recorded"}, True)):
        stopped = str(world_lines(value, {"arrivals": arrivals})[-1])
        assert "1 operations had not ended" in stopped
        assert ("--resume run.semtrace" in stopped) == resumable


def test_a_run_is_not_lost_to_an_output_that_is_there_meanwhile(
    server: Witness, trace: str, tmp_path: Path, monkeypatch
):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    out = tmp_path / "run.semtrace"

    def busy(*given: Any, **more: Any) -> Any:
        made = replay(*given, **more)
        out.write_text("another")
        return made

    monkeypatch.setattr("semtrace.replay.run.replay", busy)
    told = run("replay", trace, "--url", server.url, "--set", "inputs=synthetic", "-o", out)
    assert told.code == 2
    assert "exists already" in told.err
    (kept,) = (tmp_path / "tmp").glob("semtrace-*/run.semtrace")
    assert f"the run is kept in {kept}" in "".join(told.err.split("\n"))
    assert out.read_text() == "another"
    audited = run("audit", trace, kept, "--tolerance-ns", LATE)
    assert audited.code == 0, audited.out


@pytest.mark.parametrize("full", ["output", "all"])
def test_a_run_is_not_lost_to_a_disk_that_is_full(
    server: Witness, trace: str, tmp_path: Path, monkeypatch, full: str
):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("HOME", str(tmp_path / "none"))
    made = tempfile.TemporaryFile

    def file(dir: Any = None) -> Any:  # noqa: A002  # the name that tempfile has
        return Path("/dev/full").open("r+b") if full == "all" or dir == tmp_path / "out" else made(dir=dir)

    monkeypatch.setattr(tempfile, "TemporaryFile", file)
    out = tmp_path / "out" / "run.semtrace"
    told = run("replay", trace, "--url", server.url, "--set", "inputs=synthetic", "-o", out)
    said = "".join(told.err.split("\n"))
    assert (told.code, out.exists()) == (2, False)
    assert f"{out.parent}: a temporary file cannot be written: No space left on device" in said
    kept = list((tmp_path / "tmp").glob("semtrace-*/run.semtrace"))
    if full == "all":
        assert f"the run could not be kept elsewhere either (tried: {tmp_path / 'tmp'})" in said
        assert not list((tmp_path / "tmp").iterdir())
    else:
        assert f"the run is kept in {kept[0]}" in said
        assert run("audit", trace, kept[0], "--tolerance-ns", LATE).code == 0


def test_no_secret_is_kept(server: Witness, trace: str, tmp_path: Path, monkeypatch):  # ST-LIV-032
    monkeypatch.setenv("MY_KEY", "sk-very-secret-indeed")
    out = tmp_path / "run"
    told = run("replay", trace, "--url", server.url, "-o", out, "--set", "api_key_env=MY_KEY", "--json")
    assert told.code == 0
    run("unpack", out, "-o", tmp_path / "plain")
    kept = b"".join(path.read_bytes() for path in (tmp_path / "plain").rglob("*") if path.is_file())
    assert b"MY_KEY" in kept
    assert b"very-secret" not in kept
    assert "very-secret" not in told.out + told.err


def test_ctrl_c_leaves_a_run_to_go_on_with(trace: str, tmp_path: Path):  # ST-LIV-013, ST-LIV-014
    server = Witness(tmp_path, SLOW)
    try:
        out, whole = tmp_path / "run.semtrace", tmp_path / "whole.semtrace"
        scenario = tmp_path / "scenario.json"
        times = [0, 2_000_000_000]
        scenario.write_text(json.dumps({"copies": 2, "arrivals": {"kind": "drawn", "times_ns": times}}))
        command = [sys.executable, "-c", "from semtrace.cli import main; main()"]
        options = ["--scenario", scenario, "--url", server.url, "--set", "inputs=synthetic", "-o", out]
        program = subprocess.Popen(
            [*command, "replay", trace, *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"},
        )  # fmt: skip
        until = time.monotonic() + 60
        while time.monotonic() < until and not any(
            '"semtrace-1-' in line for line in server.record.read_text().splitlines()
        ):
            time.sleep(0.02)
        program.send_signal(signal.SIGINT)
        printed, failed = program.communicate(timeout=60)
        assert (program.returncode, failed) == (1, "")
        assert "stopped:" in printed
        assert "--resume" in printed
        told = run("audit", trace, out, "--tolerance-ns", LATE, "--json").json
        assert {finding["requirement"] for finding in told["findings"]} == {"ST-AUD-002"}
        refused = run("replay", trace, "--resume", out, "--copies", 3, "-o", whole)
        assert refused.code == 2
        assert "--copies" in refused.err
        gone_on = run("replay", trace, "--resume", out, "-o", whole)
        assert gone_on.code == 0, gone_on.err
        audited = run("audit", trace, whole, "--tolerance-ns", LATE)
        assert audited.code == 0, audited.out
        assert run("replay", trace, "--resume", whole, "-o", tmp_path / "more").code == 1
    finally:
        server.end()


def test_what_cannot_be_replayed_is_said_before(trace: str, tmp_path: Path):
    out = tmp_path / "run.semtrace"
    told = run("replay", trace, "--url", "http://127.0.0.1:9", "-o", out)
    assert told.code == 1
    assert "connection refused" in told.err
    assert not out.exists()
    assert run("replay", trace, "--backend", "http", "-o", out).code == 2
    assert run("replay", trace, "--url", "http://127.0.0.1:9", "--mode", "free", "-o", out).code == 2
