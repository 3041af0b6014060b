"""Settings of the backend `vllm`: which model, and the engine whose schedule and time it has (spec, vllm.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from pydantic import Field

from semtrace.check.finding import Finding
from semtrace.engine.tier_document import UNDRIVEN
from semtrace.live.settings import Vocabulary  # pydantic reads it
from semtrace.records.document import Document, empty_dict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from semtrace.engine.document import EngineDocument
    from semtrace.engine.settings import EngineSettings

Lock = Literal["logits_processor", "trace_replay"]
"""How vLLM is made to give recorded ids: by our logits processor, or by its own trace replay."""


class VllmSettings(Document):
    """A vLLM engine in this process.

    Attributes:
        model: folder of the model, as vLLM reads it.
        engine: an engine document: what its scheduler and its blocks are, and how long a step takes on the virtual clock.
        dtype: number format of weights and activations.
        inputs: what prompts are: recorded token ids, or synthetic ones; `auto` takes recorded ones where they are complete.
        vocabulary: token ids of synthetic prompts; those of the model if left out.
        synthetic_outputs: whether outputs without recorded ids are locked to synthetic ones.
        lock: how outputs are locked in mode `token_locked`; `auto` asks vLLM which of them it can.
        choices: whether to count the positions at which the model would have chosen another id than the one it was locked to.
        options: further arguments of vLLM's engine (`EngineArgs`), such as `tensor_parallel_size`.
    """

    HINT: ClassVar[str | None] = (
        "for example: backend: {name: vllm, settings: {model: ./tiny, engine: {blocks: 64, block_size: 32, cost: …}}}"
    )

    model: str = Field(min_length=1)
    engine: dict[str, Any]
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    inputs: Literal["auto", "token_ids", "synthetic"] = "auto"
    vocabulary: Vocabulary | None = None
    synthetic_outputs: bool = False
    lock: Literal["auto", "logits_processor", "trace_replay"] = "auto"
    choices: bool = False
    options: dict[str, Any] = Field(default_factory=empty_dict)


def engine_arguments(settings: VllmSettings, engine: EngineSettings) -> dict[str, Any]:
    """The arguments of vLLM's engine that an engine document and the settings give (ST-VLM-002)."""
    scheduler = engine.scheduler
    return {
        **settings.options,
        "model": settings.model,
        "dtype": settings.dtype,
        "block_size": engine.block_size,
        "num_gpu_blocks_override": engine.blocks,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_model_len": scheduler.max_model_len,
        "enable_chunked_prefill": scheduler.chunked_prefill,
        "enable_prefix_caching": scheduler.prefix_caching,
        "long_prefill_token_threshold": scheduler.long_prefill_token_threshold,
        "watermark": (scheduler.watermark_blocks + 0.5) / engine.blocks
        if scheduler.watermark_blocks
        else 0.0,
        "scheduler_reserve_full_isl": scheduler.reserve_full_isl,
        "scheduling_policy": scheduler.order,
        "async_scheduling": False,
    }


OWN: Final = frozenset(
    {"scheduler_cls", "logits_processors", "enable_trace_replay", "skip_tokenizer_init", "seed"}
)
"""Arguments of vLLM's engine that this backend gives itself."""


def unmapped(settings: VllmSettings, document: EngineDocument, engine: EngineSettings) -> Iterator[Finding]:
    """What the engine document asks of an engine that vLLM, one step at a time, does not have (ST-VLM-003)."""

    def told(member: str, why: str, hint: str) -> Finding:
        return Finding("ST-VLM-003", f"{member}: {why}", "settings", member, hint=hint)

    scheduler = document.scheduler
    if document.servers != 1:
        yield told("engine.servers", f"is {document.servers}, one process has one engine", "set servers: 1")
    if scheduler.batching != "continuous":
        yield told("engine.scheduler.batching", "vLLM's batches are continuous", "leave it out")
    if scheduler.threshold_rule != "0.32":
        yield told("engine.scheduler.threshold_rule", "vLLM has the rule of its own release", "leave it out")
    if scheduler.async_scheduling:
        yield told("engine.scheduler.async_scheduling", "one step at a time is in flight", "set it to false")
    if document.policy is not None and document.policy.name not in UNDRIVEN:
        yield told(
            "engine.policy", f"vLLM has no policy {document.policy.name}", "leave it out, or use prefix"
        )
    for member in ("tiers", "links"):
        if getattr(document, member) is not None:
            yield told(f"engine.{member}", "vLLM is run without other memory", "leave it out")
    for name in sorted(settings.options):
        if name in OWN or name in engine_arguments(VllmSettings(model="-", engine={}), engine):
            yield told(
                f"options.{name}", "is given by this backend, or by the engine document", "leave it out"
            )
