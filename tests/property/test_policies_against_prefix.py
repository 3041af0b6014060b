"""For each policy a workload on which it beats vLLM's prefix cache, and one on which it loses to it: none is always right."""

from __future__ import annotations

from typing import Any

import pytest

from semtrace.graph.plan import dag
from semtrace.replay.run import replay
from semtrace.replay.scenario import Scenario
from semtrace.store.digests import show, work_digest
from semtrace.testing.agents import random_workload
from semtrace.testing.policies import run_policy
from support.rounds import all_gather


def ends(seed: int, policy: str, settings: dict[str, Any]) -> int:
    """The ends of all operations, summed, in ns."""
    workload = random_workload(seed)
    if policy != "prefix":
        return sum(run_policy(workload, policy, settings).finished)
    trace = workload.trace()
    engine = {key: value for key, value in workload.engine.items() if key not in {"tiers", "links"}}
    scenario = Scenario.parse({"backend": {"name": "engine", "settings": engine}}, path="scenario")
    events = replay(trace, dag(show(work_digest(trace))), scenario).events
    return sum(events.ints("finished_ns").tolist())


@pytest.mark.parametrize(
    ("policy", "settings", "better", "worse"),
    [
        ("keep", {}, 5, 8),
        ("offload-lru", {}, 0, 38),
        ("continuum", {"ttl_ns": 60}, 23, 7),
        ("infercept", {"unknown_tool_ns": 50}, 5, 38),
        ("cost", {"unknown_tool_ns": 50}, 5, 26),
        ("tokencake", {"unknown_tool_ns": 300, "lead_ns": 5, "retry_ns": 20}, 23, 31),
    ],
)
def test_each_wins_and_loses(policy: str, settings: dict[str, Any], better: int, worse: int):
    assert ends(better, policy, settings) < ends(better, "prefix", {})
    assert ends(worse, policy, settings) > ends(worse, "prefix", {})


@pytest.mark.parametrize("policy", ["pic", "tokendance"])
def test_reuse_wins_if_adapting_is_cheap_and_loses_if_it_is_dear(policy: str):
    """Of three agents' round: adapting a token takes 1 ns, or 100 where computing it takes 10."""

    def last(name: str, **settings: int) -> int:
        document = {
            "blocks": 60, "block_size": 4, "cost": [10, 0, 10, 1, 0], "policy": {"name": name, "settings": settings},
        }  # fmt: skip
        return max(row["finished_ns"] for row in all_gather((6, 9, 5), 8, 1, document).rows("events"))

    # pic would rather compute all, if it were not told to compute but the first token of each piece.
    more = {"first_tokens": 1} if policy == "pic" else {"diff_ns_per_token": 0}
    assert last(policy, least_tokens=4, rope_ns_per_token=1, **more) < last("prefix")
    assert last(policy, least_tokens=4, rope_ns_per_token=100, **more) > last("prefix")
