"""The commands `doctor` and `join`, and what `replay` needs beside it to run in the world: stopping, progress, lateness."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semtrace.cli.common import (
    ForceOption,
    JsonOption,
    bundle_path,
    command,
    emit,
    finding_lines,
    milliseconds,
    open_execution,
    progress,
)
from semtrace.errors import ExitCode

if TYPE_CHECKING:
    from rich.console import RenderableType

    from semtrace.records.execution import Execution
    from semtrace.replay.controller import Clock

BETWEEN_S = 0.5
"""Time between two lines of progress, in s."""


@command
def doctor(
    url: Annotated[
        str, typer.Option("--url", metavar="URL", help="The server, such as http://127.0.0.1:8000.")
    ],
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="The model; the only one of the server if left out."),
    ] = None,
    api_key_env: Annotated[
        str, typer.Option("--api-key-env", metavar="VARIABLE", help="The environment variable with the key.")
    ] = "OPENAI_API_KEY",
    json_output: JsonOption = False,
) -> ExitCode:
    """Ask a server what it can do, and say in which modes traces can be replayed on it.

    A few short requests are sent to it.
    """
    from semtrace.live.doctor import examine
    from semtrace.live.settings import HttpSettings, read_key

    settings = HttpSettings.parse(
        {"url": url, "api_key_env": api_key_env, **({} if model is None else {"model": model})},
        path="options",
    )
    found = examine(settings, read_key(settings))
    value = found.as_json()
    emit(value, as_json=json_output, text=lambda: _text(value))
    return ExitCode.OK if value["modes"] else ExitCode.FINDINGS


@command
def join(
    execution: Annotated[
        str, typer.Argument(metavar="EXEC", help="A replay on the server: its bundle, or BUNDLE#NAME.")
    ],
    logs: Annotated[
        list[Path],
        typer.Argument(metavar="STEPLOG...", help="What the server's engines wrote down of their steps."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="The bundle to write.")],
    name: Annotated[str, typer.Option("--name", help="Name of the execution in its bundle.")] = "replay",
    force: ForceOption = False,
    json_output: JsonOption = False,
) -> ExitCode:
    """Join a replay with the steps that a vLLM server wrote down, by the ids of requests.

    The execution then says what was scheduled in which step, on which blocks, and the audit judges it. Where vLLM's own events and counts
    say otherwise than its scheduler's record, or the times and counts of a log make no valid execution, the command tells and ends with
    status 1.
    """
    from semtrace.check.executions import check_execution
    from semtrace.live.vllm.steps import join as joined_with
    from semtrace.live.vllm.steps import read_steps
    from semtrace.store.bundle import write_bundle
    from semtrace.store.container import check_output
    from semtrace.store.digests import execution_digest, show

    check_output(output, overwrite=force, inputs=[bundle_path(execution)[0], *logs])
    run = open_execution(execution)
    with progress("reading steps", quiet=json_output) as update:
        steps = read_steps(logs, lambda lines: update(lines, lines))
    made = joined_with(run, steps)
    write_bundle(output, executions={name: made}, overwrite=force)
    value: dict[str, Any] = {
        "output": str(output),
        "name": name,
        "execution_digest": show(execution_digest(made)),
        "detail": made.header.detail,
        **{table: made[table].rows for table in made.header.detail},
        "vllm_steps": made.header.environment.get("vllm_steps"),
    }
    findings = check_execution(made, None)
    value["findings"] = [each.as_dict() for each in findings]
    emit(value, as_json=json_output, text=lambda: [*_joined_text(value), *finding_lines(findings)])
    return ExitCode.FINDINGS if steps.compared.contradictions or findings else ExitCode.OK


def _joined_text(value: dict[str, Any]) -> "list[RenderableType]":
    from rich.markup import escape

    rows = ", ".join(f"{value[table]:,} {table.replace('_', ' ')}" for table in value["detail"])
    told = value["vllm_steps"]
    compared = told["compared"]
    moves = compared["stored"] or compared["removed"]
    counts = ", ".join(
        (
            f"{compared['steps']:,} steps",
            f"{compared['stored']:,} blocks stored and {compared['removed']:,} removed"
            if moves
            else "no events of its cache",
            f"{compared['requests']:,} ended requests" if compared["requests"] else "no ends of requests",
        )
    )
    wrong = [f"vLLM says otherwise, {escape(each)}" for each in compared["first"]]
    if compared["contradictions"] > len(wrong):
        wrong.append(f"and {compared['contradictions'] - len(wrong):,} more of these")
    return [
        f"{told['requests']:,} requests of the replay found in the log, {told['others']:,} others in it; {rows}",
        f"held against vLLM's own word: {counts}; {compared['contradictions']:,} contradictions",
        *wrong,
        f"execution {value['execution_digest']}",
        f"written to {escape(value['output'])}, as execution {escape(value['name'])}",
    ]


def _text(value: dict[str, Any]) -> "list[RenderableType]":
    from rich.markup import escape
    from rich.table import Table

    facts = [f"server {value['url']}"]
    for name, key in (
        ("model", "model"),
        ("longest request", "max_model_len"),
        ("vocabulary", "vocabulary_size"),
    ):
        if value[key] is not None:
            shown = f"{value[key]:,}" if isinstance(value[key], int) else str(value[key])
            facts.append(f"{name} {shown}")
    software = ", ".join(
        f"{word} {value[key]}" for word, key in (("behind", "server"), ("version", "version")) if value[key]
    )
    table = Table(box=None, pad_edge=False)
    for heading in ("what", "found", "how it is known"):
        table.add_column(heading, overflow="fold")
    colour = {"yes": "green", "no": "red"}
    asked = [probe for probe in value["probes"] if probe["asked"]]
    for probe in asked:
        shade = colour.get(probe["found"], "yellow")
        table.add_row(
            escape(probe["name"].replace("_", " ")),
            f"[{shade}]{probe['found']}[/{shade}]",
            escape(probe["evidence"]),
        )
    lines: list[RenderableType] = [escape(", ".join([*facts, *([software] if software else [])])), table]
    left: dict[str, list[str]] = {}
    for probe in value["probes"]:
        if not probe["asked"]:
            left.setdefault(probe["evidence"], []).append(probe["name"].replace("_", " "))
    lines += [escape(f"{why}: {', '.join(names)}") for why, names in left.items()]
    for mode, how in value["modes"].items():
        lines.append(escape(f"can replay {mode.replace('_', '-')}: {how}"))
    lines += [escape(f"but no traces with {each}") for each in value["without"]]
    for mode, why in value["refused"].items():
        lines.append(f"[red]cannot replay {mode.replace('_', '-')}[/red]: {escape(why)}")
    if not value["modes"]:
        lines.append("[red]no trace can be replayed on it[/red]")
    return lines


@contextlib.contextmanager
def stoppable() -> Iterator[Callable[["Clock"], None]]:
    """Ctrl-C and SIGTERM end a run early and in order; the second one ends the program.

    Yields:
        What to tell of the run's clock.
    """
    before: dict[int, Any] = {}

    def begun(clock: "Clock") -> None:
        def stop(_number: int, _frame: object) -> None:
            restore()
            clock.stop()

        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, stop)

    def restore() -> None:
        while before:
            number, handler = before.popitem()
            signal.signal(number, handler)

    try:
        yield begun
    finally:
        restore()


@contextlib.contextmanager
def plain_progress(what: str, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Progress on standard error, as one short line now and then: nothing that could delay a release.

    Yields:
        A function to be called with (done, in all).
    """
    if quiet or not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    state = {"next": time.monotonic() + BETWEEN_S, "shown": 0.0}

    def update(done: int, total: int) -> None:
        now = time.monotonic()
        if now >= state["next"]:
            state["next"], state["shown"] = now + BETWEEN_S, 1.0
            os.write(2, f"\r{what}: {done:,} of {total:,} operations ended".encode())

    try:
        yield update
    finally:
        if state["shown"]:
            os.write(2, b"\r\x1b[K")


def in_the_world(execution: "Execution") -> dict[str, Any]:
    """What a replay in real time adds to the result, as JSON-ready fields; nothing for one on a virtual clock."""
    import numpy as np

    from semtrace.records.enums import EventOutcome

    if execution.header.clock != "wall":
        return {}
    numbers, counts = np.unique(execution.events.ints("outcome"), return_counts=True)
    return {
        "lateness": _lateness(execution),
        "outcomes": {
            EventOutcome(number).name.lower(): count
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True)
        },
        "environment": execution.header.environment,
    }


def _lateness(execution: "Execution") -> dict[str, Any] | None:
    """How long after their release model operations were submitted; None if none was. Times in ns."""
    import numpy as np

    from semtrace.records.columns import NULL

    events = execution.events
    submitted, released = events.ints("submitted_ns"), events.ints("released_ns")
    late = (submitted - released)[
        (events.ints("attempts") != NULL) & (submitted != NULL) & (released != NULL)
    ]
    if not len(late):
        return None
    p50, p999 = np.percentile(late, (50, 99.9)).tolist()
    within = int((late <= 1_000_000).sum())
    return {
        "submitted": len(late), "within_1ms": within,
        "p50_ns": int(p50), "p99_9_ns": int(p999), "most_ns": int(late.max()),
    }  # fmt: skip


def world_lines(value: dict[str, Any], scenario: "Mapping[str, Any]") -> "list[RenderableType]":
    """The same for people; the scenario as the header has it."""
    from rich.markup import escape

    lines: list[RenderableType] = []
    late = value["lateness"]
    if late is not None:
        held = "; waiting for room among the concurrent ones is in it, and not in the audit's lateness"
        lines.append(
            f"{late['submitted']:,} model operations were sent (tools do not count here), {100 * late['within_1ms'] / late['submitted']:.2f} % within 1 ms of "
            f"their release (P50 {milliseconds(late['p50_ns'])} ms, P99.9 {milliseconds(late['p99_9_ns'])} ms, "
            f"at most {milliseconds(late['most_ns'])} ms{held if scenario.get('concurrency') else ''})"
        )
    outcomes = ", ".join(f"{count:,} {name}" for name, count in value["outcomes"].items())
    lines.append(f"outcomes: {outcomes or 'none'}")
    requests = value["environment"].get("requests", {})
    failures: dict[str, int] = requests.get("failures", {})
    resumed: list[dict[str, Any]] = value["environment"].get("resumed", [])
    if failures:
        lines.append("failed attempts since it went on:" if resumed else "failed attempts:")
        lines += [f"  {count:,} × {escape(said)}" for said, count in failures.items()]
    lines += [escape(line) for line in _counted(value["environment"])]
    lines += [escape(line) for line in _resumed(resumed)]
    if value["unfinished"]:
        on = (
            "a closed loop cannot be resumed"
            if scenario.get("arrivals", {}).get("kind") == "closed_loop"
            else f"go on with --resume {escape(value['output'])}"
        )
        lines.append(f"[red]stopped: {value['unfinished']:,} operations had not ended[/red]; {on}")
    return lines


def _counted(environment: "Mapping[str, Any]") -> "Iterator[str]":
    """Where the server counted otherwise than was recorded, prompts and answers."""
    requests = environment.get("requests", {})
    takes_ids = environment.get("server", {}).get("probes", {}).get("token_prompts") == "yes"
    prompts: dict[str, int] = requests.get("prompt_counts", {})
    if prompts.get("other"):
        mend = ""
        if requests.get("inputs") == "text":
            mend = (
                "; --set inputs=synthetic keeps the numbers" if takes_ids else ": it counts texts its own way"
            )
        yield (
            f"prompts: {prompts['other']:,} of {sum(prompts.values()):,} have another number of tokens on this server "
            f"than recorded{mend}"
        )
    answers: dict[str, int] = requests.get("answer_counts", {})
    of = f"of {sum(answers.values()):,}"
    if answers.get("other"):
        yield (
            f"answers: {answers['other']:,} {of} have another number of output tokens than recorded: the server did not "
            "hold their lengths, and the audit names them"
        )
    if answers.get("unknown"):
        yield f"answers: the server does not say of {answers['unknown']:,} {of} how many output tokens they have"


def _resumed(resumed: "Sequence[Mapping[str, Any]]") -> "Iterator[str]":
    """What stops have done to the times of a run that went on after them."""
    for each in resumed:
        at = f" at {each['stopped_url']}" if "stopped_url" in each else ""
        moved = each["later_ns"]
        yield (
            f"went on after a stop{at}, with {each['kept_instances']:,} instances kept: the others arrived "
            f"{milliseconds(abs(moved))} ms {'later' if moved >= 0 else 'earlier'} than the run that was stopped had them"
        )
    if resumed:
        yield (
            "times go on over the stop: it counts in the last end, in goodput and in the mean width, and in no latency "
            "or lateness"
        )
