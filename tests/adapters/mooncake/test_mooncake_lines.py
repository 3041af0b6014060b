"""Lines: what is read, and what is reported of lines that cannot be."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from semtrace.errors import FormatError
from semtrace_adapters.base import ImportOptions, LossReport, choose
from semtrace_adapters.mooncake import ADAPTER, lines

if TYPE_CHECKING:
    from pathlib import Path

GOOD = {"timestamp": 1, "input_length": 5, "output_length": 2, "hash_ids": [7]}


def written(path: Path, *rows: object) -> Path:
    """A file of lines: bytes and texts as they are, the rest as JSON."""
    parts = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"\n".join(parts))
    return path


def read(path: Path) -> tuple[lines.Lines, dict[str, Any]]:
    loss = LossReport()
    found = lines.read_lines(path, loss)
    return found, {f"{item.code}: {item.message}": (item.count, item.where) for item in loss.items()}


@pytest.mark.parametrize("bad", [False, True])
def test_fields_and_numbers_of_lines(tmp_path, bad):
    """With and without a line for which the part is read line by line: the same."""
    rows: list[object] = [
        {**GOOD, "session_id": "a", "delay": 1.5},
        b"",
        b"  \t",
        {"text_input": "héllo", "timestamp": 0.25, "hash_ids": None},
        {"input_length": 3, "output_length": 0, "hash_ids": [], "session_id": "b"},
        {**GOOD, "hash_ids": [(1 << 64) - 1, 1 << 63]},
    ]
    if bad:
        rows.insert(3, b"{broken")
    found, report = read(written(tmp_path / "t.jsonl", *rows))
    assert found.number.tolist() == ([1, 5, 6, 7] if bad else [1, 4, 5, 6])
    assert found.table.to_pylist() == [
        {**GOOD, "session_id": "a", "delay": 1.5, "text_input": None},
        {**dict.fromkeys(lines.FIELDS.names), "text_input": "héllo", "timestamp": 0.25},
        {
            **dict.fromkeys(lines.FIELDS.names),
            "input_length": 3,
            "output_length": 0,
            "hash_ids": [],
            "session_id": "b",
        },
        {**dict.fromkeys(lines.FIELDS.names), **GOOD, "hash_ids": [(1 << 64) - 1, 1 << 63]},
    ]
    assert found.nanoseconds("timestamp").tolist() == [1_000_000, 250_000, -1, 1_000_000]
    assert report == ({"line.json: a line that is no JSON": (1, ["t.jsonl:4"])} if bad else {})


BAD = [
    (b"{", "line.json", "no JSON"),
    (b'{"input_length": 1', "line.json", "no JSON"),
    (b'{"input_length": NaN}', "line.json", "no JSON"),
    (b'{"input_length": 1, "input_length": 2}', "line.json", "no JSON"),
    (b"\xff\xfe", "line.json", "no JSON"),
    (b"[" * 5000, "line.json", "no JSON"),
    (b"7", "line.object", "object"),
    (b"[1]", "line.object", "object"),
    ({**GOOD, "input_length": -1}, "line.field", "input_length"),
    ({**GOOD, "input_length": 1 << 40}, "line.field", "input_length"),
    ({**GOOD, "input_length": 1 << 64}, "line.field", "input_length"),
    ({**GOOD, "input_length": 1.5}, "line.field", "input_length"),
    ({**GOOD, "input_length": "5"}, "line.field", "input_length"),
    ({**GOOD, "input_length": True}, "line.field", "input_length"),
    ({**GOOD, "output_length": -2}, "line.field", "output_length"),
    ({**GOOD, "timestamp": -1}, "line.field", "timestamp"),
    ({**GOOD, "timestamp": 1e300}, "line.field", "timestamp"),
    ({**GOOD, "timestamp": "now"}, "line.field", "timestamp"),
    (b'{"input_length": 1, "timestamp": 1e999}', "line.field", "timestamp"),
    ({**GOOD, "delay": -0.5}, "line.field", "delay"),
    ({**GOOD, "hash_ids": 3}, "line.field", "hash_ids"),
    ({**GOOD, "hash_ids": [-1]}, "line.field", "hash_ids"),
    ({**GOOD, "hash_ids": [1 << 64]}, "line.field", "hash_ids"),
    ({**GOOD, "hash_ids": [None]}, "line.field", "hash_ids"),
    ({**GOOD, "hash_ids": [1.0]}, "line.field", "hash_ids"),
    ({**GOOD, "session_id": [1]}, "line.field", "session_id"),
    ({**GOOD, "session_id": True}, "line.field", "session_id"),
    ({**GOOD, "text_input": 5}, "line.field", "text_input"),
    (b'{"text_input": "\\ud800", "timestamp": 1}', "line.field", "text_input"),
    ({"timestamp": 1, "output_length": 3}, "line.empty", "without input_length"),
    ({}, "line.empty", "without input_length"),
]


@pytest.mark.parametrize(("line", "code", "says"), BAD)
def test_every_bad_line_is_reported_and_left_out(tmp_path, line, code, says):
    found, report = read(written(tmp_path / "t.jsonl", GOOD, line, GOOD, line))
    assert found.number.tolist() == [1, 3]
    ((text, (count, where)),) = report.items()
    assert text.startswith(code)
    assert says in text
    assert (count, where) == (2, ["t.jsonl:2", "t.jsonl:4"])


def test_two_objects_in_one_line_are_no_line(tmp_path):
    found, report = read(written(tmp_path / "t.jsonl", GOOD, json.dumps(GOOD).encode() * 2))
    assert found.number.tolist() == [1]
    assert list(report) == ["line.json: a line that is no JSON"]


def test_whole_numbers_written_as_decimals_and_sessions_as_numbers(tmp_path):
    row = {**GOOD, "input_length": 5.0, "session_id": 12}
    found, report = read(written(tmp_path / "t.jsonl", row, GOOD))
    assert found.table.column("input_length").to_pylist() == [5, 5]
    assert found.table.column("session_id").to_pylist() == ["12", None]
    assert report == {}
    assert read(written(tmp_path / "u.jsonl", {**GOOD, "session_id": 12}))[0].table.column(
        "session_id"
    ).to_pylist() == ["12"]


@pytest.mark.parametrize("bad", [False, True])
def test_fields_that_are_not_read_are_named(tmp_path, bad):
    rows = [
        {**GOOD, "group_id": 3},
        {**GOOD, "group_id": None, "other": {"a": [1]}},
        *([b"{"] if bad else []),
    ]
    _, report = read(written(tmp_path / "t.jsonl", *rows))
    assert report["field.unknown: a field that the adapter does not read: other"] == (1, [])
    assert report["field.unknown: a field that the adapter does not read: group_id"][0] >= 1


def test_lines_in_several_parts_keep_their_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "_PART", 100)
    rows: list[object] = [{**GOOD, "timestamp": at} for at in range(40)]
    rows[13], rows[27], rows[30] = b"", b"{", {**GOOD, "timestamp": 30, "text_input": "x" * 500}
    steps: list[tuple[int, int]] = []
    path = written(tmp_path / "t.jsonl", *rows)
    loss = LossReport()
    found = lines.read_lines(path, loss, lambda done, size: steps.append((done, size)))
    expected = [at for at in range(40) if at not in {13, 27}]
    assert found.table.column("timestamp").to_pylist() == expected
    assert found.number.tolist() == [at + 1 for at in expected]
    assert loss.items()[0].where == ["t.jsonl:28"]
    assert steps[-1] == (path.stat().st_size, path.stat().st_size)


def test_a_mark_of_byte_order_is_skipped(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r\n")
    assert read(path)[0].number.tolist() == [1]
    assert choose([path]).name == "mooncake"


def test_nothing_to_read_is_an_error(tmp_path):
    for content, says in ((b"", "no line in it"), (b"{\n[]\n", "2 lines are none")):
        path = tmp_path / "t.jsonl"
        path.write_bytes(content)
        with pytest.raises(FormatError, match=says) as raised:
            ADAPTER.read([path], ImportOptions())
        assert raised.value.hint
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match="no file of JSON lines"):
        ADAPTER.read([tmp_path / "empty"], ImportOptions())


def test_detection(tmp_path):
    for rows, sure in (
        ([GOOD], 95),
        ([{"timestamp": 1, "input_length": 3, "output_length": 1}], 70),
        ([b"{", GOOD], 95),
        ([{"session_id": "a", "text_input": "x"}], 70),
        ([{"request_id": "a", **GOOD}], 0),
        ([{"wait_for": ["a"], **GOOD}], 0),
        ([{"input_length": 3}], 0),
        ([b"text"], 0),
        ([], 0),
        ([{**GOOD, "hash_ids": list(range(100_000))}], 60),
    ):
        assert ADAPTER.detect([written(tmp_path / "t.jsonl", *rows)]) == sure, rows
    assert ADAPTER.detect([tmp_path / "missing"]) == 0
    (tmp_path / "notes.txt").write_text("x")
    assert ADAPTER.detect([tmp_path]) == 60
