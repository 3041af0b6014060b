"""Barrier rules on stages drawn by hand."""

from __future__ import annotations

from typing import Any

import pytest

from semtrace.errors import UsageError
from semtrace.graph.barrier import barrier
from semtrace.graph.legality import judge
from support.graphs import Graph, graph

Groups = list[tuple[str, str]]


def operation(name: str, stage: str | None = None, *after: Any, session: str | None = None) -> dict[str, Any]:
    made: dict[str, Any] = {"name": name, "duration_ns": 1, "after": list(after)}
    if stage:
        made["stage"] = stage
    if session:
        made["session"] = session
    return made


def groups(made: Graph, rule: Any, **options: Any) -> Groups:
    """The groups of a plan that is legal, with one letter for each operation."""
    plan = barrier(made.trace, rule, **options)
    assert judge(made.trace, plan).findings == []
    return [("".join(made.names(group.wait)), "".join(made.names(group.hold))) for group in plan.groups]


# Four agents of one stage; d hears of a.
AGENTS = {
    "stages": [{"name": "s"}],
    "operations": [
        operation("a", "s", session="A"),
        operation("b", "s", session="B"),
        operation("c", "s", session="C"),
        operation("d", "s", "a", session="D"),
        operation("e", "s", session="B"),
        operation("z", "s", "a", "b", "c", "d", "e"),
    ],
}


@pytest.mark.parametrize(
    ("rule", "options", "wanted"),
    [
        # a, b+e and c know nothing of each other; d is a level of its own. z has no session.
        ("chain", {}, [("a", "be"), ("be", "c")]),
        ("width", {"width": 1}, [("a", "be"), ("be", "c")]),
        ("width", {"width": 2}, [("a", "c")]),
        ("width", {"width": 3}, []),
        # Depth 0: a, b, c, e; depth 1: d; depth 2: z, which waits for everything already.
        ("level", {}, [("abce", "d")]),
        # One stage only: nothing to serialise.
        ("stages", {}, []),
    ],
)
def test_rules_on_one_stage(rule: str, options: dict[str, Any], wanted: Groups):
    assert groups(graph(AGENTS), rule, **options) == wanted


# Two stages nested in one, each with two agents, and one beside it.
NESTED = {
    "stages": [
        {"name": "outer"},
        {"name": "left", "parent": "outer"},
        {"name": "right", "parent": "outer"},
        {"name": "empty", "parent": "outer"},
        {"name": "beside"},
    ],
    "operations": [
        operation("a", "left", session="A"),
        operation("b", "left", session="B"),
        operation("c", "right", session="A"),
        operation("d", "right", session="B"),
        operation("o", "outer", session="C"),
        operation("x", "beside", session="A"),
    ],
}


@pytest.mark.parametrize(
    ("rule", "options", "wanted"),
    [
        # The branches of outer are left and right, not o and not the empty stage; then those of left and right.
        ("chain", {}, [("ab", "cd"), ("a", "b"), ("c", "d")]),
        ("chain", {"stages": ["outer"]}, [("ab", "cd")]),
        ("chain", {"stages": ["right"]}, [("c", "d")]),
        ("stages", {}, [("abcdo", "x")]),
        ("stages", {"stages": ["left", "right", "beside"]}, [("ab", "cd"), ("cd", "x")]),
        # A stage and one nested in it share operations: neither can wait for the other.
        ("stages", {"stages": ["outer", "left"]}, []),
        ("level", {}, []),
    ],
)
def test_rules_on_nested_stages(rule: str, options: dict[str, Any], wanted: Groups):
    made = graph(NESTED)
    if "stages" in options:
        options = {"stages": [made.stages[name] for name in options["stages"]]}
    assert groups(made, rule, **options) == wanted


def test_a_task_without_stages_is_one():
    made = graph(
        {
            "operations": [
                operation("a", session="A"),
                operation("b", session="B"),
                operation("c", None, "a", session="A"),
            ]
        }
    )
    assert groups(made, "chain") == [("ac", "b")]
    assert groups(made, "level") == [("ab", "c")]
    assert groups(made, "stages") == []
    assert groups(made, "chain", stages=[]) == []


def test_branches_that_wait_for_each_other_are_left_alone():
    """A and B take turns; C comes after both; D is free, and alone on its level."""
    made = graph(
        {
            "stages": [{"name": "s"}],
            "operations": [
                operation("a", "s", session="A"),
                operation("b", "s", "a", session="B"),
                operation("c", "s", "b", session="A"),
                operation("d", "s", "c", session="B"),
                operation("e", "s", "d", session="C"),
                operation("f", "s", session="D"),
            ],
        }
    )
    assert groups(made, "chain") == []


def test_level_does_not_wait_for_what_runs_beside():
    """b starts with a and is one hop behind x: it waits for x, and cannot wait for a."""
    made = graph(
        {
            "stages": [{"name": "s"}],
            "operations": [
                operation("a", "s"),
                operation("x", "s"),
                operation("y", "s"),
                operation("b", "s", {"source": "a", "trigger": "start"}, "x"),
            ],
        }
    )
    assert groups(made, "level") == [("xy", "b")]


def test_barriers_of_two_stages_do_not_wait_for_each_other():
    """In each stage alone, the levels are legal. Both together would make the circle f → b → c → e → f."""
    made = graph(
        {
            "stages": [{"name": "x"}, {"name": "y"}],
            "operations": [
                operation("a", "x"),
                operation("b", "x", "a"),  # depth 1 in x
                operation("c", "y", "b"),  # depth 0 in y: nothing of y is before it
                operation("d", "y"),
                operation("e", "y", "d"),  # depth 1 in y
                operation("f", "x", "e"),  # depth 0 in x
            ],
        }
    )
    assert groups(made, "level", stages=[made.stages["x"]]) == [("af", "b")]
    assert groups(made, "level", stages=[made.stages["y"]]) == [("cd", "e")]
    # With the barrier of x, c comes after f and so after e: the depths in y follow from it.
    assert groups(made, "level") == [("af", "b")]


def test_chains_of_two_stages_do_not_wait_for_each_other():
    """P before Q in x, R before S in y, and the graph leads from Q to R and from S to P."""
    made = graph(
        {
            "stages": [{"name": "x"}, {"name": "y"}],
            "operations": [
                operation("a", "x", session="P"),
                operation("b", "x", session="Q"),
                operation("c", "y", "b", session="R"),
                operation("d", "y", session="S"),
                operation("e", "x", "d", session="P"),
                operation("f", "y", session="R"),
            ],
        }
    )
    assert groups(made, "chain", stages=[made.stages["x"]]) == [("ae", "b")]
    assert groups(made, "chain", stages=[made.stages["y"]]) == [("cf", "d")]
    assert groups(made, "chain") == [("ae", "b")]


def test_options_say_how_a_plan_was_made():
    """ST-PLAN-028."""
    made = graph(NESTED)
    assert barrier(made.trace, "chain").options == {"rule": "chain"}
    assert barrier(made.trace, "width", width=2, stages=[2, 1, 2]).options == {
        "rule": "width",
        "width": 2,
        "stages": [1, 2],
    }


@pytest.mark.parametrize(("options", "code"), [({"width": 0}, "plan.width"), ({"stages": [5]}, "plan.stage")])
def test_wrong_options(options: dict[str, Any], code: str):
    with pytest.raises(UsageError) as caught:
        barrier(graph(NESTED).trace, "width", **options)
    assert caught.value.code == code
