"""Packs: the artifacts of a bundle, in Arrow files with record batches near 1 MiB, so that one is read without all."""

from __future__ import annotations

from collections import OrderedDict
from functools import cached_property
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from semtrace.errors import FormatError, IntegrityError
from semtrace.records.trace import Content
from semtrace.store.arrow import ArrowFile, arrow_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


def make_packs(wanted: Sequence[tuple[bytes, str]], content: Content) -> Iterator[tuple[int, memoryview]]:
    """Packs of the wanted artifacts, in their order; those whose content is not here are left out.

    Args:
        wanted: digest and media type of each, no digest twice.
        content: where their content is.

    Yields:
        `(artifacts, bytes)`: how many artifacts a pack holds, and the pack.
    """
    batches: list[pa.RecordBatch] = []
    rows: list[tuple[bytes, str, bytes]] = []
    open_bytes = pack_bytes = 0

    def close_batch() -> None:
        columns = [
            pa.array(column, field.type)
            for column, field in zip(zip(*rows, strict=True), PACK_SCHEMA, strict=True)
        ]
        batches.append(pa.record_batch(columns, schema=PACK_SCHEMA))
        rows.clear()

    def close_pack() -> tuple[int, memoryview]:
        table = pa.Table.from_batches(batches)
        batches.clear()
        return table.num_rows, arrow_bytes(table, level=9, pack=True)

    for digest, media_type in wanted:
        raw = content.get(digest)
        if raw is None:
            continue
        if rows and open_bytes + len(raw) > _BATCH_BYTES:
            close_batch()
            open_bytes = 0
        if batches and not rows and pack_bytes + len(raw) > _PACK_BYTES:
            yield close_pack()
            pack_bytes = 0
        rows.append((digest, media_type, raw))
        open_bytes += len(raw)
        pack_bytes += len(raw)
    if rows:
        close_batch()
    if batches:
        yield close_pack()
