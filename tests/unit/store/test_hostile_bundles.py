"""Bundles from strangers: damaged, lying or made to harm. Each ends in one of our errors, in bounded memory."""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from semtrace.build import TraceBuilder
from semtrace.check import check_bundle
from semtrace.errors import FormatError, IntegrityError, SemtraceError
from semtrace.records.document import canonical_json
from semtrace.records.enums import OperationKind
from semtrace.store import arrow
from semtrace.store.arrow import MAGIC, ArrowFile, Believed, allowance, arrow_bytes
from semtrace.store.bundle import open_bundle, write_bundle
from semtrace.store.container import MANIFEST
from semtrace.store.digests import artifact_digest, show
from semtrace.store.packs import PACK_SCHEMA
from semtrace_conformance.making.draft import Encoding
from semtrace_conformance.making.reader_arrow import File


def write(path, *, directory=False):
    builder = TraceBuilder(origin_unix_ns=5)
    task = builder.task("t", input="question")
    base = None
    for at in range(5):
        operation = builder.operation(task, OperationKind.LLM, f"op {at}", started_ns=at)
        builder.request(operation, [{"role": "user", "content": "x" * 300}], base=base)
        builder.output(operation, f"a{at}")
        builder.observe(operation, submitted_ns=at, finished_ns=at)
        base = operation
    built = builder.build()
    write_bundle(path, built.trace, {"native": built.execution}, directory=directory)
    return path


def read_all(path):
    """Everything that is in a bundle."""
    bundle = open_bundle(path)
    found = [bundle.trace, bundle.execution("native")]
    for part in found:
        assert all(part.content.get(digest) is not None for digest in part.content)
    return {name: columns.data for part in found for name, columns in part.tables.items()}


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return write(tmp_path_factory.mktemp("raw") / "x").read_bytes()


# -- damage -----------------------------------------------------------------------------------------------------


def test_no_cut_goes_unnoticed(tmp_path, raw):
    path = tmp_path / "x"
    for length in [*range(0, len(raw), 97), len(raw) - 1]:
        path.write_bytes(raw[:length])
        with pytest.raises(SemtraceError):
            read_all(path)


def is_refused(path):
    """Whether a bundle is not opened, or something is found in it."""
    try:
        return bool(check_bundle(open_bundle(path)))
    except SemtraceError:
        return True


def test_any_flipped_bit_of_a_file_is_found(tmp_path, raw):
    """Members lie under digests, what is around them is as the standard has it, to the bit (ST-BND-016); a full check sees all."""
    path = tmp_path / "x"
    rng = random.Random(3)
    central = raw.index(b"PK\x01\x02")
    headers = [*range(30), *range(central, central + 46), *range(len(raw) - 22, len(raw))]
    bits = [8 * at + rng.randrange(8) for at in headers] + rng.sample(range(8 * len(raw)), 150)
    for bit in bits:
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        assert is_refused(path), f"bit {bit} of {8 * len(raw)}"


def test_any_flipped_bit_of_a_directory_is_found(tmp_path):
    path = write(tmp_path / "x", directory=True)
    rng = random.Random(4)
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        whole = file.read_bytes()
        for bit in [0, 8 * len(whole) - 1, *(rng.randrange(8 * len(whole)) for _ in range(6))]:
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            file.write_bytes(damaged)
            assert is_refused(path), f"bit {bit} of {file.name}"
        file.write_bytes(whole)
    assert check_bundle(open_bundle(path)) == []


def test_every_byte_of_every_member_is_under_a_digest(tmp_path, raw):
    path = tmp_path / "x"
    path.write_bytes(raw)
    with zipfile.ZipFile(path) as archive:
        infos = archive.infolist()
    for info in infos:
        start = info.header_offset + 30 + len(info.filename)
        for at in {start, start + info.file_size // 2, start + info.file_size - 1}:
            damaged = bytearray(raw)
            damaged[at] ^= 0x10
            path.write_bytes(damaged)
            with pytest.raises(SemtraceError):
                read_all(path)


# -- lies that the digests confirm ------------------------------------------------------------------------------


def forge(tmp_path, member, content, rows=None):
    """A bundle with other bytes in one member, all digests made to fit, as a stranger can."""
    tmp_path.mkdir(exist_ok=True)
    path = write(tmp_path / "forged", directory=True)
    values = json.loads((path / MANIFEST).read_bytes())
    (path / member).write_bytes(content)
    tables, packs = values["trace"]["tables"], values["trace"]["packs"]
    for file in [*tables.values(), *packs]:
        if file["path"] == member:
            file |= {"bytes": len(content), "digest": show(artifact_digest(bytes(content)))}
            if rows is not None:
                file["rows"] = rows
    del values["digest"]
    values["digest"] = show(artifact_digest(canonical_json(values)))
    (path / MANIFEST).write_bytes(canonical_json(values))
    return path


def members(tmp_path):
    path = write(tmp_path / "whole", directory=True)
    return {name: (path / name).read_bytes() for name in ("tables/operations.arrow", "artifacts/00000.arrow")}


@pytest.mark.parametrize("member", ["tables/operations.arrow", "artifacts/00000.arrow"])
def test_arrow_files_with_any_byte_wrong(tmp_path, member):
    content = members(tmp_path)[member]
    rng = random.Random(11)
    for trial in range(80):
        damaged = bytearray(content)
        for _ in range(rng.choice([1, 1, 4])):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        if trial % 8 == 0:
            del damaged[rng.randrange(len(damaged)) :]
        path = forge(tmp_path / str(trial), member, bytes(damaged))
        with suppress(
            SemtraceError
        ):  # some damage does not show: the digests say that this is what was meant
            read_all(path)


def test_column_names_that_are_no_text():
    raw = arrow_bytes(pa.table({"colour": pa.array([1])})).tobytes()
    with pytest.raises(IntegrityError):
        ArrowFile(pa.py_buffer(raw.replace(b"colour", b"colo\xffr")), "x")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x",
        MAGIC,
        MAGIC + b"\xff\xff\xff\xff\xff\xff\xff\x7f",
        MAGIC + bytes(64),
        b"PK\x03\x04" + bytes(99),
    ],
)
@pytest.mark.parametrize("member", ["tables/operations.arrow", "artifacts/00000.arrow"])
def test_bytes_that_are_no_arrow_file(tmp_path, content, member):
    with pytest.raises(IntegrityError) as caught:
        read_all(forge(tmp_path, member, content))
    assert caught.value.requirement == "ST-BND-020"


def test_nulls_in_columns_that_say_they_have_none(tmp_path):
    path = write(tmp_path / "x", directory=True)
    table = open_bundle(path).trace.operations.data
    kinds = pa.array([1, None, 1, 1, 1], pa.uint8())
    arrays = [kinds if name == "kind" else table.column(name) for name in table.schema.names]
    hostile = arrow_bytes(pa.Table.from_arrays(arrays, schema=table.schema))
    with pytest.raises(FormatError) as caught:
        read_all(forge(tmp_path, "tables/operations.arrow", hostile))
    assert caught.value.path == "operations.kind"


def strange_types():
    yield pa.array([[1]]), "list<item: int64>"
    yield pa.array(["a"]).dictionary_encode(), None
    yield pa.array([{"a": 1}]), "struct"
    yield pa.array([1.5]), "double"
    yield pa.array([None]), "null"
    yield pa.array(["a"], pa.string_view()), "string_view"
    yield pa.array([b"a" * 31], pa.binary(31)), "fixed_size_binary[31]"


@pytest.mark.parametrize(
    "array", [array for array, _ in strange_types()], ids=lambda array: str(array.type)[:20]
)
def test_types_that_no_table_has_are_refused_before_they_are_read(array, monkeypatch):
    monkeypatch.setattr(pa.ipc, "read_record_batch", lambda *_: pytest.fail("was read"))
    with pytest.raises(FormatError):
        ArrowFile(pa.py_buffer(arrow_bytes(pa.table({"a": array}))), "x")


@pytest.mark.parametrize("offsets", [[0, 8], [0, 99], [8, 0], [-1, 8]])
def test_text_that_is_not_utf8_and_offsets_that_lead_outside(offsets):
    table = pa.table({"a": ["untouched"[:8]]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    raw = bytearray(sink.getvalue().to_pybytes())
    text = raw.index(b"untouche")
    at = raw.rindex(np.array([0, 8], np.int32).tobytes(), 0, text)
    raw[at : at + 8] = np.array(offsets, np.int32).tobytes()
    raw[text : text + 8] = b"unt\xffuche"
    with pytest.raises(IntegrityError):
        ArrowFile(pa.py_buffer(bytes(raw)), "x").table()


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
@pytest.mark.parametrize("nulls", [0, 3, -1])
def test_null_counts_are_those_of_the_bitmaps(codec, nulls):
    values = pa.array([None if at % 400 == 7 else at for at in range(2000)], pa.int64())
    table = pa.table({"a": pa.array([str(at) for at in range(2000)]), "b": values})
    file = File.of(table, Encoding(codec))
    assert ArrowFile(pa.py_buffer(bytes(file.raw)), "x").table() == table
    file.put("<q", file.node(1) + 8, nulls)
    with pytest.raises(IntegrityError, match="null"):
        ArrowFile(pa.py_buffer(bytes(file.raw)), "x").table()


def test_a_bitmap_that_is_all_ones_needs_not_be_left_out():
    bits = pa.py_buffer(b"\xff\xff")
    whole = pa.Array.from_buffers(pa.int64(), 10, [bits, pa.py_buffer(bytes(80))], null_count=1)
    file = File.of(pa.table({"a": whole}))
    file.put("<q", file.node(0) + 8, 0)
    assert ArrowFile(pa.py_buffer(bytes(file.raw)), "x").table().column("a").to_pylist() == [0] * 10


# -- footers, which other readers go by ---------------------------------------------------------------------------

BLOCK = 24  # bytes in which a footer says where a record batch is


def three_batches():
    """An Arrow file, and where in it the footer's blocks begin."""
    sink = pa.BufferOutputStream()
    table = pa.table({"a": pa.array(range(6), pa.uint32())})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    raw = bytearray(sink.getvalue().to_pybytes())
    first = 8 + pa.ipc.open_stream(pa.py_buffer(raw[8:])).schema.serialize().size
    return raw, raw.rindex(first.to_bytes(8, "little"))


def test_a_footer_in_another_order():
    raw, blocks = three_batches()
    assert ArrowFile(pa.py_buffer(bytes(raw)), "x").table().column("a").to_pylist() == list(range(6))
    first, second = raw[blocks : blocks + BLOCK], raw[blocks + BLOCK : blocks + 2 * BLOCK]
    raw[blocks : blocks + 2 * BLOCK] = second + first
    assert pa.ipc.open_file(pa.py_buffer(bytes(raw))).read_all().column("a").to_pylist() == [2, 3, 0, 1, 4, 5]
    with pytest.raises(IntegrityError, match="another order"):
        ArrowFile(pa.py_buffer(bytes(raw)), "x")


def test_a_footer_that_leaves_a_batch_out():
    raw, blocks = three_batches()
    raw[blocks - 4 : blocks] = (2).to_bytes(4, "little")
    assert pa.ipc.open_file(pa.py_buffer(bytes(raw))).num_record_batches == 2
    with pytest.raises(IntegrityError, match="other record batches"):
        ArrowFile(pa.py_buffer(bytes(raw)), "x")


@pytest.mark.parametrize("end", [-1, -10, -6])
def test_a_file_without_its_end(end):
    raw, _ = three_batches()
    with pytest.raises(IntegrityError, match="no footer"):
        ArrowFile(pa.py_buffer(bytes(raw[:end])), "x")


@pytest.mark.parametrize("length", [-1, 0, 1, 7, 1 << 30])
def test_a_footer_of_a_wrong_length(length):
    raw, _ = three_batches()
    raw[-10:-6] = length.to_bytes(4, "little", signed=True)
    with pytest.raises(IntegrityError):
        ArrowFile(pa.py_buffer(bytes(raw)), "x")


# -- bombs ------------------------------------------------------------------------------------------------------


def zeros(rows):
    return pa.table({"a": pa.array(np.zeros(rows, np.int64))})


def test_the_claimed_sizes_are_added_up_without_decompressing(monkeypatch):
    """Of rows of 8 bytes, each counts for 64."""
    raw = _stored_with(zeros(1_000_000), pa.Codec("zstd"))
    assert raw.size < 3_000
    monkeypatch.setattr(arrow, "TABLE_FLOOR", 64_000_000)
    assert ArrowFile(raw, "x").table().num_rows == 1_000_000
    monkeypatch.setattr(arrow, "TABLE_FLOOR", 63_999_999)
    monkeypatch.setattr(pa.ipc, "read_record_batch", lambda *_: pytest.fail("was decompressed"))
    with pytest.raises(FormatError) as caught:
        ArrowFile(raw, "x")
    assert caught.value.requirement == "ST-BND-025"
    assert ArrowFile(raw, "x", allowed=64_000_000).claimed == 64_000_000
    with pytest.raises(FormatError):
        ArrowFile(raw, "x", allowed=63_999_999)


def test_what_is_well_filled_may_be_large(monkeypatch):
    rng = np.random.default_rng(1)
    table = pa.table({"a": pa.array(rng.integers(0, 2**62, 10_000))})
    monkeypatch.setattr(arrow, "TABLE_FLOOR", 10)
    assert arrow.RAW_RATIO * len(arrow_bytes(table)) > 64 * table.num_rows
    assert ArrowFile(pa.py_buffer(arrow_bytes(table)), "x").table().equals(table)


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_files_of_other_writers_are_read(codec):
    table = pa.table(
        {
            "a": pa.array([1, None, 3], pa.uint32()),
            "b": ["x", None, ""],
            "c": pa.array([b"", b"1", None], pa.large_binary()),
        }
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table, max_chunksize=2)
        writer.write_batch(pa.RecordBatch.from_pylist([], table.schema))
    file = ArrowFile(sink.getvalue(), "x")
    assert file.batches == 3
    assert file.table().equals(table)
    assert [len(column) for column in file.first_column()] == [2, 1, 0]


def test_a_buffer_that_claims_to_be_huge(tmp_path):
    """A claim of 2^40 bytes in a file of a few hundred is refused by arithmetic, not by trying."""
    raw = bytearray(arrow_bytes(pa.table({"a": pa.array([7] * 1000, pa.int64())})))
    at = raw.index((8000).to_bytes(8, "little"))
    raw[at : at + 8] = (1 << 40).to_bytes(8, "little")
    with pytest.raises(FormatError, match=str(1 << 40)):
        ArrowFile(pa.py_buffer(bytes(raw)), "x")
    raw[at : at + 8] = (-2).to_bytes(8, "little", signed=True)
    with pytest.raises(IntegrityError):
        ArrowFile(pa.py_buffer(bytes(raw)), "x")
    raw[at : at + 8] = (8001).to_bytes(8, "little")
    with pytest.raises(IntegrityError):
        ArrowFile(pa.py_buffer(bytes(raw)), "x").table()


READ = """
import resource, sys
from semtrace.errors import SemtraceError
from semtrace.store.bundle import open_bundle
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
try:
    open_bundle(sys.argv[1]).trace
except SemtraceError as error:
    print(error.code)
"""


def test_a_bomb_is_refused_in_little_memory(tmp_path):
    """A record batch of 32 MiB of zeros, a few KiB in the file, a hundred times."""
    schema = pa.schema([pa.field("a", pa.int64())])
    batch = pa.record_batch([pa.array(np.zeros(1 << 22, np.int64))], schema=schema)
    end = 8  # bytes that end a stream
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema):
        pass
    head = sink.getvalue().to_pybytes()[:-end]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    one = sink.getvalue().to_pybytes()[len(head) : -end]
    assert len(one) < 10_000
    path = forge(tmp_path, "tables/operations.arrow", MAGIC + head + one * 100, 100 << 22)
    done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "bundle.bomb"
    used, limit = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, 1 << 20
    assert used < limit, "KiB"


def test_little_is_believed_of_a_table_and_more_of_a_pack():
    count = (64 << 20) // 64 + 1
    small = _stored_with(zeros(count), pa.Codec("zstd"))
    with pytest.raises(FormatError) as caught:
        ArrowFile(small, "x")
    assert caught.value.requirement == "ST-BND-025"
    table = pa.table({"content": pa.array([bytes(20 << 20)] * 13, pa.large_binary())})
    packs = [_stored_with(table.slice(0, count), pa.Codec("zstd"), rows=1) for count in (12, 13)]
    assert ArrowFile(packs[0], "x", pack=True).batches == 12
    with pytest.raises(FormatError) as caught:
        ArrowFile(packs[1], "x", pack=True)
    assert caught.value.requirement == "ST-BND-026"


@pytest.mark.parametrize(("codec", "refused"), [("zstd", True), (None, False)])
def test_a_batch_of_a_pack_is_small_or_stored_as_it_is(codec, refused):
    large = pa.table({"content": pa.array([bytes(33 << 20)], pa.large_binary())})
    stored = _stored_with(large, codec and pa.Codec(codec))
    if not refused:
        assert ArrowFile(stored, "x", pack=True).batches == 1
        return
    with pytest.raises(FormatError) as caught:
        ArrowFile(stored, "x", pack=True)
    assert caught.value.requirement == "ST-BND-027"


def test_what_no_reader_would_believe_is_written_without_compression():
    table = zeros((64 << 20) // 64 + 1)
    stored = pa.py_buffer(arrow_bytes(table))
    assert stored.size > table.nbytes
    assert ArrowFile(stored, "x").table().num_rows == table.num_rows


@pytest.mark.parametrize("claims", [[(1, 60)] * 9, [(1, 60), (4, 200), (4, 400), (100, 5000), (100, 10_000)]])
def test_what_a_writer_believes_is_allowed_in_sum(claims):
    believed = Believed(100)
    stored = claimed = 0
    for size, raw in claims:
        size = size if believed.believes(size, raw) else raw  # noqa: PLW2901  # as it is
        stored, claimed = stored + size, claimed + raw
        assert claimed <= allowance(stored, 100)


def with_tables(path, rows):
    """A bundle with so many equal rows in each of some tables, all digests of bytes made to fit."""
    write(path, directory=True)
    values = json.loads((path / MANIFEST).read_bytes())
    for name, stored in values["trace"]["tables"].items():
        if name in {"operations", "segments", "artifacts"}:
            table = pa.ipc.open_file(path / stored["path"]).read_all()
            raw = _stored_with(table.take(pa.array(np.zeros(rows, np.int64))), pa.Codec("zstd"))
            (path / stored["path"]).write_bytes(raw)
            digest = show(artifact_digest(raw.to_pybytes()))
            stored |= {"rows": rows, "bytes": raw.size, "digest": digest}
    del values["digest"]
    values["digest"] = show(artifact_digest(canonical_json(values)))
    (path / MANIFEST).write_bytes(canonical_json(values))
    return path


def test_tables_are_allowed_in_sum(tmp_path, monkeypatch):
    """Each of three tables is small enough by itself (ST-BND-025)."""
    path = with_tables(tmp_path / "x", 4000)
    assert open_bundle(path).trace.segments.rows == 4000
    stored = sum(table.bytes for table in open_bundle(path).manifest.trace.tables.values())
    monkeypatch.setattr("semtrace.store.bundle.TABLE_FLOOR", 700_000)
    monkeypatch.setattr(arrow, "RAW_RATIO", 700_000 // stored)
    with pytest.raises(FormatError) as caught:
        _ = open_bundle(path).trace
    assert caught.value.requirement == "ST-BND-025"
    for name in ("operations", "segments", "artifacts"):
        bundle = open_bundle(path)
        table = bundle.manifest.trace.tables[name]
        assert bundle.table(table).num_rows == bundle.table(table).num_rows == 4000, "counted once"
    monkeypatch.setattr(arrow, "RAW_RATIO", 2_000_000 // stored)
    assert open_bundle(path).trace.segments.rows == 4000


def test_what_is_claimed_of_members_that_are_not_there_allows_nothing(tmp_path, monkeypatch):
    path = with_tables(tmp_path / "x", 4000)
    values = json.loads((path / MANIFEST).read_bytes())
    values["trace"]["packs"].append(
        {"path": "far", "bytes": 1 << 40, "digest": show(bytes(32)), "artifacts": 1}
    )
    values["executions"]["native"]["tables"]["events"]["bytes"] = 1 << 40
    del values["digest"]
    values["digest"] = show(artifact_digest(canonical_json(values)))
    (path / MANIFEST).write_bytes(canonical_json(values))
    monkeypatch.setattr("semtrace.store.bundle.TABLE_FLOOR", 700_000)
    monkeypatch.setattr(arrow, "RAW_RATIO", 1)
    with pytest.raises(FormatError) as caught:
        _ = open_bundle(path).trace
    assert caught.value.requirement == "ST-BND-025"


def growth_mib(use, path):
    """The most memory that a use takes over what the process has, in MiB."""
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_mib()
    use(path)
    return peak_mib() - before


def peak_mib():
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024


def with_pack(path, batches):
    """A bundle with one more pack, all digests of bytes made to fit."""
    write(path, directory=True)
    table = pa.table(
        [
            pa.array([artifact_digest(raw) for raw in batches], pa.binary(32)),
            pa.array(["text/plain"] * len(batches)),
            pa.array(batches, pa.large_binary()),
        ],
        schema=PACK_SCHEMA,
    )
    raw = _stored_with(table, pa.Codec("zstd"), rows=1)
    (path / "artifacts/more.arrow").write_bytes(raw)
    values = json.loads((path / MANIFEST).read_bytes())
    stored = {"path": "artifacts/more.arrow", "bytes": raw.size, "artifacts": len(batches)}
    values["trace"]["packs"].append(stored | {"digest": show(artifact_digest(raw.to_pybytes()))})
    del values["digest"]
    values["digest"] = show(artifact_digest(canonical_json(values)))
    (path / MANIFEST).write_bytes(canonical_json(values))
    return path


def test_packs_that_decompress_to_much_are_read_in_little_memory(tmp_path):
    """Of 240 MiB in some kilobytes no more is held than some record batches; 60 more are refused."""
    batches = [bytes([at]) * (30 << 20) for at in range(9)]
    path = with_pack(tmp_path / "x", batches[:8])
    assert growth_mib(lambda path: check_bundle(open_bundle(path)), path) < 128
    path = with_pack(tmp_path / "y", batches)
    assert {"ST-BND-026"} <= {finding.requirement for finding in check_bundle(open_bundle(path))}


def test_tables_of_equal_rows_are_checked_in_little_memory(tmp_path):
    path = with_tables(tmp_path / "x", 40_000)
    assert growth_mib(lambda path: check_bundle(open_bundle(path)), path) < 64


def _stored_with(table, codec, rows=None):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table, max_chunksize=rows)
    return sink.getvalue()
