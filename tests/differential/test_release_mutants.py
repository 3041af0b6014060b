"""Faults planted in the controller, each of which the comparison with the oracle must notice."""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from semtrace.errors import ReplayError
from semtrace.graph.resolve import resolve
from semtrace.records.columns import NULL
from semtrace.records.enums import EventOutcome, OperationKind, OperationStatus, Trigger
from semtrace.replay import controller, ideal, run
from semtrace.replay.controller import Controller
from semtrace.replay.scenario import Together
from support.release_difference import difference_of_seed

if TYPE_CHECKING:
    from collections.abc import Callable

    from semtrace.graph.plan import Plan
    from semtrace.graph.resolve import Constraints
    from semtrace.records.trace import Trace

SEEDS = range(120)


def with_constraints(change: Callable[[Constraints], Constraints]) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(patch: pytest.MonkeyPatch) -> None:
        def changed(trace: Trace, plan: Plan) -> Constraints:
            return change(resolve(trace, plan))

        patch.setattr(run, "resolve", changed)

    return plant


def trigger_for(wrong: Trigger, instead: Trigger) -> Callable[[pytest.MonkeyPatch], None]:
    return with_constraints(
        lambda held: replace(held, trigger=np.where(held.trigger == wrong, instead, held.trigger))
    )


def release_at(time: Callable[[int, int], int]) -> Callable[[pytest.MonkeyPatch], None]:
    """Release at a time that follows from ready time and delay, but is reported as it should be."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        def is_ready(self: Any, event: int) -> None:
            ready, delay = self._ready[event], self._delay[self.operation[event]]
            self.columns["ready_ns"][event] = ready
            self.columns["released_ns"][event] = ready + delay
            heapq.heappush(self._timers, (max(time(ready, delay), 0), controller._RELEASE, event))

        patch.setattr(Controller, "_is_ready", is_ready)

    return plant


def patched(owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """Replace an attribute by what a function makes of it."""
    return lambda patch: patch.setattr(owner, name, make(getattr(owner, name)))


def first_satisfied(_: object) -> Callable[..., None]:
    def satisfy(self: Any, event: int, time: int) -> None:
        self._ready[event] = time if self._ready[event] == NULL else min(self._ready[event], time)
        self._missing[event] -= 1
        if self._missing[event] == 0:
            self._is_ready(event)

    return satisfy


def after_construction(change: Callable[[Any], None]) -> Callable[[pytest.MonkeyPatch], None]:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def construct(self: Any, *arguments: Any, **named: Any) -> None:
            original(self, *arguments, **named)
            change(self)

        return construct

    return patched(Controller, "__init__", make)


def forget_failed_durations(of: Any) -> None:
    failed = {EventOutcome.ERROR, EventOutcome.TIMEOUT}
    of._duration = [
        0 if outcome in failed else duration
        for outcome, duration in zip(of._recorded_outcome, of._duration, strict=True)
    ]


def everything_ok(of: Any) -> None:
    of._recorded_outcome = [EventOutcome.OK] * len(of._recorded_outcome)


def answer_is_the_end(of: Any) -> None:
    of._answer = [NULL] * len(of._answer)


def on_backend(rule: Callable[[Any, Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(patch: pytest.MonkeyPatch) -> None:
        def chosen(trace: Trace) -> Any:
            kind, status = trace.operations.ints("kind"), trace.operations.ints("status")
            possible = trace.operations.ints("duration_ns") == NULL
            return np.asarray(rule(kind, status) | possible)

        patch.setattr(controller, "runs_on_backend", chosen)

    return plant


def swapped_copies(original: Callable[..., Any]) -> Callable[..., Any]:
    def made(trace: Trace, scenario: Any) -> Any:
        found = original(trace, scenario)
        return replace(found, sending_order=np.arange(len(found.task)))

    return made


def without_think_time(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda trace, scenario: replace(original(trace, scenario), think_ns=0)


def one_token_more(original: Callable[..., Any]) -> Callable[..., Any]:
    def construct(self: Any, trace: Trace, settings: Any) -> None:
        original(self, trace, settings)
        self._output = [output + 1 for output in self._output]

    return construct


def together(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda trace, wanted: original(trace, wanted.model_copy(update={"arrivals": Together()}))


def coarse(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, time: original(self, time + time % 2)


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "lags are ignored": with_constraints(lambda held: replace(held, lag_ns=np.zeros_like(held.lag_ns))),
    "start triggers wait for the end": trigger_for(Trigger.START, Trigger.FINISH),
    "first-token triggers wait for the end": trigger_for(Trigger.FIRST_TOKEN, Trigger.FINISH),
    "first-token triggers come with the start": trigger_for(Trigger.FIRST_TOKEN, Trigger.START),
    "groups are skipped": with_constraints(lambda held: replace(held, waits=(), holds=())),
    "groups wait for one operation only": with_constraints(
        lambda held: replace(held, waits=tuple(wait[:1] for wait in held.waits))
    ),
    "delays are dropped": release_at(lambda ready, _: ready),
    "one ns early": release_at(lambda ready, delay: ready + delay - 1),
    "one ns late": release_at(lambda ready, delay: ready + delay + 1),
    "the first constraint releases": patched(Controller, "_satisfy", first_satisfied),
    "failed operations take no time": after_construction(forget_failed_durations),
    "failures end well": after_construction(everything_ok),
    "failed model operations are sent to the backend": on_backend(
        lambda kind, _: (kind == OperationKind.LLM) | (kind == OperationKind.EMBED)
    ),
    "embeddings are not sent to the backend": on_backend(
        lambda kind, status: (kind == OperationKind.LLM) & (status != OperationStatus.ERROR)
    ),
    "copies of a task are sent one after the other": patched(run, "instances", swapped_copies),
    "users do not think": patched(run, "instances", without_think_time),
    "users wait for detached work": after_construction(answer_is_the_end),
    "one output token more": patched(ideal.IdealBackend, "__init__", one_token_more),
    "the clock has a resolution of 2 ns": patched(controller.VirtualClock, "wait_until", coarse),
    "everything arrives at once": patched(run, "settle", together),
}


def caught(seeds: range) -> str | None:
    for seed in seeds:
        try:
            found = difference_of_seed(seed)
        except (ReplayError, TypeError, IndexError, KeyError) as error:  # a mutant may not get that far
            found = f"{type(error).__name__}: {error}"
        if found:
            return f"seed {seed}: {found}"
    return None


def test_nothing_is_found_without_a_fault():
    assert caught(SEEDS) is None


@pytest.mark.parametrize("name", MUTANTS)
def test_fault_is_caught(name: str, monkeypatch: pytest.MonkeyPatch):
    MUTANTS[name](monkeypatch)
    assert caught(SEEDS) is not None
