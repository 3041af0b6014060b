"""The engine document: what is simulated, as a person writes it (spec, engine.md)."""

from __future__ import annotations

import difflib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from semtrace.engine.catalog import SUFFIXES, Device, ModelShape, find_device, find_model
from semtrace.engine.cost import CostDocument, Limits, compile_cost, read_cost
from semtrace.engine.settings import EngineSettings, SchedulerSettings
from semtrace.engine.tier_document import (
    LinksDocument,
    PolicyDocument,
    TiersDocument,
    judge_lifecycle,
    tier_blocks,
    whole_policy,
)
from semtrace.errors import DocumentError, UsageError
from semtrace.records.document import Document, read_values, with_changes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from semtrace.engine.cost import Cost
    from semtrace.records.trace import Trace

DEFAULT: Final = "qwen3-8b-a100"
"""The ready document that is used where none is named."""
SIZES: Final = ("blocks", "kv_tokens", "kv_bytes")
"""The members of which one says how large the KV cache is."""


class SchedulerDocument(Document):
    """A server's scheduler; settings named as vLLM names them (ST-ENG-002).

    Attributes:
        order: order of those who wait: first come, first served; by the first request of the program (`instance_fcfs`) or
            of the session (`session_fcfs`); the program that was served least first (`plas`); the operation that most calls
            follow first (`critical_path`), or most tokens, which no server can know (`critical_path_oracle`). All but the
            first are vLLM's priority scheduling with priorities that the program gives.
        batching: whether requests join at every step, or only when all of a batch have ended (`static`).
        max_num_seqs: most requests running at once.
        max_num_batched_tokens: most tokens in a step.
        max_model_len: most tokens of a request, prompt and output; no limit but the blocks if left out.
        chunked_prefill: whether a prompt may be computed in several steps.
        prefix_caching: whether full blocks are found again by their content.
        long_prefill_token_threshold: most tokens of one request in a step; 0 for no such limit.
        threshold_rule: `0.32`: a request that is alone is not limited; `0.30`: it is, as in vLLM 0.29 and 0.30.
        watermark: part of the blocks that an admission must leave free while something runs.
        reserve_full_isl: admit a request only if its whole input fits.
        async_scheduling: schedule a step while the one before it computes.
    """

    order: Literal[
        "fcfs", "instance_fcfs", "session_fcfs", "plas", "critical_path", "critical_path_oracle"
    ] = "fcfs"
    batching: Literal["continuous", "static"] = "continuous"
    max_num_seqs: int = Field(default=256, ge=1, lt=1 << 24)
    max_num_batched_tokens: int = Field(default=8192, ge=1, lt=1 << 31)
    max_model_len: int | None = Field(default=None, ge=1, lt=1 << 31)
    chunked_prefill: bool = True
    prefix_caching: bool = True
    long_prefill_token_threshold: int = Field(default=0, ge=0, lt=1 << 31)
    threshold_rule: Literal["0.30", "0.32"] = "0.32"
    watermark: float = Field(default=0.0, ge=0, lt=1)
    reserve_full_isl: bool = True
    async_scheduling: bool = False


class EngineDocument(Document):
    """A simulated serving engine: alike servers, each a model on a device (ST-ENG-001).

    Exactly one of `blocks`, `kv_tokens` and `kv_bytes` says how large the KV cache of a server is.

    Attributes:
        name: its name.
        model: the model, by name, path or written out; needed for `kv_bytes` and for a roofline.
        device: the device, likewise; needed for a roofline.
        blocks: device blocks of a server, the null block included, as vLLM counts them.
        kv_tokens: tokens that the KV cache of a server holds.
        kv_bytes: bytes of the KV cache of a server.
        block_size: tokens in a block.
        scheduler: each server's scheduler.
        cost: what a step takes: a path, or the cost document.
        servers: how many servers.
        routing: how a released operation finds its server.
        oversized: what happens to an operation that no server can hold: an error before the run, or the outcome `refused`.
        policy: what becomes of KV that nothing computes on (lifecycle.md).
        tiers: memory below the device.
        links: the links to it.
        source: where the figures are from.
        notes: remarks.
    """

    HINT: ClassVar[str | None] = "semtrace engines qwen3-8b-a100 prints one to begin with"

    format: Literal["semtrace-engine"] = "semtrace-engine"
    name: str | None = None
    model: str | ModelShape | None = None
    device: str | Device | None = None
    blocks: int | None = Field(default=None, ge=2, lt=1 << 31)
    kv_tokens: int | None = Field(default=None, ge=1, lt=1 << 40)
    kv_bytes: int | None = Field(default=None, ge=1, lt=1 << 53)
    block_size: int = Field(default=16, ge=1, le=1 << 16)
    scheduler: SchedulerDocument = Field(default_factory=SchedulerDocument)
    cost: CostDocument
    servers: int = Field(default=1, ge=1, le=1 << 16)
    routing: Literal["round_robin", "least_loaded", "prefix_aware", "session_sticky"] = "round_robin"
    oversized: Literal["error", "outcome"] = "error"
    policy: PolicyDocument | None = None
    tiers: TiersDocument | None = None
    links: LinksDocument | None = None
    source: str | None = None
    notes: str | None = None

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        given = [name for name in SIZES if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"exactly one of blocks, kv_tokens and kv_bytes is needed, not {' and '.join(given) or 'none'} (ST-ENG-003)"
            )
        if self.kv_bytes is not None and self.model is None:
            raise ValueError("kv_bytes needs a model, which says how many bytes a token takes (ST-ENG-003)")
        return self

    @property
    def block_bytes(self) -> int | None:
        """Bytes of KV that a block holds; None where the model is not known."""
        return self.block_size * self.model.kv_bytes_per_token if isinstance(self.model, ModelShape) else None


def ready_documents() -> dict[str, Path]:
    """The engine documents that come with the package, by name."""
    files = Path(__file__).with_name("catalog").joinpath("engines").glob("*.yaml")
    return {path.stem: path for path in sorted(files)}


def _nearest(given: str, ready: Iterable[str]) -> list[str]:
    """What may have been meant: all names that begin with what was given; without one, all that are equally near."""
    longer = sorted((name for name in ready if given and name.startswith(given)), key=len)
    if longer:
        return longer
    near = difflib.get_close_matches(given, ready, n=20, cutoff=0.4)
    shares = [difflib.SequenceMatcher(None, given, name).ratio() for name in near]
    return sorted(name for name, share in zip(near, shares, strict=True) if share == max(shares))


def read_engine(
    given: str | None,
    changes: Mapping[str, object],
    *,
    trace: Trace | None = None,
) -> EngineDocument:
    """The engine that a user names, with what she changes of it.

    Args:
        given: the name of a ready document, the path of a file, or None for `DEFAULT`.
        changes: values by dotted key (`scheduler.max_num_seqs`).
        trace: a trace whose own models are known too.

    Raises:
        DocumentError: there is no such document, or it is wrong, with every member that is.
        UsageError: there is no such file, or a changed key leads nowhere.
    """
    name = DEFAULT if given is None else given
    folder = None
    if name.endswith(SUFFIXES):
        path = Path(name)
        folder = path.parent
    else:
        ready = ready_documents()
        if name not in ready:
            if Path(name).exists():
                what = "a folder" if Path(name).is_dir() else "a file"
                raise UsageError(
                    f"{what}, and no engine document: its name would end in {', '.join(SUFFIXES)}",
                    code="engine.file",
                    path=name,
                    hint=EngineDocument.HINT,
                )
            near = _nearest(name.casefold(), ready)
            raise DocumentError(
                f"no engine {name[:60]!r}"
                + (f", did you mean {' or '.join(map(repr, near))}?" if near else ""),
                code="engine.unknown",
                path="engine",
                requirement="ST-ENG-001",
                hint=f"ready ones: {', '.join(ready)}; others by the path of a .yaml file",
            )
        path = ready[name]
    values = read_values(path)
    if not isinstance(values, dict):
        return EngineDocument.parse(values, path=str(path))  # says what is wrong
    return parse_engine(change_engine(values, changes), path=name, folder=folder, trace=trace)


def parse_engine(
    values: Mapping[str, Any], *, path: str, folder: Path | None = None, trace: Trace | None = None
) -> EngineDocument:
    """The engine document that these values are, with its model, device and cost in it.

    Args:
        values: the values.
        path: what to call the document in errors.
        folder: what relative paths in it are relative to.
        trace: a trace whose own models are known too.

    Raises:
        DocumentError: it is no engine document, naming every member that is wrong (ST-ENG-001).
        UsageError: there is no such file.
    """
    whole = dict(values)
    with _in_its_place(path):
        if isinstance(whole.get("model"), str):
            whole["model"] = find_model(whole["model"], folder=folder, trace=trace).as_json()
        if isinstance(whole.get("device"), str):
            whole["device"] = find_device(whole["device"], folder=folder).as_json()
        if isinstance(whole.get("cost"), str):
            whole["cost"] = read_cost(whole["cost"], folder=folder).as_json()
        elif isinstance(whole.get("cost"), dict):
            read_cost(whole["cost"])
        if isinstance(whole.get("policy"), dict):
            whole["policy"] = whole_policy(whole["policy"])
        try:
            document = EngineDocument.parse(whole, path=path)
        except DocumentError as error:
            error.requirement = error.requirement or "ST-ENG-001"
            if isinstance(whole.get("policy"), str):
                named = whole["policy"][:60]
                error.hint = f"policy: {{name: {named}}} in a document, or --set policy.name={named}"
            raise
        judge_lifecycle(
            document.policy or PolicyDocument(),
            document.tiers or TiersDocument(),
            document.links or LinksDocument(),
            caching=document.scheduler.prefix_caching,
            block_bytes=document.block_bytes,
        )
        tier_blocks(document.tiers or TiersDocument(), document.block_bytes)
    return document


@contextmanager
def _in_its_place(path: str) -> Iterator[None]:
    """What is wrong with a part of an engine document is told like what is wrong with the rest: the document, then the member."""
    try:
        yield
    except DocumentError as error:
        place = error.path or ""
        if place.partition(".")[0] in EngineDocument.model_fields and not place.endswith(SUFFIXES):
            if not error.message.startswith((f"{place}:", f"{place}.")):
                error.message = f"{place}: {error.message}"
            error.path = path
        raise


def change_engine(values: Mapping[str, Any], changes: Mapping[str, object]) -> dict[str, Any]:
    """The values of an engine document with some of them changed.

    Args:
        values: the values.
        changes: new values by dotted key (`scheduler.max_num_seqs`). One of the three sizes of the KV cache replaces another.

    Raises:
        UsageError: a dotted key leads through something that has no members.
    """
    if any(size in changes for size in SIZES):
        values = {key: value for key, value in values.items() if key not in SIZES}
    return with_changes(values, changes)


def settings_of(document: EngineDocument) -> EngineSettings:
    """The numbers of an engine document.

    Raises:
        DocumentError: the KV cache has fewer than two blocks (ST-ENG-003).
    """
    scheduler = document.scheduler
    blocks = document.blocks
    if blocks is None:
        tokens = document.kv_tokens or 0
        if document.kv_bytes is not None and isinstance(document.model, ModelShape):
            tokens = document.kv_bytes // document.model.kv_bytes_per_token
        blocks = tokens // document.block_size + 1  # the null block holds nothing
    if not 2 <= blocks < 1 << 31:
        raise DocumentError(
            f"the KV cache has {blocks - 1:,} blocks, must have 1 to 2^31 - 2",
            code="engine.blocks",
            path="kv_bytes" if document.kv_bytes is not None else "kv_tokens",
            requirement="ST-ENG-003",
            hint=f"a block has {document.block_size:,} tokens; one at least must fit, and 2^31 - 2 at most",
        )
    return EngineSettings(
        scheduler=SchedulerSettings(
            order="fcfs" if scheduler.order == "fcfs" else "priority",
            static=scheduler.batching == "static",
            max_num_seqs=scheduler.max_num_seqs,
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
            max_model_len=scheduler.max_model_len or (blocks - 1) * document.block_size + 1,
            chunked_prefill=scheduler.chunked_prefill,
            prefix_caching=scheduler.prefix_caching
            and (document.policy is None or document.policy.name != "none"),
            long_prefill_token_threshold=scheduler.long_prefill_token_threshold,
            threshold_always=scheduler.threshold_rule == "0.30",
            watermark_blocks=int(scheduler.watermark * blocks),
            reserve_full_isl=scheduler.reserve_full_isl,
            asynchronous=scheduler.async_scheduling,
        ),
        blocks=blocks,
        block_size=document.block_size,
        servers=document.servers,
        routing=document.routing,
    )


def cost_of(document: EngineDocument, settings: EngineSettings) -> Cost:
    """The compiled cost of an engine document whose model and device are written out.

    Raises:
        DocumentError: a step could take longer than 63 bits hold, or a roofline lacks model or device.
    """
    model = document.model if isinstance(document.model, ModelShape) else None
    device = document.device if isinstance(document.device, Device) else None
    return compile_cost(document.cost, Limits.of(settings), model=model, device=device)
