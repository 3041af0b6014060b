"""The tools on the command line: what they write, what they say, and wrong input to each."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest
import typer

from cli.conftest import run, team
from semtrace.build import TraceBuilder
from semtrace.cli.main import build
from semtrace.records.enums import OperationKind
from semtrace.store.bundle import open_bundle, write_bundle
from support.transform_cases import crew, replay_of, thrown


@pytest.fixture
def folder(tmp_path):
    """A crew of three tasks, a team of one, an unordered trace, and a crew that was replayed."""
    built = crew().build()
    write_bundle(tmp_path / "crew", built.trace, {"native": built.execution})
    write_bundle(
        tmp_path / "replayed", built.trace, {"native": built.execution, "again": replay_of(built.trace)}
    )
    built = team().build()
    write_bundle(tmp_path / "team", built.trace, {"native": built.execution})
    write_bundle(tmp_path / "thrown", thrown(crew().build().trace, 1)[0])
    return tmp_path


def checked(path):
    ran = run("check", path)
    assert ran.code == 0, ran
    return open_bundle(path)


def test_filter(folder):
    out = folder / "out"
    ran = run("filter", folder / "crew", "--where", "outcome=success", "-w", "task>0", "-o", out)
    assert (ran.code, ran.err) == (0, "")
    assert "1 tasks, 4 operations" in ran.out
    assert checked(out).trace.tasks.strings("name") == ["task 2"]
    info = run("info", out, "--json").json
    assert info["lineage"][0]["parameters"] == {"where": ["outcome=success", "task>0"]}


def test_filter_says_what_became_of_executions(folder):
    ran = run("filter", folder / "replayed", "-w", "task=0", "-o", folder / "out")
    assert "execution again left out: a replay of the whole, not of a part" in ran.out
    ran = run("filter", folder / "replayed", "-w", "task=0", "-o", folder / "json", "--json")
    assert ran.json["executions"] == ["native"]
    assert ran.json["step"]["executions"]["again"]["kept"] is False


def test_sample(folder):
    outs = [folder / name for name in ("a", "b", "c")]
    for out, seed in zip(outs, (7, 7, 8), strict=True):
        assert run("sample", folder / "crew", "-n", 2, "--seed", seed, "-o", out).code == 0
    assert outs[0].read_bytes() == outs[1].read_bytes() != outs[2].read_bytes()
    assert checked(outs[0]).manifest.lineage[0]["seed"] == "7"
    ran = run("sample", folder / "crew", "-n", 2, "--by", "workload", "-o", folder / "d", "--directory")
    assert ran.code == 0
    assert (folder / "d" / "semtrace.json").is_file()


def test_merge(folder):
    out = folder / "out"
    ran = run("merge", folder / "crew", folder / "team", folder / "crew", "-o", out, "--json")
    assert ran.code == 0
    assert (ran.json["tasks"], ran.json["operations"]) == (7, 30)
    assert ran.json["trace_digest"] == checked(out).manifest.trace.trace_digest
    assert run("audit", out, "native").code in {0, 1}


def test_renumber(folder):
    assert run("check", folder / "thrown").code == 1
    out = folder / "out"
    assert run("renumber", folder / "thrown", "-o", out).code == 0
    checked(out)
    again = run("renumber", out, "-o", folder / "again")
    assert "nothing moved" in again.out
    assert (folder / "again").read_bytes() == out.read_bytes()
    assert run("renumber", folder / "crew", "--by-start", "-o", folder / "started").code == 0


def test_redact(folder):
    out = folder / "out"
    ran = run("redact", folder / "crew", "--level", "shape", "--drop-annotations", "-o", out)
    assert ran.code == 0
    assert "other names, sizes and generation settings are as they were" in ran.out
    bundle = checked(out)
    assert bundle.manifest.trace.content_level == "shape"
    assert bundle.manifest.trace.packs == []
    for level in ("shape", "block_hashes"):
        ran = run("redact", out, "--level", level, "-o", folder / "less")
        assert ran.code == 2
        assert "not more open" in ran.err


def test_a_redacted_trace_gives_the_same_schedule(folder):
    assert run("redact", folder / "crew", "--level", "shape", "-o", folder / "out").code == 0
    digests = []
    for trace in ("crew", "out"):
        assert run("replay", folder / trace, "-o", folder / f"run of {trace}").code == 0
        (stored,) = open_bundle(folder / f"run of {trace}").manifest.executions.values()
        digests.append(stored.execution_digest)
    assert digests[0] == digests[1]


def test_results_replay(folder):
    """What is made of a trace is a trace like any other: it is planned, replayed and measured."""
    out = folder / "out"
    assert run("filter", folder / "crew", "-w", "task>0", "-o", out).code == 0
    assert run("replay", out, "-o", folder / "run").code == 0
    assert run("audit", out, folder / "run").code == 0


# -- diff -------------------------------------------------------------------------------------------------------


def test_diff_of_traces(folder):
    ran = run("diff", folder / "crew", folder / "replayed")
    assert (ran.code, ran.out.splitlines()[0]) == (0, "the same")
    run("filter", folder / "crew", "-w", "task>0", "-o", folder / "part")
    ran = run("diff", folder / "crew", folder / "part", "--json")
    assert ran.code == 1
    assert ran.json["of"] == "traces"
    assert ran.json["only_a"]["tasks"] == 1
    assert ran.json["first"][0]["task"] == "task 0"
    text = run("diff", folder / "crew", folder / "part", "--limit", 1)
    assert "tasks: 3 and 2 rows, 1 only in the first, 0 only in the second" in text.out
    assert "tasks[0] (task 'task 0'): only in the first" in text.out


def test_diff_of_work(folder):
    b = crew()
    b.update_task(0, tenant="red")
    write_bundle(folder / "red", b.build().trace)
    ran = run("diff", folder / "crew", folder / "red")
    assert ran.code == 1
    assert "tasks[0] (task 'task 0') tenant: None ≠ 'red'" in ran.out
    assert run("diff", folder / "crew", folder / "red", "--work").code == 0


def test_diff_of_traces_that_differ_in_times_only(folder):
    b = crew()
    b.update_task(0, arrival_ns=123)
    write_bundle(folder / "late", b.build().trace)
    said = "the same structure and content: only times differ"
    assert said in run("diff", folder / "crew", folder / "late").out
    b.update_task(0, tenant="red")
    write_bundle(folder / "late-red", b.build().trace)
    assert said not in run("diff", folder / "crew", folder / "late-red").out


def test_diff_of_executions(folder):
    same = run("diff", f"{folder}/crew#native", f"{folder}/replayed#native")
    assert (same.code, same.out.splitlines()[0]) == (0, "the same")
    assert run("replay", folder / "crew", "-o", folder / "run").code == 0
    ran = run("diff", folder / "run", f"{folder}/crew#native", "--json")
    assert ran.code == 1
    assert ran.json["of"] == "executions"
    assert ran.json["columns"]["finished_ns"]["differing"] > 0
    text = run("diff", folder / "run", f"{folder}/crew#native", "--limit", 2)
    assert text.out.count("operation") >= 2
    assert "first at" in text.out
    other = run("diff", folder / "run", f"{folder}/team#native")
    assert other.code == 2
    assert "ST-LIN-071" in other.err


# -- artifacts --------------------------------------------------------------------------------------------------


def test_put_and_get(tmp_path):
    for name, text in (("a", "one"), ("b", "two"), ("c", "one")):
        (tmp_path / name).write_text(text)
    store = tmp_path / "store"
    ran = run("artifacts", "put", store, tmp_path / "a", tmp_path / "b", tmp_path / "c", "--fsync", "--json")
    assert ran.code == 0
    digests = [each["digest"] for each in ran.json["objects"]]
    assert digests[0] == digests[2] != digests[1]
    assert run("artifacts", "get", store, digests[0]).out == "one"
    ran = run("artifacts", "get", store, digests[1].removeprefix("blake3:"), "-o", tmp_path / "out")
    assert (tmp_path / "out").read_text() == "two"
    assert run("artifacts", "get", store, digests[1], "-o", tmp_path / "out").code == 2
    assert (
        run("artifacts", "get", store, digests[1], "-o", tmp_path / "out", "--force", "--json").json["bytes"]
        == 3
    )
    ran = run("artifacts", "verify", store)
    assert (ran.code, "2 objects" in ran.out) == (0, True)


def test_out_and_back(folder):
    store, out, back = (folder / name for name in ("store", "out", "back"))
    ran = run("artifacts", "externalize", folder / "crew", "--store", store, "-o", out)
    assert ran.code == 0
    assert checked(out).manifest.trace.packs == []
    assert checked(out).manifest.trace.trace_digest in ran.out
    ran = run("artifacts", "gc", store, out, "--grace", 0, "--json")
    assert (ran.json["removed"], ran.json["named"]) == ([], open_bundle(out).trace["artifacts"].rows)
    assert run("artifacts", "embed", out, "--store", store, "-o", back).code == 0
    assert back.read_bytes() == (folder / "crew").read_bytes()


def test_collection_of_what_no_bundle_names(folder):
    store = folder / "store"
    run("artifacts", "externalize", folder / "crew", "--store", store, "-o", folder / "out")
    run("artifacts", "externalize", folder / "team", "--store", store, "-o", folder / "other")
    ran = run("artifacts", "gc", store, folder / "out", "--grace", 3600)
    assert ran.out.startswith("0 objects removed")
    for path in store.rglob("*.zst"):
        os.utime(path, (1, 1))
    ran = run("artifacts", "gc", store, folder / "out", "--dry-run")
    assert "would be removed" in ran.out
    count = open_bundle(folder / "team").trace["artifacts"].rows
    ran = run("artifacts", "gc", store, folder / "out", "--json")
    assert len(ran.json["removed"]) == count
    assert run("artifacts", "embed", folder / "out", "--store", store, "-o", folder / "back").code == 0
    ran = run("artifacts", "embed", folder / "other", "--store", store, "-o", folder / "lost")
    assert ran.code == 1
    assert "ST-STO-010" in ran.err
    assert not (folder / "lost").exists()
    ran = run("artifacts", "gc", store, "--no-bundles", "--grace", 0)
    assert f"{open_bundle(folder / 'crew').trace['artifacts'].rows} objects removed" in ran.out


def test_damage_in_a_store(folder):
    store = folder / "store"
    run("artifacts", "externalize", folder / "crew", "--store", store, "-o", folder / "out")
    broken = min(store.rglob("*.zst"))
    broken.write_bytes(broken.read_bytes()[:-3])
    ran = run("artifacts", "verify", store, "--json")
    assert ran.code == 1
    assert [error["requirement"] for error in ran.json["damaged"]] == ["ST-STO-004"]
    digest = f"blake3:{broken.parent.name}{broken.stem}"
    for words in (
        ["artifacts", "get", store, digest],
        ["artifacts", "embed", folder / "out", "--store", store, "-o", folder / "back"],
    ):
        ran = run(*words)
        assert ran.code == 1
        assert digest in ran.err
    assert not (folder / "back").exists()


def _contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_neither_a_store_nor_a_bundle_is_replaced_by_what_is_made_of_it(folder):
    store, lean, crew_file = (folder / name for name in ("store", "lean", "crew"))
    assert run("artifacts", "externalize", crew_file, "--store", store, "-o", lean).code == 0
    held = min(store.rglob("*.zst"))
    digest = held.parent.name + held.stem
    before = _contents(folder)
    inside = store / "semtrace-store.json"
    assert inside in before
    for words in (
        ["externalize", crew_file, "--store", store, "-o", crew_file],
        ["externalize", crew_file, "--store", folder / "new", "-o", folder / "new"],
        ["externalize", crew_file, "--store", store, "-o", held],
        ["embed", lean, "--store", store, "-o", lean],
        ["embed", lean, "--store", store, "-o", inside],
        ["embed", lean, "--store", store, "-o", store / "new"],
        ["get", store, digest, "-o", inside],
        ["get", store, digest, "-o", held],
        ["get", store, digest, "-o", store / "new"],
    ):
        ran = run("artifacts", *words, "--force")
        assert (ran.code, "would replace or lie in what is read" in ran.err) == (2, True), (words, ran)
        assert _contents(folder) == before, words
    assert not (folder / "new").exists()


# -- wrong input ------------------------------------------------------------------------------------------------

COMMANDS = {
    "filter": ["filter", "{}", "-w", "task=0", "-o", "{out}"],
    "sample": ["sample", "{}", "-n", "1", "-o", "{out}"],
    "merge": ["merge", "{}", "{}", "-o", "{out}"],
    "renumber": ["renumber", "{}", "-o", "{out}"],
    "redact": ["redact", "{}", "--level", "shape", "-o", "{out}"],
    "diff": ["diff", "{}", "{}"],
    "externalize": ["artifacts", "externalize", "{}", "--store", "{store}", "-o", "{out}"],
    "embed": ["artifacts", "embed", "{}", "--store", "{made}", "-o", "{out}"],
    "gc": ["artifacts", "gc", "{made}", "{}"],
}


def spelt(words, folder, path):
    places = {"{out}": folder / "out", "{store}": folder / "store", "{made}": folder / "made", "{}": path}
    return [str(places.get(word, word)) for word in words]


@pytest.fixture
def broken(folder):
    """Paths that are no bundle, each with the exit code that it must give."""
    whole = (folder / "crew").read_bytes()
    (folder / "empty").write_bytes(b"")
    (folder / "text").write_text("hello\n")
    (folder / "cut").write_bytes(whole[: len(whole) // 2])
    (folder / "folder").mkdir()
    (folder / "file").write_text("x")
    run("artifacts", "put", folder / "made", folder / "file")
    return {"missing": 2, "empty": 2, "text": 2, "cut": 1, "folder": 2}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_no_bundle_is_named(name, folder, broken):
    before = sorted(folder.iterdir())
    for kind, code in broken.items():
        ran = run(*spelt(COMMANDS[name], folder, folder / kind))
        assert ran.code == code, (kind, ran)
        assert kind in ran.err, (kind, ran)
        assert ran.err.count("error:") == 1
        ran = run(*spelt(COMMANDS[name], folder, folder / kind), "--json")
        assert (ran.code, kind in ran.json["error"]["path"]) == (code, True)
    assert sorted(folder.iterdir()) == before
    assert run("artifacts", "verify", folder / "made").out.startswith("✓")


@pytest.mark.parametrize(
    "name", [name for name in COMMANDS if name not in {"renumber", "externalize", "embed", "gc"}]
)
def test_an_invalid_trace_is_refused(name, folder):
    ran = run(*spelt(COMMANDS[name], folder, folder / "thrown"))
    assert ran.code == 1
    assert "not valid" in ran.err
    assert "semtrace check" in ran.err
    assert not (folder / "out").exists()


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in {"diff", "gc"}])
def test_what_is_there_is_not_replaced(name, folder, broken):
    (folder / "out").write_text("precious")
    words = spelt(COMMANDS[name], folder, folder / "crew")
    ran = run(*words)
    assert ran.code == 2
    assert "exists already" in ran.err
    assert (folder / "out").read_text() == "precious"
    assert not (folder / "store").exists()
    assert run(*words, "--force").code == 0
    checked(folder / "out")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["filter", "{crew}", "-o", "{out}"], "--where"),
        (["filter", "{crew}", "-w", "kind=tool", "-o", "{out}"], "whole tasks"),
        (["filter", "{crew}", "-w", "task=99", "-o", "{out}"], "no task of 3 meets"),
        (["filter", "{crew}", "-w", "task=0"], "--output"),
        (["filter", "{crew}", "-w", "task=0", "-o", "{crew}", "--force"], "what is read"),
        (["filter", "{crew}", "-w", "task=0", "-o", "{folder}/no/where"], "the folder is missing"),
        (["sample", "{crew}", "-n", "0", "-o", "{out}"], "-n"),
        (["sample", "{crew}", "-n", "4", "-o", "{out}"], "4 tasks of 3"),
        (["sample", "{crew}", "-n", "1", "--by", "colour", "-o", "{out}"], "colour"),
        (["sample", "{crew}", "-n", "1", "--seed", "99999999999999999999", "-o", "{out}"], "64 bits"),
        (["merge", "{crew}", "-o", "{out}"], "two traces or more"),
        (["merge", "-o", "{out}"], "TRACE"),
        (["renumber", "{thrown}", "--by-start", "-o", "{out}"], "0 native executions"),
        (["redact", "{crew}", "--level", "text", "-o", "{out}"], "text"),
        (["diff", "{crew}"], "B"),
        (["diff", "{crew}", "{crew}#native"], "is a trace"),
        (["diff", "{crew}#native", "{crew}#nothing"], "nothing"),
        (["diff", "{crew}#native", "{crew}#native", "--work"], "--work is of traces"),
        (["diff", "{crew}", "{crew}", "--limit", "-1"], "--limit"),
        (["artifacts", "put", "{store}"], "FILE"),
        (["artifacts", "put", "{store}", "{folder}/no"], "no such file"),
        (["artifacts", "put", "{folder}", "{crew}"], "other things than a store"),
        (["artifacts", "get", "{store}", "blake3:00"], "is no digest"),
        (["artifacts", "get", "{folder}", "0" * 64], "no artifact store"),
        (["artifacts", "verify", "{folder}/no"], "no artifact store"),
        (["artifacts", "gc", "{store}"], "name every bundle"),
        (["artifacts", "gc", "{store}", "{crew}", "--no-bundles"], "there are bundles"),
        (["artifacts", "gc", "{store}", "{crew}", "--grace", "-1"], "--grace"),
        (["artifacts", "embed", "{crew}", "--store", "{folder}/no", "-o", "{out}"], "no artifact store"),
    ],
)
def test_wrong_use_is_named(words, message, folder):
    before = sorted(folder.iterdir())
    for name in ("crew", "thrown", "out", "folder", "store"):
        place = folder if name == "folder" else folder / name
        words = [word.replace(f"{{{name}}}", str(place)) for word in words]
    ran = run(*words)
    assert ran.code == 2, ran
    assert message in ran.err.replace("\n", " ") + ran.out, ran
    assert sorted(folder.iterdir()) == before


def test_get_of_what_is_not_there(tmp_path):
    (tmp_path / "file").write_text("x")
    run("artifacts", "put", tmp_path / "store", tmp_path / "file")
    ran = run("artifacts", "get", tmp_path / "store", "0" * 64, "-o", tmp_path / "out")
    assert ran.code == 1
    assert "0" * 64 in ran.err
    ran = run("artifacts", "get", tmp_path / "store", "0" * 64, "--json")
    assert (ran.code, ran.json["error"]["code"]) == (2, "store.output")
    assert not (tmp_path / "out").exists()


def test_traces_of_unknown_origin(folder):
    b = TraceBuilder()
    b.operation(b.task("when", arrival_ns=3), OperationKind.TOOL, "one", duration_ns=1)
    write_bundle(folder / "when", b.build().trace)
    ran = run("merge", folder / "crew", folder / "when", "-o", folder / "out")
    assert ran.code == 1
    assert "--align" in ran.err
    assert not (folder / "out").exists()
    assert run("merge", folder / "crew", folder / "when", "--align", "-o", folder / "out").code == 0
    checked(folder / "out")


def test_a_manifest_that_lies_about_its_trace_is_not_moved(folder):
    from semtrace.records.document import parse_canonical
    from semtrace.store.manifest import Manifest

    assert run("unpack", folder / "crew", "-o", folder / "lying").code == 0
    values = parse_canonical((folder / "lying" / "semtrace.json").read_bytes())
    values["trace"]["trace_digest"] = "blake3:" + "0" * 64
    (folder / "lying" / "semtrace.json").write_bytes(Manifest.parse(values, path="lying").sealed())
    ran = run("artifacts", "externalize", folder / "lying", "--store", folder / "store", "-o", folder / "out")
    assert ran.code == 1
    assert "ST-DIG-014" in ran.err
    assert not (folder / "out").exists()


def test_every_command_is_in_the_help():
    ran = run("--help")
    for name in ("filter", "sample", "merge", "renumber", "redact", "diff", "artifacts"):
        assert name in ran.out
    assert json.dumps(run("artifacts", "--help").out)


DOCS = Path(__file__).parents[2] / "docs" / "tools.md"
SHOWN = [
    line.split("#  ")[0].split("  #")[0].strip()
    for line in DOCS.read_text().splitlines()
    if line.startswith("    semtrace ")
]


@pytest.mark.parametrize("line", SHOWN)
def test_the_commands_of_the_page_are_as_it_says(line):
    words = shlex.split(line)[1:]
    command = typer.main.get_command(build())
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    options = {option for parameter in command.params for option in parameter.opts}
    used = {word for word in words if word.startswith("-")}
    assert used <= options
    required = {
        parameter.opts[-1] if len(parameter.opts) == 1 else parameter.opts[0]
        for parameter in command.params
        if parameter.required and parameter.param_type_name == "option"
    }
    assert all(
        name in used or (name == "--output" and "-o" in used) or (name == "--tasks" and "-n" in used)
        for name in required
    )
