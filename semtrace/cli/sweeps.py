"""The command `sweep`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semtrace.cli.common import ForceOption, JsonOption, TraceArgument, command, emit, milliseconds, progress
from semtrace.errors import ExitCode, UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import RenderableType

WorkersOption = Annotated[
    int | None,
    typer.Option("--workers", min=1, max=4096, help="Processes; as many as there are cores if left out."),
]
RayOption = Annotated[
    str | None,
    typer.Option("--ray", metavar="ADDRESS", help="Run on this Ray cluster; local starts one here."),
]
ResumeOption = Annotated[
    bool,
    typer.Option("--resume", help="Go on with a sweep that was stopped: what is done is not done again."),
]


@command
def sweep(
    trace: TraceArgument,
    document: Annotated[Path, typer.Argument(metavar="SWEEP", help="A sweep document, YAML or JSON.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="OUT.parquet", help="The table to write.")
    ],
    workers: WorkersOption = None,
    ray: RayOption = None,
    resume: ResumeOption = False,
    force: ForceOption = False,
    json_output: JsonOption = False,
) -> ExitCode:
    """Replay a trace in a grid of settings, plans, arrivals and seeds, over all cores, into one Parquet table.

    Exit code 1: some points were refused; their rows say why.
    """
    from semtrace.sweep.document import SweepDocument
    from semtrace.sweep.run import sweep as run

    if output.exists() and not force:
        raise UsageError(f"{output}: exists already", code="output.exists", hint="--force replaces it")
    read = SweepDocument.read(document)
    with progress("sweeping", quiet=json_output) as update:
        table = run(
            read,
            trace,
            output,
            folder=document.parent,
            workers=workers,
            ray=ray,
            resume=resume,
            progress=update,
        )
    refused = table.num_rows - table["error"].null_count
    value = {
        "output": str(output),
        "points": table.num_rows,
        "refused": refused,
        "columns": table.column_names,
    }
    emit(value, as_json=json_output, text=lambda: _text(value, table))
    return ExitCode.FINDINGS if refused else ExitCode.OK


def _text(value: dict[str, Any], table: "pa.Table") -> "list[RenderableType]":
    from rich.markup import escape
    from rich.table import Table

    shown = Table(box=None, pad_edge=False)
    varied = [
        name
        for name in ("plan", "arrivals", "seed", *(each for each in table.column_names if each[:4] == "set."))
        if name in table.column_names and len(set(table[name].to_pylist())) > 1
    ]
    for name in varied:
        shown.add_column(name.removeprefix("set."), justify="right")
    for heading in ("root p50, ms", "root p95, ms", "preemptions", "hit tokens"):
        shown.add_column(heading, justify="right")
    for row in table.slice(0, 40).to_pylist():
        if row["error"] is not None:
            continue
        shown.add_row(
            *(escape(str(row[name])) for name in varied),
            milliseconds(row["root_latency.p50"]),
            milliseconds(row["root_latency.p95"]),
            f"{row['sum.preemptions']:,}",
            f"{row['sum.cached_tokens']:,}",
        )
    lines: list[RenderableType] = [shown]
    if table.num_rows > 40:
        lines.append(f"and {table.num_rows - 40:,} more")
    told = [row for row in table.to_pylist() if row["error"] is not None][:5]
    lines.extend(f"[red]point {row['point']} was refused: {escape(row['error'])}[/red]" for row in told)
    lines.append(escape(f"{value['points']:,} points, {value['refused']:,} refused, in {value['output']}"))
    return lines
