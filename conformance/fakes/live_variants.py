"""Wrong replayers on a real server, each with one thing changed: python live_variants.py NAME.

By the names `right` and `right-locked` the small replayer answers as it is, in the two profiles.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "testees")]

from semtrace_testee import Refused, serve  # noqa: E402

import live_replayer  # noqa: E402  # they lie beside this file
import live_wire  # noqa: E402
from live_replayer import EOS, Event, Replayer  # noqa: E402
from live_wire import Json  # noqa: E402
from semtrace.graph.legality import judge  # noqa: E402
from semtrace.graph.plan import Plan, dag  # noqa: E402
from semtrace.records.enums import Outcome  # noqa: E402
from semtrace.store.digests import show, work_digest  # noqa: E402
from variants import Variant, variants  # noqa: E402

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from semtrace.records.trace import Trace

MS = 1_000_000


class Right(Replayer):
    """The small replayer as it is."""


class Live(Variant):
    """A wrong replayer.

    Attributes:
        kind: what replays.
        cases: the cases that it is asked; the others would show the same.
        fails: the checks that it fails however busy the machine is. What else fails is not part of its score.
    """

    profile = "live"
    kind: ClassVar[type[Replayer]] = Right
    cases: ClassVar[tuple[str, ...]] = ("live/team",)
    fails: ClassVar[tuple[str, ...]] = ()

    def handle(self, message: Json) -> Json | None:
        if message["type"] == "start":
            answer = {
                "type": "started",
                "protocol": 1,
                "spec": "1.0-draft",
                "testee": {"name": "fake", "version": "0"},
            }
            return {**answer, "profiles": {self.profile: message["profiles"][self.profile]}}
        return super().handle(message)

    def replay_live(self, inputs: Json, ask: Json, *output: Path) -> Json:
        """A replay on the server of the suite."""
        try:
            return live_replayer.replay_live(self.kind, inputs, ask, output[0] if output else None)
        except live_replayer.Refused as error:
            raise Refused(error.requirement, "it cannot be replayed there") from error


class Locked(Live):
    """A wrong replayer in mode token_locked."""

    profile = "token_locked"
    cases = ("token_locked/ids",)


class ReleasesEarly(Live):
    """It sends what waits for something 120 ms before its release, or as soon as it is ready."""

    cases = ("live/added-edges",)
    fails = ("live.release",)

    class kind(Right):  # noqa: D106, N801  # what is other than right
        def release(self, event: Event, ready: int, released: int) -> int:
            return released - 120 * MS


class IgnoresBarriers(Live):
    """It does not honour the groups of a plan."""

    cases = ("live/barrier-chain",)
    fails = ("live.release",)

    class kind(Right):  # noqa: D106, N801  # what is other than right
        def groups(self) -> Iterator[tuple[Any, Any]]:
            yield from ()


class WaitsForEnds(Live):
    """It waits for the end of an operation, whatever the trigger."""

    cases = ("live/triggers",)
    fails = ("live.lateness",)

    class kind(Right):  # noqa: D106, N801  # what is other than right
        def comes(self, future: Any, time_ns: int) -> None:
            own = [event for event in self.events.values() if future in {event.start, event.token}]
            if not own or "finished_ns" in own[0].row:
                super().comes(future, time_ns)


class OneInstanceEarly(Live):
    """It sends the first instance at once, whenever it arrives: the others are late then."""

    cases = ("live/drawn",)
    fails = ("live.lateness",)

    class kind(Right):  # noqa: D106, N801  # what is other than right
        def release(self, event: Event, ready: int, released: int) -> int:
            return released + 400 * MS if event.instance else released


class OneAtATime(Live):
    """It has one request in flight at once."""

    cases = ("live/wide",)
    fails = ("live.lateness",)

    class kind(Right):  # noqa: D106, N801  # what is other than right
        async def run(self) -> Json:
            self.scenario = {"concurrency": 1, **self.scenario}
            return await super().run()


class ForgetsOne(Live):
    """It does not send the last operation, and says that it did."""

    fails = ("live.presence",)

    class kind(Right):  # noqa: D106, N801  # what is other than right
        def wanted(self, event: Event) -> bool:
            return event.operation < len(self.of["kind"]) - 1


class SendsTwice(Live):
    """It sends each operation a second time."""

    fails = ("live.presence",)

    class kind(Right):  # noqa: D106, N801  # what is other than right
        async def attempts(self, event: Event) -> None:
            await super().attempts(event)
            await self.attempt(event, 1)


class OtherPrompts(Live):
    """It sends prompts of the right length, with other tokens."""

    fails = ("live.prompts",)

    class kind(Right):  # noqa: D106, N801  # what is other than right
        def prompt(self, at: int) -> list[int]:
            return [each + 1 for each in super().prompt(at)]


class SendsAnothersPrompt(Live):
    """It sends the prompts of two operations that have the same length the one for the other."""

    cases = ("live/triggers",)
    fails = ("live.prompts",)

    class kind(Right):  # noqa: D106, N801  # what is other than right
        def prompt(self, at: int) -> list[int]:
            alike = [
                each
                for each, count in enumerate(self.of["prompt_tokens"])
                if count == self.of["prompt_tokens"][at]
            ]
            return super().prompt(alike[alike.index(at) - 1])


class NeverResends(Live):
    """What an old connection cut off is a failure for it, and the next attempt another one."""

    cases = ("live/old-connection",)
    fails = ("live.presence",)

    class kind(Right):  # noqa: D106, N801  # what is other than right
        held: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

        async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            held, self.held = self.held, None
            return held or await super().connect()

        def disconnect(
            self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, whole: bool
        ) -> None:
            if whole:
                self.held = reader, writer
            else:
                super().disconnect(reader, writer, whole=whole)

        async def run(self) -> Json:
            try:
                return await super().run()
            finally:
                if self.held is not None:
                    self.held[1].close()
                    await self.held[1].wait_closed()


class FollowsAnyPlan(Live):
    """It leaves out what is not legal, and replays."""

    cases = ("live/added-edges", "live/plan-backwards", "live/plan-circle", "live/plan-other-work")
    fails = ("verdict",)

    class kind(Right):  # noqa: D106, N801  # what is other than right
        @classmethod
        def followed(cls, trace: Trace, plan: Plan) -> Plan:
            return plan if not judge(trace, plan).findings else dag(show(work_digest(trace)))


class ShortPrompts(Live):
    """It leaves out the last token of each prompt."""

    cases = ("live/synthetic",)
    fails = ("live.prompts",)

    class kind(Right):  # noqa: D106, N801  # what is other than right
        def prompt(self, at: int) -> list[int]:
            return super().prompt(at)[:-1] or super().prompt(at)


class HeedsEnds(Live):
    """It lets the server end when it likes."""

    fails = ("live.locks",)

    class kind(Right):  # noqa: D106, N801  # what is other than right
        def body(self, event: Event) -> Json:
            return super().body(event) | {"ignore_eos": False, "min_tokens": 1}


class GivesUp(Live):
    """It gives requests up at a third of their time limit."""

    cases = ("live/timeout",)
    fails = ("live.attempts",)

    class kind(Right):  # noqa: D106, N801  # what is other than right
        def limit_ns(self) -> int:
            return super().limit_ns() // 3


class Crowds(Live):
    """It knows no limit of what is in flight."""

    cases = ("live/concurrency",)
    fails = ("live.concurrency",)

    class kind(Right):  # noqa: D106, N801  # what is other than right
        async def run(self) -> Json:
            self.scenario = {key: value for key, value in self.scenario.items() if key != "concurrency"}
            return await super().run()


class ClaimsSuccess(Live):
    """It says of everything that it went well."""

    cases = ("live/failures",)
    fails = ("live.outcomes", "live.record")

    class kind(Right):  # noqa: D106, N801  # what is other than right
        def reported(self, event: Event) -> Json:
            return event.row | {"outcome": 1, "failure": None}


class CountsByTrace(Live):
    """It takes from the trace what the server should have told."""

    cases = ("live/astray",)
    fails = ("live.record",)

    class kind(Right):  # noqa: D106, N801  # what is other than right
        def reported(self, event: Event) -> Json:
            return event.row | {"output_tokens": self.of["output_tokens"][event.operation]}


class LiesAboutTimes(Live):
    """It sends everything 300 ms late, and says that it was on time."""

    fails = ("live.lateness", "live.times")

    class kind(Right):  # noqa: D106, N801  # what is other than right
        def release(self, event: Event, ready: int, released: int) -> int:
            return released + 300 * MS

        def reported(self, event: Event) -> Json:
            return event.row | {"submitted_ns": event.row["released_ns"]}


class LeavesNothing(Live):
    """It says that it leaves executions, and does not."""

    fails = ("live.record",)

    class kind(Right):  # noqa: D106, N801  # what is other than right
        def leaves(self, path: Path) -> None:
            """Nothing."""


class LeavesScenarioOut(Live):
    """Its execution does not say by which scenario it came about."""

    fails = ("live.header",)

    class kind(Right):  # noqa: D106, N801  # what is other than right
        def header(self) -> Json:
            return super().header() | {"scenario": None}


class LeavesPlanOut(Live):
    """Its execution has the digest of the plan alone."""

    fails = ("live.header",)

    class kind(Right):  # noqa: D106, N801  # what is other than right
        def header(self) -> Json:
            return super().header() | {"plan": None}


class ToleratesNothing(Live):
    """Its execution has the tolerance of a virtual clock."""

    fails = ("live.header",)

    class kind(Right):  # noqa: D106, N801  # what is other than right
        def header(self) -> Json:
            return super().header() | {"tolerance_ns": 0}


class ToleratesTheUsual(Live):
    """Its execution has the usual tolerance, whatever the scenario says."""

    cases = ("live/chain",)
    fails = ("live.header",)

    class kind(Right):  # noqa: D106, N801  # what is other than right
        def header(self) -> Json:
            return super().header() | {"tolerance_ns": MS}


class ContradictsItself(Live):
    """The scenario in its header names no backend, which is another one than it ran on."""

    fails = ("live.header",)

    class kind(Right):  # noqa: D106, N801  # what is other than right
        def header(self) -> Json:
            return super().header() | {"scenario": self.scenario}


class LeavesTimesOut(Live):
    """It does not say when what does not run on the server ended."""

    fails = ("live.record",)

    class kind(Right):  # noqa: D106, N801  # what is other than right
        def reported(self, event: Event) -> Json:
            return event.row if self.on_server(event.operation) else event.row | {"finished_ns": None}


class CallsInstancesFailed(Live):
    """It says of instances that ran to their end that they failed."""

    fails = ("live.record",)

    class kind(Right):  # noqa: D106, N801  # what is other than right
        def ended(self) -> int:
            return Outcome.FAILURE


class SwapsTwo(Locked):
    """It exchanges the first two tokens of each output."""

    fails = ("live.locks",)

    class kind(Right):  # noqa: D106, N801  # what is other than right
        def output(self, at: int) -> list[int]:
            first, *rest = super().output(at) or [0]
            return [*rest[:1], first, *rest[1:]]


class MissesEnds(Locked):
    """It leaves the end token out, and lets the server go on."""

    fails = ("live.locks",)

    class kind(Right):  # noqa: D106, N801  # what is other than right
        def body(self, event: Event) -> Json:
            body = super().body(event)
            lock = [each for each in self.output(event.operation) if each != EOS]
            return body | {"vllm_xargs": {"semtrace_output_ids": lock}, "ignore_eos": True}


class LocksAnywhere(Locked):
    """It does not look whether the server can lock tokens."""

    cases = ("token_locked/ids", "token_locked/no-lock")
    fails = ("verdict",)

    def replay_live(self, inputs: Json, ask: Json, *output: Path) -> Json:
        known = live_wire.locks

        async def locks(_url: str, _model: str) -> bool:
            return True

        live_wire.locks = locks
        try:
            return super().replay_live(inputs, ask, *output)
        finally:
            live_wire.locks = known


class IdsByTrace(Locked):
    """It takes from the trace which tokens came."""

    cases = ("token_locked/astray",)
    fails = ("live.record",)

    class kind(Right):  # noqa: D106, N801  # what is other than right
        def reported(self, event: Event) -> Json:
            return event.row | {"ids": self.output(event.operation)}


if __name__ == "__main__":
    serve({**variants(), "right": Live, "right-locked": Locked}[sys.argv[1]]())
