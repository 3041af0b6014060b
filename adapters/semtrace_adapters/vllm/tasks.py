"""Which requests are one task, by what clients said of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from semtrace_adapters.base import LossReport
    from semtrace_adapters.vllm.step_log import Call

NAMES: Final = ("task", "session", "user")
"""What clients say that makes requests one task: the first of these that is said decides."""


def hinted(calls: Sequence[Call], loss: LossReport) -> list[Hashable]:
    """What makes requests one task: equal ones are of one.

    A client that runs again says the same again. A request id is of one request, so one that a task has already begins another run of the task.

    Args:
        calls: the requests in the order of their arrival.
        loss: told of further runs.

    Returns:
        by call the kind and the name of what the client said that it belongs to, and the run of it; without a word of the client its own place.
    """
    keys: list[Hashable] = []
    runs: Counter[tuple[str, str]] = Counter()
    asked: dict[tuple[str, str], set[str]] = defaultdict(set)
    for at, call in enumerate(calls):
        kind = next((kind for kind in NAMES if call.hints.get(kind)), None)
        if kind is None:
            keys.append(at)
            continue
        name = kind, call.hints[kind]
        if call.asked in asked[name]:
            runs[name] += 1
            asked[name].clear()
        asked[name].add(call.asked)
        keys.append((*name, runs[name]))
    if runs.total():
        loss.add(
            "tasks.again",
            "inferred",
            "a request with an id that its task has already: taken for the first of another run of the task, which is a task of its own",
            count=runs.total(),
        )
    return keys
