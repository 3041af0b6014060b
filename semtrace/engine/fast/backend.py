"""The compiled engine as a backend that runs whole instances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from semtrace.engine.fast.driven import Driving
from semtrace.engine.fast.simulate import Program, simulate
from semtrace.engine.fast.state import ReuseError
from semtrace.engine.form import Form
from semtrace.engine.lifecycle_log import LifecycleLog
from semtrace.engine.log import detail_tables
from semtrace.engine.step import StepEngine
from semtrace.replay.backend import Ran
from semtrace.replay.controller import Controller, VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from semtrace.check.finding import Finding
    from semtrace.engine.log import Detail
    from semtrace.engine.prepared import Prepared
    from semtrace.graph.resolve import Constraints
    from semtrace.policies.interface import Facts, Policy
    from semtrace.records.execution import Backend as BackendFacts
    from semtrace.records.trace import Trace
    from semtrace.replay.arrivals import Instances


class FastEngine:
    """A simulated engine on the compiled loop: what it leaves is what the step engine leaves.

    Args:
        prepared: the trace as the engine sees it, and its settings.
        copies: the instances.
        detail: which detail tables to keep; not `blocks`.
        policy: a lifecycle policy with what it knows of the engine; None if the scheduler alone decides.
    """

    modes = frozenset({"length_locked"})

    def __init__(
        self,
        prepared: Prepared,
        copies: Instances,
        detail: Detail,
        policy: tuple[Policy, Facts] | None = None,
    ) -> None:
        self._prepared = prepared
        self._copies = copies
        self._detail = detail
        self._policy = policy
        self._form: Form | None = None

    def facts(self) -> BackendFacts:
        """Name, and the whole engine document."""
        return self._prepared.facts()

    def environment(self) -> Mapping[str, Any]:
        """After the run, which form of the engine ran, and why."""
        return {} if self._form is None else self._form.environment()

    def refuse(self, trace: Trace, operations: Iterable[int]) -> Iterable[Finding]:
        """Operations that no server could ever run."""
        del trace
        return self._prepared.refuse(operations)

    def simulate(self, constraints: Constraints, progress: Callable[[int, int], None] | None) -> Ran:
        """Run all instances to their end, or until nothing can happen any more."""
        prepared, trace = self._prepared, self._prepared.trace
        program = Program(prepared.group, prepared.oversized, prepared.rank, prepared.rule)
        log = LifecycleLog(self._detail, prepared.document.block_bytes)
        driving = None if self._policy is None else Driving(prepared, *self._policy, log)
        try:
            result = simulate(
                trace,
                constraints,
                self._copies,
                prepared.work,
                prepared.settings,
                prepared.cost,
                program,
                detail=self._detail.steps,
                progress=progress,
                driving=driving,
            )
        except ReuseError:
            return self._by_steps(constraints, progress)
        self._form = Form.fast(compiled=result.compiled)
        sizes = np.diff(prepared.first_event)
        instance = np.repeat(np.arange(len(sizes)), sizes)
        operation = (
            np.arange(len(instance)) + (prepared.first_operation - prepared.first_event[:-1])[instance]
        )
        detail = detail_tables(result.steps, result.step_runs) if self._detail.steps else {}
        detail |= log.tables()
        return Ran(instance, operation, result.arrival_ns, result.columns, result.outcome, detail)

    def _by_steps(self, constraints: Constraints, progress: Callable[[int, int], None] | None) -> Ran:
        """The same on the step engine, for what the compiled one does not do; with the policy as it was before the run."""
        policy = self._policy
        if policy is not None:
            self._form = Form.step(f"policy {policy[0].name} lets calls reuse tokens")
            policy = (type(policy[0])(policy[0].settings, policy[1]), policy[1])
        engine = StepEngine(self._prepared, self._detail, policy)
        run = Controller(self._prepared.trace, constraints, self._copies, engine, VirtualClock(), progress)
        run.run()
        return run.ran()
