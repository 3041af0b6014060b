"""Lines of logs from strangers: none may take much more memory than it has bytes.

A line of more than 16 MiB is refused by its number, before more of it is read. JSON becomes thirty times as large as its text
where it is made for that: what is longer than 1 MiB is looked at before it is parsed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, Final

from semtrace.errors import FormatError
from semtrace.records.document import has_too_many_values

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LINE_LIMIT: Final = 16 << 20
"""Bytes that a line can have: a request with a million tokens of text has some four million."""
SURELY_SMALL: Final = 1 << 20
"""Bytes of JSON that may be parsed without a look at it."""
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
        if len(line) > SURELY_SMALL:
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
    if len(line) > SURELY_SMALL and (
        line.count(b"{") + line.count(b"[") > _BRACKETS or has_too_many_values(line)
    ):
        raise FormatError(
            f"a line that has, in {len(line)} bytes, more values than one of a log",
            code="source.line",
            path=f"{path}:{number}",
            hint="leave the line out",
        )
