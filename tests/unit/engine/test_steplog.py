"""Step logs in their three forms say the same of the same steps, and what is none is refused with its lines."""

from __future__ import annotations

import json
from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semtrace.engine import prepared
from semtrace.engine.geometry import geometry_of
from semtrace.engine.steplog import StepLogError, join_logs, read_log
from semtrace.engine.steplog_runs import log_of_execution
from semtrace.errors import UsageError
from semtrace.records.execution import Execution
from support.lifecycle import run_engine
from support.step_logs import HEADER, serve

SERVED = [serve(seed) for seed in range(12)]
ROW = dict(zip(HEADER, [2, 0, 2, 2, 0, 0, 30, 30, 5000], strict=True))


def test_the_cases_have_what_is_hard():
    assert sum(served.preemptions for served in SERVED) > 20
    ones = [
        row
        for served in SERVED
        for step in served.log
        for row in step.get("reqs", [])
        if row["phase"] == "decode" and row["kind"] == "resumed"
    ]
    assert ones, "recomputed tokens that a scheduler log calls decode"


@pytest.mark.parametrize("served", SERVED, ids=range(len(SERVED)))
def test_a_scheduler_log_gives_the_geometry_of_its_steps(served, tmp_path):
    """ST-COST-041, ST-COST-042."""
    path = tmp_path / "steps.jsonl"
    path.write_text(served.lines())
    log = read_log(path)
    assert log.geometry.tolist() == served.geometries
    assert log.duration_ns.tolist() == served.durations
    assert set(log.part.tolist()) == {0}


@pytest.mark.parametrize("served", SERVED, ids=range(len(SERVED)))
def test_runs_of_steps_give_the_geometry_of_the_steps(served):
    """ST-COST-043."""
    log = log_of_execution(served.execution(), "x")
    assert log.geometry.tolist() == served.geometries
    assert log.duration_ns.tolist() == served.durations


def test_plain_logs_give_what_they_hold(tmp_path):
    """ST-COST-040."""
    served = SERVED[0]
    (tmp_path / "a.csv").write_text("\ufeff" + served.csv().replace("\n", "\r\n"))
    rows = [
        dict(zip(HEADER, [*geometry, each], strict=True)) | {"other": "x"}
        for geometry, each in zip(served.geometries, served.durations, strict=True)
    ]
    (tmp_path / "a.jsonl").write_text("\n\n".join(map(json.dumps, rows)))
    for name in ("a.csv", "a.jsonl"):
        log = read_log(tmp_path / name)
        assert log.geometry.tolist() == served.geometries
        assert log.duration_ns.tolist() == served.durations


def test_a_server_that_begins_anew_begins_a_part(tmp_path):
    text = SERVED[0].lines() + SERVED[1].lines()
    (tmp_path / "two.jsonl").write_text(text)
    log = read_log(tmp_path / "two.jsonl")
    assert log.geometry.tolist() == SERVED[0].geometries + SERVED[1].geometries
    assert log.part.tolist() == [0] * len(SERVED[0].durations) + [1] * len(SERVED[1].durations)
    both = join_logs([log, log])
    assert both.part.tolist() == log.part.tolist() + [part + 2 for part in log.part.tolist()]


def test_steps_without_a_time_are_left_out_and_counted(tmp_path):
    served = SERVED[0]
    (tmp_path / "killed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in served.log[:-1]))
    log = read_log(tmp_path / "killed.jsonl")
    assert log.steps == len(served.durations) - 1
    assert log.notices == ("1 steps without a time are left out",)


def test_a_log_that_begins_in_the_middle_takes_the_first_phase_as_it_is_said(tmp_path):
    """ST-COST-042."""
    request = {"req": "a", "kind": "running", "computed": 70, "n": 1, "phase": "decode"}
    step = {"t": "step", "i": 7, "reqs": [request], "preempted": [], "duration_ns": 9}
    (tmp_path / "x.jsonl").write_text(json.dumps(step))
    assert read_log(tmp_path / "x.jsonl").geometry.tolist() == [[1, 0, 1, 1, 0, 0, 71, 71]]


def refused(tmp_path, text: str):
    path = tmp_path / "bad"
    path.write_text(text)
    with pytest.raises(StepLogError) as caught:
        read_log(path)
    return [
        (finding.requirement, finding.message, finding.rows, finding.count)
        for finding in caught.value.findings
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"duration_ns": 0}, "duration_ns must be a whole number from 1"),
        ({"duration_ns": 1.5}, "duration_ns must be a whole number"),
        ({"requests": True}, "requests must be a whole number from 1"),
        ({"decode_context": -1}, "decode_context must be a whole number from 0"),
        ({"sampled": None}, "sampled must be a whole number"),
        ({"sampled": 1 << 53}, "sampled must be a whole number"),
    ],
)
def test_rows_that_are_wrong_are_named_by_line(tmp_path, change, said):
    good, bad = json.dumps(ROW), json.dumps({**ROW, **change})
    ((requirement, message, rows, count),) = refused(tmp_path, f"{good}\n{bad}\n{good}\n{bad}")
    assert (requirement, rows, count) == ("ST-COST-040", (2, 4), 2)
    assert message.startswith("line 2: ")
    assert said in message


def test_a_missing_number_is_named(tmp_path):
    row = {key: value for key, value in ROW.items() if key != "decode_pairs"}
    assert refused(tmp_path, json.dumps(row))[0][1] == "line 1: decode_pairs is missing"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the header lacks"),
        ("a,b\n1,2\n", "the header lacks requests"),
        (",".join(HEADER) + ",requests\n", "the header has a name twice"),
        (",".join(HEADER) + "\n", "there is no step"),
        (",".join(HEADER) + "\n1,2\n", "line 2: has not as many values as the header"),
        (",".join(HEADER) + "\n" + ",".join(["1_0"] * 9) + "\n", "requests must be a whole number"),
        (json.dumps(ROW) + "\n{", "line 2: is no JSON object"),
        (json.dumps(ROW) + "\n[1]", "line 2: is no JSON object"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "is no JSON object"),
        ('{"t": "step", "i": 1, "reqs": 5}', "reqs must be a list"),
        ('{"t": "step", "i": 1, "reqs": [{"phase": "x"}]}', "a request's phase must be"),
        ('{"t": "step", "i": 1, "reqs": [{"phase": "decode"}]}', "a request's kind must be new, resumed, running"),
        ('{"t": "step", "i": 1, "reqs": [4]}', "a request must be an object"),
        ('{"t": "step", "i": 1, "reqs": [{"phase": "decode", "kind": "new"}]}', "n is missing"),
        ('{"t": "step", "i": 1, "reqs": [], "end_ns": 4}', "there is no step"),
        ('{"t": "step", "i": 1, "reqs": [{"phase": "decode", "kind": "new", "n": 1, "computed": 1}], "start_ns": 5, "end_ns": 5}', "end_ns must be from 1"),
    ],
    ids=range(16),
)  # fmt: skip
def test_what_is_no_log_is_refused(tmp_path, text, said):
    assert said in refused(tmp_path, text)[0][1]


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "x").write_bytes(b"requests\n\xff\n")
    with pytest.raises(StepLogError, match="not used") as caught:
        read_log(tmp_path / "x")
    assert caught.value.findings[0].message == "line 2: is not UTF-8 text"
    with pytest.raises(UsageError):
        read_log(tmp_path / "missing")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=2)
)  # fmt: skip
requests = st.fixed_dictionaries(
    {}, optional={name: values | st.sampled_from(["decode", "running", 1]) for name in ("req", "kind", "computed", "n", "phase")}
)  # fmt: skip
rows = st.fixed_dictionaries(
    {"t": st.sampled_from(["step", "out", "config"]) | values},
    optional={
        "reqs": values | st.lists(requests, max_size=2),
        **{
            name: values | st.integers(0, 9)
            for name in ("i", "preempted", "start_ns", "end_ns", "duration_ns")
        },
    },
)


@given(st.lists(rows | requests | values, max_size=4), st.text(max_size=9))
def test_whatever_a_log_holds_it_is_read_or_refused(tmp_path_factory, made, text):
    path = tmp_path_factory.getbasetemp() / "any"
    for content in ("\n".join(map(json.dumps, made)), text, ",".join(HEADER) + "\n" + text):
        path.write_text(content, "utf-8", errors="replace")
        log = None
        with suppress(StepLogError):  # anything else would be a fault
            log = read_log(path)
        if log is not None:
            assert log.geometry.shape == (log.steps, 8)
            assert (log.duration_ns > 0).all()
            assert (log.geometry[:, 0] > 0).all()


def changed(execution: Execution, table: str, column: str, row: int, value: int) -> Execution:
    data = {name: columns.data for name, columns in execution.tables.items()}
    values = data[table].column(column).to_pylist()
    values[row] = value
    at = data[table].schema.get_field_index(column)
    field = data[table].schema.field(column)
    data[table] = data[table].set_column(at, field, pa.array(values, field.type))
    return Execution.from_arrow(execution.header, data)


@pytest.mark.parametrize("outputs", [0, None])
def test_an_operation_without_output_counts_as_one_with_a_token(outputs):
    """ST-COST-043 and ST-ENG-010: in the geometry it is as the engine has it."""
    served, event = next(
        (served, request.id) for served in SERVED for request in served.requests if request.max_tokens == 1
    )
    log = log_of_execution(changed(served.execution(), "events", "output_tokens", event, outputs), "x")
    assert log.geometry.tolist() == [list(step) for step in served.geometries]


def test_the_geometry_of_an_engine_is_read_back(monkeypatch):
    """ST-ENG-010 and ST-COST-043: an embedding, an empty output and a preempted call, as the engine costed their steps."""
    costed = []

    def noted(step):
        costed.append(list(geometry_of(step)))
        return geometry_of(step)

    monkeypatch.setattr(prepared, "geometry_of", noted)
    operations = [
        {"name": "a", "kind": "llm", "prompt": 7, "output": 6},
        {"name": "b", "kind": "llm", "prompt": 3, "output": 4},
        {"name": "e", "kind": "embed", "prompt": 5},
        {"name": "z", "kind": "llm", "prompt": 6, "output": 0, "after": ["a"]},
    ]
    scheduler = {"prefix_caching": False, "max_num_batched_tokens": 9}
    engine = {"blocks": 5, "block_size": 4, "scheduler": scheduler, "cost": [10, 0, 1, 1, 0]}
    ran = run_engine(operations, engine)
    assert ran.execution.events.ints("preemptions").max() > 0
    assert log_of_execution(ran.execution, "x").geometry.tolist() == costed
    assert sum(step[3] for step in costed) == 12


@pytest.mark.parametrize(
    ("table", "column", "value", "said"),
    [
        ("steps", "requests", 77, "step 1 has 77 requests"),
        ("steps", "tokens", 77, "step 1 has 77 tokens"),
        ("steps", "end_ns", 0, "ends before it starts"),
        ("steps", "index", 9, "must be 1"),
        ("events", "server", None, "server of run"),
        ("events", "server", 3, "its server has 0"),
        ("events", "prompt_tokens", None, "prompt tokens of run"),
        ("events", "prompt_tokens", 1, "computes more tokens than its operation has"),
        ("step_runs", "count", 1000, "goes on to step"),
        ("step_runs", "start_position", 1 << 50, "2^40 or more"),
        ("step_runs", "tokens_per_step", 0, "out of range"),
        ("step_runs", "event", 99, "99"),
    ],
)
def test_an_execution_whose_steps_do_not_fit_is_refused(table, column, value, said):
    """ST-COST-043."""
    execution = changed(SERVED[0].execution(), table, column, 1, value)
    with pytest.raises(StepLogError) as caught:
        log_of_execution(execution, "x")
    assert any(said in finding.message for finding in caught.value.findings), caught.value.findings


def test_an_execution_without_steps_is_refused():
    execution = SERVED[0].execution()
    bare = Execution.from_arrow(
        execution.header.model_copy(update={"detail": []}),
        {name: execution[name].data for name in ("instances", "events")},
    )
    with pytest.raises(StepLogError) as caught:
        log_of_execution(bare, "x")
    assert "no steps" in caught.value.findings[0].message


def test_logs_of_the_samples_have_no_times(samples):
    with pytest.raises(StepLogError) as caught:
        read_log(samples / "vllm" / "serve_sched.jsonl")
    (finding,) = caught.value.findings
    assert "none of 139 steps has a time" in finding.message
    assert "sched_us is what scheduling took" in (finding.hint or "")
