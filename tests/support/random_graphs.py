"""Random small graphs, plans and scenarios in which ties, zeros and every kind of constraint are common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semtrace.graph.barrier import barrier
from semtrace.graph.legality import judge
from semtrace.graph.plan import Plan, dag, work_only
from support.graphs import Graph, graph, scenario

if TYPE_CHECKING:
    from random import Random

    from semtrace.replay.scenario import Scenario

SHORT = (0, 0, 1, 2, 5)
TRIGGERS = ("finish", "finish", "start", "first_token")


def random_operation(rng: Random, name: str) -> dict[str, Any]:
    kind = rng.choice(("llm", "llm", "llm", "tool", "tool", "embed", "transform", "human"))
    status = rng.choice(("ok", "ok", "ok", "error", "cancelled", "timeout"))
    operation: dict[str, Any] = {"name": name, "kind": kind, "status": status, "delay_ns": rng.choice(SHORT)}
    if kind in {"llm", "embed"} and status in {"ok", "cancelled"}:
        operation["prompt"] = rng.randint(0, 3)
        operation["output"] = None if kind == "embed" else rng.randint(0, 3)
    else:
        operation["duration_ns"] = rng.choice((0, 0, 1, 3, 10))
    return operation


def random_graph(rng: Random, *, tasks: int = 3, operations: int = 7, arrivals: bool = True) -> Graph:
    """A trace of up to so many tasks with up to so many operations each, nested stages and sessions."""
    short: dict[str, Any] = {"tasks": [], "stages": [], "operations": []}
    for task in range(rng.randint(1, tasks)):
        own = [random_operation(rng, f"t{task}o{at}") for at in range(rng.randint(0, operations))]
        stages = [f"t{task}s{at}" for at in range(rng.randint(0, 4))]
        for at, name in enumerate(stages):
            parent = {"parent": rng.choice(stages[:at])} if at and rng.random() < 0.5 else {}
            short["stages"].append({"name": name, "task": task, **parent})
        for at, operation in enumerate(own):
            operation["task"] = task
            if stages and rng.random() < 0.8:
                operation["stage"] = rng.choice(stages)
            if rng.random() < 0.7:
                operation["session"] = f"session {rng.randint(0, 2)}"
            earlier = [each["name"] for each in own[:at]]
            operation["after"] = [
                {"source": source, "trigger": rng.choice(TRIGGERS), "lag_ns": rng.choice(SHORT)}
                for source in rng.sample(earlier, rng.randint(0, min(2, at)))
            ]
            if earlier and rng.random() < 0.2:
                operation["data"] = [rng.choice(earlier)]
        short["tasks"].append({"arrival_ns": rng.randint(0, 6)} if arrivals else {})
        if own and rng.random() < 0.5:
            short["tasks"][-1]["answer"] = rng.choice(own)["name"]
        short["operations"] += own
    return graph(short)


def random_edge(rng: Random, made: Graph) -> dict[str, Any] | None:
    """An added edge between two operations of one task, which may be anything but well formed nonsense."""
    tasks = [
        rows for at in range(made.trace.tasks.rows) if len(rows := made.trace.task_rows("operations", at)) > 1
    ]
    if not tasks:
        return None
    source, target = rng.sample(rng.choice(tasks), 2)
    return {
        "source": source,
        "target": target,
        "trigger": rng.choice(TRIGGERS),
        "lag_ns": rng.choice((0, 0, 0, 1, 4)),
    }


def random_group(rng: Random, made: Graph) -> dict[str, Any] | None:
    """A group of one task."""
    tasks = [
        rows for at in range(made.trace.tasks.rows) if len(rows := made.trace.task_rows("operations", at)) > 1
    ]
    if not tasks:
        return None
    rows = list(rng.choice(tasks))
    members = rng.sample(rows, rng.randint(2, min(5, len(rows))))
    cut = rng.randint(1, len(members) - 1)
    return {"wait": members[:cut], "hold": members[cut:]}


def random_constraints(rng: Random, made: Graph, count: int = 3) -> Plan:
    """A plan of random constraints, legal or not."""
    edges = [edge for _ in range(rng.randint(0, count)) if (edge := random_edge(rng, made))]
    groups = [group for _ in range(rng.randint(0, count - 1)) if (group := random_group(rng, made))]
    values = {"work_digest": made.work, "name": "custom", "edges": edges, "groups": groups}
    return Plan.parse(values, path="plan")


def random_barrier(rng: Random, made: Graph) -> Plan:
    """A barrier plan by a random rule, over random stages or all."""
    stages = None
    count = made.trace["stages"].rows
    if count and rng.random() < 0.4:
        stages = rng.sample(range(count), rng.randint(1, count))
    rule = rng.choice(("chain", "level", "width", "stages"))
    return barrier(made.trace, rule, width=rng.randint(1, 3) if rule == "width" else 1, stages=stages)


def random_plan(rng: Random, made: Graph) -> Plan:
    """A plan that may be replayed: legal, or for analysis."""
    kind = rng.choice(("dag", "barrier", "barrier", "custom", "custom", "custom", "work-only"))
    if kind == "work-only":
        return work_only(made.work)
    if kind == "barrier":
        return random_barrier(rng, made)
    if kind == "custom":
        plan = random_constraints(rng, made)
        while not judge(made.trace, plan).legal:  # drop constraints until the rest is legal
            if plan.groups:
                plan = plan.model_copy(update={"groups": plan.groups[1:]})
            else:
                plan = plan.model_copy(update={"edges": plan.edges[1:]})
        return plan
    return dag(made.work)


def random_scenario(rng: Random, made: Graph) -> Scenario:
    """A scenario on the ideal backend with small coefficients."""
    copies = rng.randint(1, 3)
    count = copies * made.trace.tasks.rows
    arrivals = rng.choice(
        (
            {"kind": "recorded"},
            {"kind": "together"},
            {"kind": "closed_loop", "users": rng.randint(1, 4), "think_ns": rng.choice(SHORT)},
            {"kind": "closed_loop", "users": rng.randint(1, 4), "ramp_ns": rng.randint(0, 20)},
            {"kind": "drawn", "times_ns": [rng.randint(0, 9) for _ in range(count)]},
            {"kind": "poisson", "mean_ns": rng.randint(1, 20), "seed": rng.randint(0, 99)},
        )
    )
    settings = {
        "c0_ns": rng.choice(SHORT),
        "c_pre_ns": rng.choice((0, 1, 2)),
        "c_dec_ns": rng.choice((0, 1, 3)),
    }
    return scenario(
        {"copies": copies, "arrivals": arrivals, "backend": {"name": "ideal", "settings": settings}}
    )
