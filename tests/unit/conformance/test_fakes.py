"""Every wrong testee gets exactly its golden score, and every check is failed by one of them."""

from __future__ import annotations

import json

import pytest

import golden
import live_variants
import standalone
import variants
from semtrace_conformance.checks import CHECKS

SCORES = json.loads(golden.GOLDEN.read_text("utf-8"))


def test_every_fake_has_a_score():
    assert set(SCORES) == set(golden.names()), "run conformance/fakes/golden.py"
    assert len(SCORES) >= 15


QUICK = {"releases-early", "swaps-two"}
"""Of the fakes that are asked by a server and a clock, those that show each time that this works."""


def live(name):
    kind = variants.variants().get(name)
    return kind is not None and issubclass(kind, live_variants.Live)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.integration] if live(name) and name not in QUICK else [])
        for name in golden.names()
    ],
)
def test_a_fake_gets_its_score(name, suite):
    assert golden.score(name, suite) == SCORES[name]


@pytest.mark.parametrize("name", standalone.RUNS)
def test_who_knows_nothing_gets_nothing(name):
    assert all(points.startswith("0 of ") for points in SCORES[name]["points"].values())
    assert SCORES[name]["exit"] == 1


def test_who_finds_nothing_or_everything_gets_nothing():
    assert SCORES["finds-nothing"]["points"] == SCORES["finds-everything"]["points"]
    assert SCORES["finds-nothing"]["points"]["audit"].startswith("0 of ")


def test_who_does_not_speak_the_protocol_is_no_testee():
    codes = {name: (SCORES[name]["exit"], SCORES[name].get("says")) for name in standalone.STARTS}
    assert codes.pop("declares-nothing") == (3, None)
    assert codes == {
        "never-starts": (2, "certify.protocol"),
        "echoes-start": (2, "certify.protocol"),
        "other-protocol": (2, "certify.mismatch"),
        "other-spec": (2, "certify.mismatch"),
        "knows-neither": (2, "certify.mismatch"),
    }


def test_no_fake_is_conformant():
    assert all(entry["exit"] != 0 for entry in SCORES.values())


@pytest.mark.parametrize("name", [name for name in golden.names() if live(name)])
def test_wrong_replayers_get_nothing_for_the_reason_that_they_have(name):
    kind = variants.variants()[name]
    assert SCORES[name]["fails"] == sorted(kind.fails) != []
    assert SCORES[name]["points"] == {kind.profile: f"0 of {len(kind.cases)}"}


def test_every_check_is_failed_by_a_fake():
    assert set().union(*(entry.get("fails", ()) for entry in SCORES.values())) == set(CHECKS)


def test_every_profile_has_wrong_variants(suite):
    assert {each.profile for each in variants.variants().values()} == suite.requirements.profiles.keys()
