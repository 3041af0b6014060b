"""What a server answers: a stream of events or one JSON document, read as it comes.

An answer is complete when the server ended it as the protocol says; then its counts and token ids are what was
received, right or wrong: judging them is the audit's work. Everything a server can do wrong ends as a `Failure`.
No text of an answer is kept, nor put into a message: servers repeat prompts in theirs.
"""

from __future__ import annotations

import re
from array import array
from typing import TYPE_CHECKING, Any, Final

import orjson

from semtrace.records.document import VALUE_LIMIT, has_too_many_values
from semtrace.records.enums import Failure, FinishReason
from semtrace.records.lines import SURELY_SMALL

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_EVENT_BYTES: Final = 16 << 20
"""Largest single line of a stream, and largest data of one event, in bytes."""
MOST_ANSWER_BYTES: Final = 256 << 20
"""Largest answer, in bytes."""
MOST_ERROR_BYTES: Final = 64 << 10
"""What is kept of the body of an error answer, in bytes; the rest is read and dropped."""
LONG_EVENT_BYTES: Final = 2048
"""Events longer than this may hold the ids of the prompt."""
LONGEST_RETRY_AFTER_NS: Final = 3600 * 1_000_000_000
"""Longest wait that a Retry-After header is obeyed for, in ns."""

GENERATION: Final = "generation"
EMBEDDING: Final = "embedding"

_ID_LIMIT: Final = 1 << 32
_COUNT_LIMIT: Final = 1 << 40  # of a column of counts (ST-VAL-004)
_WORD: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_REQUEST: Final = re.compile(r"semtrace-[0-9]+-[0-9]+(?:-[0-9]+)?")
_DATA: Final = b"data:"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_DONE: Final = b"[DONE]"
_PROMPT_IDS: Final = b'"prompt_token_ids":['

FINISH_REASONS: Final[dict[object, FinishReason]] = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
    "content_filter": FinishReason.CONTENT_FILTER,
    "abort": FinishReason.ABORT,
}
"""What servers call a reason, and what it is in the standard; others are unknown."""


class Answer:
    """One answer, from its first byte to its end.

    Attributes:
        kind: what was asked for, `GENERATION` or `EMBEDDING`.
        status: HTTP status, 0 before it is there.
        first_token_ns: when the first output token was read, None if that cannot be told (no stream) or has not come.
        ids: the output token ids, if the server sends them (`has_ids`).
        prompt_tokens, cached_tokens, output_tokens: counts that the server tells, None if it does not.
        finish_reason: why the model stopped, None if unknown.
        failure: what is wrong, None if nothing is (yet).
        detail: a few words on the failure, without anything of the request's content.
        retry_after_ns: how long the server asks to wait, None if it does not.
        body_bytes: bytes of the answer's body so far.
        told_id: the request id that the server sent back, None if none.
        raw: with `keep`, the body of a JSON answer or of an error.
    """

    __slots__ = (
        "_after_cr", "_buffer", "_data", "_done", "_first_line", "_streamed", "body_bytes", "cached_tokens", "detail",
        "failure", "finish_reason", "first_token_ns", "has_ids", "ids", "keep", "kind", "output_tokens", "prompt_tokens",
        "raw", "retry_after_ns", "status", "told_id",
    )  # fmt: skip

    def __init__(self, kind: str = GENERATION, *, keep: bool = False) -> None:
        self.kind = kind
        self.keep = keep
        self.begin()

    def begin(self) -> None:
        """Forget what was read: the request is sent again."""
        self.status = 0
        self.first_token_ns: int | None = None
        self.ids = array("I")
        self.has_ids = False
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.output_tokens: int | None = None
        self.finish_reason: FinishReason | None = None
        self.failure: Failure | None = None
        self.detail = ""
        self.retry_after_ns: int | None = None
        self.body_bytes = 0
        self.told_id: str | None = None
        self.raw = b""
        self._buffer: bytes | bytearray = b""  # of a document, an error, or a line that has not ended
        self._data: bytes | bytearray | None = None  # of the event that has not ended
        self._first_line = True
        self._after_cr = False
        self._streamed = False
        self._done = False

    @property
    def asked_id(self) -> str | None:
        """The id of the request that this is to be the answer to, None if that is not known."""
        return None

    # --- what the connection calls ---------------------------------------------------------------------

    def head(self, status: int, fields: Mapping[bytes, bytes]) -> bool:
        """Status and header fields are there; names of fields are in lower case.

        Returns:
            Whether the server says that this answers another request of the run (ST-LIV-041): then nothing of it is read.
        """
        self.status = status
        kind = fields.get(b"content-type", b"").lower()
        self._streamed = status == 200 and kind.startswith(b"text/event-stream")
        told = fields.get(b"x-request-id")
        if told is not None:
            self.told_id = told[:256].decode("ascii", "replace")
            if _is_of_another(self.told_id, self.asked_id):
                return True
        if status != 200:
            self.failure = of_status(status)
            self.detail = f"status {status}"
            self.retry_after_ns = retry_after(fields.get(b"retry-after"))
        return False

    def body(self, data: bytes, at_ns: int) -> bool:
        """A part of the body, read at this instant; returns whether all that matters has been read."""
        self.body_bytes += len(data)
        if self.failure is not None:
            if len(self._buffer) < MOST_ERROR_BYTES:
                self._buffer = _grown(self._buffer, data[:MOST_ERROR_BYTES])
            return self.body_bytes > MOST_ANSWER_BYTES
        if self.body_bytes > MOST_ANSWER_BYTES:
            self._wrong(f"an answer of more than {MOST_ANSWER_BYTES:,} bytes")
            return True
        if not self._streamed:
            self._buffer = _grown(self._buffer, data) if self._buffer else data
            return False
        if self._after_cr or b"\r" in data:
            data = self._with_line_feeds(data)
        if self._buffer:
            if b"\n" not in data:
                self._buffer = _grown(self._buffer, data)
                return self._is_too_long(self._buffer)
            data = bytes(self._buffer) + data
        lines = data.split(b"\n")
        self._buffer = lines.pop()
        if self._first_line and lines:
            self._first_line = False
            lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
        for line in lines:
            if line.startswith(_DATA):
                if self._data is None:
                    self._data = line[5:]
                else:
                    self._data = _grown(self._data, b"\n" + line[5:])
                    if self._is_too_long(self._data):
                        return True
            elif not line and self._data is not None:
                event, self._data = self._data, None
                self._event(event, at_ns)
                if self._done or self.failure is not None:
                    return True
        return self._is_too_long(self._buffer)

    def _with_line_feeds(self, data: bytes) -> bytes:
        """Lines as they end in the HTML standard, by CR, LF or both, ended by LF; the two may come in two parts."""
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
            self._after_cr = False
        if data:
            self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _is_too_long(self, held: bytes | bytearray) -> bool:
        if len(held) > MOST_EVENT_BYTES:
            self._wrong(f"an event of more than {MOST_EVENT_BYTES:,} bytes")
            return True
        return False

    def end(self) -> None:
        """The body has come to its end as HTTP has it."""
        if self.failure is not None:
            self._error_body()
        elif self._streamed:
            # An event without its blank line is not there (as in the HTML standard), but for an end mark.
            left = self._buffer.removeprefix(_BYTE_ORDER_MARK) if self._first_line else self._buffer
            self._done |= ((self._data or b"") + left.removeprefix(_DATA)).strip() == _DONE
            if self.failure is None and not self._done:
                self.failure = Failure.TRUNCATED
                self.detail = "the stream ended without [DONE]"
        else:
            self._document(self._buffer)
        self._data = None
        self._buffer = b""

    def lost(self, failure: Failure, detail: str) -> None:
        """The connection broke, or could not be had, before the end."""
        if self.failure is None or self.status in (0, 200):
            self.failure = failure
            self.detail = detail

    # --- reading ---------------------------------------------------------------------------------------

    def _wrong(self, detail: str) -> None:
        self.failure = Failure.PROTOCOL
        self.detail = detail

    def _value(self, data: bytes | bytearray, what: str) -> dict[str, Any] | None:
        """The members of a JSON object; None, and it is noted, if it is none or would take too much memory."""
        if len(data) > SURELY_SMALL and has_too_many_values(bytes(data)):
            self._wrong(f"{what} has more than {VALUE_LIMIT:,} values")
            return None
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError:
            self._wrong(f"{what} is no JSON")
            return None
        if not isinstance(value, dict):
            self._wrong(f"{what} is no JSON object")
            return None
        return value

    def _event(self, data: bytes | bytearray, at_ns: int) -> None:
        if data.strip() == _DONE:
            self._done = True
            return
        if len(data) > LONG_EVENT_BYTES:
            data = _without_prompt(data)
        value = self._value(data, "an event of the stream")
        if value is None:
            return
        if _tells_error(value):
            self._told_error(value["error"])
            return
        self._choices(value.get("choices", ()), at_ns)
        self._dynamo_ids(value)
        usage = value.get("usage")
        if usage is not None:
            self._usage(usage)

    def _choices(self, choices: Any, at_ns: int | None) -> None:
        """Take the output in choices; `at_ns` is None where it came all at once."""
        if not isinstance(choices, list | tuple):
            self._wrong("`choices` is no list")
            return
        for choice in choices:
            if not isinstance(choice, dict):
                self._wrong("a choice is no JSON object")
                return
            ids = choice.get("token_ids")
            if ids is not None:
                self._take_ids(ids)
                if self.failure is not None:
                    return
            if at_ns is not None and self.first_token_ns is None and (ids or _has_output(choice)):
                self.first_token_ns = at_ns
            reason = choice.get("finish_reason")
            if reason is not None:
                self.finish_reason = FINISH_REASONS.get(reason) if isinstance(reason, str) else None

    def _dynamo_ids(self, value: dict[str, Any]) -> None:
        """Ids of the output where Dynamo tells them: beside the choices, and those that are new."""
        told = value.get("nvext")
        ids = told.get("completion_token_ids") if isinstance(told, dict) else None
        if ids is not None and self.failure is None:
            self._take_ids(ids)

    def _take_ids(self, ids: Any) -> None:
        try:
            self.ids.fromlist(ids)
            self.has_ids = True
        except (TypeError, OverflowError):
            self._wrong("`token_ids` is no list of token ids")

    def _usage(self, usage: Any) -> None:
        if not isinstance(usage, dict):
            self._wrong("`usage` is no JSON object")
            return
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        values = (usage.get("prompt_tokens"), usage.get("completion_tokens"), cached)
        for value in values:
            if value is not None and (type(value) is not int or not 0 <= value < _COUNT_LIMIT):
                self._wrong("a count in `usage` is no count")
                return
        prompt, output, _ = values
        self.prompt_tokens = self.prompt_tokens if prompt is None else prompt
        self.output_tokens = self.output_tokens if output is None else output
        self.cached_tokens = self.cached_tokens if cached is None else cached
        if (
            self.cached_tokens is not None
            and self.prompt_tokens is not None
            and self.cached_tokens > self.prompt_tokens
        ):
            self._wrong("more cached tokens in `usage` than tokens of the prompt")

    def _document(self, data: bytes | bytearray) -> None:
        if self.keep:
            self.raw = bytes(data[:MOST_ERROR_BYTES])
        value = self._value(data, "the answer")
        if value is None:
            return
        if _tells_error(value):
            self._told_error(value["error"])
            return
        if self.kind == EMBEDDING:
            if not has_embedding(value):
                self._wrong("the answer has no embedding in `data`")
                return
        elif not value.get("choices"):
            self._wrong("the answer has no `choices`")
            return
        else:
            self._choices(value["choices"], None)
            self._dynamo_ids(value)
        if value.get("usage") is not None and self.failure is None:
            self._usage(value["usage"])

    def _told_error(self, error: Any) -> None:
        """An error in place of an output, under status 200."""
        code = error.get("code") if isinstance(error, dict) else None
        told = code if type(code) is int and 400 <= code < 600 else 500
        self.failure = of_status(told)
        self.detail = f"the server told an error in its answer{_words(error)}"

    def _error_body(self) -> None:
        if self.keep:
            self.raw = bytes(self._buffer)
        try:
            value = orjson.loads(self._buffer)
        except orjson.JSONDecodeError:
            return
        if isinstance(value, dict):
            self.detail += _words(value.get("error", value))


def _has_output(choice: Mapping[str, Any]) -> bool:
    """Whether a choice of a stream carries output: a text, or what a chat's delta may hold."""
    if choice.get("text"):
        return True
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return False
    return any(value for name, value in delta.items() if name != "role")


def _grown(held: bytes | bytearray, data: bytes) -> bytearray:
    """What is held with more after it: in one piece, as a server may send many that are small."""
    grown = held if isinstance(held, bytearray) else bytearray(held)
    grown += data
    return grown


def _tells_error(value: Mapping[str, Any]) -> bool:
    """Whether there is an error in place of an output; some servers say that there is none."""
    error = value.get("error")
    return error is not None and error is not False


def _is_of_another(told: str, asked: str | None) -> bool:
    """Whether an id that a server sent back is that of another request, or another attempt, of the run."""
    if asked is None or told == asked or _REQUEST.fullmatch(told) is None:
        return False  # a proxy may give requests ids of its own
    return not told.startswith(f"{asked}-")  # a server may add something to ours


def _without_prompt(data: bytes | bytearray) -> bytes | bytearray:
    """An event without the ids of the prompt, which servers send back with those of the output: reading them takes long.

    Within a JSON text the quotes would be escaped, so what is cut out is a member.
    """
    begin = data.find(_PROMPT_IDS)
    end = data.find(b"]", begin)
    return data if begin < 0 or end < 0 else b"%s%snull%s" % (data[:begin], _PROMPT_IDS[:-1], data[end + 1 :])


def has_embedding(value: Mapping[str, Any]) -> bool:
    """Whether an answer carries an embedding: numbers, or text that encodes them."""
    data = value.get("data")
    first = data[0] if isinstance(data, list) and data else None
    return (
        isinstance(first, dict)
        and isinstance(first.get("embedding"), list | str)
        and bool(first["embedding"])
    )


def _words(error: Any) -> str:
    """An error's type and code, if they are words: its message may repeat the prompt."""
    if not isinstance(error, dict):
        return ""
    found = [
        value
        for name in ("type", "code")
        if isinstance(value := error.get(name), str) and _WORD.fullmatch(value)
    ]
    return f" ({', '.join(found)})" if found else ""


def of_status(status: int) -> Failure:
    """What a status other than 200 is (ST-LIV-041)."""
    if status == 429:
        return Failure.RATE_LIMITED
    return Failure.SERVER_ERROR if 500 <= status < 600 else Failure.REJECTED


def retry_after(value: bytes | None) -> int | None:
    """How long a Retry-After header asks to wait, in ns; None if there is none, or it is no number of seconds."""
    if value is None or not re.fullmatch(rb"[0-9]{1,18}", value):
        return None
    return min(int(value) * 1_000_000_000, LONGEST_RETRY_AFTER_NS)
