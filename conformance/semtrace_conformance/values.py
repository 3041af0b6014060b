"""Comparing the facts of an answer with those expected."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_DIGITS: Final = re.compile(r"-?(0|[1-9][0-9]*)")
_SHOWN: Final = 80


def integer(value: object) -> int | None:
    """The integer that a value is: a JSON integer, or its decimal digits as a string; None if it is neither."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str) and len(value) <= 20 and _DIGITS.fullmatch(value):
        return int(value)
    return None


def differences(expected: object, given: object, where: str) -> Iterator[str]:
    """Where two JSON values differ, each place in words.

    An expected integer may be given as a string of digits. Members that are null count as left out. Members that
    are not expected are differences.
    """
    if isinstance(expected, dict):
        if not isinstance(given, dict):
            yield f"{where} is {show(given)}, must be an object"
            return
        for name in sorted({*expected, *given}):
            if expected.get(name) is None and given.get(name) is None:
                continue
            if name not in expected:
                yield f"{where}.{name} is {show(given[name])}, must not be there"
            else:
                yield from differences(expected[name], given.get(name), f"{where}.{name}")
    elif isinstance(expected, list):
        if not isinstance(given, list):
            yield f"{where} is {show(given)}, must be a list of {len(expected)}"
        elif len(given) != len(expected):
            yield f"{where} has {len(given)} elements, must have {len(expected)}"
        else:
            for at, (one, other) in enumerate(zip(expected, given, strict=True)):
                yield from differences(one, other, f"{where}[{at}]")
    elif isinstance(expected, int) and not isinstance(expected, bool):
        if integer(given) != expected:
            yield f"{where} is {show(given)}, must be {expected}"
    elif type(expected) is not type(given) or expected != given:
        yield f"{where} is {show(given)}, must be {show(expected)}"


def show(value: object) -> str:
    """A value for a message, cut short."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
