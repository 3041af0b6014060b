"""What an audit says: findings, notes, and for each rule how much could be judged."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from semtrace.check.finding import EXAMPLES, Finding

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from semtrace.measure.stats import Distribution

RULES: Final = {
    "ST-AUD-001": "each operation of each instance once",
    "ST-AUD-002": "each operation in a terminal state",
    "ST-AUD-003": "outcomes as recorded",
    "ST-AUD-004": "times recorded",
    "ST-AUD-005": "times of an operation in order",
    "ST-AUD-006": "instances and arrivals as in the scenario",
    "ST-AUD-007": "the execution is well formed",
    "ST-AUD-008": "outcomes of instances as their events say",
    "ST-AUD-010": "the execution is of this work",
    "ST-AUD-011": "the plan is for this work",
    "ST-AUD-012": "the execution followed this plan",
    "ST-AUD-013": "the plan is legal",
    "ST-AUD-014": "the header agrees with itself",
    "ST-AUD-020": "prompt token counts",
    "ST-AUD-021": "output token counts",
    "ST-AUD-022": "output token ids",
    "ST-AUD-023": "finish reasons",
    "ST-AUD-030": "ready times",
    "ST-AUD-031": "released = ready + external delay",
    "ST-AUD-032": "nothing submitted early",
    "ST-AUD-033": "nothing submitted late",
    "ST-AUD-034": "added edges",
    "ST-AUD-035": "barriers",
    "ST-AUD-036": "writers of state before its readers",
    "ST-AUD-037": "no more in flight than allowed",
    "ST-AUD-040": "recorded durations",
    "ST-AUD-041": "root latency at least the critical path",
    "ST-AUD-042": "what the ideal backend does",
    "ST-AUD-050": "the decomposition adds up",
    "ST-AUD-051": "reported measures",
    "ST-AUD-060": "the engine and its servers",
    "ST-AUD-061": "steps of a server one after the other",
    "ST-AUD-062": "calls and their runs of steps",
    "ST-AUD-063": "steps are the sums of their runs",
    "ST-AUD-064": "limits of a step",
    "ST-AUD-065": "positions of runs",
    "ST-AUD-066": "phases of runs",
    "ST-AUD-067": "times of events are those of their steps",
    "ST-AUD-068": "prompt tokens computed",
    "ST-AUD-069": "steps take what they cost",
    "ST-AUD-070": "no server idle with work",
    "ST-AUD-071": "blocks that there are",
    "ST-AUD-072": "no block taken or given back twice",
    "ST-AUD-073": "no content given up while held",
    "ST-AUD-074": "calls give back what they took",
    "ST-AUD-075": "free and held blocks are all blocks",
    "ST-AUD-076": "blocks for all computed tokens",
    "ST-AUD-077": "bytes of blocks",
    "ST-AUD-078": "hits hold what they are hit for",
    "ST-AUD-079": "shared blocks are computed, and not written",
    "ST-AUD-080": "links within their bandwidth",
    "ST-AUD-081": "sources kept until copied out",
    "ST-AUD-082": "nothing read before it is there",
    "ST-AUD-083": "what is loaded is what was copied out",
    "ST-AUD-084": "decisions follow from their inputs",
    "ST-AUD-085": "pins end at their time",
    "ST-AUD-086": "reserved blocks left to critical calls",
}
"""The rules of the audit, by requirement (spec, audit.md)."""

CORE: Final = (
    "ST-AUD-004",
    "ST-AUD-006",
    "ST-AUD-020",
    "ST-AUD-021",
    "ST-AUD-022",
    "ST-AUD-030",
    "ST-AUD-031",
    "ST-AUD-032",
    "ST-AUD-033",
)
"""Rules of which no case of a replay may stay unjudged, or it is not clean."""

OF_TIMES: Final = ("ST-AUD-005", "ST-AUD-032", "ST-AUD-036")
"""Rules of which one must be judged in a native run, or nothing can be said of it."""


class Verdict(StrEnum):
    """What an audit says in the end (ST-AUD-104)."""

    CLEAN = "clean"
    """No violation, and everything that makes a replay faithful was judged."""
    PARTLY = "clean, as far as it can be judged"
    """No violation in a native run, of which much cannot be judged."""
    NOT_JUDGED = "not judged"
    """No violation, and too little was judged to say more."""
    VIOLATIONS = "violations"


@dataclass(frozen=True)
class RuleResult:
    """How far one rule was judged.

    Attributes:
        requirement: the rule.
        judged: cases that were judged.
        violations: those of them that violate it.
        not_judged: cases that could not be judged, by reason.
    """

    requirement: str
    judged: int
    violations: int
    not_judged: dict[str, int]

    @property
    def title(self) -> str:
        """What the rule is, in a few words."""
        return RULES[self.requirement]

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON-ready fields."""
        return {
            "requirement": self.requirement,
            "title": self.title,
            "judged": self.judged,
            "violations": self.violations,
            "not_judged": self.not_judged,
        }


@dataclass(frozen=True)
class Lateness:
    """How late operations were submitted, against the release recomputed from the events.

    Attributes:
        distribution: submitted - release in ns; negative where something was submitted early.
        within: operations that were neither early nor later than the tolerance.
        tolerance_ns: the allowed lateness.
        measured_at: where the times were read.
    """

    distribution: Distribution
    within: int
    tolerance_ns: int
    measured_at: str

    def as_dict(self) -> dict[str, Any]:
        """The lateness as JSON-ready fields, in ns."""
        return {
            **self.distribution.as_dict(),
            "within_tolerance": self.within,
            "tolerance_ns": self.tolerance_ns,
            "measured_at": self.measured_at,
        }


@dataclass(frozen=True)
class AuditReport:
    """What an audit found.

    Attributes:
        findings: the violations.
        notes: what speaks against the record without proving it wrong: times that are not observed contradict it.
        rules: for each rule, how much was judged.
        lateness: of submissions; None for a native run, which was released by nobody.
        facts: what was audited: mode, clock, digests, counts.
    """

    findings: list[Finding]
    notes: list[Finding]
    rules: list[RuleResult]
    lateness: Lateness | None
    facts: dict[str, Any]

    @property
    def clean(self) -> bool:
        """Whether nothing was found, and enough was judged to say so."""
        return self.verdict in {Verdict.CLEAN, Verdict.PARTLY}

    @cached_property
    def verdict(self) -> Verdict:
        """What the audit says in the end."""
        if self.findings:
            return Verdict.VIOLATIONS
        if self.gaps:
            return Verdict.NOT_JUDGED
        return Verdict.PARTLY if self.facts["mode"] == "native" else Verdict.CLEAN

    @cached_property
    def gaps(self) -> list[str]:
        """What would have to be judged and was not, for which an audit without violations is not clean."""
        if not self.rule("ST-AUD-001").judged:
            return ["ST-AUD-001: there is no operation in any instance"]
        if self.facts["mode"] == "native":
            if any(self.rule(requirement).judged for requirement in OF_TIMES):
                return []
            return [f"{', '.join(OF_TIMES)}: no two times are observed that could contradict each other"]
        return [
            f"{requirement}: {count} cases not judged: {reason}"
            for requirement in CORE
            for reason, count in self.rule(requirement).not_judged.items()
        ]

    def rule(self, requirement: str) -> RuleResult:
        """The result of one rule."""
        return next(rule for rule in self.rules if rule.requirement == requirement)

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON-ready fields."""
        return {
            "clean": self.clean,
            "verdict": self.verdict.value,
            "gaps": self.gaps,
            **self.facts,
            "findings": [finding.as_dict() for finding in self.findings],
            "notes": [note.as_dict() for note in self.notes],
            "rules": [rule.as_dict() for rule in self.rules],
            "lateness": self.lateness.as_dict() if self.lateness else None,
        }


@dataclass
class Ledger:
    """Where rules write what they judged, while an audit runs."""

    findings: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    _judged: Counter[str] = field(default_factory=Counter)
    _violations: Counter[str] = field(default_factory=Counter)
    _skipped: dict[str, Counter[str]] = field(default_factory=lambda: {rule: Counter() for rule in RULES})

    def violated(self, requirement: str) -> bool:
        """Whether a rule was found to be violated."""
        return self._violations[requirement] > 0

    def skip(self, requirement: str, reason: str, count: int = 1) -> None:
        """Say that cases could not be judged."""
        if count:
            self._skipped[requirement][reason] += count

    def judge(
        self,
        requirement: str,
        wrong: NDArray[np.bool_],
        message: Callable[[int], str],
        *,
        rows: NDArray[np.int64],
        table: str = "events",
        column: str | None = None,
        hint: str | None = None,
        weak: NDArray[np.bool_] | None = None,
        weakness: str = "the times are not observed",
    ) -> None:
        """Judge cases, all at once.

        Args:
            requirement: the rule.
            wrong: which cases violate it.
            message: what is wrong with a case, by its position.
            rows: the row of `table` that each case is.
            table: the table concerned.
            column: the column concerned.
            hint: what to do about it.
            weak: which cases are known too loosely to be violations: they become notes and are not judged.
            weakness: why they are.
        """
        if weak is not None:
            self._write(self.notes, requirement, wrong & weak, message, rows, table, column, hint)
            self.skip(requirement, weakness, int(weak.sum()))
            wrong, judged = wrong & ~weak, int((~weak).sum())
        else:
            judged = len(wrong)
        self._judged[requirement] += judged
        self._violations[requirement] += int(wrong.sum())
        self._write(self.findings, requirement, wrong, message, rows, table, column, hint)

    def fact(
        self,
        requirement: str,
        problem: str | None,
        *,
        table: str,
        column: str | None = None,
        rows: tuple[int, ...] = (),
        count: int = 1,
        hint: str | None = None,
    ) -> None:
        """Judge one case that is no row, or was judged before: None is no problem."""
        self._judged[requirement] += 1
        if problem is not None:
            self._violations[requirement] += 1
            self.findings.append(Finding(requirement, problem, table, column, rows, count, hint))

    @staticmethod
    def _write(
        into: list[Finding],
        requirement: str,
        wrong: NDArray[np.bool_],
        message: Callable[[int], str],
        rows: NDArray[np.int64],
        table: str,
        column: str | None,
        hint: str | None,
    ) -> None:
        cases = np.flatnonzero(wrong)
        if len(cases):
            concerned = np.unique(rows[cases])
            shown = tuple(int(row) for row in concerned[:EXAMPLES])
            into.append(
                Finding(requirement, message(int(cases[0])), table, column, shown, len(concerned), hint)
            )

    def results(self) -> list[RuleResult]:
        """What was judged, in order of requirement."""
        return [
            RuleResult(rule, self._judged[rule], self._violations[rule], dict(self._skipped[rule]))
            for rule in RULES
        ]
