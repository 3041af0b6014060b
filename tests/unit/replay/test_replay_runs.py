"""What a replay refuses, what it records, and what a scenario does to it."""

from __future__ import annotations

from typing import Any

import pytest

from semtrace.errors import FormatError, ReplayError, SemtraceError, UnsupportedError, UsageError
from semtrace.graph.plan import Plan, dag, work_only
from semtrace.records.columns import NULL
from semtrace.records.enums import Evidence, Outcome
from semtrace.replay import run
from semtrace.replay.arrivals import instances, settle
from semtrace.replay.controller import TIMES
from semtrace.replay.ideal import IdealBackend
from semtrace.replay.run import replay, replay_findings
from semtrace.replay.scenario import Scenario
from semtrace.store.digests import execution_digest
from support.graphs import SETTINGS, Graph, graph, scenario

PAIR = {
    "operations": [
        {"name": "ask", "kind": "llm", "prompt": 5, "output": 2},
        {"name": "look", "duration_ns": 7, "after": ["ask"]},
    ]
}


def refused(made: Graph, plan: Plan | None = None, **members: Any) -> SemtraceError:
    """The error of a replay that must leave nothing behind."""
    with pytest.raises(SemtraceError) as caught:
        replay(made.trace, plan or dag(made.work), scenario(members))
    return caught.value


# -- refusals ---------------------------------------------------------------------------------------------------


def test_unknown_counts_and_durations_are_all_found_before_the_run():
    """ST-REL-011, ST-REL-012, ST-REL-013."""
    made = graph(
        {
            "operations": [
                {"name": "a", "kind": "llm", "output": 1},
                {"name": "b", "kind": "llm", "prompt": 1},
                {"name": "c", "kind": "llm", "prompt": 1, "status": "cancelled"},
                {"name": "d", "kind": "embed"},
                {"name": "e", "kind": "llm", "prompt": 1, "output": 1, "status": "error"},
                {"name": "f", "kind": "human"},
                {"name": "g", "kind": "embed", "prompt": 1},
                {"name": "h", "kind": "llm", "status": "error", "duration_ns": 1},
            ]
        }
    )
    found = [
        (finding.requirement, finding.column, finding.rows, finding.count)
        for finding in replay_findings(made.trace)
    ]
    assert found == [
        ("ST-REL-011", "prompt_tokens", (0, 3), 2),
        ("ST-REL-011", "output_tokens", (1, 2), 2),
        ("ST-REL-012", "duration_ns", (4, 5), 2),
    ]
    error = refused(made)
    assert (error.code, error.requirement) == ("replay.unknown", "ST-REL-011")
    for part in (
        "operations.prompt_tokens[0, 3]",
        "operations.output_tokens[1, 2]",
        "operations.duration_ns[4, 5]",
    ):
        assert part in error.message


def test_an_illegal_plan_is_refused_with_the_path():
    """ST-PLAN-016."""
    made = graph(PAIR)
    error = refused(made, made.plan({"edges": [{"source": "look", "target": "ask"}]}))
    assert (error.code, error.requirement) == ("plan.illegal", "ST-PLAN-010")
    assert "0 cannot wait for 1, which itself waits for 0: 0 → 1" in error.message


def test_every_reason_against_a_plan_is_told_or_counted():
    names = [f"o{at}" for at in range(13)]
    made = graph(
        {
            "operations": [
                {"name": name, "duration_ns": 1, "after": names[at - 1 : at] if at else []}
                for at, name in enumerate(names)
            ]
        }
    )
    back = [{"source": names[at + 1], "target": names[at]} for at in range(12)]
    error = refused(made, made.plan({"edges": back}))
    assert error.message.count("ST-PLAN-010") == 10
    assert error.message.endswith("and 2 more")


def test_a_plan_of_other_work_is_refused():
    """ST-PLAN-001."""
    other = graph({"operations": [{"name": "a", "duration_ns": 1}]})
    error = refused(graph(PAIR), dag(other.work))
    assert error.requirement == "ST-PLAN-001"
    assert other.work[:19] in error.message


def test_a_plan_for_analysis_runs_only_as_such():
    """ST-PLAN-004."""
    made = graph(PAIR)
    error = refused(made, work_only(made.work))
    assert (error.code, error.requirement) == ("plan.illegal", "ST-PLAN-004")
    execution = replay(made.trace, work_only(made.work), scenario(), analysis=True)
    assert execution.header.plan is not None
    assert execution.header.plan["base"] == "work-only"
    wrong = made.plan({"base": "work-only", "edges": [{"source": "look", "target": "ask"}]})
    with pytest.raises(ReplayError) as caught:  # being for analysis excuses nothing else
        replay(made.trace, wrong, scenario(), analysis=True)
    assert caught.value.requirement == "ST-PLAN-010"


@pytest.mark.parametrize(
    ("settings", "name"), [({"c_0": 1}, "ideal"), ({"c0_ns": -1}, "ideal"), ({"c0_ns": 1 << 40}, "ideal")]
)
def test_settings_that_the_backend_does_not_have(settings: dict[str, int], name: str):
    """ST-SCN-012, ST-REL-021."""
    made = graph(PAIR)
    with pytest.raises(FormatError) as caught:
        replay(
            made.trace,
            dag(made.work),
            Scenario.parse({"backend": {"name": name, "settings": settings}}, path="s"),
        )
    assert caught.value.path == "backend.settings"


def test_an_unknown_backend():
    """ST-SCN-012."""
    made = graph(PAIR)
    with pytest.raises(UsageError) as caught:
        replay(made.trace, dag(made.work), scenario({"backend": {"name": "idea"}}))
    assert caught.value.code == "replay.backend"
    assert "ideal" in (caught.value.hint or "")


def test_a_mode_that_the_backend_cannot_hold():
    """ST-SCN-010."""
    error = refused(graph(PAIR), mode="token_locked")
    assert isinstance(error, UnsupportedError)
    assert error.requirement == "ST-SCN-010"


def made_of(kind: type[IdealBackend]) -> Any:
    """What makes a backend of this kind for a run."""
    return lambda setup: kind(setup.trace, setup.scenario.backend.settings)


def test_what_a_backend_refuses(monkeypatch: pytest.MonkeyPatch):
    from semtrace.check.finding import Finding

    class Small(IdealBackend):
        def refuse(self, trace: Any, operations: Any) -> list[Finding]:
            del trace
            return [Finding("ST-REL-010", f"too large: {list(operations)}")]

    monkeypatch.setitem(run.BACKENDS, "ideal", made_of(Small))
    error = refused(graph(PAIR))
    assert (error.code, "too large: [0]" in error.message) == ("replay.refused", True)


@pytest.mark.parametrize(
    "short",
    [
        [{"name": "a", "duration_ns": (1 << 63) - 1, "delay_ns": 1}],
        [{"name": "a", "duration_ns": 1, "delay_ns": (1 << 63) - 1}],
        [{"name": "a", "kind": "llm", "prompt": 1 << 62, "output": 1}],
        [
            {"name": "a", "duration_ns": 1 << 62},
            {"name": "b", "duration_ns": 1, "after": [{"source": "a", "lag_ns": 1 << 62}]},
        ],
    ],
)
def test_times_beyond_63_bits(short: list[dict[str, Any]]):
    """ST-REL-001."""
    error = refused(graph({"operations": short}), backend={"name": "ideal", "settings": {"c_pre_ns": 4}})
    assert (error.code, error.requirement) == ("replay.overflow", "ST-REL-001")


def test_the_longest_time_that_fits():
    made = graph({"operations": [{"name": "a", "duration_ns": (1 << 63) - 1}]})
    execution = replay(made.trace, dag(made.work), scenario())
    assert execution.events.ints("finished_ns").tolist() == [(1 << 63) - 1]


# -- what is recorded -------------------------------------------------------------------------------------------


def test_columns_of_events():
    """ST-REL-031, ST-REL-032, ST-REL-033."""
    made = graph(
        {
            "operations": [
                {"name": "ask", "kind": "llm", "prompt": 5, "output": 2},
                {"name": "mute", "kind": "llm", "prompt": 5, "output": 0},
                {"name": "embed", "kind": "embed", "prompt": 5},
                {"name": "look", "duration_ns": 7},
            ]
        }
    )
    execution = replay(made.trace, dag(made.work), scenario({"copies": 2}))
    rows = execution.events.data.to_pylist()
    assert [(row["instance"], row["operation"]) for row in rows] == [
        (at, op) for at in (0, 1) for op in range(4)
    ]
    always = {"instance", "operation", "ready_ns", "released_ns", "submitted_ns", "finished_ns", "outcome"}
    always |= {
        f"{name}_evidence"
        for name in ("ready", "released", "submitted", "scheduled", "first_token", "finished")
    }
    ran = {"scheduled_ns", "preemptions", "attempts", "server", "prompt_tokens"}
    known = [
        always | ran | {"output_tokens", "first_token_ns"},
        always | ran | {"output_tokens"},
        always | ran,
        always,
    ]
    for row, columns in zip(rows, known * 2, strict=True):
        assert {name for name, value in row.items() if value is not None} == columns
        for name in TIMES:
            evidence = Evidence.MISSING if row[name] is None else Evidence.OBSERVED
            assert row[name.replace("_ns", "_evidence")] == evidence
    assert (rows[0]["preemptions"], rows[0]["attempts"], rows[0]["server"]) == (0, 1, 0)
    assert rows[0]["scheduled_ns"] == rows[0]["submitted_ns"]


def test_instances():
    """ST-REL-030, ST-SCN-003."""
    made = graph({"tasks": [{}, {}], "operations": [{"name": "a", "task": 1, "duration_ns": 1}]})
    rows = replay(made.trace, dag(made.work), scenario({"copies": 2})).instances.data.to_pylist()
    assert [(row["task"], row["instance"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert {row["outcome"] for row in rows} == {Outcome.SUCCESS}


def test_operations_that_a_backend_never_ends_are_unfinished(monkeypatch: pytest.MonkeyPatch):
    class Forgetful(IdealBackend):
        def submit(self, now_ns: int, requests: Any) -> None:
            super().submit(now_ns, [each for each in requests if each.operation != 0])

    monkeypatch.setitem(run.BACKENDS, "ideal", made_of(Forgetful))
    made = graph(
        {
            **PAIR,
            "tasks": [{}, {}],
            "operations": [*PAIR["operations"], {"name": "x", "task": 1, "duration_ns": 3}],
        }
    )
    execution = replay(made.trace, dag(made.work), scenario())
    assert execution.instances.ints("outcome").tolist() == [Outcome.UNKNOWN, Outcome.SUCCESS]
    assert (execution.events.ints("finished_ns") == NULL).tolist() == [True, True, False]


def test_the_header():
    """ST-REL-034, ST-SCN-013."""
    made = graph(PAIR)
    plan = made.plan({})
    arrivals = {"kind": "poisson", "mean_ns": 50, "seed": 3}
    execution = replay(made.trace, plan, scenario({"copies": 3, "arrivals": arrivals, "tolerance_ns": 9}))
    header = execution.header
    assert (header.work_digest, header.plan_digest) == (made.work, plan.content_digest())
    assert Plan.parse(header.plan, path="plan") == plan
    assert (header.mode, header.clock, header.tolerance_ns) == ("length_locked", "virtual", 0)
    assert (header.measured_at, header.detail) == ("simulator", [])
    assert (header.backend.name, header.backend.settings) == ("ideal", SETTINGS)
    assert header.seeds == {"arrivals": 3}
    assert header.scenario is not None
    drawn = header.scenario["arrivals"]
    assert drawn["kind"] == "drawn"
    assert drawn["drawn_from"] == arrivals
    assert execution.instances.ints("arrival_ns").tolist() == drawn["times_ns"]
    defaults = replay(made.trace, plan, Scenario()).header.backend.settings
    assert defaults == {"c0_ns": 20_000_000, "c_pre_ns": 100_000, "c_dec_ns": 10_000_000}


def test_progress_is_told_now_and_then():
    made = graph(PAIR)
    told: list[tuple[int, int]] = []
    replay(
        made.trace, dag(made.work), scenario({"copies": 1100}), progress=lambda *numbers: told.append(numbers)
    )
    assert told == [(1024, 2200), (2048, 2200)]


# -- scenarios --------------------------------------------------------------------------------------------------


def test_arrivals_are_sent_copy_by_copy():
    """ST-SCN-004, ST-SCN-005."""
    made = graph({"tasks": [{}, {}, {}], "operations": []})
    times = {"kind": "drawn", "times_ns": [9, 1, 5, 0, 7, 3]}
    execution = replay(made.trace, dag(made.work), scenario({"copies": 2, "arrivals": times}))
    assert execution.instances.ints("arrival_ns").tolist() == [9, 0, 1, 7, 5, 3]


@pytest.mark.parametrize(
    ("arrivals", "kind"), [([4, 2], "recorded"), ([4, None], "together"), ([], "recorded")]
)
def test_arrivals_left_out(arrivals: list[int | None], kind: str):
    """ST-SCN-007."""
    made = graph({"tasks": [{"arrival_ns": arrival} for arrival in arrivals], "operations": []})
    settled = settle(made.trace, Scenario())
    assert settled.arrivals is not None
    assert settled.arrivals.kind == kind


def test_recorded_arrivals_that_are_missing():
    """ST-SCN-001."""
    made = graph({"tasks": [{"arrival_ns": 1}, {}], "operations": []})
    error = refused(made, arrivals={"kind": "recorded"})
    assert (error.requirement, error.path) == ("ST-SCN-001", "tasks[1].arrival_ns")


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_drawn_arrivals(count: int):
    """ST-SCN-009."""
    made = graph({"tasks": [{}], "operations": []})
    error = refused(made, copies=2, arrivals={"kind": "drawn", "times_ns": [0] * count})
    assert (error.requirement, f"{count} arrival times for 2 instances" in error.message) == (
        "ST-SCN-009",
        True,
    )


def test_poisson_arrivals_are_drawn_once():
    """ST-SCN-008."""
    made = graph({"tasks": [{}, {}], "operations": []})

    def drawn(seed: int, mean: int = 1_000_000) -> list[int]:
        arrivals = {"kind": "poisson", "mean_ns": mean, "seed": seed}
        settled = settle(made.trace, scenario({"copies": 500, "arrivals": arrivals}))
        assert settle(made.trace, settled) == settled
        assert settled.arrivals is not None
        assert settled.arrivals.kind == "drawn"
        return settled.arrivals.times_ns

    times = drawn(1)
    assert times == drawn(1) != drawn(2)
    assert times == sorted(times)
    assert 0.9e9 < times[-1] < 1.1e9  # 1000 intervals; a standard deviation is 3 %
    assert drawn(1, mean=1)[-1] > 0
    error = refused(made, copies=500, arrivals={"kind": "poisson", "mean_ns": (1 << 53) - 1})
    assert (error.requirement, error.path) == ("ST-SCN-008", "scenario.arrivals.mean_ns")


@pytest.mark.parametrize(
    ("members", "groups"),
    [
        ({}, [0, 1, 2, 0, 1, 2]),
        ({"salt": "copy"}, [0, 1, 2, 0, 1, 2]),
        ({"salt": "instance"}, [0, 1, 2, 3, 4, 5]),
        ({"salt": "none"}, [0, 0, 0, 0, 0, 0]),
    ],
)
def test_who_shares_prefixes(members: dict[str, Any], groups: list[int]):
    """ST-SCN-011: by default, two tasks share inside of each of three copies."""
    made = graph({**PAIR, "tasks": [{}, {}]})
    rows = instances(made.trace, scenario({"copies": 3, **members}))
    assert rows.task.tolist() == [0, 0, 0, 1, 1, 1]
    assert rows.prefix_group.tolist() == groups


@pytest.mark.parametrize(
    "members",
    [
        {"salt": "instance"},
        {"salt": "none"},
        {"tolerance_ns": 5},
        {"deadline_ns": 5},
        {"window_ns": 5},
        {"notes": "a remark"},
        {"example.org/extension": 1},
    ],
)
def test_what_changes_no_time(members: dict[str, Any]):
    """ST-SCN-011, ST-SCN-013, ST-SCN-014."""
    made = graph(PAIR)
    plain, other = (replay(made.trace, dag(made.work), scenario(each)) for each in ({}, members))
    assert execution_digest(plain) == execution_digest(other)


@pytest.mark.parametrize(
    "members",
    [
        {"copies": 0},
        {"copies": 1_000_001},
        {"mode": "free"},
        {"salt": "pepper"},
        {"tolerance_ns": -1},
        {"deadline_ns": 1 << 53},
        {"arrivals": {"kind": "closed_loop"}},
        {"arrivals": {"kind": "closed_loop", "users": 0}},
        {"arrivals": {"kind": "poisson", "mean_ns": 0}},
        {"arrivals": {"kind": "drawn", "times_ns": [-1]}},
        {"arrivals": {"kind": "bursts"}},
        {"arrivals": {"kind": "together", "user": 1}},
        {"copy": 2},
    ],
)
def test_documents_that_are_no_scenario(members: dict[str, Any]):
    """ST-SCN-015."""
    with pytest.raises(FormatError):
        Scenario.parse(members, path="scenario")


def test_equal_requests_of_one_instant_come_in_order(monkeypatch: pytest.MonkeyPatch):
    """ST-REL-017: by instance, then operation, within what is found at once."""
    seen: list[tuple[int, int, int]] = []

    class Watching(IdealBackend):
        def submit(self, now_ns: int, requests: Any) -> None:
            seen.extend((now_ns, each.instance, each.operation) for each in requests)
            super().submit(now_ns, requests)

    monkeypatch.setitem(run.BACKENDS, "ideal", made_of(Watching))
    ask = {"kind": "llm", "prompt": 0, "output": 1}
    made = graph(
        {
            "tasks": [{}, {}],
            "operations": [{"name": name, "task": at // 2, **ask} for at, name in enumerate("abcd")],
        }
    )
    replay(made.trace, dag(made.work), scenario({"copies": 2}))
    assert seen == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (0, 2, 2), (0, 2, 3), (0, 3, 2), (0, 3, 3)]
