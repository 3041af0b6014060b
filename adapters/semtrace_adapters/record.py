"""The command `semtrace record`: runs a server, and makes a bundle of what it did."""

from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semtrace.cli.common import ForceOption, JsonOption, command, emit, finding_lines
from semtrace.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from semtrace.check.finding import Finding
    from semtrace_adapters.base import ImportResult
    from semtrace_adapters.vllm.serving import Ended

app = typer.Typer(name="record", help="Record a server while it runs.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Record a server while it runs."""


@app.command("vllm", context_settings={"ignore_unknown_options": True})
@command
def vllm(
    server: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND", help="After --, the server's command as you would run it."),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="BUNDLE", help="The bundle to write, OUT.semtrace.")
    ],
    log: Annotated[
        Path | None,
        typer.Option(
            "--log",
            metavar="FILE",
            help="Keep the step log, which holds all token ids, in this file; deleted after sealing if left out.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An option of the adapter: tasks, least."),
    ] = None,
    grace: Annotated[
        float, typer.Option("--grace", metavar="SECONDS", min=0, help="How long the server may take to end.")
    ] = 60,
    directory: Annotated[
        bool, typer.Option("--directory", help="Write a directory instead of one ZIP file.")
    ] = False,
    force: ForceOption = False,
    json_output: JsonOption = False,
) -> ExitCode:
    """Run a vLLM server that writes down every request and every step, and make a bundle when it ends.

    End it with Ctrl-C or SIGTERM. The bundle holds the token ids of prompts and outputs, and no texts.
    """
    from semtrace.store.container import check_output
    from semtrace_adapters.cli import _options as options_of
    from semtrace_adapters.vllm import ADAPTER
    from semtrace_adapters.vllm.serving import recording_command, serve

    values = options_of(settings or [])
    full = recording_command(server)
    kept = log if log is not None else output.with_name(output.name + ".steps.jsonl")
    check_output(output, overwrite=force)
    ADAPTER.options(values)
    _make(kept, force=force)
    try:
        ended = serve(full, kept, grace_s=grace, quiet=json_output)
    finally:
        for path in _logs(kept):
            if not path.stat().st_size:
                path.unlink()
    logs = _logs(kept)
    if not logs:
        raise UsageError(
            f"the server ended with {ended.code} before its scheduler was made: nothing was recorded",
            code="record.nothing",
            path=server[0],
            hint="see what it printed; its command must pass on --scheduler-cls to vLLM",
        )
    return _seal(
        logs, values, output, ended, keep=log is not None, directory=directory, force=force, json=json_output
    )


def _logs(path: Path) -> list[Path]:
    """The log of the first engine, and those of the others, as far as they are there."""
    others = sorted(path.parent.glob(f"{escape(path.name)}.[0-9]*"))
    return [each for each in (path, *others) if each.exists()]


def _make(path: Path, *, force: bool) -> None:
    """An empty file that nobody else may read: it will hold token ids."""
    import os

    for old in _logs(path):
        if not force:
            raise UsageError(
                "is there already",
                code="file.exists",
                path=str(old),
                hint="make a bundle of it with semtrace import, or replace it with --force",
            )
        old.unlink()
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise UsageError(
            f"cannot be written: {error.strerror}", code="file.unwritable", path=str(path)
        ) from error


def _seal(
    logs: list[Path],
    values: dict[str, str],
    output: Path,
    ended: "Ended",
    *,
    keep: bool,
    directory: bool,
    force: bool,
    json: bool,
) -> ExitCode:
    """Make the bundle; the logs stay where that fails."""
    from semtrace.cli.common import progress
    from semtrace_adapters.base import ImportOptions
    from semtrace_adapters.importing import write_imported
    from semtrace_adapters.vllm import ADAPTER

    with progress("sealing", quiet=json) as update:
        result = ADAPTER.read(logs, ImportOptions(progress=update, values=values))
    made = write_imported(output, ADAPTER, result, directory=directory, overwrite=force)
    if not keep:
        for path in logs:
            path.unlink()
    _tell(result, made.findings, output, ended, made.trace_digest, json=json)
    return ExitCode.FINDINGS if made.findings or not (ended.asked or ended.code == 0) else ExitCode.OK


def _tell(
    result: "ImportResult",
    findings: "list[Finding]",
    output: Path,
    ended: "Ended",
    digest: str | None,
    *,
    json: bool,
) -> None:
    trace = result.trace
    value: dict[str, Any] = {
        "output": str(output),
        "tasks": trace.tasks.rows,
        "operations": trace.operations.rows,
        "edges": trace.edges.rows,
        "steps": 0 if result.execution is None else result.execution["steps"].rows,
        "trace_digest": digest,
        "server": {"exit_code": ended.code, "told_to_end": ended.asked, "killed": ended.killed},
        "loss": [loss.as_json() for loss in result.loss],
        "findings": [finding.as_dict() for finding in findings],
    }

    def text() -> "list[RenderableType]":
        from rich.markup import escape

        from semtrace_adapters.cli import _loss_lines as loss_lines

        counts = ", ".join(f"{value[name]} {name}" for name in ("tasks", "operations", "edges", "steps"))
        lines: list[RenderableType] = [
            f"vllm: {counts}",
            *loss_lines(result.loss),
            *finding_lines(findings),
        ]
        if not ended.asked and ended.code:
            lines.append(f"✗ the server ended by itself, with {ended.code}")
        return [*lines, f"written to {escape(str(output))}"]

    emit(value, as_json=json, text=text)
