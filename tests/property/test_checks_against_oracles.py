"""The vectorised rules against plain ones, and the checks on garbage: never an error, whatever the values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from semtrace.check import check_trace
from semtrace.check.holders import holders
from semtrace.check.order import stages_by_first_operation
from semtrace.records.chat import context
from semtrace.records.columns import NULL, Columns
from semtrace.records.enums import AccessMode, VersionMode
from semtrace.records.schema import Physical
from semtrace.records.trace import Trace
from semtrace.records.trace_tables import TRACE_TABLE, TRACE_TABLES
from semtrace.testing import TraceShape, random_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from semtrace.records.schema import Column

SEEDS = st.integers(0, 2**32 - 1)
FAIR = settings(max_examples=40, deadline=None, derandomize=True)
SMALL = TraceShape(tasks=2, operations=12)


def rows_of(trace: Trace, table: str) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = trace[table].data.to_pydict()
    return columns


def with_rows(trace: Trace, table: str, columns: dict[str, list[Any]]) -> Trace:
    spec = TRACE_TABLE[table]
    arrays = [pa.array(columns[field.name], field.type) for field in spec.arrow]
    made = Columns(spec, pa.Table.from_arrays(arrays, schema=spec.arrow))
    return Trace({**trace.tables, table: made}, trace.content)


def garbage(column: Column, rows: int) -> st.SearchStrategy[Any]:
    """A value that the column's type can hold, whatever it means."""
    small = st.integers(0, max(rows, 1) + 1)
    values: st.SearchStrategy[Any] = {
        Physical.U8: st.integers(0, 12) | st.integers(0, 255),
        Physical.U32: small | st.integers(0, 2**32 - 1),
        Physical.U64: st.integers(0, 2**64 - 1),
        Physical.I64: st.integers(-3, 40) | st.integers(-(2**63), 2**63 - 1),
        Physical.STRING: st.text(max_size=8).filter(lambda text: text.isprintable()),
        Physical.BYTES32: st.binary(min_size=32, max_size=32),
    }[column.type]
    return values | st.none() if column.nullable else values


@FAIR
@given(st.data(), st.integers(0, 30))
def test_no_value_makes_a_check_fail(data: st.DataObject, seed: int):
    """ST-BND-024, for what comes after reading."""
    trace = random_trace(seed, SMALL).trace
    for _ in range(data.draw(st.integers(1, 5))):
        spec = data.draw(st.sampled_from([spec for spec in TRACE_TABLES if trace[spec.name].rows]))
        column = data.draw(st.sampled_from(spec.columns))
        columns = rows_of(trace, spec.name)
        row = data.draw(st.integers(0, trace[spec.name].rows - 1))
        columns[column.name][row] = data.draw(garbage(column, trace.operations.rows))
        trace = with_rows(trace, spec.name, columns)
    for finding in check_trace(trace):
        assert finding.table in TRACE_TABLE
        assert finding.requirement in str(finding)
        assert str(finding.as_dict())


@FAIR
@given(st.data(), st.integers(0, 30))
def test_no_rows_lost_moved_or_doubled_make_a_check_fail(data: st.DataObject, seed: int):
    trace = random_trace(seed, SMALL).trace
    for _ in range(data.draw(st.integers(1, 3))):
        spec = data.draw(st.sampled_from(TRACE_TABLES))
        rows = trace[spec.name].rows
        keep = data.draw(st.lists(st.integers(0, max(rows - 1, 0)), max_size=rows))
        columns = rows_of(trace, spec.name)
        picked = {name: [values[row] for row in keep if row < rows] for name, values in columns.items()}
        trace = with_rows(trace, spec.name, picked)
    assert all(finding.requirement for finding in check_trace(trace))


@FAIR
@given(st.data())
def test_holders_are_the_nearest_that_inherit_no_more(data: st.DataObject):
    size = data.draw(st.sampled_from([5, 40, 300]))
    base, count = [NULL], [0]
    steep = data.draw(st.booleans())
    for at in range(1, size):
        parent = at - 1 if steep and data.draw(st.integers(0, 9)) else data.draw(st.integers(-1, at - 1))
        base.append(parent)
        limit = count[parent] + 2 if parent != NULL else 0
        count.append(limit if steep and limit else data.draw(st.integers(1, max(limit, 1))) if limit else 0)
    for extra in range(data.draw(st.integers(0, 20))):  # short inheritance at the end of a long chain
        base.append(size - 1 if base[size - 1] != NULL else 0)
        count.append(1 + extra % 3)
    bases, counts = np.array(base), np.array(count)
    rows = np.flatnonzero(bases != NULL)

    def plain(row: int) -> int:
        at = base[row]
        while count[at] > count[row]:
            at = base[at]
        return at

    assert holders(bases, counts, rows).tolist() == [plain(row) for row in rows.tolist()]


def test_holders_far_away():
    """Chains longer than are walked one by one."""
    length = 5000
    base = np.append(np.arange(-1, length - 1), np.full(50, length - 1))
    count = np.append(np.arange(length), np.arange(1, 51) * 90)
    rows = np.flatnonzero(base != NULL)
    found = holders(base, count, rows)
    assert found[-50:].tolist() == (np.arange(1, 51) * 90).tolist()
    assert found[: length - 1].tolist() == base[rows][: length - 1].tolist()


def plain_token_bounds(trace: Trace, operation: int) -> tuple[int, float]:
    """The least and the greatest number of tokens of an input, piece by piece (ST-CTX-005)."""
    tokens = trace.segments.ints("tokens")
    output, reasoning = trace.operations.ints("output_tokens"), trace.operations.ints("reasoning_tokens")
    least, most, pieces = 0, 0.0, list(context(trace, operation))
    root = operation
    while trace.operations.ints("context_base")[root] != NULL:
        root = int(trace.operations.ints("context_base")[root])
    if not pieces or pieces[0] == (root, NULL):
        most = float("inf")  # the root says nothing of its input
    for at, row in pieces:
        if row == NULL:
            known = output[at] != NULL
            exact = known and reasoning[at] != NULL
            least += int(output[at] - reasoning[at]) if exact else 0
            most += int(output[at] - (reasoning[at] if exact else 0)) if known else float("inf")
        else:
            least += max(int(tokens[row]), 0)
            most += int(tokens[row]) if tokens[row] != NULL else float("inf")
    return least, most


@FAIR
@given(st.data(), SEEDS)
def test_token_sums_are_those_of_the_pieces(data: st.DataObject, seed: int):
    trace = random_trace(seed, TraceShape(tasks=2, operations=20)).trace
    columns = rows_of(trace, "operations")
    for _ in range(data.draw(st.integers(0, 4))):
        row = data.draw(st.integers(0, trace.operations.rows - 1))
        if columns["prompt_tokens"][row] is not None:
            columns["prompt_tokens"][row] = max(
                0, columns["prompt_tokens"][row] + data.draw(st.integers(-9, 9))
            )
    trace = with_rows(trace, "operations", columns)
    wrong = []
    for operation, prompt in enumerate(columns["prompt_tokens"]):
        least, most = plain_token_bounds(trace, operation)
        if prompt is not None and not least <= prompt <= most:
            wrong.append(operation)
    findings = check_trace(trace)
    assert {finding.requirement for finding in findings} == ({"ST-CTX-005"} if wrong else set())
    if wrong:
        assert findings[0].count == len(wrong)
        assert list(findings[0].rows) == wrong[:5]


def plain_appended_reads(trace: Trace) -> list[int]:
    """The accesses that are not accounted for, by the words of ST-STATE-006."""
    versions, accesses, edges = (
        rows_of(trace, name) for name in ("state_versions", "state_accesses", "edges")
    )
    before: list[set[int]] = [set() for _ in range(trace.operations.rows)]
    for target, source in zip(edges["target"], edges["source"], strict=True):
        before[target] |= before[source] | {source}
    reads = {
        (operation, version)
        for operation, version, mode in zip(*accesses.values(), strict=True)
        if mode == AccessMode.READ
    }
    wrong = []
    for row, (operation, version, mode) in enumerate(zip(*accesses.values(), strict=True)):
        below = version
        while versions["mode"][below] == VersionMode.APPEND:
            below = versions["base"][below]
            if versions["writer"][below] is not None:
                break
        else:
            continue
        known = any((at, below) in reads for at in (operation, *before[operation]))
        if mode == AccessMode.READ and not known:
            wrong.append(row)
    return wrong


@FAIR
@given(st.data(), SEEDS)
def test_appended_reads_are_searched_as_the_words_say(data: st.DataObject, seed: int):
    trace = random_trace(seed, TraceShape(tasks=1, operations=24, states=2)).trace
    accesses, edges = rows_of(trace, "state_accesses"), rows_of(trace, "edges")
    reads = [row for row, mode in enumerate(accesses["mode"]) if mode == AccessMode.READ]
    lost = data.draw(st.sets(st.sampled_from(reads), max_size=4)) if reads else set()
    kept = {name: [v for row, v in enumerate(values) if row not in lost] for name, values in accesses.items()}
    free = [row for row, kind in enumerate(edges["kind"]) if kind not in {2, 3}]
    cut = data.draw(st.sets(st.sampled_from(free), max_size=6)) if free else set()
    trace = with_rows(trace, "state_accesses", kept)
    implied = implied_state_edges(trace)
    left = {
        name: [
            value
            for row, value in enumerate(values)
            if row not in cut
            and (edges["kind"][row] != 3 or (edges["target"][row], edges["source"][row]) in implied)
        ]
        for name, values in edges.items()
    }
    trace = with_rows(trace, "edges", left)
    wrong = plain_appended_reads(trace)
    found = [finding for finding in check_trace(trace) if finding.requirement == "ST-STATE-006"]
    assert [finding.count for finding in found] == ([len(wrong)] if wrong else [])
    assert not wrong or list(found[0].rows) == wrong[:5]


def implied_state_edges(trace: Trace) -> set[tuple[int, int]]:
    writer = trace["state_versions"].ints("writer")
    rows = zip(*rows_of(trace, "state_accesses").values(), strict=True)
    return {(operation, int(writer[version])) for operation, version, mode in rows if mode == AccessMode.READ}


def plain_stage_order(trace: Trace) -> bool:
    """Whether stages stand in the order of ST-ORD-005."""
    stages, operations = rows_of(trace, "stages"), rows_of(trace, "operations")
    first = {}
    for operation, stage in enumerate(operations["stage"]):
        while stage is not None:
            first[stage] = min(operation, first.get(stage, operation))
            stage = stages["parent"][stage]  # noqa: PLW2901  # walks up from the operation's stage
    keys = [(task, first.get(row, float("inf"))) for row, task in enumerate(stages["task"])]
    return keys == sorted(keys)


@FAIR
@given(st.data(), SEEDS)
def test_stage_order_is_that_of_the_words(data: st.DataObject, seed: int):
    trace = random_trace(seed, TraceShape(tasks=2, operations=10, stages=5)).trace
    operations, stages = rows_of(trace, "operations"), rows_of(trace, "stages")
    for _ in range(data.draw(st.integers(1, 5))):
        row = data.draw(st.integers(0, trace.operations.rows - 1))
        own = [at for at, task in enumerate(stages["task"]) if task == operations["task"][row]]
        operations["stage"][row] = data.draw(st.sampled_from([None, *own]))
    trace = with_rows(trace, "operations", operations)
    wrong = {finding.requirement for finding in check_trace(trace)}
    assert wrong == (set() if plain_stage_order(trace) else set(stages_by_first_operation.requirements))


def all_rows(trace: Trace, table: str, change: Callable[[dict[str, list[Any]]], None]) -> Trace:
    columns = rows_of(trace, table)
    change(columns)
    return with_rows(trace, table, columns)


@FAIR
@given(st.data(), SEEDS)
def test_a_removed_data_or_state_edge_is_found(data: st.DataObject, seed: int):
    """ST-EDGE-010 and ST-EDGE-011 from both sides: nothing implied is missing, nothing else is there."""
    trace = random_trace(seed, SMALL).trace
    kinds = trace.edges.ints("kind")
    implied = np.flatnonzero((kinds == 2) | (kinds == 3)).tolist()
    if not implied:
        return
    row = data.draw(st.sampled_from(implied))
    wanted = "ST-EDGE-010" if kinds[row] == 2 else "ST-EDGE-011"

    def without(columns: dict[str, list[Any]]) -> None:
        for values in columns.values():
            del values[row]

    found = {finding.requirement for finding in check_trace(all_rows(trace, "edges", without))}
    assert wanted in found
    assert found <= {wanted, "ST-STATE-006"}
