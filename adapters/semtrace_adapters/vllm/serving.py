"""Running a vLLM server with the recording scheduler in it, until it ends or is told to."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from semtrace.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

SCHEDULER: Final = "semtrace_adapters.vllm.plugin.content_scheduler"
MIDDLEWARE: Final = "semtrace_adapters.vllm.hints.Hints"
VARIABLE: Final = "SEMTRACE_VLLM_LOG"
_PACKAGES: Final = ("semtrace", "semtrace_adapters")
_STOPS: Final = (signal.SIGINT, signal.SIGTERM)
_POLL_S: Final = 0.2


class Ended:
    """How a server ended.

    Attributes:
        code: its exit code, negative for a signal.
        asked: whether it was told to end.
        killed: whether it had to be killed because it did not.
    """

    def __init__(self, code: int, *, asked: bool, killed: bool) -> None:
        self.code, self.asked, self.killed = code, asked, killed


def recording_command(command: Sequence[str]) -> list[str]:
    """The command of a server with what makes it record.

    Raises:
        UsageError: there is none, or it names a scheduler of its own.
    """
    if not command:
        raise UsageError(
            "no command to run",
            code="record.command",
            hint="semtrace record vllm -o run.semtrace -- vllm serve MODEL",
        )
    if any(each.partition("=")[0].replace("_", "-") == "--scheduler-cls" for each in command):
        raise UsageError(
            "the command names a scheduler of its own, so that the recording one cannot be put in its place",
            code="record.scheduler",
            path="--scheduler-cls",
            hint="leave --scheduler-cls out",
        )
    return [*command, "--scheduler-cls", SCHEDULER, "--middleware", MIDDLEWARE]


@contextlib.contextmanager
def importable(environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """An environment in which Python finds semtrace's packages, and nothing else that lies beside them."""
    with tempfile.TemporaryDirectory(prefix="semtrace-") as folder:
        for package in _PACKAGES:
            spec = importlib.util.find_spec(package)
            if spec is None or not spec.submodule_search_locations:
                raise UsageError(f"{package} is not a folder on this machine", code="record.packages")
            (Path(folder) / package).symlink_to(Path(spec.submodule_search_locations[0]).resolve())
        paths = [folder, *filter(None, [environment.get("PYTHONPATH")])]
        yield {**environment, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}


def serve(command: Sequence[str], log: Path, *, grace_s: float, quiet: bool) -> Ended:
    """Run a server until it ends; Ctrl-C and SIGTERM end it, and a second one kills it.

    Args:
        command: the server's command, that makes it record.
        log: the step log, a file that is there already.
        grace_s: seconds that it has to end when it is told to.
        quiet: whether what it prints goes to standard error.

    Raises:
        UsageError: it cannot be started.
    """
    told: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        told.append(number)

    before = {number: signal.signal(number, stop) for number in _STOPS}
    try:
        with importable({**os.environ, VARIABLE: str(log.resolve())}) as environment:
            server = _start(command, environment, quiet=quiet)
            return _wait(server, told, grace_s)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(command: Sequence[str], environment: dict[str, str], *, quiet: bool) -> subprocess.Popen[bytes]:
    try:
        # a group of its own: it is told to end once, by us, and none of its processes is left
        return subprocess.Popen(  # what the user asked to be run
            list(command), env=environment, start_new_session=True, stdout=sys.stderr if quiet else None
        )
    except OSError as error:
        raise UsageError(
            f"cannot be started: {error.strerror}",
            code="record.start",
            path=command[0],
            hint="give the command of the server as you would run it, in the environment that has vLLM",
        ) from error


def _wait(server: subprocess.Popen[bytes], told: list[int], grace_s: float) -> Ended:
    deadline, passed, killed = None, 0, False
    try:
        while server.poll() is None:
            if len(told) > passed:
                if passed == 0:
                    server.terminate()
                    deadline = time.monotonic() + grace_s
                else:
                    deadline = time.monotonic()
                passed = len(told)
            if deadline is not None and time.monotonic() >= deadline and not killed:
                killed = True
                _kill(server)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(_POLL_S)
    finally:
        _kill(server)  # what is left of its group
        server.wait()
    return Ended(server.returncode, asked=bool(told), killed=killed)


def _kill(server: subprocess.Popen[Any]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(server.pid, signal.SIGKILL)
