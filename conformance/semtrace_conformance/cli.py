"""The commands `certify` and `certificate`."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semtrace.cli.common import ForceOption, JsonOption, command, emit, progress
from semtrace.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from semtrace_conformance.certificate import Certificate
    from semtrace_conformance.suite import Case, Suite

_SHOWN = 50
"""Failures that are printed."""


class Action(StrEnum):
    """What can be done with a certificate."""

    VERIFY = "verify"


@command
def certify(
    testee: Annotated[
        str | None,
        typer.Option("--testee", metavar="CMD", help="The command that starts the testee (protocol.md)."),
    ] = None,
    profile: Annotated[
        list[str] | None,
        typer.Option("--profile", metavar="NAME", help="Only this profile; may be given again."),
    ] = None,
    case: Annotated[
        list[str] | None,
        typer.Option("--case", metavar="PATTERN", help="Only cases like reader/edge-*; may be given again."),
    ] = None,
    list_cases: Annotated[
        bool, typer.Option("--list", help="Say which cases there are, and what each shows; nothing is asked.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="CERT", help="Write the certificate here, JSON.")
    ] = None,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML here.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write an HTML page here.")
    ] = None,
    expect_failures: Annotated[
        Path | None,
        typer.Option(
            "--expect-failures",
            metavar="FILE",
            help="Failures that are known, YAML: with exactly these, the command ends with 0.",
        ),
    ] = None,
    time_scale: Annotated[
        float,
        typer.Option("--time-scale", min=0.01, max=100, help="Multiply the time that the testee has."),
    ] = 1.0,
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            metavar="URL",
            help="Send replays to this real server, with the witness between as a relay.",
        ),
    ] = None,
    server_model: Annotated[
        str | None,
        typer.Option("--server-model", metavar="NAME", help="Its model, if it has several."),
    ] = None,
    force: ForceOption = False,
    json_output: JsonOption = False,
) -> ExitCode:
    """Judge a reader, writer, planner, replayer or auditor against the standard, and write a certificate.

    The harness checks itself first. Exit status: 0 conformant, 1 not, 2 no testee, no common protocol or a broken
    harness, 3 nothing ran.
    """
    from semtrace_conformance.certificate import dump, make
    from semtrace_conformance.known import read_known, unknown, verdict
    from semtrace_conformance.live.real_server import look
    from semtrace_conformance.process import Process, parse_command
    from semtrace_conformance.reports import html as html_page
    from semtrace_conformance.reports import junit as junit_text
    from semtrace_conformance.runner import START_S, TOTAL_S, Limits, Runner, order
    from semtrace_conformance.selfcheck import check_harness, check_suite
    from semtrace_conformance.suite import find_suite

    suite = find_suite()
    check_suite(suite)
    selected = order(suite.cases, lambda each: _selected(each, profile, case))
    _some(selected, suite, profile, case)
    if list_cases:
        _list([each for each in suite.cases.values() if _selected(each, profile, case)], as_json=json_output)
        return ExitCode.OK
    if testee is None:
        raise UsageError(
            "there is no --testee",
            code="certify.testee",
            hint="a command that starts one; --list says what there is",
        )
    _check_outputs([output, junit, html], expect_failures, force=force)
    wanted = parse_command(testee)
    known = read_known(expect_failures, suite) if expect_failures is not None else []
    if server_model is not None and server is None:
        raise UsageError(
            "--server-model is given without --server", code="certify.server", hint="say which server"
        )
    real = None if server is None else look(server, server_model, selected)
    check_harness()
    with progress("certifying", quiet=json_output) as update:
        runner = Runner(
            suite,
            lambda folder: Process(wanted, folder),
            limits=Limits(START_S * time_scale, time_scale, TOTAL_S * max(time_scale, 1.0)),
            server=real,
            progress=update,
        )
        outcome = runner.run(selected)
    certificate = make(suite, outcome, wanted, selection=[*(profile or []), *(case or [])], expected=known)
    for path, text in (
        (output, dump(certificate)),
        (junit, junit_text(certificate)),
        (html, html_page(certificate, suite)),
    ):
        if path is not None:
            _write(path, text, force=force)
    code, sentence = verdict(certificate, suite)
    ignored = unknown(certificate, suite)
    value = {
        "conformant": certificate.conformant,
        "exit": int(code),
        "sentence": sentence,
        "profiles": {name: claim.model_dump() for name, claim in certificate.profiles.items()},
        "counts": certificate.counts.model_dump(),
        "server": None if certificate.server is None else certificate.server.model_dump(),
        "failing": [
            {**each.model_dump(exclude={"answer", "observed"}), "shows": suite.cases[each.case].title}
            for each in certificate.failing
        ],
        "not_known": ignored,
        "certificate": str(output) if output is not None else None,
        "digest": certificate.digest,
    }
    emit(value, as_json=json_output, text=lambda: _text(certificate, suite, ignored, sentence, output))
    return code


def _selected(case: "Case", profiles: list[str] | None, patterns: list[str] | None) -> bool:
    from fnmatch import fnmatchcase

    return (not profiles or case.profile in profiles) and (
        not patterns or any(fnmatchcase(case.id, pattern) for pattern in patterns)
    )


def _some(
    selected: "list[Case]", suite: "Suite", profiles: list[str] | None, patterns: list[str] | None
) -> None:
    """Refuse a selection with a profile that there is not, or in which nothing is."""
    names = sorted(suite.requirements.profiles)
    for name in profiles or ():
        if name not in names:
            raise UsageError(
                f"no profile {name!r}", code="certify.profile", hint=f"there are: {', '.join(names)}"
            )
    if not selected:
        from difflib import get_close_matches

        near = [
            each for pattern in patterns or () for each in get_close_matches(pattern, suite.cases, 3, 0.8)
        ]
        raise UsageError(
            f"no case is like {' or '.join(patterns or ())}",
            code="certify.case",
            hint=(f"is {' or '.join(near)} meant? " if near else "")
            + "`semtrace certify --list` says which there are",
        )


def _list(cases: "list[Case]", *, as_json: bool) -> None:
    """Say which cases there are."""
    from rich.markup import escape

    listed = [
        {"case": each.id, "shows": each.title, "features": each.features, "requirements": each.requirements}
        for each in cases
    ]
    emit(
        {"cases": listed},
        as_json=as_json,
        text=lambda: [f"{each.id}  [dim]{escape(_shows(each))}[/dim]" for each in cases],
    )


def _shows(case: "Case") -> str:
    """What a case shows; of a mutation, what was changed."""
    return case.title if case.base is None else f"{case.base}, but {case.mutation}"


def _check_outputs(outputs: "list[Path | None]", expect_failures: Path | None, *, force: bool) -> None:
    """Refuse outputs that are one, or that would replace what is read or may not be replaced."""
    from semtrace.store.container import check_output

    paths = [path for path in outputs if path is not None]
    inputs = [expect_failures] if expect_failures is not None else []
    for path in paths:
        check_output(path, overwrite=force, inputs=inputs)
    for at, path in enumerate(paths):
        if path.resolve() in {other.resolve() for other in paths[:at]}:
            raise UsageError(
                "is the output of two options; the later would replace the earlier",
                code="file.same",
                path=str(path),
                hint="-o, --junit and --html each need a file of their own",
            )


def _write(path: Path, text: str, *, force: bool) -> None:
    from semtrace.store.container import replacing

    with replacing(path, overwrite=force) as temporary:
        temporary.write_text(text, "utf-8")


def _text(
    certificate: "Certificate", suite: "Suite", ignored: list[str], sentence: str, output: Path | None
) -> "list[RenderableType]":
    from rich.markup import escape
    from rich.table import Table

    table = Table("profile", "points", "of", "not applicable", "")
    for name, claim in certificate.profiles.items():
        mark = "[green]conformant[/green]" if claim.conformant else "[red]not conformant[/red]"
        absent = ", ".join(f"{count} × {feature}" for feature, count in claim.not_applicable.items())
        table.add_row(name, str(claim.points), str(claim.of), absent, mark if claim.of else "not claimed")
    from semtrace_conformance.reports import graded, left_out

    told = [said for name, claim in certificate.profiles.items() if (said := graded(name, claim))]
    told += left_out(certificate)
    lines: list[RenderableType] = [table, *map(escape, told), *_failures(certificate, suite)]
    if ignored:
        lines.append(f"declared, but not known to the suite, and ignored: {escape(', '.join(ignored))}")
    lines.append(escape(sentence))
    if output is not None:
        lines.append(f"certificate written to {escape(str(output))}")
    return lines


def _failures(certificate: "Certificate", suite: "Suite") -> "Iterator[str]":
    """Each case that failed by itself; those that passed and do not count are told with the one that is to blame."""
    from collections import Counter

    from rich.markup import escape

    from semtrace_conformance.reports import why

    known = {each.case for each in certificate.expected_failures}
    failed = {each.case for each in certificate.failing if each.failures}
    dragged = Counter(each.base for each in certificate.failing if not each.failures and each.base in failed)
    told = [each for each in certificate.failing if each.failures or each.base not in failed]
    for result in told[:_SHOWN]:
        case = suite.cases[result.case]
        expected = " (expected)" if result.case in known else ""
        yield f"[red]✗[/red] {result.case}{expected}: {escape(_shows(case))}"
        yield from (f"    {escape(reason)}" for reason in why(result)[:5])
        if result.stderr:
            yield f"    it wrote: {escape(result.stderr.strip().splitlines()[-1][:200])}"
        if dragged[result.case]:
            yield f"    {dragged[result.case]} mutations of it passed, which does not count while it fails"
    if len(told) > _SHOWN:
        yield f"and {len(told) - _SHOWN} more; -o CERT or --json has them all"


@command
def certificate(
    action: Annotated[Action, typer.Argument(metavar="verify", help="What to do with it.")],
    path: Annotated[Path, typer.Argument(metavar="CERT", help="A certificate.")],
    json_output: JsonOption = False,
) -> ExitCode:
    """Verify a certificate: derive its points again from the answers that it holds, without the testee.

    Exit status: 0 all is as it says, 1 something is not.
    """
    from semtrace_conformance.certificate import read, verify
    from semtrace_conformance.suite import find_suite

    del action  # there is one
    read_one = read(path)
    problems = verify(read_one, find_suite())
    value: dict[str, Any] = {
        "verified": not problems,
        "problems": problems,
        "testee": read_one.testee.model_dump(),
        "conformant": read_one.conformant,
        "suite": read_one.suite.model_dump(),
        "digest": read_one.digest,
    }
    emit(value, as_json=json_output, text=lambda: _verified(read_one, problems))
    return ExitCode.FINDINGS if problems else ExitCode.OK


def _verified(certificate: "Certificate", problems: list[str]) -> "list[RenderableType]":
    from rich.markup import escape

    if problems:
        return [*(f"[red]✗[/red] {escape(problem)}" for problem in problems), "not verified"]
    claim = "conformant" if certificate.conformant else "not conformant"
    name = escape(f"{certificate.testee.name} {certificate.testee.version}")
    share = f"{certificate.counts.counting} of {certificate.counts.applicable} cases"
    return [f"verified: {name} is {claim}, {share}, derived again from its record against this suite"]
