"""The examples of spec/lifecycle.md give what they say, and engine documents that lack what a policy needs are refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from semtrace.check.executions import check_execution
from semtrace.engine.document import parse_engine
from semtrace.errors import DocumentError
from support.lifecycle import TINY, decisions, document, run_engine, times, transfers

PAGE = (Path(__file__).parents[3] / "spec" / "lifecycle.md").read_text("utf-8")
EXAMPLES = [
    json.loads(block) for block in re.findall(r"^```json example\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
]
STEPS = ("start_ns", "end_ns", "tokens", "requests", "free_blocks")


def test_examples_are_found():
    assert len(EXAMPLES) == 4


@pytest.mark.parametrize("example", EXAMPLES)
def test_example(example: dict[str, Any]):
    """ST-LIF-014, ST-LIF-021, ST-LIF-023, ST-LIF-026, ST-LIF-031, ST-LIF-034 and ST-LIF-041."""
    assert set(example) <= {
        "engine", "operations", "events", "cached", "loaded", "decisions", "transfers", "steps",
    }  # fmt: skip
    ran = run_engine(example["operations"], example["engine"])
    assert check_execution(ran.execution, ran.trace) == []
    assert {name: times(ran, name) for name in example["events"]} == example["events"]
    for column, name in (("cached_tokens", "cached"), ("loaded_tokens", "loaded")):
        found = {each: ran.event(each)[column] for each in example.get(name, {})}
        assert found == example.get(name, {})
    assert decisions(ran) == example["decisions"]
    assert transfers(ran) == example.get("transfers", [])
    steps = [[row[name] for name in STEPS] for row in ran.rows("steps")]
    assert steps == example["steps"]


BASE = document({"blocks": 9, "block_size": 4, "cost": [10, 0, 1, 1, 0]})
HOST = {"tiers": {"host": {"blocks": 4}}}
LINK = {"links": {"host": {"out_bytes_per_s": 10, "in_bytes_per_s": 10}}}


@pytest.mark.parametrize(
    ("change", "path", "says"),
    [
        ({"policy": {"name": "keeps"}}, "policy.name", "did you mean 'keep'?"),
        ({"policy": {"name": "keep", "settings": {"x": 1}}}, "policy.settings", "unknown key 'x'"),
        ({"policy": {"nam": "keep"}}, "policy", "did you mean 'name'?"),
        ({"policy": {"name": "keep"}, **HOST}, "links.host", "tier host has no link"),
        ({"policy": {"name": "keep"}, **LINK}, "tiers.host", "no such tier"),
        ({"policy": {"name": "keep"}, **HOST, **LINK, "model": None}, "model", "bytes of a block"),
        (
            {"policy": {"name": "keep"}, "scheduler": {"prefix_caching": False}},
            "scheduler.prefix_caching",
            "keep needs blocks that are found again",
        ),
        (
            {"policy": {"name": "keep"}, "tiers": {"host": {"blocks": 4, "bytes": 9}}, **LINK},
            "tiers.host",
            "exactly one of blocks and bytes",
        ),
        (
            {"policy": {"name": "keep"}, "tiers": {"host": {"bytes": 15}}, **LINK},
            "tiers.host.bytes",
            "tier host has 0 blocks",
        ),
    ],
)
def test_wrong_documents_are_refused(change: dict[str, Any], path: str, says: str):
    """ST-LIF-001 to ST-LIF-003: the member that is wrong, and what to do."""
    with pytest.raises(DocumentError) as caught:
        parse_engine(
            {key: value for key, value in {**BASE, **change}.items() if value is not None}, path="engine"
        )
    assert says in str(caught.value)
    assert caught.value.path == "engine"
    assert str(caught.value).startswith(f"engine: {path}")
    assert caught.value.requirement is not None


def test_a_policy_is_written_out_with_its_settings():
    """ST-LIF-001."""
    assert parse_engine({**BASE, "policy": {"name": "keep"}}, path="engine").as_json()["policy"] == {
        "name": "keep", "settings": {},
    }  # fmt: skip


def test_without_prefix_caching_none_is_what_is_left():
    """ST-LIF-001: the policy `none` is the scheduler without prefix caching."""
    operations = [
        {"name": "a", "kind": "llm", "prompt": 8, "output": 1, "content": "x"},
        {"name": "b", "kind": "llm", "prompt": 8, "output": 1, "content": "x", "after": ["a"]},
    ]
    engine = {"blocks": 9, "block_size": 4, "cost": [10, 0, 1, 1, 0]}
    found = [
        run_engine(operations, {**engine, **change}).event("b")["cached_tokens"]
        for change in (
            {},
            {"policy": {"name": "prefix"}},
            {"policy": {"name": "none"}},
            {"scheduler": {"prefix_caching": False}},
        )
    ]
    assert found == [4, 4, 0, 0]


def test_blocks_need_the_model():
    """ST-LIF-050: a row says how many bytes."""
    short = {"blocks": 9, "block_size": 4, "cost": [10, 0, 1, 1, 0], "model": None}
    operations = [{"name": "a", "kind": "llm", "prompt": 8, "output": 1}]
    with pytest.raises(DocumentError, match="bytes of a block"):
        run_engine(operations, short)
    assert run_engine(operations, short, detail=("steps",)).rows("steps")


def test_the_tiny_model_has_four_bytes_a_token():
    """ST-LIF-003."""
    assert parse_engine(BASE, path="engine").block_bytes == 16
    assert TINY["head_dim"] == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"policy": "keep"}, "engine: policy: must be a mapping of keys to values, and is 'keep'"),
        ({"policy": {"name": 3}}, "engine: policy.name: must be text, and is 3"),
        ({"policy": {"name": "continuum", "settings": {"ttl_ns": -1}}}, "engine: policy.settings.ttl_ns: must be"),
        ({"cost": {"kind": "linear"}}, "engine: cost.c0_ps: is missing; cost.c_seq_ps: is missing"),
        ({"cost": {"kind": "cubic"}}, "engine: cost.kind: is 'cubic'"),
        ({"model": "Qwen3-8"}, "engine: model: no model 'Qwen3-8' in the catalog"),
        ({"model": {"name": "x", "layer": 1}}, "engine: model.layers: is missing; "),
        ({"device": {"name": "x", "bf16_flops": 0}}, "engine: device.bf16_flops: "),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_part_is_told_like_the_rest(change: dict[str, Any], says: str):
    with pytest.raises(DocumentError) as caught:
        parse_engine({**BASE, **change}, path="engine")
    assert str(caught.value).startswith(says)
    if change == {"policy": "keep"}:
        assert caught.value.hint == "policy: {name: keep} in a document, or --set policy.name=keep"
