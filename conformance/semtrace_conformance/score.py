"""From judged cases to points, and from points to what a certificate claims."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from semtrace_conformance.checks import Failure
    from semtrace_conformance.suite import Case

Status = Literal["passed", "failed", "not_applicable"]


@dataclass(frozen=True)
class Result:
    """How one case went.

    Attributes:
        case: the case.
        status: how it was judged by itself.
        failures: the checks that failed.
        answer: the answer as it came, None if none was understood.
        trouble: what happened instead of an answer.
        observed: what the harness saw of what a writer wrote.
        stderr: the end of the testee's standard error, where it did not answer.
        duration_ms: how long the answer took.
        left_out: why it cannot be asked where a real server answers; it is not applicable then.
    """

    case: Case
    status: Status
    failures: Sequence[Failure] = ()
    answer: Mapping[str, Any] | None = None
    trouble: str | None = None
    observed: Mapping[str, Any] | None = None
    stderr: str | None = None
    duration_ms: int = 0
    left_out: str | None = None


@dataclass(frozen=True)
class ProfileScore:
    """The points of one profile.

    Attributes:
        points: cases that count: passed, and the case that they are a mutation of passed too.
        of: cases that apply.
        not_applicable: cases that need features that were not declared, by feature.
        left_out: cases that cannot be asked where a real server answers, by reason.
        features: features that were declared and exist.
    """

    points: int
    of: int
    not_applicable: Mapping[str, int]
    features: Sequence[str]
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def conformant(self) -> bool:
        """Whether every case that applies counts, and there are some."""
        return self.of > 0 and self.points == self.of


@dataclass(frozen=True)
class Score:
    """The points of a run."""

    profiles: Mapping[str, ProfileScore]
    counting: frozenset[str] = field(default_factory=frozenset)
    """The cases that count."""

    @property
    def ran(self) -> bool:
        """Whether any case applied."""
        return any(profile.of for profile in self.profiles.values())

    @property
    def conformant(self) -> bool:
        """Whether every profile in which a case applied is conformant, and there is one."""
        return self.ran and all(profile.conformant for profile in self.profiles.values() if profile.of)


def score(results: Sequence[Result], declared: Mapping[str, Sequence[str]]) -> Score:
    """Count points.

    A case counts if it passed and its pair is told apart: a mutation needs that the case that it is a mutation of passed
    too; a case that has mutations needs that at least one of them passed. So a testee that accepts everything gets
    nothing, nor one that refuses everything.

    Args:
        results: the results; of a case that applies, the result of its base must be among them.
        declared: the features that the testee declared, by profile.
    """
    passed = {result.case.id for result in results if result.status == "passed"}
    mutated = {result.case.base for result in results if result.status != "not_applicable"}
    told = {result.case.base for result in results if result.status == "passed"}
    counting = frozenset(
        case.id
        for case in (result.case for result in results)
        if case.id in passed
        and (case.base is None or case.base in passed)
        and (case.id not in mutated or case.id in told)
    )
    profiles = {}
    for name in sorted({result.case.profile for result in results}):
        own = [result for result in results if result.case.profile == name]
        applied = [result for result in own if result.status != "not_applicable"]
        features = list(declared.get(name, ()))
        absent: Counter[str] = Counter()
        for result in own:
            if result.status == "not_applicable" and result.left_out is None:
                missing = [feature for feature in result.case.features if feature not in features]
                absent[missing[0] if missing else name] += 1
        profiles[name] = ProfileScore(
            points=sum(result.case.id in counting for result in applied),
            of=len(applied),
            not_applicable=dict(sorted(absent.items())),
            features=sorted(features),
            left_out=dict(
                sorted(Counter(each.left_out for each in own if each.left_out is not None).items())
            ),
        )
    return Score(profiles, counting)
