"""What is said of wrong documents: in words of people, each place once, with what may have been meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from semtrace.engine.document import EngineDocument
from semtrace.errors import DocumentError
from semtrace.graph.plan import Plan
from semtrace.replay.scenario import Scenario
from semtrace.sweep.document import SweepDocument

if TYPE_CHECKING:
    from semtrace.records.document import Document


def said(document: type[Document], value: Any) -> DocumentError:
    with pytest.raises(DocumentError) as caught:
        document.parse(value, path="file")
    return caught.value


@pytest.mark.parametrize(
    ("document", "value", "message"),
    [
        (Scenario, None, "is empty"),
        (Scenario, [1], "must be a mapping of keys to values, and is a list"),
        (Scenario, "x", "must be a mapping of keys to values, and is 'x'"),
        (SweepDocument, {"plans": ["chian"]}, "plans.0: must be 'dag' or a mapping of keys to values, and is 'chian'"),
        (
            SweepDocument,
            {"plans": ["dag", {"rule": "chian"}]},
            "plans.1.rule: must be 'chain', 'level', 'width' or 'stages', and is 'chian'; did you mean 'chain'?",
        ),
        (SweepDocument, {"plans": [{}]}, "plans.0.rule: is missing"),
        (SweepDocument, {"plans": []}, "plans: must have at least 1 element"),
        (SweepDocument, {"seeds": [-1, "x"]}, "seeds.0: must be at least 0, and is -1; seeds.1: must be a whole number, and is 'x'"),
        (SweepDocument, {"copies": True}, "copies: must be a whole number, and is true"),
        (SweepDocument, {"copies": None}, "copies: must be a whole number, and is empty"),
        (
            Scenario,
            {"arrivals": "poisson:50000000"},
            "arrivals: must be a mapping of keys to values, and is 'poisson:50000000'",
        ),
        (
            Scenario,
            {"arrivals": {"kind": "poison"}},
            (
                "arrivals: kind must be one of 'recorded', 'together', 'closed_loop', 'poisson', 'drawn', and is 'poison'; "
                "did you mean 'poisson'?"
            ),
        ),
        (Scenario, {"arrivals": {"kind": "poisson"}}, "arrivals.mean_ns: is missing"),
        (Scenario, {"arrivals": {}}, "arrivals: needs a key 'kind'"),
        (Scenario, {"format": "semtrace-sweep"}, "is of the format 'semtrace-sweep', where 'semtrace-scenario' is wanted"),
        (EngineDocument, {"max_num_seqs": 8}, "unknown key 'max_num_seqs', did you mean 'scheduler.max_num_seqs'?; cost: is missing"),
        (
            EngineDocument,
            {"settings": 1, "plans": 1, "arrivals": 1, "seeds": 1, "example.org/x": 1},
            "unknown keys 'settings', 'plans', 'arrivals', 'seeds': another kind of document?; cost: is missing",
        ),
    ],
)  # fmt: skip
def test_what_is_said(document: type[Document], value: Any, message: str):
    assert said(document, value).message == message


@pytest.mark.parametrize("document", [Scenario, SweepDocument, Plan, EngineDocument])
def test_whoever_writes_a_document_is_told_how_one_begins(document: type[Document]):
    assert said(document, None).hint == document.HINT
    assert document.HINT


@pytest.mark.parametrize("document", [Scenario, SweepDocument, Plan, EngineDocument])
@pytest.mark.parametrize(
    "value", [None, [], 1, "x", {"format": 1}, {"plans": 1, "arrivals": 1, "copies": "x", "cost": 1}]
)
def test_no_word_of_what_reads_documents_is_said(document: type[Document], value: Any):
    message = said(document, value).message
    assert not any(
        word in message for word in ("Input", "instance", "dictionary", "Field", "literal[", "BarrierChoice")
    )
