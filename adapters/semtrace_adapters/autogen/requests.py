"""The inputs of operations: requests with what they inherit and where their parts came from."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from semtrace.build import Span
from semtrace.errors import FormatError
from semtrace.records.chat import split_message
from semtrace.records.document import canonical_json
from semtrace.records.enums import Role
from semtrace_adapters.autogen.provenance import Outputs
from semtrace_adapters.autogen.shape import obj, objs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from semtrace_adapters.autogen.rows import CallRow, Rows
    from semtrace_adapters.base import LossReport


class Requests:
    """Takes apart the requests of one task's calls."""

    def __init__(self, rows: Rows, inside: Mapping[str, tuple[int, ...]], loss: LossReport) -> None:
        self.rows = rows
        self.inside = inside
        self.loss = loss
        self.outputs = Outputs()
        self.asked: dict[str, int] = {}
        self.tools: dict[str, tuple[int, str | None]] = {}
        self._prefixes: dict[tuple[int, str], dict[bytes, int]] = defaultdict(dict)
        for row in rows.calls:
            if row.raw is None:
                continue
            for call_id in row.call.call_ids:
                self.asked.setdefault(call_id, row.operation)
            if row.call.text is not None:
                self.outputs.add(row.operation, row.call.text, row.agent, row.call.order)
            for wanted in row.call.tool_calls:
                for leaf in _leaves(obj(wanted.get("function")).get("arguments")):
                    self.outputs.add_part(row.operation, leaf, row.agent, row.call.order, row.raw)
        for tool in rows.tools:
            if tool.run.call_id:
                self.tools[tool.run.call_id] = (tool.operation, tool.run.result)
            if tool.run.result:
                self.outputs.add(tool.operation, tool.run.result, tool.agent, rows.ends[tool.operation])
        for text in rows.texts:
            self.outputs.add(text.operation, text.text, text.agent, text.order)

    def record(self) -> None:
        """Record the inputs of all operations."""
        for tool in self.rows.tools:
            known = tool.asked_by >= 0 and self.rows.precedes(tool.asked_by, tool.operation)
            source = tool.asked_by if known else None
            self.rows.builder.segment(tool.operation, Role.ASSISTANT, tool.run.arguments, source=source)
        for row in sorted(self.rows.calls, key=lambda r: (r.call.order, r.operation)):
            self._request(row)

    def _request(self, row: CallRow) -> None:
        call = row.call
        if call.messages is None:
            self.loss.add("input.unknown", "lost", "what a call sent is in no source", where=call.where)
            return
        tools = call.tools or None
        if call.tools is None:
            self.loss.add(
                "tools_offered.unknown",
                "unknown",
                "the event log does not say which tools a call offered (streamed, or before 0.6): its request lacks them",
                where=call.where,
            )
        base, known, marks = self._longest(row, call.messages, tools)
        sources: dict[int, int | Sequence[Span]] = {}
        first_user = next((i for i, m in enumerate(call.messages) if m.get("role") == "user"), None)
        for at in range(known, len(call.messages)):
            found = self._sources(row, call.messages[at], is_task=at == first_user)
            if isinstance(found, int) or found:  # operation 0 is one, too
                sources[at] = found
        try:
            # Before anything of it is recorded: half a request would be another request.
            canonical_json(tools)
            for message in call.messages[known:]:
                canonical_json(message)
                split_message(message)
            self.rows.builder.request(row.operation, call.messages, tools, base=base, sources=sources)
        except FormatError as error:
            self.loss.add(
                "input.form", "lost", f"a request that cannot be kept: {error.message}", where=call.where
            )
            return
        for mark in marks:
            self._prefixes[row.session, _key(tools)][mark] = row.operation

    def _longest(
        self, row: CallRow, messages: Sequence[Mapping[str, Any]], tools: Any
    ) -> tuple[int | None, int, list[bytes]]:
        """The earlier call of the session whose request this one goes on with, and how many messages they share.

        Sessions are sequential, so that each of a session's earlier calls has ended before.

        Returns:
            The call's operation or None, the number of messages, and a mark of each prefix of the messages.
        """
        state = hashlib.blake2b(digest_size=16)
        marks: list[bytes] = []
        for message in messages:
            state.update(_key(message).encode())
            marks.append(state.digest())
        known = self._prefixes[row.session, _key(tools)]
        for count in range(len(marks), 0, -1):
            if marks[count - 1] in known:
                return known[marks[count - 1]], count, marks
        return None, 0, marks

    def _sources(self, row: CallRow, message: Mapping[str, Any], *, is_task: bool) -> int | list[Span]:
        """Where a message came from; nothing where it came from no operation, or from none that is known."""
        after = min(row.after, row.call.order)
        role, content = message.get("role"), message.get("content")
        text = content if isinstance(content, str) else _first_text(content)
        if role == "assistant":
            ids = [str(c.get("id")) for c in objs(message.get("tool_calls"))]
            found = next((self.asked[i] for i in ids if i in self.asked), None)
            if found is not None and self.rows.precedes(found, row.operation):
                return found
        if role == "tool":
            call_id = str(message.get("tool_call_id"))
            operation, result = self.tools.get(call_id, (row.operation, None))
            if self.rows.precedes(operation, row.operation):
                return [Span(0, len(text), operation, 0)] if text and result == text else operation
            if call_id in self.inside and text:
                return self.outputs.spans(text, after, only=self.inside[call_id])
        if not text:
            return []
        speaker = message.get("name") if role == "user" else row.agent if role == "assistant" else None
        if role != "system":
            whole = self.outputs.equal(text, str(speaker) if speaker else None, after)
            if whole is not None:
                return [Span(0, len(text), whole.operation, whole.start)]
        if is_task and row.task_of is not None and self._gave(row.task_of, text, row.operation):
            return [Span(0, len(text), row.task_of, None)]
        return self.outputs.spans(text, after)

    def _gave(self, operation: int, text: str, target: int) -> bool:
        """Whether an operation asked for a tool with this text as its task."""
        for row in self.rows.calls:
            if row.operation == operation and self.rows.precedes(operation, target):
                asked = [obj(c.get("function")).get("arguments") for c in row.call.tool_calls]
                return any(text in _leaves(arguments) for arguments in asked)
        return False


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _first_text(content: Any) -> str | None:
    """The first text part of a content: it is what spans speak of."""
    for part in content if isinstance(content, list) else []:
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            return str(part["text"])
    return None


def _leaves(arguments: Any) -> list[str]:
    """The strings among a tool call's arguments."""
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return []
    made, stack = [], [value]
    while stack:
        at = stack.pop()
        if isinstance(at, str):
            made.append(at)
        elif isinstance(at, dict):
            stack.extend(at.values())
        elif isinstance(at, list):
            stack.extend(at)
    return made
