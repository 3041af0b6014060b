"""Facts from spans: AutoGen's own, and those of OpenInference's or the GenAI conventions' instrumentors.

AutoGen's spans say which agent handled which message, and which tool ran when, but nothing of model calls; those
come from an instrumentor. Where two instrumentors ran, one call has a span inside of another: the innermost counts.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from semtrace_adapters.autogen.facts import Agent, Call, Sent, known_count
from semtrace_adapters.autogen.responses import answer_of, details_of, tool_call
from semtrace_adapters.autogen.shape import count, obj, objs, text
from semtrace_adapters.base import refuse_samples

if TYPE_CHECKING:
    from semtrace_adapters.autogen.spans import Span, SpanTree

_DESTINATION = re.compile(r"^(?P<type>.+)\.\((?P<key>.*)\)-(?P<form>[AT])$")
_STREAM_BEGINS = "First Token Stream Event"
_MESSAGE_TYPES = frozenset(
    {
        "GroupChatStart",
        "GroupChatRequestPublish",
        "GroupChatAgentResponse",
        "GroupChatTeamResponse",
        "GroupChatMessage",
        "GroupChatTermination",
        "GroupChatError",
    }
)


@dataclass(frozen=True)
class Place:
    """Where in the run a span is.

    Attributes:
        agent: the agent whose handling of a message it is part of, by the runtime's id.
        names: names of the agents invoked around it, innermost first.
        tools: ids of the tool calls that it runs inside of, innermost first; None where no span tells of any tool
            (AutoGen before 0.6.2 has none).
    """

    agent: Agent | None
    names: tuple[str, ...]
    tools: tuple[str, ...] | None


@dataclass
class ToolSpan:
    """A tool's run as spans tell it; ``encloses`` says that model calls or agents ran inside of it."""

    call_id: str
    name: str
    start_ns: int
    end_ns: int | None
    span_id: str
    error: str | None
    encloses: bool
    arguments: str | None
    result: str | None


@dataclass
class SpanFacts:
    """What the spans say. Orders are not set: spans have times only."""

    calls: list[Call] = field(default_factory=list)
    tools: dict[str, ToolSpan] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    wrapped: int = 0
    """Spans of model calls that enclose another span of the same call, and are not counted."""
    turns: list[tuple[str, int, int | None]] = field(default_factory=list)
    """Agents invoked: name, start, end."""


def place_of(tree: SpanTree, span_id: str | None) -> Place:
    """Where a span is; of the span itself only its ancestors count as agents and tools around it."""
    agent: Agent | None = None
    names: list[str] = []
    tools: list[str] = []
    for span in tree.ancestors(span_id):
        attributes = span.attributes
        if span.kind == "agent" and "gen_ai.agent.name" in attributes:
            names.append(str(attributes["gen_ai.agent.name"]))
        elif span.kind == "tool" and attributes.get("gen_ai.tool.call.id"):
            tools.append(str(attributes["gen_ai.tool.call.id"]))
        elif span.name.startswith("autogen process") and agent is None:
            agent = _handler(span)
            break  # what lies further up is the team that this agent's team runs inside of: see `enclosing`
    return Place(agent, tuple(names), tuple(tools) if tree.has_tools else None)


def _handler(span: Span) -> Agent | None:
    destination = _DESTINATION.match(str(span.attributes.get("messaging.destination", "")))
    if destination and destination["form"] == "A":
        return Agent.parse(f"{destination['type']}/{destination['key']}")
    return Agent.parse(str(span.attributes.get("recipient_agent_type") or "") or None)


def read_spans(tree: SpanTree) -> SpanFacts:
    """The facts that a tree of spans holds."""
    facts = SpanFacts()
    for span in tree.in_order():
        if span.kind == "llm":
            if any(below.kind == "llm" for below in tree.below(span)):
                facts.wrapped += 1
            else:
                facts.calls.append(_call(tree, span))
        elif span.kind == "tool" and span.attributes.get("gen_ai.tool.call.id"):
            tool = _tool(tree, span)
            facts.tools.setdefault(tool.call_id, tool)
        elif span.kind == "agent" and "gen_ai.agent.name" in span.attributes:
            facts.turns.append((str(span.attributes["gen_ai.agent.name"]), span.start_ns, span.end_ns))
    facts.sent = _sent(tree)
    return facts


def _json(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _call(tree: SpanTree, span: Span) -> Call:
    attributes = span.attributes
    place = place_of(tree, span.span_id)
    call = Call(
        order=-1,
        where=f"span {span.span_id}",
        agent=place.agent,
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        start_seen=True,
        end_seen=span.end_ns is not None,
        span_id=span.span_id,
        log_span=span.span_id,
        source=place.names[0] if place.names else None,
        around=place.tools,
        error=span.error,
    )
    call.first_ns = next((time for name, time in span.events if name == _STREAM_BEGINS), None)
    request = _json(attributes.get("input.value"))
    if isinstance(request, dict) and isinstance(request.get("messages"), list):
        sent = objs(request["messages"])
        call.messages = sent if sent and len(sent) == len(request["messages"]) else None
        call.tools = objs(request.get("tools"))
        call.streamed = bool(request.get("stream"))
        call.settings = {
            k: v for k, v in request.items() if k not in {"messages", "tools", "model", "stream"}
        }
        call.model = text(request.get("model"))
    response = _json(attributes.get("output.value"))
    for asked in (obj(request).get("n"), attributes.get("gen_ai.request.choice.count")):
        refuse_samples(asked, call.where)
    if "llm.output_messages.1.message.role" in attributes:
        refuse_samples(2, call.where)
    call.output, call.finish = answer_of(response, call.where)
    if isinstance(response, dict) and isinstance(response.get("id"), str):
        call.response_id = response["id"]
    if call.output is None:
        call.output = _flat_output(attributes)
    details = details_of(response)
    cached = count(attributes.get("llm.token_count.prompt_details.cache_read"))
    call.cached_tokens = details.get("cached", cached)
    call.reasoning_tokens = details.get("reasoning")
    prompt = attributes.get("llm.token_count.prompt", attributes.get("gen_ai.usage.input_tokens"))
    output = attributes.get("llm.token_count.completion", attributes.get("gen_ai.usage.output_tokens"))
    call.prompt_tokens = known_count(prompt, prompt)
    call.output_tokens = known_count(output, call.prompt_tokens)
    model = attributes.get("llm.model_name", attributes.get("gen_ai.response.model"))
    call.model = call.model or (str(model) if model else None)
    call.finish = call.finish or text(attributes.get("llm.finish_reason"))
    call.response_id = call.response_id or text(attributes.get("gen_ai.response.id"))
    return call


def _flat_output(attributes: dict[str, Any]) -> dict[str, Any] | None:
    """The answer from OpenInference's flattened attributes."""
    prefix = "llm.output_messages.0.message."
    made: dict[str, Any] = {}
    if isinstance(attributes.get(prefix + "content"), str):
        made["content"] = attributes[prefix + "content"]
    calls: list[dict[str, Any]] = []
    while f"{prefix}tool_calls.{len(calls)}.tool_call.function.name" in attributes:
        at = f"{prefix}tool_calls.{len(calls)}.tool_call."
        name, arguments = attributes[at + "function.name"], attributes.get(at + "function.arguments", "")
        calls.append(tool_call(attributes.get(at + "id"), name, arguments))
    if calls:
        made["tool_calls"] = calls
    return made or None


def _tool(tree: SpanTree, span: Span) -> ToolSpan:
    arguments = result = None
    # OpenInference's span of the same run lies around it or in it, and holds the arguments and the result.
    around = [tree.spans[span.parent_id]] if span.parent_id in tree.spans else []
    for other in [*around, *tree.children.get(span.span_id, [])]:
        if other.attributes.get("tool.name") == span.attributes.get("gen_ai.tool.name"):
            arguments = text(other.attributes.get("input.value"))
            result = text(other.attributes.get("output.value"))
    encloses = any(
        below.kind == "llm" or (below.kind == "agent" and "gen_ai.agent.name" in below.attributes)
        for below in tree.below(span)
    )
    return ToolSpan(
        str(span.attributes["gen_ai.tool.call.id"]),
        str(span.attributes.get("gen_ai.tool.name", "")),
        span.start_ns,
        span.end_ns,
        span.span_id,
        span.error,
        encloses,
        arguments,
        result,
    )


def _sent(tree: SpanTree) -> list[Sent]:
    """Messages from ``autogen create`` spans; their content from a span that handles what they link to."""
    contents: dict[str, dict[str, Any]] = {}
    for span in tree.spans.values():
        if span.name.startswith("autogen process"):
            payload = _json(span.attributes.get("message"))
            for link in span.links:
                if isinstance(payload, dict):
                    contents.setdefault(link, payload)
    made = []
    for span in tree.in_order():
        kind = str(span.attributes.get("messaging.message.type", ""))
        destination = _DESTINATION.match(str(span.attributes.get("messaging.destination", "")))
        if not span.name.startswith("autogen create") or destination is None or kind not in _MESSAGE_TYPES:
            continue
        topic = Agent.parse(f"{destination['type']}/{destination['key']}")
        place = place_of(tree, span.parent_id)
        sender = place.agent
        if kind == "GroupChatStart" and destination["form"] == "A":
            sender = None  # the application starts a team, even from inside of an agent
        payload = dict(contents.get(span.span_id, {}))
        if "agent_response" in payload:
            payload["response"] = payload.pop("agent_response")
        where = f"span {span.span_id}"
        made.append(Sent(-1, span.start_ns, kind, sender, topic, payload, span.span_id, where))
    return made
