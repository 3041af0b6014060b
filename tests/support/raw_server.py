"""A server of raw bytes for tests of clients: it does whatever a test says, right or wrong, and notes what it was sent."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator

LIMIT_S = 20
"""Nothing here waits for longer, in s."""
LINGER = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Asked:
    """One request: the ordinals of its connection and of it on the whole server, head, and body."""

    connection: int
    ordinal: int
    head: str
    body: bytes

    @property
    def json(self) -> Any:
        """The body's JSON."""
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        """A header field's value."""
        for line in self.head.split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.lower() == name.lower():
                return value.strip()
        return None


Step = bytes | float | str
"""Bytes to send; seconds to wait; `close`, `reset`, or `hang` (until the client goes or the server ends)."""


@dataclass
class RawServer:
    """The server: its port, and what it was asked."""

    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    closing: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"


Script = "Callable[[Asked], list[Step]]"


@contextlib.contextmanager
def raw_server(
    script: Callable[[Asked], list[Step]],
    *,
    accept: Callable[[int], list[Step]] | None = None,
    tls: ssl.SSLContext | None = None,
    port: int = 0,
) -> Iterator[RawServer]:
    """Run a server until the block ends.

    Args:
        script: what is done about a request.
        accept: what is done when a connection is made, by its ordinal from 0.
        tls: of encrypted connections.
        port: its port; 0 takes a free one.
    """
    server = RawServer()
    listening = socket.create_server(("127.0.0.1", port), backlog=256)
    server.port = listening.getsockname()[1]
    threads: list[threading.Thread] = []

    def do(connection: socket.socket, steps: list[Step]) -> bool:
        for step in steps:
            if isinstance(step, bytes):
                connection.sendall(step)
            elif isinstance(step, float | int):
                server.closing.wait(step)
            elif step == "hang":
                connection.settimeout(0.05)
                while not server.closing.is_set():
                    with contextlib.suppress(TimeoutError):
                        if not connection.recv(1 << 16):
                            break
                return False
            else:
                if step == "reset":
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
                return False
        return True

    def serve(connection: socket.socket, ordinal: int) -> None:
        with contextlib.suppress(OSError, ValueError), connection:
            if tls is not None:
                connection.settimeout(LIMIT_S)
                connection = tls.wrap_socket(connection, server_side=True)  # its owner is the same
            with connection:
                connection.settimeout(0.05)
                if accept is not None and not do(connection, accept(ordinal)):
                    return
                data = b""
                while not server.closing.is_set():
                    try:
                        more = connection.recv(1 << 20)
                    except TimeoutError:
                        continue
                    if not more:
                        return
                    data += more
                    while b"\r\n\r\n" in data:
                        head, _, rest = data.partition(b"\r\n\r\n")
                        asked = Asked(ordinal, 0, head.decode("latin-1"), b"")
                        length = int(asked.header("content-length") or 0)
                        if len(rest) < length:
                            break
                        data = rest[length:]
                        with server.lock:
                            asked = Asked(ordinal, len(server.asked), asked.head, rest[:length])
                            server.asked.append(asked)
                        connection.settimeout(LIMIT_S)
                        if not do(connection, script(asked)):
                            return
                        connection.settimeout(0.05)

    def listen() -> None:
        listening.settimeout(0.05)
        while not server.closing.is_set():
            try:
                connection, _ = listening.accept()
            except TimeoutError:
                continue
            thread = threading.Thread(target=serve, args=(connection, server.connections))
            server.connections += 1
            thread.start()
            threads.append(thread)

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        yield server
    finally:
        server.closing.set()
        listener.join(LIMIT_S)
        listening.close()
        for thread in threads:
            thread.join(LIMIT_S)


def until(condition: Callable[[], object], turn: Callable[[], object] = lambda: time.sleep(0.001)) -> None:
    """Turn until a condition holds; a test that waits for it in vain fails."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        turn()


# --- answers ------------------------------------------------------------------------------------------


def plain(status: str, body: bytes, *fields: str) -> bytes:
    """An answer with its length."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *fields, "", ""]
    return "\r\n".join(lines).encode() + body


def as_json(value: Any, status: str = "200 OK", *fields: str) -> bytes:
    """An answer of JSON."""
    return plain(status, json.dumps(value).encode(), "Content-Type: application/json", *fields)


def chunk(data: bytes) -> bytes:
    """A chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DONE = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def event(value: Any) -> bytes:
    """An event of a stream, in a chunk of its own."""
    return chunk(b"data: " + json.dumps(value).encode() + b"\n\n")


def tokens(ids: list[int], *, finish: str | None = None, text: str = "t") -> bytes:
    """An event with output."""
    return event({"choices": [{"index": 0, "text": text, "token_ids": ids, "finish_reason": finish}]})


def usage(prompt: int, output: int, cached: int | None = None) -> bytes:
    """An event with the counts."""
    counts: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": output}
    if cached is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    return event({"choices": [], "usage": counts})
