"""What a step of an engine costs: cost documents, and the one function that tells a step's time.

A step is described by its geometry, eight integers in the order of `GEOMETRY` (ST-COST-001). `step_ns` is written in the
subset of Python that numba compiles, and gives the same integer compiled and as it stands (ST-COST-003): it is the
one place where a step's time is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import numpy as np
from pydantic import Field

from semtrace.engine.catalog import SUFFIXES
from semtrace.engine.coefficients import Picoseconds
from semtrace.engine.roofline import RooflineCost, roofline_numbers
from semtrace.engine.table import TableCost, table_numbers
from semtrace.errors import DocumentError
from semtrace.records.document import Document, read_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from semtrace.engine.catalog import Device, ModelShape
    from semtrace.engine.settings import EngineSettings

GEOMETRY: Final = (
    "requests",
    "prefill_tokens",
    "decode_tokens",
    "sampled",
    "prefill_pairs",
    "prefill_context",
    "decode_pairs",
    "decode_context",
)
"""The eight numbers of a step, in their order (ST-COST-001)."""
LINEAR: Final = 0
ROOFLINE: Final = 1
TABLE: Final = 2


class LinearCost(Document):
    """A step's time as a sum over what it holds, in integer ps (ST-COST-004).

    Attributes:
        c0_ps: ps for every step.
        c_seq_ps: ps for every request in it.
        c_prefill_ps: ps for every prefill token.
        c_decode_ps: ps for every decode token.
        c_kv_ps: ps for every token of context, of all its requests.
        notes: where the coefficients are from.
    """

    format: Literal["semtrace-cost"] = "semtrace-cost"
    kind: Literal["linear"] = "linear"
    c0_ps: Picoseconds
    c_seq_ps: Picoseconds
    c_prefill_ps: Picoseconds
    c_decode_ps: Picoseconds
    c_kv_ps: Picoseconds
    notes: str | None = None


CostDocument = Annotated[LinearCost | RooflineCost | TableCost, Field(discriminator="kind")]
"""Any of the cost documents, by its `kind`."""
_KINDS: Final[dict[str, type[LinearCost | RooflineCost | TableCost]]] = {
    "linear": LinearCost,
    "roofline": RooflineCost,
    "table": TableCost,
}


@dataclass(frozen=True)
class Cost:
    """A cost document as numbers, for `step_ns`.

    Attributes:
        kind: `LINEAR`, `ROOFLINE` or `TABLE`.
        ints: its integers.
        floats: its binary64 numbers.
    """

    kind: int
    ints: NDArray[np.int64]
    floats: NDArray[np.float64]


@dataclass(frozen=True)
class Limits:
    """The most that a step of an engine can hold.

    Attributes:
        requests: requests in a step.
        tokens: tokens computed in a step.
        length: tokens of a request, prompt and output.
    """

    requests: int
    tokens: int
    length: int

    @classmethod
    def of(cls, settings: EngineSettings) -> Limits:
        """The limits that an engine's settings give."""
        scheduler = settings.scheduler
        length = min(scheduler.max_model_len, settings.blocks * settings.block_size)
        return cls(scheduler.max_num_seqs, scheduler.max_num_batched_tokens, length)

    def greatest(self) -> tuple[int, ...]:
        """A geometry that no step of the engine exceeds in any number."""
        pairs, context = self.tokens * self.length, self.requests * self.length
        return (self.requests, self.tokens, self.tokens, self.requests, pairs, context, pairs, context)


def read_cost(
    given: str | Mapping[str, Any], *, folder: Path | None = None, path: str = "cost"
) -> LinearCost | RooflineCost | TableCost:
    """The cost document that an engine document gives the path of, or holds.

    Args:
        given: a path of a YAML or JSON file, or the members of the document.
        folder: what a relative path is relative to; the current folder if left out.
        path: what to call it in errors.

    Raises:
        DocumentError: it is no cost document (ST-COST-002), naming every member that is wrong.
        UsageError: there is no such file.
    """
    values: object = given
    if isinstance(given, str):
        if not given.endswith(SUFFIXES):
            raise DocumentError(
                f"{given[:60]!r} is no path of a cost document",
                code="engine.cost",
                path=path,
                requirement="ST-COST-002",
                hint="a file whose name ends with .yaml, .yml or .json, or the members of the document",
            )
        from pathlib import Path

        file = (folder or Path()) / given
        values, path = read_values(file), str(file)
    kind = values.get("kind") if isinstance(values, dict) else None
    document = _KINDS.get(kind) if isinstance(kind, str) else None
    if document is None:
        raise DocumentError(
            f"{'cost.' if path == 'cost' else ''}kind: is {kind!r}, must be one of {', '.join(_KINDS)}",
            code="document.invalid",
            path=path,
            requirement="ST-COST-002",
        )
    try:
        return document.parse(values, path=path, at=path if path == "cost" else None)
    except DocumentError as error:
        error.requirement = "ST-COST-002"
        error.hint = "spec/cost.md has the members of each kind and their ranges"
        raise


def compile_cost(
    document: LinearCost | RooflineCost | TableCost,
    limits: Limits,
    *,
    model: ModelShape | None = None,
    device: Device | None = None,
) -> Cost:
    """Make the numbers of a cost document, for an engine of certain limits.

    Args:
        document: the document.
        limits: the most that a step can hold.
        model: the model; a roofline needs it.
        device: the device; a roofline needs it.

    Raises:
        DocumentError: a step within the limits could overflow (ST-COST-005), or a roofline lacks what it needs, or the
            model cannot be split as it says (ST-COST-023).
    """
    greatest = limits.greatest()
    for name, most in zip(GEOMETRY, greatest, strict=True):
        if most >= 1 << 63:
            raise _overflow(
                f"{name} of a step can be {most:,}", "lower max_model_len or the number of blocks"
            )
    if isinstance(document, LinearCost):
        terms = (
            document.c0_ps,
            document.c_seq_ps,
            document.c_prefill_ps,
            document.c_decode_ps,
            document.c_kv_ps,
        )
        kind, ints, floats = LINEAR, list(terms), [0.0]
        counts = (1, greatest[0], greatest[1], greatest[2], greatest[5] + greatest[7])
        integer_ps = sum(each * count for each, count in zip(terms, counts, strict=True))
    elif isinstance(document, RooflineCost):
        kind = ROOFLINE
        ints, floats = roofline_numbers(document, model, device)
        integer_ps = document.c0_ps + document.c_seq_ps * greatest[0]
    else:
        kind = TABLE
        ints, floats = table_numbers(document)
        integer_ps = (
            document.beyond_prefill_ps * greatest[1]
            + document.beyond_decode_ps * greatest[2]
            + document.beyond_context_ps * (greatest[5] + greatest[7])
        )
    if integer_ps >= 1 << 63:
        raise _overflow(
            f"a step can take {integer_ps:,} ps",
            f"with {limits.requests:,} requests and {limits.tokens:,} tokens in a step and {limits.length:,} tokens of "
            "a request; lower a coefficient, max_model_len or the number of blocks",
        )
    longest = step_ns(kind, ints, floats, greatest)
    if longest * 1000 >= 1 << 63:
        raise _overflow(f"a step can take {longest:,} ns", "lower max_model_len or the number of blocks")
    return Cost(kind, np.array(ints, dtype=np.int64), np.array(floats, dtype=np.float64))


def _overflow(what: str, hint: str) -> DocumentError:
    return DocumentError(
        f"{what}, which must be below 2^63",
        code="engine.overflow",
        path="cost",
        requirement="ST-COST-005",
        hint=hint,
    )


def step_ns(
    kind: int,
    ints: Sequence[int] | NDArray[np.int64],
    floats: Sequence[float] | NDArray[np.float64],
    geometry: Sequence[int] | NDArray[np.int64],
) -> int:
    """Time of a step, in whole ns, at least 1 (ST-COST-003).

    numba compiles it; so it calls nothing of ours and makes no object. Every operation on binary64 numbers stands as the
    spec has it, in its order.

    Args:
        kind: `LINEAR`, `ROOFLINE` or `TABLE`.
        ints: `Cost.ints`, or the same numbers in a list.
        floats: `Cost.floats`, or the same numbers in a list.
        geometry: the step, in the order of `GEOMETRY`, within the limits that the cost was compiled for.
    """
    prefill = geometry[1]
    decode = geometry[2]
    if kind == 0:  # linear, ST-COST-004
        ps = (
            ints[0]
            + ints[1] * geometry[0]
            + ints[2] * prefill
            + ints[3] * decode
            + ints[4] * (geometry[5] + geometry[7])
        )
        return max(int(ps // 1000), 1)
    if kind == 1:  # roofline, ST-COST-020 to ST-COST-022; the layout is that of roofline_numbers
        peak = floats[0]
        band = floats[1]
        tokens = float(prefill + decode)
        launches = 3
        layer = max(floats[2] * tokens / peak, (floats[3] + floats[4] * tokens) / band)
        if prefill > 0:
            launches += 1
            layer += max(
                floats[5] * float(geometry[4]) / peak, floats[6] * float(geometry[5] + prefill) / band
            )
        if decode > 0:
            launches += 1
            layer += max(
                floats[5] * float(geometry[6]) / peak, floats[6] * float(geometry[7] + decode) / band
            )
        layer += max(floats[7] * tokens / peak, (floats[8] + floats[9] * tokens) / band)
        if ints[1] == 0:
            launches += 1
            layer += max(floats[10] * tokens / peak, (floats[11] + floats[12] * tokens) / band)
            layer += max(floats[13] * tokens / peak, (floats[14] + floats[15] * tokens) / band)
        else:
            missed = 1.0  # (1 - K/E)^N, by squaring
            power = floats[18]
            left = prefill + decode
            while left > 0:
                if left % 2 == 1:
                    missed = missed * power
                power = power * power
                left = left // 2
            layer += max(floats[16] * tokens / peak, floats[17] * (floats[19] * (1.0 - missed)) / band)
        launches = launches * ints[0]
        total = layer * float(ints[0])
        if geometry[3] > 0:
            launches += 1
            total += max(floats[20] * float(geometry[3]) / peak, floats[21] / band)
        total += floats[22] * float(launches)
        total += floats[23] + floats[24] * tokens
        total += float(ints[2] + ints[3] * geometry[0]) / 1000.0
        return max(int(total), 1)
    # table, ST-COST-030 to ST-COST-032; the layout is that of table_numbers
    context = geometry[5] + geometry[7]
    start = 6
    beyond = 0
    low_p = low_d = low_c = 0
    share_p = share_d = share_c = 0.0
    for axis in range(3):
        points = ints[axis]
        value = prefill
        if axis == 1:
            value = decode
        elif axis == 2:
            value = context
        last = ints[start + points - 1]
        if value > last:
            beyond += ints[3 + axis] * (value - last)
            value = last
        low = 0
        high = points - 1
        while high - low > 1:
            middle = (low + high) // 2
            if ints[start + middle] <= value:
                low = middle
            else:
                high = middle
        share = 0.0
        if high > low:
            share = float(value - ints[start + low]) / float(ints[start + high] - ints[start + low])
        if axis == 0:
            low_p = low
            share_p = share
        elif axis == 1:
            low_d = low
            share_d = share
        else:
            low_c = low
            share_c = share
        start += points
    next_p = min(low_p + 1, ints[0] - 1)
    next_d = min(low_d + 1, ints[1] - 1)
    next_c = min(low_c + 1, ints[2] - 1)
    near = 0.0
    found = 0.0
    for at in range(4):  # the four lines along the context, prefill varying slowest
        row = (low_p if at < 2 else next_p) * ints[1] + (low_d if at % 2 == 0 else next_d)
        first = floats[row * ints[2] + low_c]
        along = first + (floats[row * ints[2] + next_c] - first) * share_c
        if at == 0:
            near = along
        elif at == 1:
            found = near + (along - near) * share_d
        elif at == 2:
            near = along
        else:
            along = near + (along - near) * share_d
            found = found + (along - found) * share_p
    return max(int(found + float(beyond) / 1000.0), 1)
