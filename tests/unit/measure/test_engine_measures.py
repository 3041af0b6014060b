"""Measures of requests, steps and memory: those of the spec, those of plain loops; what is not recorded is said to be absent."""

from __future__ import annotations

from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import pytest
from engine_runs import DETAIL, base, tampered
from spec_runs import blocks, spec_run
from test_audit_blocks import ENGINE, TIERED, agents, run
from test_measure_spec import holds

from semtrace.engine.contexts import Structure
from semtrace.graph.plan import dag
from semtrace.measure.critical import critical_calls
from semtrace.measure.engine_measures import EngineMeasures
from semtrace.measure.kv_measures import range_minima
from semtrace.measure.metrics import measure
from semtrace.measure.slots import Slots
from semtrace.records.enums import BlockAction, Phase, Tier
from semtrace.replay.run import replay
from semtrace.replay.scenario import Scenario
from support.graphs import graph
from support.lifecycle import TINY, Ran, document, run_engine

EXAMPLES = [example for example in blocks("measures.md", "example") if "of" in example]
STEP_MEASURES = {
    "recompute",
    "kv_byte_seconds.device",
    "work",
    "batches",
    "co_batching",
    "critical_inversions",
}


def engine_of(ran: Ran) -> dict[str, Any]:
    return measure(ran.trace, ran.execution).as_dict()["engine"]


@pytest.mark.parametrize("example", EXAMPLES, ids=[str(at) for at in range(len(EXAMPLES))])
def test_measures_are_those_of_the_spec(example):
    assert set(example) == {"of", "gives"}
    holds(example["gives"], engine_of(base(example["of"])))


def absent(values: dict[str, Any]) -> dict[str, str]:
    return {each["measure"]: each["reason"] for each in values["absent"]}


def test_what_is_not_recorded_is_absent_with_the_reason():
    ran = run_engine(
        [{"name": "a", "kind": "llm", "prompt": 7, "output": 3}],
        {"blocks": 9, "cost": [10, 0, 1, 1, 0]},
        detail=(),
    )
    values = engine_of(ran)
    assert {
        name for name, reason in absent(values).items() if reason == "steps were not recorded"
    } == STEP_MEASURES
    assert absent(values)["moved_bytes"] == "transfers were not recorded"
    assert absent(values)["idle_kv_byte_seconds"] == "blocks were not recorded"
    assert not set(values) & {name.split(".")[0] for name in absent(values)}
    assert values["prefill_factor"] == {"part": 7, "whole": 7, "value": 1, "unknown": 0}


def test_a_run_on_no_engine_says_so_and_counts_nothing_as_0():
    made = spec_run()
    values = measure(made.trace, made.execution).as_dict()["engine"]
    assert values["calls"] == 4
    assert values["prefill_factor"] == {"part": 0, "whole": 0, "value": None, "unknown": 4}
    assert values["preemptions"] == {"sum": 0, "unknown": 0}
    assert values["preempted_ns"] == {"sum": None, "unknown": 4}
    assert values["residence_ns"]["count"] == 4
    assert set(absent(values)) == STEP_MEASURES | {"moved_bytes", "idle_kv_byte_seconds"}


def test_an_engine_without_model_has_no_bytes():
    engine = {"blocks": 9, "cost": [10, 0, 1, 1, 0], "model": None}
    ran = run_engine([{"name": "a", "kind": "llm", "prompt": 7, "output": 3}], engine, detail=("steps",))
    values = engine_of(ran)
    assert "kv_byte_seconds" not in values
    assert "no model" in absent(values)["kv_byte_seconds.device"]
    assert absent(values)["work"] == "the engine names no model"
    assert values["recompute"] == {"preemption": 0, "eviction": 0}


@pytest.mark.parametrize(
    ("change", "gone"),
    [
        ({"step_runs": {"0": {"event": 99}}}, STEP_MEASURES),
        ({"steps": {"1": {"index": 7}}}, STEP_MEASURES),
        ({"blocks": {"0": {"event": 99}}}, {"idle_kv_byte_seconds", "kv_byte_seconds.host"}),
        ({"blocks": {"0": {"first_block": None}}}, {"idle_kv_byte_seconds", "kv_byte_seconds.host"}),
        (
            {"transfers": {"0": {"end_ns": 0}}},
            {"moved_bytes", "idle_kv_byte_seconds", "kv_byte_seconds.host"},
        ),
        ({"step_runs": {"0": {"count": 900}}}, STEP_MEASURES),
    ],
)
def test_tables_that_contradict_themselves_are_not_measured(change, gone):
    ran = base("blocks")
    values = measure(ran.trace, tampered(ran, change)).as_dict()["engine"]
    assert set(absent(values)) - {"batches.matrix_ns"} == gone


# Against plain loops over the rows.


def plain(ran: Ran) -> dict[str, Any]:
    """The same measures, as slowly as they are defined."""
    events, steps, runs = ran.rows("events"), ran.rows("steps"), ran.rows("step_runs")
    settings = ran.execution.header.backend.settings
    size, caching = settings["block_size"], settings["scheduler"]["prefix_caching"]
    by_server: dict[int, list[dict[str, Any]]] = {}
    for step in steps:
        by_server.setdefault(step["server"], []).append(step)
    preempted = 0
    had: dict[int, int] = {}
    for each in runs:
        end = each["start_position"] + each["count"] * each["tokens_per_step"]
        for token in range(each["start_position"], end):
            preempted += token < had.get(each["event"], 0) and each["phase"] == Phase.PREFILL
        had[each["event"]] = max(had.get(each["event"], 0), end)
    held = sum(
        (settings["blocks"] - 1 - step["free_blocks"]) * (step["end_ns"] - step["start_ns"]) for step in steps
    )
    until = max(event["finished_ns"] for event in events)
    idle = host = 0
    rows = ran.rows("blocks")
    calls: dict[tuple[int, int], int] = {}
    others: dict[tuple[int, int], int] = {}
    kept: set[tuple[int, int]] = set()
    times = sorted({row["time_ns"] for row in rows} | {until})
    for at, now in enumerate(times[:-1]):
        for row in rows:
            if row["time_ns"] != now:
                continue
            for block in range(row["first_block"], row["first_block"] + row["blocks"]):
                place = (row["server"], block)
                if row["tier"] == Tier.DEVICE:
                    change = {
                        BlockAction.ALLOCATE: 1,
                        BlockAction.HIT: 1,
                        BlockAction.FREE: -1,
                        BlockAction.DROP: -1,
                    }
                    whose = calls if row["reason"] is None else others
                    whose[place] = whose.get(place, 0) + change.get(row["action"], 0)
                elif row["tier"] == Tier.HOST and row["action"] == BlockAction.ALLOCATE:
                    kept.add(place)
                elif row["tier"] == Tier.HOST and row["action"] in {BlockAction.EVICT, BlockAction.DROP}:
                    kept.discard(place)
        lasts = max(min(times[at + 1], until) - now, 0)
        idle += lasts * sum(count > 0 and calls.get(place, 0) == 0 for place, count in others.items())
        host += lasts * len(kept)
    assert caching
    nbytes = size * 4
    return {
        "recompute": preempted,
        "device": float(Fraction(held * nbytes, 10**9)),
        "idle": float(Fraction(idle * nbytes, 10**9)),
        "host": float(Fraction(host * nbytes, 10**9)),
        "rows": max(step["tokens"] for step in steps),
    }


@pytest.mark.parametrize("seed", range(4))
def test_they_are_those_of_plain_loops(seed):
    rng = Random(seed)
    short = [
        {
            "name": f"o{at}",
            "kind": "llm",
            "prompt": rng.randint(5, 40),
            "output": rng.randint(2, 12),
            "content": rng.choice("xy"),
            "session": rng.choice("st"),
        }
        for at in range(9)
    ]
    ran = run(short, **{**TIERED, "blocks": 18, "tiers": {"host": {"blocks": 12}}})
    values, wanted = engine_of(ran), plain(ran)
    assert values["recompute"]["preemption"] == wanted["recompute"]
    assert values["kv_byte_seconds"]["device"] == pytest.approx(wanted["device"], rel=1e-15)
    assert values["kv_byte_seconds"]["host"] == pytest.approx(wanted["host"], rel=1e-15)
    assert values["idle_kv_byte_seconds"] == pytest.approx(wanted["idle"], rel=1e-15)
    assert values["batches"]["rows"]["max"] == wanted["rows"]


def test_an_evicted_prefix_is_computed_again():
    """Of `a`, which ended, `b` takes the room; `c` begins as `a` did, and finds 1 of 2 blocks that it may find."""
    operations = [
        {"name": "a", "kind": "llm", "prompt": 8, "output": 1, "content": "x"},
        {"name": "b", "kind": "llm", "prompt": 16, "output": 1, "content": "y", "after": ["a"]},
        {"name": "c", "kind": "llm", "prompt": 12, "output": 1, "content": "x", "after": ["b"]},
    ]
    ran = run_engine(operations, {"blocks": 6, "block_size": 4, "cost": [10, 0, 1, 1, 0]}, detail=("steps",))
    assert ran.event("c")["cached_tokens"] == 4
    assert engine_of(ran)["recompute"] == {"preemption": 0, "eviction": 4}


def test_large_batches_by_stage_with_a_roofline():
    """Three steps: 300 rows of stage `wide`, then one row each; matrix time by hand from the device's figures."""
    operations = [
        {"name": "a", "kind": "llm", "prompt": 300, "output": 1, "stage": "wide"},
        {"name": "b", "kind": "llm", "prompt": 1, "output": 2, "stage": "narrow", "after": ["a"]},
    ]
    device = {"name": "d", "bf16_flops": 10**12, "memory_bytes_per_s": 10**12, "memory_bytes": 1}
    settings = document(
        {"blocks": 200, "block_size": 4, "cost": [10, 0, 1, 1, 0], "device": device, "model": TINY}
    )
    made = graph({"operations": operations, "stages": [{"name": "wide"}, {"name": "narrow"}]})
    scenario = Scenario.parse({"backend": {"name": "engine", "settings": settings}}, path="s")
    execution = replay(made.trace, dag(made.work), scenario, detail=("steps",))
    values = measure(made.trace, execution).as_dict()["engine"]["batches"]

    def products(rows: int) -> float:
        shapes = ((8, 3), (1, 8), (8, 16), (8, 8))
        layer = sum(max(2 * a * b * rows / 1000, 2 * (a * b + (a + b) * rows) / 1000) for a, b in shapes)
        return layer + max(2 * 8 * 8 / 1000, 2 * 8 * 8 / 1000)

    share = products(300) / (products(300) + 2 * products(1))
    assert values["large_matrix_share"] == pytest.approx(share)
    assert values["large_time"] == {"part": 310, "whole": 332, "value": 310 / 332, "unknown": 0}
    wide, narrow = values["stages"]
    assert (wide["name"], wide["large_steps"], wide["rows"]["count"]) == ("wide", 1, 1)
    assert (narrow["name"], narrow["large_steps"], narrow["large_matrix_share"]) == ("narrow", 0, 0)


def test_critical_calls_are_those_of_a_plain_loop():
    seen = set()
    for seed in range(4):
        made = agents(Random(seed))
        engine = document({**ENGINE, "blocks": 60})
        scenario = Scenario.parse(
            {"backend": {"name": "engine", "settings": engine}, "copies": 2}, path="scenario"
        )
        slots = Slots.of(made.trace, replay(made.trace, dag(made.work), scenario))
        path, critical = Structure(slots.trace).path, critical_calls(slots)
        for slot in range(slots.count):
            left = [
                path[slots.operation[each]]
                for each in range(slots.count)
                if not slots.fixed[each]
                and slots.instance[each] == slots.instance[slot]
                and slots.finished[each] > slots.submitted[slot]
            ]
            wanted = not slots.fixed[slot] and path[slots.operation[slot]] >= max(left)
            assert critical[slot] == wanted
            seen.add(bool(wanted))
    assert seen == {True, False}


def test_least_values_of_ranges():
    rng = np.random.default_rng(3)
    values = rng.integers(0, 100, 50)
    first = rng.integers(0, 50, 200)
    last = np.minimum(first + rng.integers(-2, 30, 200), 50)
    found = range_minima(values, first, last)
    for low, high, least in zip(first, last, found, strict=True):
        assert least == (values[low:high].min() if high > low else np.iinfo(np.int64).max)


def test_the_engine_of_a_report_is_that_of_the_slots():
    ran = base("engine")
    assert set(DETAIL) == {"engine", "steps", "blocks"}
    assert EngineMeasures.of(Slots.of(ran.trace, ran.execution)).as_dict() == engine_of(ran)
