"""Which requests of a server's step log are those of an execution: by their ids, and by time where an id is there more than once (ST-VLM-013, ST-VLM-014)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import numpy as np

from semtrace.errors import ReplayError
from semtrace.live.vllm.names import sent_id
from semtrace.records.columns import NULL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from semtrace.live.vllm.steps import ServerSteps
    from semtrace.records.execution import Execution

_FAR: Final = np.iinfo(np.int64).max
_NAMED: Final = 4
"""Times that a refusal names."""


def refused(what: str, hint: str) -> ReplayError:
    """A log that cannot be joined."""
    return ReplayError(what, code="vllm.join", requirement="ST-VLM-014", hint=hint)


def rows_of_requests(execution: Execution, log: ServerSteps) -> NDArray[np.int64]:
    """By request of a log the row of its event, or `NULL`.

    A server may have seen several runs of a client that gives the same ids. So where several requests have the id of one event, those alone are
    the execution's that came between its first submission and its last end; and of several that did, the one that came while its event ran.

    Args:
        execution: an execution with `origin_unix_ns` and request ids.
        log: what the server wrote down.

    Raises:
        ReplayError: none is the execution's, or it cannot be told which of several is.
    """
    ids = execution.events.array("request_id").to_pylist()
    rows = {each: row for row, each in enumerate(ids) if each is not None}
    sent = (sent_id(name, rows) for name in log.names)
    event = np.array([NULL if each is None else rows[each] for each in sent], dtype=np.int64)
    mine = np.flatnonzero(event != NULL)
    if not len(mine):
        raise refused(
            "no request of the execution is in the log", "is it the log of the same server and run?"
        )
    if np.bincount(event[mine]).max() == 1:
        return event
    came = np.frombuffer(log.unix_ns, dtype=np.int64) - (execution.header.origin_unix_ns or 0)
    submitted, finished = (execution.events.ints(f"{name}_ns") for name in ("submitted", "finished"))
    begins = np.maximum(submitted, 0)
    ends = np.where(finished == NULL, _FAR, finished)
    known = finished[finished != NULL]
    sent_ns = submitted[submitted != NULL]
    first, last = (sent_ns.min() if len(sent_ns) else 0), (known.max() if len(known) else _FAR)
    inside = (came[mine] >= first) & (came[mine] <= last)
    if not inside.any():
        raise refused(
            f"{len(mine)} requests in the log have ids of the execution, and none came while it ran: the first came at "
            f"{_shown(log, mine[np.argsort(came[mine], kind='stable')][:1])}, the execution began at {_time(execution.header.origin_unix_ns or 0)}",
            "give the log of this run; the clocks of client and server must agree",
        )
    event[mine[~inside]] = NULL
    mine = mine[inside]
    several = np.bincount(event[mine], minlength=len(ids)) > 1
    doubtful = mine[several[event[mine]]]
    of = event[doubtful]
    while_it_ran = (came[doubtful] >= begins[of]) & (came[doubtful] <= ends[of])
    one = np.bincount(of[while_it_ran], minlength=len(ids)) == 1
    left = np.flatnonzero(several & ~one)
    if len(left):
        places = doubtful[of == left[0]]
        more = f", and {len(left) - 1} others so" if len(left) > 1 else ""
        raise refused(
            f"request {ids[left[0]]!r} is in the log {len(places)} times while the execution ran, at {_shown(log, places)}{more}: "
            "which of them is its own cannot be told",
            "clients that send the same ids at the same time need a server each, or logs of their own",
        )
    event[doubtful[~while_it_ran]] = NULL
    return event


def _shown(log: ServerSteps, places: Iterable[int]) -> str:
    """When requests came."""
    times = [_time(log.unix_ns[place]) for place in places]
    return ", ".join([*times[:_NAMED], *(["…"] if len(times) > _NAMED else [])])


def _time(unix_ns: int) -> str:
    """A Unix time as people read it, in UTC, with its nanoseconds."""
    seconds, rest = divmod(unix_ns, 1_000_000_000)
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{rest:09d} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{unix_ns} ns"
