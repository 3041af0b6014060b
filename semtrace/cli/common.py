"""What all commands share: output as text or JSON, errors for people, progress, and finding executions."""

import functools
import io
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from semtrace.errors import ExitCode, SemtraceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

    from semtrace.check.finding import Finding
    from semtrace.graph.plan import Plan
    from semtrace.records.execution import Execution
    from semtrace.store.bundle import Bundle

P = ParamSpec("P")

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace what is at the output path.")]
TraceArgument = Annotated[Path, typer.Argument(metavar="TRACE", help="A bundle that holds a trace.")]
ExecutionArgument = Annotated[
    str,
    typer.Argument(
        metavar="EXEC",
        help="A bundle that holds an execution (PATH, or PATH#NAME where it holds several), "
        "or the name of an execution in the trace's own bundle.",
    ),
]


def command(function: Callable[P, ExitCode | None]) -> Callable[P, None]:
    """Make a command of a function: errors become messages and exit codes, never tracebacks."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        as_json = bool(kwargs.get("json_output"))
        try:
            code = function(*args, **kwargs) or ExitCode.OK
            if sys.stdout is not None:
                sys.stdout.flush()
        except SemtraceError as error:
            show_error(error, as_json=as_json)
            code = error.exit_code
        except BrokenPipeError:
            _drop_output()  # the reader has gone: say no more
            code = ExitCode.OK
        except OSError as error:
            _drop_output()
            show_error(UsageError(f"cannot be read or written: {error}", code="file.io"), as_json=False)
            code = ExitCode.USAGE
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(130) from None
        except Exception as error:  # noqa: BLE001  # the last line of defence: a bug is reported, not shown as a traceback
            if os.environ.get("SEMTRACE_DEBUG"):
                traceback.print_exc()
            fault = SemtraceError(
                f"a fault in semtrace itself: {type(error).__name__}: {error}",
                code="internal",
                hint="please report it, with the output of the same command under SEMTRACE_DEBUG=1",
            )
            show_error(fault, as_json=as_json)
            code = ExitCode.INTERNAL
        if code:
            raise typer.Exit(int(code))

    return run


def _drop_output() -> None:
    """Let what is still to be printed go nowhere, so that the interpreter's own flush does not fail at its end."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show_error(error: SemtraceError, *, as_json: bool) -> None:
    """Print an error: on standard error for people, on standard output as JSON."""
    if as_json:
        print(json.dumps({"error": error.as_dict()}, indent=2, ensure_ascii=False))
        return
    print(f"error: {error}", file=sys.stderr)
    if error.hint:
        print(f"  hint: {error.hint}", file=sys.stderr)


def console() -> "Console":
    """The console for results; where nobody watches, lines are wide enough for digests."""
    from rich.console import Console

    watched = sys.stdout is not None and sys.stdout.isatty()
    return Console(file=sys.stdout or io.StringIO(), width=None if watched else 140, highlight=False)


def emit(value: dict[str, Any], *, as_json: bool, text: "Callable[[], Sequence[RenderableType]]") -> None:
    """Print a result: the JSON object, or what `text` renders."""
    if as_json:
        print(json.dumps(value, indent=2, ensure_ascii=False))
        return
    out = console()
    for part in text():
        out.print(part)


def finding_lines(findings: "Sequence[Finding]") -> list[str]:
    """Findings as lines of text, each with its hint."""
    from rich.markup import escape

    lines = []
    for finding in findings:
        lines.append(f"[red]✗[/red] {escape(str(finding))}")
        if finding.hint:
            lines.append(f"    hint: {escape(finding.hint)}")
    return lines


@contextmanager
def progress(what: str, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on standard error, shown when the work has gone on for a second and somebody watches.

    Yields:
        A function to be called with (done, in all).
    """
    if quiet or not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=None)
    begun = time.monotonic()
    state = {"shown": False}

    def update(done: int, total: int) -> None:
        if not state["shown"] and time.monotonic() - begun > 1:
            bar.start()
            state["shown"] = True
        if state["shown"]:
            bar.update(task, completed=done, total=total)

    try:
        yield update
    finally:
        if state["shown"]:
            bar.stop()


def bundle_path(name: str) -> tuple[Path, str | None]:
    """A bundle's path, and the execution named after a `#`, if one is."""
    path, _, inner = name.partition("#") if not Path(name).exists() else (name, "", "")
    return Path(path), inner or None


def open_trace(path: Path) -> "Bundle":
    """Open a bundle that holds a trace.

    Raises:
        UsageError: it holds none.
    """
    from semtrace.store.bundle import open_bundle

    bundle = open_bundle(path)
    _ = bundle.trace
    return bundle


def open_execution(name: str, beside: "Bundle | None" = None) -> "Execution":
    """Find an execution: a bundle's path, `PATH#NAME`, or the name of one in the bundle beside.

    Raises:
        UsageError: there is none.
    """
    from semtrace.store.bundle import open_bundle

    if beside is not None and name in beside.manifest.executions and not Path(name).exists():
        return beside.execution(name)
    path, inner = bundle_path(name)
    if not path.exists():
        inside = ", ".join(sorted(beside.manifest.executions)) if beside is not None else ""
        raise UsageError(
            "neither a bundle nor the name of an execution in the trace's bundle",
            code="file.missing",
            path=name,
            hint=f"the trace's bundle holds: {inside or 'no execution'}",
        )
    return open_bundle(path).execution(inner)


def plan_of(path: Path | None, execution: "Execution") -> "Plan | None":
    """The plan of an execution: read from a file, else the one in the execution's header, else None."""
    from semtrace.graph.plan import Plan

    if path is not None:
        return Plan.read(path)
    if execution.header.plan is not None:
        return Plan.parse(execution.header.plan, path="execution header, plan")
    return None


def milliseconds(value_ns: float | None) -> str:
    """A time for people, in ms with three decimals."""
    return "unknown" if value_ns is None else f"{value_ns / 1e6:,.3f}"
