"""The witness as the harness runs it: one process for all cases, told by lines what to do."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from semtrace.errors import UsageError
from semtrace_conformance.live.seen import REQUEST, observed
from semtrace_conformance.witness.record import read_record
from semtrace_conformance.witness.relay import BROKE

if TYPE_CHECKING:
    from pathlib import Path

    from semtrace_conformance.live.real_server import RealServer
    from semtrace_conformance.witness.script import Script

_LONG_S: Final = 30.0
"""Seconds that the witness has to answer a line."""


class WitnessProcess:
    """A witness in a process of its own."""

    def __init__(self, server: RealServer | None = None) -> None:
        """Start it.

        Args:
            server: the real server that it passes requests on to; without one it answers by scripts.
        """
        self._server = server
        command = [sys.executable, "-m", "semtrace_conformance.witness", "--control"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def begin(self, script: Script, record: Path) -> str:
        """Answer by a script from now on; returns the URL.

        Raises:
            UsageError: it does not.
        """
        self._record = record
        line = {"script": script.model_dump(exclude_defaults=True), "record": str(record)}
        if self._server is not None:
            line["upstream"] = self._server.upstream.model_dump(exclude_defaults=True)
        told = self._tell(line)
        return f"http://127.0.0.1:{told['port']}"

    def end(self) -> dict[str, Any]:
        """End it, and give what it saw, as a certificate keeps it.

        Raises:
            UsageError: it does not answer, or the real server behind it broke off.
        """
        facts = self._tell({"end": True})
        entries = read_record(self._record)
        broke = [each for each in entries if each.fault == BROKE and REQUEST.fullmatch(each.request_id or "")]
        if broke and self._server is not None:
            status = "no whole answer" if broke[0].status is None else f"status {broke[0].status}"
            raise UsageError(
                f"the server at {self._server.facts.url} broke: {broke[0].request_id} got {status}, and so did {len(broke) - 1} "
                "other requests",
                code="certify.server",
                hint="nothing is judged by a server that fails; look at its log, and certify again",
            )
        return observed(entries, facts)

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
