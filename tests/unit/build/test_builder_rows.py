"""What a producer gives the builder is in the trace, or the builder says why not."""

from __future__ import annotations

import pytest

from semtrace.build import TraceBuilder
from semtrace.errors import FormatError
from semtrace.records.columns import NULL
from semtrace.records.enums import (
    Availability,
    ContentLevel,
    EdgeKind,
    EntityKind,
    EventOutcome,
    Evidence,
    OperationKind,
    OperationStatus,
    Outcome,
    Role,
)
from semtrace.store.digests import show, work_digest


@pytest.fixture
def builder():
    made = TraceBuilder()
    made.task("t")
    return made


def llm(builder, name="a", start=None, **options: object):
    return builder.operation(0, OperationKind.LLM, name, started_ns=start, **options)


def test_the_header_is_one_row():
    trace = (
        TraceBuilder(origin_unix_ns=5, content_level=ContentLevel.SHAPE, block_size=16, hash_scope="x")
        .build()
        .trace
    )
    assert trace["trace"].rows == 1
    assert trace["trace"].row(0) == {
        "origin_unix_ns": 5,
        "content_level": 4,
        "block_size": 16,
        "hash_scope": "x",
    }
    assert TraceBuilder().build().trace["trace"].ints("content_level").tolist() == [ContentLevel.TEXT]


@pytest.mark.parametrize(
    "call",
    [
        lambda b: b.task("x", scor_ppm=3),
        lambda b: b.update_task(0, scor_ppm=3),
        lambda b: b.model("m", layer=3),
        lambda b: b.update_session(b.session(0), agnet="x"),
        lambda b: b.update_operation(llm(b), prompt_token=3),
        lambda b: b.segment(llm(b), Role.USER, "x", token=3),
    ],
)
def test_a_column_that_does_not_exist_is_never_dropped_silently(builder, call):
    with pytest.raises(TypeError, match="has no column"):
        call(builder)


@pytest.mark.parametrize("kind", [EdgeKind.DATA, EdgeKind.STATE])
def test_data_and_state_edges_are_not_made_by_hand(builder, kind):
    a, b = llm(builder), llm(builder)
    with pytest.raises(ValueError, match="follow from segments"):
        builder.edge(b, a, kind=kind)


def test_an_edge_to_itself(builder):
    a = llm(builder)
    with pytest.raises(FormatError) as caught:
        builder.edge(a, a)
    assert caught.value.requirement == "ST-EDGE-002"


def test_edges_by_hand_can_be_asked_for(builder):
    a, b = llm(builder), llm(builder)
    assert not builder.has_edge(b, a)
    builder.edge(b, a, kind=EdgeKind.UNKNOWN)
    assert builder.has_edge(b, a)
    assert not builder.has_edge(a, b)


@pytest.mark.parametrize(("kind", "key"), [(EntityKind.TASK, "colour"), (EntityKind.EDGE, "app/colour")])
def test_annotations_need_a_namespace_and_an_entity(builder, kind, key):
    with pytest.raises(ValueError, match="annotat"):
        builder.annotate(kind, 0, key, "x")


def test_a_value_out_of_range_is_refused(builder):
    llm(builder, prompt_tokens=1 << 63)
    with pytest.raises(FormatError) as caught:
        builder.build()
    assert caught.value.path == "operations.prompt_tokens"


def test_evidence_follows_from_what_is_known(builder):
    llm(builder, prompt_tokens=3)
    llm(builder, duration_ns=5)
    llm(builder, prompt_tokens=3, tokens_evidence=Evidence.INFERRED)
    operations = builder.build().trace.operations
    assert operations.ints("tokens_evidence").tolist() == [
        Evidence.OBSERVED,
        Evidence.MISSING,
        Evidence.INFERRED,
    ]
    assert operations.ints("duration_evidence").tolist() == [
        Evidence.MISSING,
        Evidence.OBSERVED,
        Evidence.MISSING,
    ]
    assert operations.ints("output_tokens").tolist() == [NULL] * 3


def test_equal_content_is_kept_once_per_media_type(builder):
    a = builder.artifact("x")
    assert builder.artifact(b"x") == a
    assert builder.artifact("x", "text/markdown") != a
    raw = builder.artifact(b"\xff")
    assert builder.rows["artifacts"][raw]["media_type"] == "application/octet-stream"
    assert builder.json_artifact({"b": 1, "a": 2}) == builder.json_artifact({"a": 2, "b": 1})


def test_what_calls_say_of_a_model_adds_up(builder):
    first = builder.model("m")
    assert builder.model("m", layers=32) == first
    assert builder.model("m", heads=8, layers=32) == first
    with pytest.raises(FormatError, match="layers 32 and 33"):
        builder.model("m", layers=33)
    llm(builder, model=first)
    row = builder.build().trace["models"].row(0)
    assert (row["layers"], row["heads"], row["kv_heads"]) == (32, 8, None)


def test_states_are_one_per_name_and_task(builder):
    assert builder.state("n", "a") == builder.state("n", "a")
    assert builder.state("n", "a") != builder.state("n", "b")
    assert builder.state("n", "a", task=0) != builder.state("n", "a", task=1)


def test_columns_that_became_known_later(builder):
    session = builder.session(0)
    operation = llm(builder, start=None, session=session)
    builder.update_operation(operation, started_ns=4, output_tokens=2)
    builder.update_session(session, agent="planner")
    builder.update_task(0, output="done", outcome=Outcome.SUCCESS, answer_operation=operation)
    trace = builder.build().trace
    assert trace["sessions"].strings("agent") == ["planner"]
    assert trace.tasks.row(0)["answer_operation"] == 0
    assert trace.artifact_text(int(trace.tasks.ints("output")[0])) == "done"
    assert builder.started_ns == [4]


def test_artifacts_of_a_built_trace_are_embedded(builder):
    builder.output(llm(builder), "x")
    artifacts = builder.build().trace["artifacts"]
    assert artifacts.ints("availability").tolist() == [Availability.EMBEDDED]
    assert artifacts.ints("size").tolist() == [1]


# -- the native execution ---------------------------------------------------------------------------------------


def test_without_observations_there_is_no_execution(builder):
    llm(builder)
    assert builder.build().execution is None


def test_the_native_execution_says_what_was_seen_and_no_more(builder):
    late = llm(builder, "late", 20, prompt_tokens=7, status=OperationStatus.ERROR, duration_ns=3)
    early = llm(builder, "early", 10, output_tokens=2)
    llm(builder, "unseen", 30)
    builder.update_task(0, arrival_ns=1)
    builder.observe(late, submitted_ns=20, finished_ns=23, cached_tokens=0, attempts=2, request_id="r")
    builder.observe(late, first_token_ns=21, evidence=Evidence.DERIVED)
    builder.observe(early, submitted_ns=10, finished_ns=None, outcome=EventOutcome.UNFINISHED)
    built = builder.build()
    execution = built.execution
    assert execution.header.work_digest == show(work_digest(built.trace))
    assert execution.instances.row(0) == {
        "task": 0,
        "instance": 0,
        "arrival_ns": 1,
        "outcome": Outcome.UNKNOWN,
    }
    events = [execution.events.row(at) for at in range(execution.events.rows)]
    assert [event["operation"] for event in events] == [0, 1, 2]
    assert [event["outcome"] for event in events] == [
        EventOutcome.UNFINISHED,
        EventOutcome.ERROR,
        EventOutcome.OK,
    ]
    assert events[0]["finished_ns"] is None
    assert events[0]["finished_evidence"] == Evidence.MISSING
    assert (events[1]["submitted_ns"], events[1]["submitted_evidence"]) == (20, Evidence.OBSERVED)
    assert (events[1]["first_token_ns"], events[1]["first_token_evidence"]) == (21, Evidence.DERIVED)
    assert (events[1]["cached_tokens"], events[1]["attempts"], events[1]["request_id"]) == (0, 2, "r")
    assert (events[1]["prompt_tokens"], events[0]["prompt_tokens"]) == (7, None)
    assert all(events[2][name] is None for name in ("submitted_ns", "cached_tokens", "request_id"))


@pytest.mark.parametrize("name", ["submitted", "arrived_ns", "finish_ns"])
def test_times_that_do_not_exist(builder, name):
    with pytest.raises(ValueError, match="no such time"):
        builder.observe(llm(builder), **{name: 3})
