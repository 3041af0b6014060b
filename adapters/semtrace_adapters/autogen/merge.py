"""One account of the run from what several sources say of it.

A call in the event log and its span are the same call if the server's response id is the same; without one, if what
was sent is the same and the call was logged at the span's end. Each fact is taken from the source that
knows it best: times from spans, agents from the event log, inputs and counts from either.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from semtrace_adapters.autogen.facts import Agent, Call, Facts, Sent, ToolRun, known_count
from semtrace_adapters.autogen.read_events import made_ns, note_message
from semtrace_adapters.autogen.read_spans import Place, SpanFacts, place_of
from semtrace_adapters.autogen.read_stream import Stream, calls_of
from semtrace_adapters.autogen.responses import tool_calls
from semtrace_adapters.autogen.shape import obj

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from semtrace_adapters.autogen.eventlog import Record
    from semtrace_adapters.autogen.spans import SpanTree
    from semtrace_adapters.base import LossReport

_NEAR_NS = 10**9
"""A call is logged when its span has ended; further apart than this they are not taken for one."""


@dataclass
class Merged:
    """Everything that is known, merged.

    Attributes:
        calls: model calls, in the order in which they ended.
        tools: by asking call (its ``id()``), the tools that it asked for.
        sent: messages between agents, in order.
        facts: the event log's facts, with the tool results of all sources.
        tree: the spans.
        streams: the run streams.
        stream_calls: the calls of each stream, where they come from streams.
        starts: by the manager that a team was started with, where in the run each start was.
        sources: which kinds of source there were.
    """

    calls: list[Call]
    tools: dict[int, list[ToolRun]]
    sent: list[Sent]
    facts: Facts
    tree: SpanTree
    streams: list[Stream]
    stream_calls: list[list[Call]] = field(default_factory=list)
    starts: dict[Agent, list[Place]] = field(default_factory=dict)
    sources: set[str] = field(default_factory=set)


def merge(
    records: Sequence[Record],
    facts: Facts,
    tree: SpanTree,
    spans: SpanFacts,
    streams: list[Stream],
    loss: LossReport,
) -> Merged:
    """Put the facts of all sources together."""
    order_of = _orders(records)
    for item in spans.sent:
        item.order = order_of(item.time_ns or 0)
    for call in spans.calls:
        call.order = order_of(call.end_ns if call.end_ns is not None else call.start_ns or 0)
    for call in facts.calls:
        if call.log_span in tree.spans:
            place = place_of(tree, call.log_span)
            call.around, call.source = place.tools, place.names[0] if place.names else None
    calls = _merge_calls(facts.calls, spans.calls, loss)
    sent = facts.sent or sorted(spans.sent, key=lambda s: s.order)
    if not facts.sent:
        for item in sent:
            for message in item.messages:
                made = made_ns(message)
                note_message(message, item.order if made is None else order_of(made), item.time_ns, facts)
    placed = bool(records or tree.spans)
    for stream in streams:
        for said in stream.items:
            order = order_of(said.time_ns) if placed and said.time_ns is not None else said.order
            note_message(said.message, order, said.time_ns, facts)
    sources = {n for n, there in (("events", records), ("spans", tree.spans), ("stream", streams)) if there}
    by_stream: list[list[Call]] = []
    if not calls:
        calls = _calls_of_messages(sent, order_of if not facts.sent else None)
        if not calls:
            by_stream = [calls_of(stream) for stream in streams]
            calls = [call for made in by_stream for call in made]
        if calls:
            loss.add(
                "calls.from_messages",
                "lost",
                "no source logs model calls: they are taken from messages with token counts, without their inputs; "
                "calls of orchestrators and selectors are missing",
                count=len(calls),
            )
    calls.sort(key=lambda c: c.order)
    merged = Merged(calls, {}, sent, facts, tree, streams, by_stream, sources=sources)
    for item in spans.sent:
        if item.type == "GroupChatStart" and item.sender is None and item.topic is not None and item.span_id:
            merged.starts.setdefault(item.topic, []).append(place_of(tree, item.span_id))
    _name_sources(merged)
    _find_tools(merged, spans, loss)
    return merged


def _orders(records: Sequence[Record]) -> Callable[[int], float]:
    """Places of instants in the order of the log; without a log, the instants themselves."""
    timed = sorted((r.time_ns, r.order) for r in records if r.time_ns is not None)
    if not timed:
        return float
    times = [time for time, _ in timed]

    def order_of(time_ns: int) -> float:
        at = bisect_right(times, time_ns)
        return timed[at - 1][1] + 0.5 if at else timed[0][1] - 0.5

    return order_of


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _merge_calls(logged: list[Call], spanned: list[Call], loss: LossReport) -> list[Call]:
    """Each call once; those that had not ended are left out, as they are in a log that is cut."""
    if not spanned or not logged:
        return list(logged) if logged else [call for call in spanned if _ended(call, loss)]
    by_id: dict[str, list[Call]] = {}
    for call in spanned:
        by_id.setdefault(call.response_id or "", []).append(call)
    free = {id(call): call for call in spanned}
    sent = {id(call): _key(call.messages) for call in spanned}
    for call in logged:
        same = [c for c in by_id.get(call.response_id or "", []) if call.response_id and id(c) in free]
        if not same:
            same = [c for c in free.values() if not (c.response_id and call.response_id)]
            same = [c for c in same if c.error is None and _near(call, c)]
        if call.messages is not None:
            key = _key(call.messages)
            same = [c for c in same if c.messages is None or sent[id(c)] == key]
        else:
            same = [c for c in same if c.output == call.output]
        if same:
            found = min(same, key=lambda c: abs((c.end_ns or 0) - (call.end_ns or 0)))
            del free[id(found)]
            _take(call, found)
    unlogged = [call for call in free.values() if _ended(call, loss)]
    for call in unlogged:
        loss.add(
            "calls.unlogged",
            "repaired",
            "a model call that only the spans have: failed, or of a client that logs no event",
            where=call.where,
        )
    return [*logged, *unlogged]


def _ended(call: Call, loss: LossReport) -> bool:
    """Whether a span tells of a call's end; the work of one that was under way is not known, and that is said."""
    if call.end_ns is not None or call.error is not None or call.output is not None:
        return True
    loss.add(
        "calls.unended",
        "lost",
        "a model call had not ended when the sources end: its work is not known, it is left out",
        where=call.where,
    )
    return False


def _near(call: Call, span: Call) -> bool:
    if call.end_ns is None or span.end_ns is None or span.start_ns is None:
        return True
    return span.start_ns <= call.end_ns and abs(span.end_ns - call.end_ns) < _NEAR_NS


def _take(call: Call, span: Call) -> None:
    """Add to a logged call what its span knows."""
    call.start_ns, call.start_seen = span.start_ns, span.start_seen
    if span.end_ns is not None:
        call.end_ns, call.end_seen = span.end_ns, True
    call.span_id, call.around, call.source = span.span_id, span.around, span.source or call.source
    call.first_ns = span.first_ns if span.first_ns is not None else call.first_ns
    call.messages = call.messages or span.messages
    call.tools = call.tools if call.tools is not None else span.tools
    call.settings = call.settings or span.settings
    call.output = call.output or span.output
    call.finish = call.finish or span.finish
    call.model = call.model or span.model
    call.response_id = call.response_id or span.response_id
    call.agent = call.agent or span.agent
    if call.prompt_tokens is None:
        call.prompt_tokens, call.output_tokens = span.prompt_tokens, span.output_tokens
    call.cached_tokens = call.cached_tokens if call.cached_tokens is not None else span.cached_tokens
    call.reasoning_tokens = (
        call.reasoning_tokens if call.reasoning_tokens is not None else span.reasoning_tokens
    )


def _calls_of_messages(sent: Sequence[Sent], order_of: Callable[[int], float] | None) -> list[Call]:
    """Calls from the messages that agents published, each message once however often it was relayed.

    Args:
        sent: what agents published.
        order_of: places of instants, where messages are placed by the time at which they were made.
    """
    made: list[Call] = []
    seen: set[str] = set()
    for item in sent:
        for message in item.messages:
            usage, content = message.get("models_usage"), message.get("content")
            if not isinstance(usage, dict) or str(message.get("id")) in seen:
                continue
            seen.add(str(message.get("id")))
            output: dict[str, Any] | None = {"content": content} if isinstance(content, str) else None
            if message.get("type") == "ToolCallRequestEvent" and isinstance(content, list):
                output = {"tool_calls": tool_calls(content)}
            prompt = known_count(usage.get("prompt_tokens"), usage.get("prompt_tokens"))
            time_ns = made_ns(message)
            made.append(
                Call(
                    order=item.order if time_ns is None or order_of is None else order_of(time_ns),
                    where=f"message {message.get('id')}",
                    agent=item.sender,
                    output=output,
                    finish="tool_calls" if output and "tool_calls" in output else "stop",
                    prompt_tokens=prompt,
                    output_tokens=known_count(usage.get("completion_tokens"), prompt),
                    end_ns=item.time_ns if time_ns is None else time_ns,
                    source=str(message.get("source") or "") or None,
                )
            )
    return made


def _name_sources(merged: Merged) -> None:
    """Give calls the name of the agent that speaks of them, and the time where the log has none.

    A message speaks of a call if it has the call's tool calls, by their ids, or its text.
    """
    asked = merged.facts.asked
    spoken: dict[str, list[tuple[float, str, int | None]]] = {}
    messages = [(s.order, m) for s in merged.sent if s.type == "GroupChatMessage" for m in s.messages]
    for order, message in messages:
        if isinstance(message.get("content"), str) and message.get("models_usage"):
            told = (order, str(message.get("source")), made_ns(message))
            spoken.setdefault(message["content"], []).append(told)
    for call in merged.calls:
        about = [(asked[i][0], asked[i][2]) for i in call.call_ids if i in asked]
        if not about and call.text is not None:
            about = [(name, time) for order, name, time in spoken.get(call.text, []) if order > call.order]
        if call.source is None and len({name for name, _ in about}) == 1:
            call.source = about[0][0]
        if call.end_ns is None and about:
            call.end_ns = about[0][1]


def _find_tools(merged: Merged, spans: SpanFacts, loss: LossReport) -> None:
    """A run for each tool call that a model asked for, with what the sources say of it."""
    facts = merged.facts
    waiting: dict[tuple[Agent | None, str], list[ToolRun]] = {}
    for call in merged.calls:
        runs = merged.tools.setdefault(id(call), [])
        for wanted in call.tool_calls:
            function = obj(wanted.get("function"))
            call_id = str(wanted["id"]) if wanted.get("id") else None
            run = ToolRun(call_id, str(function.get("name", "")), str(function.get("arguments", "")), call)
            runs.append(run)
            waiting.setdefault((call.agent, run.name), []).append(run)
            _from_results(run, facts, spans)
    for event in facts.tool_events:
        runs = [
            r
            for r in waiting.get((event.agent, event.name), [])
            if r.asked_by is not None
            and r.asked_by.order < event.order
            and _same_json(r.arguments, event.arguments)
        ]
        fitting = [r for r in runs if r.result is None or r.result == event.result] or runs
        if not fitting:
            loss.add(
                "tools.unasked",
                "ignored",
                "a tool ran that no logged model call asked for",
                where=f"ToolCall {event.name}",
            )
            continue
        run = fitting[0]
        waiting[event.agent, event.name].remove(run)
        run.result = run.result if run.result is not None else event.result
        run.end_order = event.order
        if not run.times_seen and event.time_ns is not None:
            run.end_ns, run.end_exact = event.time_ns, True
    told: dict[str, tuple[str, int | None]] = {}
    for call in merged.calls:
        for message in call.messages or []:
            if message.get("role") == "tool" and isinstance(message.get("content"), str):
                told.setdefault(str(message.get("tool_call_id")), (message["content"], call.start_ns))
    for call in merged.calls:
        for run in merged.tools[id(call)]:
            content, sent_ns = told.get(run.call_id or "", (None, None))
            run.result = run.result if run.result is not None else content
            if run.end_ns is None:
                run.end_ns = sent_ns  # it had ended when the next call was sent its result
            if run.start_ns is None:
                asked = facts.asked.get(run.call_id or "")
                run.start_ns = asked[2] if asked and asked[2] is not None else call.end_ns
        open_runs = [run for run in merged.tools[id(call)] if _is_open(run, spans)]
        for run in open_runs:
            merged.tools[id(call)].remove(run)
            loss.add(
                "tools.unended",
                "lost",
                "a tool had not ended when the sources end: how long it would take is not known, it is left out",
                where=run.name,
            )


def _is_open(run: ToolRun, spans: SpanFacts) -> bool:
    """Whether a span says that a tool began, and no source that it ended."""
    span = spans.tools.get(run.call_id or "")
    began = span is not None and span.end_ns is None and span.error is None and not span.encloses
    return began and run.result is None and run.end_ns is None


def _from_results(run: ToolRun, facts: Facts, spans: SpanFacts) -> None:
    result = facts.tool_results.get(run.call_id or "")
    if result is not None:
        run.result, run.failed = result.content, result.failed
        run.end_ns, run.end_order = result.time_ns, result.order
    span = spans.tools.get(run.call_id or "")
    if span is not None:
        run.span_id = span.span_id
        run.nested = span.encloses
        run.failed = run.failed or span.error is not None
        run.result = run.result if run.result is not None else span.result
        if span.end_ns is not None:
            run.start_ns, run.end_ns, run.times_seen = span.start_ns, span.end_ns, True


def _same_json(text: str, value: Any) -> bool:
    try:
        asked = json.loads(text or "{}")
    except ValueError:
        asked = text
    return bool(asked == value)
