"""The wall clock of a live replay: it sleeps until shortly before a time, then naps, then spins, and reads sockets meanwhile."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

SPIN_NS: Final = 5_000_000
"""How long before a time the clock stops sleeping, in ns: a sleep may end this much late. (On a virtual machine sleeps of 1 to
30 ms ended 0.2 ms late in the median and up to 3.8 ms.)"""
NAPPING_NS: Final = 50_000_000
"""How long before that it does not sleep through, in ns: who has slept for long finds the processor's caches cold, and takes ten
times as long for what follows."""
NAP_NS: Final = 500_000
"""Longest sleep in that time, in ns."""
LONGEST_SLEEP_NS: Final = 1_000_000_000
"""Longest single sleep, in ns: what has no other wake-up is looked at this often."""

_monotonic_ns = time.monotonic_ns


def sleep_ns(free_ns: int) -> int:
    """How long to sleep at once when nothing is due for so long, both in ns."""
    return min(free_ns, NAP_NS) if free_ns <= NAPPING_NS + NAP_NS else free_ns - NAPPING_NS


class WallClock:
    """Time since the origin of the run, by the machine's monotonic clock.

    Attributes:
        origin_ns: the monotonic time that is 0 here, in ns; set by `begin`.
        origin_unix_ns: the Unix time of that instant, in ns.
        stopping: whether `stop` was called.
    """

    def __init__(self, poll: Callable[[int], bool], wake: Callable[[], None] | None = None) -> None:
        """Make a clock that polls while it waits.

        Args:
            poll: waits for at most so many ns for something to read, reads one thing, and says whether there is
                something to report. With 0 it does not wait. Nothing is due in that time (`sleep_ns`).
            wake: makes a `poll` that waits come back; safe to call in a signal handler.
        """
        self._poll = poll
        self._wake = wake
        self.stopping = False
        self.origin_ns = 0
        self.origin_unix_ns = 0
        self.begin()

    def begin(self, lead_ns: int = 0) -> None:
        """Time 0 is now, or so many ns from now; until then the time is negative."""
        # The two clocks are read close together, or again: a preemption in between would shift the origin.
        best: int | None = None
        for _ in range(8):
            before = _monotonic_ns()
            unix = time.time_ns()
            after = _monotonic_ns()
            if best is None or after - before < best:
                best = after - before
                self.origin_ns = before + lead_ns
                self.origin_unix_ns = unix + lead_ns

    def now_ns(self) -> int:
        """The time since the origin, in ns."""
        return _monotonic_ns() - self.origin_ns

    def wait_until(self, time_ns: int) -> None:
        """Come back at this time, or earlier when there is something to report or `stop` was called.

        At least one thing is read, if there is one, however late it is: so reading goes on where releases pile up, and a
        release that is due waits for one read at most.
        """
        target = time_ns + self.origin_ns
        poll = self._poll
        while True:
            left = target - _monotonic_ns() - SPIN_NS
            if poll(0 if left <= 0 else min(left, LONGEST_SLEEP_NS)) or self.stopping:
                return
            if target <= _monotonic_ns():
                return

    def stop(self) -> None:
        """Make `wait_until` come back at once, now and from now on; safe in a signal handler."""
        self.stopping = True
        if self._wake is not None:
            self._wake()
