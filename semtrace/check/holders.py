"""Whose input what is inherited comes from: the holders of operations with a base."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from semtrace.blocks import rows_where
from semtrace.records.columns import NULL

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STEPS: Final = 64
"""How many ancestors are walked one by one before the walk is done by doubling."""


def holders(base: NDArray[np.int64], count: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each of these operations the nearest ancestor that inherits no more than the operation does.

    What the operation inherits is what this ancestor inherits, and the first of its own segments.

    Args:
        base: base of every operation, a lower row, `NULL` where there is none.
        count: segments inherited by every operation, 0 where there is no base.
        rows: operations with a base.
    """
    at = base[rows]
    left = rows_where(len(rows), lambda part: count.take(at[part]) > count.take(rows[part]))
    for _ in range(_STEPS):
        if not len(left):
            return at
        at[left] = base[at[left]]
        left = left[count[at[left]] > count[rows[left]]]
    return _far_holders(base, count, rows, at, left)


def _far_holders(
    base: NDArray[np.int64],
    count: NDArray[np.int64],
    rows: NDArray[np.int64],
    at: NDArray[np.int64],
    left: NDArray[np.int64],
) -> NDArray[np.int64]:
    """The rest of the walk of `holders`, by jumps of halving length, each over ancestors that inherit more."""
    jumps, least = [base.astype(np.int32)], [count.astype(np.int32)]
    while (jumps[-1] != NULL).any():
        jump, low = jumps[-1], least[-1]
        root = jump == NULL
        jumps.append(np.where(root, NULL, jump[jump]).astype(np.int32))
        least.append(np.where(root, low, np.minimum(low, low[jump])).astype(np.int32))
    wanted = count[rows[left]]
    place = at[left]
    for jump, low in zip(reversed(jumps), reversed(least), strict=True):
        over = (low[place] > wanted) & (jump[place] != NULL)
        place = np.where(over, jump[place], place)
    at[left] = place
    return at
