"""What people are told of a server and of a replay on it: wrong lengths, wrong models, hints that can be followed, stops."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from cli.conftest import Ran, run, team
from semtrace.cli.live import world_lines
from semtrace.store.bundle import open_bundle, write_bundle
from support.chat_server import chat_server
from support.live_runs import good, server_of, singles
from support.raw_server import as_json, raw_server, until

if TYPE_CHECKING:
    from pathlib import Path

LATE = 2_000_000_000
"""A tolerance that no machine is too busy for, in ns."""


@pytest.fixture
def trace(tmp_path: Path) -> str:
    write_bundle(tmp_path / "t.semtrace", trace=team().build().trace)
    return str(tmp_path / "t.semtrace")


def said(ran: Ran) -> str:
    """What it printed, as one line."""
    return " ".join((ran.out + ran.err).split())


def test_outputs_of_another_length_are_told_at_the_end(trace: str, tmp_path: Path):
    with chat_server(more=11) as server:
        told = run("replay", trace, "--url", server.url, "-o", tmp_path / "run.semtrace")
        value = run("replay", trace, "--url", server.url, "-o", tmp_path / "again.semtrace", "--json").json
    assert told.code == 0
    assert "answers: 4 of 4 have another number of output tokens than recorded" in said(told)
    assert value["environment"]["requests"]["answer_counts"] == {"other": 4}
    kept = open_bundle(tmp_path / "run.semtrace").execution("replay").header.environment
    assert kept["requests"]["answer_counts"] == {"other": 4}


def test_outputs_of_the_recorded_length_need_no_word(trace: str, tmp_path: Path):
    with chat_server() as server:
        told = run("replay", trace, "--url", server.url, "-o", tmp_path / "run.semtrace")
    assert "answers:" not in said(told)
    kept = open_bundle(tmp_path / "run.semtrace").execution("replay").header.environment
    assert kept["requests"]["answer_counts"] == {"equal": 4}


def test_outputs_that_nobody_counts_are_told(trace: str, tmp_path: Path):
    with chat_server(usage=False) as server:
        told = run("replay", trace, "--url", server.url, "-o", tmp_path / "run.semtrace")
    assert "answers: the server does not say of 4 of 4 how many output tokens they have" in said(told)


def test_a_server_that_goes_on_too_long_cannot_be_length_locked():
    with chat_server(more=11) as server:
        told = run("doctor", "--url", server.url)
        value = run("doctor", "--url", server.url, "--json").json
    assert told.code == 1
    assert (
        "cannot replay length-locked: outputs are longer than they are told to be, 35 tokens for 24"
        in said(told)
    )
    assert "can replay length-locked" not in said(told)
    assert value["modes"] == {}


def test_a_model_that_the_server_does_not_have_is_named():
    with chat_server() as server:
        told = run("doctor", "--url", server.url, "--model", "nope")
        asked = len(server.asked)
        good_one = run("doctor", "--url", server.url, "--model", "fake")
    assert told.code == 1
    assert "it lists 1: fake; not nope" in said(told)
    assert said(told).count("no model nope") == 1
    assert asked == 2  # its version and its models: with this model nothing else can be found out
    assert good_one.code == 0


def test_one_of_several_models_must_be_named(trace: str, tmp_path: Path):
    with raw_server(lambda _: [as_json({"data": [{"id": "a"}, {"id": "b"}]})]) as server:
        told = run("doctor", "--url", server.url)
        refused = run("replay", trace, "--url", server.url, "-o", tmp_path / "run.semtrace")
    assert (told.code, refused.code) == (1, 1)
    assert "the server lists a, b" in said(refused)
    assert "--model NAME" in said(refused)
    assert "it has a, b (name one: --model)" in said(told)


def test_of_a_closed_port_one_thing_is_said_once():
    with raw_server(lambda _: []) as server:
        pass
    told = run("doctor", "--url", server.url)
    assert told.code == 1
    assert said(told).count("connect") == 3  # that it cannot be, as connection refused; and of all else, once


def test_hints_are_what_this_server_can_do(trace: str, tmp_path: Path):
    out = tmp_path / "run.semtrace"
    with chat_server() as server:
        texts = said(run("replay", trace, "--url", server.url, "-o", out))
        ids = said(
            run("replay", trace, "--url", server.url, "--set", "inputs=synthetic", "-o", tmp_path / "no")
        )
    assert "prompts: 4 of 4 have another number of tokens" in texts
    assert "inputs=synthetic" not in texts
    assert "--set inputs=text" in ids
    assert not (tmp_path / "no").exists()


def test_content_in_a_store_is_told_by_replay_and_info(trace: str, tmp_path: Path):
    outside = tmp_path / "outside.semtrace"
    moved = run("artifacts", "externalize", trace, "--store", tmp_path / "store", "-o", outside)
    assert moved.code == 0, moved.err
    with chat_server() as server:
        told = run("replay", outside, "--url", server.url, "-o", tmp_path / "run.semtrace")
    assert told.code == 1
    assert "content of it is in a store" in said(told)
    assert "semtrace artifacts embed" in said(told)
    assert "synthetic" not in said(told)
    assert "with their content in a store (semtrace artifacts embed)" in said(run("info", outside))
    counts = run("info", outside, "--json").json["artifacts"]
    assert counts["content"]["external"] == counts["total"]
    assert "in a store" not in said(run("info", trace))


def test_a_run_goes_on_at_another_url_and_says_what_the_stop_did(tmp_path: Path):  # ST-LIV-014
    trace, out, whole = (tmp_path / name for name in ("t.semtrace", "run.semtrace", "whole.semtrace"))
    write_bundle(trace, trace=singles(2))
    scenario = tmp_path / "scenario.json"
    times = {"kind": "drawn", "times_ns": [0, 500_000_000]}
    scenario.write_text(
        json.dumps({"arrivals": times, "backend": {"name": "http", "settings": {"inputs": "synthetic"}}})
    )
    command = [sys.executable, "-c", "from semtrace.cli import main; main()", "replay", str(trace)]
    stuck = threading.Event()

    def script(asked: Any) -> Any:
        if asked.header("x-request-id") == "semtrace-1-1":
            stuck.set()
            return ["hang"]
        return good(asked)

    with server_of(script) as server:
        options = ["--scenario", scenario, "--url", server.url, "--set", "vocabulary.size=1000", "-o", out]
        program = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, env={**os.environ})
        until(stuck.is_set)
        program.send_signal(signal.SIGINT)
        program.communicate(timeout=60)
    with server_of(good) as other:
        told = run("replay", trace, "--resume", out, "--url", other.url, "-o", whole)
    assert told.code == 0, told.err
    assert f"went on after a stop at {server.url}, with 1 instances kept" in said(told)
    assert "times go on over the stop: it counts in the last end, in goodput and in the mean width" in said(
        told
    )
    header = open_bundle(whole).execution("replay").header
    assert header.backend.settings["url"] == other.url
    assert header.environment["resumed"][0]["stopped_url"] == server.url
    assert header.environment["requests"]["prompt_counts"] == {"equal": 2}  # of both runs
    assert run("audit", trace, whole, "--tolerance-ns", LATE).code == 0


def test_a_pause_is_told_in_both_directions():
    value: dict[str, Any] = {
        "lateness": None, "outcomes": {"ok": 1}, "unfinished": 0, "output": "run.semtrace",
        "environment": {"resumed": [{"kept_instances": 1, "later_ns": -2_000_000}, {"kept_instances": 2, "later_ns": 5}]},
    }  # fmt: skip
    first, second = [str(line) for line in world_lines(value, {})][1:3]
    assert "2.000 ms earlier" in first
    assert "0.000 ms later" in second


def test_options_are_spoken_of_as_options(trace: str, tmp_path: Path):
    for ran in (
        run("replay", trace, "--url", "127.0.0.1:8123", "-o", tmp_path / "run"),
        run("replay", trace, "--backend", "http", "-o", tmp_path / "run"),
        run("doctor", "--url", "127.0.0.1:8123"),
    ):
        assert ran.code == 2
        assert "for example --url http://127.0.0.1:8000" in said(ran)
    mode = run("replay", trace, "--mode", "free", "-o", tmp_path / "run")
    assert mode.code == 2
    assert "one of length-locked, token-locked" in said(mode)
