"""What any lifecycle policy must hold, ours or a third party's: a class of tests to inherit from.

    class TestMine(PolicyTests):
        policy = "mine"             # as its entry point names it
        settings = {"horizon_ns": 5}

pytest finds the tests of the class. Each runs the policy on random workloads of agents with little memory and slow links.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from semtrace.engine.log import Detail
from semtrace.engine.prepared import Prepared
from semtrace.engine.run import policy_of
from semtrace.engine.step import StepEngine
from semtrace.graph.plan import dag
from semtrace.graph.resolve import resolve
from semtrace.policies.registry import find_policy
from semtrace.policies.text import choice_text
from semtrace.records.document import canonical_json, parse_canonical
from semtrace.records.enums import BlockAction, EventOutcome, Tier
from semtrace.replay.arrivals import instances, settle
from semtrace.replay.controller import Controller, VirtualClock
from semtrace.replay.scenario import Scenario
from semtrace.store.digests import show, work_digest
from semtrace.testing.agents import random_workload

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from semtrace.policies.interface import Action, Facts, Notice, Policy, Question, Value, View
    from semtrace.testing.agents import Workload

MOST_NOTICES: Final = 20_000
"""Notices that a policy may be given in one of these runs; far fewer are needed unless it keeps itself busy."""
_TABLES: Final = ("steps", "step_runs", "blocks", "transfers", "decisions")
_MORE: Final = frozenset({BlockAction.ALLOCATE, BlockAction.HIT})
_LESS: Final = frozenset({BlockAction.FREE, BlockAction.DROP})


@dataclass(frozen=True)
class Run:
    """What happened.

    Attributes:
        facts: what the policy knew of the engine.
        outcome: of each operation.
        submitted: when each was submitted, in ns.
        finished: when each ended, in ns.
        tables: the rows of each detail table.
    """

    facts: Facts
    outcome: list[int]
    submitted: list[int]
    finished: list[int]
    tables: dict[str, list[dict[str, Any]]]

    def decided(self, policy: str) -> list[dict[str, Any]]:
        """The decisions of a policy."""
        return [row for row in self.tables["decisions"] if row["policy"] == policy]


class _Counted:
    """A policy that stops if it is told too much: it keeps itself busy for ever."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._left = MOST_NOTICES
        self.name = policy.name
        self.notices = policy.notices
        self.pieces = policy.pieces

    def on(self, notice: Notice, view: View) -> Iterable[Question]:
        self._left -= 1
        if self._left < 0:
            raise AssertionError(
                f"{self.name} was given more than {MOST_NOTICES:,} notices: it keeps itself busy"
            )
        return self._policy.on(notice, view)

    def choose(self, inputs: Mapping[str, Value]) -> Sequence[Action]:
        return self._policy.choose(inputs)


def run_policy(workload: Workload, policy: str, settings: Mapping[str, object]) -> Run:
    """Run a workload under a policy, on the step engine.

    Args:
        workload: the workload.
        policy: the policy's name.
        settings: its settings.

    Raises:
        AssertionError: it is given more than `MOST_NOTICES` notices.
    """
    trace = workload.trace()
    document = {**workload.engine, "policy": {"name": policy, "settings": dict(settings)}}
    scenario = Scenario.parse({"backend": {"name": "engine", "settings": document}}, path="scenario")
    copies = instances(trace, settle(trace, scenario))
    prepared = Prepared.of(trace, document, copies)
    found = policy_of(prepared)
    if found is None:
        raise AssertionError(f"{policy} leaves everything to the scheduler: there is nothing to try")
    made: Any = _Counted(found[0])
    engine = StepEngine(prepared, Detail.of(_TABLES), (made, found[1]))
    controller = Controller(
        trace, resolve(trace, dag(show(work_digest(trace)))), copies, engine, VirtualClock()
    )
    controller.run()
    return Run(
        found[1],
        [int(each) for each in controller.outcome],
        controller.columns["submitted_ns"],
        controller.columns["finished_ns"],
        {name: table.to_pylist() for name, table in engine.detail().items()},
    )


@functools.lru_cache(maxsize=64)
def _first_run(seed: int, policy: str, settings: str) -> tuple[Workload, Run]:
    """A workload and what becomes of it: the tests of a class look at the same."""
    workload = random_workload(seed)
    return workload, run_policy(workload, policy, json.loads(settings))


class PolicyTests:
    """What any policy must hold. Inherit from it, and give the policy.

    Attributes:
        policy: the policy's name.
        settings: its settings.
        workloads: how many random workloads each test runs.
    """

    policy: ClassVar[str]
    settings: ClassVar[Mapping[str, object]] = {}
    workloads: ClassVar[int] = 8

    def runs(self) -> Iterable[tuple[Workload, Run]]:
        """The workloads, and what became of them."""
        settings = canonical_json(dict(self.settings)).decode()
        for seed in range(self.workloads):
            yield _first_run(seed, self.policy, settings)

    def test_the_same_inputs_give_the_same_choice(self) -> None:
        """ST-LIF-040: a new policy, given the inputs that were written down, chooses what was written down."""
        kind = find_policy(self.policy)
        for _, run in self.runs():
            settings = kind.Settings.parse(dict(self.settings), path="settings")
            for row in run.decided(self.policy):
                inputs = parse_canonical(row["inputs"])
                assert choice_text(kind(settings, run.facts).choose(inputs)) == row["choice"], row

    def test_no_decision_knows_the_future(self) -> None:
        """ST-LIF-016: whatever comes later, what was decided before stays as it was."""
        for seed, (workload, run) in enumerate(self.runs()):
            times = sorted({*run.finished, *(row["time_ns"] for row in run.decided(self.policy))})
            for share in (0.25, 0.5, 0.75):
                cut = times[int(share * (len(times) - 1))]
                other = workload.changed_after(cut, run.submitted, run.finished, seed)
                again = run_policy(other, self.policy, self.settings)
                before, after = (
                    [row for row in each.tables["decisions"] if row["time_ns"] <= cut]
                    for each in (run, again)
                )
                assert before == after, f"workload {seed}, changed after {cut} ns"

    def test_all_ends(self) -> None:
        """ST-LIF-023: nothing hangs, and the policy does not keep itself busy for ever."""
        for seed, (_, run) in enumerate(self.runs()):
            assert set(run.outcome) == {EventOutcome.OK}, f"workload {seed}"

    def test_no_block_is_held_in_the_end(self) -> None:
        """ST-LIF-021: what was pinned, copied or borrowed is let go; and nobody lets go what he does not hold."""
        for seed, (_, run) in enumerate(self.runs()):
            assert held_in_the_end(run) == {}, f"workload {seed}"

    def test_a_second_run_is_the_same(self) -> None:
        """ST-LIF-052."""
        for seed, (workload, run) in enumerate(self.runs()):
            assert run_policy(workload, self.policy, self.settings) == run, f"workload {seed}"


def held_in_the_end(run: Run) -> dict[tuple[int, int, int], int]:
    """Blocks that have holders when all is over: server, tier and id, with how many.

    Raises:
        AssertionError: a block is taken that somebody holds, or let go that nobody holds; or one is dropped or evicted that is held.
    """
    holders: Counter[tuple[int, int, int]] = Counter()
    for row in run.tables["blocks"]:
        action, tier = row["action"], row["tier"]
        ids = np.arange(row["first_block"], row["first_block"] + row["blocks"]).tolist()
        shared = 0 if tier == Tier.REMOTE else row["server"]
        for key in ((shared, tier, block) for block in ids):
            if tier == Tier.DEVICE:
                if action in {BlockAction.ALLOCATE, BlockAction.EVICT} and holders[key]:
                    raise AssertionError(f"block {key} is taken and has {holders[key]} holders: {row}")
                if action == BlockAction.DROP and holders[key] != 1:
                    raise AssertionError(f"block {key} is dropped and has {holders[key]} holders: {row}")
                holders[key] += (action in _MORE) - (action in _LESS)
            elif action in {BlockAction.HIT, BlockAction.FREE}:
                holders[key] += 1 if action == BlockAction.HIT else -1
            elif holders[key]:
                raise AssertionError(f"block {key} is changed while it is read: {row}")
            if holders[key] < 0:
                raise AssertionError(f"block {key} is let go, and nobody held it: {row}")
    return {key: count for key, count in holders.items() if count}
