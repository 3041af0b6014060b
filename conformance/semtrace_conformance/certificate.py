"""Certificates: what a testee was shown to do, with the record that it can be derived from again."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import rfc8785
from blake3 import blake3
from pydantic import Field, ValidationError

import semtrace
from semtrace.errors import FormatError
from semtrace_conformance.checks import Failure, judge
from semtrace_conformance.files import read_regular
from semtrace_conformance.live.grade import Grades, grades
from semtrace_conformance.live.real_server import ServerFacts, left_out
from semtrace_conformance.messages import ANSWER, BadMessageError, Model, Testee, explain, parse_json
from semtrace_conformance.score import Result, Status, score
from semtrace_conformance.suite import SPEC

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from semtrace_conformance.runner import Outcome
    from semtrace_conformance.score import Score
    from semtrace_conformance.suite import Suite

LIMIT: Final = 256 << 20
"""Largest certificate that is read, in bytes."""


class SuiteFacts(Model):
    """Which suite it was."""

    spec: str
    digest: str
    version: str


class TesteeFacts(Testee):
    """Who was tested: what it said of itself, and the command that started it."""

    command: list[str]


class CheckFailure(Model):
    """A check that failed."""

    check: str
    message: str


class CaseResult(Model):
    """How one case went, with all that was judged; `left_out` says why it cannot be asked where a real server answers."""

    case: str
    base: str | None = None
    status: Status
    left_out: str | None = None
    counts: bool
    failures: list[CheckFailure]
    answer: dict[str, Any] | None = None
    trouble: str | None = None
    observed: dict[str, Any] | None = None
    stderr: str | None = None
    duration_ms: int


class ProfileClaim(Model):
    """What is claimed of one profile; `grades` of those in which replays are sent to the witness.

    `not_applicable` counts cases by the feature that was not declared, `left_out` by why they cannot be asked where a real
    server answers.
    """

    conformant: bool
    points: int
    of: int
    features: list[str]
    not_applicable: dict[str, int]
    left_out: dict[str, int] = Field(default_factory=dict)
    grades: Grades | None = None


class ExpectedFailure(Model):
    """A failure that was known before."""

    case: str
    reason: str
    link: str


class Counts(Model):
    """The footer: how many cases there are of each sort."""

    selected: int
    applicable: int
    not_applicable: int
    passed: int
    failed: int
    counting: int


class Certificate(Model):
    """A certificate.

    Attributes:
        format: what it is.
        conformant: whether every profile in which a case applied is.
        suite: which suite it was.
        testee: who was tested.
        environment: where, with what and when.
        server: the real server to which replays were sent, with the witness between as a relay; null if the witness
            answered by itself.
        selection: which cases were asked: all of the suite, or the patterns given.
        declared: what the testee declared, by profile.
        profiles: what is claimed of each.
        expected_failures: the failures that were known before.
        results: how each case went.
        counts: the footer.
        digest: digest of all the rest, in RFC 8785 form. It protects against damage, not against forgery.
    """

    format: Literal["semtrace-certificate"] = "semtrace-certificate"
    conformant: bool
    suite: SuiteFacts
    testee: TesteeFacts
    environment: dict[str, Any]
    server: ServerFacts | None = None
    selection: list[str] = Field(default_factory=list)
    declared: dict[str, list[str]]
    profiles: dict[str, ProfileClaim]
    expected_failures: list[ExpectedFailure] = Field(default_factory=list)
    results: list[CaseResult]
    counts: Counts
    digest: str

    @property
    def failing(self) -> list[CaseResult]:
        """The results of cases that apply and do not count, in order."""
        return [result for result in self.results if result.status != "not_applicable" and not result.counts]


def make(
    suite: Suite,
    outcome: Outcome,
    command: Sequence[str],
    *,
    selection: Sequence[str] = (),
    expected: Sequence[ExpectedFailure] = (),
) -> Certificate:
    """The certificate of a run."""
    found = score(outcome.results, outcome.started.profiles)
    values: dict[str, Any] = {
        "format": "semtrace-certificate",
        "conformant": found.conformant,
        "suite": {"spec": SPEC, "digest": suite.digest, "version": semtrace.__version__},
        "testee": {**outcome.started.testee.model_dump(), "command": list(command)},
        "environment": {
            "platform": platform.platform(),
            "machine": platform.machine(),
            "cpus": os.cpu_count() or 0,
            "python": platform.python_version(),
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "restarts": outcome.restarts,
        },
        "server": None if outcome.server is None else outcome.server.model_dump(),
        "selection": list(selection),
        "declared": {name: sorted(each) for name, each in outcome.started.profiles.items()},
        "profiles": _profiles(found, suite, outcome.results),
        "expected_failures": [each.model_dump() for each in expected],
        "results": [_result(result, found) for result in outcome.results],
        "counts": _counts(outcome.results, found),
    }
    values["digest"] = _digest(values)
    return Certificate.model_validate(values)


def _profiles(found: Score, suite: Suite, results: Sequence[Result]) -> dict[str, Any]:
    return {
        name: {
            "conformant": profile.conformant,
            "points": profile.points,
            "of": profile.of,
            "features": list(profile.features),
            "not_applicable": dict(profile.not_applicable),
            "left_out": dict(profile.left_out),
            "grades": _grades(name, suite, results),
        }
        for name, profile in found.profiles.items()
    }


def _grades(profile: str, suite: Suite, results: Sequence[Result]) -> dict[str, Any] | None:
    """The grades of a profile in which replays are sent to the witness, None of any other."""
    applied = [each for each in results if each.case.profile == profile and each.status != "not_applicable"]
    if not any(each.case.witness for each in applied):
        return None
    judged = (
        (suite.expected(each.case).live, each.observed, frozenset(failure.check for failure in each.failures))
        for each in applied
    )
    return grades(judged).model_dump()


def _result(result: Result, found: Score) -> dict[str, Any]:
    return {
        "case": result.case.id,
        "base": result.case.base,
        "status": result.status,
        "left_out": result.left_out,
        "counts": result.case.id in found.counting,
        "failures": [vars(failure) for failure in result.failures],
        "answer": result.answer,
        "trouble": result.trouble,
        "observed": result.observed,
        "stderr": result.stderr,
        "duration_ms": result.duration_ms,
    }


def _counts(results: Sequence[Result], found: Score) -> dict[str, int]:
    of = {status: sum(result.status == status for result in results) for status in ("passed", "failed")}
    return {
        "selected": len(results),
        "applicable": of["passed"] + of["failed"],
        "not_applicable": len(results) - of["passed"] - of["failed"],
        **of,
        "counting": len(found.counting),
    }


def _digest(values: dict[str, Any]) -> str:
    rest = {name: value for name, value in values.items() if name != "digest"}
    return f"blake3:{blake3(rfc8785.dumps(_plain(rest))).hexdigest()}"


def _plain(value: Any) -> Any:
    """A JSON value without members that are null, and with integers of 2^53 and more as strings."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 53:
        return str(value)
    return value


def dump(certificate: Certificate) -> str:
    """A certificate as it is stored: JSON, two spaces a level."""
    return json.dumps(certificate.model_dump(), indent=2, ensure_ascii=False) + "\n"


def read(path: Path) -> Certificate:
    """Read a certificate.

    Raises:
        UsageError: there is none, or no regular file.
        FormatError: it is no certificate.
    """
    raw = read_regular(path, LIMIT + 1)
    if len(raw) > LIMIT:
        raise FormatError(f"larger than {LIMIT} bytes", code="certificate.size", path=str(path))
    try:
        return Certificate.model_validate(parse_json(raw))
    except (BadMessageError, ValidationError) as error:
        said = explain(error) if isinstance(error, ValidationError) else str(error)
        raise FormatError(f"no certificate: {said}", code="certificate.format", path=str(path)) from error


def verify(certificate: Certificate, suite: Suite) -> list[str]:
    """Derive a certificate again from the answers that it holds, without the testee.

    Returns:
        What is not so as the certificate says, in words; nothing if all is.
    """
    return list(_verify(certificate, suite))


def _verify(certificate: Certificate, suite: Suite) -> Iterator[str]:
    values = certificate.model_dump()
    if _digest(values) != certificate.digest:
        yield "its digest is not its own: it was altered or damaged"
    if certificate.suite.digest != suite.digest or certificate.suite.spec != SPEC:
        yield (
            f"it was made with suite {certificate.suite.digest} for spec {certificate.suite.spec}, this is suite "
            f"{suite.digest} for spec {SPEC}: nothing can be derived again"
        )
        return
    seen: set[str] = set()
    results = []
    for stated in certificate.results:
        case = suite.cases.get(stated.case)
        if case is None or case.id in seen:
            yield f"{stated.case} is {'there twice' if case else 'no case of the suite'}"
            continue
        seen.add(case.id)
        result = _again(stated, certificate, suite)
        if result.left_out != stated.left_out:
            yield f"{case.id} is said to be left out because {stated.left_out}, by the server it is {result.left_out}"
        if result.status != stated.status:
            yield f"{case.id} is said to have {stated.status}, by its record it has {result.status}"
        results.append(result)
    if not certificate.selection:
        for missing in sorted(set(suite.cases) - seen):
            yield f"{missing} is missing, though all cases are said to have been asked"
    for result in results:
        if result.case.base is not None and result.case.base not in seen:
            yield f"{result.case.id} is there without its base {result.case.base}"
    found = score(results, certificate.declared)
    for stated in certificate.results:
        if stated.case in seen and stated.counts != (stated.case in found.counting):
            yield f"{stated.case} is said {'' if stated.counts else 'not '}to count, by the record it is otherwise"
    for name, derived in (
        ("profiles", _profiles(found, suite, results)),
        ("counts", _counts(results, found)),
    ):
        if values[name] != derived:
            yield f"its {name} are not those that follow from its results"
    if certificate.conformant != found.conformant:
        yield f"it says that it is {'' if certificate.conformant else 'not '}conformant; by the record it is otherwise"


def _again(stated: CaseResult, certificate: Certificate, suite: Suite) -> Result:
    """The result of a case, judged again by the record."""
    case = suite.cases[stated.case]
    if not suite.applies(case, dict(certificate.declared)):
        return Result(case, "not_applicable")
    if certificate.server is not None and (reason := left_out(suite, case, certificate.server)):
        return Result(case, "not_applicable", left_out=reason)
    answer = None
    if stated.answer is not None:
        try:
            answer = ANSWER.validate_python(stated.answer)
        except ValidationError:
            answer = None
    try:
        failures = judge(case, suite.expected(case), answer, trouble=stated.trouble, observed=stated.observed)
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # nothing that a run records looks so
        failures = [Failure("answer", f"the record cannot be judged: {error}")]
    status: Status = "failed" if failures else "passed"
    return Result(case, status, failures, stated.answer, stated.trouble, stated.observed)
