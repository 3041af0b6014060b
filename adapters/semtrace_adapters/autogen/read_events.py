"""Facts from an event log's records."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from semtrace_adapters.autogen.facts import Agent, Call, Facts, Sent, ToolEvent, ToolResult, known_count
from semtrace_adapters.autogen.responses import answer_of, details_of
from semtrace_adapters.autogen.shape import obj, objs, text
from semtrace_adapters.autogen.times import unix_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from semtrace_adapters.autogen.eventlog import Record
    from semtrace_adapters.base import LossReport

_QUARTER_NS = 15 * 60 * 10**9


def shift_of(records: Sequence[Record]) -> int:
    """What must be added to times without an offset, in ns, so that they are UTC; 0 where nothing tells.

    Messages carry the UTC time at which they were made; the difference to the time at which they were logged is
    the log's offset from UTC, a multiple of a quarter of an hour.
    """
    gaps = []
    for record in records:
        if record.time_ns is None or record.zoned or record.kind != "Message" or record.event is None:
            continue
        made = made_ns(_payload(record.event).get("message"))
        if made is not None:
            gaps.append(made - record.time_ns)
    if not gaps:
        return 0
    middle = sorted(gaps)[len(gaps) // 2]
    return (middle + _QUARTER_NS // 2) // _QUARTER_NS * _QUARTER_NS


def read_events(records: Iterable[Record], facts: Facts, loss: LossReport, shift_ns: int = 0) -> None:
    """Add what an event log says to the facts.

    Args:
        records: its records, in order.
        facts: added to.
        loss: what is unknown or repaired is noted here.
        shift_ns: added to times that have no offset from UTC.
    """
    open_streams: dict[str, list[tuple[Record, dict[str, Any]]]] = defaultdict(list)
    for record in records:
        time_ns = record.time_ns if record.time_ns is None or record.zoned else record.time_ns + shift_ns
        event = record.event
        if event is None:
            facts.texts.append((record.order, time_ns, record.text or ""))
        elif record.kind == "LLMCall":
            facts.calls.append(_call(record, event, time_ns))
        elif record.kind == "LLMStreamStart":
            open_streams[str(event.get("agent_id"))].append((record, event))
        elif record.kind == "LLMStreamEnd":
            facts.calls.append(_streamed(record, event, time_ns, open_streams, loss, shift_ns))
        elif record.kind == "ToolCall":
            agent = Agent.parse(event.get("agent_id"))
            name, result = str(event.get("tool_name", "")), event.get("result")
            said = result if isinstance(result, str) else json.dumps(result)
            facts.tool_events.append(
                ToolEvent(record.order, time_ns, agent, name, event.get("arguments"), said, record.span_id)
            )
        elif record.kind == "Message":
            _message(record, event, time_ns, facts)
        elif record.kind in {"ToolCallRequestEvent", "ToolCallExecutionEvent"}:
            note_message(event, record.order, time_ns, facts)
        elif record.kind == "MessageHandlerException":
            handler = Agent.parse(event.get("handling_agent"))
            if handler is not None and event.get("exception"):  # one without text is a cancellation
                facts.exceptions.append((record.order, handler, str(event["exception"])))
    for starts in open_streams.values():
        for record, _ in starts:
            loss.add(
                "stream.open",
                "lost",
                "a streamed call whose end is not in the log is left out",
                where=record.where,
            )


def _call(record: Record, event: dict[str, Any], time_ns: int | None) -> Call:
    response = event.get("response")
    output, finish = answer_of(response, record.where)
    details = details_of(response)
    prompt = known_count(event.get("prompt_tokens"), event.get("prompt_tokens"))
    tools = event.get("tools")
    fields = obj(response)
    return Call(
        order=record.order,
        where=record.where,
        agent=Agent.parse(event.get("agent_id")),
        messages=_messages(event.get("messages")),
        tools=tools if isinstance(tools, list) else None,
        output=output,
        finish=finish,
        prompt_tokens=prompt,
        output_tokens=known_count(event.get("completion_tokens"), prompt),
        cached_tokens=details.get("cached"),
        reasoning_tokens=details.get("reasoning"),
        model=text(fields.get("model")),
        response_id=text(fields.get("id")),
        end_ns=time_ns,
        log_span=record.span_id,
        task=record.task,
    )


def _streamed(
    record: Record,
    event: dict[str, Any],
    time_ns: int | None,
    open_streams: dict[str, list[tuple[Record, dict[str, Any]]]],
    loss: LossReport,
    shift_ns: int,
) -> Call:
    call = _call(record, event, time_ns)
    call.streamed = True
    call.tools = None  # neither event names the tools on offer
    starts = open_streams[str(event.get("agent_id"))]
    same = [
        i
        for i, (start, _) in enumerate(starts)
        if start.span_id == record.span_id and start.task == record.task
    ]
    if starts:
        if len(starts) > 1 and len(same) != 1:
            loss.add(
                "stream.pairing",
                "inferred",
                "several streamed calls of one agent were open at once: starts and ends are paired in order",
                where=record.where,
            )
        start, started = starts.pop(same[0] if len(same) == 1 else 0)
        call.messages = call.messages or _messages(started.get("messages"))
        if start.time_ns is not None:
            call.first_ns = start.time_ns if start.zoned else start.time_ns + shift_ns
    return call


def _messages(value: Any) -> list[dict[str, Any]] | None:
    return value if isinstance(value, list) and value and all(isinstance(m, dict) for m in value) else None


def _payload(event: dict[str, Any]) -> dict[str, Any]:
    try:
        payload = json.loads(event.get("payload") or "")
    except (ValueError, TypeError):
        return {}
    return payload if isinstance(payload, dict) else {}


def made_ns(message: Any) -> int | None:
    """When a message was made, in Unix nanoseconds; None where it does not say."""
    found = unix_ns(message.get("created_at")) if isinstance(message, dict) else None
    return found[0] if found else None


def message_type(payload: dict[str, Any], kind: str, serialised: bool, topic: Agent | None) -> str:
    """Agentchat's name of a message, told from its members; empty if it is no message of a group chat."""
    if not serialised:
        # Of what a manager publishes, only the end of the chat holds what AutoGen's logger cannot serialise.
        return "GroupChatTermination" if kind == "PUBLISH" and topic and topic.name == "output_topic" else ""
    for key, name in (
        ("messages", "GroupChatStart"),
        ("response", "GroupChatAgentResponse"),
        ("agent_response", "GroupChatAgentResponse"),
        ("result", "GroupChatTeamResponse"),
    ):
        if key in payload:
            return name
    if payload.get("error"):
        return "GroupChatError"
    if "message" in payload:
        return "GroupChatMessage"
    return "GroupChatRequestPublish" if not payload and kind == "PUBLISH" else ""


def _message(record: Record, event: dict[str, Any], time_ns: int | None, facts: Facts) -> None:
    if not str(event.get("delivery_stage", "")).endswith("SEND"):
        return
    kind = str(event.get("kind", "")).rpartition(".")[2].upper()
    payload = _payload(event)
    if "agent_response" in payload:  # the name before 0.6
        payload["response"] = payload.pop("agent_response")
    topic = Agent.parse(event.get("receiver"))
    serialised = str(event.get("payload", "")).lstrip().startswith("{")
    name = message_type(payload, kind, serialised, topic) if kind != "RESPOND" else ""
    sender = Agent.parse(event.get("sender"))
    sent = Sent(record.order, time_ns, name, sender, topic, payload, record.span_id, record.where)
    made = [t for m in sent.messages if (t := made_ns(m)) is not None]
    if time_ns is None and made:
        sent.time_ns = max(made)  # a log without times: the messages' own are close to those of sending
    facts.sent.append(sent)
    for message in sent.messages:
        note_message(message, record.order, sent.time_ns, facts)


def note_message(message: dict[str, Any], order: float, time_ns: int | None, facts: Facts) -> None:
    """Keep what an agentchat message tells of tool calls: who asked for them, and what came of them."""
    content = objs(message.get("content"))
    made = made_ns(message)
    time_ns = (
        made if made is not None else time_ns
    )  # closer than that of sending: a message may be relayed late
    if message.get("type") == "ToolCallRequestEvent":
        for item in content:
            if item.get("id"):
                facts.asked.setdefault(str(item["id"]), (str(message.get("source", "")), order, time_ns))
    elif message.get("type") == "ToolCallExecutionEvent":
        for item in content:
            if item.get("call_id"):
                result = ToolResult(
                    str(item["call_id"]),
                    str(item.get("name", "")),
                    str(item.get("content", "")),
                    bool(item.get("is_error")),
                    order,
                    time_ns,
                )
                facts.tool_results.setdefault(result.call_id, result)
