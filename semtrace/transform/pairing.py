"""Which rows of one trace stand for which rows of another, and their values made comparable."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from semtrace.check.view import first_rows
from semtrace.records.columns import NULL, Columns
from semtrace.records.enums import StateLifetime
from semtrace.records.schema import Physical

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from semtrace.records.schema import Column
    from semtrace.records.trace import Trace


@dataclass(frozen=True)
class Pairs:
    """Rows of one table that stand for each other.

    Attributes:
        a, b: the rows of either side, pair by pair.
        only_a, only_b: the rows that have no counterpart.
    """

    a: NDArray[np.int64]
    b: NDArray[np.int64]
    only_a: NDArray[np.int64]
    only_b: NDArray[np.int64]

    @property
    def moved(self) -> bool:
        """Whether the pairs stand in another order on the other side."""
        order = self.b[np.argsort(self.a, kind="stable")]
        return bool((order[1:] < order[:-1]).any())

    def codes(self, rows_a: int, rows_b: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """A number for each row of either side, equal for the two of a pair; with `NULL` for `NULL`."""
        codes_a = np.append(np.arange(rows_a), NULL)
        codes_b = np.append(np.arange(rows_b) + rows_a, NULL)
        codes_b[self.b] = self.a
        return codes_a, codes_b


def pairs(a: NDArray[np.int64], b: NDArray[np.int64], rows_a: int, rows_b: int) -> Pairs:
    """Pairs, with the rows that are left."""
    only_a, only_b = np.ones(rows_a, dtype=np.bool_), np.ones(rows_b, dtype=np.bool_)
    only_a[a] = False
    only_b[b] = False
    return Pairs(a, b, np.flatnonzero(only_a), np.flatnonzero(only_b))


def by_key(a: Sequence[NDArray[np.int64]], b: Sequence[NDArray[np.int64]]) -> Pairs:
    """Rows with equal keys; of several rows with one key the first stands for the first, and so on.

    Args:
        a: the columns of the key of one side; a row with a negative number in the first has no counterpart.
        b: those of the other side.
    """
    rows_a, rows_b = len(a[0]), len(b[0])
    key = np.zeros(rows_a + rows_b, dtype=np.int64)
    for one, other in zip(a, b, strict=True):
        both = np.concatenate([one, other])
        _, code = np.unique(both, return_inverse=True)
        key = key * (int(code.max(initial=0)) + 1) + code.reshape(-1)
        _, folded = np.unique(key, return_inverse=True)
        key = folded.reshape(-1)
    key_a, key_b = _with_occurrence(key[:rows_a]), _with_occurrence(key[rows_a:])
    key_a = np.where(a[0] < 0, -1, key_a)
    key_b = np.where(b[0] < 0, -2, key_b)
    order = np.argsort(key_b, kind="stable")
    at = np.minimum(np.searchsorted(key_b[order], key_a), max(rows_b - 1, 0))
    found = (key_b[order][at] == key_a) if rows_b else np.zeros(rows_a, dtype=np.bool_)
    chosen = np.flatnonzero(found)
    return pairs(chosen, order[at[chosen]] if rows_b else chosen, rows_a, rows_b)


def _with_occurrence(key: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each key with its ordinal among equal ones, as one number."""
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    begins = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    rows = np.arange(len(ordered))
    occurrence = np.empty(len(key), dtype=np.int64)
    occurrence[order] = rows - np.maximum.accumulate(np.where(begins, rows, 0))
    return (key << np.int64(32)) | occurrence


def by_place(a: NDArray[np.int64], b: NDArray[np.int64], owners: Pairs) -> Pairs:
    """Rows in the same place of owners that are a pair.

    Args:
        a: where the rows of each owner begin on one side, and their end.
        b: the same on the other side.
        owners: the owners.
    """
    count = np.minimum(np.diff(a)[owners.a], np.diff(b)[owners.b])
    within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    rows_a, rows_b = (int(side[-1]) for side in (a, b))
    return pairs(
        np.repeat(a[:-1][owners.a], count) + within,
        np.repeat(b[:-1][owners.b], count) + within,
        rows_a,
        rows_b,
    )


class Paired:
    """Two traces with their rows paired: tasks by name, what they own by its place, edges by what they lead from."""

    def __init__(self, a: Trace, b: Trace) -> None:
        self.a = a
        self.b = b
        self._done: dict[str, Pairs] = {}

    @cached_property
    def pairs(self) -> dict[str, Pairs]:
        """The pairs of every table but annotations."""
        a, b = self.a, self.b
        made = {"trace": by_place(np.array([0, 1]), np.array([0, 1]), _one)}
        made["tasks"] = self._tasks()
        for name in ("stages", "sessions", "operations"):
            made[name] = by_place(a.offsets(name), b.offsets(name), made["tasks"])
        made["segments"] = by_place(a.segment_offsets, b.segment_offsets, made["operations"])
        models = [column.name for column in a["models"].spec.columns]
        made["models"] = by_key(*self._texts("models", models))
        made["artifacts"] = by_key(*self._texts("artifacts", ["digest", "media_type"]))
        self._done = made  # what follows refers to rows of these
        names = self._texts("states", ["namespace", "name"])
        made["states"] = by_key(*([*side, owner] for side, owner in zip(names, self._owners(), strict=True)))
        state = self._reference("state_versions", "state", "states")
        number = [trace["state_versions"].ints("version") for trace in (a, b)]
        made["state_versions"] = by_key(*zip(state, number, strict=True))
        operation = self._reference("state_accesses", "operation", "operations")
        version = self._reference("state_accesses", "state_version", "state_versions")
        mode = [trace["state_accesses"].ints("mode") for trace in (a, b)]
        made["state_accesses"] = by_key(*zip(operation, version, mode, strict=True))
        made["edges"] = self._edges()
        return made

    def _tasks(self) -> Pairs:
        """Tasks by name; by place where no name is in both, as after redacting, and there are equally many."""
        a, b = self.a.tasks.rows, self.b.tasks.rows
        found = by_key(*self._texts("tasks", ["name"]))
        return found if len(found.a) or a != b else pairs(np.arange(a), np.arange(b), a, b)

    def _texts(
        self, table: str, names: Sequence[str]
    ) -> tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]]:
        """Columns as numbers that are equal where the values are."""
        sides = [coded(self.a[table], self.b[table], name) for name in names]
        return [one for one, _ in sides], [other for _, other in sides]

    def _reference(self, table: str, column: str, to: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        codes = self._done[to].codes(self.a[to].rows, self.b[to].rows)
        return codes[0][self.a[table].ints(column)], codes[1][self.b[table].ints(column)]

    def _owners(self) -> list[NDArray[np.int64]]:
        """The task that each state is of: that of the first operation to access it; none if it outlives tasks."""
        codes = self._done["tasks"].codes(self.a.tasks.rows, self.b.tasks.rows)
        owners = []
        for trace, code in zip((self.a, self.b), codes, strict=True):
            accesses = trace["state_accesses"]
            state = trace["state_versions"].ints("state")[accesses.ints("state_version")]
            first = first_rows(state, trace["states"].rows, NULL)
            first[trace["states"].ints("lifetime") == StateLifetime.LONG_TERM] = NULL
            operation = np.append(accesses.ints("operation"), NULL)[first]
            owners.append(code[np.append(trace.operations.ints("task"), NULL)[operation]])
        return owners

    def _edges(self) -> Pairs:
        """Edges by target, source, kind and trigger; most stand in the same places."""
        a, b = self.a, self.b
        ends = [self._reference("edges", name, "operations") for name in ("target", "source")]
        rest = [(a.edges.ints(name), b.edges.ints(name)) for name in ("kind", "trigger")]
        placed = by_place(a.edge_offsets, b.edge_offsets, self._done["operations"])
        same = np.ones(len(placed.a), dtype=np.bool_)
        for one, other in (*ends, *rest):
            same &= one[placed.a] == other[placed.b]
        left_a = np.setdiff1d(np.arange(a.edges.rows), placed.a[same], assume_unique=True)
        left_b = np.setdiff1d(np.arange(b.edges.rows), placed.b[same], assume_unique=True)
        keys = [(one[left_a], other[left_b]) for one, other in (*ends, *rest)]
        found = by_key(*zip(*keys, strict=True))
        return pairs(
            np.concatenate([placed.a[same], left_a[found.a]]),
            np.concatenate([placed.b[same], left_b[found.b]]),
            a.edges.rows,
            b.edges.rows,
        )

    def values(self, table: str, column: Column) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """A column of all pairs of a table as numbers, equal where the values say the same."""
        found = self.pairs[table]
        one, other = coded(self.a[table], self.b[table], column.name)
        if column.refs is not None:
            one, other = self._reference(table, column.name, column.refs)
        return one[found.a], other[found.b]


_one = Pairs(*(np.array([0]), np.array([0]), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)))


def coded(a: Columns, b: Columns, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A column of two tables as numbers, equal where the values are; null equals null and nothing else."""
    column = a.spec.by_name[name]
    if column.type in {Physical.STRING, Physical.BYTES32}:
        both = pa.chunked_array([a.array(name), b.array(name)]).combine_chunks()
        codes = (
            both.dictionary_encode().indices.fill_null(NULL).to_numpy(zero_copy_only=False).astype(np.int64)
        )
        return codes[: a.rows], codes[a.rows :]
    if not column.signed:
        return a.ints(name), b.ints(name)
    values = np.concatenate([a.ints(name), b.ints(name)])
    null = ~np.concatenate([a.known(name), b.known(name)])
    _, codes = np.unique(values, return_inverse=True)
    codes = np.where(null, NULL, codes.reshape(-1))
    return codes[: a.rows], codes[a.rows :]
