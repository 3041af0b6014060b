"""Whatever bytes come, in whatever pieces: one end, no exception, no answer that is not whole."""

import itertools
import socket

from hypothesis import given
from hypothesis import strategies as st

from semtrace.live.answers import Answer
from semtrace.live.connection import Connection, State
from semtrace.records.enums import Failure
from support.raw_server import DONE, STREAM, as_json, event, plain, tokens, usage

WHOLE = [
    STREAM + tokens([1, 2]) + tokens([3], finish="stop") + usage(4, 3, 1) + DONE,
    as_json({"choices": [{"text": "a", "token_ids": [1, 2, 3], "finish_reason": "stop"}], "usage": {"prompt_tokens": 4, "completion_tokens": 3}}),
    plain("429 Too Many Requests", b'{"error": {"message": "m", "type": "t"}}', "Retry-After: 3"),
    STREAM + tokens([1]) + event({"error": {"message": "m", "code": 500}}) + DONE,
    b"HTTP/1.1 100 Continue\r\n\r\n" + STREAM + DONE,
]  # fmt: skip


class Received(Answer):
    """An answer, and how often it was told to be over."""

    def __init__(self) -> None:
        super().__init__()
        self.sent_ns = self.connection = None
        self.ends = []

    def ended(self, _):
        self.end()
        self.ends.append("ended")

    def broken(self, failure, detail, _):
        self.lost(failure, detail)
        self.ends.append("broken")


def received(pieces):
    """What a connection makes of pieces of bytes, the end of the file after them; the answer and the connection."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        connection = Connection(ours, None, "host")
        connection.opened()
        assert connection.state == State.IDLE
        answer = Received()
        connection.send(answer, b"request")
        for piece in pieces:
            if connection.state == State.CLOSED:
                break
            theirs.sendall(piece)
            while connection.state != State.CLOSED and _has_data(ours):
                connection.readable()
        theirs.close()
        if connection.state != State.CLOSED:
            connection.readable()
        connection.close()
    if not answer.ends:  # what the pool does of a connection that closed itself
        assert connection.lost is not None
        assert connection.receiver is answer
        answer.broken(*connection.lost, 0)
    assert len(answer.ends) == 1
    return answer


def _has_data(sock):
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


def pieces_of(raw, cuts):
    edges = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    return [raw[a:b] for a, b in itertools.pairwise(edges) if a < b]


CUTS = st.lists(st.integers(0, 1 << 20), max_size=8)


@given(st.sampled_from(WHOLE), CUTS)
def test_the_pieces_make_no_difference(raw, cuts):
    whole, cut = received([raw]), received(pieces_of(raw, cuts))
    for name in (
        "failure",
        "detail",
        "status",
        "prompt_tokens",
        "output_tokens",
        "cached_tokens",
        "finish_reason",
        "retry_after_ns",
    ):
        assert getattr(whole, name) == getattr(cut, name), name
    assert whole.ids == cut.ids


@given(st.sampled_from(WHOLE[:2]), st.integers(0, 1 << 20), CUTS)
def test_an_answer_that_is_cut_off_is_not_whole(raw, length, cuts):
    ended = raw.index(b"[DONE]\n\n") + 8 if b"[DONE]" in raw else len(raw)
    answer = received(pieces_of(raw[: length % ended], cuts))
    assert answer.failure in (Failure.RESET, Failure.TRUNCATED)


@given(
    st.sampled_from(WHOLE),
    st.lists(
        st.tuples(st.integers(0, 1 << 20), st.integers(0, 4), st.binary(max_size=6)), min_size=1, max_size=5
    ),
    CUTS,
)
def test_damaged_answers_have_one_end(raw, damages, cuts):
    for at, removed, put in damages:
        place = at % (len(raw) + 1)
        raw = raw[:place] + put + raw[place + removed :]
    received(pieces_of(raw, cuts))


@given(st.binary(max_size=400), CUTS)
def test_bytes_of_any_kind_are_no_answer(raw, cuts):
    assert received(pieces_of(raw, cuts)).failure is not None
