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
    from semtrace.sweep.run import finished
    from semtrace.sweep.run import sweep as run

    if resume and not force and output.is_file() and not output.with_name(output.name + PARTS).exists():
        open_trace(trace)
        done = finished(SweepDocument.read(document), trace, output, folder=document.parent)
        if done is None:
            raise UsageError(
                "is there already, and is not what this sweep made",
                code="sweep.done",
                path=str(output),
                hint="--force replaces it; or name another output",
            )
        return _told(output, done, ["nothing is left to do: the sweep was done already"], as_json=json_output)
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
    note = ["there was nothing to resume: all points were run"] if anew else []
    return _told(output, table, note, as_json=json_output)


def _told(output: Path, table: "pa.Table", note: list[str], *, as_json: bool) -> ExitCode:
    """Print what a sweep has made."""
    refused = table.num_rows - table["error"].null_count
    value = {
        "output": str(output),
        "points": table.num_rows,
        "refused": refused,
        "columns": table.column_names,
    }
    emit(value, as_json=as_json, text=lambda: [*note, *_text(value, table)])
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
    timed = "attainment.whole" in table.column_names and table["attainment.whole"].null_count < table.num_rows
    headings = ["root p50, ms", "root p95, ms", "ttft p50, ms", "preemptions", "hit tokens"]
    for heading in [*headings, *(["on time"] if timed else [])]:
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
            *([f"{row['attainment.part']:,} of {row['attainment.whole']:,}"] if timed else []),
        )
    lines: list[RenderableType] = [shown]
    if table.num_rows > 40:
        lines.append(f"and {table.num_rows - 40:,} more")
    lines.extend(f"[red]{escape(line)}[/red]" for line in _refused(table))
    on = ", ".join(sorted({name or "without a name" for name in table["engine"].to_pylist()}))
    lines.append(
        escape(f"{value['points']:,} points, {value['refused']:,} refused, engine {on}, in {value['output']}")
    )
    return lines


_MOST_REASONS = 5
"""Reasons why points were refused that are printed; the rows have all."""


def _refused(table: "pa.Table") -> list[str]:
    """Why points were refused, equal reasons once."""
    by_reason: dict[str, list[int]] = {}
    for point, error in zip(table["point"].to_pylist(), table["error"].to_pylist(), strict=True):
        if error is not None:
            by_reason.setdefault(error, []).append(point)
    lines = []
    for error, which in list(by_reason.items())[:_MOST_REASONS]:
        named = ", ".join(map(str, which[:10])) + (", …" if len(which) > 10 else "")
        who = f"point {named} was" if len(which) == 1 else f"{len(which):,} points ({named}) were"
        lines.append(f"{who} refused: {error}")
    rest = sum(len(which) for which in list(by_reason.values())[_MOST_REASONS:])
    if rest:
        lines.append(f"{rest:,} more points were refused for other reasons; the column error has them")
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
        "mean root, ms", "p95 root, ms", f"difference to {baseline}, ms", "its 95 % interval, ms", "hit tokens", "loaded",
        "computed", "preemptions",
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
    if any(row.runs > 1 for row in rows):
        lines.append(
            f"each number is the median of the runs, one a seed. The difference to {escape(baseline)} is made run by run, of the mean "
            "root latencies under the same arrivals, and then its median is taken: it is not the difference of the medians beside it"
        )
    if not any(row.sums.get("sum.cached_tokens") for row in rows):
        lines.append(
            "hit tokens are 0 under every policy: the trace says of no two prompts that they begin alike, or nothing stays in memory "
            "from one to the next. What a policy keeps is then of no use"
        )
    if not drawn:
        lines.append(
            "arrivals are not drawn, so every seed is the same run and intervals say nothing; --arrivals poisson:MEAN_NS draws them"
        )
    return lines
