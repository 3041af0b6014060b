"""A trace as a tree and an execution as a timeline, in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from semtrace.records.columns import NULL
from semtrace.records.enums import (
    EdgeKind,
    EventOutcome,
    OperationKind,
    OperationStatus,
    StageTemplate,
    Trigger,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from semtrace.records.execution import Execution
    from semtrace.records.trace import Trace

_KIND_COLOUR: Final = {
    OperationKind.LLM: "cyan",
    OperationKind.EMBED: "blue",
    OperationKind.TOOL: "yellow",
    OperationKind.TRANSFORM: "magenta",
    OperationKind.HUMAN: "green",
}


_MOST_ASKED: Final = 80
"""Bytes of what was asked that are shown."""


def trace_tree(trace: Trace, *, tasks: int, operations: int) -> list[RenderableType]:
    """The tasks of a trace with their stages and operations.

    Args:
        trace: a valid trace.
        tasks: how many tasks to show.
        operations: how many operations of each.
    """
    names = trace.tasks.strings("name")
    shown = range(min(trace.tasks.rows, tasks))
    parts: list[RenderableType] = [_task_tree(trace, task, names[task] or "", operations) for task in shown]
    if trace.tasks.rows > tasks:
        parts.append(f"… {trace.tasks.rows - tasks} more tasks (--tasks N shows more)")
    return parts


def _task_tree(trace: Trace, task: int, name: str, limit: int) -> Tree:
    rows = trace.task_rows("operations", task)
    tree = Tree(f"[bold]task {task}[/bold] {escape(name)}  ({len(rows)} operations){_asked(trace, task)}")
    stages = trace["stages"]
    branches: dict[int, Tree] = {NULL: tree}
    for stage in trace.task_rows("stages", task):
        template = StageTemplate(int(stages.ints("template")[stage])).name.lower()
        template = escape(stages.strings("template_extension")[stage] or template)
        iteration = int(stages.ints("iteration")[stage])
        repeat = f" #{iteration}" if iteration else ""
        label = f"[bold]stage {stage}[/bold] {escape(stages.strings('name')[stage] or '')}{repeat} [dim]{template}[/dim]"
        branches[stage] = branches[int(stages.ints("parent")[stage])].add(label)
    stage_of = trace.operations.ints("stage")
    for operation in rows[:limit]:
        branches[int(stage_of[operation])].add(describe_operation(trace, operation))
    if len(rows) > limit:
        tree.add(f"… {len(rows) - limit} more operations (--operations N shows more)")
    return tree


def _asked(trace: Trace, task: int) -> str:
    """The first line of what was asked, where the trace holds it as text; with markup."""
    row = int(trace.tasks.ints("input")[task])
    if row == NULL or not str(trace["artifacts"].array("media_type")[row]).startswith("text/"):
        return ""
    content = trace.content.get(trace["artifacts"].array("digest")[row].as_py()) or b""
    line = content[:_MOST_ASKED].decode("utf-8", "replace").strip().partition("\n")[0]
    return f"  [dim]{escape(line)}[/dim]" if line else ""


def describe_operation(trace: Trace, operation: int) -> str:
    """One line on an operation: id, kind, name, tokens or time, and what it waits for; with markup."""
    row = trace.operations.row(operation)
    kind = OperationKind(int(str(row["kind"])))
    parts = [
        f"[dim]{operation}[/dim] [{_KIND_COLOUR[kind]}]{kind.name.lower()}[/] {escape(str(row['name']))}"
    ]
    if kind in {OperationKind.LLM, OperationKind.EMBED}:
        prompt, output = row["prompt_tokens"], row["output_tokens"]
        parts.append(f"{'?' if prompt is None else prompt}→{'?' if output is None else output} tokens")
    elif row["duration_ns"] is not None:
        parts.append(f"{int(str(row['duration_ns'])) / 1e6:,.1f} ms")
    else:
        parts.append("? ms")
    if row["status"] != OperationStatus.OK:
        parts.append(f"[red]{OperationStatus(int(str(row['status']))).name.lower()}[/red]")
    waits = _waits_for(trace, operation)
    if waits:
        parts.append(f"[dim]after {waits}[/dim]")
    return "  ".join(parts)


def _waits_for(trace: Trace, operation: int) -> str:
    edges = trace.edges
    by_source: dict[int, set[str]] = {}
    for edge in range(int(trace.edge_offsets[operation]), int(trace.edge_offsets[operation + 1])):
        kind = EdgeKind(int(edges.ints("kind")[edge])).name.lower()
        trigger = Trigger(int(edges.ints("trigger")[edge]))
        note = kind if trigger is Trigger.FINISH else f"{kind}, {trigger.name.lower().replace('_', ' ')}"
        by_source.setdefault(int(edges.ints("source")[edge]), set()).add(note)
    return ", ".join(f"{source} ({'+'.join(sorted(kinds))})" for source, kinds in by_source.items())


def timeline(
    execution: Execution, trace: Trace | None, *, instances: int, operations: int, width: int = 48
) -> list[RenderableType]:
    """Instances of an execution as bars over time: `·` released and not yet scheduled, `█` running.

    Args:
        execution: the execution.
        trace: its trace, for the names of operations.
        instances: how many instances to show.
        operations: how many operations of each.
        width: characters for the whole time of an instance.
    """
    events = execution.events
    instance_of = events.ints("instance")
    parts: list[RenderableType] = []
    for instance in range(min(execution.instances.rows, instances)):
        rows = [int(row) for row in (instance_of == instance).nonzero()[0]]
        parts.append(_instance_table(execution, trace, instance, rows, operations, width))
    parts.append(
        "[dim]·[/dim] ready and not yet running   [dim]█[/dim] running   "
        "times since the instance's arrival; start: submitted"
    )
    if execution.instances.rows > instances:
        parts.append(f"… {execution.instances.rows - instances} more instances (--tasks N shows more)")
    return parts


def _instance_table(
    execution: Execution, trace: Trace | None, instance: int, rows: Sequence[int], limit: int, width: int
) -> Table:
    events = execution.events
    times = {name: events.ints(name) for name in ("ready_ns", "submitted_ns", "scheduled_ns", "finished_ns")}
    arrival = int(execution.instances.ints("arrival_ns")[instance])
    known = [int(column[row]) for column in times.values() for row in rows if column[row] != NULL]
    begin = arrival if arrival != NULL else min(known, default=0)
    span = max(max(known, default=begin) - begin, 1)
    task, copy = (int(execution.instances.ints(name)[instance]) for name in ("task", "instance"))
    title = f"task {task}, instance {copy}: {span / 1e6:,.1f} ms"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("operation", overflow="fold")
    table.add_column("start ms", justify="right", no_wrap=True)
    table.add_column("end ms", justify="right", no_wrap=True)
    table.add_column(" " * width, no_wrap=True, overflow="crop")
    for row in rows[:limit]:
        operation = int(events.ints("operation")[row])
        started, finished = int(times["submitted_ns"][row]), int(times["finished_ns"][row])
        name = f"{operation} {escape(trace.operations.row(operation)['name'])}" if trace else str(operation)  # type: ignore[arg-type]  # a string column
        outcome = EventOutcome(int(events.ints("outcome")[row]))
        mark = "" if outcome is EventOutcome.OK else f" [red]{outcome.name.lower()}[/red]"
        if NULL in (started, finished):
            table.add_row(
                name + mark,
                *("?" if at == NULL else f"{(at - begin) / 1e6:,.1f}" for at in (started, finished)),
                "",
            )
            continue
        scheduled = int(times["scheduled_ns"][row])
        ready = int(times["ready_ns"][row])
        cells = [
            min(max(int((at - begin) * width / span), 0), width)
            for at in (
                started if ready == NULL else ready,
                started if scheduled == NULL else scheduled,
                finished,
            )
        ]
        waiting, running = cells[1] - cells[0], max(cells[2] - cells[1], 1)
        bar = " " * cells[0] + "·" * waiting + "█" * running
        table.add_row(name + mark, f"{(started - begin) / 1e6:,.1f}", f"{(finished - begin) / 1e6:,.1f}", bar)
    if len(rows) > limit:
        table.caption = f"… {len(rows) - limit} more operations (--operations N shows more)"
    return table
