"""Two cases small enough for a sheet of paper: a critical inversion, and what a round's shared block costs and takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from semtrace.experiments.policy_scenarios import MS, Agents, engine
from semtrace.graph.plan import dag
from semtrace.replay.run import replay
from semtrace.replay.scenario import Scenario
from semtrace.store.digests import show, work_digest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from semtrace.records.execution import Execution
    from semtrace.records.trace import Trace

STEP_NS: Final = 50 * MS
"""What every step of these cases takes."""
SHARED: Final = 1600
"""Tokens of the shared block: 100 blocks of 16."""


@dataclass(frozen=True)
class Inversion:
    """What became of the critical call whose context waited for a tool.

    Attributes:
        wait_ns: how long it waited for admission.
        behind: names of the calls that are not critical, were admitted after its context's last call had ended, and ran meanwhile.
        hit_tokens: tokens of its context that it found.
        root_ns: when the root ended.
    """

    wait_ns: int
    behind: Sequence[str]
    hit_tokens: int
    root_ns: int


def inversion(policy: str) -> Inversion:
    """A critical call returns from its tool of 0.5 s; of 18 blocks, three background calls take 5 each, and 6 at last, meanwhile.

    The context has 4 blocks; the call that goes on in it needs 5, and two more calls come after it; but one after a background call. The
    longest path is served first. The link is so slow that moving the context would take longer than the tool.
    """
    made = Agents(0)
    task = made.task("root", 0)
    critical = made.session(task, "critical")
    ask = made.call(task, critical, 64, 1, name="ask")
    tool = made.tool(task, critical, "search", 10 * STEP_NS, ask)
    goes_on = made.call(task, critical, 14, 30, name="go on", base=ask, after=[tool])
    last = made.call(task, critical, 4, 1, name="last", base=goes_on)
    others = [
        made.call(task, made.session(task, f"other {at}"), 80, 16, name=f"other {at}", after=[ask])
        for at in range(3)
    ]
    made.call(task, made.session(task, "writer"), 16, 1, name="write", after=[last, *others])
    trace = made.trace()
    document = engine(18 * 16, link=10_000_000, order="critical_path")
    rows = _events(trace, _replay(trace, document, policy))
    ready, admitted = rows["go on"]["submitted_ns"], rows["go on"]["scheduled_ns"]
    behind = [
        name
        for name, row in rows.items()
        if name.startswith("other")
        and rows["ask"]["finished_ns"] <= row["scheduled_ns"] < admitted
        and ready < row["finished_ns"]
        and ready < admitted
    ]
    return Inversion(
        admitted - ready,
        behind,
        rows["go on"]["cached_tokens"],
        max(row["finished_ns"] for row in rows.values()),
    )


@dataclass(frozen=True)
class Round:
    """A round of agents that read one shared block, each behind a history of another length.

    Attributes:
        hit_tokens: tokens of the round's prompts that were prefix hits.
        adapted: calls that paid for adapting the block to their place.
        computed: tokens of the prompts that were computed.
        blocks: blocks that the round holds while it runs.
    """

    hit_tokens: int
    adapted: int
    computed: int
    blocks: int


def shared_block(policy: str, agents: int) -> Round:
    """A moderator reads a text; then all agents do, at once: the first behind 100 tokens of its own, each next one behind 10 more."""
    made = Agents(0)
    task = made.task("round", 0)
    text = [(made.text(0, SHARED), SHARED)]
    read = made.call(task, made.session(task, "moderator"), 0, 1, name="moderator", texts=text)
    for at in range(agents):
        session = made.session(task, f"agent {at}")
        made.call(task, session, 100 + 10 * at, 4, name=f"agent {at}", texts=text, after=[read])
    trace = made.trace()
    document = engine(60_000)
    document["scheduler"]["max_num_batched_tokens"] = 60_000
    execution = _replay(trace, document, policy)
    rows = [row for name, row in _events(trace, execution).items() if name.startswith("agent")]
    begun = rows[0]["scheduled_ns"]
    free = [row["free_blocks"] for row in execution["steps"].data.to_pylist() if row["start_ns"] == begun]
    paid = [row["choice"] for row in execution["decisions"].data.to_pylist() if "reuse(" in row["choice"]]
    return Round(
        sum(row["cached_tokens"] for row in rows),
        sum("charge_ns=0)" not in choice for choice in paid),
        sum(row["computed_prompt_tokens"] for row in rows),
        60_000 // 16 - free[0],
    )


def _replay(trace: Trace, document: Mapping[str, Any], policy: str) -> Execution:
    cost = {
        "kind": "linear", "c0_ps": 1000 * STEP_NS, "c_seq_ps": 0, "c_prefill_ps": 0, "c_decode_ps": 0, "c_kv_ps": 0,
    }  # fmt: skip
    settings = {**document, "cost": cost, "policy": {"name": policy}}
    scenario = Scenario.parse({"backend": {"name": "engine", "settings": settings}}, path=policy)
    return replay(trace, dag(show(work_digest(trace))), scenario, detail=("steps", "decisions"))


def _events(trace: Trace, execution: Execution) -> dict[str, dict[str, Any]]:
    """Each operation's event by the operation's name."""
    names = trace.operations.data["name"].to_pylist()
    return {names[row["operation"]]: row for row in execution.events.data.to_pylist()}
