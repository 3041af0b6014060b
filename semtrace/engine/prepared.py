"""A trace as a simulated engine sees it in a scenario: requests in tokens and blocks, and who may share them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from semtrace.check.finding import found
from semtrace.engine.cost import step_ns
from semtrace.engine.document import cost_of, parse_engine, settings_of
from semtrace.engine.geometry import geometry_of
from semtrace.engine.work import Work
from semtrace.kernels import run
from semtrace.records.columns import NULL
from semtrace.records.execution import Backend as BackendFacts
from semtrace.replay.controller import runs_on_backend

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from semtrace.check.finding import Finding
    from semtrace.engine.cost import Cost
    from semtrace.engine.document import EngineDocument
    from semtrace.engine.scheduler import Step
    from semtrace.engine.settings import EngineSettings
    from semtrace.records.trace import Trace
    from semtrace.replay.arrivals import Instances

RANKED: Final = 0
PLAS: Final = 1
INSTANCE_FCFS: Final = 2
SESSION_FCFS: Final = 3
"""What the priority of a request is: that of its operation; the service that its instance has had; when the first request of
its instance, or of its session, was routed. Unread with `fcfs`."""


@dataclass(frozen=True)
class Prepared:
    """What both engines are given.

    Attributes:
        trace: the trace.
        document: the engine document, with model, device and cost in it.
        settings: its numbers.
        cost: its compiled cost.
        work: the operations in tokens and blocks.
        group: by instance, the group in which prefixes are shared (ST-SCN-011).
        first_event: by instance, its first event; shape (instances + 1,).
        first_operation: by instance, the first operation of its task.
    """

    trace: Trace
    document: EngineDocument
    settings: EngineSettings
    cost: Cost
    work: Work
    group: NDArray[np.int64]
    first_event: NDArray[np.int64]
    first_operation: NDArray[np.int64]

    @classmethod
    def of(cls, trace: Trace, values: Mapping[str, object], copies: Instances) -> Prepared:
        """Read the engine document and lay out the trace for it.

        Args:
            trace: a valid trace.
            values: the engine document.
            copies: the instances of the run.

        Raises:
            DocumentError: the engine document is wrong, with every member that is.
            ReplayError: counts of the trace are not known or contradict each other.
        """
        document = parse_engine(values, path="backend.settings", trace=trace)
        settings = settings_of(document)
        starts = trace.offsets("operations")
        sizes = np.diff(starts)[copies.task]
        return cls(
            trace,
            document,
            settings,
            cost_of(document, settings),
            Work.of(trace, settings.block_size),
            copies.prefix_group,
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            starts[copies.task].astype(np.int64),
        )

    def facts(self) -> BackendFacts:
        """Name, and the whole engine document."""
        return BackendFacts(name="engine", settings=self.document.as_json())

    # What may be run.

    @cached_property
    def oversized(self) -> NDArray[np.bool_]:
        """By operation, whether no server could ever run it (ST-ENG-011)."""
        settings, work = self.settings, self.work
        scheduler = settings.scheduler
        whole = work.prompt_tokens + work.output_tokens
        held = work.prompt_tokens + np.maximum(work.output_tokens, 1) - 1  # the last token is never computed
        wrong = whole > scheduler.max_model_len
        wrong |= -(-held // settings.block_size) > settings.blocks - 1
        if not scheduler.chunked_prefill:
            wrong |= held > scheduler.max_num_batched_tokens  # all of it may have to be computed again
        return np.asarray(wrong)

    def fits(self, operation: int) -> bool:
        """Whether a server could run this operation."""
        return not self.oversized[operation]

    def refuse(self, operations: Iterable[int]) -> Iterator[Finding]:
        """Operations that no server could ever run, unless that is to be an outcome; and prompts of no token."""
        asked = np.zeros(self.trace.operations.rows, dtype=np.bool_)
        asked[np.fromiter(operations, dtype=np.int64)] = True
        work, settings = self.work, self.settings
        yield from found(
            "ST-ENG-010",
            asked & (work.prompt_tokens == 0),
            "operation {row} has an empty prompt, of which no engine computes anything",
            table="operations",
            column="prompt_tokens",
        )
        if self.document.oversized == "outcome":
            return
        yield from found(
            "ST-ENG-011",
            asked & self.oversized,
            lambda row: (
                f"operation {row} has {work.prompt_tokens[row]:,} prompt and {work.output_tokens[row]:,} output tokens, "
                f"and no server holds it: {settings.blocks - 1:,} blocks of {settings.block_size}, "
                f"at most {settings.scheduler.max_model_len:,} tokens a request"
            ),
            table="operations",
            column="prompt_tokens",
            hint="more KV, a larger max_model_len, or oversized: outcome to count it as refused",
        )

    # One request.

    @cached_property
    def _counts(self) -> tuple[list[int], list[int], list[int], list[int]]:
        work = self.work
        recorded = self.trace.operations.ints("output_tokens")
        return (
            work.prompt_tokens.tolist(),
            work.output_tokens.tolist(),
            recorded.tolist(),
            self.trace.operations.ints("session").tolist(),
        )

    def prompt_tokens(self, operation: int) -> int:
        """Tokens of its prompt."""
        return self._counts[0][operation]

    def output_tokens(self, operation: int) -> int:
        """Tokens that it makes; 0 for an embedding."""
        return self._counts[1][operation]

    def recorded_output(self, operation: int) -> int | None:
        """Output tokens as recorded, None if there are none to count."""
        recorded = self._counts[2][operation]
        return None if recorded == NULL else recorded

    def session(self, instance: int, operation: int) -> Hashable:
        """A session of an instance; operations without session are one of it (ST-ENG-015)."""
        return instance, self._counts[3][operation]

    def keys(self, instance: int, operation: int) -> Sequence[int]:
        """Keys of its full blocks, those of other groups being different (ST-ENG-012)."""
        work = self.work
        keys = work.keys[work.key_start[operation] : work.key_start[operation + 1]]
        salted: list[int] = (keys + int(self.group[instance]) * work.key_count).tolist()
        return salted

    @cached_property
    def rule(self) -> int:
        """What priorities are: `RANKED`, `PLAS`, `INSTANCE_FCFS` or `SESSION_FCFS` (ST-ENG-021 to ST-ENG-025)."""
        order = self.document.scheduler.order
        return {"plas": PLAS, "instance_fcfs": INSTANCE_FCFS, "session_fcfs": SESSION_FCFS}.get(order, RANKED)

    @cached_property
    def rank(self) -> NDArray[np.int64]:
        """By operation, its fixed priority: minus the calls (ST-ENG-021) or tokens (ST-ENG-025) of the longest path from it on.

        0 in orders whose priorities are not fixed.
        """
        order = self.document.scheduler.order
        if order == "critical_path":
            weight = runs_on_backend(self.trace).astype(np.int64)
        elif order == "critical_path_oracle":
            weight = self.work.prompt_tokens + self.work.output_tokens
        else:
            return np.zeros(self.trace.operations.rows, dtype=np.int64)
        longest, edges = weight.copy(), self.trace["edges"]
        run(longest_paths, edges.rows, longest, weight, edges.ints("source"), edges.ints("target"))
        return -longest

    @cached_property
    def _ranks(self) -> list[int]:
        ranks: list[int] = self.rank.tolist()
        return ranks

    def fixed_priority(self, operation: int) -> int:
        """Its fixed priority, `rank`; smaller is served first."""
        return self._ranks[operation]

    def step_ns(self, step: Step) -> int:
        """Time of a step, in ns."""
        ints, floats = self._numbers
        return step_ns(self.cost.kind, ints, floats, geometry_of(step))

    @cached_property
    def _numbers(self) -> tuple[list[int], list[float]]:
        return self.cost.ints.tolist(), self.cost.floats.tolist()


def longest_paths(longest: list[int], weight: list[int], source: list[int], target: list[int]) -> None:
    """Weight of the longest path from each operation on, in place; edges are sorted by target, and point to higher rows."""
    for edge in range(len(source) - 1, -1, -1):
        through = weight[source[edge]] + longest[target[edge]]
        longest[source[edge]] = max(longest[source[edge]], through)
