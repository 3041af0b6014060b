"""Importing recordings, and what a test wants to know of the result."""

from __future__ import annotations

import functools
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semtrace.check import check_execution, check_trace
from semtrace.graph.plan import dag
from semtrace.records.chat import rebuild_request
from semtrace.records.columns import NULL
from semtrace.records.document import canonical_json
from semtrace.records.enums import EdgeKind, EventOutcome, Evidence, OperationKind
from semtrace.replay.run import replay
from semtrace.replay.scenario import Scenario
from semtrace.store.digests import show, work_digest
from semtrace_adapters.autogen import ADAPTER
from semtrace_adapters.base import ImportOptions, ImportResult

if TYPE_CHECKING:
    from collections.abc import Iterable

    from semtrace.records.execution import Execution
    from semtrace.records.trace import Trace

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "autogen"
"""Recordings that the project made, see the README there."""


@dataclass(frozen=True)
class Run:
    """An imported run."""

    result: ImportResult

    @property
    def trace(self) -> Trace:
        return self.result.trace

    @property
    def execution(self) -> Execution:
        assert self.result.execution is not None
        return self.result.execution

    @property
    def losses(self) -> dict[str, int]:
        made: Counter[str] = Counter()
        for loss in self.result.loss:
            made[loss.code] += loss.count
        return dict(made)

    @property
    def llm(self) -> list[int]:
        return self.of(OperationKind.LLM)

    @property
    def tools(self) -> list[int]:
        return self.of(OperationKind.TOOL)

    def of(self, kind: OperationKind) -> list[int]:
        kinds = self.trace.operations.ints("kind")
        return [at for at in range(len(kinds)) if kinds[at] == kind]

    def op(self, operation: int) -> dict[str, Any]:
        return self.trace.operations.row(operation)

    def name(self, operation: int) -> str:
        """Name of an operation and its place among those of its name: `editor`, `writer#2`."""
        names = self.trace.operations.strings("name")
        earlier = names[:operation].count(names[operation])
        return f"{names[operation]}#{earlier + 1}" if earlier else str(names[operation])

    def edges(self, kind: EdgeKind) -> set[tuple[str, str]]:
        """Edges of a kind as (source, target), by the operations' names."""
        edges = self.trace.edges
        kinds, sources, targets = edges.ints("kind"), edges.ints("source"), edges.ints("target")
        return {
            (self.name(int(sources[at])), self.name(int(targets[at])))
            for at in range(edges.rows)
            if kinds[at] == kind
        }

    def evidence(self, kind: EdgeKind) -> dict[tuple[str, str], Evidence]:
        """How each edge of a kind is known."""
        made = {}
        for at in range(self.trace.edges.rows):
            row: dict[str, Any] = self.trace.edges.row(at)
            if row["kind"] == kind:
                made[self.name(row["source"]), self.name(row["target"])] = Evidence(row["evidence"])
        return made

    def stages(self) -> list[tuple[str | None, str, int]]:
        """Stages as (parent's name, name, iteration)."""
        table = self.trace["stages"]
        names, parents, iterations = table.strings("name"), table.ints("parent"), table.ints("iteration")
        return [
            (None if parents[at] == NULL else names[int(parents[at])], str(names[at]), int(iterations[at]))
            for at in range(table.rows)
        ]

    def stage_of(self, operation: int) -> str:
        return str(self.trace["stages"].strings("name")[self.op(operation)["stage"]])

    def session_of(self, operation: int) -> dict[str, Any]:
        return self.trace["sessions"].row(self.op(operation)["session"])

    def event(self, operation: int) -> dict[str, Any]:
        return self.execution.events.row(operation)

    def text(self, artifact: int | None) -> str | None:
        return None if artifact is None else self.trace.artifact_text(artifact)

    def duration_ms(self, operation: int) -> float:
        return self.op(operation)["duration_ns"] / 1e6

    def tokens(self) -> tuple[int | None, int | None]:
        """Sums of the prompt and output tokens of all calls; None if one of them is unknown."""
        sums = []
        for column in ("prompt_tokens", "output_tokens"):
            values = self.trace.operations.ints(column)[self.llm]
            sums.append(None if (values == NULL).any() else int(values.sum()))
        return sums[0], sums[1]


def load(*paths: Path, **values: str) -> Run:
    """Import, with every rule of the standard checked."""
    run = Run(ADAPTER.read(list(paths), ImportOptions(values=values)))
    assert [str(f) for f in check_trace(run.trace)] == []
    if run.result.execution is not None:
        assert [str(f) for f in check_execution(run.execution, run.trace)] == []
    return run


@functools.cache
def recording(folder: Path, *files: str) -> Run:
    """An imported recording, or some files of it; the same object each time."""
    return load(*([folder / f for f in files] or [folder]))


def replays(run: Run) -> None:
    """The trace replays under its own edges, with every operation released and finished."""
    execution = replay(run.trace, dag(show(work_digest(run.trace))), Scenario())
    outcomes = execution.events.ints("outcome")
    assert set(outcomes.tolist()) <= {int(EventOutcome.OK), int(EventOutcome.ERROR)}
    assert len(outcomes) == run.trace.operations.rows


def request_of(logged: dict[str, Any]) -> bytes:
    """What a server got, as what is rebuilt is compared with it."""
    return canonical_json({k: logged[k] for k in ("messages", "tools") if k in logged})


def rebuilt(run: Run, operation: int) -> bytes | None:
    request = rebuild_request(run.trace, operation)
    return None if request is None else canonical_json(request)


def check_against_server(run: Run, requests: Iterable[dict[str, Any]]) -> int:
    """Each call's request and counts are those of the server's access log, and none is missing or too many.

    Returns:
        The number of calls that were compared.
    """
    left: dict[bytes, list[dict[str, Any]]] = {}
    for entry in requests:
        left.setdefault(request_of(entry["request"]), []).append(entry)
    compared = 0
    for operation in run.llm:
        entries = left.get(rebuilt(run, operation) or b"", [])
        assert entries, f"{run.name(operation)}: the server got no such request"
        entry = entries.pop(0)
        row, usage = run.op(operation), entry.get("usage") or entry["response"]["usage"]
        counts = (row["prompt_tokens"], row["output_tokens"])
        if counts != (None, None):
            assert counts == (usage["prompt_tokens"], usage["completion_tokens"]), run.name(operation)
        compared += 1
    assert not any(left.values()), "the server got requests that are not in the trace"
    return compared


def server_log(folder: Path) -> list[dict[str, Any]]:
    """The requests that the test server answered."""
    lines = (folder / "server.jsonl").read_text(encoding="utf-8").splitlines()
    return [entry for entry in map(json.loads, lines) if entry["status"] == 200]
