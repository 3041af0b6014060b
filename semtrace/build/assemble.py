"""From a builder's rows to a trace: canonical order, implied edges, the native execution beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semtrace.build.ordering import order_by_first, order_operations
from semtrace.records.columns import Columns
from semtrace.records.enums import (
    AccessMode,
    Availability,
    EdgeKind,
    EntityKind,
    EventOutcome,
    Evidence,
    OperationStatus,
    Outcome,
    Trigger,
)
from semtrace.records.execution import Backend, Execution, ExecutionHeader
from semtrace.records.execution_tables import EVENTS, EXECUTION_TABLES, INSTANCES
from semtrace.records.trace import MemoryContent, Trace
from semtrace.records.trace_tables import TRACE_TABLES
from semtrace.store.digests import show, work_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from semtrace.build.builder import Row, TraceBuilder
    from semtrace.records.schema import Table

_OUTCOMES = {
    OperationStatus.OK: EventOutcome.OK,
    OperationStatus.ERROR: EventOutcome.ERROR,
    OperationStatus.CANCELLED: EventOutcome.CANCELLED,
    OperationStatus.TIMEOUT: EventOutcome.TIMEOUT,
}

_ENTITY_TABLES = {
    EntityKind.TASK: "tasks",
    EntityKind.STAGE: "stages",
    EntityKind.SESSION: "sessions",
    EntityKind.OPERATION: "operations",
    EntityKind.STATE: "states",
    EntityKind.STATE_VERSION: "state_versions",
    EntityKind.MODEL: "models",
    EntityKind.SEGMENT: "segments",
}


@dataclass(frozen=True)
class BuiltTrace:
    """What a builder made.

    Attributes:
        trace: the trace, in canonical order.
        execution: the native run, if anything of it was observed.
        ids: by table, the id that each provisional id became; of artifacts and models that nothing uses, which are
            left out, a number past the last id.
    """

    trace: Trace
    execution: Execution | None
    ids: dict[str, list[int]]


def assemble(builder: TraceBuilder) -> BuiltTrace:
    """Make the trace; see `TraceBuilder.build`."""
    rows = builder.rows
    edges = all_edges(builder)
    ids = _order(builder, edges)
    moved: dict[str, list[Row]] = {"trace": [builder.header]}
    for table in (
        "tasks",
        "stages",
        "sessions",
        "models",
        "operations",
        "states",
        "state_versions",
        "artifacts",
    ):
        placed = {final: rows[table][provisional] for provisional, final in enumerate(ids[table])}
        placed.pop(len(rows[table]), None)  # the place of what nothing uses
        moved[table] = [placed[at] for at in range(len(placed))]
    segment_order = sorted(
        range(len(rows["segments"])),
        key=lambda at: (ids["operations"][rows["segments"][at]["operation"]], at),
    )
    ids["segments"] = _inverse(segment_order)
    moved["segments"] = [rows["segments"][at] for at in segment_order]
    moved["edges"] = edges
    moved["state_accesses"] = list(
        {(a["operation"], a["state_version"], a["mode"]): a for a in rows["state_accesses"]}.values()
    )
    moved["annotations"] = [_annotation(row, ids) for row in rows["annotations"] if _is_there(row, ids)]
    translated = {spec.name: _translate(spec, moved.get(spec.name, ()), ids) for spec in TRACE_TABLES}
    translated["edges"].sort(key=lambda e: (e["target"], e["source"], e["kind"], e["trigger"]))
    translated["state_accesses"].sort(key=lambda a: (a["operation"], a["state_version"], a["mode"]))
    translated["annotations"].sort(key=lambda a: (a["entity_kind"], a["entity"], a["key"], a["value"]))
    for artifact in translated["artifacts"]:
        artifact.setdefault("availability", Availability.EMBEDDED)
    used = {artifact["digest"] for artifact in translated["artifacts"]}
    content = MemoryContent({digest: builder.content[digest] for digest in used})
    trace = Trace({spec.name: _columns(spec, translated[spec.name]) for spec in TRACE_TABLES}, content)
    execution = _native(builder, trace, ids["operations"]) if builder.observed else None
    return BuiltTrace(trace, execution, ids)


def _columns(spec: Table, rows: Sequence[Row]) -> Columns:
    return Columns.of(spec, {name: [row.get(name) for row in rows] for name in spec.by_name})


def _inverse(order: Sequence[int]) -> list[int]:
    inverse = [0] * len(order)
    for final, provisional in enumerate(order):
        inverse[provisional] = final
    return inverse


def _translate(spec: Table, rows: Iterable[Row], ids: dict[str, list[int]]) -> list[Row]:
    references = [(column.name, column.refs) for column in spec.columns if column.refs is not None]
    made = []
    for row in rows:
        fresh: dict[str, Any] = {name: value for name, value in row.items() if name in spec.by_name}
        for name, table in references:
            if fresh.get(name) is not None:
                fresh[name] = ids[table][fresh[name]]
        made.append(fresh)
    return made


def _is_there(row: Row, ids: dict[str, list[int]]) -> bool:
    """Whether what an annotation speaks of is in the trace: what nothing uses is left out, with its annotations."""
    table = _ENTITY_TABLES.get(row["entity_kind"])
    return table is None or ids[table][row["entity"]] < len(ids[table])


def _annotation(row: Row, ids: dict[str, list[int]]) -> Row:
    table = _ENTITY_TABLES.get(row["entity_kind"])
    return row if table is None else {**row, "entity": ids[table][row["entity"]]}


def all_edges(builder: TraceBuilder) -> list[Row]:
    """The edges added by hand and those that are implied, each once."""
    edges = {(e["target"], e["source"], int(e["kind"]), int(e["trigger"])): e for e in builder.edges()}
    for edge in _implied_edges(builder):
        edges[edge["target"], edge["source"], int(edge["kind"]), int(edge["trigger"])] = edge
    return list(edges.values())


def _implied_edges(builder: TraceBuilder) -> Iterable[Row]:
    """Data edges that segments and inherited context imply, state edges that accesses imply (ST-EDGE-010, -011)."""

    def edge(target: int, source: int, kind: EdgeKind) -> Row:
        return {
            "target": target,
            "source": source,
            "kind": kind,
            "trigger": Trigger.FINISH,
            "lag_ns": 0,
            "evidence": Evidence.DERIVED,
        }

    for segment in builder.rows["segments"]:
        if segment["source_operation"] is not None:
            yield edge(segment["operation"], segment["source_operation"], EdgeKind.DATA)
    for operation, row in enumerate(builder.rows["operations"]):
        if row["context_base"] is not None:
            yield edge(operation, row["context_base"], EdgeKind.DATA)
    versions = builder.rows["state_versions"]
    for access in builder.rows["state_accesses"]:
        writer = versions[access["state_version"]]["writer"]
        if access["mode"] == AccessMode.READ and writer is not None and writer != access["operation"]:
            yield edge(access["operation"], writer, EdgeKind.STATE)


def _order(builder: TraceBuilder, edges: Sequence[Row]) -> dict[str, list[int]]:
    """By table, the final id of each provisional id."""
    rows = builder.rows
    operations = rows["operations"]
    references: list[set[int]] = [set() for _ in operations]
    for edge in edges:
        references[edge["target"]].add(edge["source"])
    for at, operation in enumerate(operations):
        session = operation["session"]
        parent = None if session is None else rows["sessions"][session]["parent_operation"]
        if parent is not None and parent != at:
            references[at].add(parent)

    def describe(at: int) -> str:
        return f"operation {at} ({operations[at]['name']})"

    order = order_operations([o["task"] for o in operations], builder.started_ns, references, describe)
    ids = {"tasks": list(range(len(rows["tasks"]))), "operations": _inverse(order)}
    for table, column, parent in (("stages", "stage", "parent"), ("sessions", "session", None)):
        first: list[int | None] = [None] * len(rows[table])
        for position, at in enumerate(order):
            owner = operations[at][column]
            if owner is not None and first[owner] is None:
                first[owner] = position
        tasks = [row["task"] for row in rows[table]]
        parents = [row[parent] if parent else None for row in rows[table]]
        ids[table] = _inverse(order_by_first(tasks, first, parents))
    ids["models"] = _by_first_use(
        len(rows["models"]),
        [rows["sessions"][at]["model"] for at in _inverse(ids["sessions"])]
        + [operations[at]["model"] for at in order]
        + [row["entity"] for row in rows["annotations"] if row["entity_kind"] == EntityKind.MODEL],
    )
    versions = rows["state_versions"]

    def by_name(state: int) -> tuple[str, str, int]:
        return (rows["states"][state]["namespace"], rows["states"][state]["name"], state)

    accesses = [
        (ids["operations"][access["operation"]], by_name(versions[access["state_version"]]["state"]))
        for access in rows["state_accesses"]
    ]
    ids["states"] = _by_first_use(
        len(rows["states"]),
        [name[-1] for _, name in sorted(accesses)]
        + sorted(
            {version["state"] for version in versions}, key=by_name
        ),  # a state without versions says nothing
    )
    ids["state_versions"] = _inverse(
        sorted(
            range(len(versions)),
            key=lambda at: (ids["states"][versions[at]["state"]], versions[at]["version"]),
        )
    )
    ids["artifacts"] = _by_first_use(len(rows["artifacts"]), list(_artifact_uses(builder, order, ids)))
    return ids


def _artifact_uses(
    builder: TraceBuilder, order: Sequence[int], ids: dict[str, list[int]]
) -> Iterable[int | None]:
    rows = builder.rows
    for task in rows["tasks"]:
        yield task.get("input")
        yield task.get("output")
    for operation in order:
        row = rows["operations"][operation]
        for column in ("settings", "output", "output_envelope", "output_token_ids"):
            yield row[column]
    for segment in sorted(rows["segments"], key=lambda row: ids["operations"][row["operation"]]):
        for column in ("envelope", "artifact", "token_ids", "block_ids"):
            yield segment.get(column)
    for version in _inverse(ids["state_versions"]):
        yield rows["state_versions"][version]["artifact"]


def _by_first_use(count: int, uses: Sequence[int | None]) -> list[int]:
    """Final ids by first use; what is not used gets an id past the end, which drops it."""
    ids = [count] * count
    taken = 0
    for use in uses:
        if use is not None and ids[use] == count:
            ids[use] = taken
            taken += 1
    return ids


def _native(builder: TraceBuilder, trace: Trace, final: Sequence[int]) -> Execution:
    tasks = builder.rows["tasks"]
    instances = Columns.of(
        INSTANCES,
        {
            "task": list(range(len(tasks))),
            "instance": [0] * len(tasks),
            "arrival_ns": [task["arrival_ns"] for task in tasks],
            "outcome": [task.get("outcome", Outcome.UNKNOWN) for task in tasks],
        },
    )
    events = []
    for provisional in _inverse(final):
        row = builder.rows["operations"][provisional]
        seen = builder.observed.get(provisional)
        event: Row = {
            "instance": row["task"],
            "operation": final[provisional],
            "outcome": (seen.outcome if seen else None) or _OUTCOMES[row["status"]],
            "prompt_tokens": row["prompt_tokens"],
            "output_tokens": row["output_tokens"],
            "cached_tokens": seen.cached_tokens if seen else None,
            "attempts": seen.attempts if seen else None,
            "request_id": seen.request_id if seen else None,
        }
        for name in ("ready", "released", "submitted", "scheduled", "first_token", "finished"):
            value, evidence = (
                seen.times.get(name, (None, Evidence.MISSING)) if seen else (None, Evidence.MISSING)
            )
            event[f"{name}_ns"], event[f"{name}_evidence"] = value, evidence
        events.append(event)
    header = ExecutionHeader(
        work_digest=show(work_digest(trace)),
        mode="native",
        clock="wall",
        origin_unix_ns=builder.header["origin_unix_ns"],
        measured_at="client",
        backend=Backend(name="native"),
    )
    tables = {spec.name: Columns(spec, spec.empty()) for spec in EXECUTION_TABLES}
    tables["instances"] = instances
    tables["events"] = _columns(EVENTS, events)
    return Execution(header, tables)
