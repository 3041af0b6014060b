"""The columns of tables of results: the same types and units whatever the values are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semtrace.sweep.columns import COLUMNS, column_of, table_of
from semtrace.sweep.document import SweepDocument, points
from semtrace.sweep.run import row_of
from support.graphs import graph

MADE = graph(
    {
        "tasks": [{"arrival_ns": 0}],
        "operations": [
            {"name": "a", "kind": "llm", "prompt": 40, "output": 20, "session": "x"},
            {"name": "b", "kind": "llm", "prompt": 60, "output": 5, "after": ["a"]},
        ],
    }
)
COST = {
    "kind": "linear",
    "c0_ps": 10_000,
    "c_seq_ps": 0,
    "c_prefill_ps": 1000,
    "c_decode_ps": 1000,
    "c_kv_ps": 0,
}


def rows(**change: Any) -> list[dict[str, Any]]:
    grid = {"engine": {"name": "small", "blocks": 20, "block_size": 8, "cost": COST}, **change}
    document = SweepDocument.parse(grid, path="sweep")
    return [row_of(MADE.trace, point) for point in points(document, MADE.trace)]


@pytest.fixture(scope="module")
def detailed() -> dict[str, Any]:
    """A point of which every step was recorded, on an engine whose work and bytes are known."""
    known = {
        "name": "known",
        "blocks": 20,
        "block_size": 8,
        "model": "qwen3-8b",
        "device": "A100-SXM",
        "cost": COST,
    }
    return rows(engine=known, detail="steps")[0]


@pytest.fixture(scope="module")
def row() -> dict[str, Any]:
    return rows()[0]


_PLACEHOLDERS = {
    "…": r"(count|unknown|mean|min|p50|p90|p95|p99|p99\.9|max)",
    "RATIO": "(part|whole|value|unknown)",
    "PART": "(lag|external_delay|submission|queue|resident|preempted|tool|unsplit)",
    "KIND": "(llm|embed|tool|transform|human)",
    "OUTCOME": "(ok|error|cancelled|timeout|skipped|refused)",
    "KEY": r"[a-z0-9_.]+",
}
"""What stands for several names in the table of docs/engine.md."""


def described() -> list[str]:
    """A pattern for each name that the page lists."""
    page = (Path(__file__).parents[3] / "docs/engine.md").read_text("utf-8")
    table = page.partition("### Columns")[2].partition("\n## ")[0]
    first = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    names = [name for cell in first for name in re.findall(r"`([^`]+)`", cell)]
    patterns = []
    for name in names:
        pattern = re.escape(name)
        for each, stands_for in _PLACEHOLDERS.items():
            pattern = pattern.replace(re.escape(each), stands_for)
        same = r"\.(max|mean|unknown|area_ns|span_ns)" if name.startswith("width_by_kind") else ""
        patterns.append(pattern + same)
    return patterns


def test_every_column_of_a_sweep_is_described(row: dict[str, Any], detailed: dict[str, Any]):
    """By its whole name, and nothing is described that no sweep has."""
    names = {**row, **detailed, **rows(settings={"blocks": [20]})[0]}
    patterns = described()
    for name in names:
        assert column_of(name) is not None, name
    assert [name for name in names if not any(re.fullmatch(each, name) for each in patterns)] == []
    assert [each for each in patterns if not any(re.fullmatch(each, name) for name in names)] == []


def test_two_sweeps_go_into_one_table(row: dict[str, Any]):
    """Whatever is known, on time or refused in one of them."""
    timed = table_of(rows(deadline_ns=1_000_000, copies=3))
    plain = table_of([row])
    assert timed.schema.equals(plain.schema, check_metadata=True)
    assert pa.concat_tables([timed, plain]).num_rows == 2
    refused = table_of([*rows(), *rows(settings={"blocks": [3]})])
    assert refused["error"].null_count == 1
    shared = [field for field in refused.schema if field.name in plain.schema.names]
    assert pa.schema(shared).equals(plain.schema, check_metadata=True)
    assert refused.to_pylist()[1]["plan"] == "dag"
    assert refused.to_pylist()[1]["engine"] == "small"


def test_units_are_in_the_schema(row: dict[str, Any]):
    schema = table_of([row]).schema

    def told(name: str) -> tuple[str, bytes | None]:
        field = schema.field(name)
        return str(field.type), (field.metadata or {}).get(b"unit")

    assert told("root_latency.p50") == ("double", b"ns")
    assert told("root_latency.max") == ("int64", b"ns")
    assert told("path.queue") == ("int64", b"ns")
    assert told("path.unknown") == ("int64", None)
    assert told("sum.preempted_ns") == ("int64", b"ns")
    assert told("sum.cached_tokens") == ("int64", b"tokens")
    assert told("deadline.ns") == ("int64", b"ns")
    assert told("goodput_per_second") == ("double", b"1/s")
    assert told("error") == ("string", None)


def test_first_tokens_and_throughput_are_those_of_the_events(row: dict[str, Any]):
    """Step k of the cost above: the prompt's step takes 10 + 40 ns, each after it 10 + 1 ns, and b's 10 + 60 ns."""
    assert (row["ttft.count"], row["ttft.min"], row["ttft.max"]) == (2, 50, 70)
    span = 50 + 19 * 11 + 70 + 4 * 11
    assert row["root_latency.max"] == span
    assert row["output_tokens_per_second"] == pytest.approx(25e9 / span)


def test_steps_that_are_recorded_are_measured(row: dict[str, Any], detailed: dict[str, Any]):
    """In blocks of 8 tokens: the first call holds 5 for its prompt, 6 from its 41st token, 7 from its 49th and 8 for its 57th to 59th."""
    assert not any(name.startswith(("engine.work", "engine.kv_byte_seconds")) for name in row)
    assert row["execution_digest"] == rows()[0]["execution_digest"]
    first = 5 * 50 + (8 * 6 + 8 * 7 + 3 * 8) * 11
    held = first + 8 * 70 + 4 * 8 * 11  # the second call: 8 blocks for 60 tokens, and for 64
    assert detailed["engine.kv_byte_seconds.device"] == pytest.approx(held * 8 * 147_456 / 1e9)
    work = detailed["engine.work.flops"] / detailed["engine.work.bytes"]
    assert detailed["engine.work.intensity"] == pytest.approx(work)
    assert detailed["engine.batches.rows.max"] == 60
    assert table_of([detailed]).schema.field("engine.kv_byte_seconds.device").metadata == {
        b"unit": "B·s".encode()
    }


def test_columns_that_nobody_knows_have_the_type_of_their_values():
    table = table_of([{"a": 1, "b": 1, "c": None}, {"a": 2, "b": 0.5, "c": "x"}, {"a": None, "b": None}])
    assert [str(kind) for kind in table.schema.types] == ["int64", "double", "string"]
    assert table.to_pylist()[2] == {"a": None, "b": None, "c": None}


def test_no_pattern_is_hidden_by_an_earlier_one(row: dict[str, Any], detailed: dict[str, Any]):
    names = [*row, *detailed, "set.blocks", "window.ns", "root_latency.min"]
    used = {column_of(name) for name in names}
    assert [each.pattern for each in COLUMNS if each not in used] == []
