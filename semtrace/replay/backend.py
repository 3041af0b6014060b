"""What a backend is: the part of a replay that runs model operations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from semtrace.check.finding import Finding
    from semtrace.graph.resolve import Constraints
    from semtrace.records.enums import EventOutcome
    from semtrace.records.execution import Backend as BackendFacts
    from semtrace.records.trace import Content, Trace
    from semtrace.replay.arrivals import Instances
    from semtrace.replay.controller import Clock
    from semtrace.replay.scenario import Scenario


Simulator = Literal["fast", "step"]

FOREVER: Final = 1 << 62
"""What `next_ns` of a backend says while something will happen, and only the world knows when."""


@dataclass(frozen=True)
class Setup:
    """What a backend is made for.

    Attributes:
        trace: the trace.
        scenario: the scenario, settled.
        copies: its instances.
        detail: the detail tables to keep.
        simulator: which of two equal forms runs a simulated engine: compiled, or step by step.
    """

    trace: Trace
    scenario: Scenario
    copies: Instances
    detail: frozenset[str] = frozenset()
    simulator: Simulator = "fast"


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
    """Something that happened to a request: it was submitted, its first token is there, or it has ended.

    Attributes:
        event: the request's event.
        first_token: whether its first token is there (and it goes on).
        columns: at its end, columns of the events table that the backend knows (`scheduled_ns`, `server` …).
        outcome: how it ended, if not as in the recorded run.
        at_ns: when it happened, if not just now: on a wall clock, when the backend saw it.
        submitted: whether it was submitted, of which `submit` could not tell yet (and it goes on).
    """

    event: int
    first_token: bool
    columns: Mapping[str, int | None] | None = None
    outcome: EventOutcome | None = None
    at_ns: int | None = None
    submitted: bool = False


@dataclass(frozen=True)
class Ran:
    """What happened in a run.

    Attributes:
        instance, operation: of each event.
        arrival_ns: of each instance.
        columns: columns of the events table, times and counts, `NULL` where unknown.
        outcome: of each event.
        detail: the detail tables that were kept.
        request_id: the id in the server's log, of events that have one.
        output_ids: the ordinal in the content of the token ids of its output, of events that have them.
        content: output token ids.
    """

    instance: Sequence[int] | NDArray[np.int64]
    operation: Sequence[int] | NDArray[np.int64]
    arrival_ns: Sequence[int] | NDArray[np.int64]
    columns: Mapping[str, Sequence[int] | NDArray[np.int64]]
    outcome: Sequence[int] | NDArray[np.int64]
    detail: Mapping[str, pa.Table] = field(default_factory=dict)
    request_id: Mapping[int, str] = field(default_factory=dict)
    output_ids: Mapping[int, int] = field(default_factory=dict)
    content: Content | None = None


class Runner(Protocol):
    """What every way to run model operations says of itself before the run."""

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


@runtime_checkable
class Simulation(Runner, Protocol):
    """Runs whole instances, dependencies included, with the result that the controller and a backend would have."""

    def simulate(self, constraints: Constraints, progress: Callable[[int, int], None] | None) -> Ran:
        """Run all instances to their end, or until nothing can happen any more."""
        ...


class Backend(Runner, Protocol):
    """Runs model operations; knows nothing of dependencies.

    On a virtual clock the controller asks when something happens next, goes there, and takes the reports. A backend that has a
    method `observe(now_ns, started, ended)` is told, before `start`, of the operations that do not run on it: those submitted in
    this instant and those that ended, as requests.
    """

    def submit(self, now_ns: int, requests: Sequence[Request]) -> Sequence[int | None] | None:
        """Take requests, in order of (instance, operation).

        Those of one instant may come in several calls: a backend that cares sorts them in `start` (ST-REL-017).

        Returns:
            On a wall clock, when each was submitted, in order; None for one that was not yet, of which a report tells. None
            for all on a virtual clock: now.
        """
        ...

    def start(self, now_ns: int) -> None:
        """All of this instant is submitted: start work."""
        ...

    def next_ns(self) -> int | None:
        """When something happens next, None if nothing will, `FOREVER` if something will and nobody knows when."""
        ...

    def reports(self, now_ns: int) -> list[Report]:
        """What has happened up to this instant and was not reported yet."""
        ...

    def detail(self) -> Mapping[str, pa.Table]:
        """After the run, the detail tables that it kept, by name; those without rows too."""
        ...


@runtime_checkable
class Situated(Protocol):
    """What has facts of the run to tell for the header of the execution, after it."""

    def environment(self) -> Mapping[str, Any]:
        """The facts by name, as JSON has them."""
        ...


@runtime_checkable
class RealBackend(Backend, Situated, Protocol):
    """A backend that runs a model, and so has more to tell than times and counts."""

    def outputs(self) -> tuple[Mapping[int, int], Content]:
        """Of events whose output token ids were kept, the artifact's ordinal in the content, and the content."""
        ...

    def request_ids(self) -> Mapping[int, str]:
        """Of events that were sent, the id of the last attempt in the server's log."""
        ...


@runtime_checkable
class LiveBackend(RealBackend, Protocol):
    """A backend in the world: it is on a wall clock, must be opened before the run and closed after it."""

    def clock(self) -> Clock:
        """The clock of the run; its time 0 is set when `open` ends."""
        ...

    def open(self) -> None:
        """Make ready: connect, warm up; then set the clock's origin.

        Raises:
            ReplayError: the backend is not there, or cannot do what the scenario asks of it.
        """
        ...

    def cancel(self, events: Sequence[int]) -> None:
        """Call these requests off; nothing more is reported of them."""
        ...

    def close(self) -> None:
        """Let go of everything; also after a run that was stopped, and more than once."""
        ...
