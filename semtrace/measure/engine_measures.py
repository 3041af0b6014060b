"""What an execution says of the engine that ran it: requests, steps, memory; and what it does not say, with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from semtrace.check.executions import check_form
from semtrace.errors import SemtraceError
from semtrace.measure.block_moves import MOST, BlockMoves
from semtrace.measure.critical import critical_calls
from semtrace.measure.kv_measures import (
    byte_seconds,
    device_block_ns,
    idle_block_ns,
    inversions,
    moved_bytes,
    tier_block_ns,
)
from semtrace.measure.recorded_engine import Engine, recorded
from semtrace.measure.recorded_steps import RecordedSteps
from semtrace.measure.stats import Distribution, Ratio, total
from semtrace.measure.step_measures import StepMeasures
from semtrace.records.columns import NULL
from semtrace.records.enums import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from semtrace.measure.slots import Slots


ILL_FORMED: Final = "the tables are not well formed"
"""A reason."""


@dataclass(frozen=True)
class EngineMeasures:
    """Measures of requests, steps and memory.

    Attributes:
        values: the measures, as JSON-ready members; those that are not known are not there.
        absent: those that are not, each with the reason.
    """

    values: Mapping[str, Any]
    absent: Mapping[str, str]

    @classmethod
    def of(cls, slots: Slots) -> EngineMeasures:
        """The measures of an execution, as far as it recorded what they need."""
        made = _Measured(slots)
        made.requests()
        made.steps()
        made.blocks()
        return cls(made.values, made.absent)

    def as_dict(self) -> dict[str, Any]:
        """The measures as JSON-ready fields; `absent` is a list of objects with `measure` and `reason`."""
        absent = [{"measure": name, "reason": reason} for name, reason in self.absent.items()]
        return {**self.values, "absent": absent}


class _Measured:
    """The measures while they are made."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.values: dict[str, Any] = {}
        self.absent: dict[str, str] = {}
        self._engine: Engine | None = None
        self._no_engine = "the backend is no simulated engine"
        try:
            self._engine = Engine.of(slots)
        except SemtraceError as error:
            self._no_engine = f"the settings are of no engine: {error.message}"
        execution = slots.execution
        self._wrong: set[str | None] = set()
        if any(recorded(execution, name) for name in ("steps", "step_runs", "blocks", "transfers")):
            self._wrong = {found.table for found in check_form(execution, slots.trace)}

    def requests(self) -> None:
        """What events tell (ST-MEA-070, ST-MEA-071)."""
        slots, values = self.slots, self.values
        ran = np.flatnonzero(~slots.fixed & (slots.submitted != NULL))
        prompt, computed = slots.seen("prompt_tokens")[ran], slots.seen("computed_prompt_tokens")[ran]
        cached = slots.seen("cached_tokens")[ran]
        kept = [np.maximum(slots.seen(name)[ran], 0) for name in ("loaded_tokens", "reused_tokens")]
        values["calls"] = len(ran)
        values["prefill_factor"] = _ratio(computed, prompt)
        values["hit_share"] = _ratio(np.where(cached == NULL, NULL, cached + kept[0] + kept[1]), prompt)
        for name in ("preemptions", "preempted_ns"):
            told = slots.seen(name)[ran]
            known = told != NULL
            values[name] = {
                "sum": total(told[known]) if known.any() else None,
                "unknown": int((~known).sum()),
            }
        submitted, scheduled, finished = slots.submitted[ran], slots.scheduled[ran], slots.finished[ran]
        away = slots.preempted[ran]
        away = np.where((away == NULL) & (slots.preemptions[ran] == 0), 0, away)
        known = (submitted != NULL) & (scheduled != NULL)
        values["queue_ns"] = _distribution(scheduled - submitted, known)
        known = (scheduled != NULL) & (finished != NULL) & (away != NULL)
        values["residence_ns"] = _distribution(finished - scheduled - away, known)

    def steps(self) -> None:
        """What steps tell (ST-MEA-072 to ST-MEA-078)."""
        slots, engine = self.slots, self._engine
        names = (
            "recompute",
            "kv_byte_seconds.device",
            "work",
            "batches",
            "co_batching",
            "critical_inversions",
        )
        why_not = None
        if not all(recorded(slots.execution, name) for name in ("steps", "step_runs")):
            why_not = "steps were not recorded"
        elif self._wrong & {"steps", "step_runs", "events"}:
            why_not = ILL_FORMED
        elif not slots.execution["steps"].rows:
            why_not = "there is no step"
        steps = None if why_not is not None else RecordedSteps.of(slots)
        if steps is not None and (len(steps.lost) or bool(steps.walk.wrong.any())):
            why_not = "the runs of steps contradict the events"
        if steps is None or why_not is not None:
            self.absent |= dict.fromkeys(names, why_not or "")
            return
        measures = StepMeasures(steps, engine)
        again = measures.again()
        self.values["recompute"] = again
        if again["eviction"] is None:
            self.absent["recompute.eviction"] = (
                self._no_engine if engine is None else "the keys of blocks are not known"
            )
        work = measures.work()
        if isinstance(work, str):
            self.absent["work"] = work
        else:
            self.values["work"] = work
        self.values["batches"] = measures.batches()
        if measures.why_no_matrix is not None:
            self.absent["batches.matrix_ns"] = measures.why_no_matrix
        self.values["co_batching"] = measures.overlap()
        if engine is None:
            self.absent |= dict.fromkeys(("kv_byte_seconds.device", "critical_inversions"), self._no_engine)
            return
        self.values["critical_inversions"] = inversions(slots, measures, engine, critical_calls(slots))
        size = engine.document.block_bytes
        if size is None:
            self.absent["kv_byte_seconds.device"] = (
                "the engine names no model, so the bytes of a block are not known"
            )
        else:
            held = byte_seconds(device_block_ns(measures, engine), size)
            self.values.setdefault("kv_byte_seconds", {})["device"] = held

    def blocks(self) -> None:
        """What blocks and transfers tell (ST-MEA-073, ST-MEA-074)."""
        slots, engine = self.slots, self._engine
        if "transfers" in self._wrong:
            self.absent["moved_bytes"] = ILL_FORMED
        elif recorded(slots.execution, "transfers"):
            self.values["moved_bytes"] = moved_bytes(slots)
        else:
            self.absent["moved_bytes"] = "transfers were not recorded"
        names = ["idle_kv_byte_seconds"]
        tiers = engine.document.tiers if engine is not None else None
        there = [
            tier
            for tier in (Tier.HOST, Tier.REMOTE)
            if tiers is not None and getattr(tiers, tier.name.lower())
        ]
        names += [f"kv_byte_seconds.{tier.name.lower()}" for tier in there]
        table = slots.execution["blocks"]
        why_not = None
        if not recorded(slots.execution, "blocks"):
            why_not = "blocks were not recorded"
        elif self._wrong & {"blocks", "transfers", "events"}:
            why_not = ILL_FORMED
        elif engine is None:
            why_not = self._no_engine
        elif (table.ints("first_block") == NULL).any() or int(table.ints("blocks").sum()) > MOST:
            why_not = "rows of blocks have no ids, or are of too many blocks"
        size = engine.document.block_bytes if engine is not None else None
        if why_not is None and size is None:
            why_not = "the engine names no model, so the bytes of a block are not known"
        if why_not is not None or size is None:
            self.absent |= dict.fromkeys(names, why_not or "")
            return
        moves = BlockMoves.of(slots)
        until = int(slots.finished.max(initial=0))
        self.values["idle_kv_byte_seconds"] = byte_seconds(idle_block_ns(moves, until), size)
        for tier in there:
            held = byte_seconds(tier_block_ns(moves, tier, until), size)
            self.values.setdefault("kv_byte_seconds", {})[tier.name.lower()] = held


def _ratio(part: NDArray[np.int64], whole: NDArray[np.int64]) -> dict[str, Any]:
    known = (part != NULL) & (whole != NULL)
    return Ratio(total(part[known]), total(whole[known]), int((~known).sum())).as_dict()


def _distribution(values: NDArray[np.int64], known: NDArray[np.bool_]) -> dict[str, Any]:
    return Distribution.of(values[known], int((~known).sum())).as_dict()
