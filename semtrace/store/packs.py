"""Packs: the artifacts of a bundle, in Arrow files with record batches near 1 MiB, so that one is read without all."""

from __future__ import annotations

import mmap
import tempfile
from collections import OrderedDict
from functools import cached_property
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from semtrace.errors import FormatError, IntegrityError, UsageError
from semtrace.records.trace import Content
from semtrace.store.arrow import ArrowFile, unbelievable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO

PACK_SCHEMA: Final = pa.schema(
    [
        pa.field("digest", pa.binary(32), nullable=False),
        pa.field("media_type", pa.string(), nullable=False),
        pa.field("content", pa.large_binary(), nullable=False),
    ]
)
_PACK_COLUMNS: Final = [(field.name, field.type) for field in PACK_SCHEMA]
_BATCH_BYTES: Final = 1 << 20
_PACK_BYTES: Final = 1 << 30
_KEPT_BATCHES: Final = 8


class PackContent(Content):
    """Artifacts in the packs of a bundle; read one batch at a time, when asked for."""

    def __init__(self, buffers: Sequence[tuple[str, pa.Buffer]]) -> None:
        self._names = [name for name, _ in buffers]
        self._files = [ArrowFile(buffer, name, pack=True) for name, buffer in buffers]
        self._kept: OrderedDict[tuple[int, int], pa.RecordBatch] = OrderedDict()
        for name, file in zip(self._names, self._files, strict=True):
            if [(field.name, field.type) for field in file.schema] != _PACK_COLUMNS:
                raise FormatError(
                    "not a pack of artifacts", code="bundle.pack", path=name, requirement="ST-BND-020"
                )

    @cached_property
    def _index(self) -> dict[bytes, tuple[int, int, int]]:
        index: dict[bytes, tuple[int, int, int]] = {}
        for pack, (name, file) in enumerate(zip(self._names, self._files, strict=True)):
            for batch, digests in enumerate(file.first_column()):
                for row, digest in enumerate(digests.to_pylist()):
                    if digest is None or digest in index:
                        raise IntegrityError(
                            "an artifact without a digest" if digest is None else "an artifact stands twice",
                            code="bundle.pack",
                            path=name,
                            requirement="ST-BND-020",
                        )
                    index[digest] = (pack, batch, row)
        return index

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._index)

    def _batch(self, pack: int, batch: int) -> pa.RecordBatch:
        """A batch; the last few are kept, as neighbours are asked for together."""
        found = self._kept.pop((pack, batch), None)
        if found is None:
            found = self._files[pack].batch(batch)
            if found.column(2).null_count:
                raise IntegrityError(
                    "an artifact without content",
                    code="bundle.pack",
                    path=self._names[pack],
                    requirement="ST-BND-020",
                )
            if len(self._kept) >= _KEPT_BATCHES:
                self._kept.popitem(last=False)
        self._kept[pack, batch] = found
        return found

    def get(self, digest: bytes) -> bytes | None:
        """The content with this digest, None if it is in no pack.

        Raises:
            IntegrityError: the pack is damaged.
        """
        place = self._index.get(digest)
        if place is None:
            return None
        pack, batch, row = place
        content: bytes = self._batch(pack, batch).column(2)[row].as_py()
        return content


def make_packs(
    wanted: Iterable[tuple[bytes, str]], content: Content, folder: Path | None = None
) -> Iterator[tuple[int, memoryview]]:
    """Packs of the wanted artifacts, in their order; those whose content is not here are left out.

    A pack is written to a temporary file batch by batch, and is that file in memory: it takes no memory of its own.

    Args:
        wanted: digest and media type of each, no digest twice.
        content: where their content is.
        folder: where temporary files are made; where the system has them if left out.

    Yields:
        `(artifacts, bytes)`: how many artifacts a pack holds, and the pack.

    Raises:
        UsageError: a temporary file cannot be written.
    """
    writer: PackWriter | None = None
    rows: list[tuple[bytes, str, bytes]] = []
    open_bytes = 0
    try:
        for digest, media_type in wanted:
            raw = content.get(digest)
            if raw is None:
                continue
            if rows and open_bytes + len(raw) > _BATCH_BYTES:
                writer = writer or PackWriter(folder)
                writer.write(rows)
                rows, open_bytes = [], 0
            if writer is not None and not rows and writer.content_bytes + len(raw) > _PACK_BYTES:
                yield writer.artifacts, writer.close()
                writer = None
            rows.append((digest, media_type, raw))
            open_bytes += len(raw)
        if rows:
            writer = writer or PackWriter(folder)
            writer.write(rows)
        if writer is not None:
            yield writer.artifacts, writer.close()
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

    def __init__(self, folder: Path | None) -> None:
        self.artifacts = 0
        self.content_bytes = 0
        self._folder = folder
        self._raw_bytes = 0
        self._file, self._writer = self._begin(pa.Codec("zstd", compression_level=9))

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
        self._raw_bytes += batch.nbytes
        self.artifacts += len(rows)
        self.content_bytes += sum(len(raw) for _, _, raw in rows)

    def close(self) -> memoryview:
        """The pack; its buffers as they are where no reader would believe how small they are (ST-BND-021)."""
        pack = self._finish()
        if not unbelievable(pack.nbytes, self._raw_bytes, pack=True):
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
        self._file.close()
