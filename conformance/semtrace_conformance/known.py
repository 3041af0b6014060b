"""Failures that are known, exact cases with a reason and a link each; and how a run ends with them and without."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, Literal

import yaml
from pydantic import Field, ValidationError

from semtrace.errors import DocumentError, ExitCode
from semtrace_conformance.certificate import ExpectedFailure
from semtrace_conformance.files import read_regular
from semtrace_conformance.messages import Model, explain

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from semtrace_conformance.certificate import Certificate
    from semtrace_conformance.live.real_server import ServerFacts
    from semtrace_conformance.suite import Suite

LIMIT: Final = 1 << 20
"""Largest file of known failures that is read, in bytes."""


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
        UsageError: there is no such file, or it is no regular one.
        DocumentError: it is not what it must be, or names cases that there are not.
    """
    raw = read_regular(path, LIMIT + 1)
    if len(raw) > LIMIT:
        raise DocumentError(f"larger than {LIMIT} bytes", code="certify.expected", path=str(path))
    try:
        values = yaml.safe_load(raw.decode())
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


def unknown(certificate: Certificate, suite: Suite) -> list[str]:
    """What was declared that the suite does not know: it is ignored, and often misspelt."""
    profiles = suite.requirements.profiles
    found = [_near("profile", name, profiles) for name in certificate.declared if name not in profiles]
    for name, features in certificate.declared.items():
        known = profiles.get(name, {})
        found += [
            _near(f"feature of {name}", each, known)
            for each in features
            if name in profiles and each not in known
        ]
    return found


def _near(what: str, name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, known, 1)
    return f"{what} {name!r}" + (f" (is {near[0]!r} meant?)" if near else "")


def verdict(certificate: Certificate, suite: Suite) -> tuple[ExitCode, str]:
    """How the command ends, and the one sentence that says why."""
    counts = certificate.counts
    name = f"{certificate.testee.name} {certificate.testee.version}"
    if not counts.applicable:
        return ExitCode.NOTHING_RAN, f"nothing ran: {_why_nothing(certificate, suite, name)}"
    unexpected, passed = surprises(certificate)
    if certificate.conformant and not passed:
        claims = ", ".join(each for each, claim in certificate.profiles.items() if claim.of)
        if certificate.server is not None:
            claims += f" on the real server {behind(certificate.server)}, witnessed by a relay"
        part = f", of which {', '.join(certificate.selection)} was asked" if certificate.selection else ""
        return (
            ExitCode.OK,
            f"{name} is conformant: {claims} ({counts.counting} of {counts.applicable} cases{part}{_left_out(certificate)})",
        )
    if unexpected:
        share = f"{counts.counting} of {counts.applicable} cases count"
        by_itself = [each.case for each in certificate.failing if each.failures and each.case in unexpected]
        first = f"{[*by_itself, *unexpected][0]} is the first that {'failed' if by_itself else 'does not'}"
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


def behind(server: ServerFacts) -> str:
    """A real server in a few words."""
    return f"{server.url}, model {server.model}" + (f", version {server.version}" if server.version else "")


def _left_out(certificate: Certificate) -> str:
    count = sum(each.left_out is not None for each in certificate.results)
    return f"; {count} that it cannot show were left out" if count else ""


def _why_nothing(certificate: Certificate, suite: Suite, name: str) -> str:
    """Why no case applied: the profile was not declared, or features that every case needs were not."""
    asked = {result.case.split("/")[0] for result in certificate.results}
    reasons = sorted({each.left_out for each in certificate.results if each.left_out is not None})
    if reasons:
        return f"no case asked for can be asked where a real server answers: {'; '.join(reasons)}"
    missing = {
        profile: sorted(claim.not_applicable)
        for profile, claim in certificate.profiles.items()
        if profile in certificate.declared
    }
    if not missing:
        known = sorted(set(certificate.declared) & set(suite.requirements.profiles))
        asked_for = " and ".join(sorted(asked))
        return f"{name} declares {', '.join(known) or 'no profile'}, asked for was {asked_for}"
    parts = [
        f"{profile} is declared, but each case asked for needs {' or '.join(f'`{each}`' for each in features)}, which is not"
        for profile, features in missing.items()
    ]
    return "; ".join(parts)
