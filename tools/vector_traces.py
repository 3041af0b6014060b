"""The traces and executions of the test vectors: small, valid, and between them all that the digests distinguish."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from blake3 import blake3

from semtrace.build import TraceBuilder
from semtrace.records.columns import Columns
from semtrace.records.document import canonical_json
from semtrace.records.enums import (
    BlockAction,
    ContentLevel,
    Direction,
    EdgeKind,
    EntityKind,
    EventOutcome,
    Evidence,
    FinishReason,
    OperationKind,
    OperationStatus,
    Outcome,
    Phase,
    Role,
    SegmentScope,
    StageTemplate,
    StateLifetime,
    StateScope,
    Tier,
    Trigger,
    VersionMode,
)
from semtrace.records.execution import Backend, Execution, ExecutionHeader
from semtrace.records.execution_tables import EXECUTION_TABLES
from semtrace.records.media import BLOCK_IDS_TYPE, TOKEN_IDS_TYPE
from semtrace.records.trace import MemoryContent
from semtrace.store.digests import show, work_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from semtrace.records.trace import Trace

BEYOND_DOUBLE: Final = (1 << 60) + 1
"""A time in ns that a double does not hold."""
TEXTS: Final = ["", "a", "Grüße", "数据", "🙂", "e\u0301 and é", "\ufeffmark", "zero\0byte", "line\nbreak"]


@dataclass(frozen=True)
class Vector:
    """What a bundle of the test vectors holds.

    Attributes:
        trace: its trace.
        executions: its executions by name.
        recoded: whether it is a directory with the tables encoded in other ways than ours.
    """

    trace: Trace
    executions: Mapping[str, Execution] = field(default_factory=dict)
    recoded: bool = False


def empty() -> Vector:
    """A trace of nothing: the header alone, of which no work column is known."""
    return Vector(TraceBuilder().build().trace)


def nulls() -> Vector:
    """Columns of each type with and without nulls, and null in every row; 11 operations, so two bytes of bits."""
    b = TraceBuilder(block_size=16)
    digest = blake3(b"a tokenizer").digest()
    shape = {"layers": 32, "experts": 8, "experts_per_token": 2}
    models = [b.model("mixture", tokenizer=digest, **shape), b.model("dense"), b.model("another", layers=0)]
    tasks = [
        b.task("known", arrival_ns=0, deadline_ns=BEYOND_DOUBLE, priority=-5, tenant="", input="q"),
        b.task("unknown"),
        b.task("scored", priority=0, metric="exact", score_ppm=-1, outcome=Outcome.FAILURE, output="answer"),
    ]
    session = b.session(tasks[0], agent="writer", model=models[0])
    b.session(tasks[0])
    for at in range(9):
        known = at % 3 != 1
        llm = at % 2 == 0
        operation = b.operation(
            tasks[0],
            OperationKind.LLM if llm else OperationKind.TOOL,
            f"step {at}",
            session=session if at in {0, 8} else None,
            model=models[at // 4] if llm else None,
            duration_ns=None if llm or known else BEYOND_DOUBLE + at,
            external_delay_ns=at,
            prompt_tokens=at if llm and known else None,
            output_tokens=255 * at if llm and known else None,
            reasoning_tokens=0 if at == 6 else None,
            finish_reason=FinishReason.LENGTH if at == 4 else None,
        )
        if at:
            inferred = at % 4 == 0
            b.edge(
                operation,
                operation - 1,
                evidence=Evidence.INFERRED if inferred else Evidence.OBSERVED,
                confidence=at if inferred else None,
            )
    for task in tasks[1:]:
        b.operation(task, OperationKind.TRANSFORM, "", status=OperationStatus.CANCELLED)
    return Vector(b.build().trace)


def text() -> Vector:
    """Text of several bytes a character, empty text beside null, and what careless readers lose."""
    b = TraceBuilder(origin_unix_ns=1_764_441_600_000_000_001, hash_scope="")
    for at, value in enumerate(TEXTS):
        b.task(
            value,
            tenant=None if at % 3 == 0 else value,
            binding=value[:1],
            workload="" if at == len(TEXTS) - 1 else None,
        )
    return Vector(b.build().trace)


def _two_tasks() -> TraceBuilder:
    """Two tasks with stages, sessions, inherited context, states, and edges of every kind and trigger."""
    b = TraceBuilder(
        origin_unix_ns=1_764_441_600_000_000_001, block_size=2, hash_scope="example.org/model/bpe"
    )
    model = b.model("small", vocab_size=1000)
    shared = b.state(
        "example.org/board", "facts", lifetime=StateLifetime.LONG_TERM, scope=StateScope.EXTERNAL
    )
    start = b.version(shared, "what was known before")
    for number, language in enumerate(("Deutsch", "日本語")):
        _task(b, number, language, model, start)
    return b


def _task(b: TraceBuilder, number: int, language: str, model: int, start: int) -> None:
    origin = 1_000_000 * number
    task = b.task(f"answer in {language}", arrival_ns=origin, input=language, outcome=Outcome.SUCCESS)
    outer = b.stage(task, "debate", template=StageTemplate.DEBATE)
    rounds = [b.stage(task, "round", parent=outer, iteration=at) for at in range(2)]
    extension = b.stage(task, "vote", template_extension="example.org/vote")
    planner = b.session(task, agent="planner", model=model)
    kinds = [OperationKind.LLM, OperationKind.TOOL, OperationKind.LLM, OperationKind.TRANSFORM]
    operations = [
        b.operation(
            task,
            kind,
            kind.name.lower(),
            stage=(*rounds, outer, extension)[at],
            session=planner if kind is OperationKind.LLM else None,
            model=model if kind is OperationKind.LLM else None,
            started_ns=origin + 1000 * at,
            duration_ns=None if kind is OperationKind.LLM else 500 + at,
        )
        for at, kind in enumerate(kinds)
    ]
    plan, tool, answer, vote = operations
    b.update_task(task, answer_operation=answer, output="done")
    b.update_operation(plan, settings=b.json_artifact({"seed": number, "temperature": 0.5}))
    ids = b.artifact(struct.pack("<6I", *range(6)), TOKEN_IDS_TYPE)
    blocks = b.artifact(struct.pack("<2Q", number, (1 << 64) - 1), BLOCK_IDS_TYPE)
    b.segment(plan, Role.SYSTEM, "Plan.", tokens=2, token_ids=ids, token_ids_start=1)
    b.segment(plan, Role.USER, language, tokens=4, block_ids=blocks, block_ids_start=0)
    b.output(plan, {"role": "assistant", "content": "look: it up"})
    _count(b, plan, 6, 5)
    b.segment(tool, Role.USER, "it up", source=plan, source_start=6, source_length=5)
    b.output(tool, f"found {language}")
    b.inherit(answer, plan, 3)
    b.segment(answer, Role.TOOL, f"found {language}", source=tool, tokens=3, scope=SegmentScope.PRIVATE)
    b.output(answer, {"role": "assistant", "content": f"{language}!"})
    _count(b, answer, 6 + 5 + 3, 0)
    b.edge(answer, plan, trigger=Trigger.START, lag_ns=7, evidence=Evidence.INFERRED, confidence=100)
    b.edge(answer, plan, trigger=Trigger.FIRST_TOKEN, kind=EdgeKind.UNKNOWN, evidence=Evidence.DERIVED)
    b.edge(vote, answer, evidence=Evidence.INFERRED, confidence=0)
    b.edge(vote, plan)
    notes = b.state("example.org/notes", f"of task {number}", scope=StateScope.PRIVATE)
    first = b.version(notes, "one", writer=plan)
    second = b.version(notes, " two", base=first, mode=VersionMode.APPEND, writer=tool)
    b.read(answer, start)
    b.read(answer, first)
    b.read(answer, second)
    b.version(notes, None, base=second, writer=vote)
    for at, operation in enumerate(operations):
        finished = origin + 1000 * at + 900 if at != 3 or number == 0 else None
        b.observe(operation, submitted_ns=origin + 1000 * at, finished_ns=finished)
        b.observe(operation, ready_ns=origin + 900 * at, evidence=Evidence.DERIVED)
    b.observe(plan, cached_tokens=4, attempts=2, request_id="run-1", first_token_ns=origin + 400)


def _count(b: TraceBuilder, operation: int, prompt: int, output: int) -> None:
    b.update_operation(
        operation,
        prompt_tokens=prompt,
        output_tokens=output,
        reasoning_tokens=0,
        tokens_evidence=Evidence.OBSERVED,
        finish_reason=FinishReason.STOP,
    )


def tasks() -> Vector:
    """Two tasks with all that links operations, and the run that they were recorded from."""
    built = _two_tasks().build()
    return Vector(built.trace, {"native": _known(built.execution)})


def tasks_recoded() -> Vector:
    """The same in other encodings, as a directory: all digests are those of `tasks`."""
    return Vector(tasks().trace, tasks().executions, recoded=True)


def annotated() -> Vector:
    """The trace of `tasks` with annotations: both digests are those of `tasks`."""
    b = _two_tasks()
    b.annotate(EntityKind.TRACE, 0, "example.org/note", "")
    for kind, entity in ((EntityKind.TASK, 1), (EntityKind.OPERATION, 0), (EntityKind.STATE, 0)):
        b.annotate(kind, entity, "example.org/id", f"ü-{entity}")
    return Vector(b.build().trace)


def execution() -> Vector:
    """Executions: one with instances that did not come far, one with details, one of which nothing is."""
    b = TraceBuilder(content_level=ContentLevel.TEXT)
    task = b.task("ask, look up, answer", arrival_ns=0)
    plan = b.operation(task, OperationKind.LLM, "ask", prompt_tokens=10, output_tokens=3)
    tool = b.operation(task, OperationKind.TOOL, "look up", duration_ns=100)
    answer = b.operation(task, OperationKind.LLM, "answer", prompt_tokens=20, output_tokens=2)
    b.edge(tool, plan)
    b.edge(answer, tool)
    trace = b.build().trace
    runs = {"cut-short": _cut_short(trace), "detailed": _detailed(trace), "nothing": _run(trace, {}, ())}
    return Vector(trace, runs)


def _run(
    trace: Trace,
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
    detail: Sequence[str],
    content: Sequence[bytes] = (),
) -> Execution:
    """An execution of these rows."""
    header = ExecutionHeader(
        work_digest=show(work_digest(trace)),
        mode="length_locked",
        clock="virtual",
        measured_at="simulator",
        backend=Backend(name="by hand", settings={"gpus": 1}),
        detail=list(detail),
        seeds={"arrivals": (1 << 63) - 1},
    )
    made = {
        spec.name: Columns.of(
            spec, {name: [row.get(name) for row in tables.get(spec.name, ())] for name in spec.by_name}
        )
        for spec in EXECUTION_TABLES
    }
    return Execution(header, made, MemoryContent({blake3(each).digest(): each for each in content}))


def _event(
    instance: int,
    operation: int,
    times: Sequence[int | None],
    outcome: EventOutcome = EventOutcome.OK,
    **columns: object,
) -> dict[str, Any]:
    row: dict[str, Any] = {"instance": instance, "operation": operation, "outcome": outcome, **columns}
    for name, time in zip(
        ("ready", "released", "submitted", "scheduled", "first_token", "finished"), times, strict=True
    ):
        row[f"{name}_ns"] = time
        row[f"{name}_evidence"] = Evidence.MISSING if time is None else Evidence.OBSERVED
    return row


def _instance(instance: int, outcome: Outcome, arrival_ns: int | None = None) -> dict[str, Any]:
    return {"task": 0, "instance": instance, "arrival_ns": arrival_ns, "outcome": outcome}


def _cut_short(trace: Trace) -> Execution:
    at = BEYOND_DOUBLE
    instances = [
        _instance(0, Outcome.SUCCESS, at),
        _instance(1, Outcome.FAILURE),
        _instance(2, Outcome.CANCELLED),
    ]
    events = [
        _event(0, 0, (at, at, at, at + 1, at + 2, at + 3), prompt_tokens=10, output_tokens=3, attempts=1),
        _event(0, 1, (at + 3, at + 3, at + 3, None, None, at + 103)),
        _event(0, 2, (at + 103, None, at + 104, None, None, at + 110), server=1, request_id="é-7"),
        _event(1, 0, (None, None, None, None, None, None), EventOutcome.REFUSED),
        _event(1, 1, (None, None, None, None, None, None), EventOutcome.SKIPPED),
        _event(2, 0, (0, 0, 0, None, None, None), EventOutcome.UNFINISHED, output_ids=0),
    ]
    content = [struct.pack("<3I", 7, 8, 9)]
    return _run(trace, {"instances": instances, "events": events}, (), content)


def _detailed(trace: Trace) -> Execution:
    """Every detail but one has rows; `transfers` was recorded, and nothing was moved."""
    events = [
        _event(
            0, 0, (0, 0, 0, 0, 10, 30), prompt_tokens=10, cached_tokens=0, computed_prompt_tokens=10, server=0
        ),
        _event(0, 1, (30, 30, 30, None, None, 130)),
        _event(
            0, 2, (130, 130, 130, 130, 140, 150), prompt_tokens=20, cached_tokens=4, preemptions=0, server=0
        ),
    ]
    starts = [(0, 10, 10), (10, 20, 1), (20, 30, 1), (130, 140, 16), (140, 150, 1)]
    steps = [
        {
            "server": 0,
            "index": at,
            "start_ns": start,
            "end_ns": end,
            "tokens": tokens,
            "requests": 1,
            "free_blocks": 7,
        }
        for at, (start, end, tokens) in enumerate(starts)
    ]
    runs = [(0, 0, 1, 0, 10), (0, 1, 2, 10, 1), (2, 3, 1, 4, 16), (2, 4, 1, 20, 1)]
    step_runs = [
        {
            "event": event,
            "first_step": first,
            "count": count,
            "start_position": position,
            "tokens_per_step": tokens,
            "phase": Phase.PREFILL if tokens > 1 else Phase.DECODE,
        }
        for event, first, count, position, tokens in runs
    ]
    moments = [
        (0, 0, Tier.DEVICE, BlockAction.ALLOCATE, 0, 5, None),
        (130, 0, Tier.HOST, BlockAction.UPLOAD, 2, 1, "prefix"),
        (130, 1, Tier.DEVICE, BlockAction.EVICT, None, 2, ""),
    ]
    blocks = [
        {
            "time_ns": time,
            "sequence": sequence,
            "server": 0,
            "tier": tier,
            "action": action,
            "event": event,
            "blocks": count,
            "bytes": count * 4096,
            "reason": reason,
        }
        for time, sequence, tier, action, event, count, reason in moments
    ]
    inputs = canonical_json({"free": 7, "direction": Direction.OUT.name.lower()}).decode()
    decisions = [
        {"time_ns": time, "sequence": 0, "policy": "fifo", "event": event, "inputs": inputs, "choice": choice}
        for time, event, choice in ((0, 0, "run"), (125, None, ""), (130, 2, "läuft"))
    ]
    tables = {
        "instances": [_instance(0, Outcome.SUCCESS, 0)],
        "events": events,
        "steps": steps,
        "step_runs": step_runs,
        "blocks": blocks,
        "decisions": decisions,
    }
    return _run(trace, tables, ("steps", "step_runs", "blocks", "transfers", "decisions"))


def _known(run: Execution | None) -> Execution:
    if run is None:
        raise ValueError("nothing was observed")
    return run


VECTORS: Final[Mapping[str, Callable[[], Vector]]] = {
    made.__name__: made for made in (empty, nulls, text, tasks, tasks_recoded, annotated, execution)
}
"""What makes each vector, by its name."""
