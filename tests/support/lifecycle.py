"""Runs of the step engine with a lifecycle policy, in short form; and what is found in their tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semtrace.graph.plan import dag
from semtrace.records.enums import Direction
from semtrace.replay.run import replay
from semtrace.replay.scenario import Scenario
from support.graphs import graph

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semtrace.records.execution import Execution
    from semtrace.records.trace import Trace
    from semtrace.replay.backend import Simulator

TINY = {
    "name": "tiny", "layers": 1, "hidden_size": 8, "heads": 1, "kv_heads": 1, "head_dim": 1, "intermediate_size": 8,
    "vocab_size": 8,
}  # fmt: skip
"""A model whose tokens have 4 bytes of KV."""
COEFFICIENTS = ("c0_ps", "c_seq_ps", "c_prefill_ps", "c_decode_ps", "c_kv_ps")
DETAIL = ("steps", "step_runs", "blocks", "transfers", "decisions")
TIMES = ("submitted_ns", "scheduled_ns", "first_token_ns", "finished_ns")


@dataclass(frozen=True)
class Ran:
    """An execution, and the row of each named operation."""

    trace: Trace
    execution: Execution
    names: dict[str, int]

    def event(self, name: str) -> dict[str, Any]:
        """What happened to an operation of the first instance."""
        found: dict[str, Any] = self.execution.events.data.slice(self.names[name], 1).to_pylist()[0]
        return found

    def rows(self, table: str) -> list[dict[str, Any]]:
        """The rows of a table."""
        found: list[dict[str, Any]] = self.execution[table].data.to_pylist()
        return found


def document(short: dict[str, Any]) -> dict[str, Any]:
    """An engine document: its cost is five numbers in ns, its model the tiny one unless it says otherwise."""
    cost = {name: 1000 * value for name, value in zip(COEFFICIENTS, short["cost"], strict=True)}
    made = {"model": TINY, **short, "cost": {"kind": "linear", **cost}}
    return {key: value for key, value in made.items() if value is not None}


def run_engine(
    operations: Sequence[dict[str, Any]],
    engine: dict[str, Any],
    *,
    detail: Sequence[str] = DETAIL,
    tasks: Sequence[dict[str, Any]] = ({},),
    simulator: Simulator = "fast",
    **scenario: Any,
) -> Ran:
    """Operations in short form on an engine in short form."""
    made = graph({"operations": operations, "tasks": tasks})
    settings = {"backend": {"name": "engine", "settings": document(engine)}, **scenario}
    parsed = Scenario.parse(settings, path="scenario")
    execution = replay(made.trace, dag(made.work), parsed, detail=detail, simulator=simulator)
    return Ran(made.trace, execution, made.rows)


def times(ran: Ran, name: str) -> list[int | None]:
    """When an operation was submitted, scheduled, had its first token, and ended."""
    return [ran.event(name)[each] for each in TIMES]


def decisions(ran: Ran) -> list[list[Any]]:
    """What was decided: time, policy and choice, where something was chosen."""
    return [
        [row["time_ns"], row["policy"], row["choice"]]
        for row in ran.rows("decisions")
        if row["choice"] != "nothing"
    ]


def transfers(ran: Ran) -> list[list[Any]]:
    """What was moved: link, direction, start, end, blocks."""
    return [
        [
            row["link"], Direction(row["direction"]).name.lower(), row["start_ns"], row["end_ns"], row["blocks"],
        ]
        for row in ran.rows("transfers")
    ]  # fmt: skip
