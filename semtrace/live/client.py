"""Single requests before a run, one at a time: asking a server what it can do, warming it up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import orjson

from semtrace.live.answers import Answer
from semtrace.live.asking import plain
from semtrace.records.enums import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from semtrace.live.connection import Connection
    from semtrace.live.connections import Pool
    from semtrace.live.settings import Key, Target

MOST_KEPT_BYTES: Final = 1 << 20
"""What is kept of an answer, in bytes."""

_monotonic_ns = time.monotonic_ns


class Reply:
    """An answer, or what became of the request.

    Attributes:
        status: HTTP status, 0 if none came.
        fields: header fields, their names in lower case.
        raw: the body, up to `MOST_KEPT_BYTES`.
        failure: why there is no answer, None if there is one; an error status is an answer.
        detail: a few words on the failure.
    """

    def __init__(self, data: bytes) -> None:
        self.status = 0
        self.fields: Mapping[bytes, bytes] = {}
        self.raw = b""
        self.failure: Failure | None = None
        self.detail = ""
        self.over = False
        self.sent_ns: int | None = None
        self.connection: Connection | None = None
        self._data = data
        self._parts: list[bytes] = []
        self._kept = 0

    def head(self, status: int, fields: Mapping[bytes, bytes]) -> bool:
        """Status and header fields are there."""
        self.status, self.fields = status, fields
        return False

    def body(self, data: bytes, at_ns: int) -> bool:
        """Keep a part of the body."""
        del at_ns
        self._parts.append(data[: MOST_KEPT_BYTES - self._kept])
        self._kept += len(self._parts[-1])
        return self._kept >= MOST_KEPT_BYTES

    def ended(self, at_ns: int) -> None:
        """It is whole."""
        del at_ns
        self.raw = b"".join(self._parts)
        self.over = True

    def broken(self, failure: Failure, detail: str, at_ns: int) -> None:
        """No whole answer will come."""
        del at_ns
        self.raw = b"".join(self._parts)
        self.failure, self.detail = failure, detail
        self.over = True

    def again(self) -> bytes:
        """The request once more."""
        return self._data

    def value(self) -> Any:
        """The JSON of the body, None if it is none."""
        try:
            return orjson.loads(self.raw)
        except orjson.JSONDecodeError:
            return None

    def members(self) -> dict[str, Any]:
        """The members of a whole JSON answer of status 200; none if it is anything else."""
        value = self.value() if self.status == 200 and self.failure is None else None
        return value if isinstance(value, dict) else {}

    def answer(self) -> Answer:
        """It, read as the answer to a model operation is."""
        answer = Answer()
        if self.status:
            answer.head(self.status, self.fields)
            answer.body(self.raw, 0)
        if self.failure is not None:
            answer.lost(self.failure, self.detail)
        else:
            answer.end()
        return answer


class Client:
    """Asks one thing after the other."""

    def __init__(
        self,
        pool: Pool,
        target: Target,
        key: Key | None,
        timeout_ns: int,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """Ask through a pool.

        Args:
            pool: the connections.
            target: the server.
            key: what it is shown.
            timeout_ns: time limit of each request, in ns.
            stopping: whether to give up now.
        """
        self._pool, self._target, self._key = pool, target, key
        self._timeout_ns = timeout_ns
        self._stopping = stopping
        self.asked = 0

    def ask(self, path: str, value: dict[str, Any] | None = None, name: str | None = None) -> Reply:
        """POST a value, or GET; comes back with an answer, or when there is none within the time limit.

        Args:
            path: below the server's root.
            value: the JSON to post; None to get.
            name: the request's id; made up if left out.
        """
        self.asked += 1
        return self.ask_all([(path, value, name or f"semtrace-ask-{self.asked}")])[0]

    def ask_all(self, requests: list[tuple[str, dict[str, Any] | None, str]]) -> list[Reply]:
        """Ask several things at the same time."""
        replies: list[Reply] = []
        deadline = _monotonic_ns() + self._timeout_ns
        for path, value, name in requests:
            data = plain(self._target, self._key, path, value, name)
            reply = Reply(data)
            replies.append(reply)
            self._pool.send(reply, data)
        while not all(reply.over for reply in replies):
            left = deadline - _monotonic_ns()
            if left <= 0 or self._stopping():
                break
            self._pool.turn(min(left, 100_000_000))
        for reply in replies:
            if not reply.over:
                self._pool.cancel(reply)
                seconds = self._timeout_ns / 1e9
                reply.broken(Failure.TIMEOUT, f"no whole answer within {seconds:g} s", _monotonic_ns())
        return replies

    def hide(self, text: str) -> str:
        """A server's text without the key."""
        return text if self._key is None else self._key.hide(text)
