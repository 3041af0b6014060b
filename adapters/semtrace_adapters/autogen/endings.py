"""How runs ended: why they stopped, what that says of their outcome, and what is missing where they did not end.

A team that has stopped has not therefore done what was asked. AutoGen logs that a team stopped, and not why; the reason
is in the result of the run stream alone. It is taken for success where it says that the work was done by a
sign that the application had agreed upon, and for nothing where it names a limit, or who spoke last.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from semtrace.records.enums import Outcome
from semtrace_adapters.autogen.runs import is_progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from semtrace_adapters.autogen.facts import Facts
    from semtrace_adapters.autogen.read_stream import Stream
    from semtrace_adapters.autogen.runs import TeamRun, Turn
    from semtrace_adapters.base import LossReport

# Conditions joined by `|` or `&` give their reasons joined by ", ".
_BEGIN, _END = r"(?:^|, )", r"(?=, |$)"
_SAID: Final = (
    (r"Digraph execution is complete", Outcome.SUCCESS, ""),
    (r"Text '.*' mentioned", Outcome.SUCCESS, ""),
    (r"Stop message received", Outcome.SUCCESS, ""),  # of a graph's end too, before 0.6
    (r"Function '.*' was executed\.", Outcome.SUCCESS, ""),
    (r"An error occurred in the group chat\.", Outcome.FAILURE, ""),
    (r"An exception occurred in the runtime\.", Outcome.FAILURE, ""),
    (r"External termination requested", Outcome.CANCELLED, ""),
    (r"Maximum number of messages \d+ reached", Outcome.UNKNOWN, "by its limit of messages"),
    (r"Maximum number of turns \d+ reached", Outcome.UNKNOWN, "by its limit of turns"),
    (r"Max rounds reached\.", Outcome.UNKNOWN, "by its limit of rounds"),
    (r"Token usage limit reached", Outcome.UNKNOWN, "by its limit of tokens"),
    (r"Timeout of .* seconds reached", Outcome.UNKNOWN, "by its limit of time"),
    (r"Functional termination condition met", Outcome.UNKNOWN, "by a condition of the application's own"),
    (r"Handoff to .* from .* detected\.", Outcome.UNKNOWN, "by a handoff"),
    (r"'.*' answered", Outcome.UNKNOWN, "because a certain agent had spoken"),
    (r"Text message received from '.*'", Outcome.UNKNOWN, "because a certain agent had spoken"),
)
_REASONS: Final = tuple(
    (
        re.compile(f"{_BEGIN}{pattern}" + (_END if outcome is not Outcome.UNKNOWN else ""), re.DOTALL),
        outcome,
        how,
    )
    for pattern, outcome, how in _SAID
)
_MOST_NAMES: Final = 6
"""Agents that a line of the loss report names, at most."""


def outcome_of_reason(reason: str) -> tuple[Outcome, str]:
    """What a stop reason says of the run.

    Returns:
        The outcome, and how the run was stopped, for people, where that says nothing of the outcome.
    """
    for pattern, outcome, how in _REASONS:
        if pattern.search(reason):
            return outcome, how
    return Outcome.UNKNOWN, "for a reason that says nothing of it (annotation autogen/stop_reason)"


def note_exceptions(runs: Sequence[TeamRun], facts: Facts) -> None:
    """Runs whose manager, or whose agent in its turn, raised what nobody caught, have failed."""
    for order, agent, text in facts.exceptions:
        for run in reversed(runs):
            if run.team != agent.team or run.order > order:
                continue
            turn = next(
                (t for t in run.turns() if t.agent == agent and t.start_order <= order <= t.end_order), None
            )
            if turn is not None:
                turn.failed = turn.failed or text
                turn.end_order = order
            if turn is not None or agent.name == run.manager:
                run.failed = run.failed or text
            break


def find_streams(runs: Sequence[TeamRun], streams: Sequence[Stream]) -> None:
    """Give each run the stream that shows it: the one that has most in common with it; one alone to one alone."""
    told = [_marks_of_stream(stream) for stream in streams]
    free = [run for run in runs if run.stream is None]
    for stream, marks in zip(streams, told, strict=True):
        if any(run.stream is stream for run in runs):
            continue
        shared = [(len(marks & _marks_of_run(run)), -at, run) for at, run in enumerate(free)]
        most = max(shared, default=None, key=lambda each: each[:2])
        if most is not None and (most[0] or len(runs) == len(streams) == 1):
            most[2].stream = stream
            free.remove(most[2])
    for run in runs:
        run.ended = run.ended or (run.stream is not None and run.stream.ended)


def _marks_of_stream(stream: Stream) -> set[str]:
    return {mark for item in stream.items for mark in _marks(item.message)}


def _marks_of_run(run: TeamRun) -> set[str]:
    made = {mark for message in run.start for mark in _marks(message)}
    for turn in run.turns():
        for message in turn.response.messages if turn.response else []:
            made |= _marks(message)
        for call in turn.calls:
            made.update(call.call_ids)
            if call.text:
                made.add(call.text)
    return made


def _marks(message: dict[str, Any]) -> set[str]:
    """What a message is known by again: its id, ids of tool calls, its text."""
    made = {str(message["id"])} if message.get("id") else set()
    content = message.get("content")
    if isinstance(content, str):
        # What a user asks, many runs may have been asked.
        return made if message.get("source") == "user" else made | {content}
    if isinstance(content, list):
        made |= {str(part["id"]) for part in content if isinstance(part, dict) and part.get("id")}
    return made


def outcome_of(run: TeamRun, kind: str, loss: LossReport) -> Outcome:
    """A run's outcome: what its sources state of it, else unknown, which the loss report then says.

    Args:
        run: the run, with its stream.
        kind: the kind of its team.
        loss: why the outcome is unknown is noted here.
    """
    if run.failed:
        return Outcome.FAILURE
    if not run.ended:
        if not run.framed:
            loss.add(
                "run.end_unknown",
                "unknown",
                "nothing in the sources marks the end of a run (no messages of a team, no result of a run stream): "
                "whether it went on, and its outcome, are not known",
                where=_last_place(run),
            )
        return Outcome.UNKNOWN  # of framed ones `note_cuts` tells
    reason = run.stream.stop_reason if run.stream is not None else None
    if kind == "MagenticOneGroupChat" and _satisfied(run):
        return Outcome.SUCCESS
    outcome, how = outcome_of_reason(reason) if reason is not None else (Outcome.UNKNOWN, "")
    if outcome is not Outcome.UNKNOWN:
        return outcome
    if how:
        message = f"a run was stopped {how}: whether its task was done is not known"
    else:
        message = (
            "a run ended, and no source says why: whether its task was done is not known "
            "(the run's result has the stop reason)"
        )
    loss.add("outcome.unknown", "unknown", message, where=_last_place(run))
    return Outcome.UNKNOWN


def _satisfied(run: TeamRun) -> bool:
    """Whether a Magentic-One orchestrator's last look at its ledger found the request satisfied."""
    calls = [call for each in run.rounds for call in each.manager_calls if is_progress(call)]
    if not calls:
        return False
    try:
        answer: Any = json.loads(max(calls, key=lambda c: c.order).text or "")
        return answer["is_request_satisfied"]["answer"] is True
    except (ValueError, KeyError, TypeError):
        return False


def note_cuts(run: TeamRun, loss: LossReport) -> None:
    """Note agents that were asked and never answered, and a team's run of which the end is missing."""
    waiting = sorted(_waiting(run), key=lambda t: t.start_order)
    names = list(dict.fromkeys(t.agent.name for t in waiting))
    shown = ", ".join(names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")
    if run.framed and not run.ended and not run.failed:
        what = "the sources end before the run does (killed, cancelled, or a log that is cut)"
        if not waiting:
            loss.add(
                "run.cut",
                "lost",
                f"{what}, between two turns: whatever followed is missing",
                where=_last_place(run),
            )
        for turn in waiting:
            agents = f"{len(waiting)} agents were" if len(waiting) > 1 else "an agent was"
            loss.add(
                "run.cut",
                "lost",
                f"{what}, while {agents} asked: {shown}; what they had not finished, and what followed, is missing",
                where=f"{turn.agent.name}, asked at {turn.where}",
            )
        return
    for turn in waiting:
        loss.add(
            "turns.unanswered",
            "lost",
            "an agent was asked, and no source has its answer",
            where=f"{turn.agent.name}, asked at {turn.where}",
        )


def _waiting(run: TeamRun) -> Iterator[Turn]:
    """Turns that were asked for and never answered, of a run and of those inside of it."""
    for turn in run.turns():
        if turn.where and turn.end_order == float("inf") and not turn.failed:
            yield turn
        for inner in turn.runs:
            yield from _waiting(inner)


def _last_place(run: TeamRun) -> str:
    """The last place in the sources that is of a run."""
    places = [(run.order, run.where)]
    for turn in run.turns():
        places.append((turn.start_order, turn.where))
        places.extend((call.order, call.where) for call in turn.calls)
        if turn.response is not None:
            places.append((turn.response.order, turn.response.where))
    return max(place for place in places if place[1])[1] if any(p[1] for p in places) else ""
