"""What a policy's turn looks at when many requests wait: the first of them, however many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

from semtrace.engine import lifecycle
from semtrace.engine.fast.state import FastState, OwnKeys
from semtrace.engine.lifecycle import Lifecycle
from semtrace.errors import ReplayError
from semtrace.policies.interface import CallReady, Policy, Question, Timer, Wake
from semtrace.store.digests import detail_digest, execution_digest
from support.lifecycle import run_engine
from support.scripted import installed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from semtrace.policies.interface import Action, Notice, View
    from semtrace.records.execution import Execution
    from semtrace.replay.backend import Simulator

POLICIES = ("continuum", "cost", "infercept", "keep", "offload-lru", "tokencake")


def crowded(calls: int, policy: str, *, simulator: Simulator = "fast", order: str = "fcfs") -> Execution:
    """So many calls that come at once, in pairs with a session and a beginning in common, to an engine that runs two of them."""
    operations = [
        {
            "name": f"c{number}",
            "kind": "llm",
            "prompt": 16 + number % 8,
            "output": 3,
            "content": f"x{number // 2}",
            "session": f"s{number // 2}",
        }
        for number in range(calls)
    ]
    engine = {
        "blocks": 14,
        "block_size": 4,
        "cost": [10, 0, 1, 1, 0],
        "scheduler": {"order": order},
        "policy": {"name": policy},
        "tiers": {"host": {"blocks": 30}},
        "links": {"host": {"out_bytes_per_s": 1_000_000_000, "in_bytes_per_s": 1_000_000_000}},
    }
    return run_engine(operations, engine, detail=("transfers", "decisions"), simulator=simulator).execution


@pytest.mark.parametrize("order", ["fcfs", "plas"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_turn_looks_at_the_first_few(policy: str, order: str, monkeypatch: pytest.MonkeyPatch):
    looked = {"turns": 0, "events": 0, "needs": 0}
    waiting, need, phase = FastState.waiting, FastState.need, Lifecycle.phase

    def counted_waiting(self: FastState) -> Iterator[int]:
        for event in waiting(self):
            looked["events"] += 1
            yield event

    def counted_need(self: FastState, event: int) -> int:
        looked["needs"] += 1
        return need(self, event)

    def counted_phase(self: Lifecycle, now_ns: int) -> None:
        looked["turns"] += 1
        phase(self, now_ns)

    monkeypatch.setattr(FastState, "waiting", counted_waiting)
    monkeypatch.setattr(FastState, "need", counted_need)
    monkeypatch.setattr(Lifecycle, "phase", counted_phase)
    found = {}
    for calls in (40, 160):
        looked.update(dict.fromkeys(looked, 0))
        execution = crowded(calls, policy, order=order)
        assert (execution.events.ints("finished_ns") >= 0).all()
        found[calls] = dict(looked)
    assert found[160]["turns"] > found[40]["turns"]
    for calls, counts in found.items():
        most = 3 * counts["turns"] + 6 * calls  # the first few in each turn, and for each call once
        assert counts["events"] <= most, found
        assert counts["needs"] <= most, found


@pytest.mark.parametrize("order", ["fcfs", "plas"])
@pytest.mark.parametrize("policy", POLICIES)
def test_long_queues_leave_the_same_on_both_forms(policy: str, order: str):
    one, other = (crowded(30, policy, simulator=form, order=order) for form in ("step", "fast"))
    assert execution_digest(one) == execution_digest(other)
    for table in ("transfers", "decisions"):
        assert detail_digest(one, table) == detail_digest(other, table)


class Hoards(Policy):
    """It keeps what requests need, and goes on with it in another instant."""

    name = "hoards"
    rule = "Look at what is over."
    source = "a test"
    notices: ClassVar = frozenset({CallReady})

    def on(self, notice: Notice, view: View) -> Iterable[Question]:
        assert isinstance(notice, CallReady)
        if view.now_ns and hasattr(self, "needs"):
            list(self.needs)
        elif not hasattr(self, "needs"):
            self.needs = view.waiting_needs(0)
            next(self.needs)
        return ()

    def choose(self, inputs: Mapping[str, Any]) -> Sequence[Action]:
        del inputs
        return ()


@pytest.mark.parametrize("form", ["step", "fast"])
def test_needs_are_of_their_instant(form: Simulator):
    operations = [
        {"name": f"c{number}", "kind": "llm", "prompt": 16, "output": 3, "after": after}
        for number, after in enumerate(([], [], ["c0"]))
    ]
    engine = {"blocks": 14, "block_size": 4, "cost": [10, 0, 1, 1, 0], "policy": {"name": "hoards"}}
    with installed(Hoards), pytest.raises(ReplayError, match="an instant that is over") as raised:
        run_engine(operations, engine, detail=(), simulator=form)
    assert raised.value.code == "policy.wrong"


def test_keys_are_those_of_a_list():
    own = np.arange(10, 20)
    keys, listed = OwnKeys(own, 2, 8, 100, 7), [int(each) + 7 for each in own[2:8]]
    assert list(keys) == listed
    assert list(reversed(keys)) == listed[::-1]
    assert (keys.place, len(keys), keys[0], keys[-1]) == (102, 6, listed[0], listed[-1])
    for part in (slice(2), slice(3, None), slice(2, 4), slice(4, 2), slice(-2, None), slice(0, 99)):
        assert list(keys[part]) == listed[part]
        assert list(keys[part][1:]) == listed[part][1:]
        assert keys[part].place == 102 + part.indices(6)[0]
    with pytest.raises(IndexError):
        keys[6]


class Restless(Policy):
    """It goes on for ever, as its settings say."""

    name = "restless-for-ever"
    rule = "Never end."
    source = "a test"
    notices: ClassVar = frozenset({CallReady, Timer})
    how: ClassVar = ""

    def on(self, notice: Notice, view: View) -> Iterable[Question]:
        context = notice.call.context if isinstance(notice, CallReady) else 0
        yield Question(context, {"now": view.now_ns})
        while self.how == "asks":
            yield Question(context, {"now": view.now_ns})

    def choose(self, inputs: Mapping[str, Any]) -> Iterable[Action]:  # type: ignore[override]  # a generator, so that it need not end
        if self.how == "wakes":
            yield Wake(inputs["now"] + 1)
        while self.how == "answers":
            yield Wake(inputs["now"] + 1)


@pytest.mark.parametrize("form", ["step", "fast"])
@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("asks", r"asks for ever: 110 questions at CallReady, at 0 ns"),
        ("answers", r"answers for ever: 110 actions to one question, at 0 ns"),
        ("wakes", r"wakes itself for ever: 50 times with nothing else to tell it, at 51 ns"),
    ],
)
def test_a_policy_that_never_ends_is_told_of(
    how: str, says: str, form: Simulator, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Restless, "how", how)
    monkeypatch.setattr(lifecycle, "MOST_QUESTIONS", 100)
    monkeypatch.setattr(lifecycle, "MOST_WAKES", 50)
    operations = [{"name": "c", "kind": "llm", "prompt": 16, "output": 300}]
    engine = {"blocks": 140, "block_size": 4, "cost": [1000, 0, 1, 1, 0], "policy": {"name": Restless.name}}
    with installed(Restless), pytest.raises(ReplayError, match=says) as raised:
        run_engine(operations, engine, detail=(), simulator=form)
    assert raised.value.code == "policy.wrong"
