"""Lines and documents that take much memory are refused by name, before they are parsed, whichever adapter reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from semtrace.errors import FormatError
from semtrace.live.vllm.names import FORMAT, VERSION
from semtrace_adapters.autogen.sources import Reader
from semtrace_adapters.base import ImportOptions, LossReport, adapters
from semtrace_adapters.metagpt.team import read_team
from semtrace_adapters.source_lines import LINE_LIMIT, check_lines, check_values, is_small, lines_of

EVENT = json.dumps({"type": "LLMCall", "messages": [], "response": {}, "agent_id": "a/1"}).encode()
RECORD = b"2025-01-02 03:04:05.678 | INFO     | metagpt.team:invest:1 - Investment: $3.0."
SINK = json.dumps({"text": "x\n", "record": {"name": "metagpt.team", "message": "x"}}).encode()
REQUEST = b'{"timestamp": 0, "input_length": 700, "output_length": 20, "hash_ids": [0, 1]}'
SERVER = json.dumps(
    {"kind": "server", "format": FORMAT, "version": VERSION, "rank": 0, "block_size": 16, "moves": True}
).encode()
LOGS = {
    "autogen": ("events.jsonl", EVENT),
    "metagpt": ("20250102.txt", RECORD),
    "metagpt-json": ("log.jsonl", SINK),
    "vllm": ("steps.jsonl", SERVER),
    "mooncake": ("trace.jsonl", REQUEST),
}


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("long", [b'{"a": "' + b"x" * LINE_LIMIT + b'"}', b"[" * (LINE_LIMIT + 1)])
def test_a_line_without_end_is_refused_by_its_number(name, long, tmp_path):
    path = tmp_path / LOGS[name][0]
    path.write_bytes(LOGS[name][1] + b"\n" + LOGS[name][1] + b"\n" + long)
    with pytest.raises(FormatError) as caught:
        adapters()[name.split("-")[0]].read([path], ImportOptions())
    error = caught.value
    assert (error.code, error.path) == ("source.line", f"{path}:3")
    assert error.hint


@pytest.mark.parametrize("name", LOGS)
def test_a_line_of_many_values_is_refused_before_it_is_parsed(name, tmp_path, monkeypatch):
    path = tmp_path / LOGS[name][0]
    path.write_bytes(LOGS[name][1] + b"\n[" + b"[]," * 600_000 + b"[]]\n")
    real = json.loads
    monkeypatch.setattr(
        json, "loads", lambda text, **kw: real(text, **kw) if len(text) < 1 << 20 else pytest.fail("parsed")
    )
    with pytest.raises(FormatError) as caught:
        adapters()[name.split("-")[0]].read([path], ImportOptions())
    assert (caught.value.code, caught.value.path) == ("source.line", f"{path}:2")


def test_a_line_of_the_greatest_length_is_read(tmp_path):
    path = tmp_path / "x"
    longest = b"x" * (LINE_LIMIT - 1) + b"\n"
    raw = b"a\n" + longest + b"\n" + b"b"
    path.write_bytes(raw)
    with path.open("rb") as file:
        assert list(lines_of(file, path)) == [(1, b"a\n"), (2, longest), (3, b"\n"), (4, b"b")]
    check_lines(raw, path)
    check_lines(b"x" * LINE_LIMIT, path)


@pytest.mark.parametrize("before", [0, 7])
def test_lines_are_numbered_in_their_file(tmp_path, before):
    short, long = b"x" * (3 << 19) + b"\n", b"y" * (LINE_LIMIT + 1)
    for number in (1, 2, 4):
        with pytest.raises(FormatError, match="more than") as caught:
            check_lines(short * (number - 1) + long + b"\n" + short, tmp_path, before)
        assert caught.value.path == f"{tmp_path}:{before + number}"


def test_a_team_of_many_values_is_refused(tmp_path):
    path = tmp_path / "team.json"
    path.write_bytes(b'{"env": {"roles": {}}, "idea": [' + b"[]," * 800_000 + b"0]}")
    for read in (
        lambda: read_team(path, LossReport()),
        lambda: adapters()["metagpt"].read([path], ImportOptions()),
    ):
        with pytest.raises(FormatError) as caught:
            read()
        assert caught.value.code == "source.document"


@pytest.mark.parametrize("begin", [b"", b"2025-01-02 03:04:05 x "])
def test_a_line_of_braces_or_of_a_long_repr_is_read_in_one_go(begin, tmp_path):
    """An event is looked for behind few braces, and a repr made into objects where it has few."""
    path = tmp_path / "events.log"
    for line in (b'{"a {"b' * 100_000, b"ToolCallRequestEvent(content=[" + b"1," * 200_000 + b"])"):
        path.write_bytes(EVENT + b"\n" + begin + line + b"\n" + EVENT + b"\n")
        result = adapters()["autogen"].read([path], ImportOptions())
        assert result.trace.operations.rows >= 1


def peak_mib() -> float:
    """The most memory that this process has had since it was asked to forget."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024


@pytest.mark.parametrize("name", LOGS)
def test_a_long_line_takes_little_memory(name, tmp_path):
    path = tmp_path / LOGS[name][0]
    path.write_bytes(LOGS[name][1] + b'\n{"hash_ids": [' + b"1," * (20 << 20) + b"1]}\n")
    Path("/proc/self/clear_refs").write_text("5")
    usual = peak_mib()
    with pytest.raises(FormatError):
        adapters()[name.split("-")[0]].read([path], ImportOptions())
    assert peak_mib() < usual + 40 + 60


SPAN = {"name": "a", "context": {"trace_id": "0x" + "1" * 32, "span_id": "0x" + "1" * 16}, "start_time": "x"}


@pytest.mark.parametrize("text", ["[" + "[]," * 600_000 + "[]]", '{"a": {"b": [' + '"",' * 800_000 + '""]}}'])
def test_a_value_of_many_values_is_refused_by_its_line(text, tmp_path, monkeypatch):
    """Whichever of the values in a file of spans it is, those before it may be of many lines."""
    path = tmp_path / "spans.json"
    path.write_text(json.dumps(SPAN, indent=4) + "\n" + text)
    with pytest.raises(FormatError) as caught:
        adapters()["autogen"].read([path], ImportOptions())
    assert (caught.value.code, caught.value.path) == ("source.document", f"{path}:9")
    assert caught.value.hint


def test_many_small_values_are_no_large_one():
    value = '{"a": ["b", {"c": "]}{["}]}\n'
    text = value * 200_000
    assert not is_small(text.encode())
    for at in (0, len(value), len(text) - len(value)):
        check_values(text, at, Path("x"))
    large = "[" + text.replace("\n", ",") + "0]"
    with pytest.raises(FormatError):
        check_values(large, 0, Path("x"))


def test_a_config_of_many_values_is_refused(tmp_path):
    path = tmp_path / "team.json"
    path.write_text('{"provider": "autogen", "config": [' + "[]," * 800_000 + "[]]}")
    with pytest.raises(FormatError) as caught:
        Reader(LossReport(), None, 0).read(path, "config")
    assert caught.value.code == "source.document"
