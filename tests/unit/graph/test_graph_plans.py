"""Plans: what keeps one from being applied, how constraints come about, and what judgements say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from semtrace.errors import FormatError, ReplayError
from semtrace.graph.legality import judge
from semtrace.graph.plan import Plan, dag, work_only
from semtrace.graph.resolve import plan_findings, resolve
from support.graphs import Graph, graph

TWO_TASKS = {
    "tasks": [{}, {}],
    "operations": [
        {"name": "a", "task": 0, "duration_ns": 1},
        {"name": "b", "task": 0, "duration_ns": 1, "after": ["a"], "data": ["a"]},
        {
            "name": "c",
            "task": 0,
            "duration_ns": 1,
            "after": [{"source": "b", "trigger": "start", "lag_ns": 4}],
        },
        {"name": "x", "task": 1, "duration_ns": 1},
        {"name": "y", "task": 1, "duration_ns": 1},
    ],
}


def custom(made: Graph, **members: Any) -> Plan:
    return Plan.parse({"work_digest": made.work, "name": "custom", **members}, path="plan")


def rows(made: Graph, plan: Plan) -> list[tuple[int, int, int, int]]:
    held = resolve(made.trace, plan)
    columns = (held.target, held.source, held.trigger, held.lag_ns)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_constraints_are_the_recorded_edges_and_those_added():
    made = graph(TWO_TASKS)
    recorded = [(1, 0, 1, 0), (1, 0, 1, 0), (2, 1, 2, 4)]  # control and data of b, start of c
    assert rows(made, dag(made.work)) == recorded
    assert rows(made, work_only(made.work)) == [(1, 0, 1, 0)]
    plan = custom(made, edges=[{"source": 4, "target": 3, "trigger": "first_token", "lag_ns": 7}])
    assert rows(made, plan) == [*recorded, (3, 4, 3, 7)]
    grouped = resolve(made.trace, custom(made, groups=[{"wait": [2, 0], "hold": [1]}]))
    assert [wait.tolist() for wait in grouped.waits] == [[0, 2]]
    assert [hold.tolist() for hold in grouped.holds] == [[1]]
    assert grouped.in_degree.tolist() == [0, 3, 1, 0, 0]


WRONG = {
    "an operation that is not there": ({"edges": [{"source": 0, "target": 9}]}, "ST-PLAN-002"),
    "a group's operation that is not there": ({"groups": [{"wait": [0], "hold": [-1]}]}, "ST-PLAN-002"),
    "operations of two tasks": ({"edges": [{"source": 0, "target": 3}]}, "ST-PLAN-003"),
    "a group of two tasks": ({"groups": [{"wait": [0, 3], "hold": [1]}]}, "ST-PLAN-003"),
    "an edge to itself": ({"edges": [{"source": 2, "target": 2}]}, "ST-PLAN-003"),
    "a group that waits for itself": ({"groups": [{"wait": [0, 2], "hold": [1, 2]}]}, "ST-PLAN-003"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_plan_that_does_not_fit_is_refused(name: str):
    made = graph(TWO_TASKS)
    members, requirement = WRONG[name]
    plan = custom(made, **members)
    assert [finding.requirement for finding in plan_findings(made.trace, plan)] == [requirement]
    assert [finding.requirement for finding in judge(made.trace, plan).findings] == [requirement]
    with pytest.raises(ReplayError) as caught:
        resolve(made.trace, plan)
    assert (caught.value.code, caught.value.requirement) == ("plan.mismatch", requirement)


def test_all_that_does_not_fit_is_found_at_once():
    made = graph(TWO_TASKS)
    plan = Plan.parse(
        {
            "work_digest": "blake3:" + "0" * 64,
            "name": "custom",
            "edges": [{"source": 9, "target": 0}, {"source": 1, "target": 1}],
            "groups": [{"wait": [0], "hold": [4]}],
        },
        path="plan",
    )
    found = [
        (finding.requirement, finding.table, finding.rows) for finding in judge(made.trace, plan).findings
    ]
    assert found == [
        ("ST-PLAN-001", "plan", ()),
        ("ST-PLAN-002", "plan.edges", (0,)),
        ("ST-PLAN-003", "plan.edges", (1,)),
        ("ST-PLAN-003", "plan.groups", (0,)),
    ]


@pytest.mark.parametrize(
    "members",
    [
        {"base": "none"},
        {"edges": [{"source": 0}]},
        {"edges": [{"source": 0, "target": 1, "trigger": "end"}]},
        {"edges": [{"source": 0, "target": 1, "lag_ns": -1}]},
        {"groups": [{"wait": [], "hold": [1]}]},
        {"groups": [{"wait": [1], "hold": [2], "holds": [3]}]},
        {"work_digest": "none"},
    ],
)
def test_documents_that_are_no_plan(members: dict[str, Any]):
    """ST-PLAN-005."""
    with pytest.raises(FormatError):
        Plan.parse({"work_digest": "blake3:" + "0" * 64, "name": "custom", **members}, path="plan")


def test_plan_digest_is_that_of_the_document_with_its_defaults():
    """ST-PLAN-007."""
    short = {"work_digest": "blake3:" + "0" * 64, "name": "dag"}
    long = {**short, "format": "semtrace-plan", "base": "dag", "options": {}, "edges": [], "groups": []}
    plan = Plan.parse(short, path="plan")
    assert plan.content_digest() == Plan.parse(long, path="plan").content_digest()
    assert plan.canonical() == (
        b'{"base":"dag","edges":[],"format":"semtrace-plan","groups":[],"name":"dag","options":{},'
        b'"work_digest":"blake3:' + b"0" * 64 + b'"}'
    )


def test_the_plan_in_the_standard_has_its_bytes_and_digest():
    """ST-PLAN-007."""
    page = (Path(__file__).parents[3] / "spec" / "plans.md").read_text("utf-8")
    hashed, digest = re.search(r"^    (\{.*\})\n    (blake3:\S+)$", page, re.MULTILINE).groups()
    plan = {"work_digest": "blake3:" + 64 * "0", "name": "custom", "edges": [{"source": 0, "target": 2}]}
    read = Plan.parse(plan, path="plan")
    assert (read.canonical().decode(), read.content_digest()) == (hashed, digest)


LEGALITY = {
    "operations": [
        {"name": "a", "duration_ns": 1},
        {"name": "b", "duration_ns": 1, "after": [{"source": "a", "trigger": "start"}]},
        {"name": "c", "duration_ns": 1, "after": ["a"]},
        {"name": "d", "duration_ns": 1, "after": ["c"]},
        {"name": "e", "duration_ns": 1, "after": [{"source": "c", "trigger": "first_token", "lag_ns": 5}]},
        {"name": "f", "duration_ns": 1},
    ]
}
PAIRS = [
    # source, target, trigger, lag, verdict, a part of the proof
    ("d", "a", "finish", 0, "contradicts", "0 cannot wait for 3, which itself waits for 0: 0 → 2 → 3"),
    ("b", "a", "start", 0, "contradicts", "0 cannot wait for 1, which itself waits for 0: 0 → 1"),
    ("a", "d", "finish", 0, "redundant", "already implied: 0 → 2 → 3"),
    ("a", "e", "finish", 0, "redundant", "already implied: 0 → 2 → 4"),
    ("c", "e", "start", 0, "redundant", "already implied: 2 → 4"),
    ("c", "e", "first_token", 5, "redundant", "already implied: 2 → 4"),
    ("c", "e", "first_token", 6, "delays", "6 ns of lag would only delay it"),
    ("a", "d", "finish", 1, "delays", "3 waits for 0 already (0 → 2 → 3); 1 ns of lag would only delay it"),
    ("c", "e", "finish", 0, "overlaps", "4 is released while 2 runs (2 → 4)"),
    ("a", "b", "first_token", 0, "overlaps", "it cannot wait for 0's first_token too"),
    ("b", "c", "finish", 0, "independent", "1 is not among the 1 operations before 2"),
    ("f", "d", "finish", 0, "independent", "5 is not among the 2 operations before 3"),
    ("d", "f", "start", 8, "independent", "nor 5 among the 2 before 3"),
]


@pytest.mark.parametrize(("source", "target", "trigger", "lag", "kind", "proof"), PAIRS)
def test_verdicts_and_their_proofs(source: str, target: str, trigger: str, lag: int, kind: str, proof: str):
    made = graph(LEGALITY)
    edge = {"source": source, "target": target, "trigger": trigger, "lag_ns": lag}
    judgement = judge(made.trace, made.plan({"edges": [edge]}))
    (verdict,) = judgement.verdicts
    assert verdict.kind == kind
    assert proof in verdict.proof
    assert judgement.legal == verdict.legal == (kind in {"independent", "redundant"})
    assert judgement.redundant_edges == ([0] if kind == "redundant" else [])


def test_a_redundant_edge_is_proved_by_a_path_that_implies_it():
    """The shorter path begins with a start; only the longer one orders the two."""
    made = graph(
        {
            "operations": [
                {"name": "a", "duration_ns": 1},
                {"name": "b", "duration_ns": 1, "after": ["a"]},
                {"name": "c", "duration_ns": 1, "after": ["b", {"source": "a", "trigger": "start"}]},
            ]
        }
    )
    (verdict,) = judge(made.trace, made.plan({"edges": [{"source": "a", "target": "c"}]})).verdicts
    assert (verdict.kind, verdict.path) == ("redundant", (0, 1, 2))


def test_groups_are_judged_pair_by_pair():
    made = graph(LEGALITY)
    plan = made.plan(
        {
            "groups": [
                {"wait": ["a", "b"], "hold": ["d", "f"]},
                {"wait": ["b", "c"], "hold": ["e", "f"]},
                {"wait": ["d", "f"], "hold": ["a", "b"]},
            ]
        }
    )
    judgement = judge(made.trace, plan)
    assert [(group.pairs, group.redundant, group.independent) for group in judgement.groups] == [
        (4, 1, 3),
        (4, 0, 0),
        (4, 0, 0),
    ]
    assert [(verdict.group, verdict.kind, verdict.path) for verdict in judgement.verdicts] == [
        (1, "overlaps", (2, 4)),
        (2, "contradicts", (0, 2, 3)),
    ]
    assert [(finding.requirement, finding.rows) for finding in judgement.findings] == [
        ("ST-PLAN-011", (1,)),
        ("ST-PLAN-010", (2,)),
    ]


def test_a_circle_of_constraints_that_are_each_legal_is_told():
    made = graph({"operations": [{"name": name, "duration_ns": 1} for name in "abcd"]})
    plan = made.plan(
        {
            "edges": [{"source": "d", "target": "a"}],
            "groups": [{"wait": ["a", "b"], "hold": ["c"]}, {"wait": ["c"], "hold": ["d"]}],
        }
    )
    judgement = judge(made.trace, plan)
    assert all(verdict.legal for verdict in judgement.verdicts)
    (finding,) = judgement.findings
    assert finding.requirement == "ST-PLAN-012"
    circle = finding.message.split(": ", 1)[1].split(" → ")
    assert circle[0] == circle[-1]
    at = circle.index("0")
    assert circle[at:-1] + circle[:at] == ["0", "group 0", "2", "group 1", "3"]


def test_work_only_is_never_legal_whatever_it_adds():
    """ST-PLAN-004."""
    made = graph(LEGALITY)
    assert [finding.requirement for finding in judge(made.trace, work_only(made.work)).findings] == [
        "ST-PLAN-004"
    ]
    both = judge(made.trace, made.plan({"base": "work-only", "edges": [{"source": "d", "target": "a"}]}))
    assert [finding.requirement for finding in both.findings] == ["ST-PLAN-004", "ST-PLAN-010"]


def test_proofs_of_many_edges_are_counted_not_written():
    names = [f"o{at}" for at in range(60)]
    made = graph({"operations": [{"name": name, "duration_ns": 1} for name in names]})
    edges = [{"source": u, "target": v} for at, u in enumerate(names) for v in names[at + 1 :]]
    judgement = judge(made.trace, made.plan({"edges": edges}))
    assert judgement.legal
    assert len(judgement.verdicts) == 1770
    assert judgement.verdicts[-1].proof == "no path either way"
