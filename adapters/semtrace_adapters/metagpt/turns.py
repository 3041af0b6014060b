"""From the events of a run to the turns of roles, and the calls of the model in each turn.

In every round each role takes its messages, and where one concerns it, has a turn: one action after the other, each
with any number of calls of the model. The log names the role in some lines only. A request is the role's that its
system message names. The end of a call names nobody: see `pairing`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from semtrace.records.enums import Evidence, OperationStatus

from .events import (
    Act,
    Ask,
    Depends,
    Event,
    Failed,
    Invest,
    Message,
    NoRecipients,
    Observed,
    Parsed,
    Publish,
    Purpose,
    RawOutput,
    Renamed,
    Retry,
    RoundEnd,
    RunEnd,
    Saved,
    SetState,
    Usage,
)
from .pairing import Call, CallsInFlight
from .run import Run, Sent, Step, Turn, Written

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from semtrace_adapters.base import LossReport

THINK: Final = "think"
"""Name of the action of a call that chooses the next action."""

_PREFIX: Final = re.compile(r"You are an? (?P<profile>[^\n]+?), named (?P<name>[^\n]*?), your goal is ")
_CHOOSES: Final = "You can decide which stage you should enter"


class _Reader:
    """Walks through the events of one run."""

    def __init__(self, run: Run, prefixes: Mapping[str, str], loss: LossReport, *, share: bool) -> None:
        self.run, self.prefixes, self.loss = run, prefixes, loss
        self.calls = CallsInFlight(
            loss, ends_logged=any(isinstance(event, Usage) for event in run.events), share=share
        )
        run.sparse = not any(isinstance(event, (Observed, Publish, RoundEnd)) for event in run.events)
        self.usage_since_act = False
        self.turns: dict[str, Turn] = {}
        self.last_begin: Event | None = None
        self.purpose: Purpose | None = None
        self.retries = 0

    def read(self) -> None:
        events = self.run.events
        for place, event in enumerate(events):
            match event:
                case Invest():
                    self.run.dollars = event.dollars
                case Observed():
                    self._observed(event)
                case Act():
                    self._act(event)
                case Ask():
                    self._ask(event)
                case Usage():
                    self._usage(event, place)
                case Purpose():
                    self.purpose = event
                case Publish():
                    self._publish(event, place)
                case NoRecipients():
                    if self.run.sent:
                        self.run.sent[-1].reached_nobody = True
                case Saved() | Depends():
                    self._file(event)
                case Renamed():
                    self.run.renamed.append((event.old, event.new))
                case RoundEnd():
                    self._end_turns(event)
                    self.run.rounds += 1
                case RunEnd():
                    self.run.ended = True
                    self.run.idle = self.run.idle or event.idle
                case Retry():
                    self.retries += 1
                case Failed():
                    self._failed(event)
                case _:
                    pass
        self._end_of_log()

    def _known(self, role: str) -> str:
        if role not in self.run.roles:
            self.run.roles.append(role)
        return role

    def _observed(self, event: Observed) -> None:
        role = self._known(event.role)
        self.run.observed.append((event.at, role))
        if role in self.turns:  # a turn that published nothing
            self._end_turn(self.turns[role], event)
        if event.news:
            self._open(role, event)

    def _open(self, role: str, event: Event) -> Turn:
        turn = self.turns[role] = Turn(role, self.run.rounds, event.at)
        self.run.turns.append(turn)
        return turn

    def _act(self, event: Act) -> None:
        if self.run.sparse and self.usage_since_act:
            for other in [turn for role, turn in self.turns.items() if role != event.role]:
                self._end_turn(other, event)
        self.usage_since_act = False
        self.last_begin = event
        turn = self._turn_for(event.role, event)
        last = turn.steps[-1] if turn.steps else None
        if event.announced and last and not last.calls and not last.announced and last.action == event.action:
            last.announced = True
            return
        self._end_step(turn, event)
        turn.steps.append(
            Step(event.action, event.at, event.line.where, event.line.time_ns, announced=event.announced)
        )

    def _end_step(self, turn: Turn, event: Event) -> None:
        if turn.steps and turn.steps[-1].ended_at is None:
            turn.steps[-1].ended_at, turn.steps[-1].end_ns = event.at, event.line.time_ns
            self.calls.finish(turn.steps[-1].calls, event.line.time_ns, event.at)

    def _end_turn(self, turn: Turn, event: Event) -> None:
        self._end_step(turn, event)
        turn.ended_at, turn.end_ns = event.at, event.line.time_ns
        self.turns.pop(turn.role, None)

    def _end_turns(self, event: Event) -> None:
        self.calls.finish(self.calls.open[:], event.line.time_ns, event.at)
        for turn in list(self.turns.values()):
            self._end_turn(turn, event)

    def _role_of(self, messages: list[dict[str, Any]] | None) -> tuple[str | None, Evidence]:
        """Whose request it is: whom the system message names, or who else it can be."""
        first = messages[0] if messages else {}
        text = first.get("content")
        if first.get("role") == "system" and isinstance(text, str):
            if text in self.prefixes:
                return self.prefixes[text], Evidence.DERIVED
            named = _PREFIX.match(text)
            if named:
                return f"{named['name']}({named['profile']})", Evidence.DERIVED
        if len(self.turns) == 1:
            return next(iter(self.turns)), Evidence.DERIVED
        acting = [turn for turn in self.turns.values() if turn.steps]
        if not acting:
            return None, Evidence.MISSING
        return max(acting, key=lambda turn: turn.steps[-1].at).role, Evidence.INFERRED

    def _ask(self, event: Ask) -> None:
        role, evidence = self._role_of(event.messages)
        if evidence is Evidence.INFERRED:
            self.loss.add(
                "call.role",
                "inferred",
                "a request that names no role while several act: taken for that of the role that began to act last",
                where=event.line.where,
            )
        elif role is None:
            self.loss.add(
                "call.role",
                "unknown",
                "a request that names no role: it has no session",
                where=event.line.where,
            )
        call = Call(event.at, event.line.where, role, "", event.messages, start_ns=event.line.time_ns)
        chooses = bool(event.messages) and any(
            isinstance(m.get("content"), str) and _CHOOSES in m["content"] for m in event.messages or ()
        )
        if role is None:
            turn = Turn("", self.run.rounds, event.at)
            self.run.turns.append(turn)
        else:
            turn = self._turn_for(role, event)
        self._into(turn, call, event, THINK if chooses else None)
        self.calls.begin(call)

    def _turn_for(self, role: str, event: Event) -> Turn:
        return self.turns.get(self._known(role)) or self._open(role, event)

    def _into(self, turn: Turn, call: Call, event: Event, action: str | None) -> None:
        """Put a call into the step of a turn that it belongs to."""
        if not turn.steps or (action and turn.steps[-1].action != action):
            self._end_step(turn, event)
            turn.steps.append(
                Step(action or "", event.at, event.line.where, event.line.time_ns, announced=True)
            )
        step = turn.steps[-1]
        call.action = step.action
        if self.purpose is not None:  # logged by the same role in the same breath
            call.action, call.file, self.purpose = self.purpose.action, self.purpose.file, None
        elif step.calls and step.calls[-1].file is not None:
            call.action, call.file = step.calls[-1].action, step.calls[-1].file
        step.calls.append(call)

    def _usage(self, event: Usage, place: int) -> None:
        if event.prompt_tokens is None and event.model is None:
            self.loss.add(
                "tokens.lost",
                "unknown",
                "MetaGPT could not count the tokens of a streamed call, and the server gave no usage",
                where=event.line.where,
            )
        elif event.prompt_tokens is None:
            self.loss.add(
                "tokens.no_price",
                "unknown",
                "MetaGPT has no price for the model, and logs no token counts then",
                where=event.line.where,
            )
        self.usage_since_act = True
        follows = _following(self.run.events, place)
        role = None
        if follows and isinstance(follows[-1], Publish):
            role = self._publisher(follows[-1].message)
        elif follows and isinstance(follows[-1], Act):
            role = follows[-1].role
        call = self.calls.end(event, role) if self.calls.open else self._unlogged(event, role)
        if call is not None:
            if self.retries:
                call.attempts = 1 + self.retries
            self.retries = 0
        for line in follows:
            if isinstance(line, RawOutput):
                if call is not None:
                    call.output, call.output_evidence = line.text, Evidence.OBSERVED
                else:
                    self.loss.add(
                        "output.unassigned",
                        "lost",
                        "the output of a call that was in flight with others: it cannot be said whose it is",
                        where=line.line.where,
                    )

    def _unlogged(self, event: Usage, role: str | None) -> Call:
        """A call whose request is not in the log: another interface of the provider, or a log without debug lines."""
        if role is None and len(self.turns) == 1:
            role = next(iter(self.turns))
        if self.run.sparse and (self.purpose is not None or isinstance(self.last_begin, Usage)):
            role = None  # such a call is of a role that does not say when it acts
        call = Call(event.at, event.line.where, role, "", None)
        if role is None:
            begin: Event = self.purpose or self.last_begin or event
            if self.run.sparse and self.purpose is not None and self.usage_since_act:
                for other in list(self.turns.values()):
                    self._end_turn(other, begin)
            turn = Turn("", self.run.rounds, begin.at, ended_at=event.at, end_ns=event.line.time_ns)
            turn.steps.append(Step("", begin.at, begin.line.where, begin.line.time_ns, announced=True))
            self.run.turns.append(turn)
            if self.run.sparse and (self.purpose is not None or isinstance(begin, Usage)):
                self.last_begin = event
        else:
            turn = self._turn_for(role, event)
        before = turn.steps[-1].calls[-1].end_ns if turn.steps and turn.steps[-1].calls else None
        self._into(turn, call, event, None)
        call.start_ns = before if before is not None else turn.steps[-1].start_ns
        call.start_evidence = Evidence.INFERRED
        call.close(event.line.time_ns, event.at, Evidence.DERIVED)
        call.count(event, Evidence.DERIVED)
        self.loss.add(
            "request.unlogged",
            "unknown",
            "a call whose request is not in the log: its input is unknown, and it is said to start when its action "
            "did or the call before it ended",
            where=event.line.where,
        )
        return call

    def _publisher(self, message: Message) -> str | None:
        """The role that published a message, among those whose turn it is."""
        if message.from_user:
            return None
        written_by = message.sent_from.rpartition(".")[2]
        for role in self.turns:
            name, _, rest = role.partition("(")
            profile = rest.removesuffix(")")
            if message.role in {role, profile, name} or written_by in {profile.replace(" ", ""), name}:
                return role
        return next(iter(self.turns)) if len(self.turns) == 1 else None

    def _publish(self, event: Publish, place: int) -> None:
        role = self._publisher(event.message)
        turn = self.turns.get(role) if role is not None else None
        self.run.sent.append(Sent(event.message, event.at, event.line.time_ns, event.line.where, turn))
        if turn is None:
            if not event.message.from_user:
                self.loss.add(
                    "message.publisher",
                    "unknown",
                    "a message of no role whose turn it is",
                    where=event.line.where,
                )
            return
        before = self.run.events[place - 1] if place else None
        if isinstance(before, SetState) and before.state == -1:
            turn.published = event.message
            self._end_turn(turn, event)

    def _file(self, event: Saved | Depends) -> None:
        if isinstance(event, Depends):
            mine = [written for written in self.run.written if written.path == event.path]
            if mine:
                mine[-1].depends_on = event.on
            return
        acting = [turn for turn in self.turns.values() if turn.steps]
        turn = None
        if acting:
            turn = acting[0] if len(acting) == 1 else max(acting, key=_last_place)
        if len(acting) > 1:
            self.loss.add(
                "file.writer",
                "inferred",
                "a file was written while several roles acted: taken for the doing of the one heard of last",
                where=event.line.where,
            )
        call = turn.calls[-1] if turn and turn.steps[-1].calls else None
        self.run.written.append(Written(event.path, event.at, event.line.where, turn, call))

    def _failed(self, event: Failed) -> None:
        if not event.whole_run:
            return
        self.run.failed = self.run.ended = True
        if len(self.calls.open) > 1:
            self.loss.add(
                "calls.failed_together",
                "unknown",
                "calls were in flight when the run ended with an exception: one of them failed or none, the others were "
                "abandoned; the log does not say which, and all are said to have failed",
                count=len(self.calls.open),
                where=event.line.where,
            )
        for turn in self.turns.values():
            turn.failed = True
        self.calls.abandon(self.calls.open[:], event.line.time_ns, event.at, OperationStatus.ERROR)
        for turn in list(self.turns.values()):
            self._end_turn(turn, event)

    def _end_of_log(self) -> None:
        last = self.run.events[-1]
        if self.calls.open:
            self.loss.add(
                "log.truncated",
                "unknown",
                "the log ends, or another run begins, while a call is in flight: it is said to be cancelled",
                count=len(self.calls.open),
                where=last.line.where,
            )
        self.calls.abandon(self.calls.open[:], last.line.time_ns, last.at, OperationStatus.CANCELLED)
        for turn in list(self.turns.values()):
            self._end_turn(turn, last)


def _following(events: Sequence[Event], place: int) -> list[Event]:
    """The lines after the end of a call that one role logged in the same breath: its output, its message or next act."""
    found: list[Event] = []
    at = events[place].at
    for event in events[place + 1 : place + 5]:
        expected = isinstance(event, (RawOutput, Parsed, SetState))
        last = isinstance(event, (Publish, Act)) and bool(found) and isinstance(found[-1], SetState)
        if event.at != at + 1 or not (expected or last):
            break
        found.append(event)
        at = event.at
        if last:
            break
    return found


def _last_place(turn: Turn) -> int:
    places = [step.at for step in turn.steps]
    places += [call.ended_at or call.at for call in turn.calls]
    return max(places)


def read_run(run: Run, prefixes: Mapping[str, str], loss: LossReport, *, share: bool = False) -> None:
    """Find the turns, calls, messages and files of a run.

    Args:
        run: the run, of `split_runs`.
        prefixes: role by system message, where the serialised team gives them.
        loss: told of what cannot be known.
        share: give calls that cannot be told apart equal parts of the counts that they had together.
    """
    _Reader(run, prefixes, loss, share=share).read()
    if run.sparse:
        _without_covers(run, loss)
    for turn in run.turns:
        _outputs(turn)


def _without_covers(run: Run, loss: LossReport) -> None:
    """Leave out actions during which calls ended that are nobody's: they may be what those actions did."""
    ends = [turn.ended_at for turn in run.turns if not turn.role and turn.ended_at is not None]
    for turn in run.turns:
        kept = [
            step
            for step in turn.steps
            if step.calls or not any(step.at < end <= (step.ended_at or end) for end in ends)
        ]
        if len(kept) < len(turn.steps):
            loss.add(
                "action.calls_unknown",
                "unknown",
                "an action during which calls ended that may be its own or another's: only the calls are operations",
                count=len(turn.steps) - len(kept),
                where=turn.steps[0].where,
            )
        turn.steps = kept


def _outputs(turn: Turn) -> None:
    """Where an action of one call published a plain text, that text is taken for what the model returned."""
    message = turn.published
    if message is None or message.structured or not message.content or not turn.steps:
        return
    calls = turn.steps[-1].calls
    if len(calls) == 1 and calls[0].output is None and calls[0].status is OperationStatus.OK:
        calls[0].output, calls[0].output_evidence = message.content, Evidence.INFERRED
