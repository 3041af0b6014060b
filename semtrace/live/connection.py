"""One connection to a server: HTTP/1.1 over a non-blocking socket, one request at a time."""

from __future__ import annotations

import errno
import socket
import ssl
import time
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

import httptools

from semtrace.records.enums import Failure

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_HEAD_BYTES: Final = 64 << 10
"""Largest head of an answer (status line and header fields, trailers too), in bytes."""
MOST_FIELDS: Final = 256
"""Most header fields of an answer."""
READ_BYTES: Final = 256 << 10
"""Most bytes that are read at a time."""

_BUFFER: Final = memoryview(bytearray(READ_BYTES))
"""What is read goes here first: reading is done in one thread, and done with before the next."""

_LONG_HEAD: Final = f"a head of more than {MOST_HEAD_BYTES:,} bytes"
_WAIT: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError, InterruptedError)
_monotonic_ns = time.monotonic_ns


class Receiver(Protocol):
    """What is told of the answer to one request. Times are monotonic, in ns."""

    sent_ns: int | None
    """When its first byte was first handed to the kernel."""
    connection: Connection | None
    """The connection that it is on; set by the pool."""

    def head(self, status: int, fields: Mapping[bytes, bytes]) -> bool:
        """Status and header fields are there; returns whether they say that this answers another request."""
        ...

    def body(self, data: bytes, at_ns: int) -> bool:
        """A part of the body; returns whether it needs no more."""
        ...

    def ended(self, at_ns: int) -> None:
        """The answer is there, or it needs no more of it. The last call."""
        ...

    def broken(self, failure: Failure, detail: str, at_ns: int) -> None:
        """No whole answer will come. The last call."""
        ...

    def again(self) -> bytes:
        """The request once more: the server closed the connection before it saw it."""
        ...


class State(IntEnum):
    """What a connection is doing."""

    OPENING = 1
    """TCP is being set up."""
    SHAKING = 2
    """TLS is being set up."""
    IDLE = 3
    """It waits for a request."""
    BUSY = 4
    """It has a request that is not answered."""
    DRAINING = 5
    """It reads the rest of an answer that nobody needs."""
    CLOSED = 6
    """It is no more."""


class Connection:
    """One connection; it tells its receiver what comes, and closes itself at anything that is not as it must be.

    Attributes:
        socket: the socket.
        state: what it is doing.
        receiver: who is told of the answer to the request that it has.
        used: whether it was idle when the request was given to it: then the server may have closed it meanwhile.
        since_ns: when it began to be set up, to read what nobody needs, or to be idle, monotonic.
        answered: whether any byte of the answer has come.
        lost: why it closed itself with a request on it, None if it did not.
    """

    __slots__ = (
        "_at_ns", "_close_after", "_complete", "_context", "_field_bytes", "_fields", "_framed", "_head_bytes", "_host",
        "_in_head", "_out", "_parser", "_quiet_bytes", "answered", "fd", "lost", "receiver", "since_ns", "socket",
        "state", "used", "wants_write",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, context: ssl.SSLContext | None, host: str) -> None:
        """Take a socket that is being connected.

        Args:
            sock: the socket, not blocking.
            context: of TLS, None for none.
            host: the name that the server's certificate must have.
        """
        self.socket = sock
        self._context = context
        self._host = host
        self.fd = sock.fileno()
        self.state = State.OPENING
        self.receiver: Receiver | None = None
        self.used = False
        self.since_ns = _monotonic_ns()
        self.answered = False
        self.lost: tuple[Failure, str] | None = None
        self.wants_write = True
        self._out: memoryview | None = None
        self._at_ns = 0
        self._fields: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._in_head = True
        self._framed = False
        self._complete = False
        self._close_after = False
        self._quiet_bytes = 0
        self._field_bytes = 0
        self._parser: Any = httptools.HttpResponseParser(self)

    # --- setting up ------------------------------------------------------------------------------------

    def opened(self) -> None:
        """Go on with setting up; the state says how far it came.

        Raises:
            OSError: it cannot be set up.
        """
        if self.state == State.OPENING:
            error = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise OSError(error, errno.errorcode.get(error, "unknown"))
            if self._context is not None:
                self.socket = self._context.wrap_socket(
                    self.socket, server_hostname=self._host, do_handshake_on_connect=False
                )
                self.state = State.SHAKING
        if isinstance(self.socket, ssl.SSLSocket):
            try:
                self.socket.do_handshake()
            except ssl.SSLWantReadError:
                self.wants_write = False
                return
            except _WAIT:
                self.wants_write = True
                return
        self.state = State.IDLE
        self.wants_write = False

    # --- sending ---------------------------------------------------------------------------------------

    def stale(self) -> bool:
        """Whether the server has closed it, or sent what it was not asked for: that would pass for the next answer."""
        try:
            if isinstance(self.socket, ssl.SSLSocket):
                self.socket.recv(1)  # of TLS itself there may be something to read; anything else ends it
            else:
                self.socket.recv(1, socket.MSG_PEEK)
        except _WAIT:
            return False
        except OSError:
            return True
        return True

    def send(self, receiver: Receiver, data: bytes) -> None:
        """Send a request on an idle connection; what the kernel does not take at once follows in `writable`."""
        self.receiver = receiver
        self.state = State.BUSY
        self.answered = False
        self.lost = None
        self._in_head = True
        self._head_bytes = 0
        self._complete = False
        at = _monotonic_ns()
        if receiver.sent_ns is None:
            receiver.sent_ns = at
        try:
            sent = self.socket.send(data)
        except _WAIT:
            sent = 0
        except OSError as error:
            self.fail(Failure.RESET, name_of(error))
            return
        if sent < len(data):
            self._out = memoryview(data)[sent:]
            self.wants_write = True

    def writable(self) -> None:
        """Send more of a request."""
        out = self._out
        if out is None:
            self.wants_write = False
            return
        try:
            sent = self.socket.send(out[:READ_BYTES])
        except _WAIT:
            return
        except OSError:
            # The server may have answered before it read everything: what it said is read first.
            self._out = None
            self.wants_write = False
            self._close_after = True
            return
        out = out[sent:]
        self._out = out if len(out) else None
        self.wants_write = self._out is not None

    # --- receiving -------------------------------------------------------------------------------------

    def _is(self, state: State) -> bool:
        return self.state == state  # asked for anew: the parser's calls change it

    def readable(self) -> bool:
        """Read once and tell the receiver; returns whether more is there that the kernel does not know of (TLS)."""
        try:
            count = self.socket.recv_into(_BUFFER)
        except _WAIT:
            return False
        except OSError as error:
            self.fail(Failure.RESET, name_of(error))
            return False
        self._at_ns = _monotonic_ns()
        if count == 0:
            self._end_of_file()
            return False
        if self.state == State.IDLE:
            self.close()  # what came, nobody asked for
            return False
        self.answered = True
        self._quiet_bytes += count
        if self._in_head:
            self._head_bytes += count
        try:
            self._parser.feed_data(_BUFFER[:count])
        except httptools.HttpParserUpgrade:
            self.fail(Failure.PROTOCOL, "the server changed to another protocol")
        except httptools.HttpParserError as error:
            if self._complete and self._is(State.IDLE):
                self.close()  # what follows a whole answer is nobody's
            else:
                detail = "" if self.lost is None else self.lost[1]
                self.fail(Failure.PROTOCOL, detail or f"no HTTP answer ({type(error).__name__})")
        else:
            if self._in_head and self._head_bytes > MOST_HEAD_BYTES and not self._is(State.IDLE):
                self.fail(Failure.PROTOCOL, _LONG_HEAD)
            elif self._quiet_bytes > READ_BYTES + MOST_HEAD_BYTES:
                self.fail(Failure.PROTOCOL, "trailers or chunk headers without end")
            elif self.lost is not None:
                self.fail(*self.lost)
            elif self._complete and self._close_after:
                self.close()
        return isinstance(self.socket, ssl.SSLSocket) and self.socket.pending() > 0

    def _end_of_file(self) -> None:
        """The server has closed its side: the end of an answer without a length, else of one that is not whole."""
        receiver = self.receiver
        if self.state == State.BUSY and receiver is not None and not self._in_head and not self._framed:
            self.receiver = None
            self.close()
            receiver.ended(self._at_ns)
        elif self.answered:
            self.fail(Failure.RESET, "the connection was closed before the end of the answer")
        else:
            self.fail(Failure.RESET, "the connection was closed before an answer")

    # What follows is called by the parser. An exception in it would be the parser's: limits are noted in `lost`.

    def on_message_begin(self) -> None:
        """An answer begins."""
        self._fields = {}
        self._field_bytes = 0
        self._framed = False
        self._in_head = True
        if self._complete:
            self.lost = (Failure.PROTOCOL, "an answer that nobody asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header field, or a trailer."""
        if not self._in_head:
            return
        if len(self._fields) >= MOST_FIELDS:
            self.lost = (Failure.PROTOCOL, f"more than {MOST_FIELDS} header fields")
            return
        self._field_bytes += len(name) + len(value)
        if self._field_bytes > MOST_HEAD_BYTES:
            self.lost = (Failure.PROTOCOL, _LONG_HEAD)
            return
        name = name.lower()
        self._fields[name] = value
        if name in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        """The head is there. Answers of 100 to 199 come before the one that counts."""
        status = self._parser.get_status_code()
        if status < 100:
            self.lost = (Failure.PROTOCOL, f"status {status}")
        if status < 200:
            return
        self._in_head = False
        if status in (204, 304):
            self._framed = True
        if self.receiver is not None and self.lost is None and self.receiver.head(status, self._fields):
            self.lost = (Failure.PROTOCOL, "the answer names another request of the run")

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        self._quiet_bytes = 0
        receiver = self.receiver
        if receiver is not None and self.lost is None and receiver.body(data, self._at_ns):
            self.receiver = None
            self.state = State.DRAINING
            self.since_ns = self._at_ns
            receiver.ended(self._at_ns)

    def on_message_complete(self) -> None:
        """The answer is there."""
        if self._in_head:  # 100 to 199
            return
        self._complete = True
        self._quiet_bytes = 0
        receiver, self.receiver = self.receiver, None
        if self._out is not None or not self._parser.should_keep_alive():
            self._close_after = True
        self.state = State.IDLE
        self.since_ns = self._at_ns
        if receiver is not None:
            if self.lost is None:
                receiver.ended(self._at_ns)
            else:
                receiver.broken(*self.lost, self._at_ns)

    # --- ending ----------------------------------------------------------------------------------------

    def fail(self, failure: Failure, detail: str) -> None:
        """Close it; `lost` says why if it had a request, which is still its receiver's."""
        if self.receiver is not None:
            self.lost = (failure, detail)
        self.close()

    def close(self) -> None:
        """Close the socket."""
        if self.state != State.CLOSED:
            self.state = State.CLOSED
            self.socket.close()
            self._parser = None  # it holds this object, this object holds it
            self._out = None


def name_of(error: OSError) -> str:
    """What a socket error is, without the address and the words of libraries."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or 'failed'}"
    if isinstance(error, socket.gaierror):
        return "no such host"
    if error.errno is None:
        return "the connection failed"
    return {
        errno.ECONNREFUSED: "connection refused",
        errno.ECONNRESET: "connection reset",
        errno.EPIPE: "the server closed the connection",
        errno.EHOSTUNREACH: "host unreachable",
        errno.ENETUNREACH: "network unreachable",
        errno.ETIMEDOUT: "no answer from the host",
        errno.EMFILE: "too many open files",
    }.get(error.errno, errno.errorcode.get(error.errno, "the connection failed"))
