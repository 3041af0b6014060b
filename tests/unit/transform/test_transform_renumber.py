"""Renumbering: any order of rows becomes the canonical one; what no order mends is refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from semtrace.build import TraceBuilder
from semtrace.check import check_trace
from semtrace.errors import FormatError, UsageError
from semtrace.records.columns import NULL, Columns
from semtrace.records.enums import EdgeKind, EntityKind, OperationKind, Trigger
from semtrace.records.execution import Execution
from semtrace.records.execution_tables import BLOCKS, EVENTS, STEP_RUNS
from semtrace.records.trace import Trace
from semtrace.store.digests import show, trace_digest, work_digest
from semtrace.transform.bundle_parts import Parts
from semtrace.transform.renumber import renumber
from semtrace.transform.rows import with_column
from support.transform_cases import MS, crew, findings, old_ids, parts_of, replay_of, thrown, with_steps


def names(trace):
    return trace.operations.strings("name")


def row_changed(trace, table, column, row, value):
    """The trace with one value changed."""
    columns = trace[table]
    values = columns.array(column).to_pylist()
    values[row] = value
    field = columns.data.schema.field(column)
    data = with_column(columns.data, column, pa.array(values, field.type))
    return Trace({**trace.tables, table: Columns(columns.spec, data)}, trace.content)


def test_a_valid_order_stays():
    """ST-LIN-005, ST-LIN-051."""
    built = crew().build()
    executions = {"native": built.execution, "replayed": replay_of(built.trace)}
    parts = Parts(built.trace, executions)
    made, changed = renumber(parts)
    assert not changed
    assert made is parts


def test_rows_thrown_about_come_back():
    built = crew().build()
    wrong, _ = thrown(built.trace, 1, tables=["edges", "state_accesses", "artifacts", "models", "states"])
    assert {finding.requirement for finding in check_trace(wrong)} >= {"ST-ORD-008", "ST-ORD-013"}
    made, changed = renumber(Parts(wrong))
    assert changed
    assert findings(made) == []
    assert trace_digest(made.trace) == trace_digest(built.trace)


def test_operations_by_task_and_after_what_they_refer_to():
    """ST-LIN-050: of those whose references are all numbered, the least row is next."""
    built = crew().build()
    wrong, moved = thrown(built.trace, 3)
    made, changed = renumber(Parts(wrong))
    assert changed
    assert findings(made) == []
    task = made.trace.operations.ints("task")
    assert task.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    for at in range(3):
        rows = names(made.trace)[4 * at : 4 * at + 4]
        assert rows[0] == "plan"
        searches = [moved["operations"][4 * at + 1 + number] for number in range(2)]
        assert [name for name in rows if name.startswith("search")] == [
            f"search {number}" for number in np.argsort(searches)
        ]
    assert made.trace.tasks.strings("name") == built.trace.tasks.strings("name")


def test_the_least_first():
    b = TraceBuilder()
    task = b.task("one")
    rows = [b.operation(task, OperationKind.TOOL, name, duration_ns=1) for name in "abcd"]
    b.edge(rows[1], rows[0])
    b.edge(rows[3], rows[0])
    trace = b.build().trace
    order = np.array([1, 2, 3, 0])  # b c d a
    place = np.argsort(order)
    edges = trace.edges
    made = {name: columns.data for name, columns in trace.tables.items()}
    made["operations"] = trace.operations.data.take(pa.array(order))
    for name in ("target", "source"):
        made["edges"] = with_column(made["edges"], name, pa.array(place[edges.ints(name)].astype(np.uint32)))
    result, _ = renumber(Parts(Trace.from_arrow(made)))
    assert names(result.trace) == ["c", "a", "b", "d"]


def test_old_ids():
    """ST-LIN-012, ST-ORD-017."""
    built = crew().build()
    wrong, _ = thrown(built.trace, 5)
    made, _ = renumber(Parts(wrong))
    for kind, table in (
        (EntityKind.OPERATION, "operations"),
        (EntityKind.SESSION, "sessions"),
        (EntityKind.STAGE, "stages"),
    ):
        old = {at: at for at in range(wrong[table].rows)} | old_ids(made, kind, wrong)
        assert sorted(old.values()) == list(range(wrong[table].rows))
        for new, before in old.items():
            assert made.trace[table].row(new).get("name") == wrong[table].row(before).get("name")
            assert made.trace[table].row(new)["task"] == wrong[table].row(before)["task"]
    assert old_ids(made, EntityKind.TASK, wrong) == {}
    notes = {
        row["value"]: names(made.trace)[row["entity"]]
        for row in made.trace["annotations"].data.to_pylist()
        if row["key"] == "example.org/last"
    }
    assert notes == {"yes": "join"}
    step = made.info.lineage[-1]
    assert (step["step"], step["inputs"][0]["trace_digest"]) == ("renumber", show(trace_digest(wrong)))


def test_by_start():
    """Operations that nothing orders are taken by their start in the native execution, those without one last."""
    b = TraceBuilder()
    task = b.task("one")
    starts = {"a": None, "b": 30, "c": 10, "d": 20}
    for name, start in starts.items():
        row = b.operation(task, OperationKind.TOOL, name, duration_ns=1)
        if start is not None:
            b.observe(row, submitted_ns=start * MS)
    parts = parts_of(b.build())
    made, changed = renumber(parts, by_start=True)
    assert changed
    assert findings(made) == []
    assert names(made.trace) == ["c", "d", "b", "a"]
    assert made.executions["native"].events.ints("submitted_ns").tolist() == [10 * MS, 20 * MS, 30 * MS, NULL]
    again, changed = renumber(made, by_start=True)
    assert not changed
    assert again is made
    with pytest.raises(UsageError, match="0 native executions"):
        renumber(Parts(parts.trace), by_start=True)


def test_stages_and_sessions_by_their_first_operation():
    b = TraceBuilder()
    task = b.task("one")
    outer = b.stage(task, "outer")
    inner = b.stage(task, "inner", parent=outer)
    lonely = b.stage(task, "lonely")
    b.stage(task, "in the lonely", parent=lonely)
    sessions = [b.session(task, name=name) for name in ("first", "second", "idle")]
    for at in range(2):
        b.operation(task, OperationKind.TOOL, "x", stage=inner, session=sessions[at], duration_ns=1)
    trace = b.build().trace
    for seed in range(6):
        wrong, _ = thrown(trace, seed, tables=["stages", "sessions"])
        made, _ = renumber(Parts(wrong))
        assert findings(made) == []
        assert made.trace["stages"].strings("name") == ["outer", "inner", "lonely", "in the lonely"]
        assert made.trace["sessions"].strings("name") == ["first", "second", "idle"]


def test_executions_follow():
    built = crew().build()
    wrong, moved = thrown(built.trace, 7)
    events = built.execution.events
    operation = moved["operations"][events.ints("operation")]
    order = np.lexsort([operation, events.ints("instance")])
    data = with_column(events.data, "operation", pa.array(operation.astype(np.uint32))).take(pa.array(order))
    runs = Columns.of(
        STEP_RUNS,
        {"event": [0, 3], "first_step": [0, 1], "count": [1, 1], "start_position": [0, 0],
         "tokens_per_step": [1, 1], "phase": [1, 2]},
    )  # fmt: skip
    blocks = Columns.of(
        BLOCKS,
        {"time_ns": [1, 2], "sequence": [0, 0], "server": [0, 0], "tier": [1, 1], "action": [1, 1],
         "event": [3, None], "blocks": [1, 1], "bytes": [1, 1]},
    )  # fmt: skip
    native = with_steps(built.execution)
    header = native.header.model_copy(
        update={"work_digest": show(work_digest(wrong)), "detail": ["steps", "step_runs", "blocks"]}
    )
    tables = {**native.tables, "events": Columns(EVENTS, data), "step_runs": runs, "blocks": blocks}
    parts = Parts(wrong, {"native": Execution(header, tables), "replayed": replay_of(wrong)})
    made, _ = renumber(parts)
    assert findings(made) == []
    run = made.executions["native"]
    assert run.header.detail == header.detail
    assert run["steps"].rows == 1

    def named(execution, trace, rows):
        of = execution.events.ints("operation")[rows]
        instance = execution.events.ints("instance")[rows]
        return [(int(at), names(trace)[row]) for at, row in zip(instance, of, strict=True)]

    before = parts.executions["native"]
    every = np.arange(12)
    finished = dict(zip(named(before, wrong, every), before.events.ints("finished_ns").tolist(), strict=True))
    assert finished == dict(
        zip(named(run, made.trace, every), run.events.ints("finished_ns").tolist(), strict=True)
    )
    of_runs = [
        (execution["step_runs"].ints("event"), execution, trace)
        for execution, trace in ((before, wrong), (run, made.trace))
    ]
    assert sorted(named(of_runs[0][1], wrong, of_runs[0][0])) == sorted(named(run, made.trace, of_runs[1][0]))
    of_blocks = [execution["blocks"].ints("event").tolist() for execution in (before, run)]
    assert of_blocks[1][1] == NULL
    assert named(before, wrong, of_blocks[0][:1]) == named(run, made.trace, of_blocks[1][:1])
    assert made.info.lineage[-1]["executions"] == {
        "native": {"kept": True},
        "replayed": {"kept": False, "note": "its plan and its scenario speak of the old ids"},
    }


def test_added_edges_are_put_in_their_place():
    built = crew().build()
    edges = built.trace.edges
    added = {name: edges.array(name).to_pylist() for name in edges.spec.by_name}
    row = {"target": 1, "source": 0, "kind": int(EdgeKind.CONTROL), "trigger": int(Trigger.START),
           "lag_ns": 0, "evidence": 3, "confidence": 50}  # fmt: skip
    for name, value in row.items():
        added[name].append(value)
    more = Trace({**built.trace.tables, "edges": Columns.of(edges.spec, added)}, built.trace.content)
    made, changed = renumber(Parts(more))
    assert changed
    assert findings(made) == []
    assert made.trace.edges.rows == edges.rows + 1
    assert names(made.trace) == names(built.trace)
    assert old_ids(made, EntityKind.OPERATION, more) == {}


def test_what_is_said_twice_is_left_out():
    """ST-LIN-052."""
    built = crew().build()
    tables = dict(built.trace.tables)
    for name in ("edges", "state_accesses"):
        twice = pa.concat_tables([tables[name].data, tables[name].data.slice(0, 2)])
        tables[name] = Columns(tables[name].spec, twice)
    unused = pa.concat_tables([tables["models"].data, tables["models"].data])
    tables["models"] = Columns(tables["models"].spec, unused)
    made, _ = renumber(Parts(Trace(tables, built.trace.content)))
    assert trace_digest(made.trace) == trace_digest(built.trace)
    assert made.info.lineage[-1]["notes"] == [
        "2 rows of edges that say the same as another are left out",
        "2 rows of state_accesses that say the same as another are left out",
        "1 models that nothing refers to are left out",
    ]


def test_versions_are_numbered_without_gaps():
    built = crew(tasks=1).build()
    versions = built.trace["state_versions"]
    numbers = versions.ints("version").copy()
    numbers[2:] += 3
    data = with_column(versions.data, "version", pa.array(numbers.astype(np.uint32)))
    gaps = Trace({**built.trace.tables, "state_versions": Columns(versions.spec, data)}, built.trace.content)
    made, _ = renumber(Parts(gaps))
    assert trace_digest(made.trace) == trace_digest(built.trace)
    assert made.info.lineage[-1]["notes"] == [
        "2 state versions have another number, as numbers were missing or there twice"
    ]


@pytest.mark.parametrize(
    ("table", "column", "row", "value", "requirement"),
    [
        ("operations", "kind", 0, 99, "ST-ENUM-001"),
        ("operations", "task", 0, 77, "ST-TAB-006"),
        ("operations", "duration_ns", 1, -5, "ST-VAL-001"),
        ("edges", "source", 0, 1, "ST-EDGE-002"),
        ("edges", "source", 0, 9, "ST-ORD-003"),
        ("edges", "lag_ns", 0, 5, "ST-EDGE-005"),
        ("edges", "kind", 0, int(EdgeKind.CONTROL), "ST-EDGE-010"),
        ("tasks", "answer_operation", 0, 11, "ST-TASK-001"),
    ],
)
def test_what_no_order_mends_is_refused(table, column, row, value, requirement):
    wrong, _ = thrown(crew().build().trace, 1, tables=["models", "artifacts"])
    assert wrong.edges.row(0)["target"] == 1
    with pytest.raises(FormatError) as caught:
        renumber(Parts(row_changed(wrong, table, column, row, value), name="wrong"))
    assert caught.value.requirement == requirement
    assert "wrong" in caught.value.path


def test_references_in_a_circle_are_named():
    b = TraceBuilder()
    task = b.task("one")
    rows = [b.operation(task, OperationKind.TOOL, name, duration_ns=1) for name in "abc"]
    b.edge(rows[1], rows[0])
    b.edge(rows[2], rows[0])
    b.edge(rows[2], rows[1])
    trace = b.build().trace
    circle = row_changed(row_changed(trace, "edges", "source", 1, 2), "edges", "target", 1, 0)
    with pytest.raises(FormatError) as caught:
        renumber(Parts(circle, name="circle"))
    assert caught.value.requirement == "ST-ORD-002"
    assert "in a circle" in caught.value.message
    assert all(f"({name})" in caught.value.message for name in "abc")
    assert caught.value.path == "circle"


def test_an_execution_of_another_work_is_refused():
    wrong, _ = thrown(crew().build().trace, 1)
    with pytest.raises(FormatError) as caught:
        renumber(Parts(wrong, {"native": crew().build().execution}))
    assert caught.value.requirement == "ST-EXE-001"
