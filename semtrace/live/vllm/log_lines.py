"""The lines of a step log, and what is said of one that is no record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from semtrace.errors import UsageError
from semtrace.records.document import open_regular
from semtrace.records.lines import lines_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
"""What some editors put before the first line of a file."""


def log_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a step log with their numbers, from 1, and their ends; without a byte order mark before the first.

    Raises:
        UsageError: it cannot be read, or is no file: a device may have no end, a FIFO no writer.
        FormatError: a line is too long.
    """
    try:
        with open_regular(path) as file:
            for number, line in lines_of(file, path):
                yield number, line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot be read: {getattr(error, 'strerror', None) or error}",
            code="file.unreadable",
            path=str(path),
        ) from error


def what_is_wrong(error: Exception) -> str:
    """What is wrong with a line, of the error that reading it met."""
    if isinstance(error, orjson.JSONDecodeError):
        return "it is no JSON"
    missing = error.args[0] if isinstance(error, KeyError) and error.args else None
    if isinstance(missing, str):
        return f"{missing[:40]!r} is missing in it, or is nothing that is known"
    if missing is not None:
        return f"it names {missing!s:.40}, of which no line before it tells; are lines missing?"
    return f"{type(error).__name__} {error!s:.80}"
