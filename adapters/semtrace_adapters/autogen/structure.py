"""Finding out who ran inside of whom: see :mod:`.runs` for what is found."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from semtrace_adapters.autogen.facts import Agent, Call, Sent, ToolRun
from semtrace_adapters.autogen.from_calls import run_of_stream, runs_of_calls
from semtrace_adapters.autogen.provenance import SHORTEST
from semtrace_adapters.autogen.runs import MANAGERS, Body, Round, TeamRun, ToolStep, Turn

if TYPE_CHECKING:
    from semtrace_adapters.autogen.config import TeamConfig
    from semtrace_adapters.autogen.merge import Merged
    from semtrace_adapters.base import LossReport


def find_structure(merged: Merged, configs: list[TeamConfig], loss: LossReport) -> list[TeamRun]:
    """The runs at the top, with all that ran inside of them.

    Returns:
        Runs of teams that no agent started, in order. Runs of one team follow each other.
    """
    runs = _team_runs(merged)
    if merged.stream_calls:
        for stream, calls in zip(merged.streams, merged.stream_calls, strict=True):
            names = {item.source for item in stream.items}
            config = next((c for c in configs if set(c.names) & names), None)
            runs.append(run_of_stream(stream, calls, config, loss))
    else:
        loose = _assign_calls(merged, runs)
        if loose:
            runs.extend(runs_of_calls(merged, loose, configs, loss))
    _nest(merged, runs, loss)
    tops = sorted((r for r in runs if r.inside is None), key=lambda r: r.order)
    for run in tops:
        _build(run, merged, loss)
    return tops


# --- runs, rounds and turns from messages --------------------------------------------------------------


def _team_runs(merged: Merged) -> list[TeamRun]:
    runs: list[TeamRun] = []
    current: dict[str, TeamRun] = {}
    for sent in merged.sent:
        if (
            sent.type == "GroupChatStart"
            and sent.sender is None
            and sent.topic is not None
            and sent.topic.team
        ):
            manager = sent.topic
            run = TeamRun(
                manager.team,
                MANAGERS.get(manager.name, ""),
                manager.name,
                sent.order,
                sent.time_ns,
                sent.messages,
                where=sent.where,
            )
            places = merged.starts.get(manager) or []
            earlier = sum(1 for r in runs if r.team == manager.team)
            run.place = places[earlier] if earlier < len(places) else None
            runs.append(run)
            current[str(manager.team)] = run
            continue
        team = sent.sender.team if sent.sender else None
        if team not in current:
            continue
        run = current[str(team)]
        _follow(run, sent)
    return runs


def _follow(run: TeamRun, sent: Sent) -> None:
    """Take one message of a team into account."""
    sender, topic = sent.sender, sent.topic
    if sender is None or topic is None:
        return
    if sender.name == run.manager:
        if sent.type == "GroupChatRequestPublish":
            last = run.rounds[-1] if run.rounds else None
            if last is None or any(t.end_order < sent.order for t in last.turns):
                last = Round(order=sent.order)
                run.rounds.append(last)
            last.turns.append(Turn(Agent(topic.name, run.team), sent.order, sent.time_ns, where=sent.where))
        elif sent.type == "GroupChatTermination":
            run.ended, run.end_order, run.end_ns = True, sent.order, sent.time_ns
        return
    turn = open_turn(run, sender.name, sent.order)
    if turn is None:
        return
    if sent.type in {"GroupChatAgentResponse", "GroupChatTeamResponse"}:
        turn.end_order, turn.end_ns, turn.response = sent.order, sent.time_ns, sent
        turn.said = str(sent.messages[-1].get("type", "")) if sent.messages else ""
    elif sent.type == "GroupChatError":
        turn.end_order, turn.end_ns = sent.order, sent.time_ns
        turn.failed = run.failed = _error_text(sent.payload.get("error"))


def _error_text(error: Any) -> str:
    if isinstance(error, dict):
        return f"{error.get('error_type', 'error')}: {error.get('error_message', '')}"
    return str(error)


def open_turn(run: TeamRun, name: str, order: float) -> Turn | None:
    """The turn of an agent that was open at a place in the log."""
    for turn in reversed(list(run.turns())):
        if turn.agent.name == name and turn.start_order <= order <= turn.end_order:
            return turn
    return None


def _assign_calls(merged: Merged, runs: list[TeamRun]) -> list[Call]:
    """Put each call into the turn of its agent, or to its manager; returns those without a place."""
    by_team: dict[str | None, list[TeamRun]] = {}
    for run in runs:
        by_team.setdefault(run.team, []).append(run)
    loose = []
    for call in merged.calls:
        agent = call.agent
        around = (
            [r for r in by_team.get(agent.team, []) if r.order <= call.order] if agent and agent.team else []
        )
        if agent is None or not around:
            loose.append(call)
            continue
        run = around[-1]
        if agent.name == run.manager:
            _manager_round(run, call).manager_calls.append(call)
            continue
        turn = open_turn(run, agent.name, call.order)
        if turn is None:  # a log that lacks the request, or the agent worked on after its turn
            turn = Turn(agent, call.order - 0.25, call.start_ns, call.order + 0.25, call.end_ns)
            run.rounds.append(Round(turns=[turn], order=call.order))
            run.rounds.sort(key=lambda r: r.order)
        turn.calls.append(call)
    return loose


def _manager_round(run: TeamRun, call: Call) -> Round:
    """The round that a manager's call led to: the next one, or one without turns at the end."""
    for each in run.rounds:
        if each.order > call.order:
            return each
    if not run.rounds or run.rounds[-1].turns:
        run.rounds.append(Round(order=float("inf")))
    return run.rounds[-1]


# --- nesting -------------------------------------------------------------------------------------------


def _build(run: TeamRun, merged: Merged, loss: LossReport) -> None:
    for turn in run.turns():
        for inner in turn.runs:
            _build(inner, merged, loss)
        items: list[Call | TeamRun] = [*turn.calls, *turn.runs]
        turn.body = build_body(turn.agent.name, items, merged, loss)
        for step in turn.body.steps if turn.response is not None else []:
            for tool in step.runs if isinstance(step, ToolStep) else []:
                _bound(tool, turn)


def _bound(tool: ToolRun, turn: Turn) -> None:
    """A tool of whose end nothing else is known had ended when its agent answered."""
    known = tool.times_seen or tool.end_exact
    if turn.end_ns is not None and not known and (tool.end_ns is None or tool.end_ns > turn.end_ns):
        tool.end_ns = turn.end_ns


def _nest(merged: Merged, runs: list[TeamRun], loss: LossReport) -> None:
    """Find the turn that each team's run was started in: by spans, by message ids, by what was open."""
    publishers: dict[str, list[Agent]] = {}
    for sent in merged.sent:
        if sent.type == "GroupChatMessage" and sent.sender is not None:
            for message in sent.messages:
                publishers.setdefault(str(message.get("id")), []).append(sent.sender)
    by_team: dict[str | None, list[TeamRun]] = {}
    for run in runs:
        by_team.setdefault(run.team, []).append(run)

    def turn_of(agent: Agent, order: float) -> Turn | None:
        for other in reversed(by_team.get(agent.team, [])):
            found = open_turn(other, agent.name, order) if other.order <= order else None
            if found is not None:
                return found
        return None

    for run in runs:
        if run.team is None:
            continue
        if run.place is not None:
            if run.place.agent is not None:
                run.inside = turn_of(run.place.agent, run.order)
            continue
        outer = _relayed(run, publishers)
        run.inside = next((t for a in outer if (t := turn_of(a, run.order)) is not None), None)
        if run.inside is None:
            _nest_by_time(run, runs, loss)
    for run in runs:
        if run.inside is not None and run not in run.inside.runs:
            run.inside.runs.append(run)


def _relayed(run: TeamRun, publishers: dict[str, list[Agent]]) -> list[Agent]:
    """Agents of other teams that published the run's own messages again: the run is inside of one of them."""
    outer: dict[Agent, None] = {}
    for senders in publishers.values():
        if any(s.team == run.team for s in senders):
            at = next(i for i, s in enumerate(senders) if s.team == run.team)
            outer.update({s: None for s in senders[at + 1 :] if s.team != run.team})
    return list(outer)


def _nest_by_time(run: TeamRun, runs: list[TeamRun], loss: LossReport) -> None:
    """Where only time tells: a team that ran while one turn of another team waited for a tool."""
    around = [
        t
        for other in runs
        if other is not run and other.team != run.team
        for t in other.turns()
        if t.start_order < run.order and run.end_order < t.end_order and _waits(t, run.order)
    ]
    if len(around) == 1:
        run.inside, run.sure = around[0], False
        loss.add(
            "structure.nested_by_time",
            "inferred",
            "a team ran while one agent waited for its tools, and nothing else links them: taken as run by the tool",
        )


def _waits(turn: Turn, order: float) -> bool:
    before = [c for c in turn.calls if c.order < order]
    return bool(before and before[-1].call_ids)


def build_body(name: str, items: list[Call | TeamRun], merged: Merged, loss: LossReport) -> Body:
    """What an agent did, in order: its own calls, their tools, and what ran inside of those."""
    body = Body(name)
    pending: ToolStep | None = None
    inner: dict[int, list[Call | TeamRun]] = {}
    agents = {item.source for item in items if isinstance(item, Call) and item.source is not None}

    def close() -> None:
        nonlocal pending
        if pending is not None:
            for run in pending.runs:
                inside = inner.get(id(run), [])
                if inside:
                    run.nested = True
                    pending.inner[id(run)] = build_body(run.name, inside, merged, loss)
            pending = None

    def order(item: Call | TeamRun) -> float:
        return item.order

    for item in sorted(items, key=order):
        tool = _tool_of(item, pending, inner, agents, loss) if pending is not None else None
        if tool is not None:
            inner.setdefault(id(tool), []).append(item)
            if isinstance(item, TeamRun):
                item.inside_tool = tool
            continue
        if isinstance(item, TeamRun):
            body.steps.append(item)
            continue
        close()
        body.steps.append(item)
        runs = merged.tools.get(id(item), [])
        if runs:
            pending = ToolStep(runs)
            body.steps.append(pending)
    close()
    return body


def _tool_of(
    item: Call | TeamRun,
    pending: ToolStep,
    inner: dict[int, list[Call | TeamRun]],
    agents: set[str],
    loss: LossReport,
) -> ToolRun | None:
    """The pending tool that a call or a team ran inside of, None if it is the agent's own.

    In order of worth: the spans around it; the tool results it was sent (an agent's own next call has those of the
    pending tools); the name of the agent (AgentTool's tool has the agent's name); what the tool returned; the task
    that it was given. ``agents`` are the names of all agents that are known to have made calls inside.
    """
    around = item.around if isinstance(item, Call) else item.place.tools if item.place else None
    by_id = {run.call_id: run for run in pending.runs if run.call_id}
    if around is not None:
        return next((by_id[i] for i in around if i in by_id), None)
    if isinstance(item, Call):
        told = {str(m.get("tool_call_id")) for m in item.messages or [] if m.get("role") == "tool"}
        if told & set(by_id):
            return None
        if all(r.end_order is not None and r.end_order < item.order for r in pending.runs):
            return None
        for run in pending.runs:
            asked = {i for c in inner.get(id(run), []) if isinstance(c, Call) for i in c.call_ids}
            if asked & told:
                return run
    running = [r for r in pending.runs if r.end_order is None or r.end_order > item.order]
    name = item.source if isinstance(item, Call) else item.tool_name
    named = [r for r in running if r.name == name]
    if len(named) == 1:
        return named[0]
    if name is not None or isinstance(item, TeamRun):
        # Neither an agent of another name nor a team is inside of a tool that runs the agent of its own name.
        running = [r for r in running if r.name not in agents]
    if isinstance(item, TeamRun):
        returned = [r for r in running if _returned(item, r)]
        if len(returned) == 1:
            return returned[0]
    given = [r for r in running if _task_of(r) is not None and _task_of(r) == _given(item)]
    candidates = given or running
    if candidates and not given:
        loss.add(
            "structure.nested_inferred",
            "inferred",
            "a model call was made while an agent waited for its tools: taken as made by the tool",
        )
    if len(candidates) > 1:
        loss.add(
            "structure.nested_ambiguous",
            "inferred",
            "several tools of one agent ran at once, and nothing tells which of them made a call: put to the first",
        )
    return candidates[0] if candidates else None


def _returned(team: TeamRun, run: ToolRun) -> bool:
    """Whether a tool returned what a team's last call had said."""
    said = [c.text for t in team.turns() for c in t.calls if c.text]
    return bool(said) and len(said[-1]) >= SHORTEST and said[-1] in (run.result or "")


def _task_of(run: ToolRun) -> str | None:
    try:
        arguments = json.loads(run.arguments)
    except ValueError:
        return None
    task = arguments.get("task") if isinstance(arguments, dict) else None
    return task if isinstance(task, str) else None


def _given(item: Call | TeamRun) -> str | None:
    """The task that a call's or a run's first user message gives."""
    if isinstance(item, TeamRun):
        return next((m["content"] for m in item.start if isinstance(m.get("content"), str)), None)
    return next(
        (
            m["content"]
            for m in item.messages or []
            if m.get("role") == "user" and isinstance(m.get("content"), str)
        ),
        None,
    )
