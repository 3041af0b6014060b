"""The suite's own reader of bundles and stores agrees with ours, and finds what a writer did wrong."""

from __future__ import annotations

import json
import shutil

import pytest
import rfc8785
from blake3 import blake3

from semtrace.store.artifact_store import ArtifactStore
from semtrace.store.bundle import write_bundle
from semtrace.store.digests import execution_digest, show, trace_digest, work_digest
from semtrace.testing import TraceShape, random_trace
from semtrace_conformance.making.draft import TABLES
from semtrace_conformance.observe import observe
from semtrace_conformance.stores import observe_store


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("directory", [False, True])
def test_digests_are_ours(seed, directory, tmp_path):
    built = random_trace(seed, TraceShape(operations=8))
    path = tmp_path / "x.semtrace"
    write_bundle(path, built.trace, {"native": built.execution}, directory=directory)
    seen = observe(path, TABLES)
    assert seen["problems"] == []
    assert seen["form"] == ("directory" if directory else "zip")
    assert seen["work_digest"] == seen["stated"]["work_digest"] == show(work_digest(built.trace))
    assert seen["trace_digest"] == seen["stated"]["trace_digest"] == show(trace_digest(built.trace))
    assert seen["executions"]["native"]["execution_digest"] == show(execution_digest(built.execution))
    assert seen["content"] == {
        show(digest): len(built.trace.content.get(digest)) for digest in built.trace.content
    }
    assert len(seen["annotations"]) == built.trace["annotations"].rows


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "x.semtrace"
    write_bundle(path, random_trace(3).trace, directory=True)
    return path


def reseal(folder, change):
    values = json.loads((folder / "semtrace.json").read_bytes())
    change(values)
    values.pop("digest", None)
    values["digest"] = f"blake3:{blake3(rfc8785.dumps(values)).hexdigest()}"
    (folder / "semtrace.json").write_bytes(rfc8785.dumps(values))


def edges(values):
    return values["trace"]["tables"]["edges"]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda path: (path / "semtrace.json").unlink(), "there is no"),
        (lambda path: (path / "semtrace.json").write_text("{", "utf-8"), "not JSON"),
        (lambda path: (path / "semtrace.json").write_text("[]", "utf-8"), "no JSON object"),
        (
            lambda path: (path / "semtrace.json").write_bytes((path / "semtrace.json").read_bytes() + b"\n"),
            "RFC 8785",
        ),
        (lambda path: (path / "tables" / "edges.arrow").unlink(), "missing"),
        (lambda path: (path / "tables" / "edges.arrow").write_bytes(b"x"), "another size or digest"),
        (lambda path: (path / "more").touch(), "does not name"),
        (lambda path: (path / "more").symlink_to("semtrace.json"), "a link"),
        (lambda path: reseal(path, lambda values: edges(values).update(rows=1)), "the manifest says 1"),
        (
            lambda path: reseal(path, lambda values: values["trace"]["tables"].update(extra=edges(values))),
            "twice|no table extra",
        ),
        (
            lambda path: reseal(path, lambda values: values["trace"]["tables"].update(states=edges(values))),
            "twice|does not have there",
        ),
    ],
)
def test_unsound_directories(folder, spoil, says):
    spoil(folder)
    problems = observe(folder, TABLES)["problems"]
    assert len(problems) == 1
    assert any(part in problems[0] for part in says.split("|")), problems


def test_unsound_archives(tmp_path):
    path = tmp_path / "x.semtrace"
    write_bundle(path, random_trace(3).trace)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    assert "ZIP" in observe(path, TABLES)["problems"][0]
    assert observe(tmp_path / "none", TABLES) == {}


def test_a_store_of_ours_is_sound(tmp_path):
    store = ArtifactStore(tmp_path / "s", create=True)
    digests = {show(store.put(content)): len(content) for content in (b"one", b"", b"x" * 10_000)}
    assert observe_store(store.path) == {
        "objects": digests,
        "recent": sorted(digests),
        "problems": [],
        "leftovers": [],
    }


def test_unsound_stores(tmp_path):
    store = ArtifactStore(tmp_path / "s", create=True)
    first, second = (store._object(store.put(content)) for content in (b"one", b"two"))
    first.write_bytes(second.read_bytes())
    assert "does not hold" in observe_store(store.path)["problems"][0]
    first.unlink()
    first.symlink_to(second)
    assert "does not hold" in observe_store(store.path)["problems"][0]
    first.unlink()
    (store.path / "objects" / "notes").touch()
    (store.path / "objects" / "ab").mkdir(exist_ok=True)
    (store.path / "objects" / "ab" / ".tmp-1").touch()
    seen = observe_store(store.path)
    assert (seen["problems"], seen["leftovers"]) == (["notes"], [".tmp-1"])
    shutil.rmtree(store.path)
    store.path.mkdir()
    assert "semtrace-store.json" in observe_store(store.path)["problems"][0]
