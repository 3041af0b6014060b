"""What is sent as prompts, by hand: kinds and how they are chosen, what cannot be sent, salts, and what is locked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from semtrace.build import TraceBuilder
from semtrace.errors import UsageError
from semtrace.live.prompts import Inputs
from semtrace.live.settings import Vocabulary
from semtrace.records.enums import OperationKind, OperationStatus, Role, SegmentScope
from support.prefix_examples import made
from support.small_traces import withheld

if TYPE_CHECKING:
    from semtrace.records.trace import Trace

VOCABULARY = Vocabulary(first=100, size=1100)
IDS: list[dict[str, Any]] = [
    {"name": "a", "pieces": [{"ids": [5, 6, 7]}], "output": 2, "output_ids": [8, 9], "reasoning": 0},
    {"name": "b", "base": "a", "inherits": 2, "pieces": [{"ids": [4]}], "prompt": 6, "output": 1},
]
TEXTS: list[dict[str, Any]] = [
    {"name": "a", "pieces": [{"text": "one", "tokens": 2}], "output": 2},
    {"name": "b", "pieces": [{"text": "two", "tokens": 2}], "output": 2},
]


def build(operations: list[dict[str, Any]]) -> Trace:
    return made([dict(each) for each in operations])


def requirements(inputs: Inputs) -> list[str]:
    return [finding.requirement for finding in inputs.findings()]


def test_recorded_ids_are_sent_where_all_are_known():
    inputs = Inputs(build(IDS))
    assert inputs.kind == "token_ids"
    assert inputs.findings() == []
    ids = inputs.ids(1, 0)
    assert ids is not None
    assert ids.dtype == np.int32
    assert ids.tolist() == [5, 6, 7, 8, 9, 4]
    assert inputs.messages(1) is None
    assert inputs.facts() == {"inputs": "token_ids"}


def test_private_ids_are_sent_as_they_were_recorded():
    operations = [{"name": "a", "pieces": [{"ids": [5, 6], "scope": "private"}], "output": 1}]
    ids = Inputs(build(operations), kind="token_ids").ids(0, 0)  # ST-INP-002
    assert ids is not None
    assert ids.tolist() == [5, 6]


def test_ids_that_are_not_known_are_a_finding():
    inputs = Inputs(withheld(build(IDS)), kind="token_ids")
    (finding,) = inputs.findings()
    assert finding.requirement == "ST-INP-003"
    assert finding.rows == (0, 1)
    assert inputs.ids(0, 0) is None


def test_the_output_of_hidden_reasoning_is_not_known_as_it_is_told():
    operations = [dict(IDS[0], reasoning=1), dict(IDS[1], prompt=5)]
    inputs = Inputs(build(operations), kind="token_ids")
    (finding,) = inputs.findings()
    assert (finding.requirement, finding.rows) == ("ST-INP-003", (1,))


def test_ids_that_the_server_does_not_know_are_a_finding():
    trace = build(IDS)
    assert requirements(Inputs(trace, kind="token_ids", known_ids=10)) == []
    (finding,) = Inputs(trace, kind="token_ids", known_ids=9).findings()
    assert (finding.requirement, finding.rows) == ("ST-INP-004", (1,))  # the output that it inherits has a 9
    locked = Inputs(
        trace,
        kind="token_ids",
        known_ids=9,
        mode="token_locked",
        synthetic_outputs=True,
        vocabulary=VOCABULARY,
    )
    (finding,) = locked.findings()
    assert (finding.requirement, finding.rows) == ("ST-INP-004", (0, 1))
    assert Inputs(trace, vocabulary=Vocabulary(first=0, size=9)).kind == "synthetic"


def test_that_it_is_not_known_which_ids_a_server_knows_is_told():
    trace = build(IDS)
    assert [each.requirement for each in Inputs(trace).remarks()] == ["ST-INP-004"]
    assert Inputs(trace, known_ids=10).remarks() == []


def test_texts_are_sent_where_ids_are_not_known():
    inputs = Inputs(build(TEXTS))
    assert inputs.kind == "text"
    assert inputs.findings() == []
    assert inputs.messages(1) == {"messages": [{"role": "user", "content": "two"}]}
    assert inputs.ids(1, 0) is None  # how many tokens it has is up to the server: ST-INP-006


def test_a_text_that_is_not_at_hand_is_a_finding():
    inputs = Inputs(withheld(build(TEXTS)), kind="text")
    (finding,) = inputs.findings()
    assert (finding.requirement, finding.rows) == ("ST-INP-005", (0, 1))
    assert inputs.messages(0) is None


@pytest.mark.parametrize(
    ("takes_ids", "known", "kind"),
    [(True, True, "token_ids"), (True, False, "synthetic"), (False, True, "text"), (False, False, "text")],
)
def test_a_kind_is_chosen(takes_ids: bool, known: bool, kind: str):
    trace = build(IDS)
    inputs = Inputs(trace if known else withheld(trace), takes_ids=takes_ids, vocabulary=VOCABULARY)
    assert inputs.kind == kind  # ST-INP-007
    assert requirements(inputs) == ([] if takes_ids else ["ST-INP-005"])


def embedding() -> Trace:
    b = TraceBuilder()
    row = b.operation(b.task("t"), OperationKind.EMBED, "index", prompt_tokens=5)
    b.segment(row, Role.TEMPLATE, "<s>", tokens=1)
    b.segment(row, Role.USER, "one ", tokens=2)
    b.segment(row, Role.USER, "two", tokens=2)
    return b.build().trace


def test_an_embedding_is_sent_as_one_text():
    assert Inputs(embedding(), kind="text").text(0) == "one two"
    assert Inputs(withheld(embedding()), kind="text").text(0) is None
    assert Inputs(embedding(), kind="synthetic", vocabulary=VOCABULARY).text(0) is None


def test_synthetic_tokens_need_a_vocabulary():
    inputs = Inputs(build(TEXTS), kind="synthetic")
    assert requirements(inputs) == ["ST-INP-010"]
    with pytest.raises(UsageError, match="need a vocabulary"):
        inputs.ids(0, 0)
    with pytest.raises(UsageError, match="tell no two tokens apart"):
        Inputs(build(TEXTS), vocabulary=Vocabulary(first=4, size=5))


def test_an_empty_prompt_is_a_finding():
    b = TraceBuilder()
    b.operation(b.task("t"), OperationKind.LLM, "call", prompt_tokens=0, output_tokens=2)
    inputs = Inputs(b.build().trace, kind="synthetic", vocabulary=VOCABULARY)
    assert requirements(inputs) == ["ST-INP-011"]


def test_what_does_not_run_on_the_backend_is_not_sent_and_no_finding():
    b = TraceBuilder()
    task = b.task("t")
    b.operation(task, OperationKind.TOOL, "tool", duration_ns=4)
    b.operation(task, OperationKind.LLM, "call", status=OperationStatus.ERROR, duration_ns=4)
    for kind in ("token_ids", "text", "synthetic"):
        inputs = Inputs(b.build().trace, kind=kind, vocabulary=VOCABULARY, mode="token_locked")  # type: ignore[arg-type]  # each kind in turn
        assert inputs.findings() == []
        assert [inputs.ids(row, 0) for row in range(2)] == [None, None]
        assert [inputs.messages(row) for row in range(2)] == [None, None]
        assert [inputs.output_ids(row) for row in range(2)] == [None, None]


def test_ids_that_no_server_knows_are_made_up_with_the_rest():
    operations = [
        {"name": "x", "pieces": [{"ids": [7, 5000, 7]}], "output": 0},
        {"name": "y", "pieces": [{"ids": [7, 5000]}, {"text": "t", "tokens": 1}], "output": 0},
    ]
    inputs = Inputs(build(operations), kind="synthetic", vocabulary=VOCABULARY)
    x, y = inputs.ids(0, 0), inputs.ids(1, 0)
    assert x is not None
    assert y is not None
    assert inputs.findings() == []
    assert ((x >= 100) & (x < 1100)).all()
    assert (x[:2] == y[:2]).all()
    assert x[2] != y[2]
    assert inputs.facts()["recorded_ids"] is False  # ST-INP-018


@pytest.mark.parametrize(
    ("salt", "instances", "groups"),
    [
        ("copy", [0, 1, 2, 3], [0, 1, 0, 1]),
        ("instance", [0, 1, 2, 3], [0, 1, 2, 3]),
        ("none", [0, 3], [0, 0]),
    ],
)
def test_groups_are_those_of_the_salt(salt: Any, instances: list[int], groups: list[int]):
    inputs = Inputs(build(IDS), salt=salt, copies=2)
    assert [inputs.group(instance) for instance in instances] == groups
    salts = [inputs.cache_salt(instance) for instance in instances]
    if salt == "none":
        assert salts == [None, None]
    else:
        assert len(set(salts)) == len(set(groups))
        assert None not in salts  # ST-INP-017


def test_salts_are_for_those_who_need_them():
    ids, texts = build(IDS), build(TEXTS)
    assert Inputs(ids, copies=1).cache_salt(0) is None
    assert Inputs(texts, copies=2).cache_salt(0) is not None
    assert Inputs(texts, copies=2, kind="synthetic", vocabulary=VOCABULARY).cache_salt(0) is None
    assert Inputs(ids, copies=2, kind="synthetic", vocabulary=VOCABULARY).cache_salt(0) is not None
    small = Vocabulary(first=0, size=4)  # recorded ids are not among them
    assert Inputs(ids, copies=2, kind="synthetic", vocabulary=small).cache_salt(0) is None


def test_outputs_without_ids_are_not_locked_unless_asked_for():
    trace = build(IDS)
    inputs = Inputs(trace, mode="token_locked", known_ids=100)
    (finding,) = inputs.findings()
    assert (finding.requirement, finding.rows) == ("ST-INP-021", (1,))
    assert inputs.output_ids(1) is None
    asked = Inputs(trace, mode="token_locked", synthetic_outputs=True, vocabulary=VOCABULARY)
    assert asked.findings() == []
    unsaid = Inputs(trace, mode="token_locked", synthetic_outputs=True)
    assert requirements(unsaid) == ["ST-INP-010"]
    recorded, synthetic = asked.output_ids(0), asked.output_ids(1)
    assert recorded is not None
    assert synthetic is not None
    assert recorded.tolist() == [8, 9]
    assert len(synthetic) == 1
    assert 100 <= synthetic[0] < 1100
    assert asked.facts() == {"inputs": "token_ids", "synthetic_outputs": 1}  # ST-INP-001, ST-INP-022


def test_a_later_prompt_has_the_output_that_is_locked():
    trace = build([*TEXTS, {"name": "c", "base": "a", "inherits": 2, "pieces": [], "prompt": 4, "output": 1}])
    inputs = Inputs(
        trace, kind="synthetic", mode="token_locked", synthetic_outputs=True, vocabulary=VOCABULARY
    )
    prompt, output, later = inputs.ids(0, 0), inputs.output_ids(0), inputs.ids(2, 0)
    assert prompt is not None
    assert output is not None
    assert later is not None
    assert later.tolist() == [*prompt, *output]  # ST-INP-020


def test_recorded_outputs_are_not_locked_where_recorded_ids_are_not_sent():
    inputs = Inputs(build(IDS), kind="synthetic", mode="token_locked", vocabulary=Vocabulary(first=0, size=9))
    assert requirements(inputs) == ["ST-INP-021"]
    assert inputs.findings()[0].rows == (0, 1)


def test_that_ids_do_not_suffice_is_told():
    operations = [
        {"name": f"p{at}", "pieces": [{"text": f"{at}", "tokens": 9}], "output": 1} for at in range(30)
    ]
    inputs = Inputs(build(operations), kind="synthetic", vocabulary=Vocabulary(first=0, size=4))
    (remark,) = inputs.remarks()
    assert remark.requirement == "ST-INP-014"
    assert "up to 2 tokens more" in remark.message  # 30 ways to go on: 4, 16, 64 ids
    firsts = [tuple(inputs.ids(row, 0)[:3].tolist()) for row in range(30)]  # type: ignore[index]  # there are ids, or the test fails
    assert len(set(firsts)) == 30
    assert max(np.bincount([each[0] for each in firsts])) == 8  # as few as can be


def test_large_prompts_are_made_of_few_calls():
    """A long conversation: every turn inherits the last one; its last prompt is all of it."""
    b = TraceBuilder()
    task, before, total = b.task("t"), None, 0
    for turn in range(300):
        row = b.operation(task, OperationKind.LLM, "turn")
        if before is not None:
            b.inherit(row, before, len(b.context(before)) + 1)
            total += 10
        b.segment(row, Role.USER, f"turn {turn}", tokens=1000, scope=SegmentScope.SHARED)
        total += 1000
        b.rows["operations"][row].update(
            prompt_tokens=total, output_tokens=10, reasoning_tokens=0, tokens_evidence=1
        )
        before = row
    inputs = Inputs(b.build().trace, kind="synthetic", vocabulary=VOCABULARY, copies=3)
    last, first = inputs.ids(299, 2), inputs.ids(0, 2)
    assert last is not None
    assert first is not None
    assert len(last) == total
    assert (last[: len(first)] == first).all()
