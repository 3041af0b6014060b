"""Loops give the same result compiled and as plain Python."""

from __future__ import annotations

import numpy as np
import pytest

from semtrace import kernels
from semtrace.graph.barrier import barrier
from semtrace.graph.plan import dag
from semtrace.graph.ready import schedule
from semtrace.graph.resolve import resolve
from semtrace.store.digests import show, work_digest
from semtrace.testing import random_trace


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rule", ["dag", "chain"])
def test_schedules_are_equal_compiled_and_not(seed, rule, monkeypatch):
    trace = random_trace(seed).trace
    plan = dag(show(work_digest(trace))) if rule == "dag" else barrier(trace, "chain")
    constraints = resolve(trace, plan)
    rng = np.random.default_rng(seed)
    count = trace.operations.rows
    arguments = [rng.integers(0, 1000, count) for _ in range(4)]
    made = []
    for worth in (0, 1 << 60):
        monkeypatch.setattr(kernels, "WORTH_COMPILING", worth)
        made.append(schedule(constraints, *arguments))
    for name in ("ready_ns", "released_ns", "finished_ns"):
        np.testing.assert_array_equal(getattr(made[0], name), getattr(made[1], name))


def test_without_numba_loops_run_as_they_are(monkeypatch):
    def double(values, out):
        for at in range(len(values)):
            out[at] = values[at] * 2

    monkeypatch.setitem(__import__("sys").modules, "numba", None)
    values, out = np.arange(5), np.zeros(5, dtype=np.int64)
    kernels.run(double, 1 << 60, values, out)
    assert out.tolist() == [0, 2, 4, 6, 8]
