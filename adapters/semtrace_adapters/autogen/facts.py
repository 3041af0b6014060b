"""What the sources say, in one vocabulary: model calls, tool runs, messages between agents.

The readers (event log, spans, run stream) each give facts; :mod:`.merge` puts the facts of several sources about
one call together, and :mod:`.structure` finds out who ran inside of whom.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from semtrace_adapters.autogen.shape import count, objs

_AGENT_ID = re.compile(
    r"^(?P<name>.+)_(?P<team>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})(?:/(?P<key>.*))?$"
)

CHAT_MESSAGES = frozenset(
    {
        "TextMessage",
        "MultiModalMessage",
        "StopMessage",
        "HandoffMessage",
        "ToolCallSummaryMessage",
        "StructuredMessage",
    }
)
"""Types of agentchat messages that end an agent's turn; the others are events within it."""


@dataclass(frozen=True)
class Agent:
    """Who acts: an agent's name and the id of the team (the runtime's key) that it is in.

    ``team`` is None outside of a team's runtime: an agent run directly, or a log that does not say.
    """

    name: str
    team: str | None

    @classmethod
    def parse(cls, text: Any) -> Agent | None:
        """An agent of a logged id: ``<name>_<team uuid>/<team uuid>``, or ``type/key`` of a core agent.

        Names may hold underscores, so the team is taken from the end.
        """
        if not isinstance(text, str) or not text:
            return None
        found = _AGENT_ID.match(text)
        if found:
            return cls(found["name"], found["team"])
        name, _, key = text.partition("/")
        return cls(name, key or None)


@dataclass
class Call:
    """One call of a model, whichever source told of it.

    Counts are None where unknown. Times are Unix nanoseconds, None where unknown; ``start_seen`` and ``end_seen``
    say whether a source states the time itself (a span does; the time at which an event was logged is close
    to the end of the call, and no start). ``order`` is the place of its end in the event log, or in the stream.
    """

    order: float
    where: str
    agent: Agent | None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    output: dict[str, Any] | None = None
    finish: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    model: str | None = None
    settings: dict[str, Any] | None = None
    response_id: str | None = None
    streamed: bool = False
    start_ns: int | None = None
    first_ns: int | None = None
    end_ns: int | None = None
    start_seen: bool = False
    end_seen: bool = False
    span_id: str | None = None
    log_span: str | None = None
    task: str | None = None
    source: str | None = None
    """Name of the agent as a message or a span about this call gives it; not always the logged agent's."""
    around: tuple[str, ...] | None = None
    """Ids of the tool calls that it ran inside of, innermost first; None where no source tells."""
    attempts: int = 1
    seen_ns: int | None = None
    """A time at which it was under way, where no source has its start."""
    error: str | None = None

    @property
    def call_ids(self) -> list[str]:
        """Ids of the tool calls that it asked for."""
        return [str(c.get("id")) for c in self.tool_calls]

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """The tool calls that it asked for, in wire form."""
        return objs((self.output or {}).get("tool_calls"))

    @property
    def text(self) -> str | None:
        """The text that it returned."""
        content = (self.output or {}).get("content")
        return content if isinstance(content, str) else None


@dataclass
class ToolRun:
    """One run of a tool, asked for by a call.

    ``result`` is None where no source has it. ``nested`` tells that the tool ran model calls of its own, so it is
    a stage and no operation.
    """

    call_id: str | None
    name: str
    arguments: str
    asked_by: Call | None
    result: str | None = None
    failed: bool = False
    start_ns: int | None = None
    end_ns: int | None = None
    times_seen: bool = False
    end_exact: bool = False
    span_id: str | None = None
    end_order: float | None = None
    nested: bool = False


@dataclass(frozen=True)
class ToolEvent:
    """A ``ToolCall`` event: a tool returned. It has no call id."""

    order: float
    time_ns: int | None
    agent: Agent | None
    name: str
    arguments: Any
    result: str
    log_span: str | None


@dataclass(frozen=True)
class ToolResult:
    """A result as agentchat's execution event has it: with its call id, and whether the tool failed."""

    call_id: str
    name: str
    content: str
    failed: bool
    order: float
    time_ns: int | None


@dataclass
class Sent:
    """A message that one agent sent.

    ``type`` is agentchat's name of the message (``GroupChatStart``, ``GroupChatRequestPublish`` …), or empty.
    ``topic`` is the receiving agent's name or the topic's, without the team id. ``where`` is its place in the sources.
    """

    order: float
    time_ns: int | None
    type: str
    sender: Agent | None
    topic: Agent | None
    payload: dict[str, Any]
    span_id: str | None = None
    where: str = ""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The agentchat messages that it carries."""
        if isinstance(self.payload.get("messages"), list):
            return objs(self.payload["messages"])
        result = self.payload.get("result")
        if isinstance(result, dict):
            return objs(result.get("messages"))
        response = self.payload.get("response")
        if isinstance(response, dict):
            made = [*objs(response.get("inner_messages")), response.get("chat_message")]
        else:
            made = [self.payload.get("message")]
        return [m for m in made if isinstance(m, dict) and "source" in m]


@dataclass
class Facts:
    """All that was read, in the order in which it was logged."""

    calls: list[Call] = field(default_factory=list)
    tool_events: list[ToolEvent] = field(default_factory=list)
    tool_results: dict[str, ToolResult] = field(default_factory=dict)
    asked: dict[str, tuple[str, float, int | None]] = field(default_factory=dict)
    """Of each tool call id, who asked for it by name, and the order and time at which that was logged."""
    sent: list[Sent] = field(default_factory=list)
    texts: list[tuple[float, int | None, str]] = field(default_factory=list)
    """Log lines that are no events: order, time, text."""
    exceptions: list[tuple[float, Agent, str]] = field(default_factory=list)
    """Exceptions that left an agent's or a manager's handling of a message: order, who handled it, text."""


def known_count(value: Any, other: Any) -> int | None:
    """A logged token count; None where it is absent, or stands for unknown.

    AutoGen writes 0 for both counts where the server sent no usage: no prompt has 0 tokens.

    Args:
        value: the count.
        other: the prompt's count, where the value is the output's; the value itself for a prompt.
    """
    return count(value) if count(other) else None
