"""The two policies that leave everything to the scheduler's own cache: they take no decisions, and need no driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from semtrace.policies.interface import Policy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from semtrace.policies.interface import Action, Notice, Question, Value, View


class Prefix(Policy):
    """vLLM's own prefix cache."""

    name = "prefix"
    rule = "Blocks of ended calls stay until they are needed; the least recently freed is evicted first."
    source = "vLLM 0.32, automatic prefix caching"
    notices: ClassVar = frozenset()

    def on(self, notice: Notice, view: View) -> Iterable[Question]:
        """Nothing is asked."""
        del notice, view
        return ()

    def choose(self, inputs: Mapping[str, Value]) -> Sequence[Action]:
        """Nothing is done."""
        del inputs
        return ()


class Nothing(Prefix):
    """No cache at all."""

    name = "none"
    rule = "No block is found again: every call computes its whole prompt."
    source = "vLLM 0.32, prefix caching off"
