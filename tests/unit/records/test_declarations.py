"""The declarations themselves: numbers are permanent and unique, references lead somewhere, nothing lacks a meaning."""

from __future__ import annotations

from enum import IntEnum

import pytest

from semtrace.records import enums
from semtrace.records.execution_tables import EXECUTION_TABLES
from semtrace.records.schema import Level, Physical
from semtrace.records.trace import TASK_TABLES
from semtrace.records.trace_tables import TRACE_TABLES

TABLES = {table.name: table for table in (*TRACE_TABLES, *EXECUTION_TABLES)}
ENUMS = [kind for kind in vars(enums).values() if isinstance(kind, type) and issubclass(kind, IntEnum)]


def test_numbers_and_names_of_tables_are_unique():
    assert len({table.number for table in TABLES.values()}) == len(TRACE_TABLES) + len(EXECUTION_TABLES)
    assert len({table.entity for table in TABLES.values()}) == len(TABLES)
    assert all(0 <= table.number < 256 for table in TABLES.values()), (
        "a table's number is one byte in a digest"
    )
    assert all(table.number < 100 for table in TRACE_TABLES)
    assert all(table.number > 100 for table in EXECUTION_TABLES)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_columns_are_numbered_and_described(table):
    numbers = [column.number for column in table.columns]
    assert len(set(numbers)) == len(numbers)
    assert not set(numbers) & set(table.reserved)
    assert all(0 < number < 256 for number in numbers), "a column's number is one byte in a digest"
    assert len({column.name for column in table.columns}) == len(table.columns)
    for column in table.columns:
        assert column.doc.endswith(".")
        assert column.refs is None or column.refs in TABLES
        assert column.refs is None or column.type is Physical.U32
        assert column.enum is None or column.type is Physical.U8
        assert not column.signed or column.type is Physical.I64
        if column.name.endswith("_ns"):
            assert column.type is Physical.I64
            assert "ns" in column.doc or "nanoseconds" in column.doc


def test_levels_belong_to_their_document():
    for table in TRACE_TABLES:
        assert all(column.level in {Level.WORK, Level.TRACE, Level.NONE} for column in table.columns)
    for table in EXECUTION_TABLES:
        assert all(column.level in {Level.RUN, Level.NONE} for column in table.columns)


def test_what_a_replay_must_not_change_is_work():
    work = {
        f"{table.name}.{column.name}"
        for table in TRACE_TABLES
        for column in table.columns
        if column.level is Level.WORK
    }
    assert {
        "operations.kind",
        "operations.task",
        "operations.prompt_tokens",
        "operations.output_tokens",
        "operations.duration_ns",
        "operations.external_delay_ns",
        "operations.context_base",
        "segments.artifact",
        "segments.tokens",
        "edges.target",
        "edges.source",
        "edges.trigger",
        "edges.lag_ns",
        "state_accesses.state_version",
        "artifacts.digest",
    } <= work
    assert not any(name.startswith("annotations.") for name in work)


@pytest.mark.parametrize("kind", ENUMS, ids=lambda kind: kind.__name__)
def test_zero_is_unspecified_in_every_enumeration(kind):
    numbers = [int(member) for member in kind]
    assert numbers == list(range(1, len(numbers) + 1))


def test_tables_that_tasks_own_are_tables():
    assert set(TASK_TABLES) <= set(TABLES)
