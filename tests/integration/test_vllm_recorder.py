"""vLLM's own schedulers while they record, synchronous and asynchronous: what they write down is what they do."""

import json
import subprocess
from collections import Counter

import pytest

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
