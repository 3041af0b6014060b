"""Enumerations of the standard.

The numbers are part of the standard: they are stored, hashed and never reused. Zero is always
"unspecified" and never valid in a table (ST-ENUM-001).
"""

from __future__ import annotations

from enum import IntEnum


class Outcome(IntEnum):
    """How a task, or an instance of it, ended."""

    UNKNOWN = 1
    SUCCESS = 2
    FAILURE = 3
    CANCELLED = 4


class StageTemplate(IntEnum):
    """The collaboration pattern that a stage follows."""

    UNKNOWN = 1
    SPAWN = 2
    FORK_JOIN = 3
    REFINEMENT = 4
    DEBATE = 5
    HANDOFF = 6
    SEQUENCE = 7


class OperationKind(IntEnum):
    """What an operation is."""

    LLM = 1
    EMBED = 2
    TOOL = 3
    TRANSFORM = 4
    HUMAN = 5


class OperationStatus(IntEnum):
    """How an operation ended in the recorded run."""

    OK = 1
    ERROR = 2
    CANCELLED = 3
    TIMEOUT = 4


class FinishReason(IntEnum):
    """Why a model stopped."""

    STOP = 1
    LENGTH = 2
    TOOL_CALLS = 3
    CONTENT_FILTER = 4
    ABORT = 5


class Role(IntEnum):
    """What a segment of an input is on the wire."""

    SYSTEM = 1
    USER = 2
    ASSISTANT = 3
    TOOL = 4
    TOOLS = 5
    """The definitions of the tools on offer."""
    TEMPLATE = 6
    """Tokens that the chat template adds."""


class SegmentScope(IntEnum):
    """Whether the content of a segment may be shared with other operations' prefixes."""

    PRIVATE = 1
    SHARED = 2


class EdgeKind(IntEnum):
    """What one operation needs of another."""

    CONTROL = 1
    DATA = 2
    STATE = 3
    UNKNOWN = 4
    """Known to order, not known why; treated as control."""


class Trigger(IntEnum):
    """The instant of the source operation from which an edge is counted."""

    FINISH = 1
    START = 2
    FIRST_TOKEN = 3


class Evidence(IntEnum):
    """How a value or an edge is known."""

    OBSERVED = 1
    """The source states it."""
    DERIVED = 2
    """Proved from content or by arithmetic."""
    INFERRED = 3
    """Plausible, not proved."""
    MISSING = 4


class StateScope(IntEnum):
    """Who may see a state."""

    PRIVATE = 1
    SHARED = 2
    EXTERNAL = 3


class StateLifetime(IntEnum):
    """How long a state lives."""

    SESSION = 1
    TASK = 2
    LONG_TERM = 3


class VersionMode(IntEnum):
    """How a version of a state follows from its base."""

    REPLACE = 1
    APPEND = 2


class AccessMode(IntEnum):
    """What an operation does with a version of a state."""

    READ = 1
    WRITE = 2


class Availability(IntEnum):
    """Where the content of an artifact is."""

    EMBEDDED = 1
    EXTERNAL = 2
    WITHHELD = 3


class ContentLevel(IntEnum):
    """How much content a trace carries, from most to least."""

    TEXT = 1
    TOKEN_IDS = 2
    BLOCK_HASHES = 3
    SHAPE = 4


class EntityKind(IntEnum):
    """The table that an annotation speaks of; TRACE is the trace as a whole, with entity 0."""

    TRACE = 1
    TASK = 2
    STAGE = 3
    SESSION = 4
    OPERATION = 5
    SEGMENT = 6
    EDGE = 7
    STATE = 8
    STATE_VERSION = 9
    MODEL = 10


class ReplayMode(IntEnum):
    """What a run holds fixed."""

    NATIVE = 1
    LENGTH_LOCKED = 2
    TOKEN_LOCKED = 3


class Clock(IntEnum):
    """The clock that an execution's times were read from."""

    VIRTUAL = 1
    WALL = 2


class EventOutcome(IntEnum):
    """The terminal state of one operation in one execution."""

    OK = 1
    ERROR = 2
    CANCELLED = 3
    TIMEOUT = 4
    SKIPPED = 5
    """Not run because an operation before it failed."""
    REFUSED = 6
    """The backend would not take it: longer than the model, or than its memory."""
    UNFINISHED = 7
    """The run ended first."""


class Phase(IntEnum):
    """The phase of a request that a step worked on."""

    PREFILL = 1
    DECODE = 2


class Tier(IntEnum):
    """A level of the KV memory hierarchy."""

    DEVICE = 1
    HOST = 2
    REMOTE = 3
    """Disk or another machine."""


class BlockAction(IntEnum):
    """What happened to KV blocks."""

    ALLOCATE = 1
    HIT = 2
    FREE = 3
    EVICT = 4
    OFFLOAD = 5
    UPLOAD = 6
    REENCODE = 7
    DROP = 8


class Direction(IntEnum):
    """The way of a transfer, seen from the device."""

    OUT = 1
    IN = 2
