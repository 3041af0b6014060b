"""Ready times computed in steps over many tasks are those of the plain loop, whatever the triggers, lags and blocks."""

from __future__ import annotations

import numpy as np
import pytest

from semtrace import blocks, kernels
from semtrace.graph import lockstep
from semtrace.graph.lockstep import Lockstep
from semtrace.graph.ready import schedule
from semtrace.graph.resolve import Constraints
from semtrace.records.enums import Trigger


def random_constraints(rng: np.random.Generator) -> Constraints:
    """Tasks of one to twelve operations, each of which waits for up to four earlier ones of its task."""
    pairs = []
    begin = 0
    for size in rng.integers(1, 13, size=40):
        pairs += [
            (begin + at, begin + int(source))
            for at in range(1, size)
            for source in rng.integers(0, at, size=rng.integers(0, 5))
        ]
        begin += int(size)
    target, source = np.array(pairs, dtype=np.int64).T
    return Constraints(
        begin,
        target,
        source,
        rng.choice([Trigger.FINISH, Trigger.START, Trigger.FIRST_TOKEN], len(target)),
        rng.integers(0, 50, len(target)),
    )


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("block", [5, 1 << 17])
def test_steps_give_the_times_of_the_plain_loop(seed, block, monkeypatch):
    rng = np.random.default_rng(seed)
    constraints = random_constraints(rng)
    arguments = [rng.integers(0, 1000, constraints.operations) for _ in range(4)]
    plain = schedule(constraints, *arguments)
    steps = []
    monkeypatch.setattr(lockstep, "WIDE", 0)
    monkeypatch.setattr(kernels, "WORTH_COMPILING", 0)
    monkeypatch.setattr(blocks, "BLOCK", block)
    monkeypatch.setattr(
        Lockstep,
        "ready_times",
        lambda self, *given, of=Lockstep.ready_times: steps.append(self.steps) or of(self, *given),
    )
    stepped = schedule(constraints, *arguments)
    assert 2 <= steps[0] <= 12
    for name in ("ready_ns", "released_ns", "finished_ns"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(stepped, name))


def test_parts_without_edges_between_them_begin_anew():
    offsets = np.array([0, 0, 1, 1, 2, 2, 4])
    made = Lockstep.of(offsets, np.array([0, 2, 3, 4]))
    assert made.starts.tolist() == [0, 2, 6]
    assert (made.steps, made.wide) == (4, False)
    nothing = Lockstep.of(np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64))
    assert nothing.steps == 0


def test_a_chain_is_left_to_the_loop(monkeypatch):
    """One long task: each step would have one operation."""
    monkeypatch.setattr(kernels, "WORTH_COMPILING", 0)
    monkeypatch.delattr(Lockstep, "ready_times")
    count = 300
    rows = np.arange(1, count)
    chain = Constraints(
        count, rows, rows - 1, np.full(count - 1, Trigger.FINISH), np.zeros(count - 1, dtype=np.int64)
    )
    made = schedule(chain, *(np.full(count, value) for value in (0, 1, 2)))
    assert made.finished_ns.tolist() == [3 * at + 3 for at in range(count)]
