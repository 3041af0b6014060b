"""Executions that follow the trace that they are of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from semtrace.records.columns import NULL
from semtrace.records.execution import Execution
from semtrace.records.execution_tables import EXECUTION_TABLES
from semtrace.transform.bundle_parts import ContentOf
from semtrace.transform.lineage import Carried
from semtrace.transform.rows import integers, places, take, with_column

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

_DETAIL_ORDER: Final = {"step_runs": ("event", "first_step")}
"""Detail tables that are sorted by what moves."""


def is_native(execution: Execution) -> bool:
    """Whether an execution is the recorded run: of each task what happened to it, whatever else was run."""
    header = execution.header
    return header.mode == "native" and header.plan is None and header.scenario is None


def of_tasks(
    executions: Mapping[str, Execution],
    moved: Mapping[str, NDArray[np.int64]],
    work: str,
) -> tuple[dict[str, Execution], dict[str, Carried]]:
    """The native executions of the tasks that are kept; replays of the whole are no replays of a part.

    Args:
        executions: by name.
        moved: the new ids of `tasks` and `operations`.
        work: work digest of the new trace.
    """
    made: dict[str, Execution] = {}
    carried: dict[str, Carried] = {}
    for name, execution in sorted(executions.items()):
        if not is_native(execution):
            carried[name] = Carried(kept=False, note="a replay of the whole, not of a part")
            continue
        made[name] = _of_tasks(execution, moved, work)
        dropped = ", ".join(execution.header.detail)
        note = f"{dropped} left out: a server ran other tasks too" if dropped else None
        carried[name] = Carried(kept=True, note=note)
    return made, carried


def _of_tasks(execution: Execution, moved: Mapping[str, NDArray[np.int64]], work: str) -> Execution:
    instances = np.flatnonzero(moved["tasks"][execution.instances.ints("task")] != NULL)
    new_instance = places(instances, execution.instances.rows)
    events = np.flatnonzero(new_instance[execution.events.ints("instance")] != NULL)
    moved = {**moved, "instances": new_instance}
    made = {
        "instances": take(execution.instances, instances, moved),
        "events": take(execution.events, events, moved),
    }
    made["events"], kept = _output_ids(made["events"], sorted(execution.content))
    header = execution.header.model_copy(update={"work_digest": work, "detail": []})
    return Execution.from_arrow(header, made, ContentOf([execution.content], kept))


def _output_ids(events: pa.Table, digests: list[bytes]) -> tuple[pa.Table, list[bytes]]:
    """Events with ordinals among the output ids that are still used, and the digests of these."""
    column = events.column("output_ids").combine_chunks()
    if column.null_count == len(column):
        return events, []
    old = column.fill_null(0).to_numpy().astype(np.int64)
    old[column.is_null().to_numpy(zero_copy_only=False)] = NULL
    used = np.unique(old[old != NULL])
    new = places(used, len(digests))[old]
    return with_column(events, "output_ids", integers(new, pa.uint32())), [digests[at] for at in used]


def renumbered(
    executions: Mapping[str, Execution], operations: NDArray[np.int64], work: str
) -> tuple[dict[str, Execution], dict[str, Carried]]:
    """Native executions of the same work under new ids, with all their detail.

    Args:
        executions: by name.
        operations: the new id of each operation.
        work: work digest of the new trace.
    """
    made: dict[str, Execution] = {}
    carried: dict[str, Carried] = {}
    for name, execution in sorted(executions.items()):
        if not is_native(execution):
            carried[name] = Carried(kept=False, note="its plan and its scenario speak of the old ids")
            continue
        events = execution.events
        new = operations[events.ints("operation")]
        order = np.lexsort([new, events.ints("instance")])
        moved = {"operations": operations, "events": places(order, events.rows)}
        tables = {
            spec.name: take(execution[spec.name], order if spec.name == "events" else None, moved)
            for spec in EXECUTION_TABLES
        }
        for table, keys in _DETAIL_ORDER.items():
            columns = [tables[table].column(key).combine_chunks().to_numpy() for key in reversed(keys)]
            tables[table] = tables[table].take(pa.array(np.lexsort(columns)))
        header = execution.header.model_copy(update={"work_digest": work})
        made[name] = Execution.from_arrow(header, tables, execution.content)
        carried[name] = Carried(kept=True)
    return made, carried
