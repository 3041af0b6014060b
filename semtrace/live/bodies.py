"""Requests made ahead of their release, in idle time, within a bound of bytes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from semtrace.live.asking import Asker

BUDGET_BYTES: Final = 64 << 20
"""Most bytes of requests that are held ahead of need."""
FIRST_NS_PER_TOKEN: Final = 100.0
"""How long making a request takes for each of its tokens, in ns, before it was measured."""
MOST_NS_PER_TOKEN: Final = 2000.0
"""What is believed of that at most, in ns: more is another program's work."""
TELLING_TOKENS: Final = 256
"""Requests of fewer tokens tell nothing of it."""
FIXED_NS: Final = 200_000
"""How long it takes besides, at most, in ns."""

_monotonic_ns = time.monotonic_ns


class Bodies:
    """Requests that are ready to be sent.

    Attributes:
        made_ahead: requests that were ready when they were wanted.
        made_late: requests that had to be made when they were wanted.
        held_bytes: bytes of requests that are held now.
        most_held_bytes: most bytes that were held at once.
    """

    def __init__(
        self,
        asker: Asker,
        order: tuple[NDArray[np.int64], NDArray[np.int64]],
        *,
        budget: int = BUDGET_BYTES,
    ) -> None:
        """Hold nothing yet.

        Args:
            asker: makes requests.
            order: instance and operation of each request, in the order in which they are likely to be wanted.
            budget: most bytes held.
        """
        self._asker = asker
        self._instances, self._operations = order
        self._budget = budget
        self._next = 0
        self._ready: dict[tuple[int, int], bytes] = {}
        self._gone: set[tuple[int, int]] = set()
        self._ns_per_token = FIRST_NS_PER_TOKEN
        self.made_ahead = 0
        self.made_late = 0
        self.held_bytes = 0
        self.most_held_bytes = 0

    def ready(self, instance: int, operation: int) -> bytes | None:
        """The request of an operation in an instance, no longer held; None if it was not made ahead."""
        data = self._ready.pop((instance, operation), None)
        if data is not None:
            self.held_bytes -= len(data)
            self.made_ahead += 1
        return data

    def make(self, instance: int, operation: int) -> bytes:
        """A request that was not made ahead."""
        self.made_late += 1
        if self._next < len(self._instances):
            self._gone.add((instance, operation))  # so that it is not made when its turn comes
        if self.held_bytes >= self._budget:
            # What fills the room is not what is wanted: what was made first makes room for what comes next.
            for oldest in list(self._ready)[: len(self._ready) // 8 + 1]:
                self.held_bytes -= len(self._ready.pop(oldest))
        return self._made(instance, operation)

    def _made(self, instance: int, operation: int) -> bytes:
        """Make a request, and see how long it takes."""
        before = _monotonic_ns()
        data = self._asker.request(instance, operation)
        tokens = self._asker.size(operation)
        if tokens >= TELLING_TOKENS:
            took = (_monotonic_ns() - before) / tokens
            self._ns_per_token += (min(took, MOST_NS_PER_TOKEN) - self._ns_per_token) / 8
        return data

    def ahead(self, within_ns: int) -> bool:
        """Make one more request if it takes no longer than this; returns whether one was made."""
        at = self._next
        while at < len(self._instances):
            instance, operation = int(self._instances[at]), int(self._operations[at])
            if (instance, operation) in self._gone:
                self._gone.discard((instance, operation))
                at += 1
                continue
            self._next = at
            if self.held_bytes >= self._budget:
                return False
            if FIXED_NS + self._asker.size(operation) * self._ns_per_token > within_ns:
                self._ns_per_token *= 0.99  # what was seen may have been a bad moment
                return False
            data = self._made(instance, operation)
            self._ready[instance, operation] = data
            self.held_bytes += len(data)
            self.most_held_bytes = max(self.most_held_bytes, self.held_bytes)
            self._next = at + 1
            return True
        self._next = at
        return False
