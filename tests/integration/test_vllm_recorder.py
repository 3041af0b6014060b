"""vLLM's own schedulers while they record, synchronous and asynchronous: what they write down is what they do, and what vLLM says itself."""

import json
import signal
import subprocess
from collections import Counter

import pytest

from semtrace.live.vllm.steps import read_steps
from semtrace.records.columns import NULL
from support.schedules import make_case
from support.vllm_driver import SCRIPTS, environment, variables

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
def test_records_are_what_was_done(asynchronous):
    """ST-VLM-012, ST-VLM-020, ST-VLM-021."""
    cases = [make_case(seed, asynchronous=asynchronous) for seed in range(60)]
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    command = [environment(), "-W", "ignore", SCRIPTS / "recorded.py"]
    done = subprocess.run(
        command, input=lines, capture_output=True, text=True, timeout=1800, check=False, env=variables()
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) == len(cases)
    assert [f"seed {seed}: {wrong}" for seed, (wrong, *_) in enumerate(told) if wrong] == []
    seen = sum((Counter(each) for _, each, *_ in told), Counter())
    for name, least in (
        ("entries", 20_000),
        ("preemptions", 300),
        ("evictions", 5_000),
        ("ended", 1_000),
        ("aborted", 20),
    ):
        assert seen[name] >= least, seen
    firsts = [compared.pop("first") for _, _, compared, _ in told]
    assert [f"seed {seed}: {first}" for seed, first in enumerate(firsts) if first] == []
    compared = sum((Counter(each) for _, _, each, _ in told), Counter())
    assert compared["contradictions"] == 0
    # Every eviction has its event; where nothing is cached there are none of either.
    assert compared["removed"] == seen["evictions"] >= 5_000
    assert compared["stored"] >= 10_000
    assert compared["steps"] == seen["steps"] >= 15_000
    left_out = Counter(name for *_, found in told for name in found)
    found_out = sum((Counter(found) for *_, found in told), Counter())
    for name in ("stored", "removed", "evict", "hit"):
        assert found_out[name] == left_out[name] >= 40, name
    # Preempted and admitted again before vLLM counts the next time, for at least the second time: its counts are the same.
    assert left_out["preempted"] - 2 <= found_out["preempted"] >= 30


def test_a_server_that_is_killed_loses_the_step_that_it_is_in(tmp_path):
    path = tmp_path / "steps.jsonl"
    command = [environment(), "-W", "ignore", SCRIPTS / "killed.py", "25"]
    named = variables(SEMTRACE_VLLM_LOG=str(path))
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=named)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    log = read_steps([path])
    assert len(log.names) == 4
    assert log.outputs == [25] * 4
    assert list(log.steps["end_ns"]).count(NULL) == 0
    assert len(log.steps["end_ns"]) == 25
    assert not log.torn


def test_a_server_goes_on_when_nothing_can_be_written():
    """It is said once; what the front would write neither."""
    command = [environment(), "-W", "ignore", SCRIPTS / "killed.py", "25"]
    named = variables(SEMTRACE_VLLM_LOG="/dev/full")
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=named)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]  # after all of its steps
    said = done.stdout + done.stderr
    assert said.count("semtrace: the step log ends here; the server goes on without it") == 1
    assert "No space left on device" in said


FRONT = """
from types import SimpleNamespace as Made
from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats
from semtrace.live.vllm.front import RecordingStats
logger = RecordingStats(Made(additional_config={"semtrace_step_log": "PATH"}))
for number in range(3):
    stats = IterationStats()
    stats.finished_requests = [FinishedRequestStats(finish_reason="length", request_id=str(number))]
    logger.record(None, stats, mm_cache_stats=None, engine_idx=0)
    logger.record(None, None)
"""


def test_the_front_writes_until_it_cannot(tmp_path):
    """ST-VLM-019."""
    path = tmp_path / "steps.jsonl"
    for where, written, errors in (
        (path, 3, 0),
        ("/dev/full", 0, 1),
        (tmp_path / "none" / "steps.jsonl", 0, 1),
    ):
        program = FRONT.replace("PATH", str(where))
        command = [environment(), "-W", "ignore", "-c", program]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=900, check=False, env=variables()
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert (done.stdout + done.stderr).count("Traceback") == errors
        lines = path.read_text().splitlines() if where == path else []
        assert [json.loads(line)["id"] for line in lines] == [str(number) for number in range(written)]
