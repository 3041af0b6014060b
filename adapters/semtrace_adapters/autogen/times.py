"""Instants as logs write them: Unix numbers of any unit, ISO 8601, Python logging's ``asctime``."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

_STAMP = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)[T ](?P<clock>\d\d:\d\d:\d\d)(?P<part>[.,]\d{1,9})?\s?(?P<zone>Z|[+-]\d\d:?\d\d|UTC)?"
)
_UNITS = ((1e11, 10**9), (1e14, 10**6), (1e17, 10**3))
"""A Unix time below the bound is in seconds, milliseconds, microseconds; else in nanoseconds."""


def parse_stamp(text: str) -> tuple[int, bool] | None:
    """The first date and time in a text.

    Returns:
        Unix nanoseconds, and whether the text names its offset from UTC; without one the time is taken as UTC.
        None where there is no date and time.
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
    return int(whole.timestamp()) * 10**9 + int(part), zone is not None


def unix_ns(value: Any) -> tuple[int, bool] | None:
    """A logged time as Unix nanoseconds, and whether its offset from UTC is known; None if it is no time."""
    if isinstance(value, str):
        return (unix_ns(int(value)) if value.isdigit() else parse_stamp(value)) if value else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return None
    for bound, unit in _UNITS:
        if value < bound:
            # A double holds a Unix time in seconds to about 200 ns: microseconds are multiplied out exactly.
            return (value * unit if isinstance(value, int) else int(value * unit)), True
    return int(value), True


def iso(time_ns: int) -> str:
    """Unix nanoseconds for people, to the microsecond."""
    return (
        datetime.fromtimestamp(time_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        + f".{time_ns % 10**9 // 1000:06}Z"
    )
