"""From the rows of captures to a trace: columns under the recorder's ids become columns in canonical order.

No object is made of a row; what a row of the capture states is in columns from the time that it was read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semtrace.build.delays import UNKNOWN
from semtrace.errors import FormatError
from semtrace.records.columns import NULL, Columns
from semtrace.records.enums import (
    AccessMode,
    ContentLevel,
    EdgeKind,
    EntityKind,
    Evidence,
    OperationStatus,
    Trigger,
)
from semtrace.records.trace import Trace
from semtrace.records.trace_tables import ANNOTATIONS, TRACE_TABLE, TRACE_TABLES
from semtrace.stream.capture import invalid
from semtrace.stream.captured import Captured, columns_of, lose
from semtrace.stream.captured_run import CapturedRun
from semtrace.stream.losses import PLACES
from semtrace.transform.numbering import artifact_order, dense_versions, number_shared
from semtrace.transform.ordering import operation_order, session_order, stage_order
from semtrace.transform.rows import annotation_rows, integers, places, take, take_annotations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from semtrace.records.execution import Execution
    from semtrace.stream.capture import Capture
    from semtrace.stream.losses import Losses

RECORDER_ID: Final = "semtrace/recorder_id"
"""Key of the annotations that keep the recorder's ids."""

_ENTITIES: Final = {
    EntityKind.TASK: "tasks",
    EntityKind.STAGE: "stages",
    EntityKind.SESSION: "sessions",
    EntityKind.OPERATION: "operations",
    EntityKind.SEGMENT: "segments",
    EntityKind.STATE: "states",
    EntityKind.STATE_VERSION: "state_versions",
    EntityKind.MODEL: "models",
}
_EDGE_KEY: Final = ("target", "source", "kind", "trigger")
_IMPLIED: Final = (int(EdgeKind.DATA), int(EdgeKind.STATE))


@dataclass(frozen=True)
class CapturedTrace:
    """What captures make.

    Attributes:
        trace: the trace, in canonical order.
        execution: the native run, if anything of it was observed.
    """

    trace: Trace
    execution: Execution | None


def capture_to_trace(capture: Capture, losses: Losses) -> CapturedTrace:
    """Make the trace; the capture gives its rows away.

    Where not all that was recorded is here, references to what is lost become null, and rows that make no sense
    without it are left out; both are counted as losses. Otherwise they are errors.

    Raises:
        FormatError: the capture is not valid.
    """
    return _Maker(capture, losses).make()


class _Maker:
    """Makes the tables, first with their rows in the order in which the capture has them."""

    def __init__(self, capture: Capture, losses: Losses) -> None:
        self.capture = capture
        self.losses = losses
        level = capture.header.get("content_level", ContentLevel.TEXT)
        if level not in set(ContentLevel):
            raise invalid(f"content level {level}", "the captures", "ST-STR-054")
        header = {**capture.header, "content_level": level}
        self.captured = Captured(capture, losses)
        self.tables: dict[str, Columns] = {spec.name: Columns(spec, spec.empty()) for spec in TRACE_TABLES}
        self._keep("trace", {name: pa.array([value]) for name, value in header.items() if value is not None})

    def make(self) -> CapturedTrace:
        for table in ("tasks", "stages", "sessions", "models", "operations", "segments", "states"):
            columns = self.captured.columns(table)
            if table == "operations":
                self._evidence(columns)
                self._inherited_from_nothing(columns)
            self._keep(table, columns)
        self._keep("artifacts", self.captured.artifacts.columns())
        if not self.captured.whole:
            self._cut_contexts()
        self._versions()
        self._accesses()
        self._edges()
        run = CapturedRun(
            self.capture.rows["event"], self.captured, self.losses, self.tables["operations"].rows
        )
        if not self.captured.whole:
            self._cut_short(run)
        self._delays(run)
        self._annotations()
        return self._ordered(run)

    def _keep(self, table: str, columns: dict[str, Any]) -> None:
        self.tables[table] = columns_of(TRACE_TABLE[table], columns)

    def _change(self, table: str, **columns: Any) -> None:
        """Put other columns into a table."""
        kept = self.tables[table]
        self._keep(table, dict(zip(kept.spec.by_name, kept.data.columns, strict=True)) | columns)

    # -- operations ---------------------------------------------------------------------------------------------

    @staticmethod
    def _evidence(columns: dict[str, Any]) -> None:
        """How counts and durations are known, where it is not stated (ST-STR-054)."""
        tokens = pc.or_(columns["prompt_tokens"].is_valid(), columns["output_tokens"].is_valid())
        for name, known in (("tokens", tokens), ("duration", columns["duration_ns"].is_valid())):
            meant = pc.if_else(known, int(Evidence.OBSERVED), int(Evidence.MISSING))
            columns[f"{name}_evidence"] = pc.coalesce(columns[f"{name}_evidence"].cast(meant.type), meant)

    def _inherited_from_nothing(self, columns: dict[str, Any]) -> None:
        segments = columns["context_segments"].to_numpy().copy()
        none = columns["context_base"].is_null().to_numpy(zero_copy_only=False)
        bad = np.flatnonzero(none & (segments > 0))
        rows = self.captured.order["operations"][bad]
        self.captured.lose("operations", rows, "an operation inherits from no operation")
        segments[bad] = 0
        columns["context_segments"] = pa.array(segments)

    def _cut_contexts(self) -> None:
        """Let no operation inherit more than is here of the context of its base."""
        operations = self.tables["operations"]
        own = np.bincount(self.tables["segments"].ints("operation"), minlength=operations.rows)
        base, wanted = operations.ints("context_base").copy(), operations.ints("context_segments").copy()
        cut = _too_much(base.tolist(), wanted.tolist(), own.tolist(), operations.known("output").tolist())
        rows = self.captured.order["operations"][cut]
        self.captured.lose("operations", rows, "an operation inherits what is not in the capture")
        base[cut], wanted[cut] = NULL, 0
        self._change(
            "operations", context_base=integers(base, pa.uint32()), context_segments=pa.array(wanted)
        )

    def _cut_short(self, run: CapturedRun) -> None:
        """Take operations that were under way when the recording ended as cancelled (ST-STR-064)."""
        rows, order = self.captured.rows("operations"), self.captured.order["operations"]
        found = run.cut_short(self.captured.stated_status)
        status = self.tables["operations"].ints("status").copy()
        status[found] = int(OperationStatus.CANCELLED)
        self._change("operations", status=pa.array(status))
        self.losses.add_rows(
            "stream.unfinished",
            "unknown",
            "an operation was under way when the recording ended: taken as cancelled",
            [rows.where(row) for row in order[found[:PLACES]].tolist()],
            len(found),
        )

    # -- states -------------------------------------------------------------------------------------------------

    def _versions(self) -> None:
        """Versions, numbered anew in each state; each follows from one before it."""
        columns = self.captured.columns("state_versions")
        base = columns["base"].fill_null(NULL).to_numpy().copy()
        late = np.flatnonzero(base >= np.arange(len(base)))
        rows = self.captured.order["state_versions"][late]
        self.captured.lose(
            "state_versions", rows, "the base of a row of state_versions does not come before it"
        )
        base[late] = NULL
        self._keep("state_versions", columns | {"base": integers(base, pa.uint32())})
        versions = self.tables["state_versions"]
        self.tables["state_versions"] = Columns(versions.spec, dense_versions(versions.data))

    def _accesses(self) -> None:
        """Accesses that are stated, and the writes of versions; each once."""
        stated = self.captured.columns("state_accesses")
        writer = self.tables["state_versions"].ints("writer")
        written = np.flatnonzero(writer != NULL)
        added = {
            "operation": writer[written],
            "state_version": written,
            "mode": np.full(len(written), int(AccessMode.WRITE)),
        }
        every = np.column_stack(
            [np.concatenate([values, stated[name].to_numpy()]) for name, values in added.items()]
        )
        unique = np.unique(every.astype(np.int64), axis=0)
        self._keep("state_accesses", {name: unique[:, at] for at, name in enumerate(added)})

    # -- edges --------------------------------------------------------------------------------------------------

    def _edges(self) -> None:
        """Edges that are stated, of two with one key the better known; and those that are implied (ST-EDGE-010, -011)."""
        columns = self.captured.columns("edges")
        order = self.captured.order["edges"]
        target, source, kind, trigger, lag, evidence = (
            columns[name].to_numpy() for name in (*_EDGE_KEY, "lag_ns", "evidence")
        )
        implied = list(self._implied())
        follows = np.isin(kind, _IMPLIED)
        there = np.zeros(len(kind), dtype=np.bool_)
        count = self.tables["operations"].rows
        for number, pairs in implied:
            of = np.isin(target.astype(np.int64) * count + source, pairs[:, 0] * count + pairs[:, 1])
            there |= of & (kind == number) & (trigger == Trigger.FINISH) & (lag == 0)
        self.captured.lose(
            "edges",
            order[follows & ~there],
            "a data or state edge that no segment, inherited context or access implies",
            ("ST-STR-056", "stream.edge"),
        )
        itself = np.flatnonzero(~follows & (target == source))
        if len(itself):
            raise FormatError(
                "an operation cannot depend on itself",
                code="edge.self",
                path=self.captured.rows("edges").where(int(order[itself[0]])),
                requirement="ST-EDGE-002",
            )
        by_key = np.lexsort([evidence, trigger, kind, source, target])
        by_key = by_key[~follows[by_key]]
        keys = np.column_stack([each[by_key] for each in (target, source, kind, trigger)])
        first = by_key[np.append(True, (keys[1:] != keys[:-1]).any(axis=1))[: len(keys)]]
        parts = [pa.table({name: values.take(pa.array(first)) for name, values in columns.items()})]
        parts += [_implied_edges(number, pairs, parts[0].schema) for number, pairs in implied]
        table = pa.concat_tables(parts)
        self._keep("edges", dict(zip(table.column_names, table.columns, strict=True)))

    def _implied(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Kind, and distinct pairs of target and source, of the edges that the other tables imply."""
        operations, segments = self.tables["operations"], self.tables["segments"]
        accesses, versions = self.tables["state_accesses"], self.tables["state_versions"]
        every, base = np.arange(operations.rows), operations.ints("context_base")
        source = segments.ints("source_operation")
        repeats = source != NULL
        data = [
            np.column_stack([every, base])[base != NULL],
            np.column_stack([segments.ints("operation")[repeats], source[repeats]]),
        ]
        yield int(EdgeKind.DATA), np.unique(np.concatenate(data), axis=0)
        reader = accesses.ints("operation")
        writer = versions.ints("writer")[accesses.ints("state_version")]
        reads = (accesses.ints("mode") == AccessMode.READ) & (writer != NULL) & (writer != reader)
        yield int(EdgeKind.STATE), np.unique(np.column_stack([reader[reads], writer[reads]]), axis=0)

    # -- delays and annotations ---------------------------------------------------------------------------------

    def _delays(self, run: CapturedRun) -> None:
        """Starts that nothing explains become delays, except where the recorder states a delay itself."""
        operations, tasks, edges = (self.tables[name] for name in ("operations", "tasks", "edges"))
        arrival = np.where(tasks.known("arrival_ns"), tasks.raw("arrival_ns"), UNKNOWN)
        waits = {name: edges.ints(name) for name in ("target", "source", "trigger")}
        waits["lag_ns"] = edges.raw("lag_ns").astype(np.int64)
        left = run.unexplained(operations.ints("task"), arrival, waits)
        self._change("tasks", arrival_ns=pa.array(left.arrival_ns, mask=left.arrival_ns == UNKNOWN))
        stated = operations.raw("external_delay_ns").astype(np.int64)
        delayed = (left.gap_ns > 0) & (stated == 0)
        self._change("operations", external_delay_ns=pa.array(np.where(delayed, left.gap_ns, stated)))
        self.losses.add_rows(
            "delays.inferred",
            "inferred",
            "an operation started later than what it waits for had ended: the rest is an external delay",
            (),
            int(delayed.sum()),
        )
        self.losses.add_rows(
            "edges.early",
            "unknown",
            "an operation started before one had ended that it is said to wait for",
            (),
            int((left.gap_ns < 0).sum()),
        )

    def _annotations(self) -> None:
        """Annotations of the recorder, and its ids as annotations."""
        rows = self.capture.rows["annotation"]
        kind, named = rows.numbers("entity_kind")[0], rows.numbers("entity")[0]
        bad = np.flatnonzero(~np.isin(kind, [int(EntityKind.TRACE), *(int(each) for each in _ENTITIES)]))
        if len(bad):
            raise invalid(
                f"an annotation of entity kind {kind[bad[0]]}", rows.where(int(bad[0])), "ST-STR-054"
            )
        key, value = (pc.fill_null(rows.texts(name), "") for name in ("key", "value"))
        bare = np.flatnonzero(~pc.match_substring(key, "/").to_numpy())
        if len(bare):
            raise invalid(
                f"annotation key {key[int(bare[0])].as_py()!r} has no namespace",
                rows.where(int(bare[0])),
                "ST-STR-054",
            )
        entity = np.zeros(rows.count, dtype=np.int64)
        for number, table in _ENTITIES.items():
            of = kind == number
            found = self.captured.rows(table).find(named[of])
            entity[of] = np.append(self.captured.number[table], NULL)[found]
        lost = np.flatnonzero(entity == NULL)
        message = "an annotation whose entity is not in the capture"
        if len(lost) and self.captured.whole:
            message += f": {named[lost[0]]}"
        lose(self.losses, rows, lost, message, whole=self.captured.whole)
        kept = pa.array(np.flatnonzero(entity != NULL))
        columns = {"entity_kind": pa.array(kind), "entity": pa.array(entity), "key": key, "value": value}
        pieces = [columns_of(ANNOTATIONS, {name: each.take(kept) for name, each in columns.items()}).data]
        for number, table in _ENTITIES.items():
            at, ids = self.captured.rows(table).ids()
            made = self.captured.number[table][at]
            pieces.append(
                annotation_rows(
                    number, made[made != NULL], RECORDER_ID, pa.array(ids[made != NULL]).cast(pa.string())
                )
            )
        self.tables["annotations"] = Columns(ANNOTATIONS, pa.concat_tables(pieces))
        self.capture.rows.clear()

    # -- order --------------------------------------------------------------------------------------------------

    def _ordered(self, run: CapturedRun) -> CapturedTrace:
        """The trace in canonical order, with its native run."""
        tables = self.tables
        used = artifact_order(tables, np.arange(tables["state_versions"].rows))
        content = self.captured.artifacts.content(used)
        del self.captured  # its arrays are not needed any more
        loose = Trace(tables, content)
        starts = run.times("submitted")
        known = starts != UNKNOWN
        rank = np.full(len(starts), NULL, dtype=np.int64)
        rank[known] = np.unique(starts[known], return_inverse=True)[1]
        operations = operation_order(loose, rank)
        moved = {"operations": places(operations, loose.operations.rows)}
        orders = {"operations": operations}
        orders["sessions"] = session_order(loose, moved["operations"])
        orders["stages"] = stage_order(loose, moved["operations"])
        orders["segments"] = np.argsort(moved["operations"][loose.segments.ints("operation")], kind="stable")
        edges = loose.edges
        ends = [moved["operations"][edges.ints(name)] for name in ("target", "source")]
        orders["edges"] = np.lexsort([edges.ints("trigger"), edges.ints("kind"), *ends[::-1]])
        for table in ("sessions", "stages", "segments"):
            moved[table] = places(orders[table], tables[table].rows)
        annotations = take_annotations(tables.pop("annotations"), moved)
        made = {}
        for name in list(tables):
            columns = tables.pop(name)
            made[name] = Columns(columns.spec, take(columns, orders.get(name), moved))
        made["annotations"] = Columns(ANNOTATIONS, annotations)
        trace = number_shared({name: made[name] for name in TRACE_TABLE}, content)
        return CapturedTrace(trace, run.execution(trace, operations))


def _implied_edges(kind: int, pairs: NDArray[np.int64], schema: pa.Schema) -> pa.Table:
    count = len(pairs)
    values = {
        "target": pairs[:, 0],
        "source": pairs[:, 1],
        "kind": np.full(count, kind),
        "trigger": np.full(count, int(Trigger.FINISH)),
        "lag_ns": np.zeros(count, dtype=np.int64),
        "evidence": np.full(count, int(Evidence.DERIVED)),
    }
    columns = [
        pa.array(values[field.name]).cast(field.type) if field.name in values else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _too_much(base: list[int], wanted: list[int], own: list[int], answers: list[bool]) -> list[int]:
    """Operations that inherit more segments than the context of their base has, from the first base on.

    Operations that inherit in a circle are left: putting them in order names the circle.

    Args:
        base: the base of each, `NULL` without one.
        wanted: how many segments it inherits.
        own: how many it has itself.
        answers: whether it has an output.
    """
    held: list[int | None] = [None] * len(base)  # segments of an operation's input, once known
    cut = []
    for start in range(len(base)):
        chain = []
        at = start
        while held[at] is None:
            chain.append(at)
            held[at] = own[at]  # until its base is known; ends a circle
            if base[at] == NULL:
                break
            at = base[at]
        for each in reversed(chain):
            below = base[each]
            if below == NULL:
                continue
            length = held[below]
            assert length is not None  # noqa: S101  # bases come first in the reversed chain
            if wanted[each] > length + answers[below]:
                cut.append(each)
            else:
                held[each] = own[each] + min(wanted[each], length + 1)
    return sorted(cut)
