"""Which calls were critical when they were submitted: on the longest declared path of their instance (ST-LIF-012)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from semtrace.engine.contexts import Structure
from semtrace.measure.slots import LAST_NS
from semtrace.records.columns import NULL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semtrace.measure.slots import Slots


def critical_calls(slots: Slots) -> NDArray[np.bool_]:
    """By slot, whether it is a call, was submitted, and no call of its instance that had not ended then has a longer path."""
    path = np.array(Structure(slots.trace).path, dtype=np.int64)[slots.operation]
    calls = np.flatnonzero(~slots.fixed)
    found = np.zeros(slots.count, dtype=np.bool_)
    if not len(calls):
        return found
    finished = np.where(slots.finished[calls] == NULL, LAST_NS, slots.finished[calls])
    order = np.lexsort((finished, slots.instance[calls]))
    instance, finished, length = slots.instance[calls][order], finished[order], path[calls][order]
    # The longest path of those that end last, from each on; a later instance has smaller numbers, so that they do not mix.
    apart = int(length.max()) + 1
    level = (int(instance[-1]) - instance) * apart
    longest = np.maximum.accumulate((length + level)[::-1])[::-1] - level
    times = np.unique(np.concatenate([finished, slots.submitted[calls]]))
    width = len(times) + 1
    key = instance * width + np.searchsorted(times, finished)
    submitted = slots.submitted[calls]
    now = slots.instance[calls] * width + np.searchsorted(times, submitted)
    at = np.searchsorted(key, now, side="right")  # the first that ends after that
    inside = at < len(key)
    inside[inside] = instance[at[inside]] == slots.instance[calls][inside]
    most = np.where(inside, longest[np.where(inside, at, 0)], 0)
    found[calls] = (submitted != NULL) & (path[calls] >= most)
    return found
