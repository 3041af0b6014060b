"""The whole path on the command line, as a user walks it."""

from __future__ import annotations

import pytest

from cli.conftest import run


def test_info_counts_by_kind(trace_file):
    value = run("info", trace_file, "--json").json
    assert value["operations"] == {"total": 6, "llm": 4, "tool": 2}
    assert value["edges"]["data"] == 6
    assert value["content_level"] == "text"
    assert value["executions"]["native"]["events"] == 6
    assert value["work_digest"].startswith("blake3:")
    text = run("info", trace_file).out
    assert "4 llm, 2 tool" in text
    assert value["trace_digest"] in text


def test_check_is_clean(trace_file):
    ran = run("check", trace_file, "--json")
    assert ran.code == 0
    assert ran.json == {"path": str(trace_file), "valid": True, "findings": []}


def test_show_names_stages_operations_and_waits(trace_file):
    out = run("show", trace_file).out
    for word in ("research", "analyst-Oslo", "weather", "after 0 (data)", "execution native", "█"):
        assert word in out


@pytest.fixture
def replays(trace_file, tmp_path):
    """The team replayed under DAG and under a chain barrier."""
    plan = tmp_path / "barrier.json"
    assert run("plan", trace_file, "--rule", "barrier", "-o", plan).code == 0
    paths = {"dag": tmp_path / "dag.semtrace", "barrier": tmp_path / "barrier.semtrace"}
    assert run("replay", trace_file, "-o", paths["dag"]).code == 0
    assert run("replay", trace_file, "--plan", plan, "-o", paths["barrier"]).code == 0
    return paths


def test_barrier_serialises_the_analysts_and_costs_their_time(trace_file, replays):
    for path in replays.values():
        assert run("audit", trace_file, path).code == 0
    measured = {name: run("measure", trace_file, path, "--json").json for name, path in replays.items()}
    assert (measured["dag"]["width"]["max"], measured["barrier"]["width"]["max"]) == (2, 1)
    # a call: 20 ms + 0.1 ms x prompt + 10 ms x (output - 1); a tool: 30 ms
    analyst = 20 + 5 + 90 + 30
    dag = (20 + 5 + 90) + analyst + (20 + 8 + 190)
    latency = {name: value["root_latency"]["p50"] / 1e6 for name, value in measured.items()}
    # the recorded gaps between operations are no delays of this trace: nobody asked for explain_starts
    assert latency == {"dag": dag, "barrier": dag + analyst}
    compared = run("compare", trace_file, replays["dag"], replays["barrier"], "--json").json
    assert compared["root_latency_difference"]["p50"] == analyst * 1_000_000
    assert f"{analyst:,.3f}" in run("compare", trace_file, replays["dag"], replays["barrier"]).out


def test_the_proof_of_a_barrier_is_printed(trace_file):
    ran = run("plan", trace_file, "--rule", "barrier")
    assert ran.code == 0
    assert "stage 2 (Rome) after stage 1 (Oslo)" in ran.out
    assert "of 4 pairs 4 have no path either way" in ran.out
    assert "legal" in ran.out


def test_an_illegal_plan_is_refused_with_its_path_and_not_written(trace_file, tmp_path):
    plan = tmp_path / "plan.json"
    ran = run("plan", trace_file, "--rule", "custom", "--add", "5:0", "-o", plan)
    assert ran.code == 1
    assert "0 cannot wait for 5, which itself waits for 0: 0 → 1 → 3 → 5" in ran.out
    assert "ST-PLAN-010" in ran.out
    assert not plan.exists()


def test_an_independent_custom_edge_is_proved(trace_file):
    value = run("plan", trace_file, "--rule", "custom", "--add", "1:4", "--json").json
    assert value["legal"]
    assert value["verdicts"][0]["kind"] == "independent"


def test_replaying_the_same_twice_gives_the_same_execution(trace_file, tmp_path):
    digests = [
        run(
            "replay", trace_file, "-o", tmp_path / f"{at}.semtrace",
            "--copies", 5, "--arrivals", "poisson:50000000:7", "--json",
        ).json["execution_digest"]
        for at in range(2)
    ]  # fmt: skip
    assert digests[0] == digests[1]


def test_closed_loop_keeps_the_users_apart(trace_file, tmp_path):
    path = tmp_path / "loop.semtrace"
    assert run("replay", trace_file, "-o", path, "--copies", 6, "--arrivals", "closed-loop:2").code == 0
    measured = run("measure", trace_file, path, "--json").json
    assert measured["width"]["max"] == 4
    assert len({instance["arrival_ns"] for instance in measured["instances"]}) == 3


def test_a_deadline_from_a_reference_run(trace_file, replays):
    value = run(
        "measure",
        trace_file,
        replays["barrier"],
        "--reference",
        replays["dag"],
        "--multiple",
        "1.25",
        "--json",
    ).json
    dag = run("measure", trace_file, replays["dag"], "--json").json["root_latency"]["p95"]
    assert value["deadline"]["ns"] == int(dag * 1.25)
    assert value["attainment"]["part"] == (1 if value["root_latency"]["p50"] <= dag * 1.25 else 0)


def test_work_only_is_for_analysis(trace_file, tmp_path):
    plan = tmp_path / "work.json"
    assert run("plan", trace_file, "--rule", "work-only", "-o", plan).code == 0
    refused = run("replay", trace_file, "--plan", plan, "-o", tmp_path / "x.semtrace")
    assert refused.code == 1
    assert "ST-PLAN-004" in refused.err
    bound = tmp_path / "bound.semtrace"
    assert run("replay", trace_file, "--plan", plan, "-o", bound, "--analysis").code == 0
    assert run("audit", trace_file, bound).code == 1


def test_pack_and_unpack_keep_every_digest(trace_file, tmp_path):
    folder, again = tmp_path / "folder", tmp_path / "again.semtrace"
    assert run("unpack", trace_file, "-o", folder).code == 0
    assert (folder / "semtrace.json").is_file()
    assert run("pack", folder, "-o", again).code == 0
    assert again.read_bytes() == trace_file.read_bytes()
    assert run("check", folder).code == 0


def test_reported_measures_are_audited(trace_file, replays, tmp_path):
    reported = tmp_path / "measures.json"
    reported.write_text(run("measure", trace_file, replays["dag"], "--json").out)
    assert run("audit", trace_file, replays["dag"], "--measures", reported).code == 0
    ran = run("audit", trace_file, replays["barrier"], "--measures", reported)
    assert ran.code == 1
    assert "ST-AUD-051" in ran.out
