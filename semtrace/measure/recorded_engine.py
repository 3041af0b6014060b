"""The simulated engine that an execution says it ran on, and what it recorded beyond events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semtrace.engine.document import cost_of, parse_engine, settings_of
from semtrace.engine.tier_document import UNDRIVEN
from semtrace.errors import UsageError

if TYPE_CHECKING:
    from semtrace.engine.cost import Cost
    from semtrace.engine.document import EngineDocument
    from semtrace.engine.settings import EngineSettings
    from semtrace.measure.slots import Slots
    from semtrace.records.execution import Backend, Execution


def recorded(execution: Execution, name: str) -> bool:
    """Whether an execution recorded a detail table."""
    return name in execution.header.detail or execution[name].rows > 0


def engine_values(backend: Backend) -> dict[str, Any] | None:
    """The engine document of a backend that has one, `engine` or `vllm`; None of others.

    Raises:
        UsageError: it has none, and should.
    """
    if backend.name == "engine":
        return backend.settings
    if backend.name != "vllm":
        return None
    values = backend.settings.get("engine")
    if not isinstance(values, dict):
        raise UsageError("there is no engine document", code="vllm.engine", path="backend.settings.engine")
    return values


@dataclass(frozen=True)
class Engine:
    """A simulated engine.

    Attributes:
        document: its document.
        settings: its numbers.
        cost: its compiled cost.
    """

    document: EngineDocument
    settings: EngineSettings
    cost: Cost

    @classmethod
    def of(cls, slots: Slots) -> Engine | None:
        """The engine in the header of an execution; None if a replay has another backend, or it is no replay.

        A vLLM engine that is stepped on the virtual clock is one too: it must do what its engine document says (ST-VLM-006).

        Raises:
            SemtraceError: the settings are of no engine.
        """
        header = slots.execution.header
        values = None if header.mode == "native" else engine_values(header.backend)
        if values is None:
            return None
        document = parse_engine(values, path="backend.settings", trace=slots.trace)
        settings = settings_of(document)
        return cls(document, settings, cost_of(document, settings))

    @property
    def driven(self) -> bool:
        """Whether a lifecycle policy acts beside the scheduler."""
        return self.document.policy is not None and self.document.policy.name not in UNDRIVEN

    @property
    def depth(self) -> int:
        """How many steps a server may have in flight."""
        return 2 if self.settings.scheduler.asynchronous else 1
