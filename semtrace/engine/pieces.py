"""Pieces of inputs that are the same wherever they lie: what position-independent reuse finds (ST-LIF-039)."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from semtrace.engine.prefix import token_strings
from semtrace.records.columns import NULL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from semtrace.engine.contexts import Held
    from semtrace.engine.kv_state import KvState
    from semtrace.records.trace import Trace

Span = tuple[int, int, int]
"""A piece in a string: its key, its first token, and its tokens."""


class Pieces:
    """The strings of all operations, cut so that two pieces have the same tokens or none in common.

    A piece is a stretch of one content. Strings are cut wherever one of them begins or ends a content or a part of it.

    Args:
        trace: the trace.
    """

    def __init__(self, trace: Trace) -> None:
        strings = token_strings(trace).strings
        self._cuts = np.unique(np.concatenate([strings.start, strings.start + strings.length]))
        self._holder: list[int] = strings.holder.tolist()
        self._kept: list[int] = strings.kept.tolist()
        self._first: list[int] = strings.first.tolist()
        self._start, self._length = strings.start, strings.length
        self._made: dict[int, list[Span]] = {}

    def of(self, operation: int) -> list[Span]:
        """The pieces of an operation's input and output, in their order."""
        found = self._made.get(operation)
        if found is None:
            chain = [operation]
            while self._holder[chain[-1]] != NULL and self._holder[chain[-1]] not in self._made:
                chain.append(self._holder[chain[-1]])
            for each in reversed(chain):
                self._made[each] = list(self._cut(each))
            found = self._made[operation]
        return found

    def _cut(self, operation: int) -> Iterable[Span]:
        kept, at = self._kept[operation], 0
        if self._holder[operation] != NULL:
            for key, first, tokens in self._made[self._holder[operation]]:
                if first + tokens <= kept:
                    yield key, first, tokens
            at = kept
        for run in range(self._first[operation], self._first[operation + 1]):
            start, length = int(self._start[run]), int(self._length[run])
            low, high = np.searchsorted(self._cuts, [start, start + length])
            bounds = self._cuts[low : high + 1].tolist()
            for one, two in pairwise(bounds):
                yield one, at, two - one
                at += two - one


class Places:
    """Where the pieces of contexts are, as far as the device has them.

    Args:
        block_size: tokens in a block.
    """

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._at: dict[int, dict[int, int]] = {}  # first token by context, by piece
        self._of: dict[int, list[Span]] = {}

    def put(self, context: int, spans: list[Span]) -> None:
        """A context is another string now."""
        for key, _, _ in self._of.get(context, ()):
            self._at[key].pop(context, None)
        self._of[context] = spans
        for key, first, _ in reversed(spans):  # the first of several places of it is the one that is told
            self._at.setdefault(key, {})[context] = first

    def find(
        self, span: Span, contexts: list[Held], allowed: Callable[[int], bool], state: KvState, server: int
    ) -> tuple[int, int, int] | None:
        """The context whose blocks on the server's device hold most of a piece from its first token on, the lowest of equals.

        Args:
            span: the piece.
            contexts: all contexts.
            allowed: whether an instance may be looked at.
            state: the server.
            server: its number.

        Returns:
            the context, the first token of the piece there, and how many of its tokens are held; None if there are none.
        """
        key, _, tokens = span
        best: tuple[int, int, int] | None = None
        for context, first in sorted(self._at.get(key, {}).items()):
            held = contexts[context]
            if held.server != server or not allowed(held.instance):
                continue
            block = first // self._size
            there = len(state.find(held.keys[block : -(-(first + tokens) // self._size)]))
            count = min(tokens, (block + there) * self._size - first)
            if there and count > 0 and (best is None or count > best[2]):
                best = (context, first, count)
        return best
