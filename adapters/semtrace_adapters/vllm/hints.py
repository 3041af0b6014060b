"""Writes down what clients say of their requests beside the prompt: the task, stage and session that they belong to (docs/vllm.md).

vLLM is told to load it with `--middleware semtrace_adapters.vllm.hints.Hints`. Each request with a header `X-Semtrace-Task`, `-Stage` or
`-Session`, or with a member `user`, gives a line in the step log:

    {"kind":"hint","unix_ns":T,"request":ID,"task":…,"stage":…,"session":…,"user":…}

ID is the request's `X-Request-Id`; a request without one gets one, as it would from vLLM later. T is the Unix time at which all of it was there, before
vLLM saw it: a client may use an id again, and the line is of the next request that has it. Nothing else of a request is kept, and no answer
changes. It needs the standard library alone.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Message = dict[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Message, Receive, Send], Awaitable[None]]

VARIABLE: Final = "SEMTRACE_VLLM_LOG"
"""The environment variable that names the step log."""
_HEADERS: Final = {b"x-semtrace-task": "task", b"x-semtrace-stage": "stage", b"x-semtrace-session": "session"}
_LONGEST: Final = 512
"""Characters of a hint that are kept."""
_LARGEST_BODY: Final = 1 << 24
"""Bytes of a body that are looked at for `user`."""


class Hints:
    """An ASGI application around vLLM's."""

    def __init__(self, app: App) -> None:
        self._app = app
        path = os.environ.get(VARIABLE)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600) if path else None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """One request."""
        if self._file is None or scope.get("type") != "http" or scope.get("method") != "POST":
            await self._app(scope, receive, send)
            return
        headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        name = next((value for key, value in headers if key.lower() == b"x-request-id"), None)
        if name is None:
            name = uuid.uuid4().hex.encode()
            headers.append((b"x-request-id", name))
            scope = {**scope, "headers": headers}
        told: dict[str, str] = {}
        for key, value in headers:
            if key.lower() in _HEADERS and value:
                told[_HEADERS[key.lower()]] = value.decode("utf-8", "replace")[:_LONGEST]
        body = _Body(self, name.decode("latin-1"), told, receive)
        await self._app(scope, body.receive, send)
        body.end()

    def write(self, record: dict[str, Any]) -> None:
        """Add a line to the log."""
        if self._file is not None:
            os.write(self._file, json.dumps(record, separators=(",", ":")).encode() + b"\n")


class _Body:
    """A request's body as it comes in; its hint is written when all of it is there."""

    def __init__(self, hints: Hints, request: str, told: dict[str, str], receive: Receive) -> None:
        self._hints, self._request, self._told, self._receive = hints, request, told, receive
        self._parts: list[bytes] | None = []
        self._held = 0
        self._open = True

    async def receive(self) -> Message:
        """The next part, passed on as it is."""
        message = await self._receive()
        if self._open and message.get("type") == "http.request":
            part = message.get("body", b"")
            self._held += len(part)
            if self._parts is not None:
                self._parts.append(part)
                if self._held > _LARGEST_BODY:
                    self._parts = None
            if not message.get("more_body", False):
                self._look()
                self.end()
        return message

    def _look(self) -> None:
        raw = b"".join(self._parts or [])
        if b'"user"' not in raw:
            return
        try:
            user = json.loads(raw).get("user")
        except (ValueError, AttributeError, RecursionError):
            return
        if isinstance(user, str) and user:
            self._told["user"] = user[:_LONGEST]

    def end(self) -> None:
        """Write the hint, if there is one."""
        if self._open and self._told:
            self._hints.write(
                {"kind": "hint", "unix_ns": time.time_ns(), "request": self._request, **self._told}
            )
        self._open = False
        self._parts = None
