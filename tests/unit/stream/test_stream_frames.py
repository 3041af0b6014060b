"""The bytes of a stream: what a frame is, what a flipped bit does, what a cut does, how reading goes on after damage."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from zlib import crc32

import pytest

from semtrace.errors import FormatError, IntegrityError, UnsupportedError, UsageError
from semtrace.stream import wire
from semtrace.stream.framing import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    MARKER,
    MAX_PAYLOAD,
    file_header,
    frame,
    parse_frame_header,
)
from semtrace.stream.scan import Scan, is_stream
from semtrace.v1 import stream_pb2

SPEC = Path(__file__).parents[3] / "spec/stream.md"


def stream(path, payloads):
    """A stream of these payloads."""
    path.write_bytes(file_header() + b"".join(frame(at, each) for at, each in enumerate(payloads)))
    return path


def read(path, **options: bool):
    scan = Scan(path, **options)
    return [record.payload for record in scan], scan


PAYLOADS = [b"first", b"", b"third" * 9, b"\xfbSTR" * 8, b"last"]


def test_the_bytes_are_those_of_the_standard():
    """ST-STR-010, ST-STR-012."""
    assert (
        file_header().hex()
        == "895354534c0d0a1a01000000"
        + struct.pack("<I", crc32(bytes.fromhex("895354534c0d0a1a01000000"))).hex()
    )
    head = struct.pack("<4sIII", b"\xfbSTR", 7, 3, crc32(b"abc"))
    assert frame(7, b"abc") == head + struct.pack("<I", crc32(head)) + b"abc"
    assert crc32(b"123456789") == 0xCBF43926  # the check value that names this CRC
    for block in re.findall(r"```json example\n(.*?)\n```", SPEC.read_text("utf-8"), re.DOTALL):
        example = json.loads(block)
        assert file_header() + frame(0, bytes.fromhex(example["payload"])) == bytes.fromhex(example["file"])


def test_what_was_written_is_read(tmp_path):
    got, scan = read(stream(tmp_path / "s", PAYLOADS))
    assert got == PAYLOADS
    assert (scan.records, scan.torn, scan.damage) == (5, None, [])
    assert is_stream(tmp_path / "s")
    assert not is_stream(tmp_path / "none")


def test_every_flipped_bit_is_found_and_the_rest_recovered(tmp_path):
    whole = stream(tmp_path / "whole", PAYLOADS).read_bytes()
    path = tmp_path / "flipped"
    for bit in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises((IntegrityError, FormatError, UnsupportedError)) as caught:
            list(Scan(path))
        assert str(path) in str(caught.value)
        if bit // 8 < 8:
            continue  # the magic: nothing says that it is a stream
        got, scan = read(path, recover=True)
        assert len(scan.damage) == 1, bit
        damage = scan.damage[0]
        assert damage.offset <= bit // 8 < damage.end, "the place of the flip is named"
        lost = [payload for payload in PAYLOADS if payload not in got]
        assert len(lost) == (0 if bit // 8 < FILE_HEADER_BYTES else 1)
        assert got == [payload for payload in PAYLOADS if payload not in lost]
        if damage.records is not None:
            assert damage.records == len(lost)
        assert scan.torn is None


def test_every_cut_is_a_torn_tail_or_the_end_of_a_record(tmp_path):
    """ST-STR-032, ST-STR-034."""
    whole = stream(tmp_path / "whole", PAYLOADS).read_bytes()
    ends = [FILE_HEADER_BYTES]
    for payload in PAYLOADS:
        ends.append(ends[-1] + FRAME_HEADER_BYTES + len(payload))
    path = tmp_path / "cut"
    for size in range(1, len(whole)):
        path.write_bytes(whole[:size])
        got, scan = read(path)
        held = sum(end <= size for end in ends[1:])
        assert got == PAYLOADS[:held]
        assert (scan.torn is None) == (size in ends)
        if scan.torn is not None:
            assert scan.torn.offset == max([end for end in ends if end <= size], default=0)


def test_records_that_are_missing_repeated_or_out_of_place_are_found(tmp_path):
    """ST-STR-016."""
    parts = [frame(at, payload) for at, payload in enumerate(PAYLOADS)]
    path = tmp_path / "s"
    for order, lost in (
        ([0, 2, 3, 4], 1),
        ([0, 4], 3),
        ([0, 1, 1, 2, 3, 4], 0),
        ([0, 2, 1, 3, 4], 1),
        ([1, 2, 3, 4], 1),
    ):
        path.write_bytes(file_header() + b"".join(parts[at] for at in order))
        with pytest.raises(IntegrityError, match="record"):
            list(Scan(path))
        got, scan = read(path, recover=True)
        assert scan.damage[0].records == lost or order == [0, 2, 1, 3, 4]
        assert len(got) == len(PAYLOADS) - lost


def test_a_stretch_of_other_bytes_costs_only_what_it_covers(tmp_path):
    """ST-STR-033."""
    whole = bytearray(stream(tmp_path / "s", [b"x" * 50] * 100).read_bytes())
    whole[700:900] = bytes(200)
    (tmp_path / "s").write_bytes(whole)
    got, scan = read(tmp_path / "s", recover=True)
    covered = {(at - FILE_HEADER_BYTES) // 70 for at in range(700, 900)}
    assert len(got) == 100 - len(covered)
    assert sum(damage.records or 0 for damage in scan.damage) == len(covered)


def test_zeros_at_the_end_are_damage_not_a_torn_tail(tmp_path):
    path = stream(tmp_path / "s", PAYLOADS)
    path.write_bytes(path.read_bytes() + bytes(100))
    with pytest.raises(IntegrityError, match="the 5 records before it are whole"):
        list(Scan(path))


def test_a_length_in_the_file_decides_over_no_memory(tmp_path):
    path = stream(tmp_path / "s", [b"a"])
    head = struct.pack("<4sIII", MARKER, 1, MAX_PAYLOAD + 1, 0)
    path.write_bytes(path.read_bytes() + head + struct.pack("<I", crc32(head)) + b"tail")
    with pytest.raises(IntegrityError, match=f"a record of {MAX_PAYLOAD + 1} bytes"):
        list(Scan(path))
    head = struct.pack("<4sIII", MARKER, 1, MAX_PAYLOAD, 0)
    path = stream(tmp_path / "s", [b"a"])
    path.write_bytes(path.read_bytes() + head + struct.pack("<I", crc32(head)) + b"tail")
    got, scan = read(path)
    assert got == [b"a"]
    assert scan.torn is not None


def test_headers_that_claim_much_cost_no_more_than_their_bytes(tmp_path):
    """Frame headers that are right, overlap, and claim all that follows: each byte is read once."""
    path = tmp_path / "s"
    count = 3000
    parts = [file_header()]
    for at in range(count):
        head = struct.pack("<4sIII", MARKER, at, (count - at - 1) * FRAME_HEADER_BYTES, 1)
        parts.append(head + struct.pack("<I", crc32(head)))
    path.write_bytes(b"".join(parts))
    got, scan = read(path, recover=True)
    assert got == []
    assert len(scan.damage) == 1
    assert scan.damage[0].end == path.stat().st_size


@pytest.mark.parametrize("content", [b"", b"\x89", b"PK\x03\x04", b"hello, this is text and no stream"])
def test_what_is_no_stream_is_refused(tmp_path, content):
    path = tmp_path / "other"
    path.write_bytes(content)
    if content == b"\x89":
        _, scan = read(path)
        assert scan.torn is not None
        return
    with pytest.raises(FormatError, match="not a record stream"):
        list(Scan(path))


def test_other_versions_and_missing_files_are_refused(tmp_path):
    head = struct.pack("<8sHH", b"\x89STSL\r\n\x1a", 2, 0)
    (tmp_path / "s").write_bytes(head + struct.pack("<I", crc32(head)))
    with pytest.raises(UnsupportedError, match=r"version 2\.0"):
        list(Scan(tmp_path / "s"))
    with pytest.raises(UsageError):
        list(Scan(tmp_path / "none"))
    with pytest.raises(UsageError):
        list(Scan(tmp_path))


def test_a_frame_header_is_known_by_its_marker_and_check():
    whole = frame(3, b"abc")[:FRAME_HEADER_BYTES]
    assert parse_frame_header(whole) == (3, 3, crc32(b"abc"))
    other = b"\xfcSTR" + whole[4:16]
    assert parse_frame_header(other + struct.pack("<I", crc32(other))) is None


def test_records_spelled_by_hand_are_those_of_the_generated_code():
    run = bytes(range(16))
    head = stream_pb2.StreamHead(
        form=1, run=run, producer="p", producer_version="v", process=300, created_unix_ns=10**18
    )
    assert wire.head_record(1, run, "p", "v", 300, 10**18) == stream_pb2.Record(head=head).SerializeToString()
    bare = stream_pb2.Record(head=stream_pb2.StreamHead(form=2, producer="p"))
    assert wire.head_record(2, b"", "p", "", 0, 0) == bare.SerializeToString()
    assert wire.end_record(0) == stream_pb2.Record(end=stream_pb2.StreamEnd()).SerializeToString()
    assert (
        wire.end_record(128) == stream_pb2.Record(end=stream_pb2.StreamEnd(records=128)).SerializeToString()
    )
    gap = stream_pb2.Gap(records=2, reason="größer")
    assert wire.gap_record(2, "größer") == stream_pb2.Record(gap=gap).SerializeToString()
    for key, data in (("", b""), ("k", b"x" * 300)):
        source = stream_pb2.SourceRecord(adapter="a", name="n", key=key, data=data)
        assert wire.source_record("a", "n", key, data) == stream_pb2.Record(source=source).SerializeToString()
    numbers = {field.name: field.number for field in stream_pb2.Record.DESCRIPTOR.fields}
    named = {
        "head": wire.HEAD, "end": wire.END, "gap": wire.GAP, "source": wire.SOURCE, "facts": wire.FACTS,
        "content": wire.CONTENT, "captured_artifact": wire.CAPTURED_ARTIFACT, "execution": wire.EXECUTION,
    }  # fmt: skip
    assert {name: numbers[name] for name in named} == named
    assert (wire.CAPTURE, wire.EXCHANGE) == (stream_pb2.STREAM_FORM_CAPTURE, stream_pb2.STREAM_FORM_EXCHANGE)
