"""The examples of spec/measures.md and spec/audit.md give what they say."""

from __future__ import annotations

from typing import Any

import pytest
from spec_runs import blocks, requirements, spec_run

from semtrace.measure.audit import audit
from semtrace.measure.metrics import measure
from semtrace.measure.report import RULES

RUN = spec_run()
LOCKED = spec_run(ids=True)
MEASURES = [example for example in blocks("measures.md", "example") if "of" not in example]
EXAMPLES = blocks("audit.md", "example")
AUDITS = [example for example in EXAMPLES if "of" not in example]  # the others are of runs of an engine


def holds(part: Any, whole: Any, where: str = "") -> None:
    """Assert that a JSON value has all that another one says."""
    if isinstance(part, dict):
        for key, value in part.items():
            assert key in whole, f"{where}.{key}"
            holds(value, whole[key], f"{where}.{key}")
    elif isinstance(part, list):
        assert len(part) == len(whole), where
        for at, (one, other) in enumerate(zip(part, whole, strict=True)):
            holds(one, other, f"{where}[{at}]")
    else:
        assert part == whole, where


@pytest.mark.parametrize("example", MEASURES, ids=[str(at) for at in range(len(MEASURES))])
def test_measures_are_those_of_the_spec(example):
    """The values of each example, and by them the members of a report, ST-MEA-060."""
    assert set(example) <= {"change", "deadline_ns", "window_ns", "gives"}
    options = {name: example[name] for name in ("deadline_ns", "window_ns") if name in example}
    holds(example["gives"], measure(RUN.trace, RUN.changed(example), **options).as_dict())


@pytest.mark.parametrize("example", AUDITS, ids=[str(at) for at in range(len(AUDITS))])
def test_audits_are_those_of_the_spec(example):
    known = {
        "change",
        "evidence",
        "header",
        "plan",
        "drop",
        "double",
        "instance",
        "finds",
        "notes",
        "measures",
        "verdict",
    }
    assert set(example) <= known
    run = LOCKED if example.get("header", {}).get("mode") == "token_locked" else RUN
    report = audit(run.trace, run.changed(example), measures=example.get("measures"))
    assert sorted({finding.requirement for finding in report.findings}) == example["finds"]
    assert sorted({note.requirement for note in report.notes}) == example.get("notes", [])
    assert report.verdict == example.get("verdict", report.verdict)


def test_examples_are_found():
    assert len(MEASURES) == 17
    assert len(AUDITS) >= 25


def test_every_rule_is_written_down_and_shown_to_find_something():
    written = requirements("audit.md")
    assert len(written) == len(set(written))
    assert set(RULES) <= set(written)
    shown = {requirement for example in EXAMPLES for requirement in example["finds"]}
    apart = {
        "ST-AUD-023",
        "ST-AUD-037",
        "ST-AUD-041",
        "ST-AUD-042",
        "ST-AUD-050",
        "ST-AUD-079",
        "ST-AUD-085",
        "ST-AUD-086",
    }
    assert set(RULES) - shown <= apart  # shown by tests of their own


def test_requirements_of_measures_are_numbered_once():
    written = requirements("measures.md")
    assert len(written) == len(set(written))
