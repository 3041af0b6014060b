"""From the rows of captures to a trace: canonical rows by the builder, the recorder's ids kept as annotations."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from semtrace.build import TraceBuilder, explain_starts
from semtrace.build.assemble import all_edges
from semtrace.records.enums import (
    ContentLevel,
    EdgeKind,
    EntityKind,
    EventOutcome,
    Evidence,
    OperationKind,
    OperationStatus,
    Outcome,
    Role,
    SegmentScope,
    StageTemplate,
    StateLifetime,
    StateScope,
    Trigger,
    VersionMode,
)
from semtrace.records.schema import Physical
from semtrace.records.trace_tables import TRACE_TABLE
from semtrace.stream.capture import MAY_HAVE_ID, NEEDS_ID, Capture, invalid

if TYPE_CHECKING:
    from semtrace.build import BuiltTrace
    from semtrace.stream.capture import Row
    from semtrace.stream.losses import Losses

RECORDER_ID: Final = "semtrace/recorder_id"
"""Key of the annotations that keep the recorder's ids."""

_DEFAULTS: Final[dict[tuple[str, str], int]] = {
    ("tasks", "outcome"): Outcome.UNKNOWN,
    ("stages", "template"): StageTemplate.UNKNOWN,
    ("operations", "status"): OperationStatus.OK,
    ("segments", "scope"): SegmentScope.SHARED,
    ("edges", "kind"): EdgeKind.CONTROL,
    ("edges", "trigger"): Trigger.FINISH,
    ("edges", "evidence"): Evidence.OBSERVED,
    ("states", "scope"): StateScope.SHARED,
    ("states", "lifetime"): StateLifetime.TASK,
    ("state_versions", "mode"): VersionMode.REPLACE,
}
"""What an enumeration that is absent in a capture means (ST-STR-054); any other must be there."""
_BY_RULE: Final = {("operations", "tokens_evidence"), ("operations", "duration_evidence")}
"""Enumerations whose default follows from other columns."""
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
_TIMES: Final = ("ready", "released", "submitted", "scheduled", "first_token", "finished")
_EVENT_COLUMNS: Final = frozenset(
    {"operation", "outcome", "cached_tokens", "attempts", "request_id"}
    | {f"{name}_{part}" for name in _TIMES for part in ("ns", "evidence")}
)
_MAXIMA: Final = {Physical.U8: 1 << 8, Physical.U32: 1 << 32}
_TABLES: Final = {**NEEDS_ID, **MAY_HAVE_ID, "edge": "edges", "state_access": "state_accesses"}


def capture_to_trace(capture: Capture, losses: Losses) -> BuiltTrace:
    """Make the trace.

    Where not all that was recorded is here, references to what is lost become null, and rows that make no sense
    without it are left out; both are counted as losses. Otherwise they are errors.

    Raises:
        FormatError: the capture is not valid.
    """
    return _Maker(capture, losses).make()


class _Maker:
    def __init__(self, capture: Capture, losses: Losses) -> None:
        self.capture = capture
        self.losses = losses
        level = capture.header.get("content_level", ContentLevel.TEXT)
        if level not in set(ContentLevel):
            raise invalid(f"content level {level}", "the captures", "ST-STR-054")
        self.builder = TraceBuilder(**{**capture.header, "content_level": ContentLevel(level)})
        self.ids: dict[str, dict[int, int]] = defaultdict(dict)
        """By table, the builder's id of each recorder's id."""

    def make(self) -> BuiltTrace:
        self._drop_orphans()
        self._artifacts()
        self._entities()
        self._operations()
        self._segments()
        self._versions()
        self._edges()
        self._observed()
        self._annotations()
        self._explain()
        return self.builder.build()

    # -- references ---------------------------------------------------------------------------------------------

    def _lose(self, message: str, where: str, requirement: str, code: str) -> None:
        """What is an error in a capture that is whole is a loss in another."""
        if self.capture.whole:
            raise invalid(message, where, requirement)
        self.losses.add(code, "lost", message.partition(":")[0], where=where)

    def _drop_orphans(self) -> None:
        """Leave out the rows that cannot be without a row that is not here."""
        rows = self.capture.rows
        there = {table: {row.id for row in rows[body]} for body, table in (NEEDS_ID | MAY_HAVE_ID).items()}
        gone = True
        while gone:
            gone = False
            for body, table in _TABLES.items():
                kept = [row for row in rows[body] if self._stands(row, table, there)]
                if len(kept) < len(rows[body]):
                    rows[body], gone = kept, True
                    there[table] = {row.id for row in kept}

    def _stands(self, row: Row, table: str, there: dict[str, set[int | None]]) -> bool:
        for column in TRACE_TABLE[table].columns if table != "artifacts" else ():
            if (
                column.refs
                and not column.nullable
                and getattr(row.message, column.name) not in there[column.refs]
            ):
                refers = getattr(row.message, column.name)
                self._lose(
                    f"a row of {table} whose {column.name} is not in the capture: {refers}",
                    row.where, "ST-STR-053", "stream.dangling",
                )  # fmt: skip
                return False
            if column.enum and not getattr(row.message, column.name) and self._needed(table, column.name):
                self._lose(
                    f"a row of {table} without its {column.name}",
                    row.where,
                    "ST-STR-054",
                    "stream.incomplete",
                )
                return False
        return True

    @staticmethod
    def _needed(table: str, column: str) -> bool:
        spec = TRACE_TABLE[table].by_name[column]
        return not spec.nullable and (table, column) not in _DEFAULTS and (table, column) not in _BY_RULE

    def _values(self, row: Row, table: str, *, without: frozenset[str] = frozenset()) -> dict[str, Any]:
        """The columns of a row, references as the builder's ids."""
        values: dict[str, Any] = {}
        for column in TRACE_TABLE[table].columns:
            name = column.name
            if name in without:
                continue
            value = None
            if not column.nullable or row.message.HasField(name):
                value = getattr(row.message, name)
            if value is not None and column.refs:
                found = self.ids[column.refs].get(value)
                if found is None:
                    self._lose(
                        f"the {name} of a row of {table} is not in the capture: {value}",
                        row.where, "ST-STR-053", "stream.dangling",
                    )  # fmt: skip
                value = found
            elif value is not None and column.enum:
                value = self._enum(table, name, value, row.where)
            elif value is not None and column.type in _MAXIMA and value >= _MAXIMA[column.type]:
                raise invalid(f"{name} is {value}, too great for its column", row.where, "ST-STR-054")
            values[name] = value
        return values

    @staticmethod
    def _enum(table: str, name: str, value: int, where: str) -> int | None:
        kind = TRACE_TABLE[table].by_name[name].enum
        if value == 0:
            return _DEFAULTS.get((table, name))
        if kind is None or value not in set(kind):
            raise invalid(f"{name} has no value {value}", where, "ST-STR-054")
        return kind(value)

    def _made(self, table: str, row: Row, made: int) -> None:
        if row.id is not None:
            self.ids[table][row.id] = made

    # -- rows ---------------------------------------------------------------------------------------------------

    def _artifacts(self) -> None:
        self.content: dict[int, tuple[bytes, str | None]] = {}
        for row in self.capture.rows["captured_artifact"]:
            content, media_type = row.message.data, row.message.media_type or None
            made = self.builder.artifact(content, media_type)
            self._made("artifacts", row, made)
            self.content[made] = (content, media_type)

    def _entities(self) -> None:
        """Tasks, models, stages, sessions, states: what operations refer to. What refers to operations comes after."""
        builder, rows = self.builder, self.capture.rows
        for row in rows["task"]:
            values = self._values(row, "tasks", without=frozenset({"answer_operation"}))
            made = builder.task(values.pop("name"))
            builder.rows["tasks"][made].update(values)
            self._made("tasks", row, made)
        for row in rows["model"]:
            values = self._values(row, "models")
            made = builder.model(values.pop("name"), **{k: v for k, v in values.items() if v is not None})
            self._made("models", row, made)
        for row in rows["stage"]:
            values = self._values(row, "stages", without=frozenset({"parent"}))
            self._made("stages", row, builder.stage(**values))
        for row in rows["stage"]:
            parent = self._one(row, "stages", "parent")
            builder.rows["stages"][self.ids["stages"][_id(row)]]["parent"] = parent
        for row in rows["session"]:
            values = self._values(row, "sessions", without=frozenset({"parent_operation"}))
            self._made("sessions", row, builder.session(values.pop("task"), **values))
        for row in rows["state"]:
            values = self._values(row, "states")
            # The last part of the key keeps states of one name apart that the recorder keeps apart.
            made = builder.state(values.pop("namespace"), values.pop("name"), **values, task=row.id)
            self._made("states", row, made)

    def _one(self, row: Row, table: str, name: str) -> int | None:
        """One nullable reference of a row."""
        others = frozenset(TRACE_TABLE[table].by_name) - {name}
        found: int | None = self._values(row, table, without=others)[name]
        return found

    def _operations(self) -> None:
        builder, rows = self.builder, self.capture.rows
        late = frozenset({"context_base"})
        for row in rows["operation"]:
            values = self._values(row, "operations", without=late)
            task, kind, name = values.pop("task"), OperationKind(values.pop("kind")), values.pop("name")
            known = values["prompt_tokens"] is not None or values["output_tokens"] is not None
            tokens = Evidence.OBSERVED if known else Evidence.MISSING
            duration = Evidence.MISSING if values["duration_ns"] is None else Evidence.OBSERVED
            values["tokens_evidence"] = values["tokens_evidence"] or tokens
            values["duration_evidence"] = values["duration_evidence"] or duration
            made = builder.operation(task, kind, name)
            builder.update_operation(made, **values)
            self._made("operations", row, made)
        for row in rows["operation"]:
            base = self._one(row, "operations", "context_base")
            made = self.ids["operations"][_id(row)]
            builder.update_operation(made, context_base=base)
            if base is None and row.message.context_segments:
                self._lose(
                    "an operation inherits from no operation", row.where, "ST-STR-053", "stream.dangling"
                )
                builder.update_operation(made, context_segments=0)
        for row in rows["task"]:
            answer = self._one(row, "tasks", "answer_operation")
            builder.update_task(self.ids["tasks"][_id(row)], answer_operation=answer)
        for row in rows["session"]:
            parent = self._one(row, "sessions", "parent_operation")
            builder.update_session(self.ids["sessions"][_id(row)], parent_operation=parent)

    def _segments(self) -> None:
        for row in self.capture.rows["segment"]:
            values = self._values(row, "segments", without=frozenset({"envelope"}))
            envelope = self._one(row, "segments", "envelope")
            made = self.builder.segment(
                values.pop("operation"),
                Role(values.pop("role")),
                message=values.pop("message"),
                envelope=None if envelope is None else self.content[envelope][0],
                source=values.pop("source_operation"),
                source_start=values.pop("source_start"),
                source_length=values.pop("source_length"),
                tokens=values.pop("tokens"),
                scope=SegmentScope(values.pop("scope")),
                **values,
            )
            self._made("segments", row, made)
        if not self.capture.whole:
            self._cut_contexts()

    def _cut_contexts(self) -> None:
        """Let no operation inherit more than is here of the context of its base."""
        builder = self.builder
        operations = builder.rows["operations"]
        changed = True
        while changed:
            changed = False
            for row in self.capture.rows["operation"]:
                operation = operations[self.ids["operations"][_id(row)]]
                base = operation["context_base"]
                if base is None:
                    continue
                held = len(builder.context(base)) + (operations[base]["output"] is not None)
                if operation["context_segments"] > held:
                    operation.update(context_base=None, context_segments=0)
                    changed = True
                    self._lose(
                        "an operation inherits what is not in the capture",
                        row.where,
                        "ST-STR-053",
                        "stream.dangling",
                    )

    def _versions(self) -> None:
        """Versions, numbered in the order of their numbers, and of the capture where those are equal."""
        rows = sorted(
            self.capture.rows["state_version"], key=lambda row: (row.message.state, row.message.version)
        )
        for row in rows:
            values = self._values(row, "state_versions", without=frozenset({"base"}))
            artifact = values["artifact"]
            content, media_type = (None, None) if artifact is None else self.content[artifact]
            made = self.builder.version(
                values["state"],
                content,
                base=self._one(row, "state_versions", "base"),
                mode=VersionMode(values["mode"]),
                writer=values["writer"],
                media_type=media_type,
            )
            self._made("state_versions", row, made)
        for row in self.capture.rows["state_access"]:
            values = self._values(row, "state_accesses")
            self.builder.rows["state_accesses"].append(values)

    def _edges(self) -> None:
        implied: list[tuple[Row, dict[str, Any]]] = []
        for row in self.capture.rows["edge"]:
            values = self._values(row, "edges")
            if values["kind"] in {EdgeKind.DATA, EdgeKind.STATE}:
                implied.append((row, values))
            else:
                self.builder.edge(values.pop("target"), values.pop("source"), **values)
        columns = ("target", "source", "kind", "trigger", "lag_ns")
        there = {tuple(edge[name] for name in columns) for edge in all_edges(self.builder)}
        for row, values in implied:
            if tuple(values[name] for name in columns) not in there:
                self._lose(
                    "a data or state edge that no segment, inherited context or access implies",
                    row.where, "ST-STR-056", "stream.edge",
                )  # fmt: skip

    # -- what was observed --------------------------------------------------------------------------------------

    def _observed(self) -> None:
        builder = self.builder
        for row in self.capture.rows["event"]:
            event = row.message
            extra = [field.name for field, _ in event.ListFields() if field.name not in _EVENT_COLUMNS]
            if extra:
                raise invalid(f"an event with {', '.join(extra)}", row.where, "ST-STR-057")
            operation = self.ids["operations"].get(event.operation)
            if operation is None:
                message = f"an event whose operation is not in the capture: {event.operation}"
                self._lose(message, row.where, "ST-STR-053", "stream.dangling")
                continue
            outcome = None
            if event.outcome:
                if event.outcome not in set(EventOutcome):
                    raise invalid(f"outcome has no value {event.outcome}", row.where, "ST-STR-054")
                outcome = EventOutcome(event.outcome)
            builder.observe(
                operation,
                outcome=outcome,
                cached_tokens=event.cached_tokens if event.HasField("cached_tokens") else None,
                attempts=event.attempts if event.HasField("attempts") else None,
                request_id=event.request_id if event.HasField("request_id") else None,
            )
            for name in _TIMES:
                if event.HasField(f"{name}_ns"):
                    evidence = getattr(event, f"{name}_evidence") or Evidence.OBSERVED
                    if evidence not in set(Evidence):
                        raise invalid(f"evidence has no value {evidence}", row.where, "ST-STR-054")
                    time_ns = getattr(event, f"{name}_ns")
                    builder.observe(operation, evidence=Evidence(evidence), **{f"{name}_ns": time_ns})
            if event.HasField("submitted_ns"):
                builder.update_operation(operation, started_ns=event.submitted_ns)
        for row in [] if self.capture.whole else self.capture.rows["operation"]:
            operation = self.ids["operations"][_id(row)]
            seen = builder.observed.get(operation)
            if (
                row.message.status == 0
                and seen
                and "submitted" in seen.times
                and "finished" not in seen.times
            ):
                builder.update_operation(operation, status=OperationStatus.CANCELLED)
                builder.observe(operation, outcome=EventOutcome.UNFINISHED)
                self.losses.add(
                    "stream.unfinished",
                    "unknown",
                    "an operation was under way when the recording ended: taken as cancelled",
                    where=row.where,
                )

    def _annotations(self) -> None:
        builder = self.builder
        for row in self.capture.rows["annotation"]:
            kind, entity = row.message.entity_kind, row.message.entity
            if kind == EntityKind.TRACE:
                found: int | None = 0
            elif kind in _ENTITIES:
                found = self.ids[_ENTITIES[EntityKind(kind)]].get(entity)
            else:
                raise invalid(f"an annotation of entity kind {kind}", row.where, "ST-STR-054")
            if found is None:
                message = f"an annotation whose entity is not in the capture: {entity}"
                self._lose(message, row.where, "ST-STR-053", "stream.dangling")
                continue
            if "/" not in row.message.key:
                raise invalid(f"annotation key {row.message.key!r} has no namespace", row.where, "ST-STR-054")
            builder.annotate(EntityKind(kind), found, row.message.key, row.message.value)
        for kind, table in _ENTITIES.items():
            for identity, made in self.ids[table].items():
                builder.annotate(kind, made, RECORDER_ID, str(identity))

    def _explain(self) -> None:
        """Starts that nothing explains become delays, except where the recorder states a delay itself."""
        rows = self.builder.rows["operations"]
        stated = {at: row["external_delay_ns"] for at, row in enumerate(rows) if row["external_delay_ns"]}
        explained = explain_starts(self.builder)
        for at, delay in stated.items():
            rows[at]["external_delay_ns"] = delay
        delayed = [at for at in explained.delayed if at not in stated]
        if delayed:
            self.losses.add(
                "delays.inferred",
                "inferred",
                "an operation started later than what it waits for had ended: the rest is an external delay",
                count=len(delayed),
            )
        if explained.early:
            self.losses.add(
                "edges.early",
                "unknown",
                "an operation started before one had ended that it is said to wait for",
                count=len(explained.early),
            )


def _id(row: Row) -> int:
    """The id of a row whose kind must have one."""
    assert row.id is not None  # noqa: S101  # reading has refused it otherwise
    return row.id
