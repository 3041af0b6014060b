"""Lines of logs from strangers, and JSON documents: nothing in them may take much more memory than they have bytes.

A line of more than 16 MiB is refused by its number, before more of it is read. JSON becomes thirty times as large as its text
where it is made for that: what is longer than 1 MiB is looked at before it is parsed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, Final

from semtrace.errors import FormatError
from semtrace.records.document import VALUE_LIMIT, has_too_many_values

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LINE_LIMIT: Final = 16 << 20
"""Bytes that a line can have: a request with a million tokens of text has some four million."""
_SURELY_SMALL: Final = 1 << 20
_BRACKETS: Final = 500_000
"""Opening brackets in a line, those in its texts included: a text can be JSON that is parsed, too."""


def lines_of(file: BinaryIO, path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers, from 1, and their ends.

    Args:
        file: the file, open at its beginning.
        path: where it is, for messages.

    Raises:
        FormatError: one is too long, or would take too much memory.
    """
    for number, line in enumerate(iter(lambda: file.readline(LINE_LIMIT + 1), b""), 1):
        if len(line) > _SURELY_SMALL:
            check_line(line, path, number)
        yield number, line


def check_line(line: bytes, path: Path, number: int) -> None:
    """Refuse a line that is too long, or has too many values.

    Args:
        line: the line, or its first bytes, more than `LINE_LIMIT`.
        path: its file.
        number: its number in the file, from 1.

    Raises:
        FormatError: naming it.
    """
    if len(line) > LINE_LIMIT:
        raise FormatError(
            f"a line of more than {LINE_LIMIT} bytes",
            code="source.line",
            path=f"{path}:{number}",
            hint="leave the line out; if nothing else is in the file, it is no log",
        )
    if len(line) > _SURELY_SMALL and (
        line.count(b"{") + line.count(b"[") > _BRACKETS or has_too_many_values(line)
    ):
        raise FormatError(
            f"a line that has, in {len(line)} bytes, more values than one of a log",
            code="source.line",
            path=f"{path}:{number}",
            hint="leave the line out",
        )


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
    while len(raw) - at > _SURELY_SMALL:
        end = raw.rfind(b"\n", at, at + _SURELY_SMALL + 1)
        if end < 0:
            end = raw.find(b"\n", at + _SURELY_SMALL)
            end = len(raw) if end < 0 else end
            check_line(raw[at : min(end, at + LINE_LIMIT + 1)], path, before + raw.count(b"\n", 0, at) + 1)
        at = end + 1


def is_small(raw: bytes) -> bool:
    """Whether a JSON document, or what may be one, takes little more memory than it has bytes when it is parsed."""
    return len(raw) <= _SURELY_SMALL or not has_too_many_values(raw)


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
