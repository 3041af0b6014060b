"""One fault of each kind on the witness: it ends as the outcome that the standard declares, and the audit names it."""

import contextlib
import subprocess
import sys

import pytest

from semtrace.build.builder import TraceBuilder
from semtrace.measure.audit import audit
from semtrace.records.columns import NULL
from semtrace.records.enums import EventOutcome, Failure, FinishReason, OperationKind, Role
from semtrace.records.media import TOKEN_IDS_TYPE
from support.live_runs import HOUR_NS, MS, Witness, rows, run, witness

OUTPUT = 5
WHOLE = (EventOutcome.OK, NULL)
LOST = (EventOutcome.ERROR, Failure.RESET)
FAULTS = {
    "none": (None, WHOLE, 1, set()),
    "429, then fine": ({"kind": "status", "status": 429}, WHOLE, 2, set()),
    "500 for ever": ({"kind": "status", "status": 500}, (EventOutcome.ERROR, Failure.SERVER_ERROR), 3, {"ST-AUD-003"}),
    "400": ({"kind": "status", "status": 400}, (EventOutcome.REFUSED, Failure.REJECTED), 1, {"ST-AUD-003"}),
    "reset": ({"kind": "reset"}, LOST, 3, {"ST-AUD-003"}),
    "reset mid-stream": ({"kind": "reset", "after_tokens": 2}, LOST, 3, {"ST-AUD-003"}),
    "truncated stream": ({"kind": "truncated", "after_tokens": 2}, (EventOutcome.ERROR, Failure.TRUNCATED), 3, {"ST-AUD-003"}),
    "nonsense": ({"kind": "garbage"}, (EventOutcome.ERROR, Failure.PROTOCOL), 1, {"ST-AUD-003"}),
    "silence": ({"kind": "hang", "after_tokens": 1}, (EventOutcome.TIMEOUT, Failure.TIMEOUT), 1, {"ST-AUD-003"}),
    "one token less": ({"kind": "count", "delta": -1}, WHOLE, 1, {"ST-AUD-021", "ST-AUD-022"}),
    "one token more": ({"kind": "count", "delta": 1}, WHOLE, 1, {"ST-AUD-021", "ST-AUD-022"}),
    "a wrong id": ({"kind": "ids", "position": 2}, WHOLE, 1, {"ST-AUD-022"}),
    "an early end": ({"kind": "eos", "after_tokens": 2}, WHOLE, 1, {"ST-AUD-021", "ST-AUD-022", "ST-AUD-023"}),
    "no counts": ({"kind": "no_usage"}, WHOLE, 1, {"ST-AUD-020"}),
}  # fmt: skip
"""By name: the fault, the outcome and failure that it ends with, attempts, and the requirements that the audit finds violated."""


def calls(count):
    """Calls with recorded ids, each a task of its own."""
    made = TraceBuilder()
    for each in range(count):
        row = made.operation(
            made.task(f"task {each}"), OperationKind.LLM, "call",
            prompt_tokens=3, output_tokens=OUTPUT, finish_reason=FinishReason.LENGTH,
        )  # fmt: skip
        prompt, output = (
            made.artifact(b"".join(at.to_bytes(4, "little") for at in ids), TOKEN_IDS_TYPE)
            for ids in ((300 + each, 301, 302), range(400 + each, 400 + each + OUTPUT))
        )
        made.segment(row, Role.USER, token_ids=prompt, token_ids_start=0, tokens=3)
        made.update_operation(row, output_token_ids=output)
    return made.build().trace


def assert_named(trace, execution, expected):
    """The audit finds these requirements violated in these rows of the events: so many of each, and what it shows are of them."""
    wanted = {}
    for row, requirements in enumerate(expected):
        for each in requirements:
            wanted.setdefault(each, set()).add(row)
    findings = audit(trace, execution, tolerance_ns=HOUR_NS).findings
    assert {each.requirement: each.count for each in findings} == {
        key: len(held) for key, held in wanted.items()
    }
    assert all(set(each.rows) <= wanted[each.requirement] for each in findings)


def test_each_fault_ends_as_declared_and_the_audit_names_it(tmp_path):
    """ST-LIV-040, ST-LIV-041, ST-LIV-042."""
    rules = [
        {"request": f"semtrace-{at}-{at}", "fault": fault, **({"attempts": [1]} if "then" in name else {})}
        for at, (name, (fault, *_)) in enumerate(FAULTS.items())
        if fault is not None
    ]
    trace = calls(len(FAULTS))
    with witness(tmp_path, {"service": {"first_token_ns": MS, "token_ns": 10_000}, "rules": rules}) as url:
        execution = run(
            trace, url, mode="token_locked", settings={"vocabulary": None},
            timeout_ns=2000 * MS, retry={"attempts": 3, "wait_ns": 10 * MS},
        )  # fmt: skip
    ended = rows(execution, "outcome", "failure", "attempts")
    assert dict(zip(FAULTS, ended, strict=True)) == {
        name: (*ends, attempts) for name, (_, ends, attempts, _) in FAULTS.items()
    }
    assert_named(trace, execution, [requirements for *_, requirements in FAULTS.values()])


def test_slow_answers_are_waited_for(tmp_path):
    trace = calls(2)
    slow = {"request": "semtrace-0-0", "service": {"first_token_ns": 1500 * MS, "token_ns": 0}}
    with witness(tmp_path, {"rules": [slow]}) as url:
        execution = run(trace, url, mode="token_locked", settings={"vocabulary": None})
    assert rows(execution, "outcome", "failure") == [WHOLE, WHOLE]
    started, first = rows(execution, "submitted_ns", "first_token_ns")[0]
    assert first - started >= 1500 * MS
    assert_named(trace, execution, [])


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_server_that_is_killed(tmp_path, comes_back):
    """It refuses connections from then on; where it is started again, those who try again are answered."""
    trace = calls(8)
    quick = {"service": {"first_token_ns": MS, "token_ns": 0}}
    (tmp_path / "one").mkdir()
    server = Witness(tmp_path / "one", quick)
    with contextlib.ExitStack() as stack:
        again = []

        def kill(done, _):
            if done == 1:
                server.kill()
                if comes_back:
                    again.append(stack.enter_context(restarted(tmp_path, server.url)))

        retry = {"attempts": 12 if comes_back else 2, "wait_ns": 20 * MS}
        times = [0, *range(300 * MS, 307 * MS, MS)]
        execution = run(
            trace, server.url, progress=kill, mode="token_locked", settings={"vocabulary": None},
            arrivals={"kind": "drawn", "times_ns": times}, retry=retry,
        )  # fmt: skip
    ended = rows(execution, "outcome", "failure")
    failed = execution.header.environment["requests"]["failed_attempts"]
    assert ended[0] == WHOLE
    if comes_back:
        assert ended == [WHOLE] * 8
        assert_named(trace, execution, [])
    else:
        assert ended[1:] == [(EventOutcome.ERROR, Failure.CONNECTION)] * 7
        assert failed == {"connection": 14}
        assert_named(trace, execution, [set(), *[{"ST-AUD-003"}] * 7])


@contextlib.contextmanager
def restarted(folder, url):
    """The server once more at its address, after a moment without it."""
    program = subprocess.Popen(
        [
            sys.executable, "-m", "semtrace_conformance.witness", "--script", folder / "one" / "script.json",
            "--record", folder / "again.jsonl", "--port", url.rsplit(":", 1)[1],
        ],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield program
    finally:
        program.terminate()
        program.wait(20)
