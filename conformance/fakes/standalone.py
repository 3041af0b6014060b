"""Wrong testees that know nothing of traces: python standalone.py NAME. Each must get exactly its golden score."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

Json = dict[str, Any]


def send(answer: object) -> None:
    """Write one line."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def started(message: Json, **changes: Any) -> Json:
    """The right answer to `start`, with every profile and feature declared."""
    return {
        "type": "started",
        "protocol": message["protocols"][0],
        "spec": message["specs"][0],
        "testee": {"name": "fake", "version": "0"},
        "profiles": message["profiles"],
        **changes,
    }


def accept(message: Json) -> Json:
    """An answer that accepts, and says nothing."""
    return {"type": "answer", "id": message["id"], "verdict": "accept", "facts": {}}


def reject(message: Json) -> Json:
    """An answer that refuses."""
    return {
        "type": "answer",
        "id": message["id"],
        "verdict": "reject",
        "phase": "invalid",
        "requirement": "ST-TAB-006",
    }


def accept_all(message: Json) -> None:
    """It accepts everything."""
    send(accept(message))


def reject_all(message: Json) -> None:
    """It refuses everything."""
    send(reject(message))


def exit_1(_message: Json) -> None:
    """It exits with status 1 at every question."""
    sys.exit(1)


def silent(_message: Json) -> None:
    """It answers nothing."""


def hangs(_message: Json) -> None:
    """It hangs, deaf to signals, with a child that holds its output open."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    time.sleep(600)


def garbage(_message: Json) -> None:
    """It writes bytes that are no text."""
    sys.stdout.buffer.write(bytes(range(128, 256)) + b"\n")
    sys.stdout.flush()


def echo(message: Json) -> None:
    """It sends the question back."""
    send(message)


def flood(_message: Json) -> None:
    """It writes without end, and without a line end."""
    while True:
        sys.stdout.write("x" * 65536)


def wrong_id(message: Json) -> None:
    """It answers another question."""
    send(accept(message) | {"id": "0" + message["id"]})


def error_all(message: Json) -> None:
    """It says of every question that it could not do it."""
    send({"type": "answer", "id": message["id"], "verdict": "error", "message": "not today"})


def unasked(message: Json) -> None:
    """It writes two lines for every question."""
    send(accept(message))
    send(accept(message))


def guesses(message: Json) -> None:
    """It accepts every other question."""
    send(accept(message) if int(message["id"]) % 2 else reject(message))


def shotgun(message: Json) -> None:
    """It names a list of requirements instead of one."""
    send(reject(message) | {"requirement": ["ST-TAB-006", "ST-ORD-002"]})


RUNS: dict[str, Callable[[Json], None]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        accept_all, reject_all, exit_1, silent, hangs, garbage, echo, flood, wrong_id, error_all, unasked, guesses, shotgun,
    )
}  # fmt: skip


def never_starts(_message: Json) -> None:
    """It exits with status 1 before it has said anything."""
    os._exit(1)


def echoes_start(message: Json) -> None:
    """It sends the first message back."""
    send(message)


def other_protocol(message: Json) -> None:
    """It chooses a protocol that was not offered."""
    send(started(message, protocol=2))


def other_spec(message: Json) -> None:
    """It chooses a version of the spec that was not offered."""
    send(started(message, spec="0.9"))


def knows_neither(_message: Json) -> None:
    """It says that it knows nothing of what is offered."""
    send({"type": "mismatch", "message": "I speak protocol 7"})


def declares_nothing(message: Json) -> None:
    """It declares no profile."""
    send(started(message, profiles={}))


STARTS: dict[str, Callable[[Json], None]] = {
    function.__name__.replace("_", "-"): function
    for function in (never_starts, echoes_start, other_protocol, other_spec, knows_neither, declares_nothing)
}
"""Fakes that are wrong from the start."""


def main(name: str) -> None:
    """Be a wrong testee."""
    for line in sys.stdin:
        message = json.loads(line)
        if message["type"] == "start":
            STARTS.get(name, lambda message: send(started(message)))(message)
        elif message["type"] == "run":
            RUNS[name](message)
        else:
            return


if __name__ == "__main__":
    main(sys.argv[1])
