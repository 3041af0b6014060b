"""What a lifecycle policy's driver needs of an engine: one server's blocks and queue, in a few words.

The driver holds everything that is not the schedule itself: contexts, pins, tiers, links, decisions. Both forms of the engine
offer this, so that a policy is written once, and does the same on both (ST-LIF-052).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from semtrace.engine.scheduler import Reused


class KvState(Protocol):
    """The device blocks and the waiting queue of one server.

    The driver calls it only between two schedules: after all steps of an instant were computed and what arrived was queued, before
    a step starts. Blocks are ids in the pool of the server; keys are those of ST-ENG-012. Nothing here changes the schedule but
    through holders, the order of the free queue, keys, `pass_over`, `reuse` and `reserved`.

    Attributes:
        reserved: free blocks that an admission must leave unless its request is critical; 0 at first.
    """

    reserved: int

    # Blocks.

    @property
    def free_count(self) -> int:
        """Blocks that nobody holds, whatever they keep."""
        ...

    def find(self, keys: Sequence[int]) -> list[int]:
        """The blocks of the longest run of keys, from the first on, that the pool has (ST-ENG-041)."""
        ...

    def match(self, keys: Sequence[int]) -> tuple[int, int]:
        """How many blocks `find` has, and how many of them nobody holds."""
        ...

    def idle(self, blocks: Iterable[int]) -> int:
        """How many of these nobody holds; each counts among `free_count`."""
        ...

    def share(self, blocks: Sequence[int]) -> None:
        """One more holder for each; those that nobody held leave the free queue."""
        ...

    def take(self, count: int) -> tuple[list[int], list[int]]:
        """Blocks from the front of the free queue, each with one holder and no key; there are enough.

        Returns:
            the blocks in the order they were taken, and those among them that had a key until now.
        """
        ...

    def register(self, blocks: Sequence[int], keys: Sequence[int]) -> None:
        """Held blocks without key get these keys, in this order: they are found from now on."""
        ...

    def release(self, blocks: Sequence[int], *, drop: bool = False) -> list[int]:
        """One holder less for each, as when a request ends (ST-ENG-040).

        Args:
            blocks: blocks in the order of their tokens.
            drop: those that nobody holds any more lose their keys first, and so go to the front of the free queue.

        Returns:
            those that lost their keys.
        """
        ...

    def demote(self, blocks: Sequence[int]) -> list[int]:
        """Those of a chain that nobody holds go to the front of the free queue, the last one foremost, with their keys.

        Returns:
            the blocks that went there.
        """
        ...

    # Requests.

    def waiting(self) -> Iterator[int]:
        """Events of the requests that wait, the next first; those passed over keep their places.

        It takes time for those that are asked for only, and holds until a step starts.
        """
        ...

    def need(self, event: int) -> int:
        """Blocks to hold all tokens of a request that waits, beside those that it hits and others hold (ST-ENG-033)."""
        ...

    def running(self) -> tuple[int, int]:
        """Requests that run, and their computed tokens in all."""
        ...

    def passed_over(self, event: int) -> bool:
        """Whether a waiting request is passed over."""
        ...

    def pass_over(self, event: int, *, held: bool) -> None:
        """Whether the admission of a waiting request is put off: those behind it are looked at, and it keeps its place."""
        ...

    def reuse(self, event: int, reused: Reused | None) -> None:
        """What a waiting request need not compute at its first admission though it is no hit; None for nothing.

        With a `master`, blocks of that request are shared too. If it does not run when the request is looked at for admission —
        it may be admitted in the same step — or has fewer blocks, it is its master no more: the request takes blocks of its own
        for all its tokens, and no `extra` ones.
        """
        ...

    def pressed(self) -> bool:
        """Whether, since it was last asked, an admission did not fit or a request was preempted for want of blocks."""
        ...
