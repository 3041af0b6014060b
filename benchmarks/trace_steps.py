"""Open, check, digest, plan and ready times of a large trace, each in a process of its own.

Run as a script it does the steps once and prints their seconds and its memory as JSON.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

from results import Result, median

STEPS = ("open", "check", "digest", "plan", "ready")


def steps(path: str) -> dict[str, float]:
    """Seconds of each of the five steps, and memory in MiB."""
    import numpy as np

    from semtrace.check import check_trace
    from semtrace.graph.legality import judge
    from semtrace.graph.plan import dag
    from semtrace.graph.ready import schedule
    from semtrace.graph.resolve import resolve
    from semtrace.store.bundle import open_bundle
    from semtrace.store.digests import show, trace_digest, work_digest

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    marks = [time.perf_counter()]
    trace = open_bundle(path).trace
    marks.append(time.perf_counter())
    findings = check_trace(trace)
    assert not findings, findings
    marks.append(time.perf_counter())
    work = show(work_digest(trace))
    trace_digest(trace)
    marks.append(time.perf_counter())
    plan = dag(work)
    assert judge(trace, plan).legal
    constraints = resolve(trace, plan)
    marks.append(time.perf_counter())
    zero = np.zeros(trace.operations.rows, dtype=np.int64)
    times = schedule(
        constraints, zero, trace.operations.ints("external_delay_ns"), trace.operations.ints("output_tokens")
    )
    assert times.ready_ns.min() == 0
    marks.append(time.perf_counter())
    taken = {name: end - start for name, start, end in zip(STEPS, marks, marks[1:], strict=False)}
    tables = sum(columns.data.nbytes for columns in trace.tables.values()) / 2**20
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10
    return {**taken, "total": marks[-1] - marks[0], "tables_mib": tables, "memory_mib": peak}


def run(folder: Path, operations: int, times: int, *, tenfold: bool = False) -> dict[str, Result]:
    """The figures `trace.open_1e6` and `trace.check_1e6`, in seconds per 10^6 operations.

    Args:
        folder: where the large trace is kept.
        operations: operations of the large trace.
        times: runs of each figure.
        tenfold: whether a trace ten times as large is measured too, once: `trace.check_1e7`. Linear is as many
            seconds per 10^6 operations as `trace.check_1e6` has.
    """
    taken = _measure(folder, operations, times)
    results = {"trace.open_1e6": _result(taken, operations, "open")}
    results["trace.check_1e6"] = _result(taken, operations, "total")
    if tenfold:
        results["trace.check_1e7"] = _result(_measure(folder, 10 * operations, 1), 10 * operations, "total")
    return results


def _measure(folder: Path, operations: int, times: int) -> list[dict[str, float]]:
    """The steps on a trace of so many operations, each time in a process of its own."""
    path = folder / f"large-{operations}.semtrace"
    if not path.exists():
        make = f"from pathlib import Path; from trace_steps import write; write(Path({str(path)!r}), {operations})"
        subprocess.run([sys.executable, "-c", make], cwd=Path(__file__).parent, check=True)
    command = [sys.executable, __file__, str(path)]
    return [
        json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout) for _ in range(times)
    ]


def write(path: Path, operations: int) -> None:
    """Write the bundle of a large trace."""
    from large_trace import large_trace
    from semtrace.store.bundle import write_bundle

    write_bundle(path, large_trace(operations))


def _result(taken: list[dict[str, float]], operations: int, name: str) -> Result:
    scale = 1_000_000 / operations
    seconds = [one[name] * scale for one in taken]
    facts = {
        "operations": operations,
        **{step: median([one[step] for one in taken]) * scale for step in STEPS},
        "tables_mib": taken[0]["tables_mib"],
        "memory_over_tables": median([one["memory_mib"] / one["tables_mib"] for one in taken]),
    }
    return Result(median(seconds), "s per 10^6 operations", seconds, facts=facts)


if __name__ == "__main__":
    print(json.dumps(steps(sys.argv[1])))
