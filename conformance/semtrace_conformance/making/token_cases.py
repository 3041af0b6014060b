"""The cases of the profile token_locked: outputs come position by position."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from semtrace.records.enums import FinishReason
from semtrace_conformance.live.work import Failed
from semtrace_conformance.making.live_parts import EOS, MS, RETRY, case, ids, rules_of
from semtrace_conformance.making.release_cases import document, trace_of
from semtrace_conformance.making.work import After, Op, Work, llm, tool

if TYPE_CHECKING:
    from semtrace_conformance.making.book import Book


def add_token_locked(book: Book) -> None:
    """Add all cases of the profile."""
    _tokens(book)
    _token_refusals(book)


def _locked(
    name: str, prompt: int, output: tuple[int, ...], *after: str | After, stop: bool, **more: Any
) -> Op:
    """A call with its output, which ends by its last token or not."""
    own = {"prompt_ids": ids(sum(name.encode()), prompt), **more}
    return llm(
        name, own.pop("whole", prompt), len(output), *after, output_ids=output,
        finish=FinishReason.STOP if stop else FinishReason.LENGTH, **own,
    )  # fmt: skip


SPOKEN: Final = Work(
    [
        _locked("ask", 20, (*ids(40, 7), EOS), stop=True),
        _locked("cut off", 25, ids(41, 9), "ask", stop=False),
        _locked("goes on", 12, (*ids(42, 3), EOS, *ids(43, 3)), "ask", stop=False),
        _locked("only an end", 9, (EOS,), "ask", stop=True),
        tool("wait", 10 * MS, "only an end"),
        _locked("answer", 30, (*ids(44, 5), EOS), "cut off", "goes on", "wait", stop=True),
    ]
)


def _tokens(book: Book) -> None:
    first = _locked("first", 20, (*ids(50, 6), EOS), stop=True)
    second = _locked("second", 8, (*ids(51, 4), EOS), "first", stop=True, base="first", whole=35)
    third = _locked("third", 5, ids(52, 6), "second", stop=False, base="second", whole=45)
    common = ["ST-LIV-021", "ST-LIV-022", "ST-SCN-010"]
    case(
        book, "token_locked/ids", "outputs position by position: ended by their last token, cut off, with an end inside",
        [*common, "ST-INP-002"], SPOKEN,
    )  # fmt: skip
    case(
        book, "token_locked/turns", "three turns, each repeating the outputs before it",
        [*common, "ST-INP-002", "ST-INP-020"], Work([first, second, third]),
        scenario={"copies": 3, "arrivals": {"kind": "drawn", "times_ns": [0, 20 * MS, 31 * MS]}},
        features=["arrivals"],
    )  # fmt: skip
    plan = {
        "edges": [
            {"source": 1, "target": 2},
            {"source": 1, "target": 3, "trigger": "first_token", "lag_ns": 30 * MS},
        ]
    }
    case(
        book, "token_locked/plan", "with constraints that a plan adds", [*common, "ST-PLAN-006"], SPOKEN, plan=plan,
        features=["plans"],
    )  # fmt: skip
    case(
        book, "token_locked/retries", "a request that is sent again locks the same ids", [*common, "ST-LIV-042"], SPOKEN,
        scenario={"retry": RETRY},
        script={
            "rules": rules_of(
                {"ask": [{"kind": "status", "status": 429}], "cut off": [{"kind": "reset", "after_tokens": 4}]},
                ["ask", "cut off"],
            )
        },
        failed=[Failed(instance=0, operation=at, least=2, most=2) for at in (0, 1)],
        features=["retries"],
    )  # fmt: skip
    case(
        book, "token_locked/astray", "a server that yields another id is told of as it is",
        [*common, "ST-LIV-040"], SPOKEN,
        script={
            "rules": rules_of(
                {"cut off": [{"kind": "ids", "position": 4}], "goes on": [{"kind": "eos", "after_tokens": 4}]},
                ["ask", "cut off", "goes on"],
            )
        },
        failed=[Failed(instance=0, operation=at, astray=True) for at in (1, 2)],
    )  # fmt: skip


def _token_refusals(book: Book) -> None:
    base = "token_locked/ids"
    served = book.pages[base].case.witness
    if served is None:
        raise ValueError(f"{base} has no server")
    book.change(
        base, "token_locked/no-lock", "the server cannot lock tokens", ["ST-LIV-021", "ST-SCN-010"], files={},
        witness=served.model_copy(update={"token_lock": False}),
    )  # fmt: skip
    last = SPOKEN.operations[-1]
    bundle, digest = trace_of(
        replace(SPOKEN, operations=[*SPOKEN.operations[:-1], replace(last, output_ids=None)])
    )
    book.change(
        base, "token_locked/no-ids", "the ids of the last output are not known", ["ST-LIV-024", "ST-INP-021"],
        files={"trace.semtrace": bundle, "plan.json": document({"work_digest": digest, "name": "dag"})},
    )  # fmt: skip
