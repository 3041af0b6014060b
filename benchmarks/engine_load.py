"""Loads for the simulated engine: single requests with arrivals, as traces, with the blocks that they share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from semtrace.engine.work import Work
from semtrace.records.columns import Columns
from semtrace.records.enums import Evidence, OperationKind, OperationStatus
from semtrace.records.trace import Trace
from semtrace.records.trace_tables import TRACE_TABLE

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

HASHED_TOKENS = 512
"""Tokens of a block of the Mooncake traces."""


def requests(arrival_ns: Integers, prompt: Integers, output: Integers) -> Trace:
    """A task with one model operation for each request."""
    count = len(prompt)
    made = {
        "trace": {"content_level": [0]},
        "tasks": {
            "name": np.full(count, "request", dtype=object),
            "arrival_ns": arrival_ns,
            "outcome": np.full(count, 1),
        },
        "models": {"name": ["model"]},
        "operations": {
            "task": np.arange(count),
            "kind": np.full(count, OperationKind.LLM),
            "name": np.full(count, "request", dtype=object),
            "model": np.zeros(count, dtype=np.int64),
            "status": np.full(count, OperationStatus.OK),
            "external_delay_ns": np.zeros(count, dtype=np.int64),
            "context_segments": np.zeros(count, dtype=np.int64),
            "prompt_tokens": prompt,
            "output_tokens": output,
            "tokens_evidence": np.full(count, Evidence.OBSERVED),
            "duration_evidence": np.full(count, Evidence.MISSING),
        },
    }
    tables = {
        name: Columns.of(spec, made[name]) if name in made else Columns(spec, spec.empty())
        for name, spec in TRACE_TABLE.items()
    }
    return Trace(tables)


def unshared(prompt: Integers, output: Integers, size: int) -> Work:
    """The work of requests that share nothing."""
    full = (prompt + output) // size
    start = np.concatenate([[0], np.cumsum(full)])
    return Work(size, prompt, output, start, np.arange(start[-1]), int(start[-1]), {}, ())


def mooncake(path: Path, size: int) -> tuple[Trace, Work]:
    """A Mooncake trace: a prompt's blocks are the parts of its hashed blocks, an output shares nothing.

    Args:
        path: the trace, one request a line.
        size: tokens in an engine's block; divides 512.
    """
    with path.open() as lines:
        rows = [json.loads(line) for line in lines]
    prompt = np.array([row["input_length"] for row in rows], dtype=np.int64)
    output = np.array([row["output_length"] for row in rows], dtype=np.int64)
    arrival = np.array([row["timestamp"] for row in rows], dtype=np.int64) * 1_000_000
    hashes = np.array([name for row in rows for name in row["hash_ids"]], dtype=np.int64)
    hash_start = np.concatenate([[0], np.cumsum([len(row["hash_ids"]) for row in rows])])
    parts = HASHED_TOKENS // size
    full = (prompt + output) // size
    start = np.concatenate([[0], np.cumsum(full)])
    block = np.arange(start[-1]) - np.repeat(start[:-1], full)
    told = block < np.repeat(prompt // size, full)
    hashed = np.repeat(hash_start[:-1], full) + block // parts
    keys = np.zeros(start[-1], dtype=np.int64)
    keys[told] = hashes[hashed[told]] * parts + block[told] % parts
    keys[~told] = (int(hashes.max()) + 1) * parts + np.arange(int((~told).sum()))
    used, keys = np.unique(keys, return_inverse=True)
    return requests(arrival, prompt, output), Work(size, prompt, output, start, keys, len(used), {}, ())
