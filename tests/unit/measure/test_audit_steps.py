"""Each rule on steps is tripped by an engine or a record that breaks it, and by no other; sound engines trip none."""

from __future__ import annotations

from random import Random
from typing import Any, get_args

import numpy as np
import pytest
from engine_runs import base, found, tampered
from spec_runs import blocks

from semtrace.engine.document import SchedulerDocument, parse_engine, settings_of
from semtrace.engine.log import Log
from semtrace.engine.prepared import Prepared
from semtrace.engine.scheduler import Entry, Scheduler
from semtrace.engine.step import StepEngine
from semtrace.engine.steplog_runs import _yield_loop, lay_runs
from semtrace.errors import ReplayError
from semtrace.graph.plan import dag
from semtrace.measure.audit import audit
from semtrace.measure.recorded_steps import RecordedSteps, _walk
from semtrace.measure.report import RULES
from semtrace.measure.slots import Slots
from semtrace.records.enums import Phase
from semtrace.replay.run import replay
from semtrace.replay.scenario import Scenario
from support.engine_cases import COSTS, random_model_graph
from support.graphs import graph
from support.lifecycle import Ran, document

EXAMPLES = [example for example in blocks("audit.md", "example") if example.get("of") == "steps"]
STEP_RULES = {rule for rule in RULES if "ST-AUD-060" <= rule <= "ST-AUD-070"}


@pytest.mark.parametrize("example", EXAMPLES, ids=[str(at) for at in range(len(EXAMPLES))])
def test_examples_of_the_spec(example):
    assert set(example) <= {"of", "steps", "step_runs", "events", "settings", "without", "finds"}
    ran = base("steps")
    assert found(ran) == {}
    assert sorted(found(ran, tampered(ran, example))) == example["finds"]


def test_every_rule_has_an_example():
    assert {rule for example in EXAMPLES for rule in example["finds"]} == STEP_RULES


def test_the_run_of_the_examples_is_judged_by_every_rule():
    report = audit(base("steps").trace, base("steps").execution)
    assert {rule.requirement for rule in report.rules if rule.judged} >= STEP_RULES
    assert report.clean


# Engines that break a rule.

OPERATIONS = [
    {"name": "a", "kind": "llm", "prompt": 30, "output": 9, "content": "x"},
    {"name": "b", "kind": "llm", "prompt": 12, "output": 14, "content": "y"},
    {"name": "c", "kind": "llm", "prompt": 9, "output": 5, "content": "x"},
    {"name": "t", "duration_ns": 40, "after": ["a"]},
    {"name": "d", "kind": "llm", "prompt": 36, "output": 3, "content": "x", "after": ["t"]},
]
ENGINE = {
    "blocks": 14,
    "block_size": 4,
    "scheduler": {"max_num_batched_tokens": 16, "max_num_seqs": 2},
    "cost": [10, 2, 1, 3, 1],
}


def run(operations: list[dict[str, Any]] = OPERATIONS, **engine: Any) -> Ran:
    made = graph({"operations": operations})
    settings = {"backend": {"name": "engine", "settings": document({**ENGINE, **engine})}}
    scenario = Scenario.parse(settings, path="scenario")
    execution = replay(made.trace, dag(made.work), scenario, detail=("steps",), simulator="step")
    return Ran(made.trace, execution, made.rows)


def test_the_sound_engine_preempts_hits_and_is_clean():
    ran = run()
    assert found(ran) == {}
    assert ran.execution.events.ints("preemptions").max() > 0
    assert ran.execution.events.ints("cached_tokens").max() > 0
    assert found(run(scheduler={"async_scheduling": True})) == {}


def broken(monkeypatch: pytest.MonkeyPatch, name: str) -> Ran:
    """A run of an engine with one mistake in it."""
    schedule, columns, entry, log_step = Scheduler.schedule, StepEngine._columns, Log.entry, Log.step
    fill, step_ns, init = StepEngine._fill, Prepared.step_ns, StepEngine.__init__
    options: dict[str, Any] = {}
    operations = OPERATIONS
    if name == "a step takes longer than it costs":
        monkeypatch.setattr(Prepared, "step_ns", lambda self, step: step_ns(self, step) + 1)
    elif name == "two steps in flight":

        def two(self: StepEngine, *given: Any, **named: Any) -> None:
            init(self, *given, **named)
            self._depth = 2

        monkeypatch.setattr(StepEngine, "__init__", two)
    elif name == "an event has no runs":
        monkeypatch.setattr(Log, "entry", lambda self, *given: None if given[0] == 2 else entry(self, *given))
    elif name == "a step counts a request too many":
        monkeypatch.setattr(
            Log,
            "step",
            lambda self, *given: log_step(self, *given[:4], given[4] + (given[1] == 0), given[5]),
        )
    elif name in {"more tokens than allowed", "more requests than allowed"}:
        limits = {
            "max_num_batched_tokens": 16 + 8 * (name == "more tokens than allowed"),
            "max_num_seqs": 2 + (name == "more requests than allowed"),
        }
        settings = settings_of(parse_engine(document({**ENGINE, "scheduler": limits}), path="engine"))

        def generous(self: Scheduler) -> Any:
            self.settings = settings.scheduler
            return schedule(self)

        monkeypatch.setattr(Scheduler, "schedule", generous)
        options = {"blocks": 40}
    elif name == "a token is left out":

        def skipping(self: Scheduler) -> Any:
            made = schedule(self)
            for each in made.entries:
                if each.kind == "resumed" and not each.yields:
                    each.request.computed += 1
            return made

        monkeypatch.setattr(Scheduler, "schedule", skipping)
        options = {"scheduler": {**ENGINE["scheduler"], "long_prefill_token_threshold": 3}}
    elif name == "decode is called prefill":

        def called(self: Scheduler) -> Any:
            made = schedule(self)
            made.entries = [Entry(*each[:6], prefill=True, yields=each.yields) for each in made.entries]
            return made

        monkeypatch.setattr(Scheduler, "schedule", called)
    elif name == "a first token is late":

        def late(self: StepEngine, life: Any, now_ns: int) -> dict[str, int | None]:
            found = columns(self, life, now_ns)
            return {**found, "first_token_ns": min(found["first_token_ns"] + 1, now_ns)}

        monkeypatch.setattr(StepEngine, "_columns", late)
    elif name == "recomputation is not counted":

        def once(self: StepEngine, life: Any, now_ns: int) -> dict[str, int | None]:
            found = columns(self, life, now_ns)
            return {**found, "computed_prompt_tokens": found["prompt_tokens"] - found["cached_tokens"]}

        monkeypatch.setattr(StepEngine, "_columns", once)
    elif name == "a server waits for the other":

        def shy(self: StepEngine, server: Any, now_ns: int) -> None:
            if server.index == 1 or not self._servers[1].in_flight:
                fill(self, server, now_ns)

        monkeypatch.setattr(StepEngine, "_fill", shy)
        options = {"servers": 2, "blocks": 40}
    return run(operations, **options)


BROKEN = {
    "a step takes longer than it costs": "ST-AUD-069",
    "two steps in flight": "ST-AUD-061",
    "an event has no runs": "ST-AUD-062",
    "a step counts a request too many": "ST-AUD-063",
    "more tokens than allowed": "ST-AUD-064",
    "more requests than allowed": "ST-AUD-064",
    "a token is left out": "ST-AUD-065",
    "decode is called prefill": "ST-AUD-066",
    "a first token is late": "ST-AUD-067",
    "recomputation is not counted": "ST-AUD-068",
    "a server waits for the other": "ST-AUD-070",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_engine_is_caught_by_its_rule_alone(name, monkeypatch):
    ran = broken(monkeypatch, name)
    assert set(found(ran)) == {BROKEN[name]}


# Records that were changed.

TAMPERED: dict[str, tuple[dict[str, Any], str]] = {
    "no such server": ({"events": {"c": {"server": 3}}}, "ST-AUD-060"),
    "a step that starts before the one before ends": ({"steps": {"3": {"start_ns": 1}}}, "ST-AUD-061"),
    "a run goes on after the last step": ({"step_runs": {"-1": {"count": 900}}}, "ST-AUD-062"),
    "no tokens": ({"step_runs": {"0": {"tokens_per_step": 0}}}, "ST-AUD-062"),
    "fewer requests": ({"steps": {"1": {"requests": 1}}}, "ST-AUD-063"),
    "begins with other tokens than were found": ({"events": {"d": {"cached_tokens": 24}}}, "ST-AUD-065"),
    "not preempted": ({"events": {"b": {"preemptions": 0, "preempted_ns": 0}}}, "ST-AUD-065"),
    "ends early": ({"without": {"step_runs": [-1]}}, "ST-AUD-065"),
    "scheduled late": ({"events": {"d": {"scheduled_ns": None}}}, "ST-AUD-067"),
    "no first token": ({"events": {"d": {"first_token_ns": None}}}, "ST-AUD-067"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_changed_record_is_caught_by_its_rule_alone(name):
    change, rule = TAMPERED[name]
    ran = run()
    runs = ran.execution["step_runs"].rows
    change = {
        table: {str(int(key) % runs) if table == "step_runs" else key: cells for key, cells in rows.items()}
        if table != "without"
        else {key: [row % runs for row in left] for key, left in rows.items()}
        for table, rows in change.items()
    }
    assert set(found(ran, tampered(ran, change))) == {rule}


def test_settings_that_are_no_engine_are_told():
    ran = base("steps")
    settings = {"block_size": 4, "cost": [10, 0, 1, 1, 0], "blocks": None}
    findings = found(ran, tampered(ran, {"settings": settings}))
    assert set(findings) == {"ST-AUD-060"}
    assert "exactly one of blocks, kv_tokens and kv_bytes" in findings["ST-AUD-060"]


def test_another_backend_is_judged_by_what_holds_for_all():
    ran = base("steps")
    header = ran.execution.header
    backend = header.backend.model_copy(update={"name": "another"})
    scenario = {**header.scenario, "backend": {"name": "another", "settings": header.backend.settings}}
    other = type(ran.execution).from_arrow(
        header.model_copy(update={"backend": backend, "scenario": scenario}),
        {name: table.data for name, table in ran.execution.tables.items()},
    )
    report = audit(ran.trace, other)
    assert report.clean
    assert {rule.requirement for rule in report.rules if rule.judged} & STEP_RULES == {
        "ST-AUD-062", "ST-AUD-063", "ST-AUD-065", "ST-AUD-066", "ST-AUD-068",
    }  # fmt: skip
    assert report.rule("ST-AUD-069").not_judged


def test_a_run_may_go_on_over_a_preemption():
    """ST-AUD-066 and ST-COST-043: 28 tokens in steps of 3, the last one alone; preempted then, and admitted again at once with all 28 found."""
    slot, position, end, each = [0, 0, 0], [0, 27, 29], [27, 29, 33], [3, 1, 1]
    made: list[Any] = [[0, 0, 0] for _ in range(4)]
    _walk(slot, position, end, each, [False, False, True], [28], *made)
    assert made == [[0, 0, 0], [0, 1, 0], [0, 2, 1], [0, 0, 0]]
    out: Any = [0, 0, 0]
    tokens = [one - two for one, two in zip(end, position, strict=True)]
    _yield_loop(slot, position, tokens, each, [False, False, True], [28], [6], out)
    assert out == [0, 2, 1]
    arrays = (np.array(values, dtype=np.int64) for values in ([0, 9, 11], [9, 11, 15], position, each))
    first, last, start, per_step = arrays
    decode, yields = np.array([False, False, True]), np.array(out, dtype=np.int64)
    geometry = lay_runs(15, first, last, start=start, tokens=per_step, decode=decode, yields=yields)
    assert geometry[:, 3].tolist() == [0] * 9 + [1] * 6


# Sound engines.

ORDERS = get_args(SchedulerDocument.model_fields["order"].annotation)


def random_engine(rng: Random) -> dict[str, Any]:
    scheduler = {
        "order": rng.choice(ORDERS),
        "batching": "static" if rng.random() < 0.1 else "continuous",
        "max_num_seqs": rng.choice((1, 2, 3, 5, 64)),
        "max_num_batched_tokens": rng.choice((4, 7, 64, 200)),
        "chunked_prefill": rng.random() < 0.75,
        "prefix_caching": rng.random() < 0.85,
        "long_prefill_token_threshold": rng.choice((0, 0, 3, 8)),
        "watermark": rng.choice((0, 0, 0.1)),
        "reserve_full_isl": rng.random() < 0.7,
        "async_scheduling": rng.random() < 0.3,
    }
    made = {
        "blocks": rng.choice((16, 30, 60, 200)),
        "block_size": rng.choice((2, 3, 4, 8)),
        "servers": rng.choice((1, 1, 2, 3)),
        "routing": rng.choice(("round_robin", "least_loaded", "prefix_aware", "session_sticky")),
        "scheduler": scheduler,
        "cost": rng.choice(COSTS),
    }
    if rng.random() < 0.2:
        made |= {"model": "qwen3-8b", "device": "A100-SXM", "cost": {"kind": "roofline"}}
    return made


@pytest.mark.parametrize("simulator", ["fast", "step"])
def test_sound_engines_are_clean(simulator):
    """Random work under random settings: everything is judged, and nothing found."""
    ran = preempted = 0
    for seed in range(30):
        rng = Random(seed)
        made = random_model_graph(rng, rng.choice((8, 30)), rng.choice((4, 10, 20)), rng.choice((0, 400)))
        settings = {
            "backend": {"name": "engine", "settings": random_engine(rng)},
            "salt": rng.choice(("copy", "none")),
        }
        try:
            execution = replay(
                made.trace,
                dag(made.work),
                Scenario.parse({**settings, "copies": 2}, path="scenario"),
                detail=("steps",),
                simulator=simulator,
            )
        except ReplayError:
            continue  # an operation that no server can hold
        report = audit(made.trace, execution)
        assert report.findings == [], seed
        assert not any(rule.not_judged for rule in report.rules if rule.requirement in STEP_RULES)
        ran += execution["steps"].rows > 0
        preempted += execution.events.ints("preemptions").max(initial=0) > 0
    assert ran > 10
    assert preempted > 3


def test_phases_and_positions_are_enough_to_tell_the_geometry():
    """The geometry by runs has the requests, decodes and yields that there were."""
    ran = run()
    steps = RecordedSteps.of(Slots.of(ran.trace, ran.execution))
    runs = ran.execution["step_runs"]
    assert steps.geometry[:, 0].tolist() == ran.execution["steps"].ints("requests").tolist()
    decode = runs.ints("phase") == Phase.DECODE
    assert steps.geometry[:, 2].sum() == runs.ints("count")[decode].sum()
    made = ran.execution.events.ints("output_tokens")
    assert steps.geometry[:, 3].sum() == made[made > 0].sum()
    assert np.all(steps.geometry >= 0)
