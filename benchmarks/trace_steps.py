"""Open, check, digest, plan and ready times of a large trace, each in a process of its own.

Run as a script it does the steps once and prints their seconds and its memory as JSON.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from results import Result, median

if TYPE_CHECKING:
    from pathlib import Path


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
    names = ("open", "check", "digest", "plan", "ready")
    taken = {name: end - start for name, start, end in zip(names, marks, marks[1:], strict=False)}
    tables = sum(columns.data.nbytes for columns in trace.tables.values()) / 2**20
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10
    return {**taken, "total": marks[-1] - marks[0], "tables_mib": tables, "memory_mib": peak}


def run(folder: Path, operations: int, times: int) -> dict[str, Result]:
    """The figures `trace.open_1e6` and `trace.check_1e6`, in seconds per 10^6 operations."""
    from large_trace import large_trace
    from semtrace.store.bundle import write_bundle

    path = folder / f"large-{operations}.semtrace"
    if not path.exists():
        write_bundle(path, large_trace(operations))
    command = [sys.executable, __file__, str(path)]
    taken = [
        json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout) for _ in range(times)
    ]
    scale = 1_000_000 / operations
    facts = {
        "operations": operations,
        **{
            name: median([one[name] for one in taken]) * scale
            for name in ("open", "check", "digest", "plan", "ready")
        },
        "tables_mib": taken[0]["tables_mib"],
        "memory_over_tables": median([one["memory_mib"] / one["tables_mib"] for one in taken]),
        "bundle_mib": path.stat().st_size / 2**20,
    }

    def result(name: str) -> Result:
        seconds = [one[name] * scale for one in taken]
        return Result(median(seconds), "s per 10^6 operations", seconds, facts=facts)

    return {"trace.open_1e6": result("open"), "trace.check_1e6": result("total")}


if __name__ == "__main__":
    print(json.dumps(steps(sys.argv[1])))
