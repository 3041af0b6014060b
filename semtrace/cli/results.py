"""Commands on what executions took: `measure`, `compare`."""

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semtrace.cli.common import (
    ExecutionArgument,
    JsonOption,
    PlanOption,
    TraceArgument,
    command,
    emit,
    milliseconds,
    open_execution,
    open_trace,
    plan_of,
)
from semtrace.cli.measure_text import escaped, fell_short, measures_text, pair, rate, rows_of
from semtrace.cli.numbers import LARGEST
from semtrace.cli.served import is_told, served
from semtrace.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from fractions import Fraction

    from rich.console import RenderableType

DeadlineOption = Annotated[
    int | None,
    typer.Option(
        "--deadline-ns", min=1, max=LARGEST, help="Deadline of every instance, counted from its arrival."
    ),
]
WindowOption = Annotated[
    int | None,
    typer.Option(
        "--window-ns",
        min=1,
        max=LARGEST,
        help="Instances that arrive before this time count for attainment and goodput.",
    ),
]


@command
def measure(
    trace: TraceArgument,
    execution: ExecutionArgument,
    plan: PlanOption = None,
    deadline_ns: DeadlineOption = None,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="EXEC",
            help="A low-load run of the same work: the deadline is --multiple times the P95 of its root latency.",
        ),
    ] = None,
    multiple: Annotated[
        str | None,
        typer.Option(
            "--multiple",
            help="Deadline as a multiple of the reference P95, usually 1.25 to 2; 1.5 if left out.",
        ),
    ] = None,
    window_ns: WindowOption = None,
    json_output: JsonOption = False,
) -> None:
    """Measure an execution: root latency and its parts, width, stages, agents, attainment, goodput."""
    from semtrace.measure.metrics import measure as run

    bundle = open_trace(trace)
    ran = open_execution(execution, bundle)
    if multiple is not None and reference is None:
        raise UsageError("--multiple belongs to --reference", code="measure.options")
    if reference is not None:
        if deadline_ns is not None:
            raise UsageError("--deadline-ns and --reference exclude each other", code="measure.options")
        deadline_ns = run(bundle.trace, open_execution(reference, bundle)).deadline(
            _multiple(multiple or "1.5")
        )
    measures = run(bundle.trace, ran, plan_of(plan, ran), deadline_ns=deadline_ns, window_ns=window_ns)
    value = {**measures.as_dict(), "requests": served(ran)}
    emit(value, as_json=json_output, text=lambda: measures_text(value))


def _multiple(text: str) -> "Fraction":
    from fractions import Fraction

    value = Fraction(text) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) else Fraction(0)
    if value <= 0:
        raise UsageError(
            f"--multiple {text[:60]}: must be a positive decimal number",
            code="measure.multiple",
            hint="at most 9 digits before and after the point, for example 1.5",
        )
    return value


@command
def compare(
    trace: TraceArgument,
    first: Annotated[str, typer.Argument(metavar="EXEC_A", help="The reference execution.")],
    second: Annotated[str, typer.Argument(metavar="EXEC_B", help="The execution compared with it.")],
    deadline_ns: DeadlineOption = None,
    window_ns: WindowOption = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=LARGEST, help="Seed of the bootstrap.")] = 0,
    json_output: JsonOption = False,
) -> None:
    """Compare two executions of the same work, instance by instance; refuses different work."""
    from semtrace.measure.compare import compare as run

    bundle = open_trace(trace)
    sides = [open_execution(name, bundle) for name in (first, second)]
    comparison = run(bundle.trace, *sides, deadline_ns=deadline_ns, window_ns=window_ns, seed=seed)
    value = comparison.as_dict()
    for side, made, ran in zip(
        ("first", "second"), (comparison.first, comparison.second), sides, strict=True
    ):
        value[side]["engine"] = made.engine.as_dict()
        value[side]["requests"] = served(ran)
    emit(value, as_json=json_output, text=lambda: _comparison_text(value, first, second))


def _comparison_text(value: dict[str, Any], first: str, second: str) -> "list[RenderableType]":
    sides = (value["first"], value["second"])

    def row(name: str, get: "Callable[[dict[str, Any]], str]") -> list[str]:
        return [name, *(get(side) for side in sides)]

    widths = value["width"]
    rows = [
        row("plan", lambda side: escaped(side["plan"])),
        row("instances", lambda side: f"{side['instances']:,}"),
        row("root latency p50, ms", lambda side: milliseconds(side["root_latency"].get("p50"))),
        row("root latency p95, ms", lambda side: milliseconds(side["root_latency"].get("p95"))),
        ["width, greatest", *map(str, widths["max"])],
        ["width, mean", *("unknown" if mean is None else f"{mean:.2f}" for mean in widths["mean"])],
    ]
    attained = [side["attainment"] for side in sides]
    if any(attained):
        rows.append(
            [
                "on time",
                *("no deadline" if one is None else f"{one['part']} of {one['whole']}" for one in attained),
            ]
        )
    rows += _requests_compared(sides)
    difference = value["root_latency_difference"]
    ratio = value["root_latency_ratio"]
    parts: list[RenderableType] = [
        rows_of("the same work, twice", ("", escaped(first), escaped(second)), rows)
    ]
    for side, name in zip(sides, (first, second), strict=True):
        parts += fell_short(side["fell_short"], f"{escaped(name)}: ")
    if difference["count"]:
        change = "" if ratio["p50"] is None else f" ({ratio['p50'] - 1:+.2%} in the median)"
        parts.append(
            f"{difference['count']:,} pairs: second - first of root latency, median {milliseconds(difference['p50'])} ms, "
            f"from {milliseconds(difference['min'])} to {milliseconds(difference['max'])} ms{change}"
        )
    interval = difference["median_interval"]
    if interval is not None:
        parts.append(
            f"  {interval['level_percent']} % bootstrap interval of the median: "
            f"{milliseconds(interval['low'])} to {milliseconds(interval['high'])} ms"
        )
    unlike = [
        fact
        for fact in ("backend", "clock", "mode", "measured_at")
        if sides[0].get(fact) != sides[1].get(fact)
    ]
    if unlike:
        which = "; ".join(
            f"{fact.replace('_', ' ')} {sides[0].get(fact)} and {sides[1].get(fact)}" for fact in unlike
        )
        parts.append(
            f"[yellow]not like with like[/yellow]: {escaped(which)}. The difference is not the plan's alone."
        )
    if value["setup_differences"]:
        from semtrace.measure.setup import Difference

        parts.append("[yellow]run differently[/yellow], beside the plan:")
        parts.extend(f"  {escaped(Difference(**each))}" for each in value["setup_differences"])
    parts.extend(
        f"{name.replace('_', ' in the ')} execution: {len(value[name])} instances"
        for name in ("only_first", "only_second")
        if value[name]
    )
    return parts


def _requests_compared(sides: "Sequence[Mapping[str, Any]]") -> list[list[str]]:
    """What requests got of an engine, where one of two executions says so."""
    if not any(is_told(side["engine"]) for side in sides):
        return []

    def share(side: "Mapping[str, Any]") -> str:
        value = side["engine"]["hit_share"]["value"]
        return "unknown" if value is None else f"{value:.3f}"

    def preempted(side: "Mapping[str, Any]") -> str:
        count = side["engine"]["preemptions"]["sum"]
        return "unknown" if count is None else f"{count:,}"

    shown: tuple[tuple[str, Callable[[Mapping[str, Any]], str]], ...] = (
        ("hit share", share),
        ("preemptions", preempted),
        ("queue p50 / p95, ms", lambda side: pair(side["engine"]["queue_ns"])),
        ("first token p50 / p95, ms", lambda side: pair(side["requests"]["ttft"])),
        ("output tokens a second", lambda side: rate(side["requests"]["output_tokens_per_second"])),
    )
    return [[name, *(get(side) for side in sides)] for name, get in shown]
