"""Filtering: the tasks of a trace that meet conditions (ST-LIN-020)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from semtrace.errors import UsageError
from semtrace.transform.lineage import Step, producer, source
from semtrace.transform.predicates import Condition
from semtrace.transform.select import keep_tasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semtrace.transform.bundle_parts import Parts


def filter_tasks(parts: Parts, where: Sequence[str]) -> Parts:
    """The tasks that meet all conditions, whole, in their order.

    Args:
        parts: a sound trace with its executions.
        where: conditions, as `Condition` reads them.

    Raises:
        UsageError: a condition is wrong, or no task meets all of them.
    """
    conditions = [Condition.parse(text) for text in where]
    kept = np.ones(parts.trace.tasks.rows, dtype=np.bool_)
    for condition in conditions:
        kept &= condition.tasks(parts.trace)
    if not kept.any():
        raise UsageError(
            f"no task of {len(kept)} meets {' and '.join(where) or 'the conditions'}",
            code="filter.nothing",
            path=parts.name,
            hint="semtrace show names the tasks",
        )
    step = Step(
        step="filter",
        producer=producer(),
        inputs=[source(parts.trace)],
        parameters={"where": list(where)},
    )
    return keep_tasks(parts, kept, step)
