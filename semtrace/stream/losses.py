"""What sealing could not keep, in the form of a bundle's loss report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from semtrace.store.manifest import Loss

if TYPE_CHECKING:
    from collections.abc import Iterable

PLACES: Final = 10
"""Places of a loss that are named."""


class Losses:
    """Counts losses; equal ones are one entry."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Loss] = {}

    def add(
        self,
        code: str,
        effect: Literal["lost", "unknown", "inferred", "ignored", "repaired"],
        message: str,
        *,
        where: str | None = None,
        count: int = 1,
    ) -> None:
        """Note a loss; see `semtrace.store.manifest.Loss`."""
        known = self._found.get((code, message))
        places = list(known.where) if known else []
        if where is not None and len(places) < PLACES:
            places.append(where)
        total = count + (known.count if known else 0)
        self._found[code, message] = Loss(
            code=code, effect=effect, message=message, count=total, where=places
        )

    def add_rows(
        self,
        code: str,
        effect: Literal["lost", "unknown", "inferred", "ignored", "repaired"],
        message: str,
        places: Iterable[str],
        count: int,
    ) -> None:
        """Note as many losses of one kind, a few of them with their place; none if there are none."""
        named = list(places)
        for where in named:
            self.add(code, effect, message, where=where)
        if count > len(named):
            self.add(code, effect, message, count=count - len(named))

    def items(self) -> list[Loss]:
        """The losses, by code."""
        return [self._found[key] for key in sorted(self._found)]
