"""A sweep on a Ray cluster of this machine gives the table that processes give."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from semtrace.store.bundle import write_bundle
from support.graphs import graph

ROOT = Path(__file__).resolve().parents[2]
WITH_RAY = ROOT / ".venvs" / "ray" / "bin" / "python"
HERE = ROOT / ".venv" / "bin" / "python"
COMMAND = "from semtrace.cli import main; main()"

pytestmark = pytest.mark.integration

SWEEP = {
    "engine": {
        "blocks": 20,
        "block_size": 8,
        "cost": {
            "kind": "linear", "c0_ps": 10_000, "c_seq_ps": 0, "c_prefill_ps": 1000, "c_decode_ps": 1000, "c_kv_ps": 0,
        },
    },
    "settings": {"blocks": [12, 40], "scheduler.max_num_seqs": [1, 8]},
    "arrivals": [{"kind": "poisson", "mean_ns": 1000}],
    "seeds": [0, 1, 2],
    "copies": 4,
}  # fmt: skip


def sweep(python: Path, *words: object) -> dict[str, object]:
    if not python.exists():
        pytest.fail(f"there is no {python}: make .venvs/ray/.installed")
    command = [str(word) for word in (python, "-c", COMMAND, "sweep", *words, "--json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, object] = json.loads(done.stdout)
    return told


def test_ray_gives_what_processes_give(tmp_path: Path):
    operation = {"name": "a", "kind": "llm", "prompt": 40, "output": 20}
    made = graph({"operations": [operation, {**operation, "name": "b", "after": ["a"]}]})
    write_bundle(tmp_path / "t.semtrace", trace=made.trace)
    (tmp_path / "sweep.json").write_text(json.dumps(SWEEP), "utf-8")
    inputs = (tmp_path / "t.semtrace", tmp_path / "sweep.json")
    told = sweep(WITH_RAY, *inputs, "-o", tmp_path / "ray.parquet", "--ray", "local", "--workers", "2")
    assert told["points"] == 12
    sweep(HERE, *inputs, "-o", tmp_path / "here.parquet", "--workers", "2")
    assert pq.read_table(tmp_path / "ray.parquet").equals(pq.read_table(tmp_path / "here.parquet"))
