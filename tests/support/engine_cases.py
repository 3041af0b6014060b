"""Random cases for the two forms of the simulated engine: work with shared prefixes, plans, arrivals, settings; and what differs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from semtrace.engine.document import EngineDocument, cost_of, parse_engine
from semtrace.engine.fast.simulate import Program, simulate
from semtrace.engine.log import Detail, detail_tables
from semtrace.engine.prepared import INSTANCE_FCFS, PLAS, RANKED, SESSION_FCFS, Prepared
from semtrace.engine.settings import EngineSettings, SchedulerSettings
from semtrace.engine.step import StepEngine
from semtrace.engine.work import Work
from semtrace.graph.plan import dag
from semtrace.graph.resolve import resolve
from semtrace.replay.arrivals import instances, settle
from semtrace.replay.controller import Controller, VirtualClock, runs_on_backend
from support.graphs import graph, scenario
from support.random_graphs import SHORT, TRIGGERS, random_operation, random_plan, random_scenario

if TYPE_CHECKING:
    from random import Random

    from numpy.typing import NDArray

    from semtrace.engine.fast.simulate import Result
    from semtrace.graph.resolve import Constraints
    from semtrace.records.trace import Trace
    from semtrace.replay.arrivals import Instances
    from support.graphs import Graph


@dataclass(frozen=True)
class Case:
    """All that a run of either engine is given."""

    trace: Trace
    constraints: Constraints
    copies: Instances
    prepared: Prepared


def random_work(rng: Random, trace: Trace, size: int) -> Work:
    """Token strings that begin like each other now and then, as far as the recorded counts allow; in blocks."""
    operations = trace.operations
    runs = runs_on_backend(trace)
    prompt = np.where(runs, operations.ints("prompt_tokens"), 0)
    output = np.where(runs, np.maximum(operations.ints("output_tokens"), 0), 0)
    strings: list[tuple[int, ...]] = []
    share = rng.choice((0.5, 0.7, 1.0))
    known: dict[tuple[int, ...], int] = {}
    keys: list[int] = []
    start = [0]
    for row in range(operations.rows):
        total = int(prompt[row] + output[row])
        shared: tuple[int, ...] = ()
        if strings and rng.random() < share:
            within = [string for string in strings if len(string) <= prompt[row]]
            shared = rng.choice(within[-3:] if within and rng.random() < share else strings)
            shared = shared[: rng.randint(0, len(shared))] if rng.random() > share else shared
        string = (*shared[:total], *(rng.getrandbits(30) for _ in range(total - len(shared))))
        if total:
            strings.append(string)
        full = total // size
        keys += [known.setdefault(string[: (block + 1) * size], len(known)) for block in range(full)]
        start.append(len(keys))
    return Work(
        size,
        prompt,
        output,
        np.array(start, dtype=np.int64),
        np.array(keys, dtype=np.int64),
        len(known),
        {},
        (),
    )


def random_model_graph(rng: Random, tokens: int, tasks: int, spread: int) -> Graph:
    """Like `random_graph`, with prompts and outputs of up to so many tokens; so many tasks arrive in so much time."""
    short: dict[str, Any] = {"tasks": [], "operations": []}
    growth = rng.choice((0, 0, 2))
    for task in range(tasks):
        own = [random_operation(rng, f"t{task}o{at}") for at in range(rng.randint(0, 9))]
        for at, operation in enumerate(own):
            operation["task"] = task
            if "prompt" in operation:
                operation["prompt"] = rng.randint(1, tokens) + growth * len(short["operations"])
                if operation["output"] is not None:
                    operation["output"] = rng.choice((0, 1, 1, rng.randint(1, tokens)))
            if "duration_ns" in operation and rng.random() < 0.3:
                operation["duration_ns"] = rng.randint(0, 60)
            if rng.random() < 0.7:
                operation["session"] = f"session {rng.randint(0, 2)}"
            earlier = [each["name"] for each in own[:at]]
            chosen = rng.sample(earlier, rng.choice((0, 0, min(1, at), min(2, at))))
            operation["after"] = [
                {"source": source, "trigger": rng.choice(TRIGGERS), "lag_ns": rng.choice(SHORT)}
                for source in chosen
            ]
        short["tasks"].append({"arrival_ns": rng.randint(0, spread)})
        if own and rng.random() < 0.5:
            short["tasks"][-1]["answer"] = rng.choice(own)["name"]
        short["operations"] += own
    return graph(short)


def random_scheduler(rng: Random, *, asynchronous: bool = False) -> SchedulerSettings:
    """Settings with every limit often in the way, or with few of them."""
    tight = rng.random() < 0.5
    return SchedulerSettings(
        order=rng.choice(("fcfs", "fcfs", "priority")),
        static=rng.random() < 0.05,
        max_num_seqs=rng.choice((1, 2, 3, 5, 8)) if tight else 64,
        max_num_batched_tokens=rng.choice((1, 2, 4, 7, 16) if tight else (64, 200)),
        max_model_len=rng.choice((1 << 31, 1 << 31, 40)),
        chunked_prefill=rng.random() < 0.75,
        prefix_caching=rng.random() < 0.85,
        long_prefill_token_threshold=rng.choice((0, 1, 3, 8)) if tight else 0,
        threshold_always=rng.random() < 0.3,
        watermark_blocks=rng.choice((0, 0, 0, 1, 2)),
        reserve_full_isl=rng.random() < 0.7,
        asynchronous=asynchronous,
    )


COSTS = (
    {"kind": "linear", "c0_ps": 900, "c_seq_ps": 300, "c_prefill_ps": 150, "c_decode_ps": 777, "c_kv_ps": 13},
    {"kind": "linear", "c0_ps": 2000, "c_seq_ps": 0, "c_prefill_ps": 0, "c_decode_ps": 0, "c_kv_ps": 0},
    {"kind": "linear", "c0_ps": 0, "c_seq_ps": 0, "c_prefill_ps": 1, "c_decode_ps": 10, "c_kv_ps": 40},
    {
        "kind": "linear",
        "c0_ps": 5_000_000,
        "c_seq_ps": 10,
        "c_prefill_ps": 1_000_000,
        "c_decode_ps": 3,
        "c_kv_ps": 7001,
    },
)


def random_document(rng: Random, settings: EngineSettings) -> EngineDocument:
    """A document with a random cost; its other settings are not used."""
    values: dict[str, Any] = {"blocks": settings.blocks, "cost": rng.choice(COSTS)}
    if rng.random() < 0.15:
        values |= {"model": "qwen3-8b", "device": "A100-SXM", "cost": {"kind": "roofline"}}
    return parse_engine(values, path="engine")


def single_requests(
    requests: list[tuple[int, tuple[int, ...], int]],
    settings: EngineSettings,
    *,
    arrivals: dict[str, Any] | None = None,
) -> Case:
    """A run of single requests, each (arrival in ns, tokens of prompt and output, how many of them are prompt)."""
    short = {
        "tasks": [{"arrival_ns": arrival} for arrival, _, _ in requests],
        "operations": [
            {"name": f"r{at}", "task": at, "kind": "llm", "prompt": prompt, "output": len(string) - prompt}
            for at, (_, string, prompt) in enumerate(requests)
        ],
    }
    made = graph(short)
    known: dict[tuple[int, ...], int] = {}
    size = settings.block_size
    keys = [
        [known.setdefault(string[: (block + 1) * size], len(known)) for block in range(len(string) // size)]
        for _, string, _ in requests
    ]
    counts = np.array(
        [(prompt, len(string) - prompt, len(string) // size) for _, string, prompt in requests],
        dtype=np.int64,
    ).reshape(-1, 3)
    start = np.concatenate([[0], np.cumsum(counts[:, 2])])
    flat = np.array([key for each in keys for key in each], dtype=np.int64)
    work = Work(size, counts[:, 0], counts[:, 1], start, flat, len(known), {}, ())
    cost = {"kind": "linear", "c0_ps": 1000, "c_seq_ps": 0, "c_prefill_ps": 0, "c_decode_ps": 0, "c_kv_ps": 0}
    document = parse_engine({"blocks": settings.blocks, "cost": cost}, path="engine")
    copies = instances(
        made.trace, settle(made.trace, scenario({"arrivals": arrivals or {"kind": "recorded"}}))
    )
    prepared = prepare(made.trace, document, settings, work, copies, np.zeros(len(requests), dtype=np.int64))
    return Case(made.trace, resolve(made.trace, dag(made.work)), copies, prepared)


def random_pressure_case(rng: Random, *, asynchronous: bool = False) -> Case:
    """Requests that wait for memory while others make what they begin with: they are admitted as blocks fill."""
    size = rng.choice((2, 4, 8))
    grown = tuple(range(rng.randint(3, 7) * size))
    requests = [(0, grown, rng.randint(1, 2 * size))]
    for at in range(rng.randint(1, 2)):  # they fill the memory, and hardly grow
        filler = rng.randint(1, 4) * size - rng.randint(0, size - 1)
        requests.append((0, tuple(range(1000 * at + 1000, 1000 * at + 1000 + filler + 2 * size)), filler))
    for at in range(rng.randint(1, 4)):
        shared = rng.randint(1, len(grown))
        own = rng.randint(1, size)
        string = (*grown[:shared], *range(9000 + 100 * at, 9000 + 100 * at + own + rng.randint(1, 9)))
        requests.append((rng.randint(1, 20), string, shared + own))
    widest = max(-(-len(string) // size) for _, string, _ in requests)
    held = sum(-(-prompt // size) for _, _, prompt in requests)
    scheduler = SchedulerSettings(
        order=rng.choice(("fcfs", "fcfs", "priority")),
        max_num_batched_tokens=rng.choice((64, 200)),
        chunked_prefill=rng.random() < 0.8,
        reserve_full_isl=rng.random() < 0.8,
        watermark_blocks=rng.choice((0, 0, 1)),
        asynchronous=asynchronous,
    )
    case = single_requests(requests, EngineSettings(scheduler, widest + 1 + rng.randint(0, held), size))
    ranks = [rng.randint(-1, 1) for _ in requests]
    case.prepared.__dict__.update(rule=RANKED, rank=np.array(ranks, dtype=np.int64))
    return case


def prepare(
    trace: Trace,
    document: EngineDocument,
    settings: EngineSettings,
    work: Work,
    copies: Instances,
    group: NDArray[np.int64],
) -> Prepared:
    """A trace as the engine sees it, with settings and work that no document gave."""
    starts = trace.offsets("operations")
    sizes = np.diff(starts)[copies.task]
    first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    cost = cost_of(document, settings)
    return Prepared(
        trace,
        document,
        settings,
        cost,
        work,
        group.astype(np.int64),
        first,
        starts[copies.task].astype(np.int64),
    )


def random_case(rng: Random, *, asynchronous: bool = False) -> Case:
    """A run of random work on random servers."""
    tokens = rng.choice((3, 8, 30, 60))
    made = random_model_graph(rng, tokens, rng.choice((1, 2, 4, 10, 20)), rng.choice((0, 40, 400)))
    trace = made.trace
    size = rng.choice((1, 2, 3, 4, 8))
    scheduler = random_scheduler(rng, asynchronous=asynchronous)
    settings = EngineSettings(
        scheduler,
        blocks=rng.choice((6, 10, 16, 30, 45, 60, 200)),
        block_size=size,
        servers=rng.choice((1, 1, 2, 3)),
        routing=rng.choice(("round_robin", "least_loaded", "prefix_aware", "session_sticky")),
    )
    copies = instances(trace, settle(trace, random_scenario(rng, made)))
    work = random_work(rng, trace, size)
    group = rng.choice((copies.copy, np.arange(len(copies.task)), np.zeros(len(copies.task), dtype=np.int64)))
    prepared = prepare(trace, random_document(rng, settings), settings, work, copies, group)
    if scheduler.order == "priority":
        rule = rng.choice((PLAS, RANKED, INSTANCE_FCFS, SESSION_FCFS))
        ranks = [rng.randint(-2, 2) for _ in range(trace.operations.rows)]
        prepared.__dict__.update(rule=rule, rank=np.array(ranks, dtype=np.int64))
    return Case(trace, resolve(trace, random_plan(rng, made)), copies, prepared)


def by_steps(case: Case, *, detail: bool = True) -> tuple[Controller, StepEngine]:
    """The case on the step engine."""
    engine = StepEngine(case.prepared, Detail(steps=detail))
    controller = Controller(case.trace, case.constraints, case.copies, engine, VirtualClock())
    controller.run()
    return controller, engine


def fast(case: Case, *, detail: bool = True, compiled: bool = False) -> Result:
    """The case on the fast engine."""
    prepared = case.prepared
    program = Program(prepared.group, prepared.oversized, prepared.rank, prepared.rule)
    return simulate(
        case.trace,
        case.constraints,
        case.copies,
        prepared.work,
        prepared.settings,
        prepared.cost,
        program,
        detail=detail,
        compiled=compiled,
    )


def difference(case: Case, result: Result) -> str | None:
    """The first thing in which the step engine and a result differ."""
    controller, engine = by_steps(case)
    pairs: list[tuple[str, list[int], list[int]]] = [
        ("arrival_ns", controller.arrival_ns, result.arrival_ns.tolist()),
        *((name, values, result.columns[name].tolist()) for name, values in controller.columns.items()),
        ("outcome", [int(each) for each in controller.outcome], result.outcome.tolist()),
    ]
    wanted, made = engine.detail(), detail_tables(result.steps, result.step_runs)
    pairs += [
        (f"{table}.{name}", wanted[table][name].to_pylist(), made[table][name].to_pylist())
        for table in ("steps", "step_runs")
        for name in wanted[table].column_names
    ]
    for name, values, others in sorted(pairs, key=lambda pair: not pair[0].startswith("steps.")):
        if values != others:
            if len(values) != len(others):
                return f"{name}: {len(values)} rows, fast {len(others)}: {values[:20]}, {others[:20]}"
            at = next(at for at, (one, two) in enumerate(zip(values, others, strict=True)) if one != two)
            return f"{name}[{at}]: {values[at]}, fast {others[at]}"
    return None
