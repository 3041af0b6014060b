"""Scheduling width: how many operations are ready and not finished, over time (spec, measures.md)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from semtrace.measure.stats import number, total

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Width:
    """A width over time.

    Attributes:
        maximum: the greatest width.
        area_ns: the sum of the lengths of all intervals, in ns.
        span_ns: the time that the mean is taken over, in ns; 0 if there is none.
        unknown: operations left out because a time of theirs is not known.
        times_ns: instants at which the width changes, ascending.
        widths: the width from each of them on.
    """

    maximum: int
    area_ns: int
    span_ns: int
    unknown: int
    times_ns: NDArray[np.int64]
    widths: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        begin_ns: NDArray[np.int64],
        end_ns: NDArray[np.int64],
        span_ns: int,
        unknown: int = 0,
    ) -> Width:
        """The width of half-open intervals [begin, end): what ends at an instant is not counted at it.

        Args:
            begin_ns: begin of each interval.
            end_ns: end of each, not before its begin.
            span_ns: the time that the mean is taken over.
            unknown: how many intervals are not known.
        """
        changes = np.concatenate([np.ones(len(begin_ns), np.int64), np.full(len(end_ns), -1, np.int64)])
        times, at = np.unique(np.concatenate([begin_ns, end_ns]), return_inverse=True)
        steps = np.zeros(len(times), dtype=np.int64)
        np.add.at(steps, at, changes)
        changed = steps != 0
        widths = np.cumsum(steps[changed])
        area = total(end_ns - begin_ns)
        return cls(int(widths.max(initial=0)), area, span_ns, unknown, times[changed], widths)

    @property
    def mean(self) -> Fraction | None:
        """The time-weighted mean; None without a span."""
        return Fraction(self.area_ns, self.span_ns) if self.span_ns else None

    def as_dict(self) -> dict[str, Any]:
        """The width as JSON-ready fields, without the series."""
        return {
            "max": self.maximum,
            "mean": number(self.mean),
            "area_ns": self.area_ns,
            "span_ns": self.span_ns,
            "unknown": self.unknown,
        }
