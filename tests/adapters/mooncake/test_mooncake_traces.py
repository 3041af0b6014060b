"""From lines to traces and back: what becomes what, what is reported, and that nothing changes on the way."""

from __future__ import annotations

import io
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.conftest import team
from semtrace.build import TraceBuilder
from semtrace.check import check_trace
from semtrace.engine.work import Work
from semtrace.errors import FormatError, UsageError
from semtrace.records.enums import (
    ContentLevel,
    EdgeKind,
    Evidence,
    OperationKind,
    OperationStatus,
    Role,
    SegmentScope,
    Trigger,
)
from semtrace.records.media import TOKEN_IDS_TYPE
from semtrace.transform.bundle_parts import Parts
from semtrace.transform.redact import redact
from semtrace_adapters.base import ImportOptions, exporter
from semtrace_adapters.mooncake import ADAPTER, to_trace

if TYPE_CHECKING:
    from pathlib import Path

    from semtrace.records.trace import Trace


def imported(path: Path, rows: list[dict[str, Any]], **options: object) -> tuple[Trace, dict[str, int]]:
    """The valid trace of lines, with blocks of 4 tokens, and the counts of its loss report by code and effect."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {"block_size": 4, **options}
    result = ADAPTER.read([path], ImportOptions(values={name: str(value) for name, value in values.items()}))
    assert check_trace(result.trace) == []
    assert result.sources == [path]
    counts: Counter[str] = Counter()
    for loss in result.loss:
        counts[f"{loss.code} {loss.effect}"] += loss.count
    return result.trace, {code: n for code, n in counts.items() if not code.startswith("content.")}


def exported(trace: Trace, **options: object) -> tuple[list[dict[str, Any]], dict[str, int]]:
    output = io.BytesIO()
    values = {name: str(value) for name, value in options.items()}
    loss = ADAPTER.write(trace, output, ImportOptions(values=values))
    counts: Counter[str] = Counter()
    for item in loss:
        counts[f"{item.code} {item.effect}"] += item.count
    return [json.loads(line) for line in output.getvalue().splitlines()], dict(counts)


def columns(trace: Trace, table: str, *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(trace[table].data.column(name).to_pylist() for name in names), strict=True))


def test_a_request_is_a_task_with_one_call(tmp_path):
    rows = [
        {"timestamp": 0, "input_length": 8, "output_length": 3, "hash_ids": [5, 6]},
        {"timestamp": 27.5, "input_length": 10, "output_length": 0, "hash_ids": [5, 6, 9]},
        {"timestamp": 30, "input_length": 3, "output_length": 1, "hash_ids": [7]},
    ]
    trace, report = imported(tmp_path / "t.jsonl", rows)
    assert report == {"blocks.tail lost": 2}
    assert columns(trace, "tasks", "name", "arrival_ns") == [
        ("request 0", 0), ("request 1", 27_500_000), ("request 2", 30_000_000),
    ]  # fmt: skip
    assert columns(trace, "operations", "prompt_tokens", "output_tokens", "tokens_evidence") == [
        (8, 3, Evidence.OBSERVED), (10, 0, Evidence.OBSERVED), (3, 1, Evidence.OBSERVED),
    ]  # fmt: skip
    shared, private = SegmentScope.SHARED, SegmentScope.PRIVATE
    assert columns(trace, "segments", "operation", "tokens", "block_ids", "block_ids_start", "scope") == [
        (0, 8, 0, 0, shared), (1, 8, 0, 2, shared), (1, 2, 0, 4, private), (2, 3, 0, 5, private),
    ]  # fmt: skip
    assert np.frombuffer(trace.artifact(0) or b"", "<u8").tolist() == [5, 6, 5, 6, 9, 7]
    header = trace["trace"].row(0)
    assert (header["content_level"], header["block_size"]) == (ContentLevel.BLOCK_HASHES, 4)
    assert str(header["hash_scope"]).startswith("mooncake/")
    work = Work.of(trace, 2)
    assert work.keys[:4].tolist() == work.keys[5:9].tolist()
    assert exported(trace) == (rows, {})


def test_the_size_of_a_block_is_assumed_or_stated(tmp_path):
    rows = [{"timestamp": 0, "input_length": 1024, "output_length": 3, "hash_ids": [5, 6]}]
    trace, report = imported(tmp_path / "t.jsonl", rows, block_size=512)
    assert report == {}
    (tmp_path / "t.jsonl").write_text(json.dumps(rows[0]))
    result = ADAPTER.read([tmp_path / "t.jsonl"], ImportOptions())
    assert result.trace["trace"].row(0) == trace["trace"].row(0) | {
        "hash_scope": result.trace["trace"].row(0)["hash_scope"]
    }
    assert [loss.code for loss in result.loss] == ["block_size.assumed", "content.unknown"]


def test_ids_for_blocks_of_another_size_are_refused_with_the_size(tmp_path):
    rows = [{"input_length": 64 * n, "output_length": 1, "hash_ids": list(range(n))} for n in range(1, 9)]
    with pytest.raises(FormatError) as raised:
        imported(tmp_path / "t.jsonl", rows, block_size=512)
    assert raised.value.code == "mooncake.block_size"
    assert raised.value.path == "t.jsonl:2"
    assert raised.value.hint == "say the size of a block: --set block_size=64"
    imported(tmp_path / "t.jsonl", rows, block_size=64)


def test_too_few_too_many_and_no_ids(tmp_path):
    good = {"timestamp": 0, "input_length": 4, "output_length": 1, "hash_ids": [1]}
    rows = [
        *[good] * 6,
        {**good, "input_length": 14, "hash_ids": [1, 2]},
        {**good, "hash_ids": [1, 2, 3]},
        {**good, "hash_ids": []},
        {"timestamp": 0, "input_length": 4, "output_length": 1},
        {**good, "input_length": 6, "hash_ids": [1]},
        {**good, "input_length": 6, "hash_ids": [1, 30]},
        {**good, "input_length": 6, "hash_ids": [1, 30]},
        {**good, "input_length": 6, "hash_ids": [1, 1]},
    ]
    trace, report = imported(tmp_path / "t.jsonl", rows)
    assert report == {
        "blocks.few unknown": 2, "blocks.many lost": 1, "blocks.unknown unknown": 1, "blocks.tail lost": 2,
        "blocks.tail_again lost": 1, "blocks.tail_whole lost": 1,
    }  # fmt: skip
    rows[7], rows[8], rows[-1] = good, rows[9], rows[10]
    assert exported(trace)[0] == rows
    work = Work.of(trace, 4)
    keys = [part.tolist() for part in np.split(work.keys, work.key_start[1:-1])]
    assert all(each[0] == keys[0][0] for at, each in enumerate(keys) if at not in {8, 9})
    assert keys[8] != keys[9]


def test_a_session_is_a_task_whose_turns_wait(tmp_path):
    rows = [
        {"session_id": "a", "timestamp": 5, "input_length": 4, "output_length": 3, "hash_ids": [1]},
        {"timestamp": 6, "input_length": 4, "output_length": 3, "hash_ids": [2]},
        {"session_id": "a", "delay": 2.5, "input_length": 9, "output_length": 1, "hash_ids": [1, 3]},
        {"session_id": "b", "delay": 1, "input_length": 4, "output_length": 3, "hash_ids": [4]},
        {"session_id": "a", "input_length": 12, "output_length": 1, "hash_ids": [1, 3, 8]},
        {"session_id": "a", "timestamp": 90, "input_length": 4, "output_length": 1, "hash_ids": [1]},
        {"session_id": "a", "timestamp": 91, "delay": 0, "input_length": 4, "output_length": 1, "hash_ids": [1]},
    ]  # fmt: skip
    trace, report = imported(tmp_path / "t.jsonl", rows)
    assert report == {
        "sessions.mixed lost": 1, "turns.judged inferred": 3, "arrival.unknown unknown": 1, "delay.unknown unknown": 1,
        "timestamp.ignored ignored": 1,
    }  # fmt: skip
    assert columns(trace, "tasks", "name", "arrival_ns") == [
        ("a", 5_000_000), ("request 1", 6_000_000), ("b", None), ("a", 90_000_000),
    ]  # fmt: skip
    assert columns(trace, "sessions", "task", "name") == [(0, "a"), (2, "b"), (3, "a")]
    assert columns(trace, "operations", "task", "session", "external_delay_ns") == [
        (0, 0, 0), (0, 0, 2_500_000), (0, 0, 0), (1, None, 0), (2, 1, 1_000_000), (3, 2, 0), (3, 2, 0),
    ]  # fmt: skip
    assert columns(trace, "edges", "source", "target", "kind", "trigger", "evidence") == [
        (source, source + 1, EdgeKind.CONTROL, Trigger.FINISH, Evidence.OBSERVED) for source in (0, 1, 5)
    ]  # fmt: skip
    lines, lost = exported(trace)
    rows[4]["delay"] = 0
    del rows[6]["timestamp"]
    assert lines == [rows[at] for at in (0, 2, 4, 1, 3, 5, 6)]
    assert lost == {}


def test_turns_that_state_what_is_new_inherit_the_history(tmp_path):
    rows = [
        {"session_id": "a", "timestamp": 0, "input_length": 8, "output_length": 2, "hash_ids": [1, 2]},
        {"session_id": "a", "delay": 3, "input_length": 5, "output_length": 2, "hash_ids": [3, 4]},
        {"session_id": "a", "delay": 3, "input_length": 4, "output_length": 2, "hash_ids": [5]},
    ]
    trace, report = imported(tmp_path / "t.jsonl", rows)
    assert report == {"turns.judged inferred": 2, "blocks.tail lost": 1}
    assert columns(trace, "operations", "prompt_tokens", "context_base", "context_segments", "tokens_evidence") == [
        (8, None, 0, Evidence.OBSERVED), (15, 0, 2, Evidence.DERIVED), (21, 1, 5, Evidence.DERIVED),
    ]  # fmt: skip
    assert {row[0] for row in columns(trace, "edges", "kind")} == {EdgeKind.DATA}
    work = Work.of(trace, 4)
    assert work.keys[work.key_start[2] : work.key_start[3]][:4].tolist() == work.keys[2:6].tolist()
    assert exported(trace) == (rows, {})
    stated, report = imported(tmp_path / "t.jsonl", rows, turns="cumulative")
    assert report == {"blocks.tail lost": 1}
    assert stated.operations.ints("prompt_tokens").tolist() == [8, 5, 4]
    assert imported(tmp_path / "t.jsonl", rows, turns="delta")[0].operations.data.equals(
        trace.operations.data
    )


def test_a_history_with_an_unknown_length_is_unknown_from_there_on(tmp_path):
    rows = [
        {"session_id": "a", "timestamp": 0, "input_length": 8, "hash_ids": [1, 2]},
        {"session_id": "a", "delay": 0, "input_length": 4, "output_length": 2, "hash_ids": [4]},
        {"session_id": "b", "timestamp": 0, "input_length": 8, "output_length": 2, "hash_ids": [1, 2]},
        {"session_id": "b", "delay": 0, "input_length": 4, "output_length": 2, "hash_ids": [4]},
    ]
    trace, report = imported(tmp_path / "t.jsonl", rows)
    assert trace.operations.ints("prompt_tokens").tolist() == [8, -1, 8, 14]
    assert report == {"turns.judged inferred": 2, "tokens.unknown unknown": 1}
    lines, lost = exported(trace)
    assert lines == [rows[0], *rows[2:]]
    assert lost == {"tokens.unknown lost": 1, "edges.lost lost": 1, "blocks.lost lost": 1}


def test_texts(tmp_path):
    rows = [
        {"timestamp": 0, "text_input": 'what "is" größer?\n', "output_length": 5},
        {"timestamp": 1, "text_input": 'what "is" größer?\n', "output_length": 5},
        {"timestamp": 2, "text_input": "else"},
    ]  # fmt: skip
    trace, report = imported(tmp_path / "t.jsonl", rows)
    assert report == {"blocks.unknown unknown": 3, "tokens.unknown unknown": 4}
    assert trace["trace"].row(0)["content_level"] == ContentLevel.TEXT
    assert trace["artifacts"].rows == 2
    assert exported(trace) == (rows, {})
    both = [{**rows[0], "input_length": 6, "hash_ids": [1, 2]}]
    trace, report = imported(tmp_path / "t.jsonl", both)
    assert report == {}
    assert exported(trace)[0] == [{"timestamp": 0, "input_length": 6, "output_length": 5, "hash_ids": [1]}]


def test_many_ids_lie_in_several_artifacts(tmp_path, monkeypatch):
    monkeypatch.setattr(to_trace, "_IDS_IN_ARTIFACT", 10)
    rows = [
        {"timestamp": at, "input_length": 4 * n, "output_length": 1, "hash_ids": [at * 100 + i for i in range(n)]}
        for at, n in enumerate([3, 4, 9, 0, 30, 1, 1, 1])
    ]  # fmt: skip
    rows[3]["hash_ids"] = None
    trace, _ = imported(tmp_path / "t.jsonl", rows)
    assert trace["artifacts"].rows > 2
    del rows[3]["hash_ids"]
    assert exported(trace)[0] == rows


def test_options_are_checked(tmp_path):
    row = {"timestamp": 0, "input_length": 4, "output_length": 1, "hash_ids": [1]}
    for options in (
        {"block_size": "0"},
        {"block_size": "x"},
        {"block_size": "9" * 30},
        {"turns": "both"},
        {"no": "1"},
    ):
        with pytest.raises(UsageError):
            imported(tmp_path / "t.jsonl", [row], **options)
    trace, _ = imported(tmp_path / "t.jsonl", [row])
    with pytest.raises(UsageError):
        exported(trace, turns="delta")
    with pytest.raises(UsageError, match="no adapter 'autogen' that writes"):
        exporter("autogen")
    assert exporter("mooncake") is ADAPTER


# -- other traces --------------------------------------------------------------------------------------------


def test_ids_are_made_of_what_a_trace_knows(tmp_path):
    b = TraceBuilder()
    for arrival in (0, 1_500_000):
        task = b.task("chat", arrival_ns=arrival)
        first = b.operation(
            task, OperationKind.LLM, "a", prompt_tokens=9, output_tokens=3, reasoning_tokens=0
        )
        b.segment(first, Role.SYSTEM, "rules", tokens=9)
        second = b.operation(
            task, OperationKind.LLM, "a", prompt_tokens=14, output_tokens=1, external_delay_ns=2_000_000
        )
        b.inherit(second, first, 2)
        b.segment(second, Role.USER, "more", tokens=2)
    trace = b.build().trace
    lines, lost = exported(trace, block_size=4)
    assert lines == [
        {"session_id": "task-0", "timestamp": 0, "input_length": 9, "output_length": 3, "hash_ids": [0, 1, 2]},
        {"session_id": "task-0", "delay": 2, "input_length": 14, "output_length": 1, "hash_ids": [0, 1, 3, 4]},
        {"session_id": "task-1", "timestamp": 1.5, "input_length": 9, "output_length": 3, "hash_ids": [0, 1, 5]},
        {"session_id": "task-1", "delay": 2, "input_length": 14, "output_length": 1, "hash_ids": [0, 1, 6, 7]},
    ]  # fmt: skip
    assert lost == {"blocks.made inferred": 4, "content.lost lost": 2, "operations.detail lost": 2}
    again, report = imported(tmp_path / "t.jsonl", lines)
    assert report["turns.judged inferred"] == 2
    assert exported(again)[0] == lines


def test_what_lines_cannot_say_is_reported():
    b = team()
    failed = b.operation(
        0, OperationKind.LLM, "x", status=OperationStatus.ERROR, duration_ns=1, prompt_tokens=3
    )
    b.edge(failed, 0, lag_ns=3)
    lines, lost = exported(b.build().trace)
    assert [line["input_length"] for line in lines] == [50, 50, 50, 80]
    assert lost == {
        "blocks.made inferred": 4, "operations.failed lost": 1, "operations.lost lost": 2,
        "stages.lost lost": 3, "sessions.lost lost": 4, "models.lost lost": 1, "origin.lost lost": 1,
        "tasks.lost lost": 1, "edges.lost lost": lost["edges.lost lost"], "edges.added estimated": 2,
        "content.lost lost": lost["content.lost lost"],
    }  # fmt: skip
    assert lost["edges.lost lost"] == b.build().trace.edges.rows - 1
    assert lost["content.lost lost"] == b.build().trace["artifacts"].rows
    b.operation(0, OperationKind.LLM, "y")
    lines, lost = exported(b.build().trace)
    assert all("hash_ids" not in line for line in lines)
    assert (lost["tokens.unknown lost"], lost["blocks.unknown lost"]) == (1, 4)


def test_redacted_traces_have_no_ids_to_write(tmp_path):
    rows = [{"timestamp": 0, "input_length": 8, "output_length": 3, "hash_ids": [5, 6]}]
    trace, _ = imported(tmp_path / "t.jsonl", rows)
    shape = redact(Parts(trace), ContentLevel.SHAPE).trace
    lines, lost = exported(shape)
    assert lines == [{"timestamp": 0, "input_length": 8, "output_length": 3}]
    assert lost == {"blocks.lost lost": 1}


def test_an_empty_trace_has_no_lines():
    assert exported(TraceBuilder().build().trace) == ([], {})


# -- round trips ---------------------------------------------------------------------------------------------


@st.composite
def line_files(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Lines that a trace can carry in full: sessions in one piece, ids for all blocks or none of the partial one."""
    rows: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 5))):
        turns = draw(st.integers(0, 3))
        ids = draw(st.lists(st.integers(0, 3) | st.integers(1 << 63, (1 << 64) - 1), min_size=8, max_size=8))
        for turn in range(max(turns, 1)):
            length = draw(st.integers(1, 30))
            row: dict[str, Any] = {"session_id": f"s{number}"} if turns else {}
            if turn:
                row["delay"] = draw(st.integers(0, 10**6) | st.sampled_from([0.5, 19358.3, 0.000001]))
            elif draw(st.booleans()):
                row["timestamp"] = draw(st.integers(0, 10**9) | st.sampled_from([0.25, 1234567.891]))
            row |= {"input_length": length, "output_length": draw(st.integers(0, 9))}
            blocks = length // 4 + (length % 4 > 0 and draw(st.integers(0, 9)) > 0)
            if blocks and draw(st.integers(0, 9)):
                row["hash_ids"] = ids[:blocks]
                if length % 4 and blocks > length // 4:
                    row["hash_ids"][-1] = 10**6 + len(rows)  # of a partial block: no whole block has it
            rows.append(row)
    return rows


@settings(max_examples=40, deadline=None)
@given(line_files(), st.sampled_from(["auto", "cumulative", "delta"]))
def test_lines_come_back_as_they_were(tmp_path_factory, rows, turns):
    trace, _ = imported(tmp_path_factory.mktemp("t") / "t.jsonl", rows, turns=turns)
    assert exported(trace)[0] == rows


@pytest.mark.parametrize("name", ["conversation_trace.jsonl", "synthetic_trace.jsonl"])
def test_published_traces_come_back_byte_by_byte(samples, name):
    path = samples / "peers" / "mooncake" / name
    result = ADAPTER.read([path], ImportOptions())
    assert check_trace(result.trace) == []
    assert {loss.code for loss in result.loss} == {
        "block_size.assumed", "blocks.tail", "blocks.tail_again", "content.unknown",
    }  # fmt: skip
    output = io.BytesIO()
    assert ADAPTER.write(result.trace, output, ImportOptions()) == []
    assert output.getvalue() == path.read_bytes()


def test_sessions_of_another_tool_come_back(samples):
    path = samples / "peers" / "aiperf" / "agentic_code_50s_seed42.jsonl"
    result = ADAPTER.read([path], ImportOptions())
    assert check_trace(result.trace) == []
    assert result.trace.tasks.rows == 50
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row.pop("group_id", None)  # reported as lost
    assert exported(result.trace)[0] == rows


def test_requests_that_wait_for_others_are_another_format(samples):
    path = samples / "peers" / "dynamo" / "agentic_mooncake.from_weka_0274.jsonl"
    assert ADAPTER.detect([path]) == 0


def test_outputs_are_written_for_a_mocker():
    made = TraceBuilder()
    task = made.task("one")
    for count in (3, 2):
        row = made.operation(task, OperationKind.LLM, "call", prompt_tokens=9, output_tokens=count)
        made.segment(row, Role.USER, tokens=9)
        if count == 3:
            raw = np.array([5, 6, 7], dtype="<u4").tobytes()
            made.update_operation(row, output_token_ids=made.artifact(raw, TOKEN_IDS_TYPE))
    output = io.BytesIO()
    loss = ADAPTER.write(made.build().trace, output, ImportOptions(values={"outputs": "yes"}))
    first, second = (json.loads(line) for line in output.getvalue().splitlines())
    assert (first["request_id"], first["output_token_ids"]) == ("semtrace-0", [5, 6, 7])
    assert second["request_id"] == "semtrace-1"
    assert "output_token_ids" not in second
    assert {item.code: item.count for item in loss}["outputs.unknown"] == 1
    with pytest.raises(UsageError, match="yes or no"):
        ADAPTER.write(made.build().trace, output, ImportOptions(values={"outputs": "maybe"}))
