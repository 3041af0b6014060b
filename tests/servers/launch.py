"""Run the test server in a child process."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVER = Path(__file__).resolve().with_name("openai_server.py")


@dataclass(frozen=True)
class Running:
    """A server in a child process: its base URL (``http://127.0.0.1:PORT/v1``) and its access log."""

    url: str
    log: Path

    def entries(self) -> list[dict[str, Any]]:
        """The access log so far, in order of completion."""
        return [json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines()]


@contextlib.contextmanager
def start_server(log: Path, rules: Path | None = None, port: int = 0) -> Iterator[Running]:
    """Run the server until the block ends.

    Args:
        log: The access log, appended to.
        rules: A rules file; see ``openai_server.Settings``.
        port: A port on 127.0.0.1; 0 takes a free one.

    Raises:
        RuntimeError: The server did not start; its own message is on stderr.
    """
    command = [sys.executable, str(SERVER), "--port", str(port), "--log", str(log)]
    if rules is not None:
        command += ["--rules", str(rules)]
    log.touch()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            url = child.stdout.readline().strip() if child.stdout else ""
            if not url:
                raise RuntimeError(f"the test server did not start (exit code {child.wait()})")
            yield Running(url, log)
        finally:
            child.terminate()
