"""No order of service but the oracle knows what is to come; and whose program came first goes on first, also past pins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from semtrace.engine.document import SchedulerDocument
from semtrace.graph.plan import dag
from semtrace.replay.run import replay
from semtrace.replay.scenario import Scenario
from semtrace.store.digests import show, work_digest
from semtrace.testing.agents import Workload, random_workload
from support.lifecycle import run_engine

ORDERS = get_args(SchedulerDocument.model_fields["order"].annotation)
SEEDS = range(20)


def in_order(seed: int, order: str) -> Workload:
    """A random workload whose calls often wait for each other."""
    made = random_workload(seed)
    scheduler = {**made.engine["scheduler"], "order": order, "max_num_seqs": 2}
    return replace(made, engine={**made.engine, "scheduler": scheduler})


def ran(workload: Workload) -> tuple[list[int], list[int], list[dict[str, Any]]]:
    """When each operation was submitted, when it ended, and the steps."""
    trace = workload.trace()
    scenario = Scenario.parse({"backend": {"name": "engine", "settings": workload.engine}}, path="scenario")
    made = replay(trace, dag(show(work_digest(trace))), scenario, detail=["steps"], simulator="step")
    events = made.events
    return (
        events.ints("submitted_ns").tolist(),
        events.ints("finished_ns").tolist(),
        made["steps"].data.to_pylist(),
    )


def looks_ahead(order: str) -> list[int]:
    """The seeds at which what was scheduled until some time is another one if what comes after that is."""
    found = []
    for seed in SEEDS:
        workload = in_order(seed, order)
        submitted, finished, steps = ran(workload)
        times = sorted(finished)
        for share in (0.2, 0.5):
            cut = times[int(share * (len(times) - 1))]
            _, _, others = ran(workload.changed_after(cut, submitted, finished, seed))
            before, after = ([row for row in rows if row["start_ns"] <= cut] for rows in (steps, others))
            if before != after:
                found.append(seed)
    return found


@pytest.mark.parametrize("order", [each for each in ORDERS if each != "critical_path_oracle"])
def test_an_order_knows_nothing_that_is_to_come(order: str):
    """ST-ENG-026: other prompts, outputs and durations later change no step before."""
    assert looks_ahead(order) == []


def test_the_oracle_does():
    """ST-ENG-025: by the same test, so that the test can fail."""
    assert looks_ahead("critical_path_oracle")


def test_behind_a_head_that_waits_for_pins_the_program_that_holds_them_goes_on():
    """ST-ENG-023 and ST-ENG-024: `wide` has no room beside the pin of `a`; with `fcfs` the call that would free it waits behind."""
    operations = [
        {"name": "other", "task": 0, "kind": "llm", "prompt": 4, "output": 40, "content": "o", "session": "o"},
        {"name": "a", "task": 1, "kind": "llm", "prompt": 12, "output": 1, "content": "x", "session": "s"},
        {"name": "t", "task": 1, "duration_ns": 30, "after": ["a"]},
        {"name": "b", "task": 1, "kind": "llm", "prompt": 16, "output": 1, "content": "x", "session": "s", "after": ["t"]},
        {"name": "wide", "task": 2, "kind": "llm", "prompt": 40, "output": 1, "content": "w", "session": "w"},
    ]  # fmt: skip
    engine = {"blocks": 15, "block_size": 4, "cost": [10, 0, 1, 1, 0], "policy": {"name": "keep"}}
    waits = {}
    for order in ("fcfs", "instance_fcfs", "session_fcfs"):
        made = run_engine(
            operations,
            {**engine, "scheduler": {"order": order}},
            tasks=[{"arrival_ns": 0}, {"arrival_ns": 0}, {"arrival_ns": 30}],
        )
        assert made.event("b")["cached_tokens"] == 12
        waits[order] = made.event("b")["scheduled_ns"] - made.event("b")["submitted_ns"]
    assert waits["instance_fcfs"] == waits["session_fcfs"] < waits["fcfs"]
