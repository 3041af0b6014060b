"""The parts of an engine document that speak of KV beyond the device: policy, tiers, links (ST-LIF-001 to ST-LIF-003)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from semtrace.errors import DocumentError
from semtrace.policies.interface import LinkFacts, TierName
from semtrace.policies.registry import find_policy, settings_of_policy
from semtrace.records.document import Document, empty_dict

if TYPE_CHECKING:
    from collections.abc import Mapping

UNDRIVEN = frozenset({"none", "prefix"})
"""Policies that decide nothing: the scheduler alone does what they say."""


class PolicyDocument(Document):
    """A KV lifecycle policy (ST-LIF-001).

    Attributes:
        name: its name.
        settings: its settings; those left out have their defaults.
    """

    name: str = "prefix"
    settings: dict[str, Any] = Field(default_factory=empty_dict)


class TierDocument(Document):
    """How large a memory tier is: one of the two members.

    Attributes:
        blocks: blocks that it has.
        bytes: bytes that it has.
    """

    blocks: int | None = Field(default=None, ge=1, lt=1 << 31)
    bytes: int | None = Field(default=None, ge=1, lt=1 << 53)

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if (self.blocks is None) == (self.bytes is None):
            raise ValueError("exactly one of blocks and bytes is needed (ST-LIF-002)")
        return self


class TiersDocument(Document):
    """The tiers below the device.

    Attributes:
        host: memory of the machine of each server.
        remote: memory elsewhere, which all servers share.
    """

    host: TierDocument | None = None
    remote: TierDocument | None = None


class LinkDocument(Document):
    """A link between device and tier.

    Attributes:
        out_bytes_per_s: bandwidth out of the device.
        in_bytes_per_s: bandwidth into it.
        latency_ns: time before the first byte of a transfer flows.
        per_run_ns: time before that for each contiguous run of device blocks.
    """

    out_bytes_per_s: int = Field(ge=1, lt=1 << 50)
    in_bytes_per_s: int = Field(ge=1, lt=1 << 50)
    latency_ns: int = Field(default=0, ge=0, lt=1 << 40)
    per_run_ns: int = Field(default=0, ge=0, lt=1 << 40)


class LinksDocument(Document):
    """The links, by tier.

    Attributes:
        host: each server's link to its host memory.
        remote: the link to remote memory, which all servers share.
    """

    host: LinkDocument | None = None
    remote: LinkDocument | None = None


def whole_policy(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a policy part with all its settings written out.

    Raises:
        DocumentError: there is no such policy, or its settings are wrong.
        UsageError: it cannot be loaded.
    """
    document = PolicyDocument.parse(dict(values), path="policy", at="policy")
    settings = settings_of_policy(find_policy(document.name), document.settings)
    return {**values, "name": document.name, "settings": settings}


def judge_lifecycle(
    policy: PolicyDocument,
    tiers: TiersDocument,
    links: LinksDocument,
    *,
    caching: bool,
    block_bytes: int | None,
) -> None:
    """Refuse a policy that lacks what it needs, and tiers that nothing can be said of.

    Raises:
        DocumentError: naming the first thing that is missing, with what to do.
    """
    kind = find_policy(policy.name)
    if policy.name != "none" and not caching and (policy.name != "prefix" or policy.model_fields_set):
        raise _refused(
            f"policy {policy.name} needs blocks that are found again, and prefix_caching is off",
            "scheduler.prefix_caching",
            "leave prefix_caching on, or choose the policy none",
        )
    for tier in TierName:
        sized, link = getattr(tiers, tier.value), getattr(links, tier.value)
        if sized is not None and link is None:
            raise _refused(
                f"tier {tier.value} has no link",
                f"links.{tier.value}",
                f"give links.{tier.value}: {{out_bytes_per_s: …, in_bytes_per_s: …}}",
            )
        if link is not None and sized is None:
            raise _refused(
                f"there is a link to tier {tier.value}, and no such tier",
                f"tiers.{tier.value}",
                f"give tiers.{tier.value}: {{blocks: …}} or {{bytes: …}}",
            )
        if sized is not None and block_bytes is None:
            raise _refused(
                "the bytes of a block are not known", "model", "name the model, so that transfers have a size"
            )
        if sized is None and tier in kind.tiers:
            raise _refused(
                f"policy {policy.name} needs the tier {tier.value}",
                f"tiers.{tier.value}",
                f"give tiers.{tier.value}: {{blocks: …}} and links.{tier.value}; the ready engine qwen3-8b-a100-host has both of host",
            )


def tier_blocks(tiers: TiersDocument, block_bytes: int | None) -> dict[TierName, int]:
    """Blocks of each tier that there is.

    Raises:
        DocumentError: a tier is smaller than a block.
    """
    found = {}
    for tier in TierName:
        sized: TierDocument | None = getattr(tiers, tier.value)
        if sized is not None:
            blocks = sized.blocks
            if blocks is None:
                blocks = (sized.bytes or 0) // (block_bytes or 1)
            if not 1 <= blocks < 1 << 31:
                raise _refused(
                    f"tier {tier.value} has {blocks:,} blocks, must have 1 to 2^31 - 1",
                    f"tiers.{tier.value}.bytes",
                    f"a block has {block_bytes} bytes",
                )
            found[tier] = blocks
    return found


def link_facts(links: LinksDocument) -> dict[TierName, LinkFacts]:
    """The figures of each link that there is."""
    found = {}
    for tier in TierName:
        link: LinkDocument | None = getattr(links, tier.value)
        if link is not None:
            found[tier] = LinkFacts(
                link.out_bytes_per_s, link.in_bytes_per_s, link.latency_ns, link.per_run_ns
            )
    return found


def _refused(message: str, path: str, hint: str) -> DocumentError:
    return DocumentError(message, code="engine.lifecycle", path=path, requirement="ST-LIF-002", hint=hint)
