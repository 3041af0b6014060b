"""Reading the records of a stream, front to back, in memory that no length in the file decides (ST-STR-030 …)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from semtrace.errors import IntegrityError, UnsupportedError, UsageError, WrongKindError
from semtrace.records.document import open_regular
from semtrace.stream.framing import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    MAGIC,
    MARKER,
    MAX_PAYLOAD,
    VERSION,
    parse_file_header,
    parse_frame_header,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import FileIO
    from pathlib import Path
    from typing import BinaryIO

_BLOCK = 1 << 20
_USUAL = 1 << 12  # bytes of a record that are read at once; few have more


class RawRecord(NamedTuple):
    """A record whose checks are right: where its frame begins in the file, its ordinal, its payload."""

    offset: int
    ordinal: int
    payload: bytes


@dataclass(frozen=True)
class Damage:
    """A place where the file is not what was written.

    Attributes:
        offset: its first byte.
        end: the first byte after it, where reading goes on.
        message: what is wrong.
        records: how many records are lost with it, as far as ordinals tell; None if it is not known.
    """

    offset: int
    end: int
    message: str
    records: int | None = None


def is_stream(path: Path) -> bool:
    """Whether it is a regular file that begins as a record stream does."""
    try:
        with open_regular(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, UsageError):
        return False


def payload_at(file: BinaryIO | FileIO, offset: int, path: Path) -> bytes:
    """The payload of the record whose frame begins at an offset, where a scan has found one before.

    Raises:
        IntegrityError: it is another one now.
    """
    file.seek(offset)
    block = file.read(_USUAL)
    parsed = parse_frame_header(block[:FRAME_HEADER_BYTES].ljust(FRAME_HEADER_BYTES))
    end = FRAME_HEADER_BYTES + (min(parsed[1], MAX_PAYLOAD) if parsed else 0)
    if end > len(block):
        block += file.read(end - len(block))
    payload = block[FRAME_HEADER_BYTES:end]
    if parsed is None or crc32(payload) != parsed[2]:
        raise IntegrityError(
            "the file was changed while it was read",
            code="stream.damaged",
            path=f"{path}, byte {offset}",
            requirement="ST-STR-031",
        )
    return payload


@dataclass
class Scan:
    """The records of one stream file; what is wrong with it is known when it has been read through.

    A torn tail, the beginning of a record that ends with the file, is what a recorder leaves that is killed while
    it writes; that record was never acknowledged. Everything else that is not what was written is damage.

    Attributes:
        path: the file.
        recover: go on after damage with the next whole record, instead of raising.
        damage: the places of damage, when `recover` is set.
        torn: the torn tail, if there is one.
        records: records read.
    """

    path: Path
    recover: bool = False
    damage: list[Damage] = field(default_factory=list)
    torn: Damage | None = None
    records: int = 0

    def __iter__(self) -> Iterator[RawRecord]:
        """The records in order.

        Raises:
            UsageError: the file cannot be read, or is no regular file.
            WrongKindError: it is no record stream.
            UnsupportedError: it has a version that is not known here.
            IntegrityError: it is damaged, and `recover` is not set.
        """
        try:
            with open_regular(self.path, buffering=_BLOCK) as file:
                size = os.fstat(file.fileno()).st_size
                at = self._file_header(file, size)
                yield from self._frames(file, at, size)
        except OSError as error:
            raise UsageError(
                f"cannot be read: {error.strerror}", code="file.unreadable", path=str(self.path)
            ) from error

    def _file_header(self, file: BinaryIO, size: int) -> int:
        head = file.read(FILE_HEADER_BYTES)
        if not head.startswith(MAGIC[: len(head)]) or not head:
            raise WrongKindError(
                "not a record stream",
                code="stream.magic",
                path=str(self.path),
                requirement="ST-STR-010",
                hint="a record stream is what a recorder or `semtrace convert` writes (.stsl); logs: semtrace import",
            )
        if len(head) < FILE_HEADER_BYTES:
            self.torn = Damage(0, size, "the file header is cut short", 0)
            return size
        version = parse_file_header(head)
        if version is None:
            self._damaged(Damage(0, FILE_HEADER_BYTES, "the file header is not the one that was written", 0))
        elif version[0] != VERSION[0]:
            raise UnsupportedError(
                f"a record stream of version {version[0]}.{version[1]}, this reads {VERSION[0]}.x",
                code="stream.version",
                path=str(self.path),
                requirement="ST-STR-011",
            )
        return FILE_HEADER_BYTES

    def _frames(self, file: BinaryIO, at: int, size: int) -> Iterator[RawRecord]:
        expected = 0
        while at < size:
            head = file.read(FRAME_HEADER_BYTES)
            if len(head) < FRAME_HEADER_BYTES and MARKER.startswith(head[: len(MARKER)]):
                self.torn = Damage(at, size, "the file ends in a record's header", 1)
                return
            parsed = parse_frame_header(head) if len(head) == FRAME_HEADER_BYTES else None
            if parsed is None:
                end = self._next_frame(file, at + 1, size)
                self._damaged(Damage(at, end, "no record begins where one must"))
                at = end
                file.seek(at)
                continue
            ordinal, length, payload_check = parsed
            end = at + FRAME_HEADER_BYTES + length
            if length > MAX_PAYLOAD:
                self._damaged(Damage(at, at + FRAME_HEADER_BYTES, f"a record of {length} bytes", 1))
                at = self._next_frame(file, at + FRAME_HEADER_BYTES, size)
                file.seek(at)
                continue
            if end > size:
                self.torn = Damage(at, size, f"the file ends in record {ordinal}", 1)
                return
            payload = file.read(length)
            if len(payload) < length:
                self.torn = Damage(
                    at, size, f"the file was cut short in record {ordinal} while it was read", 1
                )
                return
            if crc32(payload) != payload_check:
                self._damaged(Damage(at, end, f"the content of record {ordinal} is not what was written", 1))
            elif ordinal < expected:
                self._damaged(
                    Damage(
                        at,
                        end,
                        f"record {ordinal} stands after record {expected - 1}: repeated or out of place",
                        0,
                    )
                )
            else:
                if ordinal > expected:
                    self._missing(at, expected, ordinal)
                self.records += 1
                yield RawRecord(at, ordinal, payload)
            expected = max(expected, ordinal + 1)
            at = end

    def _missing(self, at: int, expected: int, ordinal: int) -> None:
        """Note records that the ordinals say are missing, where no damage accounts for them."""
        last = self.damage[-1] if self.damage else None
        if last is not None and last.end == at and last.records is None:
            self.damage[-1] = Damage(last.offset, last.end, last.message, ordinal - expected)
            return
        self._damaged(Damage(at, at, f"records {expected} to {ordinal - 1} are missing", ordinal - expected))

    def _damaged(self, damage: Damage) -> None:
        if not self.recover:
            raise IntegrityError(
                f"byte {damage.offset}: {damage.message}; the {self.records} records before it are whole",
                code="stream.damaged",
                path=str(self.path),
                requirement="ST-STR-031",
                hint="a capture: semtrace seal --recover takes what is whole. An exchange stream: convert it again",
            )
        self.damage.append(damage)

    def _next_frame(self, file: BinaryIO, at: int, size: int) -> int:
        """Where the next frame header is that is right, from `at` on; the end of the file if there is none."""
        while at < size:
            file.seek(at)
            block = file.read(_BLOCK)
            found = block.find(MARKER)
            while found >= 0 and found + FRAME_HEADER_BYTES <= len(block):
                if parse_frame_header(block[found : found + FRAME_HEADER_BYTES]) is not None:
                    return at + found
                found = block.find(MARKER, found + 1)
            if at + len(block) >= size or not block:
                return size
            at += found if found >= 0 else len(block) - len(MARKER) + 1
        return size
