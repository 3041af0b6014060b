"""The native executions of several traces as one of all their tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from semtrace.check.values import TIME_LIMIT, is_time
from semtrace.records.columns import NULL
from semtrace.records.execution import Execution
from semtrace.transform.bundle_parts import ContentOf
from semtrace.transform.lineage import Carried
from semtrace.transform.rows import integers, take, with_column
from semtrace.transform.runs import is_native

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from semtrace.records.execution import ExecutionHeader
    from semtrace.transform.bundle_parts import Parts

_NAME = "native"


def merge_runs(
    inputs: Sequence[Parts],
    moved: Sequence[Mapping[str, NDArray[np.int64]]],
    work: str,
    *,
    align: bool,
) -> tuple[dict[str, Execution], dict[str, Carried]]:
    """One native execution, if each trace has exactly one and they were observed in the same way.

    Args:
        inputs: the traces with their executions.
        moved: of each trace the new ids of `tasks` and `operations`.
        work: work digest of the merged trace.
        align: whether all traces begin at one instant.

    Returns:
        The execution by its name, and what became of those of the inputs.
    """
    natives = [
        {name: execution for name, execution in parts.executions.items() if is_native(execution)}
        for parts in inputs
    ]
    runs = [next(iter(found.values())) for found in natives if len(found) == 1]
    if len(runs) < len(inputs):
        problem: str | None = "not every trace has one native execution"
        shifts: list[int] = []
    else:
        problem = _difference([run.header for run in runs])
        shifts, late = _shifts(inputs, runs, align=align)
        problem = problem or late
    made = {} if problem else {_NAME: _joined(runs, moved, shifts, work, align=align)}
    differ = [
        name for name in ("environment", "seeds") if not _same([getattr(run.header, name) for run in runs])
    ]
    carried: dict[str, Carried] = {}
    for at, parts in enumerate(inputs):
        for name, execution in sorted(parts.executions.items()):
            if not is_native(execution):
                outcome = Carried(kept=False, note="a replay of one trace, not of all")
            elif problem:
                outcome = Carried(kept=False, note=problem)
            else:
                left = ", ".join([*execution.header.detail, *differ])
                outcome = Carried(kept=True, note=f"{left} left out: of one trace alone" if left else None)
            carried[f"{at}/{name}"] = outcome
    return made, carried


def _difference(headers: Sequence[ExecutionHeader]) -> str | None:
    """In what the executions were not observed in the same way, None if they were."""
    for name in ("clock", "measured_at", "backend"):
        if any(getattr(header, name) != getattr(headers[0], name) for header in headers):
            return f"the executions differ in {name}"
    return None


def _shifts(
    inputs: Sequence[Parts], runs: Sequence[Execution], *, align: bool
) -> tuple[list[int], str | None]:
    """What is added to the times of each execution, in ns, and why that cannot be said, if it cannot."""
    origins = [run.header.origin_unix_ns for run in runs]
    if align:
        own = [parts.trace["trace"].ints("origin_unix_ns")[0] for parts in inputs]
        after = [
            int(origin - mine) if origin is not None and mine != NULL else 0
            for origin, mine in zip(origins, own, strict=True)
        ]
        shifts = [each - min(after) for each in after]
    else:
        known = [origin for origin in origins if origin is not None]
        if len(known) < len(origins):
            return [], "the origin of an execution's times is not known"
        shifts = [origin - min(known) for origin in known]
    if any(_latest(run) + shift >= TIME_LIMIT for run, shift in zip(runs, shifts, strict=True)):
        return [], "the executions are too far apart for their times to be counted from one origin"
    return shifts, None


def _latest(run: Execution) -> int:
    times = [
        columns.ints(column.name).max(initial=0)
        for columns in (run.instances, run.events)
        for column in columns.spec.columns
        if is_time(column)
    ]
    return int(max(times))


def _joined(
    runs: Sequence[Execution],
    moved: Sequence[Mapping[str, NDArray[np.int64]]],
    shifts: Sequence[int],
    work: str,
    *,
    align: bool,
) -> Execution:
    contents = [sorted(run.content) for run in runs]
    digests = sorted({digest for held in contents for digest in held})
    place = {digest: at for at, digest in enumerate(digests)}
    tables: dict[str, list[pa.Table]] = {"instances": [], "events": []}
    instances = servers = 0
    for run, ids, shift, held in zip(runs, moved, shifts, contents, strict=True):
        follow = {
            **ids,
            "instances": np.append(np.arange(run.instances.rows) + instances, NULL),
            "artifacts": np.array([*(place[digest] for digest in held), NULL], dtype=np.int64),
        }
        for name, parts in tables.items():
            part = take(run[name], None, follow)
            for column in run[name].spec.columns:
                values = run[name].ints(column.name) if is_time(column) or column.name == "server" else None
                add = servers if column.name == "server" else shift
                if values is not None and add:
                    field = part.schema.field(column.name)
                    new = np.where(values == NULL, NULL, values + add)
                    part = with_column(part, column.name, integers(new, field.type))
            parts.append(part)
        instances += run.instances.rows
        servers += int(run.events.ints("server").max(initial=NULL)) + 1  # nothing says that they are the same
    first = runs[0].header
    origins = {run.header.origin_unix_ns for run in runs}
    known = [origin for origin in origins if origin is not None]
    changes: dict[str, Any] = {
        "work_digest": work,
        "detail": [],
        "origin_unix_ns": min(known) if known and (not align or len(origins) == 1) else None,
        "tolerance_ns": max(run.header.tolerance_ns for run in runs),
        "environment": first.environment if _same([run.header.environment for run in runs]) else {},
        "seeds": first.seeds if _same([run.header.seeds for run in runs]) else {},
    }
    header = first.model_copy(update=changes)
    joined = {name: pa.concat_tables(parts) for name, parts in tables.items()}
    return Execution.from_arrow(header, joined, ContentOf([run.content for run in runs], digests))


def _same(values: Sequence[object]) -> bool:
    return all(value == values[0] for value in values)
