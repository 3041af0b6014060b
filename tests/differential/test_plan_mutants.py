"""Faults planted in the judgement of plans, each of which the comparison with brute force must notice."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from semtrace.graph import legality
from semtrace.graph.reach import Reach, reach
from semtrace.records.enums import Trigger
from support.plan_oracle import judged_otherwise
from support.random_graphs import random_constraints, random_graph

if TYPE_CHECKING:
    from collections.abc import Callable

    from semtrace.graph.plan import Plan

SEEDS = range(150)


def changed_plan(function: str, change: Callable[[Plan], Plan]) -> Callable[[pytest.MonkeyPatch], None]:
    """Let a function of the judgement see another plan, its last argument."""
    original = getattr(legality, function)
    return lambda patch: patch.setattr(
        legality, function, lambda *arguments: original(*arguments[:-1], change(arguments[-1]))
    )


def direct_only(links: Any, chosen: Any) -> Reach:
    found = reach([], chosen)
    for target, source, trigger in links:
        if source in found.bit:
            masks = found.by_trigger[trigger]
            masks[target] = masks.get(target, 0) | found.bit[source]
    return found


def finish_only(links: Any, chosen: Any) -> Reach:
    return reach([link for link in links if link[2] == Trigger.FINISH], chosen)


def first_pair(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda base, known, group, at: original(
        base, known, group.model_copy(update={"wait": group.wait[:1], "hold": group.hold[:1]}), at
    )


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "triggers are not looked at": lambda patch: patch.setattr(
        legality, "reach", lambda links, chosen: reach([(v, u, Trigger.FINISH) for v, u, _ in links], chosen)
    ),
    "only finish edges make paths": lambda patch: patch.setattr(legality, "reach", finish_only),
    "only edges are paths": lambda patch: patch.setattr(legality, "reach", direct_only),
    "first tokens come last": lambda patch: patch.setitem(legality.TRIGGER_ORDER, Trigger.FIRST_TOKEN, 3),
    "lags never matter": lambda patch: patch.setattr(legality, "_lag", lambda *_: 1 << 60),
    "recorded lags do not count": lambda patch: patch.setattr(legality, "_lag", lambda *_: 0),
    "circles are not looked for": lambda patch: patch.setattr(legality, "_joint_cycle", lambda *_: ()),
    "circles through groups are not seen": changed_plan(
        "_joint_cycle", lambda plan: plan.model_copy(update={"groups": []})
    ),
    "circles through edges are not seen": changed_plan(
        "_joint_cycle", lambda plan: plan.model_copy(update={"edges": []})
    ),
    "groups are judged by one pair": lambda patch: patch.setattr(
        legality, "_judge_group", first_pair(legality._judge_group)
    ),
    "contradictions are taken as implied": lambda patch: patch.setattr(
        legality,
        "_judge_edge",
        lambda base, known, edge, at, explain, judge=legality._judge_edge: _softened(
            judge(base, known, edge, at, explain=explain)
        ),
    ),
}


def _softened(verdict: legality.Verdict) -> legality.Verdict:
    return replace(verdict, kind="redundant") if verdict.kind == "contradicts" else verdict


def caught() -> str | None:
    for seed in SEEDS:
        rng = Random(seed)
        made = random_graph(rng, tasks=2)
        plan = random_constraints(rng, made)
        found = judged_otherwise(made.trace, plan, legality.judge(made.trace, plan))
        if found:
            return f"seed {seed}: {found}"
    return None


def test_nothing_is_found_without_a_fault():
    assert caught() is None


@pytest.mark.parametrize("name", MUTANTS)
def test_fault_is_caught(name: str, monkeypatch: pytest.MonkeyPatch):
    MUTANTS[name](monkeypatch)
    assert caught() is not None
