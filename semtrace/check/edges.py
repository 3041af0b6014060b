"""Edges: their evidence, and that data and state edges are exactly those that the rest of the trace implies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from semtrace.blocks import blocks, rows_where
from semtrace.check.finding import Finding, found
from semtrace.check.rules import Rule, rule
from semtrace.check.view import TraceView, is_in, pair_keys
from semtrace.records.columns import NULL
from semtrace.records.enums import AccessMode, EdgeKind, Evidence, Trigger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_Pairs = tuple["NDArray[Any]", "NDArray[Any]"]
"""Targets and sources."""
_HALF: Final = np.uint64(32)
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
    kind, trigger, lag = (view.raw("edges", name) for name in ("kind", "trigger", "lag_ns"))

    def otherwise(rows: slice) -> NDArray[np.bool_]:
        implied = (kind[rows] == EdgeKind.DATA) | (kind[rows] == EdgeKind.STATE)
        other: NDArray[np.bool_] = implied & ((trigger[rows] != Trigger.FINISH) | (lag[rows] != 0))
        return other

    wrong = rows_where(len(kind), otherwise)
    message = "edge {row} is of kind data or state and does not wait for the finish without lag"
    hint = "what is produced is there when its producer has finished; a delay is external_delay_ns"
    yield from found("ST-EDGE-005", wrong, message, table="edges", hint=hint)


@rule("ST-EDGE-010")
def data_edges(view: TraceView) -> Iterator[Finding]:
    """Data edges are those that repeated outputs and inherited context imply."""
    rows = view.based
    implied: list[_Pairs] = [(rows, view.ints("operations", "context_base").take(rows))]
    if view.any_known("segments", "source_operation"):
        rows = np.flatnonzero(view.known("segments", "source_operation"))
        repeats, said = view.raw("segments", "operation"), view.raw("segments", "source_operation")
        implied.append((repeats.take(rows), said.take(rows)))
    view.need("ST-ORD-002", "ST-EDGE-002", "ST-ORD-003")
    reason = "repeats or inherits what operation {source} said"
    yield from _exactly(view, "ST-EDGE-010", EdgeKind.DATA, implied, reason)


@rule("ST-EDGE-011")
def state_edges(view: TraceView) -> Iterator[Finding]:
    """State edges are those that reads imply."""
    reader = view.raw("state_accesses", "operation")
    writer = view.ints("state_versions", "writer")[view.ints("state_accesses", "state_version")]
    read = view.raw("state_accesses", "mode") == AccessMode.READ
    rows = np.flatnonzero(read & (writer != NULL) & (writer != reader))
    view.need("ST-ORD-002", "ST-EDGE-002", "ST-ORD-003")
    reason = "reads what operation {source} wrote"
    yield from _exactly(view, "ST-EDGE-011", EdgeKind.STATE, [(reader[rows], writer[rows])], reason)


def _exactly(
    view: TraceView, requirement: str, kind: EdgeKind, implied: list[_Pairs], reason: str
) -> Iterator[Finding]:
    """Findings for edges of a kind that are not exactly those implied."""
    view.need("ST-ORD-008", "ST-EDGE-001", "ST-EDGE-005")
    missing, extra = _differences(view, kind, [_by_target(*pairs) for pairs in implied])
    name = kind.name.lower()
    if len(missing):
        target, source = int(missing[0] >> _HALF), int(missing[0] & _LOW)
        said = reason.format(source=source)
        yield Finding(
            requirement,
            f"operation {target} {said}, and no {name} edge says so",
            table="edges",
            count=len(missing),
            hint=f"add the {name} edge {source} → {target}",
        )
    message = f"edge {{row}} is of kind {name}, and nothing implies it"
    yield from found(
        requirement,
        extra,
        message,
        table="edges",
        column="kind",
        hint="a control edge states what is not implied",
    )


def _by_target(target: NDArray[Any], source: NDArray[Any]) -> _Pairs:
    """Pairs with their targets ascending; as they are where the table they come from is in order."""
    if (target[1:] >= target[:-1]).all():
        return target, source
    order = np.argsort(target, kind="stable")
    return target[order], source[order]


def _differences(
    view: TraceView, kind: EdgeKind, implied: list[_Pairs]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The implied edges that are not there, as keys, and the rows of edges of the kind that are not implied."""
    target, source, kinds = (view.raw("edges", name) for name in ("target", "source", "kind"))
    missing, extra = [np.zeros(0, dtype=np.uint64)], [np.zeros(0, dtype=np.int64)]
    for operations in blocks(view.rows("operations")):
        ends = np.array([operations.start, operations.stop], dtype=np.uint32)
        parts = []
        for waits, waited in implied:
            part = slice(*np.searchsorted(waits, ends.astype(waits.dtype)))
            parts.append(pair_keys(waits[part], waited[part]))
        wanted = np.sort(np.concatenate(parts), kind="stable")  # merges what is sorted already
        wanted = wanted[np.append(True, wanted[1:] != wanted[:-1])[: len(wanted)]]
        first, end = np.searchsorted(target, ends)
        rows = np.flatnonzero(kinds[first:end] == kind) + first
        present = pair_keys(target[rows], source[rows])
        if not np.array_equal(wanted, present):
            missing.append(wanted[~is_in(wanted, present)])
            extra.append(rows[~is_in(present, wanted)])
    return np.concatenate(missing), np.concatenate(extra)


EDGE_RULES: Final[tuple[Rule[TraceView], ...]] = (
    edge_evidence,
    implied_edges_plain,
    data_edges,
    state_edges,
)
