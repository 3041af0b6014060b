"""A run of a team: its rounds, the turns of roles in them, what was sent and written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .events import Event, Failed, Invest, Message, Publish, RunEnd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .pairing import Call


@dataclass(eq=False)
class Step:
    """One action of a turn."""

    action: str
    at: int
    where: str
    start_ns: int
    announced: bool
    calls: list[Call] = field(default_factory=list)
    ended_at: int | None = None
    end_ns: int | None = None


@dataclass(eq=False)
class Turn:
    """A role's turn: from the messages that it takes to the message that it publishes."""

    role: str
    round: int
    at: int
    steps: list[Step] = field(default_factory=list)
    published: Message | None = None
    end_ns: int | None = None
    ended_at: int | None = None
    failed: bool = False

    @property
    def calls(self) -> list[Call]:
        """Its calls, in order of their start."""
        return [call for step in self.steps for call in step.calls]


@dataclass(eq=False)
class Sent:
    """A message on its way: the turn that published it, None for the user's; and who it reached."""

    message: Message
    at: int
    time_ns: int
    where: str
    turn: Turn | None
    reached_nobody: bool = False


@dataclass(eq=False)
class Written:
    """A file that was written, and what it was recorded to depend on; `turn` is whose doing it was."""

    path: str
    at: int
    where: str
    turn: Turn | None
    call: Call | None
    depends_on: tuple[str, ...] = ()


@dataclass(eq=False)
class Run:
    """One run of a team, or of a role by itself."""

    events: list[Event]
    ordinal: int
    continues: Run | None = None
    dollars: str | None = None
    roles: list[str] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    observed: list[tuple[int, str]] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)
    renamed: list[tuple[str, str]] = field(default_factory=list)
    rounds: int = 0
    failed: bool = False
    idle: bool = False
    ended: bool = False
    sparse: bool = False
    """A log of level INFO: it shows actions and the ends of calls, but neither turns nor requests."""

    @property
    def start_ns(self) -> int:
        """Time of its first event."""
        return self.events[0].line.time_ns


def split_runs(events: Sequence[Event]) -> list[Run]:
    """The runs in one log. A budget begins one; so does a user's requirement after the run before is over."""
    runs: list[Run] = []
    over = False
    for event in events:
        asks_again = isinstance(event, Publish) and event.message.from_user and over
        if not runs or isinstance(event, Invest) or asks_again:
            runs.append(Run([], len(runs), continues=runs[-1] if runs and asks_again else None))
            over = False
        runs[-1].events.append(event)
        over = over or isinstance(event, RunEnd) or (isinstance(event, Failed) and event.whole_run)
    # A budget may be given long before the first requirement, or twice.
    return [run for run in runs if any(not isinstance(event, Invest) for event in run.events)]
