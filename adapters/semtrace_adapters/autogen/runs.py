"""Runs of teams, their rounds, the turns of agents, and what tools run inside of them.

A team's manager asks one or more agents to speak, waits until all of them have answered, and asks the next
(AutoGen's group chats do so without exception, GraphFlow included): a *round* is the agents asked together. A turn is
what one agent does when asked: model calls, the tools they ask for, and what those tools run in their turn.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from semtrace_adapters.autogen.facts import Agent, Call, Sent, ToolRun
    from semtrace_adapters.autogen.read_spans import Place
    from semtrace_adapters.autogen.read_stream import Stream

MANAGERS = {
    "RoundRobinGroupChatManager": "RoundRobinGroupChat",
    "SelectorGroupChatManager": "SelectorGroupChat",
    "SwarmGroupChatManager": "Swarm",
    "GraphManager": "GraphFlow",
    "MagenticOneOrchestrator": "MagenticOneGroupChat",
}
"""Kind of team by the name of its manager."""

UNNAMED = "agent"
"""Name of an agent that no source names."""


@dataclass
class ToolStep:
    """The tools that one call asked for; they run at the same time."""

    runs: list[ToolRun]
    inner: dict[int, Body] = field(default_factory=dict)
    """By the run's ``id()``, what ran inside of it."""


@dataclass
class Body:
    """What an agent did, in order: calls, tools, teams that it ran."""

    agent: str
    steps: list[Call | ToolStep | TeamRun] = field(default_factory=list)


@dataclass
class Turn:
    """One agent's turn in a team."""

    agent: Agent
    start_order: float
    start_ns: int | None
    end_order: float = float("inf")
    end_ns: int | None = None
    response: Sent | None = None
    calls: list[Call] = field(default_factory=list)
    runs: list[TeamRun] = field(default_factory=list)
    body: Body = field(default_factory=lambda: Body(""))
    failed: str | None = None
    requested: bool = False
    """Whether a message from the agent before asked for it, in a run that no manager's messages frame."""
    where: str = ""
    """Place in the sources of the manager's request for it; empty where none was seen."""
    said: str | None = None
    """Type of the message that ended it (``TextMessage``, ``ToolCallSummaryMessage`` …), empty where it has none; None
    where no such message was seen."""


@dataclass
class Round:
    """Agents asked to speak together, after what the manager's own model calls decided."""

    manager_calls: list[Call] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    order: float = 0.0


@dataclass
class TeamRun:
    """One run of a team: from its start message to its end.

    Attributes:
        team: the team's id, None where no team was seen.
        kind: ``GraphFlow``, ``Swarm`` …; ``Agent`` for an agent that runs without a team; empty if unknown.
        manager: the manager's name.
        start: the messages that it was started with.
        inside: the turn that it ran inside of, if any.
        inside_tool: the tool's run that ran it, if a tool did.
        tool_name: name of that tool, where only the config tells.
        place: where in the run its start was, where spans tell.
        sure: whether more than time tells that it ran inside of that turn.
        where: place in the sources of its start; empty where no start was seen.
        stream: the run stream that shows it, if there is one.
        framed: whether messages between agents frame its turns; else they are told from its calls alone.
    """

    team: str | None
    kind: str
    manager: str
    order: float
    start_ns: int | None
    start: list[dict[str, Any]] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    end_order: float = float("inf")
    end_ns: int | None = None
    ended: bool = False
    failed: str | None = None
    inside: Turn | None = None
    inside_tool: ToolRun | None = None
    tool_name: str | None = None
    place: Place | None = None
    sure: bool = True
    framed: bool = True
    where: str = ""
    stream: Stream | None = None

    def turns(self) -> Iterable[Turn]:
        """All turns, in order."""
        for each in self.rounds:
            yield from each.turns

    def inner(self) -> Iterable[TeamRun]:
        """All runs inside of it, at any depth."""
        for turn in self.turns():
            for run in turn.runs:
                yield run
                yield from run.inner()


def is_progress(call: Call) -> bool:
    """Whether a Magentic-One orchestrator's call fills in its progress ledger."""
    try:
        value = json.loads(call.text or "")
    except ValueError:
        return "is_request_satisfied" in (call.text or "")
    return isinstance(value, dict) and "is_request_satisfied" in value


def is_final(call: Call, each: Round) -> bool:
    """Whether a Magentic-One orchestrator's call gives the final answer: after the last ledger, and nobody spoke."""
    after_progress = any(is_progress(c) for c in each.manager_calls if c.order < call.order)
    return after_progress and not each.turns and not is_progress(call)
