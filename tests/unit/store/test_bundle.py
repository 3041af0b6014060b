"""Bundles: what is written is read, whatever the form; what is withheld never gets in; what does not fit is named."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest

from semtrace.build import TraceBuilder
from semtrace.errors import FormatError, IntegrityError, SemtraceError, UnsupportedError, UsageError
from semtrace.records.chat import rebuild_request
from semtrace.records.columns import Columns
from semtrace.records.document import canonical_json
from semtrace.records.enums import Availability, ContentLevel, OperationKind
from semtrace.records.execution import Backend, Execution, ExecutionHeader
from semtrace.records.trace import MemoryContent, Trace
from semtrace.store import packs
from semtrace.store.arrow import ArrowFile, arrow_bytes
from semtrace.store.bundle import BundleInfo, open_bundle, rewrite_bundle, write_bundle
from semtrace.store.container import MANIFEST, write_container
from semtrace.store.digests import (
    artifact_digest,
    detail_digest,
    execution_digest,
    show,
    trace_digest,
    work_digest,
)
from semtrace.store.manifest import Loss, Manifest, Producer, SourceFile
from semtrace.store.packs import PackContent, make_packs
from semtrace.testing import random_trace

PRIVATE = "the patient's name is in here"


def build():
    builder = TraceBuilder(origin_unix_ns=1_764_441_600_123_456_789)
    task = builder.task("t", input="question")
    history, base = [{"role": "system", "content": PRIVATE}], None
    for at in range(4):
        operation = builder.operation(
            task, OperationKind.LLM, f"op {at}", started_ns=at * 10, prompt_tokens=at
        )
        history = [*history, {"role": "user", "content": f"q{at}"}]
        builder.request(operation, history, base=base)
        builder.output(operation, f"a{at}")
        builder.observe(operation, submitted_ns=at * 10, finished_ns=at * 10 + 5)
        history = [*history, {"role": "assistant", "content": f"a{at}"}]
        base = operation
    return builder.build()


@pytest.fixture(scope="module")
def built():
    return build()


def assert_same(trace, other):
    for name, columns in trace.tables.items():
        assert other[name].data.equals(columns.data), name
    assert {digest: other.content.get(digest) for digest in other.content} == dict(trace.content)


@pytest.mark.parametrize("directory", [False, True])
def test_a_trace_and_its_native_run_come_back(tmp_path, built, directory):
    path = tmp_path / "x.semtrace"
    manifest = write_bundle(path, built.trace, {"native": built.execution}, directory=directory)
    bundle = open_bundle(path)
    assert_same(built.trace, bundle.trace)
    execution = bundle.execution()
    assert execution.header == built.execution.header
    assert execution.events.data.equals(built.execution.events.data)
    assert bundle.manifest.trace.work_digest == show(work_digest(built.trace)) == execution.header.work_digest
    assert bundle.manifest.trace.trace_digest == show(trace_digest(built.trace))
    assert bundle.manifest.executions["native"].execution_digest == show(execution_digest(execution))
    assert bundle.manifest.trace.content_level == "text"
    assert manifest.trace == bundle.manifest.trace
    assert rebuild_request(bundle.trace, 3) == rebuild_request(built.trace, 3)
    assert all(stored.rows for stored in bundle.manifest.trace.tables.values()), "empty tables are not stored"


def test_one_input_makes_one_file(tmp_path, built):
    for name in ("a", "b"):
        write_bundle(tmp_path / name, build().trace, {"native": built.execution})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    write_bundle(tmp_path / "folder", built.trace, {"native": built.execution}, directory=True)
    rewrite_bundle(open_bundle(tmp_path / "folder"), tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == (tmp_path / "a").read_bytes()
    rewrite_bundle(open_bundle(tmp_path / "a"), tmp_path / "d", directory=True)
    for path in (tmp_path / "folder").rglob("*"):
        if path.is_file():
            assert (tmp_path / "d" / path.relative_to(tmp_path / "folder")).read_bytes() == path.read_bytes()


def test_the_form_of_the_tables_in_memory_does_not_show(tmp_path, built):
    chunked = Trace.from_arrow(
        {
            name: pa.concat_tables([columns.data.slice(0, 1), columns.data.slice(1)])
            for name, columns in built.trace.tables.items()
        },
        built.trace.content,
    )
    write_bundle(tmp_path / "a", built.trace)
    write_bundle(tmp_path / "b", chunked)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_an_execution_without_a_trace(tmp_path, built):
    write_bundle(tmp_path / "x", executions={"run": built.execution})
    bundle = open_bundle(tmp_path / "x")
    assert bundle.execution("run").events.data.equals(built.execution.events.data)
    with pytest.raises(UsageError) as caught:
        _ = bundle.trace
    assert caught.value.code == "bundle.no_trace"


def test_executions_are_asked_for_by_name(tmp_path, built):
    write_bundle(tmp_path / "x", built.trace, {"b": built.execution, "a": built.execution})
    bundle = open_bundle(tmp_path / "x")
    assert bundle.execution("a").header == built.execution.header
    for name, hint in (("c", "it has: a, b"), (None, "it has: a, b")):
        with pytest.raises(UsageError) as caught:
            bundle.execution(name)
        assert hint in caught.value.hint
    write_bundle(tmp_path / "y", built.trace)
    with pytest.raises(UsageError, match="no execution") as caught:
        open_bundle(tmp_path / "y").execution()
    assert "semtrace replay" in caught.value.hint


@pytest.mark.parametrize("name", ["", "a/b", "../a", ".a", "a b", "é", "a" * 101])
def test_names_of_executions(tmp_path, built, name):
    with pytest.raises(UsageError, match="name of an execution"):
        write_bundle(tmp_path / "x", executions={name: built.execution})
    assert list(tmp_path.iterdir()) == []


def test_executions_carry_their_own_artifacts_and_details(tmp_path):
    ids = b"\1\0\0\0"
    header = ExecutionHeader(
        work_digest=show(bytes(32)),
        mode="token_locked",
        clock="virtual",
        measured_at="simulator",
        backend=Backend(name="x", settings={"deep": [{"a": None}]}),
        detail=["steps"],
        environment={"memory": 2.0**60},
        seeds={"a": 2**63 - 1},
    )
    steps = {
        name: pa.array([1], kind)
        for name, kind in [
            ("server", pa.uint32()),
            ("index", pa.uint32()),
            ("start_ns", pa.int64()),
            ("end_ns", pa.int64()),
            ("tokens", pa.int64()),
            ("requests", pa.uint32()),
            ("free_blocks", pa.uint32()),
        ]
    }
    execution = Execution.from_arrow(
        header, {"steps": pa.table(steps)}, MemoryContent({artifact_digest(ids): ids})
    )
    write_bundle(tmp_path / "x", executions={"run": execution})
    bundle = open_bundle(tmp_path / "x")
    again = bundle.execution()
    assert again.header == header
    assert again.content.get(artifact_digest(ids)) == ids
    assert again["steps"].rows == 1
    stored = bundle.manifest.executions["run"]
    assert stored.detail_digests == {"steps": show(detail_digest(execution, "steps"))}
    bad = Execution.from_arrow(header.model_copy(update={"detail": ["colours"]}), {})
    with pytest.raises(FormatError, match="colours"):
        write_bundle(tmp_path / "y", executions={"run": bad})


# -- content ----------------------------------------------------------------------------------------------------


def with_availability(trace, rule):
    artifacts = trace["artifacts"]
    columns = {name: artifacts.array(name).to_pylist() for name in artifacts.spec.by_name}
    columns["availability"] = [rule(trace.artifact(row)) for row in range(artifacts.rows)]
    return Trace({**trace.tables, "artifacts": Columns.of(artifacts.spec, columns)}, trace.content)


@pytest.mark.parametrize("directory", [False, True])
def test_withheld_content_never_gets_into_a_bundle_even_where_it_is_at_hand(tmp_path, built, directory):
    withheld = with_availability(
        built.trace,
        lambda content: Availability.WITHHELD if content == PRIVATE.encode() else Availability.EMBEDDED,
    )
    write_bundle(tmp_path / "x", withheld, directory=directory)
    again = open_bundle(tmp_path / "x").trace
    assert set(again.content) == set(built.trace.content) - {artifact_digest(PRIVATE.encode())}
    assert rebuild_request(again, 3) is None
    assert work_digest(again) == work_digest(built.trace), "and the work is still the same"


def test_a_trace_of_shapes_only(tmp_path, built):
    bare = with_availability(built.trace, lambda _content: Availability.EXTERNAL)
    write_bundle(tmp_path / "x", bare)
    bundle = open_bundle(tmp_path / "x")
    assert bundle.manifest.trace.packs == []
    assert list(bundle.trace.content) == []


def test_equal_content_of_two_media_types_is_stored_once(tmp_path):
    builder = TraceBuilder()
    task = builder.task("t")
    for at, media_type in enumerate(["text/plain", "text/markdown"]):
        operation = builder.operation(task, OperationKind.TOOL, "x", started_ns=at)
        builder.output(operation, "same", media_type)
    write_bundle(tmp_path / "x", builder.build().trace)
    bundle = open_bundle(tmp_path / "x")
    assert bundle.manifest.trace.packs[0].artifacts == 1
    assert [bundle.trace.artifact_text(row) for row in range(2)] == ["same", "same"]


@pytest.fixture
def contents():
    rng = random.Random(5)
    sizes = [0, 1, 5, 100, 300, 999, 1000, 1001, 2500, *(rng.randrange(700) for _ in range(40))]
    raw = {rng.randbytes(size) for size in sizes}
    return MemoryContent({artifact_digest(content): content for content in raw})


def test_several_packs_and_batches_give_any_artifact_at_random(tmp_path, contents, monkeypatch):
    monkeypatch.setattr(packs, "_BATCH_BYTES", 1000)
    monkeypatch.setattr(packs, "_PACK_BYTES", 4000)
    monkeypatch.setattr(packs, "_KEPT_BATCHES", 2)
    made = list(make_packs([(digest, "application/octet-stream") for digest in contents], contents))
    files = [(f"{at}.arrow", pa.py_buffer(raw)) for at, (_, raw) in enumerate(made)]
    assert len(files) > 3
    assert sum(count for count, _ in made) == len(contents)
    batches = [ArrowFile(buffer, name).batches for name, buffer in files]
    assert max(batches) > 2
    for name, buffer in files:
        for batch in range(ArrowFile(buffer, name).batches):
            column = ArrowFile(buffer, name).batch(batch).column(2)
            assert len(column) == 1 or sum(len(value.as_py()) for value in column) <= 1000
    stored = PackContent([(name, ArrowFile(buffer, name, pack=True)) for name, buffer in files])
    assert len(stored) == len(contents)
    assert list(stored) == list(contents), "in the order given"
    asked = list(contents) * 3
    random.Random(1).shuffle(asked)
    for digest in asked:
        assert stored.get(digest) == contents[digest]
    assert len(stored._kept) == 2
    assert stored.get(bytes(32)) is None


def test_artifacts_are_found_among_those_whose_digests_begin_alike(monkeypatch):
    digests = [first * 8 + last * 24 for first in (b"a", b"b") for last in (b"3", b"1", b"2")]
    content = MemoryContent({digest: digest[-1:] for digest in digests})
    ((_, raw),) = make_packs([(digest, "x") for digest in digests], content)
    stored = PackContent([("p", ArrowFile(pa.py_buffer(raw), "p", pack=True))])
    assert {digest: stored.get(digest) for digest in stored} == content
    for digest in (b"a" * 8 + b"4" * 24, b"a" * 32, bytes(32), b"\xff" * 32, b"", b"a" * 8):
        assert stored.get(digest) is None


def test_an_artifact_too_large_for_a_batch_is_stored_as_it_is_in_a_pack_of_its_own(monkeypatch):
    """A batch of a pack claims no more than 32 MiB, or twice what is stored of it (ST-BND-027)."""
    monkeypatch.setattr(packs, "_COMPRESSED_BYTES", 1000)
    content = MemoryContent({artifact_digest(raw): raw for raw in (b"a", b"b" * 2000, b"c", b"d" * 1000)})
    made = list(make_packs([(digest, "x") for digest in content], content))
    assert [count for count, _ in made] == [1, 1, 2]
    assert [raw.nbytes > 2000 for _, raw in made] == [False, True, False]
    stored = PackContent(
        [(str(at), ArrowFile(pa.py_buffer(raw), "p", pack=True)) for at, (_, raw) in enumerate(made)]
    )
    assert list(stored) == list(content)
    assert [stored.get(digest) for digest in content] == list(content.values())


def test_a_bundle_of_several_packs(tmp_path, contents, monkeypatch):
    monkeypatch.setattr(packs, "_BATCH_BYTES", 1000)
    monkeypatch.setattr(packs, "_PACK_BYTES", 4000)
    builder = TraceBuilder()
    task = builder.task("t")
    for at, content in enumerate(contents.values()):
        operation = builder.operation(task, OperationKind.TOOL, "x", started_ns=at)
        builder.output(operation, content, "application/octet-stream")
    trace = builder.build().trace
    write_bundle(tmp_path / "x", trace)
    bundle = open_bundle(tmp_path / "x")
    assert [pack.path for pack in bundle.manifest.trace.packs][:2] == [
        "artifacts/00000.arrow",
        "artifacts/00001.arrow",
    ]
    assert_same(trace, bundle.trace)


def test_one_artifact_is_read_without_the_others(monkeypatch):
    monkeypatch.setattr(packs, "_BATCH_BYTES", 10)
    content = MemoryContent({artifact_digest(raw): raw for raw in (b"a" * 9, b"b" * 9, b"c" * 9)})
    ((_, raw),) = make_packs([(digest, "x") for digest in content], content)
    read: list[int] = []
    real = ArrowFile.batch
    monkeypatch.setattr(ArrowFile, "batch", lambda self, index: read.append(index) or real(self, index))
    stored = PackContent([("p", ArrowFile(pa.py_buffer(raw), "p", pack=True))])
    assert stored.get(artifact_digest(b"b" * 9)) == b"b" * 9
    assert read == [1]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"digest": [bytes(32), bytes(32)], "content": [b"a", b"b"]}, "twice"),
        ({"digest": [bytes(32), None], "content": [b"a", b"b"]}, "without a digest"),
        ({"digest": [bytes(32), b"1" * 32], "content": [b"a", None]}, "without content"),
    ],
)
def test_packs_that_do_not_hold_one_content_per_digest(columns, says):
    arrays = [
        pa.array(columns["digest"], pa.binary(32)),
        pa.array(["x", "x"]),
        pa.array(columns["content"], pa.large_binary()),
    ]
    raw = arrow_bytes(pa.Table.from_arrays(arrays, schema=packs.PACK_SCHEMA))
    stored = PackContent([("p", ArrowFile(pa.py_buffer(raw), "p", pack=True))])
    with pytest.raises(IntegrityError, match=says):
        [stored.get(digest) for digest in (b"1" * 32, bytes(32))]


def test_a_table_is_no_pack(built):
    raw = arrow_bytes(built.trace.tasks.data)
    with pytest.raises(FormatError, match="not a pack"):
        PackContent([("p", ArrowFile(pa.py_buffer(raw), "p", pack=True))])


# -- the manifest -----------------------------------------------------------------------------------------------


def test_what_is_said_of_the_making_is_kept_when_a_bundle_is_written_again(tmp_path, built):
    info = BundleInfo(
        sources=[SourceFile(name="a.log", bytes=3, digest=show(bytes(32)), adapter="x", adapter_version="1")],
        loss=[Loss(code="tokens.unknown", effect="unknown", message="none", count=2, where=["a.log:3"])],
        lineage=[{"filtered": "x", "n": 2.0**70}],
        licence="CC0-1.0",
        notes="größer",
        optional_features=["colour"],
        tokenizers={"x": "blake3:" + "1" * 64},
        extra={"example.org/a": {"b": None}, "example.org/c": None},
    )
    write_bundle(tmp_path / "a", built.trace, info=info)
    read = open_bundle(tmp_path / "a")
    assert read.info == info
    write_bundle(tmp_path / "b", read.trace, info=read.info)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def stored_manifest(tmp_path, built):
    path = tmp_path / "folder"
    write_bundle(path, built.trace, {"native": built.execution}, directory=True)
    return path, json.loads((path / MANIFEST).read_bytes())


def put(path, values):
    values = {key: value for key, value in values.items() if key != "digest"}
    values["digest"] = show(artifact_digest(canonical_json(values)))
    (path / MANIFEST).write_bytes(canonical_json(values))


@pytest.mark.parametrize(
    ("change", "error", "requirement"),
    [
        ({"spec_version": "2.0"}, UnsupportedError, "ST-EVO-001"),
        ({"spec_version": 3}, FormatError, "ST-BND-010"),
        ({"required_features": ["teleport", "colour"]}, UnsupportedError, "ST-EVO-002"),
        ({"required_features": 5}, FormatError, "ST-BND-010"),
        ({"format": "zip"}, FormatError, "ST-BND-010"),
        ({"colour": 1}, FormatError, "ST-BND-010"),
        ({"trace": {"tables": {}}}, FormatError, "ST-BND-010"),
        ({"executions": []}, FormatError, "ST-BND-010"),
    ],
)
def test_manifests_that_are_refused(tmp_path, built, change, error, requirement):
    path, values = stored_manifest(tmp_path, built)
    put(path, values | change)
    with pytest.raises(error) as caught:
        open_bundle(path)
    assert caught.value.requirement == requirement
    if requirement == "ST-EVO-002":
        assert "colour, teleport" in caught.value.message


def test_optional_features_and_extensions_are_no_obstacle(tmp_path, built):
    path, values = stored_manifest(tmp_path, built)
    put(path, values | {"optional_features": ["future"], "example.org/x": 1})
    assert open_bundle(path).info.optional_features == ["future"]


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"", FormatError),
        (b"{", FormatError),
        (b"[]", FormatError),
        (b"\xff", FormatError),
        (b"{}", FormatError),
        (b"[" * 100_000, FormatError),
        (b'{"a":' * 100_000, FormatError),
    ],
)
def test_bytes_that_are_no_manifest(tmp_path, raw, error):
    write_container(tmp_path / "x", [(MANIFEST, raw)], directory=True, overwrite=False)
    with pytest.raises(error) as caught:
        open_bundle(tmp_path / "x")
    assert caught.value.requirement == "ST-BND-010"


def test_a_manifest_must_be_canonical_and_unaltered(tmp_path, built):
    path, values = stored_manifest(tmp_path, built)
    sealed = (path / MANIFEST).read_bytes()
    (path / MANIFEST).write_text(json.dumps(values))
    with pytest.raises(IntegrityError) as caught:
        open_bundle(path)
    assert caught.value.requirement == "ST-BND-010"
    for old, new in ((b"native", b"netive"), (b'"rows":1', b'"rows":2'), (b'"wall"', b'"virtual"')):
        assert old in sealed
        (path / MANIFEST).write_bytes(sealed.replace(old, new, 1))
        with pytest.raises(IntegrityError) as caught:
            open_bundle(path)
        assert caught.value.requirement == "ST-BND-011"
    (path / MANIFEST).write_bytes(sealed.replace(b'{"digest"', b'{"digest":"x","digest"', 1))
    with pytest.raises(IntegrityError):
        open_bundle(path)


def test_a_manifest_of_a_huge_size_is_refused(tmp_path, built, monkeypatch):
    path, _ = stored_manifest(tmp_path, built)
    monkeypatch.setattr("semtrace.store.bundle.DOCUMENT_LIMIT", 10)
    with pytest.raises(FormatError, match="larger than"):
        open_bundle(path)


def test_a_manifest_of_very_many_values_is_refused_before_they_are_made(tmp_path, built, monkeypatch):
    path, _ = stored_manifest(tmp_path, built)
    monkeypatch.setattr("semtrace.records.document.VALUE_LIMIT", 10)
    with pytest.raises(FormatError, match="more than") as caught:
        open_bundle(path)
    assert caught.value.requirement == "ST-DOC-005"


def test_members_and_manifest_must_agree(tmp_path, built):
    path, _ = stored_manifest(tmp_path, built)
    (path / "tables" / "extra.arrow").write_bytes(b"x")
    with pytest.raises(IntegrityError) as caught:
        open_bundle(path)
    assert caught.value.requirement == "ST-BND-013"
    (path / "tables" / "extra.arrow").unlink()
    (path / "tables" / "tasks.arrow").unlink()
    with pytest.raises(IntegrityError) as caught:
        _ = open_bundle(path).trace
    assert caught.value.requirement == "ST-BND-012"


def test_a_member_of_another_size_is_not_even_hashed(tmp_path, built, monkeypatch):
    path, _ = stored_manifest(tmp_path, built)
    with (path / "tables" / "tasks.arrow").open("ab") as member:
        member.write(b"x")
    bundle = open_bundle(path)
    monkeypatch.setattr("semtrace.store.bundle.blake3", lambda _raw: pytest.fail("was hashed"))
    with pytest.raises(IntegrityError) as caught:
        bundle.table(bundle.manifest.trace.tables["tasks"])
    assert caught.value.code == "bundle.size"


def test_a_table_that_the_standard_does_not_have(tmp_path, built):
    path, values = stored_manifest(tmp_path, built)
    values["trace"]["tables"]["colours"] = values["trace"]["tables"].pop("tasks")
    put(path, values)
    with pytest.raises(FormatError, match="colours") as caught:
        _ = open_bundle(path).trace
    assert caught.value.requirement == "ST-TAB-001"


def test_rows_that_the_manifest_does_not_count(tmp_path, built):
    path, values = stored_manifest(tmp_path, built)
    values["trace"]["tables"]["operations"]["rows"] += 1
    put(path, values)
    with pytest.raises(IntegrityError, match="4 rows, the manifest says 5"):
        _ = open_bundle(path).trace


@pytest.mark.parametrize("member", ["../x", "/etc/hostname", "tables/../../x"])
def test_a_manifest_that_names_files_elsewhere(tmp_path, built, member):
    (tmp_path / "x").write_text("secret")
    path, values = stored_manifest(tmp_path, built)
    (path / values["trace"]["tables"]["tasks"]["path"]).unlink()
    values["trace"]["tables"]["tasks"]["path"] = member
    put(path, values)
    with pytest.raises(FormatError) as caught:
        _ = open_bundle(path).trace
    assert caught.value.requirement == "ST-BND-003"


# -- traces that cannot be written ------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [[], [1, 1], [9], [0]])
def test_a_trace_needs_one_header(tmp_path, built, levels):
    spec = built.trace["trace"].spec
    trace = Trace(
        {**built.trace.tables, "trace": Columns.of(spec, {"content_level": levels})}, built.trace.content
    )
    with pytest.raises(FormatError) as caught:
        write_bundle(tmp_path / "x", trace)
    assert caught.value.code == "table.header"
    assert list(tmp_path.iterdir()) == []


def test_facts_without_canonical_form_leave_nothing(tmp_path, built):
    with pytest.raises(FormatError):
        write_bundle(tmp_path / "x", built.trace, info=BundleInfo(lineage=[{"n": 2**60}]))
    assert list(tmp_path.iterdir()) == []


def test_content_levels_are_named_as_in_the_standard():
    for level in ContentLevel:
        assert level.name.lower() in {"text", "token_ids", "block_hashes", "shape"}


def test_a_manifest_says_who_made_it():
    manifest = Manifest(format="semtrace", spec_version="1.0", producer=Producer(name="x", version="1"))
    raw = manifest.sealed()
    values = json.loads(raw)
    assert Manifest.unseal(raw, values, path="x").producer == manifest.producer


@pytest.mark.parametrize("name", ["[/x]", "../x", ".x", "", "a/b", "x\x1b[31m", "a" * 101])
def test_an_execution_of_a_name_that_is_none(tmp_path, built, name):
    path, values = stored_manifest(tmp_path, built)
    values["executions"] = {name: values["executions"]["native"]}
    put(path, values)
    with pytest.raises(FormatError) as caught:
        open_bundle(path)
    assert caught.value.requirement == "ST-BND-015"


def test_a_member_of_two_tables(tmp_path, built):
    """ST-BND-033: opening refuses it, before a member is read."""
    path, values = stored_manifest(tmp_path, built)
    values["executions"]["again"] = values["executions"]["native"]
    put(path, values)
    with pytest.raises(IntegrityError) as caught:
        open_bundle(path)
    assert caught.value.requirement == "ST-BND-014"


@pytest.mark.parametrize("key", ["format", "spec_version", "producer"])
def test_what_a_manifest_must_have(key):
    """ST-BND-010: nothing of it is taken for granted."""
    values = json.loads(
        Manifest(format="semtrace", spec_version="1.0", producer=Producer(name="x", version="1")).sealed()
    )
    del values[key]
    with pytest.raises(FormatError, match=f"{key}: is missing") as caught:
        Manifest.unseal(b"", values, path="x")
    assert caught.value.requirement == "ST-BND-010"


@pytest.mark.parametrize("digest", ["", "blake3:0", "blake3:" + "A" * 64, "blake3:" + "0" * 64 + "\n"])
def test_digests_are_written_in_one_way(digest):
    """ST-DIG-021, where nothing is compared with the digest too."""
    values = {"format": "semtrace", "spec_version": "1.0", "producer": {"name": "x", "version": "1"}}
    with pytest.raises(FormatError, match=r"tokenizers\.t: must be `blake3:`") as caught:
        Manifest.unseal(b"", {**values, "tokenizers": {"t": digest}}, path="x")
    assert caught.value.requirement == "ST-DIG-021"


def test_a_bundle_has_so_many_executions_at_most(tmp_path, monkeypatch):
    """ST-BND-030."""
    built = random_trace(1)
    executions = {f"run-{at}": built.execution for at in range(3)}
    write_bundle(tmp_path / "three", executions=executions)
    monkeypatch.setattr("semtrace.store.bundle.MOST_EXECUTIONS", 2)
    for tried in (
        lambda: open_bundle(tmp_path / "three"),
        lambda: write_bundle(tmp_path / "x", executions=executions),
    ):
        with pytest.raises(SemtraceError) as caught:
            tried()
        assert caught.value.requirement == "ST-BND-030"
    assert not (tmp_path / "x").exists()


def test_a_manifest_that_nobody_would_read_is_not_written(tmp_path, monkeypatch):
    """ST-BND-005."""
    monkeypatch.setattr("semtrace.store.bundle.DOCUMENT_LIMIT", 500)
    with pytest.raises(UsageError) as caught:
        write_bundle(tmp_path / "x", trace=random_trace(1).trace)
    assert caught.value.requirement == "ST-BND-005"
    assert not (tmp_path / "x").exists()
