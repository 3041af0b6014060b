"""The command `calibrate`: fit the cost of a step to step logs."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semtrace.cli.common import ForceOption, JsonOption, bundle_path, command, emit, open_execution
from semtrace.errors import ExitCode

if TYPE_CHECKING:
    from rich.console import RenderableType

    from semtrace.engine.calibrate import Calibration
    from semtrace.engine.steplog import StepLog


class CostKind(StrEnum):
    """The costs that can be fitted."""

    LINEAR = "linear"
    TABLE = "table"


@command
def calibrate(
    logs: Annotated[
        list[str],
        typer.Argument(
            metavar="LOGS",
            help="Step logs: CSV, JSON lines, scheduler logs, or bundles with an execution that has steps "
            "(PATH, or PATH#NAME).",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="COST", help="The cost document to write.")
    ],
    kind: Annotated[CostKind, typer.Option("--kind", help="The kind of cost.")] = CostKind.LINEAR,
    points: Annotated[
        int, typer.Option("--points", min=2, max=32, help="Points of each axis of a table, at most.")
    ] = 8,
    force: ForceOption = False,
    json_output: JsonOption = False,
) -> ExitCode:
    """Fit the cost of a step to step logs, and say how far its predictions are off, in and out of sample.

    The result holds for the model, the device, the engine and the load that the logs are of, and for no other.
    """
    from semtrace.engine.calibrate import calibrate as fit
    from semtrace.engine.steplog import join_logs
    from semtrace.store.container import check_output, replacing

    check_output(output, overwrite=force, inputs=[bundle_path(name)[0] for name in logs])
    read = [_read(name) for name in logs]
    log = join_logs(read)
    made = fit(log, kind.value, points=points)
    with replacing(output, overwrite=force) as temporary:
        temporary.write_bytes(_written(made, output))
    value: dict[str, Any] = {
        "output": str(output),
        "kind": kind.value,
        "logs": [
            {"path": name, "steps": each.steps, "notices": list(each.notices)}
            for name, each in zip(logs, read, strict=True)
        ],
        **made.as_dict(),
    }
    emit(value, as_json=json_output, text=lambda: _text(value))
    return ExitCode.OK


def _read(name: str) -> "StepLog":
    """A log: the execution in a bundle, or a file of rows."""
    from semtrace.engine.steplog import read_log
    from semtrace.engine.steplog_runs import log_of_execution

    path, _ = bundle_path(name)
    if path.is_dir() or _is_zip(path):
        return log_of_execution(open_execution(name), name)
    return read_log(Path(name))


def _is_zip(path: Path) -> bool:
    from semtrace.records.document import read_regular

    return read_regular(path, 2) == b"PK"


def _written(made: "Calibration", output: Path) -> bytes:
    """The cost document as JSON or YAML, by the name of the output."""
    if output.suffix.lower() == ".json":
        return made.cost.canonical() + b"\n"
    import yaml

    flow = False if made.cost.kind == "linear" else None  # the lines of a table on lines
    text: str = yaml.safe_dump(made.cost.as_json(), sort_keys=False, default_flow_style=flow, width=120)
    return text.encode()


def _text(value: dict[str, Any]) -> "list[RenderableType]":
    from rich.markup import escape
    from rich.table import Table

    steps = sum(log["steps"] for log in value["logs"])
    parts: list[RenderableType] = [f"{value['kind']} cost, fitted to {steps:,} steps"]
    cost = value["cost"]
    if value["kind"] == "linear":
        parts += [f"  {name:14} {cost[name]:>16,}" for name in cost if name.endswith("_ps")]
    else:
        axes = ("prefill_tokens", "decode_tokens", "context")
        parts.append(
            "  " + " × ".join(f"{len(cost[axis])} points of {axis.replace('_', ' ')}" for axis in axes)
        )
    table = Table(box=None, pad_edge=False)
    table.add_column("error, %")
    for heading in ("steps", "median", "95 %", "out of sample: median", "95 %"):
        table.add_column(heading, justify="right")
    for phase, inside in value["in_sample"].items():
        outside = value["out_of_sample"][phase]
        errors = (
            inside["median_percent"],
            inside["p95_percent"],
            outside["median_percent"],
            outside["p95_percent"],
        )
        table.add_row(phase, f"{inside['steps']:,}", *(f"{each:,.2f}" for each in errors))
    parts.append(table)
    parts += [
        f"[yellow]![/yellow] {escape(log['path'])}: {escape(notice)}"
        for log in value["logs"]
        for notice in log["notices"]
    ]
    parts += [f"[yellow]![/yellow] {escape(warning)}" for warning in value["warnings"]]
    parts.append(f"written to {escape(value['output'])}")
    return parts
