"""What the requests of an execution got of their servers, and what became of operations, for people."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from semtrace.records.execution import Execution


def outcomes(execution: "Execution") -> dict[str, int]:
    """How many operations ended in which way, by name; what did not occur is left out."""
    import numpy as np

    from semtrace.records.enums import EventOutcome

    numbers, counts = np.unique(execution.events.ints("outcome"), return_counts=True)
    return {
        EventOutcome(number).name.lower(): count
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True)
    }


def served(execution: "Execution") -> dict[str, Any]:
    """Time to the first token in ns, output tokens a second, and the load of each server, as JSON-ready fields.

    These are no measures of the standard; a sweep has the first two in its columns.
    """
    import numpy as np

    from semtrace.records.columns import NULL
    from semtrace.sweep.point import first_tokens, requests_of

    events = execution.events
    ran = (events.ints("server") != NULL) & (events.ints("attempts") != NULL)
    servers, of = np.unique(events.ints("server")[ran], return_inverse=True)

    def summed(name: str) -> list[int]:
        values = events.ints(name)[ran]
        known = values != NULL
        return np.bincount(of[known], values[known], len(servers)).astype(np.int64).tolist()  # type: ignore[no-any-return]

    calls = np.bincount(of, minlength=len(servers)).tolist()
    columns = (
        servers.tolist(),
        calls,
        summed("prompt_tokens"),
        summed("cached_tokens"),
        summed("output_tokens"),
    )
    names = ("server", "calls", "prompt_tokens", "cached_tokens", "output_tokens")
    return {
        "ttft": first_tokens(execution).as_dict(),
        "output_tokens_per_second": requests_of(execution)["output_tokens_per_second"],
        "servers": [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)],
    }


def is_told(engine: "Mapping[str, Any]") -> bool:
    """Whether a record says of an engine more than that calls were made: what was found, computed, or queued."""
    return engine["calls"] > 0 and (
        "batches" in engine
        or any(engine[name]["value"] is not None for name in ("hit_share", "prefill_factor"))
    )
