"""The traces that the cases of readers and writers begin with."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from blake3 import blake3

from semtrace.build import Span, TraceBuilder
from semtrace.records.enums import (
    Availability,
    ContentLevel,
    EdgeKind,
    EntityKind,
    Evidence,
    FinishReason,
    OperationKind,
    OperationStatus,
    Outcome,
    Role,
    SegmentScope,
    StageTemplate,
    StateLifetime,
    StateScope,
    Trigger,
    VersionMode,
)
from semtrace.records.media import BLOCK_IDS_TYPE, TEXT_TYPE, TOKEN_IDS_TYPE
from semtrace_conformance.making.draft import COMPACT, Draft

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from semtrace.build import BuiltTrace

MS: Final = 1_000_000
TOOLS: Final = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


@dataclass
class Recorded:
    """A trace with what was told to the builder, to compare with what a reader gives back.

    Attributes:
        built: the trace.
        requests: by operation, the chat request that it was recorded with.
        names: by name, the row of an operation.
    """

    built: BuiltTrace
    requests: dict[int, dict[str, Any]]
    names: dict[str, int] = field(default_factory=dict)

    def draft(self) -> Draft:
        """The trace as a draft."""
        draft = Draft.of(self.built)
        draft.encoding = COMPACT
        return draft


class _Team:
    """Builds the trace of a small team."""

    def __init__(self) -> None:
        self.b = TraceBuilder(origin_unix_ns=1_790_000_000_123_456_789)
        self.requests: dict[int, dict[str, Any]] = {}
        self.names: dict[str, int] = {}
        self.at = 0

    def operation(self, name: str, task: int, kind: OperationKind, **columns: Any) -> int:
        self.at += 10 * MS
        made = self.b.operation(task, kind, name, started_ns=self.at, **columns)
        self.names[name] = made
        return made

    def ask(
        self,
        operation: int,
        messages: Sequence[Mapping[str, Any]],
        tokens: Sequence[int | None],
        tools: Sequence[object] | None = None,
        base: int | None = None,
        sources: Mapping[int, int | Sequence[Span]] | None = None,
    ) -> None:
        """Record a request; `tokens` are the lengths of the operation's own segments."""
        before = len(self.b.rows["segments"])
        self.b.request(operation, messages, tools, base=base, sources=sources)
        for segment, count in zip(self.b.rows["segments"][before:], tokens, strict=True):
            segment["tokens"] = count
        self.requests[operation] = {"messages": [dict(message) for message in messages]} | (
            {} if tools is None else {"tools": list(tools)}
        )

    def build(self) -> Recorded:
        built = self.b.build()
        place = built.ids["operations"]
        return Recorded(
            built,
            {place[at]: request for at, request in self.requests.items()},
            {name: place[at] for name, at in self.names.items()},
        )


def team() -> Recorded:
    """Everything that a trace can say, in small: two tasks, a team and a second one of three operations."""
    t = _Team()
    b = t.b
    small = b.model(
        "small-7b", revision="r1", layers=4, hidden_size=64, heads=8, kv_heads=2, head_dim=8, vocab_size=1000
    )
    large = b.model("large-70b", tokenizer=bytes(range(32)))
    first = b.task(
        "compare two cities", arrival_ns=0, deadline_ns=900 * MS, input="Compare Oslo and Rome.", output="Both are sunny: größer, 数据.",
        outcome=Outcome.SUCCESS, priority=-1, tenant="blue", binding="cities/17", metric="exact", score_ppm=-5,
    )  # fmt: skip
    second = b.task("sum up", arrival_ns=50 * MS)
    research = b.stage(first, "research", template=StageTemplate.FORK_JOIN)
    oslo = b.stage(first, "Oslo", parent=research)
    rome = b.stage(first, "Rome", parent=research, iteration=1)
    auction = b.stage(first, "auction", template_extension="example.org/auction")
    last_stage = b.stage(second, "sum", template=StageTemplate.SEQUENCE)

    planner = b.session(first, agent="planner", model=large, name="main")
    left = b.session(first, agent="analyst", model=small)
    right = b.session(first, agent="analyst", model=small)
    writer = b.session(first, agent="writer", model=large)
    alone = b.session(second, agent="alone")

    library = b.state("memory", "library", scope=StateScope.EXTERNAL, lifetime=StateLifetime.LONG_TERM)
    book = b.version(library, "An old book.")
    notes = b.state("memory", "notes", scope=StateScope.SHARED)
    empty = b.version(notes, "begin:")
    board = b.state("memory", "board", scope=StateScope.PRIVATE, lifetime=StateLifetime.SESSION)

    llm, tool_kind = OperationKind.LLM, OperationKind.TOOL
    plan = t.operation("plan", first, llm, session=planner, stage=research, model=large, prompt_tokens=30, output_tokens=12,
                       reasoning_tokens=5, finish_reason=FinishReason.STOP, settings={"max_tokens": 12, "temperature": 0})  # fmt: skip
    system = {"role": "system", "content": "You are a planner."}
    t.ask(plan, [system, {"role": "user", "content": "Compare Oslo and Rome."}], [10, 8, 12], TOOLS)
    b.output(plan, {"content": "Look both up."})

    asked = {}
    for name, session, stage in (("oslo", left, oslo), ("rome", right, rome)):
        ask = t.operation(f"ask-{name}", first, llm, session=session, stage=stage, model=small, prompt_tokens=19, output_tokens=9,
                          finish_reason=FinishReason.TOOL_CALLS)  # fmt: skip
        t.ask(
            ask,
            [
                {"role": "developer", "content": f"City: {name}"},
                {"role": "user", "content": f"Task: Look both up. City {name}.", "name": "planner"},
            ],
            [4, 5, 4, 6],
            sources={1: [Span(6, 19, plan, 0)]},
        )
        call = {
            "id": f"call-{name}",
            "type": "function",
            "function": {"name": "weather", "arguments": f'{{"city":"{name}"}}'},
        }
        b.output(ask, {"content": None, "tool_calls": [call]})
        asked[name] = (ask, call, session, stage)
    b.update_session(left, parent_operation=plan)

    answers = {}
    for name, (ask, call, session, stage) in asked.items():
        weather = t.operation(
            f"weather-{name}",
            first,
            tool_kind,
            stage=stage,
            duration_ns=30 * MS,
            external_delay_ns=2 * MS if name == "rome" else 0,
        )
        b.segment(weather, Role.USER, f'{{"city":"{name}"}}')
        b.edge(weather, ask)
        b.output(weather, f"{name}: sunny", TEXT_TYPE)
        answer = t.operation(f"answer-{name}", first, llm, session=session, stage=stage, model=small, prompt_tokens=32, output_tokens=7,
                             finish_reason=FinishReason.STOP)  # fmt: skip
        said = t.requests[ask]["messages"]
        t.ask(
            answer,
            [
                *said,
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call["id"], "content": f"{name}: sunny"},
            ],
            [4],
            base=ask,
            sources={3: weather},
        )
        b.update_operation(ask, reasoning_tokens=0)
        b.output(answer, {"content": f"{name} is sunny."})
        answers[name] = answer
    one = b.version(notes, "oslo: sunny", base=empty, mode=VersionMode.APPEND, writer=answers["oslo"])
    two = b.version(notes, "rome: sunny", base=one, mode=VersionMode.APPEND, writer=answers["rome"])
    b.read(answers["rome"], one)
    b.read(answers["oslo"], empty)

    human = t.operation(
        "approve", first, OperationKind.HUMAN, duration_ns=400 * MS, duration_evidence=Evidence.INFERRED
    )
    b.edge(human, answers["rome"], kind=EdgeKind.UNKNOWN, evidence=Evidence.INFERRED, confidence=80)
    b.edge(human, plan, trigger=Trigger.START, lag_ns=5 * MS)
    b.edge(human, answers["oslo"], trigger=Trigger.FIRST_TOKEN, lag_ns=3)
    b.version(board, "approved", writer=human)
    failed = t.operation(
        "failed", first, llm, session=writer, model=large, status=OperationStatus.ERROR, duration_ns=7 * MS
    )
    b.edge(failed, human)
    embed = t.operation(
        "embed",
        first,
        OperationKind.EMBED,
        duration_ns=1 * MS,
        prompt_tokens=6,
        tokens_evidence=Evidence.DERIVED,
    )
    b.segment(embed, Role.USER, "Oslo, Rome", tokens=6)
    write = t.operation("write", first, llm, session=writer, stage=auction, model=large, prompt_tokens=24, output_tokens=20,
                        finish_reason=FinishReason.LENGTH)  # fmt: skip
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}}
    t.ask(
        write,
        [
            {"role": "user", "content": "oslo is sunny."},
            {"role": "user", "content": [{"type": "text", "text": "rome is sunny."}, image]},
            {"role": "user", "content": "oslo: sunny"},
        ],
        [7, 7, 6, 4],
        sources={0: answers["oslo"], 1: [Span(0, 14, answers["rome"])]},
    )
    b.edge(write, failed, lag_ns=1 * MS)
    b.edge(write, embed)
    b.read(write, two)
    b.read(write, one)
    b.read(write, book)
    b.output(write, {"content": "Both are sunny: größer, 数据."})
    cut = t.operation("cut", first, OperationKind.TRANSFORM, duration_ns=0)
    b.edge(cut, write, trigger=Trigger.FIRST_TOKEN)
    b.update_task(first, answer_operation=write)

    fetch = t.operation("fetch", second, tool_kind, duration_ns=3 * MS)
    b.read(fetch, book)
    hello = t.operation("hello", second, llm, session=alone, stage=last_stage, model=small, output_tokens=4)
    t.ask(hello, [{"role": "user", "content": "Hello."}], [None])
    b.edge(hello, fetch)
    b.output(hello, {"content": "Yes?", "refusal": "no"})
    again = t.operation(
        "again", second, llm, session=alone, model=small, prompt_tokens=None, output_tokens=None
    )
    t.ask(again, [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Yes?", "refusal": "no", "name": "alone"},
                  {"role": "user", "content": "Go on."}], [None], base=hello)  # fmt: skip

    b.annotate(EntityKind.TRACE, 0, "example.org/made-by", "hand")
    b.annotate(EntityKind.OPERATION, plan, "example.org/id", "op-1")
    b.annotate(EntityKind.OPERATION, plan, "example.org/id", "op-1b")
    b.annotate(EntityKind.SESSION, left, "example.org/thread", "7")
    b.annotate(EntityKind.STATE, notes, "example.org/kind", "list")
    return t.build()


def ids() -> Recorded:
    """A trace whose inputs are known by token ids and block ids, in part by nothing else."""
    t = _Team()
    b = t.b
    b.header.update(origin_unix_ns=None, block_size=4, hash_scope="example.org/model-a")
    task = b.task("tokens")
    model = b.model("small-7b")
    tokens = b.artifact(struct.pack("<20I", *range(100, 120)), TOKEN_IDS_TYPE)
    blocks = b.artifact(
        struct.pack("<5Q", *(at * 0x0123456789ABCDEF % (1 << 64) for at in range(1, 6))), BLOCK_IDS_TYPE
    )
    session = b.session(task)
    one = t.operation("one", task, OperationKind.LLM, session=session, model=model, prompt_tokens=18, output_tokens=5,
                      reasoning_tokens=0)  # fmt: skip
    b.segment(one, Role.TEMPLATE, tokens=2)
    b.segment(
        one,
        Role.USER,
        "first text",
        tokens=16,
        token_ids=tokens,
        token_ids_start=1,
        block_ids=blocks,
        block_ids_start=0,
    )
    b.update_operation(one, output_token_ids=b.artifact(struct.pack("<5I", 1, 2, 3, 4, 5), TOKEN_IDS_TYPE))
    b.output(one, {"content": "five"})
    two = t.operation(
        "two", task, OperationKind.LLM, session=session, model=model, prompt_tokens=30, output_tokens=2
    )
    b.inherit(two, one, 3)
    b.segment(two, Role.USER, tokens=7, block_ids=blocks, block_ids_start=4, scope=SegmentScope.PRIVATE)
    b.edge(two, one)
    tool = t.operation("tool", task, OperationKind.TOOL, duration_ns=5)
    b.edge(tool, two)
    return t.build()


def withheld(recorded: Recorded) -> Draft:
    """A trace at content level `shape`: everything but settings is withheld, under digests that say nothing."""
    draft = recorded.draft()
    draft.put("trace", 0, content_level=ContentLevel.SHAPE)
    settings = {row["settings"] for row in draft.rows("operations")}
    for at, row in enumerate(draft.rows("artifacts")):
        if at not in settings:
            row.update(
                digest=blake3(row["digest"], key=bytes(32)).digest(), availability=Availability.WITHHELD
            )
    return draft


def two_tools() -> Draft:
    """Two tasks of two tools each, and nothing else."""
    b = TraceBuilder()
    for at in range(2):
        task = b.task(f"task {at}")
        for name in ("first", "second"):
            b.operation(task, OperationKind.TOOL, name, duration_ns=1 + at)
    draft = Draft.of(b.build())
    draft.encoding = COMPACT
    return draft


def one_task() -> Draft:
    """A task in which nothing was done: the smallest trace of more than one table."""
    b = TraceBuilder()
    b.task("task 0")
    draft = Draft.of(b.build())
    draft.encoding = COMPACT
    return draft


def duo() -> Recorded:
    """Two tasks: three operations that an execution can have much to say of, and one."""
    t = _Team()
    first, second = t.b.task("first", arrival_ns=0), t.b.task("second")
    ask = t.operation("ask", first, OperationKind.LLM, prompt_tokens=30, output_tokens=3)
    failed = t.operation("failed", first, OperationKind.LLM, status=OperationStatus.ERROR, duration_ns=5)
    tool = t.operation("tool", first, OperationKind.TOOL, duration_ns=40)
    t.b.edge(failed, ask)
    t.b.edge(tool, ask)
    t.operation("other", second, OperationKind.LLM, prompt_tokens=19, output_tokens=2)
    return t.build()


def talk() -> Recorded:
    """Two requests, one after the other: parts, tools, a call of one, an output of more than text and one of text."""
    t = _Team()
    b = t.b
    task = b.task("talk")
    ask = t.operation("ask", task, OperationKind.LLM)
    messages: list[dict[str, Any]] = [
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "tool_calls": [{"id": "c1"}]},
    ]
    t.ask(ask, messages, [None] * 4, TOOLS)
    b.output(ask, {"content": "Yes?", "refusal": "no"})
    again = t.operation("again", task, OperationKind.LLM)
    answer = {"role": "assistant", "content": "Yes?", "refusal": "no", "name": "alone"}
    t.ask(again, [*messages, answer, {"role": "user", "content": "Go on."}], [None], TOOLS, base=ask)
    b.output(again, {"content": "Gone."})
    return t.build()
