"""`semtrace audit` ends with 0 only where it can say that an execution is faithful."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.conftest import run
from semtrace.build import TraceBuilder
from semtrace.records.enums import OperationKind
from semtrace.store.bundle import open_bundle, write_bundle

if TYPE_CHECKING:
    from pathlib import Path


def test_an_execution_in_which_nothing_can_be_judged_ends_with_3(tmp_path: Path):
    builder = TraceBuilder()
    task = builder.task("t", arrival_ns=0)
    call = builder.operation(task, OperationKind.LLM, "call", prompt_tokens=5, output_tokens=2)
    builder.observe(call, submitted_ns=0)
    built = builder.build()
    assert built.execution is not None
    path = tmp_path / "t.semtrace"
    write_bundle(path, built.trace, {"native": built.execution})
    ran = run("audit", path, "native")
    assert ran.code == 3
    assert "not judged" in ran.out
    shown = run("audit", path, "native", "--json").json
    assert (shown["clean"], shown["verdict"], len(shown["gaps"])) == (False, "not judged", 1)


def test_the_tolerance_is_shown(trace_file: Path, tmp_path: Path):
    replayed = tmp_path / "replayed.semtrace"
    assert run("replay", trace_file, "-o", replayed).code == 0
    execution = open_bundle(replayed).execution()
    header = execution.header.model_copy(
        update={"clock": "wall", "measured_at": "client", "tolerance_ns": 5_000_000}
    )
    path = tmp_path / "wall.semtrace"
    write_bundle(path, None, {"run": type(execution)(header, execution.tables, execution.content)})
    ran = run("audit", trace_file, path)
    assert (ran.code, "tolerance 1,000,000 ns (the execution declares 5,000,000 ns)" in ran.out) == (0, True)
    assert "tolerance 7 ns" in run("audit", trace_file, path, "--tolerance-ns", 7).out
