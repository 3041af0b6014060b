"""The commands of the simulated engine: `engines`, and `replay` with an engine of the user's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cli.conftest import run
from semtrace.engine.document import ready_documents
from semtrace.experiments.workloads import researcher
from semtrace.store.bundle import write_bundle
from support.graphs import graph

if TYPE_CHECKING:
    from pathlib import Path

MADE = graph(
    {
        "operations": [
            {"name": "a", "kind": "llm", "prompt": 40, "output": 20},
            {"name": "b", "kind": "llm", "prompt": 40, "output": 20, "after": ["a"]},
        ]
    }
)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    write_bundle(tmp_path / "t.semtrace", trace=MADE.trace)
    return str(tmp_path / "t.semtrace")


def test_engines():
    told = run("engines")
    assert told.code == 0
    assert all(name in told.out for name in ready_documents())
    rows = json.loads(run("engines", "--json").out)["engines"]
    assert {row["name"] for row in rows} == set(ready_documents())


def test_an_engine_printed_is_one_to_change(trace: str, tmp_path: Path):
    printed = run("engines", "qwen3-8b-a100")
    mine = tmp_path / "mine.yaml"
    mine.write_text(printed.out.replace("name: qwen3-8b-a100", "name: mine"), "utf-8")
    out = str(tmp_path / "e.semtrace")
    told = json.loads(run("replay", trace, "-o", out, "--engine", str(mine), "--json").out)
    assert told["backend"]["settings"]["name"] == "mine"
    ready = json.loads(run("replay", trace, "-o", out, "--force", "--engine", "qwen3-8b-a100", "--json").out)
    assert told["execution_digest"] == ready["execution_digest"]


def test_both_forms_leave_the_same_execution(trace: str, tmp_path: Path):
    digests = set()
    for form in ("fast", "step"):
        told = run(
            "replay", trace, "-o", str(tmp_path / f"{form}.semtrace"), "--backend", "engine", "--copies", "5",
            "--set", "kv_tokens=160", "--set", "scheduler.watermark=0.05", "--set", "scheduler.prefix_caching=false",
            "--detail", "steps", "--simulator", form, "--json",
        )  # fmt: skip
        assert told.code == 0
        digests.add(json.loads(told.out)["execution_digest"])
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--engine", "qwen3-8b-a10"], "did you mean 'qwen3-8b-a100' or"),
        (["--engine", "nothing.yaml"], "nothing.yaml"),
        (["--backend", "engine", "--set", "schedular.max_num_seqs=3"], "did you mean 'scheduler'?"),
        (["--backend", "engine", "--set", "scheduler.max_num_seqs=many"], "scheduler.max_num_seqs"),
        (["--backend", "engine", "--set", "servers.count=1"], "servers"),
        (["--backend", "engine", "--set", "kv_tokens=32"], "no server holds it"),
        (["--backend", "ideal", "--engine", "qwen3-8b-a100"], "--engine does not go with backend ideal"),
        (["--backend", "engine", "--simulator", "slow"], "fast, step"),
        (["--backend", "engine", "--detail", "stepz"], "steps"),
        (["--backend", "engine", "--set", "max_num_seqs=8"], "did you mean 'scheduler.max_num_seqs'?"),
        (["--engine", "{folder}"], "a folder, and no engine document"),
        (["--engine", "{folder}/t.semtrace"], "a file, and no engine document"),
        (["--engine", "{folder}/yaml.json"], "a file of YAML has a name that ends in .yaml"),
        (["--engine", "{folder}/empty.yaml"], "is empty"),
        (["--engine", "{folder}/list.yaml"], "must be a mapping of keys to values, and is a list"),
        (["--scenario", "{folder}/scenario.yaml"], "name it with --engine"),
        (["--detail", "steps"], "backend ideal has no detail tables"),
        (["--detail", "steps", "--url", "http://127.0.0.1:9"], "backend http has no detail tables"),
    ],
)
def test_wrong_engines(trace: str, tmp_path: Path, words: list[str], says: str):
    for name, text in (
        ("yaml.json", "name: mine\n"),
        ("empty.yaml", ""),
        ("list.yaml", "- 1\n"),
        ("scenario.yaml", "backend: {name: engine, settings: {engine: qwen3-8b-a100}}\n"),
    ):
        (tmp_path / name).write_text(text, "utf-8")
    given = [word.replace("{folder}", str(tmp_path)) for word in words]
    told = run("replay", trace, "-o", str(tmp_path / "e.semtrace"), *given)
    assert told.code in (1, 2)
    assert says in " ".join(told.err.split())
    assert "Traceback" not in told.err
    assert not (tmp_path / "e.semtrace").exists()


def test_a_comparison_says_what_was_run_otherwise(trace: str, tmp_path: Path):
    one, two = str(tmp_path / "one.semtrace"), str(tmp_path / "two.semtrace")
    run("replay", trace, "-o", one, "--engine", "qwen3-8b-a100", "--arrivals", "poisson:1000:3")
    run("replay", trace, "-o", two, "--engine", "qwen3-8b-a100", "--copies", "2",
        "--set", "scheduler.order=plas", "--set", "kv_tokens=6000", "--arrivals", "poisson:2000:3")  # fmt: skip
    told = run("compare", trace, one, two)
    for said in (
        "run differently, beside the plan:",
        "arrivals.mean_ns: 1000 → 2000",
        "copies: 1 → 2",
        "scheduler.order: fcfs → plas",
        "kv_tokens: — → 6000",
    ):
        assert said in told.out
    assert "arrivals.seed" not in told.out
    assert "run differently" not in run("compare", trace, one, one).out


def test_what_an_execution_was_run_with_is_shown(trace: str, tmp_path: Path):
    out = str(tmp_path / "e.semtrace")
    words = ["replay", trace, "-o", out, "--engine", "qwen3-8b-a100", "--force"]
    ready = run(*words)
    assert "backend engine qwen3-8b-a100\n" in ready.out
    told = run(*words, "--arrivals", "poisson:1000:3", "--copies", "2", "--set", "scheduler.order=plas")
    for said in (
        "backend engine qwen3-8b-a100 with scheduler.order: fcfs → plas",
        "arrivals poisson (mean_ns 1000, seed 3), copies 2, salt copy",
    ):
        assert said in told.out
        assert said in run("info", out).out
    value = run("info", out, "--json").json["executions"]["replay"]["setup"]
    assert value == {
        "arrivals": {"kind": "poisson", "mean_ns": 1000, "seed": 3},
        "copies": 2,
        "salt": "copy",
        "engine": "qwen3-8b-a100",
        "changed": [{"key": "backend.settings.scheduler.order", "first": "fcfs", "second": "plas"}],
    }
    run("replay", trace, "-o", out, "--force", "--set", "c0_ns=5")
    assert "backend ideal (c0_ns=5" in run("info", out).out
    assert run("info", out, "--json").json["executions"]["replay"]["setup"]["changed"] is None


def test_an_engine_of_ones_own_is_not_held_against_a_ready_one(trace: str, tmp_path: Path):
    mine = tmp_path / "mine.yaml"
    mine.write_text(run("engines", "qwen3-8b-a100").out.replace("name: qwen3-8b-a100", "name: mine"), "utf-8")
    told = run("replay", trace, "-o", str(tmp_path / "e.semtrace"), "--engine", str(mine))
    assert "backend engine mine, of no ready document" in told.out


def test_a_scenario_leaves_the_engine_to_the_command(trace: str, tmp_path: Path):
    """As docs/engine.md has it."""
    scenario = tmp_path / "s.yaml"
    scenario.write_text("copies: 2\nbackend: {name: engine}\n", "utf-8")
    told = run("replay", trace, "--scenario", scenario, "--engine", "qwen3-8b-a100-host", "--set",
               "scheduler.max_num_seqs=64", "-o", str(tmp_path / "e.semtrace"))  # fmt: skip
    assert told.code == 0
    assert "engine qwen3-8b-a100-host with scheduler.max_num_seqs: 256 → 64" in told.out
    assert "copies 2" in told.out


def test_what_would_be_ignored_is_refused_or_told(trace: str, tmp_path: Path):
    other = run("show", trace, "--trace", trace)
    assert (other.code, "holds its own trace" in other.err) == (2, True)
    told = run("plan", trace, "--rule", "barrier", "-o", tmp_path / "b.json")
    assert (told.code, "warning: a replay under it is that of dag" in told.out) == (0, True)
    assert "warning" not in run("plan", trace, "--rule", "dag").out
    document = tmp_path / "s.yaml"
    document.write_text("seeds: [0]\n", "utf-8")
    csv = run("sweep", trace, document, "-o", tmp_path / "out.csv")
    assert (csv.code, "must end in .parquet" in csv.err) == (2, True)
    anew = run("sweep", trace, document, "-o", tmp_path / "out.parquet", "--workers", "1", "--resume")
    assert anew.code == 0
    assert "there was nothing to resume" in anew.out
    assert "engine qwen3-8b-a100" in anew.out


def test_a_plan_names_the_agents_of_its_sessions(tmp_path: Path):
    beside = [
        {"name": name, "kind": "llm", "prompt": 4, "output": 2, "stage": "all", "session": name}
        for name in "xy"
    ]
    write_bundle(
        tmp_path / "t.semtrace", trace=graph({"stages": [{"name": "all"}], "operations": beside}).trace
    )
    told = run("plan", tmp_path / "t.semtrace", "--rule", "barrier")
    assert "session 1 after session 0" in told.out
    assert "sessions: 0 " in told.out
    assert "1 y" in told.out or "1 (no agent)" in told.out
    lines = run("info", tmp_path / "t.semtrace").out.splitlines()
    assert [line.split() for line in lines if line.startswith("edges")] == [["edges", "0"]]


FORMS = {
    "short": ([], "fast", "the replay is too short for loading the compiler"),
    "asked": (["--simulator", "step"], "step", "it was asked for"),
    "blocks": (["--detail", "blocks"], "step", "only that keeps the table blocks"),
    "pieces": (["--set", "policy.name=pic"], "step", "policy pic looks at the pieces of prompts"),
    "refused": (
        ["--set", "policy.name=keep", "--set", "oversized=outcome", "--set", "scheduler.max_model_len=40"],
        "step",
        "are too large for every server",
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_form_that_ran_is_told(name: str, trace: str, tmp_path: Path):
    """In one line, with its reason; and with --json."""
    options, form, why = FORMS[name]
    words = [
        "replay",
        trace,
        "--engine",
        "qwen3-8b-a100",
        *options,
        "-o",
        str(tmp_path / "e.semtrace"),
        "--force",
    ]
    told = run(*words, "--json").json["simulator"]
    assert (told["form"], told["compiled"]) == (form, False)
    assert why in told["why"]
    how = "in its readable form" if form == "step" else "as plain Python"
    assert f"the engine ran {how}: {told['why']}" in " ".join(run(*words).out.split())


def test_of_other_backends_no_form_is_told(trace: str, tmp_path: Path):
    assert "simulator" not in run("replay", trace, "-o", str(tmp_path / "e.semtrace"), "--json").json


def test_measures_of_batches(tmp_path: Path):
    """ST-MEA-076 and ST-MEA-077: rows by stage and template, and the time that classes share steps."""
    trace, out = tmp_path / "t.semtrace", tmp_path / "x.semtrace"
    write_bundle(trace, trace=researcher(2, 0))
    assert run("replay", trace, "--engine", "qwen3-8b-a100", "--detail", "steps", "-o", out).code == 0
    lines = [line.split() for line in run("measure", trace, out).out.splitlines()]
    engine = run("measure", trace, out, "--json").json["engine"]
    for each, together in zip(engine["batches"]["stages"], engine["co_batching"]["stages"], strict=True):
        rows = ["{p50:,.0f}".format(**each["rows"]), "/", "{p95:,.0f}".format(**each["rows"])]
        shown = [each["name"], each["template"], *rows, str(each["large_steps"]), f"{together['value']:.3f}"]
        assert shown in lines
    assert [each["template"] for each in engine["batches"]["stages"]] == [
        "sequence",
        "fork_join",
        "refinement",
    ]
    assert ["root", "0", f"{engine['co_batching']['tasks'][0]['value']:.3f}"] in lines
