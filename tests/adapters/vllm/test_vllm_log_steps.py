"""Steps and blocks of a server's log as tables: phases, runs, what is discarded, what cannot be said; and a real log, audited."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semtrace.check import check_execution, check_trace
from semtrace.measure.audit import audit
from semtrace.records.enums import BlockAction, Phase
from semtrace_adapters.base import ImportOptions, ImportResult
from semtrace_adapters.vllm import ADAPTER
from support.vllm_logs import MS, StepLog

REAL = Path(__file__).parents[2] / "data" / "vllm" / "steps.jsonl"
"""What vLLM 0.32 wrote under `semtrace record vllm`: three agents of three turns side by side, a call that reads what they said, and others."""


def read(log: StepLog, folder: Path, **values: str) -> ImportResult:
    result = ADAPTER.read([log.write(folder / "steps.jsonl")], ImportOptions(values=values))
    assert check_trace(result.trace) == []
    assert result.execution is not None
    assert check_execution(result.execution, result.trace) == []
    report = audit(result.trace, result.execution)
    assert [finding.requirement for finding in report.findings] == []
    return result


def rows(result: ImportResult, table: str, *names: str) -> list[tuple[Any, ...]]:
    assert result.execution is not None
    return [tuple(row[name] for name in names) for row in result.execution[table].data.to_pylist()]


RUN = ("event", "first_step", "count", "start_position", "tokens_per_step", "phase")
STEP = ("server", "index", "start_ns", "end_ns", "tokens", "requests")


def losses(result: ImportResult) -> dict[str, int]:
    return {loss.code: loss.count for loss in result.loss}


def test_steps_and_runs_of_requests_side_by_side(tmp_path: Path):
    log = StepLog()
    a, b = log.come(10, [5] * 9), log.come(11, [6] * 40)
    log.computed(14, log.step(12, [[a, "new", 0, 9], [b, "new", 32, 4]]), [[a, 1]])
    log.computed(16, log.step(15, [[a, "running", 9, 1], [b, "running", 36, 4]]), [[a, 1], [b, 1]])
    log.computed(
        18,
        log.step(17, [[a, "running", 10, 1], [b, "running", 40, 1]]),
        [[a, 1], [b, 1]],
        [[a, "length"], [b, "stop"]],
    )
    log.output(a, [1, 2, 3])
    log.output(b, [1, 2])
    result = read(log, tmp_path)
    assert rows(result, "steps", *STEP) == [
        (0, 0, 2 * MS, 4 * MS, 13, 2), (0, 1, 5 * MS, 6 * MS, 5, 2), (0, 2, 7 * MS, 8 * MS, 2, 2),
    ]  # fmt: skip
    assert rows(result, "step_runs", *RUN) == [
        (0, 0, 1, 0, 9, Phase.PREFILL), (0, 1, 2, 9, 1, Phase.DECODE),
        (1, 0, 2, 32, 4, Phase.PREFILL), (1, 2, 1, 40, 1, Phase.DECODE),
    ]  # fmt: skip
    assert rows(result, "events", "cached_tokens", "computed_prompt_tokens") == [(0, 9), (32, 8)]
    assert result.execution is not None
    assert result.execution.header.detail == ["steps", "step_runs"]


def test_what_is_computed_again_after_a_preemption_is_prefill(tmp_path: Path):
    log = StepLog()
    a = log.come(10, [5] * 40)
    log.computed(12, log.step(11, [[a, "new", 0, 40]]), [[a, 1]])
    log.computed(14, log.step(13, [[a, "running", 40, 1]]), [[a, 1]])
    log.put(
        15, kind="step", step=None, entries=[], preempted=[a], moves=None, free_blocks=9, running=0, waiting=1
    )
    log.computed(22, log.step(20, [[a, "resumed", 32, 10]]), [[a, 1]])
    log.computed(24, log.step(23, [[a, "running", 42, 1]]), [[a, 1]], [[a, "length"]])
    log.output(a, [1, 2, 3, 4])
    result = read(log, tmp_path)
    assert rows(result, "step_runs", *RUN) == [
        (0, 0, 1, 0, 40, Phase.PREFILL), (0, 1, 1, 40, 1, Phase.DECODE),
        (0, 2, 1, 32, 10, Phase.PREFILL), (0, 3, 1, 42, 1, Phase.DECODE),
    ]  # fmt: skip
    assert rows(result, "events", "computed_prompt_tokens", "preemptions", "preempted_ns") == [
        (50, 1, 5 * MS)
    ]


def test_what_is_discarded_or_left_out_is_told_and_steps_are_the_sums_of_the_rest(tmp_path: Path):
    log = StepLog()
    a, b = log.come(10, [5] * 9), log.come(11, [6] * 4)
    log.computed(14, log.step(12, [[a, "new", 0, 9]]), [[a, 1]])
    two = log.step(15, [[a, "running", 9, 1], [b, "new", 0, 4]])
    ahead = log.step(16, [[a, "running", 10, 1], [b, "running", 4, 1]])  # before it is known that a has ended
    log.computed(17, two, [[a, 1], [b, 1]], [[a, "stop"]])
    log.output(a, [1, 2])
    log.computed(18, ahead, [[b, 1]])
    log.step(19, [[b, "running", 5, 1]])
    result = read(log, tmp_path)  # b goes on when the log ends
    assert rows(result, "steps", "index", "tokens", "requests") == [(0, 9, 1), (1, 1, 1)]
    assert losses(result)["requests.open"] == 1


def test_steps_of_several_tokens_cannot_be_said(tmp_path: Path):
    log = StepLog()
    a = log.come(10, [5] * 9)
    log.computed(14, log.step(12, [[a, "new", 0, 9]]), [[a, 1]])
    log.computed(16, log.step(15, [[a, "running", 9, 3]]), [[a, 3]], [[a, "length"]])
    log.output(a, [1, 2, 3, 4])
    result = read(log, tmp_path)
    assert rows(result, "steps", *STEP) == []
    assert rows(result, "events", "computed_prompt_tokens") == [(None,)]
    assert losses(result)["steps.several"] == 1
    assert result.execution is not None
    assert result.execution.header.detail == []


def test_engines_number_their_steps_themselves(tmp_path: Path):
    one, two = StepLog(), StepLog(rank=1)
    one.serve(10, [1, 2], [3])
    two.serve(10, [1, 2], [3])
    one.write(tmp_path / "s")
    two.write(tmp_path / "s.1")
    result = ADAPTER.read([tmp_path / "s", tmp_path / "s.1"], ImportOptions())
    assert rows(result, "steps", "server", "index") == [(0, 0), (1, 0)]


def test_blocks_are_told_run_by_run(tmp_path: Path):
    log = StepLog(moves=True)
    a = log.come(10, [5] * 70)
    step = log.step(11, [[a, "new", 32, 38]])
    log.lines[-1]["moves"] = [
        ["evict", a, None, [[9, 1]]],
        ["hit", a, 0, [[4, 1]]],
        ["allocate", a, 1, [[8, 2]]],
    ]
    log.computed(12, step, [[a, 1]], [[a, "length"]])
    log.lines[-1]["moves"] = [["free", a, None, [[4, 1], [8, 2]]]]
    log.output(a, [1])
    result = ADAPTER.read([log.write(tmp_path / "s")], ImportOptions())
    names = ("time_ns", "sequence", "action", "event", "blocks", "bytes", "first_block", "position")
    assert rows(result, "blocks", *names) == [
        (MS, 0, BlockAction.EVICT, 0, 1, 65536, 9, None),
        (MS, 1, BlockAction.HIT, 0, 1, 65536, 4, 0),
        (MS, 2, BlockAction.ALLOCATE, 0, 2, 131072, 8, 1),
        (2 * MS, 0, BlockAction.FREE, 0, 1, 65536, 4, None),
        (2 * MS, 1, BlockAction.FREE, 0, 2, 131072, 8, None),
    ]


@pytest.mark.parametrize("how", ["reset", "none"])
def test_where_blocks_were_not_all_written_down_none_are_told(tmp_path: Path, how: str):
    log = StepLog(moves=True)
    log.serve(10, [5] * 7, [1])
    for line in log.lines:
        if line["kind"] == "step":
            line["moves"] = None if how == "none" else [["allocate", 0, 0, [[1, 1]]]]
    if how == "reset":
        log.put(90, kind="reset")
    result = read(log, tmp_path)
    assert rows(result, "blocks", "blocks") == []
    assert losses(result)["blocks.unknown"] == 1


def test_a_real_log():
    result = ADAPTER.read([REAL], ImportOptions())
    trace, execution = result.trace, result.execution
    assert execution is not None
    assert check_trace(trace) == []
    assert check_execution(execution, trace) == []
    report = audit(trace, execution)
    assert report.findings == []
    judged = {rule.requirement: rule.judged for rule in report.rules}
    assert (judged["ST-AUD-062"], judged["ST-AUD-063"], judged["ST-AUD-065"], judged["ST-AUD-068"]) == (
        13,
        53,
        13,
        13,
    )
    assert trace.tasks.array("name").to_pylist()[:2] == ["q1", "anna"]
    assert trace.edges.rows == 9
    events, blocks = execution.events, execution["blocks"]
    assert events.ints("preemptions").sum() == 0
    held: Counter[int] = Counter()
    for row in blocks.data.to_pylist():
        sign = {BlockAction.ALLOCATE: 1, BlockAction.HIT: 1, BlockAction.FREE: -1}.get(row["action"], 0)
        for block in range(row["first_block"], row["first_block"] + row["blocks"]):
            held[block] += sign
            assert held[block] >= 0
    assert set(held.values()) == {0}  # all that was taken was given back
    found = events.ints("cached_tokens") + events.ints("computed_prompt_tokens")
    assert (found == events.ints("prompt_tokens")).all()
    assert np.array_equal(np.unique(events.ints("cached_tokens")), [0, 64, 96])
