"""Memory tiers below the device: blocks by content, the least recently used evicted first (ST-LIF-025)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass
class _Held:
    block: int
    arriving: bool
    readers: int = 0


@dataclass
class MemoryTier:
    """Blocks of host or remote memory.

    A block is of one content, by key. It is *arriving* until the transfer that fills it has ended, and cannot be read before.
    It cannot be evicted while it arrives or is read.

    Args:
        blocks: how many there are; their ids are 0, 1, 2 ….
    """

    blocks: int
    _held: OrderedDict[int, _Held] = field(default_factory=OrderedDict)
    _free: list[int] = field(default_factory=list)
    _fresh: int = 0

    @property
    def free_count(self) -> int:
        """Blocks that keep nothing."""
        return len(self._free) + self.blocks - self._fresh

    @property
    def used(self) -> int:
        """Blocks that keep something, or soon will."""
        return len(self._held)

    def readable(self, key: int) -> bool:
        """Whether the content is here, and can be read."""
        held = self._held.get(key)
        return held is not None and not held.arriving

    def keeps(self, key: int) -> bool:
        """Whether the content is here, or arriving."""
        return key in self._held

    def touch(self, keys: Iterable[int]) -> None:
        """These contents were used now, the first least recently."""
        for key in keys:
            self._held.move_to_end(key)

    def take(self, keys: Sequence[int]) -> tuple[list[int], list[tuple[int, int]]] | None:
        """Blocks for contents that will arrive; none of them is kept yet.

        Returns:
            the block of each, and what was evicted for them as (block, key), the least recently used first; None if there is
            no room, and then nothing is evicted.
        """
        missing = len(keys) - self.free_count
        evicted: list[tuple[int, int]] = []
        if missing > 0:
            for key, held in self._held.items():
                if not held.arriving and held.readers == 0:
                    evicted.append((held.block, key))
                    if len(evicted) == missing:
                        break
            if len(evicted) < missing:
                return None
            for _, key in evicted:
                self.drop(key)
        taken = []
        for key in keys:
            if self._free:
                block = self._free.pop()
            else:
                block = self._fresh
                self._fresh += 1
            self._held[key] = _Held(block, arriving=True)
            taken.append(block)
        return taken, evicted

    def arrived(self, keys: Iterable[int]) -> None:
        """The transfer that fills these has ended."""
        for key in keys:
            self._held[key].arriving = False

    def read(self, keys: Iterable[int]) -> list[int]:
        """A transfer out of these begins: their blocks."""
        blocks = []
        for key in keys:
            held = self._held[key]
            held.readers += 1
            self._held.move_to_end(key)
            blocks.append(held.block)
        return blocks

    def places(self, keys: Iterable[int]) -> list[int]:
        """The blocks of contents that are here."""
        return [self._held[key].block for key in keys]

    def was_read(self, keys: Iterable[int]) -> None:
        """A transfer out of these has ended."""
        for key in keys:
            self._held[key].readers -= 1

    def drop(self, key: int) -> int | None:
        """Forget a content: its block, None if it is not here, arrives or is read."""
        held = self._held.get(key)
        if held is None or held.arriving or held.readers:
            return None
        del self._held[key]
        self._free.append(held.block)
        return held.block
