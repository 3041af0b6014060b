"""Comparing KV lifecycle policies: a sweep over them, and its rows as differences to one of them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from semtrace.errors import UsageError
from semtrace.measure.compare import bootstrap
from semtrace.measure.stats import number, percentile
from semtrace.policies.registry import find_policy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from semtrace.measure.compare import Interval
    from semtrace.sweep.document import SweepDocument

SETTING: Final = "policy.name"
"""The setting of the engine document that such a sweep varies."""
LATENCY: Final = "root_latency.mean"
"""The measure that policies are compared by: mean root latency of a run, in ns."""


@dataclass(frozen=True)
class PolicyRow:
    """What one policy gave, over all seeds.

    Attributes:
        policy: its name.
        runs: runs that were not refused.
        latency_ns: median over seeds of the mean root latency, in ns; None without runs.
        p95_ns: median over seeds of the 95th percentile of root latency, in ns; None without runs.
        difference_ns: median over seeds of its mean root latency minus the baseline's, in ns; None without pairs.
        interval: bootstrap interval of that over seeds; None with fewer than two pairs.
        sums: medians over seeds of sums over requests, by name.
        error: why a run of it was refused, if one was.
    """

    policy: str
    runs: int
    latency_ns: int | float | None
    p95_ns: int | float | None
    difference_ns: int | float | None
    interval: Interval | None
    sums: Mapping[str, int | float]
    error: str | None

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON-ready fields."""
        return {
            "policy": self.policy,
            "runs": self.runs,
            "latency_ns": self.latency_ns,
            "p95_ns": self.p95_ns,
            "difference_ns": self.difference_ns,
            "interval": None if self.interval is None else self.interval.as_dict(),
            **self.sums,
            "error": self.error,
        }


def policy_sweep(base: SweepDocument, policies: Sequence[str], baseline: str) -> SweepDocument:
    """The sweep that compares policies.

    Args:
        base: engine, arrivals, copies and seeds of the comparison; it varies no policy itself.
        policies: names; the baseline is added if it is not among them.
        baseline: the one that the others are compared with.

    Raises:
        UsageError: no name is given, one stands twice, or the sweep varies policies already.
        DocumentError: there is no such policy, naming the nearest.
    """
    if not policies:
        raise UsageError(
            "no policy is named", code="policies.none", path="policies", hint="semtrace policies lists them"
        )
    names = list(policies) if baseline in policies else [baseline, *policies]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"{', '.join(twice)} stands twice", code="policies.twice", path="policies")
    if SETTING in base.settings:
        raise UsageError(
            f"the sweep varies {SETTING} itself", code="policies.sweep", path=f"settings.{SETTING}"
        )
    for name in names:
        find_policy(name)
    return base.model_copy(update={"settings": {SETTING: names, **base.settings}})


def rows_of(rows: Sequence[Mapping[str, Any]], baseline: str) -> list[PolicyRow]:
    """The rows of such a sweep by policy, in its order.

    Runs are pairs with those of the baseline that share everything but the policy: plan, arrivals, seed and settings.
    """
    by_policy: dict[str, dict[tuple[Any, ...], Mapping[str, Any]]] = {}
    refused: dict[str, str] = {}
    for row in rows:
        name = str(row[f"set.{SETTING}"])
        by_policy.setdefault(name, {})
        if row["error"] is None:
            by_policy[name][_of(row)] = row
        else:
            refused.setdefault(name, str(row["error"]))
    against = by_policy[baseline]
    made: list[PolicyRow] = []
    for name, runs in by_policy.items():
        pairs = [
            int(row[LATENCY]) - int(against[key][LATENCY])
            for key, row in runs.items()
            if key in against and row[LATENCY] is not None and against[key][LATENCY] is not None
        ]
        sums = [key for row in runs.values() for key in row if key.startswith("sum.")]
        made.append(
            PolicyRow(
                name,
                len(runs),
                _median([row[LATENCY] for row in runs.values()]),
                _median([row["root_latency.p95"] for row in runs.values()]),
                _median(pairs),
                bootstrap(pairs)[0] if len(pairs) > 1 else None,
                {key: _median([row[key] for row in runs.values()]) or 0 for key in dict.fromkeys(sums)},
                refused.get(name),
            )
        )
    return made


def _of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a run shares with the runs of other policies that it is compared with."""
    settings = tuple(
        value for name, value in row.items() if name.startswith("set.") and name != f"set.{SETTING}"
    )
    return (row["plan"], row["arrivals"], row["seed"], *settings)


def _median(values: Sequence[int | float | None]) -> int | float | None:
    known = sorted(int(value) for value in values if value is not None)
    if not known:
        return None
    return number(percentile(known, Fraction(1, 2)))
