"""Tables in memory: null and zero kept apart, declared types and nothing else, whatever way Arrow holds the data."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semtrace.errors import FormatError
from semtrace.records.columns import NULL, Columns
from semtrace.records.execution import Backend, Execution, ExecutionHeader
from semtrace.records.schema import Column, Physical, Table
from semtrace.records.trace import Trace
from semtrace.records.trace_tables import EDGES, SEGMENTS, TASKS

SPEC = Table(
    200,
    "things",
    "Thing",
    "A table of every type.",
    (
        Column(1, "small", Physical.U8, "."),
        Column(2, "row", Physical.U32, ".", nullable=True),
        Column(3, "count", Physical.I64, ".", nullable=True),
        Column(4, "text", Physical.STRING, ".", nullable=True),
        Column(5, "digest", Physical.BYTES32, ".", nullable=True),
    ),
)
HEADER = ExecutionHeader(
    work_digest="blake3:" + "0" * 64,
    mode="native",
    clock="wall",
    measured_at="client",
    backend=Backend(name="x"),
)


def test_null_is_not_zero():
    things = Columns.of(SPEC, {"small": [1, 2, 3], "row": [0, None, 7], "count": [None, 0, -5]})
    assert things.rows == 3
    assert things.ints("row").tolist() == [0, NULL, 7]
    assert things.known("row").tolist() == [True, False, True]
    assert things.known("small").tolist() == [True, True, True]
    assert things.ints("count").tolist() == [NULL, 0, -5]
    assert things.strings("text") == [None, None, None]
    assert things.row(1) == {"small": 2, "row": None, "count": 0, "text": None, "digest": None}


def test_ints_are_read_only_and_raw_keeps_its_type():
    things = Columns.of(SPEC, {"small": [1, 2]})
    with pytest.raises(ValueError, match="read-only"):
        things.ints("small")[0] = 9
    assert things.raw("small").dtype == np.uint8
    assert things.raw("count").dtype == np.int64


def test_an_empty_table_has_empty_columns():
    for things in (Columns(SPEC, SPEC.empty()), Columns.of(SPEC, {}), Columns.of(SPEC, {"small": []})):
        assert things.rows == 0
        assert things.ints("small").tolist() == []
        assert things.raw("row").tolist() == []
        assert things.strings("text") == []
        assert things.known("count").tolist() == []


@pytest.mark.parametrize(
    ("columns", "code", "where"),
    [
        ({"small": [256]}, "table.value", "things.small"),
        ({"small": [-1]}, "table.value", "things.small"),
        ({"small": np.array([-1])}, "table.value", "things.small"),
        ({"small": ["1"]}, "table.value", "things.small"),
        ({"small": [True]}, "table.value", "things.small"),
        ({"small": [1], "count": [1 << 63]}, "table.value", "things.count"),
        ({"small": [1], "count": [1.5]}, "table.value", "things.count"),
        ({"small": [1], "count": [1.0]}, "table.value", "things.count"),
        ({"small": [1], "count": np.array([1.0])}, "table.value", "things.count"),
        ({"small": [1], "count": [float("nan")]}, "table.value", "things.count"),
        ({"small": [1], "text": ["\ud800"]}, "table.value", "things.text"),
        ({"small": [1], "text": [7]}, "table.value", "things.text"),
        ({"small": [1], "digest": [b"short"]}, "table.value", "things.digest"),
        ({"small": [None]}, "table.null", "things.small"),
        ({"row": [1]}, "table.null", "things.small"),
        ({"small": [1, 2], "row": [1]}, "table.length", "things.row"),
        ({"small": [1], "colour": [1]}, "table.column", "things"),
    ],
)
def test_values_that_do_not_fit_are_refused(columns, code, where):
    with pytest.raises(FormatError) as caught:
        Columns.of(SPEC, columns)
    assert caught.value.code == code
    assert caught.value.path == where


def test_numpy_arrays_are_taken():
    things = Columns.of(SPEC, {"small": np.array([1, 2], np.int64), "row": np.array([3, 4], np.uint32)})
    assert things.ints("row").tolist() == [3, 4]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda t: t.append_column("colour", pa.array([1, 2])), "table.column"),
        (lambda t: t.append_column("small", t.column("small")), "table.column"),
        (lambda t: t.drop_columns(["small"]), "table.column"),
        (lambda t: t.set_column(1, "row", pa.array([1, 2], pa.int64())), "table.type"),
        (lambda t: t.set_column(3, "text", pa.array(["a", "b"]).dictionary_encode()), "table.type"),
        (lambda t: t.set_column(3, "text", pa.array(["a", "b"], pa.large_string())), "table.type"),
        (lambda t: t.set_column(0, "small", pa.array([1, None], pa.uint8())), "table.null"),
    ],
)
def test_tables_with_other_columns_are_refused(change, code):
    table = Columns.of(SPEC, {"small": [1, 2], "row": [1, 2], "text": ["a", "b"]}).data
    with pytest.raises(FormatError) as caught:
        Columns(SPEC, change(table))
    assert caught.value.code == code


def test_nulls_in_a_column_that_says_it_has_none_are_found():
    # the declared nullability of an Arrow field is a claim that nothing enforces
    hostile = pa.Table.from_arrays(
        [pa.array([1, None], pa.uint8()), *(pa.nulls(2, field.type) for field in list(SPEC.arrow)[1:])],
        schema=SPEC.arrow,
    )
    with pytest.raises(FormatError, match="1 values are null") as caught:
        Columns(SPEC, hostile)
    assert caught.value.requirement == "ST-TAB-003"


def test_an_absent_nullable_column_is_all_null():
    table = Columns.of(SPEC, {"small": [1, 2]}).data.drop_columns(["row", "digest"])
    things = Columns(SPEC, table)
    assert things.ints("row").tolist() == [NULL, NULL]
    assert things.data.schema == SPEC.arrow


def test_the_order_of_columns_and_schema_metadata_do_not_matter():
    table = Columns.of(SPEC, {"small": [1, 2], "count": [3, None]}).data
    other = table.select(list(reversed(table.schema.names))).replace_schema_metadata({"a": "b"})
    assert Columns(SPEC, other).data.equals(table)


@given(
    values=st.lists(st.none() | st.integers(0, 2**32 - 1), max_size=30),
    texts=st.data(),
    cuts=st.lists(st.integers(0, 40), max_size=4),
    skip=st.integers(0, 5),
)
def test_chunks_and_slices_give_the_same_columns(values, texts, cuts, skip):
    rows = len(values)
    strings = texts.draw(st.lists(st.none() | st.text(max_size=5), min_size=rows, max_size=rows))
    whole = Columns.of(SPEC, {"small": [1] * rows, "row": values, "text": strings})
    bounds = sorted({0, rows, *(cut for cut in cuts if cut < rows)})
    pieces = [whole.data.slice(a, b - a) for a, b in itertools.pairwise(bounds)]
    # the same rows, as pieces that are slices of a longer table
    longer = pa.concat_tables([whole.data.slice(0, min(skip, rows)), whole.data]).combine_chunks()
    padded = longer.slice(min(skip, rows))
    for data in (pa.concat_tables(pieces) if pieces else whole.data, padded):
        same = Columns(SPEC, data)
        assert same.ints("row").tolist() == [NULL if value is None else value for value in values]
        assert same.known("row").tolist() == [value is not None for value in values]
        assert same.strings("text") == strings
        assert same.raw("small").tolist() == [1] * rows


def test_text_past_the_reach_of_32_bit_offsets_is_refused(monkeypatch):
    # a column of more than 2 GiB of text stays in several chunks; here the joining is made to fail without them
    data = Columns.of(SPEC, {"small": [1, 2], "text": ["a", "b"]}).data
    halves = pa.concat_tables([data.slice(0, 1), data.slice(1)])
    monkeypatch.setattr("semtrace.records.columns._conform", lambda _spec, _data: _Unjoined(halves))
    with pytest.raises(FormatError, match="2 GiB") as caught:
        Columns(SPEC, data)
    assert caught.value.code == "table.size"


class _Unjoined:
    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def combine_chunks(self) -> pa.Table:
        return self.table


def test_a_task_is_a_slice_of_every_table_that_tasks_own():
    operation = {"kind": 1, "status": 1, "external_delay_ns": 0, "context_segments": 0}
    evidence = {"tokens_evidence": 4, "duration_evidence": 4}
    tasks = [0, 0, 0, 2]
    tables = {
        "tasks": Columns.of(TASKS, {"name": ["a", "b", "c"], "outcome": [1, 1, 1]}),
        "operations": Columns.of(
            Trace.from_arrow({}).operations.spec,
            {
                "task": tasks,
                "name": ["x"] * 4,
                **{name: [value] * 4 for name, value in (operation | evidence).items()},
            },
        ),
        "segments": Columns.of(
            SEGMENTS, {"operation": [0, 0, 2, 3], "role": [2] * 4, "message": [0, 1, 0, 0], "scope": [2] * 4}
        ),
        "edges": Columns.of(
            EDGES,
            {
                "target": [1, 2],
                "source": [0, 0],
                "kind": [1, 1],
                "trigger": [1, 1],
                "lag_ns": [0, 0],
                "evidence": [1, 1],
            },
        ),
    }
    trace = Trace.from_arrow({name: columns.data for name, columns in tables.items()})
    assert [list(trace.task_rows("operations", task)) for task in range(3)] == [[0, 1, 2], [], [3]]
    assert [list(trace.task_rows("segments", task)) for task in range(3)] == [[0, 1, 2], [], [3]]
    assert [list(trace.task_rows("edges", task)) for task in range(3)] == [[0, 1], [], []]
    assert trace.segment_offsets.tolist() == [0, 2, 2, 3, 4]
    assert trace.edge_offsets.tolist() == [0, 0, 1, 2, 2]


@pytest.mark.parametrize("make", [Trace.from_arrow, lambda tables: Execution.from_arrow(HEADER, tables)])
def test_a_table_that_the_standard_does_not_have_is_not_dropped(make):
    with pytest.raises(FormatError, match="colours") as caught:
        make({"colours": SPEC.empty()})
    assert caught.value.requirement == "ST-TAB-001"
