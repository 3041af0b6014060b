"""Connections: kept, reopened, and every way in which bytes can be wrong, against servers of raw bytes."""

import os
import resource
import select
import socket
import ssl
import subprocess
import time

import pytest

from semtrace.errors import ReplayError
from semtrace.live import connections
from semtrace.live.answers import Answer
from semtrace.live.connection import MOST_FIELDS, MOST_HEAD_BYTES, State
from semtrace.live.connections import Pool
from semtrace.live.settings import Target
from semtrace.records.enums import Failure
from support.raw_server import DONE, STREAM, as_json, chunk, plain, raw_server, tokens, until, usage

OK = STREAM + tokens([7], finish="stop") + usage(3, 1) + DONE
LIMIT_NS = 10_000_000_000


class Received(Answer):
    """An answer, and how it ended."""

    def __init__(self, data=b"{}") -> None:
        super().__init__()
        self.request = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (
            len(data),
            data,
        )
        self.sent_ns = None
        self.connection = None
        self.over_ns = None
        self.calls = []
        self.asked = None

    @property
    def asked_id(self):
        return self.asked

    def ended(self, at_ns):
        self.calls.append("ended")
        self.end()
        self.over_ns = at_ns

    def broken(self, failure, detail, at_ns):
        self.calls.append("broken")
        self.lost(failure, detail)
        self.over_ns = at_ns

    def again(self):
        self.calls.append("again")
        return self.request


@pytest.fixture
def pools():
    made = []

    def make(server, most=64, *, establish=True, scheme="http"):
        pool = Pool(Target(f"{scheme}://127.0.0.1:{server.port}"), most=most)
        made.append(pool)
        if establish:
            pool.establish(LIMIT_NS)
        return pool

    yield make
    for pool in made:
        pool.close()


def send(pool, data=b"{}"):
    answer = Received(data)
    pool.send(answer, answer.request)
    return answer


def finish(pool, *answers):
    until(lambda: all(each.over_ns is not None for each in answers), lambda: pool.turn(5_000_000))
    return [each.failure for each in answers]


def ask(pool, data=b"{}"):
    answer = send(pool, data)
    finish(pool, answer)
    return answer


def test_one_connection_serves_one_request_after_the_other(pools):
    with raw_server(lambda _: [OK]) as server:
        pool = pools(server)
        for _ in range(20):
            answer = ask(pool)
            assert (answer.failure, answer.ids.tolist(), answer.calls) == (None, [7], ["ended"])
            assert answer.sent_ns < answer.first_token_ns <= answer.over_ns
            until(lambda: pool.idle == 1, lambda: pool.turn(1_000_000))
        assert server.connections == 1
        assert (pool.counts.opened, pool.counts.opened_late) == (1, 0)


def test_requests_at_the_same_time_have_connections_of_their_own(pools):
    with raw_server(lambda _: [0.05, OK]) as server:
        pool = pools(server)
        answers = [send(pool) for _ in range(12)]
        assert finish(pool, *answers) == [None] * 12
        assert server.connections == 12
        assert pool.counts.opened_late == 11


def test_connections_are_opened_ahead_in_idle_time_and_as_many_as_wanted(pools):
    with raw_server(lambda _: [OK]) as server:
        pool = pools(server)
        pool.reserve = 10
        until(lambda: pool.idle == 10, lambda: pool.tend() or pool.turn(1_000_000))
        assert not pool.tend()
        assert finish(pool, *[send(pool) for _ in range(10)]) == [None] * 10
        assert (server.connections, pool.counts.opened_late) == (10, 0)


def test_no_more_connections_than_allowed_and_the_rest_wait(pools):
    with raw_server(lambda _: [0.02, OK]) as server:
        pool = pools(server, most=3)
        answers = [send(pool) for _ in range(9)]
        assert [each.sent_ns is None for each in answers] == [False] * 3 + [True] * 6
        assert finish(pool, *answers) == [None] * 9
        assert (server.connections, pool.counts.waited, pool.counts.most_open) == (3, 6, 3)
        assert sorted(answers, key=lambda each: each.sent_ns) == answers  # in their order


@pytest.mark.parametrize(
    "bytes_",
    [
        OK,
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + OK,
        as_json(
            {
                "choices": [{"text": "a", "token_ids": [7], "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 3},
            }
        ),
        OK.replace(b"\r\nContent-Type", b"\r\nCONTENT-type"),
        OK.removesuffix(b"\r\n") + b"X-Trailer: 1\r\n\r\n",
    ],
)
def test_answers_in_all_their_forms(pools, bytes_):
    for pieces in ([bytes_], [bytes_[i : i + 1] for i in range(len(bytes_))]):
        with raw_server(lambda _, pieces=pieces: list(pieces)) as server:
            pool = pools(server)
            for _ in range(2):
                answer = ask(pool)
                assert (answer.failure, answer.detail) == (None, "")
                assert (answer.ids.tolist(), answer.prompt_tokens) == ([7], 3)
                until(lambda pool=pool: pool.idle == 1, lambda pool=pool: pool.turn(1_000_000))
            assert server.connections == 1


def test_an_answer_that_ends_with_its_connection(pools):
    body = b'{"choices": [{"text": "a", "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}'
    with raw_server(lambda _: [b"HTTP/1.0 200 OK\r\n\r\n" + body[:9], 0.02, body[9:], "close"]) as server:
        pool = pools(server)
        answers = [ask(pool), ask(pool)]
        assert [(each.failure, each.prompt_tokens) for each in answers] == [(None, 3)] * 2
        assert server.connections == 2


def test_a_server_that_closes_after_each_answer(pools):
    with raw_server(lambda _: [as_json({"choices": [{}]}, "200 OK", "Connection: close"), "close"]) as server:
        pool = pools(server)
        assert [ask(pool).failure for _ in range(3)] == [None] * 3
        assert pool.counts.resent == 0


def test_after_the_end_mark_the_answer_is_over_and_the_connection_is_used_again_when_it_is(pools):
    """ST-LIV-003: an answer ends with the bytes that bring its end, not with what HTTP has after them."""
    parts = [OK[:-5], 0.3, OK[-5:]]
    with raw_server(lambda _: parts) as server:
        pool = pools(server)
        first = ask(pool)
        assert first.failure is None
        assert pool.idle == 0
        assert [each.state for each in pool._open.values()] == [State.DRAINING]
        second = ask(pool)  # on another connection
        assert second.failure is None
        assert server.connections == 2
        until(lambda: pool.idle == 2, lambda: pool.turn(1_000_000))


def test_what_nobody_needs_is_not_read_for_ever(pools, monkeypatch):
    monkeypatch.setattr(connections, "DRAINING_NS", 1)
    monkeypatch.setattr(connections, "SWEEP_NS", 0)
    with raw_server(lambda _: [OK[:-5], "hang"]) as server:
        pool = pools(server)
        assert ask(pool).failure is None
        pool.tend()
        assert not pool._open


@pytest.mark.parametrize(
    ("steps", "failure"),
    [
        (["close"], Failure.RESET),
        (["reset"], Failure.RESET),
        ([STREAM, 0.02, "reset"], Failure.RESET),
        ([STREAM + tokens([7]), 0.02, "reset"], Failure.RESET),
        ([STREAM + tokens([7]), 0.02, "close"], Failure.RESET),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}", 0.02, "close"], Failure.RESET),
        ([b"HTTP/1.1 200", 0.02, "close"], Failure.RESET),
        ([STREAM + tokens([7]) + b"0\r\n\r\n"], Failure.TRUNCATED),
        ([b"SSH-2.0-OpenSSH_9.6\r\n"], Failure.PROTOCOL),
        ([b"\x16\x03\x01\x02\x00" * 100], Failure.PROTOCOL),
        ([b"HTTP/1.1 abc\r\n\r\n"], Failure.PROTOCOL),
        ([b"HTTP/2 200 OK\r\n\r\n"], Failure.PROTOCOL),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"], Failure.PROTOCOL),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"], Failure.PROTOCOL),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"], Failure.PROTOCOL),
        ([b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: a\r\nConnection: upgrade\r\n\r\n"], Failure.PROTOCOL),
        ([b"HTTP/1.1 200 OK\r\nX-Long: " + b"y" * (MOST_HEAD_BYTES + 1) + b"\r\n\r\n"], Failure.PROTOCOL),
        ([b"HTTP/1.1 200 OK\r\nX-Long: ", *[b"y" * 9999] * 30, "hang"], Failure.PROTOCOL),
        ([b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * (MOST_FIELDS + 1) + b"Content-Length: 0\r\n\r\n"], Failure.PROTOCOL),
        ([b"HTTP/1.1 100 Continue\r\n\r\n" * 9999, "hang"], Failure.PROTOCOL),
        ([STREAM + b"0\r\nX-Trailer: ", *[b"y" * 99_999] * 9, "hang"], Failure.PROTOCOL),
        ([STREAM + b"3;" + b"y" * 99_999, *[b"y" * 99_999] * 9, "hang"], Failure.PROTOCOL),
        ([plain("200 OK", b"nonsense")], Failure.PROTOCOL),
        ([plain("429 Too Many Requests", b"")], Failure.RATE_LIMITED),
        ([plain("500 Internal Server Error", b"")], Failure.SERVER_ERROR),
        ([plain("400 Bad Request", b"")], Failure.REJECTED),
    ],
)  # fmt: skip
def test_each_way_of_going_wrong_has_its_name_and_harms_no_other_request(pools, steps, failure):
    """ST-LIV-041."""
    with raw_server(lambda asked: steps if b"wrong" in asked.body else [OK]) as server:
        pool = pools(server, establish=False)
        pool.establish(LIMIT_NS)
        for connection in list(pool._open.values()):
            pool._forget(connection)  # so that the connection is made for the request: nothing is sent again
        answer = ask(pool, b'"wrong"')
        assert answer.failure == failure
        assert answer.calls[-1] in ("broken", "ended")
        assert len(answer.calls) == 1
        assert answer.detail
        assert ask(pool).failure is None


def test_an_idle_connection_that_the_server_closed_is_not_an_attempt(pools):
    """ST-LIV-043."""

    def script(asked):
        return [OK] if asked.ordinal % 2 == 0 else ["reset" if asked.ordinal % 4 == 1 else "close"]

    with raw_server(script) as server:
        pool = pools(server)
        for number in range(3):
            assert ask(pool).failure is None
            until(lambda: pool.idle == 1, lambda: pool.turn(1_000_000))
            again = ask(pool)  # met by a close, sent again on a new connection, answered
            assert (again.failure, again.calls) == (None, ["again", "ended"])
            assert pool.counts.resent == number + 1
            until(lambda: pool.idle == 1, lambda: pool.turn(1_000_000))
            server.asked.pop()


def test_what_is_closed_again_without_an_answer_is_reset(pools):
    """ST-LIV-043: it is made again once."""
    with raw_server(lambda asked: [OK] if asked.ordinal == 0 else ["close"]) as server:
        pool = pools(server)
        ask(pool)
        until(lambda: pool.idle == 1, lambda: pool.turn(1_000_000))
        answer = ask(pool)
        assert (answer.failure, answer.calls) == (Failure.RESET, ["again", "broken"])
        assert len(server.asked) == 3


def test_an_answer_that_has_begun_is_not_asked_for_again(pools):
    with raw_server(lambda asked: [OK] if asked.ordinal == 0 else [b"HTTP/1.1 200", "reset"]) as server:
        pool = pools(server)
        ask(pool)
        until(lambda: pool.idle == 1, lambda: pool.turn(1_000_000))
        answer = ask(pool)
        # A reset may overtake what was sent before it: then nothing of an answer came.
        assert answer.failure == Failure.RESET
        assert answer.calls[-1] == "broken"


def test_connections_that_the_server_closed_are_noticed_and_opened_again(pools):
    with raw_server(lambda _: [OK, 0.05, "close"]) as server:
        pool = pools(server)
        pool.reserve = 1
        ask(pool)
        until(lambda: pool.counts.opened == 2 and pool.idle == 1, lambda: pool.tend() or pool.turn(1_000_000))
        assert (ask(pool).failure, pool.counts.resent) == (None, 0)


def test_a_server_that_says_what_nobody_asked_for_loses_its_connection(pools):
    with raw_server(lambda _: [OK, 0.02, OK]) as server:
        pool = pools(server)
        ask(pool)
        until(lambda: not pool._open, lambda: pool.turn(1_000_000))
        assert ask(pool).failure is None
    with raw_server(lambda _: [OK + OK]) as server:
        pool = pools(server)
        answer = ask(pool)
        assert (answer.failure, answer.ids.tolist()) == (None, [7])
        until(lambda: not pool._open, lambda: pool.turn(1_000_000))


def test_a_stale_connection_is_found_before_it_is_used(pools):
    with raw_server(lambda _: [OK, "close"]) as server:
        pool = pools(server)
        ask(pool)
        connection = next(iter(pool._open.values()))
        until(connection.stale, lambda: time.sleep(0.001))
        assert (ask(pool).failure, pool.counts.resent, server.connections) == (None, 0, 2)


def test_what_nobody_asked_for_is_not_the_next_answer(pools):
    """However short a connection was idle: the next request would take it for its own."""
    late = STREAM + tokens([9], finish="stop") + usage(3, 1) + DONE
    with raw_server(lambda asked: [OK, 0.02, late] if asked.ordinal == 0 else [OK]) as server:
        pool = pools(server)
        ask(pool)
        (connection,) = pool._open.values()
        assert connection.state == State.IDLE
        until(connection.stale, lambda: time.sleep(0.001))
        assert ask(pool).ids.tolist() == [7]
        assert server.connections == 2


def test_an_answer_to_another_request_is_none(pools):
    """ST-LIV-041; and its connection, on which the right one may follow, is closed."""
    ours = OK.replace(b"\r\n\r\n", b"\r\nX-Request-Id: semtrace-1-2\r\n\r\n", 1)
    with raw_server(lambda _: [ours]) as server:
        pool = pools(server)
        for asked, failure in (
            (None, None),
            ("semtrace-1-2", None),
            ("semtrace-1-2-2", Failure.PROTOCOL),
            ("semtrace-1-22", Failure.PROTOCOL),
            ("semtrace-1-3", Failure.PROTOCOL),
        ):
            answer = Received()
            answer.asked = asked
            pool.send(answer, answer.request)
            assert finish(pool, answer) == [failure]
            assert bool(pool._open) == (failure is None)
            assert answer.ids.tolist() == ([] if failure else [7])
    assert "another request" in answer.detail


def test_statuses_below_100_are_none(pools):
    with raw_server(lambda _: [b"HTTP/1.1 000 X\r\nContent-Length: 2\r\n\r\n{}"]) as server:
        answer = ask(pools(server))
    assert (answer.failure, answer.detail) == (Failure.PROTOCOL, "status 0")


def test_nothing_listens():
    with raw_server(lambda _: [OK]) as server:
        pass
    pool = Pool(Target(server.url), most=4)
    with pytest.raises(ReplayError) as caught:
        pool.establish(LIMIT_NS)
    assert (caught.value.code, caught.value.path) == ("live.unreachable", server.url)
    assert "connection refused" in str(caught.value)
    assert caught.value.hint
    pool.close()
    pool = Pool(Target("http://no-such-host.invalid:8000"), most=4)
    with pytest.raises(ReplayError, match="no host") as caught:
        pool.establish(LIMIT_NS)
    pool.close()


def test_a_server_that_goes_and_comes_back(pools):
    with raw_server(lambda _: [OK]) as server:
        pool = pools(server)
        assert ask(pool).failure is None
        port = server.port
    gone = ask(pool)
    assert (gone.failure, gone.calls[-1]) == (Failure.CONNECTION, "broken")
    assert "refused" in gone.detail
    with raw_server(lambda _: [OK], port=port):
        assert ask(pool).failure is None


def test_connecting_ahead_of_need_pauses_after_a_failure(pools):
    with raw_server(lambda _: [OK]) as server:
        pool = pools(server)
    pool.reserve = 5
    until(lambda: not pool._open, lambda: pool.turn(1_000_000))
    for _ in range(200):
        pool.tend()
        pool.turn(0)
    assert pool.counts.not_opened <= 1


def test_a_request_larger_than_the_kernel_takes_at_once_and_an_answer_before_its_end(pools):
    large = b'"' + b"x" * 20_000_000 + b'"'
    with raw_server(lambda asked: [OK] if asked.body == large else ["close"]) as server:
        pool = pools(server)
        answer = send(pool, large)
        assert finish(pool, answer) == [None]
    with raw_server(
        lambda _: [], accept=lambda _: [0.02, plain("413 Content Too Large", b""), 0.2, "close"]
    ) as server:
        pool = pools(server)
        assert finish(pool, send(pool, large)) == [Failure.REJECTED]


def test_what_is_called_off_is_told_nothing_and_its_connection_is_closed(pools):
    with raw_server(lambda asked: ["hang"] if b"slow" in asked.body else [OK]) as server:
        pool = pools(server, most=2)
        slow = [send(pool, b'"slow"') for _ in range(3)]  # the third waits for a connection
        pool.cancel(slow[2])
        until(lambda: len(server.asked) == 2, lambda: pool.turn(1_000_000))
        pool.cancel(slow[0])
        assert ask(pool).failure is None
        pool.cancel(slow[1])
        pool.cancel(slow[1])
        assert [each.calls for each in slow] == [[], [], []]


def test_a_call_off_makes_room_for_what_waits(pools):
    with raw_server(lambda asked: ["hang"] if b"slow" in asked.body else [OK]) as server:
        pool = pools(server, most=1)
        slow, waits = send(pool, b'"slow"'), send(pool)
        until(lambda: server.asked, lambda: pool.turn(1_000_000))
        pool.cancel(slow)
        assert finish(pool, waits) == [None]


def test_one_socket_is_read_at_a_turn(pools):
    with raw_server(lambda _: [OK]) as server:
        pool = pools(server)
        answers = [send(pool) for _ in range(8)]
        until(lambda: len(select.select(list(pool._open), [], [], 1)[0]) == 8)
        read = []
        for _ in range(8):
            pool.turn(0)
            read.append(sum(each.over_ns is not None for each in answers))
        assert read == list(range(1, 9))


def test_waking_ends_a_wait(pools):
    with raw_server(lambda _: [OK]) as server:
        pool = pools(server)
        pool.wake()
        until(lambda: pool.turn(3_600_000_000_000))
        assert not pool.turn(0)
    pool.close()
    pool.wake()  # a signal after the end
    pool.close()


def test_nothing_is_left_open(pools):
    def files():
        return {fd for fd in range(3, 400) if _is_open(fd)}

    before = files()
    with raw_server(lambda _: [0.02, OK]) as server:
        pool = pools(server)
        finish(pool, *[send(pool) for _ in range(5)])
        send(pool)
        pool.close()
    assert files() == before


def _is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_the_limit_of_open_files_is_raised_or_kept(monkeypatch):
    limits = {"soft": 300, "hard": 500}
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limits["soft"], limits["hard"]))
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limits.update(soft=wanted[0]))
    assert connections._files(100) == 100
    assert limits["soft"] == 300
    assert connections._files(1000) == 500 - connections.SPARE_FILES
    assert limits["soft"] == 500


def test_more_sockets_than_may_be_open(pools, monkeypatch):
    with raw_server(lambda _: [0.02, OK]) as server:
        pool = pools(server)
        first = send(pool)
        made = socket.socket

        def none_left(*_, **__):
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(socket, "socket", none_left)
        second = send(pool)
        monkeypatch.setattr(socket, "socket", made)
        assert finish(pool, first, second) == [None, None]


# --- TLS ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate of 127.0.0.1 and its key, made with OpenSSL's program."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext",
         "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context, cert


def test_encrypted_connections(pools, certificate, monkeypatch):
    context, cert = certificate
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    many = (
        STREAM
        + b"".join(tokens([each] * 50, text="x" * 900) for each in range(200))
        + usage(3, 10_000)
        + DONE
    )
    with raw_server(lambda asked: [many if b"many" in asked.body else OK], tls=context) as server:
        pool = pools(server, scheme="https")
        answers = [send(pool), send(pool, b'"many"'), send(pool, b'"' + b"y" * 3_000_000 + b'"')]
        assert finish(pool, *answers) == [None] * 3
        assert len(answers[1].ids) == 10_000
        until(lambda: pool.idle == 3, lambda: pool.turn(1_000_000))
        assert ask(pool).failure is None
        assert server.connections == 3


def test_what_nobody_asked_for_is_seen_of_an_encrypted_connection_too(pools, certificate, monkeypatch):
    context, cert = certificate
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    script = [[OK], [OK, 0.02, STREAM + tokens([9]) + DONE], [OK]]
    with raw_server(lambda asked: script[asked.ordinal], tls=context) as server:
        pool = pools(server, scheme="https")
        ask(pool)
        (connection,) = pool._open.values()
        assert not connection.stale(), "what TLS itself has to say is nobody's answer"
        ask(pool)
        assert server.connections == 1
        until(connection.stale, lambda: time.sleep(0.001))
        assert ask(pool).ids.tolist() == [7]
        assert server.connections == 2


def test_a_certificate_that_is_not_trusted(pools, certificate):
    with raw_server(lambda _: [OK], tls=certificate[0]) as server:
        with pytest.raises(ReplayError) as caught:
            pools(server, scheme="https")
        assert "not trusted" in str(caught.value)
        assert "SSL_CERT_FILE" in caught.value.hint


def test_http_where_https_is_wanted_and_the_other_way_round(pools, certificate):
    with raw_server(
        lambda _: [OK], accept=lambda _: [b"HTTP/1.1 400 Bad Request\r\n\r\n", "close"]
    ) as server:
        with pytest.raises(ReplayError) as caught:
            pools(server, scheme="https")
        assert "https" in caught.value.hint
    with raw_server(lambda _: [OK], tls=certificate[0]) as server:
        pool = pools(server)
        assert ask(pool).failure in (Failure.RESET, Failure.PROTOCOL)


def test_a_chunk_of_nothing_but_its_length_is_no_news(pools):
    parts = [STREAM, *[bytes([each]) for each in chunk(b": x\n\n")], OK.removeprefix(STREAM)]
    with raw_server(lambda _: parts) as server:
        assert ask(pools(server)).failure is None
