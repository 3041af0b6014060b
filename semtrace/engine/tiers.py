"""Memory tiers below the device: blocks by content, the least recently used evicted first (ST-LIF-025)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import filterfalse, islice
from operator import not_
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass
class MemoryTier:
    """Blocks of host or remote memory.

    A block is of one content, by key. It is *arriving* until the transfer that fills it has ended, and cannot be read before.
    It cannot be evicted while it arrives or is read.

    Args:
        blocks: how many there are; their ids are 0, 1, 2 ….
    """

    blocks: int
    _block: OrderedDict[int, int] = field(
        default_factory=OrderedDict
    )  # by content, the least recently used first
    _arriving: set[int] = field(default_factory=set)
    _readers: dict[int, int] = field(default_factory=dict)  # of contents that are read
    _free: list[int] = field(default_factory=list)
    _fresh: int = 0

    @property
    def free_count(self) -> int:
        """Blocks that keep nothing."""
        return len(self._free) + self.blocks - self._fresh

    @property
    def used(self) -> int:
        """Blocks that keep something, or soon will."""
        return len(self._block)

    def readable(self, key: int) -> bool:
        """Whether the content is here, and can be read."""
        return key in self._block and key not in self._arriving

    def count_readable(self, keys: Iterable[int]) -> int:
        """How many of these contents are here, and can be read."""
        return sum(map(self.readable, keys) if self._arriving else map(self._block.__contains__, keys))

    def keeps(self, key: int) -> bool:
        """Whether the content is here, or arriving."""
        return key in self._block

    def lacks(self, keys: Iterable[int]) -> list[bool]:
        """For each of these contents, whether it is neither here nor arriving."""
        return list(map(not_, map(self._block.__contains__, keys)))

    def touch(self, keys: Iterable[int]) -> None:
        """These contents were used now, the first least recently."""
        to_end = self._block.move_to_end
        for key in keys:
            to_end(key)

    def take(
        self, keys: Sequence[int], besides: Iterable[int] = ()
    ) -> tuple[list[int], list[tuple[int, int]]] | None:
        """Blocks for contents that will arrive; none of them is kept yet.

        Args:
            keys: the contents.
            besides: contents that are not to be evicted for them.

        Returns:
            the block of each, and what was evicted for them as (block, key), the least recently used first; None if there is
            no room, and then nothing is evicted.
        """
        missing = len(keys) - self.free_count
        evicted: list[tuple[int, int]] = []
        if missing > 0:
            stay = self._arriving.union(self._readers, besides)
            least = list(islice(filterfalse(stay.__contains__, self._block), missing))
            if len(least) < missing:
                return None
            made = list(map(self._block.pop, least))
            self._free += made
            evicted = list(zip(made, least, strict=True))
        left = max(len(self._free) - len(keys), 0)
        taken = self._free[left:][::-1]
        del self._free[left:]
        fresh = len(keys) - len(taken)
        taken += range(self._fresh, self._fresh + fresh)
        self._fresh += fresh
        self._block.update(zip(keys, taken, strict=True))
        self._arriving.update(keys)
        return taken, evicted

    def arrived(self, keys: Iterable[int]) -> None:
        """The transfer that fills these has ended."""
        self._arriving.difference_update(keys)

    def read(self, keys: Sequence[int]) -> list[int]:
        """A transfer out of these begins: their blocks."""
        self.touch(keys)
        for key in keys:
            self._readers[key] = self._readers.get(key, 0) + 1
        return self.places(keys)

    def places(self, keys: Iterable[int]) -> list[int]:
        """The blocks of contents that are here."""
        return [self._block[key] for key in keys]

    def was_read(self, keys: Iterable[int]) -> None:
        """A transfer out of these has ended."""
        for key in keys:
            if self._readers[key] == 1:
                del self._readers[key]
            else:
                self._readers[key] -= 1

    def drop(self, key: int) -> int | None:
        """Forget a content: its block, None if it is not here, arrives or is read."""
        if key not in self._block or key in self._arriving or key in self._readers:
            return None
        block = self._block.pop(key)
        self._free.append(block)
        return block
