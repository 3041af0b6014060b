"""Printing what strangers wrote: nothing in it styles the output, moves the cursor, or ends a command.

Names, paths and messages come out of files. Whatever they hold, they are printed as text: characters that control a
terminal are shown as escapes, and what a stream cannot encode as well. Rich markup is escaped where text is put
together with markup (`rich.markup.escape`).
"""

import io
import json
import os
import re
import signal
import sys
from collections.abc import Iterable, Mapping
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from semtrace.errors import SemtraceError

# C0 (line ends and tabs aside), DEL, C1; marks that turn the direction of text; lone surrogates (bytes of file names)
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


_COLOURS = {"✓": 32, "✗": 31}


def visible(text: str) -> str:
    """Text with everything that is no text shown as an escape, ESC as backslash, x, 1b."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def ready_streams() -> None:
    """Make the standard streams print what their encoding does not have as escapes, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def end_at_closed_pipes(*, yes: bool) -> None:
    """Whether a closed pipe ends the process at once and quietly, as it does other programs.

    It may while the command line is read and help is printed; a command says itself what becomes of it.
    """
    if hasattr(signal, "SIGPIPE"):  # there is none on Windows
        signal.signal(signal.SIGPIPE, signal.SIG_DFL if yes else signal.SIG_IGN)


def print_lines(lines: Iterable[tuple[str, str]]) -> None:
    """Print lines of plain text, each after a mark: `✓` is green where colours are seen, `✗` red."""
    coloured = (
        sys.stdout is not None
        and sys.stdout.isatty()
        and os.name == "posix"
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM", "dumb") != "dumb"
    )
    try:
        for mark, text in lines:
            shown = f"\x1b[{_COLOURS[mark]}m{mark}\x1b[0m" if coloured and mark in _COLOURS else mark
            if sys.stdout is not None:
                print(shown, visible(text))
    except BrokenPipeError:
        drop_output()


def drop_output() -> None:
    """Let what is still to be printed go nowhere: nobody reads it, and the interpreter's own flush would fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):  # a stream that is no file, or none at all
        sys.stdout = io.StringIO()
    finally:
        os.close(nowhere)


def flush_output() -> None:
    """Hand on what was printed; where the reader has gone, that is no failure."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        drop_output()


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object, in ASCII: whatever the encoding of the stream, it says the same."""
    try:
        if sys.stdout is not None:
            print(json.dumps(value, indent=2))
    except BrokenPipeError:
        drop_output()


def console() -> "Console":
    """The console for results; where nobody watches, lines are wide enough for digests."""
    from semtrace.cli.screen import Screen

    return Screen()


def show_error(error: "SemtraceError", *, as_json: bool) -> None:
    """Print an error: on standard error for people, on standard output as JSON. Never fails itself."""
    findings = [finding.as_dict() for finding in getattr(error, "findings", ())]
    if as_json:
        try:
            print_json({"error": error.as_dict(), **({"findings": findings} if findings else {})})
            flush_output()
        except (OSError, ValueError):
            drop_output()
        else:
            return
    _complain(f"error: {error}")
    for finding in getattr(error, "findings", ()):
        _complain(f"✗ {finding}")
        if finding.hint:
            _complain(f"    hint: {finding.hint}")
    if error.hint:
        _complain(f"  hint: {error.hint}")


def _complain(text: str) -> None:
    stream: IO[str] | None = sys.stderr
    try:
        if stream is not None:
            print(visible(text), file=stream, flush=True)
    except (OSError, ValueError):  # nowhere is left to say it; the exit code does
        sys.stderr = io.StringIO()
