"""Lines of logs from strangers, and JSON documents: nothing in them may take much more memory than they have bytes.

A line of more than 16 MiB is refused by its number, before more of it is read. JSON becomes thirty times as large as its text
where it is made for that: what is longer than 1 MiB is looked at before it is parsed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from semtrace.errors import FormatError
from semtrace.records.document import VALUE_LIMIT, has_too_many_values
from semtrace.records.lines import LINE_LIMIT, SURELY_SMALL, check_line, lines_of

if TYPE_CHECKING:
    from pathlib import Path

_TOKEN: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{},]', re.DOTALL)
"""What `has_too_many_values` counts."""

__all__ = [
    "LINE_LIMIT",
    "check_document",
    "check_line",
    "check_lines",
    "check_values",
    "is_small",
    "lines_of",
]


def check_lines(raw: bytes, path: Path, before: int = 0) -> None:
    """Refuse lines that are too long, or have too many values; see `check_line`.

    Args:
        raw: the lines.
        path: their file.
        before: how many lines are before them in it.

    Raises:
        FormatError: naming the first that is.
    """
    at = 0
    while len(raw) - at > SURELY_SMALL:
        end = raw.rfind(b"\n", at, at + SURELY_SMALL + 1)
        if end < 0:
            end = raw.find(b"\n", at + SURELY_SMALL)
            end = len(raw) if end < 0 else end
            check_line(raw[at : min(end, at + LINE_LIMIT + 1)], path, before + raw.count(b"\n", 0, at) + 1)
        at = end + 1


def is_small(raw: bytes) -> bool:
    """Whether a JSON document, or what may be one, takes little more memory than it has bytes when it is parsed."""
    return len(raw) <= SURELY_SMALL or not has_too_many_values(raw)


def check_document(raw: bytes, path: Path) -> None:
    """Refuse a JSON document that would take too much memory.

    Raises:
        FormatError: it has too many values.
    """
    if not is_small(raw):
        raise FormatError(
            f"a document of {len(raw)} bytes with more than {VALUE_LIMIT} values",
            code="source.document",
            path=str(path),
            hint="import without it",
        )


def check_values(text: str, at: int, path: Path) -> None:
    """Refuse a JSON value, one of several in a file, that would take too much memory.

    Args:
        text: the file's text.
        at: where the value begins in it.
        path: the file.

    Raises:
        FormatError: it has too many values.
    """
    depth = found = 0
    for token in _TOKEN.finditer(text, at):
        first = text[token.start()]
        if first in "]}":
            depth -= 1
            if depth <= 0:
                return
        depth += first in "[{"
        found += 1 if first == "," else 4
        if found > VALUE_LIMIT:
            raise FormatError(
                f"a JSON value with more than {VALUE_LIMIT} values in it",
                code="source.document",
                path=f"{path}:{text.count(chr(10), 0, at) + 1}",
                hint="import without it",
            )
