"""How close a replay is to the run that was recorded: a multi-agent program on a real vLLM server, and its replay on the same server.

The program (agents.py, a process of its own, on the standard library) plans, lets four analysts work at once, each in turns with tools
between them, and joins what they said. What it did becomes a trace with its native run, and that trace is replayed at once, locked to
lengths. Native and replay are a *pair*; compared are their root latencies, from the arrival to the end of the last call, by the
same measure. Each replay is audited, and must be clean but for lateness, which busy machines have; so both did the same calls, with the
same prompts and as many tokens, and tools took what they took.

Two natives with one seed and their two replays are a *block*. A replay cannot come before its native; else the order in the
block is drawn. Before each of the four the server forgets all prefixes that it has cached, and has answered a short request. The
first block warms up and is left out. How far apart the two natives of a block are says what the machine and the server scatter.

What is counted where. The program's own time, its HTTP library's before a request and after the end of a stream included, lies between
operations: it is in the native root latency, and the replay takes it as recorded, as external delay. What lies between the first byte
sent and the end of the stream is not replayed but happens again, on another client; that is where the two may differ:

- the program wakes a thread and reads with `http.client`, the replayer has one thread which waits for sockets, and spins for up to a
  millisecond before a release; both are clients of the same server on the same cores, and what they take of these it does not have;
- the replayer asks for least tokens too, and for end tokens to be ignored: the server has more to do for that, in each step;
- the replayer submits a little late, the native never: lateness counts against the replay, and goes on along the path;
- where the model says something else than it did (sums in other batches are other sums), the next prompt repeats what it
  said natively, and the server finds less of it in its cache. Both are greedy here, so that this is rare; the facts say how often.

python benchmarks/native.py [--pairs N] [--lengths]    what this figure is alone: about five seconds a pair, and a minute before

With `--lengths` the program asks for least tokens, and for end tokens to be ignored, as the replayer does: what the difference is then,
and was not before, is what holding lengths costs the server.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from results import Result
from semtrace.build import TraceBuilder, explain_starts
from semtrace.check.trace import check_trace
from semtrace.errors import SemtraceError
from semtrace.graph.plan import dag
from semtrace.measure.audit import audit
from semtrace.measure.compare import bootstrap
from semtrace.measure.metrics import measure
from semtrace.measure.path import CompletedPath
from semtrace.records.columns import NULL
from semtrace.records.enums import ContentLevel, FinishReason, OperationKind, Outcome, Role
from semtrace.records.media import TOKEN_IDS_TYPE
from semtrace.replay.run import replay
from semtrace.replay.scenario import Scenario
from semtrace.store.digests import show, work_digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from semtrace.build import BuiltTrace
    from semtrace.measure.metrics import InstanceMeasures
    from semtrace.records.execution import Execution
    from semtrace.records.trace import Trace

PAIRS: Final = 32
WANTED_PERCENT: Final = 3.0
MS: Final = 1_000_000
LATE: Final = "ST-AUD-033"
ORDERS: Final = ("NRnr", "NnRr", "NnrR")
"""Ways to run a block: two natives, N and n, and a replay of each, R and r."""
ARGUMENTS: Final = (
    "--served-model-name", "tiny", "--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager", "--block-size", "32",
    "--num-gpu-blocks-override", "512", "--max-model-len", "2048", "--enable-prompt-tokens-details",
)  # fmt: skip
VARIABLES: Final = {
    "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "VLLM_SERVER_DEV_MODE": "1",
}  # fmt: skip
"""The server's environment; the last has it offer to forget its prefixes."""


@dataclass(frozen=True)
class Run:
    """One side of a pair.

    Attributes:
        execution: what happened.
        measured: the measures of its one instance.
    """

    execution: Execution
    measured: InstanceMeasures

    @classmethod
    def of(cls, trace: Trace, execution: Execution) -> Run:
        """Measure a run."""
        return cls(execution, measure(trace, execution).instances[0])

    @property
    def latency_ns(self) -> int:
        """Its root latency."""
        latency = self.measured.root_latency_ns
        assert latency is not None
        return latency

    def parts(self) -> dict[str, int]:
        """What its completed path was spent on, in ns."""
        path = self.measured.path
        assert isinstance(path, CompletedPath)
        return path.parts.as_dict()

    def sum(self, column: str) -> int:
        """The sum of a column of events, of calls of the model."""
        values = self.execution.events.ints(column)
        return int(values[values != NULL].sum())


@dataclass(frozen=True)
class Pair:
    """A native run and its replay.

    Attributes:
        trace: what both did.
        late_ns: the greatest lateness of the replay.
        late: submissions of the replay that the audit calls late.
        calls, same: calls of the model, and those in which it said the same in both.
    """

    trace: Trace
    native: Run
    replayed: Run
    late_ns: int
    late: int
    calls: int
    same: int

    @property
    def percent(self) -> float:
        """By how much the replay took longer, in percent of the native root latency."""
        return 100 * (self.replayed.latency_ns - self.native.latency_ns) / self.native.latency_ns


class Server:
    """A vLLM server with a tiny model of random weights."""

    def __init__(self, python: Path, model: Path, said: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._said = said
        command: list[str | Path] = [
            python, "-W", "ignore", "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--port", str(port), *ARGUMENTS,
        ]  # fmt: skip
        with said.open("wb") as out:
            self._program = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **VARIABLES})

    def wait(self, seconds: float = 600) -> None:
        """Wait until it answers.

        Raises:
            RuntimeError: it ended, or does not answer.
        """
        for _ in range(int(seconds)):
            if self._program.poll() is not None:
                raise RuntimeError(f"the server ended: {self._said.read_text(errors='replace')[-1000:]}")
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):  # noqa: S310  # our own
                    return
            except OSError:
                time.sleep(1)
        raise RuntimeError(f"the server did not answer within {seconds:.0f} s")

    def forget(self) -> None:
        """Have it forget the prefixes that it has cached.

        Raises:
            RuntimeError: it does not, since it is still at work.
        """
        for _ in range(50):
            asked = urllib.request.Request(f"{self.url}/reset_prefix_cache", method="POST")  # noqa: S310  # our own
            with urllib.request.urlopen(asked, timeout=60) as answer:  # noqa: S310  # our own server
                if json.load(answer)["success"]:
                    time.sleep(0.2)  # what the last run left to do is done
                    return
            time.sleep(0.1)
        raise RuntimeError("the server does not forget its prefixes")

    def end(self) -> None:
        """End it."""
        self._program.terminate()
        try:
            self._program.wait(60)
        except subprocess.TimeoutExpired:
            self._program.kill()
            self._program.wait()


@contextmanager
def server(folder: Path, root: Path, python: Path) -> Iterator[Server]:
    """A server that answers."""
    model = folder / "tiny-model"
    if not (model / "model.safetensors").exists():  # it is written last
        script = root / "tests/integration/vllm/make_model.py"
        done = subprocess.run(
            [python, "-W", "ignore", script, model], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"the model could not be made: {done.stderr[-1000:]}")
    started = Server(python, model, folder / "native-server.txt")
    try:
        started.wait()
        yield started
    finally:
        started.end()


def program(url: str, seed: int, model: str = "tiny", *, lengths: bool = False) -> BuiltTrace:
    """Run the program: its trace and native run.

    Raises:
        RuntimeError: it did not run, or its record makes no valid trace.
    """
    command: list[str | Path] = [sys.executable, Path(__file__).parent / "agents.py", url, model, str(seed)]
    command += ["lengths"] if lengths else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the program ended with status {done.returncode}: {done.stderr[-1000:]}")
    built = recorded(json.loads(done.stdout))
    findings = check_trace(built.trace)
    if findings:
        raise RuntimeError(f"the program's trace: {findings[0]}")
    return built


def recorded(record: dict[str, Any]) -> BuiltTrace:
    """The trace of what the program did.

    The task arrives when the program began. What it waited for is what it says, and whose outputs its prompts repeat; the rest of the time
    before each operation is its external delay.
    """
    made = TraceBuilder(origin_unix_ns=record["origin_unix_ns"], content_level=ContentLevel.TOKEN_IDS)
    task = made.task("research", arrival_ns=0, outcome=Outcome.SUCCESS)
    sessions: dict[str, int] = {}
    for row in record["operations"]:
        agent = row.get("agent", row["name"])
        if agent not in sessions:
            sessions[agent] = made.session(task, agent=agent)
        begun, ended = row["submitted_ns"], row["finished_ns"]
        common = {"session": sessions[agent], "started_ns": begun}
        if row["kind"] == "tool":
            at = made.operation(task, OperationKind.TOOL, row["name"], duration_ns=ended - begun, **common)
        else:
            at = made.operation(
                task, OperationKind.LLM, row["name"], model=made.model("tiny"), prompt_tokens=row["prompt_tokens"],
                output_tokens=row["output_tokens"], finish_reason=FinishReason[row["finish_reason"].upper()], **common,
            )  # fmt: skip
            if row["base"] is not None:
                made.inherit(at, row["base"], len(made.context(row["base"])) + 1)
            for ids, source in row["pieces"]:
                made.segment(
                    at, Role.USER if source is None else Role.TOOL, source=source,
                    token_ids=_ids(made, ids), token_ids_start=0, tokens=len(ids),
                )  # fmt: skip
            made.update_operation(at, output_token_ids=_ids(made, row["output"]))
        for before in row["after"]:
            made.edge(at, before)
        made.observe(
            at, submitted_ns=begun, finished_ns=ended, first_token_ns=row.get("first_token_ns"),
            cached_tokens=row.get("cached_tokens"), attempts=1 if row["kind"] == "llm" else None,
        )  # fmt: skip
    made.update_task(task, answer_operation=len(record["operations"]) - 1)
    starts = explain_starts(made)
    assert not starts.unexplained
    assert not starts.early
    return made.build()


def _ids(made: TraceBuilder, ids: Sequence[int]) -> int:
    return made.artifact(np.array(ids, dtype="<u4").tobytes(), TOKEN_IDS_TYPE)


def again(url: str, trace: Trace) -> Execution:
    """The replay of a trace, locked to lengths."""
    document = {
        "mode": "length_locked",
        "arrivals": {"kind": "together"},
        "backend": {"name": "http", "settings": {"url": url, "inputs": "token_ids"}},
    }
    return replay(trace, dag(show(work_digest(trace))), Scenario.parse(document, path="benchmark"))


def pair(built: BuiltTrace, replayed: Execution) -> Pair:
    """A native run and its replay, audited.

    Raises:
        RuntimeError: the replay is no replay of it.
    """
    trace, native = built.trace, built.execution
    assert native is not None
    report = audit(trace, replayed)
    other = [finding for finding in report.findings if finding.requirement != LATE]
    if other or report.gaps or report.lateness is None:
        raise RuntimeError(f"a replay is not clean: {[*map(str, other), *report.gaps][:3]}")
    calls = np.flatnonzero(trace.operations.ints("kind") == OperationKind.LLM)
    said, now = trace.operations.ints("output_token_ids"), replayed.events.ints("output_ids")
    digests = sorted(replayed.content)
    same = sum(
        now[at] != NULL and replayed.content.get(digests[now[at]]) == trace.artifact(int(said[at]))
        for at in calls.tolist()
    )
    late = trace.operations.rows - report.lateness.within
    greatest = int(report.lateness.distribution.as_dict()["max"])
    return Pair(trace, Run.of(trace, native), Run.of(trace, replayed), greatest, late, len(calls), same)


def blocks(server: Server, count: int, *, lengths: bool) -> Iterator[list[Pair]]:
    """Blocks of two pairs, after one that warms up."""
    random = Random(5)
    for seed in range(count + 1):
        natives: dict[str, BuiltTrace] = {}
        replays: dict[str, Execution] = {}
        for which in random.choice(ORDERS):
            server.forget()
            if which in "Nn":
                natives[which] = program(server.url, seed, lengths=lengths)
            else:
                replays[which] = again(server.url, natives["N" if which == "R" else "n"].trace)
        found = [pair(natives["N"], replays["R"]), pair(natives["n"], replays["r"])]
        if seed:
            yield found


def spread(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """Least, quartiles and greatest."""
    names = ("min", "q1", "median", "q3", "max")
    return {name: round(float(np.quantile(values, at / 4)), digits) for at, name in enumerate(names)}


def facts(found: Sequence[Sequence[Pair]]) -> dict[str, Any]:
    """What is said of blocks of pairs beside the median difference."""
    pairs = [each for block in found for each in block]
    between = [100 * (b.native.latency_ns - a.native.latency_ns) / a.native.latency_ns for a, b in found]
    differences = [each.replayed.latency_ns - each.native.latency_ns for each in pairs]
    median, _ = bootstrap([round(1_000_000 * each.percent) for each in pairs])
    parts = [(each.native.parts(), each.replayed.parts()) for each in pairs]
    return {
        "pairs": len(pairs),
        "wanted_percent": WANTED_PERCENT,
        "within_wanted": sum(abs(each.percent) <= WANTED_PERCENT for each in pairs),
        "difference_percent": spread([each.percent for each in pairs]),
        "median_95_percent": [round(end / 1_000_000, 3) for end in (median.low, median.high)],
        "difference_ms": spread([each / MS for each in differences]),
        "native_to_native_percent": spread(between),
        "native_to_native_absolute_percent": spread([abs(each) for each in between]),
        "native_ms": spread([each.native.latency_ns / MS for each in pairs]),
        "replay_ms": spread([each.replayed.latency_ns / MS for each in pairs]),
        "path_difference_ms": {
            name: spread([(theirs[name] - ours[name]) / MS for ours, theirs in parts])
            for name in parts[0][0]
            if any(ours[name] or theirs[name] for ours, theirs in parts)
        },
        "path_native_ms": {
            name: spread([ours[name] / MS for ours, _ in parts])
            for name in parts[0][0]
            if any(ours[name] for ours, _ in parts)
        },
        "audits_clean": sum(each.late == 0 for each in pairs),
        "audits_clean_but_for_lateness": len(pairs),
        "late_submissions": sum(each.late for each in pairs),
        "submissions": sum(each.trace.operations.rows for each in pairs),
        "greatest_lateness_ms": spread([each.late_ns / MS for each in pairs]),
        "calls": sum(each.calls for each in pairs),
        "calls_that_said_the_same": sum(each.same for each in pairs),
        **{
            name: {"native": sum(each.native.sum(name) for each in pairs), "replay": sum(each.replayed.sum(name) for each in pairs)}
            for name in ("prompt_tokens", "output_tokens", "cached_tokens")
        },
    }  # fmt: skip


def run(folder: Path, root: Path, pairs: int, *, vllm: bool, lengths: bool = False) -> dict[str, Result]:
    """The figure `live.native_replay`: the median difference of root latencies in percent; its spread in `facts`."""
    python = root / ".venvs/vllm/bin/python"
    unit = "% of native root latency"
    note = "not run: vLLM was left out"
    if vllm and not python.exists():
        note = "not run: there is no environment for vLLM (make .venvs/vllm/.installed)"
    elif vllm:
        try:
            with server(folder, root, python) as started:
                found = list(blocks(started, (pairs + 1) // 2, lengths=lengths))
        except (RuntimeError, OSError, SemtraceError) as error:
            note = f"not run: {error}"
        else:
            values = [each.percent for block in found for each in block]
            return {
                "live.native_replay": Result(
                    float(np.median(values)),
                    unit,
                    values,
                    better="zero",
                    facts={"program_asks_for_lengths": lengths, **facts(found)},
                )
            }
    return {"live.native_replay": Result(None, unit, [], better="zero", peer_note=note)}


if __name__ == "__main__":
    OPTIONS = argparse.ArgumentParser(description="A native run and its replay, as pairs.")
    OPTIONS.add_argument("--pairs", type=int, default=PAIRS, help="pairs; a block has two")
    OPTIONS.add_argument(
        "--lengths", action="store_true", help="the program asks for lengths as the replayer does"
    )
    CHOSEN = OPTIONS.parse_args()
    ROOT = Path(__file__).resolve().parent.parent
    FOLDER = ROOT / "build" / "bench"
    FOLDER.mkdir(parents=True, exist_ok=True)
    for figure, outcome in run(FOLDER, ROOT, CHOSEN.pairs, vllm=True, lengths=CHOSEN.lengths).items():
        print(figure, json.dumps(outcome.as_dict(), indent=1))
