"""The tools over random traces: results are valid, nothing gets lost, and what was taken apart goes together again."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pyarrow as pa
from hypothesis import assume, given
from hypothesis import strategies as st

from semtrace.check import check_bundle
from semtrace.records.chat import rebuild_request
from semtrace.records.columns import Columns
from semtrace.records.enums import ContentLevel, EntityKind, OperationKind
from semtrace.records.schema import Level
from semtrace.records.trace import Trace
from semtrace.records.trace_tables import TRACE_TABLES
from semtrace.store.bundle import open_bundle, write_bundle
from semtrace.store.digests import execution_digest, trace_digest, work_digest
from semtrace.testing import TraceShape, random_trace
from semtrace.transform.bundle_parts import Parts
from semtrace.transform.diff_executions import diff_executions
from semtrace.transform.diff_traces import diff_traces
from semtrace.transform.filter import filter_tasks
from semtrace.transform.merge import merge_traces
from semtrace.transform.redact import redact
from semtrace.transform.renumber import renumber
from semtrace.transform.rows import with_column
from semtrace.transform.sample import sample_tasks
from support.transform_cases import findings, old_ids, parts_of, replay_of, thrown

seeds = st.integers(0, 1 << 32)
shapes = st.builds(
    TraceShape,
    tasks=st.integers(1, 5),
    operations=st.integers(0, 14),
    sessions=st.integers(1, 3),
    stages=st.integers(0, 4),
    states=st.integers(0, 2),
)


def made(seed, shape=None):
    return parts_of(random_trace(seed, shape))


def unknown_origin(parts):
    return parts.trace["trace"].array("origin_unix_ns").null_count > 0


@given(seeds, shapes, st.integers(0, 31))
def test_a_filter_keeps_whole_tasks_as_they_were(seed, shape, chosen):
    whole = made(seed, shape)
    tasks = [at for at in range(shape.tasks) if chosen >> at & 1]
    assume(tasks)
    kept = filter_tasks(whole, [f"name~^task ({'|'.join(map(str, tasks))})$"])
    assert findings(kept) == []
    for new, old in enumerate(tasks):
        before, after = whole.trace.task_rows("operations", old), kept.trace.task_rows("operations", new)
        assert len(before) == len(after)
        for one, other in zip(before, after, strict=True):
            assert whole.trace.operations.row(one)["name"] == kept.trace.operations.row(other)["name"]
            if whole.trace.operations.ints("kind")[one] == OperationKind.LLM:
                assert rebuild_request(kept.trace, other) == rebuild_request(whole.trace, one)
        for table in ("segments", "edges", "state_accesses"):
            assert len(whole.trace.task_rows(table, old)) == len(kept.trace.task_rows(table, new))
    if len(tasks) < shape.tasks:
        assert old_ids(kept, EntityKind.TASK, whole.trace) == dict(enumerate(tasks))
    else:
        assert trace_digest(kept.trace) == trace_digest(whole.trace)
    for name, execution in kept.executions.items():
        assert execution.instances.rows == len(tasks)
        if len(tasks) == shape.tasks:
            assert execution_digest(execution) == execution_digest(whole.executions[name])


@given(seeds, shapes, st.randoms(use_true_random=False))
def test_what_was_taken_apart_goes_together_again(seed, shape, rng):
    """Parts in the order of tasks make the whole's digests; merging is associative."""
    assume(shape.tasks > 1)
    whole = made(seed, shape)
    cuts = sorted(rng.sample(range(1, shape.tasks), rng.randint(1, shape.tasks - 1)))
    ends = [0, *cuts, shape.tasks]
    pieces = [
        filter_tasks(whole, [f"task>={start}", f"task<{end}"]) for start, end in itertools.pairwise(ends)
    ]
    align = unknown_origin(whole)
    again = merge_traces(pieces, align=align)
    assert findings(again) == []
    assert work_digest(again.trace) == work_digest(whole.trace)
    assert trace_digest(again.trace) == trace_digest(whole.trace)
    for execution in again.executions.values():
        assert execution_digest(execution) == execution_digest(whole.executions["native"])
    if len(pieces) > 2:
        first = merge_traces([merge_traces(pieces[:2], align=align), *pieces[2:]], align=align)
        assert trace_digest(first.trace) == trace_digest(whole.trace)


@given(seeds, seeds, shapes, shapes)
def test_traces_that_have_nothing_to_do_with_each_other(one, other, shape, another):
    inputs = [made(one, shape), made(other, another)]
    merged = merge_traces(inputs, align=any(map(unknown_origin, inputs)))
    assert findings(merged) == []
    assert merged.trace.operations.rows == sum(parts.trace.operations.rows for parts in inputs)
    back = [
        filter_tasks(merged, [f"task<{shape.tasks}"]),
        filter_tasks(merged, [f"task>={shape.tasks}"]),
    ]
    for parts, piece in zip(inputs, back, strict=True):
        found = diff_traces(parts.trace, piece.trace, work=True)
        # Times may be counted from another origin, and states that nobody accesses come from both traces.
        assert {name for name in found.only_a if not name.startswith("state")} <= {"artifacts"}
        assert not [name for name in found.changed if name.startswith("operations")]
        assert found.rows["operations"][0] == found.rows["operations"][1]


@given(seeds, shapes, seeds)
def test_samples_are_subsets(seed, shape, draw):
    whole = made(seed, shape)
    rng = random.Random(draw)
    few, more = sorted(rng.randint(1, shape.tasks) for _ in range(2))
    small, large = (sample_tasks(whole, count, draw) for count in (few, more))
    assert findings(small) == []
    assert small.trace.tasks.rows == few
    assert set(small.trace.tasks.strings("name")) <= set(large.trace.tasks.strings("name"))
    by = sample_tasks(whole, few, draw, by="tenant")
    assert by.trace.tasks.rows == few
    assert findings(by) == []


@given(seeds, shapes)
def test_renumbering_what_is_canonical_changes_nothing(seed, shape):
    whole = made(seed, shape)
    again, changed = renumber(whole)
    assert not changed
    assert again is whole


@given(seeds, shapes, seeds)
def test_any_order_of_rows_becomes_a_valid_one(seed, shape, order):
    whole = made(seed, shape)
    wrong, moved = thrown(whole.trace, order)
    mended, _ = renumber(Parts(wrong))
    assert findings(mended) == []
    assert mended.trace.tasks.data.num_rows == shape.tasks
    old = {at: at for at in range(wrong.operations.rows)} | old_ids(mended, EntityKind.OPERATION, wrong)
    origin = np.argsort(moved["operations"][:-1])  # by place in the thrown trace, the operation of the whole
    for new, before in old.items():
        at = int(origin[before])
        one, other = whole.trace.operations.row(at), mended.trace.operations.row(new)
        for name in ("task", "kind", "name", "duration_ns", "prompt_tokens", "context_segments"):
            assert one[name] == other[name]
        if one["kind"] == OperationKind.LLM:
            assert rebuild_request(mended.trace, new) == rebuild_request(whole.trace, at)
    again, changed = renumber(mended)
    assert not changed
    assert again is mended


@given(seeds, shapes, seeds)
def test_rows_of_which_the_order_is_settled_come_back(seed, shape, order):
    """Whatever happens to edges, accesses, artifacts, models and states: the digests are the same afterwards."""
    whole = made(seed, shape)
    wrong, _ = thrown(whole.trace, order, tables=["edges", "state_accesses", "artifacts", "models"])
    mended, _ = renumber(Parts(wrong))
    assert findings(mended) == []
    assert trace_digest(mended.trace) == trace_digest(whole.trace)


@given(
    seeds, shapes, st.sampled_from([ContentLevel.TOKEN_IDS, ContentLevel.BLOCK_HASHES, ContentLevel.SHAPE])
)
def test_redacted_traces_are_valid(seed, shape, level):
    whole = made(seed, shape)
    redacted = redact(whole, level, annotations=seed % 2 == 0, task_names=seed % 3 == 0)
    assert findings(redacted) == []
    found = diff_traces(whole.trace, redacted.trace)
    assert set(found.only_a) <= {"artifacts"}
    for name in found.changed:
        table, column = name.split(".")
        refs = whole.trace[table].spec.by_name[column].refs
        assert refs == "artifacts" or name in {"trace.content_level", "tasks.name"}


@given(seeds, shapes, st.data())
def test_every_change_is_found(seed, shape, data):
    """One value changed, whichever: the digests differ, and the difference names its table and column."""
    trace = made(seed, shape).trace
    places = [
        (spec, column)
        for spec in TRACE_TABLES
        for column in spec.columns
        if trace[spec.name].rows
        and column.level is not Level.NONE
        and column.enum is None
        and column.refs is None
        and column.name != "version"
    ]
    spec, column = data.draw(st.sampled_from(places))
    row = data.draw(st.integers(0, trace[spec.name].rows - 1))
    columns = trace[spec.name]
    values = columns.array(column.name).to_pylist()
    arrow = columns.data.schema.field(column.name).type
    values[row] = {pa.string(): "another", pa.binary(32): bytes(32)}.get(arrow, 77)
    if values[row] == columns.array(column.name)[row].as_py():
        return
    table = with_column(columns.data, column.name, pa.array(values, arrow))
    other = Trace({**trace.tables, spec.name: Columns(spec, table)}, trace.content)
    found = diff_traces(trace, other)
    assert not found.same
    assert found.first
    assert any(name.startswith(f"{spec.name}.") for name in found.changed) or spec.name in found.only_a
    backwards = diff_traces(other, trace)
    assert backwards.changed == found.changed
    assert (backwards.only_a, backwards.only_b) == (found.only_b, found.only_a)


@given(seeds, seeds)
def test_differences_of_unrelated_traces(one, other):
    traces = [made(seed).trace for seed in (one, other)]
    found = diff_traces(*traces)
    assert found.same == (trace_digest(traces[0]) == trace_digest(traces[1]))
    assert bool(found.first) == (not found.same)
    for table, (rows_a, rows_b) in found.rows.items():
        if table != "annotations" and not found.same:
            assert rows_a - found.only_a.get(table, 0) == rows_b - found.only_b.get(table, 0)


@given(seeds, st.data())
def test_differences_of_executions(seed, data):
    run = made(seed).executions.get("native")
    assume(run is not None)
    assert diff_executions(run, run).same
    names = [
        column.name for column in run.events.spec.columns if column.level is Level.RUN and column.refs is None
    ]
    name = data.draw(st.sampled_from([name for name in names if name != "outcome"]))
    row = data.draw(st.integers(0, run.events.rows - 1))
    values = run.events.array(name).to_pylist()
    values[row] = (values[row] or 0) + 3
    table = with_column(run.events.data, name, pa.array(values, run.events.data.schema.field(name).type))
    other = type(run)(run.header, {**run.tables, "events": Columns(run.events.spec, table)}, run.content)
    found = diff_executions(run, other)
    assert not found.same
    assert list(found.columns) == [name]
    assert [each.operation for each in found.first] == [int(run.events.ints("operation")[row])]


@given(seeds)
def test_results_survive_the_bundle(tmp_path_factory, seed):
    """What a tool makes is written, read and checked whole: content, digests and lineage with it."""
    whole = made(seed)
    whole = Parts(whole.trace, {**whole.executions, "replayed": replay_of(whole.trace)}, whole.info)
    parts = merge_traces([sample_tasks(whole, 2, seed), sample_tasks(whole, 1, seed + 1)], align=True)
    path = tmp_path_factory.mktemp("made") / "made.semtrace"
    write_bundle(path, parts.trace, parts.executions, info=parts.info)
    bundle = open_bundle(path)
    assert check_bundle(bundle) == []
    assert bundle.manifest.lineage == parts.info.lineage
