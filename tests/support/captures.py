"""Traces as recorders could have written them."""

from __future__ import annotations

from semtrace.records.enums import EntityKind
from semtrace.records.trace_tables import TRACE_TABLES
from semtrace.stream.messages import TABLE_OF
from semtrace.v1.stream_pb2 import Record

_TABLE_OF_ENTITY = {
    EntityKind.TASK: "tasks", EntityKind.STAGE: "stages", EntityKind.SESSION: "sessions", EntityKind.MODEL: "models",
    EntityKind.OPERATION: "operations", EntityKind.SEGMENT: "segments", EntityKind.STATE: "states",
    EntityKind.STATE_VERSION: "state_versions",
}  # fmt: skip
_BODY_OF = {table.name: body for body, table in TABLE_OF.items()}
_WITHOUT_ID = {"edges", "state_accesses", "annotations", "trace"}


def as_capture(trace, rng):
    """The trace as a recorder could have written it: ids of its own, tables mixed, rows of operations in two parts."""
    ids = {spec.name: [rng.getrandbits(64) for _ in range(trace[spec.name].rows)] for spec in TRACE_TABLES}
    queues = []
    for spec in TRACE_TABLES:
        columns = trace[spec.name]
        queue = []
        for at in range(columns.rows):
            row = {name: value for name, value in columns.row(at).items() if value is not None}
            for column in spec.columns:
                if column.refs and column.name in row:
                    row[column.name] = ids[column.refs][row[column.name]]
            if spec.name == "annotations":
                table = _TABLE_OF_ENTITY.get(row["entity_kind"])
                row["entity"] = ids[table][row["entity"]] if table else 0
            body = _BODY_OF[spec.name]
            if spec.name == "artifacts":
                body = "captured_artifact"
                row = {"media_type": row["media_type"], "data": trace.content.get(row["digest"])}
            parts = [row]
            if spec.name == "operations":
                later = {
                    name: row.pop(name)
                    for name in list(row)
                    if name not in {"task", "kind"} and rng.random() < 0.5
                }
                parts.append(later)
            for part in parts:
                identity = {} if spec.name in _WITHOUT_ID else {"id": ids[spec.name][at]}
                queue.append(Record(**identity, **{body: part}).SerializeToString())
        queues.append(queue)
    while any(queues):  # tables mixed, each in its own order: the order of a source is what decides last
        yield rng.choice([queue for queue in queues if queue]).pop(0)
