"""The engine as a backend: which of its two forms runs, and the order of the parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semtrace.engine.fast.backend import FastEngine
from semtrace.engine.log import Detail
from semtrace.engine.prepared import Prepared
from semtrace.engine.step import StepEngine
from semtrace.engine.tier_document import UNDRIVEN, LinksDocument, TiersDocument, link_facts, tier_blocks
from semtrace.errors import DocumentError, ReplayError, SemtraceError
from semtrace.policies.interface import Facts
from semtrace.policies.registry import find_policy

if TYPE_CHECKING:
    from semtrace.engine.document import EngineDocument
    from semtrace.engine.settings import EngineSettings
    from semtrace.policies.interface import Policy
    from semtrace.replay.backend import Backend, Setup, Simulation


def engine(setup: Setup) -> Backend | Simulation:
    """The simulated engine of a run.

    Raises:
        DocumentError: the engine document is wrong, with every member that is; or it names no model, and blocks are asked for.
        ReplayError: counts of the trace are not known or contradict each other.
    """
    prepared = Prepared.of(setup.trace, setup.scenario.backend.settings, setup.copies)
    if "blocks" in setup.detail and prepared.document.block_bytes is None:
        raise DocumentError(
            "the bytes of a block are not known, so the table blocks cannot be kept",
            code="engine.lifecycle",
            path="backend.settings.model",
            requirement="ST-LIF-050",
            hint="name the model in the engine document",
        )
    policy = policy_of(prepared)
    detail = Detail.of(setup.detail)
    why = "it was asked for" if setup.simulator == "step" else why_by_steps(prepared, detail, policy)
    if why is None:
        return FastEngine(prepared, setup.copies, detail, policy)
    return StepEngine(prepared, detail, policy, why=why)


def why_by_steps(prepared: Prepared, detail: Detail, policy: tuple[Policy, Facts] | None) -> str | None:
    """Why the compiled engine cannot run this; None if it can, unless the policy reuses tokens without saying so before."""
    if detail.blocks:
        return "only that keeps the table blocks"
    if policy is None:
        return None
    if policy[0].pieces:
        return f"policy {policy[0].name} looks at the pieces of prompts"
    if prepared.document.oversized == "outcome" and (refused := int(prepared.oversized.sum())):
        return f"a policy decides, and {refused:,} operations of the trace are too large for every server"
    return None


def policy_of(prepared: Prepared) -> tuple[Policy, Facts] | None:
    """The lifecycle policy of a run, and what it knows of the engine; None where the scheduler alone decides."""
    return policy_for(prepared.document, prepared.settings)


def policy_for(document: EngineDocument, settings: EngineSettings) -> tuple[Policy, Facts] | None:
    """The lifecycle policy of an engine document, and what it knows of the engine; None where the scheduler alone decides.

    Raises:
        ReplayError: the policy fails when it is made.
    """
    if document.policy is None or document.policy.name in UNDRIVEN:
        return None
    kind = find_policy(document.policy.name)
    facts = Facts(
        block_size=settings.block_size,
        block_bytes=document.block_bytes,
        device_blocks=settings.blocks - 1,
        tier_blocks=tier_blocks(document.tiers or TiersDocument(), document.block_bytes),
        links=link_facts(document.links or LinksDocument()),
        servers=settings.servers,
        max_num_seqs=settings.scheduler.max_num_seqs,
        max_num_batched_tokens=settings.scheduler.max_num_batched_tokens,
    )
    chosen = kind.Settings.parse(document.policy.settings, path="policy.settings")
    try:
        made = kind(chosen, facts)
        frozenset(made.notices)  # of its class, or its own
    except SemtraceError:
        raise
    except (Exception, SystemExit) as error:  # whatever a package of others raises when its policy is made
        raise ReplayError(
            f"policy {kind.name} cannot be made: {type(error).__name__}: {error}",
            code="policy.wrong",
            requirement="ST-LIF-040",
            hint="the policy is at fault, not the trace",
        ) from error
    return made, facts
