"""The sweep document: a grid of replays, as a person writes it, and the points that it stands for."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from blake3 import blake3
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from semtrace.engine.document import change_engine, parse_engine, read_engine
from semtrace.errors import UsageError
from semtrace.records.document import Document, empty_dict
from semtrace.replay.scenario import ClosedLoop, Nanoseconds, Poisson, Recorded, Together

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from semtrace.records.trace import Trace

MOST_POINTS: Final = 1_000_000
"""Points that a sweep may have."""

Scalar = bool | int | float | str
Process = Recorded | Together | ClosedLoop | Poisson


def _written_out(value: object) -> object:
    if isinstance(value, str):
        given = value[:40]
        raise PydanticCustomError(
            "arrivals",
            "must be a mapping of keys to values, and is {given}; write {written}",
            {"given": repr(given), "written": f"{{kind: {given}}}"},
        )
    return value


Arrivals = Annotated[Process, Field(discriminator="kind")]


class BarrierChoice(Document):
    """A barrier plan, made for the trace as `semtrace plan barrier` makes it.

    Attributes:
        rule: `chain`, `level`, `width` or `stages`.
        width: how many branches run at once, with rule `width`.
        stages: ids of the stages to serialise; all if left out.
    """

    rule: Literal["chain", "level", "width", "stages"]
    width: int | None = Field(default=None, ge=1)
    stages: list[Annotated[int, Field(ge=0)]] | None = None


class SweepDocument(Document):
    """A grid of replays of one trace on the simulated engine.

    Every combination of a plan, an arrival process, a value of every setting and a seed is a point.

    Attributes:
        engine: the engine, by the name of a ready one, path, or written out; the default one if left out.
        settings: by dotted key of the engine document (`kv_bytes`, `scheduler.max_num_seqs`), the values it takes.
        plans: `dag`, or barrier plans; the recorded edges alone if left out.
        arrivals: the arrival processes; as the trace has them if left out.
        seeds: seeds of arrival processes that are drawn, and the repetitions of the sweep.
        copies: how many instances of every task.
        salt: which instances may find each other's prefixes.
        deadline_ns: deadline of every instance, counted from its arrival, in ns.
        window_ns: instances that arrive before this time count for attainment and goodput.
        detail: `steps` to record every step while a point is measured: work, KV over time, batches, what was computed again.
        notes: remarks.
    """

    HINT: ClassVar[str | None] = (
        "for example: plans: [dag, {rule: chain}], arrivals: [{kind: poisson, mean_ns: 50000000}], "
        "settings: {scheduler.max_num_seqs: [64, 128]}; rules of plans: chain, level, width (with width: 2), stages"
    )

    format: Literal["semtrace-sweep"] = "semtrace-sweep"
    engine: str | dict[str, Any] | None = None
    settings: dict[str, list[Scalar]] = Field(default_factory=empty_dict)
    plans: list[Literal["dag"] | BarrierChoice] = Field(default=["dag"], min_length=1)
    arrivals: list[Annotated[Arrivals | None, BeforeValidator(_written_out)]] = Field(
        default=[None], min_length=1
    )
    seeds: list[Annotated[int, Field(ge=0, lt=1 << 53)]] = Field(default=[0], min_length=1)
    copies: int = Field(default=1, ge=1, le=1_000_000)
    salt: Literal["copy", "instance", "none"] = "copy"
    deadline_ns: Nanoseconds | None = None
    window_ns: Nanoseconds | None = None
    detail: Literal["steps"] | None = None
    notes: str | None = None


@dataclass(frozen=True)
class Point:
    """One replay of a sweep.

    Attributes:
        index: its ordinal.
        plan: `dag`, or the members of a barrier.
        arrivals: the arrival process, its seed in it; None for as recorded.
        seed: the seed.
        settings: what is changed of the engine.
        scenario: the scenario, with the whole engine document in it.
        detail: tables that the replay records to be measured.
    """

    index: int
    plan: Mapping[str, Any] | Literal["dag"]
    arrivals: Mapping[str, Any] | None
    seed: int
    settings: Mapping[str, Scalar]
    scenario: Mapping[str, Any]
    detail: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What its result depends on beside the trace: the name of its part of a resumable sweep."""
        told = [self.plan, self.scenario, self.seed, *self.detail]
        return blake3(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]


def points(document: SweepDocument, trace: Trace, folder: Path | None = None) -> list[Point]:
    """The points of a sweep: plans outermost, then arrivals, settings in the order of the document, and seeds.

    Args:
        document: the sweep.
        trace: the trace; models that it knows may be named.
        folder: what relative paths in the document are relative to.

    Raises:
        UsageError: there are too many, a setting has no value, or a value stands twice.
        DocumentError: a combination is no engine, with every member that is wrong.
    """
    for key, values in document.settings.items():
        if not values:
            raise UsageError(f"settings.{key} has no value", code="sweep.settings", path=f"settings.{key}")
    _refuse_twice(document)
    plans: list[Mapping[str, Any] | Literal["dag"]] = [
        plan if plan == "dag" else plan.as_json() for plan in document.plans
    ]
    count = len(plans) * len(document.arrivals) * len(document.seeds)
    for values in document.settings.values():
        count *= len(values)
    if count > MOST_POINTS:
        axes = {
            "plans": len(plans),
            "arrivals": len(document.arrivals),
            **{f"settings.{key}": len(values) for key, values in document.settings.items()},
            "seeds": len(document.seeds),
        }
        longest = max(axes, key=lambda name: axes[name])
        raise UsageError(
            f"the sweep has {count:,} points, more than {MOST_POINTS:,}: "
            + " × ".join(f"{size:,} of {name}" for name, size in axes.items() if size > 1),
            code="sweep.size",
            path=longest,
            hint=f"fewer {longest}, or several sweeps",
        )
    base = _base(document, trace, folder)
    made: list[Point] = []
    tables = () if document.detail is None else ("steps", "step_runs")
    for plan, arrivals, combination in itertools.product(
        plans, document.arrivals, list(itertools.product(*document.settings.values()))
    ):
        settings = dict(zip(document.settings, combination, strict=True))
        engine = parse_engine(
            change_engine(base, settings), path="engine", folder=folder, trace=trace
        ).as_json()
        for seed in document.seeds:
            process = None if arrivals is None else arrivals.as_json()
            if isinstance(arrivals, Poisson):
                process = {**arrivals.as_json(), "seed": seed}
            scenario = {
                "arrivals": process,
                "copies": document.copies,
                "salt": document.salt,
                "deadline_ns": document.deadline_ns,
                "window_ns": document.window_ns,
                "backend": {"name": "engine", "settings": engine},
            }
            known = {key: value for key, value in scenario.items() if value is not None}
            made.append(Point(len(made), plan, process, seed, settings, known, tables))
    return made


def _refuse_twice(document: SweepDocument) -> None:
    """Nothing is to be replayed twice (as `compare-policies` has it)."""
    axes: dict[str, Sequence[object]] = {
        "plans": [plan if plan == "dag" else plan.as_json() for plan in document.plans],
        "arrivals": [None if each is None else _drawn(each) for each in document.arrivals],
        "seeds": document.seeds,
        **{f"settings.{key}": values for key, values in document.settings.items()},
    }
    for axis, values in axes.items():
        told = Counter(json.dumps(value, sort_keys=True) for value in values)
        twice = [value for value, count in told.items() if count > 1]
        if twice:
            raise UsageError(
                f"{', '.join(twice[:5])} stands twice",
                code="sweep.twice",
                path=axis,
                hint="each value is a point of its own: say it once",
            )


def _drawn(arrivals: Process) -> dict[str, Any]:
    """An arrival process but for its seed, which is the sweep's."""
    return {key: value for key, value in arrivals.as_json().items() if key != "seed"}


def _base(document: SweepDocument, trace: Trace, folder: Path | None) -> dict[str, Any]:
    """The engine that the settings change, with all that it names by path read."""
    if isinstance(document.engine, dict):
        return dict(document.engine)
    given = document.engine
    if given is not None and folder is not None and (folder / given).suffix and (folder / given).exists():
        given = str(folder / given)
    return read_engine(given, {}, trace=trace).as_json()
