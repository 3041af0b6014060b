"""The measures of one execution (spec, measures.md): exact, from instances and events; what is not known stays so."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from semtrace.errors import OtherWorkError, ReplayError, SemtraceError
from semtrace.graph.plan import Plan
from semtrace.graph.resolve import plan_findings
from semtrace.measure.engine_measures import EngineMeasures
from semtrace.measure.groups import AgentMeasures, KindMeasures, StageMeasures, Tallies
from semtrace.measure.path import CompletedPath, Parts, Paths, UnknownPath, end_slot
from semtrace.measure.ready import Expected, no_plan
from semtrace.measure.shortfall import Shortfall, fell_short
from semtrace.measure.slots import Slots, after
from semtrace.measure.stats import Distribution, Ratio, number
from semtrace.measure.width import Width
from semtrace.records.columns import NULL
from semtrace.records.enums import EventOutcome, OperationKind
from semtrace.replay.scenario import Scenario

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from semtrace.measure.context import Round
    from semtrace.records.execution import Execution
    from semtrace.records.trace import Trace

Source = Literal["chosen", "scenario", "tasks", "run"]


@dataclass(frozen=True)
class InstanceMeasures:
    """What one instance took.

    Attributes:
        task, copy: which copy of which task it is.
        arrival_ns: when it arrived; None if not known.
        end_ns: when its answer was there: the end of its answer operation, else of its last one; None if not known.
        last_finish_ns: when its last operation ended; None if not known.
        finished: whether it came to its end, and all of it ended as recorded; None if the record does not tell.
        deadline_ns: its deadline, counted from its arrival; None if it has none.
        path: its completed path, or why it cannot be told.
    """

    task: int
    copy: int
    arrival_ns: int | None
    end_ns: int | None
    last_finish_ns: int | None
    finished: bool | None
    deadline_ns: int | None
    path: CompletedPath | UnknownPath

    @property
    def root_latency_ns(self) -> int | None:
        """Time from arrival to answer; None if not known."""
        return None if self.arrival_ns is None or self.end_ns is None else self.end_ns - self.arrival_ns

    @property
    def on_time(self) -> bool | None:
        """Whether its answer was there by its deadline; None if it has none or the record does not tell."""
        if self.deadline_ns is None or self.finished is None:
            return None
        if not self.finished:
            return False
        return None if self.root_latency_ns is None else self.root_latency_ns <= self.deadline_ns

    def as_dict(self) -> dict[str, Any]:
        """The instance as JSON-ready fields, times in ns."""
        path = self.path
        told = isinstance(path, CompletedPath)
        return {
            "task": self.task,
            "copy": self.copy,
            "arrival_ns": self.arrival_ns,
            "root_latency_ns": self.root_latency_ns,
            "last_finish_ns": self.last_finish_ns,
            "finished": self.finished,
            "on_time": self.on_time,
            "parts": path.parts.as_dict() if isinstance(path, CompletedPath) else None,
            "path": path.operations.tolist() if isinstance(path, CompletedPath) else None,
            "path_unknown": None if told else path.reason if isinstance(path, UnknownPath) else None,
        }


@dataclass(frozen=True)
class Window:
    """The time in which arriving instances count: [start, end), in ns.

    Attributes:
        start_ns, end_ns: its ends; None if no time of the run is known.
        source: who chose it; `run` is the whole run, every instance counting.
    """

    start_ns: int | None
    end_ns: int | None
    source: Source

    @property
    def length_ns(self) -> int | None:
        """Its length."""
        return None if self.start_ns is None or self.end_ns is None else self.end_ns - self.start_ns

    def as_dict(self) -> dict[str, Any]:
        """The window as JSON-ready fields; `ns` is the length."""
        return {"source": self.source, "start_ns": self.start_ns, "end_ns": self.end_ns, "ns": self.length_ns}


@dataclass(frozen=True)
class Measures:
    """The measures of an execution.

    Attributes:
        facts: of the execution: digests, mode, clock, backend.
        instances: one for each instance, in their order.
        fell_short: what did not end as recorded; latencies are of the instances without such an operation.
        root_latency: over instances, in ns.
        last_finish: last finish - arrival over instances, in ns.
        path: the parts of all completed paths, summed up, in ns.
        path_unknown: instances whose path cannot be told.
        width: of all operations.
        width_by_kind: of the operations of each kind.
        lateness: submitted - release, recomputed, in ns.
        stages: time by stage.
        agents: by agent.
        joins_unknown: operations of tasks too large for their joins, and so synchronisation waits, to be told.
        kinds: by kind of operation.
        rounds: operations of a stage side by side, and what their prompts share.
        redundancy: (N - 1)·S of the prompt tokens of all rounds.
        window: in which arriving instances count for attainment and goodput.
        deadline_source: where deadlines are from; None if there are none.
        deadline_ns: the deadline of all instances; None if each has its own, or none.
        attainment: instances on time of all that arrived in the window; None without deadlines.
        engine: of requests, steps and memory.
    """

    facts: dict[str, Any]
    instances: Sequence[InstanceMeasures]
    fell_short: Shortfall
    root_latency: Distribution
    last_finish: Distribution
    path: Parts
    path_unknown: int
    width: Width
    width_by_kind: dict[str, Width]
    lateness: Distribution
    stages: Sequence[StageMeasures]
    agents: Sequence[AgentMeasures]
    joins_unknown: int
    kinds: Sequence[KindMeasures]
    rounds: Sequence[Round]
    redundancy: Ratio
    window: Window
    deadline_source: Source | None
    deadline_ns: int | None
    attainment: Ratio | None
    engine: EngineMeasures

    @property
    def goodput_per_second(self) -> Fraction | None:
        """Instances on time per second of the window; None without deadlines, or if the window has no length."""
        if self.attainment is None or not self.window.length_ns:
            return None
        return Fraction(self.attainment.part * 1_000_000_000, self.window.length_ns)

    @property
    def fairness(self) -> Fraction | None:
        """P99 / P50 of root latency; None if there is none."""
        percentiles = self.root_latency.percentiles
        if not percentiles or percentiles["p50"] == 0:
            return None
        return percentiles["p99"] / percentiles["p50"]

    def deadline(self, multiple: Fraction | str) -> int:
        """A deadline for other runs: a multiple of this run's P95 of root latency, rounded down to ns (ST-MEA-021).

        Args:
            multiple: for example `Fraction(3, 2)` or `"1.5"`.

        Raises:
            ReplayError: no root latency is known.
        """
        if not self.root_latency.count:
            raise ReplayError("the reference run has no known root latency", code="measure.reference")
        limit = Fraction(multiple) * self.root_latency.percentiles["p95"]
        return limit.numerator // limit.denominator

    def as_dict(self) -> dict[str, Any]:
        """The measures as JSON-ready fields; times in ns unless named otherwise."""
        return {
            **self.facts,
            "fell_short": self.fell_short.as_dict(),
            "root_latency": self.root_latency.as_dict(),
            "last_finish": self.last_finish.as_dict(),
            "path": {**self.path.as_dict(), "total": self.path.total, "unknown": self.path_unknown},
            "width": self.width.as_dict(),
            "width_by_kind": {kind: width.as_dict() for kind, width in self.width_by_kind.items()},
            "lateness": self.lateness.as_dict(),
            "stages": [stage.as_dict() for stage in self.stages],
            "agents": [agent.as_dict() for agent in self.agents],
            "joins_unknown": self.joins_unknown,
            "kinds": [kind.as_dict() for kind in self.kinds],
            "redundancy": {"rounds": len(self.rounds), **self.redundancy.as_dict()},
            "window": self.window.as_dict(),
            "deadline": {"source": self.deadline_source, "ns": self.deadline_ns},
            "attainment": self.attainment.as_dict() if self.attainment else None,
            "goodput_per_second": number(self.goodput_per_second),
            "fairness_p99_p50": number(self.fairness),
            "engine": self.engine.as_dict(),
            "instances": [instance.as_dict() for instance in self.instances],
        }


def measure(
    trace: Trace,
    execution: Execution,
    plan: Plan | None = None,
    *,
    deadline_ns: int | None = None,
    window_ns: int | None = None,
) -> Measures:
    """Measure an execution.

    Args:
        trace: the trace; valid (see `semtrace.check`).
        execution: the execution.
        plan: the plan followed; the one in its header if left out, the recorded edges if there is none either.
        deadline_ns: deadline of every instance, counted from its arrival; if left out the scenario's, else each
            task's own.
        window_ns: instances that arrive before this time count for attainment and goodput; if left out the
            scenario's, else all.

    Raises:
        OtherWorkError: the execution or the plan is of other work.
    """
    if plan is None and execution.header.plan is not None:
        plan = Plan.parse(execution.header.plan, path="header.plan")
    plan = plan or no_plan(trace)
    problems = [finding.message for finding in plan_findings(trace, plan)]
    if execution.header.work_digest != no_plan(trace).work_digest:
        if plan.work_digest == execution.header.work_digest:
            problems = []  # they follow from the next
        problems.insert(0, "the execution is of other work than the trace")
    if problems:
        raise OtherWorkError(
            "; ".join(problems[:5]),
            code="measure.work",
            requirement="ST-MEA-002",
            hint="measure with the trace that was replayed, and with the plan that was followed",
        )
    slots = Slots.of(trace, execution)
    expected = Expected.of(slots, plan)
    scenario = _scenario(execution)
    deadlines, source = _deadlines(slots, scenario, deadline_ns)
    paths = Paths(slots, expected)
    short = fell_short(slots)
    instances = [_instance(slots, paths, at, deadlines[at], short) for at in range(slots.instances)]
    window = _window(slots, instances, scenario, window_ns)
    tallies = Tallies(slots, expected)
    known = [each.root_latency_ns for each in instances if each.root_latency_ns is not None]
    last = [
        each.last_finish_ns - each.arrival_ns
        for each in instances
        if each.last_finish_ns is not None and each.arrival_ns is not None
    ]
    spent = [each.path.parts for each in instances if isinstance(each.path, CompletedPath)]
    total = Parts()
    for parts in spent:
        total += parts
    widths = _widths(slots, tallies.ready)
    late = slots.submitted - after(expected.full.exact_ns, slots.recorded("external_delay_ns"))
    judged = (slots.submitted != NULL) & (expected.full.exact_ns != NULL)
    every = widths.pop("all")
    rounds, redundancy = tallies.rounds()
    shared = {value for value in deadlines if value is not None}
    header = execution.header
    return Measures(
        facts={
            "work_digest": header.work_digest,
            "plan_digest": header.plan_digest,
            "plan": plan.name,
            "mode": header.mode,
            "clock": header.clock,
            "measured_at": header.measured_at,
            "backend": header.backend.name,
        },
        instances=instances,
        fell_short=Shortfall.of(slots),
        root_latency=Distribution.of(known, len(instances) - len(known)),
        last_finish=Distribution.of(last, len(instances) - len(last)),
        path=total,
        path_unknown=len(instances) - len(spent),
        width=every,
        width_by_kind=widths,
        lateness=Distribution.of(late[judged], int((~judged).sum())),
        stages=tallies.stages(),
        agents=tallies.agents(),
        joins_unknown=tallies.joins_unknown,
        kinds=tallies.kinds(),
        rounds=rounds,
        redundancy=redundancy,
        window=window,
        deadline_source=source,
        deadline_ns=shared.pop() if len(shared) == 1 and source != "tasks" else None,
        attainment=_attainment(instances, window) if source is not None else None,
        engine=EngineMeasures.of(slots),
    )


def _scenario(execution: Execution) -> Scenario | None:
    if execution.header.scenario is None:
        return None
    try:
        return Scenario.parse(execution.header.scenario, path="header.scenario")
    except SemtraceError:
        return None  # another replayer's own document: it sets neither deadline nor window here


def _deadlines(
    slots: Slots, scenario: Scenario | None, chosen: int | None
) -> tuple[list[int | None], Source | None]:
    """The deadline of each instance, from its arrival, and where they are from."""
    count = slots.instances
    if chosen is not None:
        return [chosen] * count, "chosen"
    if scenario is not None and scenario.deadline_ns is not None:
        return [scenario.deadline_ns] * count, "scenario"
    tasks = slots.trace.tasks
    due, arrival = tasks.ints("deadline_ns"), tasks.ints("arrival_ns")
    own = [
        int(due[task] - arrival[task])
        if task < tasks.rows and due[task] != NULL and arrival[task] != NULL
        else None
        for task in slots.execution.instances.ints("task").tolist()
    ]
    return own, "tasks" if any(value is not None for value in own) else None


def _instance(
    slots: Slots, paths: Paths, at: int, deadline_ns: int | None, short: NDArray[np.bool_]
) -> InstanceMeasures:
    rows = slots.rows(at)
    table = slots.execution.instances
    arrival = int(table.ints("arrival_ns")[at])
    finished = slots.finished[rows]
    empty = rows.start == rows.stop
    all_known = not empty and not (finished == NULL).any()
    end = end_slot(slots, at)
    came_to_end: bool | None = True
    fell = bool(short[rows].any())
    if fell:
        came_to_end = False
    elif end is None:
        # The record may not tell when it ended; that it did not end is told by the operation that should end it.
        waited = slots.outcome[_ending(slots, at)]
        not_ended = np.isin(waited, (EventOutcome.UNFINISHED, EventOutcome.SKIPPED, EventOutcome.REFUSED))
        came_to_end = False if not_ended.any() else None
    elif slots.outcome[end] in {EventOutcome.SKIPPED, EventOutcome.REFUSED, EventOutcome.UNFINISHED}:
        came_to_end = False
    return InstanceMeasures(
        task=int(table.ints("task")[at]),
        copy=int(table.ints("instance")[at]),
        arrival_ns=None if arrival == NULL else arrival,
        end_ns=None if end is None or not came_to_end else int(slots.finished[end]),
        last_finish_ns=int(finished.max()) if all_known else None,
        finished=came_to_end,
        deadline_ns=deadline_ns,
        path=paths.of(at) if came_to_end else UnknownPath(_why_no_path(came_to_end, fell_short=fell)),
    )


def _why_no_path(came_to_end: bool | None, *, fell_short: bool) -> str:
    if fell_short:
        return "an operation of it did not end as recorded"
    return "its end is not known" if came_to_end is None else "it did not come to its end"


def _ending(slots: Slots, instance: int) -> NDArray[np.int64]:
    """The slots whose end is the end of an instance: its answer operation, else all."""
    rows = slots.rows(instance)
    task = int(slots.execution.instances.ints("task")[instance])
    answer = int(slots.trace.tasks.ints("answer_operation")[task]) if task < slots.trace.tasks.rows else NULL
    every = np.arange(rows.start, rows.stop, dtype=np.int64)
    return every[slots.operation[rows] == answer] if answer != NULL else every


def _window(
    slots: Slots, instances: Sequence[InstanceMeasures], scenario: Scenario | None, chosen: int | None
) -> Window:
    if chosen is not None:
        return Window(0, chosen, "chosen")
    if scenario is not None and scenario.window_ns is not None:
        return Window(0, scenario.window_ns, "scenario")
    arrivals = [each.arrival_ns for each in instances if each.arrival_ns is not None]
    start = min(arrivals, default=None)
    last = int(slots.finished.max(initial=NULL))
    return Window(start, None if start is None or last == NULL else last, "run")


def _attainment(instances: Sequence[InstanceMeasures], window: Window) -> Ratio:
    """On-time instances of all that arrived in the window; those whose fate is not known count as arrived."""
    counted = [
        each
        for each in instances
        if window.source == "run"
        or (each.arrival_ns is not None and window.end_ns is not None and each.arrival_ns < window.end_ns)
    ]
    on_time = sum(each.on_time is True for each in counted)
    untold = sum(each.on_time is None for each in counted)
    return Ratio(on_time, len(counted), untold)


def _widths(slots: Slots, ready: NDArray[np.int64]) -> dict[str, Width]:
    """Width of all operations, and of each kind that there is."""
    known = (ready != NULL) & (slots.finished != NULL) & (ready <= slots.finished)
    arrival = slots.execution.instances.ints("arrival_ns")
    arrived = arrival[arrival != NULL]
    begin = int(arrived.min()) if len(arrived) else None
    end = int(slots.finished.max(initial=NULL))
    span = 0 if begin is None or end < begin else end - begin
    kind = slots.recorded("kind")
    chosen = {"all": np.ones(slots.count, dtype=np.bool_)}
    chosen |= {each.name.lower(): kind == each for each in OperationKind if (kind == each).any()}
    return {
        name: Width.of(ready[of & known], slots.finished[of & known], span, int((of & ~known).sum()))
        for name, of in chosen.items()
    }
