"""Small workloads of agents on which lifecycle policies differ, each with the engine on which they do.

Where the link is fast and memory ample no two policies differ, so every scenario lacks something: device memory, host memory, or
bandwidth. All lengths and times are ours; they were chosen so that a policy shows where it is good and where it is not.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from semtrace.build.builder import TraceBuilder
from semtrace.records.enums import ContentLevel, Evidence, OperationKind, Role
from semtrace.records.media import TOKEN_IDS_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from semtrace.records.trace import Trace

MS: Final = 1_000_000
"""ns in a millisecond."""
FAST: Final = 12_000_000_000
"""Bytes a second each way: PCIe as TokenCake's release reports it."""
THROTTLED: Final = 800_000_000
"""Bytes a second at which moving KV takes longer than computing it on this engine."""


def engine(
    kv_tokens: int, *, link: int = FAST, host_blocks: int = 20_000, order: str = "fcfs"
) -> dict[str, Any]:
    """The engine of a scenario: Qwen3-8B on an A100, with little memory.

    Args:
        kv_tokens: tokens that the device holds.
        link: bandwidth to host memory each way, in bytes a second.
        host_blocks: blocks of 16 tokens that host memory holds.
        order: of service.
    """
    return {
        "name": "lifecycle policies",
        "model": "Qwen3-8B",
        "device": "A100-SXM",
        "kv_tokens": kv_tokens,
        "block_size": 16,
        "scheduler": {"max_num_seqs": 64, "max_num_batched_tokens": 4096, "order": order},
        "cost": {"kind": "roofline", "compute_share": 0.6},
        "tiers": {"host": {"blocks": host_blocks}},
        "links": {
            "host": {
                "out_bytes_per_s": link, "in_bytes_per_s": link, "latency_ns": 10_000, "per_run_ns": 1_000,
            }
        },
    }  # fmt: skip


class Agents:
    """A trace of agents in the making; times and lengths are drawn uniformly around their means.

    Args:
        seed: of the draws; the same seed gives the same trace.
    """

    def __init__(self, seed: int) -> None:
        self._made = TraceBuilder(content_level=ContentLevel.TOKEN_IDS)
        self._draws = np.random.default_rng(seed)
        self._tokens: dict[int, tuple[int, int]] = {}  # of a call: prompt, output

    def draw(self, mean: int, spread_percent: int = 25) -> int:
        """A whole number around a mean."""
        off = mean * spread_percent // 100
        return int(self._draws.integers(mean - off, mean + off + 1))

    def pick(self, of: int, count: int) -> list[int]:
        """Some of the first whole numbers, in a drawn order."""
        return [int(each) for each in self._draws.permutation(of)[:count]]

    def times(self, count: int, mean_ns: int) -> Iterator[int]:
        """Arrivals: gaps between half and one and a half of the mean, in ns."""
        return itertools.accumulate(self.draw(mean_ns, 50) for _ in range(count))

    def task(self, name: str, arrival_ns: int) -> int:
        """A root."""
        return self._made.task(name, arrival_ns=arrival_ns)

    def session(self, task: int, agent: str) -> int:
        """An agent of it."""
        return self._made.session(task, agent=agent)

    def text(self, number: int, tokens: int) -> int:
        """A text that is the same for all who read it."""
        ids = np.arange(number << 20, (number << 20) + tokens, dtype="<u4")
        return self._made.artifact(ids.tobytes(), TOKEN_IDS_TYPE)

    def call(
        self,
        task: int,
        session: int,
        own: int,
        output: int,
        *,
        name: str = "call",
        base: int | None = None,
        texts: Sequence[tuple[int, int]] = (),
        answers: Iterable[int] = (),
        after: Iterable[int] = (),
    ) -> int:
        """A call of the model.

        Args:
            task: its root.
            session: its agent.
            own: tokens that nobody else has.
            output: tokens that it makes.
            name: its name.
            base: a call whose prompt and output come before those.
            texts: texts that come after them, each with its tokens.
            answers: calls whose outputs come last.
            after: what else it waits for.
        """
        made = self._made
        at = made.operation(
            task, OperationKind.LLM, name, session=session, output_tokens=output,
            tokens_evidence=Evidence.INFERRED,
        )  # fmt: skip
        prompt = own
        if base is not None:
            made.inherit(at, base, len(made.context(base)))
            made.segment(at, Role.ASSISTANT, source=base, tokens=self._tokens[base][1])
            prompt += sum(self._tokens[base])
        made.segment(at, Role.USER, tokens=own)
        for text, tokens in texts:
            made.segment(at, Role.USER, token_ids=text, token_ids_start=0, tokens=tokens)
            prompt += tokens
        for answer in answers:
            made.segment(at, Role.USER, source=answer, tokens=self._tokens[answer][1])
            prompt += self._tokens[answer][1]
        for before in after:
            made.edge(at, before)
        made.update_operation(at, prompt_tokens=prompt)
        self._tokens[at] = (prompt, output)
        return at

    def tool(self, task: int, session: int, name: str, duration_ns: int, after: int) -> int:
        """A tool that a call asked for."""
        at = self._made.operation(task, OperationKind.TOOL, name, session=session, duration_ns=duration_ns)
        self._made.edge(at, after)
        return at

    def turns(
        self, task: int, session: int, call: int, turns: int, added: int, output: int, tools: Iterator[Tool]
    ) -> int:
        """More calls of an agent, each after a tool and with what the tool added; the last of them."""
        for _ in range(turns):
            tool = next(tools)
            ended = self.tool(task, session, tool.name, self.draw(tool.mean_ns), call)
            call = self.call(task, session, self.draw(added), output, base=call, after=[ended])
        return call

    def trace(self) -> Trace:
        """The trace."""
        return self._made.build().trace


@dataclass(frozen=True)
class Tool:
    """A tool.

    Attributes:
        name: its name.
        mean_ns: what it takes on the mean.
    """

    name: str
    mean_ns: int


def same_tool(mean_ns: int) -> Iterator[Tool]:
    """One tool, again and again."""
    return itertools.repeat(Tool("search", mean_ns))


def new_tools(mean_ns: int) -> Iterator[Tool]:
    """Tools of which none was ever seen before."""
    return (Tool(f"tool {number}", mean_ns) for number in itertools.count())


def agents(
    seed: int,
    *,
    roots: int,
    every_ns: int,
    first: int,
    turns: int,
    tools: Iterator[Tool],
    output: int = 16,
    others: int = 0,
    others_every_ns: int = MS,
    others_tokens: int = 2000,
) -> Trace:
    """Agents that call the model and a tool by turns, beside single calls of others that share nothing with anybody.

    Args:
        seed: of the draws.
        roots: agents.
        every_ns: mean time between their arrivals.
        first: mean tokens of an agent's first prompt; each tool adds 200.
        turns: calls after the first.
        tools: the tools, in the order of the agents' calls.
        output: tokens of every call.
        others: single calls of others.
        others_every_ns: mean time between them.
        others_tokens: mean tokens of their prompts.
    """
    made = Agents(seed)
    arrivals = [(time, True) for time in made.times(roots, every_ns)]
    arrivals += [(time, False) for time in made.times(others, others_every_ns)]
    for time, agent in sorted(arrivals):
        name = "agent" if agent else "other"
        task = made.task(name, time)
        session = made.session(task, name)
        call = made.call(task, session, made.draw(first if agent else others_tokens), output)
        if agent:
            made.turns(task, session, call, turns, 200, output, tools)
    return made.trace()


def branches(seed: int) -> Trace:
    """A root plans; a long branch of calls and tools goes on beside eight background calls; a last call waits for all."""
    made = Agents(seed)
    for time in made.times(3, 12_000 * MS):
        task = made.task("root", time)
        plan = made.call(task, made.session(task, "planner"), 200, 8)
        critical = made.session(task, "critical")
        first = made.call(task, critical, made.draw(3000), 16, after=[plan])
        lasts = [made.turns(task, critical, first, 3, 300, 16, same_tool(1000 * MS))]
        for number in range(8):
            session = made.session(task, f"background {number}")
            lasts.append(made.call(task, session, made.draw(3000), 64, after=[plan]))
        made.call(task, made.session(task, "writer"), 300, 16, after=lasts)
    return made.trace()


def readers(seed: int, *, roots: int, every_ns: int, documents: int, turns: int) -> Trace:
    """Agents that read documents of a common library of four, each behind a text of its own, in any order.

    Args:
        seed: of the draws.
        roots: agents.
        every_ns: mean time between their arrivals.
        documents: that each reads, of 2000 tokens.
        turns: calls after the first, each after a tool that adds 600 tokens.
    """
    made = Agents(seed)
    library = [(made.text(number, 2000), 2000) for number in range(4)]
    for time in made.times(roots, every_ns):
        task = made.task("reader", time)
        session = made.session(task, "reader")
        texts = [library[number] for number in made.pick(4, documents)]
        call = made.call(task, session, made.draw(300), 16, texts=texts)
        made.turns(task, session, call, turns, 600, 16, same_tool(300 * MS))
    return made.trace()


def gathering(seed: int, *, roots: int, members: int) -> Trace:
    """All answer; then each is given the answers of all, behind its own history, and answers again.

    Args:
        seed: of the draws.
        roots: groups.
        members: agents of each.
    """
    made = Agents(seed)
    for time in made.times(roots, 4000 * MS):
        task = made.task("group", time)
        sessions = [made.session(task, f"agent {member}") for member in range(members)]
        histories = [made.draw(300, 50) for _ in sessions]
        texts = [
            (made.text(task * members + member, tokens), tokens) for member, tokens in enumerate(histories)
        ]
        answers = [
            made.call(task, session, 1, 100, name="answer", texts=[text])
            for session, text in zip(sessions, texts, strict=True)
        ]
        for session, text in zip(sessions, texts, strict=True):
            made.call(task, session, 1, 100, name="revise", texts=[text], answers=answers)
    return made.trace()


@dataclass(frozen=True)
class Judged:
    """A policy in a scenario.

    Attributes:
        policy: the policy.
        wins: whether it is to beat `prefix` there.
        why: why, in a few words.
    """

    policy: str
    wins: bool
    why: str


@dataclass(frozen=True)
class Scenario:
    """A load and an engine on which policies differ.

    Attributes:
        name: what it does.
        engine: the engine document, without policy.
        make: the load, by seed.
        judged: the policies that it is about.
    """

    name: str
    engine: Mapping[str, Any]
    make: Callable[[int], Trace]
    judged: Sequence[Judged]


def _busy(seed: int) -> Trace:
    return agents(
        seed, roots=10, every_ns=1500 * MS, first=4000, turns=3, tools=same_tool(1500 * MS), others=40,
        others_every_ns=400 * MS,
    )  # fmt: skip


def _few(seed: int) -> Trace:
    return agents(
        seed, roots=6, every_ns=6000 * MS, first=4000, turns=3, tools=same_tool(1500 * MS), others=70,
        others_every_ns=450 * MS,
    )  # fmt: skip


def _new_tools(seed: int) -> Trace:
    return agents(
        seed, roots=16, every_ns=1200 * MS, first=4000, turns=1, tools=new_tools(8000 * MS), output=48,
        others=40, others_every_ns=600 * MS, others_tokens=1000,
    )  # fmt: skip


def _light(seed: int) -> Trace:
    return agents(seed, roots=16, every_ns=2000 * MS, first=3000, turns=2, tools=same_tool(200 * MS))


def _many_short(seed: int) -> Trace:
    return agents(seed, roots=12, every_ns=900 * MS, first=3000, turns=5, tools=new_tools(100 * MS))


SCENARIOS: Final = (
    Scenario(
        "busy: tools of 1.5 s, 10 agents and others on 14,000 tokens",
        engine(14_000),
        _busy,
        (
            Judged("keep", wins=False, why="memory is held for tools while calls wait for it"),
            Judged("offload-lru", wins=True, why="what LRU evicts is loaded, not computed"),
            Judged(
                "continuum",
                wins=True,
                why="pins where a miss would cost more than the pin, and for no longer",
            ),
            Judged("infercept", wins=True, why="swaps: the link is faster than computing"),
            Judged("cost", wins=True, why="moves out: the link is faster than computing"),
        ),
    ),
    Scenario(
        "busy, throttled link: the same at 0.8 GB/s",
        engine(14_000, link=THROTTLED),
        _busy,
        (
            Judged("offload-lru", wins=False, why="copies everything and always loads, over a full link"),
            Judged("tokencake", wins=False, why="moving never gains, so it holds memory for every tool"),
        ),
    ),
    Scenario(
        "few agents: tools of 1.5 s, others evict, 10,500 tokens",
        engine(10_500),
        _few,
        (Judged("keep", wins=True, why="one context is held and not computed again; others still fit"),),
    ),
    Scenario(
        "new long tools: 8 s, none seen before, 12,000 tokens",
        engine(12_000),
        _new_tools,
        (Judged("continuum", wins=False, why="pins 2 s for tools it knows nothing of, in vain"),),
    ),
    Scenario(
        "light load, throttled link: tools of 0.2 s, 30,000 tokens, 0.8 GB/s",
        engine(30_000, link=THROTTLED),
        _light,
        (
            Judged(
                "infercept",
                wins=False,
                why="nothing runs beside, so a swap seems free, however slow the link",
            ),
        ),
    ),
    Scenario(
        "many short tools: 0.1 s, none seen before, 20,000 tokens",
        engine(20_000),
        _many_short,
        (
            Judged(
                "cost",
                wins=False,
                why="expects 1 s of each new tool, and moves out what nobody would have evicted",
            ),
        ),
    ),
    Scenario(
        "critical branch beside background, 10,000 tokens, longest path first",
        engine(10_000, order="critical_path"),
        branches,
        (
            Judged(
                "tokencake",
                wins=True,
                why="a context gives room to others during its tool, and is loaded, not computed",
            ),
        ),
    ),
    Scenario(
        "shared documents: two of four, each behind a text of its own",
        engine(30_000),
        lambda seed: readers(seed, roots=24, every_ns=400 * MS, documents=2, turns=0),
        (Judged("pic", wins=True, why="documents are adapted, where no prefix is shared"),),
    ),
    Scenario(
        "document, then dialogue: one shared document, then four turns",
        engine(60_000),
        lambda seed: readers(seed, roots=10, every_ns=2000 * MS, documents=1, turns=4),
        (
            Judged(
                "pic", wins=False, why="what follows an adapted document has no key: no hits in later turns"
            ),
            Judged("tokendance", wins=False, why="the same"),
        ),
    ),
    Scenario(
        "all-gather: 16 unequal histories, the same answers, 16,000 tokens",
        engine(16_000),
        lambda seed: gathering(seed, roots=3, members=16),
        (
            Judged(
                "tokendance", wins=True, why="answers are adapted once and stored once: fewer wait for memory"
            ),
        ),
    ),
)
"""For each policy one where it beats `prefix`, and one where it loses."""
