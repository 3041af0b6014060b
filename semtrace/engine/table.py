"""The table cost: measured times of steps on a grid, with straight lines between (spec/cost.md)."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from semtrace.engine.coefficients import LARGEST, Picoseconds
from semtrace.records.document import Document

MOST_TIMES: Final = 1 << 16
"""Times that a table may have."""
AXES: Final = ("prefill_tokens", "decode_tokens", "context")
"""The axes of a table, the slowest first."""

_Axis = Annotated[list[int], Field(min_length=1, max_length=MOST_TIMES)]


class TableCost(Document):
    """A step's time by its prefill tokens, decode tokens and context (ST-COST-030).

    Attributes:
        prefill_tokens: points of the first axis, ascending from 0.
        decode_tokens: points of the second axis, ascending from 0.
        context: points of the third axis, ascending from 0: prefill context and decode context together.
        ns: a time in ns for each combination of points, by prefill tokens, then decode tokens, then context.
        beyond_prefill_ps: ps for every prefill token beyond the last point.
        beyond_decode_ps: ps for every decode token beyond the last point.
        beyond_context_ps: ps for every token of context beyond the last point.
        notes: where the times are from.
    """

    format: Literal["semtrace-cost"] = "semtrace-cost"
    kind: Literal["table"] = "table"
    prefill_tokens: _Axis
    decode_tokens: _Axis
    context: _Axis
    ns: list[list[list[int]]]
    beyond_prefill_ps: Picoseconds
    beyond_decode_ps: Picoseconds
    beyond_context_ps: Picoseconds
    notes: str | None = None

    @model_validator(mode="after")
    def _whole(self) -> TableCost:
        axes = [self.prefill_tokens, self.decode_tokens, self.context]
        for name, axis in zip(AXES, axes, strict=True):
            ascending = all(low < high for low, high in pairwise(axis))
            if axis[0] != 0 or not ascending or axis[-1] > LARGEST:
                raise ValueError(f"{name}: must ascend from 0 to at most 2^53 - 1 (ST-COST-030)")
        wanted = [len(axis) for axis in axes]
        if wanted[0] * wanted[1] * wanted[2] > MOST_TIMES:
            raise ValueError(f"ns: more than {MOST_TIMES:,} times (ST-COST-030)")
        if (
            len(self.ns) != wanted[0]
            or any(len(plane) != wanted[1] for plane in self.ns)
            or any(len(line) != wanted[2] for plane in self.ns for line in plane)
        ):
            raise ValueError(
                f"ns: must be {wanted[0]} lists of {wanted[1]} lists of {wanted[2]} times, as the axes have points "
                "(ST-COST-030)"
            )
        wrong = [time for plane in self.ns for line in plane for time in line if not 1 <= time <= LARGEST]
        if wrong:
            raise ValueError(f"ns: has {wrong[0]}, times must be from 1 to 2^53 - 1 ns (ST-COST-030)")
        return self


def table_numbers(document: TableCost) -> tuple[list[int], list[float]]:
    """The integers and binary64 numbers that `step_ns` takes of a table.

    Integers: points of each axis, ps beyond each, then the points. Numbers: the times, the context varying fastest.
    """
    axes = [document.prefill_tokens, document.decode_tokens, document.context]
    beyond = [document.beyond_prefill_ps, document.beyond_decode_ps, document.beyond_context_ps]
    ints = [*map(len, axes), *beyond, *(point for axis in axes for point in axis)]
    return ints, [float(time) for plane in document.ns for line in plane for time in line]
