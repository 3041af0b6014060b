"""What captures state of each table: which rows stand, how they are numbered, and their columns (ST-STR-053 …)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semtrace.errors import FormatError
from semtrace.records.columns import Columns
from semtrace.records.enums import EdgeKind as Kind
from semtrace.records.enums import (
    Evidence,
    OperationStatus,
    Outcome,
    SegmentScope,
    StageTemplate,
    StateLifetime,
    StateScope,
    Trigger,
    VersionMode,
)
from semtrace.records.schema import Column, Physical
from semtrace.records.trace_tables import TRACE_TABLE
from semtrace.stream.capture import MAY_HAVE_ID, NEEDS_ID, invalid
from semtrace.stream.captured_artifacts import CapturedArtifacts
from semtrace.stream.losses import PLACES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from enum import IntEnum

    from numpy.typing import NDArray

    from semtrace.records.schema import Table
    from semtrace.stream.capture import Capture
    from semtrace.stream.gather import Rows
    from semtrace.stream.losses import Losses

NOTHING: Final = -1
"""What stands for a row that is not there."""
DANGLING: Final = ("ST-STR-053", "stream.dangling")
"""Requirement, and code of the loss, of references to what is not in the capture."""
_DEFAULTS: Final[dict[tuple[str, str], int]] = {
    ("tasks", "outcome"): Outcome.UNKNOWN,
    ("stages", "template"): StageTemplate.UNKNOWN,
    ("operations", "status"): OperationStatus.OK,
    ("segments", "scope"): SegmentScope.SHARED,
    ("edges", "kind"): Kind.CONTROL,
    ("edges", "trigger"): Trigger.FINISH,
    ("edges", "evidence"): Evidence.OBSERVED,
    ("states", "scope"): StateScope.SHARED,
    ("states", "lifetime"): StateLifetime.TASK,
    ("state_versions", "mode"): VersionMode.REPLACE,
}
"""What an enumeration that is absent in a capture means (ST-STR-054); any other must be there."""
_BY_RULE: Final = {("operations", "tokens_evidence"), ("operations", "duration_evidence")}
"""Enumerations whose default follows from other columns."""
_MAXIMA: Final = {Physical.U8: 1 << 8, Physical.U32: 1 << 32}
_BODY_OF: Final = {table: body for body, table in (NEEDS_ID | MAY_HAVE_ID).items()} | {
    "edges": "edge",
    "state_accesses": "state_access",
}


class Captured:
    """The tables of a capture, under ids that are dense.

    Attributes:
        whole: whether all that was recorded is here: what is missing is an error then, and a loss otherwise.
        artifacts: the artifacts, those that are equal as one.
        order: by table, the rows of the capture that become rows, in their new order.
        number: by table, the new id of each row of the capture, `NOTHING` of those that are left out.
        stated_status: which operations state a status, by new id; once their columns have been taken.
    """

    def __init__(self, capture: Capture, losses: Losses) -> None:
        """Leave out what cannot be without what is not here, and number the rest.

        Raises:
            FormatError: the capture is not valid.
        """
        self.whole = capture.whole
        self.artifacts = CapturedArtifacts(capture.rows["captured_artifact"], capture.rows["segment"])
        self._rows = capture.rows
        self._losses = losses
        kept = self._leave_out_orphans()
        self.order = {table: np.flatnonzero(rows) for table, rows in kept.items()}
        self.number = {table: _numbers(order, len(kept[table])) for table, order in self.order.items()}
        self._number_models()
        self._number_states()
        self._number_versions()

    def rows(self, table: str) -> Rows:
        """The rows of a table, as the capture has them."""
        return self._rows[_BODY_OF[table]]

    def lose(
        self, table: str, rows: NDArray[np.int64], message: str, rule: tuple[str, str] = DANGLING
    ) -> None:
        """Note rows of the capture that lose something.

        Args:
            table: their table.
            rows: which.
            message: what they lose.
            rule: requirement, and code of the loss.

        Raises:
            FormatError: there are any, and the capture is whole.
        """
        lose(self._losses, self.rows(table), rows, message, rule, whole=self.whole)

    # -- which rows stand ---------------------------------------------------------------------------------------

    def _leave_out_orphans(self) -> dict[str, NDArray[np.bool_]]:
        """By table, which rows stand: those that cannot be without a row that is not here are left out, and so on."""
        kept = {table: np.ones(self.rows(table).count, dtype=np.bool_) for table in _BODY_OF}
        gone = True
        while gone:
            gone = False
            for table in _BODY_OF:
                for column in TRACE_TABLE[table].columns if table != "artifacts" else ():
                    bad = np.flatnonzero(kept[table] & ~self._stands(table, column, kept))
                    if len(bad):
                        kept[table][bad] = False
                        gone = True
        return kept

    def _stands(self, table: str, column: Column, kept: dict[str, NDArray[np.bool_]]) -> NDArray[np.bool_]:
        """Which rows of a table may stand for all that one column says; the others are lost."""
        rows = self.rows(table)
        if column.nullable or not (column.refs or column.enum):
            return kept[table]
        if column.refs:
            values, _ = rows.numbers(column.name)
            found = self.rows(column.refs).find(values)
            there: NDArray[np.bool_] = np.append(kept[column.refs], False)[found]
            bad = np.flatnonzero(kept[table] & ~there)
            message = f"a row of {table} whose {column.name} is not in the capture"
            if len(bad) and self.whole:
                message += f": {values[bad[0]]}"
            self.lose(table, bad, message)
            return there
        if (table, column.name) in _DEFAULTS or (table, column.name) in _BY_RULE:
            return kept[table]
        stated: NDArray[np.bool_] = rows.numbers(column.name)[0] != 0
        bad = np.flatnonzero(kept[table] & ~stated)
        self.lose(
            table, bad, f"a row of {table} without its {column.name}", ("ST-STR-054", "stream.incomplete")
        )
        return stated

    # -- how they are numbered ----------------------------------------------------------------------------------

    def _number_models(self) -> None:
        """Models of one name are one model."""
        order = self.order["models"]
        names = _flat(self._texts("models", "name", order)).dictionary_encode()
        group = names.indices.to_numpy()
        first = np.zeros(len(names.dictionary), dtype=np.int64)
        first[group[::-1]] = np.arange(len(group))[::-1]
        rank = np.argsort(np.argsort(first, kind="stable"))  # names by the first model that has them
        self.model_group = rank[group]
        self.number["models"][order] = self.model_group

    def _number_states(self) -> None:
        """States by their names, as those with the same first access are ordered by them; one without versions is none."""
        version = self.rows("state_versions")
        kept = self.order["state_versions"]
        state = self.rows("states").find(version.numbers("state")[0][kept])
        used = np.zeros(len(self.number["states"]), dtype=np.bool_)
        used[state] = True
        order = np.flatnonzero(used & (self.number["states"] != NOTHING))
        table = pa.table([self._texts("states", name, order) for name in ("namespace", "name")] + [pa.array(order)],
                         ["namespace", "name", "row"])  # fmt: skip
        keys = [(name, "ascending") for name in table.column_names]
        self._set_order("states", order[pc.sort_indices(table, sort_keys=keys).to_numpy()])

    def _number_versions(self) -> None:
        """Versions by state, in the order of their numbers, and of the capture where those are equal."""
        rows, kept = self.rows("state_versions"), self.order["state_versions"]
        state = self.number["states"][self.rows("states").find(rows.numbers("state")[0][kept])]
        self._set_order("state_versions", kept[np.lexsort([rows.numbers("version")[0][kept], state])])

    def _set_order(self, table: str, order: NDArray[np.int64]) -> None:
        self.order[table] = order
        self.number[table] = _numbers(order, len(self.number[table]))

    # -- what they state ----------------------------------------------------------------------------------------

    def columns(self, table: str) -> dict[str, Any]:
        """The columns of a table, references as new ids; the capture gives them away.

        Raises:
            FormatError: a value does not fit its column; or a reference refers to nothing, in a capture that is whole.
        """
        made = {column.name: self._column(table, column) for column in TRACE_TABLE[table].columns}
        if table == "models":
            made = {name: self._of_models(name, values) for name, values in made.items()}
        if table == "operations":
            self.stated_status = self.rows(table).numbers("status")[0][self.order[table]] != 0
        self.rows(table).release()
        return made

    def _column(self, table: str, column: Column) -> Any:
        rows, order = self.rows(table), self.order[table]
        if column.type in {Physical.STRING, Physical.BYTES32}:
            values = self._texts(table, column.name, order)
            return values if column.nullable else pc.fill_null(values, "")
        values, known = rows.numbers(column.name)
        values, known = values[order], known[order]
        if not column.nullable:
            known[:] = True
        if column.refs:
            return self._references(table, column, values, known)
        if column.enum:
            return self._enumeration(table, column, values, known)
        if column.type in _MAXIMA and len(values) and int(values.max()) >= _MAXIMA[column.type]:
            bad = int(np.argmax(values))
            raise invalid(
                f"{column.name} is {values[bad]}, too great for its column",
                rows.where(int(order[bad])),
                "ST-STR-054",
            )
        return _array(values, known)

    def _texts(self, table: str, name: str, order: NDArray[np.int64]) -> Any:
        return self.rows(table).texts(name).take(pa.array(order))

    def _references(self, table: str, column: Column, values: Any, known: NDArray[np.bool_]) -> Any:
        assert column.refs is not None  # noqa: S101  # the caller has seen to it
        found = self.rows(column.refs).find(values)
        if column.refs == "artifacts":
            new = self.artifacts.envelopes if column.name == "envelope" else self.artifacts.number
        else:
            new = self.number[column.refs]
        refers = np.append(new, NOTHING)[found]
        bad = np.flatnonzero(known & (refers == NOTHING))
        message = f"the {column.name} of a row of {table} is not in the capture"
        if len(bad) and self.whole:
            message += f": {values[bad[0]]}"
        self.lose(table, self.order[table][bad], message)
        return _array(refers, known & (refers != NOTHING))

    def _enumeration(self, table: str, column: Column, values: Any, known: NDArray[np.bool_]) -> Any:
        kind = column.enum
        assert kind is not None  # noqa: S101  # the caller has seen to it
        where = self.rows(table)
        check_values(kind, column.name, values, lambda at: where.where(int(self.order[table][at])))
        default = _DEFAULTS.get((table, column.name))
        if default is None:
            return _array(values, known & (values != 0))
        return _array(np.where(values == 0, default, values), known)

    def _of_models(self, name: str, values: Any) -> Any:
        """One value for each model: the one that the rows of its name state.

        Raises:
            FormatError: two of them state another.
        """
        group = self.model_group
        if len(group) == int(group.max(initial=-1)) + 1:
            return values
        values = _flat(values)
        known = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        pick = np.full(int(group.max()) + 1, NOTHING, dtype=np.int64)
        pick[group[known[::-1]]] = known[::-1]
        first = pick[group[known]]
        same = pc.equal(values.take(pa.array(known)), values.take(pa.array(first))).to_numpy(
            zero_copy_only=False
        )
        if not same.all():
            at, before = (int(each[~same][0]) for each in (known, first))
            raise invalid(
                f"a model has {name} {values[before].as_py()} and {values[at].as_py()}",
                self.rows("models").where(int(self.order["models"][at])),
                "ST-STR-058",
            )
        return values.take(pa.array(pick, mask=pick == NOTHING))


def lose(
    losses: Losses,
    rows: Rows,
    which: NDArray[np.int64],
    message: str,
    rule: tuple[str, str] = DANGLING,
    *,
    whole: bool,
) -> None:
    """Note rows that lose something; see `Captured.lose`."""
    if not len(which):
        return
    requirement, code = rule
    if whole:
        raise invalid(message, rows.where(int(which[0])), requirement)
    losses.add_rows(code, "lost", message, map(rows.where, which[:PLACES].tolist()), len(which))


def check_values(kind: type[IntEnum], name: str, values: NDArray[Any], where: Callable[[int], str]) -> None:
    """Refuse a number that an enumeration does not have; 0 is absent.

    Raises:
        FormatError: naming it.
    """
    bad = np.flatnonzero(~np.isin(values, [0, *(int(value) for value in kind)]))
    if len(bad):
        raise invalid(f"{name} has no value {values[bad[0]]}", where(int(bad[0])), "ST-STR-054")


def columns_of(spec: Table, values: Mapping[str, Any]) -> Columns:
    """A table of arrays; columns left out are null.

    Raises:
        FormatError: a value does not fit its column.
    """
    rows = len(next(iter(values.values())))
    made = []
    for field in spec.arrow:
        given = values.get(field.name)
        if given is None:
            made.append(pa.nulls(rows, field.type))
            continue
        try:
            made.append((pa.array(given) if isinstance(given, np.ndarray) else given).cast(field.type))
        except pa.ArrowException as error:
            raise FormatError(
                str(error), code="table.value", path=f"{spec.name}.{field.name}", requirement="ST-TAB-002"
            ) from error
    return Columns(spec, pa.Table.from_arrays(made, schema=spec.arrow))


def _numbers(order: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    number = np.full(count, NOTHING, dtype=np.int64)
    number[order] = np.arange(len(order))
    return number


def _array(values: NDArray[Any], known: NDArray[np.bool_]) -> pa.Array:
    return pa.array(values) if known.all() else pa.array(np.where(known, values, 0), mask=~known)


def _flat(values: Any) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
