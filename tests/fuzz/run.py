"""Fuzz bundles and streams: `make fuzz`, or `python tests/fuzz/run.py --cases 100000 --seed 0`.

Every case is a mutated copy of a random valid trace. Reading, checking and what follows a clean check may end in
findings or in a SemtraceError, and in nothing else; within a bound on memory beyond the file's size; and within a budget
of processor time. A case that does not is printed with its seed, and kept under build/fuzz/.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from fuzz.mutations import Source, mutate  # noqa: E402  # found through the path above
from semtrace.errors import SemtraceError  # noqa: E402

MEMORY_BYTES = 256 << 20
"""Memory that a case may take beyond the size of its file."""
SECONDS = 20
"""Processor time of a case; the slowest honest one takes a small part of it."""
SOURCES = 8


class OverBudgetError(Exception):
    """A case took more processor time than its budget."""


def sources(folder: Path) -> list[Source]:
    """Random valid bundles and the streams made of them."""
    from semtrace.graph.plan import dag
    from semtrace.replay.run import replay, replay_findings
    from semtrace.replay.scenario import Scenario
    from semtrace.store.bundle import write_bundle
    from semtrace.store.digests import show, work_digest
    from semtrace.stream.exchange import write_stream
    from semtrace.testing import random_trace

    made = []
    for seed in range(SOURCES):
        built = random_trace(seed)
        executions = {"native": built.execution} if built.execution else {}
        if not list(replay_findings(built.trace)):
            plan = dag(show(work_digest(built.trace)))
            executions["replay"] = replay(built.trace, plan, Scenario())
        bundle, stream = folder / f"{seed}.semtrace", folder / f"{seed}.stream"
        write_bundle(bundle, built.trace, executions, overwrite=True)
        write_stream(stream, built.trace, executions, overwrite=True)
        made.append(Source.of(bundle, stream))
    return made


def judge(path: Path, form: str) -> str:
    """Read and check a file as commands do.

    Returns:
        How it ended: `error CODE`, `findings` or `clean`.
    """
    from semtrace.check import check_bundle, check_execution, check_trace
    from semtrace.cli.inspect import describe
    from semtrace.store.bundle import open_bundle
    from semtrace.stream.exchange import read_stream

    try:
        if form == "bundle":
            bundle = open_bundle(path)
            findings = check_bundle(bundle)
            for finding in findings:
                str(finding)
            if findings:
                return "findings"
            describe(bundle)
            trace = bundle.trace if bundle.manifest.trace is not None else None
            executions = {name: bundle.execution(name) for name in bundle.manifest.executions}
        else:
            held = read_stream(path)
            trace, executions = held.trace, dict(held.executions)
            findings = check_trace(trace) if trace is not None else []
            for execution in executions.values():
                findings += check_execution(execution, trace)
            if findings:
                return "findings"
        if trace is not None:
            _use(trace, executions)
    except SemtraceError as error:
        str(error)
        error.as_dict()
        return f"error {error.code}"
    return "clean"


def _use(trace: Any, executions: dict[str, Any]) -> None:
    """What people do with a valid bundle."""
    from semtrace.graph.barrier import barrier
    from semtrace.graph.legality import judge as legal
    from semtrace.measure.audit import audit
    from semtrace.measure.metrics import measure
    from semtrace.records.chat import rebuild_request
    from semtrace.view.terminal import timeline, trace_tree

    trace_tree(trace, tasks=3, operations=20)
    assert legal(trace, barrier(trace, "chain")).legal
    for operation in range(min(trace.operations.rows, 5)):
        rebuild_request(trace, operation)
    for execution in executions.values():
        timeline(execution, trace, instances=2, operations=20)
        try:
            audit(trace, execution)
            measure(trace, execution)
        except SemtraceError:
            continue


def _over_budget(_signal: int, _frame: object) -> None:
    raise OverBudgetError


def _forget_peak() -> None:
    """Let the kernel count this process's peak of resident memory anew."""
    Path("/proc/self/clear_refs").write_text("5")


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))


def work(first: int, step: int, cases: int, seed: int, kept: Path) -> tuple[Counter[str], list[str]]:
    """Run every `step`-th case from `first` on."""
    ended: Counter[str] = Counter()
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        known = sources(folder)
        path = folder / "case"
        for source in known:  # everything is loaded before memory is bounded
            path.write_bytes(source.bundle)
            assert judge(path, "bundle") == "clean"
            path.write_bytes(source.stream)
            assert judge(path, "stream") == "clean"

        def failed(case: int, form: str, what: str) -> None:
            failures.append(f"case {case} (seed {seed}, {form}): {what}")
            kept.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, kept / f"{seed}-{case}.{form}")

        signal.signal(signal.SIGVTALRM, _over_budget)
        _forget_peak()
        usual = _peak_bytes()
        for case in range(first, cases, step):
            path.unlink(missing_ok=True)
            try:
                form = mutate(known[case % len(known)], seed * 1_000_003 + case, path)
            except SemtraceError:  # the writer refuses what was changed: no such file can be made with it
                ended["not written"] += 1
                continue
            limit = usual + MEMORY_BYTES + path.stat().st_size
            _forget_peak()
            signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
            try:
                end = judge(path, form)
                peak = _peak_bytes()
                ended[f"{form}: {end}"] += 1
                if peak > limit:
                    failed(case, form, f"it took {(peak - usual) >> 20} MiB")
            except BaseException as error:  # whatever it is, it is what we look for
                if isinstance(error, KeyboardInterrupt):
                    raise
                failed(case, form, f"{type(error).__name__}: {error}")
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return ended, failures


def main() -> int:
    """Run the cases on all cores; 1 if any failed."""
    options = argparse.ArgumentParser(description="Fuzz bundles and record streams.")
    options.add_argument("--cases", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    chosen = options.parse_args()
    begun = time.monotonic()
    kept = ROOT / "build/fuzz"
    context = multiprocessing.get_context("spawn")
    jobs = [(first, chosen.processes, chosen.cases, chosen.seed, kept) for first in range(chosen.processes)]
    with context.Pool(chosen.processes) as pool:
        parts = pool.starmap(work, jobs)
    ended: Counter[str] = Counter()
    failures: list[str] = []
    for counted, failed in parts:
        ended += counted
        failures += failed
    for name, count in ended.most_common():
        print(f"{count:8} {name}")
    for failure in failures[:50]:
        print(failure)
    print(
        f"{sum(ended.values()) + len(failures)} cases in {time.monotonic() - begun:.0f} s: {len(failures)} failed"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
