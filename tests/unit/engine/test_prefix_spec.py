"""The examples of spec/prefix.md give the keys that they state."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from semtrace.check import check_trace
from semtrace.engine.work import Work
from support.prefix_examples import made

PAGE = Path(__file__).parents[3] / "spec" / "prefix.md"
EXAMPLES = [
    json.loads(block)
    for block in re.findall(r"^```json example\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
]


@pytest.mark.parametrize("at", range(5))
def test_example(at: int):
    example = EXAMPLES[at]
    names = [operation["name"] for operation in example["operations"]]
    assert set(example) <= {"block_size", "trace_block_size", "operations", "keys"}
    trace = made(example["operations"], example.get("trace_block_size"))
    assert check_trace(trace) == []
    work = Work.of(trace, example["block_size"])
    order: dict[int, int] = {}
    for key in work.keys.tolist():
        order.setdefault(key, len(order))
    keys = {
        name: [order[key] for key in work.keys[work.key_start[row] : work.key_start[row + 1]].tolist()]
        for row, name in enumerate(names)
    }
    assert keys == example["keys"]


def test_all_examples_are_executed():
    assert len(EXAMPLES) == 5
