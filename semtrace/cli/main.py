"""The command `semtrace`: its own commands, and those of installed packages (entry points `semtrace.commands`)."""

from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any, Final

import typer

import semtrace

COMMANDS: Final[dict[str, str]] = {
    "info": "inspect:info",
    "check": "inspect:check",
    "show": "inspect:show",
    "plan": "plans:plan",
    "replay": "runs:replay",
    "doctor": "live:doctor",
    "join": "live:join",
    "audit": "audits:audit",
    "measure": "results:measure",
    "compare": "results:compare",
    "calibrate": "calibrate:calibrate",
    "engines": "engines:engines",
    "policies": "policies:policies",
    "sweep": "sweeps:sweep",
    "experiment": "experiments:experiment",
    "compare-policies": "sweeps:compare_policies",
    "pack": "bundles:pack",
    "unpack": "bundles:unpack",
    "seal": "streams:seal",
    "convert": "streams:convert",
    "filter": "tools:filter_command",
    "sample": "tools:sample",
    "merge": "tools:merge",
    "renumber": "tools:renumber",
    "redact": "tools:redact",
    "diff": "tools:diff",
    "artifacts": "artifacts:app",
}
"""The commands of this package: for each the module in it, and the function or the group of commands there."""


def _version(*, value: bool) -> None:
    if value:
        print(semtrace.__version__)
        raise typer.Exit


def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Traces of multi-agent LLM workloads: import, check, plan, replay, audit, measure, compare."""


def build(word: str = "") -> typer.Typer:
    """The command line.

    Args:
        word: the first word after `semtrace`. If it is a command, only that is imported; else all of them are, to be
            listed or to tell which one was meant.
    """
    app = typer.Typer(
        name="semtrace",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    app.callback()(_options)
    own = COMMANDS
    if word in COMMANDS:
        own = {word: COMMANDS[word]}
    else:
        from importlib.metadata import entry_points

        installed = entry_points(group="semtrace.commands")
        if word in installed.names:
            own, installed = {}, installed.select(name=word)
        for entry in installed:
            _register(app, entry.name, entry.load())
    for name, place in own.items():
        module, attribute = place.split(":")
        _register(app, name, getattr(import_module(f"semtrace.cli.{module}"), attribute))
    return app


def _register(app: typer.Typer, name: str, command: typer.Typer | Callable[..., Any]) -> None:
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name)
    else:
        app.command(name)(command)
