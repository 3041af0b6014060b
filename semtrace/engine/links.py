"""Links between memory tiers: transfers of one direction share it fairly, in integers (ST-LIF-028, ST-LIF-029).

Virtual-time processor sharing: V is what a transfer that is always there would have got, in units of 2^-20 ns of the whole link. A
transfer of b bytes that begins to flow at V0 ends when V reaches its tag V0 + ceil(b · 10^9 · 2^20 / bandwidth).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

SCALE = 20
"""V counts units of 2^-20 ns."""
_SECOND = 1_000_000_000


@dataclass(frozen=True)
class LinkFigures:
    """What one direction of a link can do.

    Attributes:
        bytes_per_s: bandwidth, shared by all transfers of the direction.
        latency_ns: time before the first byte of a transfer flows, in ns.
        per_run_ns: time before that for each contiguous run of blocks, in ns.
    """

    bytes_per_s: int
    latency_ns: int = 0
    per_run_ns: int = 0

    def alone_ns(self, size: int, runs: int) -> int:
        """Time that a transfer takes if nothing else uses the direction, in ns.

        Args:
            size: bytes.
            runs: contiguous runs of blocks.
        """
        return self.latency_ns + runs * self.per_run_ns + -(-size * _SECOND // self.bytes_per_s)


@dataclass
class Direction:
    """One direction of one link, and what is under way on it.

    Args:
        figures: what it can do.
    """

    figures: LinkFigures
    _now_ns: int = 0
    _virtual: int = 0
    _waiting: list[tuple[int, int, int]] = field(default_factory=list)
    """Transfers whose bytes do not flow yet: (when they will, number, bytes)."""
    _flowing: list[tuple[int, int]] = field(default_factory=list)
    """Transfers whose bytes flow: (tag, number)."""
    _bytes: dict[int, int] = field(default_factory=dict)

    @property
    def busy(self) -> int:
        """How many transfers are under way."""
        return len(self._bytes)

    @property
    def queued_bytes(self) -> int:
        """Bytes of all transfers under way, what has flowed of them included."""
        return sum(self._bytes.values())

    def begin(self, now_ns: int, number: int, size: int, runs: int) -> None:
        """A transfer begins.

        Args:
            now_ns: now; never before an end that `next_ns` told of and `ended` was not asked for.
            number: its number, greater than all before it.
            size: its bytes.
            runs: contiguous runs of blocks in it.
        """
        self._advance(now_ns)
        self._bytes[number] = size
        flows = now_ns + self.figures.latency_ns + runs * self.figures.per_run_ns
        heapq.heappush(self._waiting, (flows, number, size))
        self._admit(now_ns)

    def next_ns(self) -> int | None:
        """When the next transfer ends or begins to flow, None if there is none."""
        times = [self._waiting[0][0]] if self._waiting else []
        if self._flowing:
            left = self._flowing[0][0] - self._virtual
            times.append(self._now_ns + -(-left * len(self._flowing) >> SCALE))
        return min(times, default=None)

    def ended(self, now_ns: int) -> list[int]:
        """Numbers of the transfers that have ended up to now, in the order in which they end, of equals as they began.

        It is to be asked at every instant that `next_ns` tells of.
        """
        found: list[int] = []
        self._advance(now_ns)
        self._admit(now_ns)
        while self._flowing and self._flowing[0][0] <= self._virtual:
            _, number = heapq.heappop(self._flowing)
            del self._bytes[number]
            found.append(number)
        return found

    def _advance(self, now_ns: int) -> None:
        if self._flowing:
            self._virtual += ((now_ns - self._now_ns) << SCALE) // len(self._flowing)
        self._now_ns = now_ns

    def _admit(self, now_ns: int) -> None:
        while self._waiting and self._waiting[0][0] <= now_ns:
            _, number, size = heapq.heappop(self._waiting)
            service = -(-(size * _SECOND << SCALE) // self.figures.bytes_per_s)
            heapq.heappush(self._flowing, (self._virtual + service, number))
