"""Run one of the teams of examples/autogen under the live recorder; run in AutoGen's environment, `.venvs/autogen`.

    .venvs/autogen/bin/python tests/integration/autogen_live.py SCENARIO FOLDER URL [--provider] [--no-spans] [--off]
        [--kill-after CALLS]

URL is of the test server, whose access log is FOLDER/server.jsonl. Writes FOLDER/run.stsl and prints one JSON object:
what was recorded, and how long it took.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# AutoGen pins a Protobuf that semtrace cannot be installed beside; the recorder needs nothing installed.
sys.path[:0] = [str(ROOT), str(ROOT / "adapters"), str(ROOT / "examples/autogen")]

from opentelemetry import trace  # noqa: E402
from opentelemetry.sdk.trace import TracerProvider  # noqa: E402
from teams import SCENARIOS, Endpoint  # noqa: E402

from semtrace_adapters.autogen.recorder import record_autogen  # noqa: E402


async def run(name: str, url: str, path: Path | None, *, spans: bool) -> dict[str, object]:
    """One run; with a path, recorded."""
    team, task = SCENARIOS[name](Endpoint(url))
    context = contextlib.nullcontext() if path is None else record_autogen(path, spans=spans)
    with context as recording:
        begun = time.perf_counter_ns()  # what is imported and hooked before is paid once
        result = await team.run(task=task)
        ended = time.perf_counter_ns()
        await asyncio.sleep(0.05)  # the runtime finishes its last deliveries after the run has ended
    made: dict[str, object] = {"messages": len(result.messages), "run_ns": ended - begun}
    if recording is not None:
        made |= {
            "records": recording.records,
            "lost": recording.lost,
            "problem": recording.problem,
            "spent_ns": recording.spent_ns,
        }
    return made


def kill_after(calls: int, log: Path) -> None:
    """Kill this process when the server has answered so many calls."""
    while len(log.read_text(encoding="utf-8").splitlines()) < calls:
        time.sleep(0.002)
    os.kill(os.getpid(), 9)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="Run a team under the live recorder.")
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("url")
    parser.add_argument(
        "--provider", action="store_true", help="set a tracer provider before, as applications do"
    )
    parser.add_argument("--no-spans", action="store_true", help="record the event log alone")
    parser.add_argument("--off", action="store_true", help="record nothing")
    parser.add_argument("--kill-after", type=int, help="kill this process after so many calls")
    options = parser.parse_args()
    logging.getLogger("autogen_core").setLevel(logging.CRITICAL)  # tool errors are part of the run
    if options.provider:
        trace.set_tracer_provider(TracerProvider())
    if options.kill_after:
        log = options.folder / "server.jsonl"
        threading.Thread(target=kill_after, args=(options.kill_after, log), daemon=True).start()
    path = None if options.off else options.folder / "run.stsl"
    print(json.dumps(asyncio.run(run(options.scenario, options.url, path, spans=not options.no_spans))))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
