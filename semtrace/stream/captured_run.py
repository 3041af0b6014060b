"""What captures say was observed of operations: the native run beside the trace, and the delays in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from semtrace.build.delays import UNKNOWN, Seen, Waits, unexplained_starts
from semtrace.records.columns import Columns
from semtrace.records.enums import EventOutcome, Evidence, OperationStatus
from semtrace.records.execution import Backend, Execution, ExecutionHeader
from semtrace.records.execution_tables import EVENTS, EXECUTION_TABLES, INSTANCES
from semtrace.store.digests import show, work_digest
from semtrace.stream.capture import invalid
from semtrace.stream.captured import NOTHING, check_values, columns_of, lose

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from semtrace.records.trace import Trace
    from semtrace.stream.captured import Captured
    from semtrace.stream.gather import Rows
    from semtrace.stream.losses import Losses

_TIMES: Final = ("ready", "released", "submitted", "scheduled", "first_token", "finished")
_COUNTS: Final = ("cached_tokens", "attempts")
_COLUMNS: Final = frozenset(
    {"operation", "outcome", "request_id", *_COUNTS}
    | {f"{name}_{part}" for name in _TIMES for part in ("ns", "evidence")}
)
_OUTCOMES: Final = {
    OperationStatus.OK: EventOutcome.OK,
    OperationStatus.ERROR: EventOutcome.ERROR,
    OperationStatus.CANCELLED: EventOutcome.CANCELLED,
    OperationStatus.TIMEOUT: EventOutcome.TIMEOUT,
}


class CapturedRun:
    """What was observed of each operation, by its row in the trace before it is put in order.

    Attributes:
        any: whether anything was observed.
        columns: columns of events, shape (operations,), with which of them are known.
    """

    def __init__(self, rows: Rows, captured: Captured, losses: Losses, operations: int) -> None:
        """Take what the events of a capture say; of several that state one column of an operation the last counts.

        Raises:
            FormatError: an event is not valid.
        """
        self._whole = captured.whole
        self._rows = rows
        self._operations = operations
        for name in rows.names:
            if name in _COLUMNS:
                continue
            records, _ = rows.stated(name)
            if len(records):
                raise invalid(f"an event with {name}", rows.where(int(records[0])), "ST-STR-057")
        named, _ = rows.numbers("operation")
        of = np.append(captured.number["operations"], NOTHING)[captured.rows("operations").find(named)]
        lost = np.flatnonzero(of == NOTHING)
        message = "an event whose operation is not in the capture"
        if len(lost) and captured.whole:
            message += f": {named[lost[0]]}"
        lose(losses, rows, lost, message, whole=captured.whole)
        self.any = bool((of != NOTHING).any())
        self.columns: dict[str, tuple[NDArray[Any], NDArray[np.bool_]]] = {}
        outcome, _ = rows.numbers("outcome")
        check_values(EventOutcome, "outcome", outcome, rows.where)
        self._take("outcome", of, outcome, outcome != 0)
        for name in _COUNTS:
            self._take(name, of, *rows.numbers(name))
        for name in _TIMES:
            times, known = rows.numbers(f"{name}_ns")
            evidence, _ = rows.numbers(f"{name}_evidence")
            check_values(Evidence, "evidence", np.where(known, evidence, 0), rows.where)
            self._take(f"{name}_ns", of, times, known)
            self._take(
                f"{name}_evidence", of, np.where(evidence == 0, int(Evidence.OBSERVED), evidence), known
            )
        self._request_ids = self._texts(of, "request_id")
        rows.release()

    def _take(self, name: str, of: NDArray[np.int64], values: NDArray[Any], known: NDArray[np.bool_]) -> None:
        """Put the values of events to their operations."""
        given = np.flatnonzero(known & (of != NOTHING))
        found = np.zeros(self._operations, dtype=values.dtype)
        there = np.zeros(self._operations, dtype=np.bool_)
        found[of[given]] = values[given]  # of several assignments to one place the last one stays
        there[of[given]] = True
        self.columns[name] = (found, there)

    def _texts(self, of: NDArray[np.int64], name: str) -> Any:
        values = self._rows.texts(name)
        records, _ = self._rows.stated(name)
        given = records[of[records] != NOTHING]
        pick = np.full(self._operations, NOTHING, dtype=np.int64)
        pick[of[given]] = given
        return values.take(pa.array(pick, mask=pick == NOTHING))

    def times(self, name: str) -> NDArray[np.int64]:
        """One time of each operation, `UNKNOWN` where it is not known."""
        values, known = self.columns[f"{name}_ns"]
        return np.where(known, values, UNKNOWN)

    def cut_short(self, stated: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Operations that were under way when the recording ended (ST-STR-064); their outcome becomes `unfinished`.

        Args:
            stated: which operations state a status.
        """
        known = {name: self.columns[f"{name}_ns"][1] for name in ("submitted", "finished")}
        found = np.flatnonzero(~stated & known["submitted"] & ~known["finished"])
        outcome, there = self.columns["outcome"]
        outcome[found], there[found] = int(EventOutcome.UNFINISHED), True
        return found

    def unexplained(
        self, task: NDArray[np.int64], arrival: NDArray[np.int64], edges: Mapping[str, NDArray[np.int64]]
    ) -> Any:
        """What dependencies leave unexplained of the starts; see `semtrace.build.delays.unexplained_starts`."""
        seen = Seen(self.times("submitted"), self.times("first_token"), self.times("finished"))
        waits = Waits(edges["target"], edges["source"], edges["trigger"], edges["lag_ns"])
        return unexplained_starts(task, arrival, seen, waits)

    def execution(self, trace: Trace, order: NDArray[np.int64]) -> Execution | None:
        """The native run of the trace; None if nothing was observed.

        Args:
            trace: the trace in its order.
            order: for each of its operations, its row before.
        """
        if not self.any:
            return None
        tasks, operations = trace.tasks, trace.operations
        instances = {
            "task": np.arange(tasks.rows),
            "instance": np.zeros(tasks.rows, dtype=np.uint32),
            "arrival_ns": tasks.array("arrival_ns"),
            "outcome": tasks.array("outcome"),
        }
        follows = np.zeros(max(_OUTCOMES) + 1, dtype=np.uint8)
        follows[list(_OUTCOMES)] = list(_OUTCOMES.values())
        outcome, stated = (values[order] for values in self.columns["outcome"])
        events = {
            "instance": operations.array("task"),
            "operation": np.arange(operations.rows),
            "outcome": np.where(stated, outcome, follows[operations.raw("status")]),
            "prompt_tokens": operations.array("prompt_tokens"),
            "output_tokens": operations.array("output_tokens"),
            "request_id": self._request_ids.take(pa.array(order)),
        }
        for name in _COUNTS:
            values, known = self.columns[name]
            events[name] = pa.array(values[order], mask=~known[order])
        for name in _TIMES:
            values, known = self.columns[f"{name}_ns"]
            events[f"{name}_ns"] = pa.array(values[order], mask=~known[order])
            evidence, _ = self.columns[f"{name}_evidence"]
            events[f"{name}_evidence"] = np.where(known[order], evidence[order], int(Evidence.MISSING))
        header = ExecutionHeader(
            work_digest=show(work_digest(trace)),
            mode="native",
            clock="wall",
            origin_unix_ns=trace["trace"].row(0)["origin_unix_ns"],  # type: ignore[arg-type]  # a row holds anything
            measured_at="client",
            backend=Backend(name="native"),
        )
        tables = {spec.name: Columns(spec, spec.empty()) for spec in EXECUTION_TABLES}
        tables["instances"] = columns_of(INSTANCES, instances)
        tables["events"] = columns_of(EVENTS, events)
        return Execution(header, tables)
