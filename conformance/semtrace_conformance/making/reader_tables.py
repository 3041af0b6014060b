"""Mutations of the reader's cases: tables, values, order, hierarchy, operations, edges, state."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semtrace.records.enums import EdgeKind, Trigger
from semtrace.records.trace_tables import TRACE_TABLE
from semtrace_conformance.making.draft import Draft, arrow
from semtrace_conformance.making.reader_cases import change, set_column
from semtrace_conformance.making.team import ids, team, two_tools

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semtrace_conformance.making.book import Book

Change = Callable[..., None]


def add_reader_tables(book: Book) -> None:
    """Add the mutations."""
    names = team().names

    def of_team(
        name: str, mutation: str, requirement: str | Sequence[str], edit: Callable[[Draft], object]
    ) -> None:
        reasons = [requirement] if isinstance(requirement, str) else requirement
        change(book, "team", name, mutation, reasons, team().draft(), edit)

    _columns(of_team)
    change(
        book,
        "two-tools",
        "missing-column-of-nothing",
        "a column that may not be null is missing in a table without rows",
        ["ST-TAB-002"],
        two_tools(),
        _raw("states", lambda table: table.drop_columns(["lifetime"])),
    )
    _values(book, of_team, names)
    _order(book, of_team, names)
    _hierarchy(of_team, names)
    _operations(of_team, names)
    _edges(of_team, names)
    _state(of_team, names)


def _raw(table: str, edit: Callable[[pa.Table], pa.Table]) -> Callable[[Draft], None]:
    def apply(draft: Draft) -> None:
        digests = {f"{which}_digest": draft.digest(which) for which in ("work", "trace")}
        draft.raw[table] = edit(arrow(TRACE_TABLE[table], draft.rows(table)))
        draft.stated = digests

    return apply


def _columns(change: Change) -> None:
    def unknown(draft: Draft) -> None:
        draft.raw["extras"] = pa.table({"a": pa.array([1], pa.uint32())})
        draft.stated = {f"{which}_digest": team().draft().digest(which) for which in ("work", "trace")}

    change("unknown-table", "there is a table that the standard does not have", "ST-TAB-001", unknown)
    change("extra-column", "a table has a column more", "ST-TAB-002",
           _raw("edges", lambda table: table.append_column("weight", pa.array([1] * table.num_rows, pa.uint32()))))  # fmt: skip
    change("missing-column", "a column that may not be null is missing", "ST-TAB-002",
           _raw("edges", lambda table: table.drop_columns(["lag_ns"])))  # fmt: skip
    change("signed-column", "a column is int32 instead of uint32", "ST-TAB-002",
           _raw("edges", lambda table: set_column(table, "source", table.column("source").cast(pa.int32()))))  # fmt: skip
    change("text-for-digests", "digests are text", "ST-TAB-002",
           _raw("artifacts", lambda table: set_column(table, "digest", pa.array(["x"] * table.num_rows))))  # fmt: skip
    change("null-lag", "a lag is null", "ST-TAB-003", lambda draft: draft.put("edges", 12, lag_ns=None))
    change("two-headers", "the trace has two rows of facts", "ST-TAB-004",
           lambda draft: draft.rows("trace").append(dict(draft.rows("trace")[0])))  # fmt: skip
    change(
        "no-header", "the trace has no row of facts", "ST-TAB-004", lambda draft: draft.rows("trace").clear()
    )

    def not_text(table: pa.Table) -> pa.Table:
        names = table.column("name").combine_chunks()
        buffers = names.buffers()
        raw = bytearray(buffers[2].to_pybytes())
        raw[0] = 0xFF
        return set_column(
            table,
            "name",
            pa.Array.from_buffers(pa.string(), len(names), [None, buffers[1], pa.py_buffer(bytes(raw))]),
        )

    change("not-utf8", "a name is not UTF-8", ["ST-TAB-005", "ST-BND-020"], _raw("tasks", not_text))


def _values(book: Book, change_team: Change, names: dict[str, int]) -> None:
    change_team("dangling-session", "a session is not there", "ST-TAB-006",
                lambda draft: draft.put("operations", names["hello"], session=5))  # fmt: skip
    change_team("dangling-artifact", "an output is not there", "ST-TAB-006",
                lambda draft: draft.put("operations", names["failed"], output=34))  # fmt: skip
    change_team("kind-zero", "the kind of an operation is 0", "ST-ENUM-001",
                lambda draft: draft.put("operations", names["fetch"], kind=0))  # fmt: skip
    change_team(
        "trigger-unknown", "a trigger is 4", "ST-ENUM-001", lambda draft: draft.put("edges", 20, trigger=4)
    )
    change_team(
        "negative-lag", "a lag is negative", "ST-VAL-001", lambda draft: draft.put("edges", 20, lag_ns=-1)
    )
    change_team(
        "negative-arrival",
        "an arrival is negative",
        "ST-VAL-001",
        lambda draft: draft.put("tasks", 1, arrival_ns=-1),
    )
    change_team(
        "confidence",
        "a confidence is 101 percent",
        "ST-VAL-002",
        lambda draft: draft.put("edges", 11, confidence=101),
    )
    change_team("far-delay", "a delay is 2^62 ns", "ST-VAL-003",
                lambda draft: draft.put("operations", names["fetch"], external_delay_ns=1 << 62))  # fmt: skip
    change_team("many-tokens", "an output has 2^40 tokens", "ST-VAL-004",
                lambda draft: draft.put("operations", names["write"], output_tokens=1 << 40))  # fmt: skip
    change(book, "ids", "block-size-zero", "a block has no tokens", ["ST-VAL-005"], ids().draft(),
           lambda draft: draft.put("trace", 0, block_size=0))  # fmt: skip


def _order(book: Book, change_team: Change, names: dict[str, int]) -> None:
    def interleaved(draft: Draft) -> None:
        draft.put("operations", 1, task=1)
        draft.put("operations", 2, task=0)

    change(
        book,
        "two-tools",
        "interleaved-tasks",
        "operations are not grouped by task",
        ["ST-ORD-001"],
        two_tools(),
        interleaved,
    )
    change_team("edge-upwards", "an edge comes from a higher operation", "ST-ORD-002",
                lambda draft: draft.edge(names["failed"], names["embed"]))  # fmt: skip
    change_team("parent-upwards", "a session was spawned by one of its own operations", "ST-ORD-002",
                lambda draft: draft.put("sessions", 3, parent_operation=names["failed"]))  # fmt: skip

    def read_before(draft: Draft) -> None:
        draft.rows("state_accesses").insert(0, {"operation": 3, "state_version": 3, "mode": 1})

    change_team(
        "read-before-write",
        "a version is read before it is written",
        ["ST-ORD-002", "ST-EDGE-011", "ST-ORD-011"],
        read_before,
    )
    change_team("edge-between-tasks", "an edge leads from one task to another", "ST-ORD-003",
                lambda draft: draft.edge(names["fetch"], names["cut"]))  # fmt: skip
    change_team("stages-swapped", "two stages are not in the order of their first operations", "ST-ORD-005",
                lambda draft: draft.swap("stages", 1, 2))  # fmt: skip
    change_team("sessions-swapped", "two sessions are not in the order of their first operations", "ST-ORD-006",
                lambda draft: draft.swap("sessions", 2, 3))  # fmt: skip

    def segments_swapped(draft: Draft) -> None:
        draft.swap("segments", 20, 21)
        draft.swap("artifacts", 29, 30)

    change_team(
        "segments-swapped", "two segments of two operations are swapped", "ST-ORD-007", segments_swapped
    )

    def swapped(table: str, one: int, other: int) -> Callable[[Draft], None]:
        def apply(draft: Draft) -> None:
            rows = draft.rows(table)
            rows[one], rows[other] = rows[other], rows[one]

        return apply

    change_team("edges-swapped", "two edges are swapped", "ST-ORD-008", swapped("edges", 3, 4))
    change_team(
        "triggers-swapped",
        "two edges that differ in kind alone are swapped",
        "ST-ORD-008",
        swapped("edges", 13, 14),
    )
    change_team(
        "accesses-swapped", "two state accesses are swapped", "ST-ORD-009", swapped("state_accesses", 2, 3)
    )
    change_team("access-twice", "a state access is there twice", "ST-ORD-009",
                lambda draft: draft.rows("state_accesses").append(dict(draft.rows("state_accesses")[-1])))  # fmt: skip
    change_team("models-swapped", "models are not in the order of first reference", "ST-ORD-010",
                lambda draft: draft.swap("models", 0, 1))  # fmt: skip
    change_team("unused-model", "a model is not referred to", "ST-ORD-010",
                lambda draft: draft.insert("models", 2, name="unused"))  # fmt: skip

    def states_swapped(draft: Draft) -> None:
        draft.swap("states", 1, 2)
        draft.swap("state_versions", 3, 4)
        draft.rows("state_accesses").sort(
            key=lambda row: (row["operation"], row["state_version"], row["mode"])
        )
        draft.swap("artifacts", 32, 33)

    change_team("states-swapped", "states are not in the order of first access", "ST-ORD-011", states_swapped)
    change_team("version-gap", "the versions of a state are numbered 0, 1, 3", "ST-ORD-012",
                lambda draft: draft.put("state_versions", 2, version=3))  # fmt: skip
    change_team("artifacts-swapped", "two artifacts are not in the order of first reference", "ST-ORD-013",
                lambda draft: draft.swap("artifacts", 6, 7))  # fmt: skip

    def unused(draft: Draft) -> None:
        draft.put("tasks", 0, input=1)
        draft.put("segments", 2, artifact=1)

    change_team("unused-artifact", "an artifact is not referred to", "ST-ORD-013", unused)
    change_team(
        "annotations-swapped", "two annotations are swapped", "ST-ORD-014", swapped("annotations", 2, 3)
    )


def _hierarchy(change: Change, names: dict[str, int]) -> None:
    change("answer-of-other-task", "a task is answered by an operation of another", "ST-TASK-001",
           lambda draft: draft.put("tasks", 0, answer_operation=names["fetch"]))  # fmt: skip
    change("deadline", "a deadline is before the arrival", "ST-TASK-002",
           lambda draft: draft.put("tasks", 1, deadline_ns=49_999_999))  # fmt: skip
    change("score", "a score has no metric", "ST-TASK-003", lambda draft: draft.put("tasks", 0, metric=None))
    change(
        "stage-in-itself",
        "a stage is nested in itself",
        "ST-STAGE-001",
        lambda draft: draft.put("stages", 3, parent=3),
    )
    change("stage-in-other-task", "a stage is nested in one of another task", "ST-STAGE-002",
           lambda draft: draft.put("stages", 4, parent=3))  # fmt: skip
    change("extended-template", "a stage with a pattern of its own has a template too", "ST-STAGE-003",
           lambda draft: draft.put("stages", 3, template=5))  # fmt: skip
    change("extension-without-namespace", "a pattern has no namespace", "ST-STAGE-004",
           lambda draft: draft.put("stages", 3, template_extension="auction"))  # fmt: skip
    change("stage-of-other-task", "an operation is in a stage of another task", "ST-OP-001",
           lambda draft: draft.put("operations", names["again"], stage=3))  # fmt: skip
    change("session-of-other-task", "an operation is in a session of another task", "ST-OP-002",
           lambda draft: draft.put("operations", names["fetch"], session=3))  # fmt: skip
    change("annotation-key", "the key of an annotation has no namespace", "ST-ANN-001",
           lambda draft: draft.put("annotations", 1, key="thread"))  # fmt: skip
    change("annotation-of-nothing", "an annotation speaks of an operation that is not there", "ST-ANN-002",
           lambda draft: draft.put("annotations", 3, entity=15))  # fmt: skip


def _operations(change: Change, names: dict[str, int]) -> None:
    def put(name: str, **values: Any) -> Callable[[Draft], None]:
        return lambda draft: draft.put("operations", names[name], **values)

    change(
        "duration-of-call",
        "a call of a model that went well has a duration",
        "ST-OP-003",
        put("write", duration_ns=5, duration_evidence=1),
    )
    change("no-duration-of-failure", "a call of a model that failed has no duration", "ST-OP-004",
           put("failed", duration_ns=None, duration_evidence=4))  # fmt: skip
    change(
        "too-much-reasoning",
        "there are more reasoning tokens than output tokens",
        "ST-OP-005",
        put("write", reasoning_tokens=21),
    )
    change(
        "tokens-evidence",
        "the evidence of known counts is missing",
        "ST-OP-006",
        put("write", tokens_evidence=4),
    )
    change(
        "tokens-evidence-of-nothing",
        "the evidence of unknown counts is not missing",
        "ST-OP-006",
        put("again", tokens_evidence=1),
    )
    change(
        "duration-evidence",
        "the evidence of a known duration is missing",
        "ST-OP-007",
        put("fetch", duration_evidence=4),
    )
    change("tool-stopped", "a tool has a finish reason", "ST-OP-008", put("fetch", finish_reason=1))
    change(
        "tool-with-prompt",
        "a tool has prompt tokens",
        "ST-OP-009",
        put("fetch", prompt_tokens=3, tokens_evidence=1),
    )


def _edges(change: Change, names: dict[str, int]) -> None:
    change("edge-twice", "an edge is there twice, with another lag", "ST-EDGE-001",
           lambda draft: draft.rows("edges").insert(13, {**draft.rows("edges")[12], "lag_ns": 3}))  # fmt: skip
    change("edge-to-itself", "an edge leads from an operation to itself", ["ST-EDGE-002", "ST-ORD-002"],
           lambda draft: draft.edge(names["fetch"], names["fetch"]))  # fmt: skip
    change(
        "sure-edge",
        "an observed edge has a confidence",
        "ST-EDGE-003",
        lambda draft: draft.put("edges", 12, confidence=100),
    )
    change(
        "edge-without-evidence",
        "the evidence of an edge is missing",
        "ST-EDGE-004",
        lambda draft: draft.put("edges", 12, evidence=4),
    )
    change(
        "data-lag", "an edge of data has a lag", "ST-EDGE-005", lambda draft: draft.put("edges", 21, lag_ns=1)
    )
    change("data-trigger", "an edge of state has another trigger than finish", "ST-EDGE-005",
           lambda draft: draft.put("edges", 7, trigger=Trigger.START))  # fmt: skip
    change(
        "data-edge-missing",
        "an edge that a repeated output implies is missing",
        "ST-EDGE-010",
        lambda draft: draft.rows("edges").pop(4),
    )
    change("context-edge-missing", "an edge that inherited context implies is missing", "ST-EDGE-010",
           lambda draft: draft.rows("edges").pop(21))  # fmt: skip
    change("data-edge-for-nothing", "there is an edge of data that nothing implies", "ST-EDGE-010",
           lambda draft: draft.put("edges", 12, kind=EdgeKind.DATA))  # fmt: skip
    change(
        "state-edge-missing",
        "an edge that a read implies is missing",
        "ST-EDGE-011",
        lambda draft: draft.rows("edges").pop(14),
    )
    change("state-edge-for-nothing", "there is an edge of state that no read implies", "ST-EDGE-011",
           lambda draft: draft.put("edges", 12, kind=EdgeKind.STATE))  # fmt: skip


def _state(change: Change, names: dict[str, int]) -> None:
    change("state-without-versions", "a state has no version", "ST-STATE-001",
           lambda draft: draft.insert("states", 3, namespace="memory", name="void", scope=1, lifetime=1))  # fmt: skip
    change("version-of-other-state", "a version follows from one of another state", "ST-STATE-002",
           lambda draft: draft.put("state_versions", 3, base=2))  # fmt: skip
    change(
        "version-of-itself",
        "a version follows from itself",
        "ST-STATE-002",
        lambda draft: draft.put("state_versions", 3, base=3),
    )
    change(
        "appended-to-nothing",
        "a version is appended to nothing",
        "ST-STATE-003",
        lambda draft: draft.put("state_versions", 3, mode=2),
    )

    def unwritten(draft: Draft) -> None:
        draft.rows("state_accesses").pop(4)

    # The state is then accessed by nobody, and would come last.
    change(
        "write-missing",
        "a version with a writer has no write access",
        ["ST-STATE-004", "ST-ORD-011"],
        unwritten,
    )
    change("writer-missing", "a version that is written has no writer", "ST-STATE-004",
           lambda draft: draft.put("state_versions", 3, writer=None))  # fmt: skip

    def two_tasks(draft: Draft) -> None:
        draft.rows("state_versions").insert(
            4, {"state": 1, "version": 1, "base": None, "mode": 1, "artifact": None, "writer": names["fetch"]}
        )
        for row in draft.rows("state_accesses"):
            row["state_version"] += row["state_version"] >= 4
        draft.rows("state_accesses").insert(8, {"operation": names["fetch"], "state_version": 4, "mode": 2})

    change("writers-of-two-tasks", "a state is written in two tasks", "ST-STATE-005", two_tasks)

    def unread(draft: Draft) -> None:
        # What is read is appended to a version that neither the reader nor one before it has read.
        draft.rows("state_accesses").insert(7, {"operation": names["write"], "state_version": 2, "mode": 1})
        del draft.rows("state_accesses")[2]
        draft.rows("state_accesses")[:] = [
            row
            for row in draft.rows("state_accesses")
            if (row["operation"], row["state_version"]) != (names["write"], 1)
        ]
        draft.rows("state_accesses")[:] = _unique(draft.rows("state_accesses"))
        draft.rows("edges")[:] = [
            row
            for row in draft.rows("edges")
            if row["kind"] != EdgeKind.STATE
            or (row["target"], row["source"]) == (names["write"], names["answer-rome"])
        ]

    change(
        "unread-versions",
        "a version is read that is appended to one that was read by nobody before",
        "ST-STATE-006",
        unread,
    )


def _unique(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []
    for row in rows:
        if row not in seen:
            seen.append(row)
    return seen
