"""The witness as a relay: what a server behind it says comes through byte for byte, and is written down. The server is another witness."""

from __future__ import annotations

import http.client
import json
import socket
import time

import pytest

from semtrace_conformance.witness import Upstream
from support.served_witness import Serving

IDS = list(range(300, 320))


class Pair:
    """A server, and a relay before it."""

    def __init__(self, folder, models=None, **script) -> None:
        self.server = Serving(folder / "server.jsonl", **script)
        upstream = Upstream(host="127.0.0.1", port=self.server.port, models=models)
        self.relay = Serving(folder / "relay.jsonl", upstream)

    def end(self):
        """Both records."""
        return self.relay.end(), self.server.end()


@pytest.fixture
def pair(tmp_path):
    made = []

    def start(**script):
        made.append(Pair(tmp_path, **script))
        return made[-1]

    yield start
    for each in made:
        for one in (each.relay, each.server):
            if one.thread.is_alive():
                one.end()


def raw(port, path="/v1/completions", *, method="POST", request="semtrace-0-0", close=True, **body):
    """The bytes of an answer."""
    content = json.dumps({"model": "witness", "prompt": IDS, "max_tokens": 5, **body}).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=20) as link:
        head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nx-request-id: {request}\r\n"
        if close:
            head += "connection: close\r\n"
        link.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        text = b""
        while more := link.recv(1 << 16):
            text += more
    return text


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "ignore_eos": True,
        },
        {"vllm_xargs": {"semtrace_output_ids": [301, 302]}, "max_tokens": 2, "return_token_ids": True},
        {
            "path": "/v1/chat/completions",
            "messages": [{"role": "user", "content": "Sé breve"}],
            "stream": True,
        },
        {"path": "/v1/embeddings", "input": IDS},
        {"path": "/tokenize", "prompt": "how many"},
        {"path": "/v1/models", "method": "GET"},
        {"path": "/nothing"},
        {"model": "another"},
        {"max_tokens": -1},
        {"prompt": IDS * 20_000, "max_tokens": 20_000, "stream": True, "ignore_eos": True},
    ],
    ids=lambda asked: asked.get("path") or "-".join(asked) or "plain",
)
def test_answers_come_through_byte_for_byte(pair, asked):
    both = pair()
    assert raw(both.relay.port, **asked) == raw(both.server.port, **asked)


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_server_told_is_written_down(pair, stream):
    both = pair()
    lock = {"vllm_xargs": {"semtrace_output_ids": [400, 2]}, "max_tokens": 2, "return_token_ids": True}
    raw(both.relay.port, request="semtrace-3-1-2", stream=stream, **lock)
    (told,), (own,) = both.end()
    same = set(type(told).model_fields) - {
        "arrival_unix_ns", "complete_unix_ns", "first_token_unix_ns", "end_unix_ns", "arrival_stamp", "connection",
    }  # fmt: skip
    assert {name: getattr(told, name) for name in same} == {name: getattr(own, name) for name in same}
    assert (told.output_tokens, told.finish_reason, told.request) == (2, "stop", "semtrace-3-1")
    assert told.output_digest == told.lock_digest != None  # noqa: E711  # there is one
    assert told.arrival_unix_ns <= own.arrival_unix_ns
    assert own.end_unix_ns <= told.end_unix_ns
    if stream:
        assert own.first_token_unix_ns <= told.first_token_unix_ns <= told.end_unix_ns


@pytest.mark.parametrize("asks", [{"return_token_ids": True}, {"stream_options": {"include_usage": True}}])
def test_counts_are_those_told_by_ids_or_by_usage(pair, asks):
    both = pair()
    raw(both.relay.port, stream=True, ignore_eos=True, **asks)
    (told,), (own,) = both.end()
    assert told.output_tokens == own.output_tokens == 5
    assert (told.output_digest is not None) == ("return_token_ids" in asks)


def test_connections_are_kept_and_one_answer_follows_the_other(pair):
    both = pair()
    link = http.client.HTTPConnection("127.0.0.1", both.relay.port, timeout=20)
    for at in range(3):
        body = json.dumps({"model": "witness", "prompt": IDS, "stream": True})
        link.request("POST", "/v1/completions", body, {"X-Request-Id": f"semtrace-0-{at}"})
        assert b"[DONE]" in link.getresponse().read()
    link.close()
    told, _ = both.end()
    assert [(each.request, each.on_connection, each.closed_by) for each in told] == [
        ("semtrace-0-0", 1, None), ("semtrace-0-1", 2, None), ("semtrace-0-2", 3, None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        ({"kind": "reset"}, None),
        ({"kind": "reset", "after_tokens": 2}, 200),
        ({"kind": "truncated", "after_tokens": 2, "closes": True}, 200),
        ({"kind": "garbage", "where": "head"}, None),
        ({"kind": "status", "status": 503}, 503),
    ],
)
def test_a_server_that_breaks_is_told_from_a_client_that_errs(pair, fault, status):
    both = pair(rules=[{"fault": fault}])
    if fault["kind"] == "reset" and "after_tokens" not in fault:
        with pytest.raises(ConnectionResetError):
            raw(both.relay.port, stream=True)
    else:
        raw(both.relay.port, stream=True)
    (told,), _ = both.end()
    assert (told.fault, told.status) == ("server", status)
    assert told.closed_by == (None if status == 503 else "witness")


def test_a_server_that_is_not_there(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        relay = Serving(tmp_path / "r.jsonl", Upstream(host="127.0.0.1", port=free.getsockname()[1]))
        with pytest.raises(ConnectionResetError):
            raw(relay.port)
        (told,) = relay.end()
    assert (told.fault, told.status, told.closed_by) == ("server", None, "witness")


def test_who_leaves_leaves_the_server_too(pair):
    both = pair(service={"first_token_ns": 60_000_000_000})
    body = json.dumps({"model": "witness", "prompt": IDS, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", both.relay.port)) as link:
        link.sendall(b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        deadline = time.monotonic() + 20
        while not both.server.witness._number and time.monotonic() < deadline:
            time.sleep(0.002)
    while not both.server.path.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.01)
    (told,), (own,) = both.end()
    assert (told.closed_by, own.closed_by) == ("client", "client")
    assert told.fault is None


def test_who_leaves_after_done_has_left_nothing_out(tmp_path):
    """The last bytes of HTTP may come later: a client need not wait for them."""
    said = (
        b'data: {"choices": [{"index": 0, "text": "a", "token_ids": [7], "finish_reason": "length"}]}\n\n',
        b"data: [DONE]\n\n",
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        relay = Serving(tmp_path / "relay.jsonl", Upstream(host="127.0.0.1", port=server.getsockname()[1]))
        body = json.dumps({"model": "witness", "prompt": IDS, "stream": True}).encode()
        with socket.create_connection(("127.0.0.1", relay.port), timeout=20) as link:
            link.sendall(b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            upstream, _ = server.accept()
            upstream.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            for part in said:
                upstream.sendall(b"%x\r\n%b\r\n" % (len(part), part))
            text = b""
            while b"[DONE]" not in text:
                text += link.recv(1 << 16)
        with upstream:
            upstream.settimeout(20)
            while upstream.recv(1 << 16):  # the relay leaves when its client does
                pass
        (told,) = relay.end()
    assert (told.closed_by, told.fault, told.output_tokens, told.finish_reason) == (None, None, 1, "length")


def test_an_error_of_the_client_is_no_fault_of_the_server(pair):
    both = pair()
    assert raw(both.relay.port, model="another").startswith(b"HTTP/1.1 404")
    (told,), _ = both.end()
    assert (told.status, told.fault) == (404, None)


def test_the_list_of_models_can_be_cut_down(pair):
    both = pair(models={"object": "list", "data": [{"id": "chosen"}]})
    answer = raw(both.relay.port, "/v1/models", method="GET")
    assert b'"chosen"' in answer
    assert b'"witness"' not in answer
