"""Which embedded artifacts have their content here, without an object for each: there may be a million, and none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from semtrace.blocks import BLOCK
from semtrace.records.columns import NULL
from semtrace.records.enums import Availability
from semtrace.store.packs import digest_words

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from semtrace.records.trace import Content

_DIGEST_WORDS: Final = 4


def first_alike(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """For each digest the first one that equals it, which may be itself, shape (digests,).

    Args:
        words: the digests as numbers, shape (digests, 4).
    """
    first = np.arange(len(words))
    order = np.argsort(words[:, 0], kind="stable")
    leading = words[order, 0]
    alike = leading[1:] == leading[:-1]
    if not alike.any():
        return first
    suspects = np.sort(order[np.append(alike, False) | np.append(False, alike)])
    del order, leading, alike
    chosen = words if len(suspects) == len(words) else words[suspects]
    order = np.lexsort(chosen.T[::-1])  # of equal ones the first in the list comes first
    begins = np.zeros(len(order), dtype=np.bool_)
    begins[:1] = True
    for at in range(_DIGEST_WORDS):
        word = chosen[order, at]
        begins[1:] |= word[1:] != word[:-1]
    rows = suspects[order]
    first[rows] = rows[np.maximum.accumulate(np.where(begins, np.arange(len(rows)), 0))]
    return first


class Held:
    """The content of a trace, by number, and by row of artifacts.

    Attributes:
        digests: of all content that is here, in its own order.
        places: by row of artifacts, the number of its content; `NULL` where it is not embedded, or not here.
        unnamed: the content that no embedded artifact has, by number.
    """

    def __init__(self, digests: pa.Array, availability: NDArray[np.uint8], content: Content) -> None:
        """Look up every row.

        Args:
            digests: the artifacts' digests.
            availability: where their content is said to be.
            content: what is here.
        """
        raw = b"".join(content)
        self.digests = memoryview(raw)
        here = np.frombuffer(raw, dtype=np.uint64).reshape(-1, _DIGEST_WORDS)
        embedded = np.flatnonzero(availability == Availability.EMBEDDED)
        wanted = digest_words(digests)
        self.places = np.full(len(availability), NULL, dtype=np.int64)
        named = np.zeros(len(here), dtype=np.bool_)
        step = max(BLOCK, len(here))
        for start in range(0, len(embedded), step):
            rows = embedded[start : start + step]
            place = first_alike(np.concatenate([here, wanted[rows]]))[len(here) :]
            there = place < len(here)
            self.places[rows[there]] = place[there]
            named[place[there]] = True
        self.unnamed = np.flatnonzero(~named)

    def digest(self, number: int) -> bytes:
        """The digest of a piece of content."""
        return bytes(self.digests[32 * number : 32 * number + 32])
