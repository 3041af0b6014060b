"""Input made to hang, to break, or to write to the terminal: every command refuses it, or shows it as text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from cli.conftest import run, team
from semtrace.cli.printing import visible
from semtrace.records.columns import Columns
from semtrace.records.execution import Execution
from semtrace.records.trace import Trace
from semtrace.store.bundle import open_bundle, write_bundle

SEMTRACE = Path(sys.executable).parent / "semtrace"

COMMANDS = {
    "show": ["show", "{}"],
    "plan": ["plan", "{}", "--rule", "barrier"],
    "replay": ["replay", "{}", "-o", "{out}"],
    "audit": ["audit", "{}", "native"],
    "measure": ["measure", "{}", "native"],
    "compare": ["compare", "{}", "native", "native"],
    "filter": ["filter", "{}", "-w", "name=x", "-o", "{out}"],
    "check": ["check", "{}"],
}


def with_value(columns, name, row, value):
    """The same table with another value in one row."""
    data = columns.data
    values = data[name].to_pylist()
    values[row] = value
    at = data.schema.get_field_index(name)
    return Columns(
        columns.spec, data.set_column(at, data.schema.field(at), pa.array(values, data.schema.field(at).type))
    )


def forged(path, edits, *, of="trace"):
    """The team's bundle with other values, under digests that are right."""
    built = team().build()
    tables = dict((built.trace if of == "trace" else built.execution).tables)
    for table, column, row, value in edits:
        tables[table] = with_value(tables[table], column, row, value)
    trace, execution = built.trace, built.execution
    if of == "trace":
        trace = Trace(tables, trace.content)
    else:
        execution = Execution(execution.header, tables, execution.content)
    write_bundle(path, trace, {"native": execution})
    return path


TRACES = {
    "cycle": [
        ("operations", "context_base", 1, 2),
        ("operations", "context_base", 2, 1),
        ("operations", "context_segments", 1, 1),
        ("operations", "context_segments", 2, 1),
    ],
    "edge": [("edges", "source", 0, 1_000_000)],
    "kind": [("operations", "kind", 1, 0)],
    "trigger": [("edges", "trigger", 0, 255)],
    "template": [("stages", "template", 0, 0)],
    "stage": [("operations", "stage", 1, 4_294_967_295)],
}


@pytest.mark.parametrize("what", TRACES)
@pytest.mark.parametrize("name", COMMANDS)
def test_an_invalid_trace_with_right_digests_is_refused(what, name, tmp_path):
    path = forged(tmp_path / "bad.semtrace", TRACES[what])
    out = tmp_path / "out.semtrace"
    words = [word.replace("{out}", str(out)).replace("{}", str(path)) for word in COMMANDS[name]]
    ran = run(*words)
    assert ran.code == 1, ran
    assert "[ST-" in ran.err + ran.out
    assert not out.exists()


def test_findings_of_what_is_refused_are_in_the_json(tmp_path):
    path = forged(tmp_path / "bad.semtrace", TRACES["kind"])
    ran = run("plan", path, "--json")
    assert ran.code == 1
    assert ran.json["error"]["code"] == "input.invalid"
    assert [each["requirement"] for each in ran.json["findings"]] == ["ST-ENUM-001"]


@pytest.mark.parametrize(
    "edit",
    [
        ("events", "operation", 0, 1_000_000),
        ("events", "instance", 0, 77),
        ("events", "outcome", 0, 0),
        ("instances", "task", 0, 9),
    ],
)
@pytest.mark.parametrize("name", ["show", "audit", "measure", "compare"])
def test_an_execution_out_of_range_is_refused(edit, name, tmp_path):
    path = forged(tmp_path / "bad.semtrace", [edit], of="execution")
    ran = run(*(word.replace("{}", str(path)) for word in COMMANDS[name]))
    assert ran.code == 1, ran
    assert "[ST-" in ran.err + ran.out


def test_an_execution_is_shown_beside_its_own_trace_only(trace_file, tmp_path):
    out, other = tmp_path / "out.semtrace", tmp_path / "other.semtrace"
    run("replay", trace_file, "-o", out)
    assert run("show", out, "--trace", trace_file).code == 0
    builder = team()
    builder.task("another")
    write_bundle(other, builder.build().trace)
    ran = run("show", out, "--trace", other)
    assert (ran.code, "ST-EXE-001" in ran.err) == (2, True)


@pytest.mark.parametrize("plan", [{}, {"name": 5}, {"name": "[/x]\x1b[31m"}])
def test_a_header_with_a_plan_that_is_none(plan, tmp_path):
    path = tmp_path / "bad.semtrace"
    built = team().build()
    header = built.execution.header.model_copy(update={"plan": plan})
    write_bundle(
        path, built.trace, {"native": Execution(header, built.execution.tables, built.execution.content)}
    )
    told = run("info", path)
    assert told.code == 0
    assert "\x1b" not in told.out
    assert run("show", path).code == 0
    assert run("measure", path, "native").code == 1
    assert run("audit", path, "native").code == 1


MARKUP = "[/q]"
STYLED = "[red]x\x1b[31m\x9b\u202e\x07:smile:"


def test_names_are_text(tmp_path):
    path = tmp_path / "odd.semtrace"
    built = team().build()
    tables = dict(built.trace.tables)
    for table, row in (("operations", 0), ("stages", 0), ("tasks", 0)):
        tables[table] = with_value(tables[table], "name", row, MARKUP + STYLED)
    trace = Trace(tables, built.trace.content)
    backend = built.execution.header.backend.model_copy(update={"name": MARKUP + STYLED})
    header = built.execution.header.model_copy(update={"backend": backend})
    from semtrace.store.digests import show, work_digest

    header = header.model_copy(update={"work_digest": show(work_digest(trace))})
    write_bundle(path, trace, {"native": Execution(header, built.execution.tables, built.execution.content)})
    for words in (
        ["info"],
        ["show"],
        ["check"],
        ["measure", "native"],
        ["plan"],
        ["compare", "native", "native"],
    ):
        ran = run(words[0], path, *words[1:])
        assert ran.code == 0, ran
        assert not {"\x1b", "\x9b", "\u202e", "\x07"} & set(ran.out + ran.err), words
    shown = " ".join(run("show", path).out.split())
    assert r"[/q][red]x\x1b[31m\x9b\u202e\x07:smile:" in shown


def test_paths_are_text(trace_file, tmp_path):
    folder = tmp_path / "["
    folder.mkdir()
    path = folder / "q]\x1b.semtrace"
    for words in (
        ["pack", trace_file, "-o", path],
        ["info", path],
        ["check", path],
        ["show", path],
        ["convert", path, "-o", folder / "r].stsl"],
        ["replay", path, "-o", folder / "s].semtrace"],
        ["plan", path, "-o", folder / "p].json"],
        ["diff", path, path],
    ):
        ran = run(*words)
        assert ran.code == 0, ran
        assert "\x1b" not in ran.out
    assert "\x1b" not in run("info", folder / "none\x1b").err


def test_visible():
    assert visible("a\tb\nç 中\U0001f600") == "a\tb\nç 中\U0001f600"
    assert visible("\x1b\r\x9f\udcff\u2066") == r"\x1b\r\x9f\udcff\u2066"


@pytest.mark.parametrize(
    "words",
    [
        ["replay", "{t}", "-o", "{out}", "--set", "c0_ns=²"],
        ["replay", "{t}", "-o", "{out}", "--set", "c0_ns=--5"],
        ["replay", "{t}", "-o", "{out}", "--set", "c0_ns=" + "9" * 5000],
        ["replay", "{t}", "-o", "{out}", "--arrivals", "poisson:²"],
        ["replay", "{t}", "-o", "{out}", "--arrivals", "poisson:" + "9" * 5000],
        ["replay", "{t}", "-o", "{out}", "--arrivals", "closed-loop:-1"],
        ["replay", "{t}", "-o", "{out}", "--copies", "1" + "0" * 30],
        ["plan", "{t}", "--rule", "custom", "--add", "²:3"],
        ["plan", "{t}", "--rule", "custom", "--add", "0:" + "9" * 5000],
        ["plan", "{t}", "--rule", "custom", "--add", "0:1:finish:x"],
        ["plan", "{t}", "--rule", "barrier", "--stage", "²"],
        ["plan", "{t}", "--rule", "barrier", "--stage", "9" * 5000],
        ["plan", "{t}", "--rule", "barrier", "--width", "9" * 30],
        ["show", "{t}", "--tasks", "9" * 30],
        ["show", "{t}", "--json", "--operations", "9" * 30],
        ["measure", "{t}", "native", "--deadline-ns", "9" * 30],
        ["measure", "{t}", "native", "--reference", "native", "--multiple", "1e9999999"],
        ["measure", "{t}", "native", "--reference", "native", "--multiple", "9" * 5000],
        ["audit", "{t}", "native", "--tolerance-ns", "9" * 30],
        ["compare", "{t}", "native", "native", "--seed", "9" * 400],
    ],
)
def test_numbers_that_are_none(words, trace_file, tmp_path):
    out = tmp_path / "out.semtrace"
    ran = run(*(word.replace("{t}", str(trace_file)).replace("{out}", str(out)) for word in words))
    assert ran.code == 2, ran
    assert not out.exists()
    assert len(ran.err) < 2000


@pytest.mark.parametrize("name", ["/dev/zero", "fifo"])
def test_what_has_no_end_is_not_read(name, trace_file, tmp_path):
    source, out = tmp_path / name, tmp_path / "out.semtrace"
    if name == "fifo":
        os.mkfifo(source)
    for words in (
        ["replay", trace_file, "-o", out, "--plan", source],
        ["replay", trace_file, "-o", out, "--scenario", source],
        ["plan", trace_file, "--rule", "custom", "--constraints", source],
        ["import", source, "-o", out],
        ["import", source, "-o", out, "--adapter", "autogen"],
        ["info", source],
        ["seal", source, "-o", out],
        ["convert", source, "-o", out],
        ["certificate", "verify", source],
        ["certify", "--testee", "true", "--expect-failures", source],
    ):
        ran = run(*words)
        assert ran.code in {1, 2}, ran
        assert str(source) in ran.err
    assert not out.exists()


def test_a_replay_of_too_many_events_is_refused_before_it_begins(trace_file, tmp_path, monkeypatch):
    rows, out = open_bundle(trace_file).trace.operations.rows, tmp_path / "out.semtrace"
    monkeypatch.setattr("semtrace.replay.run.MOST_EVENTS", 3 * rows)
    assert run("replay", trace_file, "-o", tmp_path / "three", "--copies", 3).code == 0
    ran = run("replay", trace_file, "-o", out, "--copies", 4)
    assert (ran.code, "ST-SCN-016" in ran.err) == (2, True)
    assert not out.exists()


def test_deeply_nested_logs_are_no_fault(tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    (source / "events.jsonl").write_text("[" * 100_000 + "\n")
    assert run("import", source, "-o", tmp_path / "out.semtrace", "--adapter", "autogen").code == 1


def shell(line, **environment):
    return subprocess.run(
        line, shell=True, capture_output=True, check=False, env={**os.environ, **environment}, text=True
    )


def test_streams_of_every_kind(trace_file):
    for line, code, environment in (
        (f"{SEMTRACE} info {trace_file} --json >/dev/full", 2, {}),
        (f"{SEMTRACE} info /none --json >/dev/full", 2, {}),
        (f"{SEMTRACE} info /none 2>&-", 2, {}),
        (f"{SEMTRACE} info /none 2>/dev/full", 2, {}),
        (f"set -o pipefail; {SEMTRACE} check {trace_file} | true", 0, {}),
        (f"set -o pipefail; {SEMTRACE} info /none --json | true", 2, {}),
        (f"{SEMTRACE} show {trace_file}", 0, {"PYTHONIOENCODING": "ascii"}),
        (f"{SEMTRACE} info /none\udcff --json", 2, {"PYTHONIOENCODING": "ascii"}),
        (f"{SEMTRACE} info /none\udcff", 2, {}),
    ):
        ran = shell(f"bash -c {json.dumps(line)}" if "pipefail" in line else line, **environment)
        assert ran.returncode == code, (line, ran)
        assert "Traceback" not in ran.stderr
        assert "fault" not in ran.stderr + ran.stdout


def test_no_escape_codes_without_a_terminal_or_colours(trace_file):
    assert "\x1b" not in shell(f"{SEMTRACE} info {trace_file}").stdout
    watched = f"script -qec '{SEMTRACE} info {trace_file}' /dev/null"
    if shell("command -v script").returncode:
        pytest.skip("there is no `script` to make a terminal with")
    assert "\x1b" in shell(watched, TERM="xterm").stdout
    assert "\x1b" not in shell(watched, TERM="xterm", NO_COLOR="1").stdout


def test_names_too_long_and_folders_that_are_none(trace_file, tmp_path):
    long = "a" * 5000
    for words in (
        ["info", long],
        ["audit", trace_file, long],
        ["replay", trace_file, "-o", tmp_path / ("a" * 250)],
        ["replay", trace_file, "-o", tmp_path / "out", "--plan", long],
        ["plan", trace_file, "-o", long],
        ["import", long, "-o", tmp_path / "out"],
        ["info", trace_file / "inner"],
    ):
        ran = run(*words)
        assert ran.code == 2, ran
    assert list(tmp_path.iterdir()) == []
