"""Whole numbers that people type, wherever a command takes them inside of other text."""

import re
from typing import Final

from semtrace.errors import UsageError

LARGEST: Final = (1 << 53) - 1
"""Greatest count, time in ns or seed on the command line: what canonical JSON writes as a number."""

_WHOLE = re.compile(r"-?[0-9]{1,16}")  # int() takes digits of any script, and any number of them


def is_whole(text: str) -> bool:
    """Whether text is a whole number of at most 16 digits 0 to 9, with or without a minus."""
    return _WHOLE.fullmatch(text) is not None


def whole(text: str, what: str, *, least: int = 0, hint: str | None = None) -> int:
    """The whole number that text spells.

    Args:
        text: the text.
        what: what it is given for, as typed (`--add 1:x`).
        least: the least number allowed.
        hint: how the whole is written.

    Raises:
        UsageError: it is none, or is out of range.
    """
    value = int(text) if is_whole(text) else None
    if value is None or not least <= value <= LARGEST:
        shown = text if len(text) <= 20 else f"{text[:20]}…"
        raise UsageError(
            f"{what}: {shown!r} is no whole number from {least} to {LARGEST}", code="usage.number", hint=hint
        )
    return value
