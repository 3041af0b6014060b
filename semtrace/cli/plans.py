"""The command `plan`: make a release plan, and show why it is legal or which path forbids it."""

import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semtrace.cli.common import (
    ForceOption,
    JsonOption,
    TraceArgument,
    command,
    emit,
    finding_lines,
    open_trace,
)
from semtrace.cli.numbers import LARGEST, is_whole, whole
from semtrace.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from semtrace.graph.legality import Judgement
    from semtrace.graph.plan import AddedEdge, Plan
    from semtrace.records.trace import Trace


class RuleName(StrEnum):
    """The plans that can be made."""

    DAG = "dag"
    BARRIER = "barrier"
    CUSTOM = "custom"
    WORK_ONLY = "work-only"


class BarrierName(StrEnum):
    """The ways to serialise."""

    CHAIN = "chain"
    LEVEL = "level"
    WIDTH = "width"
    STAGES = "stages"


@command
def plan(
    trace: TraceArgument,
    rule: Annotated[RuleName, typer.Option("--rule", help="The kind of plan.")] = RuleName.DAG,
    by: Annotated[
        BarrierName | None,
        typer.Option(
            "--by",
            help="How a barrier serialises: branches one after the other (chain), hop by hop (level), at most "
            "--width side by side (width), or whole stages (stages). Default: chain.",
        ),
    ] = None,
    width: Annotated[
        int | None, typer.Option("--width", min=1, max=LARGEST, help="Branches side by side, for --by width.")
    ] = None,
    stage: Annotated[
        list[str] | None,
        typer.Option("--stage", help="A stage to serialise, by number or name; all if left out."),
    ] = None,
    add: Annotated[
        list[str] | None,
        typer.Option(
            "--add",
            metavar="U:V[:TRIGGER[:LAG_NS]]",
            help="A constraint of a custom plan: operation V waits for U. TRIGGER: finish, start or first_token.",
        ),
    ] = None,
    constraints: Annotated[
        Path | None,
        typer.Option(
            "--constraints", metavar="FILE", help="YAML or JSON with the edges and groups of a custom plan."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="PLAN", help="The file to write.")
    ] = None,
    force: ForceOption = False,
    json_output: JsonOption = False,
) -> ExitCode:
    """Make a release plan for a trace and judge it: every added constraint with its proof, or the path against it.

    A plan that is not legal is shown and not written. A work-only plan is for analysis: it is written, and never legal.
    """
    if output is not None:
        from semtrace.store.container import check_output

        check_output(output, overwrite=force, inputs=[trace, *([constraints] if constraints else [])])
    bundle = open_trace(trace)
    made = _make(bundle.trace, rule, by, width, stage, add or [], constraints)
    from semtrace.graph.legality import judge

    judgement = judge(bundle.trace, made)
    accepted = judgement.legal or rule is RuleName.WORK_ONLY
    if accepted and output is not None:
        from semtrace.store.container import replacing

        with replacing(output, overwrite=force) as temporary:
            temporary.write_bytes(made.canonical() + b"\n")
    value = {
        "plan": made.as_json(),
        "plan_digest": made.content_digest(),
        "legal": judgement.legal,
        "findings": [finding.as_dict() for finding in judgement.findings],
        "verdicts": [verdict.as_dict() for verdict in judgement.verdicts],
        "groups": [vars(group) for group in judgement.groups],
        "output": str(output) if output is not None and accepted else None,
    }
    emit(
        value,
        as_json=json_output,
        text=lambda: [
            *_text(bundle.trace, made, judgement, output if accepted else None),
            *_sessions(bundle.trace, made, judgement),
        ],
    )
    return ExitCode.OK if accepted else ExitCode.FINDINGS


def _make(
    trace: "Trace",
    rule: RuleName,
    by: BarrierName | None,
    width: int | None,
    stage: list[str] | None,
    add: list[str],
    constraints: Path | None,
) -> "Plan":
    from semtrace.graph import plan as plans
    from semtrace.graph.barrier import barrier
    from semtrace.store.digests import show, work_digest

    work = show(work_digest(trace))
    if rule is not RuleName.BARRIER and (by is not None or width is not None or stage):
        raise UsageError("--by, --width and --stage belong to --rule barrier", code="plan.options")
    if rule is not RuleName.CUSTOM and (add or constraints):
        raise UsageError("--add and --constraints belong to --rule custom", code="plan.options")
    if rule is RuleName.DAG:
        return plans.dag(work)
    if rule is RuleName.WORK_ONLY:
        return plans.work_only(work)
    if rule is RuleName.BARRIER:
        by = by or (BarrierName.WIDTH if width is not None else BarrierName.CHAIN)
        if by is BarrierName.WIDTH and width is None:
            raise UsageError(
                "--by width needs --width", code="plan.options", hint="for example --by width --width 2"
            )
        if by is not BarrierName.WIDTH and width is not None:
            raise UsageError(f"--width belongs to --by width, not to --by {by.value}", code="plan.options")
        return barrier(trace, by.value, width=width or 1, stages=stage_ids(trace, stage) if stage else None)
    if not add and constraints is None:
        raise UsageError("a custom plan needs --add or --constraints", code="plan.options")
    values: dict[str, Any] = {}
    if constraints is not None:
        from semtrace.records.document import read_values

        read = read_values(constraints)
        if not isinstance(read, dict):
            raise UsageError(
                "must hold `edges:` and `groups:`", code="plan.constraints", path=str(constraints)
            )
        values = read
    document = plans.Plan.parse(
        {"work_digest": work, "name": "custom", **values}, path=str(constraints) if constraints else "plan"
    )
    return document.model_copy(update={"edges": [*document.edges, *(_edge(text) for text in add)]})


def _edge(text: str) -> "AddedEdge":
    from semtrace.graph.plan import AddedEdge

    parts = text.split(":")
    what = f"--add {text if len(text) < 60 else text[:60] + '…'}"
    if not 2 <= len(parts) <= 4:
        raise UsageError(
            f"{what}: must be U:V[:TRIGGER[:LAG_NS]]", code="plan.add", hint="for example --add 3:5"
        )
    hint = "U:V[:TRIGGER[:LAG_NS]], for example --add 3:5"
    values: dict[str, object] = {
        name: whole(part, what, hint=hint) for name, part in zip(("source", "target"), parts, strict=False)
    }
    if len(parts) > 2:
        values["trigger"] = parts[2]
    if len(parts) > 3:
        values["lag_ns"] = whole(parts[3], what, hint=hint)
    return AddedEdge.parse(values, path=what)


def stage_ids(trace: "Trace", wanted: list[str]) -> list[int]:
    """Stages by number or name.

    Raises:
        UsageError: there is none of that name.
    """
    names = trace["stages"].strings("name")
    found: list[int] = []
    for name in wanted:
        hits = [int(name)] if is_whole(name) else [at for at, known in enumerate(names) if known == name]
        if not hits:
            raise UsageError(
                f"no stage {name[:60]!r}",
                code="plan.stage",
                hint=f"there are: {', '.join(f'{at} ({known})' for at, known in enumerate(names[:20]))}",
            )
        found.extend(hits)
    return found


def _text(
    trace: "Trace", plan_made: "Plan", judgement: "Judgement", output: Path | None
) -> "list[RenderableType]":
    from rich.markup import escape

    from semtrace.graph.barrier import why_it_adds_nothing

    lines: list[RenderableType] = [
        f"plan [bold]{escape(plan_made.name)}[/bold]  {plan_made.content_digest()}"
    ]
    for group, verdict in zip(plan_made.groups, judgement.groups, strict=False):
        waits, holds = _short(group.wait), _short(group.hold)
        lines.append(f"  group {verdict.group}, {escape(group.note or group.rule)}: {holds} wait for {waits}")
        lines.append(f"    {escape(verdict.proof)}")
    for judged in judgement.verdicts:
        mark = "[green]✓[/green]" if judged.legal else "[red]✗[/red]"
        lines.append(
            f"  {mark} {judged.target} waits for {judged.source}: {judged.kind}; {escape(judged.proof)}"
        )
    if not plan_made.groups and not plan_made.edges:
        lines.append(
            "  adds no constraint" if plan_made.base == "dag" else "  keeps data and state edges only"
        )
        if plan_made.name != "dag" and plan_made.base == "dag":
            why = (
                why_it_adds_nothing(trace, plan_made)
                if plan_made.options.get("rule") is not None
                else "no constraint was given"
            )
            lines.append(f"[yellow]warning[/yellow]: a replay under it is that of dag: {escape(why)}")
    lines.extend(finding_lines(judgement.findings))
    lines.append("[green]legal[/green]" if judgement.legal else "[red]not legal[/red]")
    if output is not None:
        lines.append(f"written to {escape(str(output))}")
    return lines


def _sessions(trace: "Trace", made: "Plan", judgement: "Judgement") -> list[str]:
    """Whose the sessions are that groups and proofs speak of."""
    from rich.markup import escape

    said = " ".join(
        [*(group.note or "" for group in made.groups), *(verdict.proof for verdict in judgement.groups)]
    )
    numbers = sorted({int(number) for number in re.findall(r"session (\d{1,9})\b", said)})[:40]
    agents = trace["sessions"].strings("agent")
    whose = [f"{number} {agents[number] or '(no agent)'}" for number in numbers if number < len(agents)]
    return [escape(f"sessions: {', '.join(whose)}")] if whose else []


def _short(operations: list[int]) -> str:
    shown = ", ".join(map(str, operations[:8]))
    return f"[{shown}{', …' if len(operations) > 8 else ''}]".replace("[", "\\[")
