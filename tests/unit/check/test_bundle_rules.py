"""Bundles that are damaged or made by strangers: each a finding or an error of the family, and nothing else."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from blake3 import blake3

from semtrace.check import check_bundle
from semtrace.errors import FormatError, IntegrityError, SemtraceError, UnsupportedError
from semtrace.records.document import canonical_json
from semtrace.store.bundle import open_bundle, write_bundle
from semtrace.store.container import MANIFEST, write_container
from semtrace.store.digests import show
from unit.check.example import example, put

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from semtrace.check import Finding

SEGMENTS = "tables/segments.arrow"
PACK = "artifacts/00000.arrow"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "example"
    built = example()
    assert built.execution is not None
    write_bundle(path, built.trace, {"native": built.execution}, directory=True)
    return path


Members = dict[str, bytes]


def read(path: Path) -> Members:
    return {
        str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()
    }


def write(members: Members, path: Path) -> Path:
    for name, content in members.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def seal(members: Members, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the manifest as a writer would: canonical, with its digest."""
    values = json.loads(members[MANIFEST])
    change(values)
    values.pop("digest")
    values["digest"] = show(blake3(canonical_json(values)).digest())
    members[MANIFEST] = canonical_json(values)


def replace(members: Members, name: str, content: bytes, **values: object) -> None:
    """Gives a member other bytes, and the manifest their size and digest: what a hostile writer would do."""
    members[name] = content
    wanted = {"bytes": len(content), "digest": show(blake3(content).digest()), **values}

    def change(manifest: dict[str, Any]) -> None:
        parts = [manifest["trace"], *manifest["executions"].values()]
        for part in parts:
            for file in (*part["tables"].values(), *part["packs"]):
                if file["path"] == name:
                    file.update(wanted)

    seal(members, change)


def checked(members: Members, path: Path) -> list[Finding]:
    return check_bundle(open_bundle(write(members, path)))


def requirements(findings: list[Finding]) -> list[str]:
    return [finding.requirement for finding in findings]


def test_the_original_is_valid_as_directory_and_as_file(original: Path, tmp_path: Path) -> None:
    assert check_bundle(open_bundle(original)) == []
    built = example()
    assert built.execution is not None
    write_bundle(tmp_path / "a.semtrace", built.trace, {"native": built.execution})
    assert check_bundle(open_bundle(tmp_path / "a.semtrace")) == []


def test_every_flipped_byte_of_every_member_is_found(original: Path, tmp_path: Path) -> None:
    members = read(original)
    for number, name in enumerate(members):
        content = members[name]
        places = {0, len(content) // 2, len(content) - 1, *range(7, len(content), max(1, len(content) // 9))}
        for place in sorted(places):
            flipped = bytearray(content)
            flipped[place] ^= 1
            path = tmp_path / f"{number}-{place}"
            damaged = write({**members, name: bytes(flipped)}, path)
            if name == MANIFEST:
                with pytest.raises((FormatError, IntegrityError, UnsupportedError)):
                    open_bundle(damaged)
                continue
            findings = check_bundle(open_bundle(damaged))
            assert "ST-BND-012" in requirements(findings), f"{name} byte {place}"
            assert name in str(findings[0])


def test_what_can_be_read_is_checked_although_a_table_cannot(original: Path, tmp_path: Path) -> None:
    members = read(original)
    members[SEGMENTS] = members[SEGMENTS][:-1]
    built = example()
    write_bundle(tmp_path / "bad", put("edges", "evidence", {9: 4})(built.trace), directory=True)
    worse = read(tmp_path / "bad")
    worse[SEGMENTS] = worse[SEGMENTS][:-1]
    findings = checked(worse, tmp_path / "worse")
    assert requirements(findings) == ["ST-BND-012", "ST-EDGE-004"]
    assert findings[0].table == "segments"
    assert "ST-CTX-005" in (findings[0].hint or "")
    assert requirements(checked(members, tmp_path / "cut")) == ["ST-BND-012"]


def test_bytes_are_compared_before_they_are_used(original: Path, tmp_path: Path) -> None:
    """ST-BND-032: what is not what the manifest names is not looked into, so nothing else is found of it."""
    members = read(original)
    members[SEGMENTS] = b"no table at all"
    assert requirements(checked(members, tmp_path / "x")) == ["ST-BND-012"]


def test_all_damage_is_found_at_once(original: Path, tmp_path: Path) -> None:
    members = read(original)
    del members["tables/edges.arrow"]
    members[PACK] += b"\0"
    members["executions/native/tables/events.arrow"] = b""
    findings = checked(members, tmp_path / "x")
    assert [(each.requirement, each.table) for each in findings] == [
        ("ST-BND-012", "edges"),
        ("ST-BND-012", "packs"),
        ("ST-BND-012", "executions/native/events"),
    ]


LIES: list[tuple[str, Callable[[dict[str, Any]], object], str]] = [
    ("work digest", lambda m: m["trace"].update(work_digest=show(bytes(32))), "ST-DIG-014"),
    ("trace digest", lambda m: m["trace"].update(trace_digest=show(bytes(32))), "ST-DIG-014"),
    ("execution digest", lambda m: m["executions"]["native"].update(execution_digest=show(bytes(32))), "ST-DIG-014"),
    ("level", lambda m: m["trace"].update(content_level="shape"), "ST-LVL-003"),
    ("rows", lambda m: m["trace"]["tables"]["edges"].update(rows=3), "ST-BND-012"),
    ("size", lambda m: m["trace"]["tables"]["edges"].update(bytes=3), "ST-BND-012"),
    ("artifacts", lambda m: m["trace"]["packs"][0].update(artifacts=3), "ST-BND-022"),
    ("work", lambda m: m["executions"]["native"]["header"].update(work_digest=show(bytes(32))), "ST-EXE-001"),
    ("detail", lambda m: m["executions"]["native"]["header"].update(detail=["steps"]), "ST-DIG-014"),
    ("a table of another name", lambda m: m["trace"]["tables"].update(weather=m["trace"]["tables"].pop("edges")), "ST-TAB-001"),
]  # fmt: skip


@pytest.mark.parametrize(("lie", "requirement"), [case[1:] for case in LIES], ids=[case[0] for case in LIES])
def test_a_manifest_that_lies_is_found(
    original: Path, tmp_path: Path, lie: Callable[[dict[str, Any]], object], requirement: str
) -> None:
    members = read(original)
    seal(members, lie)
    found = requirements(checked(members, tmp_path / "x"))
    assert requirement in found
    if requirement != "ST-TAB-001":  # where a table is called something else, it is also missing
        assert set(found) == {requirement}


def test_a_member_that_is_named_twice(original: Path, tmp_path: Path) -> None:
    members = read(original)
    seal(
        members,
        lambda m: m["trace"]["packs"].append(m["trace"]["tables"]["edges"] | {"artifacts": 1, "rows": None}),
    )
    with pytest.raises(FormatError):  # `rows` is no key of a pack
        checked(members, tmp_path / "x")
    members = read(original)
    seal(members, lambda m: m["trace"]["packs"].append(m["trace"]["packs"][0]))
    with pytest.raises(IntegrityError) as caught:
        checked(members, tmp_path / "y")
    assert caught.value.requirement == "ST-BND-014"


def ipc(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


STRANGE: list[tuple[str, bytes, str]] = [
    ("nothing", b"", "ST-BND-020"),
    ("noise", bytes(range(256)) * 4, "ST-BND-020"),
    ("magic alone", b"ARROW1\0\0", "ST-BND-020"),
    ("another table", ipc(pa.table({"a": pa.array([1], pa.uint8())})), "ST-TAB-002"),
    ("another type", ipc(pa.table({"operation": pa.array(["x"])})), "ST-TAB-002"),
    ("a dictionary", ipc(pa.table({"operation": pa.array(["x"]).dictionary_encode()})), "ST-BND-020"),
    ("nested lists", ipc(pa.table({"operation": pa.array([[1]])})), "ST-TAB-002"),
]


@pytest.mark.parametrize(
    ("content", "requirement"), [case[1:] for case in STRANGE], ids=[case[0] for case in STRANGE]
)
def test_a_table_that_is_something_else(
    original: Path, tmp_path: Path, content: bytes, requirement: str
) -> None:
    members = read(original)
    replace(members, SEGMENTS, content, rows=1)
    findings = checked(members, tmp_path / "x")
    assert requirements(findings) == [requirement]
    assert findings[0].table == "segments"


@pytest.mark.parametrize("content", [case[1] for case in STRANGE], ids=[case[0] for case in STRANGE])
def test_a_pack_that_is_something_else(original: Path, tmp_path: Path, content: bytes) -> None:
    members = read(original)
    replace(members, PACK, content)
    [finding] = checked(members, tmp_path / "x")
    assert finding.requirement in {"ST-BND-020", "ST-BND-028", "ST-TAB-002"}
    assert finding.table == "packs"
    assert "ST-ART-007" in (finding.hint or "")


def test_nulls_where_none_may_be(original: Path, tmp_path: Path) -> None:
    members = read(original)
    table = pa.ipc.open_file(original / "tables/edges.arrow").read_all()
    lags = pa.array([None, *table["lag_ns"].to_pylist()[1:]], pa.int64())
    index = table.schema.get_field_index("lag_ns")
    replace(members, "tables/edges.arrow", ipc(table.set_column(index, "lag_ns", lags)))
    assert requirements(checked(members, tmp_path / "x")) == ["ST-TAB-003"]


def fails(path: Path) -> SemtraceError:
    with pytest.raises(SemtraceError) as caught:
        check_bundle(open_bundle(path))
    return caught.value


def zipped(members: list[tuple[str, bytes]], path: Path, method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def test_a_file_that_is_no_bundle(tmp_path: Path) -> None:
    path = tmp_path / "x.semtrace"
    for content in (b"", b"PK", b"hello", bytes(1000), b"PK\5\6" + bytes(18)):
        path.write_bytes(content)
        error = fails(path)
        assert isinstance(error, (FormatError, IntegrityError))
        assert error.requirement in {"ST-BND-001", "ST-BND-002"}


def test_a_file_that_is_cut_short(original: Path, tmp_path: Path) -> None:
    whole = zipped(sorted(read(original).items(), reverse=True), tmp_path / "x.semtrace").read_bytes()
    for length in range(0, len(whole), 997):
        path = tmp_path / "cut.semtrace"
        path.write_bytes(whole[:length])
        assert fails(path).requirement == "ST-BND-002"


def packed(members: list[tuple[str, bytes]], path: Path) -> Path:
    write_container(path, members, directory=False, overwrite=False)
    return path


def test_members_that_are_missing_added_or_there_twice(original: Path, tmp_path: Path) -> None:
    members = list(read(original).items())
    assert requirements(check_bundle(open_bundle(packed([each for each in members if each[0] != SEGMENTS], tmp_path / "a")))) == ["ST-BND-012"]  # fmt: skip
    assert fails(packed([*members, ("more.txt", b"")], tmp_path / "b")).requirement == "ST-BND-013"
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = zipped([*members, members[0]], tmp_path / "c")
    assert fails(twice).requirement == "ST-BND-002"
    assert fails(zipped(members, tmp_path / "d", zipfile.ZIP_DEFLATED)).requirement == "ST-BND-002"
    write(dict(members), tmp_path / "e")
    (tmp_path / "e" / "more.txt").write_bytes(b"")
    assert fails(tmp_path / "e").requirement == "ST-BND-013"


def test_names_that_lead_out_of_the_bundle(original: Path, tmp_path: Path) -> None:
    members = list(read(original).items())
    for name in ("../out", "/etc/out", "a//b", "./a", ".hidden", "a\\b", "a b", "é", "a/../b", "x" * 256):
        error = fails(zipped([*members, (name, b"")], tmp_path / "x.semtrace"))
        assert error.requirement == "ST-BND-003", name
    for path in ("../../out", "/etc/passwd", "tables/../../out"):
        changed = read(original)
        seal(changed, lambda m, path=path: m["trace"]["tables"]["edges"].update(path=path))  # type: ignore[misc]
        del changed["tables/edges.arrow"]
        found = requirements(checked(changed, tmp_path / path.replace("/", "_")))
        assert found == ["ST-BND-003"]


def test_links_are_not_followed(original: Path, tmp_path: Path) -> None:
    """ST-BND-031: not even to the very bytes that belong there."""
    members = read(original)
    secret = tmp_path / "secret"
    secret.write_bytes(members.pop(SEGMENTS))
    write(members, tmp_path / "x")
    (tmp_path / "x" / SEGMENTS).symlink_to(secret)
    assert fails(tmp_path / "x").requirement == "ST-BND-004"
    info = zipfile.ZipInfo("link")
    info.external_attr = (0o120777) << 16
    with zipfile.ZipFile(tmp_path / "y", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr(info, b"/etc/passwd")
    assert fails(tmp_path / "y").requirement == "ST-BND-002"


MANIFESTS: list[tuple[str, bytes, str]] = [
    ("empty", b"", "ST-BND-010"),
    ("no JSON", b"{", "ST-BND-010"),
    ("no object", b"[]", "ST-BND-010"),
    ("nothing in it", b"{}", "ST-BND-010"),
    ("deep", b"[" * 100_000, "ST-BND-010"),
    ("not text", b"\xff\xfe", "ST-BND-010"),
]


@pytest.mark.parametrize(
    ("content", "requirement"), [case[1:] for case in MANIFESTS], ids=[case[0] for case in MANIFESTS]
)
def test_a_manifest_that_is_none(original: Path, tmp_path: Path, content: bytes, requirement: str) -> None:
    members = {**read(original), MANIFEST: content}
    assert fails(write(members, tmp_path / "x")).requirement == requirement


def test_a_manifest_that_was_edited(original: Path, tmp_path: Path) -> None:
    members = read(original)
    edited = members[MANIFEST].replace(b'"rows":2', b'"rows":3', 1)
    assert edited != members[MANIFEST]
    assert fails(write({**members, MANIFEST: edited}, tmp_path / "x")).requirement == "ST-BND-011"
    spaced = json.dumps(json.loads(members[MANIFEST])).encode()
    assert fails(write({**members, MANIFEST: spaced}, tmp_path / "y")).requirement == "ST-BND-010"


def test_versions_features_and_keys(original: Path, tmp_path: Path) -> None:
    changes: list[tuple[Callable[[dict[str, Any]], object], str | None]] = [
        (lambda m: m.update(spec_version="2.0"), "ST-EVO-001"),
        (lambda m: m.update(required_features=["example.org/time-travel"]), "ST-EVO-002"),
        (lambda m: m.update(licens="MIT"), "ST-BND-010"),
        (lambda m: m.update(optional_features=["example.org/colour"]), None),  # ST-EVO-003
        (lambda m: m.update({"example.org/colour": "blue"}), None),  # ST-DOC-002
    ]
    for number, (change, requirement) in enumerate(changes):
        members = read(original)
        seal(members, change)
        path = write(members, tmp_path / str(number))
        if requirement is None:
            assert check_bundle(open_bundle(path)) == []
        else:
            assert fails(path).requirement == requirement


def test_a_bundle_that_claims_to_be_huge(original: Path, tmp_path: Path) -> None:
    """A buffer whose stored size prefix claims 2^40 bytes is refused before anything is decompressed (ST-BND-025)."""
    members = read(original)
    table = pa.table({"operation": pa.array([0] * 5000, pa.uint32())})
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    raw = sink.getvalue()
    size = struct.pack("<q", 4 * 5000)
    assert raw.count(size) == 1
    replace(members, SEGMENTS, raw.replace(size, struct.pack("<q", 1 << 40)), rows=5000)
    assert requirements(checked(members, tmp_path / "x")) == ["ST-BND-025"]
