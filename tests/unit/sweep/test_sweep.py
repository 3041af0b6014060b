"""Sweeps: the points of a grid, the rows of points, going on after a stop, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cli.conftest import run
from semtrace.cli.main import build
from semtrace.engine.document import read_engine
from semtrace.errors import DocumentError, UsageError
from semtrace.graph.plan import dag
from semtrace.records.columns import Columns
from semtrace.replay.run import replay
from semtrace.replay.scenario import Scenario
from semtrace.store.bundle import write_bundle
from semtrace.store.digests import execution_digest, show
from semtrace.sweep import run as runs
from semtrace.sweep.document import SweepDocument, points
from semtrace.sweep.parts import PARTS
from semtrace.sweep.run import sweep
from support.graphs import graph

SHORT: dict[str, Any] = {
    "tasks": [{"arrival_ns": 0}],
    "stages": [{"name": "all"}],
    "operations": [
        {"name": "a", "kind": "llm", "prompt": 40, "output": 20, "stage": "all", "session": "x"},
        {"name": "b", "kind": "llm", "prompt": 40, "output": 20, "stage": "all", "session": "y"},
        {"name": "c", "kind": "llm", "prompt": 60, "output": 5, "after": ["a", "b"]},
    ],
}
MADE = graph(SHORT)
ENGINE = {
    "blocks": 20,
    "block_size": 8,
    "cost": {
        "kind": "linear",
        "c0_ps": 10_000,
        "c_seq_ps": 0,
        "c_prefill_ps": 1000,
        "c_decode_ps": 1000,
        "c_kv_ps": 0,
    },
}
GRID: dict[str, Any] = {
    "engine": ENGINE,
    "settings": {"blocks": [12, 40], "scheduler.max_num_seqs": [1, 8]},
    "plans": ["dag", {"rule": "chain"}],
    "arrivals": [{"kind": "poisson", "mean_ns": 1000}],
    "seeds": [3, 4],
    "copies": 3,
}


def document(**change: Any) -> SweepDocument:
    return SweepDocument.parse({**GRID, **change}, path="sweep")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "t.semtrace"
    write_bundle(path, trace=MADE.trace)
    return path


def test_points_are_every_combination():
    made = points(document(), MADE.trace)
    assert [point.index for point in made] == list(range(16))
    assert [(point.plan, point.settings["blocks"], point.seed) for point in made[:5]] == [
        ("dag", 12, 3), ("dag", 12, 4), ("dag", 12, 3), ("dag", 12, 4), ("dag", 40, 3),
    ]  # fmt: skip
    assert len({point.key for point in made}) == 16
    assert made[0].arrivals == {"kind": "poisson", "mean_ns": 1000, "seed": 3}


def test_a_row_is_what_a_replay_gives(trace: Path, tmp_path: Path):
    table = sweep(document(), trace, tmp_path / "out.parquet", workers=1)
    assert pq.read_table(tmp_path / "out.parquet").equals(table)
    rows = table.to_pylist()
    point = points(document(), MADE.trace)[5]
    alone = replay(MADE.trace, dag(MADE.work), Scenario.parse(dict(point.scenario), path="scenario"))
    assert rows[5]["execution_digest"] == show(execution_digest(alone))
    assert rows[5]["set.blocks"] == 40
    assert {row["error"] for row in rows} == {None}
    assert {row["plan"] for row in rows} == {"dag", "chain"}
    small, large = (
        sum(row["sum.preemptions"] for row in rows if row["set.blocks"] == size) for size in (12, 40)
    )
    assert small > large
    assert not (tmp_path / ("out.parquet" + PARTS)).exists()


def test_processes_give_the_same_table(trace: Path, tmp_path: Path):
    one = sweep(document(seeds=[0]), trace, tmp_path / "1.parquet", workers=1)
    two = sweep(document(seeds=[0]), trace, tmp_path / "2.parquet", workers=2)
    assert one.equals(two)
    assert (tmp_path / "1.parquet").read_bytes() == (tmp_path / "2.parquet").read_bytes()


def test_a_sweep_goes_on_where_it_was_stopped(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class StoppedError(Exception):
        pass

    def stopping(done: int, _: int) -> None:
        if done == 5:
            raise StoppedError

    output = tmp_path / "out.parquet"
    with pytest.raises(StoppedError):
        sweep(document(), trace, output, workers=1, progress=stopping)
    assert not output.exists()
    with pytest.raises(UsageError, match="an earlier sweep has done"):
        sweep(document(), trace, output, workers=1)
    evaluated: list[int] = []
    row_of = runs.row_of

    def counted(trace: Any, point: Any) -> dict[str, Any]:
        evaluated.append(point.index)
        return row_of(trace, point)

    monkeypatch.setattr(runs, "row_of", counted)
    parts = tmp_path / ("out.parquet" + PARTS)
    torn = min(parts.glob("*.json"))
    of_point = json.loads(torn.read_text("utf-8"))["row"]["point"]
    torn.write_text('{"row": {}, "digest": "none"}', "utf-8")
    table = sweep(document(), trace, output, workers=1, resume=True)
    assert evaluated == [of_point, *range(5, 16)]
    whole = sweep(document(), trace, tmp_path / "whole.parquet", workers=1)
    assert table.equals(whole)
    assert not (tmp_path / ("out.parquet" + PARTS)).exists()


def stop_after(rows: int) -> Any:
    def stopping(done: int, _: int) -> None:
        if done == rows:
            raise KeyboardInterrupt

    return stopping


def test_what_is_done_of_another_trace_is_not_taken(trace: Path, tmp_path: Path):
    """Its work may be the same, and its arrivals not."""
    late = graph({**SHORT, "tasks": [{"arrival_ns": 5}]})
    assert late.work == MADE.work
    write_bundle(tmp_path / "late.semtrace", trace=late.trace)
    output, recorded = tmp_path / "out.parquet", document(arrivals=[None], copies=1)
    with pytest.raises(KeyboardInterrupt):
        sweep(recorded, trace, output, workers=1, progress=stop_after(4))
    table = sweep(recorded, tmp_path / "late.semtrace", output, workers=1, resume=True)
    assert table.equals(sweep(recorded, tmp_path / "late.semtrace", tmp_path / "whole.parquet", workers=1))


def test_files_of_others_stay(trace: Path, tmp_path: Path):
    parts = tmp_path / ("out.parquet" + PARTS)
    parts.mkdir()
    (parts / "mine.txt").write_text("precious", "utf-8")
    sweep(document(seeds=[0]), trace, tmp_path / "out.parquet", workers=1, resume=True)
    assert (parts / "mine.txt").read_text("utf-8") == "precious"
    (tmp_path / ("link.parquet" + PARTS)).symlink_to(parts)
    with pytest.raises(UsageError, match="no folder"):
        sweep(document(), trace, tmp_path / "link.parquet", workers=1, resume=True)


def test_two_sweeps_do_not_share_an_output(trace: Path, tmp_path: Path):
    output = tmp_path / "out.parquet"

    def second(done: int, _: int) -> None:
        if done == 1:
            for resume in (True, False):  # nobody is told to remove what another one is writing
                with pytest.raises(UsageError, match="another sweep is at work"):
                    sweep(document(), trace, output, workers=1, resume=resume)

    sweep(document(seeds=[0]), trace, output, workers=1, progress=second)


def test_inputs_and_devices_are_not_replaced(trace: Path, tmp_path: Path):
    file = tmp_path / "sweep.json"
    file.write_text(json.dumps({**GRID, "seeds": [0]}), "utf-8")
    before = trace.read_bytes()
    os.mkfifo(tmp_path / "fifo.parquet")
    for output in (trace, file, tmp_path / "fifo.parquet", tmp_path / "no" / "x.parquet", Path("/")):
        for command in (["sweep", trace, file], ["compare-policies", trace, "--policies", "keep"]):
            if (command[0], output) != ("compare-policies", file):
                assert run(*command, "-o", output, "--force", "--workers", "1").code == 2
    assert trace.read_bytes() == before
    assert not (tmp_path / "no").exists()
    assert not list(tmp_path.glob("*" + PARTS))


def test_a_trace_that_is_not_valid_is_refused(tmp_path: Path):
    edges = MADE.trace["edges"]
    at = edges.data.column_names.index("kind")
    wrong = edges.data.set_column(at, "kind", pa.array([99] * edges.rows, pa.uint8()))
    broken = {**MADE.trace.tables, "edges": Columns(edges.spec, wrong)}
    write_bundle(tmp_path / "t.semtrace", trace=replace(MADE.trace, tables=broken))
    (tmp_path / "sweep.json").write_text(json.dumps(GRID), "utf-8")
    told = run("sweep", tmp_path / "t.semtrace", tmp_path / "sweep.json", "-o", tmp_path / "o.parquet")
    assert (told.code, "not valid" in told.err) == (1, True)


def test_what_is_done_of_other_settings_is_not_taken(trace: Path, tmp_path: Path):
    output = tmp_path / "out.parquet"

    def stopping(done: int, _: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(document(), trace, output, workers=1, progress=stopping)
    changed = document(engine={**ENGINE, "block_size": 4})
    table = sweep(changed, trace, output, workers=1, resume=True)
    assert table.equals(sweep(changed, trace, tmp_path / "whole.parquet", workers=1))


def test_points_that_are_refused_say_why(trace: Path, tmp_path: Path):
    table = sweep(
        document(settings={"blocks": [5, 40]}, plans=["dag"]), trace, tmp_path / "out.parquet", workers=1
    )
    errors = table["error"].to_pylist()
    assert [error is None for error in errors] == [False, False, True, True]
    assert "ST-ENG-011" in errors[0]


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"settings": {"blocks": []}}, UsageError, "settings.blocks"),
        ({"settings": {"blocks": [0]}}, DocumentError, "blocks"),
        ({"settings": {"scheduler.max_seqs": [1]}}, DocumentError, "max_num_seqs"),
        (
            {"settings": {"blocks": list(range(2, 5000)), "servers": list(range(1, 500))}},
            UsageError,
            "1,000,000",
        ),
        ({"engine": "qwen3-8b-a10"}, DocumentError, "qwen3-8b-a100"),
        ({"settings": {"blocks": [20, 40, 20]}}, UsageError, r"^settings\.blocks: 20 stands twice"),
        ({"seeds": [0, 1, 0, 1]}, UsageError, "^seeds: 0, 1 stands twice"),
        (
            {"plans": [{"rule": "chain"}, "dag", {"rule": "chain"}]},
            UsageError,
            "^plans: .*chain.* stands twice",
        ),
        (
            {"arrivals": [{"kind": "poisson", "mean_ns": 5, "seed": seed} for seed in (1, 2)]},
            UsageError,
            "^arrivals: .*poisson.* stands twice",
        ),
    ],
)
def test_wrong_sweeps(change: dict[str, Any], error: type[Exception], says: str):
    with pytest.raises(error, match=says):
        points(document(**change), MADE.trace)


def test_a_sweep_of_too_many_points_says_of_what():
    with pytest.raises(UsageError, match=r"2 of plans × 2 of settings\.blocks × ") as raised:
        points(document(seeds=list(range(200_000))), MADE.trace)
    assert raised.value.path == "seeds"
    assert raised.value.hint == "fewer seeds, or several sweeps"


def test_an_arrival_process_by_its_name_alone():
    with pytest.raises(DocumentError, match=r"arrivals\.0: .* is 'recorded'; write \{kind: recorded\}"):
        document(arrivals=["recorded"])


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_sweep_in_order(trace: Path, tmp_path: Path, stop: int):
    values = {**GRID, "seeds": list(range(20_000))}
    (tmp_path / "s.json").write_text(json.dumps(values), "utf-8")
    words = [
        sys.executable,
        "-m",
        "semtrace",
        "sweep",
        str(trace),
        str(tmp_path / "s.json"),
        "--workers",
        "2",
    ]
    out = tmp_path / "out.parquet"
    with subprocess.Popen([*words, "-o", str(out)], stderr=subprocess.PIPE, text=True) as command:
        while command.poll() is None and not any((tmp_path / (out.name + PARTS)).glob("*.json*")):
            time.sleep(0.02)
        command.send_signal(stop)
        try:
            _, err = command.communicate(timeout=120)
        finally:
            command.kill()
    assert (command.returncode, err) == (130, "interrupted\n")
    assert not out.exists()
    assert any((tmp_path / (out.name + PARTS)).iterdir())  # what is done is kept


@pytest.mark.parametrize(
    "change",
    [{"plans": ["barrier"]}, {"plans": []}, {"arrivals": [{"kind": "drawn"}]}, {"seedz": [1]}, {"copies": 0}],
)
def test_wrong_documents(change: dict[str, Any]):
    with pytest.raises(DocumentError):
        document(**change)


def test_the_engine_of_a_sweep_may_be_a_file_beside_it(tmp_path: Path):
    values = {**read_engine("qwen3-8b-a100", {}).as_json(), "name": "mine"}
    (tmp_path / "mine.json").write_text(json.dumps(values), "utf-8")
    made = points(document(engine="mine.json", settings={}), MADE.trace, tmp_path)
    assert made[0].scenario["backend"]["settings"]["name"] == "mine"


def test_the_command(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "sweep.json"
    file.write_text(json.dumps({**GRID, "seeds": [0]}), "utf-8")
    output = tmp_path / "out.parquet"
    arguments = ["sweep", str(trace), str(file), "-o", str(output), "--workers", "1", "--json"]
    with pytest.raises(SystemExit) as ended:
        build("sweep")(arguments)
    assert ended.value.code in (0, None)
    assert json.loads(capsys.readouterr().out)["points"] == 8
    assert pq.read_table(output).num_rows == 8
