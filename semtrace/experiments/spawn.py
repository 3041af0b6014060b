"""Spawn against ordinary serving: what a task takes that starts four children, beside one independent request."""

from __future__ import annotations

from statistics import median
from typing import Final

from semtrace.experiments.base import Compared, Experiment, Lab, Result, prefill_factor, seconds
from semtrace.experiments.workloads import independent, spawn

USERS: Final = (32, 64, 128)


def _run(lab: Lab) -> Result:
    compared, facts = [], []
    for users in (64,) if lab.quick else USERS:
        ordinary, spawned = [], []
        for seed in lab.seeds:
            ordinary += lab.replay(f"ordinary, {users} users", independent(users, seed), seed)
            spawned += lab.replay(f"spawn, {users} users", spawn(users, seed), seed)
        compared.append(
            Compared(
                f"time for all, {users} users, ordinary → Spawn",
                "109 → 580 s, +432 %" if users == 64 else "not told",
                [seconds(row, "width.span_ns") for row in ordinary],
                [seconds(row, "width.span_ns") for row in spawned],
                1 if users == 64 else None,
                "seconds",
            )
        )
        facts.append(
            f"{users} users: preemptions of Spawn {median(row['sum.preemptions'] for row in spawned):,.0f}, "
            f"prefill factor {median(prefill_factor(row) for row in spawned):.2f} (medians); "
            f"of ordinary serving {median(row['sum.preemptions'] for row in ordinary):,.0f}"
        )
    why = (
        "Three calls in a row for one take three times as long with the same lengths; the children of 64 users are 256 "
        "requests for 128 places, so they take two turns, each of larger and so longer steps, and with KV of 40 GiB some of "
        "them are preempted. How long ordinary requests were in the reference is not told, and the ratio is over them."
    )
    left_out = (
        "ΣF/ΣD 1.70× and the KV integral 13.85× at 64 users: there are no measures of steps and blocks yet"
    )
    return Result(compared, lab.rows, why, facts, left_out)


SPAWN: Final = Experiment(
    "spawn",
    "Spawn against ordinary serving",
    "native; 32, 64 and 128 users; request limit 128; four children; ordinary serving is independent requests",
    "one root for each user, all at once (inference); a root is parent, four children, parent again; an ordinary "
    "task is one request like the parent's first (inference)",
    _run,
)
