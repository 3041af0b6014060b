"""Requests through the builder: whatever is inherited, each comes back as it was sent, and nothing repeats in the rows."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semtrace.build import Span, TraceBuilder
from semtrace.errors import FormatError, IntegrityError
from semtrace.records.chat import MESSAGE_TYPE, context, rebuild_request
from semtrace.records.columns import NULL, Columns
from semtrace.records.document import canonical_json
from semtrace.records.enums import EdgeKind, Evidence, OperationKind, Role, Trigger
from semtrace.records.trace import Trace

SYSTEM = {"role": "system", "content": "You are a planner."}
USER = {"role": "user", "content": "Plan."}
TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {}}}]


def llm(builder, at):
    if not builder.rows["tasks"]:
        builder.task("t")
    return builder.operation(0, OperationKind.LLM, f"call {at}", started_ns=at)


def assert_rebuilt(trace, operation, messages, tools=None):
    expected = {"messages": messages} if tools is None else {"messages": messages, "tools": tools}
    assert canonical_json(rebuild_request(trace, operation)) == canonical_json(expected)


# -- any conversation ------------------------------------------------------------------------------------------

WORDS = st.sampled_from(["", "a", "b", "é", "\U0001f600", '{"x":1}', "plan"])
CALLS = st.lists(
    st.fixed_dictionaries({"id": WORDS, "function": st.fixed_dictionaries({"name": WORDS})}), max_size=2
)
ANSWERS = st.fixed_dictionaries(
    {"role": st.just("assistant")},
    optional={"content": st.none() | WORDS, "tool_calls": CALLS, "name": WORDS, "refusal": st.none()},
)
SENT = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "tool", "developer", "assistant"])},
    optional={
        "content": WORDS
        | st.none()
        | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": WORDS}), max_size=2),
        "name": WORDS,
        "tool_call_id": WORDS,
        "tool_calls": CALLS,
    },
)
OFFERS = st.sampled_from([None, [], TOOLS, [{"type": "function"}]])
TURNS = st.lists(
    st.fixed_dictionaries(
        {
            "base": st.integers(0, 5),  # how many operations back; 0 for none
            "keep": st.integers(0, 8),  # messages kept of the base's history
            "drop": st.integers(-1, 3),  # a message left out of what is kept, -1 for none
            "answer": st.booleans(),  # whether the base's answer goes into the history, as it was or renamed
            "rename": st.none() | WORDS,
            "new": st.lists(SENT, max_size=2),
            "tools": OFFERS,
            "output": st.none() | ANSWERS | WORDS,
        }
    ),
    max_size=7,
)


@given(turns=TURNS)
def test_every_request_comes_back_whatever_is_inherited(turns):
    builder = TraceBuilder()
    histories: list[list[dict]] = []
    outputs: list[dict | None] = []
    sent: list[tuple[list[dict], list | None]] = []
    for at, turn in enumerate(turns):
        operation = llm(builder, at)
        base = at - turn["base"] if 0 < turn["base"] <= at else None
        history: list[dict] = []
        if base is not None:
            history = copy.deepcopy(histories[base][: turn["keep"]])
            if 0 <= turn["drop"] < len(history):
                del history[turn["drop"]]
            if turn["answer"] and outputs[base] is not None:
                history.append(
                    outputs[base] if turn["rename"] is None else {**outputs[base], "name": turn["rename"]}
                )
        history += turn["new"]
        builder.request(operation, history, turn["tools"], base=base)
        answer = turn["output"]
        if answer is not None:
            builder.output(operation, answer)
        histories.append(history)
        outputs.append({"role": "assistant", "content": answer} if isinstance(answer, str) else answer)
        sent.append((history, turn["tools"]))
    trace = builder.build().trace
    for operation, (messages, tools) in enumerate(sent):
        if not messages and tools is None:
            assert rebuild_request(trace, operation) is None
        else:
            assert_rebuilt(trace, operation, messages, tools)
    for operation in range(trace.operations.rows):
        base = int(trace.operations.ints("context_base")[operation])
        if base != NULL:
            assert (operation, base) in edges(trace, EdgeKind.DATA)


def edges(trace, kind):
    table = trace.edges
    return {
        (int(target), int(source))
        for target, source, has in zip(
            table.ints("target"), table.ints("source"), table.ints("kind"), strict=True
        )
        if has == kind
    }


# -- what is inherited ------------------------------------------------------------------------------------------


def test_a_growing_conversation_stores_each_message_once():
    builder = TraceBuilder()
    history = [SYSTEM]
    base = None
    turns = 40
    for at in range(turns):
        operation = llm(builder, at)
        history = [*history, {"role": "user", "content": f"question {at}"}]
        builder.request(operation, history, TOOLS, base=base)
        builder.output(operation, {"role": "assistant", "content": f"answer {at}"})
        history = [*history, {"role": "assistant", "content": f"answer {at}"}]
        base = operation
    trace = builder.build().trace
    assert trace.segments.rows == 1 + 1 + turns, "tools and system once, then one segment a turn"
    assert trace.operations.ints("context_segments").tolist() == [0, *range(4, 4 + 2 * (turns - 1), 2)]
    assert_rebuilt(trace, turns - 1, history[:-1], TOOLS)
    assert len(list(context(trace, turns - 1))) == 1 + 2 * turns


def test_inheriting_context_is_a_data_edge():
    builder = TraceBuilder()
    first, second = llm(builder, 0), llm(builder, 1)
    builder.request(first, [SYSTEM])
    builder.request(second, [SYSTEM, USER], base=first)
    trace = builder.build().trace
    row = trace.edges.row(0)
    assert trace.edges.rows == 1
    assert row == {
        "target": 1,
        "source": 0,
        "kind": EdgeKind.DATA,
        "trigger": Trigger.FINISH,
        "lag_ns": 0,
        "evidence": Evidence.DERIVED,
        "confidence": None,
    }


def inherited(build, messages, tools=None):
    """How many segments a second request inherits from a first that `build` makes, and the trace."""
    builder = TraceBuilder()
    first, second = llm(builder, 0), llm(builder, 1)
    build(builder, first)
    builder.request(second, messages, tools, base=first)
    trace = builder.build().trace
    assert_rebuilt(trace, 1, messages, tools)
    return int(trace.operations.ints("context_segments")[1]), trace


def test_a_changed_first_message_inherits_nothing():
    count, trace = inherited(lambda b, op: b.request(op, [SYSTEM, USER]), [USER, SYSTEM])
    assert count == 0
    assert trace.operations.ints("context_base")[1] == NULL
    assert trace.edges.rows == 0


def test_pruned_history_inherits_what_is_before_the_cut():
    count, _ = inherited(
        lambda b, op: b.request(op, [SYSTEM, USER, {"role": "user", "content": "x"}]),
        [SYSTEM, {"role": "user", "content": "x"}],
    )
    assert count == 1


@pytest.mark.parametrize(
    ("before", "after"), [(None, TOOLS), (TOOLS, None), (TOOLS, []), ([], None), (TOOLS, TOOLS * 2)]
)
def test_other_tools_inherit_nothing_as_they_stand_before_all_messages(before, after):
    count, _ = inherited(lambda b, op: b.request(op, [SYSTEM, USER], before), [SYSTEM, USER], after)
    assert count == 0


@pytest.mark.parametrize("tools", [None, [], TOOLS])
def test_equal_tools_are_inherited_with_the_messages(tools):
    count, _ = inherited(lambda b, op: b.request(op, [SYSTEM, USER], tools), [SYSTEM, USER], tools)
    assert count == (2 if tools is None else 3)


def test_equal_tools_alone_are_no_context():
    count, trace = inherited(lambda b, op: b.request(op, [SYSTEM], TOOLS), [USER], TOOLS)
    assert count == 0
    assert trace["artifacts"].rows == 3, "though their content is kept once"


def test_tools_told_twice_are_not_taken_for_the_requests():
    def build(builder, operation):
        for _ in range(2):
            builder.segment(operation, Role.TOOLS, artifact=builder.json_artifact(TOOLS))
        builder.segment(operation, Role.USER, "u")

    assert inherited(build, [{"role": "user", "content": "u"}], TOOLS)[0] == 0


def test_messages_of_several_segments_are_inherited_whole_or_not():
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    other = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "c"}]}
    assert inherited(lambda b, op: b.request(op, [SYSTEM, parts]), [SYSTEM, parts, USER])[0] == 3
    assert inherited(lambda b, op: b.request(op, [SYSTEM, parts]), [SYSTEM, other])[0] == 1


@pytest.mark.parametrize("value", [1, True, 1.5, "1", None])
def test_members_that_only_look_alike_are_not_inherited(value):
    for other in (1, True, 1.5, "1", None):
        before, after = {**USER, "extra": value}, {**USER, "extra": other}
        count, _ = inherited(lambda b, op, sent=before: b.request(op, [SYSTEM, sent]), [SYSTEM, after])
        same = type(value) is type(other) and value == other
        assert count == (2 if same else 1)


def test_template_tokens_between_messages_are_inherited_with_them():
    def build(builder, operation):
        builder.segment(operation, Role.SYSTEM, "s")
        builder.segment(operation, Role.TEMPLATE, tokens=3)
        builder.segment(operation, Role.USER, "u")
        builder.segment(operation, Role.TEMPLATE, "<|assistant|>", tokens=2)
        builder.output(operation, "a")

    system, user = {"role": "system", "content": "s"}, {"role": "user", "content": "u"}
    answer = {"role": "assistant", "content": "a"}
    assert inherited(build, [system, user, answer, USER])[0] == 5
    assert inherited(build, [system, user, USER])[0] == 3, (
        "not the tokens that ask for an answer that is not there"
    )
    assert inherited(build, [system, USER])[0] == 1


def test_segments_without_content_are_never_taken_for_equal():
    def build(builder, operation):
        builder.segment(operation, Role.SYSTEM, "s")
        builder.segment(operation, Role.USER, None, tokens=7)

    assert inherited(build, [{"role": "system", "content": "s"}, USER])[0] == 1


def test_an_output_that_is_not_text_is_never_taken_for_a_message():
    def build(builder, operation):
        builder.request(operation, [SYSTEM])
        builder.output(operation, b"\xff\xfe")

    answer = {"role": "assistant", "content": "\\xff\\xfe"}
    assert inherited(build, [SYSTEM, answer])[0] == 1


def test_the_first_to_repeat_an_output_settles_how_it_is_sent():
    """Agents send the same answer under other names: one form is inherited, others are messages of their own."""
    builder = TraceBuilder()
    ops = [llm(builder, at) for at in range(4)]
    answer = {"role": "assistant", "content": "yes"}
    named = {**answer, "name": "critic"}
    builder.request(ops[0], [SYSTEM])
    builder.output(ops[0], answer)
    builder.request(ops[1], [SYSTEM, named, USER], base=ops[0])
    builder.request(ops[2], [SYSTEM, answer, USER], base=ops[0])
    builder.request(ops[3], [SYSTEM, named], base=ops[0])
    trace = builder.build().trace
    assert trace.operations.ints("context_segments").tolist() == [0, 2, 1, 2]
    for at, messages in enumerate([[SYSTEM], [SYSTEM, named, USER], [SYSTEM, answer, USER], [SYSTEM, named]]):
        assert_rebuilt(trace, at, messages)


def test_a_default_envelope_is_settled_too():
    builder = TraceBuilder()
    ops = [llm(builder, at) for at in range(3)]
    answer = {"role": "assistant", "content": "yes"}
    builder.request(ops[0], [SYSTEM])
    builder.output(ops[0], answer)
    builder.request(ops[1], [SYSTEM, answer], base=ops[0])
    builder.request(ops[2], [SYSTEM, {**answer, "name": "critic"}], base=ops[0])
    trace = builder.build().trace
    assert trace.operations.ints("context_segments").tolist() == [0, 2, 1]
    assert_rebuilt(trace, 1, [SYSTEM, answer])
    assert_rebuilt(trace, 2, [SYSTEM, {**answer, "name": "critic"}])


def test_an_answer_with_tool_calls_is_inherited_with_its_null_content():
    builder = TraceBuilder()
    first, second = llm(builder, 0), llm(builder, 1)
    answer = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]}
    builder.request(first, [SYSTEM])
    builder.output(first, answer)
    messages = [SYSTEM, answer, {"role": "tool", "tool_call_id": "1", "content": "42"}]
    builder.request(second, messages, base=first)
    trace = builder.build().trace
    assert trace.operations.ints("context_segments")[1] == 2
    output = int(trace.operations.ints("output")[0])
    assert trace["artifacts"].strings("media_type")[output] == MESSAGE_TYPE
    assert_rebuilt(trace, 1, messages)


def test_forks_of_one_conversation():
    builder = TraceBuilder()
    root = llm(builder, 0)
    builder.request(root, [SYSTEM, USER])
    builder.output(root, "plan")
    plan = {"role": "assistant", "content": "plan"}
    branches = []
    for at in (1, 2, 3):
        operation = llm(builder, at)
        messages = [SYSTEM, USER, plan, {"role": "user", "content": f"part {at}"}]
        builder.request(operation, messages, base=root)
        branches.append((operation, messages))
    trace = builder.build().trace
    assert trace.segments.rows == 2 + 3
    for operation, messages in branches:
        assert_rebuilt(trace, operation, messages)
    assert edges(trace, EdgeKind.DATA) == {(1, 0), (2, 0), (3, 0)}


# -- spans and sources ------------------------------------------------------------------------------------------


def test_a_span_is_in_characters_its_source_in_bytes():
    builder = TraceBuilder()
    first, second = llm(builder, 0), llm(builder, 1)
    said = "Größe: 7 \U0001f600!"
    builder.request(first, [USER])
    builder.output(first, said)
    text = f"Er sagte »{said[2:9]}« und ging."
    start = text.index(said[2:9])
    span = Span(start, start + 7, first, source_start=len(said[:2].encode()))
    builder.request(second, [{"role": "user", "content": text}], sources={0: [span]})
    trace = builder.build().trace
    rows = [trace.segments.row(at) for at in range(1, trace.segments.rows)]
    pieces = [trace.artifact_text(row["artifact"]) for row in rows]
    assert pieces == ["Er sagte »", "öße: 7 ", "« und ging."]
    assert [row["source_operation"] for row in rows] == [None, 0, None]
    assert [row["source_start"] for row in rows] == [None, 2, None]
    assert [row["source_length"] for row in rows] == [None, 9, None]
    output = trace.artifact(int(trace.operations.ints("output")[0]))
    assert output[2 : 2 + 9].decode() == "öße: 7 "
    assert {row["message"] for row in rows} == {0}
    assert_rebuilt(trace, 1, [{"role": "user", "content": text}])
    assert edges(trace, EdgeKind.DATA) == {(1, 0)}


@given(
    text=st.text(max_size=20),
    cuts=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=5),
    shape=st.sampled_from(["text", "parts", "calls"]),
)
def test_spans_of_any_kind_leave_the_message_as_it_was(text, cuts, shape):
    builder = TraceBuilder()
    first, second = llm(builder, 0), llm(builder, 1)
    message: dict = {"role": "assistant", "content": text, "name": "n"}
    if shape == "parts":
        message["content"] = [{"type": "text", "text": text}, {"type": "text", "text": "tail"}]
    elif shape == "calls":
        message["tool_calls"] = [{"id": "1"}]
    spans = [Span(a, b, first) for a, b in cuts if a < b <= len(text)]
    builder.request(second, [SYSTEM, message], sources={1: spans})
    trace = builder.build().trace
    assert_rebuilt(trace, 1, [SYSTEM, message])
    covered = sum(
        len(trace.artifact_text(int(artifact)))
        for artifact, source in zip(
            trace.segments.ints("artifact"), trace.segments.ints("source_operation"), strict=True
        )
        if source == 0
    )
    assert covered == _covered(spans)
    assert edges(trace, EdgeKind.DATA) == ({(1, 0)} if spans else set())


def _covered(spans):
    """Characters in spans, of those that overlap an earlier one nothing."""
    at = total = 0
    for span in sorted(spans, key=lambda each: each.start):
        if span.start >= at:
            total += span.end - span.start
            at = span.end
    return total


@pytest.mark.parametrize("content", ["", "a"])
def test_a_message_whose_text_is_empty_is_not_lost(content):
    builder = TraceBuilder()
    llm(builder, 0)
    second = llm(builder, 1)
    message = {"role": "user", "content": content}
    builder.request(second, [SYSTEM, message, USER], sources={1: []})
    assert_rebuilt(builder.build().trace, 1, [SYSTEM, message, USER])


def test_a_whole_message_from_a_source():
    builder = TraceBuilder()
    first, second = llm(builder, 0), llm(builder, 1)
    messages = [
        SYSTEM,
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": ""}]},
    ]
    builder.request(second, messages, sources={1: first})
    trace = builder.build().trace
    assert trace.segments.ints("source_operation").tolist() == [NULL, 0, 0]
    assert_rebuilt(trace, 1, messages)


@pytest.mark.parametrize("span", [(0, 0), (2, 1), (-1, 2), (0, 6)])
def test_spans_outside_of_the_text_are_refused(span):
    builder = TraceBuilder()
    first, second = llm(builder, 0), llm(builder, 1)
    with pytest.raises(ValueError, match="span"):
        builder.request(second, [{"role": "user", "content": "plan!"}], sources={0: [Span(*span, first)]})


# -- what a producer may not do --------------------------------------------------------------------------------


def test_an_input_is_given_once():
    builder = TraceBuilder()
    operation = llm(builder, 0)
    builder.request(operation, [SYSTEM])
    with pytest.raises(ValueError, match="has its input already"):
        builder.request(operation, [SYSTEM])


def test_an_output_that_is_repeated_stays_as_it_is():
    builder = TraceBuilder()
    first, second = llm(builder, 0), llm(builder, 1)
    builder.request(first, [SYSTEM])
    builder.output(first, "a")
    builder.request(second, [SYSTEM, {"role": "assistant", "content": "a"}], base=first)
    builder.output(first, "a")
    with pytest.raises(ValueError, match="later inputs repeat it"):
        builder.output(first, "b")


def test_context_that_inherits_itself_is_refused():
    builder = TraceBuilder()
    ops = [llm(builder, at) for at in range(3)]
    builder.inherit(ops[0], ops[1], 0)
    builder.inherit(ops[1], ops[2], 0)
    builder.inherit(ops[2], ops[0], 0)
    with pytest.raises(FormatError, match="inherits its own context"):
        builder.context(ops[0])
    with pytest.raises(FormatError, match="circle"):
        builder.build()


def test_more_cannot_be_inherited_than_there_is():
    builder = TraceBuilder()
    first, second = llm(builder, 0), llm(builder, 1)
    builder.request(first, [SYSTEM, USER])
    builder.inherit(second, first, 3)
    with pytest.raises(ValueError, match="has 3 segments, not 4"):
        builder.inherit(second, first, 4)


@pytest.mark.parametrize("text", ["\ud800", "a\udfff"])
def test_text_without_utf8_form_is_refused(text):
    builder = TraceBuilder()
    operation = llm(builder, 0)
    with pytest.raises(FormatError):
        builder.request(operation, [{"role": "user", "content": text}])


# -- reading traces that nobody checked ------------------------------------------------------------------------


def with_column(trace, table, name, values):
    columns = trace[table]
    changed = {
        column: columns.array(column).to_pylist() if column != name else values
        for column in columns.spec.by_name
    }
    return Trace({**trace.tables, table: Columns.of(columns.spec, changed)}, trace.content)


@pytest.fixture
def two():
    builder = TraceBuilder()
    first, second = llm(builder, 0), llm(builder, 1)
    builder.request(first, [SYSTEM], TOOLS)
    builder.output(first, "a")
    builder.request(second, [SYSTEM, {"role": "assistant", "content": "a"}, USER], TOOLS, base=first)
    return builder.build().trace


@pytest.mark.parametrize(
    ("table", "name", "values"),
    [
        ("operations", "context_base", [None, 1]),
        ("operations", "context_base", [1, 0]),
        ("operations", "context_base", [None, 77]),
        ("operations", "output", [99, None]),
        ("operations", "output_envelope", [0, None]),
        ("segments", "artifact", [0, 0, 99]),
        ("segments", "artifact", [0, 0, 0]),
        ("segments", "envelope", [None, 1, None]),
        ("segments", "role", [5, 0, 2]),
        ("segments", "role", [5, 99, 2]),
    ],
)
def test_a_damaged_trace_gives_an_error_and_ends(two, table, name, values):
    with pytest.raises(IntegrityError):
        rebuild_request(with_column(two, table, name, values), 1)


def test_content_that_is_not_here_gives_none(two):
    assert rebuild_request(two, 1) is not None
    withheld = Trace(two.tables)
    assert rebuild_request(withheld, 0) is None
    assert rebuild_request(withheld, 1) is None
