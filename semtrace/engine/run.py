"""The engine as a backend: which of its two forms runs, and the order of the parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semtrace.engine.fast.backend import FastEngine
from semtrace.engine.log import Detail
from semtrace.engine.prepared import Prepared
from semtrace.engine.step import StepEngine

if TYPE_CHECKING:
    from semtrace.replay.backend import Backend, Setup, Simulation


def engine(setup: Setup) -> Backend | Simulation:
    """The simulated engine of a run.

    Raises:
        DocumentError: the engine document is wrong, with every member that is.
        ReplayError: counts of the trace are not known or contradict each other.
    """
    prepared = Prepared.of(setup.trace, setup.scenario.backend.settings, setup.copies, setup.scenario.salt)
    steps = "steps" in setup.detail
    compiled = setup.simulator == "fast" and not prepared.settings.scheduler.asynchronous
    if compiled:
        return FastEngine(prepared, setup.copies, steps=steps)
    return StepEngine(prepared, Detail(steps=steps))
