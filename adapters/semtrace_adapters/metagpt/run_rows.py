"""The rows that a run has so far, as all parts of the conversion see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .memory import Memories

if TYPE_CHECKING:
    from semtrace.build import TraceBuilder
    from semtrace_adapters.base import LossReport

    from .config import Config
    from .run import Run, Turn
    from .team import Team
    from .units import Unit
    from .workspace import Workspace


@dataclass
class Sources:
    """What else is known of a run: the serialised team after it, its workspace, configuration and totals."""

    team: Team | None = None
    workspace: Workspace | None = None
    config: Config | None = None
    totals: tuple[int | None, int | None] = (None, None)


class RunRows:
    """A run, what is known of it, and its rows.

    Attributes:
        task: its task, once that is made.
        units: by `id` of a turn, its operations.
        operations: by `id` of a unit, its operation's row.
        memories: what its roles remember.
    """

    task: int

    def __init__(self, builder: TraceBuilder, run: Run, sources: Sources, loss: LossReport) -> None:
        self.builder, self.run, self.sources, self.loss = builder, run, sources, loss
        self.units: dict[int, list[Unit]] = {}
        self.operations: dict[int, int] = {}
        self.memories = Memories()

    def writer(self, turn: Turn | None, at: int) -> Unit | None:
        """The operation that made what a turn put out at a place of the log."""
        units = self.units[id(turn)] if turn is not None else []
        before = [unit for unit in units if unit.at <= at]
        return before[-1] if before else None
