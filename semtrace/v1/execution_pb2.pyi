from semtrace.v1 import enums_pb2 as _enums_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Instance(_message.Message):
    __slots__ = ("task", "instance", "arrival_ns", "outcome")
    TASK_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_NS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    task: int
    instance: int
    arrival_ns: int
    outcome: _enums_pb2.Outcome
    def __init__(self, task: _Optional[int] = ..., instance: _Optional[int] = ..., arrival_ns: _Optional[int] = ..., outcome: _Optional[_Union[_enums_pb2.Outcome, str]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("instance", "operation", "ready_ns", "released_ns", "submitted_ns", "scheduled_ns", "first_token_ns", "finished_ns", "ready_evidence", "released_evidence", "submitted_evidence", "scheduled_evidence", "first_token_evidence", "finished_evidence", "outcome", "prompt_tokens", "cached_tokens", "computed_prompt_tokens", "output_tokens", "output_ids", "preemptions", "attempts", "server", "request_id", "preempted_ns", "loaded_tokens", "reused_tokens", "finish_reason", "failure")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    READY_NS_FIELD_NUMBER: _ClassVar[int]
    RELEASED_NS_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_NS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULED_NS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_NS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_NS_FIELD_NUMBER: _ClassVar[int]
    READY_EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    RELEASED_EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    SCHEDULED_EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    FINISHED_EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_IDS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_NS_FIELD_NUMBER: _ClassVar[int]
    LOADED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REUSED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    instance: int
    operation: int
    ready_ns: int
    released_ns: int
    submitted_ns: int
    scheduled_ns: int
    first_token_ns: int
    finished_ns: int
    ready_evidence: _enums_pb2.Evidence
    released_evidence: _enums_pb2.Evidence
    submitted_evidence: _enums_pb2.Evidence
    scheduled_evidence: _enums_pb2.Evidence
    first_token_evidence: _enums_pb2.Evidence
    finished_evidence: _enums_pb2.Evidence
    outcome: _enums_pb2.EventOutcome
    prompt_tokens: int
    cached_tokens: int
    computed_prompt_tokens: int
    output_tokens: int
    output_ids: int
    preemptions: int
    attempts: int
    server: int
    request_id: str
    preempted_ns: int
    loaded_tokens: int
    reused_tokens: int
    finish_reason: _enums_pb2.FinishReason
    failure: _enums_pb2.Failure
    def __init__(self, instance: _Optional[int] = ..., operation: _Optional[int] = ..., ready_ns: _Optional[int] = ..., released_ns: _Optional[int] = ..., submitted_ns: _Optional[int] = ..., scheduled_ns: _Optional[int] = ..., first_token_ns: _Optional[int] = ..., finished_ns: _Optional[int] = ..., ready_evidence: _Optional[_Union[_enums_pb2.Evidence, str]] = ..., released_evidence: _Optional[_Union[_enums_pb2.Evidence, str]] = ..., submitted_evidence: _Optional[_Union[_enums_pb2.Evidence, str]] = ..., scheduled_evidence: _Optional[_Union[_enums_pb2.Evidence, str]] = ..., first_token_evidence: _Optional[_Union[_enums_pb2.Evidence, str]] = ..., finished_evidence: _Optional[_Union[_enums_pb2.Evidence, str]] = ..., outcome: _Optional[_Union[_enums_pb2.EventOutcome, str]] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., computed_prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., output_ids: _Optional[int] = ..., preemptions: _Optional[int] = ..., attempts: _Optional[int] = ..., server: _Optional[int] = ..., request_id: _Optional[str] = ..., preempted_ns: _Optional[int] = ..., loaded_tokens: _Optional[int] = ..., reused_tokens: _Optional[int] = ..., finish_reason: _Optional[_Union[_enums_pb2.FinishReason, str]] = ..., failure: _Optional[_Union[_enums_pb2.Failure, str]] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("server", "index", "start_ns", "end_ns", "tokens", "requests", "free_blocks")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    END_NS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    server: int
    index: int
    start_ns: int
    end_ns: int
    tokens: int
    requests: int
    free_blocks: int
    def __init__(self, server: _Optional[int] = ..., index: _Optional[int] = ..., start_ns: _Optional[int] = ..., end_ns: _Optional[int] = ..., tokens: _Optional[int] = ..., requests: _Optional[int] = ..., free_blocks: _Optional[int] = ...) -> None: ...

class StepRun(_message.Message):
    __slots__ = ("event", "first_step", "count", "start_position", "tokens_per_step", "phase")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    START_POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    event: int
    first_step: int
    count: int
    start_position: int
    tokens_per_step: int
    phase: _enums_pb2.Phase
    def __init__(self, event: _Optional[int] = ..., first_step: _Optional[int] = ..., count: _Optional[int] = ..., start_position: _Optional[int] = ..., tokens_per_step: _Optional[int] = ..., phase: _Optional[_Union[_enums_pb2.Phase, str]] = ...) -> None: ...

class BlockEvent(_message.Message):
    __slots__ = ("time_ns", "sequence", "server", "tier", "action", "event", "blocks", "bytes", "reason", "first_block", "position", "transfer")
    TIME_NS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    time_ns: int
    sequence: int
    server: int
    tier: _enums_pb2.Tier
    action: _enums_pb2.BlockAction
    event: int
    blocks: int
    bytes: int
    reason: str
    first_block: int
    position: int
    transfer: int
    def __init__(self, time_ns: _Optional[int] = ..., sequence: _Optional[int] = ..., server: _Optional[int] = ..., tier: _Optional[_Union[_enums_pb2.Tier, str]] = ..., action: _Optional[_Union[_enums_pb2.BlockAction, str]] = ..., event: _Optional[int] = ..., blocks: _Optional[int] = ..., bytes: _Optional[int] = ..., reason: _Optional[str] = ..., first_block: _Optional[int] = ..., position: _Optional[int] = ..., transfer: _Optional[int] = ...) -> None: ...

class Transfer(_message.Message):
    __slots__ = ("server", "link", "direction", "start_ns", "end_ns", "bytes", "event", "blocks")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    END_NS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    server: int
    link: str
    direction: _enums_pb2.Direction
    start_ns: int
    end_ns: int
    bytes: int
    event: int
    blocks: int
    def __init__(self, server: _Optional[int] = ..., link: _Optional[str] = ..., direction: _Optional[_Union[_enums_pb2.Direction, str]] = ..., start_ns: _Optional[int] = ..., end_ns: _Optional[int] = ..., bytes: _Optional[int] = ..., event: _Optional[int] = ..., blocks: _Optional[int] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("time_ns", "sequence", "policy", "event", "inputs", "choice")
    TIME_NS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    time_ns: int
    sequence: int
    policy: str
    event: int
    inputs: str
    choice: str
    def __init__(self, time_ns: _Optional[int] = ..., sequence: _Optional[int] = ..., policy: _Optional[str] = ..., event: _Optional[int] = ..., inputs: _Optional[str] = ..., choice: _Optional[str] = ...) -> None: ...
