"""Moving rows: taking some rows of tables in some order, with every reference following."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semtrace.check.view import sorts_before
from semtrace.records.columns import NULL, Columns
from semtrace.records.enums import EntityKind
from semtrace.records.trace_tables import ANNOTATIONS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from numpy.typing import NDArray

    from semtrace.records.schema import Table

ENTITY_TABLES: Final = {
    EntityKind.TASK: "tasks",
    EntityKind.STAGE: "stages",
    EntityKind.SESSION: "sessions",
    EntityKind.OPERATION: "operations",
    EntityKind.SEGMENT: "segments",
    EntityKind.EDGE: "edges",
    EntityKind.STATE: "states",
    EntityKind.STATE_VERSION: "state_versions",
    EntityKind.MODEL: "models",
}
"""The tables that annotations speak of."""

_ANNOTATION_ORDER: Final = ("entity_kind", "entity", "key", "value")


def places(order: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The new id of each old one, `NULL` for rows that are left out; asked for `NULL`, it gives `NULL`.

    Args:
        order: the old ids in their new order.
        count: how many old ids there are.
    """
    new = np.full(count + 1, NULL, dtype=np.int64)  # the last place is that of NULL, -1
    new[order] = np.arange(len(order))
    return new


def in_place(order: NDArray[np.int64], count: int) -> bool:
    """Whether an order leaves all of so many rows where they are."""
    return len(order) == count and bool((order[1:] > order[:-1]).all())


def integers(values: NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    """Integers as an Arrow array, `NULL` as null; only of columns that hold nothing negative."""
    null = values == NULL
    if not null.any():
        return pa.array(values.astype(kind.to_pandas_dtype()), kind)
    return pa.array(np.where(null, 0, values).astype(kind.to_pandas_dtype()), kind, mask=null)


def with_column(data: pa.Table, name: str, values: pa.Array) -> pa.Table:
    """The table with another column of this name."""
    at = data.schema.get_field_index(name)
    return data.set_column(at, data.schema.field(at), values)


def take(
    columns: Columns,
    order: NDArray[np.int64] | None,
    moved: Mapping[str, NDArray[np.int64]],
    *,
    severed: Collection[str] = (),
) -> pa.Table:
    """Rows of a table in a new order, with references to tables whose rows move following.

    Args:
        columns: the table.
        order: its rows in their new order; None for all of them as they are.
        moved: by table, the new id of each old one, as `places` gives it.
        severed: columns of which a reference to a row that is left out becomes null.

    Raises:
        ValueError: a row that is taken refers to one that is left out.
    """
    data = columns.data if order is None else columns.data.take(pa.array(order))
    for column in columns.spec.columns:
        new = None if column.refs is None else moved.get(column.refs)
        if new is None or columns.array(column.name).null_count == columns.rows:
            continue
        old = columns.ints(column.name) if order is None else columns.ints(column.name)[order]
        values = new[old]
        if column.name not in severed and ((values == NULL) & (old != NULL)).any():
            raise ValueError(
                f"a row of {columns.spec.name} refers by {column.name} to a row that is left out"
            )
        data = with_column(data, column.name, integers(values, data.schema.field(column.name).type))
    return data


def take_annotations(columns: Columns, moved: Mapping[str, NDArray[np.int64]]) -> pa.Table:
    """The annotations of the rows that are kept, following them; to be sorted."""
    kind, entity = columns.raw("entity_kind"), columns.ints("entity")
    new = entity.copy()
    for number, table in ENTITY_TABLES.items():
        if table in moved:
            rows = kind == number
            new[rows] = moved[table][entity[rows]]
    kept = np.flatnonzero(new != NULL)
    data = columns.data if len(kept) == columns.rows else columns.data.take(pa.array(kept))
    return with_column(data, "entity", integers(new[kept], pa.uint32()))


def annotation_rows(kind: EntityKind, entities: NDArray[np.int64], key: str, values: pa.Array) -> pa.Table:
    """Annotations of rows of one table under one key, with a text for each."""
    count = len(entities)
    columns = [
        pa.array(np.full(count, int(kind), dtype=np.uint8)),
        integers(entities, pa.uint32()),
        pa.repeat(pa.scalar(key), count),
        values,
    ]
    return pa.Table.from_arrays(columns, schema=ANNOTATIONS.arrow)


def sort_annotations(data: pa.Table) -> pa.Table:
    """Annotations in the order of the standard."""
    data = data.combine_chunks()
    if data.num_rows < 2 or not len(sorts_before([_column(data, name) for name in _ANNOTATION_ORDER])):
        return data
    return data.take(pc.sort_indices(data, sort_keys=[(name, "ascending") for name in _ANNOTATION_ORDER]))


def distinct_annotations(data: pa.Table) -> pa.Table:
    """Sorted annotations, of equal ones only the first."""
    equal = np.ones(max(data.num_rows - 1, 0), dtype=np.bool_)
    for name in _ANNOTATION_ORDER:
        column = _column(data, name)
        above = column.slice(0, len(equal))
        equal &= pc.equal(column.slice(1), above).to_numpy(zero_copy_only=False)
    return data.filter(pa.array(np.append(True, ~equal))) if equal.any() else data


def _column(data: pa.Table, name: str) -> pa.Array:
    chunked = data.column(name)
    return chunked.chunk(0) if chunked.num_chunks == 1 else chunked.combine_chunks()


def joined(spec: Table, parts: list[pa.Table]) -> Columns:
    """Tables one below the other."""
    return Columns(spec, pa.concat_tables(parts))
