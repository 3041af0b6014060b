"""Views of a certificate: JUnit XML for continuous integration, one HTML page for people. Nothing is decided here."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

from semtrace_conformance.known import behind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from semtrace_conformance.certificate import CaseResult, Certificate, ProfileClaim
    from semtrace_conformance.suite import Suite

_STYLE: Final = """
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 20%, transparent); }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid var(--line); }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
.yes { color: #18794e; } .no { color: #c62a2f; } .na { opacity: .6; }
code { font-size: .9em; } dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; }
dd { margin: 0; overflow-wrap: anywhere; } ul { margin: 0; padding-left: 1.2rem; }
"""


def junit(certificate: Certificate) -> str:
    """The results as JUnit XML: a suite for each profile, a test for each case.

    A case that passed and does not count, because the one that it is a mutation of failed, is a failure.
    """
    known = {each.case: each for each in certificate.expected_failures}
    root = ET.Element("testsuites", name="semtrace conformance")
    for profile in certificate.profiles:
        own = [result for result in certificate.results if result.case.split("/")[0] == profile]
        failing = [each for each in own if each.status != "not_applicable" and not each.counts]
        unknown = [each for each in failing if each.case not in known]
        absent = [each for each in own if each.status == "not_applicable"]
        suite = ET.SubElement(
            root,
            "testsuite",
            name=profile,
            tests=str(len(own)),
            failures=str(len(unknown)),
            errors="0",
            skipped=str(len(absent) + len(failing) - len(unknown)),
            time=f"{sum(each.duration_ms for each in own) / 1000:.3f}",
        )
        for result in own:
            test = ET.SubElement(
                suite,
                "testcase",
                classname=profile,
                name=result.case,
                time=f"{result.duration_ms / 1000:.3f}",
            )
            if result.status == "not_applicable":
                reason = result.left_out or "needs a feature that was not declared"
                ET.SubElement(test, "skipped", message=_clean(reason))
            elif not result.counts:
                said = _clean("; ".join(why(result)))
                if result.case in known:
                    reason = f"known: {known[result.case].reason} ({known[result.case].link})"
                    ET.SubElement(test, "skipped", message=_clean(reason)).text = said
                else:
                    ET.SubElement(test, "failure", message=said)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _clean(text: str) -> str:
    """Text without the characters that XML does not have."""
    return "".join(each if each in "\t\n" or each >= " " else "�" for each in text)


def why(result: CaseResult) -> list[str]:
    """Why a case does not count."""
    if result.failures:
        return [f"{failure.check}: {failure.message}" for failure in result.failures]
    if result.base is not None:
        return [f"passed, but {result.base}, which it is a mutation of, did not"]
    return ["passed, but none of its mutations did: right and wrong are not told apart"]


def html(certificate: Certificate, suite: Suite) -> str:
    """The certificate as one page that needs nothing else."""
    title = f"{certificate.testee.name} {certificate.testee.version}"
    verdict = (
        '<b class="yes">conformant</b>' if certificate.conformant else '<b class="no">not conformant</b>'
    )
    facts = {
        "suite": f"spec {certificate.suite.spec}, {certificate.suite.digest}",
        "testee": " ".join(certificate.testee.command),
        "made": str(certificate.environment.get("made", "")),
        "on": f"{certificate.environment.get('platform', '')}, Python {certificate.environment.get('python', '')}",
        "certificate": certificate.digest,
    }
    if certificate.server is not None:
        facts["server"] = f"{behind(certificate.server)}, real, behind the witness as a relay"
    if certificate.selection:
        facts["only"] = ", ".join(certificate.selection)
    parts = [
        "<!doctype html>",
        f'<html lang="en"><meta charset="utf-8"><title>{escape(title)}: semtrace conformance</title>',
        '<meta name="viewport" content="width=device-width">',
        f"<style>{_STYLE}</style>",
        f"<h1>{escape(title)}: {verdict}</h1>",
        "<dl>",
        *(f"<dt>{escape(name)}<dd>{escape(value)}" for name, value in facts.items()),
        "</dl>",
        "<h2>Profiles</h2>",
        '<table><tr><th>profile<th class="n">points<th class="n">of<th>features<th>not applicable<th>',
        *_profiles(certificate),
        "</table>",
        *(
            f"<p>{escape(said)}"
            for name, claim in certificate.profiles.items()
            if (said := graded(name, claim))
        ),
        *(f"<p>{escape(said)}" for said in left_out(certificate)),
        *_cases(certificate, suite),
        _footer(certificate),
        "</html>",
    ]
    return "\n".join(parts) + "\n"


def graded(name: str, claim: ProfileClaim) -> str | None:
    """The grades of a profile in a sentence; None of one that has none."""
    found = claim.grades
    if found is None:
        return None
    own = found.self_reported
    said = f"{name}: witnessed {found.witnessed.points} of {found.witnessed.of} cases, " + (
        "not self-reported" if own is None else f"self-reported {own.points} of {own.of}"
    )
    late = found.lateness
    if not late["requests"]:
        return said
    share = f"{late['within_1ms_ppm'] / 10_000:.2f} %"
    times = ", ".join(f"{each} {late[f'{each}_ns'] / 1e6:.3f} ms" for each in ("p50", "p99", "max"))
    return f"{said}; at the {found.measured_at} {share} of {late['requests']} requests came within 1 ms of their release ({times})"


def left_out(certificate: Certificate) -> list[str]:
    """What could not be asked where a real server answers, a sentence for each reason."""
    return [
        f"{name}: {count} case{'s' if count > 1 else ''} left out: {reason}"
        for name, claim in certificate.profiles.items()
        for reason, count in claim.left_out.items()
    ]


def _footer(certificate: Certificate) -> str:
    counts = certificate.counts
    return (
        f"<p>{counts.selected} cases: {counts.passed} passed, {counts.failed} failed, "
        f"{counts.not_applicable} not applicable; {counts.counting} count.</p>"
    )


def _profiles(certificate: Certificate) -> Iterator[str]:
    for name, claim in certificate.profiles.items():
        mark, word = ("yes", "conformant") if claim.conformant else ("no", "not conformant")
        if not claim.of:
            mark, word = "na", "not claimed"
        absent = ", ".join(f"{count} × {feature}" for feature, count in claim.not_applicable.items())
        yield (
            f'<tr><td>{escape(name)}<td class="n">{claim.points}<td class="n">{claim.of}'
            f"<td>{escape(', '.join(claim.features))}<td>{escape(absent)}"
            f'<td class="{mark}">{word}'
        )


def _cases(certificate: Certificate, suite: Suite) -> Iterator[str]:
    known = {each.case: each for each in certificate.expected_failures}
    for profile in certificate.profiles:
        yield f"<h2>{escape(profile)}</h2><table><tr><th>case<th>shows<th>"
        for result in certificate.results:
            if result.case.split("/")[0] != profile:
                continue
            case = suite.cases.get(result.case)
            title = escape(case.title) if case else ""
            if case and case.mutation:
                title += f"<br><small>{escape(str(case.base))}, but {escape(case.mutation)}</small>"
            if result.status == "not_applicable":
                cell = f'<td class="na">{escape(f"left out: {result.left_out}" if result.left_out else "not applicable")}'
            elif result.counts:
                cell = '<td class="yes">passed'
            else:
                said = "".join(f"<li>{escape(reason)}" for reason in why(result))
                if result.case in known:
                    entry = known[result.case]
                    said += f"<li>known: {escape(entry.reason)} ({escape(entry.link)})"
                cell = f'<td class="no">failed<ul>{said}</ul>'
            yield f"<tr><td><code>{escape(result.case)}</code><td>{title}{cell}"
        yield "</table>"
