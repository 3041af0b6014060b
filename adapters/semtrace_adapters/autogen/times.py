"""Instants as logs write them: Unix numbers of any unit, ISO 8601, Python logging's ``asctime``."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

_STAMP = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)[T ](?P<clock>\d\d:\d\d:\d\d)(?P<part>[.,]\d{1,9})?\s?(?P<zone>Z|[+-]\d\d:?\d\d|UTC)?"
)
_UNITS = ((1e11, 10**9), (1e14, 10**6), (1e17, 10**3))
"""A Unix time below the bound is in seconds, milliseconds, microseconds; else in nanoseconds."""

_LATEST_NS: Final = 7_258_118_400 * 10**9
"""2200-01-01: from then on a time is none that a log has, and 64 bits hold every duration between two."""


def _held(time_ns: int) -> bool:
    return 0 <= time_ns < _LATEST_NS


def parse_stamp(text: str) -> tuple[int, bool] | None:
    """The first date and time in a text.

    Returns:
        Unix nanoseconds, and whether the text names its offset from UTC; without one the time is taken as UTC.
        None where there is no date and time, or one before 1970 or from 2200 on.
    """
    found = _STAMP.search(text)
    if found is None:
        return None
    zone = found["zone"]
    offset = "+00:00" if zone in {None, "Z", "UTC"} else zone
    try:
        whole = datetime.fromisoformat(f"{found['day']}T{found['clock']}{offset}")
    except ValueError:
        return None
    part = (found["part"] or ".0")[1:].ljust(9, "0")
    made = int(whole.timestamp()) * 10**9 + int(part)
    return (made, zone is not None) if _held(made) else None


def unix_ns(value: Any) -> tuple[int, bool] | None:
    """A logged time as Unix nanoseconds, and whether its offset from UTC is known; None if it is no time."""
    if isinstance(value, str):
        if re.fullmatch(r"[0-9]{1,19}", value):
            return unix_ns(int(value))
        return parse_stamp(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _LATEST_NS:
        return None  # not a number, infinite, or what no clock shows
    for bound, unit in _UNITS:
        if value < bound:
            # A double holds a Unix time in seconds to about 200 ns: microseconds are multiplied out exactly.
            made = value * unit if isinstance(value, int) else int(value * unit)
            break
    else:
        made = int(value)
    return (made, True) if _held(made) else None


def nanoseconds(value: Any) -> int:
    """Unix nanoseconds that a source names so, a number or its digits.

    Raises:
        ValueError, TypeError: it is no such number.
    """
    if (
        isinstance(value, float) and not value.is_integer()
    ):  # not a number and infinite are no integers either
        raise ValueError(f"{value} is no whole number of nanoseconds")
    made = int(value)
    if not _held(made):
        raise ValueError(f"{value} is no time between 1970 and 2200")
    return made


def iso(time_ns: int) -> str:
    """Unix nanoseconds for people, to the microsecond."""
    return (
        datetime.fromtimestamp(time_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        + f".{time_ns % 10**9 // 1000:06}Z"
    )
