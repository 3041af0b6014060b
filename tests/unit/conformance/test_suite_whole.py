"""The suite is whole: made by one command, small, every requirement tested or excluded, and no replayer in the harness."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import semtrace_conformance
from semtrace_conformance.making.make import differences, make
from semtrace_conformance.requirements import read_requirements
from semtrace_conformance.selfcheck import check_harness, check_suite

ROOT = Path(__file__).parents[3]
PACKAGE = Path(semtrace_conformance.__file__).parent


@pytest.fixture(scope="module")
def stated():
    return {requirement.id: requirement.file for requirement in read_requirements(ROOT / "spec")}


def test_one_command_makes_what_is_there(tmp_path):
    make(tmp_path, ROOT / "spec")
    assert differences(ROOT / "conformance", tmp_path) == [], "run conformance/make_cases.py"


def test_the_suite_is_whole(suite):
    check_suite(suite)


def test_the_harness_judges_itself_rightly():
    check_harness()


def test_every_requirement_is_tested_or_excluded_with_a_reason(suite, stated):
    listed = {requirement.id: requirement for requirement in suite.requirements.requirements}
    assert listed.keys() == stated.keys()
    open_ = [each.id for each in listed.values() if not each.cases and not each.excluded]
    assert open_ == [], "write a case, or a reason in conformance/exclusions.yaml"
    both = [each.id for each in listed.values() if each.cases and each.excluded]
    assert both == [], "what is tested needs no reason why it is not"


def test_the_list_names_the_cases_that_test(suite):
    by_case: dict[str, set[str]] = {}
    for requirement in suite.requirements.requirements:
        for case in requirement.cases:
            by_case.setdefault(case, set()).add(requirement.id)
    assert by_case == {case.id: set(case.requirements) for case in suite.cases.values()}


def test_reasons_that_are_expected_are_requirements(suite, stated):
    for case in suite.cases.values():
        assert set(suite.expected(case).requirements) <= stated.keys(), case.id


def test_phases_follow_from_the_published_table(suite):
    phases = suite.requirements.phases
    for case in suite.cases.values():
        expected = suite.expected(case)
        for requirement in expected.requirements:
            area = requirement.rsplit("-", 1)[0]
            assert expected.phase == phases.get(requirement, phases.get(area, "invalid")), case.id


def test_the_folder_is_small():
    files = [path for path in (ROOT / "conformance").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in files) < 3_000_000


def test_questions_do_not_say_what_is_expected(suite):
    for case in suite.cases.values():
        if case.base is not None:
            base = suite.cases[case.base]
            assert (case.kind, case.inputs, case.ask, case.output) == (
                base.kind,
                base.inputs,
                base.ask,
                base.output,
            )


def _imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif isinstance(node, ast.Import):
            found.update(name.name for name in node.names)
    return {name for name in found if name == "semtrace" or name.startswith("semtrace.")}


HARNESS = [path for folder in (".", "live", "witness") for path in (PACKAGE / folder).glob("*.py")]


@pytest.mark.parametrize("path", sorted(HARNESS), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_runner_and_checks_use_nothing_that_they_judge(path):
    allowed = {"semtrace", "semtrace.errors", "semtrace.cli.common"}
    if path.name == "cli.py":  # the command, which judges nothing: how its files are written
        allowed.add("semtrace.store.container")
    assert _imported(path) <= allowed


@pytest.mark.parametrize("path", sorted((PACKAGE / "making").glob("*.py")), ids=lambda path: path.name)
def test_expected_answers_do_not_come_from_what_is_judged(path):
    allowed = ("semtrace.records", "semtrace.store", "semtrace.build", "semtrace.testing")
    assert all(name.startswith(allowed) for name in _imported(path))


def test_expected_answers_are_not_among_the_inputs(suite, tmp_path):
    case = suite.cases["reader/team"]
    suite.lay_out(case, tmp_path / "input")
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert "case.json" not in names
    text = json.dumps(suite.expected(case).facts)
    assert suite.expected(case).facts["trace_digest"] in text
