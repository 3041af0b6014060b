"""What all commands share: output as text or JSON, errors for people, progress, and finding executions."""

import functools
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from semtrace.cli.printing import (
    console,
    drop_output,
    end_at_closed_pipes,
    flush_output,
    print_json,
    ready_streams,
    show_error,
)
from semtrace.errors import (
    DocumentError,
    ExitCode,
    FaultError,
    FormatError,
    SemtraceError,
    UsageError,
    not_installed,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from semtrace.check.finding import Finding
    from semtrace.graph.plan import Plan
    from semtrace.records.execution import Execution
    from semtrace.records.trace import Trace
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
PlanOption = Annotated[
    Path | None,
    typer.Option(
        "--plan", metavar="PLAN", help="The plan that was to be followed; the execution's own if left out."
    ),
]


class InvalidInputError(FormatError):
    """A trace or an execution with findings, which a command that relies on what they violate does not use.

    Attributes:
        findings: what is wrong.
    """

    def __init__(self, message: str, findings: "Sequence[Finding]", *, path: str) -> None:
        super().__init__(
            message,
            code="input.invalid",
            path=path,
            requirement=findings[0].requirement,
            hint=f"semtrace check {path} judges all of it",
        )
        self.findings = tuple(findings)


def command(function: Callable[P, ExitCode | None]) -> Callable[P, None]:
    """Make a command of a function: errors become messages and exit codes, never tracebacks."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        end_at_closed_pipes(yes=False)
        ready_streams()
        as_json = bool(kwargs.get("json_output"))
        try:
            code = function(*args, **kwargs) or ExitCode.OK
            flush_output()
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(130) from None
        except BrokenPipeError:  # the reader of something that the command itself wrote to has gone
            drop_output()
            code = ExitCode.OK
        except Exception as error:  # noqa: BLE001  # the last line of defence: a bug is reported, not shown as a traceback
            shown = _error_of(error)
            show_error(shown, as_json=as_json)
            code = shown.exit_code
        if code:
            raise typer.Exit(int(code))

    return run


def _error_of(error: Exception) -> SemtraceError:
    """What to tell a person of an exception."""
    if isinstance(error, SemtraceError):
        return error
    if isinstance(error, OSError):
        return UsageError(f"cannot be read or written: {error}", code="file.io")
    if isinstance(error, ModuleNotFoundError):
        return not_installed(error)
    if isinstance(error, RecursionError):
        return FormatError("something in the input is nested too deeply", code="input.nesting")
    if isinstance(error, MemoryError):
        return UsageError("there is not enough memory for this", code="usage.memory")
    if os.environ.get("SEMTRACE_DEBUG"):
        traceback.print_exc()
    return FaultError(
        f"a fault in semtrace itself: {type(error).__name__}: {error}",
        code="internal",
        hint="please report it, with the output of the same command under SEMTRACE_DEBUG=1",
    )


def emit(value: dict[str, Any], *, as_json: bool, text: "Callable[[], Sequence[RenderableType]]") -> None:
    """Print a result: the JSON object, or what `text` renders."""
    if as_json:
        print_json(value)
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
def interruptible() -> Iterator[None]:
    """SIGTERM ends what is done meanwhile as Ctrl-C does."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
    path, _, inner = name.partition("#") if not is_there(Path(name)) else (name, "", "")
    return Path(path), inner or None


def is_there(path: Path) -> bool:
    """Whether something is at a path, as far as one may know: not where a folder cannot be searched."""
    try:
        path.stat()
    except (OSError, ValueError):
        return False
    return True


def open_trace(path: Path, *, checked: bool = True) -> "Bundle":
    """Open a bundle that holds a trace.

    Args:
        path: the bundle.
        checked: refuse a trace with findings. Who says no must check, or rely on nothing that the rules promise.

    Raises:
        UsageError: it holds none.
        InvalidInputError: the trace is not valid.
        FormatError, IntegrityError: it cannot be read.
    """
    from semtrace.store.bundle import open_bundle

    bundle = open_bundle(path)
    _ = bundle.trace
    if checked:
        require_valid(bundle)
    return bundle


def require_valid(bundle: "Bundle") -> "Bundle":
    """A bundle, after a check of its trace's tables.

    Raises:
        InvalidInputError: they have findings.
    """
    from semtrace.check import check_trace

    findings = check_trace(bundle.trace, content=False)
    if findings:
        raise InvalidInputError("the trace is not valid, and is not used", findings, path=str(bundle.path))
    return bundle


def open_execution(name: str, beside: "Bundle | None" = None) -> "Execution":
    """Find an execution: a bundle's path, `PATH#NAME`, or the name of one in the bundle beside.

    Beside a trace of the same work, its rows must be in order and refer to rows that there are; the rest is judged
    by who uses it.

    Raises:
        UsageError: there is none.
        InvalidInputError: its rows are out of order or range.
    """
    from semtrace.store.bundle import open_bundle

    if beside is not None and name in beside.manifest.executions and not is_there(Path(name)):
        return require_rows(beside.execution(name), beside.trace, name)
    path, inner = bundle_path(name)
    if not os.path.lexists(path):
        inside = ", ".join(sorted(beside.manifest.executions)) if beside is not None else ""
        raise UsageError(
            "neither a bundle nor the name of an execution in the trace's bundle",
            code="file.missing",
            path=name,
            hint=f"the trace's bundle holds: {inside or 'no execution'}",
        )
    return require_rows(open_bundle(path).execution(inner), beside.trace if beside else None, name)


def require_rows(execution: "Execution", trace: "Trace | None", name: str) -> "Execution":
    """An execution, after a check that its rows are in order and refer to rows that there are.

    Raises:
        InvalidInputError: they do not. Of an execution of other work than the trace's, nothing is said: who uses it
            refuses it as that.
    """
    from semtrace.check import check_execution

    findings = check_execution(execution, trace)
    structural = [
        finding
        for finding in findings
        if finding.requirement in _ROW_RULES or not finding.requirement.startswith("ST-EXE-")
    ]
    if structural and not any(finding.requirement == "ST-EXE-001" for finding in findings):
        raise InvalidInputError("the execution cannot be used", structural, path=name)
    return execution


_ROW_RULES = frozenset({"ST-EXE-002", "ST-EXE-003", "ST-EXE-004"})
"""The rules on executions that row numbers depend on. Audits and measures judge the others as far as they need them."""


def plan_of(path: Path | None, execution: "Execution") -> "Plan | None":
    """The plan of an execution: read from a file, else the one in the execution's header, else None.

    Raises:
        FormatError: what the header holds is no plan.
    """
    from semtrace.graph.plan import Plan

    if path is not None:
        return Plan.read(path)
    if execution.header.plan is None:
        return None
    try:
        return Plan.parse(execution.header.plan, path="execution header, plan")
    except DocumentError as error:  # nobody wrote it by hand
        raise FormatError(
            error.message, code="execution.plan", path=error.path, requirement=error.requirement
        ) from error


def milliseconds(value_ns: float | None) -> str:
    """A time for people, in ms with three decimals."""
    return "unknown" if value_ns is None else f"{value_ns / 1e6:,.3f}"
