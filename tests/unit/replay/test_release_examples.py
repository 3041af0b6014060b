"""The examples of spec/release.md, plans.md and scenario.md give what they say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from semtrace.graph.barrier import barrier
from semtrace.graph.legality import judge
from semtrace.replay.run import replay
from support.graphs import events, graph, scenario

SPEC = Path(__file__).parents[3] / "spec"
PAGES = {"release.md": 3, "plans.md": 4, "scenario.md": 3}


def blocks(page: str) -> list[dict[str, Any]]:
    text = (SPEC / page).read_text("utf-8")
    return [
        json.loads(block)
        for block in re.findall(r"^```json example\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    ]


EXAMPLES = [pytest.param(block, id=f"{page}-{at}") for page in PAGES for at, block in enumerate(blocks(page))]


@pytest.mark.parametrize("page", PAGES)
def test_examples_are_found(page: str):
    assert len(blocks(page)) == PAGES[page]


@pytest.mark.parametrize("example", EXAMPLES)
def test_example(example: dict[str, Any]):
    made = graph(example)
    known = {
        "tasks", "stages", "operations", "plan", "barrier", "groups", "scenario",
        "arrivals", "events", "judged", "findings",
    }  # fmt: skip
    assert set(example) <= known, "an example says something that is not looked at"
    for pair in example.get("judged", ()):
        edge = {key: value for key, value in pair.items() if key not in {"verdict", "path"}}
        (verdict,) = judge(made.trace, made.plan({"edges": [edge]})).verdicts
        assert (verdict.kind, made.names(verdict.path)) == (pair["verdict"], pair["path"])
    plan = made.plan(example.get("plan"))
    if "barrier" in example:
        plan = barrier(made.trace, **example["barrier"])
        groups = [{"wait": made.names(group.wait), "hold": made.names(group.hold)} for group in plan.groups]
        assert groups == example["groups"]
    if "findings" in example:
        assert [finding.requirement for finding in judge(made.trace, plan).findings] == example["findings"]
    if "events" in example:
        execution = replay(made.trace, plan, scenario(example.get("scenario")))
        assert events(made, execution) == example["events"]
        if "arrivals" in example:
            assert execution.instances.ints("arrival_ns").tolist() == example["arrivals"]
