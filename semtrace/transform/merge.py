"""Merging traces: tasks one trace after the other, what they share once, times from one origin (ST-LIN-040 …)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from semtrace.check.values import TIME_LIMIT
from semtrace.errors import FormatError, UsageError
from semtrace.records.columns import NULL, Columns
from semtrace.records.enums import ContentLevel
from semtrace.records.trace_tables import TRACE_TABLE
from semtrace.store.digests import show, work_digest
from semtrace.transform.bundle_parts import Parts
from semtrace.transform.lineage import Step, producer, source
from semtrace.transform.merge_info import merge_info
from semtrace.transform.merge_runs import merge_runs
from semtrace.transform.merge_shared import share_artifacts, share_models, share_states
from semtrace.transform.numbering import number_shared
from semtrace.transform.rows import (
    distinct_annotations,
    integers,
    sort_annotations,
    take,
    take_annotations,
    with_column,
)
from semtrace.transform.select import old_ids, with_own_content

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from semtrace.records.trace import Trace
    from semtrace.transform.merge_shared import Shared

_OWNED: Final = ("tasks", "stages", "sessions", "operations", "segments", "edges", "state_accesses")
"""Tables that are appended as they are."""

_TIMES: Final = ("arrival_ns", "deadline_ns")


@dataclass(frozen=True)
class Origin:
    """The time from which the times of a merged trace are counted.

    Attributes:
        unix_ns: in Unix time, None if unknown.
        shifts: what is added to the times of each trace, in ns.
    """

    unix_ns: int | None
    shifts: list[int]


def merge_traces(inputs: Sequence[Parts], *, align: bool = False) -> Parts:
    """One trace of several: the tasks of the first, then those of the second, and so on.

    Args:
        inputs: at least two sound traces with their executions.
        align: let all traces begin at one instant, whatever their origins, instead of shifting their times.

    Raises:
        UsageError: there are fewer than two.
        FormatError: the traces contradict each other: content levels, block sizes, hash scopes or tokenizers differ,
            or an origin is not known where times must be counted from one.
        IntegrityError: an artifact has two sizes.
    """
    if len(inputs) < 2:
        raise UsageError("a merge takes two traces or more", code="merge.inputs")
    origin = common_origin(inputs, align=align)
    header = _header(inputs, origin)
    info, notes = merge_info([parts.info for parts in inputs])
    step = Step(
        step="merge",
        producer=producer(),
        inputs=[source(parts.trace, [dict(each) for each in parts.info.lineage]) for parts in inputs],
        parameters={"align": align},
    )
    traces = [parts.trace for parts in inputs]
    artifacts, availability = share_artifacts(traces, [parts.name for parts in inputs])
    states, versions = share_states(traces, artifacts.moved)
    shared = {
        "models": share_models(traces),
        "artifacts": artifacts,
        "states": states,
        "state_versions": versions,
    }
    moved = _moved(traces, shared)
    tables = {"trace": header}
    for name, spec in TRACE_TABLE.items():
        if name in {"trace", "annotations"}:
            continue
        taken = shared[name].taken if name in shared else [None] * len(traces)
        pieces = [take(trace[name], taken[at], moved[at]) for at, trace in enumerate(traces)]
        if name == "tasks":
            pieces = [_shifted(piece, shift) for piece, shift in zip(pieces, origin.shifts, strict=True)]
        data = pa.concat_tables(pieces)
        if name == "artifacts":
            data = with_column(data, "availability", availability)
        tables[name] = Columns(spec, data)
    tables["annotations"] = Columns(TRACE_TABLE["annotations"], _annotations(traces, moved, step))
    trace = with_own_content(number_shared(tables, inputs[0].trace.content), list(inputs))
    executions, carried = merge_runs(inputs, moved, show(work_digest(trace)), align=align)
    if states.again:
        notes.append(f"{states.again} states are those of an earlier trace")
    step = step.model_copy(update={"executions": carried, "notes": notes})
    merged = Parts(trace, executions, info, " + ".join(parts.name for parts in inputs))
    return Parts(trace, executions, merged.with_step(step), merged.name)


def common_origin(inputs: Sequence[Parts], *, align: bool) -> Origin:
    """The origin of the merged trace's times: the earliest of those that have times.

    Raises:
        FormatError: an origin is not known and matters, or times get too large.
    """
    own = [int(parts.trace["trace"].ints("origin_unix_ns")[0]) for parts in inputs]
    latest = [max(int(parts.trace.tasks.ints(name).max(initial=NULL)) for name in _TIMES) for parts in inputs]
    timed = [at for at, time in enumerate(latest) if time != NULL]
    if align or len(timed) < 2:
        origins = {own[at] for at in timed or range(len(inputs))}
        common = origins.pop() if len(origins) == 1 else NULL
        return Origin(None if common == NULL else common, [0] * len(inputs))
    unknown = [inputs[at].name for at in timed if own[at] == NULL]
    if unknown:
        raise FormatError(
            "the origin of its times is not known: when its tasks arrived beside those of the other traces cannot be said",
            code="merge.origin",
            path=unknown[0],
            requirement="ST-LIN-043",
            hint="--align lets all traces begin at one instant",
        )
    first = min(own[at] for at in timed)
    shifts = [own[at] - first if at in timed else 0 for at in range(len(inputs))]
    for at in timed:
        if latest[at] + shifts[at] >= TIME_LIMIT:
            raise FormatError(
                "its times are too far from those of the other traces to be counted from one origin",
                code="merge.origin",
                path=inputs[at].name,
                requirement="ST-VAL-003",
                hint="--align lets all traces begin at one instant",
            )
    return Origin(first, shifts)


def _header(inputs: Sequence[Parts], origin: Origin) -> Columns:
    """The header row, made of those of all traces."""
    rows: list[dict[str, Any]] = [parts.trace["trace"].row(0) for parts in inputs]
    made = dict(rows[0]) | {"origin_unix_ns": origin.unix_ns}
    for name in ("content_level", "block_size", "hash_scope"):
        for parts, row in zip(inputs, rows, strict=True):
            if row[name] is None or row[name] == made[name]:
                continue
            if made[name] is not None:
                values = [made[name], row[name]]
                if name == "content_level":
                    values = [ContentLevel(value).name.lower() for value in values]
                raise FormatError(
                    f"{name} is {values[1]}, that of the traces before is {values[0]}",
                    code="merge.header",
                    path=parts.name,
                    requirement="ST-LIN-042",
                    hint="redact the more open trace first" if name == "content_level" else None,
                )
            made[name] = row[name]
    return Columns.of(TRACE_TABLE["trace"], {name: [value] for name, value in made.items()})


def _moved(traces: Sequence[Trace], shared: Mapping[str, Shared]) -> list[dict[str, NDArray[np.int64]]]:
    """Of each trace, by table, the new id of each old one."""
    counts = dict.fromkeys(_OWNED, 0)
    moved = []
    for at, trace in enumerate(traces):
        ids = {name: rows.moved[at] for name, rows in shared.items()}
        for name in _OWNED:
            ids[name] = np.append(np.arange(trace[name].rows) + counts[name], NULL)
            counts[name] += trace[name].rows
        moved.append(ids)
    return moved


def _shifted(tasks: pa.Table, shift: int) -> pa.Table:
    """Tasks with their times counted from an earlier origin."""
    if shift:
        for name in _TIMES:
            column = tasks.column(name)
            known = column.is_valid().to_numpy()
            old = column.fill_null(0).to_numpy()
            tasks = with_column(tasks, name, integers(np.where(known, old + shift, NULL), pa.int64()))
    return tasks


def _annotations(
    traces: Sequence[Trace], moved: Sequence[Mapping[str, NDArray[np.int64]]], step: Step
) -> pa.Table:
    pieces = []
    for at, trace in enumerate(traces):
        pieces.append(take_annotations(trace["annotations"], moved[at]))
        for piece, name in zip(
            old_ids(np.arange(trace.tasks.rows), trace, step, at), ("tasks", "operations"), strict=True
        ):
            first = int(moved[at][name][0]) if trace[name].rows else 0
            entity = piece.column("entity").combine_chunks().to_numpy().astype(np.int64)
            pieces.append(with_column(piece, "entity", integers(entity + first, pa.uint32())))
    return distinct_annotations(sort_annotations(pa.concat_tables(pieces)))
