"""What a benchmark reports, and how it times."""

from __future__ import annotations

import os
import platform
import statistics
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def environment() -> dict[str, Any]:
    """The machine and the Python that figures were taken on."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
    }


@dataclass
class Result:
    """One figure, ours beside a peer's of the same run.

    Attributes:
        ours: our figure; the median of the runs; None if it was not run, and `peer_note` says why.
        unit: its unit.
        runs: all our runs.
        peer: the peer's figure, in the same unit; None if there is none or it was not run.
        peer_note: what the peer is and does, or why it was not run.
        better: which way is better: `less`, `more`, or `zero`, where the nearest to it is the best.
        facts: sizes and further figures.
    """

    ours: float | None
    unit: str
    runs: list[float]
    peer: float | None = None
    peer_note: str = "no peer"
    better: str = "less"
    facts: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=environment)

    @property
    def ratio(self) -> float | None:
        """How many times better than the peer; None without one, and where no way is better."""
        if not self.peer or self.ours is None or self.better == "zero":
            return None
        return self.peer / self.ours if self.better == "less" else self.ours / self.peer

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON-ready fields."""
        return {**asdict(self), "ratio": self.ratio}


def timed(run: Callable[[], object], times: int) -> list[float]:
    """Seconds of each of several runs."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return taken


def median(taken: list[float]) -> float:
    """The median of runs."""
    return statistics.median(taken)
