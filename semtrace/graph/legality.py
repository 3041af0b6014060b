"""Whether a plan is legal: it may only order operations that the work leaves independent (spec, plans.md).

Every added constraint is judged against the recorded edges, all at once; then the whole must be acyclic.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, Final, Literal

from semtrace.check.finding import Finding
from semtrace.graph.plan import AddedEdge, Plan, dag
from semtrace.graph.reach import ancestors, find_path, reach, recorded_links
from semtrace.graph.resolve import TRIGGER_ORDER, plan_findings, resolve
from semtrace.records.enums import Trigger

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from semtrace.graph.plan import Group
    from semtrace.graph.reach import Reach
    from semtrace.graph.resolve import Constraints
    from semtrace.records.trace import Trace

Kind = Literal["independent", "redundant", "contradicts", "overlaps", "delays"]

_PROOFS: Final = 1000
"""Added edges for which a written proof is kept; the rest are counted."""

REQUIREMENT: Final[dict[Kind, str]] = {
    "contradicts": "ST-PLAN-010",
    "overlaps": "ST-PLAN-011",
    "delays": "ST-PLAN-013",
}


@dataclass(frozen=True)
class Verdict:
    """What an added constraint is, judged against the recorded edges.

    Attributes:
        kind: `independent` (no path either way: legal, ST-PLAN-015), `redundant` (already implied: legal, without
            effect, ST-PLAN-014), `contradicts` (the source waits for the target: illegal), `overlaps` (a path lets
            the two overlap: illegal), `delays` (they are in this order already, the lag would only delay the
            target: illegal).
        source: operation waited for.
        target: operation that waits.
        path: the recorded path that decides it, empty if independent.
        proof: the reason in words.
        group: the group that it belongs to, None for an added edge.
        edge: the added edge, None for a group.
    """

    kind: Kind
    source: int
    target: int
    path: tuple[int, ...]
    proof: str
    group: int | None = None
    edge: int | None = None

    @property
    def legal(self) -> bool:
        """Whether the constraint may stand."""
        return self.kind in {"independent", "redundant"}

    def as_dict(self) -> dict[str, Any]:
        """The verdict as JSON-ready fields."""
        return {
            "kind": self.kind,
            "source": self.source,
            "target": self.target,
            "path": list(self.path),
            "proof": self.proof,
            "group": self.group,
            "edge": self.edge,
        }


@dataclass(frozen=True)
class GroupVerdict:
    """How the pairs of a group were judged: pairs in all, those already implied, those left independent."""

    group: int
    pairs: int
    redundant: int
    independent: int
    proof: str


@dataclass(frozen=True)
class Judgement:
    """Whether a plan is legal, and why.

    Attributes:
        findings: every reason against it; none if it is legal.
        verdicts: one for each added edge, and one for each illegal pair of a group (the first of each kind).
        groups: one for each group.
        redundant_edges: positions of added edges that are already implied.
        circles: for each circle that constraints make together, its operations in order, the first one again at the end.
    """

    findings: list[Finding]
    verdicts: list[Verdict]
    groups: list[GroupVerdict]
    redundant_edges: list[int]
    circles: list[list[int]] = field(default_factory=list)

    @property
    def legal(self) -> bool:
        """Whether the plan may be replayed."""
        return not self.findings


def judge(trace: Trace, plan: Plan) -> Judgement:
    """Judge a plan.

    Returns:
        The judgement: findings with the offending pair and the path that forbids it, or the proofs.
    """
    problems = list(plan_findings(trace, plan))
    if problems:
        return Judgement(problems, [], [], [])
    findings: list[Finding] = []
    if plan.base != "dag":
        findings.append(
            Finding(
                "ST-PLAN-004",
                "the plan drops recorded control edges: it is for analysis and never legal",
                "plan",
                "base",
                hint="a legal plan keeps every recorded edge: base dag",
            )
        )
    base = resolve(trace, dag(plan.work_digest))
    verdicts: list[Verdict] = []
    groups: list[GroupVerdict] = []
    redundant: list[int] = []
    tasks = trace.operations.ints("task")
    edges_of: dict[int, list[int]] = defaultdict(list)
    groups_of: dict[int, list[int]] = defaultdict(list)
    for at, edge in enumerate(plan.edges):
        edges_of[int(tasks[edge.target])].append(at)
    for at, group in enumerate(plan.groups):
        groups_of[int(tasks[group.hold[0]])].append(at)
    for task in sorted(edges_of.keys() | groups_of.keys()):
        rows = trace.task_rows("operations", task)
        chosen = sorted(
            {end for at in edges_of[task] for end in (plan.edges[at].source, plan.edges[at].target)}
            | {member for at in groups_of[task] for member in (*plan.groups[at].wait, *plan.groups[at].hold)}
        )
        known = reach(recorded_links(base, rows), chosen)
        for at in edges_of[task]:
            verdict = _judge_edge(base, known, plan.edges[at], at, explain=len(verdicts) < _PROOFS)
            verdicts.append(verdict)
            if verdict.kind == "redundant":
                redundant.append(at)
        for at in groups_of[task]:
            summary, against = _judge_group(base, known, plan.groups[at], at)
            groups.append(summary)
            verdicts.extend(against)
    # Judged task by task, told in the order of the plan: edges, then groups.
    verdicts.sort(key=lambda each: (each.group is not None, each.edge or 0, each.group or 0))
    groups.sort(key=lambda each: each.group)
    redundant.sort()
    for verdict in verdicts:
        if not verdict.legal:
            table, row = (
                ("plan.edges", verdict.edge) if verdict.group is None else ("plan.groups", verdict.group)
            )
            findings.append(
                Finding(
                    REQUIREMENT[verdict.kind],
                    verdict.proof,
                    table,
                    rows=(row or 0,),
                    hint="only independent operations may be ordered; delivering other context is other work",
                )
            )
    circles: list[list[int]] = []
    if all(verdict.legal for verdict in verdicts):
        for finding, circle in _joint_cycle(trace, base, plan):
            findings.append(finding)
            circles.append(circle)
    return Judgement(findings, verdicts, groups, redundant, circles)


def _named(path: Iterable[object]) -> str:
    return " → ".join(map(str, path))


def _judge_edge(base: Constraints, known: Reach, edge: AddedEdge, at: int, *, explain: bool) -> Verdict:
    u, v = edge.source, edge.target
    bit_u, bit_v = known.bit[u], known.bit[v]
    wanted = TRIGGER_ORDER[edge.trigger_number]
    late = [trigger for trigger, order in TRIGGER_ORDER.items() if order >= wanted]
    if known.into(u) & bit_v:
        path = tuple(find_path(base, v, u))
        proof = f"{v} cannot wait for {u}, which itself waits for {v}: {_named(path)}"
        return Verdict("contradicts", u, v, path, proof, edge=at)
    if known.into(v, *late) & bit_u:
        path = tuple(find_path(base, u, v, late))
        if edge.lag_ns <= _lag(base, u, v, late):
            return Verdict("redundant", u, v, path, f"already implied: {_named(path)}", edge=at)
        proof = f"{v} waits for {u} already ({_named(path)}); {edge.lag_ns} ns of lag would only delay it"
        return Verdict("delays", u, v, path, proof, edge=at)
    if known.into(v) & bit_u:
        path = tuple(find_path(base, u, v))
        proof = (
            f"{v} is released while {u} runs ({_named(path)}); it cannot wait for {u}'s {edge.trigger} too"
        )
        return Verdict("overlaps", u, v, path, proof, edge=at)
    if not explain:
        return Verdict("independent", u, v, (), "no path either way", edge=at)
    proof = (
        f"{u} is not among the {len(ancestors(base, v))} operations before {v}, "
        f"nor {v} among the {len(ancestors(base, u))} before {u}"
    )
    return Verdict("independent", u, v, (), proof, edge=at)


def _lag(base: Constraints, u: int, v: int, triggers: Collection[Trigger]) -> int:
    """The greatest lag of a recorded edge from u to v with one of these triggers, 0 if there is none."""
    edges = range(int(base.offsets[v]), int(base.offsets[v + 1]))
    between = (edge for edge in edges if base.source[edge] == u and base.trigger[edge] in triggers)
    return max((int(base.lag_ns[edge]) for edge in between), default=0)


def _judge_group(
    base: Constraints, known: Reach, group: Group, at: int
) -> tuple[GroupVerdict, list[Verdict]]:
    wait, hold = sorted(set(group.wait)), sorted(set(group.hold))
    wait_mask, hold_mask = known.mask(wait), known.mask(hold)
    against: dict[Kind, Verdict] = {}
    for u in wait:
        back = known.into(u) & hold_mask
        if back and "contradicts" not in against:
            v = known.lowest(back)
            path = tuple(find_path(base, v, u))
            proof = f"{v} cannot wait for {u}, which itself waits for {v}: {_named(path)}"
            against["contradicts"] = Verdict("contradicts", u, v, path, proof, group=at)
    redundant = 0
    for v in hold:
        implied = known.into(v, Trigger.FINISH) & wait_mask
        redundant += implied.bit_count()
        overlap = known.into(v) & wait_mask & ~implied
        if overlap and "overlaps" not in against:
            u = known.lowest(overlap)
            path = tuple(find_path(base, u, v))
            proof = f"{v} is released while {u} runs ({_named(path)}); it cannot wait for its end too"
            against["overlaps"] = Verdict("overlaps", u, v, path, proof, group=at)
    pairs = len(wait) * len(hold)
    independent = pairs - redundant
    proof = (
        f"{len(hold)} operations wait for {len(wait)}: of {pairs} pairs {independent} have no path either way"
        + (f", {redundant} are implied already" if redundant else "")
    )
    summary = GroupVerdict(at, pairs, redundant, 0 if against else independent, proof)
    return summary, list(against.values())


def _joint_cycle(trace: Trace, base: Constraints, plan: Plan) -> Iterator[tuple[Finding, list[int]]]:
    """A finding and a circle for each task in which all constraints together are cyclic, though each alone is not."""
    count = trace.operations.rows
    tasks = trace.operations.ints("task")
    added: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for edge in plan.edges:
        added[int(tasks[edge.target])][edge.target].append(edge.source)
    for hub, group in enumerate(plan.groups, count):
        into = added[int(tasks[group.hold[0]])]
        into[hub] = group.wait
        for operation in group.hold:
            into[operation].append(hub)
    for task in sorted(added):
        into = added[task]
        for target, source, _ in recorded_links(base, trace.task_rows("operations", task)):
            into[target].append(source)
        try:
            TopologicalSorter(into).prepare()
        except CycleError as error:
            nodes: list[int] = error.args[1]
            named = _named(f"group {node - count}" if node >= count else node for node in nodes)
            finding = Finding(
                "ST-PLAN-012",
                f"each added constraint is legal, together they are not: {named}",
                "plan",
                hint="drop one of the constraints in the circle",
            )
            circle = [node for node in nodes[1:] if node < count]
            yield finding, [circle[-1], *circle]
