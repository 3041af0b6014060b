"""The experiment on lifecycle policies: every policy wins where the table says and loses where it says; the exact cases, by hand."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest

from cli.conftest import run
from semtrace.experiments.base import Lab, Result
from semtrace.experiments.catalog import EXPERIMENTS
from semtrace.experiments.policies import POLICIES
from semtrace.experiments.policy_cases import Round, inversion, shared_block
from semtrace.experiments.policy_scenarios import SCENARIOS, engine
from semtrace.policies.registry import policy_names

PAGE = Path(__file__).parents[3] / "docs" / "policies.md"
BASELINES = {"none", "prefix"}


@functools.cache
def quick() -> Result:
    return POLICIES.run(Lab((0,), quick=True))


def test_each_policy_has_a_scenario_where_it_wins_and_one_where_it_loses():
    judged = [(each.policy, each.wins) for scenario in SCENARIOS for each in scenario.judged]
    assert sorted(judged) == sorted(
        (name, wins) for name in policy_names() if name not in BASELINES for wins in (True, False)
    )


def test_a_quick_run_goes_as_told():
    result = quick()
    assert len(result.compared) == 2 * len(set(policy_names()) - BASELINES)
    assert {each.measure: each.same_direction for each in result.compared if not each.same_direction} == {}


def test_the_table():
    table = quick().table
    assert table is not None
    assert all(len(row) == len(table.headings) for row in table.rows)
    by_policy = [row[0] for row in table.rows]
    assert by_policy[::2] == by_policy[1::2]  # the win, then the loss
    assert all(row[4].startswith(sign) for row, sign in zip(table.rows, "-+" * 8, strict=True))
    assert {row[5] for row in table.rows} == {"1 of 1"}
    # the same arrivals, and the same prefix cache: policies of one scenario are beside the same number
    assert len({row[2] for row in table.rows if row[1].startswith("busy")}) == 1


def test_policies_have_their_default_settings():
    assert {row["set.policy.name"] for row in quick().rows} == set(policy_names()) - {"none"}
    assert {name for row in quick().rows for name in row if name.startswith("set.")} == {"set.policy.name"}
    assert "policy" not in engine(1000)
    assert all("policy" not in scenario.engine for scenario in SCENARIOS)


def test_a_critical_inversion_that_lru_commits_and_tokencake_does_not():
    """18 blocks, every step 50 ms. At 50 ms `ask` has ended; its context has 4 blocks, and 14 are free.

    prefix: all three of the others take 5 blocks then, one of the context's among them, and a sixth each at last: the context loses all.
    At 550 ms `go on` needs 5 and waits until they end, at 850. tokencake: the context holds its blocks, so two of the others take 10 of
    14; `go on` finds 64 tokens and needs one block more.
    """
    lru, cake = inversion("prefix"), inversion("tokencake")
    assert (lru.wait_ns, sorted(lru.behind), lru.hit_tokens) == (
        300_000_000, ["other 0", "other 1", "other 2"], 0,
    )  # fmt: skip
    assert (cake.wait_ns, cake.behind, cake.hit_tokens) == (0, [], 64)
    # 30 tokens after 850 ms, 1 of `last`, 1 of `write`: 32 steps. With tokencake `go on` ends at 2050 ms.
    assert (lru.root_ns, cake.root_ns) == (2_450_000_000, 2_150_000_000)


def test_what_a_shared_block_costs_a_round():
    """Agent i has 100 + 10 i tokens of its own before 1600 shared ones, 107 to 111 blocks of 16, 871 together.

    pic: 15 % of 1600 are computed, 240, and each adapts the block. tokendance: the first adapts it for all; a mirror shares the blocks of
    the 1360 tokens that it does not compute, 85, and has 8 % of those, 7, for differences: 22 of its own where pic has 100.
    """
    own = sum(100 + 10 * at for at in range(8))
    assert shared_block("prefix", 8) == Round(0, 0, own + 8 * 1600, 871)
    assert shared_block("pic", 8) == Round(0, 8, own + 8 * 240, 871)
    assert shared_block("tokendance", 8) == Round(0, 1, own + 8 * 240, 871 - 7 * (100 - 22))


@pytest.mark.parametrize("agents", [1, 2, 5])
def test_adaptions_are_one_for_each_call_or_one_for_all(agents: int):
    assert shared_block("pic", agents).adapted == agents
    assert shared_block("tokendance", agents).adapted == 1


def test_the_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(EXPERIMENTS, "policies", replace(POLICIES, run=lambda _: quick()))
    told = run("experiment", "policies", "--quick", "--json").json
    assert told["table"]["headings"][0] == "policy"
    assert len(told["table"]["rows"]) == len(told["compared"]) == 16
    assert told["seeds"] == [0]
    assert any("critical inversion" in fact for fact in told["facts"])
    text = run("experiment", "policies", "--quick").out
    assert "seeds that agree" in text
    assert "waits 300 ms" in text


def test_the_page_has_the_command_and_every_scenario():
    page = PAGE.read_text("utf-8")
    assert "semtrace experiment policies" in page
    for scenario in SCENARIOS:
        assert scenario.name in page
