"""The canonical order: starts decide, references overrule them, and equal rows in any order give one trace."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semtrace.build import TraceBuilder
from semtrace.build.ordering import order_by_first, order_operations
from semtrace.errors import FormatError
from semtrace.records.columns import NULL
from semtrace.records.enums import (
    AccessMode,
    EdgeKind,
    EntityKind,
    Evidence,
    OperationKind,
    Trigger,
    VersionMode,
)
from semtrace.store.digests import trace_digest, work_digest


def order(started, references=(), tasks=None):
    refs = [set() for _ in started]
    for target, source in references:
        refs[target].add(source)
    return order_operations(tasks or [0] * len(started), started, refs, lambda at: f"op {at}")


@pytest.mark.parametrize(
    ("started", "references", "expected"),
    [
        ([], [], []),
        ([3, 1, 2], [], [1, 2, 0]),
        ([5, 5, 5], [], [0, 1, 2]),  # ties: place in the source
        ([None, None, 0], [], [2, 0, 1]),  # an unknown start comes last
        ([None, 7, None], [(1, 2)], [0, 2, 1]),  # … unless something refers to it
        ([0, 1, 2], [(0, 2)], [1, 2, 0]),  # a reference overrules the start
        ([0, 1, 2, 3], [(0, 3), (1, 3)], [2, 3, 0, 1]),
        ([0, 0, 0, 0], [(0, 1), (1, 2), (2, 3)], [3, 2, 1, 0]),
        ([4, 0, 3, 1], [(1, 0)], [3, 2, 0, 1]),  # 1 waits for 0, meanwhile 3 and 2 go ahead
    ],
)
def test_hand_made_orders(started, references, expected):
    assert order(started, references) == expected


def test_tasks_stay_together_whatever_the_starts():
    assert order([9, 0, 8, 1], tasks=[0, 1, 0, 1]) == [2, 0, 1, 3]


def test_a_later_release_does_not_wait_for_what_is_numbered_before():
    # only the least of those that are ready is next, so a chain can overtake
    assert order([10, 1, 2, 3], [(2, 1), (3, 2)]) == [1, 2, 3, 0]


@given(
    st.lists(st.none() | st.integers(0, 5), min_size=1, max_size=9),
    st.sets(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=12),
    st.randoms(use_true_random=False),
)
def test_the_order_is_the_one_that_the_rule_says(started, pairs, rng):
    count = len(started)
    rank = list(range(count))
    rng.shuffle(rank)
    references = [(t, s) for t, s in pairs if t < count and s < count and rank[s] < rank[t]]
    found = order(started, references)
    assert sorted(found) == list(range(count))
    # the rule, word for word: take the least of those whose references are all numbered
    numbered: list[int] = []
    while len(numbered) < count:
        free = [
            at
            for at in range(count)
            if at not in numbered and all(source in numbered for target, source in references if target == at)
        ]
        numbered.append(min(free, key=lambda at: (started[at] is None, started[at] or 0, at)))
    assert found == numbered


def test_a_cycle_names_the_circle_and_nothing_else():
    with pytest.raises(FormatError) as caught:
        order([0, 0, 0, 0, 0], [(1, 2), (2, 3), (3, 1), (4, 1), (0, 4)])
    assert caught.value.requirement == "ST-ORD-002"
    named = caught.value.message.rpartition(": ")[2].split(", ")
    assert sorted(named) == ["op 1", "op 2", "op 3"]


def test_an_operation_that_waits_for_itself():
    with pytest.raises(FormatError, match=r"circle: op 1 "):
        order([0, 0], [(1, 1)])


def test_references_out_of_the_task():
    with pytest.raises(FormatError) as caught:
        order([0, 0], [(1, 0)], tasks=[0, 1])
    assert caught.value.requirement == "ST-ORD-003"
    assert caught.value.message == "op 1 refers to op 0 of another task"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("tasks", "first", "parents", "expected"),
    [
        ([0, 0, 0], [2, 0, 1], [None] * 3, [1, 2, 0]),
        ([1, 0], [1, 0], [None] * 2, [1, 0]),
        ([0, 0], [None, 3], [None] * 2, [1, 0]),  # one without operations comes last
        ([0, 0, 0], [0, None, 4], [1, None, None], [1, 0, 2]),  # a parent takes its child's place, before it
        ([0, 0, 0], [5, 6, None], [2, 2, None], [2, 0, 1]),
        ([0, 0, 0, 0], [0, None, None, 3], [1, 2, None, 2], [2, 1, 0, 3]),  # three deep
        ([0, 0, 0], [None, None, None], [1, 2, None], [2, 1, 0]),  # unused ones: still parents first
        ([0, 0, 0], [4, 1, None], [2, None, None], [1, 2, 0]),
    ],
)
def test_sessions_and_stages_by_first_operation(tasks, first, parents, expected):
    assert order_by_first(tasks, first, parents) == expected


def test_stages_that_are_each_others_parents_do_not_hang():
    assert sorted(order_by_first([0, 0], [0, 1], [1, 0])) == [0, 1]


# -- through the builder ----------------------------------------------------------------------------------------


def tool(builder, task, name, start=None, **options: object):
    return builder.operation(task, OperationKind.TOOL, name, started_ns=start, **options)


def test_every_kind_of_reference_points_to_a_lower_row():
    builder = TraceBuilder()
    task = builder.task("t")
    # all starts are turned round: only references can bring them into order
    parent = tool(builder, task, "parent", 9)
    session = builder.session(task, parent_operation=parent)
    inside = tool(builder, task, "inside", 8, session=session)
    base = builder.operation(task, OperationKind.LLM, "base", started_ns=7)
    builder.edge(base, inside, kind=EdgeKind.UNKNOWN, trigger=Trigger.START)
    heir = builder.operation(task, OperationKind.LLM, "heir", started_ns=6)
    builder.inherit(heir, base, 0)
    writer = tool(builder, task, "writer", 5)
    builder.edge(writer, heir)
    reader = tool(builder, task, "reader", 4)
    version = builder.version(builder.state("app", "board"), "x", writer=writer)
    builder.read(reader, version)
    citer = builder.operation(task, OperationKind.LLM, "citer", started_ns=3)
    builder.request(citer, [{"role": "user", "content": "x"}], sources={0: reader})
    trace = builder.build().trace
    assert trace.operations.strings("name") == [
        "parent",
        "inside",
        "base",
        "heir",
        "writer",
        "reader",
        "citer",
    ]
    assert (trace.edges.ints("source") < trace.edges.ints("target")).all()
    kinds = dict(zip(trace.edges.ints("target").tolist(), trace.edges.ints("kind").tolist(), strict=True))
    assert kinds == {
        2: EdgeKind.UNKNOWN,
        3: EdgeKind.DATA,
        4: EdgeKind.CONTROL,
        5: EdgeKind.STATE,
        6: EdgeKind.DATA,
    }


def test_a_parent_operation_may_be_in_the_session_that_it_spawned():
    builder = TraceBuilder()
    task = builder.task("t")
    session = builder.session(task)
    parent = tool(builder, task, "parent", 5, session=session)
    builder.update_session(session, parent_operation=parent)
    tool(builder, task, "child", 1, session=session)
    trace = builder.build().trace
    assert trace.operations.strings("name") == ["parent", "child"]


def test_edges_are_unique_sorted_and_the_better_known_one_stays():
    builder = TraceBuilder()
    task = builder.task("t")
    a, b, c = (tool(builder, task, name, at) for at, name in enumerate("abc"))
    builder.edge(c, b, evidence=Evidence.INFERRED, confidence=40)
    builder.edge(c, a)
    builder.edge(b, a, trigger=Trigger.START, lag_ns=3)
    builder.edge(b, a)
    builder.edge(c, b, evidence=Evidence.OBSERVED)
    builder.edge(c, b, evidence=Evidence.INFERRED, confidence=90)
    edges = builder.build().trace.edges
    rows = [edges.row(at) for at in range(edges.rows)]
    assert [(r["target"], r["source"], r["trigger"]) for r in rows] == [
        (1, 0, 1),
        (1, 0, 2),
        (2, 0, 1),
        (2, 1, 1),
    ]
    assert rows[3]["evidence"] == Evidence.OBSERVED
    assert rows[3]["confidence"] is None


def test_reading_ones_own_version_or_an_initial_one_implies_nothing():
    builder = TraceBuilder()
    task = builder.task("t")
    a = tool(builder, task, "a", 0)
    state = builder.state("app", "board")
    initial = builder.version(state, "0")
    mine = builder.version(state, "1", base=initial, mode=VersionMode.APPEND, writer=a)
    builder.read(a, initial)
    builder.read(a, mine)
    builder.read(a, mine)
    trace = builder.build().trace
    assert trace.edges.rows == 0
    accesses = trace["state_accesses"]
    rows = [accesses.row(at) for at in range(accesses.rows)]
    assert [(row["state_version"], row["mode"]) for row in rows] == [
        (0, AccessMode.READ),
        (1, AccessMode.READ),
        (1, AccessMode.WRITE),
    ], "each once, a writer writes what it wrote"


def test_what_nothing_uses_is_dropped_and_the_rest_is_numbered_by_first_use():
    builder = TraceBuilder()
    builder.artifact("never used")
    builder.model("never called")
    task = builder.task("t", input="question")
    late, early = builder.model("late"), builder.model("early")
    builder.operation(task, OperationKind.LLM, "b", started_ns=2, model=late, settings={"temperature": 0})
    first = builder.operation(task, OperationKind.LLM, "a", started_ns=1, model=early)
    builder.output(first, "answer")
    built = builder.build()
    trace = built.trace
    assert trace["models"].strings("name") == ["early", "late"]
    contents = [trace.artifact(row) for row in range(trace["artifacts"].rows)]
    assert contents == [b"question", b"answer", b'{"temperature":0}']
    assert set(trace.content) == set(trace["artifacts"].digests()), "nor is its content kept"
    assert built.ids["models"] == [3, 1, 0]


def test_a_model_that_is_only_annotated_is_kept():
    builder = TraceBuilder()
    task = builder.task("t")
    used, noted = builder.model("used"), builder.model("noted")
    builder.operation(task, OperationKind.LLM, "a", model=used)
    builder.annotate(EntityKind.MODEL, noted, "app/remark", "x")
    trace = builder.build().trace
    assert trace["models"].strings("name") == ["used", "noted"]
    assert trace["annotations"].row(0)["entity"] == 1


def test_states_are_numbered_by_first_access_then_by_name():
    builder = TraceBuilder()
    task = builder.task("t")
    states = {name: builder.state("app", name) for name in ["unused b", "unused a", "z", "y", "first"]}
    versions = {name: builder.version(state, name) for name, state in states.items()}
    second, first = tool(builder, task, "second", 2), tool(builder, task, "first", 1)
    for name in ("z", "y"):
        builder.read(second, versions[name])
    builder.read(first, versions["first"])
    trace = builder.build().trace
    assert trace["states"].strings("name") == ["first", "y", "z", "unused a", "unused b"]
    assert trace["state_versions"].ints("state").tolist() == [0, 1, 2, 3, 4]


def test_annotations_follow_what_they_speak_of():
    builder = TraceBuilder()
    other, task = builder.task("other"), builder.task("t")
    late, early = tool(builder, task, "late", 2), tool(builder, task, "early", 1)
    stage = builder.stage(task, "s")
    builder.update_operation(late, stage=stage)
    kinds = [
        (EntityKind.OPERATION, late, 1),
        (EntityKind.OPERATION, early, 0),
        (EntityKind.TASK, task, 1),
        (EntityKind.TASK, other, 0),
        (EntityKind.STAGE, stage, 0),
        (EntityKind.TRACE, 0, 0),
    ]
    for kind, entity, _ in kinds:
        builder.annotate(kind, entity, "app/id", f"{kind.name} {entity}")
    notes = builder.build().trace["annotations"]
    rows = [notes.row(at) for at in range(notes.rows)]
    assert [(row["entity_kind"], row["entity"]) for row in rows] == sorted((int(k), f) for k, _, f in kinds)
    assert {row["value"] for row in rows} == {f"{kind.name} {entity}" for kind, entity, _ in kinds}


def test_a_build_does_not_use_up_the_builder():
    builder = TraceBuilder()
    task = builder.task("t")
    spare = builder.artifact("spare")
    operation = tool(builder, task, "a", 0)
    before = builder.build().trace
    builder.update_operation(operation, output=spare)
    after = builder.build().trace
    assert before["artifacts"].rows == 0
    assert after.artifact(0) == b"spare"


def test_operations_of_another_task_are_refused():
    builder = TraceBuilder()
    a, b = builder.task("a"), builder.task("b")
    left, right = tool(builder, a, "left"), tool(builder, b, "right")
    builder.edge(right, left)
    with pytest.raises(
        FormatError, match=r"operation 1 \(right\) refers to operation 0 \(left\) of another task"
    ):
        builder.build()


def build_shuffled(rng):
    """One and the same work, told in an order of its own."""
    builder = TraceBuilder(origin_unix_ns=1)
    tasks = {name: builder.task(name, input=name) for name in ("t0", "t1")}
    plan = [(task, f"{task} op {at}", at) for task in tasks for at in range(6)]
    rng.shuffle(plan)
    stages, sessions, ops = {}, {}, {}
    for task, name, start in plan:
        if (task, start % 2) not in sessions:
            sessions[task, start % 2] = builder.session(tasks[task], agent=f"agent {start % 2}")
        if (task, start // 3) not in stages:
            outer = builder.stage(tasks[task], f"outer {start // 3}")
            stages[task, start // 3] = builder.stage(tasks[task], f"stage {start // 3}", parent=outer)
        ops[name] = builder.operation(
            tasks[task],
            OperationKind.LLM,
            name,
            started_ns=start * 10,
            session=sessions[task, start % 2],
            stage=stages[task, start // 3],
            model=builder.model(f"model {start % 3}"),
            prompt_tokens=start,
        )
    todo = [(task, at) for task in tasks for at in range(6)]
    rng.shuffle(todo)
    for task, at in todo:
        name = f"{task} op {at}"
        builder.output(ops[name], f"{name} says")
        if at:
            source = ops[f"{task} op {at - 1}"]
            builder.request(ops[name], [{"role": "user", "content": f"to {name}"}], sources={0: source})
        if at > 1:
            builder.edge(ops[name], ops[f"{task} op {at - 2}"], lag_ns=at)
    for task in tasks:
        states = [builder.state(task, "a"), builder.state(task, "b")]
        reads = [(f"{task} op {at}", state) for at in (4, 5) for state in states]
        first = {state: builder.version(state, f"initial {at}") for at, state in enumerate(states)}
        rng.shuffle(reads)
        for name, state in reads:
            builder.read(ops[name], first[state])
    return builder.build().trace


@pytest.mark.parametrize("seed", range(10))
def test_the_order_of_telling_does_not_matter(seed):
    told = build_shuffled(random.Random(0))
    again = build_shuffled(random.Random(seed + 1))
    for name, columns in told.tables.items():
        assert again[name].data.equals(columns.data), name
    assert trace_digest(again) == trace_digest(told)
    assert work_digest(again) == work_digest(told)
    assert told.operations.strings("name")[0] == "t0 op 0"
    assert told["stages"].ints("parent").tolist()[:4] == [NULL, 0, NULL, 2]
