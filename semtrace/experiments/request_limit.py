"""The limit of requests that run at once: what more of them does to throughput and to deadlines.

Nothing of the set-up is reported. It was chosen as the overload of `attainment`. There the reported fall of on-time
tasks does not show; the burst of one-request tasks was added afterwards, to see when it does.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

from semtrace.experiments.base import (
    Compared,
    Experiment,
    Lab,
    Result,
    attainment,
    pooled,
    throughput,
)
from semtrace.experiments.deadlines import MULTIPLE, OVERLOAD, ROOTS, low_load, poisson, served
from semtrace.experiments.workloads import independent, spawn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semtrace.experiments.base import Row

LIMIT: Final = "scheduler.max_num_seqs"
LIMITS: Final = (64, 128)
BURST: Final = 128
"""Tasks of the burst: as many as the higher limit lets run at once."""
LOOSEST: Final = Fraction(2)
"""The loosest deadline of the reference's, in reference P95s."""


def _compared(low: Sequence[Row], high: Sequence[Row], where: str) -> list[Compared]:
    return [
        Compared(
            f"tokens per second, {where}, request limit 64 → 128",
            "+14.6 %",
            [throughput(row) for row in low],
            [throughput(row) for row in high],
            1,
            "per second",
        ),
        Compared(
            f"on time, {where}, request limit 64 → 128",
            "−22.5 % of on-time tasks",
            [attainment(row) for row in low],
            [attainment(row) for row in high],
            -1,
            "share",
        ),
    ]


def _run(lab: Lab) -> Result:
    known = low_load(lab, "spawn", spawn)
    rate = float(OVERLOAD) * served(lab, "spawn", spawn, **{LIMIT: LIMITS[0]})
    single = low_load(lab, "one request", independent)
    overload: tuple[list[Row], list[Row]] = ([], [])
    burst: dict[Fraction, tuple[list[Row], list[Row]]] = {MULTIPLE: ([], []), LOOSEST: ([], [])}
    settings = {LIMIT: list(LIMITS)}
    for seed in lab.seeds:
        rows = lab.replay(
            "spawn",
            spawn(ROOTS, seed),
            seed,
            arrivals=[poisson(rate)],
            settings=settings,
            deadline_ns=known.deadline_ns(),
        )
        for kept, row in zip(overload, rows, strict=True):
            kept.append(row)
        for multiple, sides in burst.items():
            rows = lab.replay(
                f"burst, deadline {float(multiple)}",
                independent(BURST, seed),
                seed,
                settings=settings,
                deadline_ns=single.deadline_ns(multiple),
            )
            for kept, row in zip(sides, rows, strict=True):
                kept.append(row)
    compared = _compared(*overload, "overload of Spawn")
    for multiple, sides in burst.items():
        compared += _compared(*sides, f"burst, deadline {float(multiple):.1f}×")[
            0 if multiple == MULTIPLE else 1 :
        ]
    facts = [
        *known.facts,
        f"overload: {rate:.4f} roots/s; on time: limit 64 {pooled(overload[0])}, limit 128 {pooled(overload[1])}",
        *(
            f"burst of {BURST}, deadline {float(multiple):.1f} reference P95s; "
            f"on time: limit 64 {pooled(low)}, limit 128 {pooled(high)}"
            for multiple, (low, high) in burst.items()
        ),
    ]
    why = (
        "In the overload of Spawn tasks, our first choice, only tasks that come before the backlog are on time, and "
        "they never meet the limit. Where a whole task can run within the limit, as in the burst of one-request "
        "tasks, the lower limit lets some of them through quickly while the others wait, and the higher one makes "
        "all of them slower: more tokens per second, fewer tasks on time, as reported. How many depends on where the "
        "deadline lies between the two, so the amount says nothing."
    )
    return Result(compared, lab.rows, why, facts)


REQUEST_LIMIT: Final = Experiment(
    "request-limit",
    "A request limit of 64 and of 128",
    "request limit 64 and 128; the rest is not told",
    "KV 40 GiB; 64 roots of Spawn with four children, Poisson arrivals a quarter above what a limit of 64 serves, "
    "the deadline of attainment; beside it 128 tasks of one request at once, deadline 1.5 and 2.0 times their own "
    "reference P95 (all inference)",
    _run,
)
