"""What a release wrote is read by every later one, and says what it said then."""

from __future__ import annotations

import json

import keep_bundles
import pytest

from semtrace.store.manifest import SPEC_VERSION

RELEASES = sorted(path for path in keep_bundles.FOLDER.iterdir())
KEPT = [
    (release, name, entry)
    for release in RELEASES
    for name, entry in json.loads((release / keep_bundles.CONTENTS).read_text("utf-8")).items()
]


@pytest.mark.parametrize(
    ("release", "name", "entry"), KEPT, ids=[f"{each[0].name}/{each[1]}" for each in KEPT]
)
def test_what_was_written_is_read_for_ever(release, name, entry):
    """ST-EVO-007, ST-DIG-015: the same digests, rows, content, findings and remarks; a later version may find more to say."""
    found = json.loads(
        json.dumps({"kind": entry["kind"], **keep_bundles.describe(release / name, entry["kind"])})
    )
    assert {key: found.get(key) for key in entry} == entry


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_a_release_keeps_every_form_and_nothing_else(release):
    entries = json.loads((release / keep_bundles.CONTENTS).read_text("utf-8"))
    assert {path.name for path in release.iterdir()} == {*entries, keep_bundles.CONTENTS, keep_bundles.STORE}
    assert {entry["kind"] for entry in entries.values()} == {"bundle", "external", "stream", "capture"}
    levels = {entry.get("content_level") for entry in entries.values()}
    assert levels >= {"text", "token_ids", "block_hashes", "shape"}
    whole = entries["everything.semtrace"]
    assert whole["optional_features"] == [keep_bundles.FEATURE]
    assert whole["extra"] == whole["executions"]["dag"]["extra"] == keep_bundles.EXTRA
    assert whole["rows"]["annotations"]
    for name in ("work_digest", "trace_digest", "content", "rows", "executions", "loss", "extra"):
        assert entries["everything.stsl"][name] == whole[name]
    assert entries["external.semtrace"]["content"] == entries["capture.stsl"]["content"]


def test_this_version_has_its_folder():
    assert SPEC_VERSION in {release.name for release in RELEASES}, "run make bundles"


def test_a_folder_is_written_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(keep_bundles, "ROOT", tmp_path)
    monkeypatch.setattr(keep_bundles, "FOLDER", tmp_path / "bundles")
    assert keep_bundles.main() == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert sum(map(len, before.values())) < 300_000
    assert keep_bundles.main() == 1
    assert "never changed" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    contents = json.loads((tmp_path / "bundles" / SPEC_VERSION / keep_bundles.CONTENTS).read_text())
    assert all(entry.get("checked", 0) == 0 for entry in contents.values())
