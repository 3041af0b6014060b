"""Filtering: which tasks conditions choose, and what stays of a trace that loses some."""

from __future__ import annotations

import numpy as np
import pytest

from semtrace.build import TraceBuilder
from semtrace.check import check_trace
from semtrace.errors import FormatError, UsageError
from semtrace.records.columns import NULL
from semtrace.records.enums import EntityKind, OperationKind, StateLifetime, VersionMode
from semtrace.records.trace import Trace
from semtrace.store.bundle import BundleInfo
from semtrace.store.digests import execution_digest, show, trace_digest, work_digest
from semtrace.store.manifest import Loss
from semtrace.transform.bundle_parts import Parts, sound
from semtrace.transform.filter import filter_tasks
from semtrace.transform.predicates import FIELDS, Condition
from support.transform_cases import ORIGIN, crew, findings, old_ids, parts_of, replay_of, with_steps


def chosen(where, trace=None):
    """The tasks that meet a condition."""
    trace = trace or crew().build().trace
    return np.flatnonzero(Condition.parse(where).tasks(trace)).tolist()


@pytest.mark.parametrize(
    ("where", "tasks"),
    [
        ("task=1", [1]),
        ("task != 1", [0, 2]),
        ("task<2", [0, 1]),
        ("task >= 2", [2]),
        ("name=task 2", [2]),
        ("name = task 2 ", [2]),
        ("name~^task [01]$", [0, 1]),
        ("name!~[01]", [2]),
        ("workload=debate", [0]),
        ("outcome=failure", [1]),
        ("outcome!=failure", [0, 2]),
        ("tenant is known", [1]),
        ("tenant  is  unknown", [0, 2]),
        ("tenant!=red", [1]),
        ("tenant=", []),
        ("priority<=-1", [1, 2]),
        ("priority=-1", [1]),
        ("arrival_ns>10000000", [2]),
        ("score_ppm>0", []),
        ("operations=4", [0, 1, 2]),
        ("stages>1", []),
        ("sessions=1", [0, 1, 2]),
        ("task is known", [0, 1, 2]),
        ("some.duration_ns>2000000", [2]),
        ("some.kind=tool", [0, 1, 2]),
        ("some.kind=human", []),
        ("some.prompt_tokens=21", [1]),
        ("some.name~search", [0, 1, 2]),
        ("some.agent=planner", [0, 1, 2]),
        ("some.agent is unknown", [0, 1, 2]),
        ("some.model=small", [0, 1, 2]),
        ("some.model=large", []),
        ("some.stage=plan", [0, 1, 2]),
        ("some.reasoning_tokens is known", []),
    ],
)
def test_conditions(where, tasks):
    assert chosen(where) == tasks


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("", "is no condition"),
        ("name", "is no condition"),
        ("=x", "is no condition"),
        ("nmae=x", "did you mean name"),
        ("kind=tool", "a filter keeps or leaves out whole tasks"),
        ("agent=planner", "a filter keeps or leaves out whole tasks"),
        ("task=one", "no whole number"),
        ("task=1.5", "no whole number"),
        ("task=99999999999999999999", "larger than any number"),
        ("task~1", "has no pattern"),
        ("outcome=won", "never 'won'"),
        ("outcome<success", "compared with = and !="),
        ("name<a", "not compared with <"),
        ("name~(", "not a pattern"),
    ],
)
def test_wrong_conditions_are_named(where, message):
    with pytest.raises(UsageError) as caught:
        chosen(where)
    assert message in caught.value.message
    assert caught.value.hint or "larger" in message


def test_every_field_can_be_asked():
    trace = crew().build().trace
    for field in FIELDS:
        both = chosen(f"{field} is known", trace) + chosen(f"{field} is unknown", trace)
        assert set(both) == {0, 1, 2}, field


def test_whole_tasks_in_their_order():
    """ST-LIN-020, ST-LIN-021, ST-ORD-016."""
    whole = parts_of(crew().build())
    made = filter_tasks(whole, ["outcome=success"])
    assert findings(made) == []
    assert made.trace.tasks.strings("name") == ["task 0", "task 2"]
    names = ["plan", "search 0", "search 1", "join"]
    assert made.trace.operations.strings("name") == names * 2
    assert made.trace.operations.ints("duration_ns").tolist() == [
        -1,
        1000000,
        1000000,
        0,
        -1,
        3000000,
        3000000,
        0,
    ]
    assert made.trace["trace"].data.equals(whole.trace["trace"].data)
    for name in ("segments", "edges", "state_accesses"):
        assert made.trace[name].rows == whole.trace[name].rows * 2 // 3
    texts = {made.trace.artifact_text(row) for row in range(made.trace["artifacts"].rows)}
    assert {"question 0", "question 2", "found 2.1"} <= texts
    assert "question 1" not in texts
    assert set(made.trace.content) == set(made.trace["artifacts"].digests())
    assert made.trace.content.get(whole.trace["artifacts"].digests()[1]) is None  # of a task that is gone


def test_all_tasks_are_the_same_trace():
    """ST-LIN-024."""
    whole = parts_of(crew().build())
    made = filter_tasks(whole, ["task>=0"])
    assert made.trace is whole.trace
    assert made.executions is whole.executions
    assert made.info.lineage[0]["executions"] == {"native": {"kept": True}}


def test_states_follow_who_uses_them():
    """ST-LIN-022."""
    b = crew()
    b.version(b.state("memory", "of nobody"), "never read")
    made = filter_tasks(parts_of(b.build()), ["task=1"])
    assert findings(made) == []
    assert made.trace["states"].strings("name") == ["library", "notes", "of nobody"]
    assert made.trace["state_versions"].ints("version").tolist() == [0, 0, 1, 2, 0]


def test_versions_of_tasks_that_are_left_out():
    """ST-LIN-023: they go, those excepted that a version that stays is built upon, which become initial."""
    b = TraceBuilder()
    state = b.state("memory", "log", lifetime=StateLifetime.LONG_TERM)
    first = b.version(state, "initial")
    tasks = [b.task(name) for name in ("writes", "reads")]
    writer = b.operation(tasks[0], OperationKind.TOOL, "write", duration_ns=1)
    written = b.version(state, "written", base=first, mode=VersionMode.APPEND, writer=writer)
    b.version(state, "of no use", writer=writer)
    later = b.version(state, "later", base=written, mode=VersionMode.APPEND)
    reader = b.operation(tasks[1], OperationKind.TOOL, "read", duration_ns=1)
    b.read(reader, first)
    whole = parts_of(b.build())
    made = filter_tasks(whole, ["name=reads"])
    assert findings(made) == []
    versions = made.trace["state_versions"]
    assert [made.trace.artifact_text(row) for row in versions.ints("artifact")] == [
        "initial",
        "written",
        "later",
    ]
    assert versions.ints("writer").tolist() == [NULL] * 3
    assert versions.ints("base").tolist() == [NULL, 0, 1]
    assert versions.ints("version").tolist() == [0, 1, 2]
    assert made.trace["state_accesses"].rows == 1
    assert made.info.lineage[0]["notes"] == [
        "1 state versions written by tasks that are left out became initial versions"
    ]
    assert later == 3


def test_lineage_and_old_ids():
    """ST-LIN-001, ST-LIN-002, ST-LIN-010, ST-LIN-011."""
    whole = parts_of(crew().build(), info=BundleInfo(lineage=[{"step": "import"}], licence="MIT"))
    made = filter_tasks(whole, ["task>0"])
    before, step = made.info.lineage
    assert before == {"step": "import"}
    assert step["step"] == "filter"
    assert step["parameters"] == {"where": ["task>0"]}
    assert step["producer"]["name"] == "semtrace"
    assert step["inputs"] == [
        {
            "work_digest": show(work_digest(whole.trace)),
            "trace_digest": show(trace_digest(whole.trace)),
            "tasks": 3,
            "operations": 12,
            "lineage": [],
        }
    ]
    assert made.info.licence == "MIT"
    assert old_ids(made, EntityKind.TASK, whole.trace) == {0: 1, 1: 2}
    assert old_ids(made, EntityKind.OPERATION, whole.trace) == {0: 4, 4: 8}
    again = filter_tasks(made, ["task=1"])
    assert old_ids(again, EntityKind.TASK, whole.trace) == {0: 2}
    assert old_ids(again, EntityKind.TASK, made.trace) == {0: 1}
    assert [each["step"] for each in again.info.lineage] == ["import", "filter", "filter"]
    kept = [
        row["value"]
        for row in made.trace["annotations"].data.to_pylist()
        if row["key"] == "example.org/number"
    ]
    assert kept == ["1", "2"]


def test_executions_follow():
    """ST-LIN-004, ST-LIN-025."""
    built = crew().build()
    executions = {"native": with_steps(built.execution), "replayed": replay_of(built.trace)}
    made = filter_tasks(sound(Parts(built.trace, executions)), ["task!=1"])
    assert findings(made) == []
    assert list(made.executions) == ["native"]
    native = made.executions["native"]
    assert native.header.work_digest == show(work_digest(made.trace))
    assert native.header.detail == []
    assert native.instances.ints("arrival_ns").tolist() == [0, 20_000_000]
    assert native.events.ints("operation").tolist() == list(range(8))
    before = built.execution.events.ints("finished_ns")
    assert native.events.ints("finished_ns").tolist() == [*before[:4], *before[8:]]
    assert made.info.lineage[0]["executions"] == {
        "native": {"kept": True, "note": "steps left out: a server ran other tasks too"},
        "replayed": {"kept": False, "note": "a replay of the whole, not of a part"},
    }
    everything = filter_tasks(sound(Parts(built.trace, executions)), ["task>=0"])
    assert set(everything.executions) == {"native", "replayed"}
    assert execution_digest(everything.executions["native"]) == execution_digest(built.execution)


def test_output_ids_of_events_follow():
    from semtrace.records.execution import Execution
    from semtrace.store.digests import artifact_digest
    from semtrace.transform.rows import integers, with_column

    built = crew().build()
    contents = [bytes([at, 0, 0, 0]) for at in range(12)]
    held = {artifact_digest(content): content for content in contents}
    place = {digest: at for at, digest in enumerate(sorted(held))}
    ids = np.array([place[artifact_digest(content)] for content in contents])
    ids[1] = NULL
    events = built.execution.events
    data = with_column(events.data, "output_ids", integers(ids, events.data.schema.field("output_ids").type))
    native = Execution(
        built.execution.header, {**built.execution.tables, "events": type(events)(events.spec, data)}, held
    )
    made = filter_tasks(sound(Parts(built.trace, {"native": native})), ["task!=1"])
    assert findings(made) == []
    kept = made.executions["native"]
    digests = sorted(kept.content)
    ordinals = kept.events.ints("output_ids").tolist()
    got = [None if at == NULL else kept.content.get(digests[at]) for at in ordinals]
    assert got == [contents[0], None, contents[2], contents[3], *contents[8:]]
    assert len(digests) == 7


def test_nothing_left_is_refused():
    whole = parts_of(crew().build(), name="crew")
    with pytest.raises(UsageError) as caught:
        filter_tasks(whole, ["task=0", "outcome=failure"])
    assert caught.value.message == "no task of 3 meets task=0 and outcome=failure"
    assert caught.value.path == "crew"


def test_a_trace_that_is_not_valid_is_refused():
    built = crew().build()
    tables = dict(built.trace.tables)
    del tables["edges"]
    broken = Trace.from_arrow({name: columns.data for name, columns in tables.items()})
    with pytest.raises(FormatError) as caught:
        sound(Parts(broken, name="broken"))
    assert caught.value.requirement == check_trace(broken, content=False)[0].requirement
    assert caught.value.path == "broken"
    other = crew(origin=ORIGIN + 1, tasks=2).build()
    with pytest.raises(FormatError) as caught:
        sound(Parts(built.trace, {"native": other.execution}, name="mixed"))
    assert (caught.value.requirement, caught.value.path) == ("ST-EXE-001", "mixed#native")


def test_losses_and_sources_stay():
    info = BundleInfo(loss=[Loss(code="x.y", effect="lost", message="gone")], notes="hello")
    made = filter_tasks(parts_of(crew().build(), info=info), ["task=0"])
    assert (made.info.loss, made.info.notes) == (info.loss, "hello")
