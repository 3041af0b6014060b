"""Sampling tasks: the same on every machine, and for every program that follows ST-LIN-030."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from blake3 import blake3

from semtrace.errors import UsageError
from semtrace.transform.lineage import Step, producer, source
from semtrace.transform.select import keep_tasks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semtrace.records.trace import Trace
    from semtrace.transform.bundle_parts import Parts

CONTEXT: Final = "semtrace v1 sample"
"""Context string of the keys by which tasks are drawn."""

Stratum = Literal["workload", "name", "binding", "tenant", "outcome"]
STRATA: Final = ("workload", "name", "binding", "tenant", "outcome")
"""The columns of tasks by which a sample can be stratified."""


def sample_tasks(parts: Parts, count: int, seed: int, *, by: Stratum | None = None) -> Parts:
    """Tasks drawn without replacement, whole, in their order.

    Args:
        parts: a sound trace with its executions.
        count: how many.
        seed: decides which; a larger sample of the same seed holds a smaller one, if it is not stratified.
        by: column whose values keep their shares of the tasks, as nearly as whole tasks allow.

    Raises:
        UsageError: there are not as many tasks, or the seed is no int64.
    """
    tasks = parts.trace.tasks.rows
    if not 0 < count <= tasks:
        raise UsageError(f"{count} tasks of {tasks} cannot be drawn", code="sample.count", path=parts.name)
    if not -(1 << 63) <= seed < 1 << 63:
        raise UsageError(f"the seed {seed} does not fit 64 bits", code="sample.seed")
    parameters: dict[str, object] = {"count": count}
    strata = np.zeros(tasks, dtype=np.int64)
    if by is not None:
        parameters["by"] = by
        strata = _strata(parts.trace, by)
    sizes = np.bincount(strata)
    order = sorted(range(tasks), key=_keys(tasks, seed).__getitem__)
    by_stratum = np.array(order)[np.argsort(strata[order], kind="stable")]
    within = np.arange(tasks) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    kept = np.zeros(tasks, dtype=np.bool_)
    kept[by_stratum[within < np.repeat(_quotas(sizes, count), sizes)]] = True
    step = Step(
        step="sample",
        producer=producer(),
        inputs=[source(parts.trace)],
        parameters=parameters,
        seed=seed,
    )
    return keep_tasks(parts, kept, step)


def _keys(tasks: int, seed: int) -> list[bytes]:
    """The key of each task; the tasks with the least are drawn."""
    return [
        blake3(struct.pack("<qI", seed, task), derive_key_context=CONTEXT).digest() for task in range(tasks)
    ]


def _strata(trace: Trace, by: str) -> NDArray[np.int64]:
    """The stratum of each task: values of the column in the order of their first task; null is one too."""
    encoded = trace.tasks.array(by).dictionary_encode("encode")
    codes: NDArray[np.int64] = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def _quotas(sizes: NDArray[np.int64], count: int) -> list[int]:
    """How many to draw of each stratum: its share rounded down, the rest to the largest remainders, first ones first."""
    total = int(sizes.sum())
    shares = [divmod(int(size) * count, total) for size in sizes]
    quotas = [whole for whole, _ in shares]
    by_remainder = sorted(range(len(shares)), key=lambda at: (-shares[at][1], at))
    for at in by_remainder[: count - sum(quotas)]:
        quotas[at] += 1
    return quotas
