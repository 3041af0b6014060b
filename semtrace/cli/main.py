"""The command `semtrace`: its own commands, and those of installed packages (entry points `semtrace.commands`)."""

from importlib.metadata import entry_points
from typing import Annotated

import typer

import semtrace
from semtrace.cli import artifacts, bundles, calibrate, inspect, plans, results, runs, streams, tools

app = typer.Typer(
    name="semtrace",
    help="Traces of multi-agent LLM workloads: import, check, plan, replay, audit, measure, compare.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(*, value: bool) -> None:
    if value:
        print(semtrace.__version__)
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Traces of multi-agent LLM workloads: import, check, plan, replay, audit, measure, compare."""


def _register() -> None:
    for entry in entry_points(group="semtrace.commands"):
        app.command(entry.name)(entry.load())
    app.command("info")(inspect.info)
    app.command("check")(inspect.check)
    app.command("show")(inspect.show)
    app.command("plan")(plans.plan)
    app.command("replay")(runs.replay)
    app.command("audit")(results.audit)
    app.command("measure")(results.measure)
    app.command("compare")(results.compare)
    app.command("calibrate")(calibrate.calibrate)
    app.command("pack")(bundles.pack)
    app.command("unpack")(bundles.unpack)
    app.command("seal")(streams.seal)
    app.command("convert")(streams.convert)
    app.command("filter")(tools.filter_command)
    app.command("sample")(tools.sample)
    app.command("merge")(tools.merge)
    app.command("renumber")(tools.renumber)
    app.command("redact")(tools.redact)
    app.command("diff")(tools.diff)
    app.add_typer(artifacts.app, name="artifacts")


_register()
