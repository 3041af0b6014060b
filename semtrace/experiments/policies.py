"""Lifecycle policies against the prefix cache: for each a scenario where it wins and one where it loses, and two exact cases."""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING, Final

from semtrace.experiments.base import Compared, Experiment, Lab, Result, Table
from semtrace.experiments.policy_cases import SHARED, inversion, shared_block
from semtrace.experiments.policy_scenarios import MS, SCENARIOS
from semtrace.measure.compare import bootstrap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semtrace.experiments.policy_scenarios import Judged, Scenario

LATENCY: Final = "root_latency.mean"
AGENTS: Final = 8
"""Agents of the round that reads one shared block."""
_HEADINGS: Final = (
    "policy",
    "scenario",
    "prefix, ms",
    "policy, ms",
    "difference, ms (95 % interval)",
    "seeds that agree",
    "why",
)


def _run(lab: Lab) -> Result:
    found: list[tuple[Judged, Scenario, Compared]] = []
    for scenario in SCENARIOS:
        names = ["prefix", *(judged.policy for judged in scenario.judged)]
        latency: dict[str, list[float]] = {name: [] for name in names}
        for seed in lab.seeds:
            rows = lab.replay(
                scenario.name,
                scenario.make(seed),
                seed,
                engine=dict(scenario.engine),
                arrivals=[None],
                settings={"policy.name": names},
            )
            for name, row in zip(names, rows, strict=True):
                latency[name].append(float(row[LATENCY]) / 1e9)
        for judged in scenario.judged:
            compared = Compared(
                f"{judged.policy}, {scenario.name}: mean root latency, prefix → {judged.policy}",
                "less" if judged.wins else "more",
                latency["prefix"],
                latency[judged.policy],
                -1 if judged.wins else 1,
                "seconds",
            )
            found.append((judged, scenario, compared))
    order = list(dict.fromkeys(judged.policy for judged, _, _ in found))
    found.sort(key=lambda each: (order.index(each[0].policy), not each[0].wins))
    table = Table(_HEADINGS, [_cells(*each) for each in found])
    why = (
        "There is nothing to compare with. A policy is neither good nor bad: each is better than the prefix cache where what it assumes "
        "is so, and worse where it is not."
    )
    return Result([compared for _, _, compared in found], lab.rows, why, _facts(), table=table)


def _cells(judged: Judged, scenario: Scenario, compared: Compared) -> Sequence[str]:
    pairs = zip(compared.first, compared.second, strict=True)
    differences = [round((second - first) * 1e9) for first, second in pairs]
    middle = f"{mean(differences) / MS:+,.0f}"
    if len(differences) > 1:
        interval = bootstrap(differences)[1]
        middle += f" ({interval.low / MS:+,.0f} … {interval.high / MS:+,.0f})"
    same = sum((difference < 0) == judged.wins and difference != 0 for difference in differences)
    return (
        judged.policy,
        scenario.name,
        f"{mean(compared.first) * 1000:,.0f}",
        f"{mean(compared.second) * 1000:,.0f}",
        middle,
        f"{same} of {len(differences)}",
        judged.why,
    )


def _facts() -> list[str]:
    lru, cake = (inversion(policy) for policy in ("prefix", "tokencake"))
    plain, pic, dance = (shared_block(policy, AGENTS) for policy in ("prefix", "pic", "tokendance"))
    block = SHARED // 16
    mirror = block - (pic.blocks - dance.blocks) // (AGENTS - 1)
    critical = (
        f"critical inversion: with the prefix cache a critical call waits {lru.wait_ns // MS} ms for blocks that {len(lru.behind)} "
        f"background calls took of its context while it waited for a tool, and finds {lru.hit_tokens} tokens of it; the root takes "
        f"{lru.root_ns / 1e9:.2f} s. tokencake: {cake.wait_ns // MS} ms, behind {len(cake.behind)}, {cake.hit_tokens} tokens, "
        f"{cake.root_ns / 1e9:.2f} s"
    )
    shared = (
        f"one shared block of {SHARED:,} tokens behind {AGENTS} histories of unequal lengths: prefix hits {plain.hit_tokens}; the block "
        f"is adapted {pic.adapted} times by pic, {dance.adapted} time by tokendance; it takes {AGENTS * block} blocks with pic, with "
        f"tokendance {block} and {AGENTS - 1} times {mirror}, {pic.blocks - dance.blocks} fewer"
    )
    return [critical, shared]


POLICIES: Final = Experiment(
    "policies",
    "Lifecycle policies against the prefix cache: where each wins, and where it loses",
    "none; the rules are those of the papers that semtrace policies names",
    "Qwen3-8B on an A100 with little memory, the default settings of every policy; the same arrivals for both; mean root latency, "
    "mean over the seeds, bootstrap interval of the mean difference (all scenarios are ours, chosen to show it)",
    _run,
    blocks=10,
)
