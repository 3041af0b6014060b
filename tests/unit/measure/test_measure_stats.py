"""Percentiles, distributions, widths: computed by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from semtrace.measure.stats import Distribution, Ratio, number, percentile
from semtrace.measure.width import Width


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        ("0", Fraction(10)),
        ("0.5", Fraction(25)),  # index 1.5: between 20 and 30
        ("0.95", Fraction(77, 2)),  # index 2.85: 30 + 0.85 · 10
        ("0.99", Fraction(397, 10)),
        ("1", Fraction(40)),
    ],
)
def test_a_percentile_interpolates_at_the_zero_based_index(p, expected):
    assert percentile([10, 20, 30, 40], Fraction(p)) == expected


def test_a_percentile_of_one_value_is_the_value():
    assert percentile([7], Fraction(99, 100)) == 7


def test_percentiles_of_large_values_are_exact():
    big = 1 << 61
    assert percentile([big, big + 1], Fraction(1, 2)) == Fraction(2 * big + 1, 2)


@pytest.mark.parametrize(("sample", "p"), [([], "0.5"), ([1], "1.01"), ([1], "-0.1")])
def test_a_percentile_of_nothing_or_out_of_range_is_refused(sample, p):
    with pytest.raises(ValueError, match="percentile"):
        percentile(sample, Fraction(p))


def test_a_distribution_keeps_apart_what_is_not_known():
    made = Distribution.of([3, 1, 2, 10], unknown=2)
    assert (made.count, made.unknown, made.total, made.minimum, made.maximum) == (4, 2, 16, 1, 10)
    assert made.mean == 4
    assert made.as_dict() == {
        "count": 4,
        "unknown": 2,
        "mean": 4,
        "min": 1,
        "p50": 2.5,
        "p90": 7.9,
        "p95": 8.95,
        "p99": 9.79,
        "p99.9": 9.979,
        "max": 10,
    }


def test_sums_of_large_values_are_exact():
    assert Distribution.of([1 << 62] * 3).total == 3 << 62
    huge = np.array([1 << 62] * 3)
    assert Width.of(huge * 0, huge, span_ns=1).area_ns == 3 << 62


def test_a_distribution_of_nothing_has_no_values():
    shown = Distribution.of([], unknown=3).as_dict()
    assert (shown["count"], shown["unknown"], shown["mean"], shown["p95"]) == (0, 3, None, None)


def test_a_ratio_of_nothing_has_no_value():
    assert Ratio(0, 0).value is None
    assert Ratio(1, 3, unknown=2).as_dict() == {"part": 1, "whole": 3, "value": 1 / 3, "unknown": 2}


def test_exact_values_are_integers_where_they_are():
    assert number(Fraction(6, 3)) == 2
    assert isinstance(number(Fraction(6, 3)), int)
    assert number(Fraction(1, 4)) == 0.25


def test_width_counts_half_open_intervals():
    begin, end = np.array([0, 0, 5, 5]), np.array([5, 8, 5, 6])
    width = Width.of(begin, end, span_ns=10, unknown=1)
    # [0,5) two; [5,6) the second and the fourth; [6,8) one; the empty third never counts.
    assert width.times_ns.tolist() == [0, 6, 8]
    assert width.widths.tolist() == [2, 1, 0]
    assert (width.maximum, width.area_ns, width.mean) == (2, 14, Fraction(14, 10))
    assert width.as_dict() == {"max": 2, "mean": 1.4, "area_ns": 14, "span_ns": 10, "unknown": 1}


def test_width_of_nothing():
    none = np.zeros(0, dtype=np.int64)
    width = Width.of(none, none, span_ns=0)
    assert (width.maximum, width.mean) == (0, None)
