"""Replayers are certified against a real vLLM server: the witness stands between, and passes everything on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from semtrace_conformance.certificate import read, verify
from semtrace_conformance.suite import find_suite
from support.vllm_driver import server
from support.vllm_work import tiny_model

pytestmark = pytest.mark.integration

CONFORMANCE = Path(__file__).resolve().parents[2] / "conformance"
OURS = [sys.executable, CONFORMANCE / "testees" / "semtrace_testee.py"]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    model = tiny_model(folder / "model")
    with server(model, folder / "steps.jsonl", "--max-model-len", "4096") as where:
        yield where


HASTE = {"live.lateness", "live.times"}
"""What may be said of a right replayer on a machine that has much else to do."""


def wrong(made):
    """The checks that failed, by case; those on haste left out."""
    found = {each.case: {failure.check for failure in each.failures} - HASTE for each in made.results}
    return {case: checks for case, checks in found.items() if checks}


def certify(url, testee, path, *more):
    """Exit status of the command, what it said, and the certificate."""
    command = " ".join(map(str, testee))
    asked = ["certify", "--server", url, "--testee", command, "-o", path, "--time-scale", "6", *more]
    done = subprocess.run(
        [sys.executable, "-m", "semtrace", *asked], capture_output=True, text=True, timeout=1800, check=False
    )
    assert path.exists(), done.stdout + done.stderr
    return done.returncode, done.stdout, read(path)


def test_our_replayer_is_certified_on_a_real_server(url, tmp_path):
    code, said, made = certify(
        url, OURS, tmp_path / "c.json", "--profile", "live", "--profile", "token_locked"
    )
    assert wrong(made) == {}
    assert code == (0 if made.conformant else 1)
    told = made.server
    assert (told.url, told.model, told.max_model_len) == (url, "tiny", 4096)
    assert (told.locks_tokens, told.end_token, told.embeddings) == (True, True, False)
    assert told.version
    assert not made.conformant or f"on the real server {url}, model tiny, version" in " ".join(said.split())
    asked = {each.case for each in made.results if each.status != "not_applicable"}
    assert {"live/team", "live/drawn", "live/barrier-level", "live/turns", "live/synthetic"} <= asked
    assert {"token_locked/ids", "token_locked/turns", "token_locked/plan"} <= asked
    reasons = {each.case: each.left_out for each in made.results if each.status == "not_applicable"}
    assert all(reasons.values())
    assert reasons["live/retries"] == reasons["token_locked/retries"] == "it needs faults on cue"
    assert reasons["live/embeddings"] == "its model does not embed"
    for profile in ("live", "token_locked"):
        grades = made.profiles[profile].grades
        assert grades.witnessed.of == grades.self_reported.of >= 3
    assert verify(made, find_suite()) == []


def test_what_the_server_told_is_in_the_record(url, tmp_path):
    _, _, made = certify(url, OURS, tmp_path / "c.json", "--case", "token_locked/ids")
    seen = {each.case: each.observed for each in made.results}["token_locked/ids"]["witness"]["columns"]
    assert seen["output_tokens"] == seen["max_tokens"]
    assert seen["output_digest"] == seen["lock_digest"]
    assert sorted(seen["finish_reason"]) == ["length"] * 2 + ["stop"] * 3
    assert all(first <= end for first, end in zip(seen["first_token_ns"], seen["end_ns"], strict=True))


@pytest.mark.parametrize(
    ("fake", "case", "check"),
    [("swaps-two", "token_locked/ids", "live.locks"), ("releases-early", "live/added-edges", "live.release")],
)
def test_wrong_replayers_are_found_out_there(url, tmp_path, fake, case, check):
    wrong = [sys.executable, CONFORMANCE / "fakes" / "live_variants.py", fake]
    code, _, made = certify(url, wrong, tmp_path / "c.json", "--case", case)
    assert code == 1
    result = {each.case: each for each in made.results}[case]
    assert check in {failure.check for failure in result.failures}
    assert not result.counts
    assert json.loads((tmp_path / "c.json").read_text("utf-8"))["conformant"] is False


@pytest.mark.parametrize(
    ("name", "case"), [("right-locked", "token_locked/ids"), ("right", "live/added-edges")]
)
def test_what_the_wrong_ones_are_made_of_passes_there(url, tmp_path, name, case):
    right = [sys.executable, CONFORMANCE / "fakes" / "live_variants.py", name]
    _, _, made = certify(url, right, tmp_path / "c.json", "--case", case)
    assert case in {each.case for each in made.results if each.answer is not None}
    assert wrong(made) == {}
