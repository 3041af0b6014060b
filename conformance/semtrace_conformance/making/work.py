"""Small works in a short form, and the traces that they are."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from semtrace.build import TraceBuilder
from semtrace.records.enums import (
    EdgeKind,
    Evidence,
    FinishReason,
    OperationKind,
    OperationStatus,
    Role,
    StageTemplate,
    Trigger,
)
from semtrace.records.media import TOKEN_IDS_TYPE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from semtrace.build import BuiltTrace


@dataclass(frozen=True)
class After:
    """What an operation waits for: an operation by name, the trigger that counts, and a lag in ns."""

    source: str
    trigger: Trigger = Trigger.FINISH
    lag_ns: int = 0


@dataclass(frozen=True)
class Op:
    """An operation in short form.

    Attributes:
        name: its name, unique in its work.
        after: what it waits for; a name alone stands for its finish.
        kind: what it is.
        status: how it ended.
        duration: its duration in ns, where it has one.
        prompt, output: its token counts, where it has them.
        delay: its external delay in ns.
        task: its task.
        stage, session: by name.
        prompt_ids: the token ids of its own input; its prompt has those of `base` before them.
        base: the operation whose whole context, output included, its input begins with.
        output_ids: the token ids of its output.
        finish: why the model stopped.
        messages: the messages of its input, as a chat request has them.
    """

    name: str
    after: tuple[str | After, ...] = ()
    kind: OperationKind = OperationKind.TOOL
    status: OperationStatus = OperationStatus.OK
    duration: int | None = None
    prompt: int | None = None
    output: int | None = None
    delay: int = 0
    task: int = 0
    stage: str | None = None
    session: str | None = None
    prompt_ids: tuple[int, ...] | None = None
    base: str | None = None
    output_ids: tuple[int, ...] | None = None
    finish: FinishReason | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None

    @property
    def edges(self) -> list[After]:
        """What it waits for."""
        return [each if isinstance(each, After) else After(each) for each in self.after]

    @property
    def on_backend(self) -> bool:
        """Whether a replay sends it to the backend (ST-REL-010)."""
        return self.kind in {OperationKind.LLM, OperationKind.EMBED} and self.status in {
            OperationStatus.OK,
            OperationStatus.CANCELLED,
        }


def llm(name: str, prompt: int | None, output: int | None, *after: str | After, **more: Any) -> Op:
    """A call of a model."""
    return Op(name, after, OperationKind.LLM, prompt=prompt, output=output, **more)


def tool(name: str, duration: int | None, *after: str | After, **more: Any) -> Op:
    """A call of a tool."""
    return Op(name, after, duration=duration, **more)


@dataclass(frozen=True)
class TaskFacts:
    """A task in short form: its arrival in ns, and the operation that answers it."""

    arrival: int | None = None
    answer: str | None = None


@dataclass(frozen=True)
class Work:
    """A work in short form; operations stand in their order, those of a task together.

    Attributes:
        operations: the operations.
        tasks: the tasks.
        stages: by name, the stage that each is nested in, and its task.
    """

    operations: Sequence[Op]
    tasks: Sequence[TaskFacts] = (TaskFacts(),)
    stages: Mapping[str, tuple[str | None, int]] = field(default_factory=dict)

    def number(self, name: str) -> int:
        """The row of an operation."""
        return [each.name for each in self.operations].index(name)

    def of_task(self, task: int) -> list[int]:
        """The operations of a task."""
        return [at for at, each in enumerate(self.operations) if each.task == task]

    def prompt(self, at: int) -> tuple[int, ...] | None:
        """The token ids of an operation's whole input, None if they are not known."""
        each = self.operations[at]
        if each.prompt_ids is None or each.base is None:
            return each.prompt_ids
        base = self.number(each.base)
        return (*(self.prompt(base) or ()), *(self.operations[base].output_ids or ()), *each.prompt_ids)

    def build(self) -> BuiltTrace:
        """The trace.

        Raises:
            ValueError: operations, stages or sessions would get other numbers than their place.
        """
        builder = TraceBuilder()
        tasks = [builder.task(f"task {at}", arrival_ns=each.arrival) for at, each in enumerate(self.tasks)]
        stages: dict[str, int] = {}
        for name, (parent, task) in self.stages.items():
            stages[name] = builder.stage(
                tasks[task],
                name,
                template=StageTemplate.FORK_JOIN,
                parent=None if parent is None else stages[parent],
            )
        sessions: dict[str, int] = {}
        for each in self.operations:
            if each.session is not None and each.session not in sessions:
                sessions[each.session] = builder.session(tasks[each.task], name=each.session)
        for at, each in enumerate(self.operations):
            counted = each.prompt is not None or each.output is not None
            row = builder.operation(
                tasks[each.task],
                each.kind,
                each.name,
                stage=None if each.stage is None else stages[each.stage],
                session=None if each.session is None else sessions[each.session],
                status=each.status,
                started_ns=at,
                external_delay_ns=each.delay,
                duration_ns=each.duration,
                prompt_tokens=each.prompt,
                output_tokens=each.output,
                tokens_evidence=Evidence.OBSERVED if counted else None,
                finish_reason=each.finish,
            )
            if each.output_ids is not None:
                builder.update_operation(
                    row, output_token_ids=builder.artifact(packed(each.output_ids), TOKEN_IDS_TYPE)
                )
            if each.base is not None:
                base = self.number(each.base)
                builder.inherit(row, base, len(builder.context(base)) + 1)
            if each.messages is not None:
                builder.request(row, list(each.messages))
            if each.prompt_ids is not None:
                held = builder.artifact(packed(each.prompt_ids), TOKEN_IDS_TYPE)
                builder.segment(
                    row, Role.USER, tokens=len(each.prompt_ids), token_ids=held, token_ids_start=0
                )
            for edge in each.edges:
                builder.edge(
                    row,
                    self.number(edge.source),
                    kind=EdgeKind.CONTROL,
                    trigger=edge.trigger,
                    lag_ns=edge.lag_ns,
                )
        for at, task_facts in enumerate(self.tasks):
            if task_facts.answer is not None:
                builder.update_task(tasks[at], answer_operation=self.number(task_facts.answer))
        built = builder.build()
        for table in ("operations", "stages", "sessions"):
            if built.ids[table] != list(range(len(built.ids[table]))):
                raise ValueError(f"the {table} do not stand in their canonical order: {built.ids[table]}")
        return built


def packed(ids: Sequence[int]) -> bytes:
    """Token ids as content has them."""
    return struct.pack(f"<{len(ids)}I", *ids)


START: Final = Trigger.START
FIRST: Final = Trigger.FIRST_TOKEN
