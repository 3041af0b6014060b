"""A lifecycle policy on the compiled engine: the kernel comes back where its driver has something to do, and goes on from there."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from semtrace.engine.fast import layout as at
from semtrace.engine.fast.state import FastState, OwnKeys
from semtrace.engine.lifecycle import Lifecycle
from semtrace.engine.prepared import Prepared
from semtrace.errors import ReplayError
from semtrace.policies.interface import Pressure
from semtrace.records.columns import NULL
from semtrace.replay.backend import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from semtrace.engine.fast.build import State
    from semtrace.engine.lifecycle_log import LifecycleLog
    from semtrace.policies.interface import Facts, Policy


@dataclass(frozen=True)
class _Keyed(Prepared):
    """A trace as the engine sees it, with the keys that the compiled engine has for its blocks."""

    own_keys: NDArray[np.int64]
    first_key: int
    salt: NDArray[np.int64]

    def keys(self, instance: int, operation: int) -> Sequence[int]:
        """Keys of its full blocks; equal exactly where those of the trace are."""
        start = self.work.key_start
        begin, end = int(start[operation]), int(start[operation + 1])
        return OwnKeys(self.own_keys, begin, end, self.first_key, int(self.salt[instance]))


@dataclass(frozen=True)
class Driving:
    """What makes a driver.

    Attributes:
        prepared: the trace as the engine sees it.
        policy: the policy.
        facts: what it knows of the engine.
        log: what happens is written there.
    """

    prepared: Prepared
    policy: Policy
    facts: Facts
    log: LifecycleLog


class Driver:
    """Lets the driver of a policy act on a run.

    Args:
        driving: the policy, and the trace.
        state: the run.
        kernel: `loop.run`, compiled or not.
        s, b, f: what the kernel works on.
    """

    def __init__(
        self, driving: Driving, state: State, kernel: Callable[[Any, Any, Any], int], s: Any, b: Any, f: Any
    ) -> None:
        self._s = s
        self._b = b
        values = {each.name: getattr(driving.prepared, each.name) for each in fields(Prepared)}
        prepared = _Keyed(**values, own_keys=state.keys, first_key=state.first_key, salt=state.salt)
        self._event0, self._server0 = int(s[at.EVENT0]), int(s[at.SERVER0])
        servers = range(self._server0, int(s[at.SERVERS_END]), at.SERVER_SIZE)
        states = [FastState(kernel, s, b, f, server) for server in servers]
        self._lifecycle = Lifecycle(prepared, driving.policy, driving.facts, states, driving.log)
        s[at.TELL_PRESSURE] = int(Pressure in driving.policy.notices)
        instance = np.repeat(np.arange(state.instances), np.diff(prepared.first_event))
        self._instance: list[int] = instance.tolist()
        self._operation: list[int] = state.operation.tolist()
        self.loaded = np.full(state.events, NULL, dtype=np.int64)
        self.reused = np.full(state.events, NULL, dtype=np.int64)

    def act(self, code: int) -> None:
        """Do what the kernel has come back for: `POLICY`, `ADMITTED`, `STUCK` or `ALONE`.

        Raises:
            ReplayError: the policy is wrong, or waits for a time that does not fit into 63 bits.
        """
        s = self._s
        now = int(s[at.NOW])
        if code == at.POLICY:
            self._phase(now)
        else:
            self._lifecycle.at(now)
            if code == at.ADMITTED:
                self._admitted()
            elif code == at.ALONE:
                self._lifecycle.unpin_least(self._ordinal(int(s[at.STARTING])))
            elif not self._lifecycle.relieve(now, self._ordinal(int(s[at.STARTING]))):
                s[at.STARTING] += at.SERVER_SIZE
        alarm = self._lifecycle.next_ns()
        if alarm is not None and alarm >= at.HORIZON:
            raise ReplayError(
                "a time of this replay does not fit into 63 bits",
                code="replay.overflow",
                requirement="ST-REL-001",
                hint="look for a time to which the policy keeps something, or wants to be woken",
            )
        s[at.ALARM] = at.NEVER if alarm is None else alarm
        s[at.EVERY_INSTANT] = int(self._lifecycle.restless)

    def _phase(self, now: int) -> None:
        """Tell what happened in this instant, and let the policy act."""
        lifecycle, s = self._lifecycle, self._s
        told: dict[int, list[Request]] = {
            kind: [] for kind in (at.CALL_SUBMITTED, at.CALL_ENDED, at.TOOL_STARTED, at.TOOL_ENDED)
        }
        for kind, record in self._news():
            event = (record - self._event0) // at.EVENT_SIZE
            told[kind].append(Request(event, self._instance[event], self._operation[event]))
        for call in told[at.CALL_ENDED]:
            self.loaded[call.event], self.reused[call.event] = lifecycle.ended(now, call.event, None)
        if told[at.TOOL_STARTED] or told[at.TOOL_ENDED]:
            lifecycle.observe(now, told[at.TOOL_STARTED], told[at.TOOL_ENDED])
        for call in told[at.CALL_SUBMITTED]:
            record = self._event0 + call.event * at.EVENT_SIZE
            server = self._ordinal(int(s[record + at.SERVER]))
            s[record + at.IS_CRITICAL] = int(lifecycle.submitted(now, call, server))
        lifecycle.phase(now)

    def _admitted(self) -> None:
        """Tell who was admitted in the step that was just scheduled; its row has the blocks that are free after that."""
        s, size = self._s, int(self._s[at.BLOCK_SIZE])
        server = int(s[at.STARTING])
        row = int(s[at.STEP_LOG_AT]) - at.STEP_ROW
        for _, record in self._news():
            hits: list[int] = []
            if not s[record + at.PREEMPTIONS]:
                table = int(s[int(s[record + at.SLOT]) + at.TABLE])
                null, count = int(s[server + at.NULL_BLOCK]), int(s[record + at.CACHED]) // size
                hits = [(int(each) - null) // at.BLOCK_RECORD for each in self._b[table : table + count]]
            self._lifecycle.admitted((record - self._event0) // at.EVENT_SIZE, hits, ())
        if s[at.DETAIL]:
            s[row + 6] = s[server + at.FREE]

    def _news(self) -> list[tuple[int, int]]:
        """What has not been told yet, as (kind, record of the event)."""
        s = self._s
        first = int(s[at.NEWS0])
        news = [int(each) for each in s[first : int(s[at.NEWS_AT])]]
        s[at.NEWS_AT] = first
        return [(each & 7, each >> 3) for each in news]

    def _ordinal(self, server: int) -> int:
        return (server - self._server0) // at.SERVER_SIZE
