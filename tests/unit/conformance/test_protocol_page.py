"""protocol.md says what is so: its messages are messages, its testee runs, its tables and kinds are those of the suite."""

from __future__ import annotations

import ast
import json
import re
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from semtrace_conformance.checks import _FACTS
from semtrace_conformance.known import read_known
from semtrace_conformance.process import Process
from semtrace_conformance.runner import Runner, order
from semtrace_conformance.score import score

CONFORMANCE = Path(__file__).parents[3] / "conformance"
PAGE = (CONFORMANCE / "protocol.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+) (\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
MESSAGES = [(kind, text) for language, kind, text in BLOCKS if language == "json"]


@pytest.mark.parametrize(("kind", "text"), MESSAGES)
def test_messages_fit_their_schemas(kind, text):
    schema = json.loads((CONFORMANCE / "schema" / f"{kind}.json").read_text("utf-8"))
    Draft202012Validator(schema).validate(json.loads(text))
    assert "\n" not in text.rstrip("\n"), "a message is one line"


def test_every_message_is_shown():
    assert {kind for kind, _ in MESSAGES} == {"start", "started", "run", "answer", "stop"}


def test_the_testee_in_the_page_runs(suite, tmp_path):
    program = tmp_path / "testee.py"
    program.write_text(next(text for _, kind, text in BLOCKS if kind == "testee"), "utf-8")
    runner = Runner(suite, lambda folder: Process([sys.executable, "-I", "-S", str(program)], folder))
    outcome = runner.run(
        order(suite.cases, lambda case: case.id in {"reader/team", "reader/zip-cut", "reader/edges-swapped"})
    )
    assert {result.status for result in outcome.results} == {"failed", "not_applicable"}
    assert all(
        "NotImplementedError" in result.failures[0].message for result in outcome.results if result.failures
    )
    assert score(outcome.results, outcome.started.profiles).profiles["reader"].of == 2


def _phase(requirement):
    """By the table of the page: the first line that names it."""
    rows = re.findall(r"^\| `(\w+)` \| (ST-[^|]*|all others) \|", PAGE, re.MULTILINE)
    for phase, names in rows:
        if names.strip() == "all others" or any(
            fnmatchcase(requirement, name.strip()) for name in names.split(",")
        ):
            return phase
    raise AssertionError(requirement)


def test_the_table_of_phases_is_that_of_the_suite(suite):
    phases = suite.requirements.phases
    for requirement in suite.requirements.requirements:
        area = requirement.id.rsplit("-", 1)[0]
        assert _phase(requirement.id) == phases.get(requirement.id, phases.get(area, "invalid")), (
            requirement.id
        )


def test_the_testee_in_the_page_names_the_phases_of_the_suite(suite):
    page = next(text for _, kind, text in BLOCKS if kind == "testee")
    phases = ast.literal_eval(re.search(r"^PHASES = (\[\n.*?^\])", page, re.MULTILINE | re.DOTALL).group(1))
    for requirement in suite.requirements.requirements:
        found = next(phase for names, phase in phases if re.fullmatch(names, requirement.id))
        assert found == _phase(requirement.id), requirement.id


def _sections():
    parts = re.split(r"^### Profile (\w+)$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_profile_kind_feature_and_question_is_said(suite):
    sections = _sections()
    assert sections.keys() == suite.requirements.profiles.keys()
    for profile, features in suite.requirements.profiles.items():
        for feature in features:
            assert f"`{feature}`" in sections[profile], feature
    for case in suite.cases.values():
        section = sections[case.profile]
        assert f"**{case.kind}**" in section, case.kind
        for name in (*case.inputs, *case.ask):
            assert f"`{name}`" in section or f"`ask.{name}`" in section or f"`{name}`?" in section, (
                case.id,
                name,
            )


def test_every_fact_that_is_compared_is_said(suite):
    for case in suite.cases.values():
        for fact in suite.expected(case).facts:
            assert f"`{fact}`" in _sections()[case.profile], (case.id, fact)
    assert _FACTS.keys() >= {fact for case in suite.cases.values() for fact in suite.expected(case).facts} - {
        "violations"
    }


def test_the_file_of_expected_failures_can_be_read(suite, tmp_path):
    path = tmp_path / "known.yaml"
    path.write_text(next(text for _, kind, text in BLOCKS if kind == "expected"), "utf-8")
    assert [entry.case for entry in read_known(path, suite)] == ["reader/bomb"]
