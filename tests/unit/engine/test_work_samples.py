"""Keys of a published request trace are those of a plain chain of ids, block by block."""

from __future__ import annotations

import json

import numpy as np
import pytest

from semtrace.engine.work import Work
from semtrace_adapters.base import ImportOptions
from semtrace_adapters.mooncake import ADAPTER


@pytest.mark.parametrize("size", [512, 1024, 64])
def test_request_trace(samples, size):
    path = samples / "peers" / "mooncake" / "synthetic_trace.jsonl"
    trace = ADAPTER.read([path], ImportOptions()).trace
    work = Work.of(trace, size)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    known: dict[tuple[int, object], int] = {}
    chains, keys, whole_blocks = [], [], 0
    for at, row in enumerate(rows):
        parent = -1
        whole = row["input_length"] // 512
        per_key = max(size // 512, 1)
        ids = row["hash_ids"][: whole - whole % per_key]
        whole_blocks += whole * 512 // size
        for place in range(0, len(ids), per_key):
            parent = known.setdefault((parent, tuple(ids[place : place + per_key])), len(known))
            chains.append(parent)
        begin = work.key_start[at]
        step = max(512 // size, 1)
        keys.append(work.keys[begin : begin + len(ids) // per_key * step : step])
    pairs = set(zip(np.concatenate(keys).tolist(), chains, strict=True))
    assert len(pairs) == len(known) == len({key for key, _ in pairs})
    total = sum((row["input_length"] + row["output_length"]) // size for row in rows)
    assert len(work.keys) == total
    # What is not in a whole block of the source is in no other request.
    assert work.key_count == len(known) * max(512 // size, 1) + total - whole_blocks
    assert work.known_by["block_ids"] + work.known_by["unique"] == sum(row["input_length"] for row in rows)
    assert work.remarks == ()
