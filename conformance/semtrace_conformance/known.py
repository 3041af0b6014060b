"""Failures that are known, exact cases with a reason and a link each; and how a run ends with them and without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import yaml
from pydantic import Field, ValidationError

from semtrace.errors import DocumentError, ExitCode, UsageError
from semtrace_conformance.certificate import ExpectedFailure
from semtrace_conformance.messages import Model, explain

if TYPE_CHECKING:
    from pathlib import Path

    from semtrace_conformance.certificate import Certificate
    from semtrace_conformance.suite import Suite


class _Entry(ExpectedFailure):
    reason: str = Field(min_length=1)
    link: str = Field(pattern=r"^https?://\S+$")


class KnownFailures(Model):
    """The file."""

    format: Literal["semtrace-expected-failures"]
    failures: list[_Entry]


def read_known(path: Path, suite: Suite) -> list[ExpectedFailure]:
    """Read the failures that are expected, YAML or JSON.

    Raises:
        UsageError: there is no such file.
        DocumentError: it is not what it must be, or names cases that there are not.
    """
    try:
        values = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(
            f"cannot be read: {error.strerror}", code="file.unreadable", path=str(path)
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise DocumentError(
            f"neither YAML nor JSON: {' '.join(str(error).split())}", code="certify.expected", path=str(path)
        ) from error
    try:
        known = KnownFailures.model_validate(values)
    except ValidationError as error:
        raise DocumentError(explain(error), code="certify.expected", path=str(path)) from error
    names = [entry.case for entry in known.failures]
    wrong = sorted({name for name in names if name not in suite.cases or names.count(name) > 1})
    if wrong:
        raise DocumentError(
            f"{wrong[0]} is {'there twice' if wrong[0] in suite.cases else 'no case of the suite'}",
            code="certify.expected",
            path=str(path),
            hint="each case exactly, once; no patterns",
        )
    return [ExpectedFailure(**entry.model_dump()) for entry in known.failures]


def surprises(certificate: Certificate) -> tuple[list[str], list[str]]:
    """Cases that failed and were not expected to, and cases that were expected to fail and did not.

    A case that was expected to fail and was not asked, as it was not selected, is no surprise; one that did not apply
    is.
    """
    expected = {entry.case for entry in certificate.expected_failures}
    failing = {result.case for result in certificate.failing}
    asked = {result.case for result in certificate.results}
    return sorted(failing - expected), sorted((expected & asked) - failing)


def verdict(certificate: Certificate) -> tuple[ExitCode, str]:
    """How the command ends, and the one sentence that says why."""
    counts = certificate.counts
    name = f"{certificate.testee.name} {certificate.testee.version}"
    if not counts.applicable:
        claims = ", ".join(sorted(certificate.declared)) or "none"
        return ExitCode.NOTHING_RAN, f"nothing ran: of the profiles asked for, {name} declares {claims}"
    unexpected, passed = surprises(certificate)
    if certificate.conformant and not passed:
        claims = ", ".join(each for each, claim in certificate.profiles.items() if claim.of)
        return ExitCode.OK, f"{name} is conformant: {claims} ({counts.counting} of {counts.applicable} cases)"
    if unexpected:
        share = f"{counts.counting} of {counts.applicable} cases count"
        first = f"{unexpected[0]} is the first that does not"
        return ExitCode.FINDINGS, f"{name} is not conformant: {share}, {first}"
    if passed:
        return (
            ExitCode.USAGE,
            f"the file of expected failures is out of date: {', '.join(passed[:5])} did not fail",
        )
    return (
        ExitCode.OK,
        f"{name} is not conformant; it failed in the {len(certificate.failing)} cases expected, and no other",
    )
