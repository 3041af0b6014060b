"""One point of a sweep: the replay, and its row in the table of results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from semtrace.graph.barrier import barrier
from semtrace.graph.plan import dag
from semtrace.measure.metrics import measure
from semtrace.measure.stats import Distribution
from semtrace.records.columns import NULL
from semtrace.records.enums import EventOutcome
from semtrace.replay.run import replay
from semtrace.replay.scenario import Scenario
from semtrace.store.digests import execution_digest, show, work_digest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from semtrace.graph.plan import Plan
    from semtrace.records.execution import Execution
    from semtrace.records.trace import Trace
    from semtrace.sweep.document import Point

_SKIPPED: Final = ("work_digest", "plan_digest", "plan", "mode", "clock", "measured_at", "backend")
"""Members of a report that are the same for all points, or stand in the row already."""


def evaluate(trace: Trace, point: Point) -> dict[str, Any]:
    """Replay a point and measure it.

    Returns:
        its row, in the columns of `columns.COLUMNS`; None where not known.

    Raises:
        SemtraceError: the replay is refused.
    """
    scenario = Scenario.parse(dict(point.scenario), path="sweep")
    execution = replay(trace, plan_of(trace, point), scenario, detail=point.detail)
    report = measure(trace, execution).as_dict()
    row: dict[str, Any] = {
        **grid_of(point),
        "execution_digest": show(execution_digest(execution)),
        **requests_of(execution),
    }
    _flatten(row, "ttft", first_tokens(execution).as_dict())
    if report["attainment"] is None:
        report["attainment"] = dict.fromkeys(("part", "whole", "value", "unknown"))
    for name, value in report.items():
        if name not in _SKIPPED:
            _flatten(row, name, value)
    return row


def grid_of(point: Point) -> dict[str, Any]:
    """The place of a point in its grid: the columns of its row that are there though its replay is refused."""
    return {
        "point": point.index,
        "engine": point.scenario["backend"]["settings"].get("name"),
        "plan": name_of(point.plan),
        "arrivals": _process(point.arrivals),
        "seed": point.seed,
        **{f"set.{key}": value for key, value in point.settings.items()},
    }


def plan_of(trace: Trace, point: Point) -> Plan:
    """The plan of a point.

    Raises:
        SemtraceError: there is no such stage, or the barrier cannot be made.
    """
    if point.plan == "dag":
        return dag(show(work_digest(trace)))
    return barrier(trace, **dict(point.plan))


def name_of(plan: Mapping[str, Any] | str) -> str:
    """A plan in a few words: `dag`, `chain`, `width 2 of 4, 7`."""
    if isinstance(plan, str):
        return plan
    width = f" {plan['width']}" if "width" in plan else ""
    stages = f" of {', '.join(map(str, plan['stages']))}" if "stages" in plan else ""
    return f"{plan['rule']}{width}{stages}"


def _process(arrivals: Mapping[str, Any] | None) -> str:
    if arrivals is None:
        return "recorded"
    numbers = [str(value) for key, value in arrivals.items() if key not in ("kind", "seed")]
    return ":".join([arrivals["kind"], *numbers])


def first_tokens(execution: Execution) -> Distribution:
    """Over requests that gave a token: time from submission to the first, in ns."""
    submitted, first = (execution.events.ints(name) for name in ("submitted_ns", "first_token_ns"))
    known = (submitted != NULL) & (first != NULL)
    return Distribution.of((first - submitted)[known])


def requests_of(execution: Execution) -> dict[str, int | float | None]:
    """Sums over the requests of an execution, and output tokens per second from first submission to last finish."""
    events = execution.events
    outcome = events.ints("outcome")
    made: dict[str, int] = {
        "unfinished": int((outcome == EventOutcome.UNFINISHED).sum()),
        "refused": int((outcome == EventOutcome.REFUSED).sum()),
    }
    ran = events.ints("scheduled_ns") != NULL
    for name in (
        "prompt_tokens", "cached_tokens", "computed_prompt_tokens", "loaded_tokens", "reused_tokens", "output_tokens",
        "preemptions", "preempted_ns",
    ):  # fmt: skip
        values = events.ints(name)
        made[f"sum.{name}"] = int(values[ran & (values != NULL)].sum())
    submitted, finished = (events.ints(each) for each in ("submitted_ns", "finished_ns"))
    output = events.ints("output_tokens")
    known = (submitted != NULL) & (finished != NULL)
    span = int(finished[known].max() - submitted[known].min()) if known.any() else 0
    told = known & (output != NULL)
    rate = int(output[told].sum()) * 1e9 / span if span and told.any() else None
    return {**made, "output_tokens_per_second": rate}


def _flatten(row: dict[str, Any], name: str, value: object) -> None:
    """Numbers and words of nested members, by dotted name; lists have no place in a row."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _flatten(row, f"{name}.{key}", inner)
    elif not isinstance(value, list):
        row[name] = value
