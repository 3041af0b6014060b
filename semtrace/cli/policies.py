"""The command `policies`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from semtrace.cli.common import JsonOption, command, emit
from semtrace.errors import ExitCode, SemtraceError

if TYPE_CHECKING:
    from rich.console import RenderableType


@command
def policies(
    name: Annotated[str | None, typer.Argument(metavar="POLICY", help="One policy, in full.")] = None,
    json_output: JsonOption = False,
) -> ExitCode:
    """List the KV lifecycle policies, those of installed packages too; or tell of one: its rule, its settings, its source."""
    from semtrace.policies.registry import find_policy, policy_names

    if name is not None:
        one = _facts(find_policy(name))
        emit(one, as_json=json_output, text=lambda: _whole(one))
        return ExitCode.OK
    rows: list[dict[str, Any]] = []
    broken: list[dict[str, Any]] = []
    for each in policy_names():
        try:
            rows.append(_facts(find_policy(each)))
        except SemtraceError as error:  # one bad package hides no other's policies
            broken.append({"name": each, "error": str(error)})
    emit({"policies": rows, "broken": broken}, as_json=json_output, text=lambda: _table(rows, broken))
    return ExitCode.OK


def _facts(policy: Any) -> dict[str, Any]:
    from semtrace.policies.registry import settings_of_policy

    return {
        "name": policy.name,
        "rule": policy.rule,
        "settings": settings_of_policy(policy, {}),
        "tiers": sorted(tier.value for tier in policy.tiers),
        "source": policy.source,
    }


def _whole(one: dict[str, Any]) -> "list[RenderableType]":
    from rich.markup import escape

    lines = [f"[bold]{escape(one['name'])}[/bold]", escape(one["rule"])]
    lines += [f"  {escape(key)}: {escape(str(value))}" for key, value in one["settings"].items()]
    if one["tiers"]:
        lines.append(f"needs the tier {' and '.join(one['tiers'])}")
    return [*lines, f"source: {escape(one['source'])}"]


def _table(rows: list[dict[str, Any]], broken: list[dict[str, Any]]) -> "list[RenderableType]":
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("policy", "rule", "needs", "settings", "source"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        settings = "\n".join(f"{key}={value}" for key, value in row["settings"].items())
        needs = ", ".join(f"tier {tier}" for tier in row["tiers"]) or "–"
        table.add_row(
            *(escape(each) for each in (row["name"], row["rule"], needs, settings or "–", row["source"]))
        )
    return [
        table,
        *(f"[red]✗[/red] {escape(each['name'])} cannot be used: {escape(each['error'])}" for each in broken),
        "semtrace policies NAME tells of one; an engine document names it: policy: {name: NAME, settings: {…}}",
    ]
