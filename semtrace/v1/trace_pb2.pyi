from semtrace.v1 import enums_pb2 as _enums_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TraceHeader(_message.Message):
    __slots__ = ("origin_unix_ns", "content_level", "block_size", "hash_scope")
    ORIGIN_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_LEVEL_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    HASH_SCOPE_FIELD_NUMBER: _ClassVar[int]
    origin_unix_ns: int
    content_level: _enums_pb2.ContentLevel
    block_size: int
    hash_scope: str
    def __init__(self, origin_unix_ns: _Optional[int] = ..., content_level: _Optional[_Union[_enums_pb2.ContentLevel, str]] = ..., block_size: _Optional[int] = ..., hash_scope: _Optional[str] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("name", "binding", "workload", "arrival_ns", "deadline_ns", "priority", "tenant", "input", "output", "answer_operation", "outcome", "metric", "score_ppm")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BINDING_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_NS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_NS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    ANSWER_OPERATION_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    SCORE_PPM_FIELD_NUMBER: _ClassVar[int]
    name: str
    binding: str
    workload: str
    arrival_ns: int
    deadline_ns: int
    priority: int
    tenant: str
    input: int
    output: int
    answer_operation: int
    outcome: _enums_pb2.Outcome
    metric: str
    score_ppm: int
    def __init__(self, name: _Optional[str] = ..., binding: _Optional[str] = ..., workload: _Optional[str] = ..., arrival_ns: _Optional[int] = ..., deadline_ns: _Optional[int] = ..., priority: _Optional[int] = ..., tenant: _Optional[str] = ..., input: _Optional[int] = ..., output: _Optional[int] = ..., answer_operation: _Optional[int] = ..., outcome: _Optional[_Union[_enums_pb2.Outcome, str]] = ..., metric: _Optional[str] = ..., score_ppm: _Optional[int] = ...) -> None: ...

class Stage(_message.Message):
    __slots__ = ("task", "parent", "template", "template_extension", "name", "iteration")
    TASK_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_EXTENSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    task: int
    parent: int
    template: _enums_pb2.StageTemplate
    template_extension: str
    name: str
    iteration: int
    def __init__(self, task: _Optional[int] = ..., parent: _Optional[int] = ..., template: _Optional[_Union[_enums_pb2.StageTemplate, str]] = ..., template_extension: _Optional[str] = ..., name: _Optional[str] = ..., iteration: _Optional[int] = ...) -> None: ...

class Session(_message.Message):
    __slots__ = ("task", "agent", "model", "parent_operation", "name")
    TASK_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PARENT_OPERATION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    task: int
    agent: str
    model: int
    parent_operation: int
    name: str
    def __init__(self, task: _Optional[int] = ..., agent: _Optional[str] = ..., model: _Optional[int] = ..., parent_operation: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "revision", "tokenizer", "layers", "hidden_size", "heads", "kv_heads", "head_dim", "intermediate_size", "vocab_size", "experts", "experts_per_token", "expert_intermediate_size")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    INTERMEDIATE_SIZE_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    EXPERTS_FIELD_NUMBER: _ClassVar[int]
    EXPERTS_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXPERT_INTERMEDIATE_SIZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    revision: str
    tokenizer: bytes
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    experts: int
    experts_per_token: int
    expert_intermediate_size: int
    def __init__(self, name: _Optional[str] = ..., revision: _Optional[str] = ..., tokenizer: _Optional[bytes] = ..., layers: _Optional[int] = ..., hidden_size: _Optional[int] = ..., heads: _Optional[int] = ..., kv_heads: _Optional[int] = ..., head_dim: _Optional[int] = ..., intermediate_size: _Optional[int] = ..., vocab_size: _Optional[int] = ..., experts: _Optional[int] = ..., experts_per_token: _Optional[int] = ..., expert_intermediate_size: _Optional[int] = ...) -> None: ...

class Operation(_message.Message):
    __slots__ = ("task", "stage", "session", "kind", "name", "model", "status", "external_delay_ns", "duration_ns", "context_base", "context_segments", "prompt_tokens", "output_tokens", "reasoning_tokens", "finish_reason", "settings", "output", "output_envelope", "output_token_ids", "tokens_evidence", "duration_evidence")
    TASK_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_DELAY_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_BASE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    DURATION_EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    task: int
    stage: int
    session: int
    kind: _enums_pb2.OperationKind
    name: str
    model: int
    status: _enums_pb2.OperationStatus
    external_delay_ns: int
    duration_ns: int
    context_base: int
    context_segments: int
    prompt_tokens: int
    output_tokens: int
    reasoning_tokens: int
    finish_reason: _enums_pb2.FinishReason
    settings: int
    output: int
    output_envelope: int
    output_token_ids: int
    tokens_evidence: _enums_pb2.Evidence
    duration_evidence: _enums_pb2.Evidence
    def __init__(self, task: _Optional[int] = ..., stage: _Optional[int] = ..., session: _Optional[int] = ..., kind: _Optional[_Union[_enums_pb2.OperationKind, str]] = ..., name: _Optional[str] = ..., model: _Optional[int] = ..., status: _Optional[_Union[_enums_pb2.OperationStatus, str]] = ..., external_delay_ns: _Optional[int] = ..., duration_ns: _Optional[int] = ..., context_base: _Optional[int] = ..., context_segments: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., reasoning_tokens: _Optional[int] = ..., finish_reason: _Optional[_Union[_enums_pb2.FinishReason, str]] = ..., settings: _Optional[int] = ..., output: _Optional[int] = ..., output_envelope: _Optional[int] = ..., output_token_ids: _Optional[int] = ..., tokens_evidence: _Optional[_Union[_enums_pb2.Evidence, str]] = ..., duration_evidence: _Optional[_Union[_enums_pb2.Evidence, str]] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("operation", "role", "message", "envelope", "artifact", "token_ids", "token_ids_start", "block_ids", "block_ids_start", "tokens", "source_operation", "source_start", "source_length", "scope")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_START_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_START_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_OPERATION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_START_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    operation: int
    role: _enums_pb2.Role
    message: int
    envelope: int
    artifact: int
    token_ids: int
    token_ids_start: int
    block_ids: int
    block_ids_start: int
    tokens: int
    source_operation: int
    source_start: int
    source_length: int
    scope: _enums_pb2.SegmentScope
    def __init__(self, operation: _Optional[int] = ..., role: _Optional[_Union[_enums_pb2.Role, str]] = ..., message: _Optional[int] = ..., envelope: _Optional[int] = ..., artifact: _Optional[int] = ..., token_ids: _Optional[int] = ..., token_ids_start: _Optional[int] = ..., block_ids: _Optional[int] = ..., block_ids_start: _Optional[int] = ..., tokens: _Optional[int] = ..., source_operation: _Optional[int] = ..., source_start: _Optional[int] = ..., source_length: _Optional[int] = ..., scope: _Optional[_Union[_enums_pb2.SegmentScope, str]] = ...) -> None: ...

class Edge(_message.Message):
    __slots__ = ("target", "source", "kind", "trigger", "lag_ns", "evidence", "confidence")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TRIGGER_FIELD_NUMBER: _ClassVar[int]
    LAG_NS_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    target: int
    source: int
    kind: _enums_pb2.EdgeKind
    trigger: _enums_pb2.Trigger
    lag_ns: int
    evidence: _enums_pb2.Evidence
    confidence: int
    def __init__(self, target: _Optional[int] = ..., source: _Optional[int] = ..., kind: _Optional[_Union[_enums_pb2.EdgeKind, str]] = ..., trigger: _Optional[_Union[_enums_pb2.Trigger, str]] = ..., lag_ns: _Optional[int] = ..., evidence: _Optional[_Union[_enums_pb2.Evidence, str]] = ..., confidence: _Optional[int] = ...) -> None: ...

class State(_message.Message):
    __slots__ = ("namespace", "name", "scope", "lifetime")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    scope: _enums_pb2.StateScope
    lifetime: _enums_pb2.StateLifetime
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., scope: _Optional[_Union[_enums_pb2.StateScope, str]] = ..., lifetime: _Optional[_Union[_enums_pb2.StateLifetime, str]] = ...) -> None: ...

class StateVersion(_message.Message):
    __slots__ = ("state", "version", "base", "mode", "artifact", "writer")
    STATE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    state: int
    version: int
    base: int
    mode: _enums_pb2.VersionMode
    artifact: int
    writer: int
    def __init__(self, state: _Optional[int] = ..., version: _Optional[int] = ..., base: _Optional[int] = ..., mode: _Optional[_Union[_enums_pb2.VersionMode, str]] = ..., artifact: _Optional[int] = ..., writer: _Optional[int] = ...) -> None: ...

class StateAccess(_message.Message):
    __slots__ = ("operation", "state_version", "mode")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    STATE_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    operation: int
    state_version: int
    mode: _enums_pb2.AccessMode
    def __init__(self, operation: _Optional[int] = ..., state_version: _Optional[int] = ..., mode: _Optional[_Union[_enums_pb2.AccessMode, str]] = ...) -> None: ...

class Artifact(_message.Message):
    __slots__ = ("digest", "size", "media_type", "availability")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    AVAILABILITY_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    size: int
    media_type: str
    availability: _enums_pb2.Availability
    def __init__(self, digest: _Optional[bytes] = ..., size: _Optional[int] = ..., media_type: _Optional[str] = ..., availability: _Optional[_Union[_enums_pb2.Availability, str]] = ...) -> None: ...

class Annotation(_message.Message):
    __slots__ = ("entity_kind", "entity", "key", "value")
    ENTITY_KIND_FIELD_NUMBER: _ClassVar[int]
    ENTITY_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    entity_kind: _enums_pb2.EntityKind
    entity: int
    key: str
    value: str
    def __init__(self, entity_kind: _Optional[_Union[_enums_pb2.EntityKind, str]] = ..., entity: _Optional[int] = ..., key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
