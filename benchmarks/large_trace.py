"""A large valid trace, made with NumPy: what the benchmarks open, check and plan."""

from __future__ import annotations

import numpy as np

from semtrace.records.columns import NULL, Columns
from semtrace.records.enums import EdgeKind, Evidence, OperationKind, OperationStatus, Role, SegmentScope
from semtrace.records.trace import Trace
from semtrace.records.trace_tables import TRACE_TABLE

TASK_OPERATIONS = 1000
TURNS = 100


def _nullable(values: np.ndarray) -> list[int | None] | np.ndarray:
    import pyarrow as pa

    return pa.array(values, mask=values == NULL)


def large_trace(operations: int, seed: int = 0) -> Trace:
    """Tasks of 1000 operations in ten sessions of 100 turns, four segments each, 2.4 edges an operation."""
    rng = np.random.default_rng(seed)
    rows = np.arange(operations)
    task, inside = rows // TASK_OPERATIONS, rows % TASK_OPERATIONS
    sessions = TASK_OPERATIONS // TURNS
    turn, session = inside // sessions, inside % sessions + task * sessions
    base = np.where(turn > 0, rows - sessions, NULL)
    per = 4
    operation = np.repeat(rows, per)
    tokens = rng.integers(1, 400, size=operations * per)
    own = tokens.reshape(-1, per).sum(axis=1)
    output = rng.integers(1, 500, size=operations)
    prompt = np.zeros(operations, dtype=np.int64)
    count = np.zeros(operations, dtype=np.int64)
    for at in range(TURNS):
        now = rows[turn == at]
        before = base[now]
        prompt[now] = own[now] + (prompt[before] + output[before] if at else 0)
        count[now] = count[before] + per + 1 if at else 0
    source = np.where((np.arange(operations * per) % per == 3) & (inside[operation] > 0), operation - 1, NULL)
    data = np.unique(
        np.concatenate(
            [
                np.stack([operation[source != NULL], source[source != NULL]], axis=1),
                np.stack([rows[base != NULL], base[base != NULL]], axis=1),
            ]
        ),
        axis=0,
    )
    extra = rows[inside >= TASK_OPERATIONS // 2]
    control = np.stack([extra, extra - rng.integers(1, TASK_OPERATIONS // 2, size=len(extra))], axis=1)
    edges = np.concatenate([data, control])
    kind = np.concatenate([np.full(len(data), EdgeKind.DATA), np.full(len(control), EdgeKind.CONTROL)])
    order = np.lexsort([kind, edges[:, 1], edges[:, 0]])
    edges, kind = edges[order], kind[order]
    tasks = -(-operations // TASK_OPERATIONS)
    made = {
        "trace": {"content_level": [4]},
        "tasks": {"name": [f"task {at}" for at in range(tasks)], "outcome": np.full(tasks, 1)},
        "sessions": {"task": np.arange(int(session[-1]) + 1) // sessions},
        "models": {"name": ["model"]},
        "operations": {
            "task": task,
            "session": session,
            "kind": np.full(operations, OperationKind.LLM),
            "name": np.full(operations, "agent", dtype=object),
            "model": np.zeros(operations, dtype=np.int64),
            "status": np.full(operations, OperationStatus.OK),
            "external_delay_ns": np.zeros(operations, dtype=np.int64),
            "context_base": _nullable(base),
            "context_segments": count,
            "prompt_tokens": prompt,
            "output_tokens": output,
            "reasoning_tokens": np.zeros(operations, dtype=np.int64),
            "tokens_evidence": np.full(operations, Evidence.OBSERVED),
            "duration_evidence": np.full(operations, Evidence.MISSING),
        },
        "segments": {
            "operation": operation,
            "role": np.full(len(operation), Role.USER),
            "message": np.arange(len(operation)) % per,
            "tokens": tokens,
            "source_operation": _nullable(source),
            "scope": np.full(len(operation), SegmentScope.SHARED),
        },
        "edges": {
            "target": edges[:, 0],
            "source": edges[:, 1],
            "kind": kind,
            "trigger": np.full(len(edges), 1),
            "lag_ns": np.zeros(len(edges), dtype=np.int64),
            "evidence": np.full(len(edges), Evidence.DERIVED),
        },
    }
    tables = {
        name: Columns.of(spec, made[name]) if name in made else Columns(spec, spec.empty())
        for name, spec in TRACE_TABLE.items()
    }
    return Trace(tables)
