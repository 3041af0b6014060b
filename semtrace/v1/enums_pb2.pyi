from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_UNKNOWN: _ClassVar[Outcome]
    OUTCOME_SUCCESS: _ClassVar[Outcome]
    OUTCOME_FAILURE: _ClassVar[Outcome]
    OUTCOME_CANCELLED: _ClassVar[Outcome]

class StageTemplate(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STAGE_TEMPLATE_UNSPECIFIED: _ClassVar[StageTemplate]
    STAGE_TEMPLATE_UNKNOWN: _ClassVar[StageTemplate]
    STAGE_TEMPLATE_SPAWN: _ClassVar[StageTemplate]
    STAGE_TEMPLATE_FORK_JOIN: _ClassVar[StageTemplate]
    STAGE_TEMPLATE_REFINEMENT: _ClassVar[StageTemplate]
    STAGE_TEMPLATE_DEBATE: _ClassVar[StageTemplate]
    STAGE_TEMPLATE_HANDOFF: _ClassVar[StageTemplate]
    STAGE_TEMPLATE_SEQUENCE: _ClassVar[StageTemplate]

class OperationKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OPERATION_KIND_UNSPECIFIED: _ClassVar[OperationKind]
    OPERATION_KIND_LLM: _ClassVar[OperationKind]
    OPERATION_KIND_EMBED: _ClassVar[OperationKind]
    OPERATION_KIND_TOOL: _ClassVar[OperationKind]
    OPERATION_KIND_TRANSFORM: _ClassVar[OperationKind]
    OPERATION_KIND_HUMAN: _ClassVar[OperationKind]

class OperationStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OPERATION_STATUS_UNSPECIFIED: _ClassVar[OperationStatus]
    OPERATION_STATUS_OK: _ClassVar[OperationStatus]
    OPERATION_STATUS_ERROR: _ClassVar[OperationStatus]
    OPERATION_STATUS_CANCELLED: _ClassVar[OperationStatus]
    OPERATION_STATUS_TIMEOUT: _ClassVar[OperationStatus]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_TOOL_CALLS: _ClassVar[FinishReason]
    FINISH_REASON_CONTENT_FILTER: _ClassVar[FinishReason]
    FINISH_REASON_ABORT: _ClassVar[FinishReason]

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_SYSTEM: _ClassVar[Role]
    ROLE_USER: _ClassVar[Role]
    ROLE_ASSISTANT: _ClassVar[Role]
    ROLE_TOOL: _ClassVar[Role]
    ROLE_TOOLS: _ClassVar[Role]
    ROLE_TEMPLATE: _ClassVar[Role]

class SegmentScope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEGMENT_SCOPE_UNSPECIFIED: _ClassVar[SegmentScope]
    SEGMENT_SCOPE_PRIVATE: _ClassVar[SegmentScope]
    SEGMENT_SCOPE_SHARED: _ClassVar[SegmentScope]

class EdgeKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EDGE_KIND_UNSPECIFIED: _ClassVar[EdgeKind]
    EDGE_KIND_CONTROL: _ClassVar[EdgeKind]
    EDGE_KIND_DATA: _ClassVar[EdgeKind]
    EDGE_KIND_STATE: _ClassVar[EdgeKind]
    EDGE_KIND_UNKNOWN: _ClassVar[EdgeKind]

class Trigger(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRIGGER_UNSPECIFIED: _ClassVar[Trigger]
    TRIGGER_FINISH: _ClassVar[Trigger]
    TRIGGER_START: _ClassVar[Trigger]
    TRIGGER_FIRST_TOKEN: _ClassVar[Trigger]

class Evidence(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVIDENCE_UNSPECIFIED: _ClassVar[Evidence]
    EVIDENCE_OBSERVED: _ClassVar[Evidence]
    EVIDENCE_DERIVED: _ClassVar[Evidence]
    EVIDENCE_INFERRED: _ClassVar[Evidence]
    EVIDENCE_MISSING: _ClassVar[Evidence]

class StateScope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATE_SCOPE_UNSPECIFIED: _ClassVar[StateScope]
    STATE_SCOPE_PRIVATE: _ClassVar[StateScope]
    STATE_SCOPE_SHARED: _ClassVar[StateScope]
    STATE_SCOPE_EXTERNAL: _ClassVar[StateScope]

class StateLifetime(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATE_LIFETIME_UNSPECIFIED: _ClassVar[StateLifetime]
    STATE_LIFETIME_SESSION: _ClassVar[StateLifetime]
    STATE_LIFETIME_TASK: _ClassVar[StateLifetime]
    STATE_LIFETIME_LONG_TERM: _ClassVar[StateLifetime]

class VersionMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERSION_MODE_UNSPECIFIED: _ClassVar[VersionMode]
    VERSION_MODE_REPLACE: _ClassVar[VersionMode]
    VERSION_MODE_APPEND: _ClassVar[VersionMode]

class AccessMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACCESS_MODE_UNSPECIFIED: _ClassVar[AccessMode]
    ACCESS_MODE_READ: _ClassVar[AccessMode]
    ACCESS_MODE_WRITE: _ClassVar[AccessMode]

class Availability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AVAILABILITY_UNSPECIFIED: _ClassVar[Availability]
    AVAILABILITY_EMBEDDED: _ClassVar[Availability]
    AVAILABILITY_EXTERNAL: _ClassVar[Availability]
    AVAILABILITY_WITHHELD: _ClassVar[Availability]

class ContentLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONTENT_LEVEL_UNSPECIFIED: _ClassVar[ContentLevel]
    CONTENT_LEVEL_TEXT: _ClassVar[ContentLevel]
    CONTENT_LEVEL_TOKEN_IDS: _ClassVar[ContentLevel]
    CONTENT_LEVEL_BLOCK_HASHES: _ClassVar[ContentLevel]
    CONTENT_LEVEL_SHAPE: _ClassVar[ContentLevel]

class EntityKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENTITY_KIND_UNSPECIFIED: _ClassVar[EntityKind]
    ENTITY_KIND_TRACE: _ClassVar[EntityKind]
    ENTITY_KIND_TASK: _ClassVar[EntityKind]
    ENTITY_KIND_STAGE: _ClassVar[EntityKind]
    ENTITY_KIND_SESSION: _ClassVar[EntityKind]
    ENTITY_KIND_OPERATION: _ClassVar[EntityKind]
    ENTITY_KIND_SEGMENT: _ClassVar[EntityKind]
    ENTITY_KIND_EDGE: _ClassVar[EntityKind]
    ENTITY_KIND_STATE: _ClassVar[EntityKind]
    ENTITY_KIND_STATE_VERSION: _ClassVar[EntityKind]
    ENTITY_KIND_MODEL: _ClassVar[EntityKind]

class ReplayMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REPLAY_MODE_UNSPECIFIED: _ClassVar[ReplayMode]
    REPLAY_MODE_NATIVE: _ClassVar[ReplayMode]
    REPLAY_MODE_LENGTH_LOCKED: _ClassVar[ReplayMode]
    REPLAY_MODE_TOKEN_LOCKED: _ClassVar[ReplayMode]

class Clock(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CLOCK_UNSPECIFIED: _ClassVar[Clock]
    CLOCK_VIRTUAL: _ClassVar[Clock]
    CLOCK_WALL: _ClassVar[Clock]

class EventOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVENT_OUTCOME_UNSPECIFIED: _ClassVar[EventOutcome]
    EVENT_OUTCOME_OK: _ClassVar[EventOutcome]
    EVENT_OUTCOME_ERROR: _ClassVar[EventOutcome]
    EVENT_OUTCOME_CANCELLED: _ClassVar[EventOutcome]
    EVENT_OUTCOME_TIMEOUT: _ClassVar[EventOutcome]
    EVENT_OUTCOME_SKIPPED: _ClassVar[EventOutcome]
    EVENT_OUTCOME_REFUSED: _ClassVar[EventOutcome]
    EVENT_OUTCOME_UNFINISHED: _ClassVar[EventOutcome]

class Failure(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_UNSPECIFIED: _ClassVar[Failure]
    FAILURE_CONNECTION: _ClassVar[Failure]
    FAILURE_RESET: _ClassVar[Failure]
    FAILURE_TIMEOUT: _ClassVar[Failure]
    FAILURE_RATE_LIMITED: _ClassVar[Failure]
    FAILURE_SERVER_ERROR: _ClassVar[Failure]
    FAILURE_REJECTED: _ClassVar[Failure]
    FAILURE_TRUNCATED: _ClassVar[Failure]
    FAILURE_PROTOCOL: _ClassVar[Failure]

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_PREFILL: _ClassVar[Phase]
    PHASE_DECODE: _ClassVar[Phase]

class Tier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIER_UNSPECIFIED: _ClassVar[Tier]
    TIER_DEVICE: _ClassVar[Tier]
    TIER_HOST: _ClassVar[Tier]
    TIER_REMOTE: _ClassVar[Tier]

class BlockAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BLOCK_ACTION_UNSPECIFIED: _ClassVar[BlockAction]
    BLOCK_ACTION_ALLOCATE: _ClassVar[BlockAction]
    BLOCK_ACTION_HIT: _ClassVar[BlockAction]
    BLOCK_ACTION_FREE: _ClassVar[BlockAction]
    BLOCK_ACTION_EVICT: _ClassVar[BlockAction]
    BLOCK_ACTION_OFFLOAD: _ClassVar[BlockAction]
    BLOCK_ACTION_UPLOAD: _ClassVar[BlockAction]
    BLOCK_ACTION_REENCODE: _ClassVar[BlockAction]
    BLOCK_ACTION_DROP: _ClassVar[BlockAction]

class Direction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DIRECTION_UNSPECIFIED: _ClassVar[Direction]
    DIRECTION_OUT: _ClassVar[Direction]
    DIRECTION_IN: _ClassVar[Direction]
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_UNKNOWN: Outcome
OUTCOME_SUCCESS: Outcome
OUTCOME_FAILURE: Outcome
OUTCOME_CANCELLED: Outcome
STAGE_TEMPLATE_UNSPECIFIED: StageTemplate
STAGE_TEMPLATE_UNKNOWN: StageTemplate
STAGE_TEMPLATE_SPAWN: StageTemplate
STAGE_TEMPLATE_FORK_JOIN: StageTemplate
STAGE_TEMPLATE_REFINEMENT: StageTemplate
STAGE_TEMPLATE_DEBATE: StageTemplate
STAGE_TEMPLATE_HANDOFF: StageTemplate
STAGE_TEMPLATE_SEQUENCE: StageTemplate
OPERATION_KIND_UNSPECIFIED: OperationKind
OPERATION_KIND_LLM: OperationKind
OPERATION_KIND_EMBED: OperationKind
OPERATION_KIND_TOOL: OperationKind
OPERATION_KIND_TRANSFORM: OperationKind
OPERATION_KIND_HUMAN: OperationKind
OPERATION_STATUS_UNSPECIFIED: OperationStatus
OPERATION_STATUS_OK: OperationStatus
OPERATION_STATUS_ERROR: OperationStatus
OPERATION_STATUS_CANCELLED: OperationStatus
OPERATION_STATUS_TIMEOUT: OperationStatus
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_TOOL_CALLS: FinishReason
FINISH_REASON_CONTENT_FILTER: FinishReason
FINISH_REASON_ABORT: FinishReason
ROLE_UNSPECIFIED: Role
ROLE_SYSTEM: Role
ROLE_USER: Role
ROLE_ASSISTANT: Role
ROLE_TOOL: Role
ROLE_TOOLS: Role
ROLE_TEMPLATE: Role
SEGMENT_SCOPE_UNSPECIFIED: SegmentScope
SEGMENT_SCOPE_PRIVATE: SegmentScope
SEGMENT_SCOPE_SHARED: SegmentScope
EDGE_KIND_UNSPECIFIED: EdgeKind
EDGE_KIND_CONTROL: EdgeKind
EDGE_KIND_DATA: EdgeKind
EDGE_KIND_STATE: EdgeKind
EDGE_KIND_UNKNOWN: EdgeKind
TRIGGER_UNSPECIFIED: Trigger
TRIGGER_FINISH: Trigger
TRIGGER_START: Trigger
TRIGGER_FIRST_TOKEN: Trigger
EVIDENCE_UNSPECIFIED: Evidence
EVIDENCE_OBSERVED: Evidence
EVIDENCE_DERIVED: Evidence
EVIDENCE_INFERRED: Evidence
EVIDENCE_MISSING: Evidence
STATE_SCOPE_UNSPECIFIED: StateScope
STATE_SCOPE_PRIVATE: StateScope
STATE_SCOPE_SHARED: StateScope
STATE_SCOPE_EXTERNAL: StateScope
STATE_LIFETIME_UNSPECIFIED: StateLifetime
STATE_LIFETIME_SESSION: StateLifetime
STATE_LIFETIME_TASK: StateLifetime
STATE_LIFETIME_LONG_TERM: StateLifetime
VERSION_MODE_UNSPECIFIED: VersionMode
VERSION_MODE_REPLACE: VersionMode
VERSION_MODE_APPEND: VersionMode
ACCESS_MODE_UNSPECIFIED: AccessMode
ACCESS_MODE_READ: AccessMode
ACCESS_MODE_WRITE: AccessMode
AVAILABILITY_UNSPECIFIED: Availability
AVAILABILITY_EMBEDDED: Availability
AVAILABILITY_EXTERNAL: Availability
AVAILABILITY_WITHHELD: Availability
CONTENT_LEVEL_UNSPECIFIED: ContentLevel
CONTENT_LEVEL_TEXT: ContentLevel
CONTENT_LEVEL_TOKEN_IDS: ContentLevel
CONTENT_LEVEL_BLOCK_HASHES: ContentLevel
CONTENT_LEVEL_SHAPE: ContentLevel
ENTITY_KIND_UNSPECIFIED: EntityKind
ENTITY_KIND_TRACE: EntityKind
ENTITY_KIND_TASK: EntityKind
ENTITY_KIND_STAGE: EntityKind
ENTITY_KIND_SESSION: EntityKind
ENTITY_KIND_OPERATION: EntityKind
ENTITY_KIND_SEGMENT: EntityKind
ENTITY_KIND_EDGE: EntityKind
ENTITY_KIND_STATE: EntityKind
ENTITY_KIND_STATE_VERSION: EntityKind
ENTITY_KIND_MODEL: EntityKind
REPLAY_MODE_UNSPECIFIED: ReplayMode
REPLAY_MODE_NATIVE: ReplayMode
REPLAY_MODE_LENGTH_LOCKED: ReplayMode
REPLAY_MODE_TOKEN_LOCKED: ReplayMode
CLOCK_UNSPECIFIED: Clock
CLOCK_VIRTUAL: Clock
CLOCK_WALL: Clock
EVENT_OUTCOME_UNSPECIFIED: EventOutcome
EVENT_OUTCOME_OK: EventOutcome
EVENT_OUTCOME_ERROR: EventOutcome
EVENT_OUTCOME_CANCELLED: EventOutcome
EVENT_OUTCOME_TIMEOUT: EventOutcome
EVENT_OUTCOME_SKIPPED: EventOutcome
EVENT_OUTCOME_REFUSED: EventOutcome
EVENT_OUTCOME_UNFINISHED: EventOutcome
FAILURE_UNSPECIFIED: Failure
FAILURE_CONNECTION: Failure
FAILURE_RESET: Failure
FAILURE_TIMEOUT: Failure
FAILURE_RATE_LIMITED: Failure
FAILURE_SERVER_ERROR: Failure
FAILURE_REJECTED: Failure
FAILURE_TRUNCATED: Failure
FAILURE_PROTOCOL: Failure
PHASE_UNSPECIFIED: Phase
PHASE_PREFILL: Phase
PHASE_DECODE: Phase
TIER_UNSPECIFIED: Tier
TIER_DEVICE: Tier
TIER_HOST: Tier
TIER_REMOTE: Tier
BLOCK_ACTION_UNSPECIFIED: BlockAction
BLOCK_ACTION_ALLOCATE: BlockAction
BLOCK_ACTION_HIT: BlockAction
BLOCK_ACTION_FREE: BlockAction
BLOCK_ACTION_EVICT: BlockAction
BLOCK_ACTION_OFFLOAD: BlockAction
BLOCK_ACTION_UPLOAD: BlockAction
BLOCK_ACTION_REENCODE: BlockAction
BLOCK_ACTION_DROP: BlockAction
DIRECTION_UNSPECIFIED: Direction
DIRECTION_OUT: Direction
DIRECTION_IN: Direction
