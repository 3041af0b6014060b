"""The witness answers by its script, and writes down what came and went: real sockets on the loopback."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import subprocess
import sys
import threading
import time
from array import array

import pytest
from blake3 import blake3
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from semtrace_conformance.witness import Entry, Script, Witness, read_record

QUICK = {"first_token_ns": 0, "token_ns": 0}
IDS = list(range(300, 320))


def digest(ids):
    return f"blake3:{blake3(array('I', ids).tobytes()).hexdigest()}"


def read_on(link):
    while link.recv(1 << 16):
        pass


def text_digest(text):
    return f"blake3:{blake3(text.encode()).hexdigest()}"


class Running:
    """A witness in a thread, and what asks it."""

    def __init__(self, path, **script) -> None:
        self.path = path
        self.witness = Witness(Script.model_validate({"service": QUICK, **script}), path)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        self.facts = {}
        self.links = []

    def _run(self):
        while self.witness.running:
            self.witness.poll(0.01)
        self.facts = self.witness.close()

    def end(self):
        self.witness.running = False
        self.thread.join()
        for link in self.links:
            link.close()
        return read_record(self.path)

    def connect(self):
        self.links.append(http.client.HTTPConnection("127.0.0.1", self.witness.port, timeout=10))
        return self.links[-1]

    def raw(self):
        link = socket.create_connection(("127.0.0.1", self.witness.port), timeout=10)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return link

    def ask(self, path="/v1/completions", *, request="semtrace-0-0", link=None, **body):
        link = link or self.connect()
        body = {"model": "witness", "prompt": IDS, "max_tokens": 5, **body}
        link.request("POST", path, json.dumps(body), {"X-Request-Id": request})
        answer = link.getresponse()
        return answer.status, answer.read(), answer

    def events(self, path="/v1/completions", **body):
        status, text, _ = self.ask(path, stream=True, stream_options={"include_usage": True}, **body)
        assert status == 200
        found = [line.removeprefix(b"data: ") for line in text.split(b"\n\n") if line]
        done = found[-1] == b"[DONE]"
        return [json.loads(each) for each in found[: len(found) - done]], done


@pytest.fixture
def start(tmp_path):
    started = []

    def start(**script):
        started.append(Running(tmp_path / f"record{len(started)}.jsonl", **script))
        return started[-1]

    yield start
    for each in started:
        each.end()


def test_locked_lengths_are_streamed_token_by_token(start):
    run = start()
    events, done = run.events(min_tokens=5, ignore_eos=True, return_token_ids=True)
    *tokens, usage = events
    ids = [each for event in tokens for each in event["choices"][0]["token_ids"]]
    assert done
    assert len(tokens) == len(ids) == 5
    assert [event["choices"][0]["finish_reason"] for event in tokens] == [None] * 4 + ["length"]
    assert usage["usage"] == {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}
    assert min(ids) >= 16_000
    (entry,) = run.end()
    assert entry.output_digest == digest(ids)
    assert (entry.request, entry.request_id, entry.attempt) == ("semtrace-0-0", "semtrace-0-0", 1)
    assert (entry.prompt, entry.prompt_tokens, entry.prompt_digest) == ("token_ids", 20, digest(IDS))
    assert (entry.max_tokens, entry.min_tokens, entry.ignore_eos) == (5, 5, True)
    assert (entry.status, entry.finish_reason, entry.output_tokens, entry.closed_by) == (
        200,
        "length",
        5,
        None,
    )
    assert entry.arrival_unix_ns <= entry.complete_unix_ns <= entry.first_token_unix_ns <= entry.end_unix_ns


def test_what_is_not_streamed_comes_whole(start):
    run = start()
    status, text, answer = run.ask(min_tokens=5, return_token_ids=True)
    value = json.loads(text)
    assert (status, answer.headers["x-request-id"]) == (200, "semtrace-0-0")
    assert len(value["choices"][0]["token_ids"]) == value["usage"]["completion_tokens"] == 5
    (entry,) = run.end()
    assert (entry.output_tokens, entry.finish_reason, entry.first_token_unix_ns) == (5, "stop", None)


def test_it_ends_by_itself_unless_it_is_told_to_go_on(start):
    run = start(eos_after=3)
    counts = []
    for more in ({}, {"ignore_eos": True}, {"min_tokens": 4}, {"min_tokens": 5}):
        choice = json.loads(run.ask(return_token_ids=True, **more)[1])["choices"][0]
        counts.append((len(choice["token_ids"]), choice["finish_reason"], choice["token_ids"][-1] == 2))
    assert counts == [(3, "stop", True), (5, "length", False), (4, "stop", True), (5, "stop", True)]


@pytest.mark.parametrize("lock", ["7,8,9,2", [7, 8, 9, 2]])
def test_locked_ids_are_generated(start, lock):
    run = start()
    choice = json.loads(
        run.ask(max_tokens=4, vllm_xargs={"semtrace_output_ids": lock}, return_token_ids=True)[1]
    )["choices"][0]
    assert (choice["token_ids"], choice["finish_reason"]) == ([7, 8, 9, 2], "stop")
    (entry,) = run.end()
    assert (entry.lock_tokens, entry.lock_digest) == (4, digest([7, 8, 9, 2]))
    assert entry.output_digest == entry.lock_digest


def test_locked_ids_are_not_known_everywhere(start):
    run = start(token_lock=False)
    choice = json.loads(
        run.ask(vllm_xargs={"semtrace_output_ids": [7, 8]}, ignore_eos=True, return_token_ids=True)[1]
    )["choices"][0]
    assert min(choice["token_ids"]) >= 16_000


def test_free_ids_depend_on_the_prompt_alone(start):
    run = start()
    one, again, other = (
        json.loads(run.ask(prompt=prompt, ignore_eos=True, return_token_ids=True)[1])["choices"][0][
            "token_ids"
        ]
        for prompt in (IDS, IDS, IDS[:-1])
    )
    assert one == again != other


def test_chat_text_and_embeddings(start):
    run = start()
    events, _ = run.events(
        "/v1/chat/completions", messages=[{"role": "user", "content": "hé"}], ignore_eos=True
    )
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert events[-1]["usage"]["completion_tokens"] == 5
    assert json.loads(run.ask("/v1/embeddings", input=IDS)[1])["usage"]["prompt_tokens"] == 20
    assert json.loads(run.ask(prompt="hé")[1])["usage"]["prompt_tokens"] == 3
    assert json.loads(run.ask("/tokenize", prompt="hé")[1]) == {
        "count": 3,
        "max_model_len": 1 << 20,
        "tokens": [107, 198, 172],
    }
    chat, embedding, text, tokens = run.end()
    assert (chat.prompt, embedding.prompt, text.prompt, tokens.prompt) == (
        "messages",
        "token_ids",
        "text",
        None,
    )
    assert chat.prompt_digest == text_digest('[{"content":"hé","role":"user"}]')
    assert text.prompt_digest == text_digest("hé")
    assert (embedding.output_tokens, embedding.end_unix_ns is None) == (0, False)


def test_models_are_listed(start):
    run = start(models=["a", "b"], context=100)
    link = run.connect()
    link.request("GET", "/v1/models")
    listed = json.loads(link.getresponse().read())["data"]
    assert [(each["id"], each["max_model_len"]) for each in listed] == [("a", 100), ("b", 100)]
    link.request("GET", "/health")
    assert link.getresponse().read() == b"{}"


@pytest.mark.parametrize(
    ("script", "body", "status"),
    [
        ({}, {"model": "other"}, 404),
        ({}, {"prompt": []}, 400),
        ({}, {"prompt": {"a": 1}}, 400),
        ({}, {"prompt": [1, -1]}, 400),
        ({}, {"prompt": [32_000]}, 400),
        ({}, {"max_tokens": 0}, 400),
        ({}, {"max_tokens": 3, "min_tokens": 4}, 400),
        ({}, {"max_tokens": "3"}, 400),
        ({"context": 24}, {}, 400),
        ({}, {"vllm_xargs": {"semtrace_output_ids": "1,x"}}, 400),
        ({}, {"vllm_xargs": {"semtrace_output_ids": [40_000]}}, 400),
        ({"length_lock": False}, {"min_tokens": 5}, 400),
        ({"length_lock": False}, {"ignore_eos": True}, 400),
        ({"token_ids": False}, {}, 400),
    ],
)
def test_what_the_server_will_not_take(start, script, body, status):
    run = start(**script)
    found, text, _ = run.ask(**body)
    assert (found, json.loads(text)["error"]["code"]) == (status, status)
    (entry,) = run.end()
    assert (entry.status, entry.output_tokens, entry.fault) == (status, 0, None)


def test_what_is_asked_for_that_there_is_not(start):
    run = start(tokenize=False)
    link = run.connect()
    assert run.ask("/tokenize", link=link)[0] == 404
    assert run.ask("/v1/else", link=link)[0] == 404
    link.request("GET", "/v1/completions")
    answer = link.getresponse()
    assert (answer.status, answer.read()[:9]) == (405, b'{"error":')
    link.request("POST", "/v1/completions", b"{")
    answer = link.getresponse()
    assert (answer.status, answer.read()[:9]) == (400, b'{"error":')
    assert [entry.status for entry in run.end()] == [404, 404, 405, 400]


def test_faults_come_on_cue(start):
    run = start(
        rules=[
            {
                "request": "semtrace-1-*",
                "attempts": [1],
                "fault": {"kind": "status", "status": 429, "retry_after_s": 2},
            },
            {"request": "semtrace-1-*", "attempts": [2], "fault": {"kind": "status", "status": 500}},
        ]
    )
    status, _, answer = run.ask(request="semtrace-1-0")
    assert (status, answer.headers["retry-after"]) == (429, "2")
    assert run.ask(request="semtrace-1-0-2")[0] == 500
    assert run.ask(request="semtrace-1-0-3")[0] == 200
    assert run.ask(request="semtrace-0-0")[0] == 200
    entries = run.end()
    assert [(entry.request, entry.attempt, entry.fault, entry.status) for entry in entries] == [
        ("semtrace-1-0", 1, "status", 429),
        ("semtrace-1-0", 2, "status", 500),
        ("semtrace-1-0", 3, None, 200),
        ("semtrace-0-0", 1, None, 200),
    ]


def of_fault(**fault):
    return {"rules": [{"fault": fault}]}


@pytest.mark.parametrize("after", [None, 0, 2])
def test_connections_are_reset(start, after):
    run = start(**of_fault(kind="reset", after_tokens=after))
    with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
        run.ask(stream=True)
    (entry,) = run.end()
    assert (entry.fault, entry.output_tokens, entry.closed_by) == ("reset", after or 0, "witness")
    assert (entry.status, entry.finish_reason) == (None if after is None else 200, None)
    assert entry.end_unix_ns is not None


def test_streams_are_truncated(start):
    run = start(**of_fault(kind="truncated", after_tokens=2))
    events, done = run.events(ignore_eos=True)
    assert (len(events), done) == (2, False)
    assert all(event["choices"][0]["finish_reason"] is None for event in events)
    (entry,) = run.end()
    assert (entry.output_tokens, entry.finish_reason, entry.closed_by) == (2, None, None)


@pytest.mark.parametrize("stream", [False, True])
def test_answers_are_cut_by_closing(start, stream):
    run = start(**of_fault(kind="truncated", after_tokens=2, closes=True))
    with pytest.raises(http.client.IncompleteRead):
        run.ask(stream=stream)
    assert run.end()[0].closed_by == "witness"


@pytest.mark.parametrize("after", [None, 2])
def test_it_falls_silent(start, after):
    run = start(**of_fault(kind="hang", after_tokens=after))
    with run.raw() as link:
        body = json.dumps({"model": "witness", "prompt": IDS, "max_tokens": 5, "stream": True}).encode()
        link.sendall(b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        link.settimeout(0.05)
        with pytest.raises(TimeoutError):
            read_on(link)
    deadline = time.monotonic() + 10
    while not run.path.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.01)
    (entry,) = run.end()
    assert (entry.closed_by, entry.output_tokens, entry.finish_reason) == ("client", after or 0, None)


def test_answers_are_garbage(start):
    run = start(**of_fault(kind="garbage", where="head"))
    with pytest.raises(http.client.BadStatusLine):
        run.ask()
    run = start(**of_fault(kind="garbage"))
    with pytest.raises(json.JSONDecodeError):
        run.events()
    with pytest.raises(json.JSONDecodeError):
        json.loads(run.ask()[1])
    assert [entry.fault for entry in run.end()] == ["garbage", "garbage"]


def test_errors_in_streams(start):
    run = start(**of_fault(kind="error", after_tokens=1))
    events, done = run.events(ignore_eos=True)
    assert done
    assert [set(each) & {"choices", "error"} for each in events] == [{"choices"}, {"error"}]
    assert run.ask()[0] == 500


@pytest.mark.parametrize(
    ("fault", "count", "reason"),
    [
        ({"kind": "count", "delta": 1}, 6, "length"),
        ({"kind": "count", "delta": -2}, 3, "length"),
        ({"kind": "eos", "after_tokens": 2}, 2, "stop"),
    ],
)
def test_counts_are_wrong(start, fault, count, reason):
    run = start(**of_fault(**fault))
    choice = json.loads(run.ask(ignore_eos=True, return_token_ids=True)[1])["choices"][0]
    assert (len(choice["token_ids"]), choice["finish_reason"]) == (count, reason)
    assert run.end()[0].output_tokens == count


def test_ids_are_wrong(start):
    run = start(**of_fault(kind="ids", position=1))
    lock = {"vllm_xargs": {"semtrace_output_ids": [7, 8, 9]}, "max_tokens": 3}
    assert json.loads(run.ask(return_token_ids=True, **lock)[1])["choices"][0]["token_ids"] == [7, 16_000, 9]


def test_counts_are_not_told(start):
    run = start(**of_fault(kind="no_usage"))
    assert len(run.events(ignore_eos=True)[0]) == 5
    assert "usage" not in json.loads(run.ask()[1])
    run = start(usage=False)
    assert "usage" not in json.loads(run.ask()[1])


def test_connections_are_refused(start):
    run = start(refuse_connections=[1])
    with pytest.raises(ConnectionError):
        run.ask()
    assert run.ask()[0] == 200
    assert [entry.connection for entry in run.end()] == [2]


def test_the_server_dies_and_comes_back(start):
    run = start(rules=[{"attempts": [1], "fault": {"kind": "die", "for_ns": 50_000_000}}])
    other = run.connect()
    other.connect()
    with pytest.raises(ConnectionError):
        run.ask()
    with pytest.raises(ConnectionError):
        run.ask(link=other)
    deadline = time.monotonic() + 10
    while True:
        try:
            status, _, _ = run.ask()
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        else:
            break
    assert status == 200
    assert [(entry.fault, entry.closed_by) for entry in run.end()] == [("die", "witness"), (None, None)]


def test_service_takes_its_time(start):
    first, token = 30_000_000, 5_000_000
    run = start(service={"first_token_ns": first, "prompt_token_ns": 100_000, "token_ns": token, "chunk": 2})
    events, _ = run.events(ignore_eos=True, return_token_ids=True)
    assert [len(each["choices"][0]["token_ids"]) for each in events[:-1]] == [1, 2, 2]
    (entry,) = run.end()
    assert entry.first_token_unix_ns - entry.arrival_unix_ns >= first + 20 * 100_000
    assert entry.end_unix_ns - entry.arrival_unix_ns >= first + 20 * 100_000 + 4 * token


def test_a_request_in_pieces_arrives_with_its_first(start):
    run = start()
    with run.raw() as link:
        body = json.dumps({"model": "witness", "prompt": IDS * 5000, "max_tokens": 1}).encode()
        before = time.time_ns()
        link.sendall(b"POST /v1/completions HTTP/1.1\r\n")
        after = time.time_ns()
        time.sleep(0.05)
        link.sendall(b"content-length: %d\r\nx-semtrace-task: 3\r\n\r\n" % len(body) + body)
        assert link.recv(12) == b"HTTP/1.1 200"
    (entry,) = run.end()
    assert entry.prompt_tokens == 100_000
    assert entry.arrival_stamp in {"kernel", "read"}
    assert entry.arrival_unix_ns >= before
    assert entry.complete_unix_ns - after >= 50_000_000
    assert entry.hints == ["x-semtrace-task"]


def test_what_the_kernel_stamps_is_before_what_is_read(start):
    run = start()
    link = run.connect()
    sent = []
    for at in range(3):
        sent.append(time.time_ns())
        run.ask(request=f"semtrace-0-{at}", link=link)
    entries = run.end()
    assert {entry.connection for entry in entries} == {1}
    assert [entry.on_connection for entry in entries] == [1, 2, 3]
    if sys.platform == "linux":
        assert {entry.arrival_stamp for entry in entries} == {"kernel"}
    assert all(at <= entry.arrival_unix_ns for at, entry in zip(sent, entries, strict=True))


def test_requests_that_follow_at_once_are_answered_in_order(start):
    run = start()
    body = json.dumps({"model": "witness", "prompt": IDS, "max_tokens": 1}).encode()
    with run.raw() as link:
        for at in range(3):
            last = b"connection: close\r\n" if at == 2 else b""
            link.sendall(
                b"POST /v1/completions?x=1 HTTP/1.1\r\nx-request-id: r%d\r\n%bcontent-length: %d\r\n\r\n"
                % (at, last, len(body))
                + body
            )
        text = b""
        while more := link.recv(1 << 16):
            text += more
    assert [text.count(b"x-request-id: r%d" % at) for at in range(3)] == [1, 1, 1]
    assert [entry.request for entry in run.end()] == ["r0", "r1", "r2"]


def test_large_answers_do_not_block(start):
    run = start()
    run.witness._listener.setsockopt(
        socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16
    )  # its connections inherit it
    slow = run.raw()
    body = json.dumps({"model": "witness", "prompt": IDS, "max_tokens": 500_000, "ignore_eos": True}).encode()
    slow.sendall(b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    assert slow.recv(12) == b"HTTP/1.1 200"
    assert run.ask()[0] == 200
    read = 12
    while b'"total_tokens":500020' not in (part := slow.recv(1 << 20)):
        read += len(part)
    slow.close()
    assert read > 1 << 20
    assert {entry.output_tokens for entry in run.end()} == {500_000, 3}


def test_what_is_no_http_is_told_so(start):
    run = start()
    with run.raw() as link:
        link.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert link.recv(1 << 16).startswith(b"HTTP/1.1 400")
    assert run.ask()[0] == 200


def test_what_is_under_way_at_the_end_is_written_down(start):
    run = start(service={"first_token_ns": 60_000_000_000})
    link = run.raw()
    body = json.dumps({"model": "witness", "prompt": IDS}).encode()
    link.sendall(b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
    while not run.witness._number:
        time.sleep(0.002)
    (entry,) = run.end()
    link.close()
    assert (entry.closed_by, entry.end_unix_ns, entry.status) == ("witness", None, None)
    assert run.facts["requests"] == 1
    assert run.facts["clock_step_ns"] >= 0


@pytest.mark.parametrize(
    "script",
    [
        {"eos": 16_000},
        {"free": 100},
        {"free": 32_000},
        {"rules": [{"fault": {"kind": "other"}}]},
        {"service": {"first_token_ns": -1}},
        {"models": []},
        {"more": 1},
    ],
)
def test_scripts_are_looked_at(script):
    with pytest.raises(ValidationError):
        Script.model_validate(script)


def test_a_record_is_not_replaced(tmp_path):
    path = tmp_path / "record.jsonl"
    path.write_text("mine", "utf-8")
    with pytest.raises(FileExistsError):
        Witness(Script(), path)
    assert path.read_text("utf-8") == "mine"


def test_lines_fit_their_schema(start):
    run = start()
    run.events()
    run.end()
    line = json.loads(run.path.read_text("utf-8"))
    Draft202012Validator(Entry.model_json_schema()).validate(line)
    assert list(line) == list(Entry.model_fields)


@pytest.mark.parametrize("whole", [True, False])
def test_the_program_serves_until_it_is_ended(tmp_path, whole):
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"service": QUICK}) if whole else '{"format": "x"}', "utf-8")
    command = [sys.executable, "-m", "semtrace_conformance.witness", "--script", str(script)]
    with subprocess.Popen(
        [*command, "--record", str(tmp_path / "r.jsonl")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        if not whole:
            assert process.wait(30) == 2
            assert "semtrace-witness: format" in process.stderr.read()
            return
        port = json.loads(process.stdout.readline())["port"]
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        link.request("POST", "/v1/completions", json.dumps({"model": "witness", "prompt": IDS}))
        assert link.getresponse().status == 200
        link.close()
        process.terminate()
        assert json.loads(process.stdout.readline())["requests"] == 1
        assert process.wait(30) == 0
    assert len(read_record(tmp_path / "r.jsonl")) == 1


def test_the_program_is_told_what_to_do(tmp_path):
    command = [sys.executable, "-m", "semtrace_conformance.witness", "--control"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def tell(value):
            process.stdin.write(json.dumps(value) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        for at in range(2):
            port = tell({"script": {"service": QUICK}, "record": str(tmp_path / f"{at}.jsonl")})["port"]
            link = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            link.request("POST", "/v1/completions", json.dumps({"model": "witness", "prompt": IDS}))
            assert link.getresponse().status == 200
            link.close()
        assert "free" in tell({"script": {"free": 1}, "record": "x"})["error"]
        assert "error" in tell({"script": {}, "record": str(tmp_path / "0.jsonl")})
        assert tell({"end": True}) == {}
        process.stdin.close()
        assert process.wait(30) == 0
    assert [len(read_record(tmp_path / f"{at}.jsonl")) for at in range(2)] == [1, 1]
