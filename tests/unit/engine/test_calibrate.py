"""Fitting costs: the solver against a search, costs that come back out of their own times, errors, and doubts."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from semtrace.build import TraceBuilder
from semtrace.engine.calibrate import (
    BLOCKS,
    TERMS,
    Calibration,
    calibrate,
    fit_linear,
    fit_table,
    nonnegative_least_squares,
    predict,
    terms,
)
from semtrace.engine.cost import Limits, LinearCost, compile_cost, step_ns
from semtrace.engine.steplog import StepLog, StepLogError
from semtrace.engine.steplog_runs import log_of_execution
from semtrace.engine.table import TableCost
from semtrace.graph.plan import dag
from semtrace.records.enums import OperationKind
from semtrace.replay.run import replay
from semtrace.replay.scenario import Scenario
from semtrace.store.digests import show, work_digest
from support.step_logs import serve

small = st.floats(-4, 4).map(lambda value: round(value, 3))


@given(arrays(np.float64, (9, 4), elements=small), arrays(np.float64, 9, elements=small))
def test_the_solver_finds_the_least_squares_that_are_not_negative(matrix, target):
    """The conditions of a minimum: nothing negative, no descent along what is positive, nor upwards along what is 0."""
    found = nonnegative_least_squares(matrix, target)
    assert (found >= 0).all()
    descent = matrix.T @ (target - matrix @ found)
    tolerance = 1e-5 * (1 + np.abs(matrix).sum()) * (1 + np.abs(target).sum())
    assert (np.abs(descent[found > 0]) <= tolerance).all()
    assert (descent[found == 0] <= tolerance).all()


def test_the_solver_is_no_worse_than_a_search():
    rng = np.random.default_rng(3)
    for _ in range(20):
        matrix, target = rng.normal(size=(12, 2)), rng.normal(size=12)
        found = nonnegative_least_squares(matrix, target)
        x, y = np.meshgrid(np.linspace(0, 2, 201), np.linspace(0, 2, 201))
        tried = np.stack([x.ravel(), y.ravel()])
        best = ((matrix @ tried - target[:, None]) ** 2).sum(axis=0).min()
        assert ((matrix @ found - target) ** 2).sum() <= best + 1e-9


def test_columns_that_are_equal_or_zero_are_no_trouble():
    rng = np.random.default_rng(0)
    column = rng.random(10)
    matrix = np.stack([column, np.zeros(10), column], axis=1)
    assert nonnegative_least_squares(matrix, 3 * column) == pytest.approx([3, 0, 0])


def served(seeds=range(8), noise=0.0) -> StepLog:
    """Steps of random runs of the scheduler, one part for each seed."""
    runs = [serve(seed, noise=noise) for seed in seeds]
    return StepLog(
        np.array([step for run in runs for step in run.geometries]),
        np.array([each for run in runs for each in run.durations]),
        np.repeat(np.arange(len(runs)), [len(run.durations) for run in runs]),
    )


def test_a_linear_cost_comes_back_from_its_own_times():
    log = served()
    rng = np.random.default_rng(5)
    rows = log.geometry.copy()
    rows[:, 0] += rng.integers(0, 3, log.steps)  # so that requests do not follow from tokens
    cost = LinearCost(
        c0_ps=5 * 10**9, c_seq_ps=10**8, c_prefill_ps=2 * 10**7, c_decode_ps=4 * 10**7, c_kv_ps=7000
    )
    made = compile_cost(cost, Limits(100, 10000, 100000))
    times = np.array([step_ns(made.kind, made.ints, made.floats, row) for row in rows])
    found = fit_linear(rows, times)
    for term in TERMS:
        assert getattr(found, term) == pytest.approx(getattr(cost, term), rel=1e-3), term
    whole = calibrate(StepLog(rows, times, log.part), "linear")
    assert whole.in_sample["all"].p95 < 0.01
    assert whole.out_of_sample["all"].p95 < 0.01
    assert (whole.undetermined, whole.warnings) == ((), ())


@pytest.mark.parametrize("kind", ["linear", "table"])
def test_errors_are_of_the_size_of_the_noise_in_and_out_of_sample(kind):
    log = served(range(16), noise=0.05)
    made = calibrate(log, kind)
    assert set(made.in_sample) == set(made.out_of_sample) == {"prefill", "decode", "mixed", "all"}
    for errors in (made.in_sample, made.out_of_sample):
        assert 1 < errors["all"].median < 6
        assert errors["all"].median < errors["all"].p95 < 20
        assert (
            sum(each.steps for phase, each in errors.items() if phase != "all")
            == errors["all"].steps
            == log.steps
        )
    assert made.in_sample["all"].median < made.out_of_sample["all"].median * 1.05
    assert "% within" in (made.cost.notes or "")


def test_out_of_sample_shows_what_in_sample_hides():
    """One block is slower than the others, by a factor: only a fit without it is far off."""
    log = served(range(1))
    rank = np.arange(log.steps) * BLOCKS // log.steps
    times = np.where(rank == 4, 5 * log.duration_ns, log.duration_ns)
    slow = np.zeros(log.steps, dtype=bool)
    slow[rank == 4] = True
    made = calibrate(StepLog(log.geometry, times, log.part), "linear")
    without = fit_linear(log.geometry[~slow], times[~slow])
    expected = np.abs(predict(without, log.geometry[slow]) - times[slow]) / times[slow] * 100
    assert made.out_of_sample["all"].p95 >= float(np.median(expected)) - 1
    assert made.out_of_sample["all"].p95 > 70


def test_each_step_is_predicted_by_a_fit_without_its_block():
    log = served(range(3), noise=0.1)
    block = np.concatenate([np.arange(n) * BLOCKS // n for n in np.bincount(log.part)])
    held_out = np.zeros(log.steps)
    for each in range(BLOCKS):
        cost = fit_linear(log.geometry[block != each], log.duration_ns[block != each])
        held_out[block == each] = predict(cost, log.geometry[block == each])
    percent = np.abs(held_out - log.duration_ns) / log.duration_ns * 100
    assert calibrate(log, "linear").out_of_sample["all"].median == pytest.approx(float(np.median(percent)))


@pytest.mark.parametrize("kind", ["linear", "table"])
def test_predictions_are_what_the_engine_computes(kind):
    log = served(range(4), noise=0.2)
    cost = (
        fit_linear(log.geometry, log.duration_ns)
        if kind == "linear"
        else fit_table(log.geometry, log.duration_ns, 5)
    )
    made = compile_cost(cost, Limits(1000, 1 << 20, 1 << 20))
    beyond = log.geometry * np.array([1, 3, 2, 1, 3, 3, 2, 2])
    for rows in (log.geometry, beyond):
        exact = [step_ns(made.kind, made.ints.tolist(), made.floats.tolist(), row) for row in rows.tolist()]
        assert np.abs(predict(cost, rows) - exact).max() <= 1


def test_a_table_follows_what_a_line_cannot():
    """A step whose time jumps with the number of sequences, as where an engine pads its batches."""
    rng = np.random.default_rng(2)
    decode = rng.integers(1, 31, 4000)
    zero = np.zeros(4000, dtype=np.int64)
    context = rng.integers(1, 4, 4000) * 1000
    geometry = np.stack([decode, zero, decode, decode, zero, zero, context, context], axis=1)
    times = np.where(decode > 16, 9_000_000, 3_000_000) + context
    log = StepLog(geometry, times, zero)
    line, table = calibrate(log, "linear"), calibrate(log, "table", points=32)
    assert isinstance(table.cost, TableCost)
    assert table.out_of_sample["all"].median < 1
    assert line.out_of_sample["all"].median > 10


def test_a_table_keeps_the_line_where_there_are_no_steps():
    log = served(range(2))
    table = fit_table(log.geometry, log.duration_ns, 6)
    x = terms(log.geometry)
    assert [table.prefill_tokens[-1], table.decode_tokens[-1]] == [x[:, 2].max(), x[:, 3].max()]
    far = [1, table.prefill_tokens[-1], 0, 1, 0, 0, table.context[-1], table.context[-1]]
    slope = table.beyond_prefill_ps * far[1] + table.beyond_context_ps * 2 * far[6]
    made = compile_cost(table, Limits(1000, 1 << 20, 1 << 20))
    time = step_ns(made.kind, made.ints.tolist(), made.floats.tolist(), far)
    assert time == pytest.approx(5_000_000 + slope / 1000, rel=0.1)


def test_one_step_alone_moves_a_table_but_part_of_the_way():
    """The line weighs as much as a step of its own time; a step of twice that time weighs a quarter of it."""
    decode = np.append(np.repeat(np.arange(1, 6), 400), 9)
    zero = np.zeros(len(decode), dtype=np.int64)
    times = 1_000_000 + 100_000 * decode
    times[-1] *= 2
    geometry = np.stack([decode, zero, decode, decode, zero, zero, zero, zero], axis=1)
    table = fit_table(geometry, times, 32)
    assert table.decode_tokens == [0, 1, 2, 3, 4, 5, 9]
    assert table.ns[0][-1][0] == pytest.approx(1_900_000 * (1 + 1 / 5), rel=0.01)


def doubts(geometry) -> Calibration:
    rows = np.array(geometry)
    times = np.maximum(1000 + 10 * rows[:, 1] + 20 * rows[:, 2], 1)
    return calibrate(StepLog(rows, times, np.zeros(len(rows), dtype=np.int64)), "linear")


def test_terms_that_the_steps_cannot_tell_apart_are_named():
    alone = [[1, 0, 1, 1, 0, 0, at + 5, at + 5] for at in range(30)]
    made = doubts(alone)
    assert made.undetermined == ("c_seq_ps", "c_prefill_ps", "c_decode_ps")
    assert "c_prefill_ps is not told: no step has prefill tokens" in made.warnings
    assert "c_decode_ps is not told apart from c0_ps: every step has 1 decode tokens" in made.warnings
    assert "Not told by these steps: c_seq_ps, c_prefill_ps, c_decode_ps." in (made.cost.notes or "")
    batches = [[at % 7 + 1, 0, at % 7 + 1, 1, 0, 0, 0, (at * 13) % 101] for at in range(60)]
    made = doubts(batches)
    assert made.undetermined == ("c_prefill_ps", "c_seq_ps", "c_decode_ps")
    assert (
        "c_seq_ps and c_decode_ps are not told apart: requests and decode tokens vary only together"
        in made.warnings
    )


def test_a_term_that_comes_out_0_is_named():
    rng = np.random.default_rng(1)
    rows = [[*rng.integers(1, 9, 3).tolist(), 1, 0, int(rng.integers(50)), 0, 0] for _ in range(60)]
    made = doubts(rows)
    assert isinstance(made.cost, LinearCost)
    assert made.undetermined == ()
    for term in TERMS[1:]:
        named = any(warning.startswith(f"{term} is 0") for warning in made.warnings)
        assert named == (getattr(made.cost, term) == 0)
    assert made.cost.c_decode_ps == pytest.approx(20_000, rel=0.01)


def test_few_steps_are_refused():
    log = served(range(1))
    short = StepLog(log.geometry[:19], log.duration_ns[:19], log.part[:19])
    with pytest.raises(StepLogError, match="19 steps are too few"):
        calibrate(short, "linear")


def test_the_cost_of_a_simulated_engine_comes_back_from_its_executions():
    """From engine to step log to cost, with preemptions: to the picosecond."""
    coefficients = {
        "c0_ps": 4 * 10**9,
        "c_seq_ps": 3 * 10**7,
        "c_prefill_ps": 2 * 10**7,
        "c_decode_ps": 10**7,
    }
    cost = LinearCost(**coefficients, c_kv_ps=9000)
    builder, rng = TraceBuilder(), random.Random(4)
    for number in range(16):
        task = builder.task(f"t{number}", arrival_ns=number * 3_000_000)
        for at in range(3):
            builder.operation(
                task, OperationKind.LLM, "a", started_ns=number * 3_000_000 + at,
                prompt_tokens=rng.randint(1, 600), output_tokens=rng.randint(1, 120),
            )  # fmt: skip
    trace = builder.build().trace
    scheduler = {"max_num_seqs": 32, "max_num_batched_tokens": 512}
    settings = {"blocks": 100, "block_size": 16, "servers": 2, "scheduler": scheduler, "cost": cost.as_json()}
    scenario = Scenario.parse({"backend": {"name": "engine", "settings": settings}}, path="scenario")
    execution = replay(trace, dag(show(work_digest(trace))), scenario, detail=["steps", "step_runs"])
    assert execution.events.ints("preemptions").sum() > 5
    log = log_of_execution(execution, "x")
    assert set(log.part.tolist()) == {0, 1}
    made = calibrate(log, "linear")
    assert made.cost.model_copy(update={"notes": None}) == cost
    assert made.out_of_sample["all"].p95 < 1e-3
