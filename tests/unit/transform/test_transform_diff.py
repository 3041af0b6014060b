"""Differences: of traces by task and place, of executions by event; none is missed, none is invented."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from semtrace.build import TraceBuilder
from semtrace.errors import ReplayError
from semtrace.records.columns import Columns
from semtrace.records.enums import OperationKind
from semtrace.records.execution import Execution
from semtrace.records.trace import Trace
from semtrace.transform.diff_executions import diff_executions
from semtrace.transform.diff_traces import diff_traces
from semtrace.transform.filter import filter_tasks
from semtrace.transform.merge import merge_traces
from semtrace.transform.rows import with_column
from support.transform_cases import MS, crew, parts_of, with_steps


def told(difference):
    """The first differences, each as (kind, table.column, rows)."""
    return [
        (each.kind, f"{each.table}.{each.column}" if each.column else each.table, each.row_a, each.row_b)
        for each in difference.first
    ]


def test_equal_traces():
    """ST-LIN-070."""
    one, other = crew().build().trace, crew().build().trace
    found = diff_traces(one, other)
    assert found.same
    assert (found.changed, found.only_a, found.only_b, found.first) == ({}, {}, {}, [])
    assert found.annotations_equal
    assert found.as_dict()["digests"]["trace"]["equal"]
    bare = Trace(
        {
            **other.tables,
            "annotations": Columns(other["annotations"].spec, other["annotations"].data.slice(1)),
        }
    )
    found = diff_traces(one, bare)
    assert found.same
    assert not found.annotations_equal


def changed(trace, table, column, values):
    columns = trace[table]
    data = with_column(columns.data, column, pa.array(values, columns.data.schema.field(column).type))
    return Trace({**trace.tables, table: Columns(columns.spec, data)}, trace.content)


def test_a_changed_value_is_named_with_both():
    one = crew().build().trace
    values = one.operations.array("prompt_tokens").to_pylist()
    values[4] = 99
    found = diff_traces(one, changed(one, "operations", "prompt_tokens", values))
    assert not found.same
    assert found.changed == {"operations.prompt_tokens": 1}
    (difference,) = found.first
    assert (difference.a, difference.b, difference.row_a, difference.row_b) == (21, 99, 4, 4)
    assert (difference.task, difference.operation) == ("task 1", "plan")


def test_null_is_not_a_negative_number():
    one = crew().build().trace
    other = changed(one, "tasks", "priority", [0, None, -2])
    found = diff_traces(one, other)
    assert found.changed == {"tasks.priority": 1}
    assert (found.first[0].a, found.first[0].b) == (-1, None)
    assert "b" in found.first[0].as_dict()


def test_only_what_a_replay_must_not_change():
    one = crew().build().trace
    other = changed(one, "tasks", "tenant", ["red", "red", "red"])
    assert not diff_traces(one, other).same
    found = diff_traces(one, other, work=True)
    assert found.same
    assert found.digests["work"][0] == found.digests["work"][1]
    assert found.first == []
    other = changed(other, "operations", "external_delay_ns", [5] * 12)
    found = diff_traces(one, other, work=True)
    assert found.changed == {"operations.external_delay_ns": 12}


def test_missing_tasks_and_operations():
    one = parts_of(crew().build())
    part = filter_tasks(one, ["task!=1"]).trace
    found = diff_traces(one.trace, part)
    assert found.only_a == {
        "tasks": 1, "stages": 1, "sessions": 1, "operations": 4, "segments": 3, "edges": 3,
        "states": 1, "state_versions": 3, "state_accesses": 4, "artifacts": 3,
    }  # fmt: skip
    assert found.only_b == {}
    assert found.changed == {}
    assert told(found)[0] == ("only_a", "tasks", 1, None)
    assert not any(table == "operations" for _, table, *_ in told(found))  # their task says it
    backwards = diff_traces(part, one.trace)
    assert (backwards.only_a, backwards.only_b) == ({}, found.only_a)
    assert told(backwards)[0] == ("only_b", "tasks", None, 1)


def test_tasks_in_another_order():
    pieces = [filter_tasks(parts_of(crew().build()), [f"task={at}"]) for at in range(3)]
    one, other = (merge_traces([pieces[at] for at in order]).trace for order in ([0, 1, 2], [2, 0, 1]))
    found = diff_traces(one, other)
    assert not found.same
    assert (found.changed, found.only_a, found.only_b) == ({}, {}, {})
    assert "tasks" in found.reordered
    assert ("order", "tasks", None, None) in told(found)


def line(*edges: tuple[int, int, int]):
    """Three tools, the first with these edges."""
    b = TraceBuilder()
    task = b.task("one")
    rows = [b.operation(task, OperationKind.TOOL, name, duration_ns=1) for name in "abc"]
    for target, source, lag in edges:
        b.edge(rows[target], rows[source], lag_ns=lag)
    return b.build().trace


def test_edges_are_matched_by_their_ends():
    found = diff_traces(line((1, 0, 0), (2, 0, 0)), line((2, 0, 5), (2, 1, 0)))
    assert (found.only_a, found.only_b) == ({"edges": 1}, {"edges": 1})
    assert found.changed == {"edges.lag_ns": 1}
    assert sorted(told(found)) == [
        ("changed", "edges.lag_ns", 1, 0),
        ("only_a", "edges", 0, None),
        ("only_b", "edges", None, 1),
    ]


def test_as_many_as_asked_for():
    one = crew(tasks=9).build().trace
    other = changed(one, "operations", "external_delay_ns", list(range(36)))
    assert [len(diff_traces(one, other, limit=limit).first) for limit in (0, 1, 20, 99)] == [0, 1, 20, 35]
    assert diff_traces(one, other, limit=0).changed == {"operations.external_delay_ns": 35}


def test_an_empty_trace_differs_in_everything():
    empty = Trace.from_arrow({"trace": crew().build().trace["trace"].data})
    one = crew().build().trace
    found = diff_traces(one, empty)
    assert found.only_a["operations"] == 12
    assert diff_traces(empty, one).only_b["operations"] == 12
    assert diff_traces(empty, empty).same


# -- executions -------------------------------------------------------------------------------------------------


def altered(execution, **columns: dict[int, int]):
    """The execution with values of events changed: by column, by row."""
    data = execution.events.data
    for name, changes in columns.items():
        values = data.column(name).to_pylist()
        for row, value in changes.items():
            values[row] = value
        data = with_column(data, name, pa.array(values, data.schema.field(name).type))
    return Execution(
        execution.header,
        {**execution.tables, "events": Columns(execution.events.spec, data)},
        execution.content,
    )


def test_equal_executions():
    run = crew().build().execution
    found = diff_executions(run, crew().build().execution)
    assert found.same
    assert (found.matched, found.only_a, found.only_b) == (12, 0, 0)
    assert (found.columns, found.instances, found.first) == ({}, {}, [])


def test_the_first_divergence_in_time():
    run = crew().build().execution
    finished = run.events.ints("finished_ns")
    other = altered(
        run,
        finished_ns={8: int(finished[8]) + 5 * MS, 1: int(finished[1]) - MS},
        outcome={4: 2},
        cached_tokens={0: 7},
    )
    found = diff_executions(run, other)
    assert not found.same
    assert {name: (column.differing, column.known_in_one) for name, column in found.columns.items()} == {
        "finished_ns": (2, 0),
        "outcome": (1, 0),
        "cached_tokens": (0, 1),
    }
    assert (found.columns["finished_ns"].greatest, found.columns["finished_ns"].mean) == (5 * MS, 2 * MS)
    assert [(each.operation, each.at_ns) for each in found.first] == [
        (0, 0),
        (1, int(finished[1]) - MS),
        (4, 10 * MS),
        (8, int(finished[8])),
    ]
    assert found.first[2].columns == {"outcome": ("ok", "error")}
    assert found.first[3].as_dict()["columns"]["finished_ns"] == {
        "a": int(finished[8]),
        "b": int(finished[8]) + 5 * MS,
    }
    assert len(diff_executions(run, other, limit=2).first) == 2


def test_events_and_instances_of_one_side():
    run = crew().build().execution
    tables = dict(run.tables)
    tables["events"] = Columns(run.events.spec, run.events.data.slice(0, 8))
    tables["instances"] = Columns(run.instances.spec, run.instances.data.slice(0, 2))
    shorter = Execution(run.header, tables)
    found = diff_executions(run, shorter)
    assert (found.matched, found.only_a, found.only_b, found.instances) == (8, 4, 0, {"only_a": 1})
    found = diff_executions(shorter, run)
    assert (found.only_a, found.only_b, found.instances) == (0, 4, {"only_b": 1})
    assert not found.same


def test_detail_counts_where_both_have_it():
    run = crew().build().execution
    stepped = with_steps(run)
    assert diff_executions(run, stepped).same
    assert diff_executions(run, stepped).digests["steps"][0] is None
    tables = dict(stepped.tables)
    data = tables["steps"].data
    tables["steps"] = Columns(tables["steps"].spec, with_column(data, "tokens", pa.array([4])))
    other = Execution(stepped.header, tables)
    found = diff_executions(stepped, other)
    assert not found.same
    assert found.digests["steps"][0] != found.digests["steps"][1]


def test_output_ids_are_compared():
    from semtrace.store.digests import artifact_digest

    contents = [b"\1\0\0\0", b"\2\0\0\0"]
    held = sorted(artifact_digest(content) for content in contents)
    run = altered(crew().build().execution, output_ids={0: 0, 1: 1})
    one = Execution(run.header, run.tables, dict.fromkeys(held, b""))
    other = Execution(run.header, altered(run, output_ids={1: 0}).tables, dict.fromkeys(held, b""))
    assert diff_executions(one, one).output_ids == 0
    found = diff_executions(one, other)
    assert found.output_ids == 1
    assert found.same  # output ids have no part in the execution digest


def test_executions_of_different_work_are_refused():
    """ST-LIN-071."""
    with pytest.raises(ReplayError) as caught:
        diff_executions(crew().build().execution, crew(tasks=2).build().execution)
    assert caught.value.requirement == "ST-LIN-071"


def test_a_server_is_no_quantity():
    run = crew().build().execution
    one, other = altered(run, server={0: 1}), altered(run, server={0: 7})
    column = diff_executions(one, other).columns["server"]
    assert (column.differing, column.greatest) == (1, None)
    assert np.isclose(diff_executions(run, altered(run, attempts={0: 3})).columns["attempts"].known_in_one, 1)
