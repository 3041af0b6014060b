"""The cases of the profile planner: legal and illegal plans with the paths that forbid them, and barrier plans."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from semtrace_conformance.making.planning import added_steps, barrier, judge, recorded_steps
from semtrace_conformance.making.random_work import random_plan, random_work
from semtrace_conformance.making.release_cases import FORK, document, trace_of
from semtrace_conformance.making.timing import plan_digest
from semtrace_conformance.making.work import FIRST, START, After, Op, TaskFacts, Work, llm, tool

if TYPE_CHECKING:
    from semtrace_conformance.making.book import Book

Json = Mapping[str, Any]

# a → b and a starts c; e is beside them, d and f behind it; the second task has g alone.
BASE = Work(
    [
        llm("a", 5, 5),
        tool("b", 1, After("a", lag_ns=20)),
        tool("c", 1, After("a", START)),
        tool("d", 1, "b", "c"),
        tool("e", 1),
        tool("f", 1, After("e", FIRST)),
        tool("g", 1, task=1),
    ],
    [TaskFacts(), TaskFacts()],
)


def add_planner(book: Book) -> None:
    """Add all cases of the profile."""
    _legal(book)
    _illegal(book)
    _mismatched(book)
    _barriers(book)


def _judge(book: Book, name: str, title: str, requirements: Sequence[str], work: Work, plan: Json) -> None:
    bundle, digest = trace_of(work)
    full = {"work_digest": digest, "name": "custom", **plan}
    judged = judge(work, full)
    if judged.against or judged.circle:
        raise ValueError(f"{name}: the plan is not legal: {judged}")
    book.accept(
        f"planner/{name}",
        title,
        requirements,
        kind="judge",
        files={"trace.semtrace": bundle, "plan.json": document(full)},
        inputs={"trace": "trace.semtrace", "plan": "plan.json"},
        facts={"verdicts": judged.verdicts, "plan_digest": plan_digest(full)},
        features=["judge"],
    )


def _edge(source: str, target: str, trigger: str | None = None, lag_ns: int | None = None) -> Json:
    edge: dict[str, Any] = {"source": BASE.number(source), "target": BASE.number(target)}
    if trigger is not None:
        edge["trigger"] = trigger
    if lag_ns is not None:
        edge["lag_ns"] = lag_ns
    return edge


def _group(wait: str, hold: str) -> Json:
    return {"wait": [BASE.number(name) for name in wait], "hold": [BASE.number(name) for name in hold]}


def _legal(book: Book) -> None:
    _judge(
        book, "edge", "a constraint between two that are independent, with a trigger and a lag",
        ["ST-PLAN-005", "ST-PLAN-007", "ST-PLAN-015"], BASE, {"edges": [_edge("e", "b", "first_token", 9)]},
    )  # fmt: skip
    _judge(
        book, "group", "a group, and an edge from a higher to a lower operation",
        ["ST-PLAN-003", "ST-PLAN-007", "ST-PLAN-015"], BASE,
        {"edges": [_edge("f", "b")], "groups": [_group("e", "bcd")]},
    )  # fmt: skip
    _judge(
        book, "nothing", "a plan that adds nothing", ["ST-PLAN-005", "ST-PLAN-007"], BASE,
        {"name": "dag", "notes.example.org/why": "none"},
    )  # fmt: skip
    _judge(
        book, "redundant", "constraints that are there already: by trigger, by path, by lag, in a group",
        ["ST-PLAN-014"], BASE,
        {
            "edges": [
                _edge("a", "b"), _edge("a", "b", "start"), _edge("a", "b", "finish", 20), _edge("a", "b", "start", 7),
                _edge("a", "d"), _edge("a", "c", "start"), _edge("e", "f", "start"), _edge("e", "f", "first_token"),
            ],
            "groups": [_group("bc", "d")],
        },
    )  # fmt: skip
    for seed in (20, 21):
        work = random_work(seed, tasks=2, operations=14)
        plan = random_plan(seed, work, trace_of(work)[1], edges=8, groups=4)
        _judge(
            book,
            f"random-{seed}",
            f"a random plan for random work {seed}",
            ["ST-PLAN-014", "ST-PLAN-015"],
            work,
            plan,
        )


def _illegal(book: Book) -> None:
    def change(base: str, name: str, mutation: str, requirement: str, **plan: Any) -> None:
        full = {"work_digest": trace_of(BASE)[1], "name": "custom", **plan}
        judged = judge(BASE, full)
        if requirement == "ST-PLAN-012":
            right = judged.circle
            path: Json = {
                "edges": sorted(recorded_steps(BASE) + added_steps(full)),
                "added": added_steps(full),
                "circle": True,
            }
        else:
            right = set(judged.against) == {requirement}
            path = {"edges": recorded_steps(BASE), "ends": judged.against.get(requirement, [])}
        if not right:
            raise ValueError(f"{name}: {judged}")
        book.change(
            f"planner/{base}", f"planner/{name}", mutation, [requirement],
            files={"plan.json": document(full)}, path=path, tests=[requirement, "ST-PLAN-016"],
        )  # fmt: skip

    change(
        "edge",
        "backwards",
        "the target is one that the source waits for",
        "ST-PLAN-010",
        edges=[_edge("e", "b"), _edge("d", "b")],
    )
    change(
        "edge",
        "backwards-by-start",
        "it is backwards along an edge with trigger start",
        "ST-PLAN-010",
        edges=[_edge("c", "a", "start")],
    )
    change(
        "edge",
        "backwards-far",
        "it is backwards along a path of several edges",
        "ST-PLAN-010",
        edges=[_edge("d", "a", "first_token", 3)],
    )
    change(
        "edge", "overlap", "the two overlap: the one starts the other", "ST-PLAN-011", edges=[_edge("a", "c")]
    )
    change("edge", "overlap-first-token", "it waits for the first token, the two overlap from the start on", "ST-PLAN-011",
           edges=[_edge("a", "c", "first_token")])  # fmt: skip
    change(
        "edge",
        "overlap-of-tools",
        "the end of a tool stands for its first token, and is no end",
        "ST-PLAN-011",
        edges=[_edge("e", "f")],
    )
    change(
        "edge",
        "delay",
        "the two are in order already, and the lag delays",
        "ST-PLAN-013",
        edges=[_edge("a", "b", "finish", 21)],
    )
    change(
        "edge",
        "delay-of-path",
        "a path has them in order already, and the lag delays",
        "ST-PLAN-013",
        edges=[_edge("a", "d", "finish", 1)],
    )
    change("edge", "delay-of-start", "the lag is more than that of the edge with this trigger", "ST-PLAN-013",
           edges=[_edge("a", "c", "start", 1)])  # fmt: skip
    change("group", "group-backwards", "one that the group holds leads to one that it waits for", "ST-PLAN-010",
           groups=[_group("ed", "ab")])  # fmt: skip
    change("group", "group-overlap", "one that the group holds is started by one that it waits for", "ST-PLAN-011",
           groups=[_group("ae", "bc")])  # fmt: skip
    change("edge", "two-edges-in-a-circle", "two edges, each legal, make a circle", "ST-PLAN-012",
           edges=[_edge("b", "e"), _edge("f", "a")])  # fmt: skip
    change(
        "edge",
        "each-other",
        "two operations wait for each other",
        "ST-PLAN-012",
        edges=[_edge("b", "e"), _edge("e", "b", "start")],
    )
    change("group", "group-and-edge-in-a-circle", "a group and an edge, each legal, make a circle", "ST-PLAN-012",
           edges=[_edge("d", "e")], groups=[_group("f", "ac")])  # fmt: skip
    change("group", "groups-in-a-circle", "two groups, each legal, make a circle", "ST-PLAN-012",
           groups=[_group("be", "c"), _group("c", "f"), _group("f", "b")])  # fmt: skip


def _mismatched(book: Book) -> None:
    digest = trace_of(BASE)[1]

    def change(name: str, mutation: str, requirements: Sequence[str], **plan: Any) -> None:
        full = document({"work_digest": digest, "name": "custom", **plan})
        book.change("planner/edge", f"planner/{name}", mutation, requirements, files={"plan.json": full})

    change("other-work", "it is for other work", ["ST-PLAN-001"], work_digest="blake3:" + 64 * "a")
    change(
        "operation-not-there",
        "it names an operation that is not there",
        ["ST-PLAN-002"],
        edges=[{"source": 0, "target": 7}],
    )
    change(
        "group-not-there",
        "its group names an operation that is not there",
        ["ST-PLAN-002"],
        groups=[{"wait": [1], "hold": [70]}],
    )
    change("two-tasks", "the two are of different tasks", ["ST-PLAN-003"], edges=[_edge("b", "g")])
    change(
        "group-of-two-tasks",
        "its group has operations of two tasks",
        ["ST-PLAN-003"],
        groups=[_group("e", "bg")],
    )
    change("itself", "an operation waits for itself", ["ST-PLAN-003"], edges=[_edge("b", "b")])
    change(
        "group-itself",
        "an operation stands on both sides of its group",
        ["ST-PLAN-003"],
        groups=[_group("eb", "b")],
    )
    change("work-only", "it drops recorded edges", ["ST-PLAN-004"], base="work-only")
    change("key", "it has a member that plans do not have", ["ST-DOC-001"], groupes=[])
    change("negative-lag", "a lag is negative", ["ST-DOC-001"], edges=[_edge("e", "b", "start", -1)])
    change("empty-group", "its group holds nothing", ["ST-DOC-001"], groups=[{"wait": [1], "hold": []}])


NESTED = Work(
    [
        tool("o0", 1),
        llm("o1", 5, 5, "o0", stage="left", session="s1"),
        tool("o2", 1, "o1", stage="left", session="s1"),
        llm("o3", 5, 5, "o0", stage="right", session="s2"),
        tool("o4", 1, After("o3", START), stage="right", session="s3"),
        tool("o5", 1, "o4", stage="third", session="s3"),
        tool("o6", 1, stage="third", session="s4"),
        Op("o7", ("o2", "o5"), duration=1, stage="review", session="s5"),
        llm("o8", 5, 5, After("o0", FIRST), stage="review", session="s6"),
        tool("o9", 1, "o8", stage="review", session="s6"),
        tool("o10", 1, "o7", stage="review"),
        tool("p0", 1, task=1, session="t1"),
        tool("p1", 1, task=1, session="t2"),
        tool("p2", 1, "p0", task=1, session="t1"),
        tool("p3", 1, task=1, session="t3"),
    ],
    [TaskFacts(), TaskFacts()],
    {
        "work": (None, 0),
        "left": ("work", 0),
        "right": ("work", 0),
        "third": ("work", 0),
        "review": (None, 0),
        "idle": ("review", 0),
    },
)
# Branches that depend on each other, both ways, and in a row.
LEVELS = Work(
    [
        tool("a", 1, stage="s", session="1"),
        tool("b", 1, stage="s", session="2"),
        tool("c", 1, "a", stage="s", session="3"),
        tool("d", 1, "b", stage="s", session="4"),
        tool("e", 1, "c", stage="s", session="5"),
        tool("f", 1, stage="s", session="6"),
        tool("g", 1, "f", stage="s", session="7"),
        tool("h", 1, "g", stage="s", session="6"),
        tool("i", 1, "h", stage="s", session="8"),
        tool("j", 1, stage="s", session="9"),
    ],
    stages={"s": (None, 0)},
)


def _barriers(book: Book) -> None:
    def case(
        name: str, title: str, requirements: Sequence[str], work: Work, rule: str,
        width: int | None = None, stages: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        bundle, _ = trace_of(work)
        groups = barrier(work, rule, width=width or 1, stages=stages)
        ask: dict[str, Any] = {"rule": rule}
        if width is not None:
            ask["width"] = width
        if stages is not None:
            ask["stages"] = list(stages)
        judged = judge(work, {"groups": groups})
        if judged.against or judged.circle:
            raise ValueError(f"{name}: the groups are not legal: {judged}")
        book.accept(
            f"planner/barrier-{name}",
            title,
            ["ST-PLAN-027", "ST-PLAN-028", *requirements],
            kind="barrier",
            files={"trace.semtrace": bundle},
            inputs={"trace": "trace.semtrace"},
            facts={"groups": groups, "options": ask},
            ask=ask,
            features=["barrier"],
        )

    case(
        "chain", "two sessions of a stage, one after the other", ["ST-PLAN-020", "ST-PLAN-023"], FORK, "chain"
    )
    case("level", "hop by hop", ["ST-PLAN-025"], FORK, "level")
    case(
        "nested-chain",
        "nested stages and sessions",
        ["ST-PLAN-020", "ST-PLAN-021", "ST-PLAN-023"],
        NESTED,
        "chain",
    )
    case(
        "nested-level", "hop by hop, with stages made before", ["ST-PLAN-021", "ST-PLAN-025"], NESTED, "level"
    )
    case("nested-width-1", "one branch at a time", ["ST-PLAN-024"], NESTED, "width", 1)
    case("nested-width-2", "two branches at a time", ["ST-PLAN-024"], NESTED, "width", 2)
    case("stages", "whole stages, the outermost ones", ["ST-PLAN-026"], NESTED, "stages")
    case("chosen-chain", "only some stages", ["ST-PLAN-021"], NESTED, "chain", stages=[0])
    case(
        "chosen-level",
        "only some stages, hop by hop",
        ["ST-PLAN-021", "ST-PLAN-025"],
        NESTED,
        "level",
        stages=[4],
    )
    case(
        "chosen-stages",
        "some stages, one after the other",
        ["ST-PLAN-026"],
        NESTED,
        "stages",
        stages=[1, 2, 3, 5],
    )
    case(
        "levels-of-branches",
        "branches that others depend on, and some on each other",
        ["ST-PLAN-022"],
        LEVELS,
        "chain",
    )
    case(
        "levels-of-branches-by-two",
        "two of these at a time",
        ["ST-PLAN-022", "ST-PLAN-024"],
        LEVELS,
        "width",
        2,
    )
    case("levels-hop-by-hop", "the same hop by hop", ["ST-PLAN-025"], LEVELS, "level")
    for seed in (30, 31, 32):
        work = _staged(seed)
        case(
            f"random-{seed}",
            f"random work {seed} in stages, by chain",
            ["ST-PLAN-021", "ST-PLAN-022"],
            work,
            "chain",
        )
        case(
            f"random-level-{seed}", f"random work {seed} in stages, by level", ["ST-PLAN-025"], work, "level"
        )


def _staged(seed: int) -> Work:
    """Random work in stages and sessions, with edges inside of sessions, and a few between them."""
    rng = random.Random(seed)
    plain = random_work(seed, tasks=1, operations=24)
    operations: list[Op] = []
    for at, operation in enumerate(plain.operations):
        stage = ("s1", "s2", "s3")[at // 8]
        session = f"{stage}-{rng.randrange(4)}"
        own = [each.name for each in operations if each.session == session]
        after: list[str | After] = [own[-1]] if own and rng.randrange(3) else []
        if operations and rng.randrange(6) == 0:
            after.append(After(operations[rng.randrange(at)].name, (START, FIRST)[rng.randrange(2)]))
        operations.append(replace(operation, after=tuple(after), stage=stage, session=session))
    return Work(
        operations, [TaskFacts()], {"s0": (None, 0), "s1": ("s0", 0), "s2": ("s0", 0), "s3": (None, 0)}
    )
