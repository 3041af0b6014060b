"""Blocks and keys by hand: each rule of spec/prefix.md, what is refused, what is remarked."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from semtrace.build import TraceBuilder
from semtrace.check import check_trace
from semtrace.engine.work import Work
from semtrace.errors import FormatError, ReplayError, UsageError
from semtrace.records.enums import ContentLevel, OperationKind, OperationStatus, Role, SegmentScope
from semtrace.records.media import BLOCK_IDS_TYPE, TOKEN_IDS_TYPE
from semtrace.transform.bundle_parts import Parts
from semtrace.transform.redact import redact


class Made:
    """A trace of one task while it grows."""

    def __init__(self) -> None:
        self.b = TraceBuilder(block_size=4, hash_scope="test")
        self.task = self.b.task("t")

    def call(
        self, *pieces: dict[str, Any], prompt: int | None = 0, output: int | None = 0, **columns: Any
    ) -> int:
        counts = [piece.get("tokens") or 0 for piece in pieces]
        base, inherits = columns.pop("base", None), columns.pop("inherits", 0)
        kind = columns.pop("kind", OperationKind.LLM)
        row = self.b.operation(
            self.task,
            kind,
            "call",
            prompt_tokens=sum(counts) if prompt == 0 else prompt,
            output_tokens=output,
            **columns,
        )
        if base is not None:
            self.b.inherit(row, base, inherits)
        for piece in pieces:
            self.b.segment(row, Role.USER, **piece)
        return row

    def ids(self, *ids: int, start: int = 0, tokens: int | None = None) -> dict[str, Any]:
        held = self.b.artifact(struct.pack(f"<{len(ids)}I", *ids), TOKEN_IDS_TYPE)
        return {"token_ids": held, "token_ids_start": start, "tokens": len(ids) if tokens is None else tokens}

    def work(self, size: int = 2) -> tuple[Work, list[list[int]]]:
        trace = self.b.build().trace
        assert check_trace(trace) == []
        work = Work.of(trace, size)
        return work, [part.tolist() for part in np.split(work.keys, work.key_start[1:-1])]


def test_an_empty_trace_has_no_blocks():
    work = Work.of(TraceBuilder().build().trace, 16)
    assert (work.keys.tolist(), work.key_start.tolist(), work.key_count) == ([], [0], 0)


def test_counts_and_whole_blocks_only():
    """ST-PFX-001, ST-PFX-002: input and output make one string; what is left at its end is in no block."""
    made = Made()
    made.call({"text": "a", "tokens": 5}, output=4)
    made.call({"text": "a", "tokens": 5}, kind=OperationKind.EMBED, output=None)
    tool = made.b.operation(made.task, OperationKind.TOOL, "tool", duration_ns=3)
    made.b.segment(tool, Role.USER, "a", tokens=100)  # what a tool is given is no prompt
    made.call({"text": "a", "tokens": 5}, output=9, status=OperationStatus.ERROR, duration_ns=1)
    made.call({"text": "b", "tokens": 1}, status=OperationStatus.CANCELLED, output=0)
    work, keys = made.work(4)
    assert work.prompt_tokens.tolist() == [5, 5, 0, 0, 1]
    assert work.output_tokens.tolist() == [4, 0, 0, 0, 0]
    assert [len(part) for part in keys] == [2, 1, 0, 0, 0]
    assert keys[0][0] == keys[1][0]  # ST-PFX-003, ST-PFX-004: whatever kind of operation it is
    assert work.key_count == 2
    assert work.known_by["content"] == 5 + 5 + 5 + 1


def test_equal_tokens_after_other_tokens_are_another_block():
    """ST-PFX-003."""
    made = Made()
    made.call(made.ids(1, 2, 3, 4))
    made.call(made.ids(3, 4, 3, 4))
    work, keys = made.work()
    assert keys == [[0, 1], [2, 3]]
    assert work.known_by["token_ids"] == 8


def test_pieces_follow_each_other():
    """ST-PFX-010, ST-PFX-020: what is inherited ends where the pieces inherited end."""
    made = Made()
    first = made.call({"text": "a", "tokens": 3}, {"text": "b", "tokens": 3}, output=2, reasoning_tokens=0)
    made.call({"text": "c", "tokens": 3}, base=first, inherits=1, prompt=6)
    made.call({"text": "a", "tokens": 3}, {"text": "c", "tokens": 3})
    made.call({"text": "c", "tokens": 2}, base=first, inherits=3, prompt=10)
    _, keys = made.work(3)
    assert keys == [[0, 1], [0, 2], [0, 2], [0, 1, 3]]


def test_unknown_lengths_follow_from_the_prompt():
    """ST-PFX-011, ST-PFX-012."""
    made = Made()
    first = made.call({"text": "a"}, {"text": "b"}, prompt=8, output=4)  # two unknown: a rest
    made.call({"text": "c"}, base=first, inherits=3, prompt=14)  # its output: no length is known
    made.call({"text": "c", "tokens": 2}, base=first, inherits=3, prompt=14)  # the output has 4 tokens
    made.call({"text": "c", "tokens": 2}, base=first, inherits=3, prompt=13)  # it has 3, as told
    made.call({"text": "c", "tokens": 6}, base=first, inherits=1, prompt=10)  # the first piece has 4
    work, keys = made.work()
    assert keys[0] == [0, 1, 2, 3, 4, 5]
    assert keys[1][:4] == keys[0][:4]
    assert not set(keys[1][4:]) & set(keys[0])
    assert keys[2][:6] == keys[0]
    assert keys[3][:4] == keys[0][:4]
    assert keys[3][4] not in keys[0]
    assert keys[4][:2] == keys[0][:2]
    assert work.known_by["rest"] == 8 + 6
    (remark,) = work.remarks
    assert (remark.requirement, remark.count, remark.rows) == ("ST-PFX-012", 2, (0, 1))


def test_one_unknown_length_is_what_the_others_leave_also_for_those_who_inherit():
    """ST-PFX-011, rule 3."""
    made = Made()
    first = made.call({"text": "a", "tokens": 2}, {"text": "b"}, {"text": "c", "tokens": 2}, prompt=8)
    made.call({"text": "d", "tokens": 2}, base=first, inherits=2, prompt=8)
    made.call({"text": "a", "tokens": 2}, {"text": "b", "tokens": 4}, {"text": "d", "tokens": 2})
    work, keys = made.work()
    assert keys == [[0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 2, 4]]
    assert work.remarks == ()


def test_an_input_without_pieces_is_its_own():
    """ST-PFX-012."""
    made = Made()
    made.call(prompt=4)
    made.call(prompt=4)
    work, keys = made.work()
    assert keys == [[0, 1], [2, 3]]
    assert "no pieces" in work.remarks[0].message
    assert work.remarks[0].count == 2


def test_ids_of_outputs_are_compared_too():
    """ST-PFX-021, ST-PFX-026."""
    made = Made()
    first = made.call(made.ids(1, 2), output=2)
    made.b.rows["operations"][first]["output_token_ids"] = made.b.artifact(
        struct.pack("<2I", 3, 4), TOKEN_IDS_TYPE
    )
    made.call(made.ids(0, 1, 2, 3, 4, start=1, tokens=4))
    made.call({"text": "a", "tokens": 2}, output=2)
    made.call({"text": "a", "tokens": 2}, output=2)
    _, keys = made.work()
    assert keys == [[0, 1], [0, 1], [2, 3], [2, 4]]


def test_an_output_repeated_is_that_output():
    """ST-PFX-022, ST-PFX-026."""
    made = Made()
    first = made.call({"text": "a", "tokens": 2}, output=4)
    made.b.output(first, "done it")
    for columns in (
        {"text": "done it"},
        {"text": "done it", "source_start": 0, "source_length": 7},
        {},
        {"text": "done", "source_start": 0, "source_length": 4},  # a part: a content of its own
        {"text": "else"},  # no span, and another text
    ):
        made.call({"text": "a", "tokens": 2}, {"source": first, "tokens": 4, **columns})
    work, keys = made.work()
    assert keys[:4] == [[0, 1, 2]] * 4
    assert keys[4:] == [[0, 3, 4], [0, 5, 6]]
    assert (work.known_by["repeated_output"], work.known_by["content"]) == (12, 12 + 8)


def test_an_output_is_told_without_its_reasoning():
    """ST-PFX-022, ST-PFX-026: told with another number of tokens than it can have, a segment is a content of its own."""
    made = Made()
    first = made.call({"text": "a", "tokens": 2}, output=6, reasoning_tokens=2)
    made.call({"text": "b", "tokens": 2}, base=first, inherits=2, prompt=8)
    for tokens in (4, 4, 6, 2):
        made.call({"text": "a", "tokens": 2}, {"source": first, "tokens": tokens}, {"text": "b", "tokens": 2})
    work, keys = made.work()
    assert keys[1] == keys[2] == keys[3] == [0, 4, 5, 6]
    assert not set(keys[4][1:]) & {*keys[0], *keys[1]}
    assert not set(keys[5][1:]) & {*keys[0], *keys[1], *keys[4]}
    assert work.known_by["repeated_output"] == 8


def test_a_tools_output_is_a_content():
    """ST-PFX-023: by the artifact, or by the source where there is none; of another length it is another content."""
    made = Made()
    tool = made.b.operation(made.task, OperationKind.TOOL, "tool", duration_ns=1)
    made.call({"source": tool, "tokens": 4})
    made.call({"source": tool, "tokens": 4})
    made.call({"source": tool, "tokens": 5})
    made.call({"text": "x", "tokens": 4})
    made.call({"text": "x", "source": tool, "tokens": 4})
    envelope = b'{"message":{"name":"n","role":"user"},"slots":[["/content","text",1]]}'
    made.call({"text": "x", "tokens": 4, "envelope": envelope})
    for start in (0, 0, 1):
        made.call({"source": tool, "source_start": start, "source_length": 7, "tokens": 4})
    _, keys = made.work(4)
    assert keys == [[], [0], [0], [1], [2], [2], [3], [4], [4], [5]]


def test_nothing_known_and_private_are_unique():
    """ST-PFX-025."""
    made = Made()
    first = made.call({"tokens": 4})
    made.call({"tokens": 4})
    made.call({"text": "x", "tokens": 4, "scope": SegmentScope.PRIVATE})
    made.call({"text": "x", "tokens": 4, "scope": SegmentScope.PRIVATE})
    made.call(base=first, inherits=1, prompt=4)
    work, keys = made.work(4)
    assert keys == [[0], [1], [2], [3], [0]]
    assert work.known_by == {
        "token_ids": 0, "repeated_output": 0, "content": 0, "block_ids": 0, "unique": 16, "rest": 0,
    }  # fmt: skip


@pytest.mark.parametrize("far", [1 << 20, 1 << 63])
def test_block_ids_of_any_size(far: int):
    """ST-PFX-024: ids that are far apart as well."""
    made = Made()
    held = made.b.artifact(struct.pack("<4Q", 1, far, 1, 2), BLOCK_IDS_TYPE)
    for start, tokens in ((0, 8), (2, 8), (0, 11), (0, 11)):
        made.call({"block_ids": held, "block_ids_start": start, "tokens": tokens})
    _, keys = made.work()
    assert keys == [[0, 1, 2, 3], [0, 1, 4, 5], [0, 1, 2, 3, 6], [0, 1, 2, 3, 7]]


def test_ids_that_are_not_here_are_compared_by_place():
    """ST-PFX-021, ST-PFX-024: equal ids at another place are not known to be equal, and that is remarked."""
    made = Made()
    held = made.b.artifact(struct.pack("<4Q", 1, 2, 1, 2), BLOCK_IDS_TYPE)
    for start in (0, 0, 2, 1):
        made.call({"block_ids": held, "block_ids_start": start, "tokens": 8})
    for start in (0, 0, 2, 1):
        made.call(made.ids(*[1, 2] * 4, start=start, tokens=4))
    _, here = made.work(4)
    assert here == [[0, 1], [0, 1], [0, 1], [2, 3], [4], [4], [4], [5]]
    work = Work.of(redact(Parts(made.b.build().trace), ContentLevel.SHAPE).trace, 4)
    keys = [part.tolist() for part in np.split(work.keys, work.key_start[1:-1])]
    assert keys == [[0, 1], [0, 1], [2, 3], [4, 5], [6], [6], [7], [8]]
    assert work.remarks[0].requirement == "ST-PFX-021"
    assert work.remarks[0].count == 2


def test_deep_and_shallow_inheritance_from_one_chain():
    """ST-PFX-020: an operation that inherits less than its base does begins with an earlier operation's input."""
    made = Made()
    last = made.call({"text": "0", "tokens": 2})
    for at in range(1, 6):
        last = made.call(
            {"text": str(at), "tokens": 2}, base=last, inherits=2 * at, prompt=2 * at + 2, reasoning_tokens=0
        )
    made.call(made.ids(7, 8), base=last, inherits=3, prompt=6)
    _, keys = made.work()
    assert keys[5] == [0, 1, 2, 3, 4, 5]
    assert keys[6] == [0, 1, 6]


def test_as_much_as_the_base_inherits_and_no_more():
    """ST-PFX-020: whoever it is inherited from."""
    made = Made()
    first = made.call({"text": "a", "tokens": 3}, {"text": "b", "tokens": 3})
    second = made.call({"text": "u", "tokens": 2}, base=first, inherits=2, prompt=8)
    made.call({"text": "v", "tokens": 2}, base=second, inherits=2, prompt=8)
    made.call({"text": "v", "tokens": 2}, base=first, inherits=2, prompt=8)
    made.call({"text": "a", "tokens": 3}, {"text": "b", "tokens": 3}, {"text": "v", "tokens": 2})
    _, keys = made.work(4)
    assert keys == [[0], [0, 1], [0, 2], [0, 2], [0, 2]]


def test_many_levels_of_one_token():
    """Strings of one chain share blocks that end inside of what each adds."""
    made = Made()
    last = made.call(made.ids(0))
    for at in range(1, 40):
        last = made.call(made.ids(at % 3), base=last, inherits=2 * at - 1, prompt=at + 1)
    made.call(made.ids(*(at % 3 for at in range(40))))
    _, keys = made.work(4)
    assert keys[-1] == keys[-2] == list(range(10))


def test_each_a_little_longer_than_the_one_before():
    """The last of many strings goes through a part of each of them: more parts than there was room for."""
    made = Made()
    held = made.b.artifact(struct.pack("<90Q", *range(90)), BLOCK_IDS_TYPE)
    made.call({"text": "z", "tokens": 8})
    for count in range(1, 91):
        made.call({"block_ids": held, "block_ids_start": 0, "tokens": 4 * count})
    made.call({"block_ids": held, "block_ids_start": 1, "tokens": 4})
    work, keys = made.work(4)
    assert keys[1:-1] == [list(range(2, 2 + count)) for count in range(1, 91)]
    assert (keys[0], keys[-1]) == ([0, 1], [92])
    assert work.key_count == 93


def test_refusals():
    made = Made()
    made.call({"text": "a", "tokens": 4})
    trace = made.b.build().trace
    with pytest.raises(UsageError, match="at least one token"):
        Work.of(trace, 0)
    made.call({"text": "a", "tokens": 1 << 39})
    with pytest.raises(UsageError, match="blocks of 1 tokens, more than"):
        Work.of(made.b.build().trace, 1)
    made.call({"text": "a"}, prompt=None, output=None)
    with pytest.raises(ReplayError) as unknown:
        Work.of(made.b.build().trace, 16)
    assert unknown.value.requirement == "ST-REL-011"


@pytest.mark.parametrize(
    ("change", "requirement"),
    [
        ({"prompt_tokens": 3}, "ST-CTX-005"),
        ({"token_ids_start": 1}, "ST-SEG-006"),
        ({"output_tokens": 1}, "ST-SEG-012"),
        ({"block_ids_start": 1}, "ST-SEG-009"),
    ],
)
def test_invalid_traces_are_refused_and_do_no_harm(change: dict[str, int], requirement: str):
    made = Made()
    first = made.call(made.ids(1, 2, 3, 4), output=2)
    held = made.b.artifact(struct.pack("<1Q", 1), BLOCK_IDS_TYPE)
    made.call({"block_ids": held, "block_ids_start": 0, "tokens": 4})
    made.b.rows["operations"][first]["output_token_ids"] = made.b.artifact(
        struct.pack("<2I", 3, 4), TOKEN_IDS_TYPE
    )
    for table in ("operations", "segments"):
        row = made.b.rows[table][1 if "block_ids_start" in change else 0]
        row.update({name: value for name, value in change.items() if name in row})
    with pytest.raises((ReplayError, FormatError)) as refused:
        Work.of(made.b.build().trace, 2)
    assert refused.value.requirement == requirement


def test_rests_are_the_same_with_the_same_pieces_and_length():
    """ST-PFX-013."""
    made = Made()
    made.call({"text": "a"}, {"text": "b"}, prompt=4)
    made.call({"text": "a"}, {"text": "b"}, prompt=4)
    made.call({"text": "a"}, {"text": "b"}, prompt=6)
    made.call({"text": "a"}, {"text": "c"}, prompt=4)
    made.call({"text": "a"}, {"text": "b", "scope": SegmentScope.PRIVATE}, prompt=4)
    made.call({"text": "a"}, {"tokens": None}, prompt=4)
    made.call({"text": "a"}, {"text": "b"}, {"text": "b"}, prompt=4)
    first = made.call({"text": "x", "tokens": 2}, {"text": "a"}, {"text": "b"}, prompt=6)
    made.call({"text": "a"}, {"text": "b"}, base=first, inherits=1, prompt=6)
    made.call(
        {"text": "a"}, {"text": "b"}, base=first, inherits=2, prompt=8
    )  # where the second piece ends is not known
    work, keys = made.work(4)
    assert [part[0] for part in keys[:7]] == [0, 0, 1, 2, 3, 4, 5]
    assert keys[8] == keys[7]
    assert keys[9][0] not in keys[7]
    assert work.known_by["rest"] == 4 * 5 + 6 + 4 + 4 + 4 + 6


def test_a_rest_with_inherited_pieces_is_its_own():
    """ST-PFX-013: what is inherited of it is not in the list of its segments."""
    made = Made()
    for text in ("p", "r"):
        base = made.call({"text": "x", "tokens": 4}, {"text": text}, {"text": "q"}, prompt=12)
        made.call({"text": "a"}, base=base, inherits=2, prompt=12)
    _, keys = made.work(4)
    assert keys == [[0, 1, 2], [0, 3, 4], [0, 5, 6], [0, 7, 8]]
