"""The witness as a program: python -m semtrace_conformance.witness --script FILE --record FILE --port 0.

It prints one line of JSON with its port, and with SIGTERM or SIGINT another one with how many
requests it wrote down. With `--control` it reads lines of JSON instead, and answers each with one:
`{"script": {…}, "record": PATH}` ends what it did before and begins anew, `{"end": true}` ends it. With
`"upstream": {"host": …, "port": …}` it passes all on to that server.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from semtrace_conformance.messages import BadMessageError, explain, parse_json
from semtrace_conformance.witness.relay import Upstream
from semtrace_conformance.witness.script import Script
from semtrace_conformance.witness.server import Witness

if TYPE_CHECKING:
    from collections.abc import Sequence


def _say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _parse(raw: bytes) -> Script:
    """A script.

    Raises:
        ValueError: it is none; the text says why.
    """
    try:
        return Script.model_validate(parse_json(raw))
    except ValidationError as error:
        raise ValueError(explain(error)) from error
    except BadMessageError as error:
        raise ValueError(str(error)) from error


def _settle() -> None:
    """Keep the collection of garbage, of which there is next to none, from taking time."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)


def _stand_alone(script: Path, record: Path, port: int) -> int:
    try:
        witness = Witness(_parse(script.read_bytes()), record, port)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"semtrace-witness: {error}\n")
        return 2

    def stop(*_: object) -> None:
        witness.running = False

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, stop)
    _say({"port": witness.port, "url": f"http://127.0.0.1:{witness.port}"})
    _settle()
    witness.run()
    _say(witness.close())
    return 0


class _Controlled:
    """A witness that is told by lines what to do."""

    def __init__(self) -> None:
        self._witness: Witness | None = None
        self._input = bytearray()
        self._ended = False

    def run(self) -> int:
        os.set_blocking(0, False)
        while not self._ended:
            if self._witness is None:
                os.set_blocking(0, True)
                self._take()
                os.set_blocking(0, False)
            else:
                self._witness.poll()
        self._end()
        return 0

    def _take(self) -> None:
        try:
            content = os.read(0, 1 << 16)
        except BlockingIOError:
            return
        if not content:
            self._ended = True
        self._input += content
        while (end := self._input.find(b"\n")) >= 0:
            line = bytes(self._input[:end])
            del self._input[: end + 1]
            try:
                _say(self._do(json.loads(line)))
            except (ValueError, KeyError, OSError) as error:
                _say({"error": str(error)})

    def _do(self, told: dict[str, Any]) -> dict[str, Any]:
        ended = self._end()
        if "script" not in told:
            return ended
        script = _parse(json.dumps(told["script"]).encode())
        upstream = Upstream.model_validate(told["upstream"]) if "upstream" in told else None
        self._witness = Witness(script, Path(told["record"]), upstream=upstream)
        self._witness.watch(0, self._take)
        _settle()
        return {"port": self._witness.port}

    def _end(self) -> dict[str, int]:
        witness, self._witness = self._witness, None
        return {} if witness is None else witness.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Be a witness; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="semtrace-witness", description="An OpenAI-compatible server that keeps a record."
    )
    parser.add_argument("--script", type=Path, help="how it answers: JSON, as schema/script.json has it")
    parser.add_argument("--record", type=Path, help="the file for its record, one line of JSON a request")
    parser.add_argument(
        "--port", type=int, default=0, help="where it listens on 127.0.0.1; any free port by default"
    )
    parser.add_argument("--control", action="store_true", help="read lines of JSON that say what to do")
    options = parser.parse_args(arguments)
    if options.control:
        return _Controlled().run()
    if options.script is None or options.record is None:
        parser.error("--script and --record are needed")
    return _stand_alone(options.script, options.record, options.port)


if __name__ == "__main__":
    sys.exit(main())
