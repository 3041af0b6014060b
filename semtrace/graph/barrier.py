"""Barrier plans: groups that serialise what the work leaves independent (spec, plans.md).

A *branch* of a stage is a nested stage, with all that is nested in it, or, where it has no nested stage, a
session. Branches that depend on each other are put on levels, and only branches of one level, which are
pairwise independent, are serialised (ST-PLAN-020 to ST-PLAN-026). What the groups made so far order counts as a dependency too, so that the
groups of several stages cannot wait for each other: the plan is legal by construction, which `judge` proves again.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from semtrace.errors import UsageError
from semtrace.graph.plan import Group, Plan, dag
from semtrace.graph.reach import reach, recorded_links
from semtrace.graph.resolve import resolve
from semtrace.records.columns import NULL
from semtrace.records.enums import Trigger
from semtrace.store.digests import show, work_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from semtrace.graph.reach import Link
    from semtrace.graph.resolve import Constraints
    from semtrace.records.trace import Trace

Rule = Literal["chain", "level", "width", "stages"]


@dataclass(frozen=True)
class Branch:
    """A part of a stage that runs beside others: its name and its operations, ascending."""

    name: str
    operations: tuple[int, ...]


def barrier(trace: Trace, rule: Rule, *, width: int = 1, stages: Sequence[int] | None = None) -> Plan:
    """A barrier plan.

    Args:
        trace: the trace.
        rule: `chain`: branches one after the other, lowest first; `width`: branch i waits for branch i - width;
            `level`: operations wait for all of the stage's operations that are one hop nearer to its beginning;
            `stages`: the chosen stages of a task one after another.
        width: how many branches may run side by side, for rule `width`.
        stages: the stages to serialise; every stage of the trace if left out (for `stages`: the outermost ones). A
            task without stages is taken as one stage.

    Raises:
        UsageError: a stage is not there, or the width is not positive.
    """
    if width < 1:
        raise UsageError("the width must be at least 1", code="plan.width")
    known = trace["stages"].rows
    for stage in stages or ():
        if not 0 <= stage < known:
            raise UsageError(f"stage {stage} is not in the trace, which has {known}", code="plan.stage")
    constraints = resolve(trace, dag(show(work_digest(trace))))
    tree = _Tree(trace)
    groups: list[Group] = []
    for task in range(trace.tasks.rows):
        order = _Order(constraints, trace.task_rows("operations", task))
        if rule == "stages":
            order.add(_chain(order, tree.stage_branches(task, stages), 1, "stages", f"task {task}"))
        else:
            for label, branches, members in tree.parts(task, stages):
                if rule == "level":
                    order.add(_levels(order, members, label))
                else:
                    order.add(_chain(order, branches, width if rule == "width" else 1, rule, label))
        groups.extend(order.groups)
    options: dict[str, object] = {"rule": rule}
    if rule == "width":
        options["width"] = width
    if stages is not None:
        options["stages"] = sorted(set(stages))
    return Plan(work_digest=show(work_digest(trace)), name="barrier", options=options, groups=groups)


def why_it_adds_nothing(trace: Trace, plan: Plan) -> str:
    """Why a barrier plan without groups has none, for people.

    Args:
        trace: the trace.
        plan: what `barrier` made of it.
    """
    rule, width, stages = (plan.options.get(name) for name in ("rule", "width", "stages"))
    if rule == "level":
        return "every operation waits already for all that are one hop nearer to the beginning"
    constraints = resolve(trace, dag(plan.work_digest))
    tree = _Tree(trace)
    most = level = 0  # branches of one part; of these, independent of each other
    for task in range(trace.tasks.rows):
        order = _Order(constraints, trace.task_rows("operations", task))
        parts = [branches for _, branches, _ in tree.parts(task, stages)]
        for branches in [tree.stage_branches(task, stages)] if rule == "stages" else parts:
            most = max(most, len(branches))
            level = max([level, *map(len, _independent(order.links, branches))])
    if rule == "stages":
        if most < 2:
            which = "outermost stages" if stages is None else "of the chosen stages"
            return f"no task has two {which}, and by stages these wait for each other; --stage chooses nested ones"
        return "the stages wait for each other already, or overlap"
    if most < 2:
        return "no stage has branches to serialise"
    if level < 2:
        return "the branches of a stage wait for each other already, or overlap"
    return f"no stage has more than {level} independent branches, so a width of {width} holds none back"


class _Order:
    """The recorded edges of a task and the groups made so far (ST-PLAN-021).

    Attributes:
        groups: the groups made so far.
        recorded: the recorded edges, all edges into a source before those out of it.
        links: the same with the groups, each a node of its own above the operations.
    """

    def __init__(self, constraints: Constraints, rows: range) -> None:
        self.groups: list[Group] = []
        self.recorded = recorded_links(constraints, rows)
        self.links = self.recorded
        self._first_hub = rows.stop
        self._into: dict[int, list[Link]] = defaultdict(list)
        self._out: dict[int, list[int]] = defaultdict(list)
        for link in self.recorded:
            self._link(link)

    def _link(self, link: Link) -> None:
        target, source, _ = link
        self._into[target].append(link)
        self._out[source].append(target)

    def add(self, groups: Iterable[Group]) -> None:
        """Add groups; nothing that they hold may lead to what they wait for."""
        known = len(self.groups)
        self.groups.extend(groups)
        for hub, group in enumerate(self.groups[known:], self._first_hub + known):
            for operation in group.wait:
                self._link((hub, operation, Trigger.FINISH))
            for operation in group.hold:
                self._link((operation, hub, Trigger.FINISH))
        if len(self.groups) > known:
            self.links = self._in_order()

    def _in_order(self) -> list[Link]:
        missing = {target: len(links) for target, links in self._into.items()}
        complete = [node for node in self._out if node not in missing]
        links: list[Link] = []
        for node in complete:  # grows while it is gone through
            for target in self._out.get(node, ()):
                missing[target] -= 1
                if missing[target] == 0:
                    complete.append(target)
                    links.extend(self._into[target])
        return links


class _Tree:
    """The stages of a trace with the operations in them."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._parent = trace["stages"].ints("parent").tolist()
        self._names = trace["stages"].strings("name")
        self._children: dict[int, list[int]] = defaultdict(list)
        for stage, parent in enumerate(self._parent):
            self._children[parent].append(stage)
        self._direct: dict[int, list[int]] = defaultdict(list)
        for operation, stage in enumerate(trace.operations.ints("stage").tolist()):
            self._direct[stage].append(operation)
        self._session = trace.operations.ints("session").tolist()

    def within(self, stage: int) -> list[int]:
        """The operations of a stage and of all that is nested in it, ascending."""
        found: list[int] = []
        pending = [stage]
        while pending:
            at = pending.pop()
            found.extend(self._direct[at])
            pending.extend(self._children[at])
        return sorted(found)

    def _sessions(self, operations: Sequence[int]) -> list[Branch]:
        by_session: dict[int, list[int]] = defaultdict(list)
        for operation in operations:
            if self._session[operation] != NULL:
                by_session[self._session[operation]].append(operation)
        return [Branch(f"session {session}", tuple(members)) for session, members in by_session.items()]

    def branches(self, stage: int) -> list[Branch]:
        """The branches of a stage."""
        nested = [
            Branch(f"stage {child} ({self._names[child]})", tuple(self.within(child)))
            for child in self._children[stage]
        ]
        return [branch for branch in nested if branch.operations] or self._sessions(self._direct[stage])

    def parts(self, task: int, chosen: Sequence[int] | None) -> Iterator[tuple[str, list[Branch], list[int]]]:
        """What is serialised in a task: a label, the branches, and all operations."""
        stages = self._trace.task_rows("stages", task)
        if not stages and chosen is None:
            members = list(self._trace.task_rows("operations", task))
            yield f"task {task}", self._sessions(members), members
        for stage in stages:
            if chosen is None or stage in chosen:
                yield f"stage {stage} ({self._names[stage]})", self.branches(stage), self.within(stage)

    def stage_branches(self, task: int, chosen: Sequence[int] | None) -> list[Branch]:
        """The chosen stages of a task, the outermost ones if none are chosen, as branches."""
        stages = self._trace.task_rows("stages", task)
        taken = [
            stage
            for stage in stages
            if (stage in chosen if chosen is not None else self._parent[stage] == NULL)
        ]
        made = [Branch(f"stage {stage} ({self._names[stage]})", tuple(self.within(stage))) for stage in taken]
        return [branch for branch in made if branch.operations]


def _chain(order: _Order, branches: Sequence[Branch], width: int, rule: str, label: str) -> Iterator[Group]:
    """Groups in which branch i of a level waits for branch i - width (ST-PLAN-023, ST-PLAN-024)."""
    for level in _independent(order.links, branches):
        for before, after in zip(level, level[width:], strict=False):
            yield Group(
                rule=rule,
                wait=list(before.operations),
                hold=list(after.operations),
                note=f"{label}: {after.name} after {before.name}",
            )


def _independent(links: Sequence[Link], branches: Sequence[Branch]) -> list[list[Branch]]:
    """Branches by level (ST-PLAN-022); those of one level are pairwise independent.

    Branches that share an operation or depend on each other both ways, and those behind them, are left out.
    """
    ordered = sorted(branches, key=lambda branch: branch.operations)
    if len(ordered) < 2:
        return [list(ordered)]
    known = reach(links, sorted({operation for branch in ordered for operation in branch.operations}))
    own = [known.mask(branch.operations) for branch in ordered]
    into = [0] * len(ordered)
    for at, branch in enumerate(ordered):
        for operation in branch.operations:
            into[at] |= known.into(operation)
    before = [
        {
            other
            for other in range(len(ordered))
            if other != at and (into[at] & own[other] or own[at] & own[other])
        }
        for at in range(len(ordered))
    ]
    levels: list[list[Branch]] = []
    placed: set[int] = set()
    while True:
        free = [at for at in range(len(ordered)) if at not in placed and before[at] <= placed]
        if not free:
            return levels
        levels.append([ordered[at] for at in free])
        placed.update(free)


def _levels(order: _Order, members: Sequence[int], label: str) -> Iterator[Group]:
    """Groups between the hop depths of a stage (ST-PLAN-025).

    The depth of an operation is the greatest number of finish edges out of the stage's operations on a path to it.
    An operation that lets one of the next depth run beside it (start and first-token edges) is not waited for, and
    a group that holds nothing back that is not held back already is left out.
    """
    inside = set(members)
    depth: dict[int, int] = defaultdict(int)
    for target, source, trigger in order.links:
        hops = depth[source] + (source in inside and trigger == Trigger.FINISH)
        depth[target] = max(depth[target], hops)
    by_depth: dict[int, list[int]] = defaultdict(list)
    for operation in members:
        by_depth[depth[operation]].append(operation)
    recorded = reach(order.recorded, members)
    known = recorded if order.links is order.recorded else reach(order.links, members)
    for level in range(1, len(by_depth)):
        hold = by_depth[level]
        beside = 0
        implied = known.mask(members)
        for operation in hold:
            beside |= recorded.into(operation) & ~recorded.into(operation, Trigger.FINISH)
            implied &= known.into(operation, Trigger.FINISH)
        wait = [operation for operation in by_depth[level - 1] if not known.bit[operation] & beside]
        if known.mask(wait) & ~implied:
            note = f"{label}: depth {level} after depth {level - 1}"
            yield Group(rule="level", wait=wait, hold=hold, note=note)
