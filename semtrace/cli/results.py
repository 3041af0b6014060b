"""Commands on executions: `audit`, `measure`, `compare`."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semtrace.cli.common import (
    ExecutionArgument,
    JsonOption,
    TraceArgument,
    command,
    emit,
    finding_lines,
    milliseconds,
    open_execution,
    open_trace,
    plan_of,
)
from semtrace.cli.numbers import LARGEST
from semtrace.cli.served import is_told, served
from semtrace.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from fractions import Fraction

    from rich.console import RenderableType

PlanOption = Annotated[
    Path | None,
    typer.Option(
        "--plan", metavar="PLAN", help="The plan that was to be followed; the execution's own if left out."
    ),
]


@command
def audit(
    trace: TraceArgument,
    execution: ExecutionArgument,
    plan: PlanOption = None,
    tolerance_ns: Annotated[
        int | None,
        typer.Option(
            "--tolerance-ns",
            min=0,
            max=LARGEST,
            help="Allowed lateness, for wall clocks; as declared if left out, but not more than 1 ms.",
        ),
    ] = None,
    measures: Annotated[
        Path | None,
        typer.Option(
            "--measures", metavar="FILE", help="Reported measures (measure --json), to be recomputed."
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="List the rules too that had nothing to judge. --json has all.")
    ] = False,
    json_output: JsonOption = False,
) -> ExitCode:
    """Audit an execution: was the work the recorded work, and was every operation released when the plan says.

    Exit code 0: clean. 1: violations, each with its requirement. 3: no violation, and too little could be judged.
    """
    from semtrace.measure.audit import audit as run

    bundle = open_trace(trace)
    ran = open_execution(execution, bundle)
    reported = _reported(measures) if measures is not None else None
    given = plan_of(plan, ran) if plan is not None else None  # what the header holds is judged
    report = run(bundle.trace, ran, given, tolerance_ns=tolerance_ns, measures=reported)
    value = report.as_dict()

    def text() -> "list[RenderableType]":
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for heading, justify in (
            ("requirement", "left"),
            ("rule", "left"),
            ("judged", "right"),
            ("violations", "right"),
            ("not judged", "left"),
        ):
            table.add_column(heading, justify=justify)  # type: ignore[arg-type]  # literals in a tuple
        idle = [] if every else [r for r in report.rules if not (r.judged or r.violations or r.not_judged)]
        for rule in report.rules:
            if rule in idle:
                continue
            skipped = "; ".join(f"{count:,}: {reason}" for reason, count in rule.not_judged.items())
            colour = "red" if rule.violations else "green" if rule.judged else "dim"
            table.add_row(
                f"[{colour}]{rule.requirement}[/]",
                rule.title,
                f"{rule.judged:,}",
                f"{rule.violations:,}",
                skipped,
            )
        parts: list[RenderableType] = [table]
        if idle:
            parts.append(
                f"{len(idle)} rules more had nothing to judge: the execution records nothing that they are about "
                "(--all lists them)"
            )
        if report.lateness is not None:
            late = report.lateness.as_dict()
            shown = ", ".join(
                f"{key} {milliseconds(late[key])}" for key in ("p50", "p99", "p99.9", "max") if key in late
            )
            parts.append(
                f"lateness of {late['count']:,} submissions in ms, read at the {late['measured_at']}: {shown}"
            )
        if report.notes:
            parts.append(
                "notes (times that contradict each other, but were not observed closely enough to judge):"
            )
            parts.extend(f"  {note}" for note in map(_escaped, report.notes))
        parts.extend(finding_lines(report.findings))
        allowed = f"tolerance {value['tolerance_ns']:,} ns"
        if value["declared_tolerance_ns"] != value["tolerance_ns"]:
            allowed += f" (the execution declares {value['declared_tolerance_ns']:,} ns)"
        parts.append(allowed)
        parts.extend(f"  {_escaped(gap)}" for gap in report.gaps if not report.findings)
        colour = "green" if report.clean else "red" if report.findings else "yellow"
        parts.append(f"[{colour}]{report.verdict}[/]")
        return parts

    emit(value, as_json=json_output, text=text)
    if report.findings:
        return ExitCode.FINDINGS
    return ExitCode.OK if report.clean else ExitCode.NOTHING_RAN


def _reported(path: Path) -> dict[str, Any]:
    from semtrace.records.document import read_values

    reported = read_values(path)
    if not isinstance(reported, dict):
        raise UsageError("must hold what measure --json prints", code="audit.measures", path=str(path))
    return {
        name: value for name, value in reported.items() if name != "requests"
    }  # no measure of the standard


def _escaped(value: object) -> str:
    from rich.markup import escape

    return escape(str(value))


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
    emit(value, as_json=json_output, text=lambda: _measures_text(value))


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


def _rows(title: str, headings: "Sequence[str]", rows: "Sequence[Sequence[str]]") -> "RenderableType":
    from rich.console import Group
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.show_header = any(headings)
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="left" if at == 0 else "right")
    for row in rows:
        table.add_row(*row)
    return Group(f"[bold]{title}[/bold]", table)  # a title of the table's own is folded to its width


def _measures_text(value: dict[str, Any]) -> "list[RenderableType]":
    def distribution(name: str, values: "Mapping[str, Any]") -> list[str]:
        shown = [milliseconds(values.get(key)) for key in ("min", "p50", "p95", "max")]
        return [name, f"{values['count']:,}", f"{values['unknown']:,}", *shown]

    parts: list[RenderableType] = [
        f"{_escaped(value['backend'])}, {value['mode']}, plan {_escaped(value['plan'])}",
        _rows(
            "times in ms",
            ("", "known", "unknown", "min", "p50", "p95", "max"),
            [
                distribution("root latency", value["root_latency"]),
                distribution("last finish", value["last_finish"]),
                distribution("lateness", value["lateness"]),
                *(
                    distribution(f"stage {_escaped(stage['name'])}", stage["time_ns"])
                    for stage in value["stages"]
                ),
            ],
        ),
    ]
    parts += _fell_short(value["fell_short"], "")
    path = value["path"]
    if path["total"]:
        shares = [
            [
                part.removesuffix("_ns").replace("_", " "),
                milliseconds(amount),
                f"{amount / path['total']:.1%}",
            ]
            for part, amount in path.items()
            if part not in {"total", "unknown"} and amount
        ]
        parts.append(
            _rows(
                f"completed path, summed over {len(value['instances']) - path['unknown']} instances: where root latency went",
                ("part", "ms", "share"),
                shares,
            )
        )
    width = value["width"]
    mean = "unknown" if width["mean"] is None else f"{width['mean']:.2f}"
    parts.append(f"width: greatest {width['max']}, mean {mean}")
    agents = [
        [
            _escaped(agent["agent"] or "(none)"),
            *(
                milliseconds(agent[key]["p50"] if agent[key]["count"] else None)
                for key in ("sync_wait_ns", "queue_ns")
            ),
            str(agent["context_length"]["p50"]) if agent["context_length"]["count"] else "unknown",
        ]
        for agent in value["agents"]
    ]
    if agents:
        parts.append(
            _rows("agents (medians)", ("agent", "waits at joins, ms", "queue, ms", "prompt tokens"), agents)
        )
    if is_told(value["engine"]):
        parts.append(_engine(value["engine"], value["requests"]))
    if "batches" in value["engine"]:  # steps were recorded
        parts += _batches(value["engine"])
    parts += _servers(value["requests"]["servers"])
    if value["attainment"] is not None:
        parts.append(_attainment(value))
    return parts


def _fell_short(value: dict[str, Any], whose: str) -> list[str]:
    """What did not end as the work says, if anything did not."""
    parts = []
    if value["operations"]:
        outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in value["outcomes"].items() if count)
        parts.append(
            f"{whose}{value['operations']:,} operations of {value['instances']:,} instances did not end as recorded "
            f"({outcomes}): these instances have no latency, and are not on time"
        )
    if value["other_lengths"]:
        parts.append(f"{whose}{value['other_lengths']:,} answers have another number of tokens than recorded")
    return parts


def _servers(servers: "Sequence[Mapping[str, int]]") -> "list[RenderableType]":
    """The load of each server, where there are several."""
    if len(servers) < 2:
        return []
    rows = [[f"{each[name]:,}" for name in each] for each in servers[:_MOST_CLASSES]]
    headings = ("server", "calls", "prompt tokens", "of these found", "output tokens")
    return [_rows("load of servers", headings, rows)]


def _engine(value: dict[str, Any], requests: "Mapping[str, Any]") -> "RenderableType":
    """What the report says of requests, steps and memory; what the record does not tell, with the reason."""

    def ratio(name: str, values: "Mapping[str, Any]") -> list[str]:
        return [name, "unknown" if values["value"] is None else f"{values['value']:.3f}"]

    again = value.get("recompute", {})
    rows = [
        ratio("prefill factor (prompt tokens computed / given)", value["prefill_factor"]),
        ratio("hit share", value["hit_share"]),
        *(
            [f"tokens recomputed after {cause}", f"{tokens:,}"]
            for cause, tokens in again.items()
            if tokens is not None
        ),
        [
            "preemptions",
            "unknown" if value["preemptions"]["sum"] is None else f"{value['preemptions']['sum']:,}",
        ],
        ["queue p50 / p95, ms", _pair(value["queue_ns"])],
        ["residence p50 / p95, ms", _pair(value["residence_ns"])],
        ["first token p50 / p95, ms", _pair(requests["ttft"])],
        ["output tokens a second", _rate(requests["output_tokens_per_second"])],
    ]
    if "batches" in value:
        rows += [
            ["rows a step, p50 / p95", "{p50:,.0f} / {p95:,.0f}".format(**value["batches"]["rows"])],
            ratio("time of steps with more than 128 rows", value["batches"]["large_time"]),
        ]
    if "work" in value:
        rows.append(
            [
                "modelled FLOPs / bytes (intensity)",
                "{flops:.3e} / {bytes:.3e} ({intensity:.1f})".format(**value["work"]),
            ]
        )
    rows += [
        [f"KV of {tier}, byte-seconds", f"{held:.4g}"]
        for tier, held in value.get("kv_byte_seconds", {}).items()
    ]
    if "idle_kv_byte_seconds" in value:
        rows.append(["KV that no call holds, byte-seconds", f"{value['idle_kv_byte_seconds']:.4g}"])
    rows += [
        [f"bytes over link {_escaped(link)}, {way}", f"{size:,}"]
        for link, ways in value.get("moved_bytes", {}).items()
        for way, size in ways.items()
    ]
    if "critical_inversions" in value:
        inverted = value["critical_inversions"]
        rows.append(
            [
                "critical calls that waited for others' memory",
                f"{inverted['part']:,} of {inverted['whole']:,}",
            ]
        )
    absent: dict[str, list[str]] = {}
    for each in value["absent"]:
        absent.setdefault(each["reason"], []).append(each["measure"].replace("_", " "))
    rows += [[f"unknown: {', '.join(names)}", _escaped(reason)] for reason, names in absent.items()]
    return _rows("engine", ("", ""), rows)


_MOST_CLASSES = 20
"""Classes of calls that are listed; `--json` has all."""


def _batches(value: dict[str, Any]) -> "list[RenderableType]":
    """Who is in steps together: rows by stage and template, and the time that classes of calls share with others."""

    def share(values: "Mapping[str, Any]") -> str:
        return "unknown" if values["value"] is None else f"{values['value']:.3f}"

    shared = value["co_batching"]
    together = {(each["name"], each["template"]): each for each in shared["stages"]}
    stages = [
        [
            _escaped(each["name"]),
            _escaped(each["template"]),
            "{p50:,.0f} / {p95:,.0f}".format(**each["rows"]),
            f"{each['large_steps']:,}",
            share(together[each["name"], each["template"]]),
        ]
        for each in value["batches"]["stages"][:_MOST_CLASSES]
    ]
    parts: list[RenderableType] = []
    if stages:
        headings = ("stage", "template", "rows p50 / p95", "over 128", "time with other stages")
        parts.append(_rows("steps by stage", headings, stages))
    if 1 < len(shared["tasks"]) <= _MOST_CLASSES:
        tasks = [[_escaped(each["name"]), share(each)] for each in shared["tasks"]]
        parts.append(_rows("steps by task", ("task", "time with other tasks"), tasks))
    return parts


def _rate(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.1f}"


def _pair(values: "Mapping[str, Any]") -> str:
    return f"{milliseconds(values['p50'])} / {milliseconds(values['p95'])}" if values["count"] else "unknown"


def _attainment(value: dict[str, Any]) -> str:
    attained, goodput = value["attainment"], value["goodput_per_second"]
    deadline = value["deadline"]["ns"]
    which = "each task's own deadline" if deadline is None else f"the deadline of {milliseconds(deadline)} ms"
    rate = "" if goodput is None else f"; goodput {goodput:.4g} tasks/s"
    return f"attainment: {attained['part']} of {attained['whole']} instances by {which}{rate}"


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
        ("queue p50 / p95, ms", lambda side: _pair(side["engine"]["queue_ns"])),
        ("first token p50 / p95, ms", lambda side: _pair(side["requests"]["ttft"])),
        ("output tokens a second", lambda side: _rate(side["requests"]["output_tokens_per_second"])),
    )
    return [[name, *(get(side) for side in sides)] for name, get in shown]


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
        row("plan", lambda side: _escaped(side["plan"])),
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
        _rows("the same work, twice", ("", _escaped(first), _escaped(second)), rows)
    ]
    for side, name in zip(sides, (first, second), strict=True):
        parts += _fell_short(side["fell_short"], f"{_escaped(name)}: ")
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
            f"[yellow]not like with like[/yellow]: {_escaped(which)}. The difference is not the plan's alone."
        )
    if value["setup_differences"]:
        from semtrace.measure.setup import Difference

        parts.append("[yellow]run differently[/yellow], beside the plan:")
        parts.extend(f"  {_escaped(Difference(**each))}" for each in value["setup_differences"])
    parts.extend(
        f"{name.replace('_', ' in the ')} execution: {len(value[name])} instances"
        for name in ("only_first", "only_second")
        if value[name]
    )
    return parts
