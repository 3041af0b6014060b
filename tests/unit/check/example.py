"""A small valid trace that has everything, and how to change one thing in it."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semtrace.build import Span, TraceBuilder
from semtrace.records.columns import Columns
from semtrace.records.enums import (
    EdgeKind,
    EntityKind,
    Evidence,
    FinishReason,
    OperationKind,
    OperationStatus,
    Outcome,
    Role,
    StageTemplate,
    StateLifetime,
    StateScope,
    Trigger,
    VersionMode,
)
from semtrace.records.media import BLOCK_IDS_TYPE, TOKEN_IDS_TYPE
from semtrace.records.trace import MemoryContent, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from semtrace.build import BuiltTrace

TOOLS = [{"type": "function", "function": {"name": "search"}}]
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function"}]}


def example() -> BuiltTrace:
    """Two tasks. Operations, in their order, of the first:

    0 calls a tool, 1 is the tool, 2 goes on from 0, 3 is another session by token ids, 4 goes on from 2 and fails,
    5 is a person; of the second: 6 is known by block ids and cancelled, 7 embeds, 8 repeats what 6 said.
    """
    b = TraceBuilder(origin_unix_ns=10**18, block_size=16, hash_scope="example.org/model")
    small, large = b.model("small", layers=2), b.model("large")
    first = b.task(
        "first", arrival_ns=5, deadline_ns=10**9, input="question", output="answer one", metric="em"
    )
    second = b.task("second", outcome=Outcome.SUCCESS)
    root = b.stage(first, "root", template=StageTemplate.FORK_JOIN)
    inner = b.stage(first, "inner", parent=root)
    last = b.stage(first, "last", template_extension="example.org/auction")
    other = b.stage(second, "other")
    a = b.session(first, agent="a", model=small)
    spawned = b.session(first, agent="b")
    c = b.session(second)

    def op(task: int, kind: OperationKind, at: int, **columns: Any) -> int:
        return b.operation(task, kind, f"op {at}", started_ns=at, **columns)

    llm, known = OperationKind.LLM, Evidence.OBSERVED
    ops = [
        op(first, llm, 0, stage=root, session=a, model=small, settings={"temperature": 0}, output_tokens=9,
           reasoning_tokens=3, finish_reason=FinishReason.TOOL_CALLS),
        op(first, OperationKind.TOOL, 1, stage=inner, duration_ns=5_000_000),
        op(first, llm, 2, stage=root, session=a, output_tokens=7, reasoning_tokens=0),
        op(first, llm, 3, session=spawned, model=large, output_tokens=4),
        op(first, llm, 4, stage=last, session=a, status=OperationStatus.ERROR, duration_ns=8),
        op(first, OperationKind.HUMAN, 5, external_delay_ns=3),
        op(second, llm, 6, stage=other, session=c, status=OperationStatus.CANCELLED, output_tokens=2),
        op(second, OperationKind.EMBED, 7, prompt_tokens=2, duration_ns=4),
        op(second, llm, 8, session=c),
    ]  # fmt: skip
    b.update_session(spawned, parent_operation=ops[2])
    b.update_task(first, answer_operation=ops[2], score_ppm=500_000)

    picture = {"type": "image_url", "image_url": {"url": "data:,x", "detail": "low"}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "what is it?"}, picture]},
    ]
    b.request(ops[0], messages, TOOLS)
    b.output(ops[0], CALL)
    b.segment(ops[1], Role.USER, '{"q":1}', source=ops[0])
    b.output(ops[1], "it is 42")
    messages += [CALL, {"role": "tool", "tool_call_id": "c1", "content": "it is 42"}]
    b.request(ops[2], messages, TOOLS, base=ops[0], sources={3: [Span(0, 8, ops[1], 0)]})
    b.output(ops[2], {"role": "assistant", "content": "answer one"})
    b.segment(ops[3], Role.TEMPLATE, tokens=3)
    ids = b.artifact(struct.pack("<6I", *range(6)), TOKEN_IDS_TYPE)
    b.segment(ops[3], Role.USER, token_ids=ids, token_ids_start=1, tokens=5)
    b.update_operation(ops[3], output_token_ids=b.artifact(struct.pack("<4I", *range(4)), TOKEN_IDS_TYPE))
    messages += [
        {"role": "assistant", "content": "answer one", "name": "a"},
        {"role": "user", "content": "say: it is 42!"},
    ]
    b.request(ops[4], messages, TOOLS, base=ops[2], sources={5: [Span(5, 13, ops[1], 0)]})
    blocks = b.artifact(struct.pack("<4Q", *range(4)), BLOCK_IDS_TYPE)
    b.segment(ops[6], Role.USER, block_ids=blocks, block_ids_start=1, tokens=50)
    b.output(ops[6], "cut")
    b.segment(ops[7], Role.USER, "embed me")
    b.request(ops[8], [{"role": "user", "content": "cut"}], sources={0: ops[6]})

    for at in (0, 2, 3, 6):  # every segment has a known length here, so that prompts add up
        rows = [row for row in b.context(ops[at]) if isinstance(row, int)]
        for row in rows:
            b.rows["segments"][row]["tokens"] = b.rows["segments"][row]["tokens"] or 4
        inherited = 6 if at == 2 else 0
        prompt = sum(b.rows["segments"][row]["tokens"] for row in rows) + inherited
        b.update_operation(ops[at], prompt_tokens=prompt, tokens_evidence=known)

    log = b.state("memory", "log", task=first)
    versions = [b.version(log, "one", writer=ops[0])]
    for writer, text in ((ops[1], "two"), (ops[2], "three")):
        versions.append(b.version(log, text, base=versions[-1], mode=VersionMode.APPEND, writer=writer))
    b.read(ops[2], versions[0])
    b.read(ops[2], versions[1])
    b.read(ops[4], versions[2])
    library = b.state("memory", "library", scope=StateScope.EXTERNAL, lifetime=StateLifetime.LONG_TERM)
    book = b.version(library, "book")
    b.version(library, "newer", base=book)
    b.read(ops[3], book)
    b.read(ops[6], book)

    b.edge(ops[3], ops[2], evidence=Evidence.OBSERVED)
    b.edge(
        ops[5],
        ops[3],
        kind=EdgeKind.UNKNOWN,
        trigger=Trigger.START,
        evidence=Evidence.INFERRED,
        confidence=70,
    )
    b.edge(ops[5], ops[3], trigger=Trigger.FIRST_TOKEN, lag_ns=9)
    b.edge(ops[8], ops[7])
    b.annotate(EntityKind.TRACE, 0, "test/run", "1")
    b.annotate(EntityKind.OPERATION, ops[3], "test/id", "x")
    b.annotate(EntityKind.OPERATION, ops[3], "test/note", "y")

    b.observe(ops[0], ready_ns=5, submitted_ns=6, first_token_ns=8, finished_ns=9, cached_tokens=1)
    b.observe(ops[8], submitted_ns=20, finished_ns=20)
    return b.build()


def with_table(trace: Trace, table: str, columns: Mapping[str, list[Any]]) -> Trace:
    """The trace with other rows in one table; values are as they are, nulls where none may be refused."""
    spec = trace[table].spec
    arrays = [pa.array(columns[field.name], field.type) for field in spec.arrow]
    made = Columns(spec, pa.Table.from_arrays(arrays, schema=spec.arrow))
    return Trace({**trace.tables, table: made}, trace.content)


def edited(trace: Trace, table: str, change: Callable[[dict[str, list[Any]]], None]) -> Trace:
    """The trace with a table whose columns were changed in place."""
    columns: dict[str, list[Any]] = trace[table].data.to_pydict()
    change(columns)
    return with_table(trace, table, columns)


def put(table: str, column: str, values: Mapping[int, Any]) -> Callable[[Trace], Trace]:
    """Sets values of a column by row."""

    def change(columns: dict[str, list[Any]]) -> None:
        for row, value in values.items():
            assert columns[column][row] != value, "the edit changes nothing"
            columns[column][row] = value

    return lambda trace: edited(trace, table, change)


def swap(table: str, one: int, other: int) -> Callable[[Trace], Trace]:
    """Exchanges two rows."""

    def change(columns: dict[str, list[Any]]) -> None:
        for values in columns.values():
            values[one], values[other] = values[other], values[one]

    return lambda trace: edited(trace, table, change)


def add(table: str, row: Mapping[str, Any], at: int | None = None) -> Callable[[Trace], Trace]:
    """Adds a row, at the end or before another; columns left out are null."""

    def change(columns: dict[str, list[Any]]) -> None:
        for name, values in columns.items():
            values.insert(len(values) if at is None else at, row.get(name))

    return lambda trace: edited(trace, table, change)


def drop(table: str, at: int) -> Callable[[Trace], Trace]:
    """Takes a row out."""

    def change(columns: dict[str, list[Any]]) -> None:
        for values in columns.values():
            del values[at]

    return lambda trace: edited(trace, table, change)


def then(*steps: Callable[[Trace], Trace]) -> Callable[[Trace], Trace]:
    """One change after the other."""

    def change(trace: Trace) -> Trace:
        for step in steps:
            trace = step(trace)
        return trace

    return change


def with_content(change: Callable[[Trace, MemoryContent], None]) -> Callable[[Trace], Trace]:
    """Changes the content beside the tables."""

    def made(trace: Trace) -> Trace:
        content = MemoryContent({digest: trace.content.get(digest) or b"" for digest in trace.content})
        change(trace, content)
        return Trace(trace.tables, content)

    return made
