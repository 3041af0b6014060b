"""Sealing: recorders' rows, in any order and under any ids, become canonical rows; what is missing is said."""

from __future__ import annotations

from collections import Counter

import pytest
from stream_parts import RUN, capture, head, record, write

from semtrace.check.trace import check_trace
from semtrace.errors import FormatError, IntegrityError, UnsupportedError, UsageError
from semtrace.records.chat import rebuild_request
from semtrace.records.enums import (
    EdgeKind,
    EntityKind,
    EventOutcome,
    Evidence,
    OperationKind,
    OperationStatus,
    Role,
    Trigger,
    VersionMode,
)
from semtrace.stream import sources
from semtrace.stream.capture_to_trace import RECORDER_ID
from semtrace.stream.framing import file_header, frame
from semtrace.stream.seal import seal
from semtrace.stream.writer import StreamWriter

BIG = 2**63
ORIGIN = 1_700_000_000 * 10**9


def call(at, **columns: object):
    return record(at, operation={"task": BIG, "kind": OperationKind.LLM, "name": f"op {at}", **columns})


def parts():
    """Two calls, the second of which inherits the first, a tool, states: later rows before earlier ones."""
    return [
        record(trace_header={"origin_unix_ns": ORIGIN}),
        call(BIG + 2, session=7, model=9, context_base=BIG + 1, context_segments=2, prompt_tokens=20, output_tokens=3),
        record(BIG, task={"name": "t", "answer_operation": BIG + 2, "input": 1}),
        record(7, session={"task": BIG, "agent": "a", "model": 9, "parent_operation": BIG + 3}),
        record(9, model={"name": "m"}),
        record(1, captured_artifact={"media_type": "text/plain; charset=utf-8", "data": b"hi"}),
        record(11, segment={"operation": BIG + 1, "role": Role.USER, "artifact": 1, "tokens": 5}),
        call(BIG + 1, session=7, model=9, stage=4),
        record(event={"operation": BIG + 1, "submitted_ns": 30}),
        record(2, captured_artifact={"data": b"answer"}),
        record(BIG + 1, operation={"output": 2, "prompt_tokens": 5, "output_tokens": 5}),
        record(event={"operation": BIG + 1, "finished_ns": 50, "finished_evidence": Evidence.DERIVED}),
        record(event={"operation": BIG + 2, "submitted_ns": 60, "finished_ns": 90, "cached_tokens": 4}),
        record(3, captured_artifact={"data": b"more"}),
        record(segment={"operation": BIG + 2, "role": Role.USER, "artifact": 3, "tokens": 10}),
        record(BIG + 3, operation={"task": BIG, "kind": OperationKind.TOOL, "name": "look", "duration_ns": 20}),
        record(event={"operation": BIG + 3, "submitted_ns": 5, "finished_ns": 25, "attempts": 2}),
        record(edge={"target": BIG + 1, "source": BIG + 3}),
        record(edge={"target": BIG + 2, "source": BIG + 1, "kind": EdgeKind.DATA}),
        record(5, stage={"task": BIG, "name": "inner", "parent": 4}),
        record(4, stage={"task": BIG, "name": "outer"}),
        record(6, state={"namespace": "memory", "name": "board"}),
        record(22, state_version={"state": 6, "version": 1, "base": 21, "artifact": 3, "writer": BIG + 1}),
        record(21, state_version={"state": 6, "artifact": 1, "mode": VersionMode.REPLACE}),
        record(state_access={"operation": BIG + 2, "state_version": 22, "mode": 1}),
        record(annotation={"entity_kind": EntityKind.OPERATION, "entity": BIG + 3, "key": "test/key", "value": "v"}),
        record(annotation={"entity_kind": EntityKind.TRACE, "entity": 0, "key": "test/all", "value": "w"}),
    ]  # fmt: skip


def test_rows_in_any_order_become_canonical_rows(tmp_path):
    sealed = seal([capture(tmp_path / "s", parts())])
    trace = sealed.trace
    assert check_trace(trace) == []
    assert trace.operations.strings("name") == ["look", f"op {BIG + 1}", f"op {BIG + 2}"]
    assert list(trace.operations.ints("context_base")) == [-1, -1, 1]
    assert list(trace.operations.ints("external_delay_ns")) == [0, 5, 10]
    assert [loss.code for loss in sealed.info.loss] == ["delays.inferred"]
    edges = trace.edges
    assert list(zip(edges.ints("target"), edges.ints("source"), edges.ints("kind"), strict=True)) == [
        (1, 0, EdgeKind.CONTROL), (2, 1, EdgeKind.DATA), (2, 1, EdgeKind.STATE),
    ]  # fmt: skip
    assert set(edges.ints("trigger")) == {Trigger.FINISH}
    assert rebuild_request(trace, 2)["messages"] == [
        {"role": "user", "content": "hi"}, {"role": "assistant", "content": "answer"}, {"role": "user", "content": "more"},
    ]  # fmt: skip
    assert trace["tasks"].row(0)["answer_operation"] == 2
    assert trace["tasks"].row(0)["arrival_ns"] == 5
    assert trace["sessions"].row(0)["parent_operation"] == 0
    assert trace["stages"].strings("name") == ["outer", "inner"]
    assert trace["stages"].row(1)["parent"] == 0
    assert list(trace["state_versions"].ints("base")) == [-1, 0]
    assert list(trace["state_versions"].ints("writer")) == [-1, 1]
    assert trace["trace"].row(0)["origin_unix_ns"] == ORIGIN
    events = sealed.execution.events
    assert list(events.ints("submitted_ns")) == [5, 30, 60]
    assert list(events.ints("finished_evidence")) == [Evidence.OBSERVED, Evidence.DERIVED, Evidence.OBSERVED]
    assert list(events.ints("cached_tokens")) == [-1, -1, 4]
    assert list(events.ints("attempts")) == [2, -1, -1]


def test_the_recorders_ids_are_kept_as_annotations(tmp_path):
    """ST-STR-059."""
    trace = seal([capture(tmp_path / "s", parts())]).trace
    notes = trace["annotations"]
    kept = {
        (kind, entity): value
        for kind, entity, key, value in zip(
            notes.ints("entity_kind"), notes.ints("entity"), notes.strings("key"), notes.strings("value"), strict=True
        )
        if key == RECORDER_ID
    }  # fmt: skip
    assert kept == {
        (EntityKind.TASK, 0): str(BIG), (EntityKind.STAGE, 0): "4", (EntityKind.STAGE, 1): "5",
        (EntityKind.SESSION, 0): "7", (EntityKind.MODEL, 0): "9", (EntityKind.OPERATION, 0): str(BIG + 3),
        (EntityKind.OPERATION, 1): str(BIG + 1), (EntityKind.OPERATION, 2): str(BIG + 2), (EntityKind.STATE, 0): "6",
        (EntityKind.SEGMENT, 0): "11",
        (EntityKind.STATE_VERSION, 0): "21", (EntityKind.STATE_VERSION, 1): "22",
    }  # fmt: skip
    others = {
        key: value
        for key, value in zip(notes.strings("key"), notes.strings("value"), strict=True)
        if key != RECORDER_ID
    }
    assert others == {"test/key": "v", "test/all": "w"}


def test_absent_enumerations_mean_what_the_standard_says(tmp_path):
    rows = [
        record(1, task={}),
        record(2, operation={"task": 1, "kind": OperationKind.TOOL}),
        record(3, operation={"task": 1, "kind": OperationKind.TOOL, "duration_ns": 0}),
        record(edge={"target": 3, "source": 2}),
        record(4, stage={"task": 1}),
        record(segment={"operation": 2, "role": Role.USER}),
    ]
    trace = seal([capture(tmp_path / "s", rows)]).trace
    assert trace.operations.row(0)["status"] == OperationStatus.OK
    assert list(trace.operations.ints("duration_evidence")) == [Evidence.MISSING, Evidence.OBSERVED]
    assert list(trace.operations.ints("tokens_evidence")) == [Evidence.MISSING, Evidence.MISSING]
    assert trace.edges.row(0)["evidence"] == Evidence.OBSERVED
    assert trace.tasks.row(0)["outcome"] == 1
    assert trace["trace"].row(0)["content_level"] == 1


def test_a_delay_that_the_recorder_states_is_kept(tmp_path):
    rows = parts()
    rows.append(record(BIG + 2, operation={"external_delay_ns": 3}))
    trace = seal([capture(tmp_path / "s", rows)]).trace
    assert list(trace.operations.ints("external_delay_ns")) == [0, 5, 3]


def test_captures_of_several_processes_are_one_run(tmp_path):
    """Each process has an origin of its times; ids are one space, and records of one id are merged (ST-STR-058)."""
    rows = parts()
    other = [
        record(trace_header={"origin_unix_ns": ORIGIN - 100}),
        record(
            BIG + 4, operation={"task": BIG, "kind": OperationKind.TOOL, "name": "aside", "duration_ns": 1}
        ),
        record(event={"operation": BIG + 4, "submitted_ns": 0, "finished_ns": 1}),
        record(BIG, task={"priority": 3}),
    ]
    files = [capture(tmp_path / "a", rows), capture(tmp_path / "b", other)]
    for order in (files, files[::-1]):
        sealed = seal(order)
        assert sealed.trace["trace"].row(0)["origin_unix_ns"] == ORIGIN - 100
        assert sealed.trace.operations.strings("name")[:2] == ["aside", "look"]
        assert list(sealed.execution.events.ints("submitted_ns")) == [0, 105, 130, 160]
        assert sealed.trace.tasks.row(0)["priority"] == 3
        assert [source.name for source in sealed.info.sources] == [path.name for path in order]
        assert check_trace(sealed.trace) == []


def test_what_contradicts_is_refused(tmp_path):
    rows = parts()
    with pytest.raises(UsageError, match="another run"):
        seal([capture(tmp_path / "a", rows), capture(tmp_path / "b", rows, run=bytes(16))])
    with pytest.raises(UsageError, match="named twice"):
        seal([tmp_path / "a", tmp_path / "." / "a"])
    without = [record(70, task={"arrival_ns": 5})]
    with pytest.raises(FormatError, match="no origin"):
        seal([tmp_path / "a", capture(tmp_path / "c", without)])
    for header, match in (({"origin_unix_ns": 1}, "two origins"), ({"block_size": 16}, "block_size is 32")):
        more = [*rows, record(trace_header=header), record(trace_header={"block_size": 32})]
        with pytest.raises(FormatError, match=match):
            seal([capture(tmp_path / "d", more)])
    with pytest.raises(FormatError, match="nothing was recorded"):
        seal([capture(tmp_path / "e", [])])


BAD = {
    "task without an id": record(task={"name": "x"}),
    "edge with an id": record(5, edge={"target": BIG + 1, "source": BIG + 3}),
    "artifact is of the exchange form only": record(5, artifact={"size": 1}),
    "instance is of the exchange form only": record(instance={"task": 1}),
    "whose source is not in the capture: 77": record(edge={"target": BIG + 1, "source": 77}),
    "the stage of a row of operations is not in the capture: 99": record(BIG + 1, operation={"stage": 99}),
    "without its kind": record(80, operation={"task": BIG}),
    "without its role": record(segment={"operation": BIG + 1}),
    "kind has no value 77": record(BIG + 1, operation={"kind": 77}),
    "too great": record(5, stage={"iteration": 2**32 - 1}),
    "an event whose operation is not in the capture": record(event={"operation": 5, "finished_ns": 1}),
    "an event with prompt_tokens": record(event={"operation": BIG + 1, "prompt_tokens": 1}),
    "outcome has no value 9": record(event={"operation": BIG + 1, "outcome": 9}),
    "evidence has no value 9": record(event={"operation": BIG + 1, "ready_ns": 9, "ready_evidence": 9}),
    "no segment, inherited context or access implies": record(
        edge={"target": BIG + 2, "source": BIG + 3, "kind": EdgeKind.DATA}
    ),
    "whose entity is not in the capture": record(annotation={"entity_kind": 5, "entity": 5, "key": "a/b"}),
    "has no namespace": record(annotation={"entity_kind": 1, "key": "bare"}),
    "entity kind 7": record(annotation={"entity_kind": 7, "key": "a/b"}),
    "content level 9": record(trace_header={"content_level": 9}),
    "inherits from no operation": record(BIG + 3, operation={"context_segments": 1}),
    "wait for each other": record(edge={"target": BIG + 3, "source": BIG + 2}),
    "of another task": record(90, operation={"task": 91, "kind": 1, "context_base": BIG + 1}),
    "cannot depend on itself": record(edge={"target": BIG + 3, "source": BIG + 3}),
}


@pytest.mark.parametrize("match", BAD)
def test_a_capture_that_is_not_valid_is_refused_with_its_place(tmp_path, match):
    rows = [*parts(), BAD[match], record(91, task={"name": "other"})]
    if match == "too great":
        rows = [*parts(), record(5, stage={"iteration": 2**32 - 1})]
        assert seal([capture(tmp_path / "s", rows)]).trace["stages"].row(1)["iteration"] == 2**32 - 1
        return
    with pytest.raises(FormatError, match=match) as caught:
        seal([capture(tmp_path / "s", rows)])
    assert caught.value.requirement


def test_records_out_of_their_place_are_refused(tmp_path):
    end = record(end={"records": 1})
    for payloads, match in (
        ([record(1, task={}), end], "the head is record 0"),
        ([head(), head(), end], "the head is record 0"),
        ([head(), end, record(1, task={})], "after the end"),
        ([head(), record(end={"records": 9})], "states 9 records"),
        ([record(head={"form": 1, "run": b"short"})], "run of 5 bytes"),  # ST-STR-022
        ([record(head={"form": 7})], "form 7"),
    ):
        with pytest.raises(FormatError, match=match):
            seal([write(tmp_path / "s", payloads)])
    with pytest.raises(UsageError, match="an exchange stream") as caught:
        seal([write(tmp_path / "s", [head(2)])])
    assert "semtrace convert" in caught.value.hint


# -- captures that are not whole ------------------------------------------------------------------------------------


def losses(sealed):
    counts = Counter()
    for loss in sealed.info.loss:
        counts[loss.code] += loss.count
    return counts


def test_a_capture_is_sealed_whatever_part_of_it_was_written(tmp_path):
    """Killed after any record: references to what was never written become null, or their rows are left out."""
    rows = parts()
    for count in range(len(rows) + 1):
        path = capture(tmp_path / "s", rows[:count], closed=False)
        if not count:
            with pytest.raises(FormatError, match="nothing was recorded"):
                seal([path])
            continue
        sealed = seal([path])
        assert "stream.open" in losses(sealed)
        bad = {finding.requirement for finding in check_trace(sealed.trace)}
        assert bad <= {"ST-CTX-005"}, "only counts may not add up, where a segment is missing"


def test_an_operation_under_way_when_the_recorder_was_killed_is_said_to_be_unfinished(tmp_path):
    """ST-STR-064."""
    rows = [
        record(1, task={"name": "t"}),
        record(2, operation={"task": 1, "kind": OperationKind.LLM}),
        record(event={"operation": 2, "submitted_ns": 5}),
    ]
    sealed = seal([capture(tmp_path / "s", rows, closed=False)])
    assert sealed.trace.operations.row(0)["status"] == OperationStatus.CANCELLED
    assert sealed.execution.events.row(0)["outcome"] == EventOutcome.UNFINISHED
    assert losses(sealed) == {"stream.open": 1, "stream.unfinished": 1}
    sealed = seal([capture(tmp_path / "s", rows)])
    assert sealed.trace.operations.row(0)["status"] == OperationStatus.OK


def test_a_torn_tail_is_left_out_and_reported(tmp_path):
    """ST-STR-063."""
    path = capture(tmp_path / "s", parts(), closed=False)
    path.write_bytes(path.read_bytes() + frame(50, b"x" * 100)[:70])
    sealed = seal([path])
    assert losses(sealed) == {"delays.inferred": 2, "stream.open": 1, "stream.torn": 1}
    assert sealed.files[0].torn is not None


def test_damage_is_refused_unless_what_is_whole_is_asked_for(tmp_path):
    path = capture(tmp_path / "s", parts())
    raw = bytearray(path.read_bytes())
    place = raw.index(b"more")
    raw[place] ^= 4
    path.write_bytes(raw)
    with pytest.raises(IntegrityError, match="the 14 records before it are whole") as caught:
        seal([path])
    assert "--recover" in caught.value.hint
    sealed = seal([path], recover=True)
    assert losses(sealed)["stream.damaged"] == 1
    assert losses(sealed)["stream.dangling"] == 2
    assert sealed.trace.operations.rows == 3


def test_a_damaged_head_is_no_reason_to_lose_the_rest(tmp_path):
    path = capture(tmp_path / "s", parts())
    raw = bytearray(path.read_bytes())
    raw[30] ^= 1
    path.write_bytes(raw)
    sealed = seal([path], recover=True)
    assert sealed.trace.operations.rows == 3
    assert sealed.files[0].head is None


def test_records_that_could_not_be_written_are_losses(tmp_path):
    rows = [*parts(), record(gap={"records": 3, "reason": "No space left on device"}),
            record(gap={"records": 1, "reason": "No space left on device"})]  # fmt: skip
    sealed = seal([capture(tmp_path / "s", rows)])
    assert losses(sealed)["stream.gap"] == 4
    assert not sealed.files[0].whole


# -- sources of adapters --------------------------------------------------------------------------------------------


def source(name, data, key="", adapter="test"):
    return record(source={"adapter": adapter, "name": name, "key": key, "data": data})


@pytest.fixture
def reader(monkeypatch, tmp_path):
    """In the place of the adapters: notes what files it is given, and returns a trace."""
    built = seal([capture(tmp_path / "rows", parts())])
    given = []

    def read(name, paths):
        given.append((name, {f"{path.parent.name}/{path.name}": path.read_bytes() for path in paths}))
        return "4", built

    class Entry:
        def load(self):
            return read

    built.__dict__["loss"] = []
    monkeypatch.setattr(
        sources, "entry_points", lambda group: [Entry()] if group == "semtrace.sources" else []
    )
    return given


def test_sources_are_handed_to_their_adapter_as_files(tmp_path, reader):
    """ST-STR-061, ST-STR-065."""
    one = [source("a.jsonl", b"1"), source("b.jsonl", b"x", "k"), source("a.jsonl", b"2"), source("b.jsonl", b"y", "k"),
           source("b.jsonl", b"z", "l")]  # fmt: skip
    two = [source("a.jsonl", b"3"), source("b.jsonl", b"w", "k")]
    sealed = seal([capture(tmp_path / "p", one), capture(tmp_path / "q", two, closed=False)])
    assert reader == [
        ("test", {"0/a.jsonl": b"1\n2\n", "0/b.jsonl": b"y\nz\n", "1/a.jsonl": b"3\n", "1/b.jsonl": b"w\n"})
    ]
    assert [(s.adapter, s.adapter_version) for s in sealed.info.sources] == [("test", "4")] * 2
    assert losses(sealed) == {"stream.open": 1}
    assert sealed.trace.operations.rows == 3


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "", ".hidden", "a/b", "a\0b", "x" * 200])
def test_no_name_of_a_source_leaves_its_folder(tmp_path, reader, name):
    with pytest.raises(FormatError, match="cannot be the name"):
        seal([capture(tmp_path / "p", [source(name, b"")])])
    assert reader == []


def test_sources_of_two_adapters_or_beside_rows_are_refused(tmp_path, reader):
    with pytest.raises(FormatError, match="several adapters: a, b"):
        seal([capture(tmp_path / "p", [source("x", b"", adapter="a"), source("x", b"", adapter="b")])])
    with pytest.raises(FormatError, match="rows and sources"):
        seal([capture(tmp_path / "p", [source("x", b""), record(1, task={})])])


def test_sources_without_adapters_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "entry_points", lambda **_group: [])
    with pytest.raises(UnsupportedError, match="none are installed"):
        seal([capture(tmp_path / "p", [source("x", b"")])])


def test_an_adapter_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match="no adapter 'nobody'"):
        seal([capture(tmp_path / "p", [source("x", b"", adapter="nobody")])])


def test_a_capture_by_the_writer_is_sealed(tmp_path):
    with StreamWriter(tmp_path / "s", run=RUN) as stream:
        for payload in parts():
            stream.append(payload)
    sealed = seal([tmp_path / "s"])
    assert sealed.files[0].whole
    assert sealed.trace.operations.rows == 3
    assert sealed.info.sources[0].bytes == (tmp_path / "s").stat().st_size
    assert (tmp_path / "s").read_bytes().startswith(file_header())
