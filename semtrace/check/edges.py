"""Edges: their evidence, and that data and state edges are exactly those that the rest of the trace implies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from semtrace.check.finding import Finding, found
from semtrace.check.rules import Rule, rule
from semtrace.check.view import TraceView, is_in, pair_keys
from semtrace.records.columns import NULL
from semtrace.records.enums import AccessMode, EdgeKind, Evidence, Trigger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_LOW: Final = np.uint64(0xFFFFFFFF)


@rule("ST-EDGE-003", "ST-EDGE-004")
def edge_evidence(view: TraceView) -> Iterator[Finding]:
    """An edge has evidence; a confidence is that of an inferred edge."""
    evidence = view.raw("edges", "evidence")
    message = "edge {row} is there, its evidence is missing"
    yield from found("ST-EDGE-004", evidence == Evidence.MISSING, message, table="edges", column="evidence")
    if view.any_known("edges", "confidence"):
        wrong = view.known("edges", "confidence") & (evidence != Evidence.INFERRED)
        message = "edge {row} has a confidence and is not inferred"
        yield from found("ST-EDGE-003", wrong, message, table="edges", column="confidence")


@rule("ST-EDGE-005")
def implied_edges_plain(view: TraceView) -> Iterator[Finding]:
    """Data and state edges wait for the finish, without lag."""
    kind = view.raw("edges", "kind")
    implied = (kind == EdgeKind.DATA) | (kind == EdgeKind.STATE)
    wrong = implied & ((view.raw("edges", "trigger") != Trigger.FINISH) | (view.raw("edges", "lag_ns") != 0))
    message = "edge {row} is of kind data or state and does not wait for the finish without lag"
    hint = "what is produced is there when its producer has finished; a delay is external_delay_ns"
    yield from found("ST-EDGE-005", wrong, message, table="edges", hint=hint)


@rule("ST-EDGE-010")
def data_edges(view: TraceView) -> Iterator[Finding]:
    """Data edges are those that repeated outputs and inherited context imply."""
    rows = view.based
    implied = [pair_keys(rows, view.ints("operations", "context_base")[rows])]
    if view.any_known("segments", "source_operation"):
        source = view.ints("segments", "source_operation")
        rows = np.flatnonzero(source != NULL)
        implied.append(pair_keys(view.ints("segments", "operation")[rows], source[rows]))
    view.need("ST-ORD-002", "ST-EDGE-002", "ST-ORD-003")
    reason = "repeats or inherits what operation {source} said"
    yield from _exactly(view, "ST-EDGE-010", EdgeKind.DATA, np.concatenate(implied), reason)


@rule("ST-EDGE-011")
def state_edges(view: TraceView) -> Iterator[Finding]:
    """State edges are those that reads imply."""
    reader = view.raw("state_accesses", "operation")
    writer = view.ints("state_versions", "writer")[view.ints("state_accesses", "state_version")]
    read = view.raw("state_accesses", "mode") == AccessMode.READ
    rows = np.flatnonzero(read & (writer != NULL) & (writer != reader))
    view.need("ST-ORD-002", "ST-EDGE-002", "ST-ORD-003")
    reason = "reads what operation {source} wrote"
    yield from _exactly(view, "ST-EDGE-011", EdgeKind.STATE, pair_keys(reader[rows], writer[rows]), reason)


def _exactly(
    view: TraceView, requirement: str, kind: EdgeKind, implied: NDArray[np.uint64], reason: str
) -> Iterator[Finding]:
    view.need("ST-ORD-008", "ST-EDGE-001", "ST-EDGE-005")
    wanted = np.sort(implied, kind="stable")  # runs that are sorted already are merged
    if len(wanted):
        wanted = wanted[np.append(True, wanted[1:] != wanted[:-1])]
    rows = np.flatnonzero(view.raw("edges", "kind") == kind)
    present = pair_keys(view.raw("edges", "target")[rows], view.raw("edges", "source")[rows])
    if np.array_equal(wanted, present):
        return
    name = kind.name.lower()
    missing = wanted[~is_in(wanted, present)]
    if len(missing):
        target, source = int(missing[0] >> np.uint64(32)), int(missing[0] & _LOW)
        said = reason.format(source=source)
        yield Finding(
            requirement,
            f"operation {target} {said}, and no {name} edge says so",
            table="edges",
            count=len(missing),
            hint=f"add the {name} edge {source} → {target}",
        )
    message = f"edge {{row}} is of kind {name}, and nothing implies it"
    extra = rows[~is_in(present, wanted)]
    yield from found(
        requirement,
        extra,
        message,
        table="edges",
        column="kind",
        hint="a control edge states what is not implied",
    )


EDGE_RULES: Final[tuple[Rule[TraceView], ...]] = (
    edge_evidence,
    implied_edges_plain,
    data_edges,
    state_edges,
)
