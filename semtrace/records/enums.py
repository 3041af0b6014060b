"""Enumerations of the standard.

The numbers are part of the standard: they are stored, hashed and never reused. Zero is always
"unspecified" and never valid in a table (ST-ENUM-001).

The text below a member is its meaning in the standard: the Protobuf comments and the tables of the spec are made
of it.
"""

from __future__ import annotations

from enum import IntEnum


class Outcome(IntEnum):
    """How a task, or an instance of it, ended."""

    UNKNOWN = 1
    """It is not known."""
    SUCCESS = 2
    """It did what was asked."""
    FAILURE = 3
    """It did not do what was asked."""
    CANCELLED = 4
    """It was called off."""


class StageTemplate(IntEnum):
    """The collaboration pattern that a stage follows."""

    UNKNOWN = 1
    """None of these, or not known."""
    SPAWN = 2
    """One agent starts others and goes on."""
    FORK_JOIN = 3
    """Branches run side by side, a join waits for all of them."""
    REFINEMENT = 4
    """One works, another criticises, and again."""
    DEBATE = 5
    """Several answer, see each other's answers, and answer again, in rounds."""
    HANDOFF = 6
    """An agent passes the task on to another."""
    SEQUENCE = 7
    """One after the other."""


class OperationKind(IntEnum):
    """What an operation is."""

    LLM = 1
    """A generation by a language model."""
    EMBED = 2
    """An embedding by a model."""
    TOOL = 3
    """A call of a tool, with an effect or a result from outside."""
    TRANSFORM = 4
    """Work of the framework itself: parsing, filtering, merging."""
    HUMAN = 5
    """A person's turn."""


class OperationStatus(IntEnum):
    """How an operation ended in the recorded run."""

    OK = 1
    """It returned a result."""
    ERROR = 2
    """It failed."""
    CANCELLED = 3
    """It was called off."""
    TIMEOUT = 4
    """It was given up after a time limit."""


class FinishReason(IntEnum):
    """Why a model stopped."""

    STOP = 1
    """An end token or a stop sequence."""
    LENGTH = 2
    """The limit of output tokens, or the end of the context."""
    TOOL_CALLS = 3
    """It asks for tools to be called."""
    CONTENT_FILTER = 4
    """The server withheld the rest."""
    ABORT = 5
    """The request was cancelled."""


class Role(IntEnum):
    """What a segment of an input is on the wire."""

    SYSTEM = 1
    """Instructions: the roles system and developer."""
    USER = 2
    """A user's message."""
    ASSISTANT = 3
    """A model's message."""
    TOOL = 4
    """A tool's result: the roles tool and function."""
    TOOLS = 5
    """The definitions of the tools on offer."""
    TEMPLATE = 6
    """Tokens that the chat template adds."""


class SegmentScope(IntEnum):
    """Whether the content of a segment may be shared with other operations' prefixes."""

    PRIVATE = 1
    """It never matches other operations' prefixes."""
    SHARED = 2
    """It may be found equal to other operations' segments."""


class EdgeKind(IntEnum):
    """What one operation needs of another."""

    CONTROL = 1
    """That it came first: a decision, a turn, a round."""
    DATA = 2
    """Its output, or its context."""
    STATE = 3
    """A version of a state that it wrote."""
    UNKNOWN = 4
    """Known to order, not known why; treated as control."""


class Trigger(IntEnum):
    """The instant of the source operation from which an edge is counted."""

    FINISH = 1
    """Its end."""
    START = 2
    """Its start: submission to the backend."""
    FIRST_TOKEN = 3
    """Its first output token."""


class Evidence(IntEnum):
    """How a value or an edge is known."""

    OBSERVED = 1
    """The source states it."""
    DERIVED = 2
    """Proved from content or by arithmetic."""
    INFERRED = 3
    """Plausible, not proved."""
    MISSING = 4
    """Not known at all; the value is null, or stands in for one that is not known."""


class StateScope(IntEnum):
    """Who may see a state."""

    PRIVATE = 1
    """One agent."""
    SHARED = 2
    """All agents of the task."""
    EXTERNAL = 3
    """Anybody: it lives outside of the collaboration."""


class StateLifetime(IntEnum):
    """How long a state lives."""

    SESSION = 1
    """As long as its session."""
    TASK = 2
    """As long as its task."""
    LONG_TERM = 3
    """Longer than any task."""


class VersionMode(IntEnum):
    """How a version of a state follows from its base."""

    REPLACE = 1
    """It is the whole new content."""
    APPEND = 2
    """It is what is added to its base's content."""


class AccessMode(IntEnum):
    """What an operation does with a version of a state."""

    READ = 1
    """It reads the version."""
    WRITE = 2
    """It writes the version."""


class Availability(IntEnum):
    """Where the content of an artifact is."""

    EMBEDDED = 1
    """In the bundle."""
    EXTERNAL = 2
    """In an artifact store, under its digest."""
    WITHHELD = 3
    """Kept back by who shared the trace."""


class ContentLevel(IntEnum):
    """How much content a trace carries, from most to least."""

    TEXT = 1
    """Everything: texts, token ids, block hashes, shapes."""
    TOKEN_IDS = 2
    """Token ids, no texts."""
    BLOCK_HASHES = 3
    """Hashes of blocks, no token ids."""
    SHAPE = 4
    """Counts only."""


class EntityKind(IntEnum):
    """The table that an annotation speaks of; TRACE is the trace as a whole, with entity 0."""

    TRACE = 1
    """The trace as a whole."""
    TASK = 2
    """A task."""
    STAGE = 3
    """A stage."""
    SESSION = 4
    """A session."""
    OPERATION = 5
    """An operation."""
    SEGMENT = 6
    """A segment."""
    EDGE = 7
    """An edge."""
    STATE = 8
    """A state."""
    STATE_VERSION = 9
    """A version of a state."""
    MODEL = 10
    """A model."""


class ReplayMode(IntEnum):
    """What a run holds fixed."""

    NATIVE = 1
    """Nothing: the run that was recorded."""
    LENGTH_LOCKED = 2
    """Inputs and the lengths of outputs."""
    TOKEN_LOCKED = 3
    """Inputs and every output token."""


class Clock(IntEnum):
    """The clock that an execution's times were read from."""

    VIRTUAL = 1
    """A simulated clock: the same run gives the same times."""
    WALL = 2
    """A real clock."""


class EventOutcome(IntEnum):
    """The terminal state of one operation in one execution."""

    OK = 1
    """It returned a result."""
    ERROR = 2
    """It failed."""
    CANCELLED = 3
    """It was called off."""
    TIMEOUT = 4
    """It was given up after a time limit."""
    SKIPPED = 5
    """Not run because an operation before it failed."""
    REFUSED = 6
    """The backend would not take it: longer than the model, or than its memory."""
    UNFINISHED = 7
    """The run ended first."""


class Failure(IntEnum):
    """What kept a request from being answered in full; what the last of its attempts met."""

    CONNECTION = 1
    """No connection to the server could be made."""
    RESET = 2
    """The connection broke before the answer's end."""
    TIMEOUT = 3
    """The answer was not whole within the time limit."""
    RATE_LIMITED = 4
    """The server was asked too often: status 429."""
    SERVER_ERROR = 5
    """The server failed: a status of 500 to 599, or an error within its answer."""
    REJECTED = 6
    """The server would not take the request: another status than 200, 429 and those of its own failures."""
    TRUNCATED = 7
    """The answer ended in order, but was not whole."""
    PROTOCOL = 8
    """The answer was not one of this interface."""


class Phase(IntEnum):
    """The phase of a request that a step worked on."""

    PREFILL = 1
    """The prompt is computed."""
    DECODE = 2
    """Output tokens are generated."""


class Tier(IntEnum):
    """A level of the KV memory hierarchy."""

    DEVICE = 1
    """Memory of the accelerator."""
    HOST = 2
    """Memory of the machine."""
    REMOTE = 3
    """Disk or another machine."""


class BlockAction(IntEnum):
    """What happened to KV blocks."""

    ALLOCATE = 1
    """Taken from the free blocks, to be filled."""
    HIT = 2
    """Found filled and used again."""
    FREE = 3
    """Given back, content still there."""
    EVICT = 4
    """Given back and the content lost, to make room."""
    OFFLOAD = 5
    """Moved away from the device."""
    UPLOAD = 6
    """Moved back to the device."""
    REENCODE = 7
    """Adapted to another position."""
    DROP = 8
    """Thrown away by decision."""


class Direction(IntEnum):
    """The way of a transfer, seen from the device."""

    OUT = 1
    """Out of the device."""
    IN = 2
    """Into the device."""
