"""A testee as a process: started in a folder and a process group of its own, asked line by line, ended for certain."""

from __future__ import annotations

import os
import selectors
import shlex
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from semtrace.errors import UsageError
from semtrace_conformance.messages import ANSWER_LIMIT

if TYPE_CHECKING:
    from collections.abc import Sequence

KEPT_STDERR: Final = 8192
"""How much of a testee's standard error is kept, the end of it, in bytes."""
STOP_S: Final = 2.0
"""Seconds that a testee has to end after `stop`."""
_CHUNK: Final = 1 << 16


class TroubleError(Exception):
    """The testee did not answer; the text says what it did instead. It has to be started again.

    Attributes:
        late: whether it used up the time that it had.
    """

    def __init__(self, message: str, *, late: bool = False) -> None:
        super().__init__(message)
        self.late = late


class Connection(Protocol):
    """Something that answers messages."""

    def ask(self, line: bytes, budget_s: float) -> bytes:
        """Send a line, and wait for the line that answers it.

        Raises:
            TroubleError: no line came.
        """
        ...

    def close(self, farewell: bytes) -> None:
        """Send a last line, and end it."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...

    def stderr(self) -> str:
        """The end of what it wrote on standard error."""
        ...


def parse_command(command: str) -> list[str]:
    """A command, as one would type it in a shell, as a program and its arguments; files in it get their full paths.

    Raises:
        UsageError: it is no command, or there is no such program.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--testee {command!r}: {error}", code="certify.testee") from error
    if not words:
        raise UsageError("--testee is empty", code="certify.testee")
    program = shutil.which(words[0])
    if program is None:
        raise UsageError(
            f"there is no testee: {words[0]!r} is not a program that can be run",
            code="certify.testee",
            hint='name a command, for example --testee "python my_testee.py"',
        )
    # The testee runs in a folder of its own, where the paths that its author typed would mean nothing.
    arguments = [str(Path(word).absolute()) if Path(word).is_file() else word for word in words[1:]]
    return [str(Path(program).absolute()), *arguments]


class Process:
    """A running testee."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        """Start it.

        Args:
            command: program and arguments.
            folder: the folder that it runs in, made if it is not there.

        Raises:
            UsageError: it cannot be started.
        """
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=folder,
                env={**os.environ, "TMPDIR": str(temporary)},
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise UsageError(
                f"the testee cannot be started: {error.strerror}", code="certify.testee", path=command[0]
            ) from error
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._stdin, self._stdout, self._stderr = (pipe.fileno() for pipe in pipes if pipe is not None)
        for pipe in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(pipe, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stdout, selectors.EVENT_READ)
        self._selector.register(self._stderr, selectors.EVENT_READ)
        self._out = bytearray()
        self._err = bytearray()

    def ask(self, line: bytes, budget_s: float) -> bytes:
        """Send a line, and wait for the line that answers it.

        Raises:
            TroubleError: it ended, took too long, wrote too much, or wrote unasked.
        """
        deadline = time.monotonic() + budget_s
        self._pump(0)
        if self._out:
            raise TroubleError("it wrote a line that nobody asked for")
        self._send(line, deadline, budget_s)
        while True:
            end = self._out.find(b"\n")
            if end >= 0:
                answer = bytes(self._out[:end])
                del self._out[: end + 1]
                return answer
            if len(self._out) > ANSWER_LIMIT:
                raise TroubleError(f"its answer is longer than {ANSWER_LIMIT} bytes")
            left = deadline - time.monotonic()
            if left <= 0:
                raise TroubleError(f"no answer within {budget_s:g} s", late=True)
            if self._pump(left):
                raise TroubleError(self._ended())

    def _send(self, line: bytes, deadline: float, budget_s: float) -> None:
        rest = memoryview(line)
        self._selector.register(self._stdin, selectors.EVENT_WRITE)
        try:
            while rest:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TroubleError(f"it did not read its input within {budget_s:g} s", late=True)
                self._pump(left)
                with suppress(BlockingIOError):
                    rest = rest[os.write(self._stdin, rest) :]
        except BrokenPipeError:
            raise TroubleError(self._ended()) from None
        finally:
            self._selector.unregister(self._stdin)

    def _pump(self, timeout_s: float) -> bool:
        """Take what there is to read; returns whether standard output has ended."""
        for key, _ in self._selector.select(timeout_s):
            if key.fd == self._stdin:
                continue
            with suppress(BlockingIOError):
                chunk = os.read(key.fd, _CHUNK)
                if key.fd == self._stderr:
                    self._err += chunk
                    del self._err[:-KEPT_STDERR]
                    if not chunk:
                        self._selector.unregister(self._stderr)
                elif chunk:
                    self._out += chunk
                else:
                    return True
        return False

    def _ended(self) -> str:
        """How it ended, in words, once its output has."""
        try:
            status = self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            return "it closed its standard output"
        if status < 0:
            with suppress(ValueError):
                return f"it was ended by {signal.Signals(-status).name}"
        return f"it exited with status {status}"

    def stderr(self) -> str:
        """The end of what it wrote on standard error."""
        while self._stderr in self._selector.get_map():
            before = len(self._err), self._err[-1:]
            self._pump(0)
            if (len(self._err), self._err[-1:]) == before:
                break
        return self._err.decode(errors="replace")

    def close(self, farewell: bytes) -> None:
        """Send a last line, and end the testee with all that it started."""
        with suppress(OSError, TroubleError):
            self._send(farewell, time.monotonic() + STOP_S, STOP_S)
        with suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        self.kill()

    def kill(self) -> None:
        """End the testee and all that it started, at once."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
