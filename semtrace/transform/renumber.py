"""Renumbering: rows in canonical order, with the ids that they had kept as annotations (ST-LIN-050 …)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from semtrace.check.executions import check_execution
from semtrace.check.trace import check_trace
from semtrace.errors import FormatError, UsageError
from semtrace.records.columns import NULL, Columns
from semtrace.records.enums import EntityKind
from semtrace.records.trace_tables import TRACE_TABLE
from semtrace.store.digests import show, work_digest
from semtrace.transform.bundle_parts import Parts, refuse
from semtrace.transform.lineage import Step, id_key, producer, source
from semtrace.transform.numbering import dense_versions, number_shared
from semtrace.transform.ordering import operation_order, session_order, stage_order
from semtrace.transform.rows import (
    annotation_rows,
    in_place,
    places,
    sort_annotations,
    take,
    take_annotations,
)
from semtrace.transform.runs import is_native, renumbered
from semtrace.transform.select import with_own_content

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from semtrace.records.trace import Trace
    from semtrace.transform.lineage import SourceTrace

MENDED: Final = frozenset(
    {
        *(f"ST-ORD-{number:03}" for number in (1, 2, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14)),
        "ST-STAGE-001",
        "ST-STATE-002",
        "ST-EDGE-001",
    }
)
"""Requirements whose violations an order of rows can mend."""

_KINDS: Final = {
    "stages": EntityKind.STAGE,
    "sessions": EntityKind.SESSION,
    "operations": EntityKind.OPERATION,
}


def renumber(parts: Parts, *, by_start: bool = False) -> tuple[Parts, bool]:
    """The trace with its rows in canonical order.

    Tasks stay where they are. Of rows that the order leaves free, the earlier stays the earlier.

    Args:
        parts: a trace with its executions; its order may be wrong, all else must be right.
        by_start: whether operations that no reference orders are taken by their start in the native execution, those
            without one last, instead of by their rows.

    Returns:
        The result, and whether anything moved; if not, it is what came in.

    Raises:
        FormatError: the trace is wrong in something that no order mends, or references form a cycle.
        UsageError: there is not exactly one native execution to take starts from.
    """
    trace = parts.trace
    findings = check_trace(trace, content=False)
    refuse(findings, parts.name, MENDED)
    for name, execution in parts.executions.items():
        refuse(check_execution(execution, trace), f"{parts.name}#{name}")
    started = _starts(parts) if by_start else None
    try:
        operations = operation_order(trace, started)
    except FormatError as error:
        error.path = f"{parts.name}, {error.path}" if error.path else parts.name
        raise
    orders, moved = _orders(trace, operations)
    repeated = {
        name: trace[name].rows - len(orders[name]) for name in ("edges", "state_accesses") if name in orders
    }
    tables = {
        name: take(columns, orders.get(name), moved)
        for name, columns in trace.tables.items()
        if name != "annotations"
    }
    tables["annotations"] = take_annotations(trace["annotations"], moved)
    ordered = {name: Columns(spec, tables[name]) for name, spec in TRACE_TABLE.items()}
    made = number_shared(ordered, trace.content)
    if all(made[name].data.equals(trace[name].data) for name in TRACE_TABLE):
        refuse(findings, parts.name)
        return parts, False
    taken = source(trace)
    made = _with_old_ids(made, moved, taken)
    made = with_own_content(made, [parts])
    refuse(check_trace(made, content=False), f"{parts.name}, renumbered")
    executions, carried = renumbered(parts.executions, moved["operations"], show(work_digest(made)))
    notes = [
        f"{count} rows of {name} that say the same as another are left out"
        for name, count in repeated.items()
        if count
    ]
    renamed = _renamed_versions(trace)
    if renamed:
        notes.append(f"{renamed} state versions have another number, as numbers were missing or there twice")
    for name in ("models", "artifacts"):
        unused = trace[name].rows - made[name].rows
        if unused:
            notes.append(f"{unused} {name} that nothing refers to are left out")
    step = Step(
        step="renumber",
        producer=producer(),
        inputs=[taken],
        parameters={"by_start": by_start},
        executions=carried,
        notes=notes,
    )
    return Parts(made, executions, parts.with_step(step), parts.name), True


def _starts(parts: Parts) -> NDArray[np.int64]:
    """When each operation started in the native execution, `NULL` where not known; of copies the first counts."""
    native = [execution for execution in parts.executions.values() if is_native(execution)]
    if len(native) != 1:
        raise UsageError(
            f"{len(native)} native executions to take the starts from, must be one",
            code="renumber.start",
            path=parts.name,
        )
    events = native[0].events
    started = np.full(parts.trace.operations.rows, NULL, dtype=np.int64)
    known = np.flatnonzero(events.ints("submitted_ns") != NULL)[::-1]
    started[events.ints("operation")[known]] = events.ints("submitted_ns")[known]
    return started


def _orders(
    trace: Trace, operations: NDArray[np.int64]
) -> tuple[dict[str, NDArray[np.int64]], dict[str, NDArray[np.int64]]]:
    """The rows of every table that tasks own in their new order, and the new ids."""
    orders = {"operations": operations}
    moved = {"operations": places(operations, trace.operations.rows)}
    new = moved["operations"]
    orders["sessions"] = session_order(trace, new)
    orders["stages"] = stage_order(trace, new)
    orders["segments"] = np.argsort(new[trace.segments.ints("operation")], kind="stable")
    edges, accesses = trace.edges, trace["state_accesses"]
    keys = [new[edges.ints("target")], new[edges.ints("source")], edges.ints("kind"), edges.ints("trigger")]
    orders["edges"] = _distinct(edges, np.lexsort(keys[::-1]))
    version = accesses.ints("state_version")
    keys = [new[accesses.ints("operation")], version, accesses.ints("mode")]
    orders["state_accesses"] = _distinct(accesses, np.lexsort(keys[::-1]))
    for name in ("sessions", "stages", "segments", "edges"):
        moved[name] = places(orders[name], trace[name].rows)
    still = [name for name, order in orders.items() if in_place(order, trace[name].rows)]
    return {name: order for name, order in orders.items() if name not in still}, moved


def _distinct(columns: Columns, order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows in an order that brings equal ones together, of equal ones only the first."""
    if len(order) < 2:
        return order
    equal = np.ones(len(order) - 1, dtype=np.bool_)
    for column in columns.spec.columns:
        values = columns.ints(column.name)[order]
        equal &= values[1:] == values[:-1]
    kept: NDArray[np.int64] = order[np.append(True, ~equal)]
    return kept


def _renamed_versions(trace: Trace) -> int:
    """How many versions do not have the number that their place among those of their state gives them."""
    versions = trace["state_versions"]
    order = np.lexsort([versions.ints("version"), versions.ints("state")])
    ordered = dense_versions(versions.data.take(pa.array(order)))
    return int((ordered.column("version").to_numpy() != versions.ints("version")[order]).sum())


def _with_old_ids(trace: Trace, moved: Mapping[str, NDArray[np.int64]], taken: SourceTrace) -> Trace:
    """The trace with an annotation of each stage, session and operation whose id changed: the old one."""
    pieces = [trace["annotations"].data]
    for name, kind in _KINDS.items():
        new = moved[name][:-1]
        old = np.flatnonzero(new != np.arange(len(new)))
        pieces.append(annotation_rows(kind, new[old], id_key(taken), pa.array(old).cast(pa.string())))
    data = sort_annotations(pa.concat_tables(pieces))
    return type(trace)(
        {**trace.tables, "annotations": Columns(TRACE_TABLE["annotations"], data)}, trace.content
    )
