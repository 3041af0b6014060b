"""How the tokens that a server counted compare with the recorded ones, over the answers of a replay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semtrace.records.columns import NULL
from semtrace.records.enums import OperationKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from semtrace.records.execution import Execution
    from semtrace.records.trace import Trace


def token_counts(trace: Trace, execution: Execution) -> dict[str, dict[str, int]]:
    """Whole answers by how their counts compare with the recorded ones: `equal`, `other`, or `unknown` if not told.

    Args:
        trace: the trace that was replayed.
        execution: what the replay left.

    Returns:
        `prompt_counts` and `answer_counts`, the second of generations only; kinds without an answer are left out.
    """
    events = execution.events
    operation = events.ints("operation")
    whole = (
        (events.ints("attempts") != NULL)
        & (events.ints("failure") == NULL)
        & (events.ints("finished_ns") != NULL)
    )
    generated = trace.operations.ints("kind")[operation] == OperationKind.LLM
    return {
        name: _compared(events.ints(column)[rows], trace.operations.ints(column)[operation[rows]])
        for name, column, rows in (
            ("prompt_counts", "prompt_tokens", whole),
            ("answer_counts", "output_tokens", whole & generated),
        )
    }


def _compared(told: NDArray[np.int64], recorded: NDArray[np.int64]) -> dict[str, int]:
    kinds = {
        "equal": (told != NULL) & (told == recorded),
        "other": (told != NULL) & (told != recorded),
        "unknown": told == NULL,
    }
    return {name: int(which.sum()) for name, which in kinds.items() if which.any()}
