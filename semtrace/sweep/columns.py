"""The columns of a table of results: what each holds, of which type and in which unit, told by its name alone.

So tables of different runs have the same schema, whatever values they happen to hold.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Column:
    """Columns whose names follow a pattern.

    Attributes:
        pattern: of the whole name.
        kind: the type; `None` for columns that have the type of their values.
        unit: what the values count; empty for names and digests.
        says: what the column holds.
    """

    pattern: str
    kind: pa.DataType | None
    unit: str
    says: str


_INTEGER: Final = pa.int64()
_NUMBER: Final = pa.float64()
_TEXT: Final = pa.string()
_SHARES: Final = r"mean|p50|p90|p95|p99|p99\.9|value"
_COUNTS: Final = "count|unknown|part|whole|rounds"

COLUMNS: Final = (
    Column("point", _INTEGER, "", "ordinal of the point in the grid"),
    Column("engine", _TEXT, "", "name of the engine; null if it has none"),
    Column("plan", _TEXT, "", "`dag`, or the rule of the barrier"),
    Column("arrivals", _TEXT, "", "the arrival process with its numbers, times in ns"),
    Column("seed", _INTEGER, "", "seed of drawn arrivals"),
    Column(r"set\..+", None, "", "the value of a setting of the grid, of that setting's type"),
    Column("execution_digest", _TEXT, "", "digest of the execution"),
    Column("unfinished|refused", _INTEGER, "operations", "operations never released; refused by their server"),
    Column(r"sum\.preemptions", _INTEGER, "preemptions", "preemptions of all requests"),
    Column(r"sum\..+_ns", _INTEGER, "ns", "time summed over all requests"),
    Column(r"sum\..+_tokens", _INTEGER, "tokens", "tokens summed over all requests"),
    Column("output_tokens_per_second", _NUMBER, "1/s", "output tokens by the time from first submission to last finish"),
    Column(rf"(root_latency|last_finish)\.({_SHARES})", _NUMBER, "ns", "over instances, from arrival to the answer; to the last finish"),
    Column(rf"(ttft|lateness)\.({_SHARES})", _NUMBER, "ns", "over requests, from submission to the first token; over operations, submitted after release"),
    Column(r"(root_latency|last_finish|ttft|lateness)\.(min|max)", _INTEGER, "ns", "least and greatest of these"),
    Column(r"engine\.calls", _INTEGER, "calls", "calls that were submitted to the backend"),
    Column(rf"engine\.(queue|residence)_ns\.({_SHARES})", _NUMBER, "ns", "over calls, from submission to the first step; from there to the end, less time preempted"),
    Column(r"engine\.(queue|residence)_ns\.(min|max)|engine\.preempted_ns\.sum", _INTEGER, "ns", "least and greatest of these; time preempted, summed over calls"),
    Column(r"engine\.preemptions\.sum", _INTEGER, "preemptions", "preemptions of all calls"),
    Column(r"engine\.recompute\.(preemption|eviction)", _INTEGER, "tokens", "prompt tokens computed again, by cause"),
    Column(r"engine\.kv_byte_seconds\.device", _NUMBER, "B·s", "device KV that somebody holds, over time"),
    Column(r"engine\.work\.flops", _NUMBER, "FLOP", "modelled operations of all steps"),
    Column(r"engine\.work\.bytes", _NUMBER, "B", "modelled bytes of all steps, device memory read and written"),
    Column(r"engine\.work\.intensity", _NUMBER, "FLOP/B", "the one by the other"),
    Column(rf"engine\.batches\.rows\.({_SHARES})", _NUMBER, "tokens", "over steps, rows of their matrix products"),
    Column(r"engine\.batches\.rows\.(min|max)", _INTEGER, "tokens", "least and greatest of these"),
    Column(r"engine\.batches\.large_steps", _INTEGER, "steps", "steps of more than 128 rows"),
    Column(r"engine\.batches\.large_time\.(part|whole)", _INTEGER, "ns", "time of these; of all steps"),
    Column(r"engine\.batches\.matrix_ns", _NUMBER, "ns", "modelled time of matrix products"),
    Column(r"engine\.batches\.large_matrix_share", _NUMBER, "", "part of it that steps of more than 128 rows have"),
    Column(r"engine\.critical_inversions\.(part|whole)", _INTEGER, "calls", "critical calls that waited for others' memory; all critical calls"),
    Column(r"path\.(?!unknown$).+", _INTEGER, "ns", "parts of the completed paths, summed over instances"),
    Column(r"(.+\.)?.+_ns|.+\.ns", _INTEGER, "ns", "an instant, or a length of time"),
    Column(rf"width(_by_kind\.\w+)?\.({_SHARES})", _NUMBER, "operations", "operations in flight, in the mean of time"),
    Column(r"width(_by_kind\.\w+)?\.max", _INTEGER, "operations", "most operations in flight at once"),
    Column(r"fell_short\.instances", _INTEGER, "instances", "instances with an operation that did not end as recorded; they have no latency"),
    Column(r"fell_short\.operations", _INTEGER, "operations", "operations that did not end as recorded"),
    Column(r"fell_short\.outcomes\..+", _INTEGER, "operations", "these by outcome"),
    Column(r"fell_short\.other_lengths", _INTEGER, "calls", "answers of another number of tokens than recorded"),
    Column(r"redundancy\.(part|whole)", _INTEGER, "tokens", "prompt tokens of rounds that are repeated; all of them"),
    Column(r"attainment\.(part|whole)", _INTEGER, "instances", "instances on time; all that count"),
    Column(rf".+\.({_COUNTS})|joins_unknown", _INTEGER, "", "how many are in a measure; how many of them are not known"),
    Column(r".+_per_second", _NUMBER, "1/s", "a rate, of instances on time if it is goodput"),
    Column(rf".+\.({_SHARES})|fairness_p99_p50", _NUMBER, "", "a ratio, a mean or a percentile"),
    Column(r"(window|deadline)\.source", _TEXT, "", "who chose it"),
    Column("error", _TEXT, "", "why the point was refused; null if it was not"),
)  # fmt: skip
"""The columns of sweeps; the first pattern that a name follows is its own."""


def column_of(name: str) -> Column | None:
    """What is known of a column by its name."""
    return next((each for each in COLUMNS if re.fullmatch(each.pattern, name)), None)


def table_of(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The rows as a table; null where a row lacks a column.

    A column that `COLUMNS` knows has its type and, as metadata of the field, its `unit`; others have the type of their
    values: integers where all are, else floating point or text.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    fields, arrays = [], []
    for name in names:
        known = column_of(name)
        values = [row.get(name) for row in rows]
        array = _array(values, None if known is None else known.kind)
        unit = {"unit": known.unit} if known is not None and known.unit else None
        fields.append(pa.field(name, array.type, metadata=unit))
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _array(values: Sequence[Any], kind: pa.DataType | None) -> pa.Array:
    kinds = {type(value) for value in values if value is not None}
    if kind == _NUMBER or (kind is None and kinds <= {int, float} and float in kinds):
        return pa.array([None if value is None else float(value) for value in values], _NUMBER)
    if kind is None and len(kinds) > 1:
        return pa.array([None if value is None else str(value) for value in values], _TEXT)
    return pa.array(values, kind)
