"""Runs where no messages between agents are logged: told from the calls alone, or from a run stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semtrace.errors import FormatError
from semtrace_adapters.autogen.facts import Agent, Call
from semtrace_adapters.autogen.read_stream import ends_turn
from semtrace_adapters.autogen.runs import UNNAMED, Round, TeamRun, Turn
from semtrace_adapters.autogen.shape import objs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semtrace_adapters.autogen.config import TeamConfig
    from semtrace_adapters.autogen.merge import Merged
    from semtrace_adapters.autogen.read_stream import Item, Stream
    from semtrace_adapters.base import LossReport

Thread = tuple[str, list[dict[str, Any]]]
"""An agent without an id: its name, and the messages that it last sent."""


def runs_of_calls(
    merged: Merged, loose: list[Call], configs: Sequence[TeamConfig], loss: LossReport
) -> list[TeamRun]:
    """Runs made of calls that no team's messages frame: one turn after the other, by agent.

    Calls of one team make one run, and so do those of one file that are of none. Turns are side by side where one is
    seen to begin before the other has ended, or where the team's graph says that neither waits for the other.
    """
    made: dict[tuple[str | None, str], TeamRun] = {}
    threads: list[Thread] = []
    for call in loose:
        team = call.agent.team if call.agent else None
        key = (team, "" if team else call.where.partition(":")[0])
        run = made.get(key)
        if run is None:
            kind = "" if team else "Agent"
            run = made[key] = TeamRun(team, kind, "", call.order - 0.5, call.start_ns, framed=False)
        last = _goes_on(run, call, merged)
        if last is None:
            last = _new_turn(run, call, Agent(_name_of(call, threads), team), merged, configs)
        elif call.agent is None:
            _note_thread(threads, last.agent.name, call)
        last.calls.append(call)
        last.end_order, last.end_ns = call.order, call.end_ns
        run.end_order, run.end_ns = call.order, call.end_ns
    for run in made.values():
        loss.add(
            "structure.from_calls",
            "inferred",
            "no messages between agents in the sources: turns and their order are told from the calls alone",
            count=sum(len(t.calls) for t in run.turns()),
        )
    return list(made.values())


def refuse_any_join(name: str, config: TeamConfig | None) -> None:
    """Refuse an agent that may go on after one of several others, where only the graph could tell what it waited for.

    Where messages frame the turns there is nothing to refuse: a manager goes on when all speakers of a round have
    answered, and the log shows the rounds.

    Raises:
        FormatError: naming the agent.
    """
    if config is not None and name in config.any_joins:
        raise FormatError(
            f"agent {name} goes on after any of several agents, and no message shows which it waited for: "
            "a trace of version 1 has no join on any",
            code="autogen.join",
            path=config.name,
            requirement="ST-PROD-007",
            hint="import an event log that has the messages between agents, or spans",
        )


def _told(call: Call) -> set[str]:
    """Ids of the tool calls whose results a call was sent."""
    return {str(m.get("tool_call_id")) for m in call.messages or [] if m.get("role") == "tool"}


def _goes_on(run: TeamRun, call: Call, merged: Merged) -> Turn | None:
    """The turn that a call is part of: it brings results that the agent waits for, or a tool of the agent made it."""
    told = _told(call)
    for turn in reversed(run.rounds[-1].turns if run.rounds else []):
        if call.agent is not None and call.agent.name != turn.agent.name:
            continue
        asked = {i for c in turn.calls for i in c.call_ids}
        used = {i for c in turn.calls for i in _told(c)}
        if (asked - used) & told or asked & set(call.around or ()) or _waits(turn, call, merged):
            return turn
    return None


def _waits(turn: Turn, call: Call, merged: Merged) -> bool:
    """Whether an agent still waited for a tool when a call ended."""
    tools = [t for c in turn.calls for t in merged.tools.get(id(c), [])]
    return any(t.end_order is not None and t.end_order > call.order for t in tools)


def _new_turn(run: TeamRun, call: Call, agent: Agent, merged: Merged, configs: Sequence[TeamConfig]) -> Turn:
    turns = list(run.turns())
    start = turns[-1].end_order if turns else call.order - 0.5
    turn = Turn(agent, min(start, call.order - 0.25), call.start_ns)
    last = run.rounds[-1].turns if run.rounds else []
    names = {t.agent.name for t in turns} | {agent.name}
    config = next((c for c in configs if names <= set(c.names)), None)
    refuse_any_join(agent.name, config)
    edges = config.edges if config else set()
    before = {source for source, target in edges if target == agent.name}
    beside = all(t.agent != agent for t in last) and (
        all(_overlap(call, t) for t in last)
        or any(_waits(t, call, merged) for t in last)
        or (bool(before) and not before & {t.agent.name for t in last})
    )
    if not last or not beside:
        run.rounds.append(Round(order=turn.start_order))
        last = run.rounds[-1].turns
        turn.requested = _asked_by(turns[-1].agent, turns[-1].end_order, call, merged) if turns else False
    else:
        turn.start_order = min(turn.start_order, last[0].start_order)
    last.append(turn)
    return turn


def _asked_by(agent: Agent, after: float, call: Call, merged: Merged) -> bool:
    """Whether an agent sent a message to the agent of a call before that had ended."""
    return any(
        s.sender == agent and s.topic == call.agent and after <= s.order <= call.order for s in merged.sent
    )


def _overlap(call: Call, turn: Turn) -> bool:
    """Whether a call is seen to have begun before a turn's last call had ended."""
    ends = [c.end_ns for c in turn.calls if c.end_ns is not None]
    return call.start_seen and call.start_ns is not None and bool(ends) and call.start_ns < max(ends)


def _name_of(call: Call, threads: list[Thread]) -> str:
    """The agent's name: as logged, as a message speaks of it, or by the line of context that it goes on with."""
    if call.agent:
        return call.agent.name
    messages = call.messages or []
    known = next((n for n, m in threads if m and messages[: len(m)] == m), None)
    name = call.source or known or (f"{UNNAMED}-{len(threads) + 1}" if threads else UNNAMED)
    _note_thread(threads, name, call)
    return name


def _note_thread(threads: list[Thread], name: str, call: Call) -> None:
    threads[:] = [t for t in threads if t[0] != name]
    threads.append((name, call.messages or []))


def run_of_stream(stream: Stream, made: list[Call], config: TeamConfig | None, loss: LossReport) -> TeamRun:
    """The run that a stream with these calls shows, where it is the only source.

    Turns end with a chat message of their agent. A turn that begins before another has ended is beside it; with the
    team's graph, so is one that waits for none of the agents before it. Which agents are inside of a team or a
    tool is told by the config; without one, only an agent with the name of a tool that is running is.
    """
    run = _run_of_items(stream.items, {call.order: call for call in made}, config)
    run.stream = stream
    loss.add(
        "structure.from_stream",
        "inferred",
        "the run stream is the only source: turns and their order are told from its messages"
        + ("" if config else "; without a config, agents inside of a team are not told from the team's own"),
        count=max(1, len(stream.items)),
    )
    return run


def _owners(config: TeamConfig | None) -> dict[str, tuple[str, str | None, TeamConfig]]:
    """By the name of an agent inside: the participant that it is inside of, the tool, and the inner team."""
    made: dict[str, tuple[str, str | None, TeamConfig]] = {}
    for participant in config.participants if config else []:
        inner = [(None, participant.team)] if participant.team else []
        for tool, team in [*inner, *participant.tool_teams.items()]:
            for each in team.all_teams():
                for name in each.names:
                    made.setdefault(name, (participant.name, tool, team))
    return {name: owner for name, owner in made.items() if not config or name not in config.names}


def _run_of_items(items: list[Item], calls: dict[float, Call], config: TeamConfig | None) -> TeamRun:
    run = TeamRun(
        None, config.kind if config else "", "", items[0].order - 0.5 if items else -1.0, None, framed=False
    )
    names = set(config.names) if config else set()
    owners = _owners(config)
    waiting: dict[str, str] = {}  # tool call id -> name of the tool, asked for and not answered
    opened: dict[str, Turn] = {}
    inside: dict[tuple[int, str | None], tuple[Turn, TeamConfig, list[Item]]] = {}
    for item in items:
        call = calls.get(item.order)
        run.start_ns = run.start_ns if run.start_ns is not None else item.time_ns
        run.end_order, run.end_ns = item.order, item.time_ns
        if call is None and item.source == "user":
            if not run.rounds:
                run.start.append(item.message)
            continue
        owner = owners.get(item.source)
        top = owner[0] if owner else item.source
        inner = (
            owner is None
            and bool(opened)
            and (item.source not in names if names else top in waiting.values())
        )
        if inner:
            turn = next(
                (t for t in opened.values() if any(i in waiting for c in t.calls for i in c.call_ids)), None
            )
            turn = turn or next(iter(opened.values()))
        else:
            if top not in opened and config and not config.edges:
                opened.clear()  # one speaker at a time: who is still open is a team that has ended
            turn = opened.get(top) or _stream_turn(run, top, item, opened, config)
            opened[top] = turn
        turn.end_ns, turn.end_order = item.time_ns, item.order
        if owner is not None:
            inside.setdefault((id(turn), owner[1]), (turn, owner[2], []))[2].append(item)
            continue
        if call is not None:
            turn.calls.append(call)
        _note_tools(item, waiting)
        if ends_turn(item) and not inner:
            opened.pop(top, None)
            turn.said = item.type
    for (_, tool), (turn, team, held) in inside.items():
        made = _run_of_items(held, calls, team)
        made.inside, made.tool_name, made.ended = turn, tool, True
        turn.runs.append(made)
    return run


def _note_tools(item: Item, waiting: dict[str, str]) -> None:
    for part in objs(item.message.get("content")):
        if item.type == "ToolCallRequestEvent":
            waiting[str(part.get("id"))] = str(part.get("name"))
        elif item.type == "ToolCallExecutionEvent":
            waiting.pop(str(part.get("call_id")), None)


def _stream_turn(
    run: TeamRun, name: str, item: Item, opened: dict[str, Turn], config: TeamConfig | None
) -> Turn:
    refuse_any_join(name, config)
    last = run.rounds[-1] if run.rounds else None
    beside = last is not None and bool(opened)
    if last is not None and not beside and config and config.edges:
        before = {source for source, target in config.edges if target == name}
        beside = bool(before) and not before & {t.agent.name for t in last.turns}
    if last is not None and beside and last.turns:
        first = last.turns[0]
        turn = Turn(Agent(name, None), first.start_order, first.start_ns)
    else:
        ends = [t.end_ns for t in run.turns() if t.end_ns is not None]
        turn = Turn(Agent(name, None), item.order - 0.5, max(ends, default=run.start_ns))
        last = Round(order=turn.start_order)
        run.rounds.append(last)
    last.turns.append(turn)
    return turn
