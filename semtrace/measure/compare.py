"""Two executions of the same work, compared instance by instance (spec, measures.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from semtrace.errors import OtherWorkError
from semtrace.measure.metrics import Measures, measure
from semtrace.measure.setup import Difference, differences
from semtrace.measure.stats import Distribution, number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from semtrace.graph.plan import Plan
    from semtrace.measure.groups import StageMeasures
    from semtrace.measure.width import Width
    from semtrace.records.execution import Execution
    from semtrace.records.trace import Trace

RESAMPLES: Final = 10_000
"""Bootstrap resamples, if not said otherwise."""

_CHUNK: Final = 1 << 22
"""Values drawn at once: 32 MiB."""


@dataclass(frozen=True)
class Interval:
    """A percentile bootstrap interval of a statistic of paired differences.

    Attributes:
        low, high: its ends, in the unit of the differences.
        level_percent: confidence.
        resamples, seed: how it was drawn; the same numbers give the same interval.
    """

    low: float
    high: float
    level_percent: int
    resamples: int
    seed: int

    def as_dict(self) -> dict[str, Any]:
        """The interval as JSON-ready fields."""
        return {
            "low": self.low,
            "high": self.high,
            "level_percent": self.level_percent,
            "resamples": self.resamples,
            "seed": self.seed,
        }


@dataclass(frozen=True)
class Pair:
    """One instance in both executions: its root latency in each, in ns; None where not known."""

    task: int
    copy: int
    first_ns: int | None
    second_ns: int | None

    @property
    def difference_ns(self) -> int | None:
        """Second - first; None if one is not known."""
        return None if self.first_ns is None or self.second_ns is None else self.second_ns - self.first_ns

    def as_dict(self) -> dict[str, Any]:
        """The pair as JSON-ready fields."""
        return {
            "task": self.task,
            "copy": self.copy,
            "first_ns": self.first_ns,
            "second_ns": self.second_ns,
            "difference_ns": self.difference_ns,
        }


@dataclass(frozen=True)
class Comparison:
    """How a second execution differs from a first one of the same work.

    Attributes:
        first, second: the measures of each.
        setup: in what they were run differently, beside their plans: arrivals, copies, settings.
        pairs: instances that are in both, by (task, copy).
        only_first, only_second: (task, copy) of instances that are in one of them only.
        difference: second - first of root latency over the pairs where both are known, in ns.
        median_interval: bootstrap interval of the median difference; None with fewer than two known pairs.
        mean_interval: of the mean difference.
        ratio: second / first of root latency over these pairs, in parts per million of the first, rounded down.
    """

    first: Measures
    second: Measures
    setup: Sequence[Difference]
    pairs: Sequence[Pair]
    only_first: Sequence[tuple[int, int]]
    only_second: Sequence[tuple[int, int]]
    difference: Distribution
    median_interval: Interval | None
    mean_interval: Interval | None
    ratio: Distribution

    def as_dict(self) -> dict[str, Any]:
        """The comparison as JSON-ready fields; times in ns, differences second - first."""
        ratio = self.ratio
        return {
            "work_digest": self.first.facts["work_digest"],
            "first": _side(self.first),
            "second": _side(self.second),
            "setup_differences": [each.as_dict() for each in self.setup],
            "pairs": len(self.pairs),
            "only_first": [list(each) for each in self.only_first],
            "only_second": [list(each) for each in self.only_second],
            "root_latency_difference": {
                **self.difference.as_dict(),
                "median_interval": self.median_interval.as_dict() if self.median_interval else None,
                "mean_interval": self.mean_interval.as_dict() if self.mean_interval else None,
            },
            "root_latency_ratio": {
                "count": ratio.count,
                "unknown": ratio.unknown,
                "min": None if ratio.minimum is None else ratio.minimum / 1e6,
                "p50": float(ratio.percentiles["p50"]) / 1e6 if ratio.count else None,
                "max": None if ratio.maximum is None else ratio.maximum / 1e6,
            },
            "width": {
                "max": [self.first.width.maximum, self.second.width.maximum],
                "mean": [number(self.first.width.mean), number(self.second.width.mean)],
            },
            "stages": list(_stages(self.first.stages, self.second.stages)),
            "instances": [pair.as_dict() for pair in self.pairs],
        }


def _side(measures: Measures) -> dict[str, Any]:
    return {
        **{key: value for key, value in measures.facts.items() if key != "work_digest"},
        "instances": len(measures.instances),
        "fell_short": measures.fell_short.as_dict(),
        "root_latency": measures.root_latency.as_dict(),
        "width": _width(measures.width),
        "path": measures.path.as_dict(),
        "attainment": measures.attainment.as_dict() if measures.attainment else None,
    }


def _width(width: Width) -> dict[str, Any]:
    return {"max": width.maximum, "mean": number(width.mean), "unknown": width.unknown}


def _stages(first: Sequence[StageMeasures], second: Sequence[StageMeasures]) -> list[dict[str, Any]]:
    """Stage times side by side; both executions are of one trace, so the stages are the same."""
    return [
        {
            "name": one.name,
            "template": one.template,
            "first_p50_ns": number(one.time_ns.percentiles.get("p50")),
            "second_p50_ns": number(other.time_ns.percentiles.get("p50")),
            "unknown": [one.time_ns.unknown, other.time_ns.unknown],
        }
        for one, other in zip(first, second, strict=True)
    ]


def bootstrap(
    differences: Sequence[int], *, seed: int = 0, resamples: int = RESAMPLES, level_percent: int = 95
) -> tuple[Interval, Interval]:
    """Percentile bootstrap intervals of the median and of the mean of paired differences (ST-MEA-052).

    Pairs are resampled with replacement by `numpy.random.Generator(PCG64(seed))`.

    Args:
        differences: at least two.
        seed: of the generator.
        resamples: how many.
        level_percent: confidence, 1 to 99.

    Raises:
        ValueError: fewer than two differences, or an option out of range.
    """
    if len(differences) < 2:
        raise ValueError("an interval needs two differences")
    if resamples < 1 or not 1 <= level_percent <= 99:
        raise ValueError("resamples must be positive, the level from 1 to 99 percent")
    sample = np.asarray(differences, dtype=np.int64)
    generator = np.random.Generator(np.random.PCG64(seed))
    medians = np.empty(resamples)
    means = np.empty(resamples)
    rows = max(1, _CHUNK // len(sample))
    for begin in range(0, resamples, rows):
        end = min(begin + rows, resamples)
        drawn = sample[generator.integers(0, len(sample), (end - begin, len(sample)))]
        medians[begin:end] = np.median(drawn, axis=1)
        means[begin:end] = drawn.mean(axis=1)
    tail = (100 - level_percent) / 200
    made = []
    for values in (medians, means):
        low, high = np.quantile(values, [tail, 1 - tail])
        made.append(Interval(float(low), float(high), level_percent, resamples, seed))
    return made[0], made[1]


def compare(
    trace: Trace,
    first: Execution,
    second: Execution,
    *,
    plans: tuple[Plan | None, Plan | None] = (None, None),
    deadline_ns: int | None = None,
    window_ns: int | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Comparison:
    """Compare two executions of one trace, instance by instance.

    Args:
        trace: the trace that both are of.
        first: the reference.
        second: what is compared with it.
        plans: the plans that they followed; those in their headers if left out.
        deadline_ns: as for `measure`.
        window_ns: as for `measure`.
        seed: of the bootstrap.
        resamples: of the bootstrap.

    Raises:
        OtherWorkError: the executions are of different work, or of other work than the trace (ST-MEA-050).
    """
    one, other = first.header.work_digest, second.header.work_digest
    if one != other:
        raise OtherWorkError(
            f"different work: the first execution is of {one[:19]}…, the second of {other[:19]}…",
            code="compare.work",
            requirement="ST-MEA-050",
            hint="only executions of the same trace can be compared; other context or other inputs are other work",
        )
    options: Mapping[str, int | None] = {"deadline_ns": deadline_ns, "window_ns": window_ns}
    sides = [measure(trace, run, plan, **options) for run, plan in zip((first, second), plans, strict=True)]
    latencies = [{(each.task, each.copy): each.root_latency_ns for each in side.instances} for side in sides]
    both = sorted(latencies[0].keys() & latencies[1].keys())
    pairs = [Pair(*key, latencies[0][key], latencies[1][key]) for key in both]
    known = [pair.difference_ns for pair in pairs if pair.difference_ns is not None]
    ratios = [
        pair.second_ns * 1_000_000 // pair.first_ns
        for pair in pairs
        if pair.first_ns and pair.second_ns is not None
    ]
    median, mean = bootstrap(known, seed=seed, resamples=resamples) if len(known) > 1 else (None, None)
    return Comparison(
        first=sides[0],
        second=sides[1],
        setup=differences(first.header, second.header),
        pairs=pairs,
        only_first=sorted(latencies[0].keys() - latencies[1].keys()),
        only_second=sorted(latencies[1].keys() - latencies[0].keys()),
        difference=Distribution.of(known, len(pairs) - len(known)),
        median_interval=median,
        mean_interval=mean,
        ratio=Distribution.of(ratios, len(pairs) - len(ratios)),
    )
