"""Judging answers: what counts, what never does, and what a failure says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semtrace_conformance.checks import CHECKS, judge
from semtrace_conformance.messages import ANSWER, BadMessageError, parse_answer, parse_greeting
from semtrace_conformance.score import Result, score
from semtrace_conformance.suite import Case, Expected
from semtrace_conformance.values import differences


def case(name="reader/x", **more):
    return Case(
        id=name,
        title="t",
        profile=name.split("/")[0],
        kind="read",
        requirements=["ST-TAB-001"],
        inputs={},
        **more,
    )


def answer(**more):
    return ANSWER.validate_python({"type": "answer", "id": "1", **more})


RIGHT = Expected(case="reader/x", verdict="accept", facts={"rows": {"tasks": 2}, "work_digest": "blake3:a"})
WRONG = Expected(
    case="reader/x", verdict="reject", phase="invalid", requirements=["ST-ORD-002", "ST-ORD-003"]
)


def failed(expected, given, **more):
    failures = judge(case(), expected, given, **more)
    assert all(failure.check in CHECKS and failure.message for failure in failures)
    return [failure.check for failure in failures]


def test_right_answers():
    facts = {"rows": {"tasks": "2"}, "work_digest": "blake3:a", "more": 1}
    assert failed(RIGHT, answer(verdict="accept", facts=facts)) == []
    assert failed(WRONG, answer(verdict="reject", phase="invalid", requirement="ST-ORD-003")) == []


def test_neither_crash_nor_own_fault_is_a_refusal():
    assert failed(WRONG, None, trouble="it exited with status 1") == ["answer"]
    assert failed(WRONG, answer(verdict="error", message="no")) == ["answer"]


def test_the_wrong_verdict():
    assert failed(RIGHT, answer(verdict="reject", phase="invalid", requirement="ST-ORD-003")) == ["verdict"]
    assert failed(WRONG, answer(verdict="accept", facts={})) == ["verdict"]


def test_phase_and_requirement_are_judged_apart():
    assert failed(WRONG, answer(verdict="reject", phase="malformed", requirement="ST-ORD-003")) == [
        "refusal.phase"
    ]
    assert failed(WRONG, answer(verdict="reject", phase="invalid", requirement="ST-ORD-004")) == [
        "refusal.requirement"
    ]


def test_each_fact_is_compared():
    assert failed(
        RIGHT, answer(verdict="accept", facts={"rows": {"tasks": 3}, "work_digest": "blake3:b"})
    ) == [
        "reader.rows",
        "reader.digests",
    ]


@pytest.mark.parametrize(
    ("expected", "given", "same"),
    [
        (3, "3", True),
        (3, 3.0, False),
        (3, True, False),
        (3, "03", False),
        (1 << 60, str(1 << 60), True),
        ("3", 3, False),
        (None, None, True),
        (None, 0, False),
        (False, 0, False),
        ({"a": None}, {}, True),
        ({}, {"a": 1}, False),
        ([1, 2], [1], False),
        ([1, [2]], ["1", ["2"]], True),
        ([1], {"0": 1}, False),
    ],
)
def test_what_is_the_same(expected, given, same):
    assert (list(differences(expected, given, "x")) == []) is same


PATH = {"edges": [[0, 1], [1, 2], [0, 3]], "ends": [[0, 2]]}
CIRCLE = {"edges": [[0, 1], [1, 2], [2, 0], [3, 0]], "added": [[2, 0]], "circle": True}


@pytest.mark.parametrize(
    ("wanted", "path", "right"),
    [
        (PATH, [0, 1, 2], True),
        (PATH, ["0", "1", "2"], True),
        (PATH, [0, 2], False),
        (PATH, [0, 1], False),
        (PATH, [2, 1, 0], False),
        (PATH, [0], False),
        (PATH, None, False),
        (PATH, [0, "x", 2], False),
        (CIRCLE, [1, 2, 0, 1], True),
        (CIRCLE, [0, 1, 2], False),
        (CIRCLE, [0, 1, 0], False),
    ],
)
def test_paths(wanted, path, right):
    expected = Expected(
        case="planner/x", verdict="reject", phase="unreplayable", requirements=["ST-PLAN-010"], path=wanted
    )
    given = answer(verdict="reject", phase="unreplayable", requirement="ST-PLAN-010", facts={"path": path})
    assert failed(expected, given) == ([] if right else ["refusal.path"])


def violations(*found):
    return answer(verdict="accept", facts={"violations": list(found)})


def test_violations_are_found_each_and_no_other():
    expected = Expected(
        case="audit/x",
        verdict="accept",
        facts={"violations": [{"requirement": "ST-AUD-032", "table": "events", "rows": [3, 4]}]},
    )
    at = {"requirement": "ST-AUD-032", "table": "events", "rows": [3, 4]}
    assert failed(expected, violations(at)) == []
    assert failed(expected, violations({**at, "rows": [3]}, {**at, "rows": ["4"]})) == [], "in two parts"
    assert failed(expected, violations({**at, "rows": [3]})) == ["audit.found"]
    assert failed(expected, violations({**at, "rows": [3, 4, 5]})) == ["audit.others"]
    assert failed(expected, violations({**at, "table": "instances"})) == ["audit.found", "audit.others"]
    assert failed(expected, violations(at, {"requirement": "ST-AUD-033"})) == ["audit.others"]
    assert failed(expected, violations()) == ["audit.found"]
    assert failed(expected, answer(verdict="accept", facts={})) == ["audit.found"]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"accept",
        b"[]",
        b"{}",
        b'{"type":"answer","id":"1","verdict":"accept"}',
        b'{"type":"answer","id":"1","verdict":"accept","facts":{},"extra":1}',
        b'{"type":"answer","id":"1","verdict":"perhaps","facts":{}}',
        b'{"type":"answer","id":"2","verdict":"accept","facts":{}}',
        b'{"type":"answer","id":1,"verdict":"accept","facts":{}}',
        b'{"type":"answer","id":"1","verdict":"accept","facts":{"a":NaN}}',
        b'{"type":"answer","id":"1","verdict":"accept","facts":{"a":1e999}}',
        b'{"type":"answer","id":"1","verdict":"accept","facts":{"a":' + b"[" * 90 + b"]" * 90 + b"}}",
        b'{"type":"answer","id":"1","verdict":"accept","facts":{"a":1,"a":2}}',
        b'{"type":"answer","id":"1","verdict":"accept","facts":{"a":"\\ud800"}}',
        b'{"type":"answer","id":"1","verdict":"reject","phase":"invalid"}',
        b'{"type":"answer","id":"1","verdict":"reject","phase":"wrong","requirement":"ST-ORD-001"}',
        b'{"type":"answer","id":"1","verdict":"reject","phase":"invalid","requirement":["ST-ORD-001"]}',
        b'{"type":"answer","id":"1","verdict":"reject","phase":"invalid","requirement":"ORD-1"}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_lines_that_are_no_answer(line):
    with pytest.raises(BadMessageError):
        parse_answer(line, "1")


def test_greetings():
    with pytest.raises(BadMessageError):
        parse_greeting(b'{"type":"started","protocol":1}')
    assert parse_greeting(b'{"type":"mismatch","message":"no"}').type == "mismatch"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(
    ["requirement", "table", "rows", "path", "violations", "verdict", "times", "rows", "cells"]
)


@given(
    facts=st.dictionaries(NAMES, JSON | st.lists(st.dictionaries(NAMES, JSON, max_size=3), max_size=3)),
    data=st.data(),
)
def test_whatever_a_testee_says_is_judged(suite, facts, data):
    each = suite.cases[
        data.draw(
            st.sampled_from(["reader/team", "planner/backwards", "planner/edge", "audit/late", "store/put"])
        )
    ]
    for said in (
        {"verdict": "accept", "facts": facts},
        {"verdict": "reject", "phase": "unreplayable", "requirement": "ST-PLAN-010", "facts": facts},
    ):
        failures = judge(each, suite.expected(each), answer(**said), observed={"store": facts})
        assert failures
        assert all(len(failure.message) < 1000 for failure in failures)


def results(**status):
    base = case("reader/a")
    mutated = {name: case(f"reader/{name}", base="reader/a", mutation="m") for name in status if name != "a"}
    return [Result({"a": base, **mutated}[name], how) for name, how in status.items()]


@pytest.mark.parametrize(
    ("status", "points", "of"),
    [
        ({"a": "passed", "b": "passed", "c": "passed"}, 3, 3),
        ({"a": "passed", "b": "failed", "c": "passed"}, 2, 3),
        ({"a": "passed", "b": "failed", "c": "failed"}, 0, 3),
        ({"a": "failed", "b": "passed", "c": "passed"}, 0, 3),
        ({"a": "passed", "b": "not_applicable"}, 1, 1),
        ({"a": "not_applicable", "b": "not_applicable"}, 0, 0),
    ],
)
def test_pairs_are_scored_together(status, points, of):
    profile = score(results(**status), {"reader": []}).profiles["reader"]
    assert (profile.points, profile.of, profile.conformant) == (points, of, points == of and of > 0)
