"""The examples of spec/prompts.md: lengths of prompts, what they have in common, and where ids do not suffice."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from semtrace.check import check_trace
from semtrace.live.prompts import Inputs
from semtrace.live.settings import Vocabulary
from support.prefix_examples import made

if TYPE_CHECKING:
    from numpy.typing import NDArray

PAGE = Path(__file__).parents[3] / "spec" / "prompts.md"
EXAMPLES = [
    json.loads(block)
    for block in re.findall(r"^```json example\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
]


def common(one: NDArray[np.int32], two: NDArray[np.int32]) -> int:
    least = min(len(one), len(two))
    differs = np.flatnonzero(one[:least] != two[:least])
    return int(differs[0]) if len(differs) else least


@pytest.mark.parametrize("at", range(3))
def test_example(at: int):
    example = EXAMPLES[at]
    members = {"vocabulary", "copies", "operations", "lengths", "common", "between_copies", "crowded"}
    assert set(example) <= members
    names = [operation["name"] for operation in example["operations"]]
    trace = made(example["operations"])
    assert check_trace(trace) == []
    inputs = Inputs(
        trace,
        kind="synthetic",
        copies=example.get("copies", 1),
        vocabulary=Vocabulary.model_validate(example["vocabulary"]),
        synthetic_outputs=True,
    )
    assert inputs.findings() == []

    def string(name: str, instance: int) -> NDArray[np.int32]:
        row = names.index(name)
        prompt, output = inputs.ids(row, instance), inputs.output_ids(row, instance)
        assert prompt is not None
        assert output is not None
        assert len(prompt) == example["lengths"][name]
        return np.concatenate([prompt, output])

    for instances, expected in ((0, 0), example["common"]), ((0, 1), example.get("between_copies", {})):
        found = {
            pair: common(*(string(name, each) for name, each in zip(pair.split(), instances, strict=True)))
            for pair in expected
        }
        assert found == expected
    assert [inputs.crowd.places, inputs.crowd.tokens] == example["crowded"]


def test_all_examples_are_executed():
    assert len(EXAMPLES) == 3
