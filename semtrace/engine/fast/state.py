"""A server of the compiled engine, as a lifecycle policy's driver sees it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from semtrace.engine.fast import layout as at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from semtrace.engine.scheduler import Reused


class ReuseError(Exception):
    """A policy lets a call reuse tokens, which the compiled engine does not do."""


class OwnKeys(Sequence[int]):
    """Keys of blocks that follow each other in an operation, where the compiled engine has them.

    Args:
        own: all keys of the operations, without salt.
        begin, end: which of them.
        first: where in `b` they begin.
        salt: what is added to them.
    """

    __slots__ = ("_begin", "_end", "_first", "_own", "salt")

    def __init__(self, own: NDArray[np.int64], begin: int, end: int, first: int, salt: int) -> None:
        self._own, self._begin, self._end, self._first, self.salt = own, begin, end, first, salt

    @property
    def place(self) -> int:
        """Where in `b` the first one is."""
        return self._first + self._begin

    def __len__(self) -> int:
        return self._end - self._begin

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> OwnKeys: ...
    def __getitem__(self, index: int | slice) -> int | OwnKeys:
        """A key, or those of a slice, which has no step."""
        if isinstance(index, slice):
            begin, end, _ = index.indices(len(self))
            begin += self._begin
            return OwnKeys(self._own, begin, max(self._begin + end, begin), self._first, self.salt)
        return int(self._own[range(self._begin, self._end)[index]]) + self.salt

    def __iter__(self) -> Iterator[int]:
        return iter(self._all())

    def __reversed__(self) -> Iterator[int]:
        return reversed(self._all())

    def _all(self) -> list[int]:
        keys: list[int] = (self._own[self._begin : self._end] + self.salt).tolist()
        return keys


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

    def find(self, keys: Sequence[int]) -> list[int]:
        """The blocks of the longest run of keys, from the first on, that the pool has."""
        return self._listed(0, self._look(at.FIND, keys))

    def match(self, keys: Sequence[int]) -> tuple[int, int]:
        """How many blocks `find` has, and how many of them nobody holds."""
        count = self._look(at.MATCH, keys)
        return count, int(self._s[at.ANSWER_IDLE]) if count else 0

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

    def waiting(self) -> Iterator[int]:
        """Events of the requests that wait, the next first."""
        s = self._s
        first, left = int(s[at.EVENT0]), int(s[self._server + at.WAITING])
        event = int(s[self._server + at.WAITING_FIRST])
        if s[at.PRIORITY_ORDER]:
            yield from ((each - first) // at.EVENT_SIZE for each in self._by_priority(event if left else 0))
            return
        for _ in range(left):
            yield (event - first) // at.EVENT_SIZE
            event = int(s[event + at.NEXT_WAITING])

    def _by_priority(self, root: int) -> Iterator[int]:
        """Records of the events in a heap, the next first; what is before nothing that was asked for is not looked at."""
        s = self._s

        def place(event: int) -> tuple[int, int, int]:
            return int(s[event + at.RANK]), int(s[event + at.SUBMITTED]), event

        heap = [place(root)] if root else []
        while heap:
            event = heap[0][2]
            yield event
            heapq.heappop(heap)
            for field in (at.NEXT_WAITING, at.RIGHT_WAITING):
                child = int(s[event + field])
                if child:
                    heapq.heappush(heap, place(child))

    def need(self, event: int) -> int:
        """Blocks that a request that waits needs."""
        s, size, record = self._s, int(self._s[at.BLOCK_SIZE]), self._record(event)
        operation = int(s[record + at.OPERATION])
        tokens = int(s[operation + at.PROMPT]) + int(s[record + at.OUTPUTS])
        salt = int(s[int(s[record + at.INSTANCE]) + at.SALT])
        full = (tokens - 1) // size
        hits = self._match(at.MATCH, int(s[operation + at.KEYS]), salt, full) if s[at.CACHING] else 0
        return max(-(-tokens // size) - hits, 0) + (int(s[at.ANSWER_IDLE]) if hits else 0)

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

    def _look(self, command: int, keys: Sequence[int]) -> int:
        """Look for keys: how many leading ones there are."""
        if not keys or not self._s[at.CACHING]:
            return 0
        if isinstance(keys, OwnKeys):
            return self._match(command, keys.place, keys.salt, len(keys))
        self._b[self._list0 : self._list0 + len(keys)] = keys
        return self._match(command, self._list0, 0, len(keys))

    def _match(self, command: int, place: int, salt: int, count: int) -> int:
        self._s[at.KEYS_AT], self._s[at.KEYS_SALT] = place, salt
        return self._obey(command, (), count=count)

    def _listed(self, begin: int, count: int) -> list[int]:
        first = self._list0 + begin
        listed = self._b[first : first + count]
        return listed if isinstance(listed, list) else listed.tolist()
