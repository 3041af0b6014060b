"""How fast the simulated engine simulates, beside Dynamo's offline replay (Rust): the same requests, blocks, limits, servers.

Loading is left out on both sides: ours is the time of the loop from a laid out state to its end, theirs the wall clock
that their own report has. Both schedule step by step, chunk prompts, and keep prefixes. What a step takes differs: theirs is
a fitted polynomial, ours a linear cost that is not fitted to it: steps differ in length and number.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine_load import mooncake, requests, unshared
from results import Result, median, timed
from semtrace.engine.cost import LINEAR, Cost
from semtrace.engine.fast.build import build
from semtrace.engine.fast.simulate import Program, execute, finish
from semtrace.engine.settings import EngineSettings, SchedulerSettings
from semtrace.graph.resolve import Constraints
from semtrace.records.columns import NULL
from semtrace.replay.arrivals import Instances

if TYPE_CHECKING:
    from collections.abc import Callable

    from semtrace.engine.fast.build import State
    from semtrace.engine.work import Work
    from semtrace.records.trace import Trace

VERSION = "1.4.2"
BLOCK_SIZE = 64
BLOCKS = 16_384
COST = Cost(
    LINEAR,
    np.array([6_500_000_000, 50_000_000, 21_000_000, 20_000_000, 12_000], dtype=np.int64),
    np.zeros(1),
)
"""6.5 ms a step, 50 µs a request, 21 µs a prefill token, 20 µs a decode token, 12 ns a token of context: in ps."""


def settings(servers: int) -> EngineSettings:
    """256 sequences and 8,192 tokens a step, prefix caching: the defaults of both."""
    return EngineSettings(SchedulerSettings(), BLOCKS, BLOCK_SIZE, servers)


def laid_out(trace: Trace, work: Work, servers: int, users: int) -> Callable[[], State]:
    """What lays out a run, which can be run once."""
    count = trace.tasks.rows
    none = np.zeros(0, dtype=np.int64)
    rows, zeros = np.arange(count), np.zeros(count, dtype=np.int64)
    arrival = trace.tasks.ints("arrival_ns")
    if users:  # each user's first is at 0
        arrival = np.where(rows < users, 0, NULL)
    return lambda: build(
        trace,
        Constraints(count, none, none, none, none),
        Instances(rows, zeros, arrival, rows, zeros, users),
        work,
        settings(servers),
        COST,
        Program(zeros, np.zeros(count, dtype=np.bool_), zeros),
        detail=False,
    )


def measure(trace: Trace, lay_out: Callable[[], State], times: int) -> Result:
    """Seconds of the loop, the median of the runs."""
    execute(lay_out(), compiled=True)  # compiles, or loads what was compiled
    taken = []
    for _ in range(times):
        state = lay_out()
        taken += timed(lambda state=state: execute(state, compiled=True), 1)
    result = finish(state, state, trace)
    assert (result.columns["finished_ns"] >= 0).all()
    seconds = median(taken)
    facts = {
        "requests": trace.tasks.rows,
        "steps": result.step_count,
        "steps_per_s": result.step_count / seconds,
        "requests_per_s": trace.tasks.rows / seconds,
        "cached_tokens": int(result.columns["cached_tokens"].sum()),
        "preemptions": int(result.columns["preemptions"].sum()),
        "lay_out_s": median(timed(lay_out, 3)),
    }
    return Result(seconds, "s", taken, facts=facts)


def peer(folder: Path, root: Path, arguments: list[str], times: int) -> tuple[list[dict[str, Any]], str]:
    """Reports of the peer, the fastest first, and what it is, or why it was not run."""
    made = subprocess.run(["make", "-C", root, ".venvs/dynamo/.installed"], capture_output=True, check=False)
    if made.returncode:
        return [], f"Dynamo {VERSION} not run: it could not be installed"
    report = folder / "dynamo.json"
    command = [
        root / ".venvs/dynamo/bin/python",
        "-m",
        "dynamo.replay",
        *arguments,
        "--replay-mode",
        "offline",
        "--extra-engine-args",
        json.dumps({"block_size": BLOCK_SIZE}),
        "--report-json",
        report,
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "DYN_LOG": "error"}
    reports = []
    for _ in range(times):
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            return [], f"Dynamo {VERSION} not run: it ended with {done.stderr.strip().splitlines()[-1]}"
        reports.append(json.loads(report.read_text()))
    reports.sort(key=lambda each: each["wall_time_ms"])
    return reports, f"Dynamo {VERSION}, offline replay: its own wall clock"


def beside(result: Result, reports: list[dict[str, Any]], note: str) -> None:
    """Put the peer's figures next to ours."""
    result.peer_note = note
    if reports:
        middle = reports[len(reports) // 2]
        result.peer = middle["wall_time_ms"] / 1000
        result.facts |= {
            "peer_requests_per_s": middle["completed_requests"] / result.peer,
            "peer_runs": [each["wall_time_ms"] / 1000 for each in reports],
            "peer_cached_share": middle["prefix_cache_reused_ratio"],
            "peer_simulated_s": middle["duration_ms"] / 1000,
        }


def run(folder: Path, root: Path, times: int, *, peers: bool) -> dict[str, Result]:
    """The figures `sim.mooncake_conversation` and `sim.synthetic_512_64`, in seconds, and that of 10^6 requests."""
    left_out = f"Dynamo {VERSION} not run: peers were left out"
    results = {}
    samples = os.environ.get("SEMTRACE_SAMPLES")
    if samples is None:
        print("sim.mooncake_conversation not run: SEMTRACE_SAMPLES is not set", file=sys.stderr)
    else:
        path = Path(samples).resolve() / "peers/mooncake/conversation_trace.jsonl"
        trace, work = mooncake(path, BLOCK_SIZE)
        result = measure(trace, laid_out(trace, work, 4, 0), times)
        arguments = [
            str(path),
            "--trace-block-size",
            "512",
            "--num-workers",
            "4",
            "--router-mode",
            "round_robin",
        ]
        beside(result, *(peer(folder, root, arguments, min(times, 3)) if peers else ([], left_out)))
        results["sim.mooncake_conversation"] = result
    for count in (20_000, 1_000_000):
        prompt, output = np.full(count, 512), np.full(count, 64)
        trace, work = (
            requests(np.zeros(count, dtype=np.int64), prompt, output),
            unshared(prompt, output, BLOCK_SIZE),
        )
        result = measure(trace, laid_out(trace, work, 1, 64), times if count == 20_000 else 1)
        if count == 20_000:
            arguments = ["--input-tokens", "512", "--output-tokens", "64", "--request-count", str(count)]
            arguments += ["--replay-concurrency", "64", "--num-workers", "1"]
            beside(result, *(peer(folder, root, arguments, min(times, 3)) if peers else ([], left_out)))
            results["sim.synthetic_512_64"] = result
        else:
            small = results["sim.synthetic_512_64"].ours / 20_000
            result.facts["time_per_request_over_20000"] = result.ours / count / small
            results["sim.synthetic_512_64_1e6"] = result
    return results
