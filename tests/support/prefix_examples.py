"""Traces as the examples of spec/prefix.md and spec/prompts.md are written."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from semtrace.build import TraceBuilder
from semtrace.records.enums import OperationKind, Role, SegmentScope
from semtrace.records.media import BLOCK_IDS_TYPE, TOKEN_IDS_TYPE

if TYPE_CHECKING:
    from semtrace.records.trace import Trace


def made(operations: list[dict[str, Any]], size: int | None = None) -> Trace:
    """The trace of the operations of an example, whose members are used up.

    Args:
        operations: they.
        size: tokens in the blocks of block ids.
    """
    b = TraceBuilder(block_size=size, hash_scope="example" if size else None)
    task, rows = b.task("example"), {}
    for operation in operations:
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
            _segment(b, row, dict(piece), count, rows)
        if "output_ids" in operation:
            ids = operation.pop("output_ids")
            b.rows["operations"][row]["output_token_ids"] = b.artifact(
                struct.pack(f"<{len(ids)}I", *ids), TOKEN_IDS_TYPE
            )
        assert operation == {}
    return b.build().trace


def _segment(
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
