"""A long replay over HTTP: what it holds does not grow with what it has sent, but for the record of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.live_runs import witness

pytestmark = pytest.mark.integration

REQUESTS = 50_000
BYTES = 400
"""Most bytes that a request may leave behind: some twenty numbers of its row."""

PROGRAM = """
import json, resource, sys
sys.path.insert(0, sys.argv[3])
from support.live_runs import run
from support.graphs import graph
from pathlib import Path

def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

call = lambda at: {"name": f"o{at}", "kind": "llm", "prompt": 64, "output": 4, "content": f"o{at}", "after": [f"o{at - 1}"] if at else []}
trace = graph({"operations": [call(at) for at in range(10)]}).trace
seen = {}
def progress(done, _):
    seen[done] = held()
made = run(
    trace, sys.argv[1], copies=int(sys.argv[2]) // 10, progress=progress, arrivals={"kind": "closed_loop", "users": 64},
    settings={"inputs": "synthetic"}, retry={"attempts": 4, "wait_ns": 1_000_000},
)
ends = made.events.ints("outcome")
facts = made.header.environment
print(json.dumps({
    "seen": sorted(seen.items()), "ok": int((ends == 1).sum()), "failed": facts["requests"]["failed_attempts"],
    "most_open": facts["connections"]["most_open"],
}))
"""


def test_memory_stays_flat_over_50_000_requests(tmp_path):
    """Also with failures in between: one in a hundred requests is reset, one in a hundred told to come again."""
    rules = [
        {"request": "semtrace-*5-3", "attempts": [1], "fault": {"kind": "reset", "after_tokens": 1}},
        {"request": "semtrace-*5-7", "attempts": [1], "fault": {"kind": "status", "status": 429}},
    ]
    script = {"service": {"first_token_ns": 500_000, "token_ns": 10_000}, "rules": rules}
    with witness(tmp_path, script) as url:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, url, str(REQUESTS), Path(__file__).resolve().parents[1]],
            capture_output=True, text=True, timeout=1800, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    assert told["ok"] == REQUESTS
    assert all(told["failed"][name] == REQUESTS // 100 for name in ("reset", "rate_limited"))
    ((begun, before),) = [each for each in told["seen"] if each[0] >= REQUESTS // 5][:1]
    ended, after = told["seen"][-1]
    assert ended >= 0.9 * REQUESTS
    assert after - before <= BYTES * (ended - begun), (before, after)
