"""A plan applied to a trace: the constraints as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from semtrace.check.finding import Finding
from semtrace.errors import OtherWorkError
from semtrace.records.enums import EdgeKind, Trigger
from semtrace.records.trace import group_offsets
from semtrace.store.digests import show, work_digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from semtrace.graph.plan import Plan
    from semtrace.records.trace import Trace


@dataclass(frozen=True)
class Constraints:
    """What each operation of a trace waits for under a plan.

    Attributes:
        operations: number of operations.
        target, source, trigger, lag_ns: the edges, recorded ones kept and added ones, sorted by target. Targets and
            triggers can be unsigned, as they are stored: nothing greater is to be taken from them.
        waits, holds: the groups, each an array of operations.
    """

    operations: int
    target: NDArray[Any]
    source: NDArray[np.int64]
    trigger: NDArray[Any]
    lag_ns: NDArray[np.int64]
    waits: tuple[NDArray[np.int64], ...] = ()
    holds: tuple[NDArray[np.int64], ...] = ()

    @cached_property
    def in_degree(self) -> NDArray[np.int64]:
        """How many edges and groups each operation waits for, shape (operations,)."""
        degree = np.diff(self.offsets)
        for hold in self.holds:
            degree[hold] += 1
        return degree

    @cached_property
    def by_source(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The edges by source: their order, and where each operation's begin, shapes (edges,) and (operations + 1,)."""
        order = np.argsort(self.source, kind="stable")
        bounds = np.searchsorted(self.source[order], np.arange(self.operations + 1))
        return order, bounds.astype(np.int64)

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Where the edges into each operation begin, shape (operations + 1,)."""
        return group_offsets(self.target, self.operations)


def plan_findings(trace: Trace, plan: Plan) -> Iterator[Finding]:
    """What keeps a plan from being applied to a trace: other work, operations that are not there or of two tasks."""
    if plan.work_digest != show(work_digest(trace)):
        yield Finding(
            "ST-PLAN-001",
            f"the plan is for work {plan.work_digest[:19]}…, the trace is work {show(work_digest(trace))[:19]}…",
            "plan",
            "work_digest",
            hint="make a plan of this trace: semtrace plan TRACE --rule …",
        )
    count = trace.operations.rows
    tasks = trace.operations.ints("task")
    for at, edge in enumerate(plan.edges):
        if edge.source >= count or edge.target >= count:
            missing = max(edge.source, edge.target)
            yield Finding(
                "ST-PLAN-002",
                f"operation {missing} is not in the trace, which has {count}",
                "plan.edges",
                rows=(at,),
            )
        elif tasks[edge.source] != tasks[edge.target]:
            yield Finding(
                "ST-PLAN-003",
                f"operations {edge.source} and {edge.target} are of different tasks",
                "plan.edges",
                rows=(at,),
            )
        elif edge.source == edge.target:
            yield Finding(
                "ST-PLAN-003", f"operation {edge.source} would wait for itself", "plan.edges", rows=(at,)
            )
    for at, group in enumerate(plan.groups):
        members = [*group.wait, *group.hold]
        wrong = [operation for operation in members if not 0 <= operation < count]
        if wrong:
            yield Finding(
                "ST-PLAN-002",
                f"operation {wrong[0]} is not in the trace, which has {count}",
                "plan.groups",
                rows=(at,),
            )
        elif len({int(tasks[operation]) for operation in members}) > 1:
            yield Finding("ST-PLAN-003", "its operations are of different tasks", "plan.groups", rows=(at,))
        elif set(group.wait) & set(group.hold):
            both = min(set(group.wait) & set(group.hold))
            yield Finding("ST-PLAN-003", f"operation {both} would wait for itself", "plan.groups", rows=(at,))


def resolve(trace: Trace, plan: Plan) -> Constraints:
    """The constraints of a plan.

    Raises:
        OtherWorkError: the plan is of other work, or names operations that are not there. Legality is not judged here.
    """
    problems = list(plan_findings(trace, plan))
    if problems:
        raise OtherWorkError(
            "; ".join(problem.message for problem in problems[:5]),
            code="plan.mismatch",
            path="plan",
            requirement=problems[0].requirement,
            hint=problems[0].hint,
        )
    edges = trace.edges
    columns: list[NDArray[Any]] = [
        edges.raw("target"),
        edges.ints("source"),
        edges.raw("trigger"),
        edges.ints("lag_ns"),
    ]
    if plan.base == "work-only":
        keep = np.isin(edges.ints("kind"), (EdgeKind.DATA, EdgeKind.STATE))
        columns = [column[keep] for column in columns]
    if plan.edges:
        added = np.array(
            [(edge.target, edge.source, int(edge.trigger_number), edge.lag_ns) for edge in plan.edges],
            dtype=np.int64,
        )
        columns = [np.concatenate([column, added[:, at]]) for at, column in enumerate(columns)]
        order = np.argsort(columns[0], kind="stable")
        columns = [column[order] for column in columns]
    target, source, trigger, lag = columns
    return Constraints(
        trace.operations.rows,
        target,
        source,
        trigger,
        lag,
        tuple(np.unique(np.asarray(group.wait, dtype=np.int64)) for group in plan.groups),
        tuple(np.unique(np.asarray(group.hold, dtype=np.int64)) for group in plan.groups),
    )


TRIGGER_ORDER = {Trigger.START: 0, Trigger.FIRST_TOKEN: 1, Trigger.FINISH: 2}
"""The triggers of an operation in the order in which they come."""
