"""The step log of a vLLM server, read and joined to what a client has of the run."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest

from cli.conftest import run
from semtrace.check.executions import check_execution
from semtrace.errors import FormatError, ReplayError, UsageError
from semtrace.live.vllm.names import sent_id
from semtrace.live.vllm.steps import join, read_steps
from semtrace.measure.audit import audit
from semtrace.records.columns import NULL
from semtrace.records.enums import Phase
from semtrace.store.bundle import open_bundle, write_bundle
from semtrace.transform.rows import with_column
from support.vllm_joined import UNIX, at, client_of, two_calls, write

SERVER = {
    "kind": "server", "format": "semtrace-vllm-steps", "version": 1, "vllm": "0.32.0", "rank": 0, "pid": 7,
    "blocks": 5, "block_size": 4, "block_bytes": 64, "async_scheduling": False, "moves": True,
}  # fmt: skip


def lines():
    """Requests a and b of the client and one of another; b is preempted in the third step, and admitted again in the fifth."""
    asks = {"max_tokens": 3, "priority": 0, "kind": "request"}
    return [
        {**SERVER, **at(-900)},
        {**asks, "n": 0, "id": "cmpl-semtrace-0-0-0-0123abcd", "prompt_tokens": 7, **at(5)},
        {**asks, "n": 1, "id": "cmpl-semtrace-0-1-0-89abcdef", "prompt_tokens": 3, **at(6)},
        {**asks, "n": 2, "id": "cmpl-of-another-0-89abcdee", "prompt_tokens": 2, **at(7, ahead=-400)},
        {"kind": "prompt", "n": 2, "ids": [1, 2]},  # what others write is not read
        step(0, 10, [[0, "new", 0, 7], [1, "new", 0, 3], [2, "new", 0, 2]], free=0, moves=[
            ["allocate", 0, 0, [[1, 2]]], ["allocate", 1, 0, [[3, 1]]], ["allocate", 2, 0, [[4, 1]]],
        ]),
        computed(0, 20, [[0, 1], [1, 1], [2, 1]], [[2, "stop"]], moves=[["free", 2, None, [[4, 1]]]]),
        step(1, 21, [[0, "running", 7, 1], [1, "running", 3, 1]], free=1),
        computed(1, 30, [[0, 1], [1, 1]]),
        step(2, 31, [[0, "running", 8, 1]], free=1, preempted=[1], moves=[
            ["free", 1, None, [[3, 1]]], ["allocate", 0, 2, [[3, 1]]],
        ]),
        computed(2, 40, [[0, 1]], [[0, "length"]], moves=[["free", 0, None, [[1, 3]]]]),
        step(3, 41, [[1, "resumed", 0, 5]], free=2, moves=[
            ["evict", 1, None, [[4, 1]]], ["allocate", 1, 0, [[4, 1], [1, 1]]],
        ]),
        computed(3, 50, [[1, 1]], [[1, "length"]], moves=[["free", 1, None, [[1, 1], [4, 1]]]]),
    ]  # fmt: skip


def step(number, ns, entries, *, free, preempted=(), moves=()):
    return {
        "kind": "step", "step": number, **at(ns), "entries": entries, "preempted": list(preempted),
        "moves": list(moves), "free_blocks": free, "running": 0, "waiting": 0,
    }  # fmt: skip


def computed(number, ns, yielded, ended=(), moves=()):
    return {
        "kind": "computed", "step": number, **at(ns), "yielded": yielded, "ended": list(ended),
        "moves": list(moves),
    }  # fmt: skip


@pytest.fixture
def call():
    """Two calls."""
    return two_calls()


@pytest.fixture
def client(call):
    """What a client has of them: the ids that it sent, and nothing of the server."""
    return client_of(call)


def rows(execution, table, *names):
    return [tuple(row[name] for name in names) for row in execution[table].data.to_pylist()]


def test_steps_runs_and_events(client, tmp_path):
    """ST-VLM-015."""
    made = join(client, read_steps([write(tmp_path, lines())]))
    assert rows(made, "steps", "index", "start_ns", "end_ns", "tokens", "requests", "free_blocks") == [
        (0, 10, 20, 10, 2, 0),
        (1, 21, 30, 2, 2, 1),
        (2, 31, 40, 1, 1, 1),
        (3, 41, 50, 5, 1, 2),
    ]
    names = ("event", "first_step", "count", "start_position", "tokens_per_step", "phase")
    assert rows(made, "step_runs", *names) == [
        (0, 0, 1, 0, 7, Phase.PREFILL),
        (0, 1, 2, 7, 1, Phase.DECODE),
        (1, 0, 1, 0, 3, Phase.PREFILL),
        (1, 1, 1, 3, 1, Phase.DECODE),
        (1, 3, 1, 0, 5, Phase.PREFILL),
    ]
    names = (
        "scheduled_ns",
        "cached_tokens",
        "computed_prompt_tokens",
        "preemptions",
        "preempted_ns",
        "server",
    )
    assert rows(made, "events", *names) == [(10, 0, 7, 0, 0, 0), (10, 0, 8, 1, 10, 0)]
    assert made.header.detail == ["steps", "step_runs", "blocks"]
    told = made.header.environment["vllm_steps"]
    assert (told["requests"], told["others"], told["torn"]) == (2, 1, False)
    assert told["servers"]["0"]["block_size"] == 4
    assert list(check_execution(made, None)) == []


def test_blocks(client, tmp_path):
    made = join(client, read_steps([write(tmp_path, lines())]))
    names = ("time_ns", "sequence", "action", "event", "blocks", "bytes", "first_block", "position")
    assert rows(made, "blocks", *names) == [
        (10, 0, 1, 0, 2, 128, 1, 0),
        (10, 1, 1, 1, 1, 64, 3, 0),
        (10, 2, 1, None, 1, 64, 4, 0),
        (20, 0, 3, None, 1, 64, 4, None),
        (31, 0, 3, 1, 1, 64, 3, None),
        (31, 1, 1, 0, 1, 64, 3, 2),
        (40, 0, 3, 0, 3, 192, 1, None),
        (41, 0, 4, 1, 1, 64, 4, None),
        (41, 1, 1, 1, 1, 64, 4, 0),
        (41, 2, 1, 1, 1, 64, 1, 1),
        (50, 0, 3, 1, 1, 64, 1, None),
        (50, 1, 3, 1, 1, 64, 4, None),
    ]


def test_an_audit_judges_the_blocks(client, call, tmp_path):
    """ST-VLM-017."""
    rules = {"ST-AUD-071", "ST-AUD-072", "ST-AUD-073", "ST-AUD-074", "ST-AUD-075", "ST-AUD-076", "ST-AUD-077"}

    def found(records, name):
        report = audit(call.trace, join(client, read_steps([write(tmp_path, records, name)]))).as_dict()
        return {rule["requirement"] for rule in report["rules"] if rule["judged"]}, {
            each["requirement"] for each in report["findings"]
        } & rules

    judged, violated = found(lines(), "right")
    assert judged >= rules
    assert violated == set()
    wrong = lines()
    wrong[11]["moves"][1] = ["allocate", 1, 0, [[4, 1], [9, 1]]]
    assert found(wrong, "no such block")[1] == {"ST-AUD-071"}
    wrong = lines()
    wrong[5]["moves"][2] = ["allocate", 2, 0, [[3, 1]]]
    assert found(wrong, "held twice")[1] == {"ST-AUD-072"}
    wrong = lines()
    wrong[7]["free_blocks"] = 2
    assert found(wrong, "not so many free")[1] == {"ST-AUD-075"}


def test_blocks_that_others_filled_or_hit_are_not_judged_by_what_they_computed(client, call, tmp_path):
    """ST-AUD-079, of what was in the cache before the run, and of who takes part in it unseen."""
    asked = {"kind": "request", "max_tokens": 1, "priority": 0, "prompt_tokens": 5}
    before = [
        {**asked, "n": 7, "id": "cmpl-of-another-7", **at(-300)},
        step(0, -290, [[7, "new", 0, 5]], free=2, moves=[["allocate", 7, 0, [[1, 2]]]]),
        computed(0, -280, [[7, 1]], [[7, "length"]], moves=[["free", 7, None, [[2, 1], [1, 1]]]]),
        {**asked, "n": 8, "id": "cmpl-of-another-8", **at(-200)},
        step(0, -190, [[8, "new", 4, 1]], free=2, moves=[["hit", 8, 0, [[1, 1]]], ["allocate", 8, 1, [[2, 1]]]]),
        computed(0, -180, [[8, 1]], [[8, "length"]], moves=[["free", 8, None, [[2, 1], [1, 1]]]]),
    ]  # fmt: skip
    records = lines()
    records[0] |= at(-900)
    records[5]["entries"][0] = [0, "new", 4, 3]
    records[5]["moves"][:1] = [["hit", 0, 0, [[1, 1]]], ["allocate", 0, 1, [[2, 1]]]]
    log = read_steps([write(tmp_path, [records[0], *before, *records[1:]])])
    report = audit(call.trace, join(client, log)).as_dict()
    (rule,) = [rule for rule in report["rules"] if rule["requirement"] == "ST-AUD-079"]
    assert rule["violations"] == 0
    assert "it was filled for a request of others" in str(rule["not_judged"])
    assert [each for each in report["findings"] if each["table"] == "blocks"] == []


def test_a_clock_that_was_read_late_once_shifts_nothing(client, tmp_path):
    records = lines()
    records[1] |= at(5, ahead=-300)  # the system had another process run between the two readings
    made = join(client, read_steps([write(tmp_path, records)]))
    assert made["steps"].ints("start_ns").tolist() == [10, 21, 31, 41]


def test_blocks_of_questions_before_the_run_keep_what_they_got(client, tmp_path):
    asked = [
        {"kind": "request", "max_tokens": 1, "priority": 0, "n": 7, "id": "cmpl-doctor-0", "prompt_tokens": 4, **at(-300)},
        {**step(0, -200, [[7, "new", 0, 4]], free=3, moves=[["allocate", 7, 0, [[4, 1]]]])},
        computed(0, -100, [[7, 1]], [[7, "length"]], moves=[["free", 7, None, [[4, 1]]]]),
    ]  # fmt: skip
    records = lines()
    made = join(client, read_steps([write(tmp_path, [records[0], *asked, *records[1:]])]))
    assert rows(made, "blocks", "time_ns", "sequence", "action", "event", "first_block")[:3] == [
        (0, 0, 1, None, 4),
        (0, 1, 3, None, 4),
        (10, 0, 1, 0, 1),
    ]
    assert made["steps"].ints("start_ns").tolist() == [10, 21, 31, 41]
    assert list(check_execution(made, None)) == []


def test_killed_while_it_wrote(client, tmp_path):
    """ST-VLM-010."""
    whole = lines()
    path = write(tmp_path, whole[:-1], end=json.dumps(whole[-1]).encode()[:30])
    made = join(client, read_steps([path]))
    assert made["steps"].rows == 3  # the step that it was in is not told
    assert made.header.environment["vllm_steps"]["torn"]


def test_blocks_that_are_not_told_are_absent(client, tmp_path):
    records = lines()
    records[5]["moves"] = None
    made = join(client, read_steps([write(tmp_path, records)]))
    assert made["blocks"].rows == 0
    assert made.header.detail == ["steps", "step_runs"]


def test_blocks_of_an_unknown_size_are_absent(client, tmp_path):
    records = lines()
    del records[0]["block_bytes"]
    assert join(client, read_steps([write(tmp_path, records)])).header.detail == ["steps", "step_runs"]


def test_two_engines_of_a_server(client, tmp_path):
    first, second = lines(), lines()
    second[0]["rank"] = 1
    first[2]["id"], second[1]["id"] = "cmpl-x-0", "cmpl-y-0"
    paths = [write(tmp_path, records, name) for records, name in ((first, "0"), (second, "1"))]
    made = join(client, read_steps(paths))
    assert rows(made, "events", "server") == [(0,), (1,)]
    assert rows(made, "steps", "server", "index") == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("cmpl-semtrace-0-1-0", "semtrace-0-1"),
        ("cmpl-semtrace-0-1-0-89abcdef", "semtrace-0-1"),
        ("cmpl-semtrace-0-1-2-0", "semtrace-0-1-2"),
        ("cmpl-semtrace-0-1-2-0-00000000", "semtrace-0-1-2"),
        ("chatcmpl-semtrace-0-12345678", "semtrace-0-12345678"),
        ("chatcmpl-semtrace-0-12345678-89abcdef", "semtrace-0-12345678"),
        ("generate-tokens-semtrace-0-1-2", "semtrace-0-1-2"),
        ("generate-tokens-semtrace-0-1-2-89abcdef", "semtrace-0-1-2"),
        ("embd-semtrace-0-1-0", "semtrace-0-1"),
        ("pooling-semtrace-0-1-0", "semtrace-0-1"),
        ("cmpl-semtrace-0-9-0", None),
        ("another", None),
    ],
)
def test_request_ids(name, sent):
    """ST-VLM-013."""
    assert sent_id(name, {"semtrace-0-1", "semtrace-0-1-2", "semtrace-0-12345678"}) == sent


def test_no_step_log(tmp_path):
    with pytest.raises(FormatError, match="no step log") as error:
        read_steps([write(tmp_path, lines()[1:])])
    assert error.value.requirement == "ST-VLM-022"
    with pytest.raises(FormatError, match="no step log"):
        read_steps([write(tmp_path, [])])
    with pytest.raises(UsageError, match="cannot be read"):
        read_steps([tmp_path / "nothing"])


def test_what_is_no_file_is_not_waited_for(client, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    write_bundle(tmp_path / "run.semtrace", executions={"replay": client})
    for path in (tmp_path / "fifo", Path("/dev/zero")):
        told = run("join", tmp_path / "run.semtrace", path, "-o", tmp_path / "out.semtrace")
        assert told.code == 2
        assert "is no regular file" in told.err


def test_a_byte_order_mark_is_no_part_of_a_log(tmp_path):
    path = write(tmp_path, lines())
    names = read_steps([path]).names
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_steps([path]).names == names


def test_a_later_version(tmp_path):
    with pytest.raises(FormatError) as error:
        read_steps([write(tmp_path, [{**SERVER, **at(0), "version": 2}])])
    assert error.value.requirement == "ST-VLM-011"


def test_a_line_that_is_none(tmp_path):
    records = lines()
    records[5] = {"kind": "step", "step": 0}
    with pytest.raises(FormatError, match=r"line 6 is no record of a step log: '[a-z_]*' is missing in it"):
        read_steps([write(tmp_path, records)])
    with pytest.raises(FormatError, match="it names 0, of which no line before it tells; are lines missing"):
        read_steps([write(tmp_path, [record for record in lines() if record["kind"] != "request"])])
    path = write(tmp_path, lines())
    path.write_bytes(path.read_bytes() + b"{\n")
    with pytest.raises(FormatError, match="it is no JSON"):
        read_steps([path])


@pytest.mark.parametrize(
    ("kind", "member", "value"),
    [
        ("server", "rank", 1 << 40),
        ("server", "block_bytes", {}),
        ("request", "monotonic_ns", -1),
        ("request", "prompt_tokens", 1 << 40),
        ("step", "free_blocks", -1),
        ("step", "entries", [[0, "new", 0, 1 << 40]]),
        ("step", "entries", [[0, "new", 0, (1 << 32) - 1], [1, "new", 0, 1]]),
        ("step", "entries", [[0, "new", 0, 1.5]]),
        ("step", "moves", [["allocate", 0, 0, [[0, 1 << 40]]]]),
        ("step", "moves", [["allocate", 0, 0, [[-1, 1]]]]),
        ("step", "moves", [["allocate", 0, -1, [[0, 1]]]]),
        ("computed", "yielded", [[0, -1]]),
    ],
)
def test_numbers_that_no_server_has(tmp_path, kind, member, value):
    """What is made of them would take memory without end, or be in no column."""
    records = lines()
    next(record for record in records if record["kind"] == kind)[member] = value
    says = "is no step log" if kind == "server" else "is no whole number from"
    with pytest.raises(FormatError, match=says):
        read_steps([write(tmp_path, records)])


def test_a_time_that_is_none(tmp_path):
    records = lines()
    records[1]["unix_ns"] = 1 << 63
    with pytest.raises(FormatError, match="line 2 is no record"):
        read_steps([write(tmp_path, records)])


def test_what_cannot_be_joined(client, tmp_path):
    log = read_steps([write(tmp_path, lines())])
    whole = {name: columns.data for name, columns in client.tables.items()}
    timeless = type(client).from_arrow(client.header.model_copy(update={"origin_unix_ns": None}), whole)
    with pytest.raises(ReplayError, match="does not say when it began"):
        join(timeless, log)
    whole["events"] = with_column(client.events.data, "request_id", pa.array([None, None], pa.string()))
    with pytest.raises(ReplayError, match="no request ids"):
        join(type(client).from_arrow(client.header, whole), log)
    whole["events"] = with_column(client.events.data, "request_id", pa.array(["other", None], pa.string()))
    with pytest.raises(ReplayError, match="no request of the execution is in the log"):
        join(type(client).from_arrow(client.header, whole), log)
    with pytest.raises(ReplayError, match="has steps already"):
        join(join(client, log), log)


def again(by_ns, ids=("semtrace-0-0", "semtrace-0-1")):
    """What the server wrote down of another run of the same client, so much later or earlier."""
    records = []
    for record in lines()[1:]:
        moved = dict(record)
        if "unix_ns" in moved:
            moved |= {name: moved[name] + by_ns for name in ("unix_ns", "monotonic_ns")}
        if "n" in moved:
            moved["n"] += 10
        for name in ("preempted", "entries", "yielded", "ended"):
            moved[name] = [
                each + 10 if name == "preempted" else [each[0] + 10, *each[1:]]
                for each in moved.get(name, ())
            ]
        moved["moves"] = [[what, number + 10, *rest] for what, number, *rest in moved.get("moves") or ()]
        if "step" in moved:
            moved["step"] += 10
        records.append(moved)
    for record, name in zip(records, ids, strict=False):
        record["id"] = f"cmpl-{name}-0-0123abcd"
    return records


def test_of_several_runs_in_a_log_the_one_of_the_time_of_the_execution_is_joined(client, tmp_path):
    """ST-VLM-014."""
    alone = join(client, read_steps([write(tmp_path, lines(), "alone")]))
    records = lines()
    both = [records[0], *again(-500), *records[1:], *again(100_000), *again(200_000)[:1]]
    both[0] |= at(-9000)
    made = join(client, read_steps([write(tmp_path, both)]))
    for table in ("steps", "step_runs", "events"):
        assert made[table].data.equals(alone[table].data), table
    told = made.header.environment["vllm_steps"]
    assert (told["requests"], told["others"]) == (2, 8)
    assert list(check_execution(made, None)) == []
    later = client.header.model_copy(update={"origin_unix_ns": UNIX + 100_000})
    tables = {name: columns.data for name, columns in client.tables.items()}
    second = join(type(client).from_arrow(later, tables), read_steps([write(tmp_path, both)]))
    assert second["steps"].data.equals(alone["steps"].data)
    assert list(check_execution(second, None)) == []


def test_of_another_run_nothing_is_taken_though_its_id_is_there_once(client, tmp_path):
    records = lines()
    records[2]["id"] = "cmpl-of-another-1"  # in this run the second request did not reach the server
    made = join(client, read_steps([write(tmp_path, [*records, *again(100_000)])]))
    assert made.header.environment["vllm_steps"]["requests"] == 1
    assert made.events.ints("preempted_ns").tolist() == [0, NULL]


def test_an_id_that_came_twice_while_the_execution_ran(client, tmp_path):
    last = int(client.events.ints("finished_ns")[1])
    first = int(client.events.ints("finished_ns")[0])
    short = with_column(client.events.data, "finished_ns", pa.array([first - 30, last], pa.int64()))
    tables = {name: columns.data for name, columns in client.tables.items()} | {"events": short}
    client = type(client).from_arrow(client.header, tables)
    records = lines()
    # while the execution ran, and after the event of this id had ended
    late = again(first - 20, ids=("semtrace-0-0", "other"))
    made = join(client, read_steps([write(tmp_path, [*records, *late])]))
    assert made["steps"].ints("start_ns").tolist() == [10, 21, 31, 41]
    with pytest.raises(ReplayError) as error:
        join(client, read_steps([write(tmp_path, [*records, *again(1)])]))
    assert error.value.requirement == "ST-VLM-014"
    assert (
        "request 'semtrace-0-0' is in the log 2 times while the execution ran, at 2023-11-14 22:13:20.000000005 UTC, "
        "2023-11-14 22:13:20.000000006 UTC, and 1 others so" in str(error.value)
    )


def test_the_log_of_other_runs_of_the_same_client(client, tmp_path):
    log = read_steps([write(tmp_path, [lines()[0], *again(100_000), *again(200_000)])])
    with pytest.raises(
        ReplayError, match="4 requests in the log have ids of the execution, and none came while it ran"
    ) as error:
        join(client, log)
    assert error.value.requirement == "ST-VLM-014"


def test_what_the_log_does_not_know_stays_unknown(client, tmp_path):
    records = lines()
    records[2]["id"] = "cmpl-of-another-1"
    made = join(client, read_steps([write(tmp_path, records)]))
    assert made.events.ints("preempted_ns").tolist() == [0, NULL]
    assert made.events.ints("scheduled_ns").tolist()[1] == client.events.ints("scheduled_ns").tolist()[1]


def test_the_command_join(client, tmp_path):
    log, run_, out = write(tmp_path, lines()), tmp_path / "run.semtrace", tmp_path / "joined.semtrace"
    write_bundle(run_, executions={"replay": client})
    told = run("join", run_, log, "-o", out)
    assert told.code == 0, told.err
    assert "2 requests of the replay found in the log, 1 others in it; 4 steps" in " ".join(told.out.split())
    assert "no events of its cache, no ends of requests; 0 contradictions" in " ".join(told.out.split())
    made = open_bundle(out).execution("replay")
    assert made["steps"].rows == run("join", run_, log, "-o", out, "--force", "--json").json["steps"] == 4
    assert run("join", run_, log, "-o", out).code == 2
    assert run("join", run_, run_, "-o", tmp_path / "other").code == 2
    assert run("join", tmp_path / "none", log, "-o", tmp_path / "other").code == 2


def test_a_log_whose_times_contradict_each_other_is_told_of(client, tmp_path):
    records = [
        {**record, **at(15)} if record["kind"] == "computed" and record["step"] == 1 else record
        for record in lines()
    ]
    run_, out = tmp_path / "run.semtrace", tmp_path / "joined.semtrace"
    write_bundle(run_, executions={"replay": client})
    told = run("join", run_, write(tmp_path, records), "-o", out, "--json")
    assert told.code == 1
    assert {each["requirement"] for each in told.json["findings"]} >= {"ST-EXE-012"}
    assert open_bundle(out).execution("replay")["steps"].rows == 4  # nothing of it is lost
