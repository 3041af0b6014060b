"""Texts on a real vLLM server: its own tokenizer and template, its counts beside the recorded ones, and what doctor finds of it."""

import json
import subprocess
import sys

import pytest

from semtrace.store.bundle import open_bundle, write_bundle
from support.chat_traces import chat_trace
from support.vllm_driver import server
from support.vllm_work import tiny_model

pytestmark = pytest.mark.integration

LATE = 60_000_000_000
"""How punctual the client is on a busy machine is not asked here."""


def semtrace(*words):
    command = [sys.executable, "-m", "semtrace", *(str(word) for word in words), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("text")


@pytest.fixture(scope="module")
def url(folder):
    with server(tiny_model(folder / "model"), folder / "steps.jsonl", "--max-model-len", "256") as found:
        yield found


def test_what_doctor_finds_of_vllm(url):
    told = semtrace("doctor", "--url", url)
    found = {probe["name"]: probe["found"] for probe in told["probes"]}
    no = {name for name, value in found.items() if value == "no"}
    assert no == {"tools", "trace_replay", "annotation", "embeddings"}
    assert found["tools_uncalled"] == "yes"
    assert "unknown" not in found.values()
    assert (told["model"], told["max_model_len"], told["vocabulary_size"]) == ("tiny", 256, 1024)
    assert told["inputs"] == ["token_ids", "synthetic", "text"]
    assert told["locks"] == ["logits_processor"]
    assert set(told["modes"]) == {"length_locked", "token_locked"}


def test_texts_are_counted_by_the_server_and_the_difference_is_told(url, folder):
    """ST-INP-005, ST-INP-006, ST-LIV-023: the server's template makes three tokens of the first prompt and two of the second."""
    trace = chat_trace(tokens=(9, 2), output=5)
    write_bundle(folder / "trace.semtrace", trace)
    told = semtrace("replay", folder / "trace.semtrace", "--url", url, "-o", folder / "run.semtrace")
    assert told["environment"]["requests"]["inputs"] == "text"
    assert told["environment"]["requests"]["prompt_counts"] == {"other": 1, "equal": 1}
    assert told["outcomes"] == {"ok": 2}
    events = open_bundle(folder / "run.semtrace").execution().events
    assert events.ints("prompt_tokens").tolist() == [3, 2]
    assert events.ints("output_tokens").tolist() == [5, 5]
    audited = semtrace("audit", folder / "trace.semtrace", folder / "run.semtrace", "--tolerance-ns", LATE)
    assert [(each["requirement"], each["rows"]) for each in audited["findings"]] == [("ST-AUD-020", [0])]
