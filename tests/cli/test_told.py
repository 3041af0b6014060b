"""What commands say to people: the true reason, all that is known, and the same thing once."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.conftest import run

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
