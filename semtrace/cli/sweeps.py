"""The commands `sweep` and `compare-policies`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semtrace.cli.common import (
    ForceOption,
    JsonOption,
    TraceArgument,
    command,
    emit,
    interruptible,
    milliseconds,
    open_trace,
    progress,
)
from semtrace.cli.numbers import LARGEST
from semtrace.errors import ExitCode, UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import RenderableType

    from semtrace.sweep.policies import PolicyRow

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
    from semtrace.store.container import check_output
    from semtrace.sweep.document import SweepDocument
    from semtrace.sweep.parts import PARTS
    from semtrace.sweep.run import sweep as run

    check_output(output, overwrite=force, inputs=[trace, document])
    if output.suffix != ".parquet":
        raise UsageError(
            f"{output}: what is written is Parquet, and its name must end in .parquet", code="sweep.output"
        )
    anew = resume and not output.with_name(output.name + PARTS).exists()
    read = SweepDocument.read(document)
    open_trace(trace)
    with interruptible(), progress("sweeping", quiet=json_output) as update:
        table = run(
            read,
            trace,
            output,
            folder=document.parent,
            workers=workers,
            ray=ray,
            resume=resume,
            overwrite=force,
            progress=update,
        )
    refused = table.num_rows - table["error"].null_count
    value = {
        "output": str(output),
        "points": table.num_rows,
        "refused": refused,
        "columns": table.column_names,
    }
    note = ["there was nothing to resume: all points were run"] if anew else []
    emit(value, as_json=json_output, text=lambda: [*note, *_text(value, table)])
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
    for heading in ("root p50, ms", "root p95, ms", "ttft p50, ms", "preemptions", "hit tokens"):
        shown.add_column(heading, justify="right")
    for row in table.slice(0, 40).to_pylist():
        if row["error"] is not None:
            continue
        shown.add_row(
            *(escape(str(row[name])) for name in varied),
            milliseconds(row["root_latency.p50"]),
            milliseconds(row["root_latency.p95"]),
            milliseconds(row["ttft.p50"]),
            f"{row['sum.preemptions']:,}",
            f"{row['sum.cached_tokens']:,}",
        )
    lines: list[RenderableType] = [shown]
    if table.num_rows > 40:
        lines.append(f"and {table.num_rows - 40:,} more")
    told = [row for row in table.to_pylist() if row["error"] is not None][:5]
    lines.extend(f"[red]point {row['point']} was refused: {escape(row['error'])}[/red]" for row in told)
    on = ", ".join(sorted({name or "without a name" for name in table["engine"].to_pylist()}))
    lines.append(
        escape(f"{value['points']:,} points, {value['refused']:,} refused, engine {on}, in {value['output']}")
    )
    return lines


@command
def compare_policies(
    trace: TraceArgument,
    policies: Annotated[
        str, typer.Option("--policies", metavar="A,B,…", help="Policies to compare (semtrace policies).")
    ],
    baseline: Annotated[
        str, typer.Option("--baseline", metavar="POLICY", help="What they are compared with.")
    ] = "prefix",
    engine: Annotated[
        str,
        typer.Option("--engine", metavar="ENGINE", help="A ready engine with tiers, or the file of one."),
    ] = "qwen3-8b-a100-host",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the engine.")
    ] = None,
    arrivals: Annotated[
        str | None,
        typer.Option(
            "--arrivals", metavar="HOW", help="recorded, together, poisson:MEAN_NS or closed-loop:USERS."
        ),
    ] = None,
    copies: Annotated[int, typer.Option("--copies", min=1, max=LARGEST, help="Instances of every task.")] = 1,
    seeds: Annotated[int, typer.Option("--seeds", min=1, max=10_000, help="How many seeds, from 0.")] = 3,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="OUT.parquet", help="Keep every run as a row here."),
    ] = None,
    workers: WorkersOption = None,
    force: ForceOption = False,
    json_output: JsonOption = False,
) -> ExitCode:
    """Replay a trace under several KV lifecycle policies, and compare each with one of them, over seeds.

    Exit code 1: some runs were refused.
    """
    import shutil
    import tempfile

    from semtrace.cli.runs import arrivals_of, setting_of
    from semtrace.engine.document import read_engine
    from semtrace.replay.scenario import Poisson
    from semtrace.store.container import check_output, replacing
    from semtrace.sweep.document import SweepDocument
    from semtrace.sweep.policies import policy_sweep, rows_of
    from semtrace.sweep.run import sweep as run

    if output is not None:
        check_output(
            output, overwrite=force, inputs=[trace, *([Path(engine)] if Path(engine).exists() else [])]
        )
    open_trace(trace)
    changes = dict(setting_of(setting) for setting in settings or [])
    base = SweepDocument.parse(
        {
            "engine": read_engine(engine, changes).as_json(),
            "arrivals": [None if arrivals is None else arrivals_of(arrivals)],
            "seeds": list(range(seeds)),
            "copies": copies,
        },
        path="options",
    )
    names = [name.strip() for name in policies.split(",") if name.strip()]
    document = policy_sweep(base, names, baseline)
    with (
        interruptible(),
        tempfile.TemporaryDirectory() as folder,
        progress("comparing", quiet=json_output) as update,
    ):
        kept = Path(folder) / "runs.parquet"
        table = run(document, trace, kept, workers=workers, progress=update)
        if output is not None:
            with replacing(output, overwrite=force) as beside:
                shutil.copyfile(kept, beside)
    rows = rows_of(table.to_pylist(), baseline)
    drawn = isinstance(base.arrivals[0], Poisson)
    value = {
        "baseline": baseline,
        "engine": document.engine,
        "seeds": seeds,
        "output": None if output is None else str(output),
        "drawn": drawn,
        "policies": [row.as_dict() for row in rows],
    }
    emit(value, as_json=json_output, text=lambda: _policies(rows, baseline, drawn or seeds == 1))
    return ExitCode.FINDINGS if any(row.error for row in rows) else ExitCode.OK


def _policies(rows: "list[PolicyRow]", baseline: str, drawn: bool) -> "list[RenderableType]":
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("policy")
    for heading in (
        "mean root, ms", "p95 root, ms", f"against {baseline}, ms", "95 % interval, ms", "hit tokens", "loaded", "computed",
        "preemptions",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    for row in rows:
        interval = row.interval
        table.add_row(
            escape(row.policy),
            milliseconds(row.latency_ns),
            milliseconds(row.p95_ns),
            milliseconds(row.difference_ns),
            "–" if interval is None else f"{milliseconds(interval.low)} … {milliseconds(interval.high)}",
            *(
                f"{row.sums.get(f'sum.{name}', 0):,}"
                for name in ("cached_tokens", "loaded_tokens", "computed_prompt_tokens", "preemptions")
            ),
        )
    lines: list[RenderableType] = [table]
    lines.extend(f"[red]{escape(row.policy)}: {escape(row.error)}[/red]" for row in rows if row.error)
    lines.append("medians over seeds; a difference is of the same arrivals under both policies")
    if not drawn:
        lines.append(
            "arrivals are not drawn, so every seed is the same run and intervals say nothing; --arrivals poisson:MEAN_NS draws them"
        )
    return lines
