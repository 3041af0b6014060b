"""The command `policies`, and a replay under one."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING
from unittest.mock import patch

from cli.conftest import run
from semtrace.policies import registry
from semtrace.policies.registry import policy_names
from semtrace.store.bundle import write_bundle
from support.graphs import graph

if TYPE_CHECKING:
    from pathlib import Path


def test_policies():
    told = run("policies")
    assert told.code == 0
    assert all(name in told.out for name in policy_names())
    assert "tier host" in told.out
    assert "arXiv 2510.18586" in told.out
    rows = json.loads(run("policies", "--json").out)["policies"]
    assert [row["name"] for row in rows] == policy_names()
    assert {row["name"]: row["settings"] for row in rows}["continuum"]["ttl_ns"] == 2_000_000_000


def test_one_policy():
    told = run("policies", "tokencake")
    assert "needs the tier host" in told.out
    assert "lead_ns: 10000000" in told.out
    assert json.loads(run("policies", "keep", "--json").out)["settings"] == {}


def test_one_that_cannot_be_used_hides_no_other():
    broken = EntryPoint("broken", "semtrace.nowhere:Broken", registry.GROUP)
    with patch.object(registry, "entry_points", lambda group: [*entry_points(group=group), broken]):
        told, told_json = run("policies"), json.loads(run("policies", "--json").out)
    assert told.code == 0
    assert "broken cannot be used: " in told.out
    assert "tokencake" in told.out
    assert [each["name"] for each in told_json["broken"]] == ["broken"]
    assert "keep" in [each["name"] for each in told_json["policies"]]


def test_one_that_is_not_there():
    told = run("policies", "keeps")
    assert told.code == 2
    assert "did you mean 'keep'?" in told.err


def test_a_replay_under_a_policy(tmp_path: Path):
    """ST-LIF-001: with its tables."""
    made = graph(
        {
            "operations": [
                {"name": "a", "kind": "llm", "prompt": 40, "output": 20, "session": "s"},
                {"name": "t", "duration_ns": 1000, "after": ["a"]},
                {"name": "b", "kind": "llm", "prompt": 40, "output": 20, "session": "s", "after": ["t"]},
            ]
        }
    )
    bundle, out = str(tmp_path / "t.semtrace"), str(tmp_path / "e.semtrace")
    write_bundle(tmp_path / "t.semtrace", trace=made.trace)
    told = run(
        "replay", bundle, "-o", out, "--backend", "engine", "--set", "policy.name=keep", "--detail", "decisions",
        "--detail", "blocks", "--detail", "transfers", "--json",
    )  # fmt: skip
    assert told.code == 0, told.err
    assert json.loads(told.out)["backend"]["settings"]["policy"] == {"name": "keep", "settings": {}}
    assert run("check", out).code == 0
    assert run("audit", bundle, out).code == 0
