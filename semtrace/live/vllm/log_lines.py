"""The lines of a step log, and what is said of one that is no record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from semtrace.errors import UsageError
from semtrace.records.document import open_regular
from semtrace.records.lines import lines_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
"""What some editors put before the first line of a file."""
MOST_TOKENS: Final = 1 << 32
"""Tokens of a request, and of a step, are fewer; so are the blocks of a server."""
MOST_BLOCKS: Final = 1 << 20
"""Most consecutive blocks of one request that are moved at once."""
MOST_SERVERS: Final = 1 << 16
"""Engines of a server are fewer."""
_SIZES: Final = 1 << 40
_TIMES: Final = 1 << 62
"""Times are less, in ns (ST-VAL-003)."""


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


def check_numbers(record: Mapping[str, Any]) -> None:
    """Refuse numbers that no server has: what is made of them would take memory without end, or be in no column.

    Raises:
        ValueError: there is one.
        TypeError, IndexError: a member is of another kind.
    """
    for name, value in record.items():
        if name.endswith("_ns"):
            # Durations of the front are differences of clocks, which may be set back.
            _within(value, 1 - _TIMES if name not in ("unix_ns", "monotonic_ns") else 0, _TIMES, name)
        elif name == "rank":
            _within(value, 0, MOST_SERVERS, name)
        elif name in ("prompt_tokens", "free_blocks"):
            _within(value, 0, MOST_TOKENS, name)
        elif name in ("blocks", "block_size", "block_bytes") and value is not None:
            _within(value, 0, _SIZES, name)
        elif name == "entries":
            for entry in value:
                _within(entry[2], 0, MOST_TOKENS, "tokens computed before")
                _within(entry[3], 0, MOST_TOKENS, "tokens computed")
            _within(sum(entry[3] for entry in value), 0, MOST_TOKENS, "tokens of a step")
        elif name == "yielded":
            for each in value:
                _within(each[1], 0, MOST_TOKENS, "tokens yielded")
        elif name == "moves" and isinstance(value, list):
            for move in value:
                if move[2] is not None:
                    _within(move[2], 0, MOST_TOKENS, "the ordinal of a block")
                for first, count in move[3]:
                    _within(count, 0, MOST_BLOCKS + 1, "the number of blocks")
                    _within(first, 0, MOST_TOKENS - count, "the id of a block")


def _within(value: object, least: int, limit: int, name: str) -> None:
    if type(value) is not int or not least <= value < limit:
        raise ValueError(f"{name} is no whole number from {least} to {limit - 1}, but {value!s:.40}")


def what_is_wrong(error: Exception) -> str:
    """What is wrong with a line, of the error that reading it met."""
    if isinstance(error, orjson.JSONDecodeError):
        return "it is no JSON"
    missing = error.args[0] if isinstance(error, KeyError) and error.args else None
    if isinstance(missing, str):
        return f"{missing[:40]!r} is missing in it, or is nothing that is known"
    if missing is not None:
        return f"it names {missing!s:.40}, of which no line before it tells; are lines missing?"
    return f"{error!s:.120}" if isinstance(error, ValueError) else f"{type(error).__name__} {error!s:.80}"
