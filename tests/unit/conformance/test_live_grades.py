"""What the witness saw is judged by its instants alone; what a replayer says of itself is held against them."""

from __future__ import annotations

import pytest

from semtrace_conformance.checks import judge
from semtrace_conformance.live.grade import Grades, grades, judge_live
from semtrace_conformance.live.releases import releases
from semtrace_conformance.live.reported import judge_reported
from semtrace_conformance.live.seen import Seen, observed
from semtrace_conformance.live.witnessed import distribution, judge_witnessed, percentile
from semtrace_conformance.live.work import Failed, Live, Operation, Retry, Wait
from semtrace_conformance.messages import Accepted, Rejected
from semtrace_conformance.suite import Case, Expected
from semtrace_conformance.witness import Entry, Script

MS = 1_000_000
BASE = 1_800_000_000_000_000_000
DIGEST = "blake3:" + 64 * "a"


def call(**more):
    return Operation(
        **{"sent": True, "prompt_tokens": 4, "prompt_digest": DIGEST, "output_tokens": 3, **more}
    )


def tool(duration_ns, **more):
    return Operation(duration_ns=duration_ns, **more)


def entry(name, arrival, end=None, first=None, **more):
    """An attempt; times are in ms after the first arrival."""
    end = arrival + 10 if end is None else end

    def at(time):
        return None if time is None else BASE + round(time * MS)

    return Entry(
        **{
            "number": 0, "request_id": f"semtrace-{name}", "request": None, "attempt": 1, "connection": 1, "on_connection": 1,
            "arrival_unix_ns": at(arrival), "arrival_stamp": "kernel", "complete_unix_ns": at(arrival),
            "path": "/v1/completions", "model": "witness", "stream": True, "prompt": "token_ids", "prompt_tokens": 4,
            "prompt_digest": DIGEST, "max_tokens": 3, "min_tokens": 3, "ignore_eos": True, "temperature": None,
            "lock_tokens": None, "lock_digest": None, "hints": [], "status": 200, "fault": None,
            "first_token_unix_ns": at(arrival + 5 if first is None else first), "end_unix_ns": at(end),
            "output_tokens": 3, "output_digest": DIGEST, "finish_reason": "length", "closed_by": None, **more,
        }
    )  # fmt: skip


def seen(*entries):
    return Seen.of(observed(entries, {"clock_step_ns": 0}))


def work(*operations, waits=(), arrivals=(0,), **more):
    return Live(
        operations=list(operations),
        waits=[Wait(source=each[0], target=each[1], trigger=each[2], lag_ns=each[3]) for each in waits],
        tasks=[0] * len(arrivals),
        arrivals_ns=list(arrivals),
        answers=[None],
        **more,
    )


def checks(live, *entries):
    return sorted({check for check, _ in judge_witnessed(live, seen(*entries))})


def said(live, *entries):
    return [message for _, message in judge_witnessed(live, seen(*entries))]


CHAIN = work(
    call(), tool(20 * MS), call(delay_ns=5 * MS), waits=[(0, 1, "finish", 0), (1, 2, "finish", 3 * MS)]
)


def test_what_is_on_time_is_right():
    assert said(CHAIN, entry("0-0", 0), entry("0-2", 10 + 20 + 3 + 5)) == []


def test_one_microsecond_and_one_part_in_2000_are_granted():
    release = 38 * MS
    for early_ns, found in ((1000 + 14_000, []), (1000 + 14_100, ["live.release"])):
        assert checks(CHAIN, entry("0-0", 0), entry("0-2", (release - early_ns) / MS)) == found


def test_early_requests_are_told_by_how_much():
    (message,) = said(CHAIN, entry("0-0", 0), entry("0-2", 36))
    assert message == "operation 2 of instance 0 came 2.000 ms before its release"


@pytest.mark.parametrize(("trigger", "bound"), [("finish", 40), ("first_token", 15), ("start", 7)])
def test_triggers(trigger, bound):
    live = work(call(), call(), waits=[(0, 1, trigger, 7 * MS)])
    first = entry("0-0", 0, end=33, first=8)
    (_, late) = [each.late_ns for each in releases(live, seen(first, entry("0-1", bound + 2)))]
    assert late == 2 * MS
    assert checks(live, first, entry("0-1", bound)) == []


def test_a_start_may_have_been_before_the_arrival():
    live = work(call(), call(), call(), waits=[(0, 1, "finish", 0), (1, 2, "start", 60 * MS)])
    first, slow = entry("0-0", 0), entry("0-1", 90)
    assert checks(live, first, slow, entry("0-2", 101)) == []
    assert checks(live, first, slow, entry("0-2", 99)) == ["live.release"]


def test_the_origin_is_the_latest_that_nothing_contradicts():
    live = work(call(), arrivals=[0, 50 * MS, 90 * MS])
    found = releases(live, seen(entry("0-0", 4), entry("1-0", 51), entry("2-0", 93)))
    assert [each.late_ns / MS for each in found] == [3, 0, 2]
    assert not any(each.early for each in found)


def test_who_sends_the_first_too_soon_makes_the_others_late():
    live = work(call(), arrivals=[0, 500 * MS, 600 * MS])
    assert checks(live, entry("0-0", 0), entry("1-0", 900), entry("2-0", 1000)) == ["live.lateness"]


def test_tools_after_an_arrival_are_counted_from_the_origin():
    live = work(tool(30 * MS), call(), call(), waits=[(0, 1, "finish", 0)])
    assert checks(live, entry("0-2", 0), entry("0-1", 31)) == []
    found = {each.operation: each.late_ns for each in releases(live, seen(entry("0-2", 0), entry("0-1", 31)))}
    assert found == {2: 0, 1: MS}


def test_closed_loops_follow_the_answers():
    live = Live(
        operations=[call()], tasks=[0, 0, 0, 0], arrivals_ns=[0, 5 * MS, None, None], loop=[0, 1, 2, 3],
        think_ns=20 * MS, answers=[0],
    )  # fmt: skip
    first, second = entry("0-0", 0, end=60), entry("1-0", 5, end=40)
    right = entry("2-0", 60), entry("3-0", 80)
    assert said(live, first, second, *right) == []
    assert checks(live, first, second, entry("2-0", 59), entry("3-0", 80)) == ["live.release"]
    assert checks(live, first, second, entry("2-0", 60), entry("3-0", 79)) == ["live.release"]


RETRY = Retry(attempts=3, wait_ns=40 * MS, factor=2)


def retried(count, **more):
    return work(
        call(), retry=RETRY, failed=[Failed(instance=0, operation=0, least=count, most=count, **more)]
    )


def failed(name, arrival, **more):
    return entry(name, arrival, **{"status": 500, "output_tokens": 0, "finish_reason": None, **more})


def test_attempts_wait_for_each_other():
    three = failed("0-0", 0), failed("0-0-2", 50), entry("0-0-3", 140)
    assert said(retried(3), *three) == []
    assert checks(retried(3), three[0], failed("0-0-2", 49), entry("0-0-3", 140)) == ["live.release"]
    assert checks(retried(3), *three[:2], entry("0-0-3", 139)) == ["live.release"]
    assert checks(retried(2), *three) == ["live.presence"]
    assert checks(retried(3), *three[:2]) == ["live.presence"]


def test_retry_after_lengthens_the_wait():
    live = retried(2).model_copy(update={"retry_after_ns": 1000 * MS})
    limited = failed("0-0", 0, status=429)
    assert checks(live, limited, entry("0-0-2", 1010)) == []
    assert checks(live, limited, entry("0-0-2", 50)) == ["live.release"]


def test_an_old_connection_that_ended_is_no_attempt():
    live = work(call(), retry=RETRY)
    cut = {"status": None, "closed_by": "witness", "first_token_unix_ns": None}
    assert said(live, failed("0-0", 0, on_connection=2, **cut), entry("0-0", 11)) == []
    assert checks(live, failed("0-0", 0, **cut), entry("0-0", 11)) == ["live.presence"]


def test_what_an_old_connection_cut_is_made_again_as_the_same_attempt():
    live = work(call(), retry=RETRY, failed=[Failed(instance=0, operation=0, least=1, most=2, resent=True)])
    cut = {"status": None, "closed_by": "witness", "first_token_unix_ns": None}
    old, new = failed("0-0", 0, on_connection=2, **cut), failed("0-0", 0, **cut)
    assert said(live, old, entry("0-0", 11)) == []
    assert said(live, new, entry("0-0-2", 51)) == []
    (message,) = said(live, old, entry("0-0-2", 51))
    assert message.endswith("was not made again at once as the same attempt (ST-LIV-043)")
    assert len(said(live, old)) == 1


def test_attempts_have_their_ordinals():
    assert checks(retried(2), failed("0-0", 0), entry("0-0-3", 300)) == ["live.presence"]
    assert checks(retried(2), failed("0-0-2", 0), entry("0-0", 300)) == ["live.presence"]
    live = work(call(), retry=RETRY, failed=[Failed(instance=0, operation=0, least=2, most=3)])
    assert checks(live, failed("0-0", 0), entry("0-0-3", 300)) == []  # the second found no server
    assert checks(live, failed("0-0", 0), entry("0-0-3", 60)) == ["live.release"]
    assert checks(live, failed("0-0", 0), entry("0-0-4", 290)) == ["live.presence"]


def test_presence():
    live = work(call(), tool(5), call())
    both = entry("0-0", 0), entry("0-2", 0)
    assert said(live, *both) == []
    assert said(live, both[0]) == ["operation 2 of instance 0 never came"]
    assert "came 2 times" in said(live, *both, entry("0-0", 30))[0]
    assert "must not be sent" in said(live, *both, entry("0-1", 30))[0]
    assert "which there is not" in said(live, *both, entry("1-0", 30))[0]
    assert "is the id of no request" in said(live, *both, entry("0-02", 30))[0]
    assert said(live, *both, entry("warm-1", 30)) == []
    skipped = Failed(instance=0, operation=2, least=0, most=0, outcome="skipped")
    live = work(call(), tool(5), call(), failed=[skipped])
    assert said(live, both[0]) == []
    assert checks(live, *both) == ["live.presence"]


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"prompt_tokens": 5}, "live.prompts"),
        ({"prompt_digest": "blake3:" + 64 * "b"}, "live.prompts"),
        ({"hints": ["x-semtrace-task"]}, "live.prompts"),
        ({"max_tokens": 4}, "live.locks"),
        ({"max_tokens": None}, "live.locks"),
        ({"min_tokens": None}, "live.locks"),
        ({"ignore_eos": None}, "live.locks"),
        ({"output_tokens": 2}, "live.locks"),
    ],
)
def test_prompts_and_lengths(change, check):
    assert checks(work(call()), entry("0-0", 0)) == []
    assert checks(work(call()), entry("0-0", 0, **change)) == [check]


@pytest.mark.parametrize(
    ("finish", "change", "found"),
    [
        ("length", {}, []),
        ("length", {"min_tokens": None}, []),
        ("length", {"ignore_eos": False}, ["live.locks"]),
        ("length", {"lock_digest": None, "lock_tokens": None}, ["live.locks"]),
        ("length", {"lock_digest": "blake3:" + 64 * "b"}, ["live.locks"]),
        ("length", {"output_digest": "blake3:" + 64 * "b"}, ["live.locks"]),
        ("length", {"finish_reason": "stop"}, ["live.locks"]),
        ("stop", {"ignore_eos": None, "finish_reason": "stop"}, []),
        ("stop", {"ignore_eos": True, "finish_reason": "stop"}, ["live.locks"]),
        ("stop", {"ignore_eos": None}, ["live.locks"]),
    ],
)
def test_locked_tokens(finish, change, found):
    live = work(call(output_digest=DIGEST, finish=finish), mode="token_locked")
    locked = {"lock_digest": DIGEST, "lock_tokens": 3, **change}
    assert checks(live, entry("0-0", 0, **locked)) == found


def test_what_the_server_spoils_is_no_fault_of_the_replayer():
    live = work(call(), failed=[Failed(instance=0, operation=0, astray=True)])
    assert checks(live, entry("0-0", 0, output_tokens=7)) == []


def test_time_limits():
    late = {"outcome": "timeout", "failure": "timeout"}
    live = work(call(), call(), waits=[(0, 1, "finish", 0)], timeout_ns=300 * MS, failed=[Failed(instance=0, operation=0, **late)])  # fmt: skip
    left = {
        "status": None,
        "closed_by": "client",
        "output_tokens": 0,
        "finish_reason": None,
        "first_token_unix_ns": None,
    }
    assert checks(live, entry("0-0", 0, end=300, **left), entry("0-1", 301)) == []
    assert checks(live, entry("0-0", 0, end=200, **left), entry("0-1", 301)) == ["live.attempts"]
    assert checks(live, entry("0-0", 0, end=2000, **left), entry("0-1", 301)) == ["live.attempts"]
    assert checks(live, entry("0-0", 0, end=300, **left), entry("0-1", 240)) == ["live.release"]


def test_concurrency():
    live = work(call(), call(), call(), concurrency=2)
    assert checks(live, entry("0-0", 0), entry("0-1", 0), entry("0-2", 10.1)) == []
    assert checks(live, entry("0-0", 0), entry("0-1", 0), entry("0-2", 9)) == ["live.concurrency"]


def test_lateness_is_of_half_and_of_nine_tenths():
    live = work(*(call() for _ in range(10)), waits=[(0, at, "finish", 0) for at in range(1, 10)])

    def late(*delays):
        return checks(
            live, entry("0-0", 0), *(entry(f"0-{at}", 10 + delay) for at, delay in enumerate(delays, 1))
        )

    assert late(*[99] * 9) == []
    assert late(*[101] * 5, *[0] * 4) == []
    assert late(*[101] * 6, *[0] * 3) == ["live.lateness"]
    assert late(1000, *[0] * 8) == []
    assert late(1000, 1000, *[0] * 7) == ["live.lateness"]


def test_percentiles_are_values_that_were_there():
    assert [percentile([1, 2, 3, 4], percent) for percent in (1, 25, 50, 51, 100)] == [1, 1, 2, 3, 4]
    assert distribution([]) == {"requests": 0}
    assert distribution([0, MS, MS + 1, 9 * MS])["within_1ms_ppm"] == 500_000


# -- what a replayer says of itself ---------------------------------------------------------------------------


BACKEND = {"name": "http", "settings": {"url": "http://x"}}
PLAN = {"work_digest": DIGEST, "name": "custom", "edges": [{"source": 0, "target": 2, "lag_ns": 5}]}


def execution(rows, **header):
    columns = (
        "instance", "operation", "ready_ns", "released_ns", "submitted_ns", "first_token_ns", "finished_ns", "outcome",
        "prompt_tokens", "output_tokens", "output_digest", "attempts", "request_id", "finish_reason", "failure",
    )  # fmt: skip
    return {
        "header": {
            "clock": "wall",
            "measured_at": "client",
            "mode": "length_locked",
            "origin_unix_ns": BASE,
            "tolerance_ns": MS,
            "work_digest": DIGEST,
            "plan": PLAN | {"base": "dag", "groups": []},
            "plan_digest": DIGEST,
            "scenario": {"mode": "length_locked", "backend": BACKEND, "copies": 1},
            "backend": BACKEND | {"version": "1"},
            **header,
        },
        "instances": [{"task": 0, "arrival_ns": 0, "outcome": 2}],
        "events": {name: [row.get(name) for row in rows] for name in columns},
    }


def own(operation, released, end, **more):
    row = {
        "instance": 0, "operation": operation, "ready_ns": round(released * MS), "released_ns": round(released * MS),
        "submitted_ns": round(released * MS), "finished_ns": round(end * MS), "outcome": 1,
    }  # fmt: skip
    sent = {
        "first_token_ns": round((end - 5) * MS), "prompt_tokens": 4, "output_tokens": 3, "attempts": 1,
        "request_id": f"semtrace-0-{operation}", "finish_reason": 2,
    }  # fmt: skip
    return row | (sent if operation != 1 else {}) | more


PLAIN = work(
    call(), tool(20 * MS), call(), waits=[(0, 1, "finish", 0), (1, 2, "finish", 0)], plan=PLAN, plan_digest=DIGEST,
    scenario={"copies": 1},
)  # fmt: skip
CAME = entry("0-0", 0), entry("0-2", 30.5)
ROWS = [own(0, 0, 10.1), own(1, 10.1, 30.1), own(2, 30.1, 40.6)]


def reported(rows, live=PLAIN, came=CAME, **header):
    return sorted({check for check, _ in judge_reported(live, seen(*came), execution(rows, **header))})


def test_an_honest_execution_is_right():
    assert reported(ROWS) == []


@pytest.mark.parametrize(
    ("at", "change", "check"),
    [
        (0, {"outcome": 2}, "live.record"),
        (0, {"failure": 2}, "live.record"),
        (0, {"prompt_tokens": 5}, "live.record"),
        (0, {"output_tokens": None}, "live.record"),
        (0, {"attempts": 2}, "live.record"),
        (0, {"request_id": "semtrace-0-0-2"}, "live.record"),
        (0, {"finish_reason": 1}, "live.record"),
        (0, {"finished_ns": 8 * MS}, "live.times"),
        (0, {"first_token_ns": 3 * MS}, "live.times"),
        (1, {"finished_ns": 30 * MS}, "live.times"),
        (1, {"ready_ns": 10 * MS}, "live.times"),
        (2, {"released_ns": 30 * MS}, "live.times"),
        (2, {"submitted_ns": 30 * MS}, "live.times"),
        (2, {"submitted_ns": 32 * MS}, "live.times"),
    ],
)
def test_what_is_said_otherwise_than_it_was(at, change, check):
    rows = [row | (change if place == at else {}) for place, row in enumerate(ROWS)]
    assert check in reported(rows)


def test_lateness_cannot_be_hidden_before_the_submission():
    late = entry("0-0", 0), entry("0-2", 30.5 + 400)
    assert reported([*ROWS[:2], own(2, 30.1, 441)], came=late) == ["live.times"]


def test_headers_and_rows():
    assert reported(ROWS, origin_unix_ns=None) == ["live.header"]
    assert reported(ROWS[:2]) == ["live.record"]
    assert reported(ROWS, live=PLAIN.model_copy(update={"tasks": [0, 0]})) == ["live.record"]


@pytest.mark.parametrize(
    "header",
    [
        {"clock": "virtual"},
        {"measured_at": "server"},
        {"mode": "native"},
        {"tolerance_ns": 0},
        {"tolerance_ns": None},
        {"plan": None},
        {"plan": {**PLAN, "name": "dag"}},
        {"plan": {**PLAN, "edges": []}},
        {"plan": {**PLAN, "edges": [{**PLAN["edges"][0], "lag_ns": 4}]}},
        {"plan_digest": None},
        {"work_digest": "blake3:" + 64 * "b"},
        {"scenario": None},
        {"scenario": {"backend": BACKEND}},
        {"scenario": {"copies": 2, "backend": BACKEND}},
        {"scenario": {"copies": 1}},
        {"scenario": {"copies": 1, "backend": BACKEND, "mode": "token_locked"}},
        {"scenario": {"copies": 1, "backend": {"name": "http", "settings": {"url": "http://y"}}}},
        {"backend": {"name": "other", "settings": BACKEND["settings"]}},
        {"backend": None},
    ],
)
def test_a_header_says_what_was_replayed_and_does_not_contradict_itself(header):
    assert reported(ROWS, **header) == ["live.header"]


def test_more_members_in_a_header_do_no_harm():
    more = {"mode": "length_locked", "copies": 1, "arrivals": {"kind": "together"}, "backend": BACKEND}
    edges = [PLAN["edges"][0] | {"trigger": "finish"}]
    assert reported(ROWS, scenario=more, plan={**PLAN, "edges": edges}) == []
    assert reported(ROWS, live=PLAIN.model_copy(update={"tolerance_ns": 7}), tolerance_ns=7) == []


@pytest.mark.parametrize("key", ["ready_ns", "released_ns", "submitted_ns", "finished_ns"])
def test_no_time_is_missing_of_what_ran(key):
    rows = [row | ({key: None} if place == 1 else {}) for place, row in enumerate(ROWS)]
    assert "live.record" in reported(rows)


def test_instances_arrive_and_run_to_their_end():
    for change in ({"outcome": 3}, {"outcome": 1}, {"arrival_ns": None}):
        left = execution(ROWS)
        left["instances"][0] |= change
        assert "live.record" in {check for check, _ in judge_reported(PLAIN, seen(*CAME), left)}
    left = execution([*ROWS[:2], ROWS[2] | {"outcome": 7}])
    left["instances"][0]["outcome"] = 1
    assert not any("ran to its end" in message for _, message in judge_reported(PLAIN, seen(*CAME), left))


def test_what_the_server_does_not_tell_is_null():
    live = PLAIN.model_copy(update={"usage": False})
    assert reported(ROWS, live=live) == ["live.record"]
    untold = [row | {"prompt_tokens": None} for row in ROWS]
    assert reported(untold, live=live) == []  # the ids were told, and can be counted
    assert reported([row | {"output_tokens": None} for row in untold], live=live) == []


def test_a_clock_that_was_set_shows_nothing():
    came = observed(CAME, {"clock_step_ns": 2 * MS})
    (problem,) = judge_live(PLAIN, {"witness": came, "record_asked": False})
    assert problem == (
        "live.release",
        "the clock of this machine was set by 2000000 ns meanwhile: nothing can be said, ask again",
    )


# -- verdicts and claims --------------------------------------------------------------------------------------


CASE = Case(
    id="live/x",
    title="x",
    profile="live",
    kind="replay_live",
    requirements=["ST-LIV-001"],
    inputs={},
    witness=Script(),
)
EXPECTED = Expected(case="live/x", verdict="accept", facts={"outcomes": {"ok": 3}}, live=PLAIN)
ANSWER = Accepted(type="answer", id="1", verdict="accept", facts={"outcomes": {"ok": 3}})


def found(answer, expected=EXPECTED, **seen_):
    return sorted({failure.check for failure in judge(CASE, expected, answer, observed=seen_)})


def test_both_grades_make_a_verdict():
    came = observed(CAME, {"clock_step_ns": 0})
    left = {"execution": execution(ROWS)}
    assert found(ANSWER, witness=came, record_asked=True, **left) == []
    assert found(ANSWER, witness=came, record_asked=False) == []
    assert found(ANSWER, witness=came, record_asked=True) == ["live.record"]
    assert found(ANSWER, witness=came, record_asked=True, problems=["no ZIP"]) == ["live.record"]
    assert found(ANSWER) == ["live.presence"]
    other = ANSWER.model_copy(update={"facts": {"outcomes": {"ok": 2, "error": 1}}})
    assert found(other, witness=came, record_asked=False) == ["live.outcomes"]


def test_what_is_refused_is_not_begun():
    refused = Rejected(
        type="answer", id="1", verdict="reject", phase="unreplayable", requirement="ST-LIV-024"
    )
    wrong = Expected(case="live/x", verdict="reject", phase="unreplayable", requirements=["ST-LIV-024"])
    assert found(refused, wrong, witness=observed([entry("ask-1", 0)], {"clock_step_ns": 0})) == []
    assert found(refused, wrong, witness=observed(CAME, {"clock_step_ns": 0})) == ["live.presence"]


def test_claims():
    came = {"witness": observed(CAME, {"clock_step_ns": 0}), "record_asked": True}
    alone = came | {"record_asked": False}
    claimed = grades(
        [
            (PLAIN, came, frozenset()),
            (PLAIN, came, frozenset({"live.times"})),
            (PLAIN, None, frozenset({"answer"})),
        ]
    )
    assert claimed.witnessed.model_dump() == {"points": 2, "of": 3}
    assert claimed.self_reported.model_dump() == {"points": 1, "of": 2}
    assert claimed.lateness == {
        "requests": 4, "within_1ms_ppm": 1_000_000, "p50_ns": 0, "p90_ns": 500_000, "p99_ns": 500_000, "max_ns": 500_000,
    }  # fmt: skip
    assert grades([(PLAIN, alone, frozenset())]).self_reported is None
    assert isinstance(claimed, Grades)


def test_a_record_is_judged_or_said_to_be_missing():
    assert [check for check, _ in judge_live(PLAIN, {})] == ["live.presence"]
