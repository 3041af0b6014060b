"""The blocks of one server's device memory: who holds them, which are free in what order, and what content they keep."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Eviction(NamedTuple):
    """A block that was taken for new content.

    Attributes:
        block: its id.
        key: the content that it kept until then.
    """

    block: int
    key: int


class BlockPool:
    """Paged device memory as vLLM's `BlockPool` keeps it.

    A block has holders (vLLM's `ref_cnt`): the requests whose content is in it. A block without holders is in the free
    queue. With prefix caching a full block also has the key of its content (vLLM's block hash) and keeps it in the free
    queue until the block is taken again: until then it can be found and shared.

    Attributes:
        blocks: how many blocks there are, the null block included. Block 0 is the null block: nobody ever gets it.
        caching: whether blocks are kept by content.
        holders: holders of each block.
        keys: key of each block, None for a block that is not full, is not cached or was evicted.
    """

    def __init__(self, blocks: int, caching: bool) -> None:
        self.blocks = blocks
        self.caching = caching
        self.holders = [0] * blocks
        self.keys: list[int | None] = [None] * blocks
        self._free = OrderedDict.fromkeys(range(1, blocks))  # the free queue starts in the order of ids
        self._found: dict[int, dict[int, None]] = {}  # per key its blocks, in the order they got it

    @property
    def free_count(self) -> int:
        """How many blocks have no holder; what they keep can be evicted."""
        return len(self._free)

    def free_order(self) -> list[int]:
        """The free queue: the first is taken next."""
        return list(self._free)

    def find(self, key: int) -> int | None:
        """The block with this content, None if there is none (ST-ENG-041).

        Blocks with equal content are not merged: the one that got the key first is found.
        """
        blocks = self._found.get(key)
        return next(iter(blocks)) if blocks else None

    def idle(self, blocks: Iterable[int]) -> int:
        """How many of these have no holder: sharing them takes them out of the free queue."""
        return sum(self.holders[block] == 0 for block in blocks)

    def share(self, blocks: Iterable[int]) -> None:
        """One more holder for blocks that were found (vLLM: `touch`)."""
        for block in blocks:
            if self.holders[block] == 0:
                del self._free[block]
            self.holders[block] += 1

    def take(self, count: int) -> tuple[list[int], list[Eviction]]:
        """Blocks from the front of the free queue, each with one holder; what they kept is evicted.

        Returns:
            the blocks, in the order they were taken, and the evictions among them, in the same order.
        """
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        evictions = []
        for block in taken:
            self.holders[block] = 1
            key = self.keys[block]
            if key is not None:
                evictions.append(Eviction(block, key))
        self.forget(taken)
        return taken, evictions

    def register(self, block: int, key: int) -> None:
        """A held block is full: from now on it is found by its content (vLLM: `cache_full_blocks`)."""
        self.keys[block] = key
        self._found.setdefault(key, {})[block] = None

    def release(self, blocks: Sequence[int]) -> None:
        """One holder less for the blocks of a request, given from its first to its last (ST-ENG-040).

        They are walked from the last to the first, so that a prefix outlives what follows it. Those that nobody holds
        any more join the free queue in the order of the walk: those without a key at its front (they keep nothing, so
        they are taken first), those with a key at its end (the least recently freed is evicted first).
        """
        plain: list[int] = []
        kept: list[int] = []
        for block in reversed(blocks):
            self.holders[block] -= 1
            if self.holders[block] == 0:
                (plain if self.keys[block] is None else kept).append(block)
        for block in kept:
            self._free[block] = None
        for block in reversed(plain):
            self._free[block] = None
            self._free.move_to_end(block, last=False)

    def forget(self, blocks: Iterable[int]) -> None:
        """What these keep is found no longer; who holds them is another matter."""
        for block in blocks:
            key = self.keys[block]
            if key is not None:
                self.keys[block] = None
                others = self._found[key]
                del others[block]
                if not others:
                    del self._found[key]

    def demote(self, blocks: Sequence[int]) -> list[int]:
        """Those of a chain that nobody holds go to the front of the free queue, the last one foremost; they keep what they have.

        Returns:
            the blocks that went there.
        """
        idle = [block for block in blocks if self.holders[block] == 0]
        for block in idle:
            self._free.move_to_end(block, last=False)
        return idle
