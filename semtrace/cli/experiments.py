"""The command `experiment`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semtrace.cli.common import ForceOption, JsonOption, command, emit
from semtrace.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from semtrace.experiments.base import Compared, Experiment, Result, Table


@command
def experiment(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The experiment.")] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="OUT.parquet", help="Write the replays' rows here."),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds",
            min=1,
            max=10_000,
            help="Blocks, each with a seed; as many as the experiment has if left out.",
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="One block and fewer conditions: the directions, in a few seconds."),
    ] = False,
    workers: Annotated[int, typer.Option("--workers", min=1, max=4096, help="Processes.")] = 1,
    force: ForceOption = False,
    json_output: JsonOption = False,
) -> ExitCode:
    """Re-run the shape of a published result on the simulated engine, our number beside theirs.

    A measure that does not go the reported way is a result too, and told as one.
    """
    from dataclasses import asdict

    from semtrace.experiments.base import Lab
    from semtrace.experiments.catalog import EXPERIMENTS, find_experiment
    from semtrace.store.container import check_output

    if list_all or name is None:
        if name is not None:
            raise UsageError("--list takes no name", code="experiment.options")
        listed = [{"name": each.name, "title": each.title} for each in EXPERIMENTS.values()]
        emit({"experiments": listed}, as_json=json_output, text=lambda: _list(listed))
        return ExitCode.OK
    chosen = find_experiment(name)
    if output is not None:
        check_output(output, overwrite=force)
    lab = Lab(tuple(range(seeds or (1 if quick else chosen.blocks))), quick, workers)
    result = chosen.run(lab)
    if output is not None:
        _write(result, output, overwrite=force)
    value = {
        "name": chosen.name,
        "title": chosen.title,
        "reference": chosen.reference,
        "ours": chosen.ours,
        "seeds": list(lab.seeds),
        "quick": quick,
        "compared": [each.as_dict() for each in result.compared],
        "table": None if result.table is None else asdict(result.table),
        "facts": list(result.facts),
        "differs": result.differs,
        "left_out": result.left_out,
        "rows": len(result.rows),
        "output": None if output is None else str(output),
    }
    emit(value, as_json=json_output, text=lambda: _text(chosen, result))
    return ExitCode.OK


def _write(result: "Result", output: Path, *, overwrite: bool) -> None:
    import pyarrow.parquet as pq

    from semtrace.store.container import replacing
    from semtrace.sweep.columns import table_of

    with replacing(output, overwrite=overwrite) as beside:
        pq.write_table(table_of(result.rows), beside, compression="zstd")


def _list(listed: list[dict[str, Any]]) -> "list[RenderableType]":
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("experiment")
    table.add_column("what")
    for each in listed:
        table.add_row(each["name"], each["title"])
    return [table, "semtrace experiment NAME runs one"]


def _own_form(shown: "Table") -> "RenderableType":
    from rich.markup import escape
    from rich.table import Table as Grid

    table = Grid(box=None, pad_edge=False, padding=(0, 2, 1, 0))
    for heading in shown.headings:
        table.add_column(heading)
    for row in shown.rows:
        table.add_row(*map(escape, row))
    return table


def _measures(result: "Result") -> "RenderableType":
    from rich.table import Table

    blocks = len(result.compared[0].first)
    table = Table(box=None, pad_edge=False)
    table.add_column("measure", ratio=2)
    table.add_column("reference", ratio=1)
    table.add_column("ours (median)", ratio=1)
    table.add_column(f"change, median (range of {blocks} block{'s' if blocks > 1 else ''})", ratio=1)
    table.add_column("same direction?")
    answers = {None: "–", True: "[green]yes[/green]", False: "[red]no[/red]"}
    for each in result.compared:
        ours, change = shown(each)
        table.add_row(each.measure, each.reference, ours, change, answers[each.same_direction])
    return table


def _text(chosen: "Experiment", result: "Result") -> "list[RenderableType]":
    from rich.markup import escape

    parts: list[RenderableType] = [
        f"[bold]{escape(chosen.title)}[/bold]",
        escape(f"reference: {chosen.reference}"),
        escape(f"ours: {chosen.ours}"),
        "",
        _measures(result) if result.table is None else _own_form(result.table),
        "",
        *(escape(fact) for fact in result.facts),
        escape(f"Why it differs: {result.differs}"),
    ]
    if result.left_out is not None:
        parts.append(escape(f"Left out: {result.left_out}."))
    parts.append("On a simulated engine: directions and magnitudes, no claim to the hardware's times.")
    return parts


def shown(each: "Compared") -> tuple[str, str]:
    """Both medians, and the change with its range."""
    from statistics import median

    forms = {
        "number": "{:,.0f}",
        "seconds": "{:,.1f} s",
        "share": "{:.1%}",
        "ratio": "{:.2f}",
        "per second": "{:,.0f}/s",
    }
    first, second = (forms[each.unit].format(median(values)) for values in (each.first, each.second))
    changes = sorted(each.changes)
    unit = " points" if each.unit == "share" else " %"
    middle, low, high = (f"{change * 100:+.1f}" for change in (median(changes), changes[0], changes[-1]))
    return f"{first} → {second}", f"{middle}{unit} ({low} … {high})"
