"""What lines of a Mooncake trace cannot say of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from semtrace.records.columns import NULL
from semtrace.records.enums import EdgeKind, OperationKind, Outcome, Trigger
from semtrace.records.media import BLOCK_IDS_TYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semtrace.records.trace import Trace
    from semtrace_adapters.base import LossReport


def report_losses(
    trace: Trace, rows: NDArray[np.int64], has_text: NDArray[np.bool_], loss: LossReport
) -> None:
    """Report what the lines do not say.

    Args:
        trace: the trace.
        rows: the operation of each line.
        has_text: which lines have the text of their input.
        loss: the report.
    """
    operations = trace.operations
    has_line = np.zeros(operations.rows, dtype=np.bool_)
    has_line[rows] = True
    kind = operations.ints("kind")
    calls = (kind == OperationKind.LLM) & ~has_line & (operations.ints("prompt_tokens") != NULL)
    _edges(trace, rows, loss)
    others = int((kind != OperationKind.LLM).sum())
    content = sum(media != BLOCK_IDS_TYPE for media in trace["artifacts"].strings("media_type"))
    agents = int(trace["sessions"].known("agent").sum())
    counts: list[tuple[str, str, int]] = [
        ("operations.failed", "a model call that failed: it has no line", int(calls.sum())),
        (
            "operations.lost",
            "a tool, an embedding, a transformation or a person's turn, and its time",
            others,
        ),
        ("stages.lost", "a stage", trace["stages"].rows),
        ("sessions.lost", "the agent of a session", agents),
        ("models.lost", "a model", trace["models"].rows),
        ("states.lost", "a state, its versions and who reads and writes them", trace["states"].rows),
        ("content.lost", "a text, token ids, or settings", content - int(has_text.sum())),
        ("annotations.lost", "an annotation", trace["annotations"].rows),
        ("origin.lost", "the time of the origin", int(trace["trace"].known("origin_unix_ns").sum())),
        (
            "outcomes.lost",
            "the outcome of a task",
            int((trace.tasks.ints("outcome") != Outcome.UNKNOWN).sum()),
        ),
    ]
    of_tasks = ("deadline_ns", "priority", "tenant", "binding", "workload", "answer_operation", "score_ppm")
    counts += [("tasks.lost", f"{name} of a task", int(trace.tasks.known(name).sum())) for name in of_tasks]
    counts += [
        ("operations.detail", f"{name} of a model call", int(operations.known(name)[rows].sum()))
        for name in ("reasoning_tokens", "finish_reason")
    ]
    for code, message, count in counts:
        if count > 0:
            loss.add(code, "lost", message, count=count)


def _edges(trace: Trace, rows: NDArray[np.int64], loss: LossReport) -> None:
    """Report edges that are not from the line before, and lines that wait for the one before for no reason."""
    edges = trace.edges
    line = np.full(trace.operations.rows, NULL, dtype=np.int64)
    line[rows] = np.arange(len(rows))
    source, target = line[edges.ints("source")], line[edges.ints("target")]
    from_before = (source != NULL) & (source + 1 == target)
    ends = (edges.ints("trigger") == Trigger.FINISH) & (edges.ints("lag_ns") == 0)
    said = from_before & ends
    if not said.all():
        loss.add(
            "edges.lost",
            "lost",
            "an edge that is not from the end of the line before",
            count=int((~said).sum()),
        )
    states = int((said & (edges.ints("kind") == EdgeKind.STATE)).sum())
    if states:
        loss.add("edges.kind", "lost", "that an edge is of a state", count=states)
    task = trace.operations.ints("task")[rows]
    waits = np.zeros(len(rows), dtype=np.bool_)
    waits[target[said]] = True
    idle = np.zeros(len(rows), dtype=np.bool_)
    idle[1:] = (task[1:] == task[:-1]) & ~waits[1:]
    if idle.any():
        loss.add(
            "edges.added",
            "estimated",
            "a line that waits for the one before in its task, for which nothing in the trace says so",
            count=int(idle.sum()),
        )
