"""From the structure of runs to stages, sessions and operations, and to which operation waits for which."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semtrace.records.enums import EntityKind, Evidence, OperationKind, StageTemplate
from semtrace_adapters.autogen.runs import TeamRun, ToolStep, is_final, is_progress
from semtrace_adapters.autogen.shape import text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semtrace_adapters.autogen.config import TeamConfig
    from semtrace_adapters.autogen.facts import Agent, Call
    from semtrace_adapters.autogen.rows import Rows
    from semtrace_adapters.autogen.runs import Body, Round, Turn

_TEMPLATES: dict[str, tuple[StageTemplate, str | None]] = {
    "RoundRobinGroupChat": (StageTemplate.SEQUENCE, None),
    "Agent": (StageTemplate.SEQUENCE, None),
    "Swarm": (StageTemplate.HANDOFF, None),
    "SelectorGroupChat": (StageTemplate.UNKNOWN, "autogen/selector"),
    "MagenticOneGroupChat": (StageTemplate.UNKNOWN, "autogen/magentic-one"),
}
_TASK_LEDGER, _PROGRESS, _FINAL = "task ledger", "progress ledger", "final answer"


@dataclass(frozen=True)
class Last:
    """An operation that what follows waits for, its agent's name, and when it had ended."""

    operation: int
    agent: str
    order: float


@dataclass(frozen=True)
class Point:
    """A point between two parts of a run: what the next part waits for, its place in the log and its time."""

    waits: tuple[Last, ...]
    order: float
    time_ns: int | None


@dataclass(frozen=True)
class Part:
    """A part of a run: the operations that it begins with, and the point at its end; empty if it has none."""

    first: tuple[int, ...]
    end: Point


@dataclass(frozen=True)
class Link:
    """One operation waits for another; ``release`` tells of a manager's request, which data does not imply."""

    target: int
    source: int
    evidence: Evidence
    release: bool
    confidence: int | None = None


_SEQUENCE_CONFIDENCE = 70
"""Percent: that a turn waits for the one before it, where only the order of calls tells so."""


@dataclass
class Walk:
    """Walks one task's runs and makes its rows."""

    rows: Rows
    configs: Sequence[TeamConfig]
    people: set[str]
    task: int
    links: list[Link] = field(default_factory=list)
    inside: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """By tool call id, the last operations inside of a tool that ran agents."""
    spoken: dict[int, int] = field(default_factory=dict)
    """Operation of an agent that answered without a model and is no person, by its turn's ``id()``."""
    _sessions: dict[tuple[str | None, str, str | None], int] = field(default_factory=dict)
    _repeats: Counter[tuple[int | None, str]] = field(default_factory=Counter)

    # -- teams and rounds -------------------------------------------------------------------------------

    def team(self, run: TeamRun, parent: int | None, at: Point, spawner: int | None = None) -> Part:
        """Make a run of a team.

        Args:
            run: the run.
            parent: the stage that it is inside of.
            at: what it waits for.
            spawner: the operation that asked for the tool that runs it.
        """
        config = self.config_of(run)
        kind = self.kind_of(run)
        template, extension = _TEMPLATES.get(kind, (StageTemplate.UNKNOWN, None))
        if kind == "GraphFlow":
            template = _graph_template(run)
        name = config.name if config else kind or run.manager or "agents"
        stage = self._stage(name, parent, template, extension)
        at = Point(
            at.waits, max(at.order, run.order), run.start_ns if run.start_ns is not None else at.time_ns
        )
        first: tuple[int, ...] = ()
        for each in run.rounds:
            stage_of_round: int | None = None
            ledger: int | None = None
            for call in each.manager_calls:
                label = _ledger(call, each, kind)
                if label is None:
                    stage_of_round = stage_of_round or self._round(each, stage)
                    row = stage_of_round
                else:
                    row = ledger = ledger or self._stage(label, stage, StageTemplate.SEQUENCE)
                session = self._session(run.team, run.manager, None, spawner)
                operation = self.rows.call(call, run.manager, self.task, row, session, at.order, at.time_ns)
                self._link((operation,), at, None, run, release=True)
                first = first or (operation,)
                at = Point((Last(operation, run.manager, call.order),), call.order, call.end_ns)
            if each.turns:
                part = self._turns(run, each, stage_of_round or self._round(each, stage), at, config, spawner)
                first = first or part.first
                at = part.end
        if not first:
            return Part((), at)
        end_ns = run.end_ns if run.end_ns is not None else at.time_ns
        return Part(first, Point(at.waits, max(at.order, _finite(run.end_order, at.order)), end_ns))

    def kind_of(self, run: TeamRun) -> str:
        """The kind of a run's team, as its manager or else its config tells it; empty if neither does."""
        config = self.config_of(run)
        return run.kind or (config.kind if config else "")

    def config_of(self, run: TeamRun) -> TeamConfig | None:
        """The config of a run's team: the smallest that has its agents, and its kind where that is known."""
        names = {t.agent.name for t in run.turns()}
        fitting = [
            c
            for c in self.configs
            if names and names <= set(c.names) and (not run.kind or c.kind in {run.kind, "Agent"})
        ]
        return min(fitting, key=lambda c: len(c.names)) if fitting else None

    def _turns(
        self, run: TeamRun, each: Round, stage: int, at: Point, config: TeamConfig | None, spawner: int | None
    ) -> Part:
        """The turns of one round, side by side."""
        first: list[int] = []
        waits: list[Last] = []
        times: list[int] = []
        any_joins = config.any_joins if config else set[str]()
        for turn in each.turns:
            if turn.agent.name in any_joins:
                self.rows.loss.add(
                    "graph.any",
                    "lost",
                    "the graph lets an agent go on after any of several: its turn waits for the round before, as its "
                    "manager did, and the choice is not kept",
                    where=turn.agent.name,
                )
        order = at.order
        for turn in each.turns:
            began = turn.start_ns if turn.start_ns is not None else at.time_ns
            part = self._turn(turn, stage, Point(at.waits, max(at.order, turn.start_order), began), spawner)
            end = _finite(turn.end_order, part.end.order)
            order = max(order, end)
            if part.first:
                self._link(part.first, at, (turn, config), run, release=True)
                first.extend(part.first)
                waits.extend(Last(w.operation, turn.agent.name, end) for w in part.end.waits)
            if turn.end_ns is not None or part.end.time_ns is not None:
                times.append(turn.end_ns if turn.end_ns is not None else part.end.time_ns or 0)
        return Part(tuple(first), Point(tuple(waits) or at.waits, order, max(times, default=at.time_ns)))

    def _link(
        self,
        targets: tuple[int, ...],
        at: Point,
        turn: tuple[Turn, TeamConfig | None] | None,
        run: TeamRun | None,
        *,
        release: bool,
    ) -> None:
        """Let operations wait for a point.

        That a turn waits for an operation is observed where the team's graph says so, or where the request followed
        that very agent's response; for the others of a round it is derived: a manager waits for all of them. Where no
        messages frame the turns it is inferred from their order.
        """
        latest = max((w.order for w in at.waits), default=0.0)
        for last in at.waits:
            evidence = Evidence.DERIVED
            edges = turn[1].edges if turn and turn[1] else set()
            if turn is not None and (last.agent, turn[0].agent.name) in edges:
                evidence = Evidence.OBSERVED
            elif run is not None and not run.framed and not (turn and turn[0].requested):
                evidence = Evidence.INFERRED
            elif turn is not None and last.order == latest:
                evidence = Evidence.OBSERVED
            confidence = _SEQUENCE_CONFIDENCE if evidence is Evidence.INFERRED else None
            self.links.extend(Link(t, last.operation, evidence, release, confidence) for t in targets)

    # -- turns and what is in them ----------------------------------------------------------------------

    def _turn(self, turn: Turn, stage: int, at: Point, spawner: int | None) -> Part:
        if turn.failed and not any(call.error for call in turn.calls):
            self.rows.loss.add(
                "calls.failed",
                "lost",
                "an agent's turn ended with an error: the call that failed is in no source",
                where=turn.agent.name,
            )
        if not turn.body.steps:
            return self._speaker(turn, stage, at)
        return self.body(turn.body, turn.agent, stage, at, spawner, task_of=None)

    def _speaker(self, turn: Turn, stage: int, at: Point) -> Part:
        """An agent that answered without a model: a person behind a proxy, or code."""
        if turn.response is None:
            return Part((), at)
        content = text(turn.response.messages[-1].get("content")) if turn.response.messages else None
        person = turn.agent.name in self.people
        kind = OperationKind.HUMAN if person else OperationKind.TRANSFORM
        if not person:
            self.rows.loss.add(
                "agents.without_model",
                "inferred",
                "an agent answered without a logged model call: a transform operation that took as long as its turn",
                where=turn.agent.name,
            )
        session = self._session(turn.agent.team, turn.agent.name, None, None)
        order = _finite(turn.end_order, at.order)
        row = self.rows.text(
            kind, turn.agent.name, content, self.task, stage, session, at.time_ns, turn.end_ns, order
        )
        if content and not person:
            self.spoken[id(turn)] = row
        return Part((row,), Point((Last(row, turn.agent.name, order),), order, turn.end_ns))

    def body(
        self, body: Body, agent: Agent, stage: int, at: Point, spawner: int | None, task_of: int | None
    ) -> Part:
        """What one agent did, one step after the other; ``task_of`` is the operation that gave it its task as a tool."""
        first: tuple[int, ...] = ()
        inner = body.agent if body.agent != agent.name else None
        asked_by = session = -1
        for step in body.steps:
            if isinstance(step, TeamRun):
                part = self.team(step, stage, at, spawner)
                if first:
                    self._link(part.first, at, None, None, release=True)
            elif isinstance(step, ToolStep):
                part = self._tools(step, body.agent, agent, stage, session, asked_by, at)
            else:
                session = self._session(agent.team, agent.name, inner, spawner)
                given = task_of if not first else None
                asked_by = self.rows.call(
                    step, body.agent, self.task, stage, session, at.order, at.time_ns, task_of=given
                )
                if first:
                    self._link((asked_by,), at, None, None, release=False)
                part = Part(
                    (asked_by,), Point((Last(asked_by, body.agent, step.order),), step.order, step.end_ns)
                )
            if part.first:
                first = first or part.first
                at = part.end
        return Part(first, at)

    def _tools(
        self, step: ToolStep, name: str, agent: Agent, stage: int, session: int, asked_by: int, at: Point
    ) -> Part:
        """Tools that were asked for together, and run together."""
        first: list[int] = []
        waits: list[Last] = []
        order, times = at.order, [at.time_ns]
        for run in step.runs:
            body = step.inner.get(id(run))
            if body is not None:
                row = self._stage(run.name, stage, StageTemplate.SPAWN)
                begin = Point(at.waits, at.order, run.start_ns if run.start_ns is not None else at.time_ns)
                part = self.body(body, agent, row, begin, asked_by, task_of=asked_by)
                known = Evidence.OBSERVED if run.span_id else Evidence.DERIVED
                self.links.extend(Link(t, asked_by, known, release=True) for t in part.first)
                first.extend(part.first)
                waits.extend(part.end.waits)
                self.inside[run.call_id or ""] = tuple(w.operation for w in part.end.waits)
            elif run.result is None and run.end_ns is None:
                self.rows.loss.add(
                    "tools.unanswered",
                    "lost",
                    "a tool was asked for, and no source has its end: left out",
                    where=run.name,
                )
                continue
            else:
                if run.nested:
                    self.rows.loss.add(
                        "tools.encloses",
                        "unknown",
                        "a tool ran agents whose calls are in no source: kept as an operation of fixed duration, "
                        "which is too short on a slower backend",
                        where=run.name,
                    )
                operation = self.rows.tool(run, name, self.task, stage, session, asked_by)
                first.append(operation)
                waits.append(Last(operation, name, run.end_order or at.order))
            order = max(order, run.end_order or order)
            times.append(run.end_ns)
        ends = [t for t in times if t is not None]
        return Part(tuple(first), Point(tuple(waits) or at.waits, order, max(ends, default=None)))

    # -- stages and sessions ----------------------------------------------------------------------------

    def _round(self, each: Round, parent: int) -> int:
        template = StageTemplate.FORK_JOIN if len(each.turns) > 1 else StageTemplate.SEQUENCE
        names = "+".join(t.agent.name for t in each.turns)
        last = _PROGRESS if any(is_progress(c) for c in each.manager_calls) else "selection"
        return self._stage(names or last, parent, template)

    def _stage(
        self, name: str, parent: int | None, template: StageTemplate, extension: str | None = None
    ) -> int:
        """A stage; its iteration counts the stages of its name in the same parent."""
        iteration = self._repeats[parent, name]
        self._repeats[parent, name] += 1
        return self.rows.builder.stage(
            self.task,
            name,
            template=template,
            template_extension=extension,
            parent=parent,
            iteration=iteration,
        )

    def _session(self, team: str | None, name: str, inner: str | None, spawner: int | None) -> int:
        """The session of an agent, or of an agent that it runs as a tool; made at first use."""
        key = (team, name, inner)
        found = self._sessions.get(key)
        if found is None:
            found = self._sessions[key] = self.rows.builder.session(
                self.task,
                agent=inner or name,
                name=f"{name}/{inner}" if inner else name,
                parent_operation=spawner if spawner is not None and spawner >= 0 else None,
            )
            if team:
                self.rows.builder.annotate(EntityKind.SESSION, found, "autogen/team_id", team)
        return found


def _finite(order: float, otherwise: float) -> float:
    return otherwise if order == float("inf") else order


def _graph_template(run: TeamRun) -> StageTemplate:
    if any(len(r.turns) > 1 for r in run.rounds):
        return StageTemplate.FORK_JOIN
    names = [t.agent.name for t in run.turns()]
    return StageTemplate.REFINEMENT if len(set(names)) < len(names) else StageTemplate.SEQUENCE


def _ledger(call: Call, each: Round, kind: str) -> str | None:
    """The stage of a Magentic-One orchestrator's call, None where it is the round's own (its progress ledger)."""
    if kind != "MagenticOneGroupChat" or is_progress(call):
        return None
    return _FINAL if is_final(call, each) else _TASK_LEDGER
