"""Paired comparison of executions of the same work."""

from __future__ import annotations

import json

import pytest
from measure_cases import change, plan_of, run, two_analysts

from semtrace.errors import ReplayError
from semtrace.measure.compare import bootstrap, compare
from semtrace.records.execution import Execution

TRACE = two_analysts()
SERIAL = plan_of(TRACE, groups=[{"wait": [2], "hold": [1, 3]}])


def without_instance(execution: Execution, row: int) -> Execution:
    tables = {name: columns.data for name, columns in execution.tables.items()}
    tables["instances"] = tables["instances"].slice(0, row)
    mask = [value != row for value in tables["events"].column("instance").to_pylist()]
    tables["events"] = tables["events"].filter(mask)
    return Execution.from_arrow(execution.header, tables)


def test_pairs_are_compared_instance_by_instance():
    """ST-MEA-051."""
    first, second = run(TRACE, arrivals=[0, 10, 20]), run(TRACE, SERIAL, arrivals=[0, 10, 20])
    comparison = compare(TRACE, first, change(second, {14: {"finished_ns": 238}}), resamples=200)
    assert [pair.difference_ns for pair in comparison.pairs] == [30, 30, 60]
    assert (comparison.difference.percentiles["p50"], comparison.difference.mean) == (30, 40)
    assert (comparison.difference.minimum, comparison.difference.maximum) == (30, 60)
    assert (comparison.first.width.maximum, comparison.second.width.maximum) == (6, 3)
    assert comparison.ratio.minimum == 188 * 1_000_000 // 158
    shown = comparison.as_dict()
    assert shown["second"]["plan"] == "custom"
    assert shown["stages"][2] == {
        "name": "analyse",
        "template": "unknown",
        "first_p50_ns": 90,
        "second_p50_ns": 120,
        "unknown": [0, 0],
    }
    json.dumps(shown)


def test_other_work_is_refused_with_a_hint():
    other = two_analysts(answer=False)
    with pytest.raises(ReplayError, match="different work") as refused:
        compare(TRACE, run(TRACE), run(other))
    assert refused.value.requirement == "ST-MEA-050"
    assert refused.value.hint is not None
    with pytest.raises(ReplayError, match="other work than the trace"):
        compare(other, run(TRACE), run(TRACE))


def test_instances_of_one_side_only_are_told():
    two, three = run(TRACE, arrivals=[0, 10]), run(TRACE, arrivals=[0, 10, 20])
    comparison = compare(TRACE, two, three)
    assert (comparison.only_first, comparison.only_second) == ([], [(0, 2)])
    assert len(comparison.pairs) == 2
    turned = compare(TRACE, three, without_instance(three, 2))
    assert (turned.only_first, turned.only_second) == ([(0, 2)], [])


def test_a_difference_with_an_unknown_side_is_unknown():
    unknown = change(run(TRACE, arrivals=[0, 0]), {4: {"finished_ns": None}})
    comparison = compare(TRACE, run(TRACE, arrivals=[0, 0]), unknown)
    assert (comparison.difference.count, comparison.difference.unknown) == (1, 1)
    assert comparison.median_interval is None


def test_the_bootstrap_is_the_same_every_time_and_covers_the_middle():
    sample = list(range(101))
    median, mean = bootstrap(sample, seed=3, resamples=500)
    assert (median, mean) == bootstrap(sample, seed=3, resamples=500)
    assert bootstrap(sample, seed=4, resamples=500)[0] != median
    for interval in (median, mean):
        assert 30 < interval.low < 50 < interval.high < 70


def test_equal_differences_have_an_interval_of_no_width():
    median, mean = bootstrap([7, 7, 7], resamples=50)
    assert (median.low, median.high, mean.low, mean.high) == (7, 7, 7, 7)


@pytest.mark.parametrize(
    ("sample", "options"),
    [([1], {}), ([1, 2], {"resamples": 0}), ([1, 2], {"level_percent": 100})],
)
def test_an_interval_that_makes_no_sense_is_refused(sample, options):
    with pytest.raises(ValueError, match=r"must be|needs"):
        bootstrap(sample, **options)


def test_resamples_are_drawn_in_parts_without_a_difference(monkeypatch):
    whole = bootstrap([1, 5, 9, 14], resamples=64)
    monkeypatch.setattr("semtrace.measure.compare._CHUNK", 16)
    assert bootstrap([1, 5, 9, 14], resamples=64) == whole


def test_what_was_run_otherwise_is_told():
    first = run(TRACE, SERIAL, arrivals=[0, 10])
    assert compare(TRACE, run(TRACE, arrivals=[0, 10]), first).setup == []  # plans are compared, not told
    header = first.header
    scenario = {**header.scenario, "copies": 7, "arrivals": {"kind": "closed_loop", "users": 2}, "notes": "x"}
    settings = {"c0_ns": 5, "inner": {"on": True}}
    other = Execution(
        header.model_copy(
            update={"scenario": scenario, "backend": header.backend.model_copy(update={"settings": settings})}
        ),
        first.tables,
    )
    told = {each["key"]: each for each in compare(TRACE, first, other).as_dict()["setup_differences"]}
    assert told["copies"] == {"key": "copies", "first": 2, "second": 7}
    assert told["arrivals.users"]["second"] == 2
    assert told["arrivals.kind"]["second"] == "closed_loop"
    assert told["backend.settings.inner.on"] == {
        "key": "backend.settings.inner.on",
        "first": None,
        "second": True,
    }
    assert "notes" not in told


def test_other_times_of_as_many_arrivals_are_told_without_the_times():
    told = compare(TRACE, run(TRACE, arrivals=[0, 10]), run(TRACE, arrivals=[0, 20])).setup
    assert [each.key for each in told] == ["arrivals.times"]
    assert all(str(each).count("2 given") == 2 for each in told)


def test_a_native_run_is_not_said_to_differ_in_what_it_has_not():
    first = run(TRACE)
    native = Execution(first.header.model_copy(update={"scenario": None}), first.tables)
    assert compare(TRACE, first, native).setup == []
