"""The policies that there are: ours and those of installed packages (entry points `semtrace.policies`)."""

from __future__ import annotations

import difflib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

from semtrace.errors import DocumentError, SemtraceError, UsageError
from semtrace.policies.interface import Policy

if TYPE_CHECKING:
    from collections.abc import Mapping

GROUP: Final = "semtrace.policies"


def policy_names() -> list[str]:
    """The names of all policies, sorted."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def find_policy(name: str) -> type[Policy]:
    """The policy of this name.

    Raises:
        DocumentError: there is none, with the nearest name that there is.
        UsageError: its package cannot be loaded, or what it names is no policy, or one that lacks a member.
    """
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in found:
        near = difflib.get_close_matches(name.casefold(), found, n=1, cutoff=0.4)
        raise DocumentError(
            f"no policy {name[:60]!r}" + (f", did you mean {near[0]!r}?" if near else ""),
            code="policy.unknown",
            path="policy.name",
            requirement="ST-LIF-001",
            hint=f"there are: {', '.join(sorted(found))}",
        )
    try:
        policy = found[name].load()
    except Exception as error:  # whatever a package of others raises when it is imported
        raise UsageError(
            f"policy {name} cannot be loaded from {found[name].value}: {error}",
            code="policy.broken",
            path="policy.name",
            hint="install its package anew, or ask who made it",
        ) from error
    if not (isinstance(policy, type) and issubclass(policy, Policy)) or getattr(policy, "name", None) != name:
        raise UsageError(
            f"{found[name].value} is no policy of the name {name}",
            code="policy.broken",
            path="policy.name",
            hint="an entry point names a subclass of semtrace.policies.interface.Policy, by the policy's own name",
        )
    lacks = [member for member in ("rule", "source") if not isinstance(getattr(policy, member, None), str)]
    lacks += sorted(policy.__abstractmethods__)
    if lacks:
        raise UsageError(
            f"policy {name} of {found[name].value} lacks {', '.join(lacks)}",
            code="policy.broken",
            path="policy.name",
            hint="semtrace.policies.interface.Policy says what a policy has; add it there",
        )
    return policy


def settings_of_policy(policy: type[Policy], values: Mapping[str, object]) -> dict[str, object]:
    """The settings of a policy with nothing left to defaults.

    Raises:
        DocumentError: naming every member that is wrong.
    """
    try:
        return policy.Settings.parse(dict(values), path="policy.settings", at="policy.settings").as_json()
    except SemtraceError as error:
        error.requirement = error.requirement if error.requirement != "ST-DOC-001" else "ST-LIF-001"
        raise
