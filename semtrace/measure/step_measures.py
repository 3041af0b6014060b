"""Measures of scheduler steps: modelled work, batches, what is computed again (spec, measures.md)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from semtrace.engine.catalog import Device, ModelShape
from semtrace.engine.roofline import RooflineCost, roofline_numbers
from semtrace.errors import SemtraceError
from semtrace.measure.block_moves import Keys
from semtrace.measure.slots import ranges
from semtrace.measure.stats import Distribution, Ratio, number, total
from semtrace.records.columns import NULL
from semtrace.records.enums import StageTemplate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from semtrace.measure.recorded_engine import Engine
    from semtrace.measure.recorded_steps import RecordedSteps

ROWS: Final = 128
"""Rows of a matrix product above which a batch counts as large."""


@dataclass(frozen=True)
class StepMeasures:
    """Measures of recorded steps.

    Attributes:
        steps: the steps.
        engine: the engine; None if it is not a simulated one.
    """

    steps: RecordedSteps
    engine: Engine | None

    @cached_property
    def took_ns(self) -> NDArray[np.int64]:
        """By step, the time in which it computed: from its start, or the end of the step before if that is later, to its end."""
        steps = self.steps
        return steps.end_ns - np.maximum(steps.start_ns, steps.ready_ns)

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """By step, rows of its matrix products: its tokens."""
        found: NDArray[np.int64] = self.steps.geometry[:, 1] + self.steps.geometry[:, 2]
        return found

    def classes(self, by: str) -> Iterator[tuple[dict[str, str], NDArray[np.bool_]]]:
        """The classes of calls that are in steps, with the steps that each is in.

        Args:
            by: `stages`, by name and template; or `tasks`, by name.
        """
        slots = self.steps.slots
        table = slots.trace[by]
        names = [str(name) for name in table.strings("name")]
        keys: list[tuple[str, ...]] = [(name,) for name in names]
        members: tuple[str, ...] = ("name",)
        if by == "stages":
            extension = table.strings("template_extension")
            templates = [
                given or StageTemplate(row).name.lower()
                for row, given in zip(table.ints("template").tolist(), extension, strict=True)
            ]
            keys, members = list(zip(names, templates, strict=True)), ("name", "template")
        numbers: dict[tuple[str, ...], int] = {}
        of_row = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
        own = slots.recorded("stage" if by == "stages" else "task")[self.steps.slot]
        of_run = np.where(own == NULL, NULL, of_row[own]) if len(of_row) else np.full_like(own, NULL)
        for key, at in numbers.items():
            mine = of_run == at
            if mine.any():
                yield dict(zip(members, key, strict=True)), self.steps.covered(mine)

    def batches(self) -> dict[str, Any]:
        """Rows of steps, of all and by stage (ST-MEA-076)."""
        stages = []
        matrix = self.matrix_ns
        for name, inside in self.classes("stages"):
            large = inside & (self.rows > ROWS)
            stages.append(
                {
                    **name,
                    "rows": Distribution.of(self.rows[inside]).as_dict(),
                    "large_steps": int(large.sum()),
                    "large_matrix_share": self._share(large),
                }
            )
        return {
            "rows": Distribution.of(self.rows).as_dict(),
            "large_steps": int((self.rows > ROWS).sum()),
            "large_time": Ratio(total(self.took_ns[self.rows > ROWS]), total(self.took_ns)).as_dict(),
            "large_matrix_share": self._share(self.rows > ROWS),
            "matrix_ns": None if matrix is None else float(matrix.sum()),
            "stages": stages,
        }

    def _share(self, steps: NDArray[np.bool_]) -> float | None:
        """The part of all matrix time that these steps have."""
        matrix = self.matrix_ns
        return None if matrix is None or not matrix.sum() else float(matrix[steps].sum() / matrix.sum())

    @property
    def why_no_matrix(self) -> str | None:
        """Why the time of matrix products is not known; None if it is."""
        return (
            None if self.matrix_ns is not None else "the engine names no model and no device with bf16_flops"
        )

    @cached_property
    def matrix_ns(self) -> NDArray[np.float64] | None:
        """By step, modelled time of its matrix products, LM head and experts included (ST-COST-021); None if not known."""
        engine = self.engine
        if engine is None:
            return None
        document = engine.document
        cost = document.cost if isinstance(document.cost, RooflineCost) else RooflineCost()
        model = document.model if isinstance(document.model, ModelShape) else None
        device = document.device if isinstance(document.device, Device) else None
        try:
            ints, f = roofline_numbers(cost, model, device)
        except SemtraceError:
            return None
        n = self.rows.astype(np.float64)
        sampled = self.steps.geometry[:, 3].astype(np.float64)
        products = (2, 7, 10, 13) if ints[1] == 0 else (2, 7)
        layer = np.zeros(len(n), dtype=np.float64)
        for at in products:
            layer += np.maximum(f[at] * n / f[0], (f[at + 1] + f[at + 2] * n) / f[1])
        if ints[1]:
            layer += np.maximum(f[16] * n / f[0], f[17] * (f[19] * (1.0 - f[18] ** n)) / f[1])
        head = np.where(sampled > 0, np.maximum(f[20] * sampled / f[0], f[21] / f[1]), 0.0)
        return layer * float(ints[0]) + head

    def work(self) -> dict[str, Any] | str:
        """Modelled operations and bytes of all steps, over all devices that share them; or why not (ST-MEA-075)."""
        model = self.engine.document.model if self.engine is not None else None
        if not isinstance(model, ModelShape):
            return "the engine names no model"
        geometry = self.steps.geometry
        sums = [total(geometry[:, column]) for column in range(geometry.shape[1])]
        tokens, pairs, context = sums[1] + sums[2], sums[4] + sums[6], sums[5] + sums[7]
        h, d, q, k = model.hidden_size, model.head_dim, model.heads, model.kv_heads
        products = [(h, (q + 2 * k) * d), (q * d, h)]
        weight, element = Fraction(model.weight_bytes), Fraction(model.kv_bytes)
        flops, moved = 0, Fraction(0)
        experts: float | Fraction = 0
        if model.experts and model.experts_per_token and model.expert_intermediate_size:
            matrices = 3 * h * model.expert_intermediate_size
            flops += 2 * tokens * model.experts_per_token * matrices
            missed = (1.0 - model.experts_per_token / model.experts) ** self.rows.astype(np.float64)
            experts = float(weight) * matrices * model.experts * float((1.0 - missed).sum())
        elif model.intermediate_size:
            products += [(h, 2 * model.intermediate_size), (model.intermediate_size, h)]
        for c_in, c_out in products:
            flops += 2 * tokens * c_in * c_out
            moved += weight * (c_in * c_out * self.steps.count + tokens * (c_in + c_out))
        flops += 4 * q * d * pairs
        moved += element * 2 * k * d * (context + tokens)
        heads = int((geometry[:, 3] > 0).sum())
        flops = model.layers * flops + 2 * sums[3] * h * model.vocab_size
        whole = model.layers * moved + weight * h * model.vocab_size * heads
        layered = float(model.layers * experts)
        nbytes = number(whole) if not experts else float(whole) + layered
        intensity = None if not nbytes else float(flops / whole) if not experts else flops / nbytes
        return {"flops": flops, "bytes": nbytes, "intensity": intensity}

    def overlap(self) -> dict[str, list[dict[str, Any]]]:
        """For each class the share of the time of its steps in which another class is in them too (ST-MEA-077)."""
        found: dict[str, list[dict[str, Any]]] = {}
        for by in ("stages", "tasks"):
            several = np.zeros(self.steps.count, dtype=np.int64)
            for _, inside in self.classes(by):
                several += inside
            found[by] = [
                {
                    **name,
                    **Ratio(
                        total(self.took_ns[inside & (several > 1)]), total(self.took_ns[inside])
                    ).as_dict(),
                }
                for name, inside in self.classes(by)
            ]
        return found

    def again(self) -> dict[str, int | None]:
        """Prefill tokens that had been computed before, by cause (ST-MEA-072); None where a cause is not known."""
        return {"preemption": self._again_after_preemption(), "eviction": self._again_after_eviction()}

    def _again_after_preemption(self) -> int:
        """Tokens at positions before the end of an earlier run of the same call."""
        steps = self.steps
        slot, opens, _ = steps.of_slot
        end = steps.end_position
        # The furthest that the runs before came, by call: later calls have greater numbers, so that they do not mix.
        call = np.repeat(np.arange(len(slot), dtype=np.int64), np.diff(np.append(opens, len(end))))
        apart = int(end.max(initial=0)) + 1
        furthest = np.maximum.accumulate(end + call * apart) - call * apart
        before = np.zeros(len(end), dtype=np.int64)
        before[1:] = furthest[:-1]
        before[opens] = 0
        return total(np.maximum(np.minimum(before, end) - steps.position, 0)[~steps.decode])

    def _again_after_eviction(self) -> int | None:
        """Tokens of full blocks that the call may hit, that a call on its server had computed when it was admitted, and that it did not find."""
        steps, slots = self.steps, self.steps.slots
        keys = Keys.of(slots) if self.engine is not None else None
        if self.engine is None or keys is None:
            return None
        if not self.engine.settings.scheduler.prefix_caching:
            return 0
        size = self.engine.settings.block_size
        low, high = steps.position // size, steps.end_position // size
        run = np.repeat(np.arange(len(low), dtype=np.int64), high - low)
        block = ranges(low, high - low)
        step = steps.first[run] + ((block + 1) * size - 1 - steps.position[run]) // steps.each[run]
        key = keys.find(slots.event[steps.slot[run]], block)
        server = steps.server[steps.first[run]]
        kept = key >= 0
        key, server, done = key[kept], server[kept], steps.end_ns[step[kept]]
        width = int(key.max(initial=0)) + 1
        place = server * width + key
        order = np.lexsort((done, place))
        place, done = place[order], done[order]
        first = np.flatnonzero(np.diff(place, prepend=NULL))
        place, done = place[first], done[first]
        slot, opens, _ = steps.of_slot
        own = np.maximum(slots.recorded("prompt_tokens")[slot] - 1, 0) // size
        begin = np.minimum(-(-steps.position[opens] // size), own)
        call = np.repeat(np.arange(len(slot), dtype=np.int64), own - begin)
        wanted = keys.find(slots.event[slot[call]], ranges(begin, own - begin))
        at_server = steps.server[steps.first[opens[call]]]
        known = (wanted >= 0) & (wanted < width)
        call, wanted, at_server = call[known], wanted[known], at_server[known]
        target = at_server * width + wanted
        at = np.minimum(np.searchsorted(place, target), max(len(place) - 1, 0))
        if not len(place):
            return 0
        there = (place[at] == target) & (done[at] <= steps.start_ns[steps.first[opens[call]]])
        return int(there.sum()) * size
