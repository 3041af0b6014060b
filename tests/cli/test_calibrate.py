"""`semtrace calibrate`: what it reads, writes and says."""

from __future__ import annotations

import json

import pytest

from cli.conftest import run
from semtrace.engine.cost import read_cost
from semtrace.store.bundle import write_bundle
from support.step_logs import serve


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """The same steps in the three forms."""
    folder = tmp_path_factory.mktemp("logs")
    served = serve(3, requests=20, noise=0.05)
    (folder / "plain.csv").write_text(served.csv())
    (folder / "scheduler.jsonl").write_text(served.lines())
    write_bundle(folder / "run.semtrace", executions={"run": served.execution()})
    return folder


def test_the_three_forms_give_the_same_cost(logs, tmp_path):
    made = []
    for name in ("plain.csv", "scheduler.jsonl", "run.semtrace", "run.semtrace#run"):
        ran = run("calibrate", logs / name, "-o", tmp_path / "cost.yaml", "--force", "--json")
        assert ran.code == 0, ran
        made.append(ran.json["cost"])
        assert read_cost("cost.yaml", folder=tmp_path).as_json() == ran.json["cost"]
    assert made[0]["kind"] == "linear"
    assert made.count(made[0]) == 4


def test_what_it_says(logs, tmp_path):
    ran = run("calibrate", logs / "plain.csv", logs / "scheduler.jsonl", "-o", tmp_path / "cost.json")
    assert ran.code == 0, ran
    assert "c_prefill_ps" in ran.out
    for word in ("prefill", "decode", "mixed", "all", "out of sample", "written to"):
        assert word in ran.out
    assert "c_seq_ps is 0: these steps show no time for it" in ran.out
    assert json.loads((tmp_path / "cost.json").read_text())["kind"] == "linear"


def test_a_table(logs, tmp_path):
    ran = run("calibrate", logs / "plain.csv", "-o", tmp_path / "t.yaml", "--kind", "table", "--points", 4)
    assert ran.code == 0, ran
    assert "4 points of prefill tokens" in ran.out
    made = read_cost("t.yaml", folder=tmp_path)
    assert made.kind == "table"
    again = run("calibrate", logs / "plain.csv", "-o", tmp_path / "t.yaml", "--kind", "table")
    assert (again.code, read_cost("t.yaml", folder=tmp_path)) == (2, made)
    assert "exists already" in again.err


def test_lines_that_are_wrong_are_findings_and_nothing_is_written(logs, tmp_path):
    lines = (logs / "plain.csv").read_text().splitlines()
    lines[4] = lines[4].replace(",", ",-", 1)
    (tmp_path / "bad.csv").write_text("\n".join(lines))
    ran = run("calibrate", tmp_path / "bad.csv", "-o", tmp_path / "cost.yaml", "--json")
    assert ran.code == 1
    assert ran.json["error"]["code"] == "calibrate.log"
    (finding,) = ran.json["findings"]
    assert (finding["rows"], finding["requirement"], finding["column"]) == (
        [5],
        "ST-COST-040",
        "prefill_tokens",
    )
    ran = run("calibrate", tmp_path / "bad.csv", "-o", tmp_path / "cost.yaml")
    assert (ran.code, ran.out) == (1, "")
    assert "bad.csv.prefill_tokens[5]: line 5: prefill_tokens must be a whole number" in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["bad.csv"]


@pytest.mark.parametrize("name", ["missing", "folder", "empty", "cut"])
def test_what_is_no_log_is_named(name, logs, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").write_text("")
    (tmp_path / "cut").write_bytes((logs / "run.semtrace").read_bytes()[:300])
    ran = run("calibrate", tmp_path / name, "-o", tmp_path / "out.yaml")
    assert ran.code == (2 if name in {"missing", "folder"} else 1), ran
    assert name in ran.err
    assert not (tmp_path / "out.yaml").exists()


def test_a_log_is_not_overwritten_by_its_cost(logs):
    ran = run("calibrate", logs / "plain.csv", "-o", logs / "plain.csv", "--force")
    assert ran.code == 2
    assert (logs / "plain.csv").read_text().startswith("requests,")
