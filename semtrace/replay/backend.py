"""What a backend is: the part of a replay that runs model operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from semtrace.check.finding import Finding
    from semtrace.records.execution import Backend as BackendFacts
    from semtrace.records.trace import Trace


class Request(NamedTuple):
    """A model operation handed to a backend.

    Attributes:
        event: the row that it gets in the execution's events.
        instance: its instance.
        operation: its row in the trace.
    """

    event: int
    instance: int
    operation: int


class Report(NamedTuple):
    """Something that happened to a request: its first token is there, or it has ended.

    Attributes:
        event: the request's event.
        first_token: whether its first token is there (and it goes on).
        columns: at its end, columns of the events table that the backend knows (`scheduled_ns`, `server` …).
    """

    event: int
    first_token: bool
    columns: Mapping[str, int | None] | None = None


class Backend(Protocol):
    """Runs model operations; knows nothing of dependencies.

    On a virtual clock the controller asks when something happens next, goes there, and takes the reports.
    """

    @property
    def modes(self) -> frozenset[str]:
        """The modes of a scenario that it can hold: `length_locked`, `token_locked`."""
        ...

    def facts(self) -> BackendFacts:
        """Name, version and settings, for the execution's header."""
        ...

    def refuse(self, trace: Trace, operations: Iterable[int]) -> Iterable[Finding]:
        """What keeps these operations from being run, before the run."""
        ...

    def submit(self, now_ns: int, requests: Sequence[Request]) -> None:
        """Take requests, in order of (instance, operation).

        Those of one instant may come in several calls: a backend that cares sorts them in `start` (ST-REL-017).
        """
        ...

    def start(self, now_ns: int) -> None:
        """All of this instant is submitted: start work."""
        ...

    def next_ns(self) -> int | None:
        """When something happens next, None if nothing will."""
        ...

    def reports(self, now_ns: int) -> list[Report]:
        """What has happened up to this instant and was not reported yet."""
        ...
