"""Going on where a live replay was stopped: what it had finished is kept, the rest is run again (ST-LIV-014)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from semtrace.errors import OtherWorkError, ReplayError
from semtrace.graph.plan import Plan
from semtrace.records.columns import NULL
from semtrace.records.enums import EventOutcome
from semtrace.records.execution import Execution
from semtrace.records.trace import MemoryContent
from semtrace.replay.arrivals import instances
from semtrace.replay.controller import TIMES
from semtrace.replay.scenario import ClosedLoop, Drawn, Scenario
from semtrace.store.digests import show, work_digest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semtrace.records.trace import Trace
    from semtrace.replay.arrivals import Instances


@dataclass(frozen=True)
class Resume:
    """A run that was stopped, and what is left of it.

    Attributes:
        stopped: the execution that it left.
        done: by instance, whether all its operations had come to a terminal state.
        scenario: the scenario of the stopped run, arrivals drawn.
        plan: its plan.
        sent: the instances in the order in which they are sent.
        first_ns: when the first of the instances that are left was to arrive, on the clock of the stopped run; in ns.
        stopped_url: where the stopped run's server was, if the rest is run at another URL; else None.
    """

    stopped: Execution
    done: NDArray[np.bool_]
    scenario: Scenario
    plan: Plan
    sent: NDArray[np.int64]
    first_ns: int
    stopped_url: str | None = None

    @classmethod
    def of(
        cls, trace: Trace, stopped: Execution, plan: Plan | None = None, *, url: str | None = None
    ) -> Resume:
        """Look at what a run left.

        Args:
            trace: the trace that was replayed.
            stopped: the execution that the run left.
            plan: the plan that it must have followed, if it is not just to be taken from the execution.
            url: where the server is now, if it is not where it was.

        Raises:
            OtherWorkError: it is of another trace.
            ReplayError: it is not of a live replay, was of another plan, has nothing left, or cannot be resumed.
        """
        header = stopped.header
        if header.work_digest != show(work_digest(trace)):
            raise OtherWorkError(
                "the stopped run is of another trace", code="resume.work", requirement="ST-EXE-001",
                hint="resume with the trace that was replayed",
            )  # fmt: skip
        if None in (header.scenario, header.plan, header.origin_unix_ns) or header.clock != "wall":
            raise ReplayError(
                "only a live replay can be resumed", code="resume.clock", requirement="ST-LIV-014",
                hint="a virtual replay takes its seconds again: run it anew",
            )  # fmt: skip
        followed = Plan.parse(header.plan, path="header.plan")
        if plan is not None and followed.content_digest() != plan.content_digest():
            raise ReplayError(
                "the stopped run followed another plan", code="resume.plan", requirement="ST-LIV-014",
                hint="give the same --plan",
            )  # fmt: skip
        scenario = Scenario.parse(header.scenario, path="header.scenario")
        if isinstance(scenario.arrivals, ClosedLoop):
            raise ReplayError(
                "a closed loop cannot be resumed: who arrives next followed from the answers",
                code="resume.arrivals",
                requirement="ST-LIV-014",
                hint="run it anew",
            )
        unfinished = stopped.events.ints("outcome") == EventOutcome.UNFINISHED
        count = stopped.instances.rows
        left = np.bincount(stopped.events.ints("instance")[unfinished], minlength=count)
        done = left[:count] == 0
        if done.all():
            raise ReplayError(
                "the run came to its end: nothing is left to do", code="resume.done", requirement="ST-LIV-014",
            )  # fmt: skip
        first = int(stopped.instances.ints("arrival_ns")[~done].min())
        was: str | None = None
        if url is not None:
            scenario, was = _moved(scenario, url)
        return cls(stopped, done, scenario, followed, instances(trace, scenario).sending_order, first, was)

    def remaining(self, copies: Instances) -> Instances:
        """The instances with those that are done left out: they never arrive; the first of the others arrives at 0."""
        arrival = np.where(self.done, NULL, copies.arrival_ns - self.first_ns)
        return dataclasses.replace(copies, arrival_ns=arrival)

    def joined(self, again: Execution) -> Execution:
        """One execution of both runs, on the clock of the first."""
        header, before = again.header, self.stopped.header
        if header.origin_unix_ns is None or before.origin_unix_ns is None:
            raise ValueError("only live runs are joined")
        shift = header.origin_unix_ns - before.origin_unix_ns
        old, new = self.stopped, again
        kept = self.done[old.events.ints("instance")]
        roots = _chosen(self.done, old.instances.data, _shifted(new.instances.data, ("arrival_ns",), shift))
        content, old_ordinal, new_ordinal = _contents(old, new)
        events = _chosen(
            kept,
            _renumbered(old.events.data, old_ordinal),
            _renumbered(_shifted(new.events.data, TIMES, shift), new_ordinal),
        )
        arrival = roots["arrival_ns"].to_numpy()
        drawn = Drawn(times_ns=np.maximum(arrival[self.sent], 0).tolist())
        scenario: dict[str, Any] = {**(header.scenario or {}), "arrivals": drawn.as_json()}
        earlier = before.environment.get("resumed", [])
        resumed: dict[str, Any] = {
            "unix_ns": str(header.origin_unix_ns),
            "kept_instances": int(self.done.sum()),
            "later_ns": shift - self.first_ns,
        }
        if self.stopped_url is not None:
            resumed["stopped_url"] = self.stopped_url
        joined = header.model_copy(
            update={
                "scenario": scenario,
                "origin_unix_ns": before.origin_unix_ns,
                "seeds": {},
                "environment": {**header.environment, "resumed": [*earlier, resumed]},
            }
        )
        return Execution.from_arrow(joined, {"instances": roots, "events": events}, content)


def _moved(scenario: Scenario, url: str) -> tuple[Scenario, str | None]:
    """A scenario with its server at a URL, and the URL that it was at if that is another one."""
    settings = scenario.backend.settings
    if scenario.backend.name != "http":
        raise ReplayError(
            f"the stopped run was on backend {scenario.backend.name}, which has no URL", code="resume.url",
            requirement="ST-LIV-014", hint="leave --url out",
        )  # fmt: skip
    was = settings.get("url")
    backend = scenario.backend.model_copy(update={"settings": {**settings, "url": url}})
    return scenario.model_copy(update={"backend": backend}), None if was == url else str(was)


def _shifted(table: pa.Table, names: tuple[str, ...], by_ns: int) -> pa.Table:
    import pyarrow.compute as pc

    for name in names:
        at = table.schema.get_field_index(name)
        table = table.set_column(
            at, table.schema.field(at), pc.add(table[name], pa.scalar(by_ns, pa.int64()))
        )
    return table


def _chosen(first: NDArray[np.bool_], one: pa.Table, other: pa.Table) -> pa.Table:
    """Rows of one table where `first`, of the other elsewhere."""
    both = pa.concat_tables([one, other])
    rows = np.arange(len(first), dtype=np.int64)
    return both.take(np.where(first, rows, rows + len(first))).combine_chunks()


def _contents(old: Execution, new: Execution) -> tuple[MemoryContent, dict[int, int], dict[int, int]]:
    """The content of both, and where each one's artifacts lie in it."""
    digests = sorted({*old.content, *new.content})
    place = {digest: at for at, digest in enumerate(digests)}
    merged = {digest: old.content.get(digest) or new.content.get(digest) or b"" for digest in digests}
    ordinals = [{at: place[digest] for at, digest in enumerate(sorted(each.content))} for each in (old, new)]
    return MemoryContent(merged), ordinals[0], ordinals[1]


def _renumbered(table: pa.Table, ordinal: dict[int, int]) -> pa.Table:
    at = table.schema.get_field_index("output_ids")
    moved = [None if value is None else ordinal.get(value) for value in table["output_ids"].to_pylist()]
    return table.set_column(at, table.schema.field(at), pa.array(moved, table.schema.field(at).type))
