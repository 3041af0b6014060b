"""Comparing policies: pairs with the baseline, refusals, and the command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from cli.conftest import run
from semtrace.errors import DocumentError, UsageError
from semtrace.store.bundle import write_bundle
from semtrace.sweep.document import SweepDocument
from semtrace.sweep.policies import policy_sweep, rows_of
from support.graphs import graph

if TYPE_CHECKING:
    from pathlib import Path


def row(policy: str, seed: int, latency: int | None, error: str | None = None) -> dict[str, Any]:
    return {
        "point": 0, "plan": "dag", "arrivals": "together", "seed": seed, "set.policy.name": policy, "error": error,
        "root_latency.mean": latency, "root_latency.p95": latency, "sum.cached_tokens": seed,
    }  # fmt: skip


def test_differences_are_of_the_same_seed():
    rows = [row("prefix", 0, 100), row("prefix", 1, 1000), row("keep", 1, 1003), row("keep", 0, 101)]
    prefix, keep = rows_of(rows, "prefix")
    assert (prefix.difference_ns, keep.difference_ns) == (0, 2)
    assert keep.interval is not None
    assert (keep.interval.low, keep.interval.high) == (1, 3)
    assert keep.latency_ns == 552
    assert keep.sums == {"sum.cached_tokens": 0.5}


def test_runs_that_were_refused_have_no_part():
    rows = [
        row("prefix", 0, 100),
        row("prefix", 1, 1000),
        row("keep", 0, 101),
        row("keep", 1, None, "too large"),
    ]
    keep = rows_of(rows, "prefix")[1]
    assert (keep.runs, keep.difference_ns, keep.interval, keep.error) == (1, 1, None, "too large")


def test_nothing_is_said_of_a_policy_that_never_ran():
    keep = rows_of([row("prefix", 0, 100), row("keep", 0, None, "too large")], "prefix")[1]
    assert (keep.latency_ns, keep.p95_ns, keep.difference_ns) == (None, None, None)


def test_the_baseline_is_there_once():
    base = SweepDocument.parse({}, path="sweep")
    assert policy_sweep(base, ["keep"], "prefix").settings["policy.name"] == ["prefix", "keep"]
    assert policy_sweep(base, ["keep", "prefix"], "prefix").settings["policy.name"] == ["keep", "prefix"]


def test_wrong_policies():
    base = SweepDocument.parse({}, path="sweep")
    with pytest.raises(UsageError, match="no policy is named"):
        policy_sweep(base, [], "prefix")
    with pytest.raises(UsageError, match="keep stands twice"):
        policy_sweep(base, ["keep", "keep"], "prefix")
    with pytest.raises(DocumentError, match="keep"):
        policy_sweep(base, ["kep"], "prefix")
    with pytest.raises(UsageError, match="itself"):
        policy_sweep(
            SweepDocument.parse({"settings": {"policy.name": ["keep"]}}, path="sweep"), ["keep"], "prefix"
        )


@pytest.fixture
def trace(tmp_path: Path) -> str:
    call = {"kind": "llm", "prompt": 64, "output": 16, "session": "a"}
    made = graph(
        {
            "operations": [
                {"name": "ask", **call},
                {"name": "tool", "duration_ns": 50_000_000, "session": "a", "after": ["ask"]},
                {"name": "again", **call, "prompt": 96, "after": ["tool"]},
            ]
        }
    )
    write_bundle(tmp_path / "t.semtrace", trace=made.trace)
    return str(tmp_path / "t.semtrace")


def test_the_command(trace: str, tmp_path: Path):
    output = tmp_path / "runs.parquet"
    words = [
        "compare-policies",
        trace,
        "--set",
        "kv_tokens=400",
        "--copies",
        "6",
        "--seeds",
        "2",
        "--workers",
        "1",
    ]
    words += ["--arrivals", "poisson:1000000", "-o", str(output)]
    told = run(*words, "--policies", "keep,offload-lru", "--json")
    assert told.code == 0, told.err
    value = told.json
    assert [each["policy"] for each in value["policies"]] == ["prefix", "keep", "offload-lru"]
    assert value["policies"][0]["difference_ns"] == 0
    assert pq.read_table(output).num_rows == 6
    assert value["drawn"]
    shown = run(*words, "--policies", "keep", "--force")
    assert "difference to prefix, ms" in " ".join(shown.out.split())
    assert "intervals say nothing" not in shown.out
    again = [each if each != "poisson:1000000" else "together" for each in words]
    assert "intervals say nothing" in run(*again, "--policies", "keep", "--force").out
    assert run(*words, "--policies", "keep").code == 2
    wrong = run(*words, "--policies", "kep", "--force")
    assert (wrong.code, "keep" in wrong.err) == (2, True)
