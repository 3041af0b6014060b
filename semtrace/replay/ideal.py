"""The ideal backend: every operation runs at once, for a time that depends on its token counts alone.

    first_token = submitted + c0 + c_pre · prompt tokens
    finished    = first_token + c_dec · (output tokens - 1)        without output: finished = first_token

It is the smallest thing that defines release exactly (ST-REL-020).
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from pydantic import Field

from semtrace.errors import DocumentError
from semtrace.records.columns import NULL
from semtrace.records.document import Document
from semtrace.records.execution import Backend as BackendFacts
from semtrace.replay.backend import Report

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from semtrace.check.finding import Finding
    from semtrace.records.trace import Trace
    from semtrace.replay.backend import Request


class IdealSettings(Document):
    """Coefficients in integer ns: per request, per prompt token, per further output token."""

    c0_ns: int = Field(default=20_000_000, ge=0, lt=1 << 40)
    c_pre_ns: int = Field(default=100_000, ge=0, lt=1 << 40)
    c_dec_ns: int = Field(default=10_000_000, ge=0, lt=1 << 40)


class IdealBackend:
    """Unlimited concurrency, fixed times, no tokens."""

    modes = frozenset({"length_locked"})

    def __init__(self, trace: Trace, settings: Mapping[str, object]) -> None:
        try:
            self._settings = IdealSettings.parse(dict(settings), path="backend.settings")
        except DocumentError as error:
            error.requirement = "ST-REL-021"
            raise
        self._prompt = trace.operations.ints("prompt_tokens").tolist()
        self._output = trace.operations.ints("output_tokens").tolist()
        self._pending: list[tuple[int, int, int, Report]] = []

    def facts(self) -> BackendFacts:
        """Name and coefficients."""
        return BackendFacts(name="ideal", settings=self._settings.as_json())

    def refuse(self, trace: Trace, operations: Iterable[int]) -> Iterator[Finding]:
        """Nothing is too large for it; only unknown counts stop it, which the controller checks."""
        del trace, operations
        yield from ()

    def submit(self, now_ns: int, requests: Sequence[Request]) -> None:
        """Compute when each will have its first token and end; embeddings have no output tokens."""
        settings = self._settings
        for request in requests:
            prompt, output = self._prompt[request.operation], self._output[request.operation]
            token = now_ns + settings.c0_ns + settings.c_pre_ns * prompt
            end = token + settings.c_dec_ns * max(output - 1, 0)
            columns = {
                "scheduled_ns": now_ns,
                "first_token_ns": token if output > 0 else None,
                "prompt_tokens": prompt,
                "output_tokens": None if output == NULL else output,
                "preemptions": 0,
                "attempts": 1,
                "server": 0,
            }
            if output > 0 and end > token:
                heapq.heappush(
                    self._pending, (token, request.event, 0, Report(request.event, first_token=True))
                )
            done = Report(request.event, first_token=False, columns=columns)
            heapq.heappush(self._pending, (end, request.event, 1, done))

    def start(self, now_ns: int) -> None:
        """Everything has started already."""

    def next_ns(self) -> int | None:
        """When the next first token or end is."""
        return self._pending[0][0] if self._pending else None

    def reports(self, now_ns: int) -> list[Report]:
        """First tokens and ends up to now."""
        found: list[Report] = []
        while self._pending and self._pending[0][0] <= now_ns:
            found.append(heapq.heappop(self._pending)[3])
        return found

    def detail(self) -> dict[str, pa.Table]:
        """It has no steps and no blocks."""
        return {}
