"""Outputs found again in later texts."""

from __future__ import annotations

import json

from semtrace_adapters.autogen.provenance import Outputs


def found(outputs, text, before=100.0, only=None):
    return [(text[s.start : s.end], s.source, s.source_start) for s in outputs.spans(text, before, only)]


def test_the_longest_output_wins_and_hides_what_is_inside_of_it():
    outputs = Outputs()
    outputs.add(1, "the harbour is deep", "a", 1)
    outputs.add(2, "report: the harbour is deep and wide", "b", 2)
    assert found(outputs, "seen in report: the harbour is deep and wide today") == [
        ("report: the harbour is deep and wide", 2, 0)
    ]
    assert found(outputs, "only the harbour is deep") == [("the harbour is deep", 1, 0)]


def test_each_place_is_found_and_places_do_not_overlap():
    outputs = Outputs()
    outputs.add(1, "abcdefghijkl", "a", 1)
    outputs.add(2, "ghijklmnopqr", "a", 2)
    text = "abcdefghijkl, ghijklmnopqr, abcdefghijklmnopqr"
    assert found(outputs, text) == [("abcdefghijkl", 1, 0), ("ghijklmnopqr", 2, 0), ("abcdefghijkl", 1, 0)]


def test_short_outputs_are_not_searched_for_but_whole_messages_are_known():
    outputs = Outputs()
    outputs.add(1, "APPROVE", "critic", 1)
    assert found(outputs, "please APPROVE this") == []
    assert outputs.equal("APPROVE", "critic", 5).operation == 1
    assert outputs.equal("APPROVE", "writer", 5) is None, "a short text of somebody else says nothing"


def test_the_right_speaker_is_preferred_and_the_latest():
    outputs = Outputs()
    for operation, (speaker, order) in enumerate([("a", 1), ("b", 2), ("a", 3), ("b", 4)]):
        outputs.add(operation, "the very same text", speaker, order)
    assert outputs.equal("the very same text", "a", 9).operation == 2
    assert outputs.equal("the very same text", "a", 2.5).operation == 0
    assert outputs.equal("the very same text", None, 9).operation == 3
    assert outputs.equal("the very same text", "a", 0.5) is None


def test_what_was_not_there_yet_is_no_source():
    outputs = Outputs()
    outputs.add(1, "written long afterwards", "a", 50)
    assert found(outputs, "see: written long afterwards", before=49) == []
    assert found(outputs, "see: written long afterwards", before=50) == [("written long afterwards", 1, 0)]


def test_strings_inside_of_json_outputs():
    outputs = Outputs()
    raw = json.dumps(
        {"speaker": "Writer", "ask": {"answer": "Writer, go on with it"}, "said": 'with "quotes" in it'}
    )
    outputs.add(1, raw, "orchestrator", 1)
    text, source, start = found(outputs, "Writer, go on with it")[0]
    assert (text, source) == ("Writer, go on with it", 1)
    assert raw.encode()[start : start + len(text)] == text.encode()
    # It stands escaped in the output: the source is known, its place is not.
    assert found(outputs, 'with "quotes" in it') == [('with "quotes" in it', 1, None)]


def test_bytes_are_counted_not_characters():
    outputs = Outputs()
    raw = json.dumps({"ä": "ünïcödé text here"}, ensure_ascii=False)
    outputs.add(1, raw, "a", 1)
    text, _, start = found(outputs, "so: ünïcödé text here")[0]
    assert raw.encode()[start : start + len(text.encode())].decode() == text


def test_only_some_operations_count():
    outputs = Outputs()
    outputs.add(1, "the same text from one", "a", 1)
    outputs.add(2, "another text from two", "a", 1)
    text = "the same text from one / another text from two"
    assert [s for _, s, _ in found(outputs, text, only=[2])] == [2]
