"""The bytes of a ZIP bundle around its members, every one of them determined (ST-BND-006, ST-BND-009).

    (local header, content)*  central header*  [ZIP64 end record, its locator]  end record

Members are stored; the time is 1980-01-01 00:00:00; there are no comments, flags or extra fields, but for ZIP64's
where a size, a place or a count needs it. Field names and layouts are those of the ZIP format (APPNOTE 6.3).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

_VERSION: Final = 20
_VERSION_64: Final = 45
_UNIX: Final = 3 << 8
_DATE: Final = 0x0021
_MODE: Final = 0o100644 << 16
_MAX16: Final = 0xFFFF
_MAX32: Final = 0xFFFFFFFF
_END: Final = 22
_END_64: Final = 56
_LOCATOR: Final = 20
_CENTRAL: Final = 46
_LARGEST_ENTRY: Final = _CENTRAL + 255 + 28
"""Bytes that an entry of the directory can take: its header, a name (ST-BND-003), the extra field of ZIP64."""


@dataclass(frozen=True)
class Entry:
    """A member: its name, its size in bytes and the CRC-32 of its content."""

    name: str
    size: int
    crc: int


def local_header(entry: Entry) -> bytes:
    """What stands before a member's content."""
    name = entry.name.encode("ascii")
    large = entry.size >= _MAX32
    extra = struct.pack("<HHQQ", 1, 16, entry.size, entry.size) if large else b""
    size = _MAX32 if large else entry.size
    version = _VERSION_64 if large else _VERSION
    return (
        struct.pack(
            "<4s5H3L2H", b"PK\x03\x04", version, 0, 0, 0, _DATE, entry.crc, size, size, len(name), len(extra)
        )
        + name
        + extra
    )


def central_header(entry: Entry, offset: int) -> bytes:
    """A member's entry in the directory at the end; `offset` is where its local header begins."""
    name = entry.name.encode("ascii")
    wide: list[int] = []
    size, place = entry.size, offset
    if size >= _MAX32:
        wide += [size, size]
        size = _MAX32
    if place >= _MAX32:
        wide.append(place)
        place = _MAX32
    extra = struct.pack(f"<HH{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
    version = _VERSION_64 if wide else _VERSION
    return (
        struct.pack(
            "<4s6H3L5H2L", b"PK\x01\x02", _UNIX | version, version, 0, 0, 0, _DATE, entry.crc, size, size,
            len(name), len(extra), 0, 0, 0, _MODE, place,
        )
        + name
        + extra
    )  # fmt: skip


def end_records(count: int, size: int, offset: int) -> bytes:
    """What stands after the directory of `count` entries, which has `size` bytes from `offset` on."""
    wide = b""
    if count >= _MAX16 or size >= _MAX32 or offset >= _MAX32:
        wide = struct.pack(
            "<4sQ2H2L4Q",
            b"PK\x06\x06",
            44,
            _UNIX | _VERSION_64,
            _VERSION_64,
            0,
            0,
            count,
            count,
            size,
            offset,
        ) + struct.pack("<4sLQL", b"PK\x06\x07", 0, offset + size, 1)
    few = min(count, _MAX16)
    return wide + struct.pack(
        "<4s4H2LH", b"PK\x05\x06", 0, 0, few, few, min(size, _MAX32), min(offset, _MAX32), 0
    )


@dataclass(frozen=True)
class Layout:
    """Where everything of a ZIP bundle stands.

    Attributes:
        entries: the members, in order.
        offsets: where the local header of each begins.
        directory: the directory and what follows it.
        directory_offset: where the directory begins.
    """

    entries: tuple[Entry, ...]
    offsets: tuple[int, ...]
    directory: bytes
    directory_offset: int

    @classmethod
    def of(cls, entries: list[Entry]) -> Layout:
        """The layout of members in this order."""
        at = 0
        offsets = []
        for entry in entries:
            offsets.append(at)
            at += len(local_header(entry)) + entry.size
        central = b"".join(
            central_header(entry, offset) for entry, offset in zip(entries, offsets, strict=True)
        )
        return cls(tuple(entries), tuple(offsets), central + end_records(len(entries), len(central), at), at)

    @property
    def size(self) -> int:
        """Size of the whole file, in bytes."""
        return self.directory_offset + len(self.directory)


def too_many_entries(file: memoryview, most: int) -> bool:
    """Whether the directory of a ZIP file has more entries, or more bytes, than that of so many members can have.

    It takes no memory, unlike reading the directory, and looks where readers of ZIP files look: at the bytes before the
    last end record that there is. What is no ZIP file has no entries.

    Args:
        file: the whole file.
        most: members that there may be.
    """
    tail = bytes(file[max(0, len(file) - _END - _MAX16) :])
    place = len(tail) - _END if tail[-_END:].startswith(b"PK\x05\x06") else tail.rfind(b"PK\x05\x06")
    if place < 0 or place + _END > len(tail):
        return False
    end = len(file) - len(tail) + place
    size = int.from_bytes(tail[place + 12 : place + 16], "little")
    if end >= _LOCATOR and bytes(file[end - _LOCATOR : end - _LOCATOR + 4]) == b"PK\x06\x07":
        end -= _LOCATOR + _END_64
        if end >= 0 and bytes(file[end : end + 4]) == b"PK\x06\x06":
            size = int.from_bytes(file[end + 40 : end + 48], "little")
    size = min(size, max(end, 0))
    if size > most * _LARGEST_ENTRY:
        return True
    directory = file[end - size : end] if size else file[:0]
    at = entries = 0
    while at + _CENTRAL <= size and entries <= most:
        at += _CENTRAL + sum(struct.unpack_from("<3H", directory, at + 28))
        entries += 1
    return entries > most
