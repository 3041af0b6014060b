"""Where the controller and the oracle of release differ."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from semtrace.replay import run
from semtrace.replay.arrivals import settle
from support.random_graphs import random_graph, random_plan, random_scenario
from support.release_oracle import replay_by_hand

if TYPE_CHECKING:
    from semtrace.graph.plan import Plan
    from semtrace.records.trace import Trace
    from semtrace.replay.scenario import Scenario


def difference(trace: Trace, plan: Plan, scenario: Scenario) -> str | None:
    """The first thing in which controller and oracle differ."""
    execution = run.replay(trace, plan, scenario, analysis=True)
    instances, events = replay_by_hand(trace, plan.as_json(), settle(trace, scenario).as_json())
    for table, wanted in (("instances", instances), ("events", events)):
        found = execution[table].data.to_pylist()
        if len(found) != len(wanted):
            return f"{table}: {len(found)} rows, oracle {len(wanted)}"
        for at, (row, other) in enumerate(zip(found, wanted, strict=True)):
            if row != other:
                different = {key: (row[key], other[key]) for key in row if row[key] != other[key]}
                return f"{table}[{at}]: {different}"
    return None


def difference_of_seed(seed: int) -> str | None:
    rng = Random(seed)
    made = random_graph(rng)
    return difference(made.trace, random_plan(rng, made), random_scenario(rng, made))
