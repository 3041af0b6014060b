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
            ordinary += lab.replay(f"ordinary, {users} users", independent(users, seed), seed, detail="steps")
            spawned += lab.replay(f"spawn, {users} users", spawn(users, seed), seed, detail="steps")
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
        if users == 64:
            compared += [
                Compared(
                    f"ΣF/ΣD, FLOPs a byte, {users} users, ordinary → Spawn",
                    "1.70×, +70 %",
                    [float(row["engine.work.intensity"]) for row in ordinary],
                    [float(row["engine.work.intensity"]) for row in spawned],
                    1,
                    "ratio",
                ),
                Compared(
                    f"KV integral, GB·s, {users} users, ordinary → Spawn",
                    "13.85×, +1,285 %",
                    [float(row["engine.kv_byte_seconds.device"]) / 1e9 for row in ordinary],
                    [float(row["engine.kv_byte_seconds.device"]) / 1e9 for row in spawned],
                    1,
                ),
            ]
        facts.append(
            f"{users} users: preemptions of Spawn {median(row['sum.preemptions'] for row in spawned):,.0f}, "
            f"prefill factor {median(prefill_factor(row) for row in spawned):.2f} (medians); "
            f"of ordinary serving {median(row['sum.preemptions'] for row in ordinary):,.0f}"
        )
    why = (
        "Three calls in a row for one take three times as long with the same lengths; the children of 64 users are 256 "
        "requests for 128 places, so they take two turns, each of larger and so longer steps, and with KV of 40 GiB some of "
        "them are preempted. How long ordinary requests were in the reference is not told, and the ratio is over them. The KV "
        "integral is as much too large as the time is: by it, KV held in the mean of time is 2.6 times as much, theirs and ours. "
        "ΣF/ΣD grows with the rows of a step, of which Spawn fills 128 and ordinary serving 64, and with the part of work "
        "that is prefill, which the lengths decide."
    )
    return Result(compared, lab.rows, why, facts)


SPAWN: Final = Experiment(
    "spawn",
    "Spawn against ordinary serving",
    "native; 32, 64 and 128 users; request limit 128; four children; ordinary serving is independent requests",
    "one root for each user, all at once (inference); a root is parent, four children, parent again; an ordinary "
    "task is one request like the parent's first (inference)",
    _run,
)
