"""Deadlines from an independent run under low load, and rates of arrival in what the engine serves."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from semtrace.experiments.barrier import PLANS
from semtrace.experiments.base import REFERENCE_SEED, Lab, seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from semtrace.records.trace import Trace

ROOTS: Final = 64
"""Roots of a block, at every rate; all count. The reference's window of 1181.13 s has about 19 at 0.016 roots/s."""
MULTIPLE: Final = Fraction(3, 2)
"""The deadline, in reference P95s."""
OVERLOAD: Final = Fraction(5, 4)
"""The highest rate, in rates at which a backlog is served. That it is above 1 is inference, by how much our choice."""


@dataclass(frozen=True)
class Reference:
    """A run under low load: one root at a time, of a workload that is that of no block.

    Attributes:
        p95_ns: P95 of root latency under DAG.
        barrier_ratio: median root latency of Barrier over DAG.
    """

    p95_ns: Fraction
    barrier_ratio: float

    def deadline_ns(self, multiple: Fraction = MULTIPLE) -> int:
        """A multiple of the P95, rounded down to ns (ST-MEA-021)."""
        limit = multiple * self.p95_ns
        return limit.numerator // limit.denominator

    @property
    def facts(self) -> list[str]:
        """What a reader has to know of it."""
        p95, deadline = float(self.p95_ns) / 1e9, self.deadline_ns() / 1e9
        ratio = f"unloaded Barrier/DAG ratio of median root latency: {self.barrier_ratio:.2f}"
        return [
            f"reference P95, one root at a time: {p95:.1f} s (reported: 241.1 s); deadline: {deadline:.1f} s (361.7 s)",
            f"{ratio}; the deadline is {float(MULTIPLE):.1f} reference P95s",
        ]


def low_load(lab: Lab, name: str, workload: Callable[[int, int], Trace]) -> Reference:
    """The reference run of a workload.

    Args:
        lab: where to run.
        name: the workload's name.
        workload: makes it, of (roots, seed).
    """
    trace = workload(ROOTS, REFERENCE_SEED)
    alone = [{"kind": "closed_loop", "users": 1}]
    dag, barrier = lab.replay(f"low load, {name}", trace, REFERENCE_SEED, plans=PLANS, arrivals=alone)
    return Reference(Fraction(dag["root_latency.p95"]), barrier["root_latency.p50"] / dag["root_latency.p50"])


def served(lab: Lab, name: str, workload: Callable[[int, int], Trace], **settings: Any) -> float:
    """Roots per second that a backlog of them is served with, by an engine with these settings."""
    changes = {key: [value] for key, value in settings.items()}
    (row,) = lab.replay(f"backlog, {name}", workload(ROOTS, REFERENCE_SEED), REFERENCE_SEED, settings=changes)
    return ROOTS / seconds(row, "width.span_ns")


def poisson(rate: float) -> dict[str, Any]:
    """Arrivals with this many roots per second."""
    return {"kind": "poisson", "mean_ns": round(1e9 / rate)}
