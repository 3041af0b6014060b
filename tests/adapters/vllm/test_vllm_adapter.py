"""Step logs of vLLM as traces: requests, tasks, what prompts repeat, times, and what is reported as lost."""

from __future__ import annotations

import json
import random
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semtrace.check import check_trace
from semtrace.check.executions import check_execution
from semtrace.errors import FormatError, UsageError
from semtrace.live.prompts import Inputs
from semtrace.records.enums import (
    ContentLevel,
    EdgeKind,
    EventOutcome,
    Evidence,
    FinishReason,
    OperationKind,
    OperationStatus,
)
from semtrace_adapters.base import ImportOptions, ImportResult
from semtrace_adapters.record import app
from semtrace_adapters.vllm import ADAPTER
from support.vllm_logs import MS, START, StepLog


def draw(seed: int, count: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(4, 1024) for _ in range(count)]


def read(path: Path, **values: str) -> ImportResult:
    result = ADAPTER.read([path], ImportOptions(values=values))
    assert check_trace(result.trace) == []
    assert result.execution is not None
    assert check_execution(result.execution, result.trace) == []
    return result


def losses(result: ImportResult) -> dict[str, int]:
    return {loss.code: loss.count for loss in result.loss}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "steps.jsonl"


def conversation(**told: Any) -> StepLog:
    """Two turns of one conversation, and a request that repeats the first answer."""
    log, first, answer = StepLog(), draw(1, 40), draw(2, 12)
    log.serve(10, first, answer, **told)
    log.serve(40, [*first, *answer, *draw(3, 5)], draw(4, 3), cached=32, reason="stop", **told)
    log.serve(60, [*draw(5, 20), *answer, *draw(6, 7)], draw(7, 9), **told)
    return log


def test_a_request_is_an_operation_with_its_counts_ids_and_times(path: Path):
    log = StepLog()
    log.serve(10, draw(1, 40), draw(2, 3), name="cmpl-mine-0-0a1b2c3d")
    log.write(path)
    result = read(path)
    trace, execution = result.trace, result.execution
    assert execution is not None
    row = trace.operations.row(0)
    assert row["kind"] == OperationKind.LLM
    assert row["status"] == OperationStatus.OK
    assert (row["prompt_tokens"], row["output_tokens"]) == (40, 3)
    assert row["finish_reason"] == FinishReason.LENGTH
    assert row["duration_ns"] is None
    assert trace["trace"].row(0)["content_level"] == ContentLevel.TOKEN_IDS
    assert trace["trace"].row(0)["origin_unix_ns"] == START + 10 * MS
    assert trace.artifact(row["settings"]) == b'{"max_tokens":9,"temperature":0}'
    model = trace["models"].row(0)
    assert (model["name"], model["layers"], model["kv_heads"], model["vocab_size"]) == ("tiny", 2, 1, 1024)
    ids = Inputs(trace, kind="token_ids").ids(0, 0)
    assert ids is not None
    assert ids.tolist() == draw(1, 40)
    assert np.frombuffer(trace.artifact(row["output_token_ids"]) or b"", "<i4").tolist() == draw(2, 3)
    event = execution.events.row(0)
    times = [event[f"{name}_ns"] for name in ("submitted", "scheduled", "first_token", "finished")]
    assert times == [0, MS, 3 * MS, 5 * MS]
    assert event["submitted_evidence"] == Evidence.OBSERVED
    assert (event["cached_tokens"], event["preemptions"], event["server"], event["attempts"]) == (0, 0, 0, 1)
    assert event["finish_reason"] == FinishReason.LENGTH
    assert event["request_id"] == "cmpl-mine-0-0a1b2c3d"
    header = execution.header
    assert (header.measured_at, header.backend.name, header.backend.version) == ("server", "vllm", "0.32.0")
    assert header.backend.settings["max_num_seqs"] == 4


def test_without_a_word_of_clients_every_request_is_a_task_and_waits_for_nothing(path: Path):
    conversation().write(path)
    result = read(path)
    assert result.trace.tasks.rows == 3
    assert result.trace.edges.rows == 0
    assert result.trace.tasks.ints("arrival_ns").tolist() == [0, 30 * MS, 50 * MS]
    assert losses(result)["tasks.unknown"] == 3
    assert "edges.matched" not in losses(result)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"tasks": "one"}, {}),
        ({"tasks": "matched"}, {}),
        ({}, {"hints": {"semtrace_task": "a question"}}),
        ({}, {"session": "a talk"}),
    ],
)
def test_in_one_task_prompts_depend_on_what_they_repeat(path: Path, values: dict[str, str], told: Any):
    conversation(**told).write(path)
    result = read(path, **values)
    trace = result.trace
    assert trace.tasks.rows == 1
    edges = trace.edges.data.to_pylist()
    assert [(e["source"], e["target"], e["kind"]) for e in edges] == [
        (0, 1, EdgeKind.DATA),
        (0, 2, EdgeKind.DATA),
    ]
    assert trace.operations.row(1)["context_base"] == 0
    sources = trace.segments.data.to_pylist()
    assert [(s["operation"], s["tokens"], s["source_operation"]) for s in sources] == [
        (0, 40, None), (1, 5, None), (2, 20, None), (2, 12, 0), (2, 7, None),
    ]  # fmt: skip
    assert losses(result)["edges.matched"] == 2
    inputs = Inputs(trace, kind="token_ids")
    assert inputs.findings() == []
    assert [inputs.ids(row, 0).tolist() for row in (1, 2)] == [  # type: ignore[union-attr]  # there are ids, or the test fails
        [*draw(1, 40), *draw(2, 12), *draw(3, 5)],
        [*draw(5, 20), *draw(2, 12), *draw(6, 7)],
    ]
    # the first ended 14 ms after it came: what the others waited for beyond it is delay
    assert trace.operations.ints("external_delay_ns").tolist() == [0, 16 * MS, 36 * MS]


def test_tasks_stages_and_sessions_are_those_that_clients_named(path: Path):
    log = StepLog()
    log.hint(None, "a", task="one", stage="plan", session="writer")
    log.serve(10, draw(1, 9), draw(2, 3), name="cmpl-a-0")
    log.hint(29, "b", session="critic", user="anna")
    log.serve(30, draw(3, 9), draw(4, 3), name="chatcmpl-b-0123abcd", hints={"semtrace_task": "two"})
    log.hint(None, "c", user="anna")
    log.serve(50, draw(5, 9), draw(6, 3), name="cmpl-c-0")
    log.serve(70, draw(7, 9), draw(8, 3), name="cmpl-d-0", session="talk")
    log.write(path)
    result = read(path)
    trace = result.trace
    assert trace.tasks.array("name").to_pylist() == ["one", "two", "anna", "talk"]
    assert trace["stages"].array("name").to_pylist() == ["plan"]
    assert trace["sessions"].array("name").to_pylist() == ["writer", "critic", "talk"]
    assert trace.operations.data.column("session").to_pylist() == [0, 1, None, 2]
    assert trace.operations.data.column("stage").to_pylist() == [0, None, None, None]
    found = losses(result)
    assert (found["tasks.session"], found["tasks.user"]) == (1, 1)
    assert "tasks.unknown" not in found
    alone = read(path, tasks="requests")
    assert alone.trace.tasks.rows == 4
    assert alone.trace["sessions"].rows == 3


def turns(log: StepLog, at_ms: float, **hint: str) -> None:
    """A run of a client: two turns of a conversation, with ids that it gives each time."""
    first, answer = draw(1, 40), draw(2, 12)
    for turn, prompt in enumerate((first, [*first, *answer, *draw(3, 5)])):
        begins = at_ms + 30 * turn
        if hint:
            log.hint(begins - 0.5, f"semtrace-0-{turn}", **hint)
        digits = f"{int(begins * MS):08x}"[-8:]
        log.serve(begins, prompt, answer, name=f"cmpl-semtrace-0-{turn}-0-{digits}")


def test_a_client_that_runs_again_with_the_same_ids_begins_other_tasks(path: Path):
    log = StepLog()
    turns(log, 10, task="0-0", session="writer", stage="plan")
    turns(log, 150_000, task="0-0", session="writer", stage="plan")
    turns(log, 300_000, task="0-0", session="writer", stage="plan")
    log.write(path)
    result = read(path)
    trace = result.trace
    assert trace.tasks.array("name").to_pylist() == ["0-0", "0-0", "0-0"]
    assert trace.tasks.ints("arrival_ns").tolist() == [0, 149_990 * MS, 299_990 * MS]
    assert trace.operations.ints("task").tolist() == [0, 0, 1, 1, 2, 2]
    assert (trace["sessions"].rows, trace["stages"].rows) == (3, 3)
    assert trace.operations.data.column("context_base").to_pylist() == [None, 0, None, 2, None, 4]
    assert max(trace.operations.ints("external_delay_ns").tolist()) < 30 * MS
    assert losses(result)["tasks.again"] == 2
    assert "tasks.again" not in losses(read(path, tasks="one"))


def test_what_is_said_of_a_request_is_not_said_of_later_ones_with_its_id(path: Path):
    log = StepLog()
    turns(log, 10, task="mine")
    turns(log, 1_000)
    turns(log, 2_000, session="other")
    log.write(path)
    result = read(path)
    assert result.trace.tasks.array("name").to_pylist() == ["mine", "task 1", "task 2", "other"]
    assert result.trace.operations.ints("task").tolist() == [0, 0, 1, 2, 3, 3]
    assert losses(result)["tasks.unknown"] == 2
    assert "tasks.again" not in losses(result)


def test_what_is_said_after_a_request_came_is_not_of_it(path: Path):
    log = StepLog()
    turns(log, 10)
    turns(log, 1_000, task="later")
    hints = [line for line in log.lines if line["kind"] == "hint"]
    others = [line for line in log.lines if line["kind"] != "hint"]
    log.lines = [*others[:1], *hints, *others[1:]]  # in the file before everything, as of another engine
    log.write(path)
    assert read(path).trace.tasks.array("name").to_pylist() == ["task 0", "task 1", "later"]


def test_of_a_request_that_was_not_taken_nothing_is_said_of_the_next_that_says_something(path: Path):
    log = StepLog()
    log.hint(5, "a", task="refused by the server")
    log.hint(9, "a", task="taken")
    log.serve(10, draw(1, 9), draw(2, 3), name="cmpl-a-0-00000000")
    log.write(path)
    assert read(path).trace.tasks.array("name").to_pylist() == ["taken"]


def test_the_prompts_of_one_request_are_of_one_task(path: Path):
    log = StepLog()
    for at_ms in (10, 100):
        log.hint(at_ms, "a", task="two prompts")
        log.serve(at_ms, draw(1, 9), draw(2, 3), name=f"cmpl-a-0-0000000{at_ms // 50}")
        log.serve(at_ms + 20, draw(3, 9), draw(4, 3), name=f"cmpl-a-1-0000000{at_ms // 50}")
    log.write(path)
    assert read(path).trace.operations.ints("task").tolist() == [0, 0, 1, 1]


def test_a_server_that_adds_no_digits_keeps_those_of_the_client(path: Path):
    log = StepLog()
    for at_ms, name in ((10, "chatcmpl-r-00000001"), (40, "chatcmpl-r-00000002"), (70, "cmpl-r-0")):
        log.serve(at_ms, draw(at_ms, 9), draw(2, 3), name=name, session="talk")
    log.write(path)
    assert read(path).trace.tasks.rows == 1


def test_a_plain_step_log_gives_counts_alone(path: Path):
    log = StepLog(content=False)
    log.serve(10, 40, draw(2, 3))
    log.write(path)
    result = read(path, tasks="one")
    row = result.trace.operations.row(0)
    assert (row["prompt_tokens"], row["output_tokens"], row["output_token_ids"]) == (40, 3, None)
    assert result.trace.segments.rows == 0
    assert result.trace["models"].rows == 0
    assert losses(result) == {"blocks.unknown": 1, "clients.unknown": 1, "ids.unknown": 1, "tasks.one": 1}


def test_preemptions_aborts_errors_and_what_goes_on(path: Path):
    log = StepLog()
    one = log.come(10, draw(1, 9))
    two = log.come(11, draw(2, 9))
    log.come(12, draw(3, 9))
    step = log.step(13, [[one, "new", 0, 9], [two, "new", 0, 9]])
    log.computed(15, step, [[one, 1], [two, 1]])
    log.step(16, [[two, "running", 9, 1]], preempted=[one])
    step = log.step(18, [[one, "resumed", 0, 10]])
    log.computed(20, step, [[one, 1]])
    log.put(22, kind="aborted", requests=[one], moves=None)
    log.computed(23, 1, [], [[two, "error"]])
    log.output(one, draw(5, 2))
    log.output(two, draw(6, 1))
    log.put(24, kind="reset")
    log.write(path)
    result = read(path, tasks="one")
    rows = result.trace.operations.data.to_pylist()
    assert [(row["status"], row["output_tokens"], row["duration_ns"]) for row in rows] == [
        (OperationStatus.CANCELLED, 2, None), (OperationStatus.ERROR, 1, 12 * MS),
    ]  # fmt: skip
    assert rows[0]["finish_reason"] == FinishReason.ABORT
    assert result.execution is not None
    events = result.execution.events
    assert events.ints("preemptions").tolist() == [1, 0]
    assert events.ints("outcome").tolist() == [EventOutcome.CANCELLED, EventOutcome.ERROR]
    found = losses(result)
    assert found["requests.open"] == 1
    assert found["outputs.short"] == 2


def test_several_answers_to_one_request_are_left_out_by_name(path: Path):
    log = StepLog()
    log.serve(10, draw(1, 9), draw(2, 3), name="0_cmpl-a-0")
    log.serve(30, draw(1, 9), draw(3, 3), name="1_cmpl-a-0")
    log.serve(50, draw(1, 9), draw(4, 3), name="cmpl-b-0")
    log.write(path)
    result = read(path)  # ST-PROD-007
    assert result.trace.operations.rows == 1
    assert losses(result)["requests.samples"] == 2


def test_what_stands_for_images_salts_adapters_and_embeddings(path: Path):
    log = StepLog()
    log.serve(10, 30, draw(2, 3))
    log.serve(30, draw(1, 9), draw(3, 3), salted=True, adapter="tuned", sampling={"seed": 1 << 60})
    number = log.come(50, draw(4, 9), pooling=True, sampling={})
    log.computed(53, log.step(51, [[number, "new", 0, 9]]), [], [[number, "stop"]])
    log.write(path)
    result = read(path)
    rows = result.trace.operations.data.to_pylist()
    assert [row["kind"] for row in rows] == [OperationKind.LLM, OperationKind.LLM, OperationKind.EMBED]
    assert [row["output_tokens"] for row in rows] == [3, 3, None]
    assert rows[2]["duration_ns"] == 3 * MS
    assert result.trace["models"].array("name").to_pylist() == ["tiny", "tuned"]
    found = losses(result)
    assert (found["ids.unknown"], found["salts.lost"], found["settings.large"]) == (1, 1, 1)


def test_engines_of_one_server_are_read_together(tmp_path: Path):
    one, two = StepLog(), StepLog(rank=1)
    one.serve(10, draw(1, 9), draw(2, 3))
    two.serve(5, draw(3, 9), draw(4, 3))
    paths = [one.write(tmp_path / "steps.jsonl"), two.write(tmp_path / "steps.jsonl.1")]
    (tmp_path / "notes.txt").write_text("none", "utf-8")
    result = ADAPTER.read([tmp_path], ImportOptions())
    assert result.sources == paths
    assert result.execution is not None
    assert result.execution.events.ints("server").tolist() == [1, 0]
    assert sorted(result.execution.header.environment["vllm_steps"]["servers"]) == ["0", "1"]
    assert losses(result)["files.other"] == 1


def test_a_server_that_began_anew_numbers_anew(path: Path):
    log, again = StepLog(), StepLog()
    log.serve(10, draw(1, 9), draw(2, 3))
    again.serve(200, draw(3, 9), draw(4, 3))
    log.lines += again.lines
    log.write(path)
    result = read(path)
    assert result.trace.operations.rows == 2
    assert result.execution is not None
    assert result.execution["steps"].ints("index").tolist() == [0, 1, 2, 3, 4, 5]
    assert losses(result)["blocks.unknown"] == 1


def test_a_torn_last_line_and_lines_of_ours_that_are_none_are_reported(path: Path):
    log = StepLog()
    log.serve(10, draw(1, 9), draw(2, 3))
    log.write(path)
    text = path.read_text("utf-8")
    bad = [
        {"kind": "output", "n": 77, "ids": []},
        {"kind": "output", "n": 0, "ids": [1.5, 2]},
        {"kind": "output", "n": 0, "ids": [-1, 2]},
        {"kind": "output", "n": 0, "ids": [1 << 32]},
        {"kind": "output", "n": 0, "ids": "12"},
        {"kind": "prompt", "n": 0, "ids": [1], "arrival_unix_ns": 5},
        {"kind": "prompt", "n": 0, "ids": None, "arrival_unix_ns": -5},
        {"kind": "hint", "request": 5, "task": "t"},
        {"kind": "model", "name": "m", "layers": "two"},
    ]
    path.write_text(text + "".join(json.dumps(each) + "\n" for each in bad) + '{"kind":"st', "utf-8")
    result = read(path)
    found = losses(result)
    assert (found["lines.bad"], found["lines.torn"]) == (len(bad), 1)
    where = next(loss.where for loss in result.loss if loss.code == "lines.bad")
    assert where[0] == f"steps.jsonl:{len(text.splitlines()) + 1}"


def test_a_line_of_the_scheduler_that_is_none_is_refused(path: Path):
    log = StepLog()
    log.serve(10, draw(1, 9), draw(2, 3))
    log.write(path)
    path.write_text(path.read_text("utf-8") + "none\n", "utf-8")
    with pytest.raises(FormatError, match="is no record of a step log"):
        ADAPTER.read([path], ImportOptions())


def test_detection(path: Path, tmp_path: Path):
    log = StepLog()
    log.write(path)
    assert ADAPTER.detect([path]) == 100
    assert ADAPTER.detect([tmp_path]) == 100
    other = tmp_path / "other.jsonl"
    for text in ('{"kind":"server","format":"other"}\n', "{}\n", "", '{"kind":"hint"}\n', "[1]\n"):
        other.write_text(text, "utf-8")
        assert ADAPTER.detect([other]) == 0, text
    assert ADAPTER.detect([tmp_path / "absent"]) == 0


def test_what_is_refused(path: Path):
    with pytest.raises(FormatError, match="no step log"):
        ADAPTER.read([path], ImportOptions())
    log = StepLog()
    log.come(10, draw(1, 9))
    log.write(path)
    with pytest.raises(FormatError, match="no request has ended in it \\(1 had begun\\)"):
        ADAPTER.read([path], ImportOptions())
    for values, message in (
        ({"tasks": "some"}, "no option tasks=some"),
        ({"least": "1"}, "from 2"),
        ({"least": "x"}, "from 2"),
        ({"size": "4"}, "no option size"),
    ):
        with pytest.raises(UsageError, match=message):
            ADAPTER.read([path], ImportOptions(values=values))
    log.lines[0]["version"] = 2
    log.write(path)
    with pytest.raises(FormatError, match="of version 2"):
        ADAPTER.read([path], ImportOptions())


def test_commands_are_told_of_it():
    points = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8"))["project"][
        "entry-points"
    ]
    for group, name, made in (("adapters", "vllm", ADAPTER), ("commands", "record", app)):
        module, attribute = points[f"semtrace.{group}"][name].split(":")
        found = getattr(import_module(module), attribute)
        assert type(found) is type(made)


def test_a_byte_order_mark_is_no_part_of_a_log(path: Path):
    conversation().write(path)
    found = read(path).trace.operations.rows
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert ADAPTER.detect([path]) == 100
    assert read(path).trace.operations.rows == found > 0
