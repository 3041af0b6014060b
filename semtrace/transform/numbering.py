"""The order of what tasks share: models, states, artifacts and annotations, by first use (ST-ORD-009 … ST-ORD-014)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from semtrace.check.order import ARTIFACT_USES
from semtrace.check.view import first_rows
from semtrace.records.columns import NULL, Columns
from semtrace.records.trace import Trace
from semtrace.transform.rows import (
    in_place,
    integers,
    places,
    sort_annotations,
    take,
    take_annotations,
    with_column,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from semtrace.records.trace import Content


def by_first_use(uses: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The ids that are used, in the order of their first use."""
    first = first_rows(uses, count, NULL)
    used = np.flatnonzero(first != NULL)
    return used[np.argsort(first[used], kind="stable")]


def model_order(tables: Mapping[str, Columns]) -> NDArray[np.int64]:
    """Models in the order of first use, those that nothing uses left out."""
    uses = np.concatenate([tables["sessions"].ints("model"), tables["operations"].ints("model")])
    return by_first_use(uses, tables["models"].rows)


def artifact_order(tables: Mapping[str, Columns], versions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Artifacts in the order of first use, those that nothing uses left out.

    Args:
        tables: all tables of a trace.
        versions: the state versions in their new order, as they use artifacts too.
    """
    uses = [np.zeros(0, dtype=np.int64)]
    for table, names in ARTIFACT_USES:
        columns = tables[table]
        used = [columns.ints(name) for name in names if columns.array(name).null_count < columns.rows]
        if used:
            rows = np.stack(used, axis=1)
            uses.append((rows[versions] if table == "state_versions" else rows).ravel())
    return by_first_use(np.concatenate(uses), tables["artifacts"].rows)


def state_order(tables: Mapping[str, Columns]) -> NDArray[np.int64]:
    """States in the order of the first operation that accesses them, the others after them, ties as they are."""
    accesses = tables["state_accesses"]
    none = np.iinfo(np.int64).max
    first = np.full(tables["states"].rows, none, dtype=np.int64)
    state = tables["state_versions"].ints("state")[accesses.ints("state_version")]
    np.minimum.at(first, state, accesses.ints("operation"))
    return np.argsort(first, kind="stable")


def version_order(tables: Mapping[str, Columns], new_state: NDArray[np.int64]) -> NDArray[np.int64]:
    """Versions by state, in its new order, then by their number."""
    versions = tables["state_versions"]
    return np.lexsort([versions.ints("version"), new_state[versions.ints("state")]])


def dense_versions(versions: pa.Table) -> pa.Table:
    """Versions numbered from 0 in each state, in the order of rows."""
    state = versions.column("state").combine_chunks().to_numpy()
    rows = np.arange(len(state))
    begins = np.append(True, state[1:] != state[:-1])[: len(state)]
    number = rows - np.maximum.accumulate(np.where(begins, rows, 0))
    return with_column(versions, "version", integers(number, pa.uint32()))


def number_shared(tables: Mapping[str, Columns], content: Content) -> Trace:
    """The trace of these tables with models, states, versions, artifacts, accesses and annotations in order.

    What nothing refers to any more, among models and artifacts, is left out. Rows that are in order already stay.

    Args:
        tables: all tables of a trace; those that tasks own are in order, accesses excepted.
        content: where the content of artifacts is.
    """
    states = state_order(tables)
    versions = version_order(tables, places(states, tables["states"].rows))
    orders = {
        "models": model_order(tables),
        "artifacts": artifact_order(tables, versions),
        "states": states,
        "state_versions": versions,
    }
    moved = {name: places(order, tables[name].rows) for name, order in orders.items()}
    for name in list(orders):
        if in_place(orders[name], tables[name].rows):
            del orders[name], moved[name]
    made = {
        name: take(columns, orders.get(name), moved)
        for name, columns in tables.items()
        if name != "annotations"
    }
    made["state_versions"] = dense_versions(made["state_versions"])
    made["state_accesses"] = _sort_accesses(made["state_accesses"])
    made["annotations"] = sort_annotations(take_annotations(tables["annotations"], moved))
    return Trace.from_arrow(made, content)


def _sort_accesses(accesses: pa.Table) -> pa.Table:
    columns = [
        accesses.column(name).combine_chunks().to_numpy() for name in ("mode", "state_version", "operation")
    ]
    order = np.lexsort(columns)
    return accesses if in_place(order, len(order)) else accesses.take(pa.array(order))
