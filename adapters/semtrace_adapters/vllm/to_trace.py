"""From the requests of a server to a trace: tasks by what clients said, dependencies by the tokens that prompts repeat."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pyarrow as pa

from semtrace.build import TraceBuilder
from semtrace.errors import FormatError
from semtrace.live.vllm.steps import join
from semtrace.records.columns import NULL, Columns
from semtrace.records.enums import (
    ContentLevel,
    EventOutcome,
    FinishReason,
    OperationKind,
    OperationStatus,
    Phase,
    Role,
)
from semtrace.records.execution import Backend, Execution
from semtrace.records.execution_tables import EVENTS, EXECUTION_TABLE
from semtrace.records.media import TOKEN_IDS_TYPE
from semtrace_adapters.base import finish
from semtrace_adapters.vllm.matching import Matches, Said, match
from semtrace_adapters.vllm.step_log import samples
from semtrace_adapters.vllm.tasks import NAMES, hinted

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from numpy.typing import NDArray

    from semtrace.live.vllm.steps import ServerSteps
    from semtrace.records.trace import Trace
    from semtrace_adapters.base import LossReport
    from semtrace_adapters.vllm.step_log import Call, Content

Tasks = Literal["hints", "requests", "matched", "one"]
TASKS: Final[tuple[Tasks, ...]] = ("hints", "requests", "matched", "one")
"""What makes requests one task: what clients said; nothing; that one repeats another; that all were recorded together."""
_FINISH: Final = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
}
_STEPS: Final = ("steps", "step_runs")
_EXACT: Final = 1 << 53
_FACTS: Final = (
    "blocks",
    "block_size",
    "block_bytes",
    "order",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "chunked_prefill",
    "prefix_caching",
    "long_prefill_token_threshold",
    "async_scheduling",
)


class Conversion:
    """Makes the trace of one run of a server.

    Args:
        steps: what its schedulers did.
        content: what requests held, in the same order.
        tasks: what makes requests one task.
        least: tokens that an output must have to be looked for in later prompts.
        loss: told what could not be known.

    Attributes:
        calls: the calls that become operations, in the order of their arrival; times are Unix times.
    """

    def __init__(
        self, steps: ServerSteps, content: Content, tasks: Tasks, least: int, loss: LossReport
    ) -> None:
        self._steps, self._content = steps, content
        self._tasks, self._least, self._loss = tasks, least, loss
        places = self._usable()
        self._set_clocks(places)
        self._places = sorted(places, key=lambda at: (content.calls[at].begins_ns, at))
        self.calls: list[Call] = [content.calls[at] for at in self._places]
        self.origin = min((call.begins_ns for call in self.calls), default=0)
        self._built = TraceBuilder(origin_unix_ns=self.origin or None, content_level=ContentLevel.TOKEN_IDS)
        self._rows: list[int] = []  # by call, its operation

    def run(self) -> tuple[Trace, Execution]:
        """The trace, and the run as it was recorded."""
        owner, names = self._owners()
        found = self._found(owner)
        made = self._built
        rows = [made.task(name) for name in names]
        inner: dict[tuple[str, int, str], int] = {}
        provisional: list[int] = []
        for at, call in enumerate(self.calls):
            provisional.append(self._operation(call, rows[owner[at]], inner))
        for at in range(len(self.calls)):
            self._input(at, found.get(at, Matches()), provisional)
        self._remark(found)
        built = finish(made, self._loss)
        self._rows = [built.ids["operations"][row] for row in provisional]
        assert built.execution is not None  # every call has times  # noqa: S101
        return built.trace, self._execution(built.execution)

    # -- which requests, in which tasks -------------------------------------------------------------------------

    def _usable(self) -> list[int]:
        """The places of the calls that become operations."""
        calls = self._content.calls
        several = samples(calls)
        if several:
            self._loss.add(
                "requests.samples",
                "lost",
                "an answer to a request with several (n above 1), which a trace of version 1 cannot say: left out [ST-PROD-007]",
                count=len(several),
            )
        kept = [at for at in range(len(calls)) if at not in several]
        open_ = sum(calls[at].ended is None for at in kept)
        if open_:
            self._loss.add(
                "requests.open",
                "lost",
                "a request that had not ended when recording did: left out",
                count=open_,
            )
        return [at for at in kept if calls[at].ended is not None]

    def _set_clocks(self, places: list[int]) -> None:
        """Make Unix times of the times of calls, as the steps of the run will have them (ST-VLM-016)."""
        ahead: dict[int, list[int]] = defaultdict(list)
        for at in places:
            ahead[self._content.calls[at].server].append(self._steps.ahead_ns[at])
        middle = {server: sorted(each)[len(each) // 2] for server, each in ahead.items()}
        for at in places:
            call = self._content.calls[at]
            by = middle[call.server]
            call.came_ns += by
            call.first_token_ns = None if call.first_token_ns is None else call.first_token_ns + by
            call.ended_ns = None if call.ended_ns is None else call.ended_ns + by

    def _owners(self) -> tuple[list[int], list[str]]:
        """By call its task, and the names of tasks; tasks in the order of their first calls."""
        if self._tasks == "matched":
            keys: list[Hashable] = list(self._components())
        elif self._tasks == "one":
            keys = [0] * len(self.calls)
        elif self._tasks == "hints":
            keys = hinted(self.calls, self._loss)
        else:
            keys = list(range(len(self.calls)))
        number: dict[Hashable, int] = {}
        owner = [number.setdefault(key, len(number)) for key in keys]
        names = [key[1] if isinstance(key, tuple) else f"task {place}" for key, place in number.items()]
        return owner, names

    def _components(self) -> list[int]:
        """By call, the first of those that it is connected with: by repeating, or being repeated."""
        first = list(range(len(self.calls)))

        def head(at: int) -> int:
            while first[at] != at:
                first[at] = first[first[at]]
                at = first[at]
            return at

        for at, each in match(self._said(range(len(self.calls))), self._least).items():
            for source in [*([] if each.base is None else [each.base]), *(run.source for run in each.runs)]:
                one, two = sorted((head(at), head(source)))
                first[two] = one
        return [head(at) for at in range(len(first))]

    def _said(self, rows: Sequence[int]) -> list[Said]:
        made = []
        for at in rows:
            call = self.calls[at]
            generated = self._kind(call) is OperationKind.LLM
            made.append(
                Said(at, call.begins_ns, call.ended_ns, call.ids, call.output_ids if generated else None)
            )
        return made

    def _found(self, owner: list[int]) -> dict[int, Matches]:
        """What each call repeats of those of its task."""
        by_task: dict[int, list[int]] = defaultdict(list)
        for at, task in enumerate(owner):
            by_task[task].append(at)
        found: dict[int, Matches] = {}
        for rows in by_task.values():
            if len(rows) > 1:
                found |= match(self._said(rows), self._least)
        for at, each in found.items():
            if each.base is not None and self._kind(self.calls[at]) is not OperationKind.LLM:
                each.base, each.kept = None, 0
        return found

    # -- rows -----------------------------------------------------------------------------------------------------

    @staticmethod
    def _kind(call: Call) -> OperationKind:
        pooling = call.told is not None and bool(call.told.get("pooling"))
        return OperationKind.EMBED if pooling else OperationKind.LLM

    def _operation(self, call: Call, task: int, inner: dict[tuple[str, int, str], int]) -> int:
        made, told = self._built, call.told or {}
        kind = self._kind(call)
        generated = kind is OperationKind.LLM
        failed = call.ended not in _FINISH
        status = OperationStatus.ERROR if failed else OperationStatus.OK
        if call.ended == "abort":
            status = OperationStatus.CANCELLED
        needs_duration = failed or not generated
        row = made.operation(
            task,
            kind,
            call.hints.get("session") or ("call" if generated else "embed"),
            stage=self._inside("stage", task, call, inner),
            session=self._inside("session", task, call, inner),
            model=self._model(told),
            status=status,
            started_ns=call.begins_ns - self.origin,
            duration_ns=(call.ended_ns or call.begins_ns) - call.begins_ns if needs_duration else None,
            prompt_tokens=call.prompt_tokens,
            output_tokens=call.output_tokens if generated else None,
            finish_reason=_FINISH.get(str(call.ended)) if generated else None,
            settings=self._settings(told.get("sampling")),
        )
        if generated and call.output_ids is not None:
            made.update_operation(row, output_token_ids=self._ids(call.output_ids))
        made.observe(
            row,
            outcome=EventOutcome.ERROR if failed else None,
            attempts=1,
            request_id=call.name,
            submitted_ns=call.begins_ns - self.origin,
            first_token_ns=self._after(call.first_token_ns) if generated else None,
            finished_ns=self._after(call.ended_ns),
        )
        return row

    def _after(self, unix_ns: int | None) -> int | None:
        """A time after the origin."""
        return None if unix_ns is None else unix_ns - self.origin

    def _inside(
        self, kind: Literal["stage", "session"], task: int, call: Call, inner: dict[tuple[str, int, str], int]
    ) -> int | None:
        """The stage or the session that a client named, made where it is named first."""
        name = call.hints.get(kind)
        if not name:
            return None
        found = inner.get((kind, task, name))
        if found is None:
            made = self._built
            found = made.stage(task, name) if kind == "stage" else made.session(task, name=name)
            inner[kind, task, name] = found
        return found

    def _model(self, told: dict[str, Any]) -> int | None:
        model = self._content.model
        if model is None:
            return None
        if told.get("adapter"):
            return self._built.model(str(told["adapter"]))
        shape = {
            name: model.get(name)
            for name in (
                "layers",
                "hidden_size",
                "heads",
                "kv_heads",
                "head_dim",
                "intermediate_size",
                "vocab_size",
            )
        }
        return self._built.model(str(model["name"]), **shape)

    def _settings(self, sampling: dict[str, Any] | None) -> dict[str, object] | None:
        if not sampling:
            return None
        kept = {
            name: value
            for name, value in sampling.items()
            if not isinstance(value, int) or abs(value) < _EXACT
        }
        if len(kept) < len(sampling):
            self._loss.add("settings.large", "lost", "a generation setting of 2^53 or more: left out")
        return kept

    def _ids(self, ids: NDArray[np.int32]) -> int:
        return self._built.artifact(ids.astype("<i4").tobytes(), TOKEN_IDS_TYPE)

    def _input(self, at: int, found: Matches, provisional: list[int]) -> None:
        """The pieces of a call's prompt: what it inherits, outputs that it repeats, and what is between them."""
        call, row = self.calls[at], provisional[at]
        if call.ids is None or not len(call.ids):
            return
        made = self._built
        if found.base is not None:
            base = provisional[found.base]
            made.inherit(row, base, len(made.context(base)) + 1)
        own = call.ids[found.kept :]
        artifact = self._ids(own)
        place = found.kept
        for run in [*found.runs, None]:
            until = len(call.ids) if run is None else run.begin
            for begin, end, source in (
                (place, until, None),
                (until, until if run is None else until + run.tokens, run),
            ):
                if end > begin:
                    made.segment(
                        row,
                        Role.USER,
                        token_ids=artifact,
                        token_ids_start=begin - found.kept,
                        tokens=end - begin,
                        source=None if source is None else provisional[source.source],
                    )
                    place = end

    # -- what could not be known ------------------------------------------------------------------------------------

    def _remark(self, found: dict[int, Matches]) -> None:
        calls, add = self.calls, self._loss.add
        unknown = sum(call.ids is None for call in calls)
        if unknown:
            add(
                "ids.unknown",
                "unknown",
                "a prompt whose token ids were not written down: of images or embeddings, or by a scheduler that records steps alone",
                count=unknown,
            )
        if unknown < len(calls):
            add("texts.lost", "lost", "a server sees token ids: texts, messages and tools are not recorded")
            add(
                "roles.unknown",
                "estimated",
                "token ids do not say whose message they are of: all are taken for a user's",
            )
        if calls:
            add(
                "clients.unknown",
                "unknown",
                "what clients did between their requests, such as calling tools, a server does not see: it is in delays",
            )
        salted = sum(bool((call.told or {}).get("salted")) for call in calls)
        if salted:
            add(
                "salts.lost",
                "lost",
                "a request with a cache salt: a trace does not say that it shares no prefix with those of another",
                count=salted,
            )
        self._remark_tasks()
        based = sum(each.base is not None for each in found.values())
        runs = sum(len(each.runs) for each in found.values())
        if based or runs:
            add(
                "edges.matched",
                "inferred",
                "a dependency found by equal token ids: a prompt begins with another's prompt and output, or repeats an output",
                count=based + runs,
            )
        ambiguous = sum(each.ambiguous for each in found.values())
        if ambiguous:
            add(
                "edges.ambiguous",
                "inferred",
                "what a prompt repeats is the output of several requests: taken for that of the last one to end",
                count=ambiguous,
            )
        short = sum(call.output_ids is not None and 0 < len(call.output_ids) < self._least for call in calls)
        if short:
            add(
                "outputs.short",
                "unknown",
                f"an output of fewer than {self._least} tokens: not looked for in later prompts",
                count=short,
            )

    def _remark_tasks(self) -> None:
        add = self._loss.add
        if self._tasks == "one" and self.calls:
            add("tasks.one", "inferred", "all requests are taken for one task, as asked")
        elif self._tasks == "matched" and self.calls:
            add(
                "tasks.matched",
                "inferred",
                "requests of which one repeats another are taken for one task, as asked",
            )
        elif self._tasks == "hints":
            said = Counter(
                next((kind for kind in NAMES if call.hints.get(kind)), "none") for call in self.calls
            )
            for kind in ("session", "user"):
                if said[kind]:
                    add(
                        f"tasks.{kind}",
                        "inferred",
                        f"a request of which the client named no task: those of one {kind} are taken for one",
                        count=said[kind],
                    )
            if said["none"]:
                add(
                    "tasks.unknown",
                    "unknown",
                    "a request of which the client named neither task nor session: a task of its own",
                    count=said["none"],
                )

    # -- the run ---------------------------------------------------------------------------------------------------

    def _execution(self, native: Execution) -> Execution:
        """The native run, with what a server knows of it."""
        reasons: list[int | None] = [None] * native.events.rows
        for call, row in zip(self.calls, self._rows, strict=True):
            reason = _FINISH.get(str(call.ended))
            if reason is not None and self._kind(call) is OperationKind.LLM:
                reasons[row] = int(reason)
        events = Columns(EVENTS, _with(native.events.data, "finish_reason", reasons))
        event = np.full(len(self._steps.names), NULL, dtype=np.int64)
        event[self._places] = self._rows
        try:
            made = join(replace(native, tables={**native.tables, "events": events}), self._steps, event)
        except (pa.ArrowInvalid, OverflowError) as error:
            raise FormatError(
                f"a number in the log is out of range: {error!s:.80}",
                code="vllm.value",
                hint="the log was changed after it was written",
            ) from error
        first = self._steps.servers[min(self._steps.servers)]
        header = made.header.model_copy(
            update={
                "measured_at": "server",
                "backend": Backend(
                    name="vllm",
                    version=str(first.get("vllm")),
                    settings={name: first.get(name) for name in _FACTS},
                ),
            }
        )
        if not self._steps.has_moves:
            self._loss.add(
                "blocks.unknown",
                "unknown",
                "what became of blocks was not all written down: it is not recorded",
            )
        return self._told(replace(made, header=header))

    def _told(self, made: Execution) -> Execution:
        """The execution without its steps, where the table cannot say them."""
        runs = made["step_runs"]
        several = (runs.ints("phase") == Phase.DECODE) & (runs.ints("tokens_per_step") > 1)
        if not several.any():
            return made
        self._loss.add(
            "steps.several",
            "lost",
            "steps that generate several tokens of a request at once, which the table of steps cannot say: none are recorded",
        )
        empty = {name: Columns(EXECUTION_TABLE[name], EXECUTION_TABLE[name].empty()) for name in _STEPS}
        unknown = _with(made.events.data, "computed_prompt_tokens", [None] * made.events.rows)
        detail = [name for name in made.header.detail if name not in _STEPS]
        return replace(
            made,
            header=made.header.model_copy(update={"detail": detail}),
            tables={**made.tables, **empty, "events": Columns(EVENTS, unknown)},
        )


def _with(data: pa.Table, name: str, values: list[int | None]) -> pa.Table:
    """A table with other values in a column."""
    at = data.schema.get_field_index(name)
    return data.set_column(at, data.schema.field(at), pa.array(values, data.schema.field(at).type))
