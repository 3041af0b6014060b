"""What the experiments replay: the collaboration structures, and how many tokens their calls have.

The published texts (an article on MAServeBench, and one on collaboration paradigms) give structures and results, and
hardly any lengths. So lengths are ours: they stand in `Lengths`, each with what it was taken from, were chosen before
the first run, and are the same for all experiments. “Inference” in what follows means that no text says it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from semtrace.build.builder import TraceBuilder
from semtrace.records.enums import ContentLevel, Evidence, OperationKind, Role, StageTemplate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from semtrace.records.trace import Trace

REQUEST_LIMIT: Final = 8192
"""Most tokens of a request, prompt and output: the reference's limit. No draw of any structure exceeds it."""


@dataclass(frozen=True)
class Lengths:
    """Mean tokens of the parts that calls are made of. All are inference.

    Attributes:
        question: the task with the instructions of the agent's role. With `answer` it is such that taking all but the
            field `answer` out of what the two analysts of the four calls deliver makes the input 29 % less, as
            reported, if that field is about a fifth of their answer.
        answer: what a call delivers to others; the same for every call, since nothing is said of any.
        reasoning: what the model thinks before it answers, and nobody else reads: Qwen3 does so unless told not to, and the
            reported 109 s for 64 independent requests are thousands of steps, many more than an answer has tokens.
        document: long context that each overlapping branch reads: what the limit of 8192 tokens leaves room for.
        sources: what a branch of the researcher has found and reads; likewise.
        spread_percent: a draw is uniform within this much of the mean, both ways.
    """

    question: int = 512
    answer: int = 768
    reasoning: int = 1280
    document: int = 1536
    sources: int = 3072
    spread_percent: int = 25


LENGTHS: Final = Lengths()
"""The lengths of all experiments but `context-growth`, whose formulas are exact for any."""


class _Calls:
    """A trace in the making, of model calls alone: each of text, answers of others, and its session's context.

    Args:
        seed: of the draw of lengths; the same seed gives the same trace.
        lengths: what to draw around.
    """

    def __init__(self, seed: int, lengths: Lengths = LENGTHS) -> None:
        self.lengths = lengths
        self._made = TraceBuilder(content_level=ContentLevel.SHAPE)
        self._draws = np.random.default_rng(seed)
        self._answer: list[int] = []
        self._prompt: list[int] = []

    def draw(self, mean: int) -> int:
        """A length around a mean."""
        off = mean * self.lengths.spread_percent // 100
        return int(self._draws.integers(mean - off, mean + off + 1))

    def task(self, name: str) -> int:
        return self._made.task(name)

    def stage(self, task: int, name: str, template: StageTemplate, parent: int | None = None) -> int:
        return self._made.stage(task, name, template=template, parent=parent)

    def session(self, task: int, agent: str, started_by: int | None = None) -> int:
        return self._made.session(task, agent=agent, parent_operation=started_by)

    def call(
        self,
        stage: int,
        session: int,
        text: int,
        *,
        of: Iterable[int] = (),
        base: int | None = None,
    ) -> int:
        """A call: its input is the context of an earlier one of its session, text of its own, and answers of others.

        Args:
            stage: its stage.
            session: its session.
            text: tokens of its own text.
            of: calls whose answers it is given.
            base: a call whose input and answer it goes on from.
        """
        agent = self._made.rows["sessions"][session]
        answer = self.draw(self.lengths.answer)
        reasoning = self.draw(self.lengths.reasoning)
        at = self._made.operation(
            agent["task"],
            OperationKind.LLM,
            agent["agent"],
            stage=stage,
            session=session,
            output_tokens=reasoning + answer,
            reasoning_tokens=reasoning,
            tokens_evidence=Evidence.INFERRED,
        )
        prompt = 0
        if base is not None:
            # the context without what the base call thought: a template leaves it out of later turns
            self._made.inherit(at, base, len(self._made.context(base)))
            self._made.segment(at, Role.ASSISTANT, source=base, tokens=self._answer[base])
            prompt += self._prompt[base] + self._answer[base]
        if text:
            self._made.segment(at, Role.USER, tokens=text)
            prompt += text
        for source in of:
            self._made.segment(at, Role.USER, source=source, tokens=self._answer[source])
            prompt += self._answer[source]
        self._made.update_operation(at, prompt_tokens=prompt)
        self._answer.append(answer)
        self._prompt.append(prompt)
        return at

    def answered_by(self, task: int, call: int) -> None:
        self._made.update_task(task, answer_operation=call)

    def trace(self) -> Trace:
        return self._made.build().trace


def four_calls(roots: int, seed: int) -> Trace:
    """Two independent analysts, a synthesis of their answers, one more call; that it reads the synthesis is inference.

    Args:
        roots: how many tasks, all of this structure.
        seed: of the draw of lengths.
    """
    made = _Calls(seed)
    for root in range(roots):
        task = made.task(f"root {root}")
        question = made.draw(LENGTHS.question)
        stage = made.stage(task, "analyse", StageTemplate.FORK_JOIN)
        analysts = [made.call(stage, made.session(task, f"analyst {name}"), question) for name in ("A", "B")]
        stage = made.stage(task, "write", StageTemplate.SEQUENCE)
        synthesis = made.call(stage, made.session(task, "synthesis"), question, of=analysts)
        made.answered_by(task, made.call(stage, made.session(task, "finish"), question, of=[synthesis]))
    return made.trace()


def researcher(roots: int, seed: int, branches: int = 3) -> Trace:
    """Fork–join and refinement, as the text maps GPT Researcher.

    A planner; researchers side by side, each of whom reads sources; a writer who joins them; a reviewer; the writer
    again. That a planner forks and that there is one revision is inference.
    """
    made = _Calls(seed)
    for root in range(roots):
        task = made.task(f"root {root}")
        question = made.draw(LENGTHS.question)
        stage = made.stage(task, "plan", StageTemplate.SEQUENCE)
        plan = made.call(stage, made.session(task, "planner"), question)
        stage = made.stage(task, "research", StageTemplate.FORK_JOIN)
        found = [
            made.call(
                stage,
                made.session(task, f"researcher {branch}"),
                question + made.draw(LENGTHS.sources),
                of=[plan],
            )
            for branch in range(branches)
        ]
        stage = made.stage(task, "refine", StageTemplate.REFINEMENT)
        writer = made.session(task, "writer")
        draft = made.call(stage, writer, question, of=found)
        review = made.call(stage, made.session(task, "reviewer"), question, of=[draft])
        made.answered_by(task, made.call(stage, writer, 0, of=[review], base=draft))
    return made.trace()


def spawn(roots: int, seed: int, children: int = 4) -> Trace:
    """A parent that starts four children; that it goes on with their answers in its own context is inference."""
    made = _Calls(seed)
    for root in range(roots):
        task = made.task(f"root {root}")
        stage = made.stage(task, "spawn", StageTemplate.SPAWN)
        parent = made.session(task, "parent")
        first = made.call(stage, parent, made.draw(LENGTHS.question))
        nested = made.stage(task, "children", StageTemplate.FORK_JOIN, parent=stage)
        answers = [
            made.call(
                nested,
                made.session(task, f"child {child}", started_by=first),
                made.draw(LENGTHS.question),
                of=[first],
            )
            for child in range(children)
        ]
        made.answered_by(task, made.call(stage, parent, 0, of=answers, base=first))
    return made.trace()


def independent(roots: int, seed: int) -> Trace:
    """Ordinary serving: each task is one request, like a parent's first call."""
    made = _Calls(seed)
    for root in range(roots):
        task = made.task(f"root {root}")
        stage = made.stage(task, "answer", StageTemplate.SEQUENCE)
        made.answered_by(task, made.call(stage, made.session(task, "assistant"), made.draw(LENGTHS.question)))
    return made.trace()


def overlapping(roots: int, seed: int, branches: int = 4) -> Trace:
    """Overlapping branches of long context, as in the text; their number and the two calls of each are inference.

    A planner; branches side by side, each a session that reads a document, answers, is asked again and goes on in the
    same context; a writer who joins them. So every branch holds its KV while the others do.
    """
    made = _Calls(seed)
    for root in range(roots):
        task = made.task(f"root {root}")
        question = made.draw(LENGTHS.question)
        stage = made.stage(task, "plan", StageTemplate.SEQUENCE)
        plan = made.call(stage, made.session(task, "planner"), question)
        stage = made.stage(task, "read", StageTemplate.FORK_JOIN)
        ends: list[int] = []
        for branch in range(branches):
            reader = made.session(task, f"reader {branch}")
            first = made.call(stage, reader, question + made.draw(LENGTHS.document), of=[plan])
            ends.append(made.call(stage, reader, made.draw(LENGTHS.question), base=first))
        stage = made.stage(task, "write", StageTemplate.SEQUENCE)
        made.answered_by(task, made.call(stage, made.session(task, "writer"), question, of=ends))
    return made.trace()


def debate(agents: int, rounds: int, question: int, answer: int, *, cumulative: bool) -> Trace:
    """A debate: all answer; in each later round all read the answers of the rounds before, and answer again.

    Args:
        agents: how many.
        rounds: rounds after the first answers.
        question: tokens of the question.
        answer: tokens of every answer.
        cumulative: whether an agent reads the answers of all rounds before, or only of the last.
    """
    made = _Calls(0, Lengths(question=question, answer=answer, reasoning=0, spread_percent=0))
    task = made.task("debate")
    stage = made.stage(task, "debate", StageTemplate.DEBATE)
    sessions = [made.session(task, f"debater {agent}") for agent in range(agents)]
    before = [made.call(stage, session, question) for session in sessions]
    for _ in range(rounds):
        if cumulative:
            before = [
                made.call(
                    stage,
                    session,
                    0,
                    base=before[agent],
                    of=[each for each in before if each != before[agent]],
                )
                for agent, session in enumerate(sessions)
            ]
        else:
            before = [made.call(stage, session, question, of=before) for session in sessions]
    return made.trace()


def mixture(proposers: int, layers: int, question: int, answer: int) -> Trace:
    """A Mixture-of-Agents: layers of proposers, each reading the answers of the layer before, and an aggregator.

    Args:
        proposers: in each layer.
        layers: of proposers.
        question: tokens of the question.
        answer: tokens of every answer.
    """
    made = _Calls(0, Lengths(question=question, answer=answer, reasoning=0, spread_percent=0))
    task = made.task("mixture")
    before: Sequence[int] = ()
    for layer in range(layers):
        stage = made.stage(task, f"layer {layer}", StageTemplate.FORK_JOIN)
        before = [
            made.call(stage, made.session(task, f"proposer {layer}.{proposer}"), question, of=before)
            for proposer in range(proposers)
        ]
    stage = made.stage(task, "aggregate", StageTemplate.SEQUENCE)
    made.answered_by(task, made.call(stage, made.session(task, "aggregator"), question, of=before))
    return made.trace()
