"""The fast engine against the step engine: every column and every step, on random work, plans, arrivals and settings."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semtrace.engine.fast import admission, commands, loop, queue, runs, scheduler, simulate
from semtrace.engine.fast.layout import LAST
from semtrace.engine.settings import EngineSettings, SchedulerSettings
from support.engine_cases import (
    difference,
    fast,
    random_case,
    random_pressure_case,
    single_requests,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from semtrace.engine.fast.simulate import Result
    from support.engine_cases import Case


class Guarded(list[int]):
    """A list that refuses what would silently count from its end, and its element 0, which names nothing."""

    def __getitem__(self, at: Any) -> Any:
        assert isinstance(at, slice) or at > 0
        return super().__getitem__(at)

    def __setitem__(self, at: Any, value: Any) -> None:
        assert isinstance(at, slice) or at > 0
        super().__setitem__(at, value)


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain kernel, with every index checked."""
    run = loop.run

    def checked(s: list[int], b: list[int], f: list[float]) -> int:
        state, blocks = Guarded(s), Guarded(b)
        code = run(state, blocks, f)
        s[:], b[:] = state, blocks
        return code

    monkeypatch.setattr(loop, "run", checked)


@functools.cache
def a_case(seed: int) -> Case:
    rng = Random(seed)
    make = random_case if seed % 3 else random_pressure_case
    return make(rng, asynchronous=seed % 4 == 1)


def values(result: Result) -> list[Any]:
    columns = {
        **result.columns,
        **result.steps,
        **{f"run {name}": each for name, each in result.step_runs.items()},
    }
    return [
        result.outcome.tolist(),
        result.arrival_ns.tolist(),
        result.step_count,
        {name: column.tolist() for name, column in columns.items()},
    ]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.randoms(use_true_random=False))
def test_fast_equals_step_engine(rng: Random):
    case = random_case(rng)
    assert difference(case, fast(case)) is None


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.randoms(use_true_random=False))
def test_fast_equals_step_engine_where_memory_is_short(rng: Random):
    case = random_pressure_case(rng)
    assert difference(case, fast(case)) is None


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.randoms(use_true_random=False))
def test_fast_equals_step_engine_with_two_steps_in_flight(rng: Random):
    make = rng.choice((random_case, random_pressure_case))
    case = make(rng, asynchronous=True)
    assert difference(case, fast(case)) is None


@pytest.mark.usefixtures("guarded")
def test_every_index_is_inside():
    for seed in range(40):
        case = a_case(seed)
        assert difference(case, fast(case)) is None


def test_detail_makes_no_difference():
    for seed in range(60):
        case = a_case(seed)
        known, bare = fast(case), fast(case, detail=False)
        assert {name: column.tolist() for name, column in known.columns.items()} == {
            name: column.tolist() for name, column in bare.columns.items()
        }
        assert known.step_count == bare.step_count == len(known.steps["index"])


def test_logs_that_are_emptied_often_lose_nothing(monkeypatch: pytest.MonkeyPatch):
    from semtrace.engine.fast import build

    cases = [a_case(seed) for seed in range(40)]
    wanted = [values(fast(case)) for case in cases]
    monkeypatch.setattr(build, "_LOG_ROWS", 1)
    monkeypatch.setattr(build, "_LONGEST_RUN", 3)
    assert [values(fast(case)) for case in cases] == wanted


def test_arrays_and_lists_give_the_same(monkeypatch: pytest.MonkeyPatch):
    cases = [a_case(seed) for seed in range(30)]
    wanted = [values(fast(case)) for case in cases]
    monkeypatch.setattr(simulate, "LISTED", 0)
    assert [values(fast(case)) for case in cases] == wanted


def test_compiled_and_plain_give_the_same():
    pytest.importorskip("numba")
    for seed in range(60):
        case = a_case(seed)
        assert values(fast(case, compiled=True)) == values(fast(case))


def test_compiled_with_bounds_checks():
    pytest.importorskip("numba")
    script = (
        "from differential.test_fast_engine import a_case, fast, values\n"
        "for seed in range(60):\n"
        "    case = a_case(seed)\n"
        "    assert values(fast(case, compiled=True)) == values(fast(case)), seed\n"
    )
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "PYTHONPATH": "tests"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_head_is_admitted_in_the_step_in_which_its_next_block_fills():
    """By hand: 7 blocks of 8 tokens; one request holds 3, one 2, and a third needs 4, of which it finds 1, then 2."""
    grown = tuple(range(48))
    requests = [
        (0, grown, 9),
        (0, tuple(range(100, 124)), 17),
        (3, (*grown[:24], 50, 51, 52, 53, 54), 28),
    ]
    case = single_requests(requests, EngineSettings(SchedulerSettings(), blocks=8, block_size=8))
    result = fast(case)
    # The step that begins at t computes token 9 + t - 1 of the first request: token 16, which fills its second block, at 7.
    assert result.columns["scheduled_ns"].tolist() == [0, 0, 7]
    assert result.columns["cached_tokens"].tolist() == [0, 0, 16]
    assert difference(case, result) is None


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_block_that_the_head_waits_for_may_fill_late_in_a_run(asynchronous: bool):
    """The runner fills others first: its fifth block is the one, many blocks after the run begins."""
    grown = tuple(range(60))
    requests = [
        (0, grown, 4),
        (1, (*grown[:31], *range(200, 205)), 31),
        (5, (*grown[:48], *range(300, 311)), 53),
    ]
    for blocks in range(8, 12):
        scheduler = SchedulerSettings(max_num_batched_tokens=200, asynchronous=asynchronous)
        case = single_requests(requests, EngineSettings(scheduler, blocks=blocks, block_size=8))
        assert difference(case, fast(case)) is None
    found = random_pressure_case(Random(3239))  # a case that once told
    assert difference(found, fast(found)) is None


def test_nothing_to_run():
    case = single_requests([], EngineSettings(SchedulerSettings(), blocks=8, block_size=8))
    result = fast(case)
    assert result.step_count == 0
    assert result.outcome.tolist() == []


def test_a_time_past_63_bits_is_an_error():
    from semtrace.errors import ReplayError

    case = single_requests([(0, (1, 2), 1)], EngineSettings(SchedulerSettings(), blocks=8, block_size=8))
    case.copies.arrival_ns[0] = (1 << 63) - 10
    with pytest.raises(ReplayError) as raised:
        fast(case)
    assert raised.value.requirement == "ST-REL-001"


def never_cut(s: Any, b: Any, f: Any, server: int, until: int) -> None:
    runs.close(s, b, f, server, 1 << 62)


def no_watch(s: Any, b: Any, server: int, steps: int) -> int:
    return steps


def endless_room(s: Any, server: int, steps: int, free: int) -> int:
    return steps if free else 0


def last_admitted(s: Any, server: int) -> int:
    return s[server + LAST]


MUTANTS: dict[str, tuple[Any, str, Callable[..., Any], tuple[int, ...]]] = {
    "a blocked head is looked at only when somebody ends": (runs, "before_watched", no_watch, (68, 195, 519)),
    "memory lasts for any run": (runs, "room", endless_room, (3, 9, 18)),
    "an arrival does not cut a run": (commands, "close", never_cut, (0, 3, 6)),
    "a preempted request waits last": (admission, "requeue", queue.enqueue, (42, 147, 285)),
    "by priority the last admitted loses its memory": (scheduler, "least", last_admitted, (3, 16, 58)),
}
"""What is wrong, and seeds of `random_pressure_case` that have shown it."""


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_caught(mutant: str, monkeypatch: pytest.MonkeyPatch):
    module, name, wrong, seeds = MUTANTS[mutant]
    cases = [random_pressure_case(Random(seed)) for seed in seeds]
    assert [difference(case, fast(case)) for case in cases] == [None] * len(cases)
    monkeypatch.setattr(module, name, wrong)
    for case in cases:
        try:
            if difference(case, fast(case)) is not None:
                return
        except (IndexError, ValueError):  # a wrong engine may get lost, or log what no table takes
            return
    pytest.fail("no case tells")


def test_seeds_are_of_every_kind():
    """The cases have runs that are cut, preemptions, hits and refusals, or they would show little."""
    found = np.zeros(4, dtype=np.int64)
    for seed in range(60):
        result = fast(a_case(seed))
        found += [
            (result.columns["preemptions"] > 0).sum(),
            (result.columns["cached_tokens"] > 0).sum(),
            (result.outcome == 6).sum(),
            (result.step_runs["count"] > 3).sum(),
        ]
    assert (found > 10).all()
