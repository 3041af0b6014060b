"""Each rule on blocks, transfers and decisions is tripped by what breaks it, and by no other; sound engines trip none.

Most are tripped by the examples of the spec, which change a record; here engines and policies break them.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from engine_runs import base, found, tampered
from spec_runs import blocks

from semtrace.engine import links
from semtrace.engine.log import Log
from semtrace.engine.mechanism import Mechanism
from semtrace.engine.scheduler import Scheduler
from semtrace.engine.tiers import MemoryTier
from semtrace.errors import ReplayError
from semtrace.graph.plan import dag
from semtrace.measure.audit import audit
from semtrace.measure.audit_transfers import overfull
from semtrace.measure.report import RULES
from semtrace.policies.interface import CallReady, Keep, Policy, Question, Reserve
from semtrace.policies.keep import KeepForTools
from semtrace.policies.registry import policy_names
from semtrace.replay.run import replay
from semtrace.replay.scenario import Scenario
from support.graphs import Graph, graph
from support.lifecycle import DETAIL, TINY, Ran, document, run_engine
from support.scripted import Scripted, installed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

EXAMPLES = [example for example in blocks("audit.md", "example") if example.get("of") == "blocks"]
BLOCK_RULES = {rule for rule in RULES if rule >= "ST-AUD-071"}
LINK = {"out_bytes_per_s": 10**9, "in_bytes_per_s": 10**9, "latency_ns": 2}


@pytest.mark.parametrize("example", EXAMPLES, ids=[str(at) for at in range(len(EXAMPLES))])
def test_examples_of_the_spec(example):
    tables = {"steps", "step_runs", "events", "blocks", "transfers", "decisions"}
    assert set(example) <= {"of", "settings", "without", "finds", *tables}
    ran = base("blocks")
    assert found(ran) == {}
    assert sorted(found(ran, tampered(ran, example))) == example["finds"]


def test_the_run_of_the_examples_is_judged_by_every_rule_but_those_on_pins():
    report = audit(base("blocks").trace, base("blocks").execution)
    judged = {rule.requirement for rule in report.rules if rule.judged}
    assert judged & BLOCK_RULES == BLOCK_RULES - {"ST-AUD-085", "ST-AUD-086"}
    assert report.clean


# Engines that break a rule.

AGENT = [
    {"name": "a", "kind": "llm", "prompt": 30, "output": 9, "content": "x", "session": "s"},
    {"name": "b", "kind": "llm", "prompt": 12, "output": 14, "content": "y"},
    {"name": "c", "kind": "llm", "prompt": 9, "output": 5, "content": "x"},
    {"name": "t", "duration_ns": 40, "after": ["a"]},
    {"name": "d", "kind": "llm", "prompt": 42, "output": 3, "content": "x", "session": "s", "after": ["t"]},
]
ENGINE = {
    "blocks": 16,
    "block_size": 4,
    "scheduler": {"max_num_batched_tokens": 16, "max_num_seqs": 3},
    "cost": [10, 2, 1, 3, 1],
}
TIERED = {"policy": {"name": "offload-lru"}, "tiers": {"host": {"blocks": 30}}, "links": {"host": LINK}}


def run(operations: list[dict[str, Any]] = AGENT, **engine: Any) -> Ran:
    return run_engine(operations, {**ENGINE, **engine})


@pytest.mark.parametrize("engine", [{}, TIERED, {"policy": {"name": "keep"}}])
def test_the_sound_engine_is_clean(engine):
    assert found(run(**engine)) == {}


def test_a_block_that_is_never_given_back(monkeypatch):
    free = Scheduler._free

    def leaking(self: Scheduler, request: Any) -> None:
        if request.outputs == request.max_tokens:
            del request.blocks[-1:]
        free(self, request)

    monkeypatch.setattr(Scheduler, "_free", leaking)
    assert set(found(run(blocks=60))) == {"ST-AUD-074"}


@pytest.mark.parametrize("more", [-1, 1])
def test_a_block_too_few_or_too_many(more, monkeypatch):
    held = Scheduler._held
    monkeypatch.setattr(Scheduler, "_held", lambda self, *given: held(self, *given) + more)
    off = {**ENGINE["scheduler"], "prefix_caching": False}
    assert set(found(run(blocks=60, scheduler=off))) == {"ST-AUD-076"}


def test_free_blocks_that_are_held(monkeypatch):
    step = Log.step
    monkeypatch.setattr(Log, "step", lambda self, *given: step(self, *given[:5], given[5] + 1))
    assert set(found(run(blocks=60))) == {"ST-AUD-075"}


def test_a_hit_of_other_content(monkeypatch):
    """A scheduler that mixes up the blocks that it finds."""
    find = Scheduler.find
    monkeypatch.setattr(Scheduler, "find", lambda self, request: find(self, request)[::-1])
    assert set(found(run(blocks=60))) == {"ST-AUD-078"}


def test_a_hit_of_a_block_that_is_not_computed(monkeypatch):
    """ST-AUD-079: a scheduler that lets a block be found when its first token is computed."""
    register = Scheduler._register

    def early(self: Scheduler, request: Any, tokens: int) -> None:
        full = min(-(-tokens // self.block_size), len(request.keys), len(request.blocks))
        register(self, request, full * self.block_size)

    monkeypatch.setattr(Scheduler, "_register", early)
    operations = [
        {"name": "a", "kind": "llm", "prompt": 30, "output": 2, "content": "x"},
        {"name": "c", "kind": "llm", "prompt": 29, "output": 2, "content": "x"},
    ]
    scheduler = {"max_num_batched_tokens": 15, "max_num_seqs": 3, "long_prefill_token_threshold": 10}
    assert set(found(run(operations, blocks=60, scheduler=scheduler))) == {"ST-AUD-079"}


def test_a_shared_block_that_is_written(monkeypatch):
    """ST-AUD-079: a scheduler that goes on inside the last block that it shares."""
    schedule = Scheduler.schedule

    def again(self: Scheduler) -> Any:
        made = schedule(self)
        made.entries = [
            each._replace(computed=each.computed - 1, tokens=each.tokens + 1) if each.hits else each
            for each in made.entries
        ]
        return made

    monkeypatch.setattr(Scheduler, "schedule", again)
    ran = run(blocks=60)
    fewer = {
        name: {"cached_tokens": ran.event(name)["cached_tokens"] - 1}
        for name in "abcd"
        if ran.event(name)["cached_tokens"]
    }
    assert fewer
    assert set(found(ran, tampered(ran, {"events": fewer}))) == {"ST-AUD-079"}


def test_a_link_that_is_too_fast(monkeypatch):
    monkeypatch.setattr(links, "_SECOND", 500_000_000)
    assert set(found(run(**TIERED))) == {"ST-AUD-080"}


def test_loads_in_the_wrong_order(monkeypatch):
    read = MemoryTier.read
    monkeypatch.setattr(MemoryTier, "read", lambda self, keys: read(self, keys)[::-1])
    assert set(found(run(base_operations(), **base_engine()))) == {"ST-AUD-083"}


def base_operations() -> list[dict[str, Any]]:
    (short,) = blocks("audit.md", "blocks")
    return list(short["operations"])


def base_engine() -> dict[str, Any]:
    (short,) = blocks("audit.md", "blocks")
    return dict(short["engine"])


# Policies that break a rule.


class Moody(KeepForTools):
    """Decides by more than its inputs: every other time otherwise."""

    name = "moody"
    asked: ClassVar[int] = 0

    def choose(self, inputs: Mapping[str, Any]) -> Sequence[Any]:
        type(self).asked += 1
        return super().choose(inputs) if self.asked % 2 else ()


class Leaking(KeepForTools):
    """Holds every context, those of sessions that have ended too."""

    name = "leaking"

    def choose(self, inputs: Mapping[str, Any]) -> Sequence[Any]:
        del inputs
        return (Keep(),)


class Reserving(Policy):
    """Leaves blocks to critical calls from the first call on."""

    name = "reserving"
    rule = "Blocks are reserved."
    source = "a test"
    notices: ClassVar = frozenset({CallReady})

    def on(self, notice: Any, view: Any) -> Iterable[Question]:
        del notice, view
        yield Question(None, {"blocks": 6}, server=0)

    def choose(self, inputs: Mapping[str, Any]) -> Sequence[Any]:
        return (Reserve(inputs["blocks"]),)


def test_a_choice_that_does_not_follow_from_its_inputs():
    with installed(Moody):
        Moody.asked = 0
        ran = run(policy={"name": "moody"})
        Moody.asked = 1
        assert set(found(ran)) == {"ST-AUD-084"}


def test_a_policy_that_never_lets_go():
    """ST-AUD-074: what it holds is held when all is over."""
    with installed(Leaking):
        assert set(found(run(blocks=60, policy={"name": "leaking"}))) == {"ST-AUD-074"}


def test_a_policy_that_is_not_here_is_not_judged():
    with installed(Reserving):
        ran = run(policy={"name": "reserving"})
    assert set(found(ran)) == {"ST-AUD-060"}


KEEPING = {
    "policy": {"name": "scripted", "settings": {"script": {"CallEnded 0": [["Keep", {"until_ns": 700}]]}}}
}


def test_a_pin_that_lapses_late(monkeypatch):
    """ST-AUD-085: found by what was to be held, and by what lapsed."""
    with installed(Scripted):
        assert found(run(blocks=60, **KEEPING)) == {}
        assert audit_of(run(blocks=60, **KEEPING)).rule("ST-AUD-085").judged
        keep = Mechanism._keep
        monkeypatch.setattr(Mechanism, "_keep", lambda self, held, until: keep(self, held, until + 9))
        assert set(found(run(blocks=60, **KEEPING))) == {"ST-AUD-085"}


def test_a_pin_that_does_not_lapse(monkeypatch):
    """ST-AUD-085: nothing lapses at all."""
    with installed(Scripted):
        keep = Mechanism._keep
        monkeypatch.setattr(Mechanism, "_keep", lambda self, held, _: keep(self, held, None))
        assert set(found(run(blocks=60, **KEEPING))) == {"ST-AUD-085"}


@pytest.mark.parametrize("servers", [1, 2])
def test_reserved_blocks_that_others_are_given(servers, monkeypatch):
    """ST-AUD-086 and ST-LIF-043: calls of a longer path first, and no blocks for others; then a scheduler that does not mind."""
    operations = [
        {"name": "a", "kind": "llm", "prompt": 8, "output": 30, "content": "x"},
        {"name": "z", "kind": "llm", "prompt": 8, "output": 1, "content": "x", "after": ["a"]},
        {"name": "b", "kind": "llm", "prompt": 30, "output": 2, "content": "y"},
        {"name": "c", "kind": "llm", "prompt": 9, "output": 2, "content": "y"},
    ]
    more: dict[str, Any] = {"servers": servers, "policy": {"name": "reserving"}}
    if servers == 2:  # every other call goes to the second one
        short = {"kind": "llm", "prompt": 4, "output": 1, "content": "s"}
        operations[1:1] = [{"name": "s", **short}]
        operations[4:4] = [{"name": "t", **short}]
    with installed(Reserving):
        ran = run(operations, **more)
        (inputs,) = {row["inputs"] for row in ran.rows("decisions") if row["policy"] == "reserving"}
        assert inputs == '{"blocks":6,"server":0}'
        assert found(ran) == {}
        assert audit_of(ran).rule("ST-AUD-086").judged
        admissible = Scheduler._admissible

        def generous(self: Scheduler, *given: Any) -> bool:
            reserved, self.reserved = self.reserved, 0
            made = admissible(self, *given)
            self.reserved = reserved
            return made

        monkeypatch.setattr(Scheduler, "_admissible", generous)
        assert set(found(run(operations, **more))) == {"ST-AUD-086"}


def audit_of(ran: Ran) -> Any:
    return audit(ran.trace, ran.execution)


# Links.


@pytest.mark.parametrize(
    ("jobs", "late"),
    [
        ([(0, 100, 100)], None),
        ([(0, 99, 100)], 0),
        ([(0, 150, 100), (50, 200, 100)], None),  # the example of lifecycle.md
        ([(0, 150, 100), (50, 199, 100)], 1),
        ([(0, 149, 100), (50, 200, 100)], None),  # the first may have been first
        ([(0, 1000, 100), (10, 20, 10)], None),
        ([(0, 1000, 100), (10, 20, 11)], 1),
        ([(0, 10, 5), (100, 104, 5)], 1),
        ([], None),
    ],
)
def test_a_link_carries_so_much(jobs, late):
    assert overfull(jobs, 10**9) == late


def test_a_link_is_judged_as_by_all_intervals():
    """Earliest end first is late exactly if in some interval lie more bytes than fit."""
    rng = Random(5)
    seen = set()
    for _ in range(300):
        jobs = []
        for _ in range(rng.randint(1, 6)):
            start = rng.randint(0, 20)
            jobs.append((start, start + rng.randint(1, 15), rng.randint(1, 12)))
        fits = all(
            sum(size for begin, end, size in jobs if begin >= low and end <= high) <= high - low
            for low, _, _ in jobs
            for _, high, _ in jobs
            if high > low
        )
        assert (overfull(jobs, 10**9) is None) == fits, jobs
        seen.add(fits)
    assert seen == {True, False}


# Sound engines.


def agents(rng: Random) -> Graph:
    """Sessions whose prompts grow, with tools between their calls; some begin alike."""
    operations: list[dict[str, Any]] = []
    for session in range(rng.randint(2, 8)):
        prompt, content, before = rng.randint(1, 20), f"c{rng.randint(0, 4)}", []
        for call in range(rng.randint(1, 5)):
            output, name = rng.randint(1, 8), f"s{session}c{call}"
            operations.append(
                {
                    "name": name,
                    "kind": "llm",
                    "prompt": prompt,
                    "output": output,
                    "content": content,
                    "session": f"s{session}",
                    "after": before,
                }
            )
            before = [name]
            if rng.random() < 0.7:
                tool = f"s{session}t{call}"
                operations.append(
                    {"name": tool, "duration_ns": rng.choice((1, 30, 100, 3000)), "after": before}
                )
                before = [tool]
            prompt += output + rng.randint(0, 6)
    return graph({"operations": operations, "tasks": [{}]})


@pytest.mark.parametrize("policy", policy_names())
def test_sound_engines_are_clean(policy):
    """Sessions with tools under random settings: nothing is found."""
    judged = 0
    for seed in range(5):
        rng = Random(seed)
        made = agents(rng)
        engine: dict[str, Any] = {
            "blocks": rng.choice((24, 40)),
            "block_size": rng.choice((2, 4)),
            "servers": rng.choice((1, 2)),
            "scheduler": {"max_num_seqs": rng.choice((2, 4)), "max_num_batched_tokens": rng.choice((8, 64))},
            "cost": [rng.choice((1, 10)), 0, 1, 1, 0],
            "policy": {"name": policy},
        }
        if policy not in {"none", "prefix"}:
            band = rng.choice((10**8, 10**9, 10**10))
            link = {
                "out_bytes_per_s": band,
                "in_bytes_per_s": 2 * band,
                "latency_ns": rng.choice((0, 5)),
                "per_run_ns": 3,
            }
            engine["tiers"] = {"host": {"blocks": rng.choice((10, 100))}, "remote": {"blocks": 50}}
            engine["links"] = {"host": link, "remote": link}
        settings = {
            "backend": {"name": "engine", "settings": document(engine)},
            "copies": 2,
            "salt": rng.choice(("copy", "none")),
        }
        try:
            execution = replay(
                made.trace, dag(made.work), Scenario.parse(settings, path="scenario"), detail=DETAIL
            )
        except ReplayError:
            continue  # an operation that no server can hold
        assert execution.header.backend.settings["model"]["name"] == TINY["name"]
        report = audit(made.trace, execution)
        assert report.findings == [], seed
        judged += report.rule("ST-AUD-076").judged
    assert judged > 50
