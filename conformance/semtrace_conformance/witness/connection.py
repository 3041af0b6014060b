"""A connection of the witness: requests are taken apart, answers are written as far as the kernel takes them."""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import httptools

if TYPE_CHECKING:
    from semtrace_conformance.witness.relay import Relayed
    from semtrace_conformance.witness.stream import Stream

STAMPS: Final = getattr(socket, "SO_TIMESTAMPNS", 35)
"""The socket option by which the kernel says when it took in what is read. Connections have it from the socket that
listens, so that there is a stamp of what came before they were accepted, too."""
_STAMP: Final = struct.Struct("@qq")
_ROOM: Final = socket.CMSG_SPACE(_STAMP.size)
_READ: Final = 1 << 18
_LINGER: Final = struct.pack("ii", 1, 0)


class Head:
    """A request as it comes in: when, and what it says."""

    __slots__ = ("arrival_ns", "body", "complete_ns", "headers", "keep", "method", "ordinal", "path", "stamp")

    def __init__(self, ordinal: int, arrival_ns: int, stamp: str) -> None:
        self.ordinal = ordinal
        self.arrival_ns = arrival_ns
        self.stamp = stamp
        self.complete_ns = arrival_ns
        self.path = b""
        self.method = b""
        self.headers: dict[str, str] = {}
        self.body: list[bytes] = []
        self.keep = True


class Connection:
    """One connection; also what its parser calls back."""

    def __init__(self, link: socket.socket, ordinal: int) -> None:
        link.setblocking(False)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.link = link
        self.fd = link.fileno()
        self.ordinal = ordinal
        self.open = True
        self.requests = 0
        self.waiting: deque[Head] = deque()
        """Requests that are whole, and wait for the answer to the one before."""
        self.stream: Stream | Relayed | None = None
        """What is being answered."""
        self.unsent = bytearray()
        self.closing = False
        """Whether it is closed when all is sent."""
        self._head: Head | None = None
        self._seen = (0, "read")
        self._parser = httptools.HttpRequestParser(self)

    # -- what comes in ----------------------------------------------------------------------------------------

    def read(self) -> bool:
        """Take what is there; returns whether the client goes on.

        Raises:
            HttpParserError: it is not HTTP.
        """
        try:
            if self._head is None:
                # The stamp is that of the last packet that is read, so the first byte is read by itself.
                first = self._receive(1)
                if not first:
                    return False
                self._parser.feed_data(first)
            rest = self._receive(_READ)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if rest:
            self._parser.feed_data(rest)
        return bool(rest)

    def _receive(self, most: int) -> bytes:
        """Read, and note when what is read was there."""
        content, extra, _, _ = self.link.recvmsg(most, _ROOM)
        for level, kind, data in extra:
            if level == socket.SOL_SOCKET and kind == STAMPS:
                seconds, nanoseconds = _STAMP.unpack(data)
                self._seen = (seconds * 1_000_000_000 + nanoseconds, "kernel")
                return content
        self._seen = (time.time_ns(), "read")
        return content

    def on_message_begin(self) -> None:
        """A request begins."""
        self.requests += 1
        self._head = Head(self.requests, *self._seen)

    def on_url(self, url: bytes) -> None:
        """A part of what is asked for."""
        if self._head is not None:
            self._head.path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        if self._head is not None:
            self._head.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The body follows."""
        if self._head is not None:
            self._head.method = self._parser.get_method()
            self._head.keep = self._parser.should_keep_alive()
            if self._head.headers.get("expect", "").lower() == "100-continue":
                self.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        if self._head is not None:
            self._head.body.append(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        if self._head is not None:
            self._head.complete_ns = self._seen[0]
            self.waiting.append(self._head)
            self._head = None

    # -- what goes out ----------------------------------------------------------------------------------------

    def send(self, content: bytes) -> bool:
        """Hand bytes to the kernel, what it does not take later; returns whether the connection still stands."""
        if not self.open:
            return False
        if self.unsent:
            self.unsent += content
            return True
        try:
            sent = self.link.send(content)
        except BlockingIOError:
            sent = 0
        except OSError:
            return False
        if sent < len(content):
            self.unsent += content[sent:]
        return True

    def drain(self) -> bool:
        """Hand over what the kernel did not take before; returns whether the connection still stands."""
        try:
            sent = self.link.send(self.unsent)
        except BlockingIOError:
            return True
        except OSError:
            return False
        del self.unsent[:sent]
        return True

    def close(self, *, reset: bool = False) -> None:
        """End it; by a reset, if asked to."""
        if self.open:
            self.open = False
            if reset:
                self.link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
            self.link.close()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens, and has its connections stamped."""
    link: Any = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    link.setsockopt(socket.SOL_SOCKET, STAMPS, 1)
    link.bind((host, port))
    link.listen(4096)
    link.setblocking(False)
    return link  # type: ignore[no-any-return]  # it is a socket
