"""Numbers of cost documents: their ranges, and what is said of one out of range."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, Field

LARGEST: Final = (1 << 53) - 1
"""Greatest coefficient: what canonical JSON writes as a number."""


def _coefficient(value: int) -> int:
    if not 0 <= value <= LARGEST:
        raise ValueError(
            f"is {value}, must be from 0 to 2^53 - 1 (ST-COST-002): more work never makes a step shorter; "
            f"give 0 to a term that does not count"
        )
    return value


def _share(value: float) -> float:
    if not 1e-6 <= value <= 1:
        raise ValueError(
            f"is {value}, must be from 10^-6 to 1 (ST-COST-012): the part of the peak that is reached"
        )
    return value


def _nanoseconds(value: float) -> float:
    if not 0 <= value <= 1e15:  # also refuses NaN
        raise ValueError(f"is {value}, must be from 0 to 10^15 ns (ST-COST-002)")
    return value


Picoseconds = Annotated[
    int, AfterValidator(_coefficient), Field(json_schema_extra={"minimum": 0, "maximum": LARGEST})
]
"""A coefficient in ps, from 0 to 2^53 - 1."""
Share = Annotated[float, AfterValidator(_share), Field(json_schema_extra={"minimum": 1e-6, "maximum": 1})]
"""A part of a peak, from 10^-6 to 1."""
Nanoseconds = Annotated[
    float, AfterValidator(_nanoseconds), Field(json_schema_extra={"minimum": 0, "maximum": 10**15})
]
"""A time in ns that need not be whole, from 0 to 10^15."""
