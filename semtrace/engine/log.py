"""What an engine remembers of its steps, and the detail tables made of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from semtrace.records.execution_tables import EXECUTION_TABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

STEP_COLUMNS: Final = ("server", "index", "start_ns", "end_ns", "tokens", "requests", "free_blocks")
RUN_COLUMNS: Final = ("event", "first_step", "count", "start_position", "tokens_per_step", "phase")


@dataclass(frozen=True)
class Detail:
    """Which detail tables to keep, beyond instances and events.

    Attributes:
        steps: the tables `steps` and `step_runs`.
        blocks, transfers, decisions: the tables of these names.
    """

    steps: bool = False
    blocks: bool = False
    transfers: bool = False
    decisions: bool = False

    @classmethod
    def of(cls, names: Iterable[str]) -> Detail:
        """What these of an execution's detail tables ask for; steps come with their runs."""
        asked = set(names)
        return cls(
            steps=not asked.isdisjoint({"steps", "step_runs"}),
            blocks="blocks" in asked,
            transfers="transfers" in asked,
            decisions="decisions" in asked,
        )


def detail_tables(
    steps: Mapping[str, Sequence[int] | NDArray[np.int64]],
    runs: Mapping[str, Sequence[int] | NDArray[np.int64]],
) -> dict[str, pa.Table]:
    """The tables `steps` and `step_runs` of columns in any order of rows.

    Args:
        steps: columns `STEP_COLUMNS`, one row a step.
        runs: columns `RUN_COLUMNS`, one row a run.
    """
    by_server = np.lexsort((np.asarray(steps["index"]), np.asarray(steps["server"])))
    by_event = np.lexsort((np.asarray(runs["first_step"]), np.asarray(runs["event"])))
    return {
        "steps": _table("steps", STEP_COLUMNS, steps, by_server),
        "step_runs": _table("step_runs", RUN_COLUMNS, runs, by_event),
    }


def _table(
    name: str,
    columns: Sequence[str],
    values: Mapping[str, Sequence[int] | NDArray[np.int64]],
    order: NDArray[np.intp],
) -> pa.Table:
    schema = EXECUTION_TABLE[name].arrow
    return pa.Table.from_arrays(
        [
            pa.array(np.asarray(values[column], dtype=np.int64)[order]).cast(schema.field(column).type)
            for column in columns
        ],
        schema=schema,
    )


@dataclass
class Log:
    """The log of the step engine: a row a step, and a row a run of equal steps of one event.

    Attributes:
        kept: what to keep.
    """

    kept: Detail
    _steps: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in STEP_COLUMNS})
    _runs: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in RUN_COLUMNS})
    _last: dict[int, int] = field(default_factory=dict)
    _count: dict[int, int] = field(default_factory=dict)

    def step(
        self, server: int, start_ns: int, end_ns: int, tokens: int, requests: int, free_blocks: int
    ) -> None:
        """A step was scheduled at `start_ns` and is computed at `end_ns`."""
        if not self.kept.steps:
            return
        index = self._count.get(server, 0)
        self._count[server] = index + 1
        for name, value in zip(
            STEP_COLUMNS, (server, index, start_ns, end_ns, tokens, requests, free_blocks), strict=True
        ):
            self._steps[name].append(value)

    def entry(self, event: int, step: int, position: int, tokens: int, phase: int) -> None:
        """An event gets tokens in a step: its run goes on, or another begins (ST-ENG-062)."""
        if not self.kept.steps:
            return
        runs, last = self._runs, self._last.get(event)
        if (
            last is not None
            and runs["first_step"][last] + runs["count"][last] == step
            and runs["tokens_per_step"][last] == tokens
            and runs["phase"][last] == phase
            and runs["start_position"][last] + runs["count"][last] * tokens == position
        ):
            runs["count"][last] += 1
            return
        self._last[event] = len(runs["event"])
        for name, value in zip(RUN_COLUMNS, (event, step, 1, position, tokens, phase), strict=True):
            runs[name].append(value)

    def tables(self) -> dict[str, pa.Table]:
        """The tables that are kept."""
        return detail_tables(self._steps, self._runs) if self.kept.steps else {}
