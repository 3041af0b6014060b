"""Which plans are legal, and which groups barrier plans have, by the text of plans.md alone, by brute force.

Works are small: reachability is asked again and again, paths are found by search. Nothing here is shared with the
planner that is judged.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from semtrace.records.enums import Trigger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from semtrace_conformance.making.work import Work

Row = dict[str, Any]
Node = int | str

_ORDER: Final = {Trigger.START: 0, Trigger.FIRST_TOKEN: 1, Trigger.FINISH: 2}
_NAMED: Final = {"finish": Trigger.FINISH, "start": Trigger.START, "first_token": Trigger.FIRST_TOKEN}
REQUIREMENT: Final = {"contradicts": "ST-PLAN-010", "overlaps": "ST-PLAN-011", "delays": "ST-PLAN-013"}


@dataclass
class Graph:
    """Edges between nodes: by source, each target with the trigger and the lag."""

    out: dict[Node, list[tuple[Node, Trigger, int]]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def recorded(cls, work: Work) -> Graph:
        """The recorded edges of a work."""
        graph = cls()
        for at, operation in enumerate(work.operations):
            for edge in operation.edges:
                graph.out[work.number(edge.source)].append((at, edge.trigger, edge.lag_ns))
        return graph

    def with_groups(self, groups: Sequence[Mapping[str, Any]]) -> Graph:
        """The graph with groups as nodes of their own."""
        graph = Graph(defaultdict(list, {node: list(edges) for node, edges in self.out.items()}))
        for at, group in enumerate(groups):
            for source in group["wait"]:
                graph.out[source].append((f"group {at}", Trigger.FINISH, 0))
            for target in group["hold"]:
                graph.out[f"group {at}"].append((target, Trigger.FINISH, 0))
        return graph

    def reached(self, node: Node, first: Callable[[Trigger], bool] = lambda _: True) -> set[Node]:
        """All nodes to which a path leads whose first edge has such a trigger."""
        pending = [target for target, trigger, _ in self.out[node] if first(trigger)]
        seen = set(pending)
        while pending:
            for target, _, _ in self.out[pending.pop()]:
                if target not in seen:
                    seen.add(target)
                    pending.append(target)
        return seen

    def edges(self) -> Iterator[tuple[Node, Node, Trigger]]:
        """All edges."""
        for source in list(self.out):
            for target, trigger, _ in self.out[source]:
                yield source, target, trigger


@dataclass(frozen=True)
class Judged:
    """How a plan is judged.

    Attributes:
        verdicts: what each added edge is.
        against: requirements that it violates, each with the ends that a path which shows it has.
        circle: whether all constraints together are cyclic, each being legal.
    """

    verdicts: list[str]
    against: dict[str, list[list[int]]]
    circle: bool


def judge(work: Work, plan: Mapping[str, Any]) -> Judged:
    """Judge a plan (ST-PLAN-010 … ST-PLAN-015, ST-PLAN-012)."""
    graph = Graph.recorded(work)
    against: dict[str, list[list[int]]] = defaultdict(list)
    verdicts = []
    for edge in plan.get("edges", ()):
        trigger = _NAMED[edge.get("trigger", "finish")]
        kind = verdict(graph, edge["source"], edge["target"], trigger, edge.get("lag_ns", 0))
        verdicts.append(kind)
        _note(against, kind, edge["source"], edge["target"])
    for group in plan.get("groups", ()):
        for source in sorted(set(group["wait"])):
            for target in sorted(set(group["hold"])):
                _note(against, verdict(graph, source, target, Trigger.FINISH, 0), source, target)
    return Judged(verdicts, dict(against), not against and _cyclic(graph, plan))


def _note(against: dict[str, list[list[int]]], kind: str, source: int, target: int) -> None:
    if kind == "contradicts":
        against[REQUIREMENT[kind]].append([target, source])
    elif kind in REQUIREMENT:
        against[REQUIREMENT[kind]].append([source, target])


def verdict(graph: Graph, source: int, target: int, trigger: Trigger, lag: int) -> str:
    """What an added constraint is; the first that holds."""
    if source in graph.reached(target):
        return "contradicts"
    late = _at_or_after(trigger)
    if target in graph.reached(source, late):
        lags = [known for to, first, known in graph.out[source] if to == target and late(first)]
        return "redundant" if lag == 0 or lag <= max(lags, default=-1) else "delays"
    return "overlaps" if target in graph.reached(source) else "independent"


def _at_or_after(trigger: Trigger) -> Callable[[Trigger], bool]:
    return lambda first: _ORDER[first] >= _ORDER[trigger]


def added_steps(plan: Mapping[str, Any]) -> list[list[int]]:
    """The pairs that a plan adds: source and target of each."""
    pairs = {(edge["source"], edge["target"]) for edge in plan.get("edges", ())}
    for group in plan.get("groups", ()):
        pairs |= {(source, target) for source in group["wait"] for target in group["hold"]}
    return [list(pair) for pair in sorted(pairs)]


def recorded_steps(work: Work) -> list[list[int]]:
    """The pairs of the recorded edges: source and target of each."""
    pairs = {(work.number(edge.source), at) for at, each in enumerate(work.operations) for edge in each.edges}
    return [list(pair) for pair in sorted(pairs)]


def _cyclic(graph: Graph, plan: Mapping[str, Any]) -> bool:
    whole = Graph(defaultdict(list, {node: list(edges) for node, edges in graph.out.items()}))
    for source, target in added_steps(plan):
        whole.out[source].append((target, Trigger.FINISH, 0))
    return any(node in whole.reached(node) for node in list(whole.out))


# -- barrier plans ------------------------------------------------------------------------------------------------


def barrier(work: Work, rule: str, *, width: int = 1, stages: Sequence[int] | None = None) -> list[Row]:
    """The groups of a barrier plan (ST-PLAN-020 … ST-PLAN-026)."""
    graph = Graph.recorded(work)
    groups: list[Row] = []
    for task in range(len(work.tasks)):
        own: list[Row] = []
        for made in _parts(work, task, rule, width, stages, graph, own):
            own.extend(made)
        groups.extend(own)
    return groups


def _parts(
    work: Work, task: int, rule: str, width: int, stages: Sequence[int] | None, graph: Graph, own: list[Row]
) -> Iterator[list[Row]]:
    """The groups of each part of a task in turn; `own` has those made before."""
    names = list(work.stages)
    of_task = [at for at, name in enumerate(names) if work.stages[name][1] == task]
    chosen = [at for at in of_task if stages is None or at in stages]
    if rule == "stages":
        outer = [at for at in chosen if stages is not None or work.stages[names[at]][0] is None]
        branches = [members for members in (_within(work, at) for at in outer) if members]
        yield _chain(graph.with_groups(own), branches, 1)
        return
    parts = [(_branches(work, at), _within(work, at)) for at in chosen]
    if not of_task and stages is None:
        members = work.of_task(task)
        parts = [(_sessions(work, members), members)]
    for branches, members in parts:
        if rule == "level":
            yield _levels(graph, graph.with_groups(own), members)
        else:
            yield _chain(graph.with_groups(own), branches, width if rule == "width" else 1)


def _within(work: Work, stage: int) -> list[int]:
    """The operations of a stage and of all nested in it."""
    names = list(work.stages)
    inside = {names[stage]}
    for name, (parent, _) in work.stages.items():  # a parent stands before what is nested in it
        if parent in inside:
            inside.add(name)
    return [at for at, operation in enumerate(work.operations) if operation.stage in inside]


def _branches(work: Work, stage: int) -> list[list[int]]:
    names = list(work.stages)
    nested = [_within(work, at) for at, name in enumerate(names) if work.stages[name][0] == names[stage]]
    nested = [members for members in nested if members]
    direct = [at for at, operation in enumerate(work.operations) if operation.stage == names[stage]]
    return nested or _sessions(work, direct)


def _sessions(work: Work, operations: Sequence[int]) -> list[list[int]]:
    found: dict[str, list[int]] = {}
    for at in operations:
        session = work.operations[at].session
        if session is not None:
            found.setdefault(session, []).append(at)
    return list(found.values())


def _chain(graph: Graph, branches: Iterable[Sequence[int]], width: int) -> list[Row]:
    groups = []
    for level in _levels_of_branches(graph, sorted(map(sorted, branches))):
        pairs = zip(level, level[width:], strict=False)
        groups += [{"wait": list(wait), "hold": list(hold)} for wait, hold in pairs]
    return groups


def _levels_of_branches(graph: Graph, branches: list[list[int]]) -> list[list[list[int]]]:
    """Branches by level (ST-PLAN-022)."""

    def is_before(one: list[int], other: list[int]) -> bool:
        return bool(set(one) & set(other)) or any(graph.reached(node) & set(other) for node in one)

    before = [
        {at for at, one in enumerate(branches) if at != to and is_before(one, other)}
        for to, other in enumerate(branches)
    ]
    levels: list[list[list[int]]] = []
    placed: set[int] = set()
    while True:
        free = [at for at in range(len(branches)) if at not in placed and before[at] <= placed]
        if not free:
            return levels
        levels.append([branches[at] for at in free])
        placed |= set(free)


def _levels(recorded: Graph, graph: Graph, members: Sequence[int]) -> list[Row]:
    """The groups of rule `level` (ST-PLAN-025)."""
    into: dict[Node, list[tuple[Node, Trigger]]] = defaultdict(list)
    for source, target, trigger in graph.edges():
        into[target].append((source, trigger))
    known: dict[Node, int] = {}

    def depth(node: Node) -> int:
        if node not in known:
            known[node] = max(
                (
                    depth(source) + (source in members and trigger is Trigger.FINISH)
                    for source, trigger in into[node]
                ),
                default=0,
            )
        return known[node]

    def finish(trigger: Trigger) -> bool:
        return trigger is Trigger.FINISH

    groups = []
    for level in range(1, max(map(depth, members), default=0) + 1):
        hold = [at for at in members if depth(at) == level]
        wait = [at for at in members if depth(at) == level - 1]
        wait = [
            at
            for at in wait
            if not any(
                held in recorded.reached(at) and held not in recorded.reached(at, finish) for held in hold
            )
        ]
        ordered = all(held in graph.reached(at, finish) for at in wait for held in hold)
        if wait and hold and not ordered:
            groups.append({"wait": wait, "hold": hold})
    return groups
