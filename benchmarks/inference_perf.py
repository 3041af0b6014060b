"""The peer of `trace.check_1e6`: inference-perf's builder of replay graphs from OTel spans.

It reads the spans of one session and infers which call waits for which by comparing texts; we read the edges from the
file and prove them. Both end with a graph that can be replayed. It needs Python 3.12 or newer.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

VERSION = "0.7.0"
SPANS = 2000

_MEASURE = """
import json, sys, time
from pathlib import Path
from inference_perf.datagen.replay.otel_trace_to_replay_graph import build_graph, build_raw_calls
begin = time.perf_counter()
spans = json.loads(Path(sys.argv[1]).read_text())["spans"]
calls, _ = build_raw_calls(spans)
graph = build_graph(calls, source_file=sys.argv[1])
print(json.dumps({"seconds": time.perf_counter() - begin, "events": len(graph.events)}))
"""


def find_python() -> str | None:
    """A Python of 3.12 or newer, if there is one."""
    known = [*Path.home().glob(".pyenv/versions/3.1[2-9]*/bin/python3")]
    for name in ("python3.14", "python3.13", "python3.12", *map(str, known)):
        found = shutil.which(name)
        if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return found
    return None


def session(path: Path, spans: int) -> None:
    """Write the spans of one session: an agent that calls itself again with a growing history of 20 messages."""
    written = []
    for at in range(spans):
        history = [
            {"role": "user", "content": f"question {turn} of {spans}"}
            for turn in range(max(0, at - 20), at + 1)
        ]
        stamp = f"2026-01-01T{at // 3600:02}:{at // 60 % 60:02}:{at % 60:02}"
        written.append(
            {
                "trace_id": "one",
                "span_id": f"span-{at}",
                "parent_span_id": None,
                "name": "chat m",
                "kind": "SPAN_KIND_INTERNAL",
                "start_time": f"{stamp}.000000",
                "end_time": f"{stamp}.500000",
                "attributes": {
                    "gen_ai.operation.name": "chat",
                    "gen_ai.request.model": "m",
                    "gen_ai.input.messages": json.dumps(history),
                    "gen_ai.output.text": f"answer number {at} to the question that was asked",
                },
                "status": {"code": 1, "message": ""},
            }
        )
    path.write_text(json.dumps({"trace_id": "one", "span_count": spans, "spans": written}))


def seconds_per_operation(folder: Path, root: Path, times: int) -> tuple[float | None, str]:
    """Seconds of the peer for each span of one session, and what that is, or why it was not run."""
    python = find_python()
    if python is None:
        return None, "inference-perf not run: no Python of 3.12 or newer"
    environment = root / ".venvs/inference-perf"
    if not (environment / ".installed").exists():
        subprocess.run([python, "-m", "venv", environment], check=True)
        pip = [
            environment / "bin/pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            f"inference-perf=={VERSION}",
        ]
        if subprocess.run(pip, check=False).returncode:
            return None, f"inference-perf not run: {VERSION} could not be installed"
        (environment / ".installed").touch()
    spans = folder / f"session-{SPANS}.json"
    session(spans, SPANS)
    taken = []
    for _ in range(times):
        done = subprocess.run(
            [environment / "bin/python", "-c", _MEASURE, spans], capture_output=True, text=True, check=False
        )
        if done.returncode:
            return None, f"inference-perf not run: it ended with {done.stderr.strip().splitlines()[-1]}"
        value = json.loads(done.stdout.splitlines()[-1])
        taken.append(value["seconds"] / SPANS)
    return sorted(taken)[
        len(taken) // 2
    ], f"inference-perf {VERSION}, replay graph of one session of {SPANS} spans"
