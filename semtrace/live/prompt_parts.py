"""Strings that begin with parts of others, put together: which runs a string has from one token to another."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Stretch(NamedTuple):
    """Consecutive tokens of a string, as parts of runs.

    Attributes:
        run: the run of each part.
        offset: how many tokens of the run come before the part.
        length: tokens of each part.
    """

    run: NDArray[np.int64]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]

    def places(self, start: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of each token, where it is: its place in its run, after the place at which the run begins.

        Args:
            start: where each run of this stretch begins, by part.
        """
        ends = np.cumsum(self.length)
        total = int(ends[-1]) if len(ends) else 0
        return np.repeat(start + self.offset - (ends - self.length), self.length) + np.arange(total)


class Chains:
    """Strings, each of which keeps tokens of one before it, and goes on with runs of its own.

    Args:
        holder: by string, the string that it begins with; -1 for none.
        kept: how many tokens of it.
        first: where the own runs of each string begin, shape (strings + 1,).
        at: by run, how many tokens of its string are before it.
        length: by string, its tokens.
    """

    def __init__(
        self,
        holder: NDArray[np.int64],
        kept: NDArray[np.int64],
        first: NDArray[np.int64],
        at: NDArray[np.int64],
        length: NDArray[np.int64],
    ) -> None:
        self._holder: list[int] = holder.tolist()
        self._kept: list[int] = kept.tolist()
        self._first: list[int] = first.tolist()
        self._at = at
        self._length: list[int] = length.tolist()

    def stretch(self, string: int, begin: int, end: int) -> Stretch:
        """The tokens of a string from `begin` to `end`, as far as it has them."""
        runs: list[NDArray[np.int64]] = []
        starts: list[NDArray[np.int64]] = []
        stops: list[NDArray[np.int64]] = []
        end = min(end, self._length[string])
        while end > begin:
            kept = self._kept[string]
            if end > kept:
                low, high = self._first[string], self._first[string + 1]
                at = self._at[low:high]
                until = np.minimum(np.append(at[1:], end), end)
                inside = (at < end) & (until > begin)
                runs.append(low + np.flatnonzero(inside))
                starts.append(at[inside])
                stops.append(until[inside])
                end = kept
            if kept == 0:
                break
            string = self._holder[string]
        if not runs:
            none = np.zeros(0, dtype=np.int64)
            return Stretch(none, none, none)
        run, start, stop = (np.concatenate(each[::-1]) for each in (runs, starts, stops))
        clipped = np.maximum(start, begin)
        return Stretch(run, clipped - start, stop - clipped)
