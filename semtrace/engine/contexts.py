"""What is declared of a trace's sessions and tools, and the contexts that a run makes of them (ST-LIF-010)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from semtrace.engine.prepared import longest_paths
from semtrace.kernels import run
from semtrace.records.columns import NULL
from semtrace.replay.controller import runs_on_backend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from semtrace.records.trace import Trace
    from semtrace.replay.backend import Request as Released


class Structure:
    """What the trace declares: who asked for a tool, which calls follow, how many calls a session has.

    A *tool* is every operation that does not run on the backend. No duration and no output is looked at.

    Args:
        trace: the trace.
    """

    def __init__(self, trace: Trace) -> None:
        operations, edges = trace.operations, trace["edges"]
        calls = runs_on_backend(trace)
        source, target = edges.ints("source"), edges.ints("target")
        session = operations.ints("session")
        path = calls.astype(np.int64)
        run(longest_paths, edges.rows, path, calls.astype(np.int64), source, target)
        asked = np.full(operations.rows, NULL, dtype=np.int64)
        run(_asked_by, edges.rows, asked, calls.astype(np.int64), session, source, target)
        self._starts = trace.offsets("operations")
        self._calls = calls
        self._source, self._target = source, target
        self._names = operations
        self.session: list[int] = np.where(session == NULL, -1 - np.arange(operations.rows), session).tolist()
        self.path: list[int] = path.tolist()
        self.asked_by: list[int] = asked.tolist()
        order = np.argsort(asked, kind="stable")
        self._tools = order[np.searchsorted(asked[order], 0) :]
        self._asking = asked[self._tools]

    @cached_property
    def names(self) -> list[str]:
        """The name of each operation."""
        names: list[str] = self._names.data["name"].to_pylist()
        return names

    @cached_property
    def _before(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The operations with an edge to each, by offsets."""
        order = np.argsort(self._target, kind="stable")
        rows = np.arange(len(self._calls) + 1)
        return np.searchsorted(self._target[order], rows), self._source[order]

    def calls_before(self, operation: int, ended: set[int]) -> int:
        """How many calls that have not ended stand, one after the other, before an operation: the most on a path of edges."""
        offsets, sources = self._before
        most: dict[int, int] = {}
        todo = [operation]
        while todo:
            at = todo[-1]
            before = [each for each in sources[offsets[at] : offsets[at + 1]].tolist() if each not in ended]
            missing = [each for each in before if each not in most]
            if missing:
                todo += missing
                continue
            todo.pop()
            most[at] = max((most[each] + int(self._calls[each]) for each in before), default=0)
        return most[operation]

    @cached_property
    def calls_in_session(self) -> dict[int, list[int]]:
        """The calls of each session, in the order of the trace; sessions as in `calls_of_session`."""
        found: dict[int, list[int]] = {}
        for call in np.flatnonzero(self._calls).tolist():
            found.setdefault(self.session[call], []).append(call)
        return found

    @cached_property
    def calls_of_session(self) -> dict[int, int]:
        """How many calls each session has; an operation without session has one of its own, numbered from -1 down."""
        own = np.asarray(self.session)[self._calls]
        sessions, counts = np.unique(own, return_counts=True)
        return dict(zip(sessions.tolist(), counts.tolist(), strict=True))

    def tools(self, operation: int) -> tuple[str, ...]:
        """Names of the tools that a call asks for, sorted."""
        first, last = np.searchsorted(self._asking, [operation, operation + 1])
        return tuple(sorted(self.names[tool] for tool in self._tools[first:last].tolist()))

    def paths(self, task: int) -> NDArray[np.int64]:
        """How many calls of a task begin a longest path of so many calls, by that number."""
        rows = slice(int(self._starts[task]), int(self._starts[task + 1]))
        return np.bincount(np.asarray(self.path[rows])[self._calls[rows]], minlength=1)


def _asked_by(
    asked: list[int], calls: list[int], session: list[int], source: list[int], target: list[int]
) -> None:
    """The call that asked for each tool, in place: the last call before it, one of its own session first of all (ST-LIF-011)."""
    for edge in range(len(source)):
        tool = target[edge]
        if calls[tool] == 0:
            call = source[edge] if calls[source[edge]] == 1 else asked[source[edge]]
            best = asked[tool]
            if call >= 0:
                if best < 0:
                    asked[tool] = call
                else:
                    ours = session[call] == session[tool]
                    theirs = session[best] == session[tool]
                    if (ours and not theirs) or (ours == theirs and call > best):
                        asked[tool] = call


class Remaining:
    """The longest declared path among the calls of an instance that have not ended.

    Args:
        paths: how many calls begin a longest path of so many calls, by that number.

    Attributes:
        longest: that path.
        done: the calls that have ended, while there are others.
    """

    def __init__(self, paths: Sequence[int]) -> None:
        self._left = list(paths)
        self.longest = len(self._left) - 1
        self.done: set[int] = set()

    def ended(self, operation: int, path: int) -> None:
        """A call that began a longest path of so many calls has ended."""
        self._left[path] -= 1
        self.done.add(operation)
        while self.longest > 0 and self._left[self.longest] == 0:
            self.longest -= 1
        if self.longest == 0:
            self.done.clear()


@dataclass
class Pin:
    """Device blocks that a context holds.

    Attributes:
        server: whose blocks.
        blocks: the blocks, in the order of their tokens; each has one holder for the pin.
        until_ns: when it lapses, None for never.
        brought: those that a load brought.
        number: tells pins from each other.
    """

    server: int
    blocks: list[int]
    until_ns: int | None
    brought: frozenset[int] = frozenset()
    number: int = 0


@dataclass
class Held:
    """The context of a session of an instance, as the driver keeps it.

    Attributes:
        id: its number.
        instance: its instance.
        session: its session, as `Structure` numbers them.
        event: its last call that ended, or else its first one.
        calls_left: calls of its session that have not ended.
        server: where its last call ran.
        keys: keys of the full blocks of its last call.
        last_used_ns: when its last call ended.
        calls: calls that have ended.
        steps_left: calls on the longest declared path after its last call.
        tools: tools that it waits for: since when, and the name, by event.
        pin: the blocks that it holds.
        loading: whether a load of it is under way.
    """

    id: int
    instance: int
    session: int
    event: int
    calls_left: int
    server: int = 0
    keys: Sequence[int] = ()
    last_used_ns: int = 0
    calls: int = 0
    steps_left: int = 0
    tools: dict[int, tuple[int, str]] = field(default_factory=dict)
    pin: Pin | None = None
    loading: bool = False


class Contexts:
    """The contexts of a run.

    Args:
        trace: the trace.

    Attributes:
        all: the contexts, by number.
        live: those of which a call has ended and another is to come, by number.
        pinned: those that hold blocks, by number.
        structure: what the trace declares.
    """

    def __init__(self, trace: Trace) -> None:
        self.all: list[Held] = []
        self.live: dict[int, Held] = {}
        self.pinned: dict[int, Held] = {}
        self.structure = Structure(trace)
        self._tasks: list[int] = trace.operations.ints("task").tolist()
        self._of_session: dict[tuple[int, int], Held] = {}
        self._remaining: dict[int, Remaining] = {}

    def of_call(self, released: Released) -> Held:
        """The context of a call, which is the first of it if there is none."""
        key = (released.instance, self.structure.session[released.operation])
        held = self._of_session.get(key)
        if held is None:
            held = Held(len(self.all), *key, released.event, self.structure.calls_of_session[key[1]])
            self.all.append(held)
            self._of_session[key] = held
        if released.instance not in self._remaining:
            paths = self.structure.paths(self._tasks[released.operation])
            self._remaining[released.instance] = Remaining(paths.tolist())
        return held

    def of_tool(self, tool: Released) -> Held | None:
        """The context that waits for a tool, None if no call asked for it."""
        call = self.structure.asked_by[tool.operation]
        return None if call < 0 else self._of_session.get((tool.instance, self.structure.session[call]))

    def call_is_critical(self, released: Released) -> bool:
        """Whether no call of its instance that has not ended begins a longer declared path (ST-LIF-012)."""
        return self.structure.path[released.operation] >= self._remaining[released.instance].longest

    def critical(self, held: Held) -> bool:
        """Whether no call of a context's instance that has not ended begins a longer declared path than may follow it."""
        return held.steps_left >= self._remaining[held.instance].longest

    def needed_in(self, held: Held) -> int:
        """Calls that must end, one after the other, before the next call of a live context's session, by the declared edges."""
        done = self._remaining[held.instance].done
        calls = self.structure.calls_in_session[held.session]
        return self.structure.calls_before(next(call for call in calls if call not in done), done)

    def ended(self, held: Held, operation: int) -> None:
        """A call of a context has ended, or was refused."""
        held.calls_left -= 1
        if held.calls and held.calls_left:
            self.live[held.id] = held
        else:
            self.live.pop(held.id, None)
        self._remaining[held.instance].ended(operation, self.structure.path[operation])
