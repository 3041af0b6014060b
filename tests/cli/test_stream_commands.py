"""seal and convert on the command line: right input, wrong input, what is printed, how it ends."""

from __future__ import annotations

import pytest

from cli.conftest import run
from semtrace.records.enums import OperationKind, Role
from semtrace.store.bundle import open_bundle, write_bundle
from semtrace.stream.framing import frame
from semtrace.stream.writer import StreamWriter
from semtrace.v1.stream_pb2 import Record

ROWS = [
    {"id": 1, "task": {"name": "t"}},
    {"id": 2, "operation": {"task": 1, "kind": OperationKind.LLM, "prompt_tokens": 3, "output_tokens": 2}},
    {"id": 3, "captured_artifact": {"data": b"hello"}},
    {"segment": {"operation": 2, "role": Role.USER, "artifact": 3, "tokens": 3}},
    {"event": {"operation": 2, "submitted_ns": 5, "finished_ns": 9}},
]


def record(path, rows=ROWS, *, closed=True, run_id=bytes(16)):
    stream = StreamWriter(path, run=run_id)
    for row in rows:
        stream.append(Record(**row).SerializeToString())
    if closed:
        stream.close()
    return path


def test_a_capture_is_sealed(tmp_path):
    capture, out = record(tmp_path / "run.stsl"), tmp_path / "run.semtrace"
    ran = run("seal", capture, "-o", out)
    assert ran.code == 0, ran
    assert "1 tasks, 1 operations, 0 edges from 1 captures" in ran.out
    assert run("check", out).code == 0
    bundle = open_bundle(out)
    assert bundle.trace.operations.rows == 1
    assert [source.name for source in bundle.manifest.sources] == ["run.stsl"]
    assert list(bundle.manifest.executions) == ["native"]


def test_sealing_says_what_it_read_as_json(tmp_path):
    ran = run("seal", record(tmp_path / "a.stsl"), "-o", tmp_path / "out", "--directory", "--json")
    value = ran.json
    assert value["captures"] == [
        {"name": "a.stsl", "records": 7, "closed": True, "torn_at": None, "gaps": 0, "damage": []}
    ]
    assert value["trace_digest"].startswith("blake3:")
    assert (tmp_path / "out").is_dir()
    assert value["findings"] == []


def test_a_recorder_that_was_killed_leaves_a_bundle_and_a_remark(tmp_path):
    capture = record(tmp_path / "run.stsl", closed=False)
    size = capture.stat().st_size
    capture.write_bytes(capture.read_bytes() + frame(6, b"x" * 50)[:40])
    ran = run("seal", capture, "-o", tmp_path / "out.semtrace")
    assert ran.code == 0, ran
    assert "the recorder did not close the capture" in ran.out
    assert "the last record was being written" in ran.out
    value = run("seal", capture, "-o", tmp_path / "out.semtrace", "--json", "--force").json
    assert value["captures"][0]["torn_at"] == size
    assert {loss["code"] for loss in value["loss"]} >= {"stream.open", "stream.torn"}
    codes = {loss.code for loss in open_bundle(tmp_path / "out.semtrace").manifest.loss}
    assert codes >= {"stream.open", "stream.torn"}


def test_damage_is_an_error_that_names_the_place_and_the_way_out(tmp_path):
    capture, out = record(tmp_path / "run.stsl"), tmp_path / "out.semtrace"
    raw = bytearray(capture.read_bytes())
    place = raw.index(b"hello")
    raw[place] ^= 1
    capture.write_bytes(raw)
    ran = run("seal", capture, "-o", out)
    assert ran.code == 1
    assert "run.stsl" in ran.err
    assert "byte " in ran.err
    assert "the 3 records before it are whole" in ran.err
    assert "--recover" in ran.err
    assert not out.exists()
    ran = run("seal", capture, "-o", out, "--recover")
    assert ran.code == 1, "damage is a finding, also where the rest is recovered"
    assert "the content of record 3 is not what was written" in ran.out
    assert open_bundle(out).trace.operations.rows == 1
    value = run("seal", capture, "-o", out, "--recover", "--force", "--json").json
    damage = value["captures"][0]["damage"][0]
    assert damage["offset"] <= place < damage["end"]
    assert damage["records"] == 1


def test_a_trace_that_is_not_valid_is_written_and_its_findings_shown(tmp_path):
    rows = [*ROWS, {"id": 2, "operation": {"prompt_tokens": 99}}]
    ran = run("seal", record(tmp_path / "run.stsl", rows), "-o", tmp_path / "out.semtrace")
    assert ran.code == 1
    assert "ST-CTX" in ran.out
    assert (tmp_path / "out.semtrace").exists()


@pytest.mark.parametrize("name", ["seal", "convert"])
def test_wrong_input_ends_with_one_message(name, tmp_path, trace_file):
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_text("hello\n")
    (tmp_path / "folder").mkdir()
    whole = record(tmp_path / "whole").read_bytes()
    (tmp_path / "cut").write_bytes(whole[:10])
    for kind, code in {
        "missing": 2,
        "empty": 2,
        "text": 2,
        "folder": 2,
        "cut": 1,
    }.items():
        out = tmp_path / "out.semtrace"
        ran = run(name, tmp_path / kind, "-o", out)
        assert ran.code == code, (kind, ran)
        assert kind in ran.err, (kind, ran)
        assert ran.err.count("error:") == 1
        assert not out.exists()
        value = run(name, tmp_path / kind, "-o", out, "--json").json
        assert value["error"]["message"]


def test_wrong_use_ends_with_2(tmp_path, trace_file):
    capture, other = record(tmp_path / "a.stsl"), record(tmp_path / "b.stsl", run_id=b"other run 123456")
    out = tmp_path / "out.semtrace"
    for words, message in (
        (["seal", capture, capture, "-o", out], "named twice"),
        (["seal", capture, other, "-o", out], "another run"),
        (["seal", capture, "-o", capture], "would replace"),
        (["seal", capture, "-o", other], "exists already"),
        (["seal", capture, "-o", tmp_path / "no" / "x"], "the folder is missing"),
        (["convert", trace_file, "-o", out, "--directory"], "a stream is one file"),
        (["convert", capture, "-o", out], "a capture, not an exchange stream"),
    ):
        ran = run(*words)
        assert ran.code == 2, ran
        assert message in ran.err
        assert not out.exists()
    exchange = tmp_path / "x.stsl"
    assert run("convert", trace_file, "-o", exchange).code == 0
    ran = run("seal", exchange, "-o", out)
    assert ran.code == 2
    assert f"semtrace convert {exchange}" in ran.err.replace("\n", " ")


def test_an_input_is_never_replaced(tmp_path, trace_file):
    capture = record(tmp_path / "a.stsl")
    stream = tmp_path / "t.stsl"
    assert run("convert", trace_file, "-o", stream).code == 0
    for words in (["seal", capture, "-o", capture], ["convert", stream, "-o", stream]):
        before = words[1].read_bytes()
        assert run(*words, "--force").code == 2
        assert words[1].read_bytes() == before


def test_a_bundle_becomes_a_stream_and_comes_back(tmp_path, trace_file):
    stream, back = tmp_path / "t.stsl", tmp_path / "back.semtrace"
    there = run("convert", trace_file, "-o", stream, "--json").json
    again = run("convert", stream, "-o", back, "--json").json
    assert (there["form"], again["form"]) == ("stream", "bundle")
    assert {**there, "output": 0, "form": 0} == {**again, "output": 0, "form": 0}
    assert there["executions"].keys() == {"native"}
    assert back.read_bytes() == trace_file.read_bytes()
    assert run("convert", stream, "-o", tmp_path / "folder", "--directory").code == 0
    assert run("check", tmp_path / "folder").code == 0
    ran = run("convert", stream, "-o", back)
    assert ran.code == 2
    assert "--force" in ran.err


def test_a_bundle_that_states_wrong_digests_does_not_become_a_stream_with_right_ones(
    tmp_path, trace_file, monkeypatch
):
    import semtrace.store.bundle as store

    bundle = open_bundle(trace_file)
    monkeypatch.setattr(store, "trace_digest", lambda _trace: bytes(32))
    write_bundle(tmp_path / "liar", bundle.trace, {"native": bundle.execution("native")})
    monkeypatch.undo()
    ran = run("convert", tmp_path / "liar", "-o", tmp_path / "s")
    assert ran.code == 1
    assert "do not have the digests" in ran.err
    assert not (tmp_path / "s").exists()
