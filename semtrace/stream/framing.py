"""The bytes of a record stream: a file header, then records, each behind a frame header (ST-STR-010 …).

    file    := magic:8 bytes  major:u16  minor:u16  check:u32            check = CRC-32 of the 12 bytes before it
    record  := marker:4 bytes  ordinal:u32  length:u32  payload check:u32  check:u32  payload: length bytes

All integers are little-endian; every check is the CRC-32 of zlib. The check of a frame header is that of the 16
bytes before it, so that a wrong length is known for one before it is followed.
"""

from __future__ import annotations

import struct
from zlib import crc32

MAGIC = b"\x89STSL\r\n\x1a"
VERSION = (1, 0)
FILE_HEADER_BYTES = 16
FRAME_HEADER_BYTES = 20
MARKER = b"\xfbSTR"
"""What a frame begins with; its first byte is in no UTF-8 text, so that no text holds it."""
MAX_PAYLOAD = 1 << 27
"""Largest payload of a record, in bytes."""
MAX_RECORDS = 1 << 32
"""Records in a stream, at most: ordinals have 32 bits."""

_FRAME = struct.Struct("<4sIIII")
_FILE = struct.Struct("<8sHHI")
_CHECK = struct.Struct("<I")


def file_header() -> bytes:
    """The first 16 bytes of a stream."""
    head = _FILE.pack(MAGIC, *VERSION, 0)[:12]
    return head + _CHECK.pack(crc32(head))


def parse_file_header(head: bytes) -> tuple[int, int] | None:
    """The version that a file header states; None if its check is wrong.

    Args:
        head: 16 bytes that begin with the magic.
    """
    _, major, minor, check = _FILE.unpack(head)
    return (major, minor) if crc32(head[:12]) == check else None


def frame(ordinal: int, payload: bytes) -> bytes:
    """A record: its frame header and its payload.

    Args:
        ordinal: its place among the records of the stream, from 0.
        payload: at most `MAX_PAYLOAD` bytes.
    """
    head = struct.pack("<4sIII", MARKER, ordinal, len(payload), crc32(payload))
    return b"".join((head, _CHECK.pack(crc32(head)), payload))


def parse_frame_header(head: bytes) -> tuple[int, int, int] | None:
    """`(ordinal, length, payload check)`; None if it is no frame header, or a damaged one.

    Args:
        head: 20 bytes.
    """
    marker, ordinal, length, payload_check, check = _FRAME.unpack(head)
    if marker != MARKER or crc32(head[:16]) != check:
        return None
    return ordinal, length, payload_check
