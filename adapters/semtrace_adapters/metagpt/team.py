"""The serialised team (`team.json`): its roles, what each remembers, and the totals of tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from semtrace.errors import FormatError

from .events import Message
from .lines import read_text, without_surrogates

if TYPE_CHECKING:
    from pathlib import Path

    from semtrace_adapters.base import LossReport


@dataclass
class Remembered:
    """A role as serialised: whom it is addressed as, its system messages, and its memory in order."""

    role: str
    profile: str
    addresses: frozenset[str]
    prefixes: tuple[str, ...]
    class_name: str | None
    storage: list[Message] = field(default_factory=list)


@dataclass
class Team:
    """A serialised team; totals are None where it has none."""

    path: Path
    idea: str | None
    workdir: str | None
    roles: list[Remembered]
    prompt_tokens: int | None = None
    output_tokens: int | None = None

    @property
    def message_ids(self) -> set[str]:
        """Ids of all messages that some role remembers."""
        return {message.id for role in self.roles for message in role.storage}


def looks_like_team(value: object) -> bool:
    """Whether a JSON document is a serialised team."""
    if not isinstance(value, dict) or not isinstance(value.get("env"), dict):
        return False
    return isinstance(value["env"].get("roles"), dict) and ("investment" in value or "idea" in value)


def read_team(path: Path, loss: LossReport) -> Team:
    """Read a serialised team.

    Raises:
        FormatError: it is none.
        UsageError: the file cannot be read.
    """
    text, _ = read_text(path, document=True)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"a damaged team.json: {error}",
            code="metagpt.team",
            path=str(path),
            hint="import the log without it",
        ) from error
    if not looks_like_team(value):
        raise FormatError("not a serialised MetaGPT team", code="metagpt.team", path=str(path))
    roles = []
    for key, role in value["env"]["roles"].items():
        if isinstance(role, dict):
            roles.append(_role(str(key), role, path, loss))
        else:
            loss.add("team.role", "lost", "a role of the team that is no object", where=f"{path.name}:{key}")
    context = value.get("context") if isinstance(value.get("context"), dict) else {}
    prompt, output = _totals(context.get("cost_manager"))
    idea = value.get("idea")
    return Team(
        path=path,
        idea=without_surrogates(idea) if isinstance(idea, str) and idea else None,
        workdir=context.get("workdir") if isinstance(context.get("workdir"), str) else None,
        roles=roles,
        prompt_tokens=prompt,
        output_tokens=output,
    )


def _role(key: str, value: dict[str, Any], path: Path, loss: LossReport) -> Remembered:
    name, profile = value.get("name"), value.get("profile")
    profile = profile if isinstance(profile, str) else key
    actions = value.get("actions")
    prefixes = [
        action["prefix"]
        for action in (actions if isinstance(actions, list) else [])
        if isinstance(action, dict) and isinstance(action.get("prefix"), str) and action["prefix"]
    ]
    addresses = value.get("addresses")
    class_name = value.get("__module_class_name")
    found = Remembered(
        role=f"{name if isinstance(name, str) else ''}({profile})",
        profile=profile,
        addresses=frozenset(str(each) for each in addresses) if isinstance(addresses, list) else frozenset(),
        prefixes=tuple(dict.fromkeys(prefixes)),
        class_name=class_name if isinstance(class_name, str) else None,
    )
    context = value.get("rc")
    memory = context.get("memory") if isinstance(context, dict) else None
    storage = memory.get("storage") if isinstance(memory, dict) else None
    for place, message in enumerate(storage if isinstance(storage, list) else []):
        try:
            found.storage.append(Message.parse(message))
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
            loss.add(
                "message.unreadable",
                "lost",
                "a remembered message that cannot be read",
                where=f"{path.name}:{key}[{place}]",
            )
    return found


def _totals(value: object) -> tuple[int | None, int | None]:
    """Token totals of a serialised cost manager, which is JSON within JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None, None
    return totals_of(value)


def totals_of(value: object) -> tuple[int | None, int | None]:
    """Total prompt and output tokens of a JSON object with MetaGPT's cost members."""
    if not isinstance(value, dict):
        return None, None
    prompt, output = value.get("total_prompt_tokens"), value.get("total_completion_tokens")
    return (
        prompt if isinstance(prompt, int) and prompt >= 0 else None,
        output if isinstance(output, int) and output >= 0 else None,
    )
