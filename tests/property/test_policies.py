"""Every policy holds what any policy must hold; and policies that do not are caught."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from semtrace.engine.log import Detail
from semtrace.engine.step import StepEngine
from semtrace.policies.interface import (
    CallEnded,
    CallReady,
    Facts,
    Hold,
    Keep,
    Moved,
    Policy,
    Pressure,
    Question,
    Timer,
    ToolEnded,
    ToolStarted,
    Wake,
)
from semtrace.policies.registry import policy_names
from semtrace.records.document import Document
from semtrace.replay.controller import Controller, VirtualClock
from semtrace.testing.agents import random_workload
from semtrace.testing.policies import PolicyTests, run_policy
from support.engine_cases import by_steps, random_case
from support.scripted import installed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from semtrace.policies.interface import Action, Notice, View


class TestKeep(PolicyTests):
    policy = "keep"


class TestOffloadLru(PolicyTests):
    policy = "offload-lru"


class TestContinuum(PolicyTests):
    policy = "continuum"
    settings: ClassVar = {"ttl_ns": 60}


class TestInfercept(PolicyTests):
    policy = "infercept"
    settings: ClassVar = {"unknown_tool_ns": 50}


class TestCost(PolicyTests):
    policy = "cost"
    settings: ClassVar = {"unknown_tool_ns": 50}


class TestTokencake(PolicyTests):
    policy = "tokencake"
    settings: ClassVar = {"unknown_tool_ns": 300, "lead_ns": 5, "retry_ns": 20}


class TestPic(PolicyTests):
    policy = "pic"
    settings: ClassVar = {"least_tokens": 2, "rope_ns_per_token": 1}


class TestTokendance(PolicyTests):
    policy = "tokendance"
    settings: ClassVar = {"least_tokens": 2, "rope_ns_per_token": 1}


def test_none_is_forgotten():
    tried = {each.policy for each in PolicyTests.__subclasses__()}
    assert set(policy_names()) - {"none", "prefix"} <= tried


def test_the_workloads_have_everything():
    """Pins, transfers both ways, what was not done, forced releases, loads and evictions: all happen in them."""
    seen: set[str] = set()
    for name, settings in (
        ("tokencake", TestTokencake.settings), ("offload-lru", {}), ("keep", {}), ("continuum", {"ttl_ns": 60}),
        ("pic", TestPic.settings), ("tokendance", TestTokendance.settings),
    ):  # fmt: skip
        for seed in range(PolicyTests.workloads):
            run = run_policy(random_workload(seed), name, settings)
            seen |= {f"{row['policy']} {row['choice'].split('(')[0]}" for row in run.tables["decisions"]}
            seen |= {f"direction {row['direction']}" for row in run.tables["transfers"]}
            seen |= {str(row["reason"]) for row in run.tables["blocks"]}
            seen |= {f"action {row['action']} tier {row['tier']}" for row in run.tables["blocks"]}
    assert {
        "tokencake offload", "tokencake prefetch", "tokencake reserve", "engine not done", "engine release",
        "direction 1", "direction 2", "lapsed", "used", "forced", "loaded", "action 4 tier 1", "action 4 tier 2",
        "action 6 tier 1", "action 7 tier 1", "action 8 tier 1", "pic reuse", "tokendance reuse",
    } <= seen  # fmt: skip


# -- policies that are not to be trusted ----------------------------------------------------------------------------------


class Wrong(Policy):
    """What the wrong ones share."""

    rule = "It is wrong."
    source = "a test"
    notices: ClassVar = frozenset({CallEnded})

    def on(self, notice: Notice, view: View) -> Iterable[Question]:
        if isinstance(notice, CallEnded):
            yield Question(notice.context, self.look(notice, view))

    def look(self, notice: CallEnded, view: View) -> dict[str, Any]:
        return {"now": view.now_ns, "last": notice.last}

    def choose(self, inputs: Mapping[str, Any]) -> Sequence[Action]:
        del inputs
        return (Keep(),)


class Leaks(Wrong):
    """It pins the contexts of sessions that have ended, too."""

    name = "leaks"


class LooksAhead(Wrong):
    """It finds out how many tokens the calls that run will make."""

    name = "looks-ahead"

    def look(self, notice: CallEnded, view: View) -> dict[str, Any]:
        requests = view._states[0]._requests
        return {
            "last": notice.last,
            "longest": max((each.max_tokens for each in requests.values()), default=0),
        }

    def choose(self, inputs: Mapping[str, Any]) -> Sequence[Action]:
        return () if inputs["last"] or inputs["longest"] > 4 else (Keep(),)


class Remembers(Wrong):
    """Its choice depends on how often it was asked."""

    name = "remembers"

    def __init__(self, settings: Any, facts: Facts) -> None:
        super().__init__(settings, facts)
        self.asked = 0

    def choose(self, inputs: Mapping[str, Any]) -> Sequence[Action]:
        self.asked += 1
        return (Keep(int(inputs["now"]) + self.asked),)


class NeverTires(Wrong):
    """It wakes itself again and again."""

    name = "never-tires"
    notices: ClassVar = frozenset({CallReady, Timer})

    def on(self, notice: Notice, view: View) -> Iterable[Question]:
        context = notice.call.context if isinstance(notice, CallReady) else notice.context
        yield Question(context, {"now": view.now_ns})

    def choose(self, inputs: Mapping[str, Any]) -> Sequence[Action]:
        return (Wake(int(inputs["now"]) + 1),)


class HoldsBack(Wrong):
    """It holds every call back and never lets one go: forced, so that nothing hangs."""

    name = "holds-back"
    notices: ClassVar = frozenset({CallReady})

    def on(self, notice: Notice, view: View) -> Iterable[Question]:
        del view
        if isinstance(notice, CallReady):
            yield Question(notice.call.context, {}, event=notice.call.event)

    def choose(self, inputs: Mapping[str, Any]) -> Sequence[Action]:
        del inputs
        return (Hold(),)


def trying(wrong: type[Policy]) -> PolicyTests:
    class Tried(PolicyTests):
        policy = wrong.name
        workloads = 6

    return Tried()


@pytest.mark.parametrize(
    ("wrong", "test"),
    [
        (Leaks, "test_no_block_is_held_in_the_end"),
        (LooksAhead, "test_no_decision_knows_the_future"),
        (Remembers, "test_the_same_inputs_give_the_same_choice"),
        (NeverTires, "test_all_ends"),
    ],
)
def test_what_is_wrong_is_caught(wrong: type[Policy], test: str):
    """Each of them, by the test for it."""
    with installed(wrong), pytest.raises(AssertionError):
        getattr(trying(wrong), test)()


def test_calls_that_are_held_back_are_let_go_in_the_end():
    """ST-LIF-036 and ST-LIF-023."""
    with installed(HoldsBack):
        tests = trying(HoldsBack)
        for _, run in tests.runs():
            assert {row["choice"] for row in run.tables["decisions"] if row["policy"] == "engine"} == {
                "unhold()"
            }
        tests.test_all_ends()
        tests.test_no_block_is_held_in_the_end()


class Idle(Policy):
    """It is told of everything, looks at all that there is to see, and does nothing."""

    name = "idle"
    rule = "Nothing."
    source = "a test"
    notices: ClassVar = frozenset({CallEnded, CallReady, Moved, Pressure, Timer, ToolEnded, ToolStarted})

    def on(self, notice: Notice, view: View) -> Iterable[Question]:
        del notice
        for server in range(self.facts.servers):
            seen = [view.free_blocks(server), list(view.waiting_needs(server)), view.contexts(server)]
            seen += [view.running_tokens(server), view.step_ns(server), view.prefill_ns(server, 3, 2)]
            seen.append(view.blocks(server))
            assert len(seen) == 7
        return ()

    def choose(self, inputs: Mapping[str, Any]) -> Sequence[Action]:
        del inputs
        return ()


@pytest.mark.parametrize("seed", range(25))
def test_a_policy_that_does_nothing_changes_nothing(seed: int):
    """ST-LIF-001: told of all and asking nothing, it leaves every event and every step as they are without it."""
    case = random_case(Random(seed), asynchronous=seed % 4 == 0)
    settings = case.prepared.settings
    facts = Facts(settings.block_size, None, settings.blocks - 1, {}, {}, settings.servers, 1, 1)
    without, engine = by_steps(case)
    driven = StepEngine(case.prepared, Detail(steps=True), (Idle(Document(), facts), facts))
    controller = Controller(case.trace, case.constraints, case.copies, driven, VirtualClock())
    controller.run()
    others = {"loaded_tokens", "reused_tokens"}  # nothing is loaded or reused: 0, and null without a policy
    assert {name: values for name, values in controller.columns.items() if name not in others} == {
        name: values for name, values in without.columns.items() if name not in others
    }
    assert {name: table.to_pydict() for name, table in driven.detail().items()} == {
        name: table.to_pydict() for name, table in engine.detail().items()
    }
