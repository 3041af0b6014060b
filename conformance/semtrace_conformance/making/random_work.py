"""Random works and legal plans for them; the same for the same seed on every machine."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

from semtrace.records.enums import OperationKind, OperationStatus, Trigger
from semtrace_conformance.making.planning import judge
from semtrace_conformance.making.work import After, Op, TaskFacts, Work

if TYPE_CHECKING:
    from collections.abc import Mapping

_KINDS: Final = (
    OperationKind.LLM,
    OperationKind.LLM,
    OperationKind.LLM,
    OperationKind.EMBED,
    OperationKind.TOOL,
    OperationKind.TOOL,
    OperationKind.TRANSFORM,
    OperationKind.HUMAN,
)
_STATUSES: Final = (
    *[OperationStatus.OK] * 8,
    OperationStatus.ERROR,
    OperationStatus.CANCELLED,
    OperationStatus.TIMEOUT,
)
_TRIGGERS: Final = (Trigger.FINISH, Trigger.FINISH, Trigger.START, Trigger.FIRST_TOKEN)
_TRIGGER_NAMES: Final = {Trigger.FINISH: "finish", Trigger.START: "start", Trigger.FIRST_TOKEN: "first_token"}


def _pick(rng: random.Random, values: tuple[Any, ...]) -> Any:
    return values[rng.randrange(len(values))]


def random_work(seed: int, *, tasks: int, operations: int, arrivals: bool = False) -> Work:
    """A random work: operations of all kinds and ends, with edges of all triggers, many things at one instant."""
    rng = random.Random(seed)
    made: list[Op] = []
    facts = []
    stages: dict[str, tuple[str | None, int]] = {}
    for task in range(tasks):
        own: list[Op] = []
        for at in range(operations):
            own.append(_operation(rng, f"t{task}o{at}", own, task))
        answer = _pick(rng, tuple(own)).name if rng.randrange(2) else None
        facts.append(TaskFacts(rng.randrange(5) * 40 if arrivals else None, answer))
        made += own
    return Work(made, facts, stages)


def _operation(rng: random.Random, name: str, before: list[Op], task: int) -> Op:
    kind = _pick(rng, _KINDS)
    status = _pick(rng, _STATUSES)
    model = kind in {OperationKind.LLM, OperationKind.EMBED}
    ran = status in {OperationStatus.OK, OperationStatus.CANCELLED}
    counted = model and (ran or rng.randrange(2) == 0)
    sources = {_pick(rng, tuple(before)).name for _ in range(rng.randrange(4))} if before else set()
    after: dict[tuple[str, Trigger], After] = {}
    for source in sorted(sources):
        for _ in range(1 + rng.randrange(2)):
            trigger = _pick(rng, _TRIGGERS)
            after[source, trigger] = After(source, trigger, rng.randrange(4) * 10 if rng.randrange(2) else 0)
    return Op(
        name,
        tuple(after.values()),
        kind,
        status,
        duration=None if kind is OperationKind.LLM and ran else rng.randrange(8) * 10,
        prompt=rng.randrange(60) if counted else None,
        output=rng.randrange(12) if counted and kind is OperationKind.LLM else None,
        delay=rng.randrange(5) * 10 if rng.randrange(3) == 0 else 0,
        task=task,
    )


def random_plan(seed: int, work: Work, digest: str, *, edges: int, groups: int) -> Mapping[str, Any]:
    """A random legal plan for a work: constraints are tried, and kept if the plan with them is legal."""
    rng = random.Random(seed)
    plan: dict[str, Any] = {"work_digest": digest, "name": "custom", "edges": [], "groups": []}

    def legal() -> bool:
        judged = judge(work, plan)
        return not judged.against and not judged.circle

    for _ in range(20 * edges):
        own = work.of_task(rng.randrange(len(work.tasks)))
        source, target = own[rng.randrange(len(own))], own[rng.randrange(len(own))]
        trigger, lag = _TRIGGER_NAMES[_pick(rng, _TRIGGERS)], rng.randrange(3) * 10
        if source != target and len(plan["edges"]) < edges:
            plan["edges"].append({"source": source, "target": target, "trigger": trigger, "lag_ns": lag})
            if not legal():
                plan["edges"].pop()
    for _ in range(50 * groups):
        own = work.of_task(rng.randrange(len(work.tasks)))
        wait = sorted({own[rng.randrange(len(own))] for _ in range(1 + rng.randrange(3))})
        hold = sorted({own[rng.randrange(len(own))] for _ in range(1 + rng.randrange(3))} - set(wait))
        if hold and len(plan["groups"]) < groups:
            plan["groups"].append({"wait": wait, "hold": hold})
            if not legal():
                plan["groups"].pop()
    return plan
