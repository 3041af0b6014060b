"""Large tables are looked at block by block: what is computed of a block stays in the processor's cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

BLOCK: Final = 1 << 17
"""Rows in a block."""
_FREED: Final = 31 << 20
"""Bytes of an array that is made and freed before blocks are looked at, never touched: the allocator of glibc gives
arrays back to the system one by one, and takes them anew for each block, until it has seen a larger one freed."""


def blocks(count: int) -> Iterator[slice]:
    """The rows of a table in blocks."""
    if count > BLOCK:
        np.empty(_FREED, dtype=np.uint8)
    for start in range(0, count, BLOCK):
        yield slice(start, min(start + BLOCK, count))


def rows_where(count: int, judge: Callable[[slice], NDArray[np.bool_]]) -> NDArray[np.int64]:
    """The rows of which something is true.

    Args:
        count: rows that there are.
        judge: says it of each row of a block.
    """
    chosen = [np.flatnonzero(judge(rows)) + rows.start for rows in blocks(count)]
    return np.concatenate([*chosen, np.zeros(0, dtype=np.int64)])
