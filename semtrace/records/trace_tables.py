"""The tables of a trace: what work there is."""

from __future__ import annotations

from typing import Final

from semtrace.records.enums import (
    AccessMode,
    Availability,
    ContentLevel,
    EdgeKind,
    EntityKind,
    Evidence,
    FinishReason,
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
from semtrace.records.schema import Column, Level, Physical, Table, enum, ref

TRACE: Final = Table(
    0,
    "trace",
    "TraceHeader",
    "Facts of the trace as a whole: exactly one row.",
    (
        Column(
            1,
            "origin_unix_ns",
            Physical.I64,
            "Unix time of the trace's time 0, in nanoseconds.",
            nullable=True,
            level=Level.TRACE,
        ),
        enum(2, "content_level", ContentLevel, "How much content the trace carries.", level=Level.TRACE),
        Column(3, "block_size", Physical.U32, "Tokens in one block of `block_ids`.", nullable=True),
        Column(
            4,
            "hash_scope",
            Physical.STRING,
            "The scope in which equal block ids mean equal content.",
            nullable=True,
        ),
    ),
)

TASKS: Final = Table(
    1,
    "tasks",
    "Task",
    "One user task: the root of a graph of operations.",
    (
        Column(1, "name", Physical.STRING, "Name, for people.", level=Level.TRACE),
        Column(
            2,
            "binding",
            Physical.STRING,
            "Data set and instance that the task is bound to.",
            nullable=True,
            level=Level.TRACE,
        ),
        Column(
            3,
            "workload",
            Physical.STRING,
            "Workload document that the task realises: name or digest.",
            nullable=True,
            level=Level.TRACE,
        ),
        Column(
            4,
            "arrival_ns",
            Physical.I64,
            "When the task arrived, in ns from the trace's origin.",
            nullable=True,
            level=Level.TRACE,
        ),
        Column(
            5,
            "deadline_ns",
            Physical.I64,
            "Latest useful end, in ns from the trace's origin.",
            nullable=True,
            level=Level.TRACE,
        ),
        Column(
            6,
            "priority",
            Physical.I64,
            "Scheduling priority; lower is served first.",
            nullable=True,
            level=Level.TRACE,
            signed=True,
        ),
        Column(7, "tenant", Physical.STRING, "Whose task it is.", nullable=True, level=Level.TRACE),
        ref(8, "input", "artifacts", "What the user asked.", nullable=True),
        ref(9, "output", "artifacts", "What the user got.", nullable=True, level=Level.TRACE),
        ref(
            10,
            "answer_operation",
            "operations",
            "The operation that ends the root latency; detached work may go on after it.",
            nullable=True,
        ),
        enum(11, "outcome", Outcome, "How the task ended.", level=Level.TRACE),
        Column(
            12,
            "metric",
            Physical.STRING,
            "Name of the quality metric of the score.",
            nullable=True,
            level=Level.TRACE,
        ),
        Column(
            13,
            "score_ppm",
            Physical.I64,
            "Score under the metric, in parts per million.",
            nullable=True,
            level=Level.TRACE,
            signed=True,
        ),
    ),
)

STAGES: Final = Table(
    2,
    "stages",
    "Stage",
    "A part of a task's collaboration; stages nest.",
    (
        ref(1, "task", "tasks", "The task that it is a part of."),
        ref(2, "parent", "stages", "The stage that it is nested in.", nullable=True),
        enum(3, "template", StageTemplate, "The collaboration pattern that it follows."),
        Column(
            4,
            "template_extension",
            Physical.STRING,
            "Namespaced name of a pattern beyond the standard's; the template is then unknown.",
            nullable=True,
        ),
        Column(5, "name", Physical.STRING, "Name, for people.", level=Level.TRACE),
        Column(6, "iteration", Physical.U32, "Ordinal among the repetitions of the same stage, from 0."),
    ),
)

SESSIONS: Final = Table(
    3,
    "sessions",
    "Session",
    "A line of context: one agent's conversation with a model.",
    (
        ref(1, "task", "tasks", "The task that it belongs to."),
        Column(
            2, "agent", Physical.STRING, "Role of the agent that it is of.", nullable=True, level=Level.TRACE
        ),
        ref(3, "model", "models", "The model that it usually calls.", nullable=True, level=Level.TRACE),
        ref(4, "parent_operation", "operations", "The operation that spawned it.", nullable=True),
        Column(5, "name", Physical.STRING, "Name, for people.", nullable=True, level=Level.TRACE),
    ),
)


def _shape(number: int, name: str, doc: str) -> Column:
    return Column(number, name, Physical.U32, doc, nullable=True, level=Level.TRACE)


MODELS: Final = Table(
    4,
    "models",
    "Model",
    "A model that operations call, with its shape where it is known.",
    (
        Column(1, "name", Physical.STRING, "Name under which it is called.", level=Level.TRACE),
        Column(2, "revision", Physical.STRING, "Revision of its weights.", nullable=True, level=Level.TRACE),
        Column(
            3, "tokenizer", Physical.BYTES32, "Digest of its tokenizer.", nullable=True, level=Level.TRACE
        ),
        _shape(4, "layers", "Transformer layers."),
        _shape(5, "hidden_size", "Width of the residual stream."),
        _shape(6, "heads", "Query heads."),
        _shape(7, "kv_heads", "Key-value heads."),
        _shape(8, "head_dim", "Width of a head; not always hidden size / heads."),
        _shape(9, "intermediate_size", "Width of the dense feed-forward layer."),
        _shape(10, "vocab_size", "Entries of the vocabulary."),
        _shape(11, "experts", "Experts in a mixture layer."),
        _shape(12, "experts_per_token", "Experts that a token is routed to."),
        _shape(13, "expert_intermediate_size", "Width of one expert's feed-forward layer."),
    ),
)

OPERATIONS: Final = Table(
    5,
    "operations",
    "Operation",
    "A call of a model or a tool, a transformation or a person's turn. References between operations point to lower rows.",
    (
        ref(1, "task", "tasks", "The task that it belongs to; operations are grouped by task."),
        ref(2, "stage", "stages", "The innermost stage that it belongs to.", nullable=True),
        ref(3, "session", "sessions", "The session that it belongs to.", nullable=True),
        enum(4, "kind", OperationKind, "What it is."),
        Column(5, "name", Physical.STRING, "Name, for people: the tool, the agent.", level=Level.TRACE),
        ref(6, "model", "models", "The model called.", nullable=True, level=Level.TRACE),
        enum(7, "status", OperationStatus, "How it ended in the recorded run."),
        Column(
            8,
            "external_delay_ns",
            Physical.I64,
            "Delay between ready and release that no other operation explains, in ns.",
        ),
        Column(
            9,
            "duration_ns",
            Physical.I64,
            "Measured duration in ns: of non-LLM operations, and of LLM operations that failed.",
            nullable=True,
        ),
        ref(
            10,
            "context_base",
            "operations",
            "The operation whose context its input begins with.",
            nullable=True,
        ),
        Column(
            11,
            "context_segments",
            Physical.U32,
            "How many segments of the base's context (its input, then its output) the input begins with; 0 without a base.",
        ),
        Column(12, "prompt_tokens", Physical.I64, "Tokens of the whole input.", nullable=True),
        Column(13, "output_tokens", Physical.I64, "Tokens of the output, reasoning included.", nullable=True),
        Column(
            14,
            "reasoning_tokens",
            Physical.I64,
            "Hidden reasoning tokens among the output tokens.",
            nullable=True,
        ),
        enum(15, "finish_reason", FinishReason, "Why the model stopped.", nullable=True),
        ref(
            16,
            "settings",
            "artifacts",
            "Generation settings, canonical JSON.",
            nullable=True,
            level=Level.TRACE,
        ),
        ref(17, "output", "artifacts", "What it returned.", nullable=True),
        ref(
            18,
            "output_envelope",
            "artifacts",
            "How the output is sent when later inputs inherit it, canonical JSON.",
            nullable=True,
        ),
        ref(19, "output_token_ids", "artifacts", "Token ids of the output.", nullable=True),
        enum(20, "tokens_evidence", Evidence, "How the token counts are known.", level=Level.TRACE),
        enum(21, "duration_evidence", Evidence, "How the duration is known.", level=Level.TRACE),
    ),
)

SEGMENTS: Final = Table(
    6,
    "segments",
    "Segment",
    "A piece of an operation's own input, in input order; what is inherited through context_base is not repeated.",
    (
        ref(1, "operation", "operations", "The operation whose input it is a piece of."),
        enum(2, "role", Role, "What it is on the wire."),
        Column(
            3,
            "message",
            Physical.U32,
            "Ordinal of its message among the operation's own messages; several segments can make one message.",
        ),
        ref(
            4,
            "envelope",
            "artifacts",
            "What else its message holds, canonical JSON; on the message's first segment.",
            nullable=True,
        ),
        ref(5, "artifact", "artifacts", "Its content.", nullable=True),
        ref(6, "token_ids", "artifacts", "Token ids that hold its tokens.", nullable=True),
        Column(7, "token_ids_start", Physical.U32, "Index of its first token in token_ids.", nullable=True),
        ref(8, "block_ids", "artifacts", "Block ids that hold its blocks.", nullable=True),
        Column(9, "block_ids_start", Physical.U32, "Index of its first block in block_ids.", nullable=True),
        Column(10, "tokens", Physical.I64, "Its length in tokens.", nullable=True),
        ref(11, "source_operation", "operations", "The operation whose output it repeats.", nullable=True),
        Column(12, "source_start", Physical.I64, "First byte of it in the source's output.", nullable=True),
        Column(13, "source_length", Physical.I64, "Bytes of it in the source's output.", nullable=True),
        enum(14, "scope", SegmentScope, "Whether it may be shared with other operations' prefixes."),
    ),
)

EDGES: Final = Table(
    7,
    "edges",
    "Edge",
    "A dependency of one operation on another of the same task; sorted by (target, source, kind, trigger), unique.",
    (
        ref(1, "target", "operations", "The operation that waits."),
        ref(2, "source", "operations", "The operation waited for; a lower row."),
        enum(3, "kind", EdgeKind, "What the target needs of the source."),
        enum(4, "trigger", Trigger, "The instant of the source that counts."),
        Column(5, "lag_ns", Physical.I64, "Time from the trigger until the edge is satisfied, in ns."),
        enum(6, "evidence", Evidence, "How the edge is known.", level=Level.TRACE),
        Column(
            7,
            "confidence",
            Physical.U8,
            "Confidence in an inferred edge, in percent.",
            nullable=True,
            level=Level.TRACE,
            maximum=100,
        ),
    ),
)

STATES: Final = Table(
    8,
    "states",
    "State",
    "A named, versioned piece of memory.",
    (
        Column(1, "namespace", Physical.STRING, "Namespace of the name.", level=Level.TRACE),
        Column(2, "name", Physical.STRING, "Name, in its namespace.", level=Level.TRACE),
        enum(3, "scope", StateScope, "Who may see it."),
        enum(4, "lifetime", StateLifetime, "How long it lives."),
    ),
)

STATE_VERSIONS: Final = Table(
    9,
    "state_versions",
    "StateVersion",
    "One version of a state; sorted by (state, version).",
    (
        ref(1, "state", "states", "The state that it is a version of."),
        Column(2, "version", Physical.U32, "Ordinal among the state's versions, from 0."),
        ref(
            3,
            "base",
            "state_versions",
            "The version that it follows from; a lower row of the same state.",
            nullable=True,
        ),
        enum(4, "mode", VersionMode, "Whether it replaces its base or is appended to it."),
        ref(5, "artifact", "artifacts", "Its content: all of it, or what it appends.", nullable=True),
        ref(
            6,
            "writer",
            "operations",
            "The operation that wrote it; null for an initial version.",
            nullable=True,
        ),
    ),
)

STATE_ACCESSES: Final = Table(
    10,
    "state_accesses",
    "StateAccess",
    "A read or write of a version by an operation; sorted by (operation, state_version, mode), unique.",
    (
        ref(1, "operation", "operations", "The operation that reads or writes."),
        ref(2, "state_version", "state_versions", "The version read or written."),
        enum(3, "mode", AccessMode, "Read or write."),
    ),
)

ARTIFACTS: Final = Table(
    11,
    "artifacts",
    "Artifact",
    "A piece of content, named by its digest.",
    (
        Column(
            1, "digest", Physical.BYTES32, "BLAKE3-256 of the raw content (keyed below content level text)."
        ),
        Column(2, "size", Physical.I64, "Bytes of the raw content."),
        Column(3, "media_type", Physical.STRING, "What kind of content it is."),
        enum(4, "availability", Availability, "Where the content is.", level=Level.NONE),
    ),
)

ANNOTATIONS: Final = Table(
    12,
    "annotations",
    "Annotation",
    "A remark that is preserved and never has meaning; sorted by (entity_kind, entity, key, value).",
    (
        enum(1, "entity_kind", EntityKind, "The table it speaks of.", level=Level.NONE),
        Column(2, "entity", Physical.U32, "The row it speaks of.", level=Level.NONE),
        Column(3, "key", Physical.STRING, "Namespaced key.", level=Level.NONE),
        Column(4, "value", Physical.STRING, "Value.", level=Level.NONE),
    ),
)

TRACE_TABLES: Final[tuple[Table, ...]] = (
    TRACE,
    TASKS,
    STAGES,
    SESSIONS,
    MODELS,
    OPERATIONS,
    SEGMENTS,
    EDGES,
    STATES,
    STATE_VERSIONS,
    STATE_ACCESSES,
    ARTIFACTS,
    ANNOTATIONS,
)

TRACE_TABLE: Final[dict[str, Table]] = {table.name: table for table in TRACE_TABLES}
