"""Arrow IPC files from strangers: read in bounded memory, with nothing in them that the standard does not use.

The file is read front to back as the stream that it contains; a footer that says something else, which other readers
would go by, is damage. Before a record batch is decompressed, the sizes that its buffers claim are added up (ST-BND-021).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from semtrace.errors import FormatError, IntegrityError

if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC: Final = b"ARROW1\0\0"
TABLE_FLOOR: Final = 64 << 20
"""Bytes that a table may always decompress to: every row of it costs a reader time."""
PACK_FLOOR: Final = 1 << 30
"""Bytes that a pack may always decompress to."""
RAW_CEILING: Final = 16 << 30
"""Bytes that no member may decompress to."""
RAW_RATIO: Final = 1000
"""Between the two, how many times its stored size a member may decompress to."""

_RECORD_BATCH: Final = 3  # of the union MessageHeader of the Arrow format
_PLAIN_TYPES: Final = frozenset(
    {pa.uint8(), pa.uint32(), pa.uint64(), pa.int64(), pa.string(), pa.large_binary(), pa.binary(32)}
)


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
        self._messages: list[pa.ipc.Message] = []
        limit = _limit(buffer.size, pack=pack)
        if buffer.size < len(MAGIC) or buffer[: len(MAGIC)].to_pybytes() != MAGIC:
            raise damaged(name, "not an Arrow IPC file")
        self._stream = buffer[len(MAGIC) :]
        try:
            self.schema: pa.Schema = pa.ipc.open_stream(self._stream).schema
            source = pa.BufferReader(self._stream)
            places, at = [], source.tell()
            for message in pa.ipc.MessageReader.open_stream(source):
                if message.type == "record batch":
                    self._messages.append(message)
                    places.append(len(MAGIC) + at)
                elif message.type != "schema":
                    raise FormatError(
                        f"a {message.type} has no place in a table",
                        code="bundle.arrow",
                        path=name,
                        requirement="ST-BND-020",
                    )
                at = source.tell()
            # names are decoded here, where bytes that are no text are damage
            strange = [
                f"{name} is {kind}"
                for name, kind in zip(self.schema.names, self.schema.types, strict=True)
                if kind not in _PLAIN_TYPES
            ]
            if strange:
                raise FormatError(
                    f"the column {strange[0]}, which no table has",
                    code="table.type",
                    path=name,
                    requirement="ST-TAB-002",
                )
            raw = sum(_raw_size(message) for message in self._messages)
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
            named = _batches_of_footer(buffer)
        except (struct.error, ValueError) as error:
            raise damaged(name, f"no footer: {error}") from error
        if named != places:
            raise damaged(name, "its footer names other record batches than lie in it, or in another order")

    def batch(self, index: int) -> pa.RecordBatch:
        """A record batch, decompressed, its offsets and text checked.

        Raises:
            IntegrityError: it is damaged.
        """
        try:
            batch = pa.ipc.read_record_batch(self._messages[index], self.schema)
            batch.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            raise damaged(self._name, error) from error
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


def _batches_of_footer(buffer: pa.Buffer) -> list[int]:
    """Where the footer of an Arrow IPC file says that its record batches begin (the Arrow format's File.fbs)."""
    ending = buffer[max(0, buffer.size - 10) :].to_pybytes()
    length = int.from_bytes(ending[:4], "little", signed=True)
    start = buffer.size - len(ending) - length
    if ending[4:] != MAGIC[:6] or length < 0 or start < len(MAGIC):
        raise ValueError("the file does not end as an Arrow IPC file does")
    flat = _Flatbuffer(buffer[start : start + length])
    blocks = flat.field(flat.indirect(0), 3)
    if blocks is None:
        return []
    vector = flat.indirect(blocks)
    return [flat.number("<q", vector + 4 + 24 * index) for index in range(flat.number("<I", vector))]


def _raw_size(message: pa.ipc.Message) -> int:
    """Bytes that the buffers of a record batch take once decompressed, as they claim.

    Each compressed buffer begins with its raw size, -1 if it is stored as it is (the Arrow format's Message.fbs,
    BodyCompression and BUFFER).
    """
    metadata, body = message.metadata, message.body
    flat = _Flatbuffer(metadata)
    root = flat.indirect(0)
    header_type = flat.field(root, 1)
    header = flat.field(root, 2)
    if header_type is None or header is None or flat.number("<B", header_type) != _RECORD_BATCH:
        raise ValueError("not a record batch")
    record_batch = flat.indirect(header)
    buffers, compression = flat.field(record_batch, 2), flat.field(record_batch, 3)
    if buffers is None:
        return 0
    vector = flat.indirect(buffers)
    total = 0
    for index in range(flat.number("<I", vector)):
        offset, length = flat.pair(vector + 4 + 16 * index)
        if length == 0:
            continue
        if offset < 0 or length < 0 or offset + length > body.size:
            raise ValueError("a buffer lies outside of its record batch")
        if compression is None:
            total += length
            continue
        raw = int.from_bytes(body[offset : offset + 8].to_pybytes(), "little", signed=True)
        if length < 8 or raw < -1:
            raise ValueError("a compressed buffer without its size")
        total += length - 8 if raw == -1 else raw
    return total


class _Flatbuffer:
    """As much of the FlatBuffers encoding as it takes to find a field of a table."""

    def __init__(self, data: pa.Buffer) -> None:
        self._data = memoryview(data)

    def number(self, layout: str, at: int) -> int:
        if at < 0:
            raise ValueError("a field lies outside of its message")
        value: int = struct.unpack_from(layout, self._data, at)[0]
        return value

    def pair(self, at: int) -> tuple[int, int]:
        return self.number("<q", at), self.number("<q", at + 8)

    def indirect(self, at: int) -> int:
        return at + self.number("<I", at)

    def field(self, table: int, index: int) -> int | None:
        """Where the field of a table is, None if it is left out."""
        vtable = table - self.number("<i", table)
        entry = 4 + 2 * index
        if entry + 2 > self.number("<H", vtable):
            return None
        offset = self.number("<H", vtable + entry)
        return table + offset if offset else None
