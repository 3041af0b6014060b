"""The command `engines`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from semtrace.cli.common import JsonOption, command, emit
from semtrace.errors import ExitCode

if TYPE_CHECKING:
    from rich.console import RenderableType


@command
def engines(
    name: Annotated[
        str | None,
        typer.Argument(metavar="ENGINE", help="A ready engine, or the file of one, to be printed."),
    ] = None,
    json_output: JsonOption = False,
) -> ExitCode:
    """List the ready simulated engines, or print one as the document to copy and change."""
    from semtrace.engine.document import read_engine, ready_documents, settings_of

    if name is not None:
        whole = read_engine(name, {}).as_json()
        emit(whole, as_json=json_output, text=lambda: _document(whole))
        return ExitCode.OK
    rows: list[dict[str, Any]] = []
    for ready in ready_documents():
        document = read_engine(ready, {})
        settings = settings_of(document)
        rows.append(
            {
                "name": ready,
                "model": getattr(document.model, "name", None),
                "device": getattr(document.device, "name", None),
                "kv_tokens": (settings.blocks - 1) * settings.block_size,
                "block_size": settings.block_size,
                "max_num_seqs": settings.scheduler.max_num_seqs,
                "max_num_batched_tokens": settings.scheduler.max_num_batched_tokens,
                "cost": document.cost.kind,
            }
        )
    emit({"engines": rows}, as_json=json_output, text=lambda: _table(rows))
    return ExitCode.OK


def _document(whole: dict[str, Any]) -> "list[RenderableType]":
    import yaml
    from rich.markup import escape

    return [escape(yaml.safe_dump(whole, sort_keys=False, allow_unicode=True).rstrip())]


def _table(rows: list[dict[str, Any]]) -> "list[RenderableType]":
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("engine", "model", "device", "KV tokens", "block", "seqs", "tokens a step", "cost"):
        table.add_column(
            heading, justify="left" if heading in ("engine", "model", "device", "cost") else "right"
        )
    for row in rows:
        table.add_row(
            row["name"],
            row["model"] or "–",
            row["device"] or "–",
            f"{row['kv_tokens']:,}",
            str(row["block_size"]),
            str(row["max_num_seqs"]),
            f"{row['max_num_batched_tokens']:,}",
            row["cost"],
        )
    return [table, "semtrace engines NAME prints one; others by the path of a file of your own"]
