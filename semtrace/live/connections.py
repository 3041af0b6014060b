"""The connections to one server: kept open and warm, watched together, read one at a time.

`turn` is the only thing that waits, and reads one socket at most: whoever calls it can do what is due in between.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import socket
import ssl
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from semtrace.errors import ReplayError, UnsupportedError
from semtrace.live.connection import Connection, State, name_of
from semtrace.records.enums import Failure

if TYPE_CHECKING:
    from semtrace.live.connection import Receiver
    from semtrace.live.settings import Target

MOST_OPENING: Final = 16
"""Most connections that are being set up ahead of need at a time: servers have short queues for them."""
OPENING_NS: Final = 10_000_000_000
"""How long setting up a connection ahead of need may take, in ns."""
DRAINING_NS: Final = 5_000_000_000
"""How long the rest of an answer that is not needed is read, in ns."""
SWEEP_NS: Final = 250_000_000
"""How often connections that take too long are looked for, in ns."""
FIRST_PAUSE_NS: Final = 100_000_000
"""Pause before connecting ahead of need again after a failure, in ns; doubled at each further one."""
LONGEST_PAUSE_NS: Final = 5_000_000_000
"""Longest such pause, in ns."""
BATCH: Final = 64
"""Most sockets that are taken from the kernel's list at a time."""
SPARE_FILES: Final = 128
"""File descriptors that are left to the rest of the process."""

_SELECTABLE: Final = 1024
"""`select` takes file descriptors below this."""
_READ: Final = select.EPOLLIN | select.EPOLLRDHUP if sys.platform == "linux" else 0
_WRITE: Final = select.EPOLLOUT if sys.platform == "linux" else 0
_monotonic_ns = time.monotonic_ns


@dataclass
class Counts:
    """What happened to the connections.

    Attributes:
        opened: connections that were set up.
        not_opened: attempts to set one up that failed.
        opened_late: requests for which one had to be set up when they were due.
        waited: requests that waited because all connections were in use.
        resent: requests sent once more because the server had closed an idle connection.
        most_open: most connections that were open at once.
    """

    opened: int = 0
    not_opened: int = 0
    opened_late: int = 0
    waited: int = 0
    resent: int = 0
    most_open: int = 0


class Pool:
    """Connections to one server."""

    def __init__(self, target: Target, *, most: int) -> None:
        """Make a pool without connections.

        Args:
            target: the server.
            most: most connections open at once.

        Raises:
            UnsupportedError: this system has no epoll.
        """
        if sys.platform != "linux":
            raise UnsupportedError("live replay needs Linux: it waits with epoll", code="live.platform")
        self._target = target
        self.most = _files(most)
        self.counts = Counts()
        self.reserve = 0
        """How many connections are kept that have nothing to do."""
        self.holding = False
        """Whether what waits for a connection is to wait on, until `let_go` (ST-LIV-012)."""
        self._context = ssl.create_default_context() if target.tls else None
        self._addresses: list[tuple[Any, ...]] = []
        self._epoll = select.epoll()
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wakeup, select.EPOLLIN)
        self._open: dict[int, Connection] = {}
        self._masks: dict[int, int] = {}
        self._idle: list[Connection] = []
        self._setting_up: dict[int, tuple[Receiver, bytes] | None] = {}
        self._waiting: deque[tuple[Receiver, bytes]] = deque()
        self._ready: list[tuple[Connection | None, int]] = []
        self._more: deque[Connection] = deque()
        self._pause_ns = FIRST_PAUSE_NS
        self._next_opening_ns = 0
        self._next_sweep_ns = 0
        self.closed = False

    # --- before the run --------------------------------------------------------------------------------

    def establish(self, timeout_ns: int) -> None:
        """Find an address at which the server can be connected to, and connect once.

        Raises:
            ReplayError: there is none.
        """
        target = self._target
        try:
            found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise ReplayError(
                f"there is no host {target.host}",
                code="live.unreachable",
                path=target.url,
                hint="look at the spelling of the URL",
            ) from None
        last = "no address"
        for address in found:
            self._addresses = [address]
            try:
                connection = self._connect()
                deadline = _monotonic_ns() + timeout_ns
                while connection.state in (State.OPENING, State.SHAKING):
                    left = deadline - _monotonic_ns()
                    if left <= 0:
                        raise TimeoutError(errno.ETIMEDOUT, "timed out")
                    waiting = select.EPOLLOUT if connection.wants_write else select.EPOLLIN
                    poller = select.poll()
                    poller.register(connection.fd, waiting)
                    if poller.poll(left / 1e6):
                        connection.opened()
            except OSError as error:
                last = name_of(error)
                self._discard_set_up()
                continue
            self._set_up(connection)
            return
        tls = target.tls and ("TLS" in last or "certificate" in last)
        raise ReplayError(
            f"the server cannot be connected to: {last}",
            code="live.unreachable",
            path=target.url,
            hint="name the certificate's authority in the environment variable SSL_CERT_FILE"
            if tls and "certificate" in last
            else "is it https that it speaks?"
            if tls
            else "is it running, and listening at this address and port?",
        )

    def _discard_set_up(self) -> None:
        for fd in list(self._setting_up):
            self._forget(self._open[fd])

    def begin_counting(self) -> None:
        """What was counted before the run, and is not the run's, is forgotten."""
        self.counts.opened_late = self.counts.waited = self.counts.resent = 0

    # --- sending ---------------------------------------------------------------------------------------

    def send(self, receiver: Receiver, data: bytes) -> None:
        """Send a request now, on a connection that is idle if there is one. The receiver's `sent_ns` says when it was."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.stale():
                self._forget(connection)
                continue
            connection.used = True
            receiver.connection = connection
            connection.send(receiver, data)
            if connection.wants_write or connection.state == State.CLOSED:
                self._after(connection)
            return
        self._send_fresh(receiver, data, late=True)

    def _send_fresh(self, receiver: Receiver, data: bytes, *, late: bool = False) -> None:
        """Send on a connection that is set up for it, or when one is idle again if no more may be opened (ST-LIV-044)."""
        if len(self._open) >= self.most:
            self.counts.waited += 1
            self._waiting.append((receiver, data))
            return
        if late:
            self.counts.opened_late += 1
        try:
            connection = self._connect()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and self._open:
                self.most = len(self._open)
                self._waiting.append((receiver, data))
                return
            self.counts.not_opened += 1
            receiver.broken(Failure.CONNECTION, name_of(error), _monotonic_ns())
            return
        self._setting_up[connection.fd] = (receiver, data)
        receiver.connection = connection
        self._go_on(connection)  # a server on this machine is connected to at once

    def cancel(self, receiver: Receiver) -> None:
        """Close the connection that a request is on: nothing more is told of it."""
        connection = receiver.connection
        receiver.connection = None
        if connection is None:
            self._waiting = deque(each for each in self._waiting if each[0] is not receiver)
            return
        held = self._setting_up.get(connection.fd)
        if connection.receiver is receiver or (held is not None and held[0] is receiver):
            connection.receiver = None
            self._forget(connection)
            self._serve_waiting()

    # --- waiting and reading ---------------------------------------------------------------------------

    def turn(self, wait_ns: int) -> bool:
        """Wait for at most so long for a socket, and handle one; returns whether there was one."""
        ready = self._ready
        if not ready:
            if self._more:
                self._read(self._more.popleft())
                return True
            events = self._epoll.poll(0, BATCH)
            if not events:
                if wait_ns <= 0:
                    return False
                self._sleep(wait_ns)
                events = self._epoll.poll(0, BATCH)
            get = self._open.get
            ready.extend([(get(fd), mask) for fd, mask in events])
            if not ready:
                return False
        connection, mask = ready.pop()
        if connection is None:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wakeup)
        elif connection.state in (State.OPENING, State.SHAKING):
            self._go_on(connection)
        elif connection.state != State.CLOSED:
            if mask & _WRITE:
                connection.writable()
            if mask & ~_WRITE:
                self._read(connection)
            else:
                self._after(connection)
        return True

    def _sleep(self, wait_ns: int) -> None:
        fd = self._epoll.fileno()
        if fd < _SELECTABLE:  # its time-out is in µs, that of epoll in ms
            select.select([fd], [], [], wait_ns * 1e-9)
        else:
            poller = select.poll()
            poller.register(fd, select.POLLIN)
            poller.poll(wait_ns // 1_000_000)

    def wake(self) -> None:
        """Make a `turn` that waits come back; safe in a signal handler."""
        if not self.closed:
            os.eventfd_write(self._wakeup, 1)

    def _read(self, connection: Connection) -> None:
        before = connection.state
        if before == State.CLOSED:
            return
        more = connection.readable()
        state = connection.state
        if state == State.CLOSED or connection.wants_write or _WRITE & self._masks.get(connection.fd, 0):
            self._after(connection)
        elif more:
            self._more.append(connection)
        if state == State.IDLE and before != State.IDLE:
            self._idle.append(connection)
            if self._waiting:
                self._serve_waiting()

    def _after(self, connection: Connection) -> None:
        """Watch a connection for what it waits for now; if it is closed, see to its request."""
        if connection.state != State.CLOSED:
            self._watch(connection)
            return
        receiver, lost = connection.receiver, connection.lost
        connection.receiver = None
        self._forget(connection)
        if receiver is not None and lost is not None:
            receiver.connection = None
            failure, detail = lost
            if connection.used and not connection.answered and failure == Failure.RESET:
                # The server had closed an idle connection: it has not begun to answer (RFC 9112, 9.3.1; ST-LIV-043).
                self.counts.resent += 1
                self._send_fresh(receiver, receiver.again())
            else:
                receiver.broken(failure, detail, _monotonic_ns())
        if self._waiting:
            self._serve_waiting()

    def let_go(self) -> None:
        """Connections that have become free are taken by what waits for them."""
        self.holding = False
        if self._waiting:
            self._serve_waiting()

    def _serve_waiting(self) -> None:
        while not self.holding and self._waiting and (self._idle or len(self._open) < self.most):
            receiver, data = self._waiting.popleft()
            if self._idle:
                self.send(receiver, data)
            else:
                self._send_fresh(receiver, data)

    # --- opening and closing ---------------------------------------------------------------------------

    def _connect(self) -> Connection:
        """Begin to set up a connection.

        Raises:
            OSError: it cannot even begin.
        """
        family, kind, protocol, _, address = self._addresses[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(BlockingIOError):
                sock.connect(address)
        except OSError:
            sock.close()
            raise
        connection = Connection(sock, self._context, self._target.host)
        self._open[connection.fd] = connection
        self._setting_up[connection.fd] = None
        self.counts.most_open = max(self.counts.most_open, len(self._open))
        self._watch(connection)
        return connection

    def _go_on(self, connection: Connection) -> None:
        """Go on with setting up a connection; when it is ready, send what waits for it."""
        held = self._setting_up.get(connection.fd)
        try:
            if connection.state == State.OPENING and not _is_connected(connection.socket):
                return
            connection.opened()
        except OSError as error:
            self.counts.not_opened += 1
            self._next_opening_ns = _monotonic_ns() + self._pause_ns
            self._pause_ns = min(2 * self._pause_ns, LONGEST_PAUSE_NS)
            self._forget(connection)
            if held is not None:
                held[0].connection = None
                held[0].broken(Failure.CONNECTION, name_of(error), _monotonic_ns())
            return
        if connection.state != State.IDLE:
            self._watch(connection)
            return
        self._set_up(connection)
        if held is not None:
            self._idle.remove(connection)
            connection.send(*held)
            self._after(connection)
        elif self._waiting:
            self._serve_waiting()

    def _set_up(self, connection: Connection) -> None:
        del self._setting_up[connection.fd]
        self.counts.opened += 1
        self._pause_ns = FIRST_PAUSE_NS
        self._watch(connection)
        self._idle.append(connection)

    def _watch(self, connection: Connection) -> None:
        mask = _WRITE if connection.state == State.OPENING else _READ
        if connection.wants_write:
            mask |= _WRITE
        known = self._masks.get(connection.fd)
        if known is None:
            self._epoll.register(connection.fd, mask)
        elif known != mask:
            self._epoll.modify(connection.fd, mask)
        self._masks[connection.fd] = mask

    def _forget(self, connection: Connection) -> None:
        """Close a connection; the kernel stops watching what is closed."""
        connection.close()
        if self._open.get(connection.fd) is connection:
            del self._open[connection.fd]
            self._masks.pop(connection.fd, None)
            self._setting_up.pop(connection.fd, None)
            with contextlib.suppress(ValueError):
                self._idle.remove(connection)

    # --- idle time -------------------------------------------------------------------------------------

    @property
    def idle(self) -> int:
        """How many connections have nothing to do."""
        return len(self._idle)

    @property
    def busy(self) -> bool:
        """Whether sockets are known to be ready."""
        return bool(self._ready or self._more)

    def tend(self) -> bool:
        """Do one piece of work that can wait: open a connection ahead of need, close some that take too long.

        Returns:
            Whether there was any.
        """
        now = _monotonic_ns()
        if now >= self._next_sweep_ns:
            self._next_sweep_ns = now + SWEEP_NS
            self._sweep(now)
        ahead = sum(held is None for held in self._setting_up.values()) if self._setting_up else 0
        if (
            len(self._idle) + ahead >= self.reserve
            or ahead >= MOST_OPENING
            or len(self._open) >= self.most
            or now < self._next_opening_ns
        ):
            return False
        try:
            connection = self._connect()
        except OSError:
            self.counts.not_opened += 1
            self._next_opening_ns = now + LONGEST_PAUSE_NS
            return False
        self._go_on(connection)
        return True

    def _sweep(self, now: int) -> None:
        for connection in list(self._open.values()):
            state = connection.state
            if (state == State.DRAINING and now - connection.since_ns > DRAINING_NS) or (
                state in (State.OPENING, State.SHAKING)
                and self._setting_up.get(connection.fd) is None
                and now - connection.since_ns > OPENING_NS
            ):
                self._forget(connection)

    def close(self) -> None:
        """Close everything."""
        if self.closed:
            return
        self.closed = True
        for connection in list(self._open.values()):
            connection.receiver = None
            self._forget(connection)
        self._waiting.clear()
        self._ready.clear()
        self._more.clear()
        self._epoll.close()
        os.close(self._wakeup)


def _is_connected(sock: socket.socket) -> bool:
    """Whether the TCP connection is there, or has failed (`SO_ERROR` says)."""
    poller = select.poll()
    poller.register(sock, select.POLLOUT)
    return bool(poller.poll(0))


def _files(most: int) -> int:
    """How many connections the limit of open files leaves room for; the soft limit is raised if need be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
        return max(1, min(most, soft - SPARE_FILES))
    return most
