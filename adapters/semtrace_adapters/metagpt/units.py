"""What becomes operations: the calls of each turn, its actions without calls, and how they wait for each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semtrace.records.enums import Evidence

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .pairing import Call
    from .run import Run, Step, Turn


@dataclass(eq=False)
class Unit:
    """One operation to be.

    `call` is None for an action that asks no model, and for the end of an action (`joins`) that puts together what
    several calls at once returned. `at` and `ended_at` are its places in the log. `before` are the units of its turn
    that it waits for, with the evidence of that.
    """

    turn: Turn
    step: Step
    call: Call | None
    at: int
    ended_at: int | None
    start_ns: int | None
    end_ns: int | None
    joins: bool = False
    before: list[tuple[Unit, Evidence]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The action that it is, or is a part of."""
        said = self.call.action if self.call else self.step.action
        published = self.turn.published.action if self.turn.published else ""
        return said or published or "ask"


def units_of(turn: Turn) -> list[Unit]:
    """The units of a turn, in order of their start."""
    units: list[Unit] = []
    for step in turn.steps:
        units += [Unit(turn, step, c, c.at, c.ended_at, c.start_ns, c.end_ns) for c in step.calls]
        if not step.calls:
            units.append(Unit(turn, step, None, step.at, step.ended_at, step.start_ns, step.end_ns))
    for place, unit in enumerate(units):
        ended = [each for each in units[:place] if each.ended_at is not None and each.ended_at <= unit.at]
        # Of those, the ones that no other of them waited for: the rest is implied.
        unit.before = [
            (each, _evidence(each, unit))
            for each in ended
            if not any(
                each.ended_at <= later.at
                for later in ended
                if later is not each and each.ended_at is not None
            )
        ]
    last = sinks(units)
    if len(last) > 1 and turn.published is not None and turn.ended_at is not None:
        known = [unit.end_ns for unit in last if unit.end_ns is not None]
        start = max(known) if len(known) == len(last) else None
        at = max(unit.ended_at or unit.at for unit in last)
        join = Unit(turn, turn.steps[-1], None, at, turn.ended_at, start, turn.end_ns, joins=True)
        join.before = [(unit, Evidence.DERIVED) for unit in last]
        units.append(join)
    return units


def _evidence(earlier: Unit, later: Unit) -> Evidence:
    """How it is known that one waited for the other: one coroutine ran both, if the end of the first was seen."""
    call = earlier.call
    seen = call is None or call.end_evidence in {Evidence.OBSERVED, Evidence.DERIVED} or call.together > 1
    same_step = earlier.step is later.step
    return Evidence.DERIVED if seen or not same_step else Evidence.INFERRED


def sinks(units: Sequence[Unit]) -> list[Unit]:
    """The units that no other of these waits for."""
    waited = {id(before) for unit in units for before, _ in unit.before}
    return [unit for unit in units if id(unit) not in waited]


def sources(units: Sequence[Unit]) -> list[Unit]:
    """The units that wait for no other."""
    return [unit for unit in units if not unit.before]


def barriers(run: Run, units: Sequence[Unit]) -> list[tuple[Unit, Unit]]:
    """Pairs (later, earlier) that the rounds order: everybody waits for all of the round before.

    The last units of a round and the first of the next are enough; the others follow.
    """
    rounds: list[list[Unit]] = [[] for _ in range(run.rounds + 1)]
    for unit in units:
        rounds[unit.turn.round].append(unit)
    pairs: list[tuple[Unit, Unit]] = []
    earlier: list[Unit] = []
    for members in rounds:
        if not members:
            continue
        pairs += [(later, before) for later in sources(members) for before in earlier]
        earlier = sinks(members)
    return pairs


def turns_apart(run: Run, units: Mapping[int, Sequence[Unit]]) -> list[tuple[Unit, Unit, Evidence]]:
    """Pairs (later, earlier) of turns within a round: a role has one turn after the other.

    A log without rounds does not say who waited for whom; there, a turn is taken to wait for those that were over.
    """
    pairs: list[tuple[Unit, Unit, Evidence]] = []
    evidence = Evidence.INFERRED if run.sparse else Evidence.DERIVED
    latest: dict[object, list[Turn]] = {}
    for turn in sorted(run.turns, key=lambda each: each.at):
        if not units[id(turn)]:
            continue
        live = latest.setdefault(None if run.sparse else (turn.role, turn.round), [])
        over = [each for each in live if each.ended_at is not None and each.ended_at <= turn.at]
        last = [each for each in over if not any(other.at >= (each.ended_at or 0) for other in over)]
        # What was over before another turn began that is itself over is waited for through that one, now and later.
        live[:] = [each for each in live if each not in over or each in last] + [turn]
        pairs += [
            (later, earlier, evidence)
            for each in last
            for later in sources(units[id(turn)])
            for earlier in sinks(units[id(each)])
        ]
    return pairs
