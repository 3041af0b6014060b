"""The compiled engine as a backend that runs whole instances."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from semtrace.engine.fast.simulate import Program, simulate
from semtrace.engine.log import detail_tables
from semtrace.engine.prepared import PLAS
from semtrace.replay.backend import Ran

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from semtrace.check.finding import Finding
    from semtrace.engine.prepared import Prepared
    from semtrace.graph.resolve import Constraints
    from semtrace.records.execution import Backend as BackendFacts
    from semtrace.records.trace import Trace
    from semtrace.replay.arrivals import Instances


class FastEngine:
    """A simulated engine on the compiled loop: what it leaves is what the step engine leaves.

    Args:
        prepared: the trace as the engine sees it, and its settings.
        copies: the instances.
        steps: whether to keep the tables `steps` and `step_runs`.
    """

    modes = frozenset({"length_locked"})

    def __init__(self, prepared: Prepared, copies: Instances, *, steps: bool) -> None:
        self._prepared = prepared
        self._copies = copies
        self._steps = steps

    def facts(self) -> BackendFacts:
        """Name, and the whole engine document."""
        return self._prepared.facts()

    def refuse(self, trace: Trace, operations: Iterable[int]) -> Iterable[Finding]:
        """Operations that no server could ever run."""
        del trace
        return self._prepared.refuse(operations)

    def simulate(self, constraints: Constraints, progress: Callable[[int, int], None] | None) -> Ran:
        """Run all instances to their end, or until nothing can happen any more."""
        prepared, trace = self._prepared, self._prepared.trace
        program = Program(prepared.group, prepared.oversized, prepared.rank, prepared.rule == PLAS)
        result = simulate(
            trace,
            constraints,
            self._copies,
            prepared.work,
            prepared.settings,
            prepared.cost,
            program,
            detail=self._steps,
            progress=progress,
        )
        sizes = np.diff(prepared.first_event)
        instance = np.repeat(np.arange(len(sizes)), sizes)
        operation = (
            np.arange(len(instance)) + (prepared.first_operation - prepared.first_event[:-1])[instance]
        )
        detail = detail_tables(result.steps, result.step_runs) if self._steps else {}
        return Ran(instance, operation, result.arrival_ns, result.columns, result.outcome, detail)
