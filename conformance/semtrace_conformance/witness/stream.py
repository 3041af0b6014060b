"""One answer on its way: what is sent next, when, and what is written down of it."""

from __future__ import annotations

import time
from array import array
from typing import TYPE_CHECKING, Any, Final

from semtrace_conformance.witness import answers
from semtrace_conformance.witness.asked import CHAT, COMPLETIONS, EMBEDDINGS, Asked, little, output
from semtrace_conformance.witness.record import describe, digest
from semtrace_conformance.witness.script import (
    Garbage,
    Hang,
    NoUsage,
    Reset,
    Status,
    StreamError,
    Truncated,
)

if TYPE_CHECKING:
    from semtrace_conformance.witness.connection import Connection, Head
    from semtrace_conformance.witness.script import Script, Service

_CUTS: Final = (Reset, Truncated, Hang, StreamError)
"""Faults that stop a stream after some tokens."""


class Stream:
    """The answer to one attempt of a request.

    `due_ns` is when it goes on, on the clock of `time.monotonic_ns`; `advance` sends what is due, and says whether that was
    all.
    """

    __slots__ = (
        "asked", "attempt", "connection", "cut", "due_ns", "ended_ns", "fault", "first_ns", "head", "ids", "name",
        "number", "reason", "request", "script", "sent", "service", "status", "streams", "token_ns", "told",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        head: Head,
        asked: Asked,
        script: Script,
        number: int,
        request: str | None,
        attempt: int,
        service: Service,
        fault: Any,
        most: int,
    ) -> None:
        self.connection = connection
        self.head = head
        self.asked = asked
        self.script = script
        self.streams = asked.stream and asked.path != EMBEDDINGS
        self.number = number
        self.request = request
        self.attempt = attempt
        self.service = service
        self.fault = fault
        self.name = answers.name_of(asked, head.headers.get("x-request-id") or str(number))
        self.ids, self.reason = output(script, asked, most, fault) if most else (array("I"), "")
        self.cut = min(fault.after_tokens or 0, len(self.ids)) if isinstance(fault, _CUTS) else None
        self.sent = 0
        self.told = False
        self.status: int | None = None
        self.first_ns: int | None = None
        self.ended_ns: int | None = None
        arrival = time.monotonic_ns() - max(time.time_ns() - head.arrival_ns, 0)
        self.token_ns = arrival + service.first_token_ns + service.prompt_token_ns * len(asked.prompt_ids)
        at_once = isinstance(fault, (Status, Garbage)) or (
            isinstance(fault, (Reset, Hang)) and fault.after_tokens is None
        )
        if at_once:
            self.due_ns: int | None = 0
        elif self.streams:
            self.due_ns = self.token_ns
        else:
            self.due_ns = self.token_ns + service.token_ns * max(len(self.ids) - 1, 0)

    def advance(self) -> bool:
        """Send what is due; returns whether the answer is over. One that hangs has no `due_ns` any more."""
        fault = self.fault
        if fault is None and self.streams:
            return self._chunk(None)
        if isinstance(fault, Status):
            after = None if fault.retry_after_s is None else str(fault.retry_after_s)
            return self._whole(fault.status, answers.problem(fault.status, "as the script says"), after)
        if isinstance(fault, (Reset, Hang)) and fault.after_tokens is None:
            return self._stop(fault)
        if isinstance(fault, Garbage) and fault.where == "head":
            self._hand_over(b"this is no answer\r\n\r\n", end=True)
            self.connection.closing = True
            return True
        if isinstance(fault, Garbage) or not self.streams:
            return self._document(fault)
        return self._chunk(fault)

    def answer(self, status: int, value: Any) -> None:
        """Send an answer that asks for no tokens, at once."""
        self._whole(status, value)

    def _document(self, fault: Any) -> bool:
        """Send an answer that is no stream."""
        if isinstance(fault, Garbage):
            self.status = 200
            if self.asked.stream:
                body = answers.chunk(b"data: {this is no JSON\n\n") + answers.LAST_CHUNK
                self._hand_over(self._stream_head() + body, end=True)
            else:
                body = b"{this is no JSON"
                self._hand_over(answers.head(200, "application/json", len(body)) + body, end=True)
            return True
        if isinstance(fault, (Reset, Hang)):
            return self._stop(fault)
        if isinstance(fault, StreamError):
            return self._whole(500, answers.problem(500, "as the script says"))
        value = answers.document(
            self.asked,
            self.name,
            self.ids,
            self.reason,
            tells_ids=self._tells_ids,
            tells_usage=self._tells_usage,
        )
        if isinstance(fault, Truncated):
            full = answers.whole(200, value)
            self.status = 200
            self._hand_over(full[: len(full) // 2], end=True)
            self.connection.closing = True
            return True
        self.sent = len(self.ids)
        self.told = self.asked.path != EMBEDDINGS
        return self._whole(200, value)

    def _whole(self, status: int, value: Any, retry_after: str | None = None) -> bool:
        self.status = status
        echoed = self.head.headers.get("x-request-id")
        self._hand_over(answers.whole(status, value, retry_after=retry_after, x_request_id=echoed), end=True)
        return True

    @property
    def _tells_ids(self) -> bool:
        return self.asked.ids and self.script.token_ids

    @property
    def _tells_usage(self) -> bool:
        return self.script.usage and not isinstance(self.fault, NoUsage)

    def _stream_head(self) -> bytes:
        return answers.head(
            200, "text/event-stream; charset=utf-8", None, x_request_id=self.head.headers.get("x-request-id")
        )

    def _chunk(self, fault: Any) -> bool:
        """Send the next chunk of a stream."""
        cut = self.cut
        begin = self.sent
        end = min(begin + (self.service.chunk if begin else 1), len(self.ids))
        if cut is not None:
            end = min(end, cut)
        over = end == len(self.ids) and cut is None
        parts = []
        if begin == 0:
            self.status = 200
            parts.append(self._stream_head())
        events = b""
        if end > begin or over:
            events = answers.event(
                self.asked, self.name, self.ids[begin:end], self.reason if over else None,
                first=begin == 0, tells_ids=self._tells_ids,
            )  # fmt: skip
        if over:
            self.told = True
            if self.asked.usage and self._tells_usage:
                events += answers.usage_event(self.asked, self.name, len(self.ids))
            events += answers.DONE
        if cut is not None and end == cut and isinstance(fault, StreamError):
            events += answers.error_event("as the script says") + answers.DONE
        if events:
            parts.append(answers.chunk(events))
        self.sent = end
        if cut is not None and end == cut:
            return self._cut(fault, b"".join(parts), first=begin == 0 and end > 0)
        if over:
            parts.append(answers.LAST_CHUNK)
        self._hand_over(b"".join(parts), first=begin == 0 and end > 0, end=over)
        if not over:
            following = min(end + self.service.chunk, len(self.ids))
            if cut is not None:
                following = min(following, cut)
            self.due_ns = self.token_ns + self.service.token_ns * (following - 1)
        return over

    def _cut(self, fault: Any, content: bytes, *, first: bool) -> bool:
        """Send the last that the script lets through, and stop."""
        if isinstance(fault, StreamError) or (isinstance(fault, Truncated) and not fault.closes):
            self._hand_over(content + answers.LAST_CHUNK, first=first, end=True)
            return True
        self._hand_over(content, first=first)
        return self._stop(fault)

    def _stop(self, fault: Any) -> bool:
        """Break off: by a reset, by closing, or by silence."""
        if isinstance(fault, Hang):
            self.due_ns = None
            return False
        self.ended_ns = time.time_ns()
        if isinstance(fault, Truncated):
            self.connection.closing = True
        else:
            self.connection.close(reset=True)
        return True

    def _hand_over(self, content: bytes, *, first: bool = False, end: bool = False) -> None:
        now = time.time_ns()
        if first:
            self.first_ns = now
        if end:
            self.ended_ns = now
        self.connection.send(content)

    def line(self, closed_by: str | None) -> dict[str, Any]:
        """What the record says of it."""
        return {
            **describe(self),
            "status": self.status,
            "fault": None if self.fault is None else self.fault.kind,
            "first_token_unix_ns": self.first_ns,
            "end_unix_ns": self.ended_ns,
            "output_tokens": self.sent,
            "output_digest": digest(little(self.ids[: self.sent])) if self.sent else None,
            "finish_reason": self.reason if self.told else None,
            "closed_by": closed_by,
        }


GENERATIONS: Final = frozenset({COMPLETIONS, CHAT, EMBEDDINGS})
"""What is asked for with prompts."""
