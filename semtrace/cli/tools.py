"""Commands that make traces of traces, `filter`, `sample`, `merge`, `renumber`, `redact`; and `diff`."""

import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semtrace.cli.common import (
    ForceOption,
    JsonOption,
    TraceArgument,
    command,
    emit,
    milliseconds,
    open_execution,
    open_trace,
)
from semtrace.cli.numbers import LARGEST
from semtrace.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from semtrace.records.execution import Execution
    from semtrace.transform.bundle_parts import Parts

OutputOption = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The bundle to write.")]
DirectoryOption = Annotated[
    bool, typer.Option("--directory", help="Write the bundle as a directory instead of one file.")
]


class Stratum(StrEnum):
    """What a sample can be stratified by."""

    workload = "workload"
    name = "name"
    binding = "binding"
    tenant = "tenant"
    outcome = "outcome"


class Level(StrEnum):
    """Content levels that a trace can be redacted to."""

    token_ids = "token_ids"  # noqa: S105  # the tokens of a model
    block_hashes = "block_hashes"
    shape = "shape"


def _read(path: Path) -> "Parts":
    """All that is in a bundle, after a check of its tables."""
    from semtrace.transform.bundle_parts import Parts, sound

    return sound(Parts.of(open_trace(path, checked=False)))


def _check_output(output: Path, inputs: "Sequence[Path]", *, force: bool) -> None:
    """Refuse an output path before the work for it is done."""
    from semtrace.store.container import check_output

    check_output(output, overwrite=force, inputs=inputs)


def _write(
    parts: "Parts", output: Path, *, directory: bool, force: bool, as_json: bool, note: str = ""
) -> None:
    """Write the result, all of it or nothing, and say what it is."""
    from semtrace.store.bundle import write_bundle

    manifest = write_bundle(
        output, parts.trace, parts.executions, info=parts.info, directory=directory, overwrite=force
    )
    stored = manifest.trace
    step = dict(parts.info.lineage[-1]) if parts.info.lineage else None
    value: dict[str, Any] = {
        "output": str(output),
        "tasks": parts.trace.tasks.rows,
        "operations": parts.trace.operations.rows,
        "work_digest": stored.work_digest if stored else None,
        "trace_digest": stored.trace_digest if stored else None,
        "executions": sorted(parts.executions),
        "step": step,
    }

    def text() -> "list[RenderableType]":
        from rich.markup import escape

        lines = [f"{value['tasks']:,} tasks, {value['operations']:,} operations, {value['trace_digest']}"]
        if note:
            lines.append(note)
        else:
            lines.extend(_step_lines(step or {}))
        return [escape(line) for line in [*lines, f"written to {output}"]]

    emit(value, as_json=as_json, text=text)


def _step_lines(step: dict[str, Any]) -> list[str]:
    """What became of executions, and the notes of a step."""
    lines = []
    for name, carried in step.get("executions", {}).items():
        note = f": {carried['note']}" if carried.get("note") else ""
        if note or not carried["kept"]:
            lines.append(f"  execution {name} {'kept' if carried['kept'] else 'left out'}{note}")
    return [*lines, *(f"  {note}" for note in step.get("notes", []))]


@command
def filter_command(
    trace: TraceArgument,
    where: Annotated[
        list[str],
        typer.Option(
            "--where",
            "-w",
            metavar="CONDITION",
            help="FIELD=VALUE, !=, <, <=, >, >=, ~PATTERN, !~PATTERN, or 'FIELD is known'. FIELD is a column of tasks, "
            "task, operations, stages, sessions, or some.COLUMN of operations. Several are all to be met.",
        ),
    ],
    output: OutputOption,
    directory: DirectoryOption = False,
    force: ForceOption = False,
    json_output: JsonOption = False,
) -> None:
    """Keep the tasks that meet conditions, whole, in their order."""
    from semtrace.transform.filter import filter_tasks
    from semtrace.transform.predicates import Condition

    for text in where:
        Condition.parse(text)
    _check_output(output, [trace], force=force)
    parts = filter_tasks(_read(trace), where)
    _write(parts, output, directory=directory, force=force, as_json=json_output)


@command
def sample(
    trace: TraceArgument,
    count: Annotated[
        int, typer.Option("--tasks", "-n", min=1, max=LARGEST, metavar="N", help="How many tasks.")
    ],
    output: OutputOption,
    seed: Annotated[int, typer.Option("--seed", help="Decides which tasks; the same on every machine.")] = 0,
    by: Annotated[
        Stratum | None, typer.Option("--by", help="Keep the shares of the values of this column of tasks.")
    ] = None,
    directory: DirectoryOption = False,
    force: ForceOption = False,
    json_output: JsonOption = False,
) -> None:
    """Draw tasks without replacement, whole, in their order; a larger sample of a seed holds a smaller one."""
    from semtrace.transform.sample import sample_tasks

    _check_output(output, [trace], force=force)
    parts = sample_tasks(_read(trace), count, seed, by=by.value if by else None)
    _write(parts, output, directory=directory, force=force, as_json=json_output)


@command
def merge(
    traces: Annotated[
        list[Path], typer.Argument(metavar="TRACE...", help="Bundles that hold a trace, two or more.")
    ],
    output: OutputOption,
    align: Annotated[
        bool,
        typer.Option(
            "--align", help="Let all traces begin at one instant instead of shifting times by their origins."
        ),
    ] = False,
    directory: DirectoryOption = False,
    force: ForceOption = False,
    json_output: JsonOption = False,
) -> None:
    """Make one trace of several: the tasks of the first, then of the second, and so on."""
    from semtrace.transform.merge import merge_traces

    if len(traces) < 2:
        raise UsageError("a merge takes two traces or more", code="merge.inputs")
    _check_output(output, traces, force=force)
    parts = merge_traces([_read(path) for path in traces], align=align)
    _write(parts, output, directory=directory, force=force, as_json=json_output)


@command
def renumber(
    trace: TraceArgument,
    output: OutputOption,
    by_start: Annotated[
        bool,
        typer.Option(
            "--by-start",
            help="Take operations that nothing orders by their start in the native execution, not by their rows.",
        ),
    ] = False,
    directory: DirectoryOption = False,
    force: ForceOption = False,
    json_output: JsonOption = False,
) -> None:
    """Bring the rows of a trace into canonical order; ids that change are kept as annotations."""
    from semtrace.transform.bundle_parts import Parts
    from semtrace.transform.renumber import renumber as run

    _check_output(output, [trace], force=force)
    parts, changed = run(Parts.of(open_trace(trace, checked=False)), by_start=by_start)
    note = "" if changed else "in canonical order already: nothing moved"
    _write(parts, output, directory=directory, force=force, as_json=json_output, note=note)


@command
def redact(
    trace: TraceArgument,
    level: Annotated[Level, typer.Option("--level", help="What content may stay.")],
    output: OutputOption,
    drop_annotations: Annotated[
        bool, typer.Option("--drop-annotations", help="Leave out what adapters noted of the source's log.")
    ] = False,
    keep_task_names: Annotated[
        bool,
        typer.Option(
            "--keep-task-names",
            help="Leave names of tasks as they are. Some programs take them from what a user asked.",
        ),
    ] = False,
    directory: DirectoryOption = False,
    force: ForceOption = False,
    json_output: JsonOption = False,
) -> None:
    """Withhold content above a content level; the trace still gives the same schedule.

    Tasks get neutral names; other names stay.
    """
    from semtrace.records.enums import ContentLevel
    from semtrace.transform.redact import redact as run

    _check_output(output, [trace], force=force)
    parts = run(
        _read(trace),
        ContentLevel[level.name.upper()],
        annotations=not drop_annotations,
        task_names=keep_task_names,
    )
    _write(parts, output, directory=directory, force=force, as_json=json_output)


_NAMED, _NAMED_AS_JSON = 5, 20
"""Differences that are named if nobody says how many."""


@command
def diff(
    first: Annotated[str, typer.Argument(metavar="A", help="A bundle, or an execution in one: PATH#NAME.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another of the same kind.")],
    work: Annotated[
        bool, typer.Option("--work", help="Of traces: only what a replay must not change counts.")
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=0,
            max=LARGEST,
            help="How many differences to name; 5, with --json 20, if left out.",
        ),
    ] = None,
    json_output: JsonOption = False,
) -> ExitCode:
    """Say how two traces, or two executions of the same work, differ. Exit code 0: same. 1: different."""
    from semtrace.store.bundle import open_bundle

    limit = limit if limit is not None else _NAMED_AS_JSON if json_output else _NAMED
    kinds = []
    for name in (first, second):
        path = name if Path(name).exists() else name.partition("#")[0]
        whole = path == name and open_bundle(Path(path)).manifest.trace is not None
        kinds.append("a trace" if whole else "an execution")
    if kinds[0] != kinds[1]:
        raise UsageError(
            f"{first} is {kinds[0]}, {second} is {kinds[1]}",
            code="diff.kinds",
            hint="name an execution in a bundle as PATH#NAME",
        )
    if kinds[0] == "a trace":
        return _diff_traces(Path(first), Path(second), work=work, limit=limit, as_json=json_output)
    if work:
        raise UsageError(
            "--work is of traces; executions are always of the same work", code="diff.work_option"
        )
    return _diff_executions(first, second, limit=limit, as_json=json_output)


def _diff_traces(first: Path, second: Path, *, work: bool, limit: int, as_json: bool) -> ExitCode:
    from semtrace.check.trace import check_trace
    from semtrace.transform.bundle_parts import refuse
    from semtrace.transform.diff_traces import diff_traces

    traces = [open_trace(path, checked=False).trace for path in (first, second)]
    for path, trace in zip((first, second), traces, strict=True):
        refuse(check_trace(trace, content=False), str(path))
    found = diff_traces(*traces, work=work, limit=limit)
    value = {"a": str(first), "b": str(second), "of": "traces", **found.as_dict()}
    emit(value, as_json=as_json, text=lambda: _trace_lines(value, limit))
    return ExitCode.OK if found.same else ExitCode.FINDINGS


def _digest_lines(value: dict[str, Any]) -> list[str]:
    lines = []
    for name, sides in value["digests"].items():
        said = (
            sides["a"]
            if sides["equal"]
            else f"{sides['a'] or 'not recorded'}\n     {'':10} {sides['b'] or 'not recorded'}"
        )
        lines.append(f"  {'=' if sides['equal'] else '≠'}  {name:10} {said}")
    return lines


def _trace_lines(value: dict[str, Any], limit: int) -> "list[RenderableType]":
    from rich.markup import escape

    lines = ["the same" if value["same"] else "different", *_digest_lines(value)]
    alike = not (value["only_a"] or value["only_b"] or value["reordered"])
    if value["changed"] and alike and all(name.endswith("_ns") for name in value["changed"]):
        lines.append("  the same structure and content: only times differ")
    if value["annotations_equal"] is False:
        lines.append("  annotations differ, which have no part in digests")
    for name, rows in value["rows"].items():
        alone = [value[side].get(name, 0) for side in ("only_a", "only_b")]
        if rows["a"] != rows["b"] or any(alone):
            counts = f"{rows['a']:,} and {rows['b']:,} rows"
            lines.append(
                f"  {name}: {counts}, {alone[0]:,} only in the first, {alone[1]:,} only in the second"
            )
    lines.extend(f"  {name}: {count:,} differ" for name, count in value["changed"].items())
    lines.extend(f"  {name}: in another order" for name in value["reordered"])
    lines.extend(f"  {_difference_line(each)}" for each in value["first"])
    if limit and len(value["first"]) == limit:
        lines.append(f"  only the first {limit:,} are named (--limit N names more)")
    return [escape(line) for line in lines]


def _difference_line(value: dict[str, Any]) -> str:
    rows = [value.get(name) for name in ("row_a", "row_b")]
    at = rows[0] if rows[0] is not None else rows[1]
    both = f"{rows[0]} | {rows[1]}" if None not in rows and rows[0] != rows[1] else at
    where = f"{value['table']}[{both}]" if at is not None else value["table"]
    names = [f"{key} {value[key]!r}" for key in ("task", "operation") if key in value]
    place = f"{where} ({', '.join(names)})" if names else where
    if value["kind"] == "changed":
        return f"{place} {value['column']}: {_shown(value['a'])} ≠ {_shown(value['b'])}"
    return (
        f"{place}: "
        + {
            "only_a": "only in the first",
            "only_b": "only in the second",
            "order": "the same rows in another order",
        }[value["kind"]]
    )


def _shown(value: int | str | None) -> str:
    """A value on one line: of a digest the beginning."""
    return re.sub(r"(blake3:[0-9a-f]{12})[0-9a-f]{52}", r"\1…", repr(value))


def _diff_executions(first: str, second: str, *, limit: int, as_json: bool) -> ExitCode:
    from semtrace.check.executions import check_execution
    from semtrace.transform.bundle_parts import refuse
    from semtrace.transform.diff_executions import diff_executions

    runs: list[Execution] = [open_execution(name) for name in (first, second)]
    for name, run in zip((first, second), runs, strict=True):
        refuse(check_execution(run, None), name)
    found = diff_executions(*runs, limit=limit)
    value = {"a": first, "b": second, "of": "executions", **found.as_dict()}
    emit(value, as_json=as_json, text=lambda: _execution_lines(value))
    return ExitCode.OK if found.same else ExitCode.FINDINGS


def _execution_lines(value: dict[str, Any]) -> "list[RenderableType]":
    from rich.markup import escape

    lines = ["the same" if value["same"] else "different", *_digest_lines(value)]
    lines.append(
        f"  {value['matched']:,} events matched, {value['only_a']:,} only in the first, "
        f"{value['only_b']:,} only in the second"
    )
    lines.extend(f"  instances, {name}: {count:,}" for name, count in value["instances"].items())
    for name, column in value["columns"].items():
        is_time = name.endswith("_ns")
        parts = [f"{column['differing']:,} differ"]
        if column["known_in_one"]:
            parts.append(f"{column['known_in_one']:,} known in one only")
        if column["greatest"] is not None:
            greatest = f"{milliseconds(column['greatest'])} ms" if is_time else f"{column['greatest']:,}"
            mean = f"{milliseconds(column['mean'])} ms" if is_time else f"{column['mean']:,.2f}"
            parts.append(f"by at most {greatest}, in the mean {mean}")
        lines.append(f"  {name}: {', '.join(parts)}")
    if value["output_ids"]:
        lines.append(f"  output ids: {value['output_ids']:,} differ")
    for at, event in enumerate(value["first"]):
        when = "at an unknown time" if event["at_ns"] is None else f"at {milliseconds(event['at_ns'])} ms"
        said = ", ".join(f"{name} {sides['a']} ≠ {sides['b']}" for name, sides in event["columns"].items())
        prefix = "first " if at == 0 else "      "
        lines.append(
            f"  {prefix}{when}: task {event['task']}, copy {event['instance']}, operation {event['operation']}: {said}"
        )
    return [escape(line) for line in lines]
