"""Every rule on traces: one thing is broken in a valid trace, and exactly that is found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from semtrace.build import TraceBuilder
from semtrace.check import check_trace
from semtrace.records.columns import Columns
from semtrace.records.document import canonical_json
from semtrace.records.enums import (
    AccessMode,
    Availability,
    ContentLevel,
    EdgeKind,
    Evidence,
    OperationKind,
    Role,
    Trigger,
)
from semtrace.records.media import content_level
from semtrace.records.trace import MemoryContent, Trace
from semtrace.store.digests import artifact_digest
from unit.check.example import add, drop, edited, example, put, swap, then, with_content

if TYPE_CHECKING:
    from collections.abc import Callable

READ, WRITE = AccessMode.READ, AccessMode.WRITE


@pytest.fixture(scope="module")
def trace() -> Trace:
    return example().trace


def bad_text(trace: Trace) -> Trace:
    """Makes the name of task 1 no UTF-8."""
    tasks = trace.tasks
    names = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff"))
    made = Columns(tasks.spec, tasks.data.set_column(0, tasks.spec.arrow.field("name"), names))
    return Trace({**trace.tables, "tasks": made}, trace.content)


def content_of(row: int, raw: bytes) -> Callable[[Trace], Trace]:
    """Gives an artifact other content, with its size and digest."""

    def change(trace: Trace) -> Trace:
        content = MemoryContent({digest: trace.content.get(digest) or b"" for digest in trace.content})
        del content[trace["artifacts"].digests()[row]]
        content[artifact_digest(raw)] = raw
        values = {"digest": artifact_digest(raw), "size": len(raw)}

        def columns(held: dict[str, list[Any]]) -> None:
            for name, value in values.items():
                held[name][row] = value

        return Trace(edited(trace, "artifacts", columns).tables, content)

    return change


def envelope(row: int, value: object) -> Callable[[Trace], Trace]:
    return content_of(row, canonical_json(value))


def without_content(row: int) -> Callable[[Trace], Trace]:
    return with_content(lambda trace, content: content.__delitem__(trace["artifacts"].digests()[row]))


def other_content(row: int, raw: bytes) -> Callable[[Trace], Trace]:
    return with_content(lambda trace, content: content.update({trace["artifacts"].digests()[row]: raw}))


def edge(target: int, source: int, kind: EdgeKind, **columns: Any) -> dict[str, Any]:
    row = {"target": target, "source": source, "kind": kind, "trigger": Trigger.FINISH, "lag_ns": 0}
    return {**row, "evidence": Evidence.OBSERVED, **columns}


def access(operation: int, version: int, mode: AccessMode) -> dict[str, Any]:
    return {"operation": operation, "state_version": version, "mode": mode}


def version(state: int, number: int, **columns: Any) -> dict[str, Any]:
    return {"state": state, "version": number, "mode": 1, **columns}


TOOL_ENVELOPE = {"message": {"role": "tool", "tool_call_id": "c1"}, "slots": [["/content", "text", 1]]}
NEW_STATE = {"namespace": "memory", "name": "new", "scope": 1, "lifetime": 1}

Case = tuple[str, "Callable[[Trace], Trace]", str, str, str | None, tuple[int, ...]]

VALUES: list[Case] = [
    ("no header", drop("trace", 0), "ST-TAB-004", "trace", None, ()),
    ("two headers", add("trace", {"content_level": 1}), "ST-TAB-004", "trace", None, ()),
    ("bad text", bad_text, "ST-TAB-005", "tasks", "name", (1,)),
    ("artifact out of range", put("segments", "artifact", {1: 99}), "ST-TAB-006", "segments", "artifact", (1,)),
    ("task out of range", put("operations", "task", {8: 2}), "ST-TAB-006", "operations", "task", (8,)),
    ("enum too large", put("operations", "status", {3: 9}), "ST-ENUM-001", "operations", "status", (3,)),
    ("enum zero", put("segments", "role", {6: 0}), "ST-ENUM-001", "segments", "role", (6,)),
    ("enum zero where null may be", put("operations", "finish_reason", {2: 0}), "ST-ENUM-001", "operations", "finish_reason", (2,)),
    ("negative lag", put("edges", "lag_ns", {9: -1}), "ST-VAL-001", "edges", "lag_ns", (9,)),
    ("minus one for unknown", put("segments", "tokens", {4: -1}), "ST-VAL-001", "segments", "tokens", (4,)),
    ("more than all", put("edges", "confidence", {10: 101}), "ST-VAL-002", "edges", "confidence", (10,)),
    ("time without end", put("tasks", "deadline_ns", {0: 1 << 62}), "ST-VAL-003", "tasks", "deadline_ns", (0,)),
    ("too many tokens", put("segments", "tokens", {12: 1 << 40}), "ST-VAL-004", "segments", "tokens", (12,)),
    ("empty blocks", put("trace", "block_size", {0: 0}), "ST-VAL-005", "trace", "block_size", (0,)),
]  # fmt: skip

ORDER: list[Case] = [
    ("task not together", put("operations", "task", {4: 1}), "ST-ORD-001", "operations", "task", (5,)),
    ("edge upwards", put("edges", "source", {5: 4}), "ST-ORD-002", "edges", "source", (5,)),
    ("base upwards", put("operations", "context_base", {4: 4}), "ST-ORD-002", "operations", "context_base", (4,)),
    ("source upwards", put("segments", "source_operation", {4: 2}), "ST-ORD-002", "segments", "source_operation", (4,)),
    ("session before its parent", put("sessions", "parent_operation", {1: 3}), "ST-ORD-002", "sessions", "parent_operation", (1,)),
    ("reader before writer", add("state_accesses", access(0, 1, READ), 1), "ST-ORD-002", "state_accesses", "state_version", (1,)),
    ("edge between tasks", add("edges", edge(6, 5, EdgeKind.CONTROL), 11), "ST-ORD-003", "edges", "source", (11,)),
    ("base of another task", then(put("operations", "context_base", {6: 2}), put("operations", "context_segments", {6: 1})), "ST-ORD-003", "operations", "context_base", (6,)),
    ("source of another task", put("segments", "source_operation", {13: 2}), "ST-ORD-003", "segments", "source_operation", (13,)),
    ("parent of another task", put("sessions", "parent_operation", {2: 2}), "ST-ORD-003", "sessions", "parent_operation", (2,)),
    ("writer of another task", add("state_accesses", access(8, 2, READ)), "ST-ORD-003", "state_accesses", "state_version", (8,)),
    ("stages by use", put("operations", "stage", {0: 2, 2: 2}), "ST-ORD-005", "stages", None, (1,)),
    ("stages by task", then(put("operations", "stage", {4: None, 6: None}), put("stages", "task", {2: 1, 3: 0})), "ST-ORD-005", "stages", "task", (3,)),
    ("stage without operations first", put("operations", "stage", {0: None, 1: None, 2: None}), "ST-ORD-005", "stages", None, (1,)),
    ("sessions by use", put("operations", "session", {0: 1, 2: 1, 3: 0}), "ST-ORD-006", "sessions", None, (1,)),
    ("sessions by task", then(put("operations", "session", {3: None, 6: None, 8: None}), put("sessions", "task", {1: 1, 2: 0})), "ST-ORD-006", "sessions", "task", (2,)),
    ("segments by operation", put("segments", "operation", {10: 6, 11: 4}), "ST-ORD-007", "segments", "operation", (11,)),
    ("edges by source", swap("edges", 5, 6), "ST-ORD-008", "edges", None, (6,)),
    ("edges by kind", swap("edges", 3, 4), "ST-ORD-008", "edges", None, (4,)),
    ("edge twice", add("edges", edge(3, 2, EdgeKind.CONTROL, lag_ns=1), 6), "ST-EDGE-001", "edges", None, (6,)),
    ("accesses by version", swap("state_accesses", 2, 3), "ST-ORD-009", "state_accesses", None, (3,)),
    ("access twice", add("state_accesses", access(2, 0, READ), 2), "ST-ORD-009", "state_accesses", None, (3,)),
    ("models by use", then(put("sessions", "model", {0: 1}), put("operations", "model", {0: 1, 3: 0})), "ST-ORD-010", "models", None, (1,)),
    ("model of nobody", put("operations", "model", {3: None}), "ST-ORD-010", "models", None, (1,)),
    ("states by access", then(add("states", NEW_STATE), add("state_versions", version(2, 0)), add("state_accesses", access(0, 5, READ), 1)), "ST-ORD-011", "states", None, (2,)),
    ("a version is skipped", put("state_versions", "version", {4: 2}), "ST-ORD-012", "state_versions", "version", (4,)),
    ("versions by state", add("state_versions", version(0, 3)), "ST-ORD-012", "state_versions", "state", (5,)),
    ("artifacts by use", then(put("tasks", "input", {0: 1}), put("tasks", "output", {0: 0})), "ST-ORD-013", "artifacts", None, (1,)),
    ("artifact of nobody", put("segments", "artifact", {12: None}), "ST-ORD-013", "artifacts", None, (20,)),
    ("annotations by entity", swap("annotations", 0, 1), "ST-ORD-014", "annotations", None, (1,)),
    ("annotations by key", swap("annotations", 1, 2), "ST-ORD-014", "annotations", None, (2,)),
]  # fmt: skip

HIERARCHY: list[Case] = [
    ("answer of another task", put("tasks", "answer_operation", {0: 6}), "ST-TASK-001", "tasks", "answer_operation", (0,)),
    ("deadline before arrival", put("tasks", "deadline_ns", {0: 4}), "ST-TASK-002", "tasks", "deadline_ns", (0,)),
    ("score of nothing", put("tasks", "metric", {0: None}), "ST-TASK-003", "tasks", "metric", (0,)),
    ("stage in itself", put("stages", "parent", {1: 1}), "ST-STAGE-001", "stages", "parent", (1,)),
    ("stage in another task", put("stages", "parent", {3: 0}), "ST-STAGE-002", "stages", "parent", (3,)),
    ("template and extension", put("stages", "template", {2: 3}), "ST-STAGE-003", "stages", "template_extension", (2,)),
    ("extension of nobody", put("stages", "template_extension", {2: "auction"}), "ST-STAGE-004", "stages", "template_extension", (2,)),
    ("stage of another task", put("operations", "stage", {8: 0}), "ST-OP-001", "operations", "stage", (8,)),
    ("session of another task", put("operations", "session", {7: 0}), "ST-OP-002", "operations", "session", (7,)),
    ("annotation of nobody", put("annotations", "key", {0: "run"}), "ST-ANN-001", "annotations", "key", (0,)),
    ("annotation of nothing", put("annotations", "entity", {2: 9}), "ST-ANN-002", "annotations", "entity", (2,)),
]  # fmt: skip

OPERATIONS: list[Case] = [
    ("model with duration", then(put("operations", "duration_ns", {3: 5}), put("operations", "duration_evidence", {3: 1})), "ST-OP-003", "operations", "duration_ns", (3,)),
    ("cancelled with duration", then(put("operations", "duration_ns", {6: 5}), put("operations", "duration_evidence", {6: 1})), "ST-OP-003", "operations", "duration_ns", (6,)),
    ("failed without duration", then(put("operations", "duration_ns", {4: None}), put("operations", "duration_evidence", {4: 4})), "ST-OP-004", "operations", "duration_ns", (4,)),
    ("more thought than said", put("operations", "reasoning_tokens", {0: 10}), "ST-OP-005", "operations", "reasoning_tokens", (0,)),
    ("evidence of no counts", put("operations", "tokens_evidence", {4: 1}), "ST-OP-006", "operations", "tokens_evidence", (4,)),
    ("counts of no evidence", put("operations", "tokens_evidence", {0: 4}), "ST-OP-006", "operations", "tokens_evidence", (0,)),
    ("evidence of no duration", put("operations", "duration_evidence", {5: 3}), "ST-OP-007", "operations", "duration_evidence", (5,)),
    ("duration of no evidence", put("operations", "duration_evidence", {1: 4}), "ST-OP-007", "operations", "duration_evidence", (1,)),
    ("a tool finishes", put("operations", "finish_reason", {1: 1}), "ST-OP-008", "operations", "finish_reason", (1,)),
    ("a person counts", then(put("operations", "output_tokens", {5: 1}), put("operations", "tokens_evidence", {5: 1})), "ST-OP-008", "operations", "output_tokens", (5,)),
    ("a tool reads", then(put("operations", "prompt_tokens", {1: 1}), put("operations", "tokens_evidence", {1: 1})), "ST-OP-009", "operations", "prompt_tokens", (1,)),
]  # fmt: skip

SEGMENTS: list[Case] = [
    ("a message is skipped", put("segments", "message", {1: 2}), "ST-SEG-001", "segments", "message", (1,)),
    ("no first message", put("segments", "message", {4: 1}), "ST-SEG-001", "segments", "message", (4,)),
    ("two roles in a message", put("segments", "role", {3: Role.SYSTEM}), "ST-SEG-002", "segments", "role", (3,)),
    ("late envelope", put("segments", "envelope", {3: 11}), "ST-SEG-003", "segments", "envelope", (3,)),
    ("tools after a message", put("segments", "role", {1: Role.TOOLS}), "ST-SEG-004", "segments", "role", (1,)),
    ("tools after what is inherited", put("segments", "role", {5: Role.TOOLS}), "ST-SEG-004", "segments", "role", (5,)),
    ("token ids from nowhere", put("segments", "token_ids_start", {7: None}), "ST-SEG-005", "segments", "token_ids", (7,)),
    ("token ids without number", put("segments", "tokens", {7: None}), "ST-SEG-005", "segments", "token_ids", (7,)),
    ("token ids past the end", put("segments", "token_ids_start", {7: 2}), "ST-SEG-006", "segments", "token_ids", (7,)),
    ("block ids from nowhere", put("segments", "block_ids_start", {11: None}), "ST-SEG-007", "segments", "block_ids", (11,)),
    ("blocks of unknown scope", put("trace", "hash_scope", {0: None}), "ST-SEG-008", "trace", "hash_scope", (0,)),
    ("blocks of unknown size", put("trace", "block_size", {0: None}), "ST-SEG-008", "trace", "block_size", (0,)),
    ("block ids past the end", put("segments", "block_ids_start", {11: 2}), "ST-SEG-009", "segments", "block_ids", (11,)),
    ("span without length", put("segments", "source_length", {5: None}), "ST-SEG-010", "segments", "source_start", (5,)),
    ("span of nothing", then(put("segments", "source_start", {1: 0}), put("segments", "source_length", {1: 1})), "ST-SEG-010", "segments", "source_start", (1,)),
    ("span past the end", put("segments", "source_length", {5: 9}), "ST-SEG-011", "segments", "source_length", (5,)),
    ("ids not counted", put("operations", "output_tokens", {3: 5}), "ST-SEG-012", "operations", "output_token_ids", (3,)),
    ("span of other bytes", then(put("segments", "source_start", {9: 1}), put("segments", "source_length", {9: 7})), "ST-SEG-013", "segments", "source_start", (9,)),
]  # fmt: skip

CONTEXT: list[Case] = [
    ("inherits from nobody", put("operations", "context_segments", {5: 1}), "ST-CTX-001", "operations", "context_segments", (5,)),
    ("inherits nothing", put("operations", "context_segments", {2: 0}), "ST-CTX-001", "operations", "context_segments", (2,)),
    ("inherits from a tool", then(put("operations", "context_base", {4: 1}), put("operations", "context_segments", {4: 1}), drop("edges", 7)), "ST-CTX-002", "operations", "context_base", (4,)),
    ("inherits too much", put("operations", "context_segments", {4: 8}), "ST-CTX-003", "operations", "context_segments", (4,)),
    ("cut in a message", then(put("operations", "context_segments", {2: 3, 4: 5}), put("operations", "prompt_tokens", {2: 16})), "ST-CTX-004", "operations", "context_segments", (2,)),
    ("cut in an older message", put("operations", "context_segments", {4: 3}), "ST-CTX-004", "operations", "context_segments", (4,)),
    ("prompt too long", put("operations", "prompt_tokens", {2: 27}), "ST-CTX-005", "operations", "prompt_tokens", (2,)),
    ("prompt too short", put("operations", "prompt_tokens", {2: 25}), "ST-CTX-005", "operations", "prompt_tokens", (2,)),
    ("first prompt too long", put("operations", "prompt_tokens", {0: 17}), "ST-CTX-005", "operations", "prompt_tokens", (0,)),
    ("shorter than what is known", then(put("segments", "tokens", {5: None}), put("operations", "prompt_tokens", {2: 21})), "ST-CTX-005", "operations", "prompt_tokens", (2,)),
    ("longer than can be", then(put("operations", "reasoning_tokens", {0: None}), put("operations", "prompt_tokens", {2: 30})), "ST-CTX-005", "operations", "prompt_tokens", (2,)),
]  # fmt: skip

EDGES: list[Case] = [
    ("waits for itself", put("edges", "source", {5: 3}), "ST-EDGE-002", "edges", None, (5,)),
    ("sure, and doubted", put("edges", "evidence", {10: 1}), "ST-EDGE-003", "edges", "confidence", (10,)),
    ("edge without evidence", put("edges", "evidence", {9: 4}), "ST-EDGE-004", "edges", "evidence", (9,)),
    ("data with lag", put("edges", "lag_ns", {0: 1}), "ST-EDGE-005", "edges", None, (0,)),
    ("state at the start", put("edges", "trigger", {8: Trigger.START}), "ST-EDGE-005", "edges", None, (8,)),
    ("no edge of a source", drop("edges", 11), "ST-EDGE-010", "edges", None, ()),
    ("no edge of a base", drop("edges", 7), "ST-EDGE-010", "edges", None, ()),
    ("data edge of nothing", add("edges", edge(5, 4, EdgeKind.DATA), 11), "ST-EDGE-010", "edges", "kind", (11,)),
    ("no edge of a read", drop("edges", 8), "ST-EDGE-011", "edges", None, ()),
    ("state edge of nothing", add("edges", edge(5, 2, EdgeKind.STATE), 9), "ST-EDGE-011", "edges", "kind", (9,)),
]  # fmt: skip

STATE: list[Case] = [
    ("state without versions", add("states", NEW_STATE), "ST-STATE-001", "states", None, (2,)),
    ("version of itself", put("state_versions", "base", {2: 2}), "ST-STATE-002", "state_versions", "base", (2,)),
    ("version of another state", put("state_versions", "base", {4: 0}), "ST-STATE-002", "state_versions", "base", (4,)),
    ("appended to nothing", put("state_versions", "base", {1: None}), "ST-STATE-003", "state_versions", "base", (1,)),
    ("written without access", put("state_versions", "writer", {4: 3}), "ST-STATE-004", "state_versions", "writer", (4,)),
    ("initial and written", add("state_accesses", access(5, 4, WRITE), 7), "ST-STATE-004", "state_accesses", "operation", (7,)),
    (
        "written in two tasks",
        then(
            put("state_versions", "writer", {4: 3}),
            add("state_versions", version(1, 2, writer=8)),
            add("state_accesses", access(3, 4, WRITE), 6),
            add("state_accesses", access(8, 5, WRITE)),
        ),
        "ST-STATE-005", "state_versions", "writer", (5,),
    ),
    ("read without what is below", then(drop("state_accesses", 3), drop("edges", 4)), "ST-STATE-006", "state_accesses", "state_version", (5,)),
]  # fmt: skip

MANY = b"[" + b"[]," * 700_000 + b"0]"
"""JSON that takes thirty times its bytes when it is parsed."""

ARTIFACTS: list[Case] = [
    ("media type in capitals", put("artifacts", "media_type", {24: "Text/Plain"}), "ST-ART-002", "artifacts", "media_type", (24,)),
    ("token ids of another type", put("artifacts", "media_type", {16: "application/octet-stream"}), "ST-ART-003", "segments", "token_ids", (7,)),
    ("settings of another type", put("artifacts", "media_type", {2: "text/plain"}), "ST-ART-003", "operations", "settings", (0,)),
    ("part of an id", content_of(16, bytes(25)), "ST-ART-004", "artifacts", "size", (16,)),
    ("content lost", without_content(24), "ST-ART-005", "artifacts", "availability", (24,)),
    ("another size", put("artifacts", "size", {24: 5}), "ST-ART-006", "artifacts", "size", (24,)),
    ("other content", other_content(24, b"BOOK"), "ST-ART-007", "artifacts", "digest", (24,)),
    ("withheld and there", put("artifacts", "availability", {24: Availability.WITHHELD}), "ST-ART-008", "artifacts", None, ()),
    ("content of nobody", with_content(lambda _, content: content.update({bytes(32): b""})), "ST-ART-008", "artifacts", None, ()),
    ("text that is none", content_of(21, b"\xff\xfe"), "ST-ART-009", "artifacts", None, (21,)),
    ("long text that is none", content_of(21, b"a" * ((1 << 20) - 1) + "é".encode() + b"a" * (1 << 20) + "é".encode()[:1]), "ST-ART-009", "artifacts", None, (21,)),
    ("settings not canonical", content_of(2, b'{"temperature": 0}'), "ST-ART-010", "artifacts", None, (2,)),
    ("settings no object", content_of(2, b"[]"), "ST-ART-010", "artifacts", None, (2,)),
    ("settings no JSON", content_of(2, b"{"), "ST-ART-010", "artifacts", None, (2,)),
    ("settings nested too deep", content_of(2, b"[" * 100_000), "ST-ART-010", "artifacts", None, (2,)),
    ("a lone surrogate", content_of(2, b'{"a":"\\ud800"}'), "ST-ART-010", "artifacts", None, (2,)),
    ("settings of too many values", content_of(2, b'{"a":' + MANY + b"}"), "ST-ART-011", "artifacts", None, (2,)),
    ("text at level token_ids", put("trace", "content_level", {0: 2}), "ST-LVL-001", "artifacts", "availability", (0, 1, 3, 4, 5)),
]  # fmt: skip

CHAT: list[Case] = [
    ("too many segments", envelope(15, {**TOOL_ENVELOPE, "slots": [["/content", "text", 2]]}), "ST-CHAT-003", "segments", "envelope", (5,)),
    ("no such place", envelope(15, {**TOOL_ENVELOPE, "slots": [["/a/b", "text", 1]]}), "ST-CHAT-003", "segments", "envelope", (5,)),
    ("not the JSON it must be", envelope(15, {**TOOL_ENVELOPE, "slots": [["/content", "json", 1]]}), "ST-CHAT-003", "segments", "envelope", (5,)),
    ("another role", envelope(15, {**TOOL_ENVELOPE, "message": {"role": "user"}}), "ST-CHAT-004", "segments", "envelope", (5,)),
    ("no role", envelope(15, {**TOOL_ENVELOPE, "message": {}}), "ST-CHAT-004", "segments", "envelope", (5,)),
    ("output sent by the user", envelope(6, {"message": {"role": "user"}, "slots": [["/content", "text", 1]]}), "ST-CHAT-005", "operations", "output_envelope", (2,)),
    ("output merged that cannot be", envelope(6, {"message": {"role": "assistant"}, "slots": [["", "merge", 1]]}), "ST-CHAT-005", "operations", "output_envelope", (2,)),
    ("envelope of no output", put("operations", "output_envelope", {3: 6}), "ST-CHAT-005", "operations", "output_envelope", (3,)),
    ("tools no list", content_of(9, b"{}"), "ST-CHAT-006", "segments", "envelope", (0,)),
    ("tools of too many values", content_of(9, MANY), "ST-ART-011", "segments", "envelope", (0,)),
    ("output merged of too many values", then(content_of(1, MANY), envelope(6, {"message": {"role": "assistant"}, "slots": [["", "merge", 1]]})), "ST-ART-011", "operations", "output_envelope", (2,)),
    ("empty slot", envelope(15, {**TOOL_ENVELOPE, "slots": [["/content", "text", 0]]}), "ST-CHAT-007", "segments", "envelope", (5,)),
    ("unknown encoding", envelope(15, {**TOOL_ENVELOPE, "slots": [["/content", "hex", 1]]}), "ST-CHAT-007", "segments", "envelope", (5,)),
    ("another member", envelope(15, {**TOOL_ENVELOPE, "extra": 1}), "ST-CHAT-007", "segments", "envelope", (5,)),
    ("slots no list", envelope(6, {"message": {}, "slots": 1}), "ST-CHAT-007", "operations", "output_envelope", (2,)),
]  # fmt: skip

CASES = [*VALUES, *ORDER, *HIERARCHY, *OPERATIONS, *SEGMENTS, *CONTEXT, *EDGES, *STATE, *ARTIFACTS, *CHAT]


def test_the_example_is_valid(trace: Trace) -> None:
    assert check_trace(trace) == []


@pytest.mark.parametrize(
    ("change", "requirement", "table", "column", "rows"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_exactly_what_is_broken_is_found(
    trace: Trace,
    change: Callable[[Trace], Trace],
    requirement: str,
    table: str,
    column: str | None,
    rows: tuple[int, ...],
) -> None:
    findings = check_trace(change(trace))
    assert [(each.requirement, each.table, each.column, each.rows) for each in findings] == [
        (requirement, table, column, rows)
    ]
    said = str(findings[0])
    assert said.startswith(table)
    assert f"[{requirement}]" in said
    assert all(str(row) in said for row in rows)


def test_an_artifact_that_stands_twice(trace: Trace) -> None:
    again = trace["artifacts"].row(24)
    change = then(add("artifacts", again), add("state_versions", version(1, 2, artifact=26)))
    [finding] = check_trace(change(trace))
    assert (finding.requirement, finding.rows) == ("ST-ART-001", (26,))


def test_rules_that_cannot_be_judged_are_named_by_the_finding_that_keeps_them_from_it(trace: Trace) -> None:
    [finding] = check_trace(put("segments", "operation", {13: 77})(trace))
    assert finding.requirement == "ST-TAB-006"
    assert finding.hint is not None
    for skipped in ("ST-ORD-007", "ST-SEG-001", "ST-CTX-005", "ST-EDGE-010", "ST-CHAT-003"):
        assert skipped in finding.hint
    assert "ST-STAGE-001" not in finding.hint


def test_all_is_found_at_once(trace: Trace) -> None:
    change = then(
        put("tasks", "deadline_ns", {0: 1}),
        put("edges", "evidence", {9: 4}),
        put("operations", "prompt_tokens", {2: 27}),
        put("artifacts", "size", {24: 5}),
        content_of(2, b"[]"),
    )
    found = {finding.requirement for finding in check_trace(change(trace))}
    assert found == {"ST-TASK-002", "ST-EDGE-004", "ST-CTX-005", "ST-ART-006", "ST-ART-010"}


def test_content_is_left_alone_if_asked_to(trace: Trace) -> None:
    assert check_trace(without_content(24)(trace), content=False) == []


def withheld(trace: Trace, level: ContentLevel) -> Trace:
    """The trace with all content withheld that the level does not let out; settings stay."""
    artifacts = trace["artifacts"]
    settings = set(trace.operations.ints("settings").tolist())
    kept = {
        row
        for row, kind in enumerate(artifacts.strings("media_type"))
        if row in settings or content_level(kind or "") >= level
    }
    digests = artifacts.digests()
    content = MemoryContent({digests[row]: trace.content.get(digests[row]) or b"" for row in kept})

    def change(columns: dict[str, list[Any]]) -> None:
        for row in range(artifacts.rows):
            if row not in kept:
                columns["availability"][row] = Availability.WITHHELD

    made = put("trace", "content_level", {0: level})(edited(trace, "artifacts", change))
    return Trace(made.tables, content)


@pytest.mark.parametrize("level", [level for level in ContentLevel if level != ContentLevel.TEXT])
def test_a_trace_without_its_prompts_is_valid(trace: Trace, level: ContentLevel) -> None:
    assert check_trace(withheld(trace, level)) == []


def test_token_ids_need_their_level(trace: Trace) -> None:
    change = put("artifacts", "availability", {16: Availability.EXTERNAL})
    [finding] = check_trace(change(withheld(trace, ContentLevel.SHAPE)))
    assert (finding.requirement, finding.rows) == ("ST-LVL-001", (16,))


def test_an_unknown_length_lets_prompts_be_longer(trace: Trace) -> None:
    change = then(put("segments", "tokens", {5: None}), put("operations", "prompt_tokens", {2: 5000}))
    assert check_trace(change(trace)) == []


def test_unknown_reasoning_lets_prompts_be_in_between(trace: Trace) -> None:
    for prompt in (20, 29):
        change = then(
            put("operations", "reasoning_tokens", {0: None}), put("operations", "prompt_tokens", {2: prompt})
        )
        assert check_trace(change(trace)) == []


def test_an_input_of_no_pieces_says_nothing_of_its_tokens(trace: Trace) -> None:
    change = then(put("operations", "prompt_tokens", {8: 99}), put("operations", "tokens_evidence", {8: 1}))
    assert check_trace(change(then(drop("segments", 13), drop("edges", 11))(trace))) == []


@pytest.mark.parametrize(
    ("roles", "wrong"),
    [
        ((Role.TOOLS, Role.USER), ()),
        ((Role.TEMPLATE, Role.TOOLS, Role.TEMPLATE, Role.USER), ()),
        ((Role.TEMPLATE, Role.SYSTEM, Role.TOOLS), (2,)),
        ((Role.TOOLS, Role.USER, Role.TOOLS), (2,)),
        ((Role.TOOLS, Role.TOOLS), (1,)),
    ],
)
def test_tools_stand_behind_the_template_at_most(roles: tuple[Role, ...], wrong: tuple[int, ...]) -> None:
    b = TraceBuilder(content_level=ContentLevel.SHAPE)
    task = b.task("t")
    for _ in range(2):  # the second of two operations, so that counts begin anew
        operation = b.operation(task, OperationKind.LLM, "a")
        for role in roles:
            b.segment(operation, role)
    findings = check_trace(b.build().trace)
    assert [(each.requirement, each.rows) for each in findings] == (
        [("ST-SEG-004", (*wrong, len(roles) + wrong[0]))] if wrong else []
    )


UNCOUNTED = then(put("operations", "prompt_tokens", {7: None}), put("operations", "tokens_evidence", {7: 4}))

AT_THE_EDGE = [
    ("deadline at arrival", put("tasks", "deadline_ns", {0: 5})),
    ("sure to a hundred", put("edges", "confidence", {10: 100})),
    ("latest time", put("tasks", "deadline_ns", {0: (1 << 62) - 1})),
    ("most tokens", then(put("segments", "tokens", {12: (1 << 40) - 1}), UNCOUNTED)),
    ("all reasoning", then(put("operations", "reasoning_tokens", {0: 9}), put("operations", "prompt_tokens", {2: 20}))),
    ("no tokens", then(put("segments", "tokens", {12: 0}), UNCOUNTED)),
]  # fmt: skip


@pytest.mark.parametrize("change", [case[1] for case in AT_THE_EDGE], ids=[case[0] for case in AT_THE_EDGE])
def test_what_is_just_allowed_is_allowed(trace: Trace, change: Callable[[Trace], Trace]) -> None:
    assert check_trace(change(trace)) == []


def test_a_missing_edge_is_named(trace: Trace) -> None:
    [finding] = check_trace(drop("edges", 11)(trace))
    assert finding.hint == "add the data edge 6 → 8"
    assert "operation 8 repeats or inherits what operation 6 said" in finding.message


def test_prompts_that_are_all_known_are_judged() -> None:
    b = TraceBuilder(content_level=ContentLevel.SHAPE)
    operation = b.operation(b.task("t"), OperationKind.LLM, "a", prompt_tokens=4)
    b.segment(operation, Role.USER, tokens=5)
    assert [finding.requirement for finding in check_trace(b.build().trace)] == ["ST-CTX-005"]


def test_an_empty_trace_has_no_header() -> None:
    [finding] = check_trace(Trace.from_arrow({}))
    assert finding.requirement == "ST-TAB-004"
