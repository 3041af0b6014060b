"""The exchange form: a bundle and its stream say the same, and a stream that says something else is refused."""

from __future__ import annotations

import dataclasses
import re

import pyarrow as pa
import pytest
from stream_parts import capture, payloads_of, record, write

from semtrace.errors import FormatError, IntegrityError, SemtraceError, UnsupportedError, UsageError
from semtrace.records.columns import Columns
from semtrace.records.document import canonical_json, parse_canonical
from semtrace.records.enums import Availability, BlockAction, Direction, Phase, Tier
from semtrace.records.execution_tables import EXECUTION_TABLE
from semtrace.records.media import TOKEN_IDS_TYPE
from semtrace.records.trace import MemoryContent, Trace
from semtrace.records.trace_tables import TRACE_TABLE
from semtrace.store.bundle import BundleInfo, open_bundle, write_bundle
from semtrace.store.digests import artifact_digest, execution_digest, trace_digest
from semtrace.store.manifest import Loss, SourceFile
from semtrace.stream import exchange
from semtrace.stream.exchange import read_stream, write_stream
from semtrace.stream.messages import TABLE_OF
from semtrace.testing import random_trace
from semtrace.v1.stream_pb2 import Record


@pytest.fixture(scope="module")
def built():
    return random_trace(3)


def detailed(execution):
    """The execution with rows in every detail table, and content of its own."""
    details = {
        "steps": {"server": [0], "index": [0], "start_ns": [0], "end_ns": [2**62], "tokens": [7], "requests": [1],
                  "free_blocks": [2**32 - 1]},
        "step_runs": {"event": [0], "first_step": [0], "count": [1], "start_position": [0], "tokens_per_step": [7],
                      "phase": [Phase.PREFILL]},
        "blocks": {"time_ns": [0], "sequence": [0], "server": [0], "tier": [Tier.DEVICE],
                   "action": [BlockAction.DROP], "event": [None], "blocks": [1], "bytes": [16], "reason": [""]},
        "transfers": {"server": [0], "link": ["pcie"], "direction": [Direction.IN], "start_ns": [0], "end_ns": [1],
                      "bytes": [16], "event": [0]},
        "decisions": {"time_ns": [0], "sequence": [0], "policy": ["lru"], "event": [None], "inputs": ["{}"],
                      "choice": ["drop"]},
    }  # fmt: skip
    tables = dict(execution.tables)
    for name, columns in details.items():
        tables[name] = Columns.of(EXECUTION_TABLE[name], columns)
    raw = b"\x01\0\0\0"
    header = execution.header.model_copy(update={"detail": sorted(details), "seeds": {"arrivals": 2**60}})
    return dataclasses.replace(
        execution, header=header, tables=tables, content=MemoryContent({artifact_digest(raw): raw})
    )


INFO = BundleInfo(
    sources=[SourceFile(name="a.jsonl", bytes=3, digest="blake3:" + "0" * 64, adapter="test", adapter_version="1")],
    loss=[Loss(code="x.y", effect="lost", message="größer", count=3, where=["a:1"])],
    lineage=[{"step": "filter", "tasks": [1, 2]}],
    licence="CC-BY-4.0",
    notes="notes\n",
    optional_features=["example.org/more"],
    tokenizers={"small-7b": "blake3:" + "1" * 64},
    extra={"example.org/key": {"nested": [1, None, "x"]}},
)  # fmt: skip


def test_a_bundle_comes_back_from_its_stream_byte_for_byte(tmp_path, built):
    """Not only the digests: written again, it is the same file."""
    runs = {"native": built.execution, "replay.1": detailed(built.execution)}
    write_bundle(tmp_path / "a.semtrace", built.trace, runs, info=INFO)
    bundle = open_bundle(tmp_path / "a.semtrace")
    write_stream(tmp_path / "s.stsl", bundle.trace, {n: bundle.execution(n) for n in runs}, info=bundle.info)
    held = read_stream(tmp_path / "s.stsl")
    write_bundle(tmp_path / "b.semtrace", held.trace, held.executions, info=held.info)
    assert (tmp_path / "a.semtrace").read_bytes() == (tmp_path / "b.semtrace").read_bytes()
    for name, columns in built.trace.tables.items():
        assert held.trace[name].data.equals(columns.data), name
    for name in EXECUTION_TABLE:
        assert held.executions["replay.1"][name].data.equals(runs["replay.1"][name].data), name
        assert held.executions["replay.1"][name].rows or name == "none"
    assert held.executions["replay.1"].header == runs["replay.1"].header


def test_the_same_input_gives_the_same_stream(tmp_path, built):
    for name in ("a", "b"):
        write_stream(tmp_path / name, built.trace, {"native": built.execution}, info=INFO)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_stream_may_hold_a_trace_alone_an_execution_alone_or_nothing(tmp_path, built):
    write_stream(tmp_path / "t", built.trace)
    held = read_stream(tmp_path / "t")
    assert held.executions == {}
    assert trace_digest(held.trace) == trace_digest(built.trace)
    write_stream(tmp_path / "e", executions={"native": built.execution})
    held = read_stream(tmp_path / "e")
    assert held.trace is None
    assert execution_digest(held.executions["native"]) == execution_digest(built.execution)
    write_stream(tmp_path / "n")
    assert read_stream(tmp_path / "n").trace is None


def test_large_content_is_cut_into_parts_and_empty_content_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(exchange, "PART_BYTES", 1000)
    pieces = [b"", b"x" * 999, b"y" * 1000, b"z" * 1001, bytes(range(256)) * 20]
    trace = Trace.from_arrow(
        {
            "trace": Columns.of(TRACE_TABLE["trace"], {"content_level": [1]}).data,
            "artifacts": Columns.of(
                TRACE_TABLE["artifacts"],
                {
                    "digest": [artifact_digest(piece) for piece in pieces],
                    "size": [len(piece) for piece in pieces],
                    "media_type": [TOKEN_IDS_TYPE] * len(pieces),
                    "availability": [Availability.EMBEDDED] * len(pieces),
                },
            ).data,
        },
        MemoryContent({artifact_digest(piece): piece for piece in pieces}),
    )
    write_stream(tmp_path / "s", trace)
    held = read_stream(tmp_path / "s").trace
    assert [held.content.get(artifact_digest(piece)) for piece in pieces] == pieces
    assert set(held.content) == {artifact_digest(piece) for piece in pieces}
    assert held.content.get(bytes(32)) is None
    bodies = [Record.FromString(payload).WhichOneof("body") for payload in payloads_of(tmp_path / "s")]
    assert bodies.count("content") == 1 + 1 + 1 + 2 + 6


def test_withheld_content_stays_withheld(tmp_path, built):
    """ST-STR-047."""
    artifacts = built.trace["artifacts"].data
    column = artifacts.schema.get_field_index("availability")
    kinds = pa.array([Availability.WITHHELD, *[Availability.EMBEDDED] * (artifacts.num_rows - 1)], pa.uint8())
    tables = {name: columns.data for name, columns in built.trace.tables.items()}
    tables["artifacts"] = artifacts.set_column(column, artifacts.schema.field(column), kinds)
    trace = Trace.from_arrow(tables, built.trace.content)
    write_stream(tmp_path / "s", trace)
    held = read_stream(tmp_path / "s").trace
    digest = trace["artifacts"].digests()[0]
    assert trace.content.get(digest) is not None
    assert held.content.get(digest) is None
    assert held["artifacts"].data.equals(trace["artifacts"].data)


def test_every_table_has_a_record():
    assert {table.name for table in TABLE_OF.values()} == {*TRACE_TABLE, *EXECUTION_TABLE}
    numbers = {field.name: field.number for field in Record.DESCRIPTOR.fields}
    for body, table in TABLE_OF.items():
        assert numbers[body] == (table.number + 2 if table.name in TRACE_TABLE else table.number)
        assert re.sub(r"(?<!^)(?=[A-Z])", "_", table.entity).lower() == body


@pytest.fixture
def payloads(tmp_path, built):
    write_stream(tmp_path / "whole", built.trace, {"native": built.execution}, info=INFO)
    return payloads_of(tmp_path / "whole")


def bodies(payloads):
    return [Record.FromString(payload).WhichOneof("body") for payload in payloads]


def refused(tmp_path, payloads, error, match, code=None):
    with pytest.raises(error, match=match) as caught:
        read_stream(write(tmp_path / "bad", payloads))
    assert caught.value.requirement or isinstance(caught.value, UsageError)
    assert code is None or caught.value.code == code


def test_a_stream_that_is_cut_is_refused_wherever_it_is(tmp_path, payloads):
    whole = write(tmp_path / "s", payloads).read_bytes()
    for size in [*range(1, 200), *range(200, len(whole), 997), len(whole) - 1]:
        (tmp_path / "cut").write_bytes(whole[:size])
        with pytest.raises(SemtraceError) as caught:
            read_stream(tmp_path / "cut")
        assert "cut short" in caught.value.message


def test_a_row_that_is_changed_added_or_left_out_changes_a_digest(tmp_path, payloads):
    kinds = bodies(payloads)
    for body in sorted(set(kinds) & set(TABLE_OF)):
        if body == "annotation":
            continue  # of no digest; frames protect it
        at = kinds.index(body)
        fewer = [*payloads[:at], *payloads[at + 1 : -1], record(end={"records": len(payloads) - 2})]
        refused(tmp_path, fewer, SemtraceError, "digest|no row|content level")
        more = [*payloads[: at + 1], *payloads[at:-1], record(end={"records": len(payloads)})]
        refused(tmp_path, more, SemtraceError, "digest")


def test_records_out_of_their_place_are_refused(tmp_path, payloads):
    end = payloads[-1]
    kinds = bodies(payloads)
    row, run = payloads[kinds.index("task")], payloads[kinds.index("execution")]
    refused(tmp_path, payloads[1:], FormatError, "the head is record 0")
    refused(tmp_path, [payloads[0], payloads[0], *payloads[1:]], FormatError, "the head is record 0")
    refused(tmp_path, [payloads[0], *payloads[2:]], FormatError, "the facts are record 1")
    refused(tmp_path, [*payloads, end], FormatError, "after the end")
    refused(
        tmp_path, [*payloads[:-1], record(end={"records": 1})], FormatError, "states 1 records, there are"
    )
    refused(tmp_path, [*payloads[:-1], row, end], FormatError, "a row of tasks in the wrong part")
    refused(tmp_path, [*payloads[:-1], run, end], FormatError, "begins twice")
    refused(tmp_path, [*payloads[:2], record(execution={"name": "other"})], FormatError, "not in the facts")
    event = record(event={"outcome": 1})
    refused(tmp_path, [*payloads[:2], event], FormatError, "a row of events in the wrong part")
    refused(tmp_path, [*payloads[:2], record(source={"adapter": "x"})], FormatError, "of captures only")
    refused(tmp_path, [*payloads[:2], record(5, task={"name": "x"})], FormatError, "with an id")


def test_what_this_version_does_not_have_is_refused_not_dropped(tmp_path, payloads):
    unknown_field = Record.FromString(payloads[2]).SerializeToString()
    body = b"\xf8\x3f\x07"  # field 1023, a varint
    inner = Record.FromString(payloads[2]).trace_header.SerializeToString() + body
    nested = bytes([0x12, len(inner)]) + inner
    for payload in (b"", body, unknown_field + body, nested):
        refused(tmp_path, [*payloads[:2], payload], UnsupportedError, "does not have", "stream.unknown")
    refused(tmp_path, [*payloads[:2], b"\xff\xff"], FormatError, "not a record", "stream.record")
    refused(tmp_path, [*payloads[:2], record(task={"name": "x"})[:-1] + b"\xff"], FormatError, "not a record")


def test_another_spelling_of_the_same_record_is_read(tmp_path, payloads):
    """Writers of other languages may state zeros that need not be, and write numbers longer than need be."""
    at = bodies(payloads).index("edge")
    edge = Record.FromString(payloads[at]).edge.SerializeToString()
    spelled = edge.replace(b"\x08", b"\x08", 1) + (b"\x28\x00" if b"\x28" not in edge else b"")
    payloads[at] = b"\x4a" + bytes([len(spelled) | 0x80, 0x00]) + spelled
    assert len(payloads[at]) > len(edge) + 2
    read_stream(write(tmp_path / "s", payloads))


def test_values_that_do_not_fit_their_column_are_refused(tmp_path, built):
    write_stream(tmp_path / "whole", built.trace)
    payloads = payloads_of(tmp_path / "whole")
    for payload, column in (
        (record(task={"input": 2**32}), "tasks.input"),
        (record(task={"outcome": 300}), "tasks.outcome"),
        (record(model={"tokenizer": b"short"}), "models.tokenizer"),
    ):
        refused(tmp_path, [*payloads[:-1], payload, record(end={"records": len(payloads)})], FormatError, ".")
        with pytest.raises(FormatError) as caught:
            read_stream(tmp_path / "bad")
        assert caught.value.path == column


def test_content_that_does_not_fit_together_is_refused(tmp_path, payloads):
    def content(offset, data, size=4, digest=bytes(32)):
        return record(content={"digest": digest, "size": size, "offset": offset, "data": data})

    start = payloads[:2]
    refused(tmp_path, [*start, content(2, b"cd")], FormatError, "does not go on")
    refused(tmp_path, [*start, content(0, b"ab"), content(0, b"ab")], FormatError, "does not go on")
    refused(tmp_path, [*start, content(0, b"ab"), content(2, b"cd", 5)], FormatError, "does not go on")
    refused(tmp_path, [*start, content(0, b"abcde")], FormatError, "longer than the whole")
    refused(tmp_path, [*start, content(0, b"")], FormatError, "empty")
    refused(tmp_path, [*start, content(0, b"abcd"), content(4, b"")], FormatError, "does not go on")
    refused(tmp_path, [*start, content(0, b"ab", digest=b"short")], FormatError, "does not go on")
    short = [*payloads[:-1], content(0, b"ab"), record(end={"records": len(payloads)})]
    refused(tmp_path, short, FormatError, "is not complete")
    end = record(end={"records": len(payloads) + 1})
    for data in (b"", b"abcd"):
        twice = [*payloads[:-1], *[content(0, data, len(data))] * 2, end]
        refused(tmp_path, twice, FormatError, "does not go on")


def test_facts_of_very_many_values_are_refused(tmp_path, payloads, monkeypatch):
    monkeypatch.setattr("semtrace.records.document.VALUE_LIMIT", 10)
    refused(tmp_path, payloads, FormatError, "facts of more than")


def test_facts_that_are_wrong_are_refused(tmp_path, payloads):
    facts = parse_canonical(Record.FromString(payloads[1]).facts.json)

    def changed(error, match, **members: object):
        values = {key: value for key, value in {**facts, **members}.items() if value is not ...}
        raw = canonical_json(values)
        refused(tmp_path, [payloads[0], record(facts={"json": raw}), *payloads[2:]], error, match)

    run = facts["executions"]["native"]
    wrong = "blake3:" + "0" * 64
    changed(IntegrityError, "work digest", trace={**facts["trace"], "work_digest": wrong})
    changed(IntegrityError, "trace digest", trace={**facts["trace"], "trace_digest": wrong})
    changed(IntegrityError, "native digest", executions={"native": {**run, "execution_digest": wrong}})
    changed(FormatError, "not in the facts", executions={})
    changed(FormatError, "are missing: more", executions={"native": run, "more": run})
    changed(FormatError, "no digests of one", trace=...)
    changed(FormatError, "unknown key 'licens', did you mean 'licence'", licens="x")
    changed(UnsupportedError, "version 2.0", spec_version="2.0")
    changed(UnsupportedError, "example.org/latent", required_features=["example.org/latent"])
    details = {**run, "detail_digests": {"steps": wrong}}
    changed(FormatError, "details of an execution", executions={"native": details})
    more = {**run, "header": {**run["header"], "detail": ["steps"]}, "detail_digests": {"steps": wrong}}
    changed(IntegrityError, "native.steps digest", executions={"native": more})
    for raw in (b"[]", b"{", b"\xff", b"[" * 100_000):
        refused(tmp_path, [payloads[0], record(facts={"json": raw}), *payloads[2:]], FormatError, "facts")


def test_a_capture_is_no_exchange_stream(tmp_path):
    with pytest.raises(UsageError, match="a capture") as caught:
        read_stream(capture(tmp_path / "s", []))
    assert "semtrace seal" in caught.value.hint
    with pytest.raises(FormatError, match="form 0"):
        read_stream(write(tmp_path / "t", [record(head={"producer": "x"})]))


def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path, built):
    path = tmp_path / "s"
    write_stream(path, built.trace)
    held, unread = read_stream(path).trace, read_stream(path).trace
    raw = path.read_bytes()
    path.write_bytes(raw[:200])
    with pytest.raises(IntegrityError, match="changed while"):
        list(map(held.content.get, held.content))
    path.unlink()
    with pytest.raises(UsageError):
        unread.content.get(next(iter(unread.content)))


def test_writing_is_all_or_nothing(tmp_path, built, monkeypatch):
    path = tmp_path / "s"
    path.write_text("before")
    with pytest.raises(UsageError, match="exists already"):
        write_stream(path, built.trace)
    content = MemoryContent(built.trace.content)
    broken = dataclasses.replace(built.trace, content=content)

    def fails(digest):
        raise IntegrityError("damaged", code="x")

    monkeypatch.setattr(MemoryContent, "get", lambda _self, digest: fails(digest))
    with pytest.raises(IntegrityError):
        write_stream(path, broken, overwrite=True)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
