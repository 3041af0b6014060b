"""Commands on bundles as containers: `pack`, `unpack`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from semtrace.cli.common import ForceOption, JsonOption, command, emit

if TYPE_CHECKING:
    from rich.console import RenderableType


def _convert(source: Path, output: Path, *, directory: bool, force: bool, as_json: bool) -> None:
    from semtrace.store.bundle import open_bundle, rewrite_bundle
    from semtrace.store.container import check_output

    check_output(output, overwrite=force, inputs=[source])
    bundle = open_bundle(source)
    manifest = rewrite_bundle(bundle, output, directory=directory, overwrite=force)
    form = "directory" if directory else "ZIP file"
    value = {"output": str(output), "form": form, "manifest_digest": manifest.digest}

    def text() -> "list[RenderableType]":
        from rich.markup import escape

        return [escape(f"{output}: a {form}, manifest {manifest.digest}")]

    emit(value, as_json=as_json, text=text)


@command
def pack(
    source: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help="A bundle that is a directory (or any bundle).")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The ZIP file to write.")],
    force: ForceOption = False,
    json_output: JsonOption = False,
) -> None:
    """Make one ZIP file of a bundle; the content and its digests stay the same."""
    _convert(source, output, directory=False, force=force, as_json=json_output)


@command
def unpack(
    source: Annotated[
        Path, typer.Argument(metavar="FILE", help="A bundle that is a ZIP file (or any bundle).")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIRECTORY", help="The directory to write.")
    ],
    force: ForceOption = False,
    json_output: JsonOption = False,
) -> None:
    """Make a directory of a bundle; the content and its digests stay the same."""
    _convert(source, output, directory=True, force=force, as_json=json_output)
