"""Commands that look at a bundle: `info`, `check`, `show`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semtrace.cli.common import (
    JsonOption,
    bundle_path,
    command,
    emit,
    open_trace,
    progress,
    require_rows,
    require_valid,
)
from semtrace.cli.numbers import LARGEST
from semtrace.cli.printing import print_json, print_lines
from semtrace.errors import ExitCode, OtherWorkError, SemtraceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from semtrace.check import Finding
    from semtrace.records.execution import Execution, ExecutionHeader
    from semtrace.records.trace import Trace
    from semtrace.store.bundle import Bundle

PathArgument = Annotated[
    str,
    typer.Argument(
        metavar="PATH", help="A bundle: a directory or a ZIP file (PATH#NAME: one of its executions)."
    ),
]


@command
def info(path: PathArgument, json_output: JsonOption = False) -> None:
    """Say what is in a bundle: counts by kind, digests, content level, sources, loss report, executions."""
    from semtrace.store.bundle import open_bundle

    source, inner = bundle_path(path)
    bundle = open_bundle(source)
    value = describe(bundle)
    if inner is not None:
        bundle.execution(inner)
        value["executions"] = {inner: value["executions"][inner]}
    headers = {name: stored.header for name, stored in bundle.manifest.executions.items()}
    emit(value, as_json=json_output, text=lambda: _info_text(value, headers))


def describe(bundle: "Bundle") -> dict[str, Any]:
    """What a bundle holds, as JSON-ready values."""
    from semtrace.measure.setup import setup

    manifest = bundle.manifest
    value: dict[str, Any] = {
        "path": str(bundle.path),
        "spec_version": manifest.spec_version,
        "producer": manifest.producer.as_json(),
        "manifest_digest": manifest.digest,
    }
    if manifest.trace is not None:
        value["content_level"] = manifest.trace.content_level
        value["work_digest"] = manifest.trace.work_digest
        value["trace_digest"] = manifest.trace.trace_digest
        value.update(_counts(bundle))
    value["executions"] = {
        name: {
            "mode": stored.header.mode,
            "clock": stored.header.clock,
            "backend": stored.header.backend.name,
            "plan": _plan_name(stored.header.plan),
            "setup": setup(stored.header),
            "work_digest": stored.header.work_digest,
            "execution_digest": stored.execution_digest,
            "instances": stored.tables["instances"].rows if "instances" in stored.tables else 0,
            "events": stored.tables["events"].rows if "events" in stored.tables else 0,
        }
        for name, stored in manifest.executions.items()
    }
    value["sources"] = [source.as_json() for source in manifest.sources]
    value["loss"] = [loss.as_json() for loss in manifest.loss]
    value["lineage"] = list(manifest.lineage)
    return value


def _plan_name(plan: dict[str, Any] | None) -> str | None:
    """The name of the plan in a header, which anything may stand in."""
    name = (plan or {}).get("name")
    return None if name is None else str(name)


def _counts(bundle: "Bundle") -> dict[str, Any]:
    import numpy as np

    from semtrace.records.columns import NULL
    from semtrace.records.enums import Availability, EdgeKind, Evidence, OperationKind, OperationStatus

    trace = bundle.trace
    operations, edges = trace.operations, trace.edges

    def by(column: "np.ndarray[Any, Any]", names: Any) -> dict[str, int]:
        return {
            member.name.lower(): int((column == member).sum()) for member in names if (column == member).any()
        }

    counts: dict[str, Any] = {name: trace[name].rows for name in ("tasks", "stages", "sessions", "models")}
    counts["operations"] = {"total": operations.rows, **by(operations.ints("kind"), OperationKind)}
    counts["status"] = by(operations.ints("status"), OperationStatus)
    counts["segments"] = trace.segments.rows
    counts["edges"] = {"total": edges.rows, **by(edges.ints("kind"), EdgeKind)}
    counts["edges_evidence"] = by(edges.ints("evidence"), Evidence)
    counts["states"] = trace["states"].rows
    counts["state_versions"] = trace["state_versions"].rows
    counts["artifacts"] = {
        "total": trace["artifacts"].rows,
        "bytes": int(trace["artifacts"].ints("size").sum()) if trace["artifacts"].rows else 0,
        "content": by(trace["artifacts"].ints("availability"), Availability),
    }
    model = np.isin(operations.ints("kind"), (OperationKind.LLM, OperationKind.EMBED))
    counts["tokens"] = {
        name: {
            "known": int(operations.ints(name)[model & (operations.ints(name) != NULL)].sum()),
            "operations_unknown": int((model & (operations.ints(name) == NULL)).sum()),
        }
        for name in ("prompt_tokens", "output_tokens")
    }
    return counts


def _flat(value: dict[str, Any]) -> str:
    return ", ".join(f"{amount:,} {name}" for name, amount in value.items() if name != "total")


def _artifacts(value: dict[str, Any]) -> str:
    """How many there are, how large, and of how many the content is not in the bundle."""
    content = value["content"]
    elsewhere = [
        f"{content[kind]:,} {told}"
        for kind, told in (
            ("external", "with their content in a store (semtrace artifacts embed)"),
            ("withheld", "withheld"),
        )
        if kind in content
    ]
    return ", ".join([f"{value['total']:,}", f"{value['bytes']:,} bytes", *elsewhere])


def _is_part(value: dict[str, Any]) -> bool:
    """Whether tasks were left out of what was converted, by a filter or a sample."""
    now = value.get("tasks", 0)
    steps = [step for step in value["lineage"] if step["step"] in ("filter", "sample")]
    return any(each["tasks"] > now for step in steps for each in step["inputs"])


def _info_text(value: dict[str, Any], headers: "Mapping[str, ExecutionHeader]") -> "list[RenderableType]":
    from rich.markup import escape
    from rich.table import Table

    from semtrace.measure.setup import setup_lines

    parts: list[RenderableType] = [
        f"[bold]{escape(value['path'])}[/bold]  semtrace {escape(value['spec_version'])}"
    ]
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    if "work_digest" in value:
        table.add_row("content", value["content_level"])
        table.add_row("work digest", escape(value["work_digest"]))
        table.add_row("trace digest", escape(value["trace_digest"]))
        for name in ("tasks", "stages", "sessions", "segments", "state_versions"):
            table.add_row(name.replace("_", " "), f"{value[name]:,}")
        for name in ("operations", "edges"):
            kinds = _flat(value[name])
            table.add_row(name, f"{value[name]['total']:,}" + (f": {kinds}" if kinds else ""))
        if value["edges_evidence"]:
            table.add_row("edges known", _flat(value["edges_evidence"]))
        table.add_row("artifacts", _artifacts(value["artifacts"]))
        for name, tokens in value["tokens"].items():
            unknown = (
                f", unknown for {tokens['operations_unknown']} operations"
                if tokens["operations_unknown"]
                else ""
            )
            table.add_row(name.replace("_", " "), f"{tokens['known']:,}{unknown}")
    for name, execution in value["executions"].items():
        how = ", ".join(
            dict.fromkeys(filter(None, (execution["mode"], execution["backend"], execution["plan"])))
        )
        table.add_row(f"execution {escape(name)}", f"{execution['events']:,} events, {escape(how)}")
        for line in (*setup_lines(headers[name]), execution["execution_digest"]):
            table.add_row("", escape(line))
    for source in value["sources"]:
        table.add_row("source", escape(f"{source['name']} ({source['bytes']:,} bytes, {source['adapter']})"))
    parts.append(table)
    if value["loss"]:
        of = " (of the whole, of which tasks were left out since)" if _is_part(value) else ""
        parts.append(f"[bold]loss report[/bold]{of}")
        for loss in value["loss"]:
            where = f" ({', '.join(loss['where'][:3])})" if loss.get("where") else ""
            parts.append(escape(f"  {loss['effect']:9} {loss['count']:>5} × {loss['message']}{where}"))
    return parts


@command
def check(path: PathArgument, json_output: JsonOption = False) -> ExitCode:
    """Check a bundle against every rule of the standard; all findings, each with its requirement.

    Exit code 0: valid. 1: findings.
    """
    from semtrace.check import check_bundle
    from semtrace.store.bundle import open_bundle

    source, inner = bundle_path(path)
    try:
        with progress("checking", quiet=True):
            bundle = open_bundle(source)
            if inner is not None:
                bundle.execution(inner)
            findings = check_bundle(bundle)
    except SemtraceError as error:
        if error.exit_code is not ExitCode.FINDINGS or not json_output:
            raise
        value: dict[str, Any] = {"path": str(path), "valid": False, "findings": [error.as_dict()]}
        emit(value, as_json=True, text=list)
        return ExitCode.FINDINGS
    value = {
        "path": str(path),
        "valid": not findings,
        "findings": [finding.as_dict() for finding in findings],
    }
    if json_output:
        print_json(value)
    else:
        print_lines(_verdict(path, findings))
    return ExitCode.FINDINGS if findings else ExitCode.OK


def _verdict(path: str, findings: "Sequence[Finding]") -> "Iterator[tuple[str, str]]":
    """The result of a check in lines, each with its mark."""
    if not findings:
        yield "✓", f"{path}: valid, no findings"
    for finding in findings:
        yield "✗", str(finding)
        if finding.hint:
            yield "   ", f"hint: {finding.hint}"


@command
def show(
    path: Annotated[
        str,
        typer.Argument(
            metavar="TRACE|EXEC", help="A bundle with a trace or an execution (PATH#NAME for one of several)."
        ),
    ],
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="TRACE", help="The trace of an execution, for the names."),
    ] = None,
    tasks: Annotated[
        int, typer.Option("--tasks", min=1, max=LARGEST, help="How many tasks or instances to show.")
    ] = 3,
    operations: Annotated[
        int, typer.Option("--operations", min=1, max=LARGEST, help="How many operations of each.")
    ] = 60,
    json_output: JsonOption = False,
) -> None:
    """Show a trace as a tree of stages and operations, and executions as timelines."""
    from semtrace.store.bundle import open_bundle
    from semtrace.view.terminal import timeline, trace_tree

    source, inner = bundle_path(path)
    bundle = open_bundle(source)
    if bundle.manifest.trace is not None:
        if trace is not None:
            raise UsageError(
                "holds its own trace: --trace is for a bundle of executions alone",
                code="show.trace",
                path=str(source),
            )
        require_valid(bundle)
    beside = open_trace(trace).trace if trace is not None else None
    parts: list[RenderableType] = []
    value: dict[str, Any] = {"path": path}
    known = bundle.trace if bundle.manifest.trace is not None else beside
    if bundle.manifest.trace is not None and not inner:
        value["operations"] = bundle.trace.operations.named_rows(operations)
        value["edges"] = bundle.trace.edges.named_rows(operations * 4)
        parts.extend(trace_tree(bundle.trace, tasks=tasks, operations=operations))
    names = [inner] if inner else sorted(bundle.manifest.executions)
    for name in names:
        execution = require_rows(bundle.execution(name), known, f"{source}#{name}")
        if known is not None:
            _require_work(execution, known, f"{source}#{name}")
        value.setdefault("executions", {})[name] = execution.events.named_rows(tasks * operations)
        parts.append(f"[bold]execution {_escaped(name)}[/bold]")
        parts.extend(timeline(execution, known, instances=tasks, operations=operations))
    emit(value, as_json=json_output, text=lambda: parts)


def _require_work(execution: "Execution", trace: "Trace", name: str) -> None:
    """Refuse to name the operations of an execution by a trace that it is not of.

    Raises:
        OtherWorkError: they are not of the same work.
    """
    from semtrace.store.digests import show as shown
    from semtrace.store.digests import work_digest

    if execution.header.work_digest != shown(work_digest(trace)):
        raise OtherWorkError(
            "is not of the work of this trace",
            code="execution.other_work",
            path=name,
            requirement="ST-EXE-001",
            hint="name the trace that was replayed",
        )


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
