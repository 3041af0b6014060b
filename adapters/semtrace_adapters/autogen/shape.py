"""JSON of unknown shape, taken as what is expected or as nothing."""

from __future__ import annotations

from typing import Any


def obj(value: Any) -> dict[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def objs(value: Any) -> list[dict[str, Any]]:
    """The objects in the value if it is an array, else none."""
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def text(value: Any) -> str | None:
    """The value if it is a string, else None."""
    return value if isinstance(value, str) else None


def count(value: Any) -> int | None:
    """The value if it is a whole number of tokens, from 0 to less than 2^40, else None."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < 1 << 40 else None
