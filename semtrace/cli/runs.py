"""The command `replay`."""

import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semtrace.cli.common import (
    ForceOption,
    JsonOption,
    TraceArgument,
    bundle_path,
    command,
    emit,
    milliseconds,
    open_execution,
    open_trace,
    progress,
)
from semtrace.cli.numbers import LARGEST, whole
from semtrace.cli.served import outcomes
from semtrace.errors import ExitCode, SemtraceError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from semtrace.graph.plan import Plan
    from semtrace.records.execution import Execution, ExecutionHeader
    from semtrace.records.trace import Trace
    from semtrace.replay.backend import Simulator
    from semtrace.replay.resume import Resume
    from semtrace.replay.scenario import Scenario


@command
def replay(
    trace: TraceArgument,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="EXEC", help="The bundle to write.")],
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="PLAN", help="A plan; the recorded edges (dag) if left out."),
    ] = None,
    scenario: Annotated[
        Path | None, typer.Option("--scenario", metavar="FILE", help="A scenario document, YAML or JSON.")
    ] = None,
    arrivals: Annotated[
        str | None,
        typer.Option(
            "--arrivals",
            metavar="HOW",
            help="recorded, together, poisson:MEAN_NS[:SEED] or closed-loop:USERS[:THINK_NS].",
        ),
    ] = None,
    copies: Annotated[
        int | None, typer.Option("--copies", min=1, max=LARGEST, help="Instances of every task.")
    ] = None,
    backend: Annotated[
        str | None, typer.Option("--backend", help="What runs the operations: ideal, engine, http or vllm.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="A server to replay on, in real time (semtrace doctor)."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="The server's model; its only one if left out."),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode", metavar="MODE", help="What is held of outputs: length-locked or token-locked."
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="EXEC",
            help="Go on with a replay on a server that was stopped: its bundle. With --url, the server is there now.",
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine", metavar="ENGINE", help="A ready engine (semtrace engines), or the file of one."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting of the backend: c0_ns=5, scheduler.max_num_seqs=64."
        ),
    ] = None,
    detail: Annotated[
        list[str] | None,
        typer.Option(
            "--detail", metavar="TABLE", help="Keep a detail table too: steps, blocks, transfers, decisions."
        ),
    ] = None,
    simulator: Annotated[
        str,
        typer.Option(
            "--simulator",
            metavar="FORM",
            help="Of the engine: fast, or step, its readable form; the same result.",
        ),
    ] = "fast",
    name: Annotated[str, typer.Option("--name", help="Name of the execution in its bundle.")] = "replay",
    analysis: Annotated[
        bool,
        typer.Option(
            "--analysis", help="Allow a work-only plan; the result is an exposure bound, not a replay."
        ),
    ] = False,
    force: ForceOption = False,
    json_output: JsonOption = False,
) -> ExitCode:
    """Replay a trace: the recorded work, released under a plan, on a backend.

    The trace is checked first; a trace with findings is not replayed.
    """
    from semtrace.cli.live import in_the_world, plain_progress, stoppable
    from semtrace.engine.catalog import SUFFIXES
    from semtrace.graph.plan import Plan, dag
    from semtrace.measure.setup import setup
    from semtrace.replay.run import replay as run
    from semtrace.store.container import check_output
    from semtrace.store.digests import execution_digest, show, work_digest

    document = Path(engine) if engine is not None and engine.endswith(SUFFIXES) else None
    stopped = None if resume is None else bundle_path(str(resume))[0]
    read = [path for path in (trace, plan, scenario, document, stopped) if path is not None]
    check_output(output, overwrite=force, inputs=read)
    bundle = open_trace(trace)
    made = Plan.read(plan) if plan is not None else None
    left = None
    if resume is None:
        at = {"url": url, "model": model}
        chosen = _scenario(
            scenario, arrivals, copies, backend, engine, settings or [], bundle.trace, at=at, mode=mode
        )
    else:
        options: dict[str, object] = {
            "--scenario": scenario,
            "--arrivals": arrivals,
            "--copies": copies,
            "--backend": backend,
        }
        options |= {"--engine": engine, "--set": settings, "--model": model, "--mode": mode}
        left = _left(bundle.trace, made, resume, options, url)
        chosen, made = left.scenario, left.plan
    if made is None:
        made = dag(show(work_digest(bundle.trace)))
    told = plain_progress if chosen.backend.name == "http" else progress
    with told("replaying", quiet=json_output) as update, stoppable() as started:
        execution = run(
            bundle.trace,
            made,
            chosen,
            analysis=analysis,
            detail=_detail(detail or [], chosen.backend.name),
            simulator=_simulator(simulator),
            progress=update,
            started=started,
            resume=left,
        )
    _write(output, name, execution, force=force)
    value: dict[str, Any] = {
        "output": str(output),
        "name": name,
        "plan": made.name,
        "backend": execution.header.backend.as_json(),
        **setup(execution.header),
        **_form(execution.header),
        "execution_digest": show(execution_digest(execution)),
        "instances": execution.instances.rows,
        "events": execution.events.rows,
        "outcomes": outcomes(execution),
        "unfinished": _unfinished(execution),
        "end_ns": _end(execution),
        **in_the_world(execution),
    }
    emit(value, as_json=json_output, text=lambda: _text(value, execution.header))
    return ExitCode.FINDINGS if value["unfinished"] else ExitCode.OK


def _write(output: Path, name: str, execution: "Execution", *, force: bool) -> None:
    """Write what a replay left. What took real time is kept elsewhere, if its output cannot be written any more.

    Raises:
        SemtraceError: it cannot be written; the hint says where it is kept.
    """
    from semtrace.store.bundle import write_bundle

    try:
        write_bundle(output, executions={name: execution}, overwrite=force)
    except OSError as error:
        unwritable = UsageError(
            f"cannot be written: {error.strerror or error}", code="file.unwritable", path=str(output)
        )
        unwritable.hint = _kept(output, name, execution)
        raise unwritable from error
    except SemtraceError as error:
        error.hint = _kept(output, name, execution) or error.hint
        raise


def _kept(output: Path, name: str, execution: "Execution") -> str | None:
    """Keep what took real time in a folder of its own, where the system has room for temporary files, or else at home.

    Returns:
        What is said of it; None of a run that can be made again.
    """
    from semtrace.store.bundle import write_bundle

    if execution.header.clock != "wall":
        return None
    tried = []
    for base in (tempfile.gettempdir, lambda: str(Path.home())):
        folder = None
        try:
            folder = Path(tempfile.mkdtemp(prefix="semtrace-", dir=base()))
            write_bundle(folder / output.name, executions={name: execution})
        except (OSError, RuntimeError, SemtraceError):  # RuntimeError: there is no home
            if folder is not None:
                tried.append(str(folder.parent))
                shutil.rmtree(folder, ignore_errors=True)
            continue
        return f"the run is kept in {folder / output.name}"
    where = ", ".join(tried) or "no folder can be made"
    return f"the run could not be kept elsewhere either (tried: {where})"


def _left(
    trace: "Trace", plan: "Plan | None", stopped: Path, options: dict[str, object], url: str | None
) -> "Resume":
    """What is left of a stopped run, which has its scenario and its plan already; its server may be elsewhere now."""
    from semtrace.replay.resume import Resume

    given = [option for option, value in options.items() if value]
    if given:
        raise UsageError(
            f"--resume does not go with {', '.join(given)}: the scenario is that of the stopped run",
            code="replay.resume",
            hint="leave it out, or start a new replay",
        )
    return Resume.of(trace, open_execution(str(stopped)), plan, url=url)


def _unfinished(execution: "Execution") -> int:
    from semtrace.records.enums import EventOutcome

    return int((execution.events.ints("outcome") == EventOutcome.UNFINISHED).sum())


def _end(execution: "Execution") -> int | None:
    finished = execution.events.ints("finished_ns")
    return int(finished.max()) if len(finished) else None


def _form(header: "ExecutionHeader") -> dict[str, Any]:
    """Of a simulated engine, which form of it ran and why."""
    from semtrace.engine.form import KEY

    return {KEY: header.environment[KEY]} if KEY in header.environment else {}


def _how_many(value: dict[str, Any]) -> str:
    ended = value["events"] - value["unfinished"]
    return f"{ended} of {value['events']}" if value["unfinished"] else str(ended)


def _text(value: dict[str, Any], header: "ExecutionHeader") -> "list[RenderableType]":
    from rich.markup import escape

    from semtrace.cli.live import world_lines
    from semtrace.engine.form import KEY, form_line
    from semtrace.measure.setup import setup_lines

    backend, arrivals = setup_lines(header)
    lines: list[RenderableType] = [
        escape(
            f"replayed {value['instances']} instances, {_how_many(value)} operations under plan {value['plan']}; "
            f"the last ended at {milliseconds(value['end_ns'])} ms"
        ),
        escape(
            f"{'simulated on a virtual clock by' if header.clock == 'virtual' else 'replayed in real time on'} {backend}"
        ),
        *([escape(form_line(value[KEY]))] if KEY in value else []),
        escape(arrivals),
        f"execution {value['execution_digest']}",
    ]
    if header.clock == "wall":
        lines += world_lines(value, header.scenario or {})
    else:
        lines.append(f"outcomes: {_outcomes(value['outcomes'])}")
    if header.clock != "wall" and value["unfinished"]:
        lines.append(f"[red]{value['unfinished']} operations could never be released[/red]")
    lines.append(f"written to {escape(value['output'])}, as execution {escape(value['name'])}")
    return lines


def _outcomes(counts: dict[str, int]) -> str:
    """How operations ended; what was not done stands out."""
    told = [
        f"[red]{count:,} {name}[/red]" if name in ("refused", "unfinished") else f"{count:,} {name}"
        for name, count in counts.items()
    ]
    refused = " (larger than any server, and not run: oversized=outcome)" if "refused" in counts else ""
    return (", ".join(told) or "none") + refused


def _simulator(asked: str) -> "Simulator":
    forms: dict[str, Simulator] = {"fast": "fast", "step": "step"}
    if asked not in forms:
        raise UsageError(
            f"--simulator {asked[:40]}: no such form",
            code="replay.simulator",
            hint=f"one of {', '.join(forms)}",
        )
    return forms[asked]


def _detail(asked: list[str], backend: str) -> list[str]:
    """The detail tables asked for; steps come with their runs."""
    from semtrace.replay.run import DETAIL

    unknown = sorted(set(asked) - set(DETAIL))
    if unknown:
        raise UsageError(
            f"--detail {unknown[0][:60]}: no such table",
            code="replay.detail",
            hint=f"there are: {', '.join(DETAIL)}",
        )
    if asked and backend in ("ideal", "http"):
        raise UsageError(
            f"--detail: backend {backend} has no detail tables",
            code="replay.detail",
            hint="--engine runs on a simulated engine, which has"
            if backend == "ideal"
            else "a vLLM server can write down its steps: semtrace join",
        )
    return asked


def _scenario(
    path: Path | None,
    arrivals: str | None,
    copies: int | None,
    backend: str | None,
    engine: str | None,
    settings: list[str],
    trace: "Trace",
    *,
    at: dict[str, str | None],
    mode: str | None,
) -> "Scenario":
    from semtrace.replay.scenario import Scenario

    values: dict[str, Any] = Scenario.read(path).as_json() if path is not None else {}
    if arrivals is not None:
        values["arrivals"] = arrivals_of(arrivals)
    if copies is not None:
        values["copies"] = copies
    chosen = dict(values.get("backend", {}))
    if mode is not None:
        values["mode"] = _mode(mode)
    if backend is None and engine is not None:
        backend = "engine"
    if backend is None and at["url"] is not None:
        backend = "http"
    if backend is not None and backend != chosen.get("name"):
        chosen = {"name": backend}
    changes: dict[str, int | float | bool | str] = {}
    changes.update(setting_of(setting) for setting in settings)
    changes.update({name: text for name, text in at.items() if text is not None})
    if chosen.get("name") == "engine":
        chosen["settings"] = _engine(chosen.get("settings"), engine, changes, trace)
    elif engine is not None:
        raise UsageError(
            f"--engine does not go with backend {chosen.get('name', 'ideal')}", code="replay.engine"
        )
    elif changes:
        from semtrace.records.document import with_changes

        if chosen.get("name", "ideal") == "ideal":
            _refuse_engine_keys(changes)

        chosen["settings"] = with_changes(chosen.get("settings", {}), changes)
    if chosen:
        values["backend"] = chosen
    return Scenario.parse(values, path=str(path) if path is not None else "options")


def _mode(asked: str) -> str:
    """The mode of an option `--mode`, as scenarios write it."""
    modes = ("length-locked", "token-locked")
    if asked.replace("_", "-") not in modes:
        raise UsageError(
            f"--mode {asked[:40]}: no such mode",
            code="replay.mode",
            requirement="ST-SCN-010",
            hint=f"one of {', '.join(modes)}",
        )
    return asked.replace("-", "_")


def _engine(
    given: dict[str, Any] | None, name: str | None, changes: dict[str, Any], trace: "Trace"
) -> dict[str, Any]:
    """The engine document: the scenario's own, unless another is named, with what is changed of it."""
    from semtrace.engine.document import change_engine, parse_engine, read_engine

    if given and "engine" in given:
        raise UsageError(
            "an engine is written out here, not named",
            code="replay.engine",
            path="backend.settings.engine",
            hint="leave settings out and name it with --engine, or write out what semtrace engines NAME prints",
        )
    if given and name is None:
        return parse_engine(change_engine(given, changes), path="backend.settings", trace=trace).as_json()
    return read_engine(name, changes, trace=trace).as_json()


def _refuse_engine_keys(changes: dict[str, Any]) -> None:
    """Refuse settings of an engine where there is none: who sets them has left it out."""
    from semtrace.engine.document import EngineDocument
    from semtrace.replay.ideal import IdealSettings

    for key in changes:
        first = key.partition(".")[0]
        if first in EngineDocument.model_fields and first not in IdealSettings.model_fields:
            raise UsageError(
                f"--set {key[:60]}: a setting of a simulated engine, and this replay has none: its backend is ideal",
                code="replay.set",
                hint="give --engine too; semtrace engines lists the ready ones",
            )


def setting_of(setting: str) -> tuple[str, int | float | bool | str]:
    """Key and value of an option `--set KEY=VALUE`."""
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise UsageError(f"--set {setting}: must be KEY=VALUE", code="replay.set")
    return key, _setting(text, setting)


def _setting(text: str, setting: str) -> int | float | bool | str:
    """A setting's value: a whole number where it is one, true, false, a decimal number, else the text."""
    if re.fullmatch(r"-?\d+", text):  # \d has digits of all scripts, of which `whole` refuses most
        return whole(text, f"--set {setting[:60]}", least=-LARGEST)
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"-?[0-9]{1,15}\.[0-9]{1,15}", text):
        return float(text)
    return text


def arrivals_of(text: str) -> dict[str, Any]:
    """The arrivals that an option `--arrivals` stands for."""
    kind, *numbers = text.split(":")
    form = {
        "recorded": ("recorded", ()),
        "together": ("together", ()),
        "poisson": ("poisson", ("mean_ns", "seed")),
        "closed-loop": ("closed_loop", ("users", "think_ns")),
    }.get(kind)
    hint = "recorded, together, poisson:MEAN_NS[:SEED] or closed-loop:USERS[:THINK_NS]; times are whole ns"
    what = f"--arrivals {text if len(text) < 60 else text[:60] + '…'}"
    if form is None or len(numbers) > len(form[1]) or (form[1] and not numbers):
        raise UsageError(f"{what}: not understood", code="replay.arrivals", hint=hint)
    return {
        "kind": form[0],
        **{key: whole(number, what, hint=hint) for key, number in zip(form[1], numbers, strict=False)},
    }
