"""Starts that no dependency explains become delays; what contradicts the dependencies is named, not bent."""

from __future__ import annotations

import pytest

from semtrace.build import TraceBuilder, explain_starts
from semtrace.errors import FormatError
from semtrace.records.enums import OperationKind, Trigger


@pytest.fixture
def builder():
    return TraceBuilder()


def seen(builder, task, submitted=None, finished=None, first_token=None):
    operation = builder.operation(task, OperationKind.LLM, f"op {submitted}", started_ns=submitted)
    builder.observe(operation, submitted_ns=submitted, finished_ns=finished, first_token_ns=first_token)
    return operation


def delays(builder):
    return [row["external_delay_ns"] for row in builder.rows["operations"]]


def test_a_task_without_arrival_arrives_with_its_first_start(builder):
    first, second = builder.task("a"), builder.task("b", arrival_ns=3)
    seen(builder, first, 50, 60)
    seen(builder, first, 40, 60)
    seen(builder, second, 7, 9)
    explained = explain_starts(builder)
    assert [task["arrival_ns"] for task in builder.rows["tasks"]] == [40, 3]
    assert delays(builder) == [10, 0, 4]
    assert explained.delayed == [0, 2]
    assert explained.delay_ns == 14
    assert explained.unexplained == explained.early == []


def test_a_chain_waits_for_the_last_of_its_predecessors(builder):
    task = builder.task("t", arrival_ns=0)
    a, b = seen(builder, task, 0, 10), seen(builder, task, 0, 25)
    c = seen(builder, task, 30, 40)
    builder.edge(c, a)
    builder.edge(c, b)
    explained = explain_starts(builder)
    assert delays(builder) == [0, 0, 5]
    assert explained.delayed == [c]


@pytest.mark.parametrize(
    ("trigger", "lag", "delay"),
    [(Trigger.FINISH, 0, 60), (Trigger.FINISH, 25, 35), (Trigger.START, 0, 90), (Trigger.FIRST_TOKEN, 1, 84)],
)
def test_triggers_and_lags_count(builder, trigger, lag, delay):
    task = builder.task("t", arrival_ns=0)
    a = seen(builder, task, 10, 40, 15)
    b = seen(builder, task, 100, 120)
    builder.update_operation(a, external_delay_ns=0)
    builder.edge(b, a, trigger=trigger, lag_ns=lag)
    explain_starts(builder)
    assert delays(builder)[b] == delay


def test_the_lag_of_every_edge_counts(builder):
    task = builder.task("t", arrival_ns=0)
    a, b, c = seen(builder, task, 0, 10), seen(builder, task, 0, 10), seen(builder, task, 50, 60)
    builder.edge(c, a, lag_ns=7)
    builder.edge(c, b, lag_ns=9)
    d = seen(builder, task, 50, 60)
    builder.edge(d, a, lag_ns=9)
    builder.edge(d, b, lag_ns=7)
    explain_starts(builder)
    assert delays(builder) == [0, 0, 31, 31]


def test_implied_edges_count_too(builder):
    task = builder.task("t", arrival_ns=0)
    a, b, c = seen(builder, task, 0, 10), seen(builder, task, 12, 20), seen(builder, task, 26, 30)
    builder.request(a, [{"role": "user", "content": "x"}])
    builder.request(b, [{"role": "user", "content": "x"}], base=a)
    builder.read(c, builder.version(builder.state("n", "s"), "v", writer=b))
    explain_starts(builder)
    assert delays(builder) == [0, 2, 6]


def test_what_cannot_be_known_is_said(builder):
    task = builder.task("t", arrival_ns=0)
    unended, unseen = seen(builder, task, 0), seen(builder, task)
    b, c = seen(builder, task, 50, 60), seen(builder, task, 70, 80)
    builder.edge(b, unended)
    builder.edge(c, unseen)
    builder.edge(c, b)
    explained = explain_starts(builder)
    assert explained.unexplained == [b, c]
    assert explained.delayed == []
    assert delays(builder) == [0, 0, 0, 0], "no delay is made up"


def test_a_start_before_its_dependencies_is_named(builder):
    task = builder.task("t", arrival_ns=0)
    a = seen(builder, task, 0, 10)
    b = seen(builder, task, 8, 20)
    builder.edge(b, a)
    explained = explain_starts(builder)
    assert explained.early == [b]
    assert delays(builder) == [0, 0]


def test_a_start_before_the_arrival_is_named(builder):
    seen(builder, builder.task("t", arrival_ns=5), 3, 9)
    assert explain_starts(builder).early == [0]


def test_an_exact_start_needs_no_delay(builder):
    task = builder.task("t", arrival_ns=0)
    a, b = seen(builder, task, 0, 10), seen(builder, task, 10, 20)
    builder.edge(b, a)
    explained = explain_starts(builder)
    assert explained.delayed == explained.early == explained.unexplained == []


def test_tasks_without_a_start_keep_an_unknown_arrival(builder):
    task = builder.task("t")
    builder.operation(task, OperationKind.LLM, "x")
    assert explain_starts(builder).delayed == []
    assert builder.rows["tasks"][0]["arrival_ns"] is None


def test_a_delay_that_an_adapter_states_stays(builder):
    task = builder.task("t", arrival_ns=0)
    stated, other = seen(builder, task, 10, 20), seen(builder, task, 30, 40)
    builder.update_operation(stated, external_delay_ns=4)
    explained = explain_starts(builder)
    assert delays(builder) == [4, 30]
    assert (explained.delayed, explained.delay_ns) == ([other], 30)


def test_times_that_no_sum_of_64_bits_holds_are_refused(builder):
    task = builder.task("t", arrival_ns=0)
    for time in (1 << 61, -(1 << 61), 1 << 70):
        seen(builder, task, time, 3)
        with pytest.raises(FormatError):
            explain_starts(builder)
        builder.observed.clear()
