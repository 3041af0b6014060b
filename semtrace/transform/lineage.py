"""Lineage: what was done to a trace, from which traces, and the ids that its rows had there (ST-LIN-001 …)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

import semtrace
from semtrace.records.document import NAMESPACED, Digest, Document, Int64, empty_dict, empty_list
from semtrace.store.digests import show, trace_digest, work_digest
from semtrace.store.manifest import Producer

if TYPE_CHECKING:
    from semtrace.records.trace import Trace


class SourceTrace(Document):
    """A trace that a step took.

    Attributes:
        work_digest: its work digest, `blake3:` and 64 hex digits.
        trace_digest: its trace digest.
        tasks, operations: how many it has.
        lineage: the steps before this one; only where a step took several traces, else they stand before it.
    """

    work_digest: Digest
    trace_digest: Digest
    tasks: int = Field(ge=0)
    operations: int = Field(ge=0)
    lineage: list[dict[str, Any]] = Field(default_factory=empty_list)


class Carried(Document):
    """What became of an execution.

    Attributes:
        kept: whether it is in the result.
        note: why not, or what of it is not.
    """

    kept: bool
    note: str | None = None


class Step(Document):
    """One step of a trace's lineage.

    Attributes:
        step: what was done; a step that the standard does not have has a name with a namespace.
        producer: by which program.
        inputs: the traces that it took, in order.
        parameters: how, as JSON values.
        seed: of what was drawn.
        executions: by name, what became of the executions of the inputs; of several inputs, `0/native`, `1/native` …
        notes: what else a reader should know, for people.
    """

    step: (
        Literal["filter", "sample", "merge", "renumber", "redact"]
        | Annotated[str, Field(pattern=f"^{NAMESPACED.pattern}$")]
    )
    producer: Producer
    inputs: list[SourceTrace]
    parameters: dict[str, Any] = Field(default_factory=empty_dict)
    seed: Int64 | None = None
    executions: dict[str, Carried] = Field(default_factory=empty_dict)
    notes: list[str] = Field(default_factory=empty_list)


def producer() -> Producer:
    """This program."""
    return Producer(name="semtrace", version=semtrace.__version__)


def source(trace: Trace, lineage: list[dict[str, Any]] | None = None) -> SourceTrace:
    """A trace as a step's input."""
    return SourceTrace(
        work_digest=show(work_digest(trace)),
        trace_digest=show(trace_digest(trace)),
        tasks=trace.tasks.rows,
        operations=trace.operations.rows,
        lineage=lineage or [],
    )


def id_key(taken: SourceTrace) -> str:
    """The key under which the ids that rows had in a source are kept as annotations (ST-LIN-010)."""
    return f"semtrace.id/{taken.trace_digest.removeprefix('blake3:')[:16]}"
