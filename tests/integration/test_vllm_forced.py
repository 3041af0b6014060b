"""The logits processor alone: what it refuses, which rows it forces, and what it counts."""

import json
import subprocess

import pytest

from support.vllm_driver import SCRIPTS, environment, variables

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forced")
    command = [environment(), "-W", "ignore", SCRIPTS / "forced.py", folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=variables())
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_what_is_refused_says_why(found):
    """Each sentence is the answer that a client gets with status 400."""
    assert found["refused"] == [
        "semtrace_output_ids must be a list of token ids that is not empty, not str",
        "semtrace_output_ids must be a list of token ids that is not empty, not list",
        "semtrace_output_ids[1] must be a token id, an integer not below 0",
        "semtrace_output_ids[1] must be a token id, an integer not below 0",
        "semtrace_output_ids[1] must be a token id, an integer not below 0",
        "max_tokens must be at most 2, the number of semtrace_output_ids, is 3",
        "max_tokens must be at most 2, the number of semtrace_output_ids, is None",
        "n must be 1 with semtrace_output_ids, is 2",
    ]
    assert found["taken"] == [None, None, None]


def test_rows_are_forced_wherever_they_move(found):
    assert found["first"] == [3, 0, 4, 0]
    assert found["swapped"] == [5, 0, 0, 0]
    assert found["done"] == [0, 0, 0, 0]
    assert found["choices"] == [4, 3, 0]


def test_chunks_and_preemptions_count_once(found):
    assert (found["chunk"], found["again"], found["resumed"]) == (6, 6, 7)
    assert found["after"] == [5, 4, 0]
    assert found["told"] == {"positions": 5, "differing": 4, "mismatched": 0}


def test_another_id_is_counted_and_the_next_one_forced(found):
    assert found["next"] == 3
    assert found["mismatched"] == [0, 0, 1]


def test_ids_beyond_the_vocabulary_are_cut_off(found):
    assert found["last in vocabulary"] == 7
    assert found["beyond"] == 0


def test_one_rank_writes(found):
    assert found["files"] == ["choices.jsonl"]
