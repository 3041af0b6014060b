"""How punctual live replay is, beside aiperf's fixed schedule: the same requests, due at the same times, to the same witness.

The server stamps every request by the kernel. Lateness is from when a request was due to when it was sent, at the client by its
own record, and to when it came, at the witness. Ours counts from the release, by the machine's clock. aiperf's schedule begins at
an instant that it does not tell: it is taken to be the one by which its most punctual request is not late at all.

python benchmarks/live.py    what these figures are alone
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from results import Result, median
from semtrace.build import TraceBuilder
from semtrace.graph.plan import dag
from semtrace.records.columns import NULL
from semtrace.records.enums import OperationKind, Role
from semtrace.replay.run import replay
from semtrace.replay.scenario import Scenario
from semtrace.store.digests import show, work_digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from semtrace.records.execution import Execution
    from semtrace.records.trace import Trace

VERSION = "0.13.0"
PROMPT, OUTPUT = 64, 4
SERVICE = {"first_token_ns": 2_000_000, "token_ns": 500_000}
MS = 1_000_000
BRANCHES, ROUNDS = 200, 10


@dataclass(frozen=True)
class Late:
    """How late requests were, in ns, at the client and at the witness."""

    client: NDArray[np.int64]
    witness: NDArray[np.int64]

    def facts(self) -> dict[str, Any]:
        """Shares in percent, lateness in ms."""
        made: dict[str, Any] = {"requests": len(self.client)}
        for place, late in (("client", self.client), ("witness", self.witness)):
            made[f"{place}_within_1ms"] = round(100 * float((late <= MS).mean()), 3)
            made[f"{place}_p50_ms"], made[f"{place}_p99_9_ms"] = (
                round(float(np.percentile(late, q)) / MS, 4) for q in (50, 99.9)
            )
            made[f"{place}_early"] = int((late < 0).sum())
        return made


class Witness:
    """The witness as a program of its own."""

    def __init__(self, folder: Path) -> None:
        script, self._record = folder / "witness.json", folder / "witness.jsonl"
        script.write_text(json.dumps({"service": SERVICE}))
        self._record.unlink(missing_ok=True)  # it replaces nothing
        self._program = subprocess.Popen(
            [
                sys.executable, "-m", "semtrace_conformance.witness",
                "--script", script, "--record", self._record, "--port", "0",
            ],
            stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self._program.stdout is not None
        self.url = json.loads(self._program.stdout.readline())["url"]

    def end(self) -> dict[str, int]:
        """When each request came, Unix time in ns, by its id."""
        self._program.terminate()
        self._program.communicate()
        rows = (json.loads(line) for line in self._record.read_text().splitlines())
        return {row["request_id"]: row["arrival_unix_ns"] for row in rows if row["request_id"]}


def poisson_trace(count: int) -> Trace:
    """Tasks of one call each, no two with the same prompt."""
    made = TraceBuilder()
    for at in range(count):
        task = made.task(f"task {at}")
        call(made, task, [])
    return made.build().trace


def dag_trace() -> Trace:
    """A call, 200 branches of ten tools and calls in turn, and a call that joins them."""
    made, rng = TraceBuilder(), Random(7)
    task = made.task("fan out")
    root = call(made, task, [])
    ends = []
    for _ in range(BRANCHES):
        before = root
        for _ in range(ROUNDS):
            tool = made.operation(
                task, OperationKind.TOOL, "tool", duration_ns=rng.randint(20 * MS, 400 * MS)
            )
            made.edge(tool, before)
            before = call(made, task, [tool])
        ends.append(before)
    call(made, task, ends)
    return made.build().trace


def call(made: TraceBuilder, task: int, after: list[int]) -> int:
    """A model call that waits for others."""
    row = made.operation(task, OperationKind.LLM, "call", prompt_tokens=PROMPT, output_tokens=OUTPUT)
    made.segment(row, Role.USER, tokens=PROMPT)
    for source in after:
        made.edge(row, source)
    return row


def ours(folder: Path, trace: Trace, arrivals: dict[str, Any]) -> tuple[Late, Execution]:
    """Replay on a witness."""
    witness = Witness(folder)
    settings = {"url": witness.url, "inputs": "synthetic", "vocabulary": {"first": 300, "size": 30_000}}
    scenario = Scenario.parse(
        {"arrivals": arrivals, "backend": {"name": "http", "settings": settings}}, path="benchmark"
    )
    try:
        execution = replay(trace, dag(show(work_digest(trace))), scenario)
    finally:
        came = witness.end()
    events, origin = execution.events, execution.header.origin_unix_ns or 0
    sent = events.ints("attempts") != NULL
    released = events.ints("released_ns")[sent]
    ids = [each for each in events.data["request_id"].to_pylist() if each is not None]
    arrival = np.array([came[each] for each in ids], dtype=np.int64) - origin
    return Late(events.ints("submitted_ns")[sent] - released, arrival - released), execution


def theirs(folder: Path, root: Path, due_ns: NDArray[np.int64]) -> Late:
    """The fixed schedule of aiperf on a witness.

    Raises:
        RuntimeError: it did not run, with what it said.
    """
    cache = folder / "hub/hub/models--bench--words"
    home = root / ".venvs/aiperf/bin"
    if not cache.exists():
        subprocess.run(
            [home / "python", Path(__file__).parent / "aiperf_words.py", cache],
            check=True,
            capture_output=True,
        )
    witness = Witness(folder)
    rng, lines = Random(3), []
    for due in np.sort(due_ns).tolist():
        payload = {
            "model": "witness", "prompt": [300 + rng.randrange(20_000) for _ in range(PROMPT)], "max_tokens": OUTPUT,
            "min_tokens": OUTPUT, "ignore_eos": True, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        lines.append(json.dumps({"timestamp": due / MS, "payload": payload}))
    (folder / "schedule.jsonl").write_text("\n".join(lines) + "\n")
    command = [
        home / "aiperf", "profile", "--model", "witness", "--url", witness.url, "--endpoint-type", "completions",
        "--streaming", "--input-file", folder / "schedule.jsonl", "--custom-dataset-type", "mooncake_trace",
        "--fixed-schedule", "--tokenizer", "bench/words", "--use-server-token-count", "--ui", "none",
        "--output-artifact-dir", folder / "aiperf",
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False,
            env={**os.environ, "HF_HOME": str(folder / "hub"), "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
    finally:
        came = witness.end()
    if done.returncode:
        raise RuntimeError(f"it ended with status {done.returncode}")
    records = [
        json.loads(line)["metadata"]
        for line in (folder / "aiperf/profile_export.jsonl").read_text().splitlines()
    ]
    records.sort(key=lambda each: each["session_num"])
    if len(records) != len(due_ns):
        raise RuntimeError(f"it sent {len(records)} of {len(due_ns)} requests")
    due = np.sort(due_ns)
    late = []
    for times in (
        [each["request_start_ns"] for each in records],
        [came[each["x_request_id"]] for each in records],
    ):
        after = np.array(times, dtype=np.int64) - due
        late.append(after - after.min())
    return Late(*late)


def loads(folder: Path) -> Iterator[tuple[str, Late, NDArray[np.int64]]]:
    """Our runs: the figure's name, how late it was, and when its requests were due."""
    for name, count, mean_ns in (("live.poisson_20ms", 500, 20 * MS), ("live.poisson_1ms", 5000, MS)):
        late, execution = ours(
            folder, poisson_trace(count), {"kind": "poisson", "mean_ns": mean_ns, "seed": 1}
        )
        yield name, late, execution.events.ints("released_ns")
    trace = dag_trace()
    late, execution = ours(folder, trace, {"kind": "together"})
    calls = execution.events.ints("attempts") != NULL
    yield "live.dag_200", late, execution.events.ints("released_ns")[calls]


def run(folder: Path, root: Path, times: int, *, peers: bool) -> dict[str, Result]:
    """The figures `live.*`: the P99.9 of lateness at the client in ms; shares within 1 ms, at both places, in `facts`."""
    note = f"aiperf {VERSION} not run: peers were left out"
    if peers:
        made = subprocess.run(
            ["make", "-C", root, ".venvs/aiperf/.installed"], capture_output=True, check=False
        )
        peers = made.returncode == 0
        note = f"aiperf {VERSION} not run: it could not be installed"
    runs: dict[str, list[dict[str, Any]]] = {}
    due: dict[str, NDArray[np.int64]] = {}
    for _ in range(times):
        for name, late, when in loads(folder):
            runs.setdefault(name, []).append(late.facts())
            due[name] = when
    results = {}
    for name, facts in runs.items():
        taken = [each["client_p99_9_ms"] for each in facts]
        middle = sorted(facts, key=lambda each: each["client_p99_9_ms"])[len(facts) // 2]
        worst = {
            f"worst_{key}": min(each[key] for each in facts)
            for key in ("client_within_1ms", "witness_within_1ms")
        }
        result = Result(median(taken), "ms, P99.9 at the client", taken, peer_note=note, facts=middle | worst)
        if peers:
            try:
                peer = theirs(folder, root, due[name]).facts()
                result.peer = peer["client_p99_9_ms"]
                result.facts |= {f"peer_{key}": value for key, value in peer.items()}
                result.peer_note = f"aiperf {VERSION}, fixed schedule"
            except RuntimeError as error:
                result.peer_note = f"aiperf {VERSION} not run: {error}"
        results[name] = result
    return results


if __name__ == "__main__":
    ROOT = Path(__file__).resolve().parent.parent
    FOLDER = ROOT / "build" / "bench"
    FOLDER.mkdir(parents=True, exist_ok=True)
    for figure, outcome in run(FOLDER, ROOT, 3, peers="--no-peers" not in sys.argv).items():
        print(figure, json.dumps(outcome.as_dict(), indent=1))
