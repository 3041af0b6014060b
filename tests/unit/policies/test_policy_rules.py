"""Each policy on a case computed by hand, and its rule on numbers."""

from __future__ import annotations

from fractions import Fraction
from random import Random
from typing import Any

import pytest

from semtrace.errors import DocumentError, UsageError
from semtrace.policies.interface import Policy
from semtrace.policies.keep import KeepForTools
from semtrace.policies.registry import find_policy, policy_names
from semtrace.policies.text import choice_text
from support.lifecycle import decisions, run_engine, times, transfers
from support.scripted import FACTS, Scripted, installed

SLOW = {"out_bytes_per_s": 500_000_000, "in_bytes_per_s": 1_000_000_000, "latency_ns": 5}


def operations(tool_ns: int, **others: Any) -> list[dict[str, Any]]:
    """`a` asks for a tool that takes so long; `b` goes on; `c` needs all 5 blocks meanwhile."""
    return [
        {"name": "a", "kind": "llm", "prompt": 8, "output": 1, "content": "x", "session": "s"},
        {"name": "t", "duration_ns": tool_ns, "after": ["a"]},
        {"name": "c", "kind": "llm", "prompt": 17, "output": 1, "content": "y", "after": ["a"], **others},
        {
            "name": "b",
            "kind": "llm",
            "prompt": 12,
            "output": 1,
            "content": "x",
            "session": "s",
            "after": ["t"],
        },
    ]


def engine(
    policy: str, *, host: int = 4, prefill: int = 1, decode: int = 1, **settings: Any
) -> dict[str, Any]:
    """5 blocks, and host memory over a slow link."""
    return {
        "blocks": 6,
        "block_size": 4,
        "cost": [10, 0, prefill, decode, 0],
        "policy": {"name": policy, "settings": settings},
        "tiers": {"host": {"blocks": host}},
        "links": {"host": SLOW},
    }


def choose(name: str, inputs: dict[str, Any], **settings: Any) -> str:
    """The choice of a policy, as text."""
    kind = find_policy(name)
    return choice_text(kind(kind.Settings.parse(settings, path="settings"), FACTS).choose(inputs))


# -- keep, offload-lru ----------------------------------------------------------------------------------------------


def test_keep():
    """A run is in the spec."""
    assert choose("keep", {"tools": 1, "last": False}) == "keep()"
    assert choose("keep", {"tools": 0, "last": False}) == "nothing"
    assert choose("keep", {"tools": 2, "last": True}) == "nothing"


def test_offload_lru():
    """ST-LIF-033: c's blocks are still being copied out when b asks for 2, and 1 is free; at 247 there is room."""
    ran = run_engine(operations(200), engine("offload-lru", host=8))
    assert {name: times(ran, name) for name in "acb"} == {
        "a": [0, 0, 18, 18], "c": [18, 87, 114, 114], "b": [218, 284, 298, 298],
    }  # fmt: skip
    assert decisions(ran) == [
        [18, "offload-lru", "offload(tier=host, drop=false)"],
        [114, "offload-lru", "offload(tier=host, drop=false)"],
        [218, "offload-lru", "prefetch()"],
        [218, "engine", "not done"],
        [298, "offload-lru", "offload(tier=host, drop=false)"],
    ]
    assert transfers(ran) == [
        ["host", "out", 18, 87, 2],
        ["host", "out", 114, 247, 4],
        ["host", "in", 247, 284, 2],
        ["host", "out", 298, 335, 1],
    ]
    assert ran.event("b")["loaded_tokens"] == 8


def test_offload_lru_forgets_what_was_used_least_recently():
    """ST-LIF-025: with 4 blocks of host memory, those of c take the place of those of a."""
    ran = run_engine(operations(200), engine("offload-lru"))
    assert [row["choice"] for row in ran.rows("decisions") if row["time_ns"] == 218] == ["nothing"]
    assert times(ran, "b") == [218, 247, 269, 269]
    assert ran.event("b")["computed_prompt_tokens"] == 12


# -- continuum, infercept, cost ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("took", "wait", "recompute", "settings", "choice"),
    [
        ("10 20 100", 0, 30, {}, "nothing"),  # 30 - 30, 60 - 60, 90 - 300
        ("10 20 100", 0, 45, {}, "keep(until_ns=1020)"),  # 15, 30, -165
        ("10 20 100", 0, 300, {}, "keep(until_ns=1100)"),  # 270, 540, 600
        ("20", 100, 0, {"eta_ppm": 500_000}, "keep(until_ns=1020)"),  # 50 - 20
        ("20", 100, 0, {"eta_ppm": 200_000}, "nothing"),  # 20 - 20
        ("", 0, 0, {"ttl_ns": 7}, "nothing"),  # the mean, 50, is above 7
        ("", 0, 0, {"ttl_ns": 50}, "keep(until_ns=1050)"),
        ("10 20", 0, 0, {"form": "mean", "ttl_ns": 50}, "keep(until_ns=1050)"),
        ("10 20", 0, 900, {"form": "mean", "ttl_ns": 49}, "nothing"),
    ],
)
def test_continuum(took: str, wait: int, recompute: int, settings: dict[str, Any], choice: str):
    """The time with the greatest F(t) · B - t, times the samples. A run is in the spec."""
    inputs = {"now": 1000, "took": took, "mean": 50, "wait": wait, "recompute": recompute}
    assert choose("continuum", inputs, **settings) == choice


@pytest.mark.parametrize(
    ("tool", "others", "swap", "choice"),
    [
        (100, 10, 69, "release()"),  # 800, 18 · 18 = 324, 2 · 69 · 10 = 1380
        (100, 1, 69, "offload(tier=host, drop=true)"),  # 800, 162, 138
        (10, 10, 69, "keep(); wake(at_ns=1010)"),  # 80
        (100, 1, None, "release()"),
        (18, 0, None, "keep(); wake(at_ns=1018)"),  # 144 = 144: the first
    ],
)
def test_infercept(tool: int, others: int, swap: int | None, choice: str):
    """The least waste of three, for 8 tokens that take 18 ns to compute."""
    inputs = {"now": 1000, "tool": tool, "tokens": 8, "others": others, "forward": 18, "swap": swap}
    assert choose("infercept", inputs) == choice


def test_infercept_asks_again():
    """Expected 20, it takes 300: preserve 160 of discard 19 · 12; at 42 160 of 19 · 14; at 62 320 of 19 · 16 = 304."""
    shorter = [{**each, **({"prompt": 13} if each["name"] == "c" else {})} for each in operations(300)]
    running = {"name": "d", "kind": "llm", "prompt": 4, "output": 8, "content": "z"}
    short = {
        "blocks": 8,
        "block_size": 4,
        "cost": [10, 0, 1, 1, 0],
        "policy": {"name": "infercept", "settings": {"unknown_tool_ns": 20}},
    }
    ran = run_engine([*shorter, running], short)
    assert decisions(ran) == [
        [22, "infercept", "keep(); wake(at_ns=42)"],
        [42, "infercept", "keep(); wake(at_ns=62)"],
        [62, "infercept", "release()"],
    ]
    assert times(ran, "c") == [22, 66, 90, 90]


@pytest.mark.parametrize(
    ("change", "settings", "choice"),
    [
        ({}, {}, "nothing"),  # keep 100, host 69 + 37 + 37 = 143, drop 18 + 18
        ({"forward": 200}, {}, "keep()"),  # 100, 143, 400
        ({"forward": 200, "tool": 200}, {}, "offload(tier=host, drop=true)"),  # 200, 143, 400
        ({"forward": 200, "tool": 200, "wanted": 1}, {}, "keep()"),  # fifths: 200, 106 + 185, 200 + 1000
        # restored by half: 37 + 4 + 100 = 141, so 69 + 141 + 141 = 351
        ({"forward": 200, "tool": 200}, {"alpha_ppm": 500_000, "rope_ns_per_token": 1}, "keep()"),
    ],
)
def test_cost(change: dict[str, int], settings: dict[str, int], choice: str):
    inputs = {
        "tool": 100, "tokens": 8, "wanted": 5, "blocks": 5, "forward": 18, "host_out": 69, "host_in": 37,
    }  # fmt: skip
    assert choose("cost", {**inputs, **change}, **settings) == choice


def test_cost_takes_the_least():
    """Of 2000 drawn inputs: the first of keep, host, remote and drop with the least p · held + restoring, in exact fractions."""
    rng, seen = Random(1), set()
    for _ in range(2000):
        blocks, alpha, rope = rng.randint(1, 9), rng.choice((0, 300_000, 1_000_000)), rng.choice((0, 2))
        names = ("tool", "forward", "host_out", "host_in", "remote_out", "remote_in")
        inputs = {
            "tokens": rng.randint(1, 9),
            "wanted": rng.randint(0, blocks),
            "blocks": blocks,
            **{name: rng.randint(0, 60) for name in names},
        }
        wanted, alone = Fraction(inputs["wanted"], blocks), Fraction(alpha, 1_000_000)
        again, adapt = inputs["forward"], alone * rope * inputs["tokens"]
        costs = {"keep()": wanted * inputs["tool"]}
        for tier in ("host", "remote"):
            restore = inputs[f"{tier}_in"] + adapt + (1 - alone) * again
            costs[f"offload(tier={tier}, drop=true)"] = wanted * (inputs[f"{tier}_out"] + restore) + restore
        costs["nothing"] = wanted * again + again
        choice = choose("cost", inputs, alpha_ppm=alpha, rope_ns_per_token=rope)
        assert choice == min(costs, key=lambda each: costs[each]), inputs
        seen.add(choice)
    assert len(seen) == 4


def test_cost_in_a_run():
    """Computing takes 20 ns a token: 170 against 37 to load. c holds all blocks until 589, and then b loads."""
    ran = run_engine(operations(200), engine("cost", prefill=20))
    assert decisions(ran) == [
        [170, "cost", "offload(tier=host, drop=true)"],
        [370, "cost", "prefetch()"],
        [370, "engine", "not done"],
    ]
    assert transfers(ran) == [["host", "out", 170, 239, 2], ["host", "in", 589, 626, 2]]
    assert {name: times(ran, name) for name in "cb"} == {
        "c": [170, 239, 589, 589], "b": [370, 626, 716, 716],
    }  # fmt: skip
    assert choose("cost", {"load": 37, "compute": 38}) == "prefetch()"
    assert choose("cost", {"load": 37, "compute": 37}) == "nothing"


# -- tokencake --------------------------------------------------------------------------------------------------------


def test_tokencake():
    """Moving out and in takes 69 + 37, and lets c in; the upload begins at 18 + 300 - 37 - 10, and is there before b."""
    ran = run_engine(operations(300), engine("tokencake", unknown_tool_ns=300, lead_ns=10))
    assert decisions(ran) == [
        [18, "tokencake", "keep()"],
        [18, "tokencake", "offload(tier=host, drop=true); wake(at_ns=271)"],
        [271, "tokencake", "prefetch()"],
    ]
    assert transfers(ran) == [["host", "out", 18, 87, 2], ["host", "in", 271, 308, 2]]
    assert {name: times(ran, name) for name in "cb"} == {"c": [18, 87, 114, 114], "b": [318, 318, 332, 332]}
    assert ran.event("b")["loaded_tokens"] == 8


@pytest.mark.parametrize(
    ("tool", "admits", "moved"),
    [(212, 1, False), (213, 1, True), (159, 2, False), (160, 2, True), (106, 99, False), (999, 0, False)],
)
def test_tokencake_moves_what_gains_more_than_it_takes(tool: int, admits: int, moved: bool):
    """69 + 37 = 106: one request must gain 107 ns, two of them 54 each."""
    inputs = {"ask": "offload", "now": 1000, "tool": tool, "out": 69, "in": 37, "admits": admits}
    assert choose("tokencake", inputs, lead_ns=0).startswith("offload") == moved


def test_tokencake_reserves_step_by_step():
    """c has all 5 blocks at 271: one is reserved, then two, which is all that a needs; c ends at 444 and b loads."""
    ran = run_engine(
        operations(300, output=4),
        engine("tokencake", decode=100, unknown_tool_ns=300, lead_ns=10, retry_ns=40, pool_max_ppm=0),
    )
    assert times(ran, "c") == [18, 87, 114, 444]
    assert decisions(ran)[2:] == [
        [271, "tokencake", "reserve(blocks=1)"],
        [271, "tokencake", "wake(at_ns=311)"],
        [311, "tokencake", "reserve(blocks=2)"],
        [311, "tokencake", "wake(at_ns=351)"],
        [318, "tokencake", "reserve(blocks=0)"],
        [318, "tokencake", "prefetch()"],
        [318, "engine", "not done"],
    ]
    assert transfers(ran)[1:] == [["host", "in", 444, 481, 2]]
    assert times(ran, "b") == [318, 481, 495, 495]


def test_tokencake_has_a_pool_for_critical_calls():
    """ST-LIF-035: at 34 all 5 blocks are in use and r waits for memory, so one block is set apart: for r, whose path is the longest."""
    calls = [
        {"name": "p", "kind": "llm", "prompt": 4, "output": 3},
        {"name": "q", "kind": "llm", "prompt": 8, "output": 9},
        {"name": "r", "kind": "llm", "prompt": 9, "output": 2},
        {"name": "s", "kind": "llm", "prompt": 3, "output": 2, "after": ["r"]},
    ]
    ran = run_engine(calls, engine("tokencake", retry_ns=1))
    assert decisions(ran)[0] == [34, "tokencake", "reserve(blocks=1)"]
    assert times(ran, "r")[1] == 112  # when q has ended, which holds 4 blocks by then
    assert all(row["outcome"] == 1 for row in ran.rows("events"))


# -- finding them -----------------------------------------------------------------------------------------------------


def test_all_are_there():
    assert {"none", "prefix", "keep", "offload-lru", "continuum", "infercept", "cost", "tokencake"} <= set(
        policy_names()
    )
    for name in policy_names():
        policy = find_policy(name)
        assert policy.name == name
        assert policy.rule.endswith(".")
        assert policy.source
        assert policy.Settings.parse({}, path="settings")


def test_others_are_found_too():
    """ST-LIF-001."""
    with installed(Scripted):
        assert find_policy("scripted") is Scripted
    with pytest.raises(DocumentError) as caught:
        find_policy("tokencakes")
    assert "did you mean 'tokencake'?" in str(caught.value)
    assert "keep" in (caught.value.hint or "")


class Misnamed(Policy):
    name = "other"


def test_what_is_no_policy_is_refused():
    class Broken(Scripted):
        name = "broken"

    Broken.__qualname__ = "NotThere"
    with installed(Broken), pytest.raises(UsageError, match="cannot be loaded"):
        find_policy("broken")
    Misnamed.name = "wrong"
    with installed(Misnamed):
        Misnamed.name = "other"
        with pytest.raises(UsageError, match="no policy of the name wrong"):
            find_policy("wrong")
        del Misnamed.name
        with pytest.raises(UsageError, match="no policy of the name wrong"):
            find_policy("wrong")


class Unfinished(Policy):
    name = "unfinished"
    rule = "None yet."


def test_what_a_policy_lacks_is_told():
    with (
        installed(Unfinished),
        pytest.raises(UsageError, match=r"unfinished .* lacks source, choose, on"),
    ):
        find_policy("unfinished")


def test_a_policy_without_its_tier_is_refused():
    """ST-LIF-002."""
    short = {key: value for key, value in engine("tokencake").items() if key not in {"tiers", "links"}}
    with pytest.raises(DocumentError) as caught:
        run_engine(operations(5), short)
    assert "tokencake needs the tier host" in str(caught.value)
    assert "tiers.host" in (caught.value.hint or "")


def test_actions_as_text():
    """ST-LIF-041."""
    keep = KeepForTools(KeepForTools.Settings(), FACTS)
    assert choice_text(keep.choose({"tools": 1, "last": False})) == "keep()"
    assert choice_text(()) == "nothing"
