from semtrace.v1 import execution_pb2 as _execution_pb2
from semtrace.v1 import trace_pb2 as _trace_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StreamForm(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STREAM_FORM_UNSPECIFIED: _ClassVar[StreamForm]
    STREAM_FORM_CAPTURE: _ClassVar[StreamForm]
    STREAM_FORM_EXCHANGE: _ClassVar[StreamForm]
STREAM_FORM_UNSPECIFIED: StreamForm
STREAM_FORM_CAPTURE: StreamForm
STREAM_FORM_EXCHANGE: StreamForm

class Record(_message.Message):
    __slots__ = ("id", "trace_header", "task", "stage", "session", "model", "operation", "segment", "edge", "state", "state_version", "state_access", "artifact", "annotation", "head", "end", "gap", "source", "facts", "content", "captured_artifact", "execution", "instance", "event", "step", "step_run", "block_event", "transfer", "decision")
    ID_FIELD_NUMBER: _ClassVar[int]
    TRACE_HEADER_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    EDGE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_ACCESS_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    ANNOTATION_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    CAPTURED_ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEP_RUN_FIELD_NUMBER: _ClassVar[int]
    BLOCK_EVENT_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    id: int
    trace_header: _trace_pb2.TraceHeader
    task: _trace_pb2.Task
    stage: _trace_pb2.Stage
    session: _trace_pb2.Session
    model: _trace_pb2.Model
    operation: _trace_pb2.Operation
    segment: _trace_pb2.Segment
    edge: _trace_pb2.Edge
    state: _trace_pb2.State
    state_version: _trace_pb2.StateVersion
    state_access: _trace_pb2.StateAccess
    artifact: _trace_pb2.Artifact
    annotation: _trace_pb2.Annotation
    head: StreamHead
    end: StreamEnd
    gap: Gap
    source: SourceRecord
    facts: BundleFacts
    content: Content
    captured_artifact: CapturedArtifact
    execution: ExecutionHead
    instance: _execution_pb2.Instance
    event: _execution_pb2.Event
    step: _execution_pb2.Step
    step_run: _execution_pb2.StepRun
    block_event: _execution_pb2.BlockEvent
    transfer: _execution_pb2.Transfer
    decision: _execution_pb2.Decision
    def __init__(self, id: _Optional[int] = ..., trace_header: _Optional[_Union[_trace_pb2.TraceHeader, _Mapping]] = ..., task: _Optional[_Union[_trace_pb2.Task, _Mapping]] = ..., stage: _Optional[_Union[_trace_pb2.Stage, _Mapping]] = ..., session: _Optional[_Union[_trace_pb2.Session, _Mapping]] = ..., model: _Optional[_Union[_trace_pb2.Model, _Mapping]] = ..., operation: _Optional[_Union[_trace_pb2.Operation, _Mapping]] = ..., segment: _Optional[_Union[_trace_pb2.Segment, _Mapping]] = ..., edge: _Optional[_Union[_trace_pb2.Edge, _Mapping]] = ..., state: _Optional[_Union[_trace_pb2.State, _Mapping]] = ..., state_version: _Optional[_Union[_trace_pb2.StateVersion, _Mapping]] = ..., state_access: _Optional[_Union[_trace_pb2.StateAccess, _Mapping]] = ..., artifact: _Optional[_Union[_trace_pb2.Artifact, _Mapping]] = ..., annotation: _Optional[_Union[_trace_pb2.Annotation, _Mapping]] = ..., head: _Optional[_Union[StreamHead, _Mapping]] = ..., end: _Optional[_Union[StreamEnd, _Mapping]] = ..., gap: _Optional[_Union[Gap, _Mapping]] = ..., source: _Optional[_Union[SourceRecord, _Mapping]] = ..., facts: _Optional[_Union[BundleFacts, _Mapping]] = ..., content: _Optional[_Union[Content, _Mapping]] = ..., captured_artifact: _Optional[_Union[CapturedArtifact, _Mapping]] = ..., execution: _Optional[_Union[ExecutionHead, _Mapping]] = ..., instance: _Optional[_Union[_execution_pb2.Instance, _Mapping]] = ..., event: _Optional[_Union[_execution_pb2.Event, _Mapping]] = ..., step: _Optional[_Union[_execution_pb2.Step, _Mapping]] = ..., step_run: _Optional[_Union[_execution_pb2.StepRun, _Mapping]] = ..., block_event: _Optional[_Union[_execution_pb2.BlockEvent, _Mapping]] = ..., transfer: _Optional[_Union[_execution_pb2.Transfer, _Mapping]] = ..., decision: _Optional[_Union[_execution_pb2.Decision, _Mapping]] = ...) -> None: ...

class StreamHead(_message.Message):
    __slots__ = ("form", "run", "producer", "producer_version", "process", "created_unix_ns")
    FORM_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    form: StreamForm
    run: bytes
    producer: str
    producer_version: str
    process: int
    created_unix_ns: int
    def __init__(self, form: _Optional[_Union[StreamForm, str]] = ..., run: _Optional[bytes] = ..., producer: _Optional[str] = ..., producer_version: _Optional[str] = ..., process: _Optional[int] = ..., created_unix_ns: _Optional[int] = ...) -> None: ...

class StreamEnd(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: int
    def __init__(self, records: _Optional[int] = ...) -> None: ...

class Gap(_message.Message):
    __slots__ = ("records", "reason")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    records: int
    reason: str
    def __init__(self, records: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class SourceRecord(_message.Message):
    __slots__ = ("adapter", "name", "key", "data")
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    adapter: str
    name: str
    key: str
    data: bytes
    def __init__(self, adapter: _Optional[str] = ..., name: _Optional[str] = ..., key: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class BundleFacts(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: bytes
    def __init__(self, json: _Optional[bytes] = ...) -> None: ...

class Content(_message.Message):
    __slots__ = ("digest", "size", "offset", "data")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    size: int
    offset: int
    data: bytes
    def __init__(self, digest: _Optional[bytes] = ..., size: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class CapturedArtifact(_message.Message):
    __slots__ = ("media_type", "data")
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    media_type: str
    data: bytes
    def __init__(self, media_type: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class ExecutionHead(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...
