"""Wrong input to every command: one clear message, the right exit code, nothing half-written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cli.conftest import run

COMMANDS = {
    "info": ["info", "{}"],
    "check": ["check", "{}"],
    "show": ["show", "{}"],
    "plan": ["plan", "{}", "--rule", "barrier"],
    "replay": ["replay", "{}", "-o", "{out}"],
    "audit": ["audit", "{}", "native"],
    "measure": ["measure", "{}", "native"],
    "compare": ["compare", "{}", "native", "native"],
    "pack": ["pack", "{}", "-o", "{out}"],
    "unpack": ["unpack", "{}", "-o", "{out}"],
}


def broken(tmp_path, trace_file):
    """Paths that are no bundle, each with the exit code that it must give."""
    whole = trace_file.read_bytes()
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_text("hello\n")
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    flipped = bytearray(whole)
    flipped[len(flipped) // 2] ^= 1
    (tmp_path / "flipped").write_bytes(flipped)
    (tmp_path / "folder").mkdir()
    return {"missing": 2, "empty": 2, "text": 2, "cut": 1, "folder": 2, "flipped": 1}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_no_bundle_is_named(name, tmp_path, trace_file):
    for kind, code in broken(tmp_path, trace_file).items():
        if kind == "flipped" and name == "info":
            continue  # reads the tables only, of which the flipped byte may be none
        out = tmp_path / "out.semtrace"
        words = [
            word.replace("{out}", str(out)).replace("{}", str(tmp_path / kind)) for word in COMMANDS[name]
        ]
        ran = run(*words)
        assert ran.code == code, (kind, ran)
        message = ran.err + ran.out
        assert kind in message, (kind, ran)
        assert message.count("error:") <= 1
        assert not out.exists()
        assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("name", COMMANDS)
def test_errors_are_json_when_asked(name, tmp_path):
    words = [
        word.replace("{out}", str(tmp_path / "out")).replace("{}", str(tmp_path / "no"))
        for word in COMMANDS[name]
    ]
    ran = run(*words, "--json")
    assert ran.code == 2
    assert ran.json["error"]["code"] == "file.unreadable"
    assert str(tmp_path / "no") in ran.json["error"]["path"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["plan", "{t}", "--rule", "nonsense"], 2, "nonsense"),
        (["plan", "{t}", "--rule", "dag", "--width", "2"], 2, "--rule barrier"),
        (["plan", "{t}", "--rule", "barrier", "--by", "width"], 2, "--width"),
        (["plan", "{t}", "--rule", "barrier", "--width", "0"], 2, "--width"),
        (["plan", "{t}", "--rule", "barrier", "--stage", "nowhere"], 2, "no stage 'nowhere'"),
        (["plan", "{t}", "--rule", "barrier", "--stage", "99"], 2, "stage 99 is not in the trace"),
        (["plan", "{t}", "--rule", "custom"], 2, "--add"),
        (["plan", "{t}", "--rule", "custom", "--add", "x"], 2, "U:V"),
        (["plan", "{t}", "--rule", "custom", "--add", "1:99"], 1, "operation 99 is not in the trace"),
        (["plan", "{t}", "--rule", "custom", "--add", "1:1"], 1, "wait for itself"),
        (["plan", "{t}", "--rule", "custom", "--add", "1:2:later"], 2, "trigger"),
        (["replay", "{t}", "-o", "{out}", "--backend", "warp"], 2, "no backend 'warp'"),
        (["replay", "{t}", "-o", "{out}", "--set", "c0"], 2, "KEY=VALUE"),
        (["replay", "{t}", "-o", "{out}", "--set", "c0=5"], 2, "did you mean 'c0_ns'"),
        (["replay", "{t}", "-o", "{out}", "--set", "speed=5"], 2, "the keys are c0_ns, c_pre_ns, c_dec_ns"),
        (["replay", "{t}", "-o", "{out}", "--set", "c0_ns=-5"], 2, "c0_ns"),
        (["replay", "{t}", "-o", "{out}", "--arrivals", "whenever"], 2, "--arrivals whenever"),
        (["replay", "{t}", "-o", "{out}", "--arrivals", "poisson"], 2, "poisson:MEAN_NS"),
        (["replay", "{t}", "-o", "{out}", "--arrivals", "closed-loop:0"], 2, "users"),
        (["replay", "{t}", "-o", "{out}", "--copies", "0"], 2, "copies"),
        (["replay", "{t}", "-o", "{dir}/no/where.semtrace"], 2, "folder is missing"),
        (["replay", "{t}", "-o", "{t}", "--force"], 2, "would replace or lie in what is read"),
        (["plan", "{t}", "-o", "{t}", "--force"], 2, "would replace or lie in what is read"),
        (["pack", "{t}", "-o", "{t}", "--force"], 2, "would replace or lie in what is read"),
        (["measure", "{t}", "native", "--multiple", "2"], 2, "--multiple belongs to --reference"),
        (
            ["plan", "{t}", "--rule", "barrier", "--by", "chain", "--width", "2"],
            2,
            "--width belongs to --by width",
        ),
        (["info", "{t}#nobody"], 2, "it has: native"),
        (["check", "{t}#nobody"], 2, "it has: native"),
        (["replay", "{t}", "-o", "{out}", "--plan", "{dir}/none.json"], 2, "none.json"),
        (["replay", "{t}", "-o", "{out}", "--plan", "{t}"], 2, "a ZIP file, perhaps a bundle"),
        (["audit", "{t}", "nobody"], 2, "native"),
        (["audit", "{t}", "{t}#nobody"], 2, "it has: native"),
        (["measure", "{t}", "native", "--reference", "native", "--multiple", "much"], 2, "--multiple much"),
        (
            ["measure", "{t}", "native", "--reference", "native", "--deadline-ns", "5"],
            2,
            "exclude each other",
        ),
        (["show", "{t}#nobody"], 2, "it has: native"),
        (["import", "{dir}", "-o", "{out}"], 2, "no adapter knows"),
        (["import", "{dir}", "-o", "{out}", "--adapter", "metagpt", "--set", "x"], 2, "KEY=VALUE"),
        (["import", "{dir}", "-o", "{out}", "--adapter", "metagpt", "--set", "x=1"], 2, "no option x"),
        (["import", "{dir}", "-o", "{out}", "--adapter", "autogen", "--set", "x=1"], 2, "no option x"),
        (["import", "{dir}/none", "-o", "{out}"], 2, "does not exist"),
        (["import", "{t}", "-o", "{out}", "--adapter", "punchcards"], 2, "no adapter 'punchcards'"),
        (["import", "{t}", "-o", "{out}"], 2, "a bundle already"),
    ],
)
def test_wrong_use_is_explained(words, code, message, tmp_path, trace_file):
    out, folder = tmp_path / "out.semtrace", tmp_path / "in"
    folder.mkdir()
    values = {"{t}": str(trace_file), "{out}": str(out), "{dir}": str(folder)}
    filled = [
        next((word.replace(key, value) for key, value in values.items() if key in word), word)
        for word in words
    ]
    ran = run(*filled)
    assert ran.code == code, ran
    assert message in " ".join((ran.err + ran.out).split()).replace(" │ │ ", " "), ran
    assert not out.exists()


def test_a_plan_of_other_work_is_refused(trace_file, tmp_path):
    plan = tmp_path / "plan.json"
    assert run("plan", trace_file, "--rule", "dag", "-o", plan).code == 0
    values = json.loads(plan.read_text())
    values["work_digest"] = "blake3:" + "0" * 64
    plan.write_text(json.dumps(values))
    ran = run("replay", trace_file, "--plan", plan, "-o", tmp_path / "out.semtrace")
    assert ran.code == 2
    assert "ST-PLAN-001" in ran.err
    assert not (tmp_path / "out.semtrace").exists()


def test_an_unknown_key_names_the_nearest(trace_file, tmp_path):
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text("arivals: {kind: together}\n")
    ran = run("replay", trace_file, "--scenario", scenario, "-o", tmp_path / "out.semtrace")
    assert ran.code == 2
    assert "unknown key 'arivals', did you mean 'arrivals'?" in ran.err


def test_existing_outputs_are_kept_without_force(trace_file, tmp_path):
    out = tmp_path / "out.semtrace"
    assert run("replay", trace_file, "-o", out).code == 0
    before = out.read_bytes()
    assert run("replay", trace_file, "-o", out, "--copies", 2).code == 2
    assert out.read_bytes() == before
    assert run("replay", trace_file, "-o", out, "--copies", 2, "--force").code == 0
    assert out.read_bytes() != before


def test_an_engine_document_is_never_replaced_by_what_it_gives(trace_file, tmp_path):
    engine = tmp_path / "mine.yaml"
    engine.write_text(run("engines", "qwen3-8b-a100").out, "utf-8")
    before = engine.read_bytes()
    ran = run("replay", trace_file, "--engine", engine, "-o", engine, "--force")
    assert (ran.code, "would replace or lie in what is read" in ran.err) == (2, True), ran
    assert engine.read_bytes() == before


def test_no_command_lacks_a_test():
    help_text = run("--help").out
    for name in (*COMMANDS, "import"):
        assert f" {name} " in help_text


def test_a_closed_or_full_output_is_no_fault(trace_file):
    semtrace = Path(sys.executable).parent / "semtrace"
    closed = subprocess.run(
        f"{semtrace} info {trace_file} >&-", shell=True, capture_output=True, text=True, check=False
    )
    assert (closed.returncode, closed.stderr) == (0, "")
    full = subprocess.run(
        f"{semtrace} info {trace_file} --json >/dev/full",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert full.returncode == 2
    assert "No space left" in full.stderr
    assert "Traceback" not in full.stderr
    read = subprocess.run(
        f"{semtrace} info {trace_file} --json | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (read.stdout, read.stderr) == ("{\n", "")


def test_executions_are_named_as_replay_prints_them(trace_file, tmp_path):
    out = tmp_path / "out.semtrace"
    last = run("replay", trace_file, "-o", out).out.splitlines()[-1]
    path, name = last.removeprefix("written to ").split(", as execution ")
    printed = f"{path}#{name}"
    assert run("info", printed, "--json").json["executions"].keys() == {"replay"}
    assert run("check", printed).code == 0
    assert run("audit", trace_file, printed).code == 0


def test_runs_that_are_not_alike_are_said_to_be_so(trace_file, tmp_path):
    out = tmp_path / "out.semtrace"
    run("replay", trace_file, "-o", out)
    assert "not like with like: backend native and ideal" in run("compare", trace_file, "native", out).out
    other = tmp_path / "other.semtrace"
    run("replay", trace_file, "-o", other)
    compared = run("compare", trace_file, out, other, "--deadline-ns", 1_000_000_000).out
    assert "not like with like" not in compared
    assert "1 of 1" in compared
