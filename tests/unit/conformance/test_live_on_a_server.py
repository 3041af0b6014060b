"""Replayers are sent to the witness and certified: ours, and the small one that the wrong ones are made of."""

from __future__ import annotations

import pytest
import semtrace_testee

import golden
import live_replayer
import live_variants
from semtrace.errors import UsageError
from semtrace_conformance.certificate import make, verify
from semtrace_conformance.live.harness import WitnessProcess
from semtrace_conformance.observe import observe_execution
from semtrace_conformance.reports import graded, html
from semtrace_conformance.runner import Runner, order
from semtrace_conformance.suite import SPEC
from semtrace_conformance.tables import Tables
from semtrace_conformance.witness import Script


class Declaring(semtrace_testee.Testee):
    """A testee with some features; by default it is ours, else a small replayer."""

    def __init__(self, features, kind=None) -> None:
        self.features = features
        if kind is not None:
            self.replay_live = lambda inputs, ask, output=None: live_replayer.replay_live(
                kind, inputs, ask, output
            )

    def handle(self, message):
        answer = super().handle(message)
        if message["type"] == "start":
            answer["profiles"] = {name: list(self.features) for name in ("live", "token_locked")}
        return answer


def certified(suite, testee, *names):
    cases = order(suite.cases, lambda case: case.id in names)
    outcome = Runner(suite, lambda _: golden.Inside(testee)).run(cases)
    return make(suite, outcome, ["x"], selection=names)


def test_ours_is_certified_by_both_grades(suite):
    made = certified(suite, Declaring(["plans", "record"]), "live/added-edges", "token_locked/ids")
    assert [(result.case, result.failures) for result in made.results if result.failures] == []
    claim = made.profiles["live"]
    assert (claim.points, claim.of) == (1, 1)
    assert claim.grades.witnessed == claim.grades.self_reported
    assert claim.grades.lateness["requests"] == 4
    assert verify(made, suite) == []
    assert graded("live", claim) in html(made, suite)


def test_what_a_certificate_says_of_lateness_is_derived_again(suite):
    made = certified(suite, Declaring(["plans"], live_variants.Right), "live/added-edges")
    claim = made.profiles["live"]
    assert (claim.points, claim.grades.self_reported) == (1, None)
    assert "not self-reported" in graded("live", claim)
    better = claim.grades.model_copy(update={"lateness": {**claim.grades.lateness, "p50_ns": 1}})
    forged = made.model_copy(update={"profiles": {"live": claim.model_copy(update={"grades": better})}})
    assert "its profiles are not those that follow from its results" in verify(forged, suite)


def test_a_witness_that_is_at_fault_is_told_of(tmp_path):
    witness = WitnessProcess()
    try:
        (tmp_path / "record").write_text("here already", "utf-8")
        with pytest.raises(UsageError, match="the witness is at fault"):
            witness.begin(Script(), tmp_path / "record")
        assert witness.begin(Script(), tmp_path / "other").startswith("http://127.0.0.1:")
        assert witness.end()["columns"]["request_id"] == []
        witness._process.kill()
        witness._process.wait()
        with pytest.raises(UsageError, match="it does not answer"):
            witness.end()
    finally:
        witness.close()


def test_what_is_no_execution_is_said(suite, tmp_path):
    tables = Tables.read(suite.root / "requirements" / f"tables-{SPEC}.json")
    assert observe_execution(tmp_path / "nothing", tables) == {}
    (tmp_path / "text").write_text("no bundle", "utf-8")
    assert "neither a directory nor a ZIP file" in observe_execution(tmp_path / "text", tables)["problems"][0]
    case = suite.cases["audit/clean"]
    found = observe_execution(suite.lay_out(case, tmp_path / "audit")["execution"], tables)["execution"]
    assert len(found["events"]["instance"]) == 18
    assert set(found["events"]["output_digest"]) == {None}
    trace = suite.lay_out(case, tmp_path / "again")["trace"]
    assert observe_execution(trace, tables)["problems"] == ["it has the executions [], must have one, `run`"]
