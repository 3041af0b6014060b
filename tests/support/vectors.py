"""Holding what is said to be hashed of a bundle against what this implementation hashes of it."""

from __future__ import annotations

import json
from pathlib import Path

from semtrace.records.schema import Level
from semtrace.store.digests import (
    column_bytes,
    column_digest,
    detail_digest,
    execution_digest,
    root_bytes,
    show,
    table_bytes,
    trace_digest,
    work_digest,
)

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "spec" / "vectors"
NAMES = sorted(page.stem for page in FOLDER.glob("*.json") if not page.stem.startswith("package"))

ROOT_LEVELS = {"work_digest": {Level.WORK}, "trace_digest": {Level.WORK, Level.TRACE}}
"""The levels of the digests of a trace; those of executions are of level `run`."""


def bundle_of(name):
    """The bundle of a vector: a ZIP file or a directory."""
    packed = FOLDER / f"{name}.semtrace"
    return packed if packed.exists() else FOLDER / name


def expected(name):
    """What the JSON file of a vector says."""
    return json.loads((FOLDER / f"{name}.json").read_text("utf-8"))


def agrees(bundle, answer):
    """Assert that an answer (a JSON file, or what digest.mjs prints) says of a bundle what this implementation says."""
    manifest = bundle.manifest
    assert answer["manifest_digest"] == manifest.digest
    assert set(answer.get("executions", {})) == set(manifest.executions)
    assert ("trace" in answer) == (manifest.trace is not None)
    if manifest.trace is not None:
        trace, said = bundle.trace, answer["trace"]
        assert said["work_digest"] == show(work_digest(trace)) == manifest.trace.work_digest
        assert said["trace_digest"] == show(trace_digest(trace)) == manifest.trace.trace_digest
        _levels_agree(trace.tables, said)
    for name, stored in manifest.executions.items():
        run, said = bundle.execution(name), answer["executions"][name]
        assert said["execution_digest"] == show(execution_digest(run)) == stored.execution_digest
        details = {table: show(detail_digest(run, table)) for table in run.header.detail}
        assert said["detail_digests"] == details == stored.detail_digests
        _levels_agree(run.tables, said)


def _levels_agree(tables, said):
    levels = said["levels"]
    hashed = {(entry["table"], entry["column"]) for entry in levels["columns"]}
    assert hashed == {
        (table.spec.name, column.name)
        for table in tables.values()
        for column in table.spec.columns
        if column.level is not Level.NONE and table.array(column.name).null_count < table.rows
    }
    for entry in levels["columns"]:
        table = tables[entry["table"]]
        column = table.spec.by_name[entry["column"]]
        array = table.array(column.name)
        assert entry["bytes"] == b"".join(column_bytes(column, array)).hex()
        assert entry["digest"] == show(column_digest(column, array))
    for entry in levels["tables"]:
        chosen = frozenset(Level(level) for level in entry["levels"])
        assert entry["bytes"] == table_bytes(tables[entry["table"]], chosen).hex()
    for entry in levels["roots"]:
        assert entry["bytes"] == _root(tables, entry["name"]).hex()
        name, _, detail = entry["name"].partition(".")
        assert entry["digest"] == (said[name][detail] if detail else said[name])


def _root(tables, name):
    if name in ROOT_LEVELS:
        return root_bytes(tables.values(), frozenset(ROOT_LEVELS[name]))
    parts = ["instances", "events"] if name == "execution_digest" else [name.removeprefix("detail_digests.")]
    return root_bytes([tables[part] for part in parts], frozenset({Level.RUN}))
