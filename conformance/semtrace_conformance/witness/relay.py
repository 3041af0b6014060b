"""The witness as a relay: each request goes on to a real server, and its answer comes back as it is, byte for byte."""

from __future__ import annotations

import select
import socket
import time
from array import array
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import httptools
import orjson
from pydantic import Field

from semtrace_conformance.messages import Model
from semtrace_conformance.witness.asked import CHAT, EMBEDDINGS, little
from semtrace_conformance.witness.record import describe, digest

if TYPE_CHECKING:
    from semtrace_conformance.witness.asked import Asked
    from semtrace_conformance.witness.connection import Connection, Head

BROKE: Final = "server"
"""What the record has as the fault of an answer that the real server broke off, never began, or gave a status from 500 on."""
_OWN: Final = frozenset({"host", "connection", "keep-alive", "transfer-encoding", "content-length", "expect"})
"""Headers of one connection; the relay has its own of them."""
_READ: Final = 1 << 18


class Upstream(Model):
    """The real server behind a relay.

    Attributes:
        host: its name or address.
        port: its port.
        prefix: what its paths begin with, as in `/api`; nothing, if empty.
        models: the answer to `GET /v1/models`, if not the server's own: cut down to the model that is asked for.
    """

    host: str
    port: int = Field(ge=1, le=65535)
    prefix: str = ""
    models: dict[str, Any] | None = None

    def address(self) -> tuple[Any, Any]:
        """Family and address of its socket.

        Raises:
            OSError: there is no such host.
        """
        family, _, _, _, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
        return family, address


class Relayed:
    """A request that was passed on, and the answer to it on its way back.

    `go_on` is to be called with what the poll says of `link`; `mask` is what it is to be polled for.
    """

    def __init__(
        self,
        connection: Connection,
        head: Head,
        asked: Asked,
        upstream: Upstream,
        address: tuple[Any, Any],
        number: int,
        request: str | None,
        attempt: int,
    ) -> None:
        """Begin to connect, and to pass the request on."""
        self.connection = connection
        self.head = head
        self.asked = asked
        self.number = number
        self.request = request
        self.attempt = attempt
        self.due_ns: int | None = None
        self.fault: Any = None
        self.status: int | None = None
        self.first_ns: int | None = None
        self.ended_ns: int | None = None
        self.broke = False
        self._ids = array("I")
        self._count: int | None = None
        self._reason: str | None = None
        self._told = False
        self._token = False
        self._ended = False
        self._whole = False
        self._framed = False
        self._began = False
        self._text = bytearray()
        self._parser = httptools.HttpResponseParser(self)
        self._unsent = bytearray(_request(head, upstream))
        self.link: Any = socket.socket(address[0], socket.SOCK_STREAM)
        self.link.setblocking(False)
        self.link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.fd: int = self.link.fileno()
        self.link.connect_ex(address[1])

    # -- between the two connections --------------------------------------------------------------------------

    @property
    def mask(self) -> int:
        """What the connection to the server is to be polled for."""
        return select.EPOLLIN | (select.EPOLLOUT if self._unsent else 0)

    def go_on(self, what: int) -> bool:
        """Pass on what can be; returns whether the answer is over."""
        try:
            if what & select.EPOLLOUT and self._unsent:
                del self._unsent[: self.link.send(self._unsent)]
            if what & ~select.EPOLLOUT:
                return self._back(self.link.recv(_READ))
        except BlockingIOError:
            return False
        except (OSError, httptools.HttpParserError):
            return self._break()
        return False

    def _back(self, content: bytes) -> bool:
        """Hand what the server sent to the client, after looking at it."""
        if not content:
            if self.status is None or self._framed or self._whole:
                return self._break()
            self._whole = True  # an answer that lasts as long as its connection
            self._read_document()
            self.connection.closing = True
        else:
            self._began = True
            self._parser.feed_data(content)
        now = time.time_ns()
        if self._token and self.first_ns is None:
            self.first_ns = now
        if (self._ended or self._whole) and self.ended_ns is None:
            self.ended_ns = now
        self.connection.send(content)
        if self._whole and self.status is not None and self.status >= 500:
            self.broke = True
        return self._whole

    def _break(self) -> bool:
        """The server did not answer, or not to the end: so does the witness."""
        self.broke = True
        self.ended_ns = time.time_ns()
        self.connection.close(reset=not self._began)
        return True

    def close(self) -> None:
        """Leave the server."""
        self.link.close()

    # -- what the parser calls back ---------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the answer."""
        name = name.lower()
        self._framed = self._framed or name in {b"content-length", b"transfer-encoding"}
        if name == b"connection" and value.lower() == b"close":
            self.connection.closing = True

    def on_headers_complete(self) -> None:
        """What follows is the answer."""
        status = self._parser.get_status_code()
        if status >= 200:
            self.status = status

    def on_body(self, body: bytes) -> None:
        """A part of the answer."""
        self._text += body
        if self.asked.stream and self.status == 200:
            *lines, rest = bytes(self._text).split(b"\n")
            self._text = bytearray(rest)
            for line in lines:
                if line.startswith(b"data:"):
                    self._event(line[5:].strip())

    def on_message_complete(self) -> None:
        """The answer is whole, as far as HTTP goes."""
        if self.status is not None:
            self._whole = True
            self._read_document()

    def _event(self, data: bytes) -> None:
        """An event of a stream."""
        if data == b"[DONE]":
            self._ended = True
            self._told = self._reason is not None
            return
        choices = self._look(data)
        # Of an answer in text, the first event with a choice is taken for the first token: no client can know of one before.
        self._token = self._token or any(self.asked.path != CHAT or _says(each) for each in choices)

    def _read_document(self) -> None:
        """An answer that is no stream."""
        if not self.asked.stream and self.status == 200 and self.asked.prompt is not None:
            self._look(bytes(self._text))
            self._told = self.asked.path != EMBEDDINGS and self._reason is not None

    def _look(self, data: bytes) -> list[dict[str, Any]]:
        """Note what is told of the output; returns the choices."""
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError:
            return []
        if not isinstance(value, dict):
            return []
        usage = value.get("usage")
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            self._count = usage["completion_tokens"]
        choices = [each for each in value.get("choices") or () if isinstance(each, dict)]
        for each in choices:
            with suppress(TypeError, OverflowError):  # what is no list of ids tells none
                self._ids.extend(array("I", each.get("token_ids") or ()))
            self._reason = each.get("finish_reason") or self._reason
        return choices

    # -- what is written down ---------------------------------------------------------------------------------

    def line(self, closed_by: str | None) -> dict[str, Any]:
        """What the record says of it: counts and ids are those that the server told."""
        return {
            **describe(self),
            "status": self.status,
            "fault": BROKE if self.broke else None,
            "first_token_unix_ns": self.first_ns,
            "end_unix_ns": self.ended_ns,
            "output_tokens": len(self._ids) if self._count is None else self._count,
            "output_digest": digest(little(self._ids)) if self._ids else None,
            "finish_reason": self._reason if self._told else None,
            # After [DONE] the client has all of it, whether or not the last bytes of HTTP are there.
            "closed_by": None if self._ended else closed_by,
        }


def _says(choice: dict[str, Any]) -> bool:
    """Whether a choice of a chat brings more than the role of who speaks."""
    delta = choice.get("delta") or {}
    said = any(value for name, value in delta.items() if name != "role")
    return bool(said or choice.get("token_ids") or choice.get("finish_reason"))


def _request(head: Head, upstream: Upstream) -> bytes:
    """A request as it is passed on: all its headers but those of the connection, and its body."""
    body = b"".join(head.body)
    lines = [head.method + b" " + upstream.prefix.encode() + head.path + b" HTTP/1.1"]
    host = f"[{upstream.host}]" if ":" in upstream.host else upstream.host
    lines.append(f"host: {host}:{upstream.port}".encode())
    lines += [
        f"{name}: {value}".encode("latin-1") for name, value in head.headers.items() if name not in _OWN
    ]
    if body or head.method == b"POST":
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
