"""From a run that was read to rows of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from semtrace.records.enums import (
    EntityKind,
    Evidence,
    OperationKind,
    OperationStatus,
    Outcome,
    StageTemplate,
    StateScope,
    VersionMode,
)

from .events import Observed, RoundEnd
from .material import Material
from .memory import remember
from .run_rows import RunRows
from .units import Unit, barriers, sources, turns_apart, units_of

if TYPE_CHECKING:
    from semtrace.build import TraceBuilder
    from semtrace_adapters.base import LossReport

    from .memory import Entry, Memories
    from .run import Run, Sent
    from .run_rows import Sources

MESSAGE_TYPE: Final = "application/json"


def task_name(ordinal: int) -> str:
    """A task's name. What was asked is content, and stays where redacting finds it."""
    return f"MetaGPT run {ordinal + 1}"


class RunToTrace(RunRows):
    """Adds one run to a trace."""

    def __init__(
        self, builder: TraceBuilder, run: Run, sources: Sources, origin_ns: int, loss: LossReport
    ) -> None:
        super().__init__(builder, run, sources, loss)
        self.origin_ns = origin_ns
        self.sessions: dict[str, int] = {}

    def add(self, before: Memories | None) -> int:
        """Add the run's task and all that it did; gives the task.

        Args:
            before: the memories that the run began with, if it continues another.
        """
        run, builder = self.run, self.builder
        asked = next((sent for sent in run.sent if sent.message.from_user), None)
        answers = [sent for sent in run.sent if sent.turn is not None and sent.message.content]
        arrival = asked.time_ns if asked else run.start_ns
        self.task = builder.task(
            task_name(run.ordinal),
            arrival_ns=arrival - self.origin_ns,
            input=asked.message.content if asked else None,
            output=answers[-1].message.content if answers else None,
            outcome=self._outcome(),
        )
        builder.annotate(EntityKind.TASK, self.task, "metagpt/log", run.events[0].line.where)
        if run.dollars is not None:
            builder.annotate(EntityKind.TASK, self.task, "metagpt/budget_usd", run.dollars)
        for turn in run.turns:
            self.units[id(turn)] = units_of(turn)
        self._sessions()
        stages = self._stages()
        every = [unit for turn in run.turns for unit in self.units[id(turn)]]
        for unit in every:
            self._operation(unit, stages)
        self._order(every)
        self._totals(every)
        self.memories = remember(run, self.sources.team, self.units, before, self.loss)
        self._history()
        self._memory()
        Material(self).add(every)
        return self.task

    def _outcome(self) -> Outcome:
        if self.run.failed:
            return Outcome.FAILURE
        if not self.run.ended:
            self.loss.add(
                "run.no_end",
                "unknown",
                "a run whose end is not in the log",
                where=self.run.events[0].line.where,
            )
        # A team that ran out of rounds with something left to do has not said that it is done.
        return Outcome.SUCCESS if self.run.idle else Outcome.UNKNOWN

    def _time(self, time_ns: int | None) -> int | None:
        return None if time_ns is None else time_ns - self.origin_ns

    # -- sessions, stages, operations ---------------------------------------------------------------------------

    def _sessions(self) -> None:
        remembered = {each.role: each for each in self.sources.team.roles} if self.sources.team else {}
        for role in self.run.roles:
            _, _, rest = role.partition("(")
            known = remembered.get(role)
            session = self.builder.session(
                self.task, agent=known.profile if known else rest.removesuffix(")"), name=role
            )
            self.sessions[role] = session
            if known and known.class_name:
                self.builder.annotate(EntityKind.SESSION, session, "metagpt/class", known.class_name)

    def _stages(self) -> dict[int, int]:
        """A stage for each round in which somebody acted, within one for the team."""
        if not any(isinstance(event, (Observed, RoundEnd)) for event in self.run.events):
            self.loss.add(
                "rounds.unknown",
                "unknown",
                "the log does not show the rounds: who waited for whom at the end of a round is unknown",
                where=self.run.events[0].line.where,
            )
            return {}
        acting: dict[int, set[str]] = {}
        for turn in self.run.turns:
            if self.units[id(turn)]:
                acting.setdefault(turn.round, set()).add(turn.role)
        if not acting:
            return {}
        team = self.builder.stage(self.task, "team", template=StageTemplate.SEQUENCE)
        return {
            number: self.builder.stage(
                self.task,
                "round",
                template=StageTemplate.FORK_JOIN if len(acting[number]) > 1 else StageTemplate.SEQUENCE,
                parent=team,
                iteration=number,
            )
            for number in sorted(acting)
        }

    def _operation(self, unit: Unit, stages: dict[int, int]) -> None:
        builder, call = self.builder, unit.call
        start, end = self._time(unit.start_ns), self._time(unit.end_ns)
        known = start is not None and end is not None
        duration = max(0, end - start) if start is not None and end is not None else None
        common: dict[str, Any] = {
            "stage": stages.get(unit.turn.round),
            "session": self.sessions.get(unit.turn.role),
            "started_ns": start,
        }
        if call is None:
            failed = unit.turn.failed and unit.step is unit.turn.steps[-1]
            operation = builder.operation(
                self.task,
                OperationKind.TRANSFORM,
                unit.name,
                status=OperationStatus.ERROR if failed else OperationStatus.OK,
                duration_ns=duration,
                duration_evidence=Evidence.DERIVED if known else Evidence.MISSING,
                **common,
            )
            evidence = Evidence.INFERRED if unit.joins else Evidence.DERIVED
            builder.observe(operation, evidence=evidence, submitted_ns=start)
            builder.observe(operation, evidence=Evidence.DERIVED, finished_ns=end)
            message = unit.turn.published
            if message is not None and message.content and unit is self.units[id(unit.turn)][-1]:
                builder.output(operation, message.content)
            what = "puts together what calls at once returned" if unit.joins else "asks no model"
            builder.annotate(EntityKind.OPERATION, operation, "metagpt/what", what)
        else:
            config = self.sources.config
            model = call.model or (config.model if config else None)
            failed = call.status is OperationStatus.ERROR
            operation = builder.operation(
                self.task,
                OperationKind.LLM,
                unit.name,
                model=builder.model(model) if model else None,
                status=call.status,
                duration_ns=duration if failed else None,
                duration_evidence=Evidence.INFERRED if failed and known else Evidence.MISSING,
                prompt_tokens=call.prompt_tokens,
                output_tokens=call.output_tokens,
                tokens_evidence=call.tokens_evidence,
                settings=config.settings if config and config.settings else None,
                **common,
            )
            builder.observe(
                operation, evidence=call.start_evidence, submitted_ns=start, attempts=call.attempts
            )
            builder.observe(operation, evidence=call.end_evidence, finished_ns=end)
            if call.output is not None:
                builder.output(operation, call.output)
                if call.output_evidence is Evidence.INFERRED:
                    builder.annotate(EntityKind.OPERATION, operation, "metagpt/output", "inferred")
                    self.loss.add(
                        "output.published",
                        "inferred",
                        "the output of a call is not in the log: taken to be the text that its role published next",
                        where=call.where,
                    )
            elif call.status is OperationStatus.OK:
                self.loss.add(
                    "output.unknown", "unknown", "the output of a call is not in the log", where=call.where
                )
            if not model:
                self.loss.add("model.unknown", "unknown", "no source names the model that was called")
            if call.file is not None:
                builder.annotate(EntityKind.OPERATION, operation, "metagpt/file", call.file)
        builder.annotate(
            EntityKind.OPERATION, operation, "metagpt/line", call.where if call else unit.step.where
        )
        self.operations[id(unit)] = operation

    def _order(self, every: list[Unit]) -> None:
        """Control edges: within a turn, and from each round to the next."""
        for unit in every:
            for before, evidence in unit.before:
                self.builder.edge(self.operations[id(unit)], self.operations[id(before)], evidence=evidence)
        apart = turns_apart(self.run, self.units)
        for later, earlier, evidence in apart:
            self.builder.edge(self.operations[id(later)], self.operations[id(earlier)], evidence=evidence)
        if self.run.sparse and apart:
            self.loss.add(
                "turns.order",
                "inferred",
                "a log without rounds: an action that began after others were over is taken to have waited for them",
                count=len(apart),
            )
        rounds = {unit.turn.round for unit in every}
        for later, earlier in barriers(self.run, every):
            self.builder.edge(
                self.operations[id(later)], self.operations[id(earlier)], evidence=Evidence.DERIVED
            )
        if len(rounds) > 1:
            self.loss.add(
                "rounds.barrier",
                "inferred",
                "MetaGPT starts a round when every role is done with the one before: control edges from the last operations of a "
                "round to the first of the next",
                count=len(rounds) - 1,
            )

    def _totals(self, every: list[Unit]) -> None:
        """Compare the counts with the totals of the run; one call's lost counts are what is missing of them."""
        prompt, output = self.sources.totals
        calls = [unit.call for unit in every if unit.call is not None]
        for name, total in (("prompt_tokens", prompt), ("output_tokens", output)):
            if total is None:
                continue
            rows = [
                self.builder.rows["operations"][self.operations[id(u)]] for u in every if u.call is not None
            ]
            lost = [row for row in rows if row[name] is None and row["status"] is OperationStatus.OK]
            rest = total - sum(row[name] or 0 for row in rows)
            if len(lost) == 1 and rest > 0:
                lost[0][name], lost[0]["tokens_evidence"] = rest, Evidence.DERIVED
                self.loss.add(
                    "tokens.by_difference",
                    "repaired",
                    "the counts of a call are what the counts of all others leave of the run's total",
                    where=next(c.where for c, row in zip(calls, rows, strict=True) if row is lost[0]),
                )
            elif not lost and rest != 0:
                self.loss.add(
                    "tokens.total",
                    "unknown",
                    f"the run's total of {name.replace('_', ' ')} is not the sum of its calls",
                    where=f"total {total}, sum {total - rest}",
                )

    # -- messages, memory, files ----------------------------------------------------------------------------------

    def _sent_by(self, sent: Sent) -> Unit | None:
        unit = self.writer(sent.turn, sent.at)
        if unit is None and sent.turn is not None:
            self.loss.add(
                "message.writer", "unknown", "a message of a turn without any action", where=sent.where
            )
        return unit

    def _history(self) -> None:
        """All published messages, in order: the environment's own history."""
        if not self.run.sent:
            return
        state = self.builder.state("metagpt/environment", "history", task=self.task)
        base: int | None = None
        for sent in self.run.sent:
            unit = self._sent_by(sent)
            base = self.builder.version(
                state,
                sent.message.raw,
                base=base,
                mode=VersionMode.REPLACE if base is None else VersionMode.APPEND,
                writer=self.operations[id(unit)] if unit else None,
                media_type=MESSAGE_TYPE,
            )
            self.builder.annotate(EntityKind.STATE_VERSION, base, "metagpt/message", sent.message.id)
            if sent.reached_nobody:
                self.builder.annotate(EntityKind.STATE_VERSION, base, "metagpt/recipients", "none")

    def _memory(self) -> None:
        for role, replica in self.memories.replicas.items():
            if not replica:
                continue
            state = self.builder.state("metagpt/memory", role, scope=StateScope.PRIVATE, task=self.task)
            versions: list[int] = []
            for entry in replica:
                unit = entry.unit or self.writer(entry.turn, entry.at)
                version = self.builder.version(
                    state,
                    entry.message.raw,
                    base=versions[-1] if versions else None,
                    mode=VersionMode.APPEND if versions else VersionMode.REPLACE,
                    writer=self.operations[id(unit)] if unit else None,
                    media_type=MESSAGE_TYPE,
                )
                self.builder.annotate(EntityKind.STATE_VERSION, version, "metagpt/message", entry.message.id)
                versions.append(version)
            self._reads(role, replica, versions)

    def _reads(self, role: str, replica: list[Entry], versions: list[int]) -> None:
        """The first operations of each turn read what has come into the memory since the turn before."""
        seen = 0
        for turn in self.run.turns:
            if turn.role != role:
                continue
            units = self.units[id(turn)]
            there = seen
            while there < len(replica) and replica[there].at <= turn.at:
                there += 1
            for unit in sources(units):
                for place in range(seen, there):
                    self.builder.read(self.operations[id(unit)], versions[place])
            seen = there if units else seen
