"""Commands on executions: `audit`, `measure`, `compare`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semtrace.cli.common import (
    ExecutionArgument,
    JsonOption,
    TraceArgument,
    command,
    emit,
    finding_lines,
    milliseconds,
    open_execution,
    open_trace,
    plan_of,
)
from semtrace.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

PlanOption = Annotated[
    Path | None,
    typer.Option("--plan", metavar="PLAN", help="The plan that was to be followed; the execution's own if left out."),
]


@command
def audit(
    trace: TraceArgument,
    execution: ExecutionArgument,
    plan: PlanOption = None,
    tolerance_ns: Annotated[
        int | None,
        typer.Option("--tolerance-ns", min=0, help="Allowed lateness of a submission; as declared if left out."),
    ] = None,
    json_output: JsonOption = False,
) -> ExitCode:
    """Audit an execution: was the work the recorded work, and was every operation released when the plan says.

    Exit code 0: no violation. 1: violations, each with its requirement.
    """
    from semtrace.measure.audit import audit as run

    bundle = open_trace(trace)
    ran = open_execution(execution, bundle)
    report = run(bundle.trace, ran, plan_of(plan, ran), tolerance_ns=tolerance_ns)
    value = report.as_dict()

    def text() -> "list[RenderableType]":
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for heading, justify in (("requirement", "left"), ("rule", "left"), ("judged", "right"), ("violations", "right"), ("not judged", "left")):
            table.add_column(heading, justify=justify)  # type: ignore[arg-type]  # literals in a tuple
        for rule in report.rules:
            skipped = "; ".join(f"{count:,}: {reason}" for reason, count in rule.not_judged.items())
            colour = "red" if rule.violations else "green" if rule.judged else "dim"
            table.add_row(
                f"[{colour}]{rule.requirement}[/]", rule.title, f"{rule.judged:,}", f"{rule.violations:,}", skipped
            )
        parts: list[RenderableType] = [table]
        if report.lateness is not None:
            late = report.lateness.as_dict()
            shown = ", ".join(f"{key} {milliseconds(late[key])}" for key in ("p50", "p99", "p99.9", "max") if key in late)
            parts.append(f"lateness of {late['count']:,} submissions in ms, read at the {late['measured_at']}: {shown}")
        if report.notes:
            parts.append("notes (times that contradict each other, but were not observed closely enough to judge):")
            parts.extend(f"  {note}" for note in map(_escaped, report.notes))
        parts.extend(finding_lines(report.findings))
        parts.append("[green]clean: no violation[/green]" if report.clean else "[red]violations[/red]")
        return parts

    emit(value, as_json=json_output, text=text)
    return ExitCode.OK if report.clean else ExitCode.FINDINGS


def _escaped(value: object) -> str:
    from rich.markup import escape

    return escape(str(value))
