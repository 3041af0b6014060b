"""Steps of the readable scheduler, written as the logs that `calibrate` reads: a scheduler log, a plain log, an execution."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semtrace.engine.geometry import geometry_of
from semtrace.engine.scheduler import Request, Scheduler
from semtrace.engine.settings import SchedulerSettings
from semtrace.records.enums import EventOutcome, Evidence, Outcome, Phase
from semtrace.records.execution import Backend, Execution, ExecutionHeader
from semtrace.records.execution_tables import EXECUTION_TABLE

if TYPE_CHECKING:
    from semtrace.engine.scheduler import Step

HEADER = (
    "requests", "prefill_tokens", "decode_tokens", "sampled", "prefill_pairs", "prefill_context", "decode_pairs",
    "decode_context", "duration_ns",
)  # fmt: skip
SMALL = {"c0": 5_000_000, "prefill": 20_000, "decode": 40_000, "kv": 7}


@dataclass
class Served:
    """What a scheduler did with some requests.

    Attributes:
        requests: the requests.
        geometries: each step's geometry, as the engine computes it.
        durations: each step's time in ns.
        log: the rows of a scheduler log.
        runs: runs of steps as (request, first step, count, start position, tokens per step, phase).
    """

    requests: list[Request]
    geometries: list[list[int]] = field(default_factory=list)
    durations: list[int] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)
    runs: list[list[int]] = field(default_factory=list)

    @property
    def preemptions(self) -> int:
        return sum(request.preemptions for request in self.requests)

    def lines(self) -> str:
        return "".join(json.dumps(row) + "\n" for row in self.log)

    def csv(self) -> str:
        rows = [[*geometry, each] for geometry, each in zip(self.geometries, self.durations, strict=True)]
        return "\n".join(",".join(map(str, row)) for row in [list(HEADER), *rows]) + "\n"

    def execution(self) -> Execution:
        """The execution: one task of as many operations, one server."""
        count, starts = len(self.requests), [sum(self.durations[:at]) for at in range(len(self.durations))]
        columns: dict[str, dict[str, list[object]]] = {
            "instances": {"task": [0], "instance": [0], "arrival_ns": [0], "outcome": [Outcome.UNKNOWN]},
            "events": {
                "instance": [0] * count,
                "operation": list(range(count)),
                "outcome": [EventOutcome.OK] * count,
                "prompt_tokens": [request.prompt_tokens for request in self.requests],
                "output_tokens": [request.max_tokens for request in self.requests],
                "server": [0] * count,
                **{
                    f"{time}_evidence": [Evidence.MISSING] * count
                    for time in ("ready", "released", "submitted", "scheduled", "first_token", "finished")
                },
            },
            "steps": {
                "server": [0] * len(starts),
                "index": list(range(len(starts))),
                "start_ns": starts,
                "end_ns": [start + each for start, each in zip(starts, self.durations, strict=True)],
                "tokens": [geometry[1] + geometry[2] for geometry in self.geometries],
                "requests": [geometry[0] for geometry in self.geometries],
                "free_blocks": [0] * len(starts),
            },
        }
        names = ("event", "first_step", "count", "start_position", "tokens_per_step", "phase")
        runs = sorted(self.runs)
        columns["step_runs"] = {name: [run[at] for run in runs] for at, name in enumerate(names)}
        tables = {}
        for name, values in columns.items():
            schema = EXECUTION_TABLE[name].arrow
            tables[name] = pa.table({key: pa.array(values[key], schema.field(key).type) for key in values})
        header = ExecutionHeader(
            work_digest="blake3:" + "0" * 64,
            mode="length_locked",
            clock="virtual",
            measured_at="simulator",
            backend=Backend(name="test"),
            detail=["steps", "step_runs"],
        )
        return Execution.from_arrow(header, tables)


def serve(seed: int, *, requests: int = 12, blocks: int = 24, noise: float = 0.0) -> Served:
    """Serve random requests in little memory, so that some are preempted; the time of a step is linear, times noise."""
    rng = random.Random(seed)
    scheduler = Scheduler(
        SchedulerSettings(max_num_seqs=5, max_num_batched_tokens=rng.choice([9, 16, 40])), blocks, 4
    )
    made = []
    for number in range(requests):
        prompt, output = rng.randint(1, 50), rng.randint(1, 30)
        shared = rng.randint(0, 3)
        keys = [key if key < shared else 1000 * number + key for key in range((prompt + output) // 4)]
        made.append(Request(number, prompt, output, keys))
    served = Served(made, log=[{"t": "config", "block_size": 4}])
    for request in made:
        scheduler.add(request)
    open_runs: dict[int, list[int]] = {}
    number = 0
    while scheduler.running or scheduler.waiting:
        step = scheduler.schedule()
        assert step.entries
        _record(served, step, number, rng.lognormvariate(0, noise) if noise else 1.0, open_runs)
        scheduler.update(step)
        number += 1
    served.runs.extend(open_runs.values())
    return served


def _record(served: Served, step: Step, number: int, factor: float, open_runs: dict[int, list[int]]) -> None:
    geometry = list(geometry_of(step))
    linear = SMALL["c0"] + SMALL["prefill"] * geometry[1] + SMALL["decode"] * geometry[2]
    duration = round((linear + SMALL["kv"] * (geometry[5] + geometry[7])) * factor)
    rows = []
    for entry in step.entries:
        request, at, tokens = entry.request, entry.computed, entry.tokens
        last = "prefill_last" if tokens > 1 or at < request.prompt_tokens else "decode"
        rows.append(
            {
                "req": f"r{request.id}",
                "kind": entry.kind,
                "computed": at,
                "n": tokens,
                "phase": last if entry.yields else "prefill",
            }
        )
        phase = int(Phase.PREFILL if entry.prefill else Phase.DECODE)
        run = open_runs.get(request.id)
        if run is not None and run[1] + run[2] == number and run[4:] == [tokens, phase]:
            run[2] += 1
            continue
        if run is not None:
            served.runs.append(run)
        open_runs[request.id] = [request.id, number, 1, at, tokens, phase]
    preempted = [f"r{request.id}" for request in step.preempted]
    served.geometries.append(geometry)
    served.durations.append(duration)
    served.log.append(
        {"t": "step", "i": number, "reqs": rows, "preempted": preempted, "start_ns": 10 * number}
    )
    served.log.append({"t": "out", "i": number, "end_ns": 10 * number + duration})
