"""Audit rule on the order of an event's times, each against the one before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from semtrace.check.executions import TIMES
from semtrace.records.columns import NULL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semtrace.measure.audit_events import Case

_MOMENTS: Final = ("arrival", *TIMES)
"""The arrival of the instance, and the times of an event, in the order in which they come."""

_OF_RELEASE: Final = ("arrival", "ready", "released")
"""These are not compared with later ones where a rule on release is violated (ST-AUD-101)."""

_RELEASE: Final = ("ST-AUD-030", "ST-AUD-031", "ST-AUD-032", "ST-AUD-034", "ST-AUD-035", "ST-AUD-036")


def judge_order(case: Case) -> None:
    """The known times of an event are in order, and not before the arrival (ST-AUD-005).

    A time is compared with the last known one before it: if any two are out of order, two such are. In a native run,
    times that are not observed do not stand between two that are.
    """
    slots = case.slots
    at_ns = {name: slots.seen(f"{name}_ns") for name in TIMES} | {"arrival": slots.arrival}
    known = {name: at_ns[name] != NULL for name in _MOMENTS}
    # An arrival is known by no evidence of its own.
    strong = {name: known[name] & (case.observed(name) | (not case.native)) for name in TIMES}
    strong["arrival"] = known["arrival"] & (not case.native)
    told = case.reported(*_RELEASE)
    for end, second in enumerate(_MOMENTS):
        for begin, first in enumerate(_MOMENTS[:end]):
            sound = strong[first] & strong[second]
            compared = slots.present & known[first] & known[second]
            for name in _MOMENTS[begin + 1 : end]:
                compared &= ~np.where(sound, strong[name], known[name])
            if first in _OF_RELEASE:
                compared &= ~told
            _judge_pair(case, (first, second), np.flatnonzero(compared), at_ns, sound)


def _judge_pair(
    case: Case,
    names: tuple[str, str],
    at: NDArray[np.int64],
    at_ns: dict[str, NDArray[np.int64]],
    sound: NDArray[np.bool_],
) -> None:
    first, second = names
    before, after = at_ns[first][at], at_ns[second][at]

    def told(i: int) -> str:
        return f"{first} at {int(before[i])} ns, {second} before that at {int(after[i])} ns"

    weak = ~sound[at] if case.native else None
    case.judge("ST-AUD-005", at, before > after, told, column=f"{second}_ns", weak=weak)
