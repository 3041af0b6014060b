"""What must come to the witness: the work of a case, its plan and its scenario, in the form in which it is judged."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

from pydantic import Field

from semtrace_conformance.messages import Model

Trigger = Literal["finish", "start", "first_token"]
OUTCOMES = ("ok", "error", "cancelled", "timeout", "refused", "skipped", "unfinished")


class Operation(Model):
    """One operation of the trace.

    Attributes:
        task: its task.
        sent: whether it runs on the backend.
        outcome: how it ends where nothing fails.
        duration_ns: how long it takes, if it does not run on the backend.
        delay_ns: its external delay.
        prompt_tokens, prompt_digest: its prompt; the digest is of its ids, where they are sent as recorded, or
            of its messages in RFC 8785 form, where these are sent; then the count is the server's.
        output_tokens: how many tokens it yields; null for an embedding.
        output_digest: digest of its output ids, where these are locked.
        finish: its recorded finish reason, where the output ids are locked.
    """

    task: int = 0
    sent: bool = False
    outcome: str = "ok"
    duration_ns: int | None = None
    delay_ns: int = 0
    prompt_tokens: int | None = None
    prompt_digest: str | None = None
    output_tokens: int | None = None
    output_digest: str | None = None
    finish: Literal["stop", "length"] | None = None


class Wait(Model):
    """A constraint: the target waits for a trigger of the source."""

    source: int
    target: int
    trigger: Trigger = "finish"
    lag_ns: int = 0


class Retry(Model):
    """How failed requests are sent again (ST-LIV-042)."""

    attempts: int = 1
    wait_ns: int = 100_000_000
    factor: int = 2


class Failed(Model):
    """What becomes of an event that does not go well at once.

    Attributes:
        instance, operation: which event it is.
        least, most: how many attempts the witness sees.
        outcome: how it ends.
        failure: what the last attempt meets.
        astray: whether the server yields something else than it is asked for.
        resent: whether what the server cuts on a connection that was open before must come again as the same attempt.
    """

    instance: int
    operation: int
    least: int = 1
    most: int = 1
    outcome: str = "ok"
    failure: str | None = None
    astray: bool = False
    resent: bool = False


class Live(Model):
    """What must come to the witness.

    Attributes:
        mode: what is held fixed.
        operations: all operations of the trace.
        waits: the constraints of the plan, recorded ones included.
        tasks: by instance, its task.
        arrivals_ns: by instance, its arrival; of a closed loop, of those that are sent first, null for the others.
        loop: of a closed loop, the instances in the order in which they are sent.
        think_ns: of a closed loop, time from an answer to the next arrival.
        answers: by task, its answer operation.
        concurrency: most model operations in flight.
        timeout_ns: time that an attempt may take.
        retry: how failed requests are sent again.
        retry_after_ns: what the server says in its header `Retry-After`, where it has one.
        failed: the events that do not go well at once.
        usage: whether the server tells how many tokens there were.
        plan: the plan, as it was given.
        plan_digest: its digest.
        scenario: the scenario, as it was given.
        tolerance_ns: the tolerance that follows from it.
    """

    mode: Literal["length_locked", "token_locked"] = "length_locked"
    operations: list[Operation]
    waits: list[Wait] = Field(default_factory=list)
    tasks: list[int]
    arrivals_ns: list[int | None]
    loop: list[int] = Field(default_factory=list)
    think_ns: int = 0
    answers: list[int | None]
    concurrency: int | None = None
    timeout_ns: int = 600_000_000_000
    retry: Retry = Field(default_factory=Retry)
    retry_after_ns: int = 0
    failed: list[Failed] = Field(default_factory=list)
    usage: bool = True
    plan: dict[str, Any] = Field(default_factory=dict)
    plan_digest: str | None = None
    scenario: dict[str, Any] = Field(default_factory=dict)
    tolerance_ns: int = 1_000_000

    @cached_property
    def of_task(self) -> dict[int, list[int]]:
        """By task, its operations."""
        found: dict[int, list[int]] = {task: [] for task in self.tasks}
        for at, operation in enumerate(self.operations):
            found.setdefault(operation.task, []).append(at)
        return found

    @cached_property
    def events(self) -> list[tuple[int, int]]:
        """All events: instance and operation."""
        return [(instance, at) for instance, task in enumerate(self.tasks) for at in self.of_task[task]]

    @cached_property
    def waits_of(self) -> dict[int, list[Wait]]:
        """By operation, what it waits for."""
        found: dict[int, list[Wait]] = {at: [] for at in range(len(self.operations))}
        for wait in self.waits:
            found[wait.target].append(wait)
        return found

    @cached_property
    def _failed(self) -> dict[tuple[int, int], Failed]:
        return {(each.instance, each.operation): each for each in self.failed}

    def course(self, instance: int, operation: int) -> Failed:
        """What becomes of an event."""
        found = self._failed.get((instance, operation))
        usual = self.operations[operation].outcome
        return found or Failed(instance=instance, operation=operation, outcome=usual)

    def expected(self, instance: int, operation: int) -> bool:
        """Whether an event comes to the witness."""
        return self.operations[operation].sent and self.course(instance, operation).most > 0

    def outcomes(self) -> dict[str, int]:
        """How many events end in each way."""
        found = [self.course(*event).outcome for event in self.events]
        return {name: found.count(name) for name in OUTCOMES if name in found}
