"""Packs: the artifacts of a bundle, in Arrow files with record batches near 1 MiB, so that one is read without all."""

from __future__ import annotations

import contextlib
import mmap
import sys
import tempfile
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from semtrace.errors import FormatError, IntegrityError, UsageError
from semtrace.records.trace import Content
from semtrace.store.arrow import BATCH_FLOOR, PACK_FLOOR, Believed, claimed_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from numpy.typing import NDArray

    from semtrace.store.arrow import ArrowFile

PACK_SCHEMA: Final = pa.schema(
    [
        pa.field("digest", pa.binary(32), nullable=False),
        pa.field("media_type", pa.string(), nullable=False),
        pa.field("content", pa.large_binary(), nullable=False),
    ]
)
_PACK_COLUMNS: Final = [(field.name, field.type) for field in PACK_SCHEMA]
_BATCH_BYTES: Final = 1 << 20
_COMPRESSED_BYTES: Final = BATCH_FLOOR - (
    1 << 16
)  # beside the content, a batch has a digest and a media type
_PACK_BYTES: Final = 1 << 30
_KEPT_BATCHES: Final = 8
_KEPT_BYTES: Final = 16 << 20


class PackContent(Content):
    """Artifacts in the packs of a bundle; read one batch at a time, when asked for."""

    def __init__(self, files: Sequence[tuple[str, ArrowFile]]) -> None:
        """Look at the columns of the packs.

        Args:
            files: where each pack is, for messages, and the pack.

        Raises:
            FormatError: one has other columns than packs have.
        """
        self._names = [name for name, _ in files]
        self._files = [file for _, file in files]
        self._kept: OrderedDict[tuple[int, int], pa.RecordBatch] = OrderedDict()
        for name, file in files:
            if [(field.name, field.type) for field in file.schema] != _PACK_COLUMNS:
                raise FormatError(
                    "not a pack of artifacts", code="bundle.pack", path=name, requirement="ST-BND-028"
                )

    @cached_property
    def _index(self) -> _Index:
        parts, places = [], []
        for pack, (name, file) in enumerate(zip(self._names, self._files, strict=True)):
            for batch, digests in enumerate(file.first_column()):
                if digests.null_count:
                    raise _wrong("an artifact without a digest", name, "ST-BND-028")
                places.append((pack, batch))
                parts.append(digest_words(digests))
        index = _Index(parts, places)
        if index.twice is not None:
            name = self._names[index.place(index.twice)[0]]
            raise _wrong("an artifact stands twice", name, "ST-BND-029")
        return index

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._index)

    def __len__(self) -> int:
        """How many artifacts there are."""
        return len(self._index)

    def _batch(self, pack: int, batch: int) -> pa.RecordBatch:
        """A batch; the last few are kept, as neighbours are asked for together."""
        found = self._kept.pop((pack, batch), None)
        if found is None:
            found = self._files[pack].batch(batch)
            if found.column(2).null_count:
                raise _wrong("an artifact without content", self._names[pack], "ST-BND-028")
            kept = found.nbytes
            while self._kept and (
                len(self._kept) >= _KEPT_BATCHES
                or kept + sum(each.nbytes for each in self._kept.values()) > _KEPT_BYTES
            ):
                self._kept.popitem(last=False)
        self._kept[pack, batch] = found
        return found

    def get(self, digest: bytes) -> bytes | None:
        """The content with this digest, None if it is in no pack.

        Raises:
            IntegrityError: the pack is damaged.
        """
        at = self._index.find(digest)
        if at is None:
            return None
        pack, batch, row = self._index.place(at)
        content: bytes = self._batch(pack, batch).column(2)[row].as_py()
        return content


def digest_words(digests: pa.Array) -> NDArray[np.uint64]:
    """An array of digests as numbers, shape (digests, 4)."""
    if not len(digests):
        return np.zeros((0, 4), dtype=np.uint64)
    start = digests.offset * 4
    return np.frombuffer(digests.buffers()[1], dtype=np.uint64)[start : start + len(digests) * 4].reshape(
        -1, 4
    )


def _wrong(message: str, name: str, requirement: str) -> IntegrityError:
    return IntegrityError(message, code="bundle.pack", path=name, requirement=requirement)


class _Index:
    """Which artifact stands where, without an object for each.

    Attributes:
        twice: an artifact whose digest an earlier one has, None if there is none.
    """

    def __init__(self, parts: Sequence[NDArray[np.uint64]], places: Sequence[tuple[int, int]]) -> None:
        """Order the artifacts by digest.

        Args:
            parts: by record batch, the digests of its artifacts, shape (artifacts, 4).
            places: by record batch, its pack, and its number in it.
        """
        self._places = places
        self._starts = [0, *accumulate(map(len, parts))]
        words = np.concatenate(parts) if parts else np.zeros((0, 4), dtype=np.uint64)
        first = words[:, 0]
        order = np.argsort(first, kind="stable")
        alike = np.flatnonzero(first[order[1:]] == first[order[:-1]])
        self.twice = None
        if len(alike):
            order = np.lexsort(words.T[::-1])
            ordered = words[order]
            same = np.flatnonzero((ordered[1:] == ordered[:-1]).all(axis=1))
            self.twice = int(order[same + 1].min()) if len(same) else None
        # a look-up in these makes a fifth of the objects that one in an array makes
        self._order, self._first = order.data, first[order].data
        self._digests = words.tobytes()
        self._next = 0

    def __len__(self) -> int:
        return len(self._first)

    def __iter__(self) -> Iterator[bytes]:
        return (self._digests[at : at + 32] for at in range(0, len(self._digests), 32))

    def find(self, digest: bytes) -> int | None:
        """The number of the artifact with this digest, None if there is none."""
        number = self._next
        if self._digests[32 * number : 32 * number + 32] != digest:  # they are asked for in order, mostly
            first = int.from_bytes(digest[:8], sys.byteorder)
            at = bisect_left(self._first, first)
            while at < len(self._first) and self._first[at] == first:
                number = self._order[at]
                if self._digests[32 * number : 32 * number + 32] == digest:
                    break
                at += 1
            else:
                return None
        elif not digest:
            return None
        self._next = number + 1
        return number

    def place(self, at: int) -> tuple[int, int, int]:
        """The pack, record batch and row in which an artifact stands."""
        part = bisect_right(self._starts, at) - 1
        return *self._places[part], at - self._starts[part]


def make_packs(
    wanted: Iterable[tuple[bytes, str]],
    content: Content,
    folder: Path | None = None,
    believed: Believed | None = None,
) -> Iterator[tuple[int, memoryview]]:
    """Packs of the wanted artifacts, in their order; those whose content is not here are left out.

    An artifact that is larger than a record batch may claim to be has a pack of its own, stored as it is (ST-BND-027).
    A pack is written to a temporary file batch by batch, and is that file in memory: it takes no memory of its own.

    Args:
        wanted: digest and media type of each, no digest twice.
        content: where their content is.
        folder: where temporary files are made; where the system has them if left out.
        believed: of all packs of the bundle; of none but these if left out.

    Yields:
        `(artifacts, bytes)`: how many artifacts a pack holds, and the pack.

    Raises:
        UsageError: a temporary file cannot be written.
    """
    believed = believed or Believed(PACK_FLOOR)
    writer: PackWriter | None = None
    rows: list[tuple[bytes, str, bytes]] = []
    open_bytes = 0
    try:
        for digest, media_type in wanted:
            raw = content.get(digest)
            if raw is None:
                continue
            large = len(raw) > _COMPRESSED_BYTES
            if rows and (large or open_bytes + len(raw) > _BATCH_BYTES):
                writer = writer or PackWriter(folder)
                writer.write(rows)
                rows, open_bytes = [], 0
            if writer is not None and not rows and (large or writer.content_bytes + len(raw) > _PACK_BYTES):
                yield writer.artifacts, writer.close(believed)
                writer = None
            if large:
                writer = PackWriter(folder, compressed=False)
                writer.write([(digest, media_type, raw)])
                yield writer.artifacts, writer.close(believed)
                writer = None
                continue
            rows.append((digest, media_type, raw))
            open_bytes += len(raw)
        if rows:
            writer = writer or PackWriter(folder)
            writer.write(rows)
        if writer is not None:
            yield writer.artifacts, writer.close(believed)
    except OSError as error:
        raise UsageError(
            f"a temporary file cannot be written: {error.strerror or error}",
            code="file.unwritable",
            path=str(folder or tempfile.gettempdir()),
        ) from error
    finally:
        if writer is not None:
            writer.give_up()


class PackWriter:
    """One pack while it is written, to a file that has no name.

    Attributes:
        artifacts: artifacts written.
        content_bytes: bytes of their content.
    """

    def __init__(self, folder: Path | None, *, compressed: bool = True) -> None:
        self.artifacts = 0
        self.content_bytes = 0
        self._folder = folder
        self._claimed = 0
        codec = pa.Codec("zstd", compression_level=9) if compressed else None
        self._file, self._writer = self._begin(codec)

    def _begin(self, codec: pa.Codec | None) -> tuple[BinaryIO, pa.ipc.RecordBatchFileWriter]:
        file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115  # it lives as long as what is mapped of it
        options = pa.ipc.IpcWriteOptions(compression=codec)
        return file, pa.ipc.new_file(pa.PythonFile(file, "w"), PACK_SCHEMA, options=options)

    def write(self, rows: Sequence[tuple[bytes, str, bytes]]) -> None:
        """Write a record batch: digest, media type and content of each artifact."""
        columns = [
            pa.array(column, field.type)
            for column, field in zip(zip(*rows, strict=True), PACK_SCHEMA, strict=True)
        ]
        batch = pa.record_batch(columns, schema=PACK_SCHEMA)
        self._writer.write_batch(batch)
        self._claimed += claimed_bytes(batch.nbytes, len(rows), 1, pack=True)
        self.artifacts += len(rows)
        self.content_bytes += sum(len(raw) for _, _, raw in rows)

    def close(self, believed: Believed) -> memoryview:
        """The pack; its buffers as they are where no reader would believe how small they are (ST-BND-026)."""
        pack = self._finish()
        if believed.believes(pack.nbytes, self._claimed):
            return pack
        stored = pa.ipc.open_file(pa.py_buffer(pack))
        self._file, self._writer = self._begin(None)
        for index in range(stored.num_record_batches):
            self._writer.write_batch(stored.get_batch(index))
        return self._finish()

    def _finish(self) -> memoryview:
        self._writer.close()
        self._file.flush()
        with self._file:  # what is mapped of it stays
            return memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))

    def give_up(self) -> None:
        """Leave the pack unfinished, if it is."""
        with contextlib.suppress(OSError):  # what is left to be written is not wanted: the disk may be full
            self._file.close()
