"""Legality and barrier rules by brute force, written from spec/plans.md alone.

Reachability is a matrix closed by three nested loops; nothing is shared with semtrace but the rows of tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semtrace.records.enums import Trigger

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from semtrace.graph.legality import Judgement
    from semtrace.graph.plan import Plan
    from semtrace.records.trace import Trace

Matrix = list[list[bool]]

IN_TIME = [Trigger.START, Trigger.FIRST_TOKEN, Trigger.FINISH]
"""The triggers of an operation in the order in which they come."""


def closed(size: int, links: Iterable[tuple[int, int]]) -> Matrix:
    """Whether a path of at least one link leads from one node to another."""
    leads = [[False] * size for _ in range(size)]
    for source, target in links:
        leads[source][target] = True
    for via in range(size):
        for source in range(size):
            if leads[source][via]:
                for target in range(size):
                    leads[source][target] = leads[source][target] or leads[via][target]
    return leads


class Links:
    """Edges between nodes, each (source, target, trigger), and the paths that they make."""

    def __init__(self, size: int, edges: Sequence[tuple[int, int, Trigger]]) -> None:
        self.size = size
        self.edges = edges
        self._any = closed(size, [(source, target) for source, target, _ in edges])

    def path(self, source: int, target: int) -> bool:
        """Whether a path leads from one to the other."""
        return self._any[source][target]

    def path_beginning(self, source: int, target: int, triggers: Iterable[Trigger]) -> bool:
        """Whether one leads there whose first edge has one of the triggers."""
        return any(
            first == source and trigger in triggers and (second == target or self._any[second][target])
            for first, second, trigger in self.edges
        )


def recorded(trace: Trace) -> Links:
    """The recorded edges."""
    edges = [
        (edge["source"], edge["target"], Trigger(edge["trigger"])) for edge in trace.edges.data.to_pylist()
    ]
    return Links(trace.operations.rows, edges)


def kind_of(trace: Trace, links: Links, edge: Mapping[str, Any]) -> str:
    """ST-PLAN-010 to ST-PLAN-015: what an added constraint is."""
    u, v = edge["source"], edge["target"]
    late = IN_TIME[IN_TIME.index(Trigger[edge["trigger"].upper()]) :]
    if links.path(v, u):
        return "contradicts"
    if links.path_beginning(u, v, late):
        lags = [
            row["lag_ns"]
            for row in trace.edges.data.to_pylist()
            if row["source"] == u and row["target"] == v and row["trigger"] in late
        ]
        return "redundant" if edge["lag_ns"] <= max(lags, default=0) else "delays"
    return "overlaps" if links.path(u, v) else "independent"


def kinds_of_group(trace: Trace, links: Links, group: Mapping[str, Any]) -> list[str]:
    """What each pair of a group is."""
    return [
        kind_of(trace, links, {"source": u, "target": v, "trigger": "finish", "lag_ns": 0})
        for u in sorted(set(group["wait"]))
        for v in sorted(set(group["hold"]))
    ]


def pairs_of(plan: Mapping[str, Any]) -> list[tuple[int, int]]:
    """All constraints that a plan adds, as (source, target)."""
    edges = [(edge["source"], edge["target"]) for edge in plan["edges"]]
    return edges + [(u, v) for group in plan["groups"] for u in group["wait"] for v in group["hold"]]


def jointly_cyclic(trace: Trace, plan: Mapping[str, Any]) -> bool:
    """ST-PLAN-012: whether recorded and added constraints together make a circle."""
    links = [(source, target) for source, target, _ in recorded(trace).edges] + pairs_of(plan)
    leads = closed(trace.operations.rows, links)
    return any(leads[node][node] for node in range(trace.operations.rows))


ILLEGAL = {"contradicts": "ST-PLAN-010", "overlaps": "ST-PLAN-011", "delays": "ST-PLAN-013"}


def judged_otherwise(trace: Trace, plan: Plan, judgement: Judgement) -> str | None:
    """The first thing in which a judgement differs from brute force."""
    links, short = recorded(trace), plan.as_json()
    kinds = [kind_of(trace, links, edge) for edge in short["edges"]]
    of_groups = [kinds_of_group(trace, links, group) for group in short["groups"]]
    against = [{kind for kind in pairs if kind in ILLEGAL} for pairs in of_groups]
    found = [verdict.kind for verdict in judgement.verdicts if verdict.group is None]
    if found != kinds:
        return f"edges are {found}, must be {kinds}"
    if judgement.redundant_edges != [at for at, kind in enumerate(kinds) if kind == "redundant"]:
        return f"redundant edges are {judgement.redundant_edges}, of {kinds}"
    for at, pairs in enumerate(of_groups):
        told = {verdict.kind for verdict in judgement.verdicts if verdict.group == at}
        if told != against[at]:
            return f"group {at} is {told}, must be {against[at]}"
        summary = judgement.groups[at]
        if (summary.group, summary.pairs, summary.redundant) != (at, len(pairs), pairs.count("redundant")):
            return f"{summary} of {pairs}"
    wanted = [ILLEGAL[kind] for kind in kinds if kind in ILLEGAL]
    wanted += [ILLEGAL[kind] for told in against for kind in told]
    requirements = [finding.requirement for finding in judgement.findings]
    if not wanted:
        requirements = sorted(set(requirements))  # one for each task with a circle
        wanted = ["ST-PLAN-012"] if jointly_cyclic(trace, short) else []
    return None if sorted(requirements) == sorted(wanted) else f"findings {requirements}, must be {wanted}"


# -- barrier rules ---------------------------------------------------------------------------------------------


def barrier_groups(
    trace: Trace, rule: str, *, width: int = 1, stages: Sequence[int] | None = None
) -> list[tuple[list[int], list[int]]]:
    """ST-PLAN-020 to ST-PLAN-026: the groups of a barrier plan, each (wait, hold)."""
    operations, all_stages = trace.operations.data.to_pylist(), trace["stages"].data.to_pylist()
    count = len(operations)
    found: list[tuple[list[int], list[int]]] = []

    def within(stage: int) -> list[int]:
        def inside(at: int | None) -> bool:
            while at is not None and at != stage:
                at = all_stages[at]["parent"]
            return at == stage

        return [row for row, operation in enumerate(operations) if inside(operation["stage"])]

    def sessions(rows: Sequence[int]) -> list[list[int]]:
        named = {operations[row]["session"] for row in rows} - {None}
        return [[row for row in rows if operations[row]["session"] == session] for session in named]

    def branches(stage: int) -> list[list[int]]:
        nested = [within(at) for at, row in enumerate(all_stages) if row["parent"] == stage]
        nested = [rows for rows in nested if rows]
        return nested or sessions([row for row, each in enumerate(operations) if each["stage"] == stage])

    def graph() -> Links:
        edges = list(recorded(trace).edges)
        for hub, (wait, hold) in enumerate(found, count):
            edges += [(row, hub, Trigger.FINISH) for row in wait] + [
                (hub, row, Trigger.FINISH) for row in hold
            ]
        return Links(count + len(found), edges)

    def chain(parts: list[list[int]], apart: int) -> None:
        parts = sorted(parts)
        links = graph()
        before = {
            at: {
                other
                for other in range(len(parts))
                if other != at and any(u == v or links.path(u, v) for u in parts[other] for v in parts[at])
            }
            for at in range(len(parts))
        }
        placed: set[int] = set()
        while level := [at for at in before if at not in placed and before[at] <= placed]:
            placed |= set(level)
            found.extend((parts[level[at - apart]], parts[level[at]]) for at in range(apart, len(level)))

    def by_depth(rows: list[int]) -> None:
        links, base = graph(), recorded(trace)
        depth = [0] * links.size
        for _ in range(links.size):  # longest paths: as many rounds as there are nodes are enough
            for source, target, trigger in links.edges:
                hop = source in rows and trigger == Trigger.FINISH
                depth[target] = max(depth[target], depth[source] + hop)
        for level in range(1, max((depth[row] for row in rows), default=0) + 1):
            hold = [row for row in rows if depth[row] == level]
            wait = [
                u
                for u in rows
                if depth[u] == level - 1
                and not any(base.path(u, v) and not base.path_beginning(u, v, [Trigger.FINISH]) for v in hold)
            ]
            if not all(links.path_beginning(u, v, [Trigger.FINISH]) for u in wait for v in hold):
                found.append((wait, hold))

    for task in range(trace.tasks.rows):
        own = [at for at, row in enumerate(all_stages) if row["task"] == task]
        chosen = [at for at in own if stages is None or at in stages]
        if rule == "stages":
            outermost = [at for at in own if all_stages[at]["parent"] is None]
            serialised = [within(at) for at in (outermost if stages is None else chosen)]
            chain([rows for rows in serialised if rows], 1)
            continue
        parts = [(branches(stage), within(stage)) for stage in chosen]
        if not own and stages is None:
            rows = [row for row, operation in enumerate(operations) if operation["task"] == task]
            parts = [(sessions(rows), rows)]
        for split, rows in parts:
            if rule == "level":
                by_depth(rows)
            else:
                chain(split, width if rule == "width" else 1)
    return found
