"""Keeping some of the tasks of a trace: what `filter` and `sample` do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from semtrace.records.columns import NULL, Columns
from semtrace.records.enums import EntityKind
from semtrace.records.trace_tables import TRACE_TABLE
from semtrace.store.digests import show, work_digest
from semtrace.transform.bundle_parts import ContentOf, Parts
from semtrace.transform.lineage import Carried, Step, id_key
from semtrace.transform.numbering import number_shared
from semtrace.transform.rows import annotation_rows, places, sort_annotations, take, take_annotations
from semtrace.transform.runs import of_tasks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semtrace.records.trace import Trace


def keep_tasks(parts: Parts, kept: NDArray[np.bool_], step: Step) -> Parts:
    """The tasks that are kept, whole, in their order, with all that they need.

    A state stays if a kept task accesses it, or if no task at all does. Of a state that stays, versions that a task
    that is left out wrote go, unless a version that stays is built upon them: these become initial versions.

    Args:
        parts: a sound trace with its executions.
        kept: which tasks are kept.
        step: the lineage of the result, without executions and notes.

    Returns:
        The result; equal to what came in, lineage apart, if all tasks are kept.
    """
    if kept.all():
        carried = {name: Carried(kept=True) for name in sorted(parts.executions)}
        step = step.model_copy(update={"executions": carried})
        return Parts(parts.trace, parts.executions, parts.with_step(step), parts.name)
    orders = _orders(parts.trace, kept)
    versions, adopted = _versions(parts.trace, kept)
    orders["states"] = np.unique(parts.trace["state_versions"].ints("state")[versions])
    orders["state_versions"] = versions
    moved = {name: places(order, parts.trace[name].rows) for name, order in orders.items()}
    tables = {
        name: take(columns, orders.get(name), moved, severed=("writer",))
        for name, columns in parts.trace.tables.items()
        if name != "annotations"
    }
    told = pa.concat_tables(
        [take_annotations(parts.trace["annotations"], moved), *old_ids(orders["tasks"], parts.trace, step)]
    )
    tables["annotations"] = sort_annotations(told)
    made = {name: Columns(spec, tables[name]) for name, spec in TRACE_TABLE.items()}
    trace = with_own_content(number_shared(made, parts.trace.content), [parts])
    executions, carried = of_tasks(parts.executions, moved, show(work_digest(trace)))
    notes = list(step.notes)
    if parts.info.loss:
        notes.append("the loss report is that of the whole, of which tasks are left out now")
    if adopted:
        notes.append(f"{adopted} state versions written by tasks that are left out became initial versions")
    step = step.model_copy(update={"executions": carried, "notes": notes})
    return Parts(trace, executions, parts.with_step(step), parts.name)


def with_own_content(trace: Trace, sources: list[Parts]) -> Trace:
    """The trace with the content of its own artifacts only."""
    held = [source.trace.content for source in sources]
    digests = set(trace["artifacts"].digests())
    here = [
        digest for digest in dict.fromkeys(each for content in held for each in content) if digest in digests
    ]
    return type(trace)(trace.tables, ContentOf(held, here))


def old_ids(tasks: NDArray[np.int64], trace: Trace, step: Step, at: int = 0) -> list[pa.Table]:
    """Annotations that say where kept tasks come from: of each task and of its first operation the old id.

    Args:
        tasks: the old ids of the tasks kept, in order.
        trace: the trace that they are of.
        step: the step that keeps them.
        at: which of the step's inputs the trace is.
    """
    key = id_key(step.inputs[at])
    starts = trace.offsets("operations")
    counts = np.diff(starts)[tasks]
    first = np.cumsum(counts) - counts
    some = np.flatnonzero(counts)
    return [
        annotation_rows(EntityKind.TASK, np.arange(len(tasks)), key, pa.array(tasks).cast(pa.string())),
        annotation_rows(
            EntityKind.OPERATION, first[some], key, pa.array(starts[tasks][some]).cast(pa.string())
        ),
    ]


def _orders(trace: Trace, kept: NDArray[np.bool_]) -> dict[str, NDArray[np.int64]]:
    """The rows of the kept tasks, of every table that tasks own."""
    orders = {"tasks": np.flatnonzero(kept)}
    for name in ("stages", "sessions", "operations"):
        orders[name] = np.flatnonzero(kept[trace[name].ints("task")])
    operation = kept[trace.operations.ints("task")]
    for name, owner in (("segments", "operation"), ("edges", "target"), ("state_accesses", "operation")):
        orders[name] = np.flatnonzero(operation[trace[name].ints(owner)])
    return orders


def _versions(trace: Trace, kept: NDArray[np.bool_]) -> tuple[NDArray[np.int64], int]:
    """The state versions that stay, and how many of them were written by a task that does not."""
    versions, accesses = trace["state_versions"], trace["state_accesses"]
    state, writer, base = (versions.ints(name) for name in ("state", "writer", "base"))
    task = trace.operations.ints("task")
    accessed = accesses.ints("state_version")
    by_kept = kept[task[accesses.ints("operation")]]
    stays = np.ones(trace["states"].rows, dtype=np.bool_)
    stays[state[accessed]] = False
    stays[state[accessed[by_kept]]] = True
    written = writer != NULL
    foreign = written & ~np.append(kept[task], False)[writer]
    keep = stays[state] & ~foreign
    for row in np.flatnonzero(keep & (base != NULL))[::-1].tolist():
        at = base[row]
        while at != NULL and not keep[at]:
            keep[at] = True
            at = base[at]
    return np.flatnonzero(keep), int((keep & foreign).sum())
