"""Shapes of models and figures of devices: documents, and the ones that come with the package.

Each model and device of the catalog is a file of its own under `catalog/`, which says where its figures are from. A user
who adds one copies a file, changes it, and gives its path.
"""

from __future__ import annotations

import difflib
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

from pydantic import Field, model_validator

from semtrace.engine.coefficients import Nanoseconds, Share
from semtrace.errors import DocumentError
from semtrace.records.columns import NULL
from semtrace.records.document import Document, empty_list

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from semtrace.records.trace import Trace

_Count = Annotated[int, Field(ge=1, lt=1 << 32)]
_Amount = Annotated[int, Field(ge=1, lt=1 << 53)]
SUFFIXES: Final = (".yaml", ".yml", ".json")
"""A string that ends so is the path of a document, any other a name."""


class ModelShape(Document):
    """Shape of a decoder-only transformer with grouped-query attention in every layer (ST-COST-010).

    Attributes:
        name: its name.
        aliases: other names under which it is found.
        layers: transformer layers, L.
        hidden_size: width of the residual stream, h.
        heads: query heads, Hq.
        kv_heads: key-value heads, Hk.
        head_dim: width of a head, d; not always hidden size / heads.
        intermediate_size: width of the feed-forward layer, I; not used where there are experts.
        vocab_size: entries of the vocabulary, V.
        experts: experts in each layer, E; left out if it is dense.
        experts_per_token: experts that a token is routed to, K.
        expert_intermediate_size: width of one expert, I_e.
        weight_bytes: bytes of a weight, in memory and in arithmetic, b; whole bits.
        kv_bytes: bytes of an element of the KV cache, k; whole bits.
        source: where the figures are from.
        notes: what is derived or uncertain.
    """

    format: Literal["semtrace-model"] = "semtrace-model"
    name: str = Field(min_length=1)
    aliases: list[str] = Field(default_factory=empty_list)
    layers: _Count
    hidden_size: _Count
    heads: _Count
    kv_heads: _Count
    head_dim: _Count
    intermediate_size: _Count | None = None
    vocab_size: _Count
    experts: _Count | None = None
    experts_per_token: _Count | None = None
    expert_intermediate_size: _Count | None = None
    weight_bytes: float = Field(default=2, gt=0, le=8)
    kv_bytes: float = Field(default=2, gt=0, le=8)
    source: str | None = None
    notes: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> ModelShape:
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads are no multiple of {self.kv_heads} kv_heads (ST-COST-010)")
        mixture = (self.experts, self.experts_per_token, self.expert_intermediate_size)
        if any(mixture) and not all(mixture):
            raise ValueError(
                "experts, experts_per_token and expert_intermediate_size come together (ST-COST-010)"
            )
        if not self.experts and not self.intermediate_size:
            raise ValueError("needs intermediate_size, or experts (ST-COST-010)")
        if self.experts and self.experts_per_token and self.experts_per_token > self.experts:
            raise ValueError(f"{self.experts_per_token} of {self.experts} experts per token (ST-COST-010)")
        for field in ("weight_bytes", "kv_bytes"):
            bits: float = getattr(self, field) * 8
            if bits != int(bits):
                raise ValueError(f"{field} is {getattr(self, field)}, which is no whole number of bits")
        if self._kv_bits % 8:
            raise ValueError(
                f"the KV cache of a token has {self._kv_bits} bits, which are no whole bytes (ST-COST-011)"
            )
        return self

    @property
    def _kv_bits(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * int(self.kv_bytes * 8)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache that a token takes: 2 · L · Hk · d · k (ST-COST-011)."""
        return self._kv_bits // 8


class Device(Document):
    """Figures of one accelerator (ST-COST-012).

    Attributes:
        name: its name.
        aliases: other names under which it is found.
        bf16_flops: dense BF16 operations per second at the peak; left out if not known.
        memory_bytes_per_s: bytes per second between its memory and its processors, at the peak.
        memory_bytes: bytes of its memory.
        host_link_bytes_per_s: bytes per second between it and the host's memory, one way.
        l2_bytes: bytes of its last cache.
        compute_share: part of `bf16_flops` that is reached.
        memory_share: part of `memory_bytes_per_s` that is reached.
        kernel_ns: time that every operator takes beside its work, in ns.
        source: where the figures are from.
        notes: what is derived or uncertain.
    """

    format: Literal["semtrace-device"] = "semtrace-device"
    name: str = Field(min_length=1)
    aliases: list[str] = Field(default_factory=empty_list)
    bf16_flops: _Amount | None = None
    memory_bytes_per_s: _Amount
    memory_bytes: _Amount
    host_link_bytes_per_s: _Amount | None = None
    l2_bytes: _Amount | None = None
    compute_share: Share | None = None
    memory_share: Share | None = None
    kernel_ns: Nanoseconds | None = None
    source: str | None = None
    notes: str | None = None


_Entry = TypeVar("_Entry", bound=Document)


@functools.cache
def models() -> Mapping[str, ModelShape]:
    """The models of the catalog by name, in the order of names."""
    read = [ModelShape.read(path) for path in _files("models")]
    return {each.name: each for each in sorted(read, key=_name)}


@functools.cache
def devices() -> Mapping[str, Device]:
    """The devices of the catalog by name, in the order of names."""
    read = [Device.read(path) for path in _files("devices")]
    return {each.name: each for each in sorted(read, key=_name)}


def _files(kind: str) -> Iterable[Path]:
    return Path(__file__).with_name("catalog").joinpath(kind).glob("*.yaml")


def _name(entry: ModelShape | Device) -> str:
    return entry.name


def find_model(
    given: str | Mapping[str, Any], *, folder: Path | None = None, trace: Trace | None = None
) -> ModelShape:
    """The model that an engine document names, gives the path of, or holds.

    Args:
        given: a name, a path of a YAML or JSON file, or the members of the document.
        folder: what a relative path is relative to; the current folder if left out.
        trace: a trace whose own table of models is asked for names that the catalog does not have.

    Raises:
        DocumentError: there is none of the name (the nearest is named), or the document is wrong.
        UsageError: there is no such file.
    """
    names = _names(models())
    if (
        trace is not None
        and isinstance(given, str)
        and not given.endswith(SUFFIXES)
        and given.casefold() not in names
    ):
        rows = trace["models"].strings("name")
        if given in rows:
            return _shape_in(trace, rows.index(given), given)
    return _find("model", given, ModelShape, models(), names, folder)


def find_device(given: str | Mapping[str, Any], *, folder: Path | None = None) -> Device:
    """The device that an engine document names, gives the path of, or holds.

    Args:
        given: a name, a path of a YAML or JSON file, or the members of the document.
        folder: what a relative path is relative to; the current folder if left out.

    Raises:
        DocumentError: there is none of the name (the nearest is named), or the document is wrong.
        UsageError: there is no such file.
    """
    return _find("device", given, Device, devices(), _names(devices()), folder)


def _find(
    what: str,
    given: str | Mapping[str, Any],
    document: type[_Entry],
    known: Mapping[str, _Entry],
    names: Mapping[str, str],
    folder: Path | None,
) -> _Entry:
    if not isinstance(given, str):
        return document.parse(dict(given), path=what, at=what)
    if given.endswith(SUFFIXES):
        return document.read((folder or Path()) / given)
    if given.casefold() not in names:
        near = difflib.get_close_matches(given.casefold(), names, n=1, cutoff=0.4)
        raise DocumentError(
            f"no {what} {given[:60]!r} in the catalog"
            + (f", did you mean {names[near[0]]!r}?" if near else ""),
            code=f"engine.{what}",
            path=what,
            requirement="ST-COST-013",
            hint=f"the catalog has {', '.join(known)}; others by the path of a .yaml file, or written out",
        )
    return known[names[given.casefold()]]


def _names(known: Mapping[str, ModelShape] | Mapping[str, Device]) -> dict[str, str]:
    """The name of the entry that each name or alias stands for, upper and lower case being the same."""
    return {each.casefold(): entry.name for entry in known.values() for each in (entry.name, *entry.aliases)}


_SHAPE: Final = (
    "layers", "hidden_size", "heads", "kv_heads", "head_dim", "intermediate_size", "vocab_size",
    "experts", "experts_per_token", "expert_intermediate_size",
)  # fmt: skip


def _shape_in(trace: Trace, row: int, name: str) -> ModelShape:
    """The shape that a trace's own table gives, weights and KV cache of 16 bits."""
    values = {column: int(trace["models"].ints(column)[row]) for column in _SHAPE}
    try:
        return ModelShape.parse(
            {
                "name": name,
                **{column: value for column, value in values.items() if value not in (NULL, 0)},
                "source": "the trace's own table of models",
            },
            path=f"models[{row}]",
        )
    except DocumentError as error:
        error.requirement = "ST-COST-013"
        error.hint = f"the trace does not hold the whole shape of {name!r}: write it out, or give a file"
        raise
