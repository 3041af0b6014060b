"""The exit codes of the README, on the cases that could be taken for another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cli.conftest import run, team
from semtrace.store.bundle import write_bundle
from support.graphs import graph

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace and its replay, a plan and a replay of another trace, a log, an empty file, a folder, a damaged bundle."""
    folder = tmp_path_factory.mktemp("exit")
    built = team().build()
    write_bundle(folder / "t.semtrace", built.trace, {"native": built.execution} if built.execution else {})
    operations = [{"name": name, "kind": "llm", "prompt": 9, "output": 2} for name in "ab"]
    write_bundle(folder / "other.semtrace", trace=graph({"operations": operations}).trace)
    for name in ("t", "other"):
        assert run("replay", folder / f"{name}.semtrace", "-o", folder / f"{name}-e.semtrace").code == 0
        plan = folder / f"{name}.json"
        assert run("plan", folder / f"{name}.semtrace", "--rule", "dag", "-o", plan).code == 0
    (folder / "log.jsonl").write_text('{"a": 1}\n', "utf-8")
    (folder / "empty").write_bytes(b"")
    (folder / "folder").mkdir()
    whole = (folder / "t.semtrace").read_bytes()
    (folder / "cut.semtrace").write_bytes(whole[: len(whole) // 2])
    return folder


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("import {}/empty -o {}/x", 2, "nothing to import"),
        ("import {}/log.jsonl -o {}/x", 2, "no adapter knows"),
        ("import {}/t.semtrace -o {}/x", 2, "is a bundle already"),
        ("seal {}/log.jsonl -o {}/x", 2, "not a record stream"),
        ("replay {}/log.jsonl -o {}/x", 2, "semtrace import"),
        ("check {}/log.jsonl", 2, "semtrace import"),
        ("check {}/empty", 2, "the file is empty"),
        ("check {}/folder", 2, "no semtrace.json"),
        ("check {}/cut.semtrace", 1, "a damaged ZIP file"),
        ("info {}/no", 2, "no such file"),
        ("replay {}/t.semtrace --plan {}/other.json -o {}/x", 2, "the plan is for work"),
        ("replay {}/t.semtrace --plan {}/t.semtrace -o {}/x", 2, "where a document is wanted"),
        ("measure {}/t.semtrace {}/other-e.semtrace", 2, "of other work than the trace"),
        ("compare {}/t.semtrace native {}/other-e.semtrace", 2, "different work"),
        ("show {}/other-e.semtrace --trace {}/t.semtrace", 2, "not of the work of this trace"),
        ("measure {}/other-e.semtrace {}/other-e.semtrace", 2, "has no trace"),
        ("audit {}/t.semtrace {}/other-e.semtrace", 1, "ST-AUD-0"),
        ("diff {}/t-e.semtrace {}/other-e.semtrace", 2, "different work"),
        ("diff {}/t.semtrace {}/other.semtrace", 1, "different"),
        ("check {}/t.semtrace --nonsense", 2, "nonsense"),
    ],
)
def test_exit_codes(there: Path, words: str, code: int, says: str):
    ran = run(*words.replace("{}", str(there)).split())
    assert (ran.code, says.casefold() in (ran.out + ran.err).casefold()) == (code, True), ran
    assert not (there / "x").exists()


def test_of_an_execution_of_other_work_nothing_is_said_of_a_plan_that_nobody_gave(there: Path):
    ran = run("measure", there / "t.semtrace", there / "other-e.semtrace")
    assert "the plan is for" not in ran.err
