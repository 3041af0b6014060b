"""What a program does not know it keeps, or refuses by name: through every command that reads or writes bundles."""

from __future__ import annotations

import shutil
from dataclasses import replace

import keep_bundles
import pytest

from cli.conftest import run
from semtrace.store.bundle import open_bundle, write_bundle
from semtrace.store.container import MANIFEST, open_container, write_container
from semtrace.store.manifest import SPEC_VERSION
from semtrace.stream.exchange import read_stream
from semtrace.transform.bundle_parts import Parts

FOLDER = keep_bundles.FOLDER / SPEC_VERSION
EVERYTHING = FOLDER / "everything.semtrace"
SMALL = FOLDER / "directory"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The bundle with everything, with a namespaced key in an entry of its loss report besides."""
    whole = Parts.of(open_bundle(EVERYTHING))
    [loss] = whole.info.loss
    info = replace(whole.info, loss=[type(loss).model_validate({**loss.model_dump(), **keep_bundles.EXTRA})])
    path = tmp_path_factory.mktemp("source") / "a.semtrace"
    write_bundle(path, whole.trace, whole.executions, info=info)
    return path


def written(source, folder, *words):
    """What a command writes."""
    ran = run(*words, source, "-o", folder / "out")
    assert ran.code == 0, ran.err
    return folder / "out"


def rewritten(words, source, folder):
    """A bundle after a command; what makes another form of one is undone again."""
    if words == ["convert"]:
        (folder / "stream").mkdir()
        source = written(source, folder / "stream", "convert")
        assert read_stream(source).info.optional_features == [keep_bundles.FEATURE]
    if words == ["artifacts", "embed"]:
        (folder / "moved").mkdir()
        source = written(source, folder / "moved", "artifacts", "externalize", "--store", folder / "store")
    if words[0] == "artifacts":
        words = [*words, "--store", folder / "store"]
    if words[0] == "merge":
        words = [*words, shutil.copy(source, folder / "other")]
    return open_bundle(written(source, folder, *words))


@pytest.mark.parametrize(
    "words",
    [
        ["pack"],
        ["unpack"],
        ["convert"],
        ["filter", "--where", "task = 0"],
        ["sample", "-n", "1"],
        ["merge"],
        ["renumber"],
        ["redact", "--level", "shape"],
        ["artifacts", "externalize"],
        ["artifacts", "embed"],
    ],
    ids=" ".join,
)
def test_what_is_not_known_is_kept(words, source, tmp_path):
    """ST-EVO-003, ST-EVO-004, ST-DOC-002, ST-ANN-004."""
    made = rewritten(words, source, tmp_path)
    assert made.manifest.optional_features == [keep_bundles.FEATURE]
    assert made.info.extra == keep_bundles.EXTRA
    assert keep_bundles.EXTRA in [loss.model_extra for loss in made.info.loss]
    before, after = open_bundle(source), made
    if "dag" in after.manifest.executions:
        assert after.manifest.executions["dag"].header.model_extra == keep_bundles.EXTRA
    kept = [row for row in before.trace["annotations"].data.to_pylist() if row["entity_kind"] == 1]
    assert kept
    assert all(row in after.trace["annotations"].data.to_pylist() for row in kept)
    assert run("check", made.path).code == 0


def test_forms_keep_every_execution_as_it_is(source, tmp_path):
    """ST-EVO-004: a bundle that changes its form alone says all that it said."""
    for words in (["pack"], ["unpack"], ["convert"], ["artifacts", "externalize"], ["artifacts", "embed"]):
        folder = tmp_path / "-".join(words)
        folder.mkdir()
        made = rewritten(words, source, folder)
        before = open_bundle(source).manifest
        assert {name: run.header for name, run in made.manifest.executions.items()} == {
            name: run.header for name, run in before.executions.items()
        }
        assert made.info == open_bundle(source).info


def needing(path, feature):
    """The small bundle, needing a feature."""
    container = open_container(SMALL)
    members = [(name, container.read(name)) for name in container.names() if name != MANIFEST]
    needs = open_bundle(SMALL).manifest.model_copy(update={"required_features": [feature]})
    write_container(path, [(MANIFEST, needs.sealed()), *members], directory=False, overwrite=False)


@pytest.mark.parametrize(
    "words",
    [
        ["info"], ["check"], ["show"], ["measure"], ["plan", "--rule", "dag", "-o", "OUT"], ["replay", "-o", "OUT"],
        ["audit"], ["pack", "-o", "OUT"], ["unpack", "-o", "OUT"], ["convert", "-o", "OUT"],
        ["filter", "--where", "task = 0", "-o", "OUT"], ["sample", "-n", "1", "-o", "OUT"], ["renumber", "-o", "OUT"],
        ["redact", "--level", "shape", "-o", "OUT"], ["artifacts", "externalize", "--store", "STORE", "-o", "OUT"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_is_needed_and_not_known_is_refused_by_name(words, tmp_path):
    """ST-EVO-002."""
    needing(tmp_path / "x", "example.org/time-travel")
    places = {"OUT": tmp_path / "out", "STORE": tmp_path / "store"}
    given = [places.get(word, word) for word in words]
    ran = run(*given, tmp_path / "x", *([tmp_path / "x"] if words[0] in {"audit", "measure"} else []))
    assert ran.code == 1, ran.out
    assert "example.org/time-travel" in ran.out + ran.err
    assert "ST-EVO-002" in ran.out + ran.err
    assert not (tmp_path / "out").exists()


def test_a_later_minor_version_is_read(tmp_path):
    """ST-EVO-007: what it does not need a new reader for, it is read without."""
    container = open_container(SMALL)
    members = [(name, container.read(name)) for name in container.names() if name != MANIFEST]
    later = open_bundle(SMALL).manifest.model_copy(update={"spec_version": "1.7"})
    write_container(tmp_path / "x", [(MANIFEST, later.sealed()), *members], directory=True, overwrite=False)
    assert open_bundle(tmp_path / "x").manifest.spec_version == "1.7"
    assert run("check", tmp_path / "x").code == 0
