"""Runs in the world, with a world that can be computed: a backend that fails on cue and a clock that it moves."""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import Any

import pytest

from semtrace.errors import ReplayError
from semtrace.graph.plan import Plan
from semtrace.measure.audit import audit
from semtrace.records.enums import EventOutcome, Failure
from semtrace.records.execution import Backend, Execution
from semtrace.records.trace import MemoryContent
from semtrace.replay import run
from semtrace.replay.backend import FOREVER, LiveBackend, Report, Request, Setup
from semtrace.replay.resume import Resume
from semtrace.replay.run import replay
from semtrace.replay.scenario import Scenario
from support.graphs import Graph, graph

SLOW = 7
"""How long after it was asked for anything is sent, in ns."""


class WorldClock:
    """A clock that a test moves; it comes back when the backend has something to report."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._now = 0
        self.stopping = False
        self.stop_at: int | None = None
        self.origin_unix_ns = 10_000

    def now_ns(self) -> int:
        return self._now

    def wait_until(self, time_ns: int) -> None:
        coming = self._world.pending[0][0] if self._world.pending else FOREVER
        self._now = max(self._now, min(time_ns, coming))
        if self.stop_at is not None and self._now >= self.stop_at:
            self.stopping = True


class World:
    """Takes `prompt` ns to the first token and `output` ns more; fails where it is told to."""

    modes = frozenset({"length_locked"})

    def __init__(self, setup: Setup, fails: dict[int, tuple[EventOutcome, Failure]]) -> None:
        self._trace = setup.trace
        self._fails = fails
        self.pending: list[tuple[int, int, Report]] = []
        self._clock = WorldClock(self)
        self.flying: set[int] = set()
        self.most = 0
        self.calls: list[str] = []

    def clock(self) -> WorldClock:
        return self._clock

    def open(self) -> None:
        self.calls.append("open")

    def close(self) -> None:
        self.calls.append("close")

    def facts(self) -> Backend:
        return Backend(name="http", settings={})

    def refuse(self, *_: Any) -> list[Any]:
        return []

    def submit(self, _: int, requests: list[Request]) -> list[int]:
        sent = []
        for request in requests:
            self._clock._now += SLOW
            now = self._clock._now
            sent.append(now)
            self.flying.add(request.event)
            self.most = max(self.most, len(self.flying))
            operation = self._trace.operations.ints
            prompt, output = (
                int(operation(name)[request.operation]) for name in ("prompt_tokens", "output_tokens")
            )
            failed = self._fails.get(request.operation)
            if failed is None:
                token, end = now + prompt, now + prompt + output
                columns = {
                    "first_token_ns": token,
                    "prompt_tokens": prompt,
                    "output_tokens": output,
                    "attempts": 1,
                }
                heapq.heappush(self.pending, (token, request.event, Report(request.event, True, at_ns=token)))
                done = Report(request.event, False, columns, at_ns=end)
            else:
                end = now + prompt
                done = Report(
                    request.event, False, {"attempts": 1, "failure": failed[1]}, failed[0], at_ns=end
                )
            heapq.heappush(self.pending, (end, request.event + 1_000_000, done))
        return sent

    def start(self, now_ns: int) -> None:
        pass

    def next_ns(self) -> int | None:
        return FOREVER if self.pending else None

    def reports(self, now_ns: int) -> list[Report]:
        found = []
        while self.pending and self.pending[0][0] <= now_ns:
            report = heapq.heappop(self.pending)[2]
            if not report.first_token:
                self.flying.discard(report.event)
            found.append(report)
        return found

    def cancel(self, events: list[int]) -> None:
        self.flying -= set(events)
        self.pending = [entry for entry in self.pending if entry[2].event not in events]
        heapq.heapify(self.pending)

    def detail(self) -> dict[str, Any]:
        return {}

    def environment(self) -> dict[str, Any]:
        return {"server": "a test"}

    def outputs(self) -> tuple[dict[int, int], MemoryContent]:
        return {}, MemoryContent()

    def request_ids(self) -> dict[int, str]:
        return {0: "semtrace-0-0"}


FORK = {
    "tasks": [{}],
    "operations": [
        {"name": "plan", "kind": "llm", "prompt": 50, "output": 10},
        {"name": "left", "kind": "llm", "prompt": 20, "output": 5, "after": ["plan"]},
        {"name": "right", "kind": "llm", "prompt": 30, "output": 5, "after": ["plan"]},
        {"name": "tool", "duration_ns": 400, "after": ["plan"]},
        {"name": "more", "kind": "llm", "prompt": 10, "output": 2, "after": ["left"]},
        {"name": "join", "kind": "llm", "prompt": 10, "output": 2, "after": ["more", "right", "tool"]},
    ],
}  # fmt: skip


def go(
    monkeypatch: pytest.MonkeyPatch,
    *,
    fails: dict[str, tuple[EventOutcome, Failure]] | None = None,
    stop_at: int | None = None,
    resume: Execution | None = None,
    **members: Any,
) -> tuple[Graph, Execution, World]:
    made = graph(FORK)
    plan = made.plan(None)
    names = [operation["name"] for operation in FORK["operations"]]
    worlds: list[World] = []

    def world(setup: Setup) -> World:
        worlds.append(World(setup, {names.index(name): how for name, how in (fails or {}).items()}))
        worlds[-1].clock().stop_at = stop_at
        return worlds[-1]

    monkeypatch.setitem(run.BACKENDS, "http", world)
    if resume is not None:
        left = Resume.of(made.trace, resume, plan)
        execution = replay(made.trace, plan, left.scenario, resume=left)
    else:
        execution = replay(
            made.trace, plan, Scenario.parse({"backend": {"name": "http"}, **members}, path="test")
        )
    return made, execution, worlds[0]


def outcomes(execution: Execution) -> list[str]:
    return [EventOutcome(value).name.lower() for value in execution.events.ints("outcome").tolist()]


def test_a_run_in_the_world_is_clean_and_says_where_it_was_measured(monkeypatch):
    made, execution, world = go(monkeypatch)
    assert isinstance(world, LiveBackend)
    assert world.calls == ["open", "close"]
    header = execution.header
    assert (header.clock, header.measured_at, header.tolerance_ns, header.origin_unix_ns) == (
        "wall", "client", 1_000_000, 10_000,
    )  # fmt: skip  # ST-LIV-001, ST-LIV-006, ST-SCN-013
    report = audit(made.trace, execution)
    assert (report.verdict, report.findings) == ("clean", [])
    assert execution.events.data["request_id"].to_pylist()[0] == "semtrace-0-0"
    events = execution.events
    # What is submitted late is released when it was: the ready times follow from what happened (ST-LIV-002 … ST-LIV-005).
    assert events.ints("submitted_ns").tolist() == [7, 74, 81, 67, 106, 474]
    assert events.ints("ready_ns").tolist() == [0, 67, 67, 67, 99, 467]
    assert events.ints("finished_ns").tolist() == [67, 99, 116, 467, 118, 486]


def test_what_waits_for_a_failure_goes_on_by_default(monkeypatch):
    made, execution, _ = go(monkeypatch, fails={"left": (EventOutcome.ERROR, Failure.RESET)})
    assert outcomes(execution) == ["ok", "error", "ok", "ok", "ok", "ok"]
    assert execution.events.ints("failure").tolist()[1] == Failure.RESET
    assert {finding.requirement for finding in audit(made.trace, execution).findings} == {"ST-AUD-003"}


def test_what_waits_for_a_failure_is_skipped(monkeypatch):  # ST-LIV-012
    made, execution, _ = go(
        monkeypatch, fails={"left": (EventOutcome.TIMEOUT, Failure.TIMEOUT)}, on_failure="skip"
    )
    assert outcomes(execution) == ["ok", "timeout", "ok", "ok", "skipped", "skipped"]
    assert {finding.requirement for finding in audit(made.trace, execution).findings} == {"ST-AUD-003"}


def test_an_instance_is_given_up(monkeypatch):  # ST-LIV-012
    _, execution, world = go(
        monkeypatch, fails={"left": (EventOutcome.REFUSED, Failure.REJECTED)}, on_failure="fail", copies=2,
        arrivals={"kind": "drawn", "times_ns": [0, 10_000]},
    )  # fmt: skip
    one = ["ok", "refused", "cancelled", "cancelled", "skipped", "skipped"]
    assert outcomes(execution) == one * 2
    assert not world.flying


def test_no_more_are_in_flight_than_allowed(monkeypatch):  # ST-LIV-010, ST-AUD-037
    made, execution, world = go(monkeypatch, concurrency=1, copies=3, tolerance_ns=7)
    assert world.most == 1
    report = audit(made.trace, execution)
    assert (report.verdict, report.findings) == ("clean", [])
    header = execution.header
    unlimited = {key: value for key, value in (header.scenario or {}).items() if key != "concurrency"}
    late = Execution(header.model_copy(update={"scenario": unlimited}), execution.tables)
    assert {finding.requirement for finding in audit(made.trace, late).findings} == {"ST-AUD-033"}
    made, execution, _ = go(monkeypatch, copies=3)
    limited = {**(execution.header.scenario or {}), "concurrency": 2}
    many = Execution(execution.header.model_copy(update={"scenario": limited}), execution.tables)
    assert {finding.requirement for finding in audit(made.trace, many).findings} == {"ST-AUD-037"}


def test_a_stopped_run_is_gone_on_with(monkeypatch):  # ST-LIV-013, ST-LIV-014
    arrivals = {"kind": "drawn", "times_ns": [0, 600, 1200]}
    made, stopped, world = go(monkeypatch, copies=3, arrivals=arrivals, stop_at=700)
    assert world.calls == ["open", "close"]
    assert outcomes(stopped)[:6] == ["ok"] * 6
    assert set(outcomes(stopped)[6:]) == {"ok", "unfinished"}
    monkeypatch.setattr(WorldClock, "__init__", later(WorldClock.__init__))
    made, whole, _ = go(monkeypatch, resume=stopped)
    assert outcomes(whole) == ["ok"] * 18
    report = audit(made.trace, whole)
    assert (report.verdict, report.findings) == ("clean", [])
    assert whole.instances.ints("arrival_ns").tolist() == [0, 5000, 5600]
    assert whole.header.origin_unix_ns == 10_000
    (resumed,) = whole.header.environment["resumed"]
    assert resumed == {"unix_ns": "15000", "kept_instances": 1, "later_ns": 4400}
    with pytest.raises(ReplayError, match="nothing is left"):
        Resume.of(made.trace, whole)
    inside = stopped.header.model_copy(
        update={"scenario": {**(stopped.header.scenario or {}), "backend": {"name": "vllm"}}}
    )
    with pytest.raises(ReplayError, match="on backend vllm, which has no URL"):
        Resume.of(made.trace, replace(stopped, header=inside), url="http://127.0.0.1:1")
    other = Plan(**{**made.plan(None).as_json(), "name": "another"})
    with pytest.raises(ReplayError, match="another plan"):
        Resume.of(made.trace, stopped, other)


def later(original):
    def made(self, world):
        original(self, world)
        self.origin_unix_ns = 15_000

    return made


def test_members_for_the_world_are_refused_on_a_virtual_clock():
    made = graph(FORK)
    for member in (
        {"concurrency": 2},
        {"retry": {}},
        {"on_failure": "skip"},
        {"timeout_ns": 5},
        {"warm_up": 1},
    ):
        with pytest.raises(ReplayError) as error:
            replay(made.trace, made.plan(None), Scenario.parse(member, path="test"))
        assert (error.value.requirement, error.value.path) == ("ST-SCN-017", f"scenario.{next(iter(member))}")
