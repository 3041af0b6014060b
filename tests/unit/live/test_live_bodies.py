"""Requests made ahead: in the order of likely releases, within a bound of bytes and of time."""

import json

import numpy as np

from semtrace.live.answers import EMBEDDING, GENERATION
from semtrace.live.asking import Asker, Form
from semtrace.live.bodies import Bodies
from semtrace.live.expected import expected_order
from semtrace.live.prompts import Inputs
from semtrace.live.settings import Key, Target, Vocabulary
from semtrace.replay.arrivals import instances, settle
from semtrace.replay.scenario import Scenario
from support.chat_traces import TOOLS, chat_trace
from support.graphs import graph
from support.prefix_examples import made as example

MS = 1_000_000
LONG_NS = 60_000 * MS


class Counter:
    """An asker of requests of a given size."""

    def __init__(self, size=100) -> None:
        self.bytes = size
        self.made = []

    def size(self, _):
        return 1000

    def request(self, instance, operation):
        self.made.append((instance, operation))
        return b"x" * self.bytes


def order_of(*pairs):
    return np.array([each[0] for each in pairs]), np.array([each[1] for each in pairs])


def test_requests_are_made_in_order_and_handed_out_once():
    asker = Counter()
    bodies = Bodies(asker, order_of((0, 5), (0, 6), (1, 5)))
    assert bodies.ahead(LONG_NS)
    assert asker.made == [(0, 5)]
    assert bodies.ready(0, 6) is None
    assert bodies.make(0, 6) == b"x" * 100
    assert bodies.ahead(LONG_NS)
    assert not bodies.ahead(LONG_NS)
    assert asker.made == [(0, 5), (0, 6), (1, 5)]  # none twice
    assert bodies.ready(0, 5)
    assert bodies.ready(0, 5) is None
    assert bodies.ready(1, 5)
    assert (bodies.made_ahead, bodies.made_late, bodies.held_bytes, bodies.most_held_bytes) == (2, 1, 0, 200)


def test_no_more_is_held_than_allowed_and_room_is_used_again():
    asker = Counter()
    bodies = Bodies(asker, order_of(*[(each, 0) for each in range(1000)]), budget=1000)
    for each in range(1000):
        while bodies.ahead(LONG_NS):
            pass
        assert bodies.held_bytes <= 1000
        assert bodies.ready(each, 0)
    assert (bodies.made_late, bodies.most_held_bytes) == (0, 1000)


def test_what_is_never_wanted_makes_room():
    """As after a run that is gone on with: requests of what was done before are never wanted."""
    asker = Counter()
    bodies = Bodies(asker, order_of(*[(each, 0) for each in range(300)]), budget=1000)
    late = 0
    for each in range(100, 300):
        while bodies.ahead(LONG_NS):
            pass
        if bodies.ready(each, 0) is None:
            bodies.make(each, 0)
            late += 1
    assert late == bodies.made_late
    assert late < 120


def test_what_takes_longer_than_there_is_time_is_not_begun():
    asker = Counter()
    bodies = Bodies(asker, order_of((0, 0), (1, 0)))
    assert not bodies.ahead(1000)
    assert asker.made == []
    assert bodies.ahead(LONG_NS)


def test_what_was_slow_once_is_tried_again(monkeypatch):
    times = iter(range(0, 1 << 60, LONG_NS))
    monkeypatch.setattr("semtrace.live.bodies._monotonic_ns", lambda: next(times))
    bodies = Bodies(Counter(), order_of(*[(each, 0) for each in range(50)]))
    for _ in range(40):
        bodies.ahead(LONG_NS)
    tries = 0
    while not bodies.ahead(2 * MS):
        tries += 1
        assert tries < 1000


# --- the order -------------------------------------------------------------------------------------------


def run_of(short, **members):
    made = graph(short)
    scenario = settle(made.trace, Scenario.parse({"backend": {"name": "ideal"}, **members}, path="s"))
    instance, operation = expected_order(made.trace, instances(made.trace, scenario))
    names = {row: name for name, row in made.rows.items()}
    return [(each, names[row]) for each, row in zip(instance.tolist(), operation.tolist(), strict=True)]


CHAIN = [
    {"name": "a", "kind": "llm", "prompt": 10, "output": 5},
    {"name": "wait", "duration_ns": 900 * MS, "after": ["a"]},
    {"name": "b", "kind": "llm", "prompt": 10, "output": 5, "after": ["wait"]},
    {"name": "c", "kind": "llm", "prompt": 10, "output": 5, "after": ["a"], "delay_ns": 5 * MS},
]


def test_the_order_is_that_of_likely_releases():
    times = [0, 100 * MS, 5000 * MS]
    seen = run_of({"operations": CHAIN}, copies=3, arrivals={"kind": "drawn", "times_ns": times})
    assert seen == [
        (0, "a"), (0, "c"), (1, "a"), (1, "c"), (0, "b"), (1, "b"), (2, "a"), (2, "c"), (2, "b"),
    ]  # fmt: skip


def test_users_send_the_next_task_when_they_have_their_answer():
    seen = run_of({"operations": CHAIN}, copies=4, arrivals={"kind": "closed_loop", "users": 2})
    assert sorted(seen[:6]) == [(each, name) for each in (0, 1) for name in ("a", "b", "c")]
    assert {each for each, _ in seen[6:]} == {2, 3}
    slow = {"kind": "closed_loop", "users": 2, "ramp_ns": 60_000 * MS}
    assert [each for each, _ in run_of({"operations": CHAIN}, copies=3, arrivals=slow)] == [
        0,
        0,
        0,
        2,
        2,
        2,
        1,
        1,
        1,
    ]


def test_every_request_is_in_the_order_once_whatever_the_tasks():
    short = {
        "tasks": [{}, {}, {}],
        "operations": [{"name": "t", "task": 0, "duration_ns": 5}, *[{**each, "task": 2} for each in CHAIN]],
    }
    assert sorted(run_of(short, copies=2)) == [(each, name) for each in (4, 5) for name in ("a", "b", "c")]
    assert run_of({"operations": []}) == []


# --- requests --------------------------------------------------------------------------------------------

IDS = {
    "operations": [
        {"name": "a", "pieces": [{"ids": [5, 6, 7]}], "output": 2, "output_ids": [8, 9]},
    ]
}


def asker_of(trace, form, *, key=None, url="http://h:1/x/v1", **members):
    inputs = Inputs(trace, vocabulary=Vocabulary(first=10, size=100), **members)
    return Asker(trace, inputs, form, Target(url), key)


def ids_trace():
    return example(
        [{**each, "pieces": [dict(piece) for piece in each["pieces"]]} for each in IDS["operations"]]
    )


def members_of(asker, operation=0, instance=0, attempt=1):
    raw = asker.request(instance, operation, attempt)
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.decode("ascii").split("\r\n")
    fields = dict(line.split(": ", 1) for line in lines[1:])
    assert int(fields["Content-Length"]) == len(body)
    return lines[0], fields, json.loads(body)


def test_locks_in_their_three_ways():
    """ST-LIV-021."""
    trace = ids_trace()
    line, _, body = members_of(asker_of(trace, Form("m", lock="logits_processor"), mode="token_locked"))
    assert line == "POST /x/v1/completions HTTP/1.1"
    assert body["vllm_xargs"] == {"semtrace_output_ids": [8, 9]}
    assert (body["prompt"], body["max_tokens"], body["ignore_eos"], body["return_token_ids"]) == (
        [5, 6, 7],
        2,
        True,
        True,
    )
    assert "min_tokens" not in body
    line, _, body = members_of(asker_of(trace, Form("m", lock="trace_replay"), mode="token_locked"))
    assert line == "POST /x/inference/v1/generate HTTP/1.1"
    assert body["token_ids"] == [5, 6, 7]
    assert body["sampling_params"] == {
        "max_tokens": 2,
        "temperature": 0,
        "ignore_eos": True,
        "trace_decode_token_ids": [8, 9],
    }
    _, _, body = members_of(asker_of(trace, Form("m", lock="annotation"), mode="token_locked"))
    assert body["nvext"]["annotations"] == ["output_replay_id:semtrace-0"]


def test_members_that_the_server_refuses_are_not_sent():
    form = Form(
        "m", stream=False, ignore_eos=False, min_tokens=False, return_token_ids=False, cache_salt=False
    )
    _, _, body = members_of(asker_of(ids_trace(), form, copies=2))
    assert body == {"model": "m", "stream": False, "max_tokens": 2, "temperature": 0, "prompt": [5, 6, 7]}


def test_copies_that_are_not_to_share_prefixes_have_a_salt():
    trace = ids_trace()
    asker = asker_of(trace, Form("m"), copies=2)
    salts = [members_of(asker, instance=each)[2]["cache_salt"] for each in (0, 1)]
    assert salts[0] != salts[1]
    assert "cache_salt" not in members_of(asker_of(trace, Form("m"), copies=2, salt="none"))[2]


def test_heads():
    """ST-LIV-030, ST-LIV-032."""
    asker = asker_of(ids_trace(), Form("m"), key=Key("sk-1"), url="https://[::1]:444/")
    line, fields, _ = members_of(asker, instance=7, attempt=3)
    assert line == "POST /v1/completions HTTP/1.1"
    assert fields["Host"] == "[::1]:444"
    assert fields["X-Request-Id"] == "semtrace-7-0-3"
    assert fields["Authorization"] == "Bearer sk-1"
    assert "sk-1" not in repr(vars(asker)["_key"])


def test_chat_and_embeddings():
    from semtrace.build.builder import TraceBuilder
    from semtrace.records.enums import OperationKind, Role

    made = TraceBuilder()
    task = made.task("t")
    row = made.operation(task, OperationKind.LLM, "a", prompt_tokens=3, output_tokens=2)
    made.segment(row, Role.USER, "héllo\nthere", tokens=3)
    row = made.operation(task, OperationKind.EMBED, "e", prompt_tokens=3)
    made.segment(row, Role.USER, "words", tokens=3)
    trace = made.build().trace
    asker = asker_of(trace, Form("m"), kind="text")
    assert [asker.kind(each) for each in (0, 1)] == [GENERATION, EMBEDDING]
    line, _, body = members_of(asker)
    assert line == "POST /x/v1/chat/completions HTTP/1.1"
    assert body["messages"] == [{"role": "user", "content": "héllo\nthere"}]
    assert (body["max_tokens"], body["min_tokens"]) == (2, 2)
    line, _, body = members_of(asker, operation=1)
    assert line == "POST /x/v1/embeddings HTTP/1.1"
    assert body == {"model": "m", "input": "words"}
    _, _, body = members_of(asker_of(trace, Form("m"), kind="synthetic"), operation=1)
    assert len(body["input"]) == 3


def test_tools_are_not_to_be_called_where_the_server_takes_them_only_so():
    """ST-INP-005."""
    trace = chat_trace()
    _, _, body = members_of(asker_of(trace, Form("m"), kind="text"))
    assert body["tools"] == TOOLS
    assert "tool_choice" not in body
    _, _, body = members_of(asker_of(trace, Form("m", tools_uncalled=True), kind="text"))
    assert (body["tools"], body["tool_choice"]) == (TOOLS, "none")
    _, _, body = members_of(asker_of(trace, Form("m", tools_uncalled=True), kind="text"), operation=1)
    assert "tools" not in body
    assert "tool_choice" not in body


def test_sizes_count_what_is_written():
    trace = ids_trace()
    assert asker_of(trace, Form("m")).size(0) == 3
    assert asker_of(trace, Form("m", lock="logits_processor"), mode="token_locked").size(0) == 5
