"""What the witness saw, by event: the attempts of each request, with times from the first arrival on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from semtrace_conformance.witness import Entry

REQUEST: Final = re.compile(r"semtrace-(0|[1-9]\d{0,8})-(0|[1-9]\d{0,8})(?:-([2-9]|[1-9]\d{1,3}))?")
"""The id of a request (ST-LIV-030): instance, operation, and the ordinal of the attempt from the second on."""
_LIKE: Final = re.compile(r"semtrace-\d")
"""How ids of requests begin; what else is sent, to look at the server or to warm up, is no matter."""
_TIMES: Final = {
    "arrival_unix_ns": "arrival_ns",
    "first_token_unix_ns": "first_token_ns",
    "end_unix_ns": "end_ns",
}
_KEPT: Final = (
    "request_id", "on_connection", "arrival_stamp", "stream", "prompt", "prompt_tokens", "prompt_digest", "max_tokens",
    "min_tokens", "ignore_eos", "lock_tokens", "lock_digest", "status", "output_tokens", "output_digest", "finish_reason",
    "closed_by", "hints",
)  # fmt: skip


def observed(entries: Sequence[Entry], facts: Mapping[str, int]) -> dict[str, Any]:
    """The record of a witness as a certificate keeps it: in columns, times counted from the first of these requests.

    Args:
        entries: its entries.
        facts: what it said at its end.
    """
    kept = [each for each in entries if each.request_id and _LIKE.match(each.request_id)]
    base = min((each.arrival_unix_ns for each in kept), default=0)
    columns: dict[str, list[Any]] = {name: [getattr(each, name) for each in kept] for name in _KEPT}
    for name, short in _TIMES.items():
        values = [getattr(each, name) for each in kept]
        columns[short] = [None if value is None else value - base for value in values]
    others = sum(each.prompt is not None for each in entries) - sum(each.prompt is not None for each in kept)
    return {
        "base_unix_ns": str(base),
        "clock_step_ns": facts["clock_step_ns"],
        "others": others,
        "columns": columns,
    }


@dataclass(frozen=True)
class Attempt:
    """One attempt of a request, as the witness saw it; `ordinal` is that of its id, the rest is as in its record."""

    ordinal: int
    request_id: str
    on_connection: int
    arrival_stamp: str
    stream: bool
    prompt: str | None
    prompt_tokens: int | None
    prompt_digest: str | None
    max_tokens: int | None
    min_tokens: int | None
    ignore_eos: bool | None
    lock_tokens: int | None
    lock_digest: str | None
    status: int | None
    output_tokens: int
    output_digest: str | None
    finish_reason: str | None
    closed_by: str | None
    hints: list[str]
    arrival_ns: int
    first_token_ns: int | None
    end_ns: int | None

    @property
    def again(self) -> bool:
        """Whether it is sent again as the same attempt: an old connection ended without an answer (ST-LIV-043)."""
        return self.status is None and self.closed_by == "witness" and self.on_connection > 1


@dataclass(frozen=True)
class Seen:
    """What the witness saw.

    Attributes:
        events: by instance and operation, the attempts in the order in which they came.
        strange: ids that are none of requests.
        base_unix_ns: Unix time from which times are counted.
        clock_step_ns: by how much the witness's clock was set meanwhile.
    """

    events: Mapping[tuple[int, int], list[Attempt]]
    strange: list[str]
    base_unix_ns: int
    clock_step_ns: int

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Seen:
        """What is said in the observations of a case."""
        columns = found["columns"]
        events: dict[tuple[int, int], list[Attempt]] = {}
        strange = []
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        for row in sorted(rows, key=lambda each: each["arrival_ns"]):
            match = REQUEST.fullmatch(row["request_id"])
            if match is None:
                strange.append(row["request_id"])
            else:
                event = int(match[1]), int(match[2])
                events.setdefault(event, []).append(Attempt(ordinal=int(match[3] or 1), **row))
        return cls(events, strange, int(found["base_unix_ns"]), found["clock_step_ns"])
