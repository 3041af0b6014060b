"""Artifacts of captures: equal content of one media type is one artifact; the content stays in the captures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3

from semtrace.records import chat
from semtrace.records.enums import Availability
from semtrace.stream.content import CaptureContent

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semtrace.stream.gather import Rows

_WORDS = 4


class CapturedArtifacts:
    """The artifacts of a capture.

    Attributes:
        number: the new id of each captured artifact.
        envelopes: the new id of each as an envelope, which is JSON whatever the recorder says; -1 of those that no
            segment has as one.
    """

    def __init__(self, rows: Rows, segments: Rows) -> None:
        self._rows = rows
        count = rows.count
        self._words = _digests(rows, count)
        kinds = self._kinds(count)
        envelope, stated = segments.numbers("envelope")
        used = np.unique(rows.find(envelope[stated]))
        used = used[used >= 0]
        row = np.concatenate([np.arange(count), used])
        kind = np.concatenate(
            [kinds.indices.to_numpy(), np.full(len(used), kinds.dictionary.index(chat.JSON_TYPE).as_py())]
        )
        order = np.lexsort([kind, *self._words[row].T])
        ordered = np.column_stack([self._words[row[order]], kind[order].astype(np.uint64)])
        begins = np.append(True, (ordered[1:] != ordered[:-1]).any(axis=1))[: len(order)]
        number = np.empty(len(order), dtype=np.int64)
        number[order] = np.cumsum(begins) - 1
        self.number = number[:count]
        self.envelopes = np.full(count, -1, dtype=np.int64)
        self.envelopes[used] = number[count:]
        self._of = row[order[begins]]  # a captured artifact for each new one
        self._media_types = kinds.dictionary.take(pa.array(kind[order[begins]]))

    def _kinds(self, count: int) -> pa.DictionaryArray:
        """The media type of each, the one of JSON among them; what none is stated of is text, or bytes."""
        is_text, known = self._rows.numbers("is_text")
        meant = pa.array([chat.BYTES_TYPE, chat.TEXT_TYPE]).take(
            pa.array(np.where(known, is_text, 1).astype(np.int8))
        )
        stated = self._rows.texts("media_type")
        stated = stated.combine_chunks() if isinstance(stated, pa.ChunkedArray) else stated
        every = pa.concat_arrays([pc.coalesce(stated, meant), pa.array([chat.JSON_TYPE])]).dictionary_encode()
        return every.slice(0, count)

    def columns(self) -> dict[str, Any]:
        """The columns of the artifacts table."""
        sizes, _ = self._rows.numbers("size")
        return {
            "digest": pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(32), len(self._of), [None, pa.py_buffer(self._words[self._of].tobytes())]
            ),
            "size": sizes[self._of],
            "media_type": self._media_types,
            "availability": np.full(len(self._of), int(Availability.EMBEDDED)),
        }

    def content(self, used: NDArray[np.int64]) -> CaptureContent:
        """Where the content of some artifacts is, and of no others.

        Args:
            used: their ids.
        """
        rows = self._of[used]
        record = np.full(self._rows.count, -1, dtype=np.int64)
        known, last = self._rows.last("digest")
        record[known] = last
        files, offsets = self._rows.places(record[rows])
        return CaptureContent(self._rows.paths, self._words[rows].view(np.uint8), files, offsets)


def _digests(rows: Rows, count: int) -> NDArray[np.uint64]:
    """The digest of each as words, shape (count, 4); where no content is stated it is empty."""
    values = rows.texts("digest")
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    values = pc.fill_null(values, pa.scalar(blake3().digest(), pa.binary(32)))
    if not count:
        return np.zeros((0, _WORDS), dtype=np.uint64)
    words = np.frombuffer(
        values.buffers()[1], dtype=np.uint64, count=count * _WORDS, offset=values.offset * 32
    )
    return words.reshape(count, _WORDS)
