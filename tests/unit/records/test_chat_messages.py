"""Chat messages taken apart and put together: equal in RFC 8785 form, whatever a framework or a stranger puts in them."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semtrace.errors import FormatError, IntegrityError
from semtrace.records.chat import (
    MESSAGE_TYPE,
    TEXT_TYPE,
    join_message,
    output_envelope,
    split_message,
    split_output,
)
from semtrace.records.document import canonical_json
from semtrace.records.enums import Role

TEXTS = st.text(max_size=12)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
TOOL_CALLS = st.lists(
    st.fixed_dictionaries(
        {
            "id": TEXTS,
            "type": st.just("function"),
            "function": st.fixed_dictionaries({"name": TEXTS, "arguments": TEXTS}),
        },
        optional={"index": st.integers(0, 3)},
    ),
    max_size=3,
)
PARTS = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}, optional={"cache_control": JSON}),
    st.fixed_dictionaries(
        {
            "type": st.just("image_url"),
            "image_url": st.fixed_dictionaries({"url": TEXTS}, optional={"detail": st.just("low")}),
        }
    ),
    st.fixed_dictionaries({"type": st.just("image_url"), "image_url": JSON}),
    st.fixed_dictionaries({"type": st.just("input_audio"), "input_audio": JSON}),
    JSON,
)
CONTENTS = st.one_of(TEXTS, st.none(), st.lists(PARTS, max_size=4), JSON)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "function"])},
    optional={
        "content": CONTENTS,
        "tool_calls": st.none() | TOOL_CALLS | JSON,
        "name": TEXTS,
        "tool_call_id": TEXTS,
        "refusal": JSON,
        "reasoning_content": JSON,
        "a/b~c": JSON,
        "": JSON,
    },
)
"""Messages of every shape that the wire formats have, and many that they have not."""


@given(message=MESSAGES, data=st.data())
def test_a_message_comes_back_from_its_pieces_however_they_are_cut(message, data):
    before = canonical_json(message)
    split = split_message(message)
    assert canonical_json(message) == before, "the message itself is left alone"
    texts: list[str] = []
    counts = []
    for piece in split.pieces:
        at = sorted(data.draw(st.lists(st.integers(0, len(piece.text)), max_size=2)))
        bounds = [0, *at, len(piece.text)]
        texts += [piece.text[a:b] for a, b in itertools.pairwise(bounds)]
        counts.append(len(bounds) - 1)
    assert split.pieces
    assert canonical_json(join_message(split.role, split.envelope(tuple(counts)), texts)) == before


@pytest.mark.parametrize(
    ("message", "pieces"),
    [
        ({"role": "user", "content": "hi"}, ["hi"]),
        ({"role": "user", "content": ""}, [""]),
        ({"role": "assistant", "content": None}, ["null"]),
        ({"role": "assistant"}, ["{}"]),
        ({"role": "assistant", "content": "a", "tool_calls": [{"id": "1"}]}, ["a", '[{"id":"1"}]']),
        ({"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}, ['[{"id":"1"}]']),
        ({"role": "user", "content": []}, ["[]"]),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            ["a", "b"],
        ),
        (
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}}],
            },
            ["data:x"],
        ),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "x"}}]}, None),
        ({"role": "tool", "content": "42", "tool_call_id": "1"}, ["42"]),
    ],
)
def test_what_becomes_a_piece(message, pieces):
    split = split_message(message)
    expected = [canonical_json(message["content"]).decode()] if pieces is None else pieces
    assert [piece.text for piece in split.pieces] == expected
    assert join_message(split.role, split.envelope(), [piece.text for piece in split.pieces]) == message


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_a_plain_message_needs_no_envelope(role):
    split = split_message({"role": role, "content": "a"})
    assert split.envelope() is None
    assert join_message(split.role, None, ["a", "b", ""]) == {"role": role, "content": "ab"}


@pytest.mark.parametrize(("wire", "role"), [("developer", Role.SYSTEM), ("function", Role.TOOL)])
def test_other_names_of_roles_are_kept(wire, role):
    split = split_message({"role": wire, "content": "a"})
    assert split.role is role
    assert join_message(role, split.envelope(), ["a"]) == {"role": wire, "content": "a"}


@pytest.mark.parametrize("role", [None, "robot", 7, ["user"], "User"])
def test_roles_that_no_wire_format_has(role):
    with pytest.raises(FormatError) as caught:
        split_message({"role": role, "content": "a"})
    assert caught.value.requirement == "ST-CHAT-002"
    with pytest.raises(FormatError):
        split_message({"content": "a"})


OUTPUTS = st.fixed_dictionaries(
    {},
    optional={
        "content": CONTENTS,
        "tool_calls": TOOL_CALLS,
        "refusal": JSON,
        "reasoning_content": st.none() | TEXTS,
    },
)


@given(
    members=OUTPUTS,
    sent=st.dictionaries(st.sampled_from(["name", "refusal", "audio", "content"]), JSON, max_size=2),
)
def test_an_output_sent_in_a_later_request_comes_back(members, sent):
    answer = {"role": "assistant", **members}
    content, media_type = split_output(answer)
    message = {**answer, **sent}
    envelope = output_envelope(message, content, media_type)
    if envelope is False:
        return  # the message does not hold the output: it is stored as one of its own
    joined = join_message(Role.ASSISTANT, envelope or None, [content.decode()], media_type)
    assert canonical_json(joined) == canonical_json(message)


@given(members=OUTPUTS)
def test_an_output_sent_as_it_was_holds_the_output(members):
    answer = {"role": "assistant", **members}
    content, media_type = split_output(answer)
    said = {key: value for key, value in members.items() if value not in (None, [])}
    if said:
        assert output_envelope(answer, content, media_type) is not False


def test_what_an_output_is_stored_as():
    assert split_output({"role": "assistant", "content": "a", "tool_calls": None, "refusal": None}) == (
        b"a",
        TEXT_TYPE,
    )
    assert split_output({"content": ""}) == (b"", TEXT_TYPE)
    assert split_output({}) == (b"", TEXT_TYPE)
    content, media_type = split_output({"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]})
    assert (content, media_type) == (b'{"tool_calls":[{"id":"1"}]}', MESSAGE_TYPE)
    assert output_envelope({"role": "assistant", "tool_calls": [{"id": "1"}]}, content, media_type) is None
    withnull = output_envelope(
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}, content, media_type
    )
    assert json.loads(withnull) == {
        "message": {"role": "assistant", "content": None},
        "slots": [["", "merge", 1]],
    }


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "b"},
        {"role": "assistant"},
        {"role": "user", "content": "a"},
        {"content": "a"},
        {"role": "assistant", "content": [{"type": "text", "text": "a"}]},
    ],
)
def test_messages_that_do_not_hold_the_output(message):
    assert output_envelope(message, b"a", TEXT_TYPE) is False
    assert output_envelope(message, b'{"content":"a","x":true}', MESSAGE_TYPE) is False
    assert (
        output_envelope({**message, "x": 1, "content": "a"}, b'{"content":"a","x":true}', MESSAGE_TYPE)
        is False
    )


def test_an_output_of_another_kind_is_no_message():
    assert output_envelope({"role": "assistant", "content": "[1]"}, b"[1]", "application/json") is False


@pytest.mark.parametrize(
    ("envelope", "texts"),
    [
        (b"{", ["a"]),
        (b"[]", ["a"]),
        (b"null", ["a"]),
        (b'{"message":{}}', ["a"]),
        (b'{"message":{},"slots":[]}', ["a"]),
        (b'{"message":{},"slots":[["/content","text",2]]}', ["a"]),
        (b'{"message":{},"slots":[["/content","text",1]]}', ["a", "b"]),
        (b'{"message":{},"slots":[["/content","text"]]}', ["a"]),
        (b'{"message":{},"slots":[["/content","text","1"]]}', ["a"]),
        (b'{"message":{},"slots":[["/content","xml",1]]}', ["a"]),
        (b'{"message":{},"slots":[["/content",["text"],1]]}', ["a"]),
        (b'{"message":{},"slots":[["/content","json",1]]}', ["a"]),
        (b'{"message":{},"slots":[["","merge",1]]}', ["[1]"]),
        (b'{"message":{},"slots":[["/no/where","text",1]]}', ["a"]),
        (b'{"message":{"content":[]},"slots":[["/content/3/text","text",1]]}', ["a"]),
        (b'{"message":{"content":[{}]},"slots":[["/content/x/text","text",1]]}', ["a"]),
        (b'{"message":{"content":"s"},"slots":[["/content/0","text",1]]}', ["a"]),
        (b'{"message":[0],"slots":[["/0","text",1]]}', ["a"]),
        (b'{"message":{},"slots":[[5,"text",1]]}', ["a"]),
        (b'{"message":{},"slots":[["/content","json",1]]}', ["[" * 100_000]),
        (b'{"message":' + b"[" * 100_000, ["a"]),
    ],
)
def test_envelopes_that_do_not_fit_are_errors(envelope, texts):
    with pytest.raises(IntegrityError) as caught:
        join_message(Role.USER, envelope, texts)
    assert caught.value.requirement == "ST-CHAT-003"


@pytest.mark.parametrize("role", [Role.TOOLS, Role.TEMPLATE, 0, 99])
def test_roles_that_make_no_message(role):
    with pytest.raises(IntegrityError):
        join_message(role, None, ["a"])
