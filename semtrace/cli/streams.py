"""Commands on record streams: `seal`, `convert`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semtrace.cli.common import ForceOption, JsonOption, command, emit, finding_lines
from semtrace.errors import ExitCode, IntegrityError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from semtrace.store.manifest import Manifest
    from semtrace.stream.capture import CaptureFile
    from semtrace.stream.exchange import StreamFacts


DirectoryOption = Annotated[
    bool, typer.Option("--directory", help="Write the bundle as a directory instead of one file.")
]


@command
def seal(
    captures: Annotated[
        list[Path], typer.Argument(metavar="STREAM...", help="The captures of one run: what recorders wrote.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The bundle to write.")],
    recover: Annotated[
        bool, typer.Option("--recover", help="Take what is whole of damaged captures; the rest is reported.")
    ] = False,
    directory: DirectoryOption = False,
    force: ForceOption = False,
    json_output: JsonOption = False,
) -> ExitCode:
    """Make a bundle of what a live recorder wrote, also of one that was killed."""
    from semtrace.check.trace import check_trace
    from semtrace.store.bundle import write_bundle
    from semtrace.store.container import check_output
    from semtrace.stream.seal import seal as seal_captures

    check_output(output, overwrite=force, inputs=captures)
    sealed = seal_captures(captures, recover=recover)
    findings = check_trace(sealed.trace)
    manifest = write_bundle(
        output,
        sealed.trace,
        {"native": sealed.execution} if sealed.execution is not None else {},
        info=sealed.info,
        directory=directory,
        overwrite=force,
    )
    damaged = any(file.damage for file in sealed.files)
    value: dict[str, Any] = {
        "output": str(output),
        "captures": [_describe(file) for file in sealed.files],
        "tasks": sealed.trace.tasks.rows,
        "operations": sealed.trace.operations.rows,
        "edges": sealed.trace.edges.rows,
        "trace_digest": manifest.trace.trace_digest if manifest.trace else None,
        "loss": [loss.as_json() for loss in sealed.info.loss],
        "findings": [finding.as_dict() for finding in findings],
    }

    def text() -> "list[RenderableType]":
        from rich.markup import escape

        counts = f"{value['tasks']} tasks, {value['operations']} operations, {value['edges']} edges"
        return [
            f"{counts} from {len(captures)} captures",
            *(escape(line) for file in sealed.files for line in _damage_lines(file)),
            *(escape(f"  {loss.effect:9} {loss.count:>5} × {loss.message}") for loss in sealed.info.loss),
            *finding_lines(findings),
            f"written to {escape(str(output))}",
        ]

    emit(value, as_json=json_output, text=text)
    return ExitCode.FINDINGS if findings or damaged else ExitCode.OK


def _describe(file: "CaptureFile") -> dict[str, Any]:
    """What was read of a capture, as JSON-ready values."""
    return {
        "name": file.path.name,
        "records": file.records,
        "closed": file.closed,
        "torn_at": None if file.torn is None else file.torn.offset,
        "gaps": sum(file.gaps.values()),
        "damage": [
            {"offset": damage.offset, "end": damage.end, "message": damage.message, "records": damage.records}
            for damage in file.damage
        ],
    }


def _damage_lines(file: "CaptureFile") -> list[str]:
    return [
        f"✗ {file.path.name}, byte {damage.offset} to {damage.end}: {damage.message} [ST-STR-031]"
        for damage in file.damage
    ]


@command
def convert(
    source: Annotated[
        Path, typer.Argument(metavar="PATH", help="A bundle, or an exchange stream made of one.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The stream or the bundle to write.")
    ],
    directory: DirectoryOption = False,
    force: ForceOption = False,
    json_output: JsonOption = False,
) -> None:
    """Make a record stream of a bundle, or a bundle of a record stream; digests and content stay the same."""
    from semtrace.store.bundle import open_bundle, write_bundle
    from semtrace.store.container import check_output
    from semtrace.stream.exchange import facts_of, read_stream, write_stream
    from semtrace.stream.scan import is_stream

    check_output(output, overwrite=force, inputs=[source])
    if is_stream(source):
        held = read_stream(source)
        manifest = write_bundle(
            output, held.trace, held.executions, info=held.info, directory=directory, overwrite=force
        )
        form = "bundle"
    else:
        if directory:
            raise UsageError("a stream is one file: --directory is for bundles", code="usage.directory")
        bundle = open_bundle(source)
        manifest = bundle.manifest
        trace = bundle.trace if manifest.trace is not None else None
        executions = {name: bundle.execution(name) for name in manifest.executions}
        _check_digests(manifest, facts_of(trace, executions, bundle.info), source)
        write_stream(output, trace, executions, info=bundle.info, overwrite=force)
        form = "stream"
    value = {"output": str(output), "form": form} | _digests(manifest)

    def text() -> "list[RenderableType]":
        from rich.markup import escape

        return [escape(line) for line in (f"{output}: a {form}", *_digest_lines(manifest))]

    emit(value, as_json=json_output, text=text)


def _check_digests(manifest: "Manifest", found: "StreamFacts", path: Path) -> None:
    """Refuse a bundle whose manifest states other digests than its tables have: a stream would hide it.

    Raises:
        IntegrityError: it does.
    """
    stated = (manifest.trace and (manifest.trace.work_digest, manifest.trace.trace_digest), *(
        (name, run.execution_digest, run.detail_digests) for name, run in sorted(manifest.executions.items())
    ))  # fmt: skip
    have = (found.trace and (found.trace.work_digest, found.trace.trace_digest), *(
        (name, run.execution_digest, run.detail_digests) for name, run in sorted(found.executions.items())
    ))  # fmt: skip
    if stated != have:
        raise IntegrityError(
            "the tables do not have the digests that the manifest states",
            code="bundle.digest",
            path=str(path),
            requirement="ST-DIG-014",
            hint=f"semtrace check {path} says which",
        )


def _digests(manifest: "Manifest") -> dict[str, Any]:
    stated = manifest.trace
    return {
        "work_digest": stated.work_digest if stated else None,
        "trace_digest": stated.trace_digest if stated else None,
        "executions": {name: run.execution_digest for name, run in manifest.executions.items()},
    }


def _digest_lines(manifest: "Manifest") -> list[str]:
    lines = []
    if manifest.trace is not None:
        lines = [
            f"  work digest  {manifest.trace.work_digest}",
            f"  trace digest {manifest.trace.trace_digest}",
        ]
    return lines + [f"  {name}: {run.execution_digest}" for name, run in manifest.executions.items()]
