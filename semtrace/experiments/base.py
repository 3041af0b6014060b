"""What all experiments share: the engine, running sweeps of workloads, and results beside the reference's."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Literal

from semtrace.errors import ReplayError
from semtrace.experiments.workloads import REQUEST_LIMIT
from semtrace.store.bundle import write_bundle
from semtrace.sweep.document import SweepDocument, points
from semtrace.sweep.run import Here

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from semtrace.records.trace import Trace

GIB: Final = 1 << 30
KV_BYTES: Final = {"16": 16 * GIB, "31.99": int(31.99 * GIB), "40": 40 * GIB}
"""The reference's KV sizes in bytes, by their GiB: 116,508, 232,944 and 291,271 tokens of Qwen3-8B."""
ENGINE: Final[Mapping[str, Any]] = {
    "name": "reference experiments",
    "model": "Qwen3-8B",
    "device": "Ascend-910C-chip",
    "kv_bytes": KV_BYTES["40"],
    "scheduler": {"max_num_seqs": 128, "max_model_len": REQUEST_LIMIT, "prefix_caching": False},
    "cost": {"kind": "roofline", "compute_share": 0.6},
    "source": "The reference's setting: Qwen3-8B in BF16 on one 910C chip, no prefix cache, at most 8192 tokens a "
    "request.",
    "notes": "The device's figures and the share of its arithmetic are assumed, not measured: no claim to its times.",
}
"""The engine of all experiments. What the reference leaves open is as in the ready documents."""
BLOCKS: Final = 3
"""Seeds of an experiment unless told otherwise: the reference's three blocks."""
REFERENCE_SEED: Final = 1_000_003
"""Seed of the workload of low-load reference runs, which is that of no block."""
FLAT: Final = 0.05
"""Largest change that counts as none."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Compared:
    """One measure, in each block under two conditions, beside what the reference reports.

    Attributes:
        measure: what is measured, and of which two conditions.
        reference: what is reported, in its own form.
        first, second: the value in each block, under the first and under the second condition.
        expected: the reported direction from first to second: 1 up, -1 down, 0 not much, `equal`; None if nothing is
            reported.
        unit: how values are shown.
    """

    measure: str
    reference: str
    first: Sequence[float]
    second: Sequence[float]
    expected: Literal[-1, 0, 1, "equal"] | None
    unit: Literal["number", "seconds", "share", "ratio", "per second"] = "number"

    @property
    def changes(self) -> list[float]:
        """By block, how much greater the second value is: a part of the first, of shares the difference."""
        pairs = zip(self.first, self.second, strict=True)
        if self.unit == "share":
            return [second - first for first, second in pairs]
        return [second / first - 1 if first else float(second != first) for first, second in pairs]

    @property
    def same_direction(self) -> bool | None:
        """Whether every block goes the reported way; None if nothing is reported."""
        if self.expected is None:
            return None
        if self.expected == "equal":
            return all(change == 0 for change in self.changes)
        if self.expected == 0:
            return all(abs(change) <= FLAT for change in self.changes)
        return all(change * self.expected > 0 for change in self.changes)

    def as_dict(self) -> dict[str, Any]:
        """The comparison as JSON-ready fields."""
        changes = self.changes
        return {
            "measure": self.measure,
            "reference": self.reference,
            "unit": self.unit,
            "first": list(self.first),
            "second": list(self.second),
            "change": {"median": median(changes), "min": min(changes), "max": max(changes)},
            "same_direction": self.same_direction,
        }


@dataclass(frozen=True)
class Table:
    """What is shown instead of the measures, where an experiment has a form of its own.

    Attributes:
        headings: of the columns.
        rows: a cell for each column.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Result:
    """What an experiment found.

    Attributes:
        compared: measures beside the reference's.
        rows: the replays, as a sweep gives them.
        facts: what else is to be known: deadlines, rates, pooled counts.
        differs: why our numbers are not theirs.
        left_out: what the reference reports and this does not measure, and why.
        table: what is shown instead of the measures.
    """

    compared: Sequence[Compared]
    rows: Sequence[Row]
    differs: str
    facts: Sequence[str] = ()
    left_out: str | None = None
    table: Table | None = None


@dataclass
class Lab:
    """Where an experiment runs.

    Attributes:
        seeds: one for each block.
        quick: whether to take as little time as shows the directions.
        workers: processes.
        rows: of all replays so far.
    """

    seeds: Sequence[int] = tuple(range(BLOCKS))
    quick: bool = False
    workers: int = 1
    rows: list[Row] = field(default_factory=list)

    def replay(self, what: str, trace: Trace, seed: int, **members: Any) -> list[Row]:
        """Replay a workload in a sweep.

        Args:
            what: a name for the workload, kept in the rows as `workload`.
            trace: the workload.
            seed: of its draw, and of drawn arrivals.
            members: of the sweep document: `settings`, `plans`, `arrivals`, `copies`, `deadline_ns` …

        Returns:
            the rows, in the order of the sweep's points.

        Raises:
            ReplayError: a replay was refused.
        """
        document = SweepDocument.parse(
            {"engine": dict(ENGINE), "arrivals": [{"kind": "together"}], "seeds": [seed], **members},
            path=what,
        )
        todo = points(document, trace)
        workers = min(self.workers, len(todo))
        if workers == 1:
            made = list(Here(Path(), trace, 1).rows(todo))
        else:
            with tempfile.TemporaryDirectory(prefix="semtrace-") as folder:
                path = Path(folder) / "trace.semtrace"
                write_bundle(path, trace=trace)
                made = list(Here(path, trace, workers).rows(todo))
        made.sort(key=lambda row: row["point"])
        for row in made:
            if row["error"] is not None:
                raise ReplayError(f"{what}: {row['error']}", code="experiment.refused")
        told = [{"workload": what, **row} for row in made]
        self.rows.extend(told)
        return told


@dataclass(frozen=True)
class Experiment:
    """An experiment.

    Attributes:
        name: by which it is asked for.
        title: what it is about.
        reference: the set-up as reported.
        ours: our set-up, and what of it is inference.
        run: runs it.
        blocks: seeds unless told otherwise.
    """

    name: str
    title: str
    reference: str
    ours: str
    run: Callable[[Lab], Result]
    blocks: int = BLOCKS


def seconds(row: Row, name: str) -> float:
    """A time of a row in seconds, for reports."""
    return float(row[name]) / 1e9


def throughput(row: Row) -> float:
    """Output tokens per second of the whole run."""
    return float(row["sum.output_tokens"]) / seconds(row, "width.span_ns")


def prefill_factor(row: Row) -> float:
    """Prompt tokens processed, recomputation included, for each one that the work has."""
    return float(row["sum.computed_prompt_tokens"]) / float(row["sum.prompt_tokens"])


def attainment(row: Row) -> float:
    """The share of tasks that were on time."""
    return float(row["attainment.part"]) / float(row["attainment.whole"])


def pooled(rows: Sequence[Row]) -> str:
    """Tasks on time over all blocks, with Wilson's 95 % interval: as if the tasks of a block were independent."""
    part = sum(row["attainment.part"] for row in rows)
    whole = sum(row["attainment.whole"] for row in rows)
    low, high = wilson(part, whole)
    return f"{part} of {whole}, {part / whole:.1%} ({low:.1%} to {high:.1%})"


def wilson(part: int, whole: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Wilson's score interval of a share (E. B. Wilson, J. Am. Stat. Assoc. 22, 1927); `z` 1.96 for 95 %."""
    share, square = part / whole, z * z
    middle = (share + square / (2 * whole)) / (1 + square / whole)
    half = z * (share * (1 - share) / whole + square / (4 * whole * whole)) ** 0.5 / (1 + square / whole)
    return max(0.0, middle - half), min(1.0, middle + half)
