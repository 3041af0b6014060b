"""What an Arrow IPC file says of itself, as the Arrow format's Footer, Schema and Message tables have it.

No more than it takes to compare what such a file says in two places, and to add up sizes before anything is
decompressed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

MAGIC: Final = b"ARROW1\0\0"
_RECORD_BATCH: Final = 3  # of the union MessageHeader
_CODECS: Final = ("lz4", "zstd")  # of the enumeration CompressionType

Block = tuple[int, int, int]
"""A record batch in its file: where its message begins, and the bytes of metadata and body."""


@dataclass(frozen=True)
class Footer:
    """The footer of a file.

    Attributes:
        batches: the record batches that it names.
        dictionaries: how many dictionaries it names.
        big_endian: whether its schema says so.
    """

    batches: list[Block]
    dictionaries: int
    big_endian: bool


def footer(buffer: pa.Buffer) -> Footer:
    """The footer of an Arrow IPC file.

    Raises:
        ValueError, struct.error: there is none.
    """
    ending = buffer[max(0, buffer.size - 10) :].to_pybytes()
    length = int.from_bytes(ending[:4], "little", signed=True)
    start = buffer.size - len(ending) - length
    if ending[4:] != MAGIC[:6] or length < 0 or start < len(MAGIC):
        raise ValueError("the file does not end as an Arrow IPC file does")
    flat = Flatbuffer(buffer[start : start + length])
    root = flat.indirect(0)
    schema, dictionaries = flat.field(root, 1), flat.field(root, 2)
    if schema is None:
        raise ValueError("it has no schema")
    batches = [
        (flat.number("<q", at), flat.number("<i", at + 8), flat.number("<q", at + 16))
        for at in flat.vector(flat.field(root, 3), 24)
    ]
    return Footer(batches, len(flat.vector(dictionaries, 24)), _big_endian(flat, flat.indirect(schema)))


def is_big_endian(message: pa.ipc.Message) -> bool:
    """Whether the schema in a message says that all numbers are big-endian."""
    flat = Flatbuffer(message.metadata)
    header = flat.field(flat.indirect(0), 2)
    if header is None:
        raise ValueError("a message without its header")
    return _big_endian(flat, flat.indirect(header))


def _big_endian(flat: Flatbuffer, schema: int) -> bool:
    endianness = flat.field(schema, 0)
    return endianness is not None and flat.number("<h", endianness) != 0


@dataclass(frozen=True)
class Batch:
    """The record batch in a message.

    Attributes:
        rows: how many it has.
        nodes: of each column, its rows and how many of them are null.
        buffers: of each buffer, where it begins in the body, and its bytes.
        codec: what buffers are compressed with, if they are.
        body: the bytes.
    """

    rows: int
    nodes: list[tuple[int, int]]
    buffers: list[tuple[int, int]]
    codec: str | None
    body: pa.Buffer

    @classmethod
    def of(cls, message: pa.ipc.Message) -> Batch:
        """Read a message.

        Raises:
            ValueError, struct.error: it is no record batch, or a buffer lies outside of it.
        """
        flat = Flatbuffer(message.metadata)
        root = flat.indirect(0)
        header_type, header = flat.field(root, 1), flat.field(root, 2)
        if header_type is None or header is None or flat.number("<B", header_type) != _RECORD_BATCH:
            raise ValueError("not a record batch")
        table = flat.indirect(header)
        length = flat.field(table, 0)
        rows = 0 if length is None else flat.number("<q", length)
        if rows < 0:
            raise ValueError("a record batch of less than no rows")
        nodes = [flat.pair(at) for at in flat.vector(flat.field(table, 1), 16)]
        buffers = [flat.pair(at) for at in flat.vector(flat.field(table, 2), 16)]
        body = message.body or pa.py_buffer(b"")
        for offset, length in buffers:
            if offset < 0 or length < 0 or offset + length > body.size:
                raise ValueError("a buffer lies outside of its record batch")
        return cls(rows, nodes, buffers, _codec(flat, flat.field(table, 3)), body)

    @property
    def raw_size(self) -> int:
        """Bytes that the buffers take once decompressed, as they claim."""
        return sum(self._raw_size(*buffer) for buffer in self.buffers if buffer[1])

    def _raw_size(self, offset: int, length: int) -> int:
        """Each compressed buffer begins with its raw size, -1 if it is stored as it is (BodyCompression)."""
        if self.codec is None:
            return length
        raw = int.from_bytes(self.body[offset : offset + 8].to_pybytes(), "little", signed=True)
        if length < 8 or raw < -1:
            raise ValueError("a compressed buffer without its size")
        return length - 8 if raw == -1 else raw

    def buffer(self, index: int) -> bytes:
        """A buffer, decompressed.

        Raises:
            OSError, ValueError: it cannot be.
        """
        offset, length = self.buffers[index]
        if self.codec is None or not length:
            return bytes(self.body[offset : offset + length].to_pybytes())
        raw = self._raw_size(offset, length)
        content = self.body[offset + 8 : offset + length]
        if raw == length - 8 and self.body[offset : offset + 8].to_pybytes() == b"\xff" * 8:
            return bytes(content.to_pybytes())
        return bytes(pa.Codec(self.codec).decompress(content, decompressed_size=raw, asbytes=True))

    def hidden_nulls(self, buffers_of: Sequence[int]) -> int | None:
        """A column said to be without nulls whose bitmap says otherwise: readers that go by the one see other values.

        Args:
            buffers_of: how many buffers each column has, its bitmap the first.

        Returns:
            The number of the column, None if there is none.
        """
        at = 0
        for column, ((rows, nulls), buffers) in enumerate(zip(self.nodes, buffers_of, strict=True)):
            if nulls < 0:
                return column
            if nulls == 0 and rows and self.buffers[at][1]:
                bits = int.from_bytes(self.buffer(at)[: (rows + 7) // 8], "little")
                if bits & ((1 << rows) - 1) != (1 << rows) - 1:
                    return column
            at += buffers
        return None


def _codec(flat: Flatbuffer, compression: int | None) -> str | None:
    if compression is None:
        return None
    codec = flat.field(flat.indirect(compression), 0)
    number = 0 if codec is None else flat.number("<b", codec)
    if not 0 <= number < len(_CODECS):
        raise ValueError(f"compressed with {number}, which is no codec")
    return _CODECS[number]


class Flatbuffer:
    """As much of the FlatBuffers encoding as it takes to find a field of a table."""

    def __init__(self, data: pa.Buffer) -> None:
        self._data = memoryview(data)

    def number(self, layout: str, at: int) -> int:
        """A number of a layout of `struct`."""
        if at < 0:
            raise ValueError("a field lies outside of its message")
        value: int = struct.unpack_from(layout, self._data, at)[0]
        return value

    def pair(self, at: int) -> tuple[int, int]:
        """Two int64, one after the other."""
        return self.number("<q", at), self.number("<q", at + 8)

    def indirect(self, at: int) -> int:
        """What an offset points to."""
        return at + self.number("<I", at)

    def field(self, table: int, index: int) -> int | None:
        """Where the field of a table is, None if it is left out."""
        vtable = table - self.number("<i", table)
        entry = 4 + 2 * index
        if entry + 2 > self.number("<H", vtable):
            return None
        offset = self.number("<H", vtable + entry)
        return table + offset if offset else None

    def vector(self, field: int | None, width: int) -> range:
        """Where the elements of a vector in a field begin."""
        if field is None:
            return range(0)
        at = self.indirect(field)
        count = self.number("<I", at)
        if at + 4 + width * count > len(self._data):
            raise ValueError("a vector ends outside of its message")
        return range(at + 4, at + 4 + width * count, width)
