"""No text of a recording is in the names of its tasks, nor anywhere in what is shared after redacting."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cli.conftest import run
from semtrace.records.enums import ContentLevel
from semtrace.store.bundle import open_bundle, write_bundle
from semtrace.transform.bundle_parts import Parts
from semtrace.transform.redact import redact

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FOLDERS = sorted(
    folder
    for framework in ("autogen", "metagpt")
    for folder in (EXAMPLES / framework).iterdir()
    if folder.is_dir() and not folder.name.startswith("__")
)
_SENTENCE = re.compile(r"[^\n\"\\]{24,}")
"""A piece of text that is nobody's name."""


def said(path: Path) -> str:
    """All text in a bundle that is not content: cells of tables, executions, and the manifest."""
    bundle = open_bundle(path)
    cells = [
        str(value)
        for holder in (bundle.trace, *(bundle.execution(name) for name in bundle.manifest.executions))
        for columns in holder.tables.values()
        for column in columns.data.column_names
        if str(columns.data.schema.field(column).type) in ("string", "large_string")
        for value in columns.data.column(column).to_pylist()
    ]
    headers = [bundle.execution(name).header.as_json() for name in bundle.manifest.executions]
    return "\n".join([*cells, json.dumps(bundle.manifest.as_json()), json.dumps(headers)])


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_no_text_of_a_recording_is_left(folder, tmp_path):
    assert run("import", folder, "-o", tmp_path / "whole").code == 0
    whole = Parts.of(open_bundle(tmp_path / "whole"))
    artifacts = whole.trace["artifacts"]
    settings = set(whole.trace.operations.ints("settings").tolist())
    texts = [
        (whole.trace.content.get(digest) or b"").decode("utf-8", "replace")
        for row, digest in enumerate(artifacts.digests())
        if row not in settings
    ]
    pieces = {piece.strip()[:24] for text in texts for piece in _SENTENCE.findall(text)}
    assert pieces
    names = "\n".join(whole.trace.tasks.strings("name"))
    assert [piece for piece in sorted(pieces) if piece in names] == []
    shared = redact(whole, ContentLevel.SHAPE, annotations=False)
    write_bundle(tmp_path / "shared", shared.trace, shared.executions, info=shared.info)
    text = said(tmp_path / "shared")
    assert [piece for piece in sorted(pieces) if piece in text] == []


def test_what_was_asked_is_shown_while_the_trace_has_it(tmp_path):
    whole, shared = tmp_path / "whole", tmp_path / "shared"
    assert run("import", EXAMPLES / "autogen" / "graphflow", "-o", whole).code == 0
    assert "task 0 GraphFlow  (15 operations)  Should the fund buy shares" in run("show", whole).out
    assert run("redact", whole, "--level", "shape", "-o", shared).code == 0
    assert run("show", shared).out.startswith("task 0 task-0  (15 operations)\n")
