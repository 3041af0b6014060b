"""The command `audit`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semtrace.cli.common import (
    ExecutionArgument,
    JsonOption,
    PlanOption,
    TraceArgument,
    command,
    emit,
    finding_lines,
    milliseconds,
    open_execution,
    open_trace,
    plan_of,
)
from semtrace.cli.measure_text import escaped
from semtrace.cli.numbers import LARGEST
from semtrace.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType


@command
def audit(
    trace: TraceArgument,
    execution: ExecutionArgument,
    plan: PlanOption = None,
    tolerance_ns: Annotated[
        int | None,
        typer.Option(
            "--tolerance-ns",
            min=0,
            max=LARGEST,
            help="Allowed lateness, for wall clocks; as declared if left out, but not more than 1 ms.",
        ),
    ] = None,
    measures: Annotated[
        Path | None,
        typer.Option(
            "--measures", metavar="FILE", help="Reported measures (measure --json), to be recomputed."
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="List the rules too that had nothing to judge. --json has all.")
    ] = False,
    json_output: JsonOption = False,
) -> ExitCode:
    """Audit an execution: was the work the recorded work, and was every operation released when the plan says.

    Exit code 0: clean. 1: violations, each with its requirement. 3: no violation, and too little could be judged.
    """
    from semtrace.measure.audit import audit as run

    bundle = open_trace(trace)
    ran = open_execution(execution, bundle)
    reported = _reported(measures) if measures is not None else None
    given = plan_of(plan, ran) if plan is not None else None  # what the header holds is judged
    report = run(bundle.trace, ran, given, tolerance_ns=tolerance_ns, measures=reported)
    value = report.as_dict()

    def text() -> "list[RenderableType]":
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for heading, justify in (
            ("requirement", "left"),
            ("rule", "left"),
            ("judged", "right"),
            ("violations", "right"),
            ("not judged", "left"),
        ):
            table.add_column(heading, justify=justify)  # type: ignore[arg-type]  # literals in a tuple
        idle = [] if every else [r for r in report.rules if not (r.judged or r.violations or r.not_judged)]
        for rule in report.rules:
            if rule in idle:
                continue
            skipped = "; ".join(f"{count:,}: {reason}" for reason, count in rule.not_judged.items())
            colour = "red" if rule.violations else "green" if rule.judged else "dim"
            table.add_row(
                f"[{colour}]{rule.requirement}[/]",
                rule.title,
                f"{rule.judged:,}",
                f"{rule.violations:,}",
                skipped,
            )
        parts: list[RenderableType] = [table]
        if idle:
            parts.append(
                f"{len(idle)} rules more had nothing to judge: the execution records nothing that they are about "
                "(--all lists them)"
            )
        if report.lateness is not None:
            late = report.lateness.as_dict()
            shown = ", ".join(
                f"{key} {milliseconds(late[key])}" for key in ("p50", "p99", "p99.9", "max") if key in late
            )
            parts.append(
                f"lateness of {late['count']:,} submissions in ms, read at the {late['measured_at']}: {shown}"
            )
        if report.notes:
            parts.append(
                "notes (times that contradict each other, but were not observed closely enough to judge):"
            )
            parts.extend(f"  {note}" for note in map(escaped, report.notes))
        parts.extend(finding_lines(report.findings))
        allowed = f"tolerance {value['tolerance_ns']:,} ns"
        if value["declared_tolerance_ns"] != value["tolerance_ns"]:
            allowed += f" (the execution declares {value['declared_tolerance_ns']:,} ns)"
        parts.append(allowed)
        parts.extend(f"  {escaped(gap)}" for gap in report.gaps if not report.findings)
        colour = "green" if report.clean else "red" if report.findings else "yellow"
        parts.append(f"[{colour}]{report.verdict}[/]")
        return parts

    emit(value, as_json=json_output, text=text)
    if report.findings:
        return ExitCode.FINDINGS
    return ExitCode.OK if report.clean else ExitCode.NOTHING_RAN


def _reported(path: Path) -> dict[str, Any]:
    from semtrace.records.document import read_values

    reported = read_values(path)
    if not isinstance(reported, dict):
        raise UsageError("must hold what measure --json prints", code="audit.measures", path=str(path))
    return {
        name: value for name, value in reported.items() if name != "requests"
    }  # no measure of the standard
