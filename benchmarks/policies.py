"""How fast lifecycle policies are replayed, on two loads.

*Agents* read shared documents and call tools, on memory that is too small for them. *Overloaded* are requests with long prompts, of
which most wait: a policy's turn must not take longer the more there are. Policies that look at pieces run on the readable engine, which
takes hundreds of times as long, and have the first load only.

Timed is the whole replay, from a trace in memory to the execution: what the engine is given, the schedule, the policy's questions and
answers, transfers, and the tables of events. There is no peer: no other simulator drives these policies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from results import Result, median, timed
from semtrace.experiments.policy_scenarios import MS, Agents, engine, readers
from semtrace.graph.plan import dag
from semtrace.policies.registry import find_policy, policy_names
from semtrace.replay.run import replay
from semtrace.replay.scenario import Scenario
from semtrace.store.digests import show, work_digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semtrace.records.trace import Trace

ROOTS: Final = 120
TURNS: Final = 4
"""Calls of a root after its first, each after a tool."""
KV_TOKENS: Final = 20_000
OVERLOADED: Final = 2_000
"""Requests of the load of which most wait."""
PROMPT: Final = 12_000
"""Tokens of the first prompt of each session, on the mean; the second has it and its answer before it."""
LARGE_KV_TOKENS: Final = 200_000


def overloaded() -> Trace:
    """Sessions of two calls that come far faster than they are served."""
    made = Agents(0)
    for arrival in made.times(OVERLOADED // 2, 10 * MS):
        task = made.task("request", arrival)
        session = made.session(task, "user")
        first = made.call(task, session, made.draw(PROMPT, 75), made.draw(200))
        made.call(task, session, made.draw(200), made.draw(200), base=first)
    return made.trace()


def run(times: int) -> dict[str, Result]:
    """The figures `sim.policies` and `sim.policies_overloaded`: requests a second, the mean over all policies that decide something.

    Args:
        times: runs of each; the median counts.
    """
    agents = readers(0, roots=ROOTS, every_ns=700 * MS, documents=1, turns=TURNS)
    facts = {"requests": ROOTS * (1 + TURNS), "tools": ROOTS * TURNS}
    crowd = {"requests": OVERLOADED, "prompt_tokens": PROMPT}
    driven = [name for name in policy_names() if not find_policy(name).pieces]
    return {
        "sim.policies": _rate(agents, engine(KV_TOKENS), policy_names(), times, facts),
        "sim.policies_overloaded": _rate(overloaded(), engine(LARGE_KV_TOKENS), driven, times, crowd),
    }


def _rate(
    trace: Trace, document: dict[str, Any], names: Sequence[str], times: int, facts: dict[str, Any]
) -> Result:
    """Requests a second of a load, each policy's by name in the facts."""
    plan = dag(show(work_digest(trace)))
    seconds: dict[str, float] = {}
    totals = [0.0] * times
    for name in names:
        settings = {**document, "policy": {"name": name}}
        scenario = Scenario.parse({"backend": {"name": "engine", "settings": settings}}, path=name)
        execution = replay(trace, plan, scenario)  # compiles, or loads what was compiled
        assert (execution.events.ints("finished_ns") >= 0).all()
        taken = timed(lambda scenario=scenario: replay(trace, plan, scenario), times)
        seconds[name] = median(taken)
        if name not in ("none", "prefix"):
            totals = [total + each for total, each in zip(totals, taken, strict=True)]
    requests = facts["requests"]
    rates = [(len(seconds) - 2) * requests / total for total in totals]
    return Result(
        median(rates),
        "requests/s",
        rates,
        better="more",
        peer_note="no peer drives these policies",
        facts={
            **facts,
            "requests_per_s": {name: requests / each for name, each in seconds.items()},
            "time_over_prefix": {name: each / seconds["prefix"] for name, each in seconds.items()},
        },
    )
