"""How fast lifecycle policies are replayed: agents that read shared documents and call tools, on memory that is too small for them.

Timed is the whole replay, from a trace in memory to the execution: what the engine is given, the schedule, the policy's questions and
answers, transfers, and the tables of events. There is no peer: no other simulator drives these policies.
"""

from __future__ import annotations

from typing import Final

from results import Result, median, timed
from semtrace.experiments.policy_scenarios import MS, engine, readers
from semtrace.graph.plan import dag
from semtrace.policies.registry import policy_names
from semtrace.replay.run import replay
from semtrace.replay.scenario import Scenario
from semtrace.store.digests import show, work_digest

ROOTS: Final = 120
TURNS: Final = 4
"""Calls of a root after its first, each after a tool."""
KV_TOKENS: Final = 20_000


def run(times: int) -> dict[str, Result]:
    """The figure `sim.policies`: requests a second, the mean over all policies that decide something; each by name in its facts.

    Args:
        times: runs of each; the median counts.
    """
    trace = readers(0, roots=ROOTS, every_ns=700 * MS, documents=1, turns=TURNS)
    plan = dag(show(work_digest(trace)))
    requests = ROOTS * (1 + TURNS)
    seconds: dict[str, float] = {}
    totals = [0.0] * times
    for name in policy_names():
        document = {**engine(KV_TOKENS), "policy": {"name": name}}
        scenario = Scenario.parse({"backend": {"name": "engine", "settings": document}}, path=name)
        execution = replay(trace, plan, scenario)  # compiles, or loads what was compiled
        assert (execution.events.ints("finished_ns") >= 0).all()
        taken = timed(lambda scenario=scenario: replay(trace, plan, scenario), times)
        seconds[name] = median(taken)
        if name not in ("none", "prefix"):
            totals = [total + each for total, each in zip(totals, taken, strict=True)]
    driven = len(seconds) - 2
    rates = [driven * requests / total for total in totals]
    facts = {
        "requests": requests,
        "tools": ROOTS * TURNS,
        "requests_per_s": {name: requests / each for name, each in seconds.items()},
        "time_over_prefix": {name: each / seconds["prefix"] for name, each in seconds.items()},
    }
    return {
        "sim.policies": Result(
            median(rates),
            "requests/s",
            rates,
            better="more",
            peer_note="no peer drives these policies",
            facts=facts,
        )
    }
