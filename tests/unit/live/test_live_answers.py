"""Answers: what is read of streams and documents, and how each way of going wrong is named."""

import itertools
import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semtrace.live import answers
from semtrace.live.answers import EMBEDDING, Answer, retry_after
from semtrace.records.enums import Failure, FinishReason

STREAM = {b"content-type": b"text/event-stream; charset=utf-8"}
PLAIN = {b"content-type": b"application/json"}


def data(value):
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def choice(**members):
    return data({"choices": [{"index": 0, **members}]})


WHOLE = (
    data({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    + b": a comment\n\n"
    + choice(text="one", token_ids=[7], finish_reason=None)
    + choice(text="", token_ids=[8, 9], finish_reason="length")
    + data(
        {
            "choices": [],
            "usage": {
                "prompt_tokens": 5,
                "completion_tokens": 3,
                "prompt_tokens_details": {"cached_tokens": 2},
            },
        }
    )
    + b"data: [DONE]\n\n"
)


def stream(*parts, end=True):
    answer = Answer()
    answer.head(200, STREAM)
    for at, part in enumerate(parts):
        if answer.body(part, 100 + at):
            break
    if end:
        answer.end()
    return answer


def test_the_type_of_a_stream_is_read_in_either_case():
    answer = Answer()
    answer.head(200, {b"content-type": b"Text/Event-Stream"})
    answer.body(WHOLE, 100)
    answer.end()
    assert told(answer) == told(stream(WHOLE))
    assert answer.first_token_ns == 100


def told(answer):
    return (
        answer.failure, answer.prompt_tokens, answer.cached_tokens, answer.output_tokens, answer.ids.tolist(), answer.has_ids,
        answer.finish_reason,
    )  # fmt: skip


def test_a_stream_gives_counts_ids_and_the_reason():
    assert told(stream(WHOLE)) == (None, 5, 2, 3, [7, 8, 9], True, FinishReason.LENGTH)


@given(
    st.lists(st.integers(0, len(WHOLE)), max_size=12),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.sampled_from([b"", b"\xef\xbb\xbf"]),
)
def test_it_makes_no_difference_where_a_stream_is_cut_and_how_its_lines_end(cuts, ends, mark):
    """As the HTML standard has it."""
    whole = mark + WHOLE.replace(b"\n", ends)
    edges = sorted({0, *cuts, len(whole)})
    parts = [whole[a:b] for a, b in itertools.pairwise(edges)]
    answer = stream(*parts)
    assert told(answer) == told(stream(WHOLE))
    # The first token is there with the part that ends its event.
    at = whole.index(2 * ends, whole.index(b'"one"')) + len(ends) + 1
    assert answer.first_token_ns == 100 + next(i for i, b in enumerate(edges[1:]) if b >= at)


def test_nothing_more_is_wanted_after_the_end_mark():
    answer = Answer()
    answer.head(200, STREAM)
    assert not answer.body(WHOLE[:-20], 1)
    assert answer.body(WHOLE[-20:], 2)


def test_a_role_alone_is_no_token_but_content_calls_and_reasoning_are():
    for delta, is_token in (
        ({"role": "assistant"}, False),
        ({"role": "assistant", "content": ""}, False),
        ({"content": None, "tool_calls": []}, False),
        ({"content": "x"}, True),
        ({"reasoning_content": "x"}, True),
        ({"tool_calls": [{"index": 0}]}, True),
    ):
        answer = stream(choice(delta=delta), end=False)
        assert (answer.first_token_ns is not None) == is_token, delta


def test_dynamo_tells_ids_beside_the_choices():
    parts = [
        data({"choices": [{"index": 0, "text": text}], "nvext": {"completion_token_ids": ids}})
        for text, ids in (("one", [7]), ("", [8, 9]), ("", []))
    ]
    assert stream(*parts, b"data: [DONE]\n\n").ids.tolist() == [7, 8, 9]
    wrong = data({"choices": [], "nvext": {"completion_token_ids": "7"}})
    assert stream(wrong).failure == Failure.PROTOCOL


def test_what_a_server_does_not_tell_is_unknown():
    answer = stream(choice(text="a", finish_reason="stop"), b"data: [DONE]\n\n")
    assert told(answer) == (None, None, None, None, [], False, FinishReason.STOP)
    assert told(stream(choice(text="a", finish_reason="odd"), b"data: [DONE]\n\n"))[-1] is None


def test_data_of_several_lines_is_one_event():
    answer = stream(b'data: {"choices": [],\ndata: "usage": {"prompt_tokens": 4}}\n\ndata: [DONE]\n\n')
    assert (answer.failure, answer.prompt_tokens) == (None, 4)


def test_a_last_event_without_its_blank_line_counts():
    assert stream(WHOLE[:-1]).failure is None
    assert stream(WHOLE[:-2]).failure is None


@pytest.mark.parametrize("cut", [0, 60, len(WHOLE) - 20])
def test_a_stream_without_its_end_mark_is_truncated(cut):
    """ST-LIV-040, ST-LIV-041."""
    assert stream(WHOLE[:cut]).failure == Failure.TRUNCATED


@pytest.mark.parametrize(
    "wrong",
    [
        b"data: nonsense\n\n",
        b"data: [1]\n\n",
        data({"choices": 5}),
        data({"choices": ["a"]}),
        choice(token_ids=["secret"]),
        choice(token_ids=[-1]),
        choice(token_ids=[1 << 32]),
        choice(token_ids=7),
        choice(token_ids=""),
        choice(token_ids={}),
        data({"usage": [1]}),
        data({"usage": {"prompt_tokens": -1}}),
        data({"usage": {"prompt_tokens": 1.5}}),
        data({"usage": {"completion_tokens": True}}),
        data({"usage": {"completion_tokens": 1 << 60}}),
        data({"usage": {"completion_tokens": 1 << 40}}),
        data({"usage": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 6}}}),
        data({"usage": {"prompt_tokens": 5}})
        + data({"usage": {"prompt_tokens_details": {"cached_tokens": 6}}}),
    ],
)
def test_events_that_are_not_of_the_interface(wrong):
    answer = stream(choice(text="a"), wrong)
    assert answer.failure == Failure.PROTOCOL
    assert "secret" not in answer.detail


def test_errors_told_in_a_stream():
    """ST-LIV-041: an error object in place of the rest of a stream."""
    for error, failure in (
        (
            {"error": {"message": "prompt text", "type": "InternalServerError", "code": 500}},
            Failure.SERVER_ERROR,
        ),
        ({"error": {"message": "prompt text", "code": 400}}, Failure.REJECTED),
        ({"error": "prompt text"}, Failure.SERVER_ERROR),
    ):
        answer = stream(choice(text="a"), data(error), b"data: [DONE]\n\n")
        assert answer.failure == failure
        assert "prompt text" not in answer.detail
    assert "InternalServerError" in stream(data({"error": {"type": "InternalServerError"}})).detail
    for none in (None, False):
        assert stream(data({"error": none, "usage": {"prompt_tokens": 4}}), WHOLE).failure is None


@pytest.mark.parametrize("space", ["", " "])
@pytest.mark.parametrize("count", [0, 3, 5000])
def test_ids_of_the_prompt_are_passed_over(count, space):
    text = '"prompt_token_ids":[1,2'
    value = {
        "choices": [{"prompt_token_ids": list(range(count)), "text": text * 200, "token_ids": [4, 5]}],
        "usage": {"prompt_tokens": 6},
    }
    raw = json.dumps(value, separators=(",", ":" + space)).encode()
    answer = stream(b"data: " + raw + b"\n\ndata: [DONE]\n\n")
    assert told(answer)[:6] == (None, 6, None, None, [4, 5], True)


def test_a_document_gives_the_same():
    answer = Answer()
    answer.head(200, PLAIN)
    body = {
        "choices": [{"index": 0, "text": "abc", "token_ids": [1, 2], "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 2},
    }
    raw = json.dumps(body).encode()
    assert not answer.body(raw[:10], 1)
    assert not answer.body(raw[10:], 2)
    answer.end()
    assert told(answer) == (None, 9, None, 2, [1, 2], True, FinishReason.STOP)
    assert answer.first_token_ns is None  # it came all at once: when the first was there is not known


@pytest.mark.parametrize(
    "body", [b"", b"nonsense", b"[]", b"{}", b'{"choices": []}', b'{"choices": 4}', b"\xff\xfe"]
)
def test_documents_that_are_not_of_the_interface(body):
    answer = Answer()
    answer.head(200, PLAIN)
    answer.body(body, 1)
    answer.end()
    assert answer.failure == Failure.PROTOCOL


def test_embeddings():
    def read(value):
        answer = Answer(EMBEDDING)
        answer.head(200, PLAIN)
        answer.body(json.dumps(value).encode(), 1)
        answer.end()
        return answer

    assert told(read({"data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 3}}))[:2] == (None, 3)
    assert read({"data": [{"embedding": "AAAAPw=="}]}).failure is None
    for wrong in ([], [5], [{}], [{"embedding": []}], [{"embedding": 5}]):
        assert read({"data": wrong}).failure == Failure.PROTOCOL


@pytest.mark.parametrize(
    ("status", "failure"),
    [
        (429, Failure.RATE_LIMITED), (500, Failure.SERVER_ERROR), (503, Failure.SERVER_ERROR), (599, Failure.SERVER_ERROR),
        (400, Failure.REJECTED), (401, Failure.REJECTED), (404, Failure.REJECTED), (302, Failure.REJECTED), (204, Failure.REJECTED),
    ],
)  # fmt: skip
def test_statuses(status, failure):
    """ST-LIV-041."""
    answer = Answer()
    answer.head(status, {b"retry-after": b"2"})
    answer.body(
        b'{"error": {"message": "the prompt was 1 2 3", "type": "BadRequestError", "code": "a b"}}', 1
    )
    answer.end()
    assert answer.failure == failure
    assert answer.detail == f"status {status} (BadRequestError)"
    assert answer.retry_after_ns == 2_000_000_000


def test_retry_after_is_a_number_of_seconds():
    """ST-LIV-042."""
    assert retry_after(b"3") == 3_000_000_000
    assert retry_after(b"0") == 0
    assert retry_after(b"99999999999") == answers.LONGEST_RETRY_AFTER_NS
    for value in (None, b"", b"-1", b"1.5", b"Fri, 31 Dec 2027 23:59:59 GMT", b"9" * 40):
        assert retry_after(value) is None


def test_answers_have_bounds(monkeypatch):
    monkeypatch.setattr(answers, "MOST_EVENT_BYTES", 1000)
    monkeypatch.setattr(answers, "MOST_ANSWER_BYTES", 5000)
    monkeypatch.setattr(answers, "MOST_ERROR_BYTES", 50)
    answer = Answer()
    answer.head(200, STREAM)
    assert not answer.body(b"data: " + b"x" * 900, 1)
    assert answer.body(b"x" * 200, 1)
    assert (answer.failure, answer.detail) == (Failure.PROTOCOL, "an event of more than 1,000 bytes")
    for fields in (STREAM, PLAIN):
        answer = Answer()
        answer.head(200, fields)
        more = [answer.body(b": x\n\n" * 100, 1) for _ in range(11)]
        assert more == [False] * 10 + [True]
        assert (answer.failure, answer.detail) == (Failure.PROTOCOL, "an answer of more than 5,000 bytes")
    answer = Answer(keep=True)
    answer.head(500, PLAIN)
    for _ in range(10):
        answer.body(b"y" * 40, 1)
    answer.end()
    assert answer.failure == Failure.SERVER_ERROR
    assert len(answer.raw) <= 100


def test_an_event_of_many_lines_has_the_bounds_of_one(monkeypatch):
    monkeypatch.setattr(answers, "MOST_EVENT_BYTES", 1000)
    answer = Answer()
    answer.head(200, STREAM)
    more = [answer.body(b"data:\ndata:xx\n" * 100, 1) for _ in range(3)]
    assert more == [False, False, True]
    assert (answer.failure, answer.detail) == (Failure.PROTOCOL, "an event of more than 1,000 bytes")


@pytest.mark.parametrize("kind", ["document", "error", "line", "event"])
def test_small_parts_take_no_more_memory_than_they_have_bytes(kind):
    answer = Answer()
    answer.head(500 if kind == "error" else 200, PLAIN if kind in ("document", "error") else STREAM)
    parts, count = (b"data:xx\n" * 4, 20_000) if kind == "event" else (b"xx", 100_000)
    tracemalloc.start()
    try:
        for _ in range(count):
            answer.body(bytes(bytearray(parts)), 1)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert answer.body_bytes == count * len(parts)
    assert held < 2 * answer.body_bytes


def test_documents_of_too_many_values_are_not_parsed():
    answer = Answer()
    answer.head(200, PLAIN)
    answer.body(b'{"choices": [' + b"[]," * 1_000_000 + b"[]]}", 1)
    answer.end()
    assert (answer.failure, answer.detail) == (
        Failure.PROTOCOL, "the answer has more than 3,000,000 values",
    )  # fmt: skip


def test_begin_forgets_an_attempt():
    answer = stream(WHOLE)
    answer.begin()
    assert told(answer) == (None, None, None, None, [], False, None)
    assert answer.first_token_ns is None
    answer.head(200, STREAM)
    answer.body(WHOLE, 7)
    answer.end()
    assert told(answer) == told(stream(WHOLE))
