"""Reuse of tokens is declared by a decision, and paid for: engines that break either are caught by the rule on it alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from engine_runs import found

from semtrace.engine.lifecycle import Lifecycle
from semtrace.engine.lifecycle_log import LifecycleLog
from semtrace.engine.mechanism import Mechanism
from semtrace.measure.audit import audit
from support.rounds import all_gather

if TYPE_CHECKING:
    from support.lifecycle import Ran

DOCUMENT = {"blocks": 60, "block_size": 4, "cost": [10, 0, 10, 1, 0]}
SETTINGS = {"least_tokens": 4, "rope_ns_per_token": 1}


def run(policy: str) -> Ran:
    """Three agents that read each other's answers: some of each prompt is adapted, which takes time."""
    return all_gather((6, 9, 5), 8, 1, {**DOCUMENT, "policy": {"name": policy, "settings": SETTINGS}})


@pytest.mark.parametrize("policy", ["pic", "tokendance"])
def test_the_sound_engine_is_clean_and_every_step_is_judged(policy: str):
    ran = run(policy)
    report = audit(ran.trace, ran.execution)
    assert report.findings == []
    assert (
        sum(row["reused_tokens"] > 0 for row in ran.rows("events") if row["reused_tokens"] is not None) == 3
    )
    assert "charge_ns" in "".join(row["choice"] for row in ran.rows("decisions"))
    assert report.rule("ST-AUD-069").judged == ran.execution["steps"].rows


def test_reuse_that_is_not_paid_for(monkeypatch: pytest.MonkeyPatch):
    admitted = Lifecycle.admitted
    monkeypatch.setattr(Lifecycle, "admitted", lambda self, *given: admitted(self, *given) * 0)
    assert set(found(run("pic"))) == {"ST-AUD-069"}


def test_reuse_that_no_decision_declares(monkeypatch: pytest.MonkeyPatch):
    """The engine carries out what it does not write down."""
    decision = LifecycleLog.decision

    def silent(self: LifecycleLog, now: int, policy: str, event: Any, inputs: str, choice: str) -> None:
        if not choice.startswith("reuse("):
            decision(self, now, policy, event, inputs, choice)

    monkeypatch.setattr(LifecycleLog, "decision", silent)
    assert set(found(run("pic"))) == {"ST-AUD-084"}


def test_more_reuse_than_was_decided(monkeypatch: pytest.MonkeyPatch):
    reuse = Mechanism._reuse

    def more(self: Mechanism, call: Any, action: Any) -> str | None:
        return reuse(self, call, type(action)(**{**vars(action), "tokens": action.tokens + 1}))

    monkeypatch.setattr(Mechanism, "_reuse", more)
    assert set(found(run("pic"))) == {"ST-AUD-084"}
