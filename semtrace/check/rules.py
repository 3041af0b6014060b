"""How rules are run: in stages, each judging only what the earlier ones left sound.

A rule is a generator of findings. It asks for the columns and for the earlier requirements that it builds upon;
where one of them is broken it ends there, and the finding that broke it says which requirements could not be judged.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from semtrace.check.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from semtrace.errors import SemtraceError

View = TypeVar("View")


class Unjudged(Exception):  # noqa: N818  # not an error: it ends a rule
    """Something that a rule builds upon is broken already."""

    def __init__(self, causes: frozenset[int]) -> None:
        super().__init__("cannot be judged")
        self.causes = causes


@dataclass(frozen=True)
class Rule(Generic[View]):
    """A rule: the requirements that it judges, and how."""

    requirements: tuple[str, ...]
    judge: Callable[[View], Iterator[Finding]]


def rule(
    *requirements: str,
) -> Callable[[Callable[[View], Iterator[Finding]]], Rule[View]]:
    """Make a rule of a generator of findings; it names every requirement that it can report."""

    def make(judge: Callable[[View], Iterator[Finding]]) -> Rule[View]:
        return Rule(requirements, judge)

    return make


class Ledger:
    """The findings so far, and what they make unsound: tables, columns (`table.column`) and requirements."""

    def __init__(self) -> None:
        self._findings: list[Finding] = []
        self._broken: dict[str, set[int]] = defaultdict(set)
        self._unjudged: dict[int, set[str]] = defaultdict(set)
        self._judged: set[str] = set()

    def add(self, finding: Finding, *breaks: str) -> None:
        """Note a finding, and what cannot be relied upon because of it, beside its own requirement."""
        for name in (finding.requirement, *breaks):
            self._broken[name].add(len(self._findings))
        self._findings.append(finding)

    def add_error(self, error: SemtraceError, requirement: str, table: str | None, *breaks: str) -> None:
        """Note an error met while reading as a finding.

        Args:
            error: the error.
            requirement: the requirement, if the error names none.
            table: the table concerned.
            breaks: what cannot be relied upon because of it.
        """
        where = f"{error.path}: " if error.path else ""
        finding = Finding(
            error.requirement or requirement, where + error.message, table=table, hint=error.hint
        )
        self.add(finding, *breaks)

    def spoil(self, name: str, causes: frozenset[int]) -> None:
        """Mark something as unsound because of findings that are there already."""
        self._broken[name] |= causes

    def causes(self, *names: str) -> frozenset[int]:
        """The findings that make any of these unsound."""
        return frozenset().union(*(self._broken[name] for name in names if name in self._broken))

    def need(self, *names: str) -> None:
        """End the rule that asks, unless all of these are sound.

        Raises:
            Unjudged: one is not.
            LookupError: a requirement has not been judged yet: the rules are in the wrong order.
        """
        early = [name for name in names if name.startswith("ST-") and name not in self._judged]
        if early:
            raise LookupError(f"{', '.join(early)} must be judged before")
        causes = self.causes(*names)
        if causes:
            raise Unjudged(causes)

    def run(self, rules: Iterable[Rule[Any]], view: object) -> None:
        """Run rules, one after the other."""
        for each in rules:
            self._judged.update(each.requirements)
            try:
                for finding in each.judge(view):
                    self.add(finding)
            except Unjudged as reason:
                judged = {self._findings[at].requirement for at in reason.causes}
                for requirement in each.requirements:
                    self._broken[requirement] |= reason.causes
                    if requirement not in judged:
                        for cause in reason.causes:
                            self._unjudged[cause].add(requirement)

    def result(self) -> list[Finding]:
        """All findings; a hint says what could not be judged because of one."""
        made = []
        for at, finding in enumerate(self._findings):
            skipped = sorted(self._unjudged.get(at, ()))
            if skipped:
                note = f"not judged because of it: {', '.join(skipped)}"
                finding = replace(finding, hint=f"{finding.hint}; {note}" if finding.hint else note)  # noqa: PLW2901
            made.append(finding)
        return made
