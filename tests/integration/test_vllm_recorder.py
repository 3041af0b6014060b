"""vLLM's own schedulers while they record, synchronous and asynchronous: what they write down is what they do."""

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
    """ST-VLM-012."""
    cases = [make_case(seed, asynchronous=asynchronous) for seed in range(60)]
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    command = [environment(), "-W", "ignore", SCRIPTS / "recorded.py"]
    done = subprocess.run(
        command, input=lines, capture_output=True, text=True, timeout=1800, check=False, env=variables()
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) == len(cases)
    assert [f"seed {seed}: {wrong}" for seed, (wrong, _) in enumerate(told) if wrong] == []
    seen = sum((Counter(each) for _, each in told), Counter())
    for name, least in (
        ("entries", 20_000),
        ("preemptions", 300),
        ("evictions", 5_000),
        ("ended", 1_000),
        ("aborted", 20),
    ):
        assert seen[name] >= least, seen


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
