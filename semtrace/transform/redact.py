"""Redacting: a trace without its texts, or without any content, that still gives the same schedule (ST-LIN-060 …)."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3

from semtrace.errors import UsageError
from semtrace.records.columns import NULL, Columns
from semtrace.records.enums import Availability, ContentLevel
from semtrace.records.execution import Execution
from semtrace.records.media import content_level
from semtrace.records.trace import Trace
from semtrace.store.digests import show, work_digest
from semtrace.transform.bundle_parts import ContentOf, Parts
from semtrace.transform.lineage import Carried, SourceTrace, Step, producer, source
from semtrace.transform.rows import sort_annotations, with_column
from semtrace.transform.runs import is_native

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

_KEPT_ANNOTATIONS: Final = "semtrace.id/"
_BLAKE3: Final = "blake3:"


def redact(parts: Parts, level: ContentLevel, *, annotations: bool = True, task_names: bool = False) -> Parts:
    """The trace at a less open content level: content above it is withheld, under keyed digests.

    The key is made for this result and thrown away: equal content keeps equal digests in it, and nobody can find a
    short text by its digest, nor by those of the traces and files that it was in. Counts, sizes, order, names other than those
    of tasks, and generation settings stay.

    Args:
        parts: a sound trace with its executions.
        level: the new content level.
        annotations: whether to keep annotations, which may hold what the source's log said; ids of earlier traces
            are kept in any case.
        task_names: whether to keep names of tasks, which some programs take from what a user asked.

    Raises:
        UsageError: the trace is not more open than the level.
    """
    trace = parts.trace
    now = ContentLevel(int(trace["trace"].ints("content_level")[0]))
    if level <= now:
        raise UsageError(
            f"its content level is {now.name.lower()}, which is not more open than {level.name.lower()}",
            code="redact.level",
            path=parts.name,
        )
    withheld = _above(trace, level)
    tables = dict(trace.tables)
    key = Key()
    tables["artifacts"] = _withhold(trace["artifacts"], withheld, key)
    header = with_column(trace["trace"].data, "content_level", pa.array([int(level)], pa.uint8()))
    tables["trace"] = Columns(trace["trace"].spec, header)
    notes = []
    if not task_names:
        tables["tasks"], changed = _neutral_names(trace.tasks)
        notes.append(f"{changed} tasks have neutral names")
    of = "all names" if task_names else "other names"
    notes.append(f"{of}, sizes and generation settings are as they were: look at them before you share")
    if annotations:
        said = sum(
            not key.startswith(_KEPT_ANNOTATIONS) for key in trace["annotations"].strings("key") if key
        )
        if said:
            notes.append(f"{said} annotations stay as they were, which may say what the source's log said")
    else:
        kept = pc.starts_with(trace["annotations"].array("key"), _KEPT_ANNOTATIONS)
        tables["annotations"] = Columns(trace["annotations"].spec, trace["annotations"].data.filter(kept))
        notes.append(f"{trace['annotations'].rows - tables['annotations'].rows} annotations are left out")
    tables["annotations"] = _keyed_ids(tables["annotations"], key, _trace_digests(parts.info.lineage))
    held = tables["artifacts"].ints("availability") == Availability.EMBEDDED
    digests = tables["artifacts"].digests()
    own = [digests[row] for row in np.flatnonzero(held).tolist()]
    made = Trace(tables, ContentOf([trace.content], own))
    work = show(work_digest(made))
    executions: dict[str, Execution] = {}
    carried: dict[str, Carried] = {}
    for name, execution in sorted(parts.executions.items()):
        if is_native(execution):
            executions[name], carried[name] = _redacted(execution, level, work)
        else:
            carried[name] = Carried(kept=False, note="its plan names the work by its digest before")
    step = Step(
        step="redact",
        producer=producer(),
        inputs=[SourceTrace.model_validate(_keyed_input(source(trace).as_json(), key))],
        parameters={"level": level.name.lower(), "annotations": annotations, "task_names": task_names},
        executions=carried,
        notes=notes,
    )
    info = replace(
        parts.info,
        sources=[each.model_copy(update={"digest": key.shown(each.digest)}) for each in parts.info.sources],
        lineage=[*(_keyed_step(each, key) for each in parts.info.lineage), step.as_json()],
    )
    return Parts(made, executions, info, parts.name)


class Key:
    """32 random bytes that digests are keyed with (ST-LIN-061), never written anywhere."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def of(self, digest: bytes) -> bytes:
        """The digest that stands for a digest."""
        return blake3(digest, key=self._key).digest()

    def shown(self, digest: str) -> str:
        """The same of one as documents have it."""
        return show(self.of(bytes.fromhex(digest.removeprefix(_BLAKE3))))

    def short(self, digits: str, known: Mapping[str, str]) -> str:
        """What stands for the first 16 hex digits of a trace digest: the first of the one that stands for it, if it is known."""
        if digits in known:
            return self.shown(known[digits]).removeprefix(_BLAKE3)[:16]
        return self.of(digits.encode()).hex()[:16]


def _keyed_step(step: Mapping[str, Any], key: Key) -> dict[str, Any]:
    return {**step, "inputs": [_keyed_input(each, key) for each in step["inputs"]]}


def _keyed_input(taken: Mapping[str, Any], key: Key) -> dict[str, Any]:
    """An input of a step under keyed digests, and the steps before it (ST-LIN-063)."""
    made = {**taken, **{name: key.shown(taken[name]) for name in ("work_digest", "trace_digest")}}
    if taken.get("lineage"):
        made["lineage"] = [_keyed_step(each, key) for each in taken["lineage"]]
    return made


def _trace_digests(lineage: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The trace digests of a lineage, by their first 16 hex digits."""
    found = {}
    for step in lineage:
        for taken in step["inputs"]:
            found[taken["trace_digest"].removeprefix(_BLAKE3)[:16]] = taken["trace_digest"]
            found |= _trace_digests(taken.get("lineage", ()))
    return found


def _keyed_ids(annotations: Columns, key: Key, known: Mapping[str, str]) -> Columns:
    """Annotations, old ids (ST-LIN-010) under the digests that the lineage has now."""
    encoded = annotations.array("key").dictionary_encode()
    keys = [
        _KEPT_ANNOTATIONS + key.short(name.removeprefix(_KEPT_ANNOTATIONS), known)
        if name.startswith(_KEPT_ANNOTATIONS)
        else name
        for name in encoded.dictionary.to_pylist()
    ]
    after = pc.take(pa.array(keys, pa.string()), encoded.indices)
    return Columns(annotations.spec, sort_annotations(with_column(annotations.data, "key", after)))


def _neutral_names(tasks: Columns) -> tuple[Columns, int]:
    """Tasks whose names say nothing but which of them are equal (ST-LIN-060), and how many changed."""
    before = tasks.strings("name")
    ordinals = {name: at for at, name in enumerate(dict.fromkeys(before))}
    after = [f"task-{ordinals[name]}" for name in before]
    changed = sum(old != new for old, new in zip(before, after, strict=True))
    return Columns(tasks.spec, with_column(tasks.data, "name", pa.array(after, pa.string()))), changed


def _above(trace: Trace, level: ContentLevel) -> NDArray[np.bool_]:
    """The artifacts that the level does not let out, and those that are withheld already."""
    encoded = trace["artifacts"].array("media_type").dictionary_encode()
    needs = np.array([content_level(media) for media in encoded.dictionary.to_pylist()], dtype=np.int64)
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    above: NDArray[np.bool_] = needs[codes] < level
    settings = trace.operations.ints("settings")
    above[settings[settings != NULL]] = False
    above |= trace["artifacts"].ints("availability") == Availability.WITHHELD
    return above


def _withhold(artifacts: Columns, rows: NDArray[np.bool_], key: Key) -> Columns:
    digests = artifacts.digests()
    for row in np.flatnonzero(rows).tolist():
        digests[row] = key.of(digests[row])
    availability = np.where(rows, int(Availability.WITHHELD), artifacts.raw("availability")).astype(np.uint8)
    data = with_column(artifacts.data, "digest", pa.array(digests, pa.binary(32)))
    return Columns(artifacts.spec, with_column(data, "availability", pa.array(availability)))


def _redacted(execution: Execution, level: ContentLevel, work: str) -> tuple[Execution, Carried]:
    """A native execution beside the redacted trace; its output ids go where token ids do."""
    header = execution.header.model_copy(update={"work_digest": work})
    if level <= ContentLevel.TOKEN_IDS:
        return Execution(header, execution.tables, execution.content), Carried(kept=True)
    events = execution.events
    data = with_column(events.data, "output_ids", pa.nulls(events.rows, pa.uint32()))
    note = "output ids are left out" if any(True for _ in execution.content) else None
    tables = {**execution.tables, "events": Columns(events.spec, data)}
    return Execution(header, tables), Carried(kept=True, note=note)
