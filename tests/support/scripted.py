"""A policy that does what a script says, and policies that are found without being installed."""

from __future__ import annotations

from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, ClassVar
from unittest.mock import patch

from pydantic import Field

from semtrace.policies import interface, registry
from semtrace.policies.interface import Facts, LinkFacts, Policy, Question, TierName
from semtrace.records.document import Document

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from semtrace.policies.interface import Action, Notice, View


FACTS = Facts(
    block_size=4,
    block_bytes=16,
    device_blocks=20,
    tier_blocks={TierName.HOST: 4},
    links={TierName.HOST: LinkFacts(500_000_000, 1_000_000_000, 5, 0)},
    servers=1,
    max_num_seqs=256,
    max_num_batched_tokens=8192,
)
"""What a policy is told of a small engine with a slow link to host memory."""


class Script(Document):
    """By notice, its kind and its ordinal among those of the kind (`CallEnded 0`), the actions: each a list of its name and its members.

    Attributes:
        script: the actions.
        wants: kinds of notices beside those of the script.
        subject: context that is asked about, where a notice has none.
    """

    script: dict[str, list[list[Any]]] = Field(default_factory=dict)
    wants: list[str] = Field(default_factory=list)
    subject: int = 0


class Scripted(Policy):
    """Does what its settings say."""

    name = "scripted"
    rule = "What a test says."
    source = "a test"
    Settings: ClassVar = Script

    def __init__(self, settings: Script, facts: Facts) -> None:
        super().__init__(settings, facts)
        self.script = settings.script
        names = {*(key.split()[0] for key in settings.script), *settings.wants}
        self.notices = frozenset(getattr(interface, name) for name in names)
        self.counts: dict[str, int] = {}
        self.subject = settings.subject

    def on(self, notice: Notice, view: View) -> Iterable[Question]:
        del view
        kind = type(notice).__name__
        at = self.counts.get(kind, 0)
        self.counts[kind] = at + 1
        key = f"{kind} {at}"
        if key in self.script or kind in self.settings.wants:
            call = getattr(notice, "call", None)
            context = call.context if call is not None else getattr(notice, "context", self.subject)
            yield Question(
                context, {"key": key, "notice": repr(notice)}, event=None if call is None else call.event
            )

    def choose(self, inputs: Mapping[str, Any]) -> Sequence[Action]:
        return tuple(_action(*each) for each in self.script.get(inputs["key"], ()))


def _action(name: str, members: dict[str, Any]) -> Action:
    made = {key: TierName(value) if key == "tier" else value for key, value in members.items()}
    action: Action = getattr(interface, name)(**made)
    return action


@contextmanager
def installed(*policies: type[Policy]) -> Iterator[None]:
    """These policies are found as if a package had brought them."""
    ours = [
        EntryPoint(policy.name, f"{policy.__module__}:{policy.__qualname__}", registry.GROUP)
        for policy in policies
    ]
    with patch.object(registry, "entry_points", lambda group: [*entry_points(group=group), *ours]):
        yield
