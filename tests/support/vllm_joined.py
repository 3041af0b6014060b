"""Two calls, what a client of a vLLM server has of them, and lines of the server's step log on the same clock."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from semtrace.graph.plan import dag
from semtrace.replay.run import replay
from semtrace.replay.scenario import Scenario
from semtrace.transform.rows import with_column
from support.graphs import graph

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from semtrace.records.execution import Execution

UNIX: Final = 1_700_000_000_000_000_000
"""Unix time of the execution's time 0."""
MONOTONIC: Final = 5_000_000
"""What the server's monotonic clock said then."""


def at(ns: int, ahead: int = 0) -> dict[str, int]:
    """Both clocks at a time of the execution."""
    return {"unix_ns": UNIX + ns + ahead, "monotonic_ns": MONOTONIC + ns}


def two_calls(prompts: tuple[int, int] = (7, 3)) -> Any:
    """Two calls with prompts of so many tokens."""
    return graph(
        {
            "operations": [
                {"name": "a", "kind": "llm", "prompt": prompts[0], "output": 3},
                {"name": "b", "kind": "llm", "prompt": prompts[1], "output": 3},
            ]
        }
    )


def client_of(made: Any) -> Execution:
    """What a client has of them: the ids that it sent, and nothing of the server."""
    settings = {"c0_ns": 25, "c_pre_ns": 0, "c_dec_ns": 20}  # it sees all a little later than the server
    scenario = Scenario.parse({"backend": {"name": "ideal", "settings": settings}}, path="scenario")
    ran = replay(made.trace, dag(made.work), scenario)
    events = with_column(
        ran.events.data, "request_id", pa.array(["semtrace-0-0", "semtrace-0-1"], pa.string())
    )
    header = ran.header.model_copy(
        update={"clock": "wall", "origin_unix_ns": UNIX, "measured_at": "client", "tolerance_ns": 1_000_000}
    )
    tables = {"instances": ran.instances.data, "events": events}
    return type(ran).from_arrow(header, tables)


def write(
    folder: Path, records: Iterable[dict[str, Any]], name: str = "steps.jsonl", end: bytes = b""
) -> Path:
    """The log as a file."""
    path = folder / name
    path.write_bytes(b"".join(json.dumps(each).encode() + b"\n" for each in records) + end)
    return path
