"""What each role remembers: a replica of the messages for every role, in the order in which they reached it.

A published message waits in the buffer of each role that it is addressed to, until the role looks: at the start of
its turn in every round. A role's own message is in its memory before it is published. The serialised team has the
memories as they were at the end, with messages that were never published.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .events import Observed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from semtrace_adapters.base import LossReport

    from .events import Message
    from .run import Run, Sent, Turn
    from .team import Team
    from .units import Unit

ALL = "<all>"


@dataclass(eq=False)
class Entry:
    """A message in a role's memory.

    `at` is the place in the log by which it was there, -1 if before the run. `turn` is the turn of whoever wrote it,
    None where nobody of this run did; `unit` the operation, where that is known apart from the turn.
    """

    message: Message
    at: int
    turn: Turn | None
    unit: Unit | None = None


@dataclass
class Memories:
    """The memories of all roles of a run, and what had not reached them when it ended."""

    replicas: dict[str, list[Entry]] = field(default_factory=dict)
    pending: dict[str, list[Entry]] = field(default_factory=dict)
    known: dict[str, set[str]] = field(default_factory=dict)


def remember(
    run: Run,
    team: Team | None,
    units: Mapping[int, Sequence[Unit]],
    before: Memories | None,
    loss: LossReport,
) -> Memories:
    """Deliver the messages of a run.

    Args:
        run: the run, read.
        team: the serialised team after it, if there is one.
        units: the units of each turn, by the turn's identity.
        before: the memories that the run began with, if it continues another.
        loss: told of what does not fit.
    """
    memories = _carried(before)
    addresses = _addresses(run, team)
    for role in run.roles:
        memories.replicas.setdefault(role, [])
        memories.pending.setdefault(role, [])
    sent = iter(run.sent)
    coming = next(sent, None)
    for event in run.events:
        if coming is not None and event.at == coming.at:
            _send(coming, memories, addresses)
            coming = next(sent, None)
        if isinstance(event, Observed):
            _take(event, memories, run, loss)
    if team is not None:
        for remembered in team.roles:
            if remembered.role in memories.replicas:
                _complete(
                    memories.replicas[remembered.role], remembered.storage, remembered.role, run, units, loss
                )
    return memories


def _carried(before: Memories | None) -> Memories:
    """What a run that continues another begins with: nobody of this run wrote it."""
    if before is None:
        return Memories()

    def carry(entries: Sequence[Entry]) -> list[Entry]:
        return [Entry(entry.message, -1, None) for entry in entries]

    return Memories(
        {role: carry(entries) for role, entries in before.replicas.items()},
        {role: carry(entries) for role, entries in before.pending.items()},
        {role: {entry.message.id for entry in entries} for role, entries in before.replicas.items()},
    )


def _addresses(run: Run, team: Team | None) -> dict[str, set[str]]:
    """What each role is addressed as: its name and its class."""
    known: dict[str, set[str]] = {}
    for role in run.roles:
        name, _, rest = role.partition("(")
        # The class is told where the role publishes; until then, one named as its profile is taken for it.
        known[role] = {name, "." + rest.removesuffix(")").replace(" ", "")}
    for each in run.sent:
        if each.turn is not None and each.message.sent_from and each.turn.role in known:
            known[each.turn.role].add(each.message.sent_from)
    for remembered in team.roles if team else ():
        if remembered.role in known and remembered.addresses:
            known[remembered.role] = set(remembered.addresses)
    return known


def _reaches(message: Message, addresses: set[str]) -> bool:
    if ALL in message.send_to or addresses & set(message.send_to):
        return True
    return any("." + address.rpartition(".")[2] in addresses for address in message.send_to if "." in address)


def _send(sent: Sent, memories: Memories, addresses: Mapping[str, set[str]]) -> None:
    turn = sent.turn
    if turn is not None and turn.role in memories.replicas and _base_act(turn):
        _append(memories, turn.role, Entry(sent.message, sent.at, turn))
    for role, pending in memories.pending.items():
        if _reaches(sent.message, addresses[role]):
            pending.append(Entry(sent.message, sent.at, sent.turn))


def _base_act(turn: Turn) -> bool:
    """Whether the turn's last action ran as MetaGPT's own `_act`, which remembers its message and says "to do"."""
    return bool(turn.steps) and turn.steps[-1].announced


def _append(memories: Memories, role: str, entry: Entry) -> None:
    known = memories.known.setdefault(role, set())
    if entry.message.id not in known:
        known.add(entry.message.id)
        memories.replicas[role].append(entry)


def _take(event: Observed, memories: Memories, run: Run, loss: LossReport) -> None:
    replica, pending = memories.replicas[event.role], memories.pending[event.role]
    for entry in pending:
        _append(memories, event.role, Entry(entry.message, event.at, entry.turn))
    pending.clear()
    for news in event.news:
        role, _, text = news.partition(": ")
        text = text.removesuffix("...")

        def fits(message: Message, role: str = role, text: str = text) -> bool:
            return message.role == role and message.content.startswith(text)

        if any(fits(entry.message) for entry in reversed(replica)):
            continue
        seen = [each for each in run.sent if each.at < event.at and fits(each.message)]
        if seen:
            _append(memories, event.role, Entry(seen[-1].message, event.at, seen[-1].turn))
            loss.add(
                "message.delivery",
                "inferred",
                "a role took notice of a message that does not seem addressed to it",
                where=event.line.where,
            )
        else:
            loss.add(
                "message.unlogged",
                "lost",
                "a role took notice of a message that the log does not show",
                where=event.line.where,
            )


def _complete(
    replica: list[Entry],
    storage: Sequence[Message],
    role: str,
    run: Run,
    units: Mapping[int, Sequence[Unit]],
    loss: LossReport,
) -> None:
    """Put the messages that a role kept to itself where the serialised memory has them."""
    stored, logged = {message.id for message in storage}, {entry.message.id for entry in replica}
    in_storage = [message.id for message in storage if message.id in logged]
    if in_storage != [entry.message.id for entry in replica if entry.message.id in stored]:
        loss.add(
            "memory.order",
            "inferred",
            "the serialised memory of a role has the messages in another order than the log delivers them: the log's "
            "is kept",
            where=role,
        )
        return
    whole: list[Entry] = []
    rest = deque(replica)
    taken: dict[int, int] = {}
    for message in storage:
        if message.id in logged:
            while rest[0].message.id != message.id:
                whole.append(rest.popleft())
            whole.append(rest.popleft())
            continue
        earliest = whole[-1].at if whole else -1
        turn, unit = _writer(earliest, message, role, run, units, taken)
        if unit is None:
            loss.add(
                "message.writer",
                "unknown",
                "a message that a role kept to itself, by an action that the log does not show",
                where=f"{role}: {message.cause_by}",
            )
            continue
        whole.append(Entry(message, unit.ended_at if unit.ended_at is not None else unit.at, turn, unit))
    replica[:] = [*whole, *rest]


def _writer(
    earliest: int,
    message: Message,
    role: str,
    run: Run,
    units: Mapping[int, Sequence[Unit]],
    taken: dict[int, int],
) -> tuple[Turn | None, Unit | None]:
    """The operation that wrote a message which was not published: of its action, in the turn after what is before it."""
    for turn in run.turns:
        if turn.role != role or (turn.ended_at is not None and turn.ended_at < earliest):
            continue
        mine = [unit for unit in units.get(id(turn), ()) if message.action in {unit.name, unit.step.action}]
        if not mine:
            continue
        files = list(dict.fromkeys(unit.call.file for unit in mine if unit.call and unit.call.file))
        count = taken[id(turn)] = taken.get(id(turn), 0) + 1
        if files:
            if count > len(files):
                continue
            return turn, [unit for unit in mine if unit.call and unit.call.file == files[count - 1]][-1]
        return turn, mine[-1]
    return None, None
