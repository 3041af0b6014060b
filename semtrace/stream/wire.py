"""The few records that every recorder writes, encoded without the Protobuf library (proto/semtrace/v1/stream.proto).

A recorder runs inside of somebody's application, beside whatever Protobuf that application pins; what it has to
write is so little that it is spelled out here. A test compares it with the generated code.
"""

from __future__ import annotations

from typing import Final

CAPTURE: Final = 1
EXCHANGE: Final = 2

HEAD: Final = 16
END: Final = 17
GAP: Final = 18
SOURCE: Final = 19
FACTS: Final = 20
CONTENT: Final = 21
CAPTURED_ARTIFACT: Final = 22
EXECUTION: Final = 23

_BYTES: Final = 2  # wire type: a length and as many bytes


def varint(value: int) -> bytes:
    """An unsigned integer of up to 64 bits, seven bits a byte, least significant first."""
    if value < 0x80:
        return bytes((value,))
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def bytes_field(number: int, value: bytes) -> bytes:
    """A field of bytes, text or a message."""
    return varint(number << 3 | _BYTES) + varint(len(value)) + value


def _text(number: int, value: str) -> bytes:
    return bytes_field(number, value.encode("utf-8", "replace")) if value else b""


def _integer(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value) if value else b""


def head_record(
    form: int, run: bytes, producer: str, version: str, process: int, created_unix_ns: int
) -> bytes:
    """The first record: what the stream is and who writes it.

    Args:
        form: `CAPTURE` or `EXCHANGE`.
        run: 16 bytes that all streams of one run share; empty in the exchange form.
        producer: name of the program.
        version: its version.
        process: id of the process, 0 if it does not matter.
        created_unix_ns: Unix nanoseconds, 0 if it does not matter.
    """
    body = _integer(1, form) + (bytes_field(2, run) if run else b"")
    body += _text(3, producer) + _text(4, version) + _integer(5, process) + _integer(6, created_unix_ns)
    return bytes_field(HEAD, body)


def end_record(records: int) -> bytes:
    """The last record: how many records are before it."""
    return bytes_field(END, _integer(1, records))


def gap_record(records: int, reason: str) -> bytes:
    """Records that are missing here because they could not be written."""
    return bytes_field(GAP, _integer(1, records) + _text(2, reason))


def source_record(adapter: str, name: str, key: str, data: bytes) -> bytes:
    """A piece of what the recorded program itself gives out.

    Args:
        adapter: the adapter that reads it.
        name: the file that it would stand in as a line, for that adapter.
        key: a later piece with the same name and key replaces it; empty for none.
        data: the line, without a line end.
    """
    return bytes_field(
        SOURCE, _text(1, adapter) + _text(2, name) + _text(3, key) + (bytes_field(4, data) if data else b"")
    )
