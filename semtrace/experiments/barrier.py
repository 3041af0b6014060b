"""The two barrier experiments: independent branches one after the other, on frozen work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from semtrace.experiments.base import Compared, Experiment, Lab, Result, seconds
from semtrace.experiments.workloads import four_calls, researcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from semtrace.records.trace import Trace

PLANS: Final = ["dag", {"rule": "chain"}]
"""Recorded edges alone; branches of a stage one after the other."""


def _run(
    lab: Lab,
    name: str,
    workload: Callable[[int, int], Trace],
    roots: int,
    reported: tuple[str, str],
    why: str,
) -> Result:
    dag, barrier = [], []
    for seed in lab.seeds:
        one, other = lab.replay(name, workload(roots, seed), seed, plans=PLANS)
        dag.append(one)
        barrier.append(other)
    compared = [
        Compared(
            "greatest width, DAG → Barrier",
            reported[0],
            [float(row["width.max"]) for row in dag],
            [float(row["width.max"]) for row in barrier],
            -1,
        ),
        Compared(
            "median root latency, DAG → Barrier",
            reported[1],
            [seconds(row, "root_latency.p50") for row in dag],
            [seconds(row, "root_latency.p50") for row in barrier],
            1,
            "seconds",
        ),
    ]
    return Result(compared, lab.rows, why)


def _four_calls(lab: Lab) -> Result:
    why = (
        "Without load the ratio is a matter of lengths alone: a second analyst's call beside the three of the path "
        "is +33 % where all calls take equally long. It is less here, since DAG waits for the longer of two drawn "
        "answers, and computes 24 requests a step, which takes longer than 12. The lengths of the reference are not "
        "told."
    )
    return _run(lab, "four-calls", four_calls, 12, ("24 → 12", "+26 %"), why)


def _researcher(lab: Lab) -> Result:
    why = (
        "Without load the ratio is a matter of lengths alone: two more branches beside the five calls of the path "
        "are +40 % where all calls take equally long. It is less here, since DAG waits for the longest of three "
        "drawn answers. Reported is more: in the reference branches took longer than other calls, or fewer calls "
        "stand before and after them."
    )
    return _run(lab, "researcher", researcher, 3, ("9 → 3", "+40 … +54 %"), why)


FOUR_CALLS: Final = Experiment(
    "barrier-four-calls",
    "A barrier between two independent analysts",
    "two independent analysts → synthesis → one more call; frozen trace; the barrier serialises the analysts",
    "12 roots at once (inference, from the width of 24), equal mean lengths of all calls (inference)",
    _four_calls,
)
RESEARCHER: Final = Experiment(
    "barrier-researcher",
    "A barrier between the branches of GPT Researcher",
    "fork–join and refinement; fixed work; the barrier serialises the branches",
    "3 roots at once with 3 branches each (inference, from the width of 9); planner, writer, reviewer, writer "
    "(inference)",
    _researcher,
)
