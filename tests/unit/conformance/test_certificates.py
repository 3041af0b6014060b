"""Certificates, their reports, known failures, and the schemas of everything that is written or sent."""

from __future__ import annotations

import json
from typing import ClassVar
from xml.etree import ElementTree as ET

import pytest
import semtrace_testee
from jsonschema import Draft202012Validator

import golden
import variants
from semtrace.errors import DocumentError, ExitCode, FormatError, UsageError
from semtrace_conformance import certificate as certificates
from semtrace_conformance.known import read_known, surprises, verdict
from semtrace_conformance.reports import html, junit
from semtrace_conformance.runner import Runner, order


class Listening(golden.Inside):
    """A testee in this process that keeps what is said."""

    said: ClassVar[list[tuple[str, dict]]] = []

    def ask(self, line, budget_s):
        answer = super().ask(line, budget_s)
        self.said.append(("asked", json.loads(line)))
        self.said.append(("answered", json.loads(answer)))
        return answer

    def close(self, farewell):
        self.said.append(("asked", json.loads(farewell)))


def run(suite, testee, profile=None, known=()):
    runner = Runner(suite, lambda _: Listening(testee()))
    outcome = runner.run(order(suite.cases, lambda case: profile in {None, case.profile}))
    selection = [] if profile is None else [profile]
    return certificates.make(suite, outcome, ["testee"], selection=selection, expected=known)


def tree(text):
    return ET.fromstring(text)  # noqa: S314  # our own report


@pytest.fixture(scope="module")
def ours(suite):
    return run(suite, semtrace_testee.Testee)


@pytest.fixture(scope="module")
def wrong(suite):
    """A planner that makes groups the wrong way round."""
    return run(suite, variants.GroupsBackwards, "planner")


def test_ours_can_be_derived_again(ours, suite, tmp_path):
    assert ours.conformant
    path = tmp_path / "cert.json"
    path.write_text(certificates.dump(ours), "utf-8")
    again = certificates.read(path)
    assert again == ours
    assert certificates.verify(again, suite) == []
    assert again.counts.selected == len(suite.cases)


def altered(certificate, change):
    """A certificate that somebody changed, its digest made anew."""
    values = json.loads(certificates.dump(certificate))
    change(values)
    values["digest"] = certificates._digest(values)
    return certificates.Certificate.model_validate(values)


def first(values, wanted):
    return next(each for each in values["results"] if wanted(each))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda values: values.update(conformant=True), "conformant"),
        (
            lambda values: first(values, lambda each: each["status"] == "failed").update(
                status="passed", failures=[]
            ),
            "by its record",
        ),
        (lambda values: values["profiles"]["planner"].update(points=51, conformant=True), "profiles"),
        (lambda values: values["counts"].update(failed=0), "counts"),
        (lambda values: values["results"].pop(), "profiles"),
        (lambda values: values["results"].append(values["results"][0]), "there twice"),
        (lambda values: values["results"][0].update(case="planner/none"), "no case"),
        (lambda values: values["suite"].update(digest="blake3:" + 64 * "0"), "made with suite"),
        (
            lambda values: first(
                values, lambda each: each["counts"] and each["answer"]["verdict"] == "accept"
            )["answer"].update(facts={}),
            "by its record",
        ),
        (lambda values: values.update(declared={"planner": ["judge"]}), "by its record"),
    ],
)
def test_what_was_changed_is_found(wrong, suite, change, says):
    assert certificates.verify(wrong, suite) == []
    problems = certificates.verify(altered(wrong, change), suite)
    assert any(says in problem for problem in problems), problems


def test_a_digest_that_is_not_its_own(ours, suite):
    values = json.loads(certificates.dump(ours))
    values["testee"]["name"] = "other"
    problems = certificates.verify(certificates.Certificate.model_validate(values), suite)
    assert problems == ["its digest is not its own: it was altered or damaged"]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": "semtrace-certificate"}', "\0"])
def test_what_is_no_certificate(tmp_path, text):
    path = tmp_path / "cert.json"
    path.write_text(text, "utf-8")
    with pytest.raises(FormatError, match="no certificate"):
        certificates.read(path)


def test_a_certificate_that_is_not_there(tmp_path):
    with pytest.raises(UsageError):
        certificates.read(tmp_path / "none.json")


def test_the_junit_report_counts_as_the_certificate_does(wrong):
    root = tree(junit(wrong))
    suites = {each.get("name"): each for each in root}
    for name, claim in wrong.profiles.items():
        assert int(suites[name].get("failures")) == claim.of - claim.points
        assert int(suites[name].get("skipped")) == sum(claim.not_applicable.values())
        assert len(suites[name]) == int(suites[name].get("tests"))
        assert sum(each.find("failure") is not None for each in suites[name]) == claim.of - claim.points


def test_reports_hold_whatever_a_testee_says(wrong, suite):
    def rename(values):
        values["testee"]["name"] = "<b>&\x01"
        for result in values["results"]:
            for failure in result["failures"]:
                failure["message"] = "<i>\x02]]>"

    strange = altered(wrong, rename)
    tree(junit(strange))
    page = html(strange, suite)
    assert "<b>&" not in page
    assert "<i>" not in page


def test_the_page_names_every_case(wrong, suite):
    page = html(wrong, suite)
    assert all(result.case in page for result in wrong.results)
    assert "not conformant" in page


def failing(certificate):
    return [each.case for each in certificate.failing]


def known_file(tmp_path, *entries, suffix="yaml"):
    path = tmp_path / f"known.{suffix}"
    path.write_text(json.dumps({"format": "semtrace-expected-failures", "failures": list(entries)}), "utf-8")
    return path


def entry(case):
    return {"case": case, "reason": "not yet", "link": "https://example.org/1"}


def test_known_failures_make_a_run_as_expected(wrong, suite, tmp_path):
    known = read_known(known_file(tmp_path, *map(entry, failing(wrong))), suite)
    again = run(suite, variants.GroupsBackwards, "planner", known)
    assert surprises(again) == ([], [])
    assert not again.conformant
    code, sentence = verdict(again, suite)
    assert (code, "and no other" in sentence) == (ExitCode.OK, True)
    assert "failure" not in {each.tag for each in tree(junit(again)).iter()}


def test_an_unknown_failure_and_an_unexpected_pass(wrong, suite, tmp_path):
    cases = failing(wrong)
    known = read_known(known_file(tmp_path, *map(entry, [*cases[1:], "planner/edge"])), suite)
    again = run(suite, variants.GroupsBackwards, "planner", known)
    assert surprises(again) == ([cases[0]], ["planner/edge"])
    assert verdict(again, suite)[0] is ExitCode.FINDINGS
    known = read_known(known_file(tmp_path, *map(entry, [*cases, "planner/edge"])), suite)
    again = run(suite, variants.GroupsBackwards, "planner", known)
    assert (verdict(again, suite)[0], "out of date" in verdict(again, suite)[1]) == (ExitCode.USAGE, True)


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([entry("planner/none")], "no case of the suite"),
        ([entry("planner/*")], "no case of the suite"),
        ([entry("planner/edge"), entry("planner/edge")], "there twice"),
        ([{"case": "planner/edge", "reason": "", "link": "https://example.org"}], "reason"),
        ([{"case": "planner/edge", "reason": "x"}], "link"),
        ([{"case": "planner/edge", "reason": "x", "link": "somewhere"}], "link"),
        ([{**entry("planner/edge"), "until": 2027}], "until"),
    ],
)
def test_files_of_known_failures_that_are_wrong(entries, says, suite, tmp_path):
    with pytest.raises(DocumentError, match=says):
        read_known(known_file(tmp_path, *entries), suite)


def test_a_file_of_known_failures_that_is_not_yaml(suite, tmp_path):
    path = tmp_path / "x"
    path.write_text("{", "utf-8")
    with pytest.raises(DocumentError):
        read_known(path, suite)
    with pytest.raises(UsageError):
        read_known(tmp_path / "none", suite)


@pytest.fixture(scope="module")
def schemas(suite):
    found = {}
    for path in (suite.root / "schema").glob("*.json"):
        schema = json.loads(path.read_text("utf-8"))
        Draft202012Validator.check_schema(schema)
        found[path.stem] = Draft202012Validator(schema)
    return found


def test_real_traffic_fits_the_schemas(ours, wrong, schemas):
    assert ours.conformant
    assert not wrong.conformant
    kinds = {
        ("asked", "start"),
        ("asked", "run"),
        ("asked", "stop"),
        ("answered", "started"),
        ("answered", "answer"),
    }
    assert {(who, message["type"]) for who, message in Listening.said} == kinds
    for _, message in Listening.said:
        schemas[message["type"]].validate(message)


def test_the_files_of_the_suite_fit_the_schemas(suite, schemas):
    for case in suite.cases.values():
        schemas["case"].validate(
            json.loads((suite.root / "cases" / case.id / "case.json").read_text("utf-8"))
        )
        schemas["expected"].validate(
            json.loads((suite.root / "expected" / f"{case.id}.json").read_text("utf-8"))
        )
    schemas["requirements"].validate(
        json.loads((suite.root / "requirements" / "1.0-draft.json").read_text("utf-8"))
    )


def test_certificates_fit_the_schema(ours, wrong, schemas):
    for each in (ours, wrong):
        schemas["certificate"].validate(json.loads(certificates.dump(each)))


def test_schemas_refuse_what_the_harness_refuses(schemas):
    assert not schemas["answer"].is_valid(
        {"type": "answer", "id": "1", "verdict": "reject", "phase": "invalid"}
    )
    assert not schemas["answer"].is_valid(
        {"type": "answer", "id": "1", "verdict": "accept", "facts": {}, "x": 1}
    )
