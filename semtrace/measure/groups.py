"""Measures by stage, by agent and by kind of operation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from semtrace.measure.context import repeated_tokens, rounds
from semtrace.measure.slots import ranges
from semtrace.measure.stats import Distribution, Ratio, total
from semtrace.measure.waiting import joins
from semtrace.records.columns import NULL
from semtrace.records.enums import OperationKind, StageTemplate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from semtrace.measure.context import Round
    from semtrace.measure.ready import Expected
    from semtrace.measure.slots import Slots


@dataclass(frozen=True)
class Context:
    """What LLM operations were given.

    Attributes:
        prompt_tokens: context length: prompt tokens of each operation.
        overhead: token overhead: repeated tokens of all tokens, prompt and output.
        reuse: data reuse: prompt tokens found in a cache, of all.
        sync_wait_ns: from the end of each branch to the ready time of its join, by the branch that waits.
        queue_ns: from submission to the first work of the backend.
    """

    prompt_tokens: Distribution
    overhead: Ratio
    reuse: Ratio
    sync_wait_ns: Distribution
    queue_ns: Distribution

    def as_dict(self) -> dict[str, Any]:
        """The context as JSON-ready fields."""
        return {
            "context_length": self.prompt_tokens.as_dict(),
            "token_overhead": self.overhead.as_dict(),
            "data_reuse": self.reuse.as_dict(),
            "sync_wait_ns": self.sync_wait_ns.as_dict(),
            "queue_ns": self.queue_ns.as_dict(),
        }


@dataclass(frozen=True)
class StageMeasures:
    """The stages of one name and template, over all tasks and instances.

    Attributes:
        name, template: which stages; iterations count together.
        time_ns: last finish - first ready of each stage of each instance, with all that is nested in it.
        context: of the LLM operations that are in the stages themselves.
    """

    name: str
    template: str
    time_ns: Distribution
    context: Context

    def as_dict(self) -> dict[str, Any]:
        """The stages as JSON-ready fields."""
        return {
            "name": self.name,
            "template": self.template,
            "time_ns": self.time_ns.as_dict(),
            **self.context.as_dict(),
        }


@dataclass(frozen=True)
class AgentMeasures:
    """One agent, over all tasks and instances; None is the agent of operations that name none."""

    agent: str | None
    context: Context

    def as_dict(self) -> dict[str, Any]:
        """The agent as JSON-ready fields."""
        return {"agent": self.agent, **self.context.as_dict()}


@dataclass(frozen=True)
class KindMeasures:
    """The operations of one kind: how many, and their tokens as run."""

    kind: str
    operations: int
    prompt_tokens: Distribution
    output_tokens: Distribution

    def as_dict(self) -> dict[str, Any]:
        """The kind as JSON-ready fields; tokens as sum, and how many operations do not tell."""

        def sums(tokens: Distribution) -> dict[str, int | None]:
            return {"sum": tokens.total if tokens.count else None, "unknown": tokens.unknown}

        return {
            "kind": self.kind,
            "operations": self.operations,
            "prompt_tokens": sums(self.prompt_tokens),
            "output_tokens": sums(self.output_tokens),
        }


def _distribution(values: NDArray[np.int64], known: NDArray[np.bool_]) -> Distribution:
    return Distribution.of(values[known], int((~known).sum()))


def _members(group: NDArray[np.int64], count: int) -> list[NDArray[np.int64]]:
    """For each group the positions of its members, ascending."""
    order = np.argsort(group, kind="stable")
    bounds = np.searchsorted(group[order], np.arange(count + 1))
    return [order[low:high] for low, high in pairwise(bounds.tolist())]


class Tallies:
    """Sums and samples over groups of slots."""

    def __init__(self, slots: Slots, expected: Expected) -> None:
        self._slots = slots
        seen = slots.seen("ready_ns")
        exact = expected.full.exact_ns
        self.ready: NDArray[np.int64] = np.where(exact != NULL, exact, seen)
        """By slot, its ready time: recomputed, else as recorded; `NULL` if neither is known."""
        self._llm = slots.recorded("kind") == OperationKind.LLM
        self._prompt, self._output = slots.seen("prompt_tokens"), slots.seen("output_tokens")
        self._cached = slots.seen("cached_tokens")
        self._repeated = repeated_tokens(slots.trace)[slots.operation]

    @cached_property
    def _joins(self) -> tuple[NDArray[np.int64], NDArray[np.int64], list[int]]:
        return joins(self._slots.trace)

    @property
    def joins_unknown(self) -> int:
        """Operations of tasks too large for their joins to be told."""
        return int(np.isin(self._slots.recorded("task"), self._joins[2]).sum())

    @cached_property
    def _waits(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """The slots that wait for a join, how long, and which of the waits are known."""
        slots = self._slots
        end, join, _ = self._joins
        low = np.searchsorted(join, slots.operation, side="left")
        counts = np.searchsorted(join, slots.operation, side="right") - low
        at = ranges(low, counts)
        target = np.repeat(np.arange(slots.count, dtype=np.int64), counts)
        source = end[at] + slots.base[slots.instance[target]]
        ready, finished = self.ready[target], slots.finished[source]
        known = (ready != NULL) & (finished != NULL) & (ready >= finished)
        return source, ready - finished, known

    def _contexts(self, group: NDArray[np.int64], count: int) -> Iterator[Context]:
        """The context measures of each group of slots.

        Args:
            group: by slot, its group; `NULL` for none.
            count: number of groups.
        """
        slots = self._slots
        source, wait, known = self._waits
        llm = np.flatnonzero(self._llm)
        for at, waits in zip(_members(group[llm], count), _members(group[source], count), strict=True):
            own = llm[at]
            prompt, output, cached = self._prompt[own], self._output[own], self._cached[own]
            repeated = self._repeated[own]
            told = (prompt != NULL) & (output != NULL) & (repeated != NULL)
            tokens = total(prompt[told]) + total(output[told])
            hits = (prompt != NULL) & (cached != NULL)
            scheduled, submitted = slots.scheduled[own], slots.submitted[own]
            yield Context(
                _distribution(prompt, prompt != NULL),
                Ratio(total(repeated[told]), tokens, int((~told).sum())),
                Ratio(total(cached[hits]), total(prompt[hits]), int((~hits).sum())),
                _distribution(wait[waits], known[waits]),
                _distribution(scheduled - submitted, (scheduled != NULL) & (submitted != NULL)),
            )

    def kinds(self) -> list[KindMeasures]:
        """Counts by kind, of the kinds that there are."""
        kind = self._slots.recorded("kind")
        made = []
        for each in OperationKind:
            of = kind == each
            if of.any():
                prompt, output = self._prompt[of], self._output[of]
                made.append(
                    KindMeasures(
                        each.name.lower(),
                        int(of.sum()),
                        _distribution(prompt, prompt != NULL),
                        _distribution(output, output != NULL),
                    )
                )
        return made

    def agents(self) -> list[AgentMeasures]:
        """By agent, in order of first appearance; operations without session or agent come under None."""
        names = self._slots.trace["sessions"].strings("agent")
        session = self._slots.recorded("session")
        numbers: dict[str | None, int] = {}
        of_session = np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)
        nobody = numbers.setdefault(None, len(numbers))
        of_slot = np.full(self._slots.count, nobody, dtype=np.int64)
        of_slot[session != NULL] = of_session[session[session != NULL]]
        used = np.bincount(of_slot, minlength=len(numbers)).astype(np.bool_)
        contexts = self._contexts(of_slot, len(numbers))
        return [
            AgentMeasures(name, context)
            for name, context, present in zip(numbers, contexts, used, strict=True)
            if present
        ]

    def _stage_times(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """For each stage of each instance that has operations: the stage, its time, whether that is known."""
        slots = self._slots
        stages = slots.trace["stages"]
        bounds = slots.trace.offsets("stages")
        task = slots.execution.instances.ints("task")
        there = task < slots.trace.tasks.rows
        first = np.where(there, bounds[np.where(there, task, 0)], 0)
        counts = np.where(there, bounds[np.where(there, task + 1, 0)] - first, 0)
        begin = np.cumsum(counts) - counts
        total = int(counts.sum())
        earliest = np.full(total, np.iinfo(np.int64).max, dtype=np.int64)
        latest = np.full(total, NULL, dtype=np.int64)
        used = np.zeros(total, dtype=np.bool_)
        unknown = np.zeros(total, dtype=np.bool_)
        stage = slots.recorded("stage").copy()
        parent = stages.ints("parent")
        at = np.flatnonzero(stage != NULL)
        while len(at):
            place_ = begin[slots.instance[at]] + stage[at] - first[slots.instance[at]]
            used[place_] = True
            unknown[place_[(self.ready[at] == NULL) | (slots.finished[at] == NULL)]] = True
            np.minimum.at(earliest, place_, self.ready[at])
            np.maximum.at(latest, place_, slots.finished[at])
            stage[at] = parent[stage[at]]
            at = at[stage[at] != NULL]
        rows = ranges(first, counts)[used]
        return rows, latest[used] - earliest[used], ~unknown[used]

    def stages(self) -> list[StageMeasures]:
        """By name and template, in order of first appearance."""
        stages = self._slots.trace["stages"]
        names = [str(name) for name in stages.strings("name")]
        extensions = stages.strings("template_extension")
        templates = [
            extension or StageTemplate(number).name.lower()
            for number, extension in zip(stages.ints("template").tolist(), extensions, strict=True)
        ]
        numbers: dict[tuple[str, str], int] = {}
        keys = zip(names, templates, strict=True)
        group = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
        rows, times, known = self._stage_times()
        own = self._slots.recorded("stage")
        of_slot = np.full(self._slots.count, NULL, dtype=np.int64)
        of_slot[own != NULL] = group[own[own != NULL]]
        contexts = self._contexts(of_slot, len(numbers))
        members = _members(group[rows], len(numbers))
        return [
            StageMeasures(name, template, _distribution(times[own_rows], known[own_rows]), context)
            for (name, template), own_rows, context in zip(numbers, members, contexts, strict=True)
        ]

    def rounds(self) -> tuple[list[Round], Ratio]:
        """The rounds of the trace, and the redundancy over all instances of them."""
        task = self._slots.execution.instances.ints("task")
        copies = np.bincount(
            task[task < self._slots.trace.tasks.rows], minlength=self._slots.trace.tasks.rows
        )
        found = list(rounds(self._slots.trace))
        part = whole = unknown = 0
        for each in found:
            times = int(copies[each.task])
            if each.repeated is None or each.total is None:
                unknown += times
            else:
                part += times * each.repeated
                whole += times * each.total
        return found, Ratio(part, whole, unknown)
