"""The simulated engine that an execution says it ran on, and what it recorded beyond events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semtrace.engine.document import cost_of, parse_engine, settings_of
from semtrace.engine.tier_document import UNDRIVEN, TiersDocument, tier_blocks
from semtrace.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

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


@dataclass(frozen=True)
class Memory:
    """What rules on blocks must know of the servers.

    Attributes:
        servers: how many.
        blocks: device blocks of each, the null block included.
        block_size: tokens in a block.
        block_bytes: bytes of a block; None where that is not known.
        depth: steps that a server may have in flight.
        tiers: blocks of other tiers, by name.
    """

    servers: int
    blocks: int
    block_size: int
    block_bytes: int | None
    depth: int
    tiers: Mapping[str, int]

    @classmethod
    def of(cls, execution: Execution, engine: Engine | None) -> Memory | None:
        """The memory of an engine, or of the servers whose step logs were joined to the execution (ST-VLM-017); None if neither is told."""
        if engine is not None:
            document, settings = engine.document, engine.settings
            sizes = tier_blocks(document.tiers or TiersDocument(), document.block_bytes)
            return cls(
                settings.servers,
                settings.blocks,
                settings.block_size,
                document.block_bytes,
                engine.depth,
                {str(name): size for name, size in sizes.items()},
            )
        joined = execution.header.environment.get("vllm_steps")
        servers = joined.get("servers") if isinstance(joined, dict) else None
        if not isinstance(servers, dict) or not servers:
            return None
        told = list(servers.values())
        names = ("blocks", "block_size", "block_bytes", "async_scheduling")
        if any(not isinstance(each, dict) or not set(names) <= each.keys() for each in told):
            return None
        alike = {tuple(each[name] for name in names) for each in told}
        if len(alike) != 1 or not all(name.isdecimal() for name in servers):
            return None
        blocks, size, block_bytes, asynchronous = alike.pop()
        if any(type(each) is not int or each < 1 for each in (blocks, size, block_bytes)):
            return None
        return cls(max(map(int, servers)) + 1, blocks, size, block_bytes, 2 if asynchronous else 1, {})
