"""Plans of random graphs: legality and barrier rules against brute force, and what barriers promise."""

from __future__ import annotations

import re
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from semtrace.graph.barrier import barrier
from semtrace.graph.legality import judge
from semtrace.graph.plan import dag
from semtrace.graph.resolve import resolve
from semtrace.records.enums import Trigger
from semtrace.replay.run import replay
from semtrace.store.digests import show, work_digest
from semtrace.testing.traces import TraceShape, random_trace
from support.graphs import Graph, events, graph, scenario
from support.plan_oracle import (
    IN_TIME,
    barrier_groups,
    jointly_cyclic,
    judged_otherwise,
    pairs_of,
    recorded,
)
from support.random_graphs import random_barrier, random_constraints, random_graph, random_operation

if TYPE_CHECKING:
    from semtrace.graph.plan import Plan
    from semtrace.records.trace import Trace

RANDOM = st.randoms(use_true_random=False)
FAIR = settings(max_examples=150, deadline=None, derandomize=True)


@FAIR
@given(RANDOM)
def test_judgement_equals_brute_force(rng: Random):
    made = random_graph(rng, tasks=2)
    plan = random_constraints(rng, made)
    assert judged_otherwise(made.trace, plan, judge(made.trace, plan)) is None


@FAIR
@given(RANDOM)
def test_paths_and_circles_that_are_told_exist(rng: Random):
    made = random_graph(rng, tasks=1)
    plan = random_constraints(rng, made, count=5)
    links = recorded(made.trace)
    steps = {(source, target) for source, target, _ in links.edges}
    for verdict in judge(made.trace, plan).verdicts:
        path = verdict.path
        assert all(step in steps for step in pairwise(path))
        if verdict.kind == "independent":
            assert path == ()
            continue
        ends = (
            (verdict.target, verdict.source)
            if verdict.kind == "contradicts"
            else (verdict.source, verdict.target)
        )
        assert (path[0], path[-1]) == ends
        assert " → ".join(map(str, path)) in verdict.proof
        if verdict.kind in {"redundant", "delays"}:
            asked = Trigger.FINISH if verdict.edge is None else plan.edges[verdict.edge].trigger_number
            late = IN_TIME[IN_TIME.index(asked) :]
            assert any((path[0], path[1], trigger) in links.edges for trigger in late)
    for finding in judge(made.trace, plan).findings:
        if finding.requirement == "ST-PLAN-012":
            nodes = re.findall(r"(?:group )?\d+", finding.message.split(": ", 1)[1])
            added = set(pairs_of({**plan.as_json(), "groups": []}))
            for at, group in enumerate(plan.groups):
                added |= {(operation, f"group {at}") for operation in group.wait}
                added |= {(f"group {at}", operation) for operation in group.hold}
            circle = [int(node) if node.isdigit() else node for node in nodes]
            assert circle[0] == circle[-1]
            assert len(circle) > 2
            assert all(step in steps | added for step in pairwise(circle))


def test_circles_are_met_with():
    """The properties above would say nothing of circles if none came up."""
    seen = 0
    for seed in range(150):
        rng = Random(seed)
        made = random_graph(rng, tasks=2)
        found = judge(made.trace, random_constraints(rng, made)).findings
        seen += any(finding.requirement == "ST-PLAN-012" for finding in found)
    assert seen >= 5


@FAIR
@given(RANDOM)
def test_barrier_groups_equal_brute_force(rng: Random):
    made = random_graph(rng, tasks=2, operations=9)
    count = made.trace["stages"].rows
    stages = rng.sample(range(count), rng.randint(1, count)) if count and rng.random() < 0.4 else None
    rule = rng.choice(("chain", "level", "width", "stages"))
    width = rng.randint(1, 3) if rule == "width" else 1
    plan = barrier(made.trace, rule, width=width, stages=stages)
    wanted = barrier_groups(made.trace, rule, width=width, stages=stages)
    assert [(group.wait, group.hold) for group in plan.groups] == wanted
    assert {group.rule for group in plan.groups} <= {rule}


def kept(trace: Trace, plan: Plan) -> bool:
    """Whether a plan keeps every recorded edge."""

    def rows(of: Plan) -> list[tuple[int, ...]]:
        held = resolve(trace, of)
        columns = (held.target, held.source, held.trigger, held.lag_ns)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    return set(rows(dag(show(work_digest(trace))))) <= set(rows(plan))


@FAIR
@given(RANDOM)
def test_barrier_plans_are_legal(rng: Random):
    """ST-PLAN-027."""
    made = random_graph(rng, operations=12)
    plan = random_barrier(rng, made)
    assert judge(made.trace, plan).findings == []
    assert not jointly_cyclic(made.trace, plan.as_json())
    assert kept(made.trace, plan)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.sampled_from(("chain", "level", "width", "stages")))
def test_barrier_plans_of_whole_traces_are_legal(seed: int, rule):
    trace = random_trace(seed, TraceShape(tasks=2, operations=30, sessions=5, stages=6)).trace
    plan = barrier(trace, rule, width=2 if rule == "width" else 1)
    assert judge(trace, plan).findings == []
    assert kept(trace, plan)


def random_stage(rng: Random) -> tuple[Graph, list[list[str]]]:
    """A stage of sessions that know nothing of each other, between a first and a last operation."""
    first = {**random_operation(rng, "first"), "stage": "s"}
    branches = [
        [
            {**random_operation(rng, f"{branch}.{at}"), "stage": "s", "session": branch}
            for at in range(rng.randint(1, 4))
        ]
        for branch in "abcde"[: rng.randint(2, 5)]
    ]
    for branch in branches:
        for at, operation in enumerate(branch):
            operation["after"] = [
                "first",
                *(each["name"] for each in rng.sample(branch[:at], rng.randint(0, at))),
            ]
    inner = [operation for branch in branches for operation in branch]
    rng.shuffle(inner)
    inner.sort(key=lambda operation: operation["name"].partition(".")[2])  # branches interleave
    last = {**random_operation(rng, "last"), "after": [operation["name"] for operation in inner]}
    made = graph({"stages": [{"name": "s"}], "operations": [first, *inner, last]})
    return made, [[operation["name"] for operation in branch] for branch in branches]


@FAIR
@given(RANDOM, st.integers(1, 3))
def test_no_more_branches_run_at_once_than_the_width(rng: Random, width: int):
    made, branches = random_stage(rng)
    plan = barrier(made.trace, "chain") if width == 1 else barrier(made.trace, "width", width=width)
    (times,) = events(made, replay(made.trace, plan, scenario()))
    spans = [
        (min(times[name][0] for name in branch), max(times[name][3] for name in branch))
        for branch in branches
    ]
    for now, _ in spans:
        assert sum(begin <= now < end for begin, end in spans) <= width
