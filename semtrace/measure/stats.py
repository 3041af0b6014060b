"""Exact statistics of integer samples: percentiles, distributions (spec, measures.md)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

PERCENTILES: Final = {
    "p50": Fraction(50, 100),
    "p90": Fraction(90, 100),
    "p95": Fraction(95, 100),
    "p99": Fraction(99, 100),
    "p99.9": Fraction(999, 1000),
}
"""The percentiles that reports show."""


def percentile(ordered: Sequence[int] | NDArray[np.int64], p: Fraction) -> Fraction:
    """A percentile of a sorted sample: zero-based index p·(n - 1), linear interpolation (ST-MEA-001).

    Args:
        ordered: the sample, ascending, not empty.
        p: from 0 to 1.

    Raises:
        ValueError: the sample is empty, or p is not from 0 to 1.
    """
    if len(ordered) == 0:
        raise ValueError("a percentile of no sample")
    if not 0 <= p <= 1:
        raise ValueError(f"percentile {p} is not from 0 to 1")
    index = p * (len(ordered) - 1)
    low = index.numerator // index.denominator
    below = int(ordered[low])
    share = index - low
    return Fraction(below) if share == 0 else below + share * (int(ordered[low + 1]) - below)


def total(values: NDArray[np.int64]) -> int:
    """The exact sum of integers, however large."""
    largest = int(np.abs(values).max(initial=0))
    return int(values.sum()) if largest * len(values) < 1 << 63 else sum(values.tolist())


def number(value: Fraction | None) -> int | float | None:
    """An exact value as JSON shows it: an integer where it is one, else the nearest float."""
    if value is None:
        return None
    return value.numerator if value.denominator == 1 else float(value)


@dataclass(frozen=True)
class Distribution:
    """A sample of integers, and how many more are not known.

    Attributes:
        count: values known.
        unknown: values not known; they are left out of everything else.
        total: sum of the values.
        minimum, maximum: of the values; None if there are none.
        percentiles: those of `PERCENTILES`; empty if there are none.
    """

    count: int
    unknown: int
    total: int
    minimum: int | None
    maximum: int | None
    percentiles: dict[str, Fraction]

    @classmethod
    def of(cls, values: ArrayLike, unknown: int = 0) -> Distribution:
        """The distribution of a sample.

        Args:
            values: integers.
            unknown: how many values are not known.
        """
        ordered = np.sort(np.asarray(values, dtype=np.int64))
        if len(ordered) == 0:
            return cls(0, unknown, 0, None, None, {})
        made = {name: percentile(ordered, p) for name, p in PERCENTILES.items()}
        return cls(len(ordered), unknown, total(ordered), int(ordered[0]), int(ordered[-1]), made)

    @property
    def mean(self) -> Fraction | None:
        """The mean of the values known; None if there are none."""
        return Fraction(self.total, self.count) if self.count else None

    def as_dict(self) -> dict[str, Any]:
        """The distribution as JSON-ready fields."""
        return {
            "count": self.count,
            "unknown": self.unknown,
            "mean": number(self.mean),
            "min": self.minimum,
            **{name: number(self.percentiles.get(name)) for name in PERCENTILES},
            "max": self.maximum,
        }


@dataclass(frozen=True)
class Ratio:
    """An exact ratio of two integers, and how many cases are not in it because a part is not known.

    Attributes:
        part, whole: the two; a ratio of nothing has the whole 0 and no value.
        unknown: cases left out.
    """

    part: int
    whole: int
    unknown: int = 0

    @property
    def value(self) -> Fraction | None:
        """The ratio; None if the whole is 0."""
        return Fraction(self.part, self.whole) if self.whole else None

    def as_dict(self) -> dict[str, Any]:
        """The ratio as JSON-ready fields."""
        return {"part": self.part, "whole": self.whole, "value": number(self.value), "unknown": self.unknown}
