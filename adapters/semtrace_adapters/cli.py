"""The commands `semtrace import` and `semtrace export`."""

import os
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
    progress,
)
from semtrace.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from semtrace.store.manifest import Loss

_SHOWN = 3
"""Places that a line of the loss report names, at most."""


@command
def import_command(
    sources: Annotated[
        list[Path], typer.Argument(metavar="SOURCE...", help="Logs, spans, folders of one or more runs.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="OUT", help="The bundle to write, OUT.semtrace.")
    ],
    adapter: Annotated[
        str | None,
        typer.Option("--adapter", metavar="NAME", help="The adapter; found by itself if left out."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the adapter.")
    ] = None,
    directory: Annotated[
        bool, typer.Option("--directory", help="Write a directory instead of one ZIP file.")
    ] = False,
    force: ForceOption = False,
    json_output: JsonOption = False,
) -> ExitCode:
    """Make a trace of what a framework, server or simulator has logged, and say what could not be known.

    Files of one run may be given together: they are merged.
    """
    from semtrace.store.container import check_output
    from semtrace_adapters.base import ImportOptions, choose
    from semtrace_adapters.importing import write_imported

    for source in sources:
        if not source.exists():
            raise UsageError("does not exist", code="file.missing", path=str(source))
        if not (source.is_file() or source.is_dir()):  # a device may have no end, a pipe no writer
            raise UsageError("is neither a file nor a folder", code="file.special", path=str(source))
        if not os.access(source, os.R_OK):
            raise UsageError("cannot be read: permission denied", code="file.unreadable", path=str(source))
    check_output(output, overwrite=force, inputs=sources)
    chosen = choose(sources, adapter)
    with progress("reading", quiet=json_output) as update:
        result = chosen.read(sources, ImportOptions(progress=update, values=_options(settings or [])))
    made = write_imported(output, chosen, result, directory=directory, overwrite=force)
    findings = made.findings
    value: dict[str, Any] = {
        "output": str(output),
        "adapter": chosen.name,
        "tasks": result.trace.tasks.rows,
        "operations": result.trace.operations.rows,
        "edges": result.trace.edges.rows,
        "trace_digest": made.trace_digest,
        "sources": [file.as_json() for file in made.files],
        "loss": [loss.as_json() for loss in result.loss],
        "findings": [finding.as_dict() for finding in findings],
    }

    def text() -> "list[RenderableType]":
        from rich.markup import escape

        lines: list[RenderableType] = [
            (
                f"{chosen.name}: {value['tasks']} tasks, {value['operations']} operations, {value['edges']} edges "
                f"from {len(made.files)} files"
            ),
            *_loss_lines(result.loss),
            *finding_lines(findings),
            f"written to {escape(str(output))}",
        ]
        return lines

    emit(value, as_json=json_output, text=text)
    return ExitCode.FINDINGS if findings else ExitCode.OK


@command
def export_command(
    trace: TraceArgument,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="The file to write.")],
    form: Annotated[str, typer.Option("--format", metavar="NAME", help="The adapter that writes it.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the adapter.")
    ] = None,
    force: ForceOption = False,
    json_output: JsonOption = False,
) -> ExitCode:
    """Write a trace in another tool's form, and say what that form cannot carry."""
    from semtrace.store.container import check_output, replacing
    from semtrace_adapters.base import ImportOptions, exporter

    chosen = exporter(form)
    check_output(output, overwrite=force, inputs=[trace])
    bundle = open_trace(trace)
    with replacing(output, overwrite=force) as temporary:
        with temporary.open("wb") as file:
            losses = chosen.write(bundle.trace, file, ImportOptions(values=_options(settings or [])))
        size = temporary.stat().st_size
    value: dict[str, Any] = {
        "output": str(output),
        "adapter": chosen.name,
        "adapter_version": chosen.version,
        "bytes": size,
        "loss": [loss.as_json() for loss in losses],
    }

    def text() -> "list[RenderableType]":
        from rich.markup import escape

        return [*_loss_lines(losses), f"written to {escape(str(output))}, {size:,} bytes"]

    emit(value, as_json=json_output, text=text)
    return ExitCode.OK


def _loss_lines(losses: "Sequence[Loss]") -> list[str]:
    """A loss report as lines of text."""
    from rich.markup import escape

    return [escape(f"  {loss.effect:9} {loss.count:>5} × {loss.message}{_places(loss)}") for loss in losses]


def _places(loss: "Loss") -> str:
    """Where something was left out or lost, as far as a line has room for it."""
    if loss.effect not in {"lost", "ignored"} or not loss.where:
        return ""
    shown = list(dict.fromkeys(loss.where))[:_SHOWN]
    more = ", …" if loss.count > len(shown) else ""
    return f" ({', '.join(shown)}{more})"


def _options(settings: list[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not key or not equals:
            raise UsageError(f"--set {setting}: must be KEY=VALUE", code="import.set")
        values[key] = value
    return values
