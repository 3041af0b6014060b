"""What calls reuse, by the decisions that say so: for the rules that it is declared and that it is paid for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from semtrace.measure.recorded_engine import recorded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from semtrace.measure.audit_events import Case
    from semtrace.measure.audit_steps import StepCase

ENGINE: Final = "engine"
"""Who decides where no policy does (ST-LIF-042)."""
_REUSE: Final = re.compile(r"reuse\(tokens=(\d+)[^)]*charge_ns=(\d+)\)")


@dataclass(frozen=True)
class Declared:
    """What was decided that calls reuse.

    Attributes:
        of: by the row of an event, the tokens and what adapting them adds to the step that admits it, in ns: the last decision.
        doubtful: events of which something was not done, so that the last decision need not be the one that was.
    """

    of: Mapping[int, tuple[int, int]]
    doubtful: frozenset[int]


def declared_reuse(case: Case) -> Declared | None:
    """What the decisions of a run say of reuse; None where they were not recorded, or are not well formed."""
    execution = case.slots.execution
    if not recorded(execution, "decisions"):
        return None
    if any(
        found.requirement == "ST-AUD-007" and found.table == "decisions" for found in case.ledger.findings
    ):
        return None
    table = execution["decisions"]
    of: dict[int, tuple[int, int]] = {}
    doubtful: set[int] = set()
    rows = zip(table.strings("policy"), table.ints("event").tolist(), table.strings("choice"), strict=True)
    for policy, event, choice in rows:
        if policy == ENGINE:
            doubtful.add(event)
        elif (match := _REUSE.search(str(choice))) is not None:
            of[event] = (int(match[1]), int(match[2]))
    return Declared(of, frozenset(doubtful))


def charges(judged: StepCase) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """By step, what the reuse of those that it admits adds to it, in ns; and where that is not known."""
    steps, slots = judged.steps, judged.case.slots
    charge, unknown = np.zeros(steps.count, dtype=np.int64), np.zeros(steps.count, dtype=np.bool_)
    slot, opens, _ = steps.of_slot
    reuse = np.flatnonzero(slots.seen("reused_tokens")[slot] > 0)
    declared = declared_reuse(judged.case) if len(reuse) else None
    for event, step in zip(
        slots.event[slot[reuse]].tolist(), steps.first[opens[reuse]].tolist(), strict=True
    ):
        if declared is None or event in declared.doubtful or event not in declared.of:
            unknown[step] = True
        else:
            charge[step] += declared.of[event][1]
    return charge, unknown
