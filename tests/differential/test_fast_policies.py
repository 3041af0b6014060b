"""Lifecycle policies on the fast engine against the step engine: every column, step, transfer and decision, on random agents."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from semtrace.engine import form
from semtrace.engine.fast import build, commands, compiler, loop
from semtrace.engine.fast import simulate as simulating
from semtrace.engine.fast.backend import FastEngine
from semtrace.engine.fast.driven import Driving
from semtrace.engine.fast.layout import NOW
from semtrace.engine.fast.simulate import Program, simulate
from semtrace.engine.lifecycle import Lifecycle
from semtrace.engine.lifecycle_log import LifecycleLog
from semtrace.engine.log import Detail, detail_tables
from semtrace.engine.prepared import Prepared
from semtrace.engine.run import engine, policy_of
from semtrace.engine.step import StepEngine
from semtrace.graph.plan import dag
from semtrace.graph.resolve import resolve
from semtrace.policies.interface import (
    CallEnded,
    CallReady,
    Demote,
    Drop,
    Hold,
    Keep,
    Moved,
    Offload,
    Policy,
    Prefetch,
    Pressure,
    Question,
    Release,
    Reserve,
    Reuse,
    TierName,
    Timer,
    ToolEnded,
    ToolStarted,
    Unhold,
    Wake,
)  # fmt: skip
from semtrace.records.enums import EventOutcome
from semtrace.replay.arrivals import instances, settle
from semtrace.replay.backend import Setup
from semtrace.replay.controller import Controller, VirtualClock
from semtrace.replay.scenario import Scenario
from semtrace.store.digests import show, work_digest
from semtrace.testing.agents import random_workload
from support.scripted import installed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from semtrace.policies.interface import Action, Notice, View
    from semtrace.testing.agents import Workload

POLICIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("keep", {}),
    ("continuum", {"ttl_ns": 60}),
    ("offload-lru", {}),
    ("infercept", {"unknown_tool_ns": 50}),
    ("cost", {"unknown_tool_ns": 50}),
    ("tokencake", {"unknown_tool_ns": 300, "lead_ns": 5, "retry_ns": 20}),
)
TABLES = Detail(steps=True, transfers=True, decisions=True)


def stretched(workload: Workload, by: int) -> tuple[Workload, int]:
    """A workload whose tools take so many times as long and whose calls make so many times the tokens; and the most of these."""
    programs = [
        replace(
            program,
            steps=tuple(
                replace(step, output=step.output * by, duration_ns=step.duration_ns * by)
                for step in program.steps
            ),
        )
        for program in workload.programs
    ]
    longest = max(step.output for program in programs for step in program.steps)
    return replace(workload, programs=tuple(programs)), longest


def both(
    seed: int, policy: str, settings: Mapping[str, Any], *, order: str | None = None, compiled: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A workload under a policy on the step engine, and on the fast one: columns and tables by name."""
    rng = Random(seed)
    workload, longest = stretched(random_workload(seed), rng.choice((1, 1, 8, 30)))
    trace = workload.trace()
    document = {**workload.engine, "policy": {"name": policy, "settings": dict(settings)}}
    document["scheduler"] = {
        **document["scheduler"],
        "order": document["scheduler"]["order"] if order is None else order,
        "async_scheduling": seed % 4 == 1,
        "batching": rng.choice(("continuous",) * 9 + ("static",)),
        "max_num_seqs": rng.choice((2, 256, 256, 256)),
        "watermark": rng.choice((0, 0, 0.1)),
        "reserve_full_isl": rng.random() < 0.7,
        "long_prefill_token_threshold": rng.choice((0, 0, 3)),
    }
    document["blocks"] += longest // document["block_size"] + rng.choice((0, 0, 4, 30))
    values = {
        "backend": {"name": "engine", "settings": document},
        "salt": rng.choice(("none", "instance", "copy")),
        "copies": rng.choice((1, 1, 2)),
    }
    scenario = Scenario.parse(values, path="scenario")
    copies = instances(trace, settle(trace, scenario))
    constraints = resolve(trace, dag(show(work_digest(trace))))
    prepared = Prepared.of(trace, document, copies)
    one, other = policy_of(prepared), policy_of(prepared)
    assert one is not None
    assert other is not None
    controller = Controller(trace, constraints, copies, StepEngine(prepared, TABLES, one), VirtualClock())
    controller.run()
    wanted = controller.ran()
    log = LifecycleLog(TABLES, prepared.document.block_bytes)
    program = Program(prepared.group, prepared.oversized, prepared.rank, prepared.rule)
    made = simulate(
        trace, constraints, copies, prepared.work, prepared.settings, prepared.cost, program,
        detail=True, compiled=compiled, driving=Driving(prepared, *other, log),
    )  # fmt: skip
    tables = {**detail_tables(made.steps, made.step_runs), **log.tables()}
    return (
        {
            **{name: list(column) for name, column in wanted.columns.items()},
            "outcome": [int(each) for each in wanted.outcome],
            "arrival_ns": list(wanted.arrival_ns),
            **{name: table.to_pylist() for name, table in wanted.detail.items()},
        },
        {
            **{name: column.tolist() for name, column in made.columns.items()},
            "outcome": made.outcome.tolist(),
            "arrival_ns": made.arrival_ns.tolist(),
            **{name: table.to_pylist() for name, table in tables.items()},
        },
    )


def difference(wanted: dict[str, Any], made: dict[str, Any]) -> str | None:
    """The first thing in which two runs differ."""
    assert wanted.keys() == made.keys()
    for name in sorted(wanted, key=lambda each: each not in ("decisions", "steps")):
        for at, (one, other) in enumerate(zip(wanted[name], made[name], strict=False)):
            if one != other:
                return f"{name}[{at}]: {one}, fast {other}"
        if len(wanted[name]) != len(made[name]):
            return f"{name}: {len(wanted[name])} rows, fast {len(made[name])}"
    return None


@pytest.mark.parametrize(("policy", "settings"), POLICIES, ids=[name for name, _ in POLICIES])
def test_fast_equals_step_engine(policy: str, settings: dict[str, Any]):
    """ST-LIF-052."""
    for seed in range(13):
        assert difference(*both(seed, policy, settings)) is None, seed


class Restless(Policy):
    """It is told of everything, looks at everything, and does one thing or another by the digest of what it saw."""

    name = "restless"
    rule = "Anything."
    source = "a test"
    notices: ClassVar = frozenset({CallEnded, CallReady, Moved, Pressure, Timer, ToolEnded, ToolStarted})

    def on(self, notice: Notice, view: View) -> Iterable[Question]:
        server = notice.server if isinstance(notice, Pressure) else 0
        seen: dict[str, Any] = {"now": view.now_ns, "notice": repr(notice)}
        for at in range(self.facts.servers):
            shown = [view.free_blocks(at), list(view.waiting_needs(at)), view.running(at), view.contexts(at)]
            shown += [
                view.running_tokens(at),
                view.step_ns(at),
                view.prefill_ns(at, 3, 2),
                view.mean_wait_ns(at),
            ]
            seen[f"server {at}"] = repr(shown)
        if isinstance(notice, Pressure):
            yield Question(None, {**seen, "kind": "server"}, server=server)
        elif isinstance(notice, CallReady):
            yield Question(notice.call.context, {**seen, "kind": "call"}, event=notice.call.event)
        else:
            yield Question(notice.context, {**seen, "kind": type(notice).__name__})

    def choose(self, inputs: Mapping[str, Any]) -> Sequence[Action]:
        rng = Random(repr(sorted(inputs.items())))
        now, blocks = inputs["now"], self.facts.device_blocks
        until = rng.choice((None, now + rng.randint(1, 200)))
        tier = rng.choice(list(TierName))
        if inputs["kind"] == "server":
            return (Reserve(rng.choice((0, 1, blocks // 2, blocks))),)
        moves: list[Sequence[Action]] = [
            (),
            (Keep(until),),
            (Offload(tier, drop=rng.random() < 0.5),),
            (Prefetch(until),),
            (Drop(tier),),
            (Demote(),),
            (Release(), Demote()),
        ]
        if inputs["kind"] == "call":
            moves += [(Hold(),), (Hold(), Unhold()), (Prefetch(until),), (Prefetch(until),)]
        if inputs["kind"] != "Timer" or rng.random() < 0.3:
            moves += [(Keep(until), Wake(now + rng.randint(0, 100)))]
        return rng.choice(moves)


class Unpressed(Restless):
    """The same, but that it is not told of pressure: the engine need not come back in every instant in which memory is short."""

    name = "unpressed"
    notices: ClassVar = Restless.notices - {Pressure}


@pytest.mark.parametrize("policy", [Restless, Unpressed])
def test_whatever_a_policy_does(policy: type[Policy]):
    """Every action but to reuse, in any order, with two steps in flight too."""
    with installed(policy):
        for seed in range(20):
            assert difference(*both(seed, policy.name, {})) is None, seed


def test_logs_that_are_emptied_often_lose_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(build, "_LOG_ROWS", 1)
    monkeypatch.setattr(build, "_LONGEST_RUN", 3)
    with installed(Unpressed):
        for seed in range(8):
            assert difference(*both(seed, "unpressed", {})) is None, seed


def test_compiled_and_plain_give_the_same():
    pytest.importorskip("numba")
    with installed(Restless):
        for seed in range(6):
            assert difference(*both(seed, "restless", {}, compiled=True)) is None, seed


cut = commands.cut


def cut_late(s: Any, b: Any, f: Any, server: int, until: int) -> None:
    cut(s, b, f, server, until + 1)


def cut_as_if_not_started(s: Any, b: Any, f: Any, server: int, until: int) -> None:
    del until
    cut(s, b, f, server, s[NOW])


def never_pressed(s: Any) -> bool:
    del s
    return False


def keep_keys(s: Any, b: Any, block: int) -> None:
    del s, b, block


MUTANTS: dict[str, tuple[Any, str, Any, str, int]] = {
    "a run goes on while its server is looked at": (commands, "cut", cut_late, "restless", 0),
    "a server that was started is cut like one that was not": (
        *(commands, "cut", cut_as_if_not_started),
        *("cost", 12),
    ),
    "pressure is not told": (loop, "is_pressed", never_pressed, "restless", 12),
    "loads are not tried again in every instant": (
        *(Lifecycle, "restless", False),
        *("unpressed", 17),
    ),
    "blocks that are dropped keep their keys": (commands, "forget", keep_keys, "restless", 0),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_caught(mutant: str, monkeypatch: pytest.MonkeyPatch):
    module, name, wrong, policy, seed = MUTANTS[mutant]
    settings = dict(POLICIES).get(policy, {})
    with installed(Restless, Unpressed):
        assert difference(*both(seed, policy, settings)) is None
        monkeypatch.setattr(module, name, wrong)
        assert difference(*both(seed, policy, settings)) is not None


# -- what runs on which form ----------------------------------------------------------------------------------------------


def chosen(policy: str, detail: frozenset[str] = frozenset(), **change: Any) -> Any:
    workload = random_workload(3)
    trace = workload.trace()
    document = {**workload.engine, "policy": {"name": policy}, **change}
    scenario = Scenario.parse({"backend": {"name": "engine", "settings": document}}, path="scenario")
    copies = instances(trace, settle(trace, scenario))
    setup = Setup(trace, scenario, copies, detail)
    return engine(setup), resolve(trace, dag(show(work_digest(trace))))


@pytest.mark.parametrize("order", ["instance_fcfs", "session_fcfs", "critical_path", "critical_path_oracle"])
def test_orders_by_programs(order: str):
    """ST-ENG-021 to ST-ENG-025, with policies: both forms serve in the same order."""
    for seed in range(10):
        policy, settings = POLICIES[seed % len(POLICIES)]
        assert difference(*both(seed, policy, settings, order=order)) is None, seed


def test_the_compiled_form_runs_what_it_can():
    small = {"blocks": 4, "oversized": "outcome"}
    assert isinstance(chosen("tokencake", frozenset({"steps", "transfers", "decisions"}))[0], FastEngine)
    assert isinstance(chosen("keep", frozenset({"blocks"}))[0], StepEngine)
    assert isinstance(chosen("pic")[0], StepEngine)
    assert isinstance(chosen("keep", **small)[0], StepEngine)


class Reuses(Policy):
    """It reuses tokens without a look at pieces."""

    name = "reuses"
    rule = "Reuse."
    source = "a test"
    notices: ClassVar = frozenset({CallReady})

    def on(self, notice: Notice, view: View) -> Iterable[Question]:
        del view
        if isinstance(notice, CallReady):
            yield Question(notice.call.context, {}, event=notice.call.event)

    def choose(self, inputs: Mapping[str, Any]) -> Sequence[Action]:
        del inputs
        return (Reuse(3),)


def test_the_compiled_loop_is_told(monkeypatch):
    made, constraints = chosen("keep")
    assert made.environment() == {}
    plain = loop.run
    monkeypatch.setattr(compiler, "compiled", lambda: plain)
    monkeypatch.setattr(simulating, "WORTH_COMPILING", 1)
    made.simulate(constraints, None)
    assert made.environment()["simulator"] == {"form": "fast", "compiled": True, "why": None}
    monkeypatch.setattr(compiler, "compiled", lambda: None)
    monkeypatch.setattr(form, "find_spec", lambda _: None)
    made, constraints = chosen("keep")
    made.simulate(constraints, None)
    assert made.environment()["simulator"] == {
        "form": "fast",
        "compiled": False,
        "why": "numba is not installed",
    }


def test_a_policy_that_reuses_tokens_unannounced_runs_by_steps():
    with installed(Reuses):
        made, constraints = chosen("reuses")
        assert isinstance(made, FastEngine)
        ran = made.simulate(constraints, None)
    assert made.environment()["simulator"] == {
        "form": "step", "compiled": False, "why": "policy reuses lets calls reuse tokens",
    }  # fmt: skip
    assert max(ran.columns["reused_tokens"]) == 3
    assert all(outcome == EventOutcome.OK for outcome in ran.outcome)
