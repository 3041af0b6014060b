"""The operation that gave a run's answer: the last that made a text for the user.

That is what an agent said when its turn ended, a tool's result where the agent gave it out as its own text, or
a Magentic-One orchestrator's final answer. A request for a tool, a handoff, a selector's choice, what a person said and
what is still on its way to another agent are no answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semtrace_adapters.autogen.facts import Call
from semtrace_adapters.autogen.runs import ToolStep, is_final

if TYPE_CHECKING:
    from semtrace_adapters.autogen.facts import ToolRun
    from semtrace_adapters.autogen.runs import Body, TeamRun, Turn
    from semtrace_adapters.autogen.walk import Walk

_FROM_TOOLS = frozenset({"ToolCallSummaryMessage", ""})
"""Types of messages that give a tool's result out as the agent's text; before 0.7 the log does not say the type."""
_GRAPH_STOP = "DiGraphStopAgent"
"""The agent that ends a graph's run, before 0.6: it says so, and nothing else."""


def answer_of(run: TeamRun, kind: str, walk: Walk) -> int | None:
    """The operation that gave a run's answer, None where the run made no text for the user, failed, or was cut off.

    Args:
        run: the run, after its rows were made.
        kind: the kind of its team.
        walk: what made them.
    """
    if run.failed or (run.framed and not run.ended):
        return None
    return _of_run(run, kind, walk)


def _of_run(run: TeamRun, kind: str, walk: Walk) -> int | None:
    for each in reversed(run.rounds):
        if kind == "MagenticOneGroupChat":
            for call in reversed(each.manager_calls):
                if is_final(call, each) and call.text:
                    return walk.rows.of_call[id(call)]
        for turn in sorted(each.turns, key=lambda t: t.end_order, reverse=True):
            found = _of_turn(turn, walk)
            if found is not None:
                return found
    return None


def _of_turn(turn: Turn, walk: Walk) -> int | None:
    if not turn.body.steps:
        return None if turn.agent.name == _GRAPH_STOP else walk.spoken.get(id(turn))
    return _of_body(turn.body, turn.said in _FROM_TOOLS, walk)


def _of_body(body: Body, from_tools: bool, walk: Walk) -> int | None:
    """The last step of an agent if it made a text; ``from_tools`` tells that tools' results are the agent's text."""
    step = body.steps[-1]
    if isinstance(step, Call):
        return walk.rows.of_call[id(step)] if step.text and not step.call_ids and not step.error else None
    if not isinstance(step, ToolStep):
        return _of_run(step, step.kind, walk)
    if not from_tools:
        return None

    def ended(tool: ToolRun) -> float:
        return tool.end_order if tool.end_order is not None else float("-inf")

    for tool in sorted(step.runs, key=ended, reverse=True):
        inner = step.inner.get(id(tool))
        found = _of_body(inner, from_tools, walk) if inner else walk.rows.of_tool.get(id(tool))
        if found is not None and (inner or tool.result):
            return found
    return None
