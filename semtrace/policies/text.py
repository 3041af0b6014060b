"""Actions as text: what a log of decisions says was chosen."""

from __future__ import annotations

import re
from dataclasses import fields
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from semtrace.policies.interface import Action

NOTHING = "nothing"
"""The text of no action at all."""


def choice_text(actions: Iterable[Action]) -> str:
    """Actions as a log has them: `keep(until_ns=5); wake(at_ns=3)`; members that are None are left out (ST-LIF-041)."""
    return "; ".join(_one(action) for action in actions) or NOTHING


def _one(action: Action) -> str:
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(action).__name__).lower()
    members = [(each.name, getattr(action, each.name)) for each in fields(action)]
    return f"{name}({', '.join(f'{key}={_value(value)}' for key, value in members if value is not None)})"


def _value(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
