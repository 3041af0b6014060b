"""Fitting a cost to step logs, and saying how well it fits: in the steps it was made of, and in steps that it was not.

The fit is least squares of the relative error, with coefficients that are not negative. Out of sample, every step is
predicted by a fit without its block: each part of the log is cut into `BLOCKS` blocks of consecutive steps.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from semtrace.check.finding import Finding
from semtrace.engine.coefficients import LARGEST
from semtrace.engine.cost import LinearCost
from semtrace.engine.steplog import StepLogError
from semtrace.engine.table import TableCost

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from semtrace.engine.steplog import StepLog

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

BLOCKS: Final = 5
"""Blocks of consecutive steps that each part of a log is cut into."""
LEAST_STEPS: Final = 20
"""Steps that a calibration needs."""
APART: Final = 0.01
"""Terms that the others explain but for this share of their variance cannot be told apart."""
TERMS: Final = ("c0_ps", "c_seq_ps", "c_prefill_ps", "c_decode_ps", "c_kv_ps")
COUNTS: Final = ("1", "requests", "prefill tokens", "decode tokens", "context")
"""What each of `TERMS` is multiplied with."""
ROUNDS: Final = 20
"""Rounds in which the times of a table are moved towards the steps around them."""
_TABLE_TERMS: Final = (0, 2, 3, 4)

FitKind = Literal["linear", "table"]


@dataclass(frozen=True)
class Errors:
    """Absolute errors of predictions, in percent of the measured time.

    Attributes:
        steps: how many.
        median: half of the errors are at most this.
        p95: 95 % of them are.
    """

    steps: int
    median: float
    p95: float


@dataclass(frozen=True)
class Calibration:
    """A cost fitted to a step log.

    Attributes:
        cost: the cost document.
        in_sample: errors in the steps that it was fitted to, by phase; `all` for all of them.
        out_of_sample: errors of steps predicted by fits to the other blocks, likewise.
        undetermined: coefficients of which the log says nothing by itself.
        warnings: what the log cannot tell.
    """

    cost: LinearCost | TableCost
    in_sample: Mapping[str, Errors]
    out_of_sample: Mapping[str, Errors]
    undetermined: tuple[str, ...]
    warnings: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready: the cost, errors in percent, warnings."""

        def rows(errors: Mapping[str, Errors]) -> dict[str, Any]:
            return {
                phase: {"steps": each.steps, "median_percent": each.median, "p95_percent": each.p95}
                for phase, each in errors.items()
            }

        return {
            "cost": self.cost.as_json(),
            "in_sample": rows(self.in_sample),
            "out_of_sample": rows(self.out_of_sample),
            "undetermined": list(self.undetermined),
            "warnings": list(self.warnings),
        }


def calibrate(log: StepLog, kind: FitKind, *, points: int = 8) -> Calibration:
    """Fit a cost to a step log.

    Args:
        log: the steps; all counts below 2^53, durations from 1 to 10^15 ns.
        kind: which cost.
        points: points of each axis of a table, at most.

    Raises:
        StepLogError: there are too few steps to fit and to judge a fit.
    """
    if log.steps < LEAST_STEPS:
        message = f"{log.steps} steps are too few to fit and to judge a fit, {LEAST_STEPS} are needed"
        raise StepLogError(message, [Finding("ST-COST-040", message)], path="calibrate")

    def fit(rows: NDArray[np.bool_]) -> LinearCost | TableCost:
        if kind == "linear":
            return fit_linear(log.geometry[rows], log.duration_ns[rows])
        return fit_table(log.geometry[rows], log.duration_ns[rows], points)

    everything = np.ones(log.steps, dtype=np.bool_)
    cost = fit(everything)
    block, held_out = _blocks(log.part), np.zeros(log.steps)
    for each in range(BLOCKS):
        rows = block == each
        held_out[rows] = predict(fit(~rows), log.geometry[rows])
    phases = _phases(log.geometry)
    in_sample = _errors(predict(cost, log.geometry), log.duration_ns, phases)
    out_of_sample = _errors(held_out, log.duration_ns, phases)
    undetermined, warnings = _doubts(log.geometry)
    if isinstance(cost, LinearCost):
        gone = [term for term in TERMS[1:] if getattr(cost, term) == 0 and term not in undetermined]
        warnings += [f"{term} is 0: these steps show no time for it, or another term has it" for term in gone]
    overall = out_of_sample["all"]
    notes = (
        f"Fitted to {log.steps} steps. Out of sample, half of the predictions are within {overall.median:.1f} %, "
        f"95 % within {overall.p95:.1f} %."
        + (f" Not told by these steps: {', '.join(undetermined)}." if undetermined else "")
    )
    return Calibration(
        cost.model_copy(update={"notes": notes}),
        in_sample,
        out_of_sample,
        tuple(undetermined),
        tuple(warnings),
    )


def terms(geometry: Ints) -> Floats:
    """What the terms of a linear cost are multiplied with, float64[steps, 5] in the order of `TERMS`."""
    context = geometry[:, 5] + geometry[:, 7]
    columns = (np.ones(len(geometry)), geometry[:, 0], geometry[:, 1], geometry[:, 2], context)
    return np.stack([np.asarray(column, dtype=np.float64) for column in columns], axis=1)


def nonnegative_least_squares(matrix: Floats, target: Floats) -> Floats:
    """The x that is nowhere negative and brings matrix · x nearest to the target.

    Every set of columns that can be nonzero is tried, the small ones first; so few columns have no need of more. Of sets
    that do equally well, the first is taken; sets whose columns depend on each other are left out, as a smaller
    one does as well.

    Args:
        matrix: float64[rows, columns], of at most about 10 columns.
        target: float64[rows].
    """
    count = matrix.shape[1]
    scale = np.sqrt((matrix * matrix).sum(axis=0))
    scale[scale == 0] = 1
    joined = np.column_stack([matrix / scale, target])
    reduced: Floats = np.asarray(np.linalg.qr(joined, mode="r"))  # the same distances, few rows
    columns, wanted = reduced[:, :-1], reduced[:, -1]
    best, least = np.zeros(count), float(wanted @ wanted)
    for size in range(1, count + 1):
        for support in itertools.combinations(range(count), size):
            chosen = list(support)
            found, _, rank, _ = np.linalg.lstsq(columns[:, chosen], wanted, rcond=1e-10)
            if rank < size or (found < 0).any():
                continue
            rest = columns[:, chosen] @ found - wanted
            distance = float(rest @ rest)
            if distance < least - 1e-12 * float(wanted @ wanted):
                best, least = np.zeros(count), distance
                best[chosen] = found
    scaled: Floats = best / scale
    return scaled


def fit_linear(geometry: Ints, duration_ns: Ints) -> LinearCost:
    """The linear cost whose relative errors have the least squares."""
    weight = 1 / duration_ns.astype(np.float64)
    found = nonnegative_least_squares(terms(geometry) * weight[:, None], np.ones(len(weight)))
    c0, c_seq, c_prefill, c_decode, c_kv = _picoseconds(found)
    return LinearCost(c0_ps=c0, c_seq_ps=c_seq, c_prefill_ps=c_prefill, c_decode_ps=c_decode, c_kv_ps=c_kv)


def _picoseconds(coefficients_ns: Floats) -> list[int]:
    return [min(round(float(each) * 1000), LARGEST) for each in coefficients_ns]


def fit_table(geometry: Ints, duration_ns: Ints, points: int) -> TableCost:
    """A table of the axes' quantiles: a linear fit, moved at each point by the mean error of the steps around it.

    The linear fit weighs as much as one step at the point. So points without steps around them keep it; it is also what
    counts beyond the last ones.
    """
    x = terms(geometry)[:, _TABLE_TERMS]
    duration = duration_ns.astype(np.float64)
    linear = nonnegative_least_squares(x / duration[:, None], np.ones(len(duration)))
    axes = [_points(x[:, axis].astype(np.int64), points) for axis in (1, 2, 3)]
    times = (
        linear[0]
        + linear[1] * axes[0][:, None, None]
        + linear[2] * axes[1][None, :, None]
        + linear[3] * axes[2][None, None, :]
    ).reshape(-1)
    nodes, shares, beyond = _around(axes, x[:, 1:])
    extra = beyond @ linear[1:]
    weight = shares / (duration * duration)
    pull = np.bincount(nodes.reshape(-1), weights=weight.reshape(-1), minlength=len(times))
    start = np.maximum(times, 1)
    prior = 1 / (start * start)
    for _ in range(ROUNDS):
        rest = duration - (times[nodes] * shares).sum(axis=0) - extra
        moved = np.bincount(nodes.reshape(-1), weights=(weight * rest).reshape(-1), minlength=len(times))
        times += (moved - prior * (times - start)) / (pull + prior)
    whole = np.clip(np.rint(times), 1, LARGEST).astype(np.int64).reshape([len(axis) for axis in axes])
    beyond_prefill, beyond_decode, beyond_context = _picoseconds(linear[1:])
    return TableCost(
        prefill_tokens=axes[0].tolist(),
        decode_tokens=axes[1].tolist(),
        context=axes[2].tolist(),
        ns=whole.tolist(),
        beyond_prefill_ps=beyond_prefill,
        beyond_decode_ps=beyond_decode,
        beyond_context_ps=beyond_context,
    )


def _points(values: Ints, most: int) -> Ints:
    """Points of an axis: 0 and the values, or where they are many, as many of their quantiles."""
    positive = np.unique(values[values > 0])
    if len(positive) >= most:
        at = np.rint(np.linspace(0, len(positive) - 1, most - 1)).astype(np.int64)
        positive = positive[at]
    return np.concatenate([[0], positive]).astype(np.int64)


def _around(axes: list[Ints], x: Floats) -> tuple[Ints, Floats, Floats]:
    """Of each step the eight points of a table around it, their shares, and what lies beyond the last points.

    Returns:
        Points int64[8, steps], shares float64[8, steps], beyond float64[steps, 3].
    """
    ends = np.array([axis[-1] for axis in axes], dtype=np.float64)
    inside = np.minimum(x, ends)
    nodes, shares = np.zeros((8, len(x)), dtype=np.int64), np.ones((8, len(x)))
    for column, axis in enumerate(axes):
        low = np.clip(np.searchsorted(axis, inside[:, column], side="right") - 1, 0, max(len(axis) - 2, 0))
        high = np.minimum(low + 1, len(axis) - 1)
        width = np.where(high > low, axis[high] - axis[low], 1)
        share = np.where(high > low, (inside[:, column] - axis[low]) / width, 0.0)
        for corner in range(8):
            upper = corner >> (2 - column) & 1
            nodes[corner] = nodes[corner] * len(axis) + (high if upper else low)
            shares[corner] *= share if upper else 1 - share
    return nodes, shares, x - inside


def predict(cost: LinearCost | TableCost, geometry: Ints) -> Floats:
    """Times of steps in ns for judging a fit: `step_ns` but for rounding in the last place."""
    x = terms(geometry)
    if isinstance(cost, LinearCost):
        made = x @ np.array([float(getattr(cost, term)) for term in TERMS]) / 1000
    else:
        axes = [np.array(axis) for axis in (cost.prefill_tokens, cost.decode_tokens, cost.context)]
        nodes, shares, beyond = _around(axes, x[:, 2:])
        slopes = [cost.beyond_prefill_ps, cost.beyond_decode_ps, cost.beyond_context_ps]
        times = np.array(cost.ns, dtype=np.float64).reshape(-1)
        made = (times[nodes] * shares).sum(axis=0) + beyond @ np.array(slopes, dtype=np.float64) / 1000
    whole: Floats = np.maximum(np.floor(made), 1.0)
    return whole


def _blocks(part: Ints) -> Ints:
    """The block of each step: each part of the log in `BLOCKS` runs of consecutive steps."""
    _, first, count = np.unique(part, return_index=True, return_counts=True)
    size = np.repeat(count, count)
    rank = np.arange(len(part)) - np.repeat(first, count)
    return rank * BLOCKS // size


def _phases(geometry: Ints) -> dict[str, NDArray[np.bool_]]:
    """The steps of each phase."""
    prefill, decode = geometry[:, 1] > 0, geometry[:, 2] > 0
    return {
        "prefill": prefill & ~decode,
        "decode": decode & ~prefill,
        "mixed": prefill & decode,
        "all": np.ones(len(geometry), dtype=np.bool_),
    }


def _errors(
    predicted: Floats, duration_ns: Ints, phases: Mapping[str, NDArray[np.bool_]]
) -> dict[str, Errors]:
    """Errors by phase, of the phases that the log has."""
    percent = np.abs(predicted - duration_ns) / duration_ns * 100
    return {
        phase: Errors(
            int(rows.sum()), float(np.quantile(percent[rows], 0.5)), float(np.quantile(percent[rows], 0.95))
        )
        for phase, rows in phases.items()
        if rows.any()
    }


def _doubts(geometry: Ints) -> tuple[list[str], list[str]]:
    """The coefficients that a log leaves open, and why: counts that never vary, and counts that vary only together."""
    x = terms(geometry)
    undetermined: list[str] = []
    warnings: list[str] = []
    varies: list[int] = []
    groups: list[tuple[int, ...]] = []
    for at in range(1, len(TERMS)):
        low, high = x[:, at].min(), x[:, at].max()
        if low < high:
            varies.append(at)
            continue
        undetermined.append(TERMS[at])
        warnings.append(
            f"{TERMS[at]} is not told: no step has {COUNTS[at]}"
            if high == 0
            else f"{TERMS[at]} is not told apart from c0_ps: every step has {int(high):,} {COUNTS[at]}"
        )
    centred = x - x.mean(axis=0)
    centred /= np.where((spread := np.sqrt((centred * centred).sum(axis=0))) > 0, spread, 1)
    for at in varies:
        others = [each for each in varies if each != at]
        if not others:
            continue
        found, *_ = np.linalg.lstsq(centred[:, others], centred[:, at], rcond=1e-10)
        rest = centred[:, at] - centred[:, others] @ found
        if float(rest @ rest) >= APART:
            continue
        alike = [each for each in others if float(centred[:, each] @ centred[:, at]) ** 2 > 1 - APART]
        undetermined.append(TERMS[at])
        groups.append(tuple(sorted([at, *(alike or others)])))
    warnings += [
        f"{' and '.join(TERMS[each] for each in group)} are not told apart: "
        f"{' and '.join(COUNTS[each] for each in group)} vary only together"
        for group in dict.fromkeys(groups)
    ]
    return undetermined, warnings
