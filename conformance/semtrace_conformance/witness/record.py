"""The record of a witness: one line of JSON for each attempt of a request, in the order in which they ended."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson
from blake3 import blake3

from semtrace_conformance.messages import Model, parse_json
from semtrace_conformance.witness.asked import little

if TYPE_CHECKING:
    from pathlib import Path

    from semtrace_conformance.witness.relay import Relayed
    from semtrace_conformance.witness.stream import Stream

_MUCH: Final = 1 << 16


class Entry(Model):
    """What a witness saw of one attempt of a request. Every member is always there; null is unknown, or not so.

    Attributes:
        number: its ordinal among all that came, from 0.
        request_id: its header `X-Request-Id`.
        request: that id without the number of a retry.
        attempt: how many requests of that id have come with it.
        connection: ordinal of its connection, from 1.
        on_connection: its ordinal among the requests on that connection, from 1.
        arrival_unix_ns: when its first packet was there.
        arrival_stamp: who says so: the `kernel`, or the witness when it had `read` it.
        complete_unix_ns: when the last packet of it was there.
        path: what was asked for.
        model: the model named.
        stream: whether a stream was asked for.
        prompt: of which kind the prompt was.
        prompt_tokens: how many tokens it had.
        prompt_digest: digest of the prompt: of its ids as uint32, little-endian, of its text in UTF-8, or of the RFC 8785
            form of its messages.
        max_tokens, min_tokens, ignore_eos, temperature: as asked.
        lock_tokens, lock_digest: how many output ids were asked for, and their digest.
        hints: the names of headers that begin with `x-semtrace-`, in lower case.
        status: the HTTP status that was answered; null if none was.
        fault: the fault that it met; `server`, of a request that was passed on, where the real server broke.
        first_token_unix_ns: just before the first token was handed to the kernel.
        end_unix_ns: just before the last byte of the answer was, or the connection was cut; of an answer that never
            came, when the client left.
        output_tokens, output_digest: how many tokens were sent, and the digest of their ids.
        finish_reason: as sent.
        closed_by: who ended the connection before the answer was over: `client`, `witness`; null if nobody did.
    """

    number: int
    request_id: str | None
    request: str | None
    attempt: int
    connection: int
    on_connection: int
    arrival_unix_ns: int
    arrival_stamp: Literal["kernel", "read"]
    complete_unix_ns: int
    path: str
    model: str | None
    stream: bool
    prompt: Literal["token_ids", "text", "messages"] | None
    prompt_tokens: int | None
    prompt_digest: str | None
    max_tokens: int | None
    min_tokens: int | None
    ignore_eos: bool | None
    temperature: float | None
    lock_tokens: int | None
    lock_digest: str | None
    hints: list[str]
    status: int | None
    fault: str | None
    first_token_unix_ns: int | None
    end_unix_ns: int | None
    output_tokens: int
    output_digest: str | None
    finish_reason: str | None
    closed_by: Literal["client", "witness"] | None


def digest(content: bytes) -> str:
    """The digest of bytes, as documents have it."""
    return f"blake3:{blake3(content).hexdigest()}"


def describe(answer: Stream | Relayed) -> dict[str, Any]:
    """The members of an entry that the request decides, in their order."""
    asked, head, lock = answer.asked, answer.head, answer.asked.lock
    return {
        "number": answer.number,
        "request_id": head.headers.get("x-request-id"),
        "request": answer.request,
        "attempt": answer.attempt,
        "connection": answer.connection.ordinal,
        "on_connection": head.ordinal,
        "arrival_unix_ns": head.arrival_ns,
        "arrival_stamp": head.stamp,
        "complete_unix_ns": head.complete_ns,
        "path": asked.path,
        "model": asked.model,
        "stream": asked.stream,
        "prompt": asked.prompt,
        "prompt_tokens": None if asked.prompt is None else len(asked.prompt_ids),
        "prompt_digest": None if asked.prompt is None else f"blake3:{asked.prompt_digest.hex()}",
        "max_tokens": asked.max_tokens,
        "min_tokens": asked.min_tokens,
        "ignore_eos": asked.ignore_eos,
        "temperature": asked.temperature,
        "lock_tokens": None if lock is None else len(lock),
        "lock_digest": None if lock is None else digest(little(lock)),
        "hints": sorted(name for name in head.headers if name.startswith("x-semtrace-")),
    }


def read_record(path: Path) -> list[Entry]:
    """The entries of a record, in the order in which requests came.

    Raises:
        BadMessageError: a line is not JSON.
        ValidationError: a line is no entry.
    """
    entries = [Entry.model_validate(parse_json(line)) for line in path.read_bytes().splitlines()]
    return sorted(entries, key=lambda each: each.number)


class Writer:
    """Writes the lines of a record, many at a time."""

    def __init__(self, path: Path) -> None:
        """Begin a record; the file must not be there yet."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._file = os.open(path, flags, 0o644)
        self._lines: list[bytes] = []
        self._bytes = 0
        self.count = 0

    def add(self, entry: dict[str, Any]) -> None:
        """Add an entry."""
        line = orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE)
        self._lines.append(line)
        self._bytes += len(line)
        self.count += 1
        if self._bytes > _MUCH:
            self.flush()

    def flush(self) -> None:
        """Write what is held."""
        if self._lines:
            rest = memoryview(b"".join(self._lines))
            self._lines, self._bytes = [], 0
            while rest:
                rest = rest[os.write(self._file, rest) :]

    def close(self) -> None:
        """Write what is held, and end."""
        self.flush()
        os.close(self._file)
