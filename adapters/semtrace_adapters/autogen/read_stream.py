"""Facts from a run stream: the messages and events that ``team.run_stream`` yields, or the messages of a result.

A stream knows less than the other sources: what orchestrators ask their model is not in it, nor any input. Where
it is the only source, each message with token counts stands for a call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from semtrace_adapters.autogen.facts import CHAT_MESSAGES, Agent, Call, known_count
from semtrace_adapters.autogen.responses import tool_calls
from semtrace_adapters.autogen.shape import text
from semtrace_adapters.autogen.times import unix_ns

_TIMES = ("time_unix_ns", "ts", "time", "timestamp")


@dataclass(frozen=True)
class Item:
    """One item of a stream: its place, time of receipt or of making, and the message."""

    order: int
    where: str
    time_ns: int | None
    message: dict[str, Any]

    @property
    def type(self) -> str:
        """The message's type."""
        return str(self.message.get("type", ""))

    @property
    def source(self) -> str:
        """Name of the agent that it is of."""
        return str(self.message.get("source", ""))


@dataclass
class Stream:
    """One run's stream.

    Attributes:
        items: its messages and events, without streamed chunks.
        ended: whether it holds the run's result.
        stop_reason: why the run stopped, as the result has it.
        chunks: how many streamed chunks it held.
        first: the order of its first item, so that those of several streams differ.
    """

    items: list[Item] = field(default_factory=list)
    ended: bool = False
    stop_reason: str | None = None
    chunks: int = 0
    first: int = 0


def is_item(value: Any) -> bool:
    """Whether a JSON value is an item of a stream: a message, a result, or a line that holds one of them."""
    return _message(value) is not None or _result(value) is not None


def _held(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, dict):
        return []
    return [value, *(v for k in ("data", "message", "item", "event") if isinstance(v := value.get(k), dict))]


def _message(value: Any) -> dict[str, Any] | None:
    for held in _held(value):
        if isinstance(held.get("type"), str) and isinstance(held.get("source"), str) and "content" in held:
            return held
    return None


def _result(value: Any) -> dict[str, Any] | None:
    for held in _held(value):
        if isinstance(held.get("messages"), list) and "stop_reason" in held:
            return held
    return None


def read_item(value: Any, where: str, stream: Stream) -> bool:
    """Add one line's value to a stream; False where it is no item."""
    result = _result(value)
    if result is not None:
        stream.ended = True
        stream.stop_reason = text(result.get("stop_reason"))
        if not stream.items:  # a result alone, written without its stream
            for message in result["messages"]:
                if isinstance(message, dict):
                    read_item(message, where, stream)
        return True
    message = _message(value)
    if message is None:
        return False
    if message["type"] == "ModelClientStreamingChunkEvent":
        stream.chunks += 1
        return True
    # The message's own time is that of its making; the line's is that of its receipt, a little later.
    found = unix_ns(message.get("created_at")) or next(
        (t for k in _TIMES if (t := unix_ns(value.get(k)))), None
    )
    stream.items.append(Item(stream.first + len(stream.items), where, found[0] if found else None, message))
    return True


def calls_of(stream: Stream) -> list[Call]:
    """A call for each message with token counts: its output and counts, without its input."""
    made = []
    for item in stream.items:
        usage = item.message.get("models_usage")
        if not isinstance(usage, dict):
            continue
        content = item.message.get("content")
        output: dict[str, Any] | None = None
        if isinstance(content, str):
            output = {"content": content}
        elif isinstance(content, list) and item.type == "ToolCallRequestEvent":
            output = {"tool_calls": tool_calls(content)}
        prompt = known_count(usage.get("prompt_tokens"), usage.get("prompt_tokens"))
        made.append(
            Call(
                order=item.order,
                where=item.where,
                agent=Agent(item.source, None),
                output=output,
                finish="tool_calls" if output and "tool_calls" in output else "stop",
                prompt_tokens=prompt,
                output_tokens=known_count(usage.get("completion_tokens"), prompt),
                end_ns=item.time_ns,
                source=item.source,
            )
        )
    return made


def ends_turn(item: Item) -> bool:
    """Whether the message ends its agent's turn."""
    return item.type in CHAT_MESSAGES
