"""The examples of spec/prefix.md give the keys that they state."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from semtrace.build import TraceBuilder
from semtrace.check import check_trace
from semtrace.engine.work import Work
from semtrace.records.enums import OperationKind, Role, SegmentScope
from semtrace.records.media import BLOCK_IDS_TYPE, TOKEN_IDS_TYPE

if TYPE_CHECKING:
    from semtrace.records.trace import Trace

PAGE = Path(__file__).parents[3] / "spec" / "prefix.md"
EXAMPLES = [
    json.loads(block)
    for block in re.findall(r"^```json example\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
]


def made(example: dict[str, Any]) -> Trace:
    """The trace of an example."""
    assert set(example) <= {"block_size", "trace_block_size", "operations", "keys"}
    size = example.get("trace_block_size")
    b = TraceBuilder(block_size=size, hash_scope="example" if size else None)
    task, rows = b.task("example"), {}
    for operation in example["operations"]:
        pieces = operation.pop("pieces")
        name, base, inherits = (
            operation.pop("name"),
            operation.pop("base", None),
            operation.pop("inherits", 0),
        )
        counts = [piece["tokens"] if "tokens" in piece else len(piece["ids"]) for piece in pieces]
        row = rows[name] = b.operation(
            task, OperationKind.LLM, name, prompt_tokens=operation.pop("prompt", None) or sum(counts),
            output_tokens=operation.pop("output"), reasoning_tokens=operation.pop("reasoning", None),
        )  # fmt: skip
        if base is not None:
            b.inherit(row, rows[base], inherits)
        for piece, count in zip(pieces, counts, strict=True):
            segment(b, row, dict(piece), count, rows)
        if "output_ids" in operation:
            ids = operation.pop("output_ids")
            b.rows["operations"][row]["output_token_ids"] = b.artifact(
                struct.pack(f"<{len(ids)}I", *ids), TOKEN_IDS_TYPE
            )
        assert operation == {}
    return b.build().trace


def segment(
    b: TraceBuilder, row: int, piece: dict[str, Any], count: int | None, rows: dict[str, int]
) -> None:
    columns: dict[str, Any] = {"tokens": count}
    piece.pop("tokens", None)
    if "ids" in piece:
        ids = piece.pop("ids")
        columns |= {
            "token_ids": b.artifact(struct.pack(f"<{len(ids)}I", *ids), TOKEN_IDS_TYPE),
            "token_ids_start": 0,
        }
    if "blocks" in piece:
        ids = piece.pop("blocks")
        columns |= {
            "block_ids": b.artifact(struct.pack(f"<{len(ids)}Q", *ids), BLOCK_IDS_TYPE),
            "block_ids_start": 0,
        }
    if "repeats" in piece:
        columns["source"] = rows[piece.pop("repeats")]
    scope = SegmentScope[piece.pop("scope", "shared").upper()]
    b.segment(row, Role.USER, piece.pop("text", None), scope=scope, **columns)
    assert piece == {}


@pytest.mark.parametrize("at", range(5))
def test_example(at: int):
    example = EXAMPLES[at]
    names = [operation["name"] for operation in example["operations"]]
    trace = made(example)
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
