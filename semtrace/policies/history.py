"""What a policy remembers of tools that have ended: how long they took, by name."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

SAMPLES = 64
"""Durations that are remembered of each tool: the latest."""


@dataclass
class _Tool:
    samples: deque[int] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    count: int = 0
    total: int = 0
    smoothed: int = 0


class ToolTimes:
    """Durations of tools, in ns.

    Args:
        unknown_ns: what a tool is said to take of which none has ended yet.
    """

    def __init__(self, unknown_ns: int) -> None:
        self._unknown = unknown_ns
        self._tools: dict[str, _Tool] = {}

    def add(self, tool: str, took_ns: int) -> None:
        """A tool has ended after so long."""
        found = self._tools.setdefault(tool, _Tool())
        found.samples.append(took_ns)
        found.smoothed = took_ns if found.count == 0 else (found.smoothed + took_ns) // 2
        found.count += 1
        found.total += took_ns

    def mean_ns(self, tools: Iterable[str]) -> int:
        """Mean duration of a tool, of several the greatest, in whole ns."""
        return max((self._mean(tool) for tool in tools), default=self._unknown)

    def smoothed_ns(self, tool: str) -> int:
        """Duration of a tool, each new one counting as much as all before it together, in whole ns."""
        found = self._tools.get(tool)
        return self._unknown if found is None else found.smoothed

    def samples(self, tools: Iterable[str]) -> list[int]:
        """The latest durations of a tool, in ascending order; of several tools, those of the one with the greatest mean."""
        slowest = max(sorted(tools), key=self._mean, default="")
        found = self._tools.get(slowest)
        return [] if found is None else sorted(found.samples)

    def _mean(self, tool: str) -> int:
        found = self._tools.get(tool)
        return self._unknown if found is None else found.total // found.count
