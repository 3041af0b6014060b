"""An all-gather: agents answer, and in the next round each is given the answers of all after its own private text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from semtrace.build.builder import TraceBuilder
from semtrace.graph.plan import dag
from semtrace.records.enums import OperationKind, Role
from semtrace.records.media import TOKEN_IDS_TYPE
from semtrace.replay.run import replay
from semtrace.replay.scenario import Scenario
from semtrace.store.digests import show, work_digest
from support.lifecycle import DETAIL, Ran, document

if TYPE_CHECKING:
    from collections.abc import Sequence


def all_gather(privates: Sequence[int], answer: int, rounds: int, engine: dict[str, Any]) -> Ran:
    """Run it.

    Args:
        privates: tokens of each agent's private text.
        answer: tokens of each answer.
        rounds: rounds after the first.
        engine: an engine in short form.

    Returns:
        what happened; `r0a1` is the second agent's call in the first round.
    """
    made = TraceBuilder()
    task = made.task("all-gather", arrival_ns=0)
    sessions = [made.session(task, name=f"agent {agent}") for agent in range(len(privates))]
    before: list[int] = []
    names: dict[str, int] = {}
    for at in range(rounds + 1):
        calls = []
        for agent, private in enumerate(privates):
            name = f"r{at}a{agent}"
            call = names[name] = made.operation(
                task, OperationKind.LLM, name, session=sessions[agent],
                prompt_tokens=private + answer * len(before), output_tokens=answer,
            )  # fmt: skip
            ids = np.arange(1000 * agent, 1000 * agent + private, dtype="<u4")
            held = made.artifact(ids.tobytes(), TOKEN_IDS_TYPE)
            made.segment(call, Role.USER, token_ids=held, token_ids_start=0, tokens=private)
            for source in before:
                made.segment(call, Role.USER, source=source, tokens=answer)
            calls.append(call)
        before = calls
    built = made.build()
    settings = {"backend": {"name": "engine", "settings": document(engine)}}
    execution = replay(
        built.trace,
        dag(show(work_digest(built.trace))),
        Scenario.parse(settings, path="scenario"),
        detail=DETAIL,
    )
    rows = {name: built.ids["operations"][row] for name, row in names.items()}
    return Ran(built.trace, execution, rows)
