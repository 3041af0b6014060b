"""Commands on artifact stores: `artifacts put`, `get`, `verify`, `gc`, `externalize`, `embed`."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semtrace.cli.common import ForceOption, JsonOption, TraceArgument, command, emit
from semtrace.errors import ExitCode, IntegrityError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from semtrace.records.trace import Trace
    from semtrace.store.artifact_store import ArtifactStore

app = typer.Typer(no_args_is_help=True, help="Artifact stores: content shared between traces, by digest.")

StoreArgument = Annotated[Path, typer.Argument(metavar="STORE", help="The directory of an artifact store.")]
StoreOption = Annotated[
    Path, typer.Option("--store", metavar="STORE", help="The directory of an artifact store.")
]
OutputOption = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The bundle to write.")]
DirectoryOption = Annotated[
    bool, typer.Option("--directory", help="Write the bundle as a directory instead of one file.")
]
DurableOption = Annotated[bool, typer.Option("--fsync", help="Wait until the disk has what was put.")]


def _escaped(lines: "Callable[[], list[str]]") -> "Callable[[], list[RenderableType]]":
    def text() -> "list[RenderableType]":
        from rich.markup import escape

        return [escape(line) for line in lines()]

    return text


@app.command("put")
@command
def put(
    store: StoreArgument,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files whose content to keep.")],
    durable: DurableOption = False,
    json_output: JsonOption = False,
) -> None:
    """Keep the content of files, each under its digest; makes the store where there is none."""
    from semtrace.store.artifact_store import ArtifactStore
    from semtrace.store.digests import show

    for path in files:
        if not path.is_file():
            raise UsageError("there is no such file", code="file.missing", path=str(path))
    kept = ArtifactStore(store, create=True, durable=durable)
    made = []
    for path in files:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UsageError(
                f"cannot be read: {error.strerror}", code="file.unreadable", path=str(path)
            ) from error
        made.append({"file": str(path), "digest": show(kept.put(content)), "bytes": len(content)})
    value: dict[str, Any] = {"store": str(store), "objects": made}
    emit(
        value,
        as_json=json_output,
        text=_escaped(lambda: [f"{each['digest']}  {each['file']}" for each in made]),
    )


@app.command("get")
@command
def get(
    store: StoreArgument,
    digest: Annotated[str, typer.Argument(metavar="DIGEST", help="blake3: and 64 hexadecimal digits.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Where to write it; standard output if left out."
        ),
    ] = None,
    force: ForceOption = False,
    json_output: JsonOption = False,
) -> None:
    """Write content, after a check of its digest."""
    from semtrace.store.artifact_store import ArtifactStore
    from semtrace.store.container import check_output, replacing

    wanted = re.fullmatch(r"(?:blake3:)?([0-9a-f]{64})", digest)
    if wanted is None:
        raise UsageError(
            f"{digest!r} is no digest",
            code="store.digest",
            hint="blake3: and 64 lower-case hexadecimal digits",
        )
    if json_output and output is None:
        raise UsageError("--json needs --output: content goes to standard output", code="store.output")
    if output is not None:
        check_output(output, overwrite=force, inputs=[store])
    content = ArtifactStore(store).get(bytes.fromhex(wanted[1]))
    if content is None:
        raise IntegrityError(
            f"the store does not have blake3:{wanted[1]}", code="store.missing_object", path=str(store)
        )
    if output is None:
        sys.stdout.buffer.write(content)
        return
    if output.is_dir():
        raise UsageError("is a directory", code="file.directory", path=str(output))
    with replacing(output, overwrite=force) as temporary:
        temporary.write_bytes(content)
    value = {"output": str(output), "digest": f"blake3:{wanted[1]}", "bytes": len(content)}
    emit(value, as_json=json_output, text=_escaped(lambda: [f"{len(content):,} bytes written to {output}"]))


@app.command("verify")
@command
def verify(store: StoreArgument, json_output: JsonOption = False) -> ExitCode:
    """Read and check every object. Exit code 0: all are sound. 1: some are not."""
    from semtrace.store.artifact_store import ArtifactStore

    state = ArtifactStore(store).verify()
    value: dict[str, Any] = {
        "store": str(store),
        "sound": not state.damaged,
        "objects": state.objects,
        "content_bytes": state.content_bytes,
        "stored_bytes": state.stored_bytes,
        "leftovers": state.leftovers,
        "damaged": [error.as_dict() for error in state.damaged],
    }

    def lines() -> list[str]:
        made = [f"✗ {error}" for error in state.damaged]
        counts = f"{state.objects:,} objects, {state.content_bytes:,} bytes in {state.stored_bytes:,}"
        left = f"; {state.leftovers:,} files left by killed processes" if state.leftovers else ""
        return [*made, f"{'✗' if made else '✓'} {store}: {counts}{left}"]

    emit(value, as_json=json_output, text=_escaped(lines))
    return ExitCode.FINDINGS if state.damaged else ExitCode.OK


@app.command("gc")
@command
def collect(
    store: StoreArgument,
    bundles: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[BUNDLE...]", help="Every bundle that keeps content in the store."),
    ] = None,
    grace_s: Annotated[
        int,
        typer.Option(
            "--grace",
            min=0,
            max=10_000_000_000,
            metavar="SECONDS",
            help="Content put within this time stays: longer than anybody takes from a put to its bundle.",
        ),
    ] = 86_400,
    unnamed: Annotated[
        bool, typer.Option("--no-bundles", help="No bundle needs the store: everything may go.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    json_output: JsonOption = False,
) -> None:
    """Remove the content that none of the bundles names; never what one of them names, or was put just now."""
    from semtrace.store.artifact_store import ArtifactStore
    from semtrace.store.bundle import open_bundle
    from semtrace.store.digests import show
    from semtrace.store.external import named_digests

    if bool(bundles) == unnamed:
        raise UsageError(
            "no bundles are named, and what none names is removed" if not unnamed else "there are bundles",
            code="store.roots",
            hint="name every bundle that keeps content in the store, or say --no-bundles",
        )
    kept = ArtifactStore(store)
    named: set[bytes] = set()
    for path in bundles or []:
        bundle = open_bundle(path)
        if bundle.manifest.trace is not None:  # executions keep nothing in a store
            named |= named_digests(bundle.trace)
    done = kept.collect(named, grace_s=grace_s, dry_run=dry_run)
    value: dict[str, Any] = {
        "store": str(store),
        "dry_run": dry_run,
        "removed": [show(digest) for digest in done.removed],
        "removed_bytes": done.removed_bytes,
        "named": done.named,
        "fresh": done.fresh,
        "leftovers": done.leftovers,
    }
    what = "would be removed" if dry_run else "removed"
    line = (
        f"{len(done.removed):,} objects {what}, {done.removed_bytes:,} bytes; "
        f"kept: {done.named:,} named, {done.fresh:,} put within {grace_s:,} s"
    )
    emit(value, as_json=json_output, text=_escaped(lambda: [line]))


def _rewrite(
    path: Path,
    output: Path,
    change: "Callable[[Trace], Trace]",
    *,
    directory: bool,
    force: bool,
    as_json: bool,
    what: str,
) -> None:
    """Write a bundle again with its content elsewhere, all else as it is."""
    from semtrace.cli.common import open_trace
    from semtrace.store.bundle import write_bundle
    from semtrace.store.digests import show, trace_digest

    bundle = open_trace(path)
    stored = bundle.manifest.trace
    digest = show(trace_digest(bundle.trace))
    if stored is None or stored.trace_digest != digest:
        raise IntegrityError(
            "the trace digest that the manifest states is not that of the tables",
            code="bundle.trace_digest",
            path=str(path),
            requirement="ST-DIG-014",
        )
    executions = {name: bundle.execution(name) for name in bundle.manifest.executions}
    trace = change(bundle.trace)
    write_bundle(output, trace, executions, info=bundle.info, directory=directory, overwrite=force)
    value = {
        "output": str(output),
        "artifacts": trace["artifacts"].rows,
        "trace_digest": digest,
    }
    emit(
        value,
        as_json=as_json,
        text=_escaped(lambda: [f"{what}; trace digest {value['trace_digest']}", f"written to {output}"]),
    )


def _opened(
    store: Path, trace: Path, output: Path, *, force: bool, create: bool, durable: bool = False
) -> "ArtifactStore":
    """The store, once it is sure that the output replaces neither it, nor what is in it, nor the trace."""
    from semtrace.store.artifact_store import ArtifactStore
    from semtrace.store.container import check_output

    check_output(output, overwrite=force, inputs=[trace, store])
    return ArtifactStore(store, create=create, durable=durable)


@app.command("externalize")
@command
def externalize_command(
    trace: TraceArgument,
    store: StoreOption,
    output: OutputOption,
    durable: DurableOption = False,
    directory: DirectoryOption = False,
    force: ForceOption = False,
    json_output: JsonOption = False,
) -> None:
    """Move a bundle's content into a store, and write the bundle without it; its digests stay the same."""
    from semtrace.store.bundle import open_bundle
    from semtrace.store.external import externalize

    open_bundle(trace)  # a store is not made for what is no bundle
    kept = _opened(store, trace, output, force=force, create=True, durable=durable)
    _rewrite(
        trace,
        output,
        lambda whole: externalize(whole, kept),
        directory=directory,
        force=force,
        as_json=json_output,
        what=f"content is in {store}",
    )


@app.command("embed")
@command
def embed_command(
    trace: TraceArgument,
    store: StoreOption,
    output: OutputOption,
    directory: DirectoryOption = False,
    force: ForceOption = False,
    json_output: JsonOption = False,
) -> None:
    """Write a bundle with the content that it keeps in a store in it; its digests stay the same."""
    from semtrace.store.external import embed

    kept = _opened(store, trace, output, force=force, create=False)
    _rewrite(
        trace,
        output,
        lambda whole: embed(whole, kept),
        directory=directory,
        force=force,
        as_json=json_output,
        what="all content is in the bundle",
    )
