"""Arrow IPC files from strangers: read in bounded memory, with nothing in them that the standard does not use.

The file is read front to back as the stream that it contains; a footer that says something else, which other readers
would go by, is damage. Before a record batch is decompressed, the sizes that its buffers claim are added up (ST-BND-021).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from semtrace.errors import FormatError, IntegrityError
from semtrace.store.arrow_format import MAGIC, Batch, Block, footer, is_big_endian

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE_FLOOR: Final = 64 << 20
"""Bytes that a table may always decompress to: every row of it costs a reader time."""
PACK_FLOOR: Final = 1 << 30
"""Bytes that a pack may always decompress to."""
RAW_CEILING: Final = 16 << 30
"""Bytes that no member may decompress to."""
RAW_RATIO: Final = 1000
"""Between the two, how many times its stored size a member may decompress to."""

_BUFFERS: Final = {
    **dict.fromkeys((pa.uint8(), pa.uint32(), pa.uint64(), pa.int64(), pa.binary(32)), 2),
    **dict.fromkeys((pa.string(), pa.large_binary()), 3),
}
"""The types of columns, and how many buffers one has: bitmap, offsets where its values differ in length, values."""


def damaged(name: str, error: object) -> IntegrityError:
    """The error for bytes that are not what Arrow can read."""
    return IntegrityError(
        f"cannot be read as Arrow data: {error}", code="bundle.arrow", path=name, requirement="ST-BND-020"
    )


def arrow_bytes(table: pa.Table) -> memoryview:
    """A table as an Arrow IPC file, its buffers compressed with zstd; as they are where no reader would believe it."""
    stored = _written(table, pa.Codec("zstd", compression_level=3))
    return _written(table, None) if unbelievable(stored.nbytes, table.nbytes) else stored


def unbelievable(stored: int, raw: int, *, pack: bool = False) -> bool:
    """Whether so many stored bytes are too few for a reader to believe that they become so many raw ones (ST-BND-021)."""
    return 2 * raw > _limit(stored, pack=pack)


def _limit(size: int, *, pack: bool) -> int:
    """Bytes that a member of this many stored bytes may decompress to (ST-BND-021)."""
    return min(RAW_CEILING, max(PACK_FLOOR if pack else TABLE_FLOOR, RAW_RATIO * size))


def _written(table: pa.Table, codec: pa.Codec | None) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table)
    return memoryview(sink.getvalue())


class ArrowFile:
    """The record batches of an Arrow IPC file, each read when asked for.

    Attributes:
        schema: the schema that the file states.
        batches: number of record batches.
    """

    def __init__(self, buffer: pa.Buffer, name: str, *, pack: bool = False) -> None:
        """Look through the file without decompressing anything.

        Args:
            buffer: the file.
            name: where it is, for messages.
            pack: whether it is a pack, of which more is believed than of a table.

        Raises:
            IntegrityError: it is not an Arrow IPC file.
            FormatError: it has columns of types that no table has, or would decompress to too much.
        """
        self._name = name
        limit = _limit(buffer.size, pack=pack)
        if buffer.size < len(MAGIC) or buffer[: len(MAGIC)].to_pybytes() != MAGIC:
            raise damaged(name, "not an Arrow IPC file")
        self._stream = buffer[len(MAGIC) :]
        try:
            self.schema: pa.Schema = pa.ipc.open_stream(self._stream).schema
            self._messages, places = _messages(self._stream, name)
            # names are decoded here, where bytes that are no text are damage
            strange = [
                f"{name} is {kind}"
                for name, kind in zip(self.schema.names, self.schema.types, strict=True)
                if kind not in _BUFFERS
            ]
            if strange:
                raise FormatError(
                    f"the column {strange[0]}, which no table has",
                    code="table.type",
                    path=name,
                    requirement="ST-TAB-002",
                )
            raw = sum(Batch.of(message).raw_size for message in self._messages)
        except (pa.ArrowException, OSError, struct.error, IndexError, ValueError) as error:
            raise damaged(name, error) from error
        self.batches = len(self._messages)
        if raw > limit:
            raise FormatError(
                f"{buffer.size} bytes that claim to decompress to {raw}",
                code="bundle.bomb",
                path=name,
                requirement="ST-BND-021",
            )
        try:
            ending = footer(buffer)
            again = pa.ipc.open_file(buffer).schema
        except (pa.ArrowException, OSError, struct.error, ValueError) as error:
            raise damaged(name, f"no footer: {error}") from error
        if ending.batches != places or ending.dictionaries:
            raise damaged(name, "its footer names other record batches than lie in it, or in another order")
        if ending.big_endian or not again.equals(self.schema):
            raise damaged(name, "its footer has another schema than its beginning")

    def batch(self, index: int) -> pa.RecordBatch:
        """A record batch, decompressed, its offsets and text checked.

        Raises:
            IntegrityError: it is damaged.
        """
        try:
            batch = pa.ipc.read_record_batch(self._messages[index], self.schema)
            batch.validate(full=True)
            hidden = Batch.of(self._messages[index]).hidden_nulls(
                [_BUFFERS[kind] for kind in self.schema.types]
            )
        except (pa.ArrowException, OSError, struct.error, ValueError) as error:
            raise damaged(self._name, error) from error
        if hidden is not None:
            column = self.schema.names[hidden]
            raise damaged(self._name, f"{column} is said to have no nulls, and its bitmap has some")
        return batch

    def table(self) -> pa.Table:
        """All record batches as one table.

        Raises:
            IntegrityError: one of them is damaged.
        """
        return pa.Table.from_batches([self.batch(index) for index in range(self.batches)], self.schema)

    def first_column(self) -> Iterator[pa.Array]:
        """The first column of each record batch, nothing else decompressed.

        Raises:
            IntegrityError: it is damaged.
        """
        options = pa.ipc.IpcReadOptions(included_fields=[0])
        try:
            for batch in pa.ipc.open_stream(self._stream, options=options):
                batch.validate(full=True)
                yield batch.column(0)
        except (pa.ArrowException, OSError) as error:
            raise damaged(self._name, error) from error


def _messages(stream: pa.Buffer, name: str) -> tuple[list[pa.ipc.Message], list[Block]]:
    """The record batches of a stream, and where each lies in its file.

    Raises:
        FormatError: there is something else among them.
        ValueError: the stream is big-endian.
    """
    found: list[pa.ipc.Message] = []
    places: list[Block] = []
    source = pa.BufferReader(stream)
    at = 0
    for message in pa.ipc.MessageReader.open_stream(source):
        if message.type == "record batch":
            body = 0 if message.body is None else message.body.size
            found.append(message)
            places.append((len(MAGIC) + at, source.tell() - at - body, body))
        elif message.type != "schema" or at:
            raise FormatError(
                f"a {message.type} has no place there in a table",
                code="bundle.arrow",
                path=name,
                requirement="ST-BND-020",
            )
        elif is_big_endian(message):
            raise ValueError("its numbers are big-endian")
        at = source.tell()
    return found, places
