"""What a lifecycle policy's driver needs of a server of the step engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from semtrace.engine.scheduler import Request, Reused, Scheduler


class StepState:
    """A server of the step engine as `KvState` has it.

    Args:
        scheduler: its scheduler.
        requests: the requests of all servers that have not ended, by event.
    """

    def __init__(self, scheduler: Scheduler, requests: Mapping[int, Request]) -> None:
        self._scheduler = scheduler
        self._pool = scheduler.pool
        self._requests = requests

    @property
    def reserved(self) -> int:
        """Free blocks that an admission must leave unless its request is critical."""
        return self._scheduler.reserved

    @reserved.setter
    def reserved(self, blocks: int) -> None:
        self._scheduler.reserved = blocks

    @property
    def free_count(self) -> int:
        """Blocks that nobody holds."""
        return self._pool.free_count

    def find(self, keys: Sequence[int]) -> list[int]:
        """The blocks of the longest run of keys, from the first on, that the pool has."""
        found = []
        for key in keys:
            block = self._pool.find(key)
            if block is None:
                break
            found.append(block)
        return found

    def match(self, keys: Sequence[int]) -> tuple[int, int]:
        """How many blocks `find` has, and how many of them nobody holds."""
        found = self.find(keys)
        return len(found), self.idle(found)

    def idle(self, blocks: Iterable[int]) -> int:
        """How many of these nobody holds."""
        return self._pool.idle(blocks)

    def share(self, blocks: Sequence[int]) -> None:
        """One more holder for each."""
        self._pool.share(blocks)

    def take(self, count: int) -> tuple[list[int], list[int]]:
        """Blocks from the front of the free queue; and those of them that kept something."""
        taken, evicted = self._pool.take(count)
        return taken, [each.block for each in evicted]

    def register(self, blocks: Sequence[int], keys: Sequence[int]) -> None:
        """Held blocks get keys."""
        for block, key in zip(blocks, keys, strict=True):
            self._pool.register(block, key)

    def release(self, blocks: Sequence[int], *, drop: bool = False) -> list[int]:
        """One holder less for each; with `drop`, those that nobody holds then lose their keys first."""
        dropped = [block for block in blocks if self._pool.holders[block] == 1] if drop else []
        self._pool.forget(dropped)
        self._pool.release(blocks)
        return dropped

    def demote(self, blocks: Sequence[int]) -> list[int]:
        """Those of a chain that nobody holds go to the front of the free queue, with their keys."""
        return self._pool.demote(blocks)

    def waiting(self) -> Iterator[int]:
        """Events of the requests that wait, the next first."""
        return (request.id for request in self._scheduler.waiting)

    def need(self, event: int) -> int:
        """Blocks that a request that waits needs."""
        return self._scheduler.need(self._requests[event])

    def running(self) -> tuple[int, int]:
        """Requests that run, and their computed tokens in all."""
        running = self._scheduler.running
        return len(running), sum(request.computed for request in running)

    def passed_over(self, event: int) -> bool:
        """Whether a waiting request is passed over."""
        return self._requests[event].held_back

    def pass_over(self, event: int, *, held: bool) -> None:
        """Whether the admission of a waiting request is put off."""
        self._requests[event].held_back = held

    def reuse(self, event: int, reused: Reused | None) -> None:
        """What a waiting request need not compute at its first admission."""
        self._requests[event].reuse = reused

    def pressed(self) -> bool:
        """Whether memory was short since it was last asked."""
        pressed, self._scheduler.pressed = self._scheduler.pressed, False
        return pressed
