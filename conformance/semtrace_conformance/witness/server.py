"""The witness itself: one loop, one thread, sockets that do not block, and a heap of what is due when."""

from __future__ import annotations

import heapq
import select
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import httptools
import orjson

from semtrace_conformance.witness import answers
from semtrace_conformance.witness.asked import (
    TOKENIZE,
    Asked,
    RefusedError,
    check,
    read_asked,
    request_of,
    tokens_of,
)
from semtrace_conformance.witness.connection import Connection, Head, listen
from semtrace_conformance.witness.record import Writer
from semtrace_conformance.witness.relay import Relayed
from semtrace_conformance.witness.script import Death, Service
from semtrace_conformance.witness.stream import GENERATIONS, Stream

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from semtrace_conformance.witness.relay import Upstream
    from semtrace_conformance.witness.script import Script

HOST: Final = "127.0.0.1"
MODELS: Final = "/v1/models"
_IDLE_S: Final = 0.2
"""Longest time that the loop sleeps, in s; what is held of the record is written then."""
_REST_NS: Final = 2_000_000
"""Time without anything due, in ns, from which on the record is written."""
_GONE: Final = select.EPOLLHUP | select.EPOLLERR


class Witness:
    """A server that answers by a script and keeps a record, on 127.0.0.1; or that passes all on to a real one.

    `poll` does what is to be done and comes back after a while, so that a program can do other things between; `run` does
    nothing else. All times of the record are of the clock CLOCK_REALTIME.
    """

    def __init__(self, script: Script, record: Path, port: int = 0, upstream: Upstream | None = None) -> None:
        """Listen.

        Args:
            script: how it answers.
            record: the file of its record, which must not be there yet.
            port: where it listens; any port that is free, if 0.
            upstream: the server that answers instead; of the script nothing counts then.

        Raises:
            OSError: the port is not free, the record is there already, or there is no such server.
        """
        self._script = script
        self._upstream = upstream
        self._address = None if upstream is None else upstream.address()
        self._relayed: dict[int, Relayed] = {}
        self._record = Writer(record)
        try:
            self._listener: Any = listen(HOST, port)
        except OSError:
            self._record.close()
            raise
        self._epoll = select.epoll()
        self.port: int = self._listener.getsockname()[1]
        self._epoll.register(self._listener, select.EPOLLIN)
        self._connections: dict[int, Connection] = {}
        self._due: list[tuple[int, int, Stream | None]] = []
        self._accepted = 0
        self._number = 0
        self._order = 0
        self._attempts: dict[str, int] = {}
        self._others: dict[int, Callable[[], None]] = {}
        self._offset_ns = _offset_ns()
        self.running = True

    # -- the loop ---------------------------------------------------------------------------------------------

    def watch(self, fd: int, call: Callable[[], None]) -> None:
        """Call a function whenever there is something to read at a file descriptor, too."""
        self._others[fd] = call
        self._epoll.register(fd, select.EPOLLIN)

    def run(self) -> None:
        """Serve until `running` is false."""
        while self.running:
            self.poll()

    def poll(self, timeout_s: float = _IDLE_S) -> None:
        """Answer what is there and what is due, after waiting for it for at most so long."""
        now = time.monotonic_ns()
        wait_ns = int(timeout_s * 1e9)
        if self._due:
            wait_ns = min(wait_ns, max(self._due[0][0] - now, 0))
        if wait_ns > _REST_NS:
            self._record.flush()
        if wait_ns:
            # epoll rounds to whole ms, select does not, and says as well when something is there.
            select.select([self._epoll], (), (), wait_ns / 1e9)
        self._advance()
        for fd, what in self._epoll.poll(0):
            connection = self._connections.get(fd)
            if connection is not None:
                self._serve(connection, what)
            elif fd in self._relayed:
                self._pass_on(self._relayed[fd], what)
            elif fd in self._others:
                self._others[fd]()
            elif self._listener is not None and fd == self._listener.fileno():
                self._accept()
        self._advance()

    def _advance(self) -> None:
        """Go on with all answers that are due."""
        while self._due and self._due[0][0] <= time.monotonic_ns():
            _, _, stream = heapq.heappop(self._due)
            if stream is None:
                self._revive()
            elif stream.connection.stream is stream and stream.connection.open:
                self._go_on(stream)

    def _go_on(self, stream: Stream) -> None:
        connection = stream.connection
        if isinstance(stream.fault, Death):
            self._die(stream.fault.for_ns)
            return
        over = stream.advance()
        if over:
            self._over(stream)
        elif stream.due_ns is not None:
            self._push(stream.due_ns, stream)
        if connection.open and connection.unsent:
            self._want(connection)

    def _push(self, due_ns: int, stream: Stream | None) -> None:
        self._order += 1
        heapq.heappush(self._due, (due_ns, self._order, stream))

    def _over(self, stream: Stream | Relayed) -> None:
        """An answer is over: write it down, and go on with what waits on its connection."""
        connection = stream.connection
        cut = not connection.open or (connection.closing and not isinstance(stream, Relayed))
        self._write(stream, "witness" if cut else None)
        connection.stream = None
        if not connection.open:
            self._forget(connection)
            return
        connection.closing = connection.closing or not stream.head.keep
        if connection.closing:
            if not connection.unsent:
                self._close(connection)
        elif connection.waiting:
            self._begin(connection, connection.waiting.popleft())

    def _write(self, stream: Stream | Relayed, closed_by: str | None) -> None:
        self._record.add(stream.line(closed_by))
        if isinstance(stream, Relayed) and self._relayed.pop(stream.fd, None) is not None:
            self._epoll.unregister(stream.link)
            stream.close()

    # -- a real server behind ---------------------------------------------------------------------------------

    def _relay(
        self, connection: Connection, head: Head, asked: Asked, request: str | None, attempt: int
    ) -> None:
        """Begin to pass a request on."""
        if self._upstream is None or self._address is None:
            raise AssertionError("there is no server behind")  # the caller has looked
        relayed = Relayed(
            connection, head, asked, self._upstream, self._address, self._number, request, attempt
        )
        self._number += 1
        connection.stream = relayed
        self._relayed[relayed.fd] = relayed
        self._epoll.register(relayed.link, relayed.mask)

    def _pass_on(self, relayed: Relayed, what: int) -> None:
        """Pass on what the server has sent, or now takes."""
        connection = relayed.connection
        if relayed.go_on(what):
            if connection.stream is relayed:
                self._over(relayed)
        else:
            self._epoll.modify(relayed.link, relayed.mask)
        if connection.open and connection.unsent:
            self._want(connection)

    # -- connections ------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while self._listener is not None:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            self._accepted += 1
            connection = Connection(link, self._accepted)
            if self._accepted in self._script.refuse_connections:
                connection.close(reset=True)
                continue
            self._connections[connection.fd] = connection
            self._epoll.register(link, select.EPOLLIN)
            self._serve(connection, select.EPOLLIN)  # what it sent while it waited to be accepted

    def _serve(self, connection: Connection, what: int) -> None:
        """Take what a connection sends, and hand over what it did not take before."""
        if what & select.EPOLLOUT and not connection.drain():
            self._gone(connection)
            return
        if what & select.EPOLLOUT and not connection.unsent:
            self._epoll.modify(connection.link, select.EPOLLIN)
            if connection.closing and connection.stream is None:
                self._close(connection)
                return
        if what & (select.EPOLLIN | _GONE):
            try:
                goes_on = connection.read()
            except httptools.HttpParserError:
                connection.send(answers.whole(400, answers.problem(400, "this is not HTTP")))
                goes_on = False
            if connection.stream is None and connection.waiting:
                self._begin(connection, connection.waiting.popleft())
            if not goes_on and connection.open:
                self._gone(connection)

    def _want(self, connection: Connection) -> None:
        self._epoll.modify(connection.link, select.EPOLLIN | select.EPOLLOUT)

    def _gone(self, connection: Connection) -> None:
        """The client has left."""
        stream, connection.stream = connection.stream, None
        if stream is not None:
            if stream.ended_ns is None:
                stream.ended_ns = time.time_ns()
            self._write(stream, "client")
        self._close(connection)

    def _close(self, connection: Connection) -> None:
        self._forget(connection)
        connection.close()

    def _forget(self, connection: Connection) -> None:
        """Look at a connection no more; the kernel has taken it out of the poll itself, if it is closed."""
        if self._connections.get(connection.fd) is connection:
            del self._connections[connection.fd]
            if connection.open:
                self._epoll.unregister(connection.link)

    def _die(self, for_ns: int) -> None:
        """Reset all connections, and take none for a while."""
        if self._listener is not None:
            self._epoll.unregister(self._listener)
            self._listener.close()
            self._listener = None
        now = time.time_ns()
        for connection in list(self._connections.values()):
            stream, connection.stream = connection.stream, None
            if stream is not None:
                stream.ended_ns = now
                self._write(stream, "witness")
            self._forget(connection)
            connection.close(reset=True)
        self._push(time.monotonic_ns() + for_ns, None)

    def _revive(self) -> None:
        self._listener = listen(HOST, self.port)
        self._epoll.register(self._listener, select.EPOLLIN)

    # -- requests ---------------------------------------------------------------------------------------------

    def _begin(self, connection: Connection, head: Head) -> None:
        """Begin to answer a request."""
        path = head.path.split(b"?", 1)[0].decode("latin-1")
        asked = Asked(path)
        request = request_of(head.headers.get("x-request-id"))
        attempt = 1
        if request is not None and path in GENERATIONS:
            attempt = self._attempts[request] = self._attempts.get(request, 0) + 1
        if self._upstream is not None and (path != MODELS or self._upstream.models is None):
            if path in GENERATIONS:
                with suppress(RefusedError):  # what is wrong with it is the server's to say
                    read_asked(path, _body(head), asked)
            self._relay(connection, head, asked, request, attempt)
            return
        service, fault = Service(first_token_ns=0), None
        most = 0
        value: Any = None
        try:
            if path in GENERATIONS:
                service, fault = self._script.rule(request or "", attempt)
                read_asked(path, _body(head), asked)
                most = check(self._script, asked)
            else:
                value = self._other(head, asked, path)
        except RefusedError as error:
            fault, value = None, (error.status, answers.problem(error.status, str(error)))
        stream = Stream(
            connection, head, asked, self._script, self._number, request, attempt, service, fault, most
        )
        self._number += 1
        connection.stream = stream
        if value is not None:
            stream.answer(*value)
            self._over(stream)
        elif stream.due_ns is not None and stream.due_ns <= time.monotonic_ns():
            self._go_on(stream)
        elif stream.due_ns is not None:
            self._push(stream.due_ns, stream)

    def _other(self, head: Head, asked: Asked, path: str) -> tuple[int, Any]:
        """The answer to what asks for no tokens of a model."""
        if head.method == b"GET" and path == MODELS:
            own = None if self._upstream is None else self._upstream.models
            return 200, own or answers.models(self._script.models, self._script.context)
        if head.method == b"GET" and path == "/health":
            return 200, {}
        if head.method == b"POST" and path == TOKENIZE and self._script.tokenize:
            body = _body(head)
            text = body.get("prompt") if isinstance(body, dict) else None
            if not isinstance(text, str):
                raise RefusedError("prompt is no text")
            asked.prompt_ids = tokens_of(text)
            ids = list(asked.prompt_ids)
            return 200, {"count": len(ids), "max_model_len": self._script.context, "tokens": ids}
        raise RefusedError("Not Found", 404)

    # -- the end ----------------------------------------------------------------------------------------------

    def close(self) -> dict[str, int]:
        """Write down what was not over, close everything, and end the record.

        Returns:
            `requests`: the entries of the record; `clock_step_ns`: by how much CLOCK_REALTIME was set forward or back
            meanwhile.
        """
        for connection in list(self._connections.values()):
            stream, connection.stream = connection.stream, None
            if stream is not None:
                self._write(stream, "witness")
            self._forget(connection)
            connection.close(reset=True)
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._epoll.close()
        self._record.close()
        return {"requests": self._record.count, "clock_step_ns": abs(_offset_ns() - self._offset_ns)}


def _body(head: Head) -> Any:
    if head.method != b"POST":
        raise RefusedError("Method Not Allowed", 405)
    try:
        return orjson.loads(b"".join(head.body))
    except orjson.JSONDecodeError as error:
        raise RefusedError(f"the body is no JSON: {error}") from error


def _offset_ns() -> int:
    """What CLOCK_REALTIME is ahead of CLOCK_MONOTONIC, in ns: the reading with the least time between."""
    found = []
    for _ in range(9):
        before = time.monotonic_ns()
        now = time.time_ns()
        after = time.monotonic_ns()
        found.append((after - before, now - (before + after) // 2))
    return min(found)[1]
