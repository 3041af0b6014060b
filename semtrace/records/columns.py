"""A table's data: an Arrow table that has its declared schema, with NumPy access to its columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from semtrace.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from semtrace.records.schema import Table

NULL: Final = -1
"""What stands for null where a nullable integer column is read as NumPy integers."""


def validity(array: pa.Array) -> NDArray[np.bool_]:
    """Which values of an array are not null."""
    bits = array.buffers()[0]
    if bits is None or not array.null_count:
        return np.ones(len(array), dtype=np.bool_)
    if pa.types.is_null(array.type):
        return np.zeros(len(array), dtype=np.bool_)
    first = array.offset // 8
    packed = np.frombuffer(bits, dtype=np.uint8, offset=first)
    start = array.offset - 8 * first
    flags = np.unpackbits(packed, count=start + len(array), bitorder="little")
    return flags[start:].view(np.bool_)


class Columns:
    """The rows of one table.

    Row i of the table is the entity with id i. Null is never mixed up with zero: `ints` gives `NULL`
    (-1) for it, and `known` says which rows have a value.
    """

    def __init__(self, spec: Table, data: pa.Table) -> None:
        self.spec = spec
        self.data: pa.Table = _conform(spec, data).combine_chunks()
        for name, column in zip(spec.by_name, self.data.columns, strict=True):
            if column.num_chunks > 1:
                raise FormatError(
                    "more than 2 GiB of text in one column",
                    code="table.size",
                    path=f"{spec.name}.{name}",
                    requirement="ST-TAB-002",
                )
        self._ints: dict[str, NDArray[np.int64]] = {}
        self.column_digests: dict[int, bytes] = {}
        """Digests of columns that were computed already, by number (see `store.digests`)."""

    @classmethod
    def of(cls, spec: Table, columns: Mapping[str, Sequence[object]]) -> Columns:
        """Make a table from Python or NumPy sequences; columns left out are all null.

        Raises:
            FormatError: a column is missing that may not be null, columns differ in length, or a value does not
                fit its type.
        """
        unknown = set(columns) - set(spec.by_name)
        if unknown:
            raise FormatError(
                f"no such column: {', '.join(sorted(unknown))}", code="table.column", path=spec.name
            )
        rows = max((len(values) for values in columns.values()), default=0)
        arrays = []
        for field in spec.arrow:
            where = f"{spec.name}.{field.name}"
            values = columns.get(field.name)
            if values is None:
                arrays.append(pa.nulls(rows, field.type))
                continue
            if len(values) != rows:
                raise FormatError(
                    f"{len(values)} values, other columns have {rows}", code="table.length", path=where
                )
            if pa.types.is_integer(field.type) and _has_float(values):
                raise FormatError("a float where an integer must be", code="table.value", path=where)
            try:
                arrays.append(pa.array(values, field.type))
            except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
                raise FormatError(str(error), code="table.value", path=where) from error
        return cls(spec, pa.Table.from_arrays(arrays, schema=spec.arrow))

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.data.num_rows)

    def array(self, name: str) -> pa.Array:
        """The column as one Arrow array."""
        chunked = self.data.column(name)
        return chunked.chunk(0) if chunked.num_chunks else pa.array([], chunked.type)

    def raw(self, name: str) -> NDArray[np.generic]:
        """The column in its own NumPy type, without a copy. Null slots hold anything.

        Unsigned arithmetic wraps: use `ints` to subtract.
        """
        array = self.array(name)
        width = array.type.bit_width // 8
        buffer = array.buffers()[1]
        if len(array) == 0 or buffer is None:
            return np.zeros(len(array), dtype=array.type.to_pandas_dtype())
        start = array.offset * width
        return np.frombuffer(buffer, dtype=array.type.to_pandas_dtype(), count=len(array), offset=start)

    def ints(self, name: str) -> NDArray[np.int64]:
        """The column as int64, `NULL` where it is null. Cached: not to be written to."""
        found = self._ints.get(name)
        if found is None:
            found = self.part(name, slice(0, self.rows))
            found.flags.writeable = False
            self._ints[name] = found
        return found

    def part(self, name: str, rows: slice) -> NDArray[np.int64]:
        """A stretch of what `ints` gives, made of these rows alone. Not to be written to."""
        array = self.array(name)
        values: NDArray[np.int64] = self.raw(name)[rows].astype(np.int64, copy=False)
        if not array.null_count:
            return values
        return np.where(self.known(name, rows), values, NULL)

    def known(self, name: str, rows: slice = slice(None)) -> NDArray[np.bool_]:
        """Which rows have a value in the column; of all rows, or of a stretch of them."""
        array = self.array(name)[rows]
        return validity(array)

    def strings(self, name: str) -> list[str | None]:
        """The column as Python strings, None where it is null."""
        values: list[str | None] = self.array(name).to_pylist()
        return values

    def digests(self) -> list[bytes]:
        """The `digest` column as bytes; only of the artifacts table."""
        values: list[bytes] = self.array("digest").to_pylist()
        return values

    def named_rows(self, limit: int) -> list[dict[str, object]]:
        """The first rows as dictionaries, enumerations by name, for showing."""
        rows: list[dict[str, Any]] = self.data.slice(0, limit).to_pylist()
        for column in self.spec.columns:
            if column.enum is not None:
                for row in rows:
                    number = row[column.name]
                    row[column.name] = None if number is None else column.enum(number).name.lower()
        return rows

    def row(self, index: int) -> dict[str, object]:
        """One row as a dictionary, for messages and for showing; not for loops."""
        return {name: self.data.column(name)[index].as_py() for name in self.spec.by_name}


def known_tables(names: Iterable[str], specs: Iterable[Table]) -> None:
    """Refuse names of tables that the standard does not have.

    Raises:
        FormatError: naming them.
    """
    unknown = sorted(set(names) - {spec.name for spec in specs})
    if unknown:
        raise FormatError(
            f"tables that the standard does not have: {', '.join(unknown)}",
            code="bundle.table",
            requirement="ST-TAB-001",
        )


def _has_float(values: Sequence[object] | NDArray[np.generic]) -> bool:
    """Whether there is a float among the values: Arrow would cut it to an integer without a word."""
    if isinstance(values, np.ndarray) and values.dtype != np.object_:
        return bool(np.issubdtype(values.dtype, np.floating))
    return any(isinstance(value, float) for value in values)


def _conform(spec: Table, data: pa.Table) -> pa.Table:
    """The data with exactly the declared columns in their order; absent nullable columns become null.

    The null counts are those of the data: a file can declare a column free of nulls and yet hold some.

    Raises:
        FormatError: a column has another type, is missing, is not declared or has nulls it must not have.
    """
    extra = [name for name in data.schema.names if name not in spec.by_name]
    if extra or len(set(data.schema.names)) != len(data.schema.names):
        raise FormatError(
            f"columns that the table does not have: {', '.join(extra) or 'a name twice'}",
            code="table.column",
            path=spec.name,
            requirement="ST-TAB-002",
            hint="columns of extensions belong in annotations",
        )
    arrays = []
    for field in spec.arrow:
        if field.name not in data.schema.names:
            if not field.nullable:
                raise FormatError(
                    "the column is missing",
                    code="table.column",
                    path=f"{spec.name}.{field.name}",
                    requirement="ST-TAB-002",
                )
            arrays.append(pa.chunked_array([pa.nulls(data.num_rows, field.type)]))
            continue
        column = data.column(field.name)
        if column.type != field.type:
            raise FormatError(
                f"the column is {column.type}, must be {field.type}",
                code="table.type",
                path=f"{spec.name}.{field.name}",
                requirement="ST-TAB-002",
            )
        if column.null_count and not field.nullable:
            raise FormatError(
                f"{column.null_count} values are null, none may be",
                code="table.null",
                path=f"{spec.name}.{field.name}",
                requirement="ST-TAB-003",
            )
        arrays.append(column)
    return pa.Table.from_arrays(arrays, schema=spec.arrow)
