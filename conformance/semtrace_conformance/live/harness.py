"""The witness as the harness runs it: one process for all cases, told by lines what to do."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from semtrace.errors import UsageError
from semtrace_conformance.live.seen import observed
from semtrace_conformance.witness.record import read_record

if TYPE_CHECKING:
    from pathlib import Path

    from semtrace_conformance.witness.script import Script

_LONG_S: Final = 30.0
"""Seconds that the witness has to answer a line."""


class WitnessProcess:
    """A witness in a process of its own."""

    def __init__(self) -> None:
        """Start it."""
        command = [sys.executable, "-m", "semtrace_conformance.witness", "--control"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def begin(self, script: Script, record: Path) -> str:
        """Answer by a script from now on; returns the URL.

        Raises:
            UsageError: it does not.
        """
        self._record = record
        told = self._tell({"script": script.model_dump(exclude_defaults=True), "record": str(record)})
        return f"http://127.0.0.1:{told['port']}"

    def end(self) -> dict[str, Any]:
        """End it, and give what it saw, as a certificate keeps it.

        Raises:
            UsageError: it does not answer.
        """
        facts = self._tell({"end": True})
        return observed(read_record(self._record), facts)

    def _tell(self, line: dict[str, Any]) -> dict[str, Any]:
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("it has pipes")  # as it was started
        answer = b""
        with suppress(OSError):
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            self._process.stdin.flush()
            if select.select([self._process.stdout], (), (), _LONG_S)[0]:
                answer = self._process.stdout.readline()
        told: dict[str, Any] = json.loads(answer) if answer else {"error": "it does not answer"}
        if "error" in told:
            raise UsageError(
                f"the witness is at fault: {told['error']}",
                code="certify.witness",
                hint="nothing was judged; please report it",
            )
        return told

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._process.kill()
        self._process.wait()
