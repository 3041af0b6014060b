"""Merging: tasks one after the other, what is shared once, times from one origin, contradictions refused."""

from __future__ import annotations

import numpy as np
import pytest

from semtrace.build import TraceBuilder
from semtrace.errors import FormatError, IntegrityError, UsageError
from semtrace.records.columns import NULL, Columns
from semtrace.records.enums import (
    Availability,
    ContentLevel,
    EntityKind,
    OperationKind,
    Role,
    StateLifetime,
)
from semtrace.records.media import BLOCK_IDS_TYPE
from semtrace.records.trace import Trace
from semtrace.store.artifact_store import ArtifactStore
from semtrace.store.bundle import BundleInfo
from semtrace.store.digests import execution_digest, show, trace_digest, work_digest
from semtrace.store.external import externalize
from semtrace.store.manifest import Loss, SourceFile
from semtrace.transform.bundle_parts import Parts, sound
from semtrace.transform.filter import filter_tasks
from semtrace.transform.merge import merge_traces
from support.transform_cases import MS, ORIGIN, crew, findings, old_ids, parts_of, replay_of, with_steps


def test_tasks_one_after_the_other():
    """ST-LIN-040, ST-LIN-041."""
    one, other = parts_of(crew(tasks=2).build()), parts_of(crew(tasks=3, model="large").build())
    made = merge_traces([one, other])
    assert findings(made) == []
    assert made.trace.tasks.strings("name") == ["task 0", "task 1", "task 0", "task 1", "task 2"]
    assert made.trace.operations.rows == 20
    assert made.trace["models"].strings("name") == ["small", "large"]
    assert made.trace.operations.ints("model")[[0, 8]].tolist() == [0, 1]
    digests = made.trace["artifacts"].digests()
    assert len(set(digests)) == len(digests) < one.trace["artifacts"].rows + other.trace["artifacts"].rows
    assert made.trace.artifact_text(int(made.trace.tasks.ints("input")[4])) == "question 2"
    same = merge_traces([one, one])
    assert findings(same) == []
    assert same.trace["models"].rows == 1
    assert same.trace["artifacts"].rows == one.trace["artifacts"].rows


def test_whole_again():
    whole = parts_of(crew(tasks=5).build())
    pieces = [filter_tasks(whole, [f"task={at}"]) for at in range(5)]
    made = merge_traces(pieces)
    assert trace_digest(made.trace) == trace_digest(whole.trace)
    assert execution_digest(made.executions["native"]) == execution_digest(whole.executions["native"])
    other_way = merge_traces([merge_traces(pieces[:2]), merge_traces(pieces[2:])])
    assert trace_digest(other_way.trace) == trace_digest(whole.trace)


def test_lineage_and_old_ids():
    """ST-LIN-003."""
    one = filter_tasks(parts_of(crew(tasks=4).build(), "one"), ["task>1"])
    other = parts_of(crew(tasks=1).build(), "other")
    made = merge_traces([one, other])
    (step,) = made.info.lineage
    assert step["step"] == "merge"
    assert [taken["trace_digest"] for taken in step["inputs"]] == [
        show(trace_digest(parts.trace)) for parts in (one, other)
    ]
    assert [each["step"] for each in step["inputs"][0]["lineage"]] == ["filter"]
    assert step["inputs"][1]["lineage"] == []
    assert old_ids(made, EntityKind.TASK, one.trace) == {0: 0, 1: 1}
    assert old_ids(made, EntityKind.TASK, other.trace) == {2: 0}
    assert old_ids(made, EntityKind.OPERATION, other.trace) == {8: 0}
    assert made.name == "one + other"


def test_annotations_of_what_is_shared_are_there_once():
    made = merge_traces([parts_of(crew().build()), parts_of(crew().build())])
    of_models = [
        row for row in made.trace["annotations"].data.to_pylist() if row["entity_kind"] == EntityKind.MODEL
    ]
    assert [(row["entity"], row["key"]) for row in of_models] == [(0, "example.org/seen")]
    numbers = [
        row["entity"]
        for row in made.trace["annotations"].data.to_pylist()
        if row["key"] == "example.org/number"
    ]
    assert numbers == list(range(6))


# -- times ------------------------------------------------------------------------------------------------------


def arrivals(parts):
    return parts.trace.tasks.ints("arrival_ns").tolist()


def test_times_are_counted_from_the_earliest_origin():
    """ST-LIN-043."""
    late, early = (
        parts_of(crew(origin=ORIGIN + 7, tasks=1).build()),
        parts_of(crew(origin=ORIGIN, tasks=1).build()),
    )
    made = merge_traces([late, early])
    assert findings(made) == []
    assert made.trace["trace"].ints("origin_unix_ns").tolist() == [ORIGIN]
    assert arrivals(made) == [7, 0]
    assert made.trace.tasks.ints("deadline_ns").tolist() == [900 * MS + 7, 900 * MS]
    native = made.executions["native"]
    assert native.header.origin_unix_ns == ORIGIN
    assert native.events.ints("submitted_ns").tolist() == [
        7,
        6 * MS + 7,
        7 * MS + 7,
        NULL,
        0,
        6 * MS,
        7 * MS,
        NULL,
    ]
    assert native.instances.ints("arrival_ns").tolist() == [7, 0]


def test_times_of_unknown_origin_are_not_guessed():
    one, other = parts_of(crew(tasks=1).build(), "one"), parts_of(crew(origin=None, tasks=1).build(), "other")
    for inputs in ([one, other], [other, one], [other, other]):
        with pytest.raises(FormatError) as caught:
            merge_traces(inputs)
        assert (caught.value.requirement, caught.value.path) == ("ST-LIN-043", "other")
        assert "--align" in caught.value.hint
    made = merge_traces([one, other], align=True)
    assert findings(made) == []
    assert made.trace["trace"].ints("origin_unix_ns").tolist() == [NULL]
    assert arrivals(made) == [0, 0]
    assert made.info.lineage[0]["parameters"] == {"align": True}
    assert made.executions["native"].header.origin_unix_ns is None
    both = merge_traces([one, one], align=True)
    assert both.trace["trace"].ints("origin_unix_ns").tolist() == [ORIGIN]


def timeless(origin=None):
    b = TraceBuilder(origin_unix_ns=origin)
    b.operation(b.task("no times"), OperationKind.TOOL, "one", duration_ns=1)
    return parts_of(b.build(), "timeless")


def test_traces_without_times_need_no_origin():
    one = parts_of(crew(tasks=1, first_arrival_ns=5).build())
    made = merge_traces([timeless(), one, timeless(ORIGIN + 99)])
    assert findings(made) == []
    assert made.trace["trace"].ints("origin_unix_ns").tolist() == [ORIGIN]
    assert arrivals(made) == [NULL, 5, NULL]
    assert merge_traces([timeless(), timeless(3)]).trace["trace"].ints("origin_unix_ns").tolist() == [NULL]
    assert merge_traces([timeless(3), timeless(3)]).trace["trace"].ints("origin_unix_ns").tolist() == [3]


def test_times_too_far_apart_are_refused():
    one, other = (parts_of(crew(origin=origin, tasks=1).build()) for origin in (0, (1 << 62) - 1))
    with pytest.raises(FormatError) as caught:
        merge_traces([one, other])
    assert caught.value.requirement == "ST-VAL-003"
    assert findings(merge_traces([one, other], align=True)) == []


# -- headers and remarks ----------------------------------------------------------------------------------------


def blocks(size, scope):
    b = TraceBuilder(block_size=size, hash_scope=scope)
    operation = b.operation(b.task("hashed"), OperationKind.LLM, "call", prompt_tokens=4, output_tokens=1)
    if size is not None:
        ids = b.artifact(bytes(8 * 4 // size), BLOCK_IDS_TYPE)
        b.segment(operation, Role.USER, tokens=4, block_ids=ids, block_ids_start=0)
    return parts_of(b.build(), f"blocks of {size}")


def test_contradictory_headers_are_refused():
    """ST-LIN-042."""
    made = merge_traces([blocks(None, None), blocks(4, "a"), blocks(4, "a")])
    assert made.trace["trace"].row(0)["block_size"] == 4
    assert made.trace["trace"].row(0)["hash_scope"] == "a"
    for inputs, name in (
        ([blocks(4, "a"), blocks(2, "a")], "block_size"),
        ([blocks(4, "a"), blocks(4, "b")], "hash_scope"),
    ):
        with pytest.raises(FormatError, match=name) as caught:
            merge_traces(inputs)
        assert caught.value.requirement == "ST-LIN-042"
        assert caught.value.path == inputs[1].name
    b = TraceBuilder(content_level=ContentLevel.SHAPE)
    b.operation(b.task("shape"), OperationKind.TOOL, "one", duration_ns=1)
    with pytest.raises(FormatError, match="content_level is shape, that of the traces before is text"):
        merge_traces([timeless(), parts_of(b.build())])


def test_one_trace_is_no_merge():
    with pytest.raises(UsageError):
        merge_traces([timeless()])


def test_remarks_are_put_together():
    file = SourceFile(name="a.jsonl", bytes=1, digest=f"blake3:{0:064}", adapter="a", adapter_version="1")
    lost = Loss(code="x.y", effect="lost", message="gone", count=2, where=["a:1"])
    one = BundleInfo(
        sources=[file], loss=[lost], licence="MIT", notes="first", tokenizers={"t": "1"}, extra={"x/y": 1}
    )
    other = BundleInfo(
        sources=[file.model_copy(update={"name": "b.jsonl"})],
        loss=[lost.model_copy(update={"where": ["b:2"]})],
        optional_features=["f"],
        extra={"x/y": 2, "x/z": 3},
    )
    built = crew(tasks=1).build()
    made = merge_traces([parts_of(built, info=info) for info in (one, other, one)])
    info = made.info
    assert [source.name for source in info.sources] == ["a.jsonl", "b.jsonl"]
    assert [(loss.count, loss.where) for loss in info.loss] == [(6, ["a:1", "b:2"])]
    assert (info.licence, info.notes, info.optional_features) == ("MIT", "first", ["f"])
    assert (info.tokenizers, info.extra) == ({"t": "1"}, {"x/y": 1, "x/z": 3})
    assert made.info.lineage[0]["notes"][:2] == [
        "x/y is the first trace's that has it",
        "a trace without a licence is in it",
    ]
    with pytest.raises(FormatError, match="tokenizer t"):
        merge_traces([parts_of(built, info=each) for each in (one, BundleInfo(tokenizers={"t": "2"}))])


# -- what is shared ---------------------------------------------------------------------------------------------


def library(text="content", *, written=None, name="library", lifetime=StateLifetime.LONG_TERM, read=True):
    """A task that reads a state with one initial version, and writes another if asked to."""
    b = TraceBuilder()
    state = b.state("memory", name, lifetime=lifetime)
    version = b.version(state, text)
    operation = b.operation(b.task("reader"), OperationKind.TOOL, "one", duration_ns=1)
    if read:
        b.read(operation, version)
    if written:
        b.version(state, written, writer=operation)
    return parts_of(b.build())


def versions_of(*inputs: Parts):
    """By state of the merge of these, the contents of its versions."""
    made = merge_traces(inputs)
    assert findings(made) == []
    table = made.trace["state_versions"]
    found: dict[int, list[str]] = {}
    for state, artifact in zip(table.ints("state").tolist(), table.ints("artifact").tolist(), strict=True):
        found.setdefault(state, []).append(made.trace.artifact_text(artifact))
    return list(found.values())


def test_lasting_states_with_the_same_content_are_one():
    """ST-LIN-044."""
    assert versions_of(library(), library()) == [["content"]]
    assert versions_of(library(), library(), library(written="more")) == [["content", "more"]]
    assert versions_of(library(written="more"), library()) == [["content", "more"]]
    made = merge_traces([library(), library(), library("other")])
    assert made.trace["states"].rows == 2
    assert made.info.lineage[0]["notes"] == ["1 states are those of an earlier trace"]


def test_other_states_stay_apart():
    assert versions_of(library(), library("other")) == [["content"], ["other"]]
    assert versions_of(library(), library(name="shelf")) == [["content"], ["content"]]
    assert versions_of(library(written="a"), library(written="b")) == [["content", "a"], ["content", "b"]]
    assert versions_of(library(lifetime=StateLifetime.TASK), library(lifetime=StateLifetime.TASK)) == [
        ["content"],
        ["content"],
    ]
    assert versions_of(library(None), library(None)) == [[None], [None]]  # not known to be the same
    assert versions_of(library(None, read=False), library(None, read=False)) == [[None]]  # nobody cares
    idle = library(lifetime=StateLifetime.TASK, read=False)
    assert versions_of(idle, idle) == [["content"]]


def test_content_that_one_trace_has_is_there(tmp_path):
    store = ArtifactStore(tmp_path / "store", create=True)
    built = crew(tasks=1).build()
    outside = Parts(externalize(built.trace, store), name="outside")
    made = merge_traces([outside, parts_of(built)])
    assert set(made.trace["artifacts"].ints("availability")) == {Availability.EMBEDDED}
    assert findings(made) == []
    both = merge_traces([outside, outside])
    assert set(both.trace["artifacts"].ints("availability")) == {Availability.EXTERNAL}
    assert list(both.trace.content) == []


def test_two_sizes_of_one_content_are_refused():
    built = crew(tasks=1).build()
    artifacts = built.trace["artifacts"]
    data = artifacts.data.set_column(1, artifacts.data.schema.field(1), [artifacts.ints("size") + 1])
    other = Trace({**built.trace.tables, "artifacts": Columns(artifacts.spec, data)}, built.trace.content)
    with pytest.raises(IntegrityError, match="elsewhere") as caught:
        merge_traces([parts_of(built), Parts(other, name="other")])
    assert caught.value.path.startswith("other")


# -- executions -------------------------------------------------------------------------------------------------


def test_native_executions_become_one():
    """ST-LIN-045."""
    built, other = crew(tasks=1).build(), crew(tasks=2).build()
    header = built.execution.header.model_copy(update={"environment": {"cpu": "one"}})
    native = with_steps(type(built.execution)(header, built.execution.tables))
    inputs = [
        sound(Parts(built.trace, {"mine": native, "replayed": replay_of(built.trace)})),
        sound(Parts(other.trace, {"native": other.execution})),
    ]
    made = merge_traces(inputs)
    assert findings(made) == []
    run = made.executions["native"]
    assert list(made.executions) == ["native"]
    assert run.header.work_digest == show(work_digest(made.trace))
    assert run.events.ints("operation").tolist() == list(range(12))
    assert run.events.ints("instance").tolist() == np.repeat([0, 1, 2], 4).tolist()
    assert (run.header.detail, run.header.environment) == ([], {})
    assert made.info.lineage[0]["executions"] == {
        "0/mine": {"kept": True, "note": "steps, environment left out: of one trace alone"},
        "0/replayed": {"kept": False, "note": "a replay of one trace, not of all"},
        "1/native": {"kept": True, "note": "environment left out: of one trace alone"},
    }


def test_servers_of_different_traces_are_different():
    from semtrace.transform.rows import integers, with_column

    built = crew(tasks=1).build()
    events = built.execution.events
    data = with_column(
        events.data, "server", integers(np.array([0, 2, NULL, 0]), events.data.schema.field("server").type)
    )
    native = type(built.execution)(
        built.execution.header, {**built.execution.tables, "events": Columns(events.spec, data)}
    )
    one = Parts(built.trace, {"native": native})
    made = merge_traces([one, one])
    assert made.executions["native"].events.ints("server").tolist() == [0, 2, NULL, 0, 3, 5, NULL, 3]


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"clock": "virtual"}, "the executions differ in clock"),
        ({"measured_at": "server"}, "the executions differ in measured_at"),
        ({"origin_unix_ns": None}, "the origin of an execution's times is not known"),
        ({"origin_unix_ns": 5}, None),
        ({"origin_unix_ns": ORIGIN + (1 << 62)}, "too far apart"),
    ],
)
def test_executions_that_do_not_go_together_are_left_out(change, note):
    one, other = crew(tasks=1).build(), crew(tasks=1).build()
    changed = type(other.execution)(other.execution.header.model_copy(update=change), other.execution.tables)
    inputs = [Parts(one.trace, {"native": one.execution}), Parts(other.trace, {"native": changed})]
    made = merge_traces(inputs)
    assert findings(made) == []
    assert bool(made.executions) == (note is None)
    if note:
        assert note in made.info.lineage[0]["executions"]["1/native"]["note"]


def test_executions_of_some_traces_only_are_left_out():
    one = parts_of(crew(tasks=1).build())
    made = merge_traces([one, Parts(one.trace)])
    assert made.executions == {}
    assert made.info.lineage[0]["executions"] == {
        "0/native": {"kept": False, "note": "not every trace has one native execution"}
    }


def test_aligned_executions_keep_their_distance_from_the_trace():
    built = crew(tasks=1).build()
    later = type(built.execution)(
        built.execution.header.model_copy(update={"origin_unix_ns": ORIGIN + 3}), built.execution.tables
    )
    made = merge_traces(
        [Parts(built.trace, {"native": built.execution}), Parts(built.trace, {"native": later})], align=True
    )
    assert made.executions["native"].events.ints("submitted_ns")[[0, 4]].tolist() == [0, 3]


def test_output_ids_of_both_are_there():
    from semtrace.store.digests import artifact_digest
    from semtrace.transform.rows import integers, with_column

    def run(contents):
        built = crew(tasks=1).build()
        held = {artifact_digest(content): content for content in contents}
        order = sorted(held)
        ids = np.array([order.index(artifact_digest(content)) for content in contents])
        events = built.execution.events
        data = with_column(
            events.data, "output_ids", integers(ids, events.data.schema.field("output_ids").type)
        )
        tables = {**built.execution.tables, "events": Columns(events.spec, data)}
        return sound(
            Parts(built.trace, {"native": type(built.execution)(built.execution.header, tables, held)})
        )

    first, second = ([bytes([at, 0, 0, 0]) for at in range(start, start + 4)] for start in (0, 2))
    made = merge_traces([run(first), run(second)])
    assert findings(made) == []
    kept = made.executions["native"]
    digests = sorted(kept.content)
    got = [kept.content.get(digests[at]) for at in kept.events.ints("output_ids").tolist()]
    assert got == first + second
    assert len(digests) == 6
