"""Scenarios: when tasks arrive, how often, on what they run and what counts as on time (spec, scenario.md)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from semtrace.records.document import Document, empty_dict

Nanoseconds = Annotated[int, Field(ge=0, lt=1 << 53)]


class Recorded(Document):
    """Every task arrives when it was recorded to arrive."""

    kind: Literal["recorded"] = "recorded"


class Together(Document):
    """Everything arrives at time 0."""

    kind: Literal["together"] = "together"


class ClosedLoop(Document):
    """A fixed number of users; each sends its next task when the answer to the last one is there.

    Attributes:
        users: how many.
        think_ns: time from an answer to the user's next task, in ns.
        ramp_ns: time over which the users come, evenly, the first at 0, in ns.
    """

    kind: Literal["closed_loop"] = "closed_loop"
    users: int = Field(ge=1)
    think_ns: Nanoseconds = 0
    ramp_ns: Nanoseconds = 0


class Poisson(Document):
    """Arrivals of a Poisson process, drawn once before the run.

    Attributes:
        mean_ns: mean time between arrivals, in ns.
        seed: seed of the draw.
    """

    kind: Literal["poisson"] = "poisson"
    mean_ns: int = Field(ge=1, lt=1 << 53)
    seed: int = Field(default=0, ge=0, lt=1 << 53)


class Drawn(Document):
    """Arrivals at given times; how every drawn arrival process is stored.

    Attributes:
        times_ns: arrival of each instance in the order of sending, in ns.
        drawn_from: the process that they were drawn from.
    """

    kind: Literal["drawn"] = "drawn"
    times_ns: list[Nanoseconds]
    drawn_from: Poisson | None = None


Arrivals = Annotated[Recorded | Together | ClosedLoop | Poisson | Drawn, Field(discriminator="kind")]


class BackendChoice(Document):
    """Which backend runs the operations, with its settings."""

    name: str = "ideal"
    settings: dict[str, Any] = Field(default_factory=empty_dict)


Failed = Literal["connection", "reset", "timeout", "rate_limited", "server_error", "truncated"]


def _all_but_timeouts() -> list[Failed]:
    return ["connection", "reset", "rate_limited", "server_error", "truncated"]


class Retry(Document):
    """How requests that failed are sent again.

    Attributes:
        attempts: how often an operation is submitted at most.
        wait_ns: time from a failure to the second attempt, in ns.
        factor: by how much each further wait is longer than the one before.
        on: the failures after which there is another attempt.
    """

    attempts: int = Field(default=1, ge=1, le=1000)
    wait_ns: Nanoseconds = 100_000_000
    factor: int = Field(default=2, ge=1, le=1000)
    on: list[Failed] = Field(default_factory=_all_but_timeouts)


class Scenario(Document):
    """How a trace is replayed.

    Attributes:
        arrivals: when tasks arrive; if left out, as recorded where every task has an arrival, else together.
        copies: how many instances of every task.
        mode: what is held fixed beside the work.
        backend: what runs the operations.
        salt: which instances may find each other's prefixes in a cache: those of one copy ordinal (`copy`), none
            (`instance`), or all (`none`).
        tolerance_ns: allowed lateness of a submission, in ns; if left out 0 on a virtual clock, 1 ms on a wall clock.
        deadline_ns: deadline of every instance, counted from its arrival, in ns.
        window_ns: instances that arrive before this time count for attainment and goodput; all if left out.
        timeout_ns: time that an attempt of a request may take, in ns.
        retry: how requests that failed are sent again.
        on_failure: what becomes of operations that wait for one that failed: they go on (`proceed`), they are not run
            (`skip`), or nothing more of their instance is run (`fail`).
        concurrency: the most model operations in flight.
        warm_up: requests sent before time 0, of which nothing is recorded.
        notes: remarks.
    """

    HINT: ClassVar[str | None] = (
        "for example: {copies: 64, arrivals: {kind: poisson, mean_ns: 50000000, seed: 1}, backend: {name: ideal}}"
    )

    format: Literal["semtrace-scenario"] = "semtrace-scenario"
    arrivals: Arrivals | None = None
    copies: int = Field(default=1, ge=1, le=1_000_000)
    mode: Literal["length_locked", "token_locked"] = "length_locked"
    backend: BackendChoice = Field(default_factory=BackendChoice)
    salt: Literal["copy", "instance", "none"] = "copy"
    tolerance_ns: Nanoseconds | None = None
    deadline_ns: Nanoseconds | None = None
    window_ns: Nanoseconds | None = None
    timeout_ns: int | None = Field(default=None, ge=1, lt=1 << 53)
    retry: Retry | None = None
    on_failure: Literal["proceed", "skip", "fail"] | None = None
    concurrency: int | None = Field(default=None, ge=1, le=1_000_000)
    warm_up: int | None = Field(default=None, ge=0, le=10_000)
    notes: str | None = None
