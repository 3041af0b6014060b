"""What vLLM says itself in a step log, held against what its scheduler wrote down."""

import copy

import pytest

from cli.conftest import run
from semtrace.live.vllm.steps import join, read_steps
from semtrace.store.bundle import write_bundle
from support.vllm_joined import at, client_of, two_calls, write

SERVER = {
    "kind": "server", "format": "semtrace-vllm-steps", "version": 1, "vllm": "0.32.0", "rank": 0, "pid": 7,
    "blocks": 5, "block_size": 4, "block_bytes": 64, "async_scheduling": False, "prefix_caching": True, "moves": True,
    "kv_events": True, "speculative": False, "connector": False, **at(-900),
}  # fmt: skip
A, B, C, D = (f"{each:016x}" for each in range(10, 14))
"""Hashes of blocks."""


@pytest.fixture
def client():
    """What a client has of two calls."""
    return client_of(two_calls((8, 9)))


def request(number, ns, prompt, name):
    told = {
        "kind": "request",
        "n": number,
        "id": name,
        "prompt_tokens": prompt,
        "max_tokens": 2,
        "priority": 0,
    }
    return {**told, **at(ns)}


def step(number, ns, entries, moves, kv_events, preempted=()):
    return {
        "kind": "step", "step": number, **at(ns), "entries": entries, "preempted": list(preempted), "moves": moves,
        "kv_events": kv_events, "free_blocks": 0, "running": 0, "waiting": 0,
    }  # fmt: skip


def computed(number, ns, yielded, ended, moves, stats):
    names = ("running", "waiting", "used_blocks", "found", "found_again")
    return {
        "kind": "computed", "step": number, **at(ns), "yielded": yielded, "ended": ended, "moves": moves, "kv_events": [],
        "stats": dict(zip(names, stats, strict=True)),
    }  # fmt: skip


def lines():
    """Two calls of the client, of which the second finds the first one's blocks and is preempted; then another's, which needs them."""
    none = [0, 0, 0]
    return [
        SERVER,
        request(0, 5, 8, "cmpl-semtrace-0-0-0-0123abcd"),
        step(0, 10, [[0, "new", 0, 8]], [["allocate", 0, 0, [[1, 2]]]], [["stored", 1, 0, None, [A, B]]]),
        request(1, 12, 9, "cmpl-semtrace-0-1-0-89abcdef"),
        computed(0, 20, [[0, 1]], [], [], (1, 1, 2, [1, 8, 0], none)),
        step(1, 21, [[0, "running", 8, 1], [1, "new", 8, 1]], [
            ["allocate", 0, 2, [[3, 1]]], ["hit", 1, 0, [[1, 2]]], ["allocate", 1, 2, [[4, 1]]],
        ], []),
        computed(1, 30, [[0, 1], [1, 1]], [[0, "length"]], [["free", 0, None, [[1, 3]]]], (1, 0, 3, [1, 9, 8], none)),
        {**step(None, 31, [], [["free", 1, None, [[1, 2], [4, 1]]]], [], [1])},
        step(2, 35, [[1, "resumed", 8, 2]], [["hit", 1, 0, [[1, 2]]], ["allocate", 1, 2, [[4, 1]]]], []),
        computed(2, 40, [[1, 1]], [[1, "length"]], [["free", 1, None, [[1, 2], [4, 1]]]], (0, 0, 0, none, [1, 10, 8])),
        request(2, 41, 8, "cmpl-of-another-0-89abcdee"),
        step(3, 45, [[2, "new", 0, 8]], [["evict", 2, None, [[2, 1], [1, 1]]], ["allocate", 2, 0, [[2, 1], [1, 1]]]], [
            ["removed", 2, 2, [B]], ["removed", 2, 2, [A]], ["stored", 2, 2, None, [C, D]],
        ]),
        computed(3, 50, [[2, 1]], [[2, "stop"]], [["free", 2, None, [[2, 1], [1, 1]]]], (0, 0, 0, [1, 8, 0], none)),
        finished("cmpl-semtrace-0-0-0", 1, 34, prompt=8, output=2),
        finished("cmpl-semtrace-0-1-0", 11, 47, prompt=9, output=2, cached=8, preemptions=1),
        {"kind": "reset", **at(60), "kv_events": [["cleared", 0, None]]},
    ]  # fmt: skip


def finished(name, came, ended, *, prompt, output, cached=0, preemptions=0):
    return {
        "kind": "finished", "id": name, **at(ended + 1), "arrived_unix_ns": at(came)["unix_ns"],
        "ended_unix_ns": at(ended)["unix_ns"], "queued_ns": 4, "prefill_ns": 11, "decode_ns": 12, "inference_ns": 23,
        "reason": "length", "prompt_tokens": prompt, "output_tokens": output, "cached_tokens": cached,
        "preemptions": preemptions,
    }  # fmt: skip


def compared(folder, records):
    return read_steps([write(folder, records)]).compared


def test_what_agrees(tmp_path):
    """ST-VLM-018 to ST-VLM-021."""
    found = compared(tmp_path, lines())
    assert found.first == []
    assert (found.stored, found.removed, found.steps, found.requests) == (4, 2, 4, 2)
    assert found.contradictions == 0


def kv_event(record, at_, what):
    def change(records):
        what(records[record]["kv_events"], at_)

    return change


def drop(events, at_):
    del events[at_]


def put(record, path, value):
    def change(records):
        into = records[record]
        for each in path[:-1]:
            into = into[each]
        into[path[-1]] = value

    return change


def moves(record, made):
    def change(records):
        records[record]["moves"] = made

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (kv_event(2, 0, drop), "step 1: block 1 is found, and nothing was stored in it"),
        (kv_event(11, 2, drop), "step 3: request 2 gives back 0 stored blocks, and has filled 2"),
        (kv_event(11, 1, drop), "step 3: 1 blocks evicted, from 1 on, that no event removes"),
        (kv_event(11, 0, drop), f"step 3: {A} is removed, and evicted is block 2, which holds {B}"),
        (put(11, ["kv_events", 1, 3], [A, C]), f"step 3: {C} is removed, and no block is evicted"),
        (put(11, ["kv_events", 2, 3], A), f"step 3: {C} is stored after {A}, and request 2 has None there"),
        (put(11, ["kv_events", 2, 4], [C, D, B]), "step 3: 3 blocks are stored of request 2, which has 2 to fill"),
        (put(5, ["kv_events"], [["grown", 0, None]]), "step 1: an event grown that nothing in the record goes with"),
        (put(15, ["kv_events"], []), "step 3: the cache was reset, and no event says that it is empty"),
        (moves(11, [["allocate", 2, 0, [[2, 1], [1, 1]]]]), "step 3: block 2 is taken, and not evicted"),
        (moves(6, []), "step 1: used blocks 3 by vLLM's statistics, 4 by the record"),
        (put(4, ["stats", "waiting"], 2), "step 0: waiting 2 by vLLM's statistics, 1 by the record"),
        (put(6, ["stats", "running"], 2), "step 1: running 2 by vLLM's statistics, 1 by the record"),
        (put(6, ["stats", "found", 2], 4), "step 1: found [1, 9, 4] by vLLM's statistics, [1, 9, 8] by the record"),
        (put(9, ["stats", "found_again", 1], 9), "step 2: found again [1, 9, 8] by vLLM's statistics"),
        (put(7, ["preempted"], []), "step 2: found [0, 0, 0] by vLLM's statistics, [1, 10, 8] by the record"),
        (put(14, ["preemptions"], 0), "request cmpl-semtrace-0-1-0: preemptions 0 by vLLM's front, 1 by the record"),
        (put(14, ["cached_tokens"], 4), "request cmpl-semtrace-0-1-0: cached tokens 4 by vLLM's front, 8 by the"),
        (put(13, ["prompt_tokens"], 7), "request cmpl-semtrace-0-0-0: prompt tokens 7 by vLLM's front, 8 by the"),
        (put(13, ["output_tokens"], 3), "request cmpl-semtrace-0-0-0: output tokens 3 by vLLM's front, 2 by the"),
    ],
)  # fmt: skip
def test_what_does_not(tmp_path, change, said):
    """ST-VLM-020, ST-VLM-021."""
    records = copy.deepcopy(lines())
    change(records)
    found = compared(tmp_path, records)
    assert found.contradictions >= 1
    assert said in found.first[0], found.first


def test_what_is_not_compared(tmp_path):
    """Where it is not told, or need not agree."""
    records = copy.deepcopy(lines())
    records[13] |= {"reason": "stop", "output_tokens": 1}  # the front found a stop string
    del records[4]["stats"]
    records[6]["stats"]["found"] = [2, 17, 8]  # they add up until they are told
    found = compared(tmp_path, records)
    assert (found.first, found.steps) == ([], 3)
    records = copy.deepcopy(lines())
    records[0] = {**SERVER, "connector": True, "speculative": True}
    records[6]["stats"]["found"] = [1, 9, 4]
    records[14]["cached_tokens"] = 4
    assert compared(tmp_path, records).first == []
    old = [
        {name: value for name, value in each.items() if name not in ("kv_events", "stats")}
        for each in lines()
    ]
    found = compared(tmp_path, old[:13])
    assert found.as_dict() == {
        "stored": 0, "removed": 0, "steps": 0, "requests": 0, "contradictions": 0, "first": [],
    }  # fmt: skip


def test_after_a_restart_and_a_failure(client, tmp_path):
    """ST-VLM-017: a server that is started again begins anew; one that gave up writing is told of."""
    made = join(client, read_steps([write(tmp_path, [*lines(), SERVER, *lines()[10:11]])]))
    told = made.header.environment["vllm_steps"]
    assert (told["compared"]["contradictions"], told["failed"]) == (0, False)
    ends = {"kind": "failed", **at(61), "error": "OSError"}
    made = join(client, read_steps([write(tmp_path, [*lines()[:-1], ends])]))
    assert made.header.environment["vllm_steps"]["failed"]
    assert "blocks" not in made.header.detail


def test_where_requests_spent_their_time(client, tmp_path):
    """ST-VLM-017: of the execution's own requests, and of those alone."""
    others = finished("cmpl-of-another-0", 40, 900, prompt=8, output=1)
    made = join(client, read_steps([write(tmp_path, [*lines()[:-1], others])]))
    assert made.header.environment["vllm_steps"]["front"] == {
        "requests": 2,
        "before_ns": {"middle": 4, "most": 4},
        "queued_ns": {"middle": 4, "most": 4},
        "prefill_ns": {"middle": 11, "most": 11},
        "decode_ns": {"middle": 12, "most": 12},
        "after_ns": {"middle": 7, "most": 7},
    }
    unknown = finished("cmpl-nobody-0", 40, 900, prompt=8, output=1)
    log = read_steps([write(tmp_path, [*lines()[:13], unknown])])
    assert len(log.front["request"]) == log.compared.requests == 0
    assert "front" not in join(client, log).header.environment["vllm_steps"]


def test_requests_that_had_one_id_at_once_are_not_told_apart(tmp_path):
    records = [*lines()[:-1]]
    records[10]["id"] = (
        "cmpl-semtrace-0-0-0-99999999"  # after the first one ended, but before the front said so
    )
    records[11:11] = [records.pop(14)]
    found = compared(tmp_path, records)
    assert (found.requests, found.contradictions) == (1, 0)
    records = [*lines()[:-1], request(3, 51, 8, "cmpl-semtrace-0-0-0-99999999")]  # after it
    aborted = {"kind": "aborted", **at(52), "requests": [3], "moves": [], "kv_events": []}
    again = request(4, 53, 8, "cmpl-semtrace-0-0-0-88888888")
    assert compared(tmp_path, [*records, aborted, again]).as_dict() == compared(tmp_path, lines()).as_dict()


def test_the_command_says_so(client, tmp_path):
    run_, out = tmp_path / "run.semtrace", tmp_path / "joined.semtrace"
    write_bundle(run_, executions={"replay": client})
    told = run("join", run_, write(tmp_path, lines()), "-o", out)
    assert told.code == 0, told.err
    text = " ".join(told.out.split())
    assert "4 steps, 4 blocks stored and 2 removed, 2 ended requests; 0 contradictions" in text
    records = copy.deepcopy(lines())
    for record in records:
        if record["kind"] == "computed":
            record["stats"] |= {"running": 9, "waiting": 9}
    told = run("join", run_, write(tmp_path, records), "-o", out, "--force")
    assert told.code == 1, told.err
    text = " ".join(told.out.split())
    assert "8 contradictions" in text
    assert "vLLM says otherwise, step 0: running 9 by vLLM's statistics, 1 by the record" in text
    assert "and 3 more of these" in text
    told = run("join", run_, tmp_path / "steps.jsonl", "-o", out, "--force", "--json")
    assert told.json["vllm_steps"]["compared"]["contradictions"] == 8
