"""Arrow IPC files from strangers: read in bounded memory, with nothing in them that the standard does not use.

The file is read front to back as the stream that it contains; a footer that says something else, which other readers
would go by, is damage. Before a record batch is decompressed, the sizes that its buffers claim are added up (ST-BND-025 …).
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
"""Bytes that the tables of a bundle may always claim (ST-BND-025)."""
PACK_FLOOR: Final = 256 << 20
"""Bytes that the packs of a bundle may always claim (ST-BND-026)."""
RAW_RATIO: Final = 100
"""How many times their stored sizes they may claim, where that is more."""
BATCH_FLOOR: Final = 32 << 20
"""Bytes that a record batch of a pack may always claim; more, if it is twice its stored size at most (ST-BND-027)."""
_ROW_BYTES: Final = 64
_ARTIFACT_BYTES: Final = 2 << 10
_BATCH_BYTES: Final = 4 << 10
"""Bytes that a row, a row of a pack and a record batch count for at least, as they take memory and time."""

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


def bomb(name: str, stored: int, claimed: int, allowed: int, requirement: str) -> FormatError:
    """The error for what would take more memory or time than its size can justify."""
    return FormatError(
        f"{stored} bytes that claim to decompress to {claimed} and more, where {allowed} may be",
        code="bundle.bomb",
        path=name,
        requirement=requirement,
        hint="whoever wrote it has to store less of it compressed",
    )


def allowance(stored: int, floor: int) -> int:
    """Bytes that members of so many stored bytes may claim to be when they are decompressed (ST-BND-025, ST-BND-026)."""
    return max(floor, RAW_RATIO * stored)


class Believed:
    """What a writer may store compressed, so that readers believe how large it is: of the tables, or packs, of a bundle.

    What claims more than half of what its stored size allows is believed while it is less than half of the floor in sum.
    Then all stay within the allowance, in whatever order they come.
    """

    def __init__(self, floor: int) -> None:
        self._left = floor // 2

    def believes(self, stored: int, claimed: int) -> bool:
        """Whether so many stored bytes may become so many; told once of each member."""
        if 2 * claimed <= RAW_RATIO * stored:
            return True
        if claimed > self._left:
            return False
        self._left -= claimed
        return True


def arrow_bytes(table: pa.Table, believed: Believed | None = None) -> memoryview:
    """A table as an Arrow IPC file, its buffers compressed with zstd; as they are where no reader would believe it.

    Args:
        table: the table.
        believed: of all tables of the bundle; of none but this one if left out.
    """
    stored = _written(table, pa.Codec("zstd", compression_level=3))
    claimed = claimed_bytes(table.nbytes, table.num_rows, 1)
    return (
        stored
        if (believed or Believed(TABLE_FLOOR)).believes(stored.nbytes, claimed)
        else _written(table, None)
    )


def claimed_bytes(raw: int, rows: int, batches: int, *, pack: bool = False) -> int:
    """What record batches count for: the bytes that their buffers become, and something for each row and batch."""
    return max(raw, rows * (_ARTIFACT_BYTES if pack else _ROW_BYTES), batches * _BATCH_BYTES)


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
        claimed: bytes that it counts for, see `claimed_bytes`.
    """

    def __init__(
        self, buffer: pa.Buffer, name: str, *, pack: bool = False, allowed: int | None = None
    ) -> None:
        """Look through the file without decompressing anything.

        Args:
            buffer: the file.
            name: where it is, for messages.
            pack: whether it is a pack.
            allowed: bytes that it may claim to decompress to; what it may as the only one of its bundle if left out.

        Raises:
            IntegrityError: it is not an Arrow IPC file.
            FormatError: it has columns of types that no table has, or would decompress to too much.
        """
        self._name = name
        if allowed is None:
            allowed = allowance(buffer.size, PACK_FLOOR if pack else TABLE_FLOOR)
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
            self.claimed = 0
            for message in self._messages:
                self._claim(Batch.of(message), allowed, pack=pack)
        except (pa.ArrowException, OSError, struct.error, IndexError, ValueError) as error:
            raise damaged(name, error) from error
        self.batches = len(self._messages)
        try:
            ending = footer(buffer)
            again = pa.ipc.open_file(buffer).schema
        except (pa.ArrowException, OSError, struct.error, ValueError) as error:
            raise damaged(name, f"no footer: {error}") from error
        if ending.batches != places or ending.dictionaries:
            raise damaged(name, "its footer names other record batches than lie in it, or in another order")
        if ending.big_endian or not again.equals(self.schema):
            raise damaged(name, "its footer has another schema than its beginning")

    def _claim(self, batch: Batch, allowed: int, *, pack: bool) -> None:
        """Add up what a batch claims.

        Raises:
            FormatError: it is too much.
        """
        raw = batch.raw_size
        if pack and raw > max(BATCH_FLOOR, 2 * batch.body.size):
            raise bomb(self._name, batch.body.size, raw, max(BATCH_FLOOR, 2 * batch.body.size), "ST-BND-027")
        self.claimed += claimed_bytes(raw, batch.rows, 1, pack=pack)
        if self.claimed > allowed:
            size = self._stream.size + len(MAGIC)
            raise bomb(self._name, size, self.claimed, allowed, "ST-BND-026" if pack else "ST-BND-025")

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
