"""Digests against a second implementation, and what they depend on: what is said, never how it is stored."""

from __future__ import annotations

import random

import digest_oracle as oracle
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import random_rows
from hypothesis import given
from hypothesis import strategies as st

from semtrace.errors import FormatError
from semtrace.records.columns import Columns
from semtrace.records.execution import Backend, Execution, ExecutionHeader
from semtrace.records.execution_tables import EXECUTION_TABLE, EXECUTION_TABLES
from semtrace.records.schema import ARROW_TYPES, Column, Level, Physical
from semtrace.records.trace import Trace
from semtrace.records.trace_tables import TRACE_TABLE, TRACE_TABLES
from semtrace.store.digests import (
    artifact_digest,
    column_bytes,
    column_digest,
    detail_digest,
    execution_digest,
    show,
    trace_digest,
    work_digest,
)

HEADER = ExecutionHeader(
    work_digest=show(bytes(32)), mode="native", clock="wall", measured_at="client", backend=Backend(name="x")
)


def trace_of(tables):
    return Trace({name: Columns.of(TRACE_TABLE[name], rows) for name, rows in tables.items()})


def execution_of(tables):
    return Execution(HEADER, {name: Columns.of(EXECUTION_TABLE[name], rows) for name, rows in tables.items()})


def declared(tables, specs):
    return [(spec, tables[spec.name]) for spec in specs]


# -- against the oracle -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_trace_digests_are_the_oracles(seed):
    tables = random_rows.many(TRACE_TABLES, random.Random(seed))
    trace = trace_of(tables)
    assert work_digest(trace) == oracle.work_digest(declared(tables, TRACE_TABLES))
    assert trace_digest(trace) == oracle.trace_digest(declared(tables, TRACE_TABLES))


@pytest.mark.parametrize("seed", range(40))
def test_execution_digests_are_the_oracles(seed):
    tables = random_rows.many(EXECUTION_TABLES, random.Random(seed))
    execution = execution_of(tables)
    assert execution_digest(execution) == oracle.execution_digest(declared(tables, EXECUTION_TABLES[:2]))
    for spec in EXECUTION_TABLES[2:]:
        assert detail_digest(execution, spec.name) == oracle.execution_digest([(spec, tables[spec.name])])


VALUES = {
    Physical.U8: st.integers(0, 255),
    Physical.U32: st.integers(0, 2**32 - 1),
    Physical.U64: st.integers(0, 2**64 - 1),
    Physical.I64: st.integers(-(2**63), 2**63 - 1),
    Physical.STRING: st.text(max_size=5),
    Physical.BYTES32: st.binary(min_size=32, max_size=32),
}


@given(
    data=st.data(), kind=st.sampled_from(list(Physical)), number=st.integers(1, 255), before=st.integers(0, 9)
)
def test_columns_are_the_oracles_whatever_array_they_lie_in(data, kind, number, before):
    values = data.draw(st.lists(st.none() | VALUES[kind], max_size=20))
    column = Column(number, "c", kind, ".", nullable=True)
    expected = oracle.column_bytes(number, int(kind), values)
    whole = pa.array(values, ARROW_TYPES[kind])
    skipped = data.draw(st.lists(st.none() | VALUES[kind], min_size=before, max_size=before))
    padded = pa.array([*skipped, *values, *skipped], ARROW_TYPES[kind]).slice(before, len(values))
    masked = pa.array([VALUELESS[kind] if v is None else v for v in values], ARROW_TYPES[kind])
    arrays = [whole, padded]
    if values:
        valid = pa.array([value is not None for value in values])
        # the same nulls with other bytes in the null slots
        arrays.append(pc.if_else(valid, masked, pa.scalar(None, ARROW_TYPES[kind])))
    for array in arrays:
        assert b"".join(bytes(part) for part in column_bytes(column, array)) == expected
        assert column_digest(column, array) == oracle.digest("semtrace v1 column", expected)


VALUELESS = {
    Physical.U8: 7,
    Physical.U32: 7,
    Physical.U64: 7,
    Physical.I64: 7,
    Physical.STRING: "seven",
    Physical.BYTES32: b"7" * 32,
}


# -- independent of storage -------------------------------------------------------------------------------------


def in_chunks(table):
    return (
        pa.concat_tables([table.slice(at, 3) for at in range(0, table.num_rows, 3)])
        if table.num_rows
        else table
    )


def as_slice(table):
    return pa.concat_tables([table, table, table]).combine_chunks().slice(table.num_rows, table.num_rows)


def through_ipc(table, codec=None):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table, max_chunksize=4)
    return pa.ipc.open_file(sink.getvalue()).read_all()


def through_parquet(table):
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=5)
    return pq.read_table(pa.BufferReader(sink.getvalue())).cast(table.schema)


def without_empty_columns(table):
    names = [
        field.name
        for field in table.schema
        if not (field.nullable and table.column(field.name).null_count == table.num_rows)
    ]
    return table.select(names)


def turned_round(table):
    return table.select(list(reversed(table.schema.names)))


FORMS = {
    "chunks": in_chunks,
    "slice": as_slice,
    "ipc": through_ipc,
    "ipc lz4": lambda table: through_ipc(table, "lz4"),
    "ipc zstd": lambda table: through_ipc(table, "zstd"),
    "parquet": through_parquet,
    "no empty columns": without_empty_columns,
    "other column order": turned_round,
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("seed", range(3))
def test_digests_do_not_depend_on_storage(form, seed):
    rng = random.Random(seed)
    tables = {table.name: random_rows.rows(table, rng, 10) for table in TRACE_TABLES}
    trace = trace_of(tables)
    other = Trace.from_arrow({name: form(trace[name].data) for name in tables})
    assert work_digest(other) == work_digest(trace)
    assert trace_digest(other) == trace_digest(trace)


def test_a_table_without_rows_equals_an_absent_one():
    rng = random.Random(0)
    tables = {table.name: random_rows.rows(table, rng, 3) for table in TRACE_TABLES if table.name != "edges"}
    trace = trace_of(tables | {"edges": {}})
    assert trace_digest(Trace.from_arrow({name: trace[name].data for name in tables})) == trace_digest(trace)


# -- sensitive to every cell ------------------------------------------------------------------------------------

CELLS = [(table, column) for table in TRACE_TABLES for column in table.columns]
RUN_CELLS = [(table, column) for table in EXECUTION_TABLES for column in table.columns]


def named(cell):
    return f"{cell[0].name}.{cell[1].name}" if isinstance(cell, tuple) else None


def with_another(rows, column, at, rng):
    before = rows[column.name][at]
    values = list(rows[column.name])
    while values[at] == before:
        values[at] = random_rows.value(column, rng)
    return rows | {column.name: values}


@pytest.mark.parametrize("cell", CELLS, ids=named)
def test_a_changed_cell_changes_the_digests_that_its_column_takes_part_in(cell):
    table, column = cell
    rng = random.Random(7)
    tables = {spec.name: random_rows.rows(spec, rng, 4) for spec in TRACE_TABLES}
    trace = trace_of(tables)
    for at in range(4):
        changed = tables | {table.name: with_another(tables[table.name], column, at, rng)}
        if column.nullable and tables[table.name][column.name][at] is not None:
            nulled = list(tables[table.name][column.name])
            nulled[at] = None
            changed_to_null = tables | {table.name: tables[table.name] | {column.name: nulled}}
            assert_changed(trace, trace_of(changed_to_null), column)
        assert_changed(trace, trace_of(changed), column)


def assert_changed(before, after, column):
    assert (work_digest(after) != work_digest(before)) == (column.level is Level.WORK)
    assert (trace_digest(after) != trace_digest(before)) == (column.level in {Level.WORK, Level.TRACE})


@pytest.mark.parametrize("cell", RUN_CELLS, ids=named)
def test_a_changed_cell_changes_the_digest_of_its_execution_table_only(cell):
    table, column = cell
    rng = random.Random(7)
    tables = {spec.name: random_rows.rows(spec, rng, 3) for spec in EXECUTION_TABLES}
    before = execution_of(tables)
    after = execution_of(tables | {table.name: with_another(tables[table.name], column, 1, rng)})
    counts = column.level is Level.RUN
    core = table.name in {"instances", "events"}
    assert (execution_digest(after) != execution_digest(before)) == (counts and core)
    for spec in EXECUTION_TABLES[2:]:
        same = detail_digest(after, spec.name) == detail_digest(before, spec.name)
        assert same == (not counts or spec is not table)


def test_annotations_change_no_digest():
    rng = random.Random(1)
    tables = {spec.name: random_rows.rows(spec, rng, 4) for spec in TRACE_TABLES}
    other = tables | {"annotations": random_rows.rows(TRACE_TABLE["annotations"], rng, 9)}
    assert trace_digest(trace_of(other)) == trace_digest(trace_of(tables))
    assert work_digest(trace_of(other)) == work_digest(trace_of(tables))


def test_models_are_no_work():
    rng = random.Random(1)
    tables = {spec.name: random_rows.rows(spec, rng, 4) for spec in TRACE_TABLES}
    other = tables | {"models": random_rows.rows(TRACE_TABLE["models"], rng, 5)}
    assert work_digest(trace_of(other)) == work_digest(trace_of(tables))
    assert trace_digest(trace_of(other)) != trace_digest(trace_of(tables))


@pytest.mark.parametrize(
    "name", [spec.name for spec in TRACE_TABLES if spec.name not in {"models", "annotations"}]
)
def test_rows_count_and_their_order_counts(name):
    rng = random.Random(3)
    tables = {spec.name: random_rows.rows(spec, rng, 3) for spec in TRACE_TABLES}
    trace = trace_of(tables)
    longer = trace_of(
        tables | {name: {column: [*values, values[0]] for column, values in tables[name].items()}}
    )
    turned = trace_of(tables | {name: {column: values[::-1] for column, values in tables[name].items()}})
    assert trace_digest(longer) != trace_digest(trace)
    assert work_digest(longer) != work_digest(trace)
    assert trace_digest(turned) != trace_digest(trace)


def test_text_is_not_moved_between_cells():
    column = Column(1, "c", Physical.STRING, ".", nullable=True)
    forms = [["ab", ""], ["a", "b"], ["", "ab"], ["ab", None], [None, "ab"], ["ab"]]
    assert len({column_digest(column, pa.array(form, pa.string())) for form in forms}) == len(forms)


# -- values that must never change ------------------------------------------------------------------------------


SMALL = {
    "trace": {"content_level": [1], "origin_unix_ns": [1_764_441_600_000_000_000]},
    "tasks": {"name": ["Grüße"], "outcome": [2], "score_ppm": [-1]},
    "edges": {
        "target": [1, 2],
        "source": [0, 1],
        "kind": [1, 2],
        "trigger": [1, 1],
        "lag_ns": [0, 5],
        "evidence": [1, 3],
        "confidence": [None, 80],
    },
    "artifacts": {"digest": [bytes(32)], "size": [0], "media_type": ["text/plain"], "availability": [1]},
}


@pytest.mark.parametrize(
    ("tables", "work", "whole"),
    [
        (
            {},
            "b9efec6a47eb3e02bae8f94a6101b0b2c9dcbfb24bf7214a9c3f933fb9b6e317",
            "894a43f8cfeddf4843f2f999d39e72acf4aa12e77177a521bbd7fd7bf7d84718",
        ),
        (
            {"trace": {"content_level": [1]}},
            "76b2bdeedfd39d90ee3412e1f766b509f76e7e24d5b1876d3bbc2a2218336fe9",
            "7e42a7a5ef266769612bdf15c54918c51fc2ebabd47416234b7c8a004800abf9",
        ),
        (
            SMALL,
            "2e25cf0a824cc19a5fac9e9db12059a6f6cafdd670436b208773180daf2d10ff",
            "081b4f3efcaf814333248f7fa52d35484cc400859803fc5965db4f1a90ef3c0d",
        ),
    ],
    ids=["nothing", "a header", "something"],
)
def test_digests_of_the_standard(tables, work, whole):
    """Stored in every bundle that was ever written: a change here is a new version of the standard."""
    trace = trace_of({spec.name: tables.get(spec.name, {}) for spec in TRACE_TABLES})
    assert show(work_digest(trace)) == f"blake3:{work}"
    assert show(trace_digest(trace)) == f"blake3:{whole}"


def test_artifact_digests_are_plain_blake3():
    # the test vector of BLAKE3 itself
    assert artifact_digest(b"").hex() == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"


def test_a_detail_that_the_standard_does_not_have():
    with pytest.raises(FormatError):
        detail_digest(execution_of({spec.name: {} for spec in EXECUTION_TABLES}), "colours")
