"""The remarks of several bundles as those of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from semtrace.errors import FormatError
from semtrace.store.bundle import BundleInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from semtrace.store.manifest import Loss

Each = TypeVar("Each")

_PLACES: Final = 10
"""Places that an entry of a loss report names at most."""


def merge_info(infos: Sequence[BundleInfo]) -> tuple[BundleInfo, list[str]]:
    """The remarks of several bundles, without their lineage, and what could not be carried over.

    Raises:
        FormatError: a tokenizer has two digests.
    """
    notes: list[str] = []
    tokenizers: dict[str, str] = {}
    extra: dict[str, Any] = {}
    for info in infos:
        for name, digest in info.tokenizers.items():
            if tokenizers.setdefault(name, digest) != digest:
                raise FormatError(
                    f"the tokenizer {name} is {tokenizers[name]} in one trace and {digest} in another",
                    code="merge.tokenizer",
                )
        for key, value in info.extra.items():
            if extra.setdefault(key, value) != value:
                notes.append(f"{key} is the first trace's that has it")
    made = BundleInfo(
        sources=_distinct(source for info in infos for source in info.sources),
        loss=_losses(loss for info in infos for loss in info.loss),
        licence=" AND ".join(_distinct(info.licence for info in infos if info.licence)) or None,
        notes="\n".join(_distinct(info.notes for info in infos if info.notes)) or None,
        optional_features=_distinct(name for info in infos for name in info.optional_features),
        tokenizers=tokenizers,
        extra=extra,
    )
    if any(info.licence for info in infos) and not all(info.licence for info in infos):
        notes.append("a trace without a licence is in it")
    return made, notes


def _distinct(values: Iterable[Each]) -> list[Each]:
    made: list[Each] = []
    for value in values:
        if value not in made:
            made.append(value)
    return made


def _losses(losses: Iterable[Loss]) -> list[Loss]:
    """Entries of loss reports, those of the same kind added up."""
    made: dict[tuple[str, str, str], Loss] = {}
    for loss in losses:
        key = (loss.code, loss.effect, loss.message)
        known = made.get(key)
        if known is not None:
            where = _distinct([*known.where, *loss.where])[:_PLACES]
            loss = known.model_copy(update={"count": known.count + loss.count, "where": where})  # noqa: PLW2901
        made[key] = loss
    return list(made.values())
