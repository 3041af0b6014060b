"""A server of the compiled engine, as a lifecycle policy's driver sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semtrace.engine.fast import layout as at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from semtrace.engine.scheduler import Reused


class ReuseError(Exception):
    """A policy lets a call reuse tokens, which the compiled engine does not do."""


class FastState:
    """A server of the compiled engine as `KvState` has it.

    Args:
        kernel: `loop.run`, compiled or not.
        s, b, f: the state that it works on.
        server: the server's record.
    """

    def __init__(self, kernel: Callable[[Any, Any, Any], int], s: Any, b: Any, f: Any, server: int) -> None:
        self._kernel = kernel
        self._s = s
        self._b = b
        self._f = f
        self._server = server
        self._list0 = int(s[at.LIST0])

    @property
    def reserved(self) -> int:
        """Free blocks that an admission must leave unless its request is critical."""
        return int(self._s[self._server + at.RESERVED])

    @reserved.setter
    def reserved(self, blocks: int) -> None:
        self._cut()
        self._s[self._server + at.RESERVED] = blocks
        self._s[self._server + at.BLOCKED] = 0

    @property
    def free_count(self) -> int:
        """Blocks that nobody holds."""
        self._cut()
        return int(self._s[self._server + at.FREE])

    def find(self, keys: Iterable[int]) -> list[int]:
        """The blocks of the longest run of keys, from the first on, that the pool has."""
        asked = list(keys)
        if not asked or not self._s[at.CACHING]:
            return []
        return self._listed(0, self._obey(at.FIND, asked))

    def idle(self, blocks: Iterable[int]) -> int:
        """How many of these nobody holds."""
        return self._obey(at.COUNT_IDLE, list(blocks))

    def share(self, blocks: Sequence[int]) -> None:
        """One more holder for each."""
        self._obey(at.SHARE, blocks)

    def take(self, count: int) -> tuple[list[int], list[int]]:
        """Blocks from the front of the free queue; and those of them that kept something."""
        evicted = self._obey(at.TAKE, (), count=count)
        return self._listed(0, count), self._listed(count, evicted)

    def register(self, blocks: Sequence[int], keys: Sequence[int]) -> None:
        """Held blocks get keys."""
        self._obey(at.REGISTER, [*blocks, *keys], count=len(blocks))

    def release(self, blocks: Sequence[int], *, drop: bool = False) -> list[int]:
        """One holder less for each; with `drop`, those that nobody holds then lose their keys first."""
        return self._listed(len(blocks), self._obey(at.LET_GO, blocks, flag=drop))

    def demote(self, blocks: Sequence[int]) -> list[int]:
        """Those of a chain that nobody holds go to the front of the free queue, with their keys."""
        return self._listed(0, self._obey(at.DEMOTE, blocks))

    # Requests.

    def waiting(self) -> Sequence[int]:
        """Events of the requests that wait, the next first."""
        first = int(self._s[at.EVENT0])
        return [(event - first) // at.EVENT_SIZE for event in self._queue()]

    def needs(self) -> Iterator[int]:
        """Blocks that each request that waits and is not passed over needs, in order."""
        s, size = self._s, int(self._s[at.BLOCK_SIZE])
        for event in self._queue():
            if s[event + at.HELD_BACK]:
                continue
            operation = int(s[event + at.OPERATION])
            tokens = int(s[operation + at.PROMPT]) + int(s[event + at.OUTPUTS])
            key = int(s[operation + at.KEYS])
            salt = int(s[int(s[event + at.INSTANCE]) + at.SALT])
            full = (tokens - 1) // size if s[at.CACHING] else 0
            hits = self.find([int(each) + salt for each in self._b[key : key + full]])
            yield max(-(-tokens // size) - len(hits), 0) + self.idle(hits)

    def running(self) -> tuple[int, int]:
        """Requests that run, and their computed tokens in all."""
        tokens = self._obey(at.COUNT_COMPUTED, ())
        return int(self._s[self._server + at.RUNNING]), tokens

    def passed_over(self, event: int) -> bool:
        """Whether a waiting request is passed over."""
        return bool(self._s[self._record(event) + at.HELD_BACK])

    def pass_over(self, event: int, *, held: bool) -> None:
        """Whether the admission of a waiting request is put off."""
        self._cut()
        self._s[self._record(event) + at.HELD_BACK] = int(held)
        self._s[self._server + at.BLOCKED] = 0

    def reuse(self, event: int, reused: Reused | None) -> None:
        """It cannot be done here.

        Raises:
            ReuseError: always.
        """
        del reused
        raise ReuseError(event)

    def pressed(self) -> bool:
        """Whether memory was short since it was last asked."""
        pressed = bool(self._s[self._server + at.PRESSED])
        self._s[self._server + at.PRESSED] = 0
        return pressed

    # The kernel.

    def _record(self, event: int) -> int:
        return int(self._s[at.EVENT0]) + event * at.EVENT_SIZE

    def _cut(self) -> None:
        if self._s[self._server + at.RUN] > 0:
            self._obey(at.CUT, ())

    def _obey(
        self, command: int, listed: Sequence[int], *, count: int | None = None, flag: bool = False
    ) -> int:
        s = self._s
        if listed:
            self._b[self._list0 : self._list0 + len(listed)] = listed
        s[at.COMMAND], s[at.SUBJECT], s[at.FLAG] = command, self._server, int(flag)
        s[at.LISTED] = len(listed) if count is None else count
        self._kernel(s, self._b, self._f)
        return int(s[at.ANSWER_COUNT])

    def _listed(self, begin: int, count: int) -> list[int]:
        first = self._list0 + begin
        return [int(each) for each in self._b[first : first + count]]

    def _queue(self) -> list[int]:
        """Records of the events that wait, the next first."""
        s, left = self._s, int(self._s[self._server + at.WAITING])
        event = int(s[self._server + at.WAITING_FIRST])
        found: list[int] = []
        if not s[at.PRIORITY_ORDER]:
            while len(found) < left:
                found.append(event)
                event = int(s[event + at.NEXT_WAITING])
            return found
        heaps = [event] if left else []
        while heaps:
            event = heaps.pop()
            found.append(event)
            heaps += [
                child for field in (at.NEXT_WAITING, at.RIGHT_WAITING) if (child := int(s[event + field]))
            ]
        return sorted(found, key=lambda each: (int(s[each + at.RANK]), int(s[each + at.SUBMITTED]), each))
