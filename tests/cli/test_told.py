"""What commands say to people: the true reason, all that is known, and the same thing once."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.conftest import run
from semtrace.store.bundle import write_bundle
from support.graphs import graph

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run with three branches side by side, replayed without an engine and on one."""
    made = tmp_path_factory.mktemp("told")
    trace = made / "run.semtrace"
    assert run("import", ROOT / "examples/autogen/graphflow", "-o", trace).code == 0
    assert run("replay", trace, "-o", made / "dag.semtrace").code == 0
    assert run("replay", trace, "--engine", "qwen3-8b-a100", "-o", made / "engine.semtrace").code == 0
    return made


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--by", "width", "--width", "3"], "no stage has more than 3 independent branches, so a width of 3"),
        (["--by", "stages"], "no task has two outermost stages"),
        (["--by", "chain", "--stage", "planner"], "no stage has branches to serialise"),
        (["--by", "level", "--stage", "planner"], "every operation waits already"),
        (
            ["--by", "stages", "--stage", "planner", "--stage", "editor"],
            "the stages wait for each other already",
        ),
    ],
)
def test_a_barrier_that_adds_nothing_says_why(folder: Path, words: list[str], says: str):
    told = run("plan", folder / "run.semtrace", "--rule", "barrier", *words)
    assert told.code == 0
    assert "a replay under it is that of dag: " + says in " ".join(told.out.split())


def test_what_requests_got_is_told_without_steps(folder: Path):
    run_, dag, engine = (folder / f"{name}.semtrace" for name in ("run", "dag", "engine"))
    told = run("measure", run_, engine).out
    value = run("measure", run_, engine, "--json").json
    assert f"hit share {value['engine']['hit_share']['value']:.3f}" in " ".join(told.split())
    for name in (
        "first token p50 / p95, ms",
        "output tokens a second",
        "preemptions",
        "steps were not recorded",
    ):
        assert name in told
    assert "hit share" not in run("measure", run_, dag).out
    both = " ".join(run("compare", run_, dag, engine).out.split())
    assert f"hit share unknown {value['engine']['hit_share']['value']:.3f}" in both
    assert run("compare", run_, dag, engine, "--json").json["second"]["requests"] == value["requests"]
    assert "hit share" not in run("compare", run_, dag, dag).out
    reported = folder / "measures.json"
    reported.write_text(run("measure", run_, engine, "--json").out, "utf-8")
    assert run("audit", run_, engine, "--measures", reported).code == 0


def test_the_load_of_each_server_is_told(folder: Path, tmp_path: Path):
    out = tmp_path / "two.semtrace"
    words = ("--engine", "qwen3-8b-a100", "--set", "servers=2", "--copies", "4")
    assert run("replay", folder / "run.semtrace", *words, "-o", out).code == 0
    servers = run("measure", folder / "run.semtrace", out, "--json").json["requests"]["servers"]
    assert [each["server"] for each in servers] == [0, 1]
    assert sum(each["calls"] for each in servers) == 40
    assert "load of servers" in run("measure", folder / "run.semtrace", out).out
    assert "load of servers" not in run("measure", folder / "run.semtrace", folder / "engine.semtrace").out


def test_a_simulated_replay_tells_what_was_refused(folder: Path, tmp_path: Path):
    words = ["replay", folder / "run.semtrace", "--engine", "qwen3-8b-a100", "--force"]
    words += ["--set", "kv_tokens=400", "--set", "oversized=outcome", "-o", tmp_path / "e.semtrace"]
    assert run(*words, "--json").json["outcomes"] == {"ok": 11, "refused": 4}
    assert "outcomes: 11 ok, 4 refused" in run(*words).out


def test_rules_that_judged_nothing_are_one_line(folder: Path):
    words = ["audit", folder / "run.semtrace", folder / "engine.semtrace"]
    rules = run(*words, "--json").json["rules"]
    idle = [each for each in rules if not each["judged"] and not each["not_judged"]]
    told = run(*words).out
    assert f"{len(idle)} rules more had nothing to judge" in told
    assert [each for each in idle if each["requirement"] in told] == []
    assert all(each["requirement"] in told for each in rules if each["judged"])
    whole = run(*words, "--all").out
    assert all(each["requirement"] in whole for each in rules)


def test_a_difference_of_work_says_nothing_else(folder: Path, tmp_path: Path):
    shape, bare = tmp_path / "shape.semtrace", tmp_path / "bare.semtrace"
    assert run("redact", folder / "run.semtrace", "--level", "shape", "-o", shape).code == 0
    assert (
        run("redact", folder / "run.semtrace", "--level", "shape", "--drop-annotations", "-o", bare).code == 0
    )
    told = run("diff", folder / "run.semtrace", bare)
    assert told.code == 1
    assert "only the first 5 are named" in told.out
    assert len([line for line in told.out.splitlines() if "≠" in line and "[" in line]) <= 5
    assert not [line for line in told.out.splitlines() if "artifact:" in line and len(line) > 200]
    assert "annotations" in told.out
    work = run("diff", folder / "run.semtrace", bare, "--work")
    assert "annotations" not in work.out
    assert list(run("diff", folder / "run.semtrace", bare, "--work", "--json").json["digests"]) == ["work"]
    assert len(run("diff", folder / "run.semtrace", bare, "--json").json["first"]) > 5


SWEEP = """\
engine: qwen3-8b-a100
settings: {kv_tokens: [300, 400, 20000], servers: [1, 2]}
deadline_ns: 60000000000
"""


def test_a_sweep_tells_each_reason_once_and_who_was_on_time(folder: Path, tmp_path: Path):
    (tmp_path / "sweep.yaml").write_text(SWEEP, "utf-8")
    words = ["sweep", folder / "run.semtrace", tmp_path / "sweep.yaml", "-o", tmp_path / "out.parquet"]
    told = run(*words, "--workers", "1")
    assert told.code == 1
    lines = told.out.splitlines()
    reasons = [line for line in lines if "refused: " in line]
    assert [line.partition(" refused")[0] for line in reasons] == [
        "2 points (0, 1) were",
        "2 points (2, 3) were",
    ]
    assert "on time" in lines[0]
    assert [line.split()[-3:] for line in lines[1:3]] == [["1", "of", "1"]] * 2
    again = run(*words, "--resume")  # a script may simply try again
    assert (again.code, again.out.splitlines()[0]) == (1, "nothing is left to do: the sweep was done already")
    assert again.out.splitlines()[1:] == lines
    assert run(*words, "--resume", "--json").json["points"] == 6
    (tmp_path / "sweep.yaml").write_text(SWEEP.replace("20000", "30000"), "utf-8")
    other = run(*words, "--resume")
    assert (other.code, "is not what this sweep made" in other.err) == (2, True)
    assert run(*words).code == 2


def test_a_finished_sweep_goes_on_with_nothing(folder: Path, tmp_path: Path):
    (tmp_path / "sweep.yaml").write_text("settings: {servers: [1]}\n", "utf-8")
    words = ["sweep", folder / "run.semtrace", tmp_path / "sweep.yaml", "-o", tmp_path / "out.parquet"]
    assert run(*words, "--workers", "1").code == 0
    before = (tmp_path / "out.parquet").read_bytes()
    assert run(*words, "--resume").code == 0
    assert (tmp_path / "out.parquet").read_bytes() == before
    (tmp_path / "out.parquet").write_text("no table", "utf-8")
    assert run(*words, "--resume").code == 2


def test_a_comparison_of_policies_says_when_nothing_was_found(folder: Path, tmp_path: Path):
    alone = tmp_path / "alone.semtrace"
    operations = [{"name": name, "kind": "llm", "prompt": 40, "output": 5} for name in "ab"]
    write_bundle(alone, trace=graph({"operations": operations}).trace)
    words = ["--policies", "keep", "--seeds", "2", "--workers", "1", "--arrivals", "poisson:1000"]
    told = " ".join(run("compare-policies", alone, *words).out.split())
    assert "hit tokens are 0 under every policy" in told
    assert "it is not the difference of the medians beside it" in told
    shared = " ".join(run("compare-policies", folder / "run.semtrace", *words).out.split())
    assert "hit tokens are 0" not in shared


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--set", "kv_tokens=100"], "give --engine too"),
        (["--set", "scheduler.max_num_seqs=4"], "its backend is ideal"),
        (["--set", "c0_nz=4"], "c0_ns"),
        (
            ["--engine", "qwen3-8b"],
            "did you mean 'qwen3-8b-a100' or 'qwen3-8b-a800' or 'qwen3-8b-a100-host'?",
        ),
        (["--engine", "qwen3-8b-b100"], "did you mean 'qwen3-8b-a100'?"),
    ],
)
def test_wrong_options_of_a_replay_say_what_was_meant(
    folder: Path, tmp_path: Path, words: list[str], says: str
):
    ran = run("replay", folder / "run.semtrace", "-o", tmp_path / "e.semtrace", *words)
    assert ran.code == 2
    assert says in " ".join(ran.err.split())


def test_the_loss_report_of_a_part_is_told_to_be_of_the_whole(folder: Path, tmp_path: Path):
    two, one = tmp_path / "two.semtrace", tmp_path / "one.semtrace"
    assert run("merge", folder / "run.semtrace", folder / "run.semtrace", "-o", two).code == 0
    drawn = run("sample", two, "-n", "1", "-o", one)
    assert "the loss report is that of the whole" in drawn.out
    assert "loss report (of the whole" in run("info", one).out
    assert "loss report (of the whole" not in run("info", two).out
