"""Small workloads of agents that call tools, as data that can be changed and made a trace: what lifecycle policies are tried on."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from semtrace.build import TraceBuilder
from semtrace.records.enums import OperationKind, Role
from semtrace.records.media import TOKEN_IDS_TYPE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semtrace.records.trace import Trace


@dataclass(frozen=True)
class Step:
    """An operation of an agent.

    Attributes:
        agent: whose it is; the task's agents are numbered.
        tool: name of the tool, None for a call of the model.
        after: ordinals of the task's operations that it waits for; lower ones.
        duration_ns: of a tool.
        prompt: the pieces of a call's prompt, each some token ids.
        output: tokens that a call makes.
    """

    agent: int
    tool: str | None
    after: tuple[int, ...]
    duration_ns: int = 0
    prompt: tuple[tuple[int, ...], ...] = ()
    output: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return sum(map(len, self.prompt))


@dataclass(frozen=True)
class Program:
    """A task: when it arrives, and its operations."""

    arrival_ns: int
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Workload:
    """Tasks of agents, and the engine that they run on.

    Attributes:
        programs: the tasks, by arrival.
        engine: the engine document, without policy.
    """

    programs: tuple[Program, ...]
    engine: dict[str, Any] = field(default_factory=dict)

    def trace(self) -> Trace:
        """The workload as a trace; its operations are in the order of the tasks and of their steps."""
        made = TraceBuilder()
        for at, program in enumerate(self.programs):
            task = made.task(f"task {at}", arrival_ns=program.arrival_ns)
            agents = {step.agent for step in program.steps}
            sessions = {agent: made.session(task, name=f"agent {agent}") for agent in sorted(agents)}
            rows: list[int] = []
            for ordinal, step in enumerate(program.steps):
                call = step.tool is None
                row = made.operation(
                    task,
                    OperationKind.LLM if call else OperationKind.TOOL,
                    step.tool or f"agent {step.agent}",
                    session=sessions[step.agent],
                    started_ns=ordinal,
                    duration_ns=None if call else step.duration_ns,
                    prompt_tokens=step.prompt_tokens if call else None,
                    output_tokens=step.output if call else None,
                )
                for before in step.after:
                    made.edge(row, rows[before])
                for piece in step.prompt:
                    ids = made.artifact(np.array(piece, dtype="<u4").tobytes(), TOKEN_IDS_TYPE)
                    made.segment(row, Role.USER, token_ids=ids, token_ids_start=0, tokens=len(piece))
                rows.append(row)
        return made.build().trace

    def changed_after(
        self, time_ns: int, submitted: Sequence[int], finished: Sequence[int], seed: int
    ) -> Workload:
        """The same until some time, another one after it.

        Tools that had not ended by then take another time and calls that had not ended make more tokens; what was not
        submitted by then gets other durations, prompts and outputs; tasks that had not arrived come later.

        Args:
            time_ns: the time; what ended in that instant is not changed.
            submitted: by operation, when it was submitted.
            finished: by operation, when it ended.
            seed: what the changes are drawn from.
        """
        rng = random.Random(seed)  # noqa: S311  # seeded, so that a workload is the same everywhere
        programs, row = [], 0
        for program in self.programs:
            steps = []
            for step in program.steps:
                new = step
                if finished[row] > time_ns:
                    begun = submitted[row] <= time_ns
                    if step.tool is not None:
                        least = time_ns - submitted[row] + 1 if begun else 1
                        new = replace(step, duration_ns=least + rng.randrange(2 * step.duration_ns + 1))
                    elif begun:
                        new = replace(step, output=step.output + rng.randrange(4))
                    else:
                        added = tuple(rng.randrange(1 << 31) for _ in range(rng.randint(1, 4)))
                        new = replace(step, prompt=(*step.prompt, added), output=1 + rng.randrange(4))
                steps.append(new)
                row += 1
            late = rng.randrange(500) if program.arrival_ns > time_ns else 0
            programs.append(Program(program.arrival_ns + late, tuple(steps)))
        return replace(self, programs=tuple(programs))


def random_workload(seed: int) -> Workload:
    """Some tasks in which agents call the model and tools by turns, on an engine with little memory and a slow link.

    The order of service is none that knows the lengths of calls to come. Prompts of an agent begin with those before them; those of all agents begin alike. Agents of a task run side by side, and a
    last call waits for all of them. Documents of a task are read by several agents, each behind its own text.
    """
    rng = random.Random(seed)  # noqa: S311  # as above
    shared = tuple(range(rng.choice((1, 5, 8))))
    programs = []
    for task in range(rng.randint(2, 5)):
        steps: list[Step] = []
        lasts = []
        documents = [
            tuple(1000 * (task + 1) + 700 + 50 * each + at for at in range(rng.randint(4, 14)))
            for each in range(2)
        ]
        for agent in range(rng.randint(1, 3)):
            own = tuple(1000 * (task + 1) + 100 * agent + at for at in range(rng.randint(1, 14)))
            prompt: tuple[tuple[int, ...], ...] = (shared, own)
            before: tuple[int, ...] = ()
            for turn in range(rng.randint(1, 3)):
                call = len(steps)
                steps.append(Step(agent, None, before, prompt=prompt, output=rng.randint(1, 6)))
                tools = range(call + 1, call + 1 + rng.choice((0, 1, 1, 1, 2)))
                steps += [
                    Step(
                        agent,
                        rng.choice(("read", "search", "shell")),
                        (call,),
                        duration_ns=rng.choice((0, 9, 80, 400)),
                    )
                    for _ in tools
                ]
                before = tuple(tools) or (call,)
                prompt += (tuple(rng.randrange(1 << 31) for _ in range(rng.randint(1, 9))),)
                if rng.random() < 0.6:
                    prompt += (rng.choice(documents),)
                del turn
            lasts.append(before[-1])
        whole = (shared, tuple(1000 * (task + 1) + 900 + at for at in range(rng.randint(1, 9))), *documents)
        steps.append(Step(99, None, tuple(lasts), prompt=whole, output=rng.randint(1, 4)))
        programs.append(Program(rng.choice((0, 0, 30, 200)), tuple(steps)))
    programs.sort(key=lambda program: program.arrival_ns)
    size = rng.choice((2, 4))
    longest = max(  # as it may become by changes
        step.prompt_tokens + 4 + max(step.output + 3, 4) for program in programs for step in program.steps
    )
    band = rng.choice((200_000_000, 1_000_000_000, 8_000_000_000))
    link = {
        "out_bytes_per_s": band, "in_bytes_per_s": 2 * band, "latency_ns": rng.choice((0, 3)),
        "per_run_ns": rng.choice((0, 2)),
    }  # fmt: skip
    engine = {
        "block_size": size,
        "blocks": -(-longest // size) + rng.choice((1, 1, 2, 6)),
        "servers": rng.choice((1, 1, 2)),
        "routing": rng.choice(("round_robin", "session_sticky", "prefix_aware")),
        "model": {
            "name": "tiny", "layers": 1, "hidden_size": 8, "heads": 1, "kv_heads": 1, "head_dim": 1,
            "intermediate_size": 8, "vocab_size": 8,
        },
        "scheduler": {
            "max_num_batched_tokens": rng.choice((6, 64, 200)), "order": rng.choice(("fcfs", "fcfs", "plas")),
        },
        "cost": {
            "kind": "linear", "c0_ps": 4000, "c_seq_ps": 500, "c_prefill_ps": rng.choice((300, 4000)), "c_decode_ps": 900,
            "c_kv_ps": 10,
        },
        "tiers": {"host": {"blocks": rng.choice((3, 10, 60))}, "remote": {"blocks": 40}},
        "links": {"host": link, "remote": {**link, "out_bytes_per_s": band // 2, "in_bytes_per_s": band // 2}},
    }  # fmt: skip
    return Workload(tuple(programs), engine)
