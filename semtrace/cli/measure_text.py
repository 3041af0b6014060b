"""What `measure` and `compare` print for people."""

from typing import TYPE_CHECKING, Any

from semtrace.cli.common import milliseconds
from semtrace.cli.served import is_told

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType


def escaped(value: object) -> str:
    """A value as text in which nothing is markup."""
    from rich.markup import escape

    return escape(str(value))


def rows_of(title: str, headings: "Sequence[str]", rows: "Sequence[Sequence[str]]") -> "RenderableType":
    """A table under its title; without headings if all are empty."""
    from rich.console import Group
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.show_header = any(headings)
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="left" if at == 0 else "right")
    for row in rows:
        table.add_row(*row)
    return Group(f"[bold]{title}[/bold]", table)  # a title of the table's own is folded to its width


def measures_text(value: dict[str, Any]) -> "list[RenderableType]":
    """The measures of an execution, as `measure --json` prints them, for people."""

    def distribution(name: str, values: "Mapping[str, Any]") -> list[str]:
        shown = [milliseconds(values.get(key)) for key in ("min", "p50", "p95", "max")]
        return [name, f"{values['count']:,}", f"{values['unknown']:,}", *shown]

    parts: list[RenderableType] = [
        f"{escaped(value['backend'])}, {value['mode']}, plan {escaped(value['plan'])}",
        rows_of(
            "times in ms",
            ("", "known", "unknown", "min", "p50", "p95", "max"),
            [
                distribution("root latency", value["root_latency"]),
                distribution("last finish", value["last_finish"]),
                distribution("lateness", value["lateness"]),
                *(
                    distribution(f"stage {escaped(stage['name'])}", stage["time_ns"])
                    for stage in value["stages"]
                ),
            ],
        ),
    ]
    parts += fell_short(value["fell_short"], "")
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
            rows_of(
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
            escaped(agent["agent"] or "(none)"),
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
            rows_of("agents (medians)", ("agent", "waits at joins, ms", "queue, ms", "prompt tokens"), agents)
        )
    if is_told(value["engine"]):
        parts.append(_engine(value["engine"], value["requests"]))
    if "batches" in value["engine"]:  # steps were recorded
        parts += _batches(value["engine"])
    parts += _servers(value["requests"]["servers"])
    if value["attainment"] is not None:
        parts.append(_attainment(value))
    return parts


def fell_short(value: dict[str, Any], whose: str) -> list[str]:
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
    return [rows_of("load of servers", headings, rows)]


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
        ["queue p50 / p95, ms", pair(value["queue_ns"])],
        ["residence p50 / p95, ms", pair(value["residence_ns"])],
        ["first token p50 / p95, ms", pair(requests["ttft"])],
        ["output tokens a second", rate(requests["output_tokens_per_second"])],
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
        [f"bytes over link {escaped(link)}, {way}", f"{size:,}"]
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
    rows += [[f"unknown: {', '.join(names)}", escaped(reason)] for reason, names in absent.items()]
    return rows_of("engine", ("", ""), rows)


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
            escaped(each["name"]),
            escaped(each["template"]),
            "{p50:,.0f} / {p95:,.0f}".format(**each["rows"]),
            f"{each['large_steps']:,}",
            share(together[each["name"], each["template"]]),
        ]
        for each in value["batches"]["stages"][:_MOST_CLASSES]
    ]
    parts: list[RenderableType] = []
    if stages:
        headings = ("stage", "template", "rows p50 / p95", "over 128", "time with other stages")
        parts.append(rows_of("steps by stage", headings, stages))
    if 1 < len(shared["tasks"]) <= _MOST_CLASSES:
        tasks = [[escaped(each["name"]), share(each)] for each in shared["tasks"]]
        parts.append(rows_of("steps by task", ("task", "time with other tasks"), tasks))
    return parts


def rate(value: float | None) -> str:
    """A number a second."""
    return "unknown" if value is None else f"{value:,.1f}"


def pair(values: "Mapping[str, Any]") -> str:
    """P50 and P95 of a distribution of times, in ms."""
    return f"{milliseconds(values['p50'])} / {milliseconds(values['p95'])}" if values["count"] else "unknown"


def _attainment(value: dict[str, Any]) -> str:
    attained, goodput = value["attainment"], value["goodput_per_second"]
    deadline = value["deadline"]["ns"]
    which = "each task's own deadline" if deadline is None else f"the deadline of {milliseconds(deadline)} ms"
    rate = "" if goodput is None else f"; goodput {goodput:.4g} tasks/s"
    return f"attainment: {attained['part']} of {attained['whole']} instances by {which}{rate}"
