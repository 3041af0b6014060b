"""Times that no clock shows, infinite ones above all: a finding that names the line, or unknown; never a fault."""

from __future__ import annotations

import json
import re

import pytest

from autogen_runs import EXAMPLES
from cli.conftest import run
from semtrace_adapters.autogen.eventlog import Record, read_line

RUN = EXAMPLES / "graphflow"
TIMES = ("1e400", "-1e400", "NaN", "1e300", "-5", "9" * 400, '"' + "9" * 5000 + '"', '"9999-12-31T00:00:00Z"')
LINE = 3
"""The line whose time is replaced, from 1."""


def _with_time(path, key, time, folder):
    """A copy of a log in which one line has another time."""
    lines = path.read_text("utf-8").splitlines(keepends=True)
    changed = re.sub(rf'("{key}": )("[^"]*"|[^,"]+)', lambda found: found[1] + time, lines[LINE - 1], count=1)
    assert changed != lines[LINE - 1]
    lines[LINE - 1] = changed
    made = folder / path.name
    made.write_text("".join(lines), "utf-8")
    return made


def _imported(source, out):
    """The losses of an import, by code."""
    ran = run("import", source, "-o", out, "--json")
    assert ran.code == 0, ran
    assert ran.json["findings"] == []
    assert run("check", out).code == 0
    return {each["code"]: each for each in ran.json["loss"]}


@pytest.mark.parametrize("time", TIMES, ids=lambda time: time[:12])
def test_an_event_at_no_time_has_an_unknown_one(time, tmp_path):
    source = _with_time(RUN / "events.jsonl", "time_unix_ns", time, tmp_path)
    record = read_line(source.read_text("utf-8").splitlines()[LINE - 1], 0, "")
    assert isinstance(record, Record)
    assert (record.time_ns, record.event is None) == (None, False)
    _imported(source, tmp_path / "out.semtrace")


@pytest.mark.parametrize("key", ["start_time", "end_time"])
@pytest.mark.parametrize("time", TIMES, ids=lambda time: time[:12])
def test_a_span_that_begins_at_no_time_is_lost_and_one_that_ends_so_has_no_end(key, time, tmp_path):
    source = _with_time(RUN / "spans.jsonl", key, time, tmp_path)
    losses = _imported(source, tmp_path / "out.semtrace")
    if key == "start_time":
        assert losses["spans.broken"]["where"] == [f"{source.name}:{LINE}"]
    else:
        assert "spans.broken" not in losses


@pytest.mark.parametrize("key", ["startTimeUnixNano", "endTimeUnixNano"])
@pytest.mark.parametrize("time", [*TIMES, '"x"', "1.5"], ids=lambda time: time[:12])
def test_a_span_of_an_exchange_document_at_no_time_is_lost(key, time, tmp_path):
    span = {
        "traceId": "1" * 32, "spanId": "2" * 16, "name": "x", "startTimeUnixNano": 10**18, "endTimeUnixNano": 10**18 + 1,
    }  # fmt: skip
    good = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})
    bad = re.sub(rf'("{key}": )\d+', lambda found: found[1] + time, good)
    assert bad != good
    source = tmp_path / "spans.jsonl"
    source.write_text((RUN / "spans.jsonl").read_text("utf-8") + bad + "\n", "utf-8")
    losses = _imported(source, tmp_path / "out.semtrace")
    assert losses["spans.broken"]["where"] == [f"{source.name}:{len(source.read_text('utf-8').splitlines())}"]


@pytest.mark.parametrize("time", ["1e400", "-1e400", "1e300", "-5", "9" * 400])
def test_a_request_at_no_time_is_left_out_and_named(time, tmp_path):
    source = tmp_path / "requests.jsonl"
    row = '{"timestamp": %s, "input_length": 512, "output_length": 5}\n'
    source.write_text(row % 0 + row % time, "utf-8")
    losses = _imported(source, tmp_path / "out.semtrace")
    assert losses["line.field"]["where"] == [f"{source.name}:2"]
